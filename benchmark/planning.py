"""From a preset and a trained ensemble to cells: what exactly will be run, before anything is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmark.attacks import NamedAttack, library_version
from benchmark.cells import Cell
from benchmark.datasets.catalogue import DATASETS
from benchmark.ensembles import Trained
from benchmark.evaluations import EVALUATIONS, strong
from benchmark.grid import Grid, PlannedAttack, Preset, Section, sections, strong_radii
from benchmark.published import published_accuracy
from benchmark.tiers import TIERS
from defenses import specs
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint


@dataclass(frozen=True)
class Request:
    """What the user asked of a preset."""

    preset: Preset
    samples: int | str | None
    """A number of images, ``all`` for the paper's, or None for what suits the device."""
    seeds: tuple[int, ...]
    device: torch.device
    out: Path
    command: str
    keep_images: bool = False
    """Keep every adversarial image that fools an ensemble."""
    acceleration: str = "folded"
    """How the copy that is attacked is made."""
    surrogate: str | None = None
    """Defense spec or checkpoint of the ensemble that black-box attacks are made on."""
    refusals: bool = False
    """A setting that a library cannot honour is a row that says so, not the end of the run."""
    remarks: tuple[str, ...] = ()
    """Lines to say before the first cell."""


def plan_cells(
    grid: Grid, trained: Trained, request: Request, seed: int, data_checksum: str, surrogate: Trained | None = None
) -> list[Cell]:
    """The cells of one ensemble, attacks in the preset's order, tiers side by side."""
    provenance = trained.provenance
    base: dict[str, Any] = {
        "dataset": grid.dataset,
        "data_checksum": data_checksum,
        "defense": trained.label,
        "spec": trained.spec,
        "members": provenance.members,
        "network": provenance.network,
        "training": trained.training,
        "weights": provenance.weights_sha256,
        "seed": seed,
        "batch_size": grid.batch_size,
        "device": request.device.type,
        "acceleration": request.acceleration,
    }
    size = DATASETS.get(grid.dataset).sizes[1]
    return [
        *_attack_cells(grid, base, request, size),
        *_strong_cells(grid, base, request, size),
        *_blackbox_cells(grid.blackbox, base, request, size, surrogate),
        *_transfer_cells(grid.transfer, base, request, size),
        *_detection_cells(grid.detection, base, request, size),
        *_diversity_cells(grid.diversity, base, request, size),
    ]


def _attack_cells(grid: Grid, base: dict[str, Any], request: Request, size: int) -> Iterator[Cell]:
    members = [f"net{k + 1}" for k in range(base["members"])]
    in_paper = "" if is_checkpoint(base["spec"]) else parse_defense(base["spec"]).label  # whatever its column is called
    for planned in grid.attacks:
        samples = choose_samples(planned, request, size)
        if planned.named is None:
            for classifier in [*members, "ensemble"]:
                settings: dict[str, object] = {"classifier": classifier}
                number = published_accuracy(grid.dataset, base["members"], "none", settings, {}, in_paper)
                yield _without_attack(base, settings, samples, "clean", number)
            continue
        named = planned.named
        fields = specs.parameters(type(named.attack)).items()
        usual: dict[str, object] = {key: field.default for key, field in fields if key in named.settings()}
        number = published_accuracy(grid.dataset, base["members"], named.name, named.settings(), usual, in_paper)
        for tier in grid.tiers:
            if tier == "strong" or (planned.tiers and tier not in planned.tiers):
                continue
            yield attack_cell(base, named, samples, "whitebox", tier=tier, published=number)


def _strong_cells(grid: Grid, base: dict[str, Any], request: Request, size: int) -> Iterator[Cell]:
    """One worst case for each eps of the grid."""
    for eps in strong_radii(grid):
        yield strong_cell(base, grid.strong.suite, eps, choose_samples(grid.strong, request, size))


def strong_cell(base: dict[str, Any], suite: str, eps: float, samples: int) -> Cell:
    """The worst case over a suite at one eps."""
    stages = [stage.text for stage in strong.stages(suite, eps, base["members"])]
    return Cell(
        **base,
        attack=strong.ATTACK,
        parameters=f"eps={specs.value_text(eps)}" + ("" if suite == "full" else f",suite={suite}"),
        library="several",
        library_version="",
        settings={"eps": eps, "suite": suite, "stages": stages},
        tier="strong",
        samples=samples,
        evaluation="strong",
    )


def _blackbox_cells(
    section: Section | None, base: dict[str, Any], request: Request, size: int, surrogate: Trained | None
) -> Iterator[Cell]:
    """The defense under images made on the surrogate."""
    if section is None or surrogate is None:
        return
    samples = choose_samples(section, request, size)
    extra = {"surrogate": surrogate.provenance.weights_sha256}
    for named in section.attacks:
        yield attack_cell(base, named, samples, "blackbox", tier="black-box", extra=extra)


def _transfer_cells(section: Section | None, base: dict[str, Any], request: Request, size: int) -> Iterator[Cell]:
    """Every member as the source, untargeted and targeted."""
    if section is None:
        return
    samples = choose_samples(section, request, size)
    for named in section.attacks:
        for targeted in (False, True):
            variant = replace(named, attack=replace(named.attack, targeted=targeted))  # type: ignore[call-arg]
            for k in range(base["members"]):
                yield attack_cell(base, variant, samples, "transfer", extra={"source": f"net{k + 1}"})


def _detection_cells(section: Section | None, base: dict[str, Any], request: Request, size: int) -> Iterator[Cell]:
    """Clean images first: the first half is compared with adversarial ones, the second half fixes the threshold."""
    if section is None:
        return
    samples = min(choose_samples(section, request, size), size // 2)
    yield _without_attack(base, {"compared": samples}, 2 * samples, "detection", None)
    for named in section.attacks:
        yield attack_cell(base, named, samples, "detection")


def _diversity_cells(section: Section | None, base: dict[str, Any], request: Request, size: int) -> Iterator[Cell]:
    if section is not None:
        samples = choose_samples(section, request, size)
        yield _without_attack({**base, "batch_size": samples}, {}, samples, "diversity", None)


def _without_attack(
    base: dict[str, Any], settings: dict[str, Any], samples: int, evaluation: str, published: float | None
) -> Cell:
    return Cell(
        **base,
        attack="none",
        parameters=",".join(f"{key}={value}" for key, value in settings.items()),
        library="none",
        library_version="",
        settings=settings,
        tier="clean",
        samples=samples,
        published=published,
        evaluation=evaluation,
    )


def attack_cell(
    base: dict[str, Any],
    named: NamedAttack,
    samples: int,
    evaluation: str,
    tier: str = "strict",
    published: float | None = None,
    extra: dict[str, Any] | None = None,
) -> Cell:
    """An attack on so many images; ``base`` holds what all cells of an ensemble share."""
    return Cell(
        **base,
        attack=named.name,
        parameters=named.parameters,
        library=named.library,
        library_version=library_version(named.library),
        settings={**named.settings(), **(extra or {})},
        tier=tier,
        samples=samples,
        published=published,
        evaluation=evaluation,
    )


def choose_samples(planned: PlannedAttack | Section, request: Request, size: int) -> int:
    """How many of the first test images to take."""
    if isinstance(request.samples, int):
        return request.samples
    everything = min(planned.paper_samples or size, size)
    if request.samples == "all" or request.device.type != "cpu":
        return everything
    return min(planned.samples or everything, everything)


def left_out(request: Request) -> list[str]:
    """What a CPU run leaves out of the full sample counts, in words."""
    lines = []
    for grid in request.preset.grids:
        size = DATASETS.get(grid.dataset).sizes[1]
        short: dict[tuple[int, int], list[str]] = {}
        sections = {
            "strong": grid.strong if strong_radii(grid) else None,
            "black-box": grid.blackbox,
            "transfer": grid.transfer,
            "detection": grid.detection,
            "diversity": grid.diversity,
        }
        parts: list[tuple[str, PlannedAttack | Section]] = [(p.named.name, p) for p in grid.attacks if p.named]
        parts += [(name, section) for name, section in sections.items() if section]
        for name, planned in parts:
            chosen, full = choose_samples(planned, request, size), min(planned.paper_samples or size, size)
            names = short.setdefault((chosen, full), [])
            if chosen < full and name not in names:
                names.append(name)
        for (chosen, full), names in short.items():
            if names:
                which = f"{grid.dataset}: {', '.join(names)}"
                lines.append(f"{which} on the first {chosen} images instead of {full} (--samples all)")
    return lines


def order_cells(cells: list[dict[str, Any]], preset: Preset) -> list[dict[str, Any]]:
    """By dataset, evaluation, attack, parameters, defense and tier: in the preset's order, then as they appeared."""
    attacks = [planned.named for grid in preset.grids for planned in grid.attacks if planned.named]
    attacks += [named for grid in preset.grids for section in sections(grid) for named in section.attacks]
    names = ("dataset", "evaluation", "attack", "row", "defense", "tier", "seed")
    ranks: dict[str, dict[Any, int]] = {name: {} for name in names}

    def rank(name: str, value: Any) -> int:
        return ranks[name].setdefault(value, len(ranks[name]))

    for grid in preset.grids:
        rank("dataset", grid.dataset)
    for evaluation in EVALUATIONS:
        rank("evaluation", evaluation)
    for named in attacks:
        rank("attack", named.name)
        rank("row", (named.name, named.parameters))
    for radius in (named.attack.budget for named in attacks if named.attack.budget is not None):
        rank("row", (strong.ATTACK, radius))
    for tier in TIERS:
        rank("tier", tier)
    for spec in dict.fromkeys(spec for grid in preset.grids for spec in grid.defenses):
        if not is_checkpoint(spec):
            rank("defense", parse_defense(spec).label)
    parts = [cell["settings"]["eps"] if cell["attack"] == strong.ATTACK else cell["parameters"] for cell in cells]
    places = [{**cell, "row": (cell["attack"], part)} for cell, part in zip(cells, parts, strict=True)]
    order = [[rank(name, place[name]) for name in names] for place in places]
    return [cell for _, cell in sorted(zip(order, cells, strict=True), key=lambda pair: pair[0])]
