"""Contestants are timed in turn, round by round, so that a busy machine is busy for all; medians are compared.

Times are CPU seconds of this process, which has one thread: waiting for a core that others use counts for nobody.
What was measured goes into results/benchmarks: pytest-benchmark's JSON, ``benchmarks.csv`` with every number beside
its target, and a plot. A target that is missed is printed as missed; it fails no test. A ratio that falls a third below
the committed baseline fails the run.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmark import datasets
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.finding import find
from benchmark.machine.hardware import commit, describe_machine
from defenses.members.ensemble import Ensemble, build_ensemble
from tests.benchmarks.baseline import Ratio, fallen, read, write

RESULTS = Path(__file__).parents[2] / "results" / "benchmarks"


@dataclass(frozen=True)
class Finding:
    """One number that was measured; ``target`` is text such as ``≥ 1.4``, or empty."""

    suite: str
    case: str
    what: str
    value: float
    unit: str
    target: str = ""

    @property
    def verdict(self) -> str:
        return ("met" if self.margin >= 1 else "MISSED") if self.target else ""

    @property
    def margin(self) -> float:
        """How much better than the target, as a factor."""
        sign, _, number = self.target.partition(" ")
        factor = max(self.value, 1e-9) / float(number)
        return factor if sign == "≥" else 1 / factor

    def __str__(self) -> str:
        judged = f" (target {self.target}: {self.verdict})" if self.target else ""
        return f"{self.suite}, {self.case}: {self.what} {self.value:.4g} {self.unit}{judged}"


FINDINGS: list[Finding] = []
TIMES = "times"
"""Unit of the numbers that have a baseline: more is better."""
Race = Callable[..., dict[str, float]]
Note = Callable[..., None]


@pytest.fixture(autouse=True)
def only_when_asked(benchmark: Any) -> Iterator[None]:
    """Timings are for `tox -e benchmarks`; one thread, so that contestants do not differ by how they use cores.

    Subnormal numbers as PyTorch treats them: whoever counts them as zero does so itself.
    """
    if benchmark.disabled:
        pytest.skip("timings are measured by `tox -e benchmarks`")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def note(request: pytest.FixtureRequest, benchmark: Any) -> Note:
    """Keep a number: (case, what, value, unit, target)."""
    suite = request.module.__doc__.partition(":")[0]

    def keep(case: str, what: str, value: float, unit: str, target: str = "") -> None:
        finding = Finding(suite, case, what, value, unit, target)
        FINDINGS.append(finding)
        benchmark.extra_info[f"{what} [{unit}]"] = value

    return keep


@pytest.fixture
def race(benchmark: Any, note: Note) -> Race:
    """Time contestants in turn; the first is the one pytest-benchmark keeps. Median seconds of each.

    What takes milliseconds is compared by its best round instead: a busy machine interrupts for longer than that.
    """

    def run(
        case: str,
        contestants: dict[str, Callable[[], object]],
        rounds: int = 5,
        warm_up: bool = True,
        best: bool = False,
    ) -> dict[str, float]:
        own, *others = contestants
        seconds: dict[str, list[float]] = {name: [] for name in contestants}

        def timed(name: str) -> None:
            began = time.process_time()
            contestants[name]()
            seconds[name].append(time.process_time() - began)

        def rivals() -> None:
            for name in others:
                timed(name)

        if warm_up:
            for contestant in contestants.values():
                contestant()
        benchmark.pedantic(timed, args=(own,), setup=rivals, rounds=rounds)
        found = {name: (min if best else statistics.median)(seconds[name]) for name in contestants}
        for name, value in found.items():
            note(case, f"{'best' if best else 'median'} time of {name}", value, "s")
        return found

    return run


@pytest.fixture
def cifar_shaped() -> Callable[..., tuple[Ensemble, Tensor, Tensor]]:
    """Untrained members, noise for images, and as labels what the ensemble says.

    Statistics and biases are set by the noise, so that the classes differ between images and attacks succeed.
    """

    @torch.no_grad()
    def make(images: int, network: str = "resnet20", members: int = 3) -> tuple[Ensemble, Tensor, Tensor]:
        ensemble = build_ensemble(network, members, (3, 32, 32), 10).train()
        noise = torch.rand(images, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        for module in ensemble.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        ensemble(noise)
        ensemble.eval()
        for member, logits in zip(ensemble.members, ensemble.member_logits(noise), strict=True):
            member.fc.bias -= logits.mean(0)
        return ensemble, noise, ensemble(noise).argmax(-1)

    return make


@pytest.fixture
def reference() -> Callable[[int], tuple[Ensemble, Tensor, Tensor]]:
    """The committed CIFAR-10 baseline with the first test images that it gets right, and their labels."""

    @torch.no_grad()
    def make(images: int) -> tuple[Ensemble, Tensor, Tensor]:
        trained = find(EnsembleRequest("baseline", "cifar10", "resnet20", 3, "reference", seed=0))
        assert trained is not None, "reference ensembles are committed in results/checkpoints"
        test = datasets.load("cifar10").test.subset(slice(0, 2 * images))
        pixels, labels = test.images(), test.labels
        right = (trained.ensemble.eval()(pixels).argmax(-1) == labels).nonzero().flatten()[:images]
        return trained.ensemble, pixels[right], labels[right]

    return make


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """What matters about the machine, and nothing that identifies it."""
    machine_info.clear()
    machine_info.update(describe_machine())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not FINDINGS:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    with open(RESULTS / "benchmarks.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*(field.name for field in fields(Finding)), "verdict", "commit", "machine"])
        table.writerows([*astuple(finding), finding.verdict, commit(), machine] for finding in FINDINGS)
    ratios = _ratios()
    if terminalreporter.config.getoption("--new-baseline", False):
        write(ratios)
    judged = [finding for finding in FINDINGS if finding.target]
    _plot(judged, machine)
    terminalreporter.section("ratios beside their targets")
    terminalreporter.line(machine)
    for finding in FINDINGS:
        if finding.unit != "s":
            terminalreporter.line(str(finding))
    missed = sum(finding.verdict == "MISSED" for finding in judged)
    terminalreporter.line(f"{len(judged) - missed} targets met, {missed} missed; {RESULTS / 'benchmarks.csv'}")
    for line in fallen(ratios, read()):
        terminalreporter.line(f"fallen by a third: {line}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--new-baseline",
        action="store_true",
        help="keep the ratios in results/benchmarks/baseline.csv, docs/speed.md",
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A ratio that has fallen fails the run, unless the run makes a new baseline."""
    new = session.config.getoption("--new-baseline", False)
    if FINDINGS and not new and fallen(_ratios(), read()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _ratios() -> list[Ratio]:
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    return [Ratio(one.suite, one.case, one.what, one.value, machine) for one in FINDINGS if one.unit == TIMES]


def _plot(judged: list[Finding], machine: str) -> None:
    if not judged:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.3 * len(judged)), layout="constrained")
    names = [f"{finding.case}: {finding.what}" for finding in judged]
    colours = ["tab:green" if finding.verdict == "met" else "tab:red" for finding in judged]
    bars = axes.barh(range(len(judged)), [finding.margin - 1 for finding in judged], left=1, color=colours)
    axes.bar_label(bars, [f"{finding.value:.3g} ({finding.target})" for finding in judged], padding=3, fontsize=7)
    axes.set_yticks(range(len(judged)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("times better than the target")
    axes.set_title(machine, fontsize=7)
    axes.margins(x=0.2)
    figure.savefig(RESULTS / "benchmarks.png", dpi=150)
    pyplot.close(figure)
