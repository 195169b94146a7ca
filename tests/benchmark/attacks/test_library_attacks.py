"""Attack classes of the libraries by their own names: their parameters, bounds and images are the library's."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import foolbox
import numpy as np
import pandas as pd
import pytest
import torch
import torchattacks
from art.attacks import evasion
from art.estimators.classification import PyTorchClassifier
from torch import Tensor, nn

from benchmark import evaluate
from benchmark.attacks import parse_attack
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.bounds import Bound
from benchmark.attacks.library_attacks import library_classes
from benchmark.cells.cell import Cell
from benchmark.cells.codec import from_json, to_json
from benchmark.evaluations.transfer import Transfer, aimed
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.harness.crafting import craft
from benchmark.harness.seeding import seeded
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

BOUNDS = {
    "torchattacks:DIFGSM(eps=8/255,steps=20)": Bound("linf", 8 / 255),
    "torchattacks:PGDL2(eps=0.5)": Bound("l2", 0.5),
    "torchattacks:APGD(eps=0.5,norm=L2)": Bound("l2", 0.5),
    "torchattacks:PIFGSM(max_epsilon=0.1)": Bound("linf", 0.1),
    "torchattacks:CW(c=2)": None,
    "torchattacks:GN(std=0.1,bound=l2:0.5)": Bound("l2", 0.5),
    "torchattacks:GN(std=0.1,bound=none)": None,
    "art:DeepFool(max_iter=50)": None,
    "art:ProjectedGradientDescent(norm=2,eps=0.5)": Bound("l2", 0.5),
    "art:ProjectedGradientDescent(norm=1,eps=0.5)": Bound("l1", 0.5),
    "art:FastGradientMethod(eps=0.1)": Bound("linf", 0.1),
    "art:BasicIterativeMethod(eps=0.1)": Bound("linf", 0.1),
    "art:VirtualAdversarialMethod(eps=0.1)": Bound("l2", 0.1),
    "art:SimBA(bound=l2:1)": Bound("l2", 1),
    "foolbox:L2FMNAttack(steps=100)": None,
    "foolbox:L2FMNAttack(bound=l2:0.5)": Bound("l2", 0.5),
    "foolbox:LinfPGD(eps=0.1)": Bound("linf", 0.1),
    "foolbox:SparseL1DescentAttack(bound=l1:2)": Bound("l1", 2),
    "foolbox:SpatialAttack(bound=none)": None,
}


@pytest.mark.parametrize(("text", "bound"), BOUNDS.items())
def test_the_bound_follows_from_the_parameters_or_from_what_was_asked(text: str, bound: Bound | None) -> None:
    named = parse_attack(text)
    assert named.bound == bound
    assert parse_attack(named.text) == named


@pytest.mark.parametrize("text", BOUNDS)
def test_cells_with_such_attacks_are_read_back(text: str, make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(WhiteBox(parse_attack(text), "strict"))
    read = from_json(to_json(cell))
    assert read == cell and read.identity == cell.identity and read.task.bound == cell.task.bound
    assert read.task.attack is not None and read.task.attack.attack.minimises == cell.task.attacks[0].attack.minimises


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("torchattacks:DIFGMS(eps=0.1)", "DIFGSM"),
        ("torchattacks:DIFGSM(epsilon=0.1)", "eps"),
        ("torchattacks:DIFGSM(steps=2.5)", "steps"),
        ("torchattacks:DIFGSM(random_start=maybe)", "random_start"),
        ("torchatacks:DIFGSM(eps=0.1)", "torchattacks"),
        ("torchattacks:GN(std=0.1)", "bound="),
        ("torchattacks:PGD(eps=0.1,seed=3)", "seed"),
        ("torchattacks:LGV(eps=0.1)", "training data"),
        ("art:DPatch(max_iter=3)", "detectors"),
        ("art:FastGradientMethod(eps=0.1,batch_size=3)", "batch_size"),
        ("foolbox:LinfPGD(steps=3)", "eps"),
        ("foolbox:LinfPGD(bound=l2:0.5)", "eps"),
        ("foolbox:VirtualAdversarialAttack(eps=1)", "steps"),
        ("foolbox:HopSkipJumpAttack(constraint=l3)", "linf"),
        ("art:SaliencyMapMethod(targeted=false,bound=none)", "targeted"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, word: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_attack(text)
    assert word in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_class_whose_package_is_missing_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    with pytest.raises(BadInput, match="needs the package numba"):
        parse_attack("foolbox:L2BrendelBethgeAttack(steps=3)")


def test_a_short_name_of_the_library_stands_for_the_class() -> None:
    assert parse_attack("foolbox:PGD(eps=0.1)") == parse_attack("foolbox:LinfProjectedGradientDescentAttack(eps=0.1)")


@pytest.mark.parametrize("library", ["torchattacks", "art", "foolbox"])
def test_every_class_is_usable_or_left_out_with_a_reason(library: str) -> None:
    for one in library_classes(library).values():
        if one.left_out:
            continue
        arguments = [f"{name}=1" for name, parameter in one.parameters.items() if parameter.required]
        if one.bound_facts.kind == "asked for":
            arguments.append("bound=none")
        assert parse_attack(f"{library}:{one.name}({','.join(arguments)})").library == library


def test_the_norm_that_a_class_of_foolbox_minimises_is_its_own_distance() -> None:
    pytest.importorskip("numba", reason="foolbox builds its Brendel and Bethge attacks only with numba")
    known = {}
    for one in library_classes("foolbox").values():
        if one.bound_facts.kind == "minimum-norm":
            try:
                distance = one.target().distance
            except (NotImplementedError, ValueError, AttributeError):  # it has none unless it is given one
                distance = None
            attack = parse_attack(f"foolbox:{one.name}").attack
            assert attack.minimised == (distance and str(distance).split()[0].lower()), one.name
            known[one.name] = attack.minimised
    assert {"l0", "l1", "l2", "linf", None} == set(known.values())


@pytest.mark.parametrize(
    ("text", "norm"),
    [
        ("torchattacks:DeepFool(bound=none)", "l2"),
        ("art:DeepFool", "l2"),
        ("art:CarliniLInfMethod", "linf"),
        ("art:ElasticNet", "l1"),
        ("art:ElasticNet(decision_rule=L2)", "l2"),
        ("art:HopSkipJump(norm=inf)", "linf"),
        ("foolbox:HopSkipJumpAttack(constraint=linf)", "linf"),
        ("foolbox:InversionAttack(distance=l1)", "l1"),
        ("torchattacks:SparseFool", None),
        ("foolbox:LinfPGD(eps=0.1)", None),
        ("art:ProjectedGradientDescent(norm=2,eps=0.5)", None),
    ],
)
def test_the_norm_that_is_minimised_follows_from_the_class_and_its_parameters(text: str, norm: str | None) -> None:
    assert parse_attack(text).attack.minimised == norm


def _bare_torchattacks(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return torchattacks.DIFGSM(model, eps=0.1, alpha=0.02, steps=7)(images, labels)


def _bare_art(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    classifier = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), input_shape=tuple(images.shape[1:]), nb_classes=10, clip_values=(0, 1)
    )
    attack = evasion.DeepFool(classifier, max_iter=9, batch_size=len(images), verbose=False)
    return torch.from_numpy(attack.generate(images.numpy(), y=np.eye(10)[labels.numpy()]))


def _bare_foolbox(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    attack = foolbox.attacks.L2FMNAttack(steps=20)
    return attack.run(foolbox.PyTorchModel(model, bounds=(0, 1)), images, foolbox.criteria.Misclassification(labels))


BARE: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "torchattacks:DIFGSM(eps=0.1,alpha=0.02,steps=7)": _bare_torchattacks,
    "art:DeepFool(max_iter=9)": _bare_art,
    "foolbox:L2FMNAttack(steps=20)": _bare_foolbox,
}


@pytest.mark.parametrize("text", BARE)
def test_the_images_are_those_of_the_bare_library(text: str, ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits[0][:25], digits[1][:25]
    named = parse_attack(text)
    ensemble.eval().requires_grad_(False)
    crafted = craft(ensemble, named, images, labels.numpy(), 0, 3)
    with seeded(3, named.text, 0):
        bare = BARE[text](AttackedModel(ensemble), images.clone(), labels)
    for mine, theirs in zip(crafted.images, bare, strict=True):
        torch.testing.assert_close(mine, theirs.clamp(0, 1), rtol=0, atol=0)
    assert (crafted.images != images).flatten(1).any(1).sum() > 10


@pytest.mark.parametrize("text", ["torchattacks:PGD(eps=0.1)", "foolbox:L2PGD(eps=0.5)", "art:SquareAttack(eps=0.1)"])
def test_the_seed_alone_decides_what_is_drawn(text: str, ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    run = functools.partial(evaluate, ensemble, digits[0][:15], digits[1][:15], [text])
    found: list[dict[str, pd.DataFrame]] = [{}, {}, {}]
    before = torch.get_rng_state()
    for records, seed in zip(found, (0, 0, 1), strict=True):
        run(seed=seed, records=records)
    assert torch.equal(before, torch.get_rng_state())
    first, again, other = (next(iter(records.values()))["l2"].to_numpy() for records in found)
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_such_attacks_aim_at_targets_in_a_transfer_matrix() -> None:
    for text in ("torchattacks:PGD(eps=0.1,steps=3)", "art:BasicIterativeMethod(eps=0.1)", "foolbox:L2PGD(eps=1)"):
        named = aimed(parse_attack(text), True)
        assert named.attack.wants_target and "targeted=true" in named.text and parse_attack(named.text) == named
        assert Transfer(named, 0).untargeted == parse_attack(text)


@pytest.mark.parametrize(
    "text", ["torchattacks:JSMA(theta=0.5,bound=none)", "torchattacks:FAB(eps=0.5,multi_targeted=true)"]
)
def test_a_model_of_another_number_of_classes_is_attacked(text: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    images = torch.rand(6, 1, 4, 4)
    table = evaluate(model, images, model(images).argmax(1), [text])
    assert table["samples"][0] == 6 and table["accuracy"][0] < 100


def test_results_with_such_attacks_are_read_without_any_library(make_cell: Callable[..., Cell]) -> None:
    content = to_json(make_cell(WhiteBox(parse_attack("torchattacks:DIFGSM(eps=0.1)"), "strict")))
    code = (
        "import sys; from benchmark.cells.codec import from_json; "
        f"cell = from_json({content!r}); assert cell.task.bound.radius == 0.1; "
        "assert not {'torch', 'torchattacks', 'art', 'foolbox'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tables_name_class_library_and_parameters_apart(ensemble: Ensemble, digits: tuple[Tensor, Tensor]) -> None:
    table: Any = evaluate(ensemble, digits[0][:5], digits[1][:5], ["torchattacks:BIM(eps=0.1,steps=2)"])
    row = table.iloc[0]
    assert (row["attack"], row["parameters"]) == ("BIM", "eps=0.1,steps=2")
    assert row["library"].startswith("torchattacks ")


def test_a_walk_starts_from_another_image_where_noise_is_no_start() -> None:
    """The mean of uniform noise is 0.5: the model takes all of it for class 0, like the first two images."""

    class Brightness(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            bright = 40 * (images.flatten(1).mean(1) - 0.6)
            return torch.stack([-bright, bright], 1)

    images = torch.full((4, 1, 16, 16), 0.55)
    images[2:] = 0.7
    labels = np.array([0, 0, 1, 1])
    found = craft(
        Ensemble([Brightness()]).eval(), parse_attack("foolbox:HopSkipJumpAttack(steps=2)"), images, labels, 0, 0
    )
    with torch.no_grad():
        assert (Brightness()(found.images).argmax(1).numpy() != labels).all()
