"""The tiers: the rules of attack and evaluation, and the conversion of records from tier paper to strict."""

from __future__ import annotations

from typing import Literal

import pandas as pd

from benchmark.harness.records import AFRESH, FLAGS, JUDGED, NORMS, PICTURES, SUCCESSES
from defenses.errors import BadInput
from defenses.registry import did_you_mean

Tier = Literal["paper", "strict", "strong"]
TIERS: dict[Tier, str] = {
    "paper": "the paper's attacks with the paper's quirks: predicted labels, probabilities as logits, all images",
    "strict": "the same attacks with true labels and correct outputs; an image that is wrong already counts as wrong",
    "strong": "the worst case over a suite of strong attacks at each bound of the preset, image by image",
}


def check_tier(tier: str) -> Tier:
    """The tier; BadInput for an unknown name."""
    for known in TIERS:
        if tier == known:
            return known
    raise BadInput(f"unknown tier {tier!r}; {did_you_mean(tier, TIERS)}")


def as_strict(records: pd.DataFrame) -> pd.DataFrame:
    """Convert records of tier ``paper`` to the rules of ``strict``, for an attack with the same input in both tiers.

    For a correctly classified image, the predicted label is the true label, so both tiers make the same adversarial
    image. A misclassified clean image counts as wrong and as not attacked. For a randomised ensemble, the probability
    of a correct prediction is at most the probability on the clean image. For a model with random output, the smaller
    of two estimates would be too small; its records of tier paper have the columns `AFRESH`, which replace it.
    """
    wrong = records["p_clean"] == 0
    blank = {"adversarial_prediction": records["clean_prediction"], **dict.fromkeys((*PICTURES, *SUCCESSES), None)}
    blank |= dict.fromkeys(("attacked", "correct", *FLAGS, *JUDGED), False) | dict.fromkeys(NORMS, 0.0)
    if set(AFRESH) <= set(records):
        prediction, right = (records[name] for name in AFRESH)
        known = {"adversarial_prediction": prediction, "correct": prediction == records["label"], "p_correct": right}
        records = records.drop(columns=[*AFRESH]).assign(**known)
        del blank["adversarial_prediction"], blank["correct"]
    else:
        records = records.assign(p_correct=records[["p_correct", "p_clean"]].min(axis=1))
    seen = [name for name in records if name in blank and not (name in JUDGED and records[name].isna().all())]
    return records.assign(**{name: records[name].mask(wrong, blank[name]) for name in seen})
