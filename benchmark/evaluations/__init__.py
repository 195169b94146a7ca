"""The evaluations of an ensemble: one file each, with its task, its section of a preset and its columns."""

from __future__ import annotations

from benchmark.evaluations.blackbox import BlackBox, BlackBoxSection
from benchmark.evaluations.clean import Clean, CleanSection
from benchmark.evaluations.detection import Detection, DetectionSection
from benchmark.evaluations.diversity import Diversity, DiversitySection
from benchmark.evaluations.task import Section, Task
from benchmark.evaluations.transfer import Transfer, TransferSection
from benchmark.evaluations.whitebox import WhiteBox, WhiteBoxSection
from benchmark.evaluations.worst_case import WorstCase, WorstCaseSection

EVALUATIONS: tuple[tuple[type[Task], type[Section]], ...] = (
    (Clean, CleanSection),
    (WhiteBox, WhiteBoxSection),
    (WorstCase, WorstCaseSection),
    (BlackBox, BlackBoxSection),
    (Transfer, TransferSection),
    (Detection, DetectionSection),
    (Diversity, DiversitySection),
)
"""Every evaluation, in the order of a report."""
TASKS = {task.evaluation: task for task, _ in EVALUATIONS}
"""Tasks by the name of their evaluation in files."""
