"""The objectives that train ensembles: one module for each defense, and what all of them share.

The modules import torch inside their functions, so that a defense can be named, listed and checked without it:
``adp-bench list defenses`` answers in a fraction of the second that torch takes to load.
"""

from defenses.objectives.adp import ADP
from defenses.objectives.adversarial_training import AdversarialTraining
from defenses.objectives.barre import BARRE
from defenses.objectives.base import (
    Defense,
    Place,
    Result,
    Terms,
    at_least,
    checked,
    cross_entropy,
    positive,
    several_members,
    total,
)
from defenses.objectives.dverge import DVERGE
from defenses.objectives.ece import Baseline
from defenses.objectives.gal import GAL
from defenses.objectives.igat import IGAT
from defenses.objectives.jsd import JSD
from defenses.objectives.label_smoothing import LabelSmoothing
from defenses.objectives.lotos import LOTOS
from defenses.objectives.margin_boosting import MCE, MRBoost
from defenses.objectives.trs import TRS

__all__ = [
    "ADP",
    "BARRE",
    "DVERGE",
    "GAL",
    "IGAT",
    "JSD",
    "LOTOS",
    "MCE",
    "TRS",
    "AdversarialTraining",
    "Baseline",
    "Defense",
    "LabelSmoothing",
    "MRBoost",
    "Place",
    "Result",
    "Terms",
    "at_least",
    "checked",
    "cross_entropy",
    "positive",
    "several_members",
    "total",
]
