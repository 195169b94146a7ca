"""Every check by the name of its flag: when the flag is raised, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from defenses.training.convergence import ADVICE


@dataclass(frozen=True)
class Check:
    """When a flag is raised, and what to do about it."""

    rule: str
    advice: str


TRAINING = "training-not-converged"
"""The only check that concerns an ensemble and not an attack."""
CHECKS = {
    "unmoved": Check(
        "an attack with a bound returns more than 1 % of the attacked images unchanged; an attack without a bound, "
        "more than 99 %",
        "Do not read this as robustness. Check that the attack receives labels, not targets, and pixels in [0, 1], and "
        "that the model passes a gradient.",
    ),
    "never-left": Check(
        "on more than 1 % of the attacked images, every step of a minimum-norm attack was zero, so the image never "
        "changed; images misclassified before the attack count in tier paper only",
        "Do not read these images as robust: the gradient is too small for this constant and step size. Raise c or lr "
        "until the attack takes a step, or use an attack that does not depend on the size of the gradient.",
    ),
    "zero-gradient": Check(
        "on more than 1 % of the attacked images the first gradient is zero or not finite; images misclassified before "
        "the attack count in tier paper only",
        "Give the attack logits that do not saturate, and remove or approximate operations that stop the gradient: "
        "rounding, detach, clamp.",
    ),
    "not-finite": Check(
        "a returned image contains NaN or infinity",
        "Look for a division by a zero gradient or an overflow in the attack. These images count as not fooled.",
    ),
    "no-prediction": Check(
        "the model's output for an image is not a number; the image counts as misclassified. Also raised if an attack "
        "met such outputs and returned other images",
        "Look for a division by zero or an overflow in the model. A failing model is not a robust one.",
    ),
    "out-of-ball": Check(
        "a returned image lies more than 1e-6 outside its eps-ball",
        "Fix the attack's projection. The images were projected and judged again, which may understate the attack.",
    ),
    "out-of-box": Check(
        "a returned image lies more than 1e-6 outside [0, 1]",
        "Fix the attack's clipping or its pixel range. The images were clipped and judged again.",
    ),
    "out-of-memory": Check(
        "some images ran in batches smaller than requested",
        "Choose a --batch-size that fits for everything you compare: some attacks depend on it.",
    ),
    "not-alike": Check(
        "cells of one row ran with different batch sizes, devices, accelerations, library versions or attacks of a "
        "suite",
        "Run the row again with the same options: some attacks depend on each of these.",
    ),
    "randomised-output": Check(
        "the model gives two different outputs for the same images of a batch, and the attack does not average draws",
        "Attack the expectation over the randomness: add eot=20 to the attack, or use arc for an ensemble that draws a "
        "member, or autoattack(version=rand). Accuracy is the share of right predictions in 20 draws of every image. "
        "Randomness that is no part of the defense is better switched off in eval mode.",
    ),
    "wrong-way": Check(
        "significantly more than half of the changed images moved away from the attack's goal: the margin of the true "
        "label grew",
        "Check that the attack does not take the label for a target, and check its sign. If both are right, the "
        "model's gradient misleads the attack.",
    ),
    "predicted-label-floor": Check(
        "in tier paper, at least half of the images counted as correct, and significantly many, were misclassified "
        "before the attack",
        "Read tier strict instead. In tier paper the attack starts from the predicted label; it pushes misclassified "
        "images to the true class and raises the accuracy.",
    ),
    "not-at-chance": Check(
        "under an iterative L∞ attack with eps ≥ 0.5, which can turn any image grey, accuracy is significantly above "
        "the share of the most frequent class",
        "Suspect the attack or a masked gradient: no classifier can be right here. Try a query-only or transfer "
        "attack.",
    ),
    "single-step-wins": Check(
        "a single-step attack with the same or a smaller eps fools significantly more images than the strongest "
        "iterative attack",
        "Suspect a masked gradient, or steps too small to cross the ball. Try a larger step_size and more steps.",
    ),
    "not-monotone": Check(
        "an attack fools significantly fewer images than the same attack with a smaller eps",
        "Give the larger eps more steps or a proportional step_size, and report the worst case over the smaller ones.",
    ),
    "not-converged": Check(
        "the same attack with more steps, restarts or queries fools significantly more images",
        "Report the longer attack, and add steps until the accuracy no longer falls.",
    ),
    "query-only-wins": Check(
        "an attack without gradients, with the same or a smaller eps, fools significantly more images than the "
        "strongest iterative white-box attack; in a worst case, more than 2 % of the images fell to it alone",
        "Suspect a masked gradient. Report the query-only accuracy, and adapt the gradient attack to the model.",
    ),
    "transfer-wins": Check(
        "images made on another model, with the same or a smaller eps, fool the model significantly more often than "
        "the strongest iterative white-box attack",
        "Suspect a masked gradient. Report the transfer accuracy, and adapt the gradient attack to the model.",
    ),
    TRAINING: Check(
        "the ensemble was trained, and its training accuracy still rose by 5 points or more between the last two "
        "tenths of the epochs while it was below 95 %, or a member is hardly better than guessing on test images, or "
        "the ensemble is 5 points or more below the mean of its members; checkpoints of older versions do not say",
        ADVICE,
    ),
    "strong-tier-beaten": Check(
        "a single attack with the same or a smaller eps fools an image that the worst case of tier strong counts as "
        "correct",
        "Count those images as broken, and add that attack to the suite.",
    ),
}
"""Every check by the name of its flag."""
