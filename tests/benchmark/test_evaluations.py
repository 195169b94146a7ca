"""Every evaluation attacks what it says, judges by what it says, and records what the reports need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from benchmark.api import evaluate
from benchmark.attacks import NamedAttack, parse_attack
from benchmark.cells import Cell
from benchmark.ensembles import load_outside
from benchmark.evaluation import craft, seeded, wrong_labels
from benchmark.evaluations import Subject, blackbox, detection, diversity, transferability
from benchmark.grid import Section, load_preset, narrow
from benchmark.models import AttackedModel, prepared
from benchmark.planning import Request, plan_cells
from defenses.checkpoints import load_checkpoint
from defenses.errors import BadInput
from defenses.members.diversity import log_ensemble_diversity
from defenses.members.ensemble import Ensemble

MakeCell = Callable[..., Cell]
COUNT = 40


def _subject(ensemble: Ensemble, images: Tensor, labels: Tensor, surrogate: nn.Module | None = None) -> Subject:
    with torch.no_grad():
        logits = ensemble.member_logits(images)
    return Subject(ensemble, ensemble, images, labels, logits, ensemble(images).detach(), surrogate)


@pytest.fixture
def subject(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> Iterator[Subject]:
    with prepared(ensemble):
        yield _subject(ensemble, digits[0][:COUNT], digits[1][:COUNT])


@pytest.fixture
def surrogate(robust_checkpoint: Path) -> Iterator[Ensemble]:
    other = load_checkpoint(robust_checkpoint)
    with prepared(other):
        yield other


def _by_hand(model: nn.Module, attack: NamedAttack, images: Tensor, given: Tensor, seed: int) -> Tensor:
    with seeded(seed, attack.text, 0):
        return attack.backend()(AttackedModel(model), images.clone(), given, attack.attack)


# --- transfer ---


def _transfer(subject: Subject, make_cell: MakeCell, spec: str, source: str, first: int = 0) -> pd.DataFrame:
    attack = parse_attack(spec)
    cell = make_cell("transfer", attack=attack.name, settings={**attack.settings(), "source": source}, seed=5)
    return transferability.batch(subject, cell, attack, first, COUNT)


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("spec", ["pgd(eps=0.1)", "mim(eps=0.1,targeted=true)"])
def test_transfer_equals_attacking_that_member_by_hand(
    source: int, spec: str, subject: Subject, make_cell: MakeCell
) -> None:
    records = _transfer(subject, make_cell, spec, f"net{source + 1}")
    attack = parse_attack(spec)
    ensemble = subject.ensemble
    alone = Ensemble([ensemble.members[source]], ensemble.mean, ensemble.std).eval()
    given = torch.tensor(records["target"]) if "targeted" in spec else subject.labels
    images = _by_hand(alone, attack, subject.images, given, seed=5)
    with torch.no_grad():
        logits = ensemble.member_logits(images)
        whole = ensemble(images).argmax(-1)
    for k in range(2):
        assert records[f"prediction_net{k + 1}"].tolist() == logits[k].argmax(-1).tolist()
        assert records[f"clean_net{k + 1}"].tolist() == subject.logits[k].argmax(-1).tolist()
    assert records["prediction_ensemble"].tolist() == whole.tolist()
    assert records["correct"].tolist() == (whole == subject.labels).tolist()
    assert records["linf"].max() == pytest.approx(0.1, abs=1e-5)
    assert (records["target"] == -1).all() == ("targeted" not in spec)


def test_the_other_members_have_no_say_in_a_transfer(subject: Subject, make_cell: MakeCell) -> None:
    before = _transfer(subject, make_cell, "pgd(eps=0.1)", "net1")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in subject.ensemble.members[1].parameters():
            parameter.add_(torch.randn_like(parameter))
    after = _transfer(subject, make_cell, "pgd(eps=0.1)", "net1")
    for column in ("prediction_net1", "l2", "linf"):
        assert after[column].tolist() == before[column].tolist()
    assert after["prediction_net2"].tolist() != before["prediction_net2"].tolist(), "they do judge"


def test_a_member_is_fooled_most_by_images_made_on_it(subject: Subject, make_cell: MakeCell) -> None:
    for source, other in (("net1", "net2"), ("net2", "net1")):
        records = _transfer(subject, make_cell, "pgd(eps=0.1)", source)
        right = {name: (records[f"prediction_{name}"] == records["label"]).mean() for name in (source, other)}
        assert right[source] < right[other]


def test_targets_are_uniform_over_the_wrong_labels() -> None:
    labels = torch.arange(9000) % 10
    shifts = (wrong_labels(labels, 10, 0, seed=0) - labels) % 10
    counts = torch.bincount(shifts, minlength=10).numpy()
    assert counts[0] == 0, "never the true label"
    assert stats.chisquare(counts[1:]).pvalue > 0.001


def test_a_target_depends_on_the_image_and_the_seed_not_on_the_batch(subject: Subject, make_cell: MakeCell) -> None:
    spec = "pgd(eps=0.1,steps=1,targeted=true)"
    whole, rest = (_transfer(subject, make_cell, spec, "net1", first)["target"].tolist() for first in (0, 25))
    assert whole[25:] == rest
    assert whole == _transfer(subject, make_cell, spec, "net2")["target"].tolist(), "one target for every source"
    assert whole != wrong_labels(subject.labels, 10, 0, seed=6).tolist()


# --- detection ---


def test_scores_equal_their_definitions_in_numpy(subject: Subject) -> None:
    found = detection.scores(subject.logits, subject.labels)
    logits = subject.logits.double().numpy()
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    members = powers / powers.sum(-1, keepdims=True)
    mean = members.mean(0)
    predicted = mean.argmax(-1)
    np.testing.assert_allclose(found["confidence"], mean.max(-1), rtol=1e-5)
    np.testing.assert_allclose(found["entropy"], (mean * np.log(mean)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(found["agreement"], (members.argmax(-1) == predicted).mean(0))
    for name, labels in (("diversity", predicted), ("diversity_true", subject.labels.numpy())):
        np.testing.assert_allclose(found[name], _led(members, labels), atol=1e-3)
    assert not np.allclose(found["diversity"], found["diversity_true"]), "some images are predicted wrong"


def _led(members: np.ndarray, labels: np.ndarray) -> list[float]:
    values = []
    for n, label in enumerate(labels):
        others = np.delete(members[:, n], label, axis=-1)
        unit = others / np.linalg.norm(others, axis=-1, keepdims=True)
        values.append(np.linalg.slogdet(unit @ unit.T + 1e-6 * np.eye(len(unit)))[1])
    return values


def test_detection_scores_clean_images_as_they_are_and_attacks_all_of_them(
    subject: Subject, make_cell: MakeCell
) -> None:
    clean = detection.batch(subject, make_cell("detection", settings={"compared": 20}), None, 10, COUNT)
    wanted = detection.scores(subject.logits[:, 10:], subject.labels[10:])
    for name in detection.SCORES:
        np.testing.assert_array_equal(clean[name], wanted[name].double())
    assert not clean["attacked"].any() and clean["index"].tolist() == list(range(10, COUNT))
    attack = parse_attack("fgsm(eps=0.3)")
    cell = make_cell("detection", attack="fgsm", settings=attack.settings())
    attacked = detection.batch(subject, cell, attack, 0, COUNT)
    images = _by_hand(subject.ensemble, attack, subject.images, subject.labels, seed=0)
    with torch.no_grad():
        wanted = detection.scores(subject.ensemble.member_logits(images), subject.labels)
    for name in detection.SCORES:
        np.testing.assert_allclose(attacked[name], wanted[name].double(), rtol=1e-5, atol=1e-6)
    assert attacked["attacked"].all() and (attacked["l2"] > 0).all(), "wrong ones too"


@pytest.mark.parametrize(("asked", "compared"), [(30, 30), (300, 180)])
def test_the_clean_images_of_detection_split_in_compared_and_held_out(
    asked: int, compared: int, checkpoint: Path
) -> None:
    cells = [cell for cell in _planned(checkpoint, asked) if cell.evaluation == "detection"]
    clean, attacked = cells[0], cells[1:]
    assert clean.attack == "none" and clean.settings == {"compared": compared}
    assert clean.samples == 2 * compared, "as many are held out"
    assert [cell.attack for cell in attacked] == ["fgsm", "pgd", "cw", "evasive"]
    assert {cell.samples for cell in attacked} == {compared}


def _planned(checkpoint: Path, samples: int) -> list[Cell]:
    preset = load_preset("demo")
    request = Request(preset, samples, (0,), torch.device("cpu"), checkpoint / "out", "")
    trained = load_outside(str(checkpoint), "digits")
    return plan_cells(preset.grids[0], trained, request, 0, "0" * 64, surrogate=trained)


def test_a_plan_has_every_source_both_ways_and_the_surrogate_in_the_identity(checkpoint: Path) -> None:
    cells = _planned(checkpoint, 30)
    transfer = [(c.attack, c.settings["targeted"], c.settings["source"]) for c in cells if c.evaluation == "transfer"]
    assert sorted(transfer) == sorted(
        (attack, targeted, source)
        for attack in ("pgd", "mim")
        for targeted in (False, True)
        for source in ("net1", "net2")
    )
    for cell in (cell for cell in cells if cell.evaluation == "blackbox"):
        other = replace(cell, settings={**cell.settings, "surrogate": "another"})
        assert cell.tier == "black-box" and cell.settings["surrogate"] and other.identity != cell.identity
    assert len({cell.identity for cell in cells}) == len(cells)


def test_attacks_are_chosen_by_the_same_rules_where_none_is_white_box() -> None:
    def names(preset: str, *attacks: str) -> list[str]:
        (grid,) = narrow(load_preset(preset), [], [], list(attacks)).grids
        sections: list[Section | None] = [grid.blackbox, grid.transfer, grid.detection]
        return [named.label for section in sections if section for named in section.attacks]

    assert names("cifar10-transfer", "pgd") == ["pgd(eps=0.01)", "pgd(eps=0.05)"], "by name: the preset's"
    assert names("cifar10-transfer", "pgd(eps=0.2)") == ["pgd(eps=0.2)"] * 2, "a full spec is taken as it is"
    assert names("cifar10-detection", "ead", "cw(c=3)") == ["ead(c=20)", "cw(c=3)"]
    assert names("demo", "pgd") == [], "white-box rows were asked for"
    for preset, attack, message in (
        ("cifar10-detection", "pdg", "did you mean pgd"),
        ("cifar10-transfer", "fgsm", "needs eps"),
        ("cifar10-transfer", "evasive(eps=0.1)", "cannot aim"),
        ("diversity", "pgd(eps=0.1)", "attacks nothing"),
    ):
        with pytest.raises(BadInput, match=message):
            names(preset, attack)


# --- diversity ---


def test_diversity_keeps_led_of_the_true_label_features_and_some_predictions(
    subject: Subject, make_cell: MakeCell
) -> None:
    cell = make_cell("diversity")
    frame = diversity.batch(subject, cell, None, 0, COUNT)
    members = torch.softmax(subject.logits.double(), -1).numpy()
    np.testing.assert_allclose(frame["led"], _led(members, subject.labels.numpy()), atol=1e-3)
    for k in range(2):
        kept = frame[f"probabilities_net{k + 1}"].dropna()
        assert kept.index.tolist() == list(range(diversity.SHOWN))
        np.testing.assert_allclose(np.stack(kept), members[k, : diversity.SHOWN], rtol=1e-6)
        plane = np.stack(frame[f"tsne_net{k + 1}"])
        assert plane.shape == (COUNT, 2) and np.isfinite(plane).all()
    assert not frame["attacked"].any()
    again = diversity.batch(subject, cell, None, 0, COUNT)
    np.testing.assert_array_equal(np.stack(again["tsne_net1"]), np.stack(frame["tsne_net1"]))
    assert "tsne_net1" not in diversity.batch(subject, cell, None, 20, COUNT)


def test_too_few_images_for_a_map_are_no_failure(subject: Subject, make_cell: MakeCell) -> None:
    frame = diversity.batch(subject, make_cell("diversity"), None, 0, 1)
    assert len(frame) == 1 and np.isfinite(frame["led"]).all() and "tsne_net1" not in frame


# --- black-box ---


@pytest.mark.parametrize("spec", ["pgd(eps=0.2)", "pgd(eps=0.2,targeted=true)"])
def test_black_box_images_are_made_on_the_surrogate_and_judged_by_the_defense(
    spec: str, subject: Subject, surrogate: Ensemble, make_cell: MakeCell
) -> None:
    attack = parse_attack(spec)
    cell = make_cell("blackbox", attack="pgd", settings=attack.settings(), seed=3)
    records = blackbox.batch(replace(subject, surrogate=surrogate), cell, attack, 0, COUNT)
    given = wrong_labels(subject.labels, 10, 0, 3) if "targeted" in spec else subject.labels
    images = craft(surrogate, attack, subject.images, given, 0, 3).images
    with torch.no_grad():
        judged, fooled = subject.ensemble(images).argmax(-1), surrogate(images).argmax(-1)
    assert records["adversarial_prediction"].tolist() == judged.tolist() != fooled.tolist()
    assert records["correct"].tolist() == ((judged == subject.labels) & (subject.clean == subject.labels)).tolist()


def test_every_defense_gets_the_same_black_box_images(
    subject: Subject, surrogate: Ensemble, make_cell: MakeCell
) -> None:
    attack = parse_attack("pgd(eps=0.2)")
    cell = make_cell("blackbox", attack="pgd", settings=attack.settings())
    other = _subject(surrogate, subject.images, subject.labels, surrogate)
    assert other.clean.tolist() != subject.clean.tolist(), "they are right on different images"
    one, two = (
        blackbox.batch(chosen, cell, attack, 0, COUNT) for chosen in (replace(subject, surrogate=surrogate), other)
    )
    assert one["l2"].tolist() == two["l2"].tolist() and one["l1"].tolist() == two["l1"].tolist()
    assert one["adversarial_prediction"].tolist() != two["adversarial_prediction"].tolist()


# --- the attack that evades a detector ---


def test_the_evasive_attack_stays_in_ball_and_box(subject: Subject) -> None:
    attack = parse_attack("evasive(eps=0.2,steps=10)")
    images = _by_hand(subject.ensemble, attack, subject.images, subject.labels, seed=0)
    assert float((images - subject.images).abs().max()) <= 0.2 + 1e-6
    assert float(images.min()) >= 0 and float(images.max()) <= 1
    assert torch.equal(images, _by_hand(subject.ensemble, attack, subject.images, subject.labels, seed=0))


def test_the_evasive_attack_fools_and_keeps_diversity_above_that_of_pgd(subject: Subject) -> None:
    medians = {}
    for spec in ("pgd(eps=0.2,steps=50)", "evasive(eps=0.2,weight=0)", "evasive(eps=0.2)", "evasive(eps=0.2,weight=4)"):
        images = _by_hand(subject.ensemble, parse_attack(spec), subject.images, subject.labels, seed=0)
        with torch.no_grad():
            logits = subject.ensemble.member_logits(images)
            predicted = subject.ensemble(images).argmax(-1)
        assert (predicted == subject.labels).float().mean() < 0.2, spec
        medians[spec] = float(log_ensemble_diversity(logits, predicted).median())
    pgd, unweighted, usual, heavy = medians.values()
    assert max(pgd, unweighted) < usual <= heavy


def test_the_evasive_attack_refuses_what_has_no_members(digits: tuple[Tensor, Tensor]) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images = digits[0][:4]
    with pytest.raises(BadInput, match=r"^[^\n]*members of an ensemble[^\n]*$"):
        evaluate(plain, images, plain(images).argmax(-1), ["evasive(eps=0.1)"])
    for spec in ("evasive(eps=0.1,weight=-1)", "evasive(eps=0.1,weight=nan)", "evasive(eps=0.1,steps=0)"):
        with pytest.raises(BadInput, match=re.compile("weight|steps")):
            parse_attack(spec)


def test_what_the_members_are_asked_is_counted(subject: Subject) -> None:
    crafted = craft(
        subject.ensemble, parse_attack("evasive(eps=0.1,steps=7)"), subject.images, subject.labels, 0, seed=0
    )
    assert crafted.forwards == crafted.backwards == 7 * COUNT
    model = AttackedModel(subject.ensemble)
    with torch.no_grad():
        assert torch.equal(model.member_logits(subject.images), subject.ensemble.member_logits(subject.images))
