"""The tiers: by which rules a defense is attacked and judged, and what one of them can take over from another."""

from __future__ import annotations

import pandas as pd

from defenses.errors import BadInput
from defenses.registry import did_you_mean

TIERS = {
    "paper": "the paper's attacks with the paper's quirks: predicted labels, probabilities as logits, all images",
    "strict": "the same attacks with true labels and correct outputs; an image that is wrong already counts as wrong",
    "strong": "the worst case over a suite of strong attacks at each eps of the preset, image by image",
}

FLAGS = ("unmoved", "not_finite", "out_of_box", "out_of_ball", "zero_gradient")
JUDGED = ("unstable", "wrong_way", "never_left")
NORMS = ("linf", "l2", "l1", "l0")
PICTURES = ("shape", "image_clean", "image_adversarial", "members", "adversarial", "adversarial_shape")


def check_tier(tier: str) -> str:
    """The tier, if there is one of that name."""
    if tier not in TIERS:
        raise BadInput(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")
    return tier


def as_strict(records: pd.DataFrame) -> pd.DataFrame:
    """Records of tier ``paper`` by the rules of ``strict``, for an attack that is handed the same in both.

    An image that was right has the true label as its predicted one, so the same adversarial image is made of it. One
    that was wrong counts as wrong and as not attacked.
    """
    wrong = records["clean_prediction"] != records["label"]
    blank = {"adversarial_prediction": records["clean_prediction"], **dict.fromkeys(PICTURES, None)}
    blank |= dict.fromkeys(("attacked", "correct", *FLAGS, *JUDGED), False) | dict.fromkeys(NORMS, 0.0)
    return records.assign(**{name: records[name].mask(wrong, blank[name]) for name in records.columns if name in blank})
