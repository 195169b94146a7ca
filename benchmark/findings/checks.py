"""Every check by the name of its flag: when the flag is raised, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """When a flag is raised, and what to do about it."""

    rule: str
    advice: str


CHECKS = {
    "unmoved": Check(
        "more than 1 % of the attacked images come back unchanged from an attack with a bound, or more than 99 % from "
        "another",
        "Do not read this as robustness: see that the attack gets labels, not targets, and pixels in [0, 1], and that "
        "the model lets a gradient through.",
    ),
    "never-left": Check(
        "on more than 1 % of the attacked images, an attack that gives the clean image back where it fails never tried "
        "another: its first step was nothing, and so was every one after it; what was wrong before counts in tier "
        "paper only",
        "Do not read these images as robust: their gradient is too small for this constant and step, so raise c or lr "
        "until the attack takes a step, or use one that does not depend on the gradient's size.",
    ),
    "zero-gradient": Check(
        "on more than 1 % of the attacked images the first gradient is zero or not finite; what was wrong before "
        "counts in tier paper only",
        "Give attacks logits that do not saturate, and remove or approximate what stops the gradient: rounding, "
        "detach, clamp.",
    ),
    "not-finite": Check(
        "an image that came back holds NaN or infinity",
        "Look for a division by a zero gradient or an overflow in the attack; these images count as not fooled.",
    ),
    "no-prediction": Check(
        "the model's output for an image is not a number, so it predicts no class; such an image counts as wrong",
        "Look for a division by zero or an overflow in the model: a number of a model that fails is no robustness.",
    ),
    "out-of-ball": Check(
        "an image that came back lies more than 1e-6 outside its eps-ball",
        "Mend the attack's projection: the images were projected and judged again, which may understate it.",
    ),
    "out-of-box": Check(
        "an image that came back lies more than 1e-6 outside [0, 1]",
        "Mend the attack's clipping or its idea of the pixel range: the images were clipped and judged again.",
    ),
    "out-of-memory": Check(
        "images ran in batches smaller than the one asked for",
        "Run all that is to be compared with a --batch-size that fits: some attacks depend on it.",
    ),
    "not-alike": Check(
        "cells of one row ran with different batch sizes, on different devices, on copies made in different ways, or "
        "with different versions of a library",
        "Compare only numbers that were measured alike: some attacks depend on each of these, so run the row again "
        "with the same options.",
    ),
    "randomised-output": Check(
        "the model, shown the first images of a batch twice, gives two different outputs",
        "Fix the randomness in eval mode, or attack the expectation over it: one draw says little. A model whose "
        "output depends on the rest of its batch shows the same: evaluate it in a mode that does not.",
    ),
    "wrong-way": Check(
        "of the images that moved, significantly more than half moved away from the attack's goal: by its margin, the "
        "model got surer of the label",
        "See that the attack does not take the label for a target and that its sign is right; if it is sound, the "
        "model's gradient misleads it.",
    ),
    "predicted-label-floor": Check(
        "in tier paper, at least half of the images counted as right, and significantly many, were wrong before the "
        "attack",
        "Read tier strict instead: here the attack starts from the predicted label, and pushing a wrong image back "
        "to right raises the number.",
    ),
    "not-at-chance": Check(
        "under an iterative L∞ attack with eps ≥ 0.5, which can turn any image grey, significantly more images stay "
        "right than the most frequent class has",
        "Suspect the attack or a masked gradient: no classifier can be right here, so use a query-only or transfer "
        "attack.",
    ),
    "single-step-wins": Check(
        "a single-step attack with the same or a smaller eps fools significantly more images than the strongest "
        "iterative one",
        "Suspect a masked gradient, or steps too small to cross the ball: try a larger step_size and more steps.",
    ),
    "not-monotone": Check(
        "an attack fools significantly fewer images than the same attack with a smaller eps",
        "Give the larger eps more steps or a step_size in proportion, and report the worst case over the smaller ones.",
    ),
    "not-converged": Check(
        "the same attack with more steps, restarts or queries fools significantly more images",
        "Report the longer attack, and go on until more work changes nothing.",
    ),
    "query-only-wins": Check(
        "an attack that uses no gradient fools, with the same or a smaller eps, significantly more images than the "
        "strongest iterative white-box one; in a worst case, more than 2 % of the images fell to it alone",
        "Suspect a masked gradient: report the query-only number as the bound, and adapt the gradient attack to the "
        "model.",
    ),
    "transfer-wins": Check(
        "images made on another model fool, with the same or a smaller eps, significantly more often than those of "
        "the strongest iterative white-box attack",
        "Suspect a masked gradient: report the transfer number as the bound, and adapt the gradient attack to the "
        "model.",
    ),
    "strong-tier-beaten": Check(
        "a single attack with the same or a smaller eps fools an image that the worst case of tier strong counts as "
        "right",
        "Count those images as broken, and add that attack to the suite.",
    ),
}
"""Every check by the name of its flag."""
