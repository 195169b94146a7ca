"""The objectives that train ensembles: one module for each defense, and their common base.

The modules import torch inside their functions, so that listing and checking defenses does not load torch. Loading it
takes a second; ``adp-bench list defenses`` takes a fraction of that.
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
