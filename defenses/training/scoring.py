"""The accuracy and the diversity of an ensemble on a set of images."""

from __future__ import annotations

from typing import Any

from defenses.members.combination import Random
from defenses.members.diversity import log_ensemble_diversity, log_mean_probability
from defenses.members.ensemble import Ensemble, predict_logits
from defenses.members.images import LabelledImages


def score(ensemble: Ensemble, data: LabelledImages) -> dict[str, Any]:
    """Accuracy of the ensemble and of each member, and the median log ensemble diversity (true label removed).

    The accuracy of a randomised ensemble is the expectation over its draws.
    """
    logits = predict_logits(ensemble, data)
    if isinstance(ensemble.combination, Random):
        correct = ensemble.combination.probability_right(logits, data.labels)
    else:
        correct = log_mean_probability(logits).argmax(-1) == data.labels
    members = (logits.argmax(-1) == data.labels).float().mean(-1)
    return {
        "accuracy": round(correct.float().mean().item(), 6),
        "member_accuracy": [round(value, 6) for value in members.tolist()],
        "led_median": round(log_ensemble_diversity(logits, data.labels).median().item(), 4),
    }
