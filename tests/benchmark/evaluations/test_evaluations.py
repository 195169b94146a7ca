"""Every evaluation attacks what it says, judges by what it says, and records what the reports need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from benchmark import datasets
from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.cells.cell import Cell
from benchmark.ensembles.finding import load_outside
from benchmark.evaluations import detection, diversity
from benchmark.evaluations.blackbox import BlackBox, BlackBoxSection
from benchmark.evaluations.detection import Detection, DetectionSection
from benchmark.evaluations.diversity import Diversity
from benchmark.evaluations.task import Section
from benchmark.evaluations.transfer import Transfer, TransferSection
from benchmark.harness.crafting import craft, wrong_labels
from benchmark.harness.prepared import prepared
from benchmark.harness.records import Span
from benchmark.harness.seeding import seeded
from benchmark.harness.subject import Subject
from benchmark.plan.grid import Wish, narrow
from benchmark.plan.planning import plan_cells
from benchmark.plan.presets import load_preset
from benchmark.plan.run_request import Request
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.combination import USUAL
from defenses.members.ensemble import Ensemble

COUNT = 40
ALL = Span(0, COUNT)


def _subject(ensemble: Ensemble, images: Tensor, labels: Tensor, surrogate: nn.Module | None = None) -> Subject:
    with torch.no_grad():
        logits = ensemble.member_logits(images)
    return Subject(ensemble, ensemble, images, labels.numpy(), logits, ensemble(images).detach(), surrogate)


@pytest.fixture
def subject(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> Iterator[Subject]:
    with prepared(ensemble):
        yield _subject(ensemble, digits[0][:COUNT], digits[1][:COUNT])


@pytest.fixture
def surrogate(robust_checkpoint: Path) -> Iterator[Ensemble]:
    other = load_checkpoint(robust_checkpoint)
    with prepared(other):
        yield other


def _by_hand(model: nn.Module, attack: NamedAttack, images: Tensor, given: NDArray[np.int64], seed: int) -> Tensor:
    with seeded(seed, attack.text, 0):
        return attack.backend()(AttackedModel(model), images.clone(), torch.from_numpy(given), attack.attack)


# --- transfer ---


def _transfer(subject: Subject, spec: str, source: int, first: int = 0) -> pd.DataFrame:
    return Transfer(parse_attack(spec), source).batch(subject, Span(first, COUNT), seed=5)


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("spec", ["pgd(eps=0.1)", "mim(eps=0.1,targeted=true)"])
def test_transfer_equals_attacking_that_member_by_hand(source: int, spec: str, subject: Subject) -> None:
    records = _transfer(subject, spec, source)
    attack = parse_attack(spec)
    ensemble = subject.ensemble
    alone = Ensemble([ensemble.members[source]], ensemble.mean, ensemble.std).eval()
    given = records["target"].to_numpy(copy=True) if "targeted" in spec else subject.labels
    images = _by_hand(alone, attack, subject.images, given, seed=5)
    with torch.no_grad():
        logits = ensemble.member_logits(images)
        whole = ensemble(images).argmax(-1).numpy()
    for k in range(2):
        assert records[f"prediction_net{k + 1}"].tolist() == logits[k].argmax(-1).tolist()
        assert records[f"clean_net{k + 1}"].tolist() == subject.logits[k].argmax(-1).tolist()
    assert records["prediction_ensemble"].tolist() == whole.tolist()
    assert records["correct"].tolist() == (whole == subject.labels).tolist()
    assert records["linf"].max() == pytest.approx(0.1, abs=1e-5)
    assert (records["target"] == -1).all() == ("targeted" not in spec)


def test_the_other_members_have_no_say_in_a_transfer(subject: Subject) -> None:
    before = _transfer(subject, "pgd(eps=0.1)", 0)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in subject.ensemble.members[1].parameters():
            parameter.add_(torch.randn_like(parameter))
    after = _transfer(subject, "pgd(eps=0.1)", 0)
    for column in ("prediction_net1", "l2", "linf"):
        assert after[column].tolist() == before[column].tolist()
    assert after["prediction_net2"].tolist() != before["prediction_net2"].tolist(), "they do judge"


def test_a_member_is_fooled_most_by_images_made_on_it(subject: Subject) -> None:
    for source, other in ((0, 1), (1, 0)):
        records = _transfer(subject, "pgd(eps=0.1)", source)
        right = [(records[f"prediction_net{k + 1}"] == records["label"]).mean() for k in range(2)]
        assert right[source] < right[other]


def test_targets_are_uniform_over_the_wrong_labels() -> None:
    labels = np.arange(9000) % 10
    shifts = (wrong_labels(labels, 10, 0, seed=0) - labels) % 10
    counts = np.bincount(shifts, minlength=10)
    assert counts[0] == 0, "never the true label"
    assert stats.chisquare(counts[1:]).pvalue > 0.001


def test_a_target_depends_on_the_image_and_the_seed_not_on_the_batch(subject: Subject) -> None:
    spec = "pgd(eps=0.1,steps=1,targeted=true)"
    whole, rest = (_transfer(subject, spec, 0, first)["target"].tolist() for first in (0, 25))
    assert whole[25:] == rest
    assert whole == _transfer(subject, spec, 1)["target"].tolist(), "one target for every source"
    assert whole != wrong_labels(subject.labels, 10, 0, seed=6).tolist()


# --- detection ---


def test_scores_equal_their_definitions_in_numpy(subject: Subject) -> None:
    found = detection.scores(subject.logits, torch.from_numpy(subject.labels), USUAL)
    logits = subject.logits.double().numpy()
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    members = powers / powers.sum(-1, keepdims=True)
    mean = members.mean(0)
    predicted = mean.argmax(-1)
    np.testing.assert_allclose(found["confidence"], mean.max(-1), rtol=1e-5)
    np.testing.assert_allclose(found["entropy"], (mean * np.log(mean)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(found["agreement"], (members.argmax(-1) == predicted).mean(0))
    for name, labels in (("diversity", predicted), ("diversity_true", subject.labels)):
        np.testing.assert_allclose(found[name], _led(members, labels), atol=1e-3)
    assert not np.allclose(found["diversity"], found["diversity_true"]), "some images are predicted wrong"


def _led(members: NDArray[np.float64], labels: NDArray[np.int64]) -> list[float]:
    values = []
    for n, label in enumerate(labels):
        others = np.delete(members[:, n], label, axis=-1)
        unit = others / np.linalg.norm(others, axis=-1, keepdims=True)
        values.append(np.linalg.slogdet(unit @ unit.T + 1e-6 * np.eye(len(unit)))[1])
    return values


def test_detection_scores_clean_images_as_they_are_and_attacks_all_of_them(subject: Subject) -> None:
    labels = torch.from_numpy(subject.labels)
    clean = Detection(None, compared=20).batch(subject, Span(10, COUNT), seed=0)
    wanted = detection.scores(subject.logits[:, 10:], labels[10:], USUAL)
    for name in detection.SCORES:
        np.testing.assert_array_equal(clean[name], wanted[name].double())
    assert not clean["attacked"].any() and clean["index"].tolist() == list(range(10, COUNT))
    attack = parse_attack("fgsm(eps=0.3)")
    attacked = Detection(attack).batch(subject, ALL, seed=0)
    images = _by_hand(subject.ensemble, attack, subject.images, subject.labels, seed=0)
    with torch.no_grad():
        wanted = detection.scores(subject.ensemble.member_logits(images), labels, USUAL)
    for name in detection.SCORES:
        np.testing.assert_allclose(attacked[name], wanted[name].double(), rtol=1e-5, atol=1e-6)
    assert attacked["attacked"].all() and (attacked["l2"] > 0).all(), "wrong ones too"


@pytest.mark.parametrize(("asked", "compared"), [(30, 30), (300, 180)])
def test_the_clean_images_of_detection_split_in_compared_and_held_out(
    asked: int, compared: int, checkpoint: Path
) -> None:
    cells = [cell for cell in _planned(checkpoint, asked) if isinstance(cell.task, Detection)]
    clean, attacked = cells[0], cells[1:]
    assert clean.task == Detection(None, compared) and clean.task.name == "none"
    assert clean.images.samples == 2 * compared, "as many are held out"
    assert [cell.task.name for cell in attacked] == ["fgsm", "pgd", "cw", "evasive"]
    assert {cell.images.samples for cell in attacked} == {compared}


def _planned(checkpoint: Path, samples: int) -> list[Cell]:
    preset = load_preset("demo")
    request = Request(preset, samples, (0,), torch.device("cpu"), checkpoint / "out", "")
    trained = load_outside(str(checkpoint), datasets.find("digits"))
    return plan_cells(preset.grids[0], trained, request, 0, "0" * 64, surrogate=trained)


def test_a_plan_has_every_source_both_ways_and_the_surrogate_in_the_identity(checkpoint: Path) -> None:
    cells = _planned(checkpoint, 30)
    transfers = [cell.task for cell in cells if isinstance(cell.task, Transfer)]
    assert sorted((task.name, task.targeted, task.source) for task in transfers) == sorted(
        (attack, targeted, source) for attack in ("pgd", "mim") for targeted in (False, True) for source in (0, 1)
    )
    black_box = [(cell, cell.task) for cell in cells if isinstance(cell.task, BlackBox)]
    assert black_box
    for cell, task in black_box:
        other = replace(cell, task=replace(task, surrogate="another"))
        assert task.group == "black-box" and task.surrogate and other.identity != cell.identity
    assert len({cell.identity for cell in cells}) == len(cells)


def test_attacks_are_chosen_by_the_same_rules_where_none_is_white_box() -> None:
    def names(preset: str, *attacks: str) -> list[str]:
        (grid,) = narrow(load_preset(preset), Wish(attacks=attacks)).grids
        kinds: tuple[type[Section], ...] = (BlackBoxSection, TransferSection, DetectionSection)
        sections = [grid.section(kind) for kind in kinds]
        return [named.label for section in sections if section for named in section.attacks]

    assert names("cifar10-transfer", "pgd") == ["pgd(eps=0.01)", "pgd(eps=0.05)"], "by name: the preset's"
    assert names("cifar10-transfer", "pgd(eps=0.2)") == ["pgd(eps=0.2)"] * 2, "a full spec is taken as it is"
    assert names("cifar10-detection", "ead", "cw(c=3)") == ["ead(c=20)", "cw(c=3)"]
    assert names("demo", "pgd") == [], "white-box rows were asked for"
    for preset, attack, message in (
        ("cifar10-detection", "pdg", "did you mean pgd"),
        ("cifar10-transfer", "fgsm", "needs eps"),
        ("cifar10-transfer", "evasive(eps=0.1)", "cannot be targeted"),
        ("diversity", "pgd(eps=0.1)", "has no attacks"),
    ):
        with pytest.raises(BadInput, match=message):
            names(preset, attack)


# --- diversity ---


def test_diversity_keeps_led_of_the_true_label_features_and_some_predictions(subject: Subject) -> None:
    frame = Diversity().batch(subject, ALL, seed=0)
    members = torch.softmax(subject.logits.double(), -1).numpy()
    np.testing.assert_allclose(frame["led"], _led(members, subject.labels), atol=1e-3)
    np.testing.assert_allclose(frame["confidence"], members.mean(0).max(-1), rtol=1e-5)
    for k in range(2):
        kept = frame[f"probabilities_net{k + 1}"].dropna()
        assert kept.index.tolist() == list(range(diversity.SHOWN))
        np.testing.assert_allclose(np.stack(kept), members[k, : diversity.SHOWN], rtol=1e-6)
        plane = np.stack(frame[f"tsne_net{k + 1}"])
        assert plane.shape == (COUNT, 2) and np.isfinite(plane).all()
    assert not frame["attacked"].any()
    again = Diversity().batch(subject, ALL, seed=0)
    np.testing.assert_array_equal(np.stack(again["tsne_net1"]), np.stack(frame["tsne_net1"]))
    assert "tsne_net1" not in Diversity().batch(subject, Span(20, COUNT), seed=0)


def test_too_few_images_for_a_map_are_no_failure(subject: Subject) -> None:
    frame = Diversity().batch(subject, Span(0, 1), seed=0)
    assert len(frame) == 1 and np.isfinite(frame["led"]).all() and "tsne_net1" not in frame


# --- black-box ---


@pytest.mark.parametrize("spec", ["pgd(eps=0.2)", "pgd(eps=0.2,targeted=true)"])
def test_black_box_images_are_made_on_the_surrogate_and_judged_by_the_defense(
    spec: str, subject: Subject, surrogate: Ensemble
) -> None:
    attack = parse_attack(spec)
    records = BlackBox(attack, "its weights").batch(replace(subject, surrogate=surrogate), ALL, seed=3)
    given = wrong_labels(subject.labels, 10, 0, 3) if "targeted" in spec else subject.labels
    images = craft(surrogate, attack, subject.images, given, 0, 3).images
    with torch.no_grad():
        judged, fooled = subject.ensemble(images).argmax(-1).numpy(), surrogate(images).argmax(-1)
    assert records["adversarial_prediction"].tolist() == judged.tolist() != fooled.tolist()
    assert records["correct"].tolist() == ((judged == subject.labels) & (subject.clean == subject.labels)).tolist()


def test_every_defense_gets_the_same_black_box_images(subject: Subject, surrogate: Ensemble) -> None:
    task = BlackBox(parse_attack("pgd(eps=0.2)"), "its weights")
    other = _subject(surrogate, subject.images, torch.from_numpy(subject.labels), surrogate)
    assert other.clean.tolist() != subject.clean.tolist(), "they are right on different images"
    one, two = (task.batch(chosen, ALL, seed=0) for chosen in (replace(subject, surrogate=surrogate), other))
    assert one["l2"].tolist() == two["l2"].tolist() and one["l1"].tolist() == two["l1"].tolist()
    assert one["adversarial_prediction"].tolist() != two["adversarial_prediction"].tolist()
