"""`evaluate` at the edges: what the caller has set, what a model does to its input, what an attack does to a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from benchmark import evaluate
from benchmark.attacks import ATTACKS
from benchmark.attacks.attacked import AttackedModel
from benchmark.attacks.definitions import _Linf
from benchmark.cli import run
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble

Digits = tuple[Tensor, Tensor]
SPECS = [
    "fgsm(eps=0.1)", "pgd(eps=0.1)", "pgd@native(eps=0.1)", "pgd@art(eps=0.1)", "pgd@foolbox(eps=0.1)",
    "cw(c=1,steps=20)", "ead(c=1,steps=20)", "jsma(gamma=0.1)", "apgd-ce(eps=0.1,steps=5)", "apgd-t(eps=0.1,steps=5)",
    "fab-t(eps=0.1,steps=5)", "square(eps=0.1,queries=20)", "mora(eps=0.1,steps=5)",
]  # fmt: skip
"""Every library, and every kind of attack."""
UNEVEN = ["seconds", "network", "published", "difference"]
"""Columns that differ between equal results, or are always empty here."""


@pytest.fixture
def few(digits: Digits) -> Digits:
    return digits[0][:10], digits[1][:10]


def _table(model: nn.Module, few: tuple[Any, Any], specs: list[str] = SPECS, **others: Any) -> pd.DataFrame:
    return evaluate(model, few[0], few[1], specs, name="it", **others).drop(columns=UNEVEN)


class Wrapped(nn.Module):
    """A model around another; what it does to images, or to logits, is its children's."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images)


# --- what the caller has set ---


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_gets_the_same_numbers(
    mode: Callable[[], Any], ensemble: Ensemble, few: Digits
) -> None:
    expected = _table(ensemble, few)
    with mode():
        made_there = few[0].clone(), few[1].clone()
        pd.testing.assert_frame_equal(_table(ensemble, few), expected)
        pd.testing.assert_frame_equal(_table(ensemble, made_there), expected)
        assert not torch.is_grad_enabled()
    pd.testing.assert_frame_equal(_table(ensemble, made_there), expected)


def test_a_model_made_in_inference_mode_is_refused_with_the_remedy(ensemble: Ensemble, few: Digits) -> None:
    with torch.inference_mode():
        model = copy.deepcopy(ensemble)
    with pytest.raises(BadInput, match=r"made inside torch\.inference_mode\(\).*make it outside"):
        _table(model, few)


def test_another_default_precision_changes_nothing_and_stays(ensemble: Ensemble, few: Digits) -> None:
    expected = _table(ensemble, few)
    torch.set_default_dtype(torch.float64)
    try:
        found = _table(ensemble, few)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    pd.testing.assert_frame_equal(found, expected)


# --- images and labels ---


def test_arrays_of_any_layout_and_lists_are_taken(ensemble: Ensemble, few: Digits) -> None:
    expected = _table(ensemble, few)
    images, labels = few[0].numpy(), few[1].numpy()
    backwards = images[::-1].copy()[::-1], labels[::-1].copy()[::-1]
    locked = images.copy()
    locked.flags.writeable = False
    variants: list[tuple[Any, Any]] = [backwards, (locked, labels), (list(images), labels.tolist())]
    variants.append((few[0].transpose(2, 3).contiguous().transpose(2, 3), tuple(labels.tolist())))
    for given in variants:
        pd.testing.assert_frame_equal(_table(ensemble, given), expected)


def test_a_batch_may_be_larger_than_all_images(ensemble: Ensemble, few: Digits) -> None:
    pd.testing.assert_frame_equal(_table(ensemble, few, batch_size=10_000), _table(ensemble, few, batch_size=10))


@pytest.mark.parametrize("tier", ["strict", "paper", "strong"])
def test_one_image_is_enough(tier: str, ensemble: Ensemble, few: Digits) -> None:
    table = _table(
        ensemble, (few[0][:1], few[1][:1]), [s for s in SPECS if tier != "strong" or s == SPECS[0]], tier=tier
    )
    assert (table["samples"] == 1).all() and table["accuracy"].isin([0, 100]).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_one_pixel_are_taken(channels: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(channels, 10))
    images = torch.rand(8, channels, 1, 1)
    labels = model(images).argmax(-1)
    table = _table(model, (images, labels), [*SPECS, "square@torchattacks(eps=0.1,queries=5)"])
    assert (table["samples"] == 8).all() and (table["clean_accuracy"] == 100).all()
    with pytest.raises(BadInput, match=r"needs images of 2×2 pixels.*use square@pyautoattack"):
        _table(model, (images, labels), ["square@art(eps=0.1,queries=5)"])
    if channels == 1:
        with pytest.raises(BadInput, match=r"two scalars at a time.*use jsma@native"):
            _table(model, (images, labels), ["jsma@art(gamma=1)"])


# --- what a model does ---


class Writing(Wrapped):
    """Normalises in place, as many published models do."""

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images.mul_(2).sub_(0.5))


class NotWriting(Wrapped):
    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images.mul(2).sub(0.5))


def test_a_model_that_writes_into_its_input_changes_no_image_and_no_number(ensemble: Ensemble, few: Digits) -> None:
    given = few[0].clone(), few[1].clone()
    found = _table(Writing(ensemble), given)
    assert torch.equal(given[0], few[0]) and torch.equal(given[1], few[1])
    pd.testing.assert_frame_equal(found, _table(NotWriting(ensemble), few))


def test_an_array_is_not_written_into_either(ensemble: Ensemble, few: Digits) -> None:
    given = few[0].numpy().copy()
    _table(Writing(ensemble), (given, few[1].numpy()), SPECS[:2])
    assert np.array_equal(given, few[0].numpy())


class Small(Wrapped):
    """Has room for so many images."""

    limit = 4

    def forward(self, images: Tensor) -> Tensor:
        if len(images) > self.limit:
            raise RuntimeError(f"no room for {len(images)}")
        return self.inner(images)


@pytest.mark.parametrize("batch_size", [5, 9, 100])
def test_a_model_that_fails_on_large_batches_is_refused_with_the_size_and_the_remedy(
    batch_size: int, ensemble: Ensemble, digits: Digits
) -> None:
    few = digits[0][:20], digits[1][:20]
    with pytest.raises(BadInput, match=r"fails on \d+ images .*no room for.*set batch_size="):
        _table(Small(ensemble), few, batch_size=batch_size)


@pytest.mark.parametrize("limit", [1, 4])
def test_a_model_of_small_batches_is_taken_at_their_size(limit: int, ensemble: Ensemble, few: Digits) -> None:
    model = Small(ensemble)
    model.limit = limit
    expected = _table(Wrapped(ensemble), few, batch_size=limit)
    pd.testing.assert_frame_equal(_table(model, few, batch_size=limit), expected)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_of_another_precision_is_refused_with_the_remedy(kind: torch.dtype, few: Digits) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).to(kind)
    with pytest.raises(BadInput, match=rf"the images are torch\.float32, its weights {kind}: give model\.float\(\)"):
        _table(model, few)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("tier", ["strict", "strong"])
def test_a_model_that_converts_inside_is_taken(kind: torch.dtype, tier: str, ensemble: Ensemble, few: Digits) -> None:
    class Converting(Wrapped):
        def forward(self, images: Tensor) -> Tensor:
            return self.inner(images.to(kind))

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images, labels = few[0][:6], plain(few[0][:6]).argmax(-1)
    model = Converting(copy.deepcopy(plain).to(kind))
    table = _table(model, (images, labels), SPECS if tier == "strict" else SPECS[:1], tier=tier)
    assert (table["samples"] == 6).all() and (table["not_finite"] == 0).all()
    assert table["accuracy"].min() < table["clean_accuracy"].min()


def test_a_model_with_a_part_on_another_device_is_refused_with_the_remedy(ensemble: Ensemble, few: Digits) -> None:
    class Elsewhere(Wrapped):
        mean = torch.zeros(1, device="meta")

        def forward(self, images: Tensor) -> Tensor:
            return self.inner(images - self.mean)

    with pytest.raises(
        BadInput, match=r"the images are on cpu: make every tensor of the model a parameter or a buffer"
    ):
        _table(Elsewhere(ensemble), few)
    with pytest.raises(BadInput, match="the model on meta cannot be moved to cpu"):
        _table(nn.Sequential(nn.Flatten(), nn.Linear(64, 10, device="meta")), few)


class Undefined(Wrapped):
    """NaN on every image that is not one of the data's, whose pixels are sixteenths."""

    def forward(self, images: Tensor) -> Tensor:
        logits = self.inner(images)
        sixteenths = images * 16
        changed = ((sixteenths - sixteenths.round()).abs() > 1e-5).flatten(1).any(1, keepdim=True)
        return logits.masked_fill(changed, float("nan"))


@pytest.mark.parametrize(
    "spec",
    [
        "fgsm(eps=0.1)",
        "bim(eps=0.1)",
        "pgd(eps=0.1)",
        "pgd@native(eps=0.1)",
        "pgd@art(eps=0.1)",
        "mora(eps=0.1,steps=5)",
    ],
)
def test_a_model_that_gives_no_number_under_attack_has_no_accuracy_and_a_flag(
    spec: str, ensemble: Ensemble, few: Digits
) -> None:
    records: dict[str, pd.DataFrame] = {}
    row = evaluate(Undefined(ensemble), *few, [spec], tier="paper", records=records).iloc[0]
    assert row["clean_accuracy"] > 50 and row["accuracy"] == 0
    assert "no-prediction: the model's output is not a number for 10 of 10 images" in row["flags"]
    (frame,) = records.values()
    assert (frame["adversarial_prediction"] == -1).all() and not frame["correct"].any()


@pytest.mark.parametrize(
    "spec",
    [
        "apgd-ce(eps=0.1,steps=5)",
        "apgd-t(eps=0.1,steps=5)",
        "fab-t(eps=0.1,steps=5)",
        "square(eps=0.1,queries=20)",
        "autoattack(eps=0.1)",
    ],
)
def test_no_number_is_not_class_0_for_attacks_that_return_only_what_fools(
    spec: str, ensemble: Ensemble, digits: Digits
) -> None:
    zeros = digits[1] == 0
    few = digits[0][zeros][:4], digits[1][zeros][:4]
    row = evaluate(Undefined(ensemble), *few, [spec], tier="strict").iloc[0]
    assert row["clean_accuracy"] == 100 and row["accuracy"] == 0


@pytest.mark.parametrize(
    "spec", ["square@art(eps=0.1,queries=20)", "square@torchattacks(eps=0.1,queries=20)", "cw(c=1,steps=20)"]
)
def test_no_number_is_told_where_an_attack_takes_it_for_a_class(spec: str, ensemble: Ensemble, few: Digits) -> None:
    assert "no-prediction" in evaluate(Undefined(ensemble), *few, [spec]).iloc[0]["flags"]
    assert "no-prediction" not in evaluate(ensemble, *few, [spec]).iloc[0]["flags"]


def test_a_model_that_gives_no_number_loses_every_image_in_tier_strong(ensemble: Ensemble, few: Digits) -> None:
    row = evaluate(Undefined(ensemble), *few, ["pgd(eps=0.1)"], tier="strong").iloc[0]
    assert row["accuracy"] == 0 and "no-prediction" in row["flags"]


# --- what an attack does ---


@dataclass(frozen=True)
class Vandal(_Linf):
    """A plug-in that changes what it attacks."""

    backends: ClassVar[dict[str, str]] = {"native": f"{__name__}:vandalise"}
    how: str = "weights"


def _weights(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.zero_()


def _buffers(model: nn.Module) -> None:
    for buffer in model.buffers():
        buffer.fill_(9)


def _mode(model: nn.Module) -> None:
    model.train()


def _forward(model: nn.Module) -> None:
    model.forward = lambda images: torch.zeros(len(images), 10)  # type: ignore[method-assign]


def _hook(model: nn.Module) -> None:
    model.register_forward_hook(lambda module, inputs, output: output * 0)


def _any_hook(model: nn.Module) -> None:
    model.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 0,))


def _new_buffer(model: nn.Module) -> None:
    model.register_buffer("offset", torch.ones(1))


def _new_weights(model: nn.Module) -> None:
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.zeros_like(weight)))


def _parts(model: nn.Module) -> None:
    for name, _ in model.named_children():
        setattr(model, name, nn.ModuleList())


def _method(model: nn.Module) -> None:
    model.member_logits = lambda images: torch.zeros(2, len(images), 10)


def _class(model: nn.Module) -> None:
    model.__class__ = type("Other", (type(model),), {"forward": lambda self, images: torch.zeros(len(images), 10)})


def _error(model: nn.Module) -> None:
    _weights(model)
    raise ZeroDivisionError("on purpose")


def _exit(model: nn.Module) -> None:
    raise SystemExit(0)


VANDALS: dict[str, tuple[Callable[[nn.Module], None], str]] = {
    "weights": (_weights, "failed: ModelChanged: vandal.* changed the model"),
    "buffers": (_buffers, "failed: ModelChanged: vandal.* changed the model"),
    "mode": (_mode, r"failed: ModelChanged: vandal.* changed the model \(mode of"),
    "forward": (_forward, r"failed: ModelChanged: vandal.* changed the model \(forward of"),
    "hook": (_hook, r"failed: ModelChanged: vandal.* changed the model \(forward hooks of"),
    "any-hook": (_any_hook, r"failed: ModelChanged: vandal.* changed the model \(backward pre hooks of"),
    "new-buffer": (_new_buffer, r"failed: ModelChanged: vandal.* changed the model \(buffers of"),
    "new-weights": (_new_weights, r"failed: ModelChanged: vandal.* changed the model \(parameters of"),
    "parts": (_parts, r"failed: ModelChanged: vandal.* changed the model \(modules of"),
    "method": (_method, r"failed: ModelChanged: vandal.* changed the model \(member_logits of"),
    "class": (_class, r"failed: ModelChanged: vandal.* changed the model \(class of"),
    "exit": (_exit, "failed: SystemExit: 0"),
    "error": (_error, "failed: ZeroDivisionError: on purpose"),
}


def vandalise(model: nn.Module, images: Tensor, labels: Tensor, attack: Vandal) -> Tensor:
    assert isinstance(model, AttackedModel)
    VANDALS[attack.how][0](model.model)
    return images


@pytest.fixture
def vandal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS._targets, "vandal", Vandal)


def _state(model: nn.Module) -> list[Any]:
    tensors = [
        (name, tensor.clone(), tensor.requires_grad) for name, tensor in model.state_dict(keep_vars=True).items()
    ]
    modules = [
        (m.training, type(m), sorted(vars(m)), dict(m._forward_hooks), dict(m._backward_pre_hooks))
        for m in model.modules()
    ]
    return [[(name, tensor.tolist(), wanted) for name, tensor, wanted in tensors], modules]


@pytest.mark.usefixtures("vandal")
@pytest.mark.parametrize("acceleration", ["none", "folded"])
@pytest.mark.parametrize("how", VANDALS)
def test_an_attack_that_changes_the_model_is_a_row_that_failed_and_costs_the_others_nothing(
    how: str, acceleration: str, ensemble: Ensemble, few: Digits
) -> None:
    ensemble.train()
    ensemble.members[0].eval()
    next(ensemble.parameters()).requires_grad_(False)
    before = _state(ensemble)
    sound, bad = ["fgsm(eps=0.1)", "pgd(eps=0.1)", "square(eps=0.1,queries=20)"], f"vandal(eps=0.1,how={how})"
    expected = _table(ensemble, few, sound, acceleration=acceleration)
    records: dict[str, pd.DataFrame] = {}
    with pytest.warns(UserWarning, match=VANDALS[how][1]):
        table = _table(ensemble, few, [sound[0], bad, *sound[1:]], acceleration=acceleration, records=records)
    assert _state(ensemble) == before
    row = table.iloc[1]
    assert row["samples"] == 0 and pd.isna(row["accuracy"]) and pd.Series([row["flags"]]).str.match(VANDALS[how][1])[0]
    assert row["attack"] == "vandal" and len(records) == 3 and not any("vandal" in name for name in records)
    rest = table.drop(index=1).reset_index(drop=True).astype(expected.dtypes)
    pd.testing.assert_frame_equal(rest, expected)


@pytest.mark.usefixtures("vandal")
def test_a_table_of_nothing_but_failures_is_still_a_table(ensemble: Ensemble, few: Digits) -> None:
    with pytest.warns(UserWarning, match="on purpose"):
        table = _table(ensemble, few, ["vandal(eps=0.1,how=error)"])
    assert table["samples"].tolist() == [0] and table["flags"].tolist() == ["failed: ZeroDivisionError: on purpose"]


@pytest.mark.usefixtures("vandal")
@pytest.mark.parametrize("acceleration", ["none", "folded"])
def test_a_run_with_such_attacks_has_failed_cells_and_the_others_as_without_them(
    acceleration: str, checkpoint: Path, here: Path
) -> None:
    command = ["run", "demo", "--defense", str(checkpoint), "--samples", "20", "--batch-size", "10"]
    command += ["--tier", "strict", "--acceleration", acceleration]
    sound = ["--attack", "fgsm(eps=0.1)", "--attack", "pgd(eps=0.1)"]
    bad = [part for how in VANDALS for part in ("--attack", f"vandal(eps=0.1,how={how})")]
    assert run([*command, *sound, "--out", "without"]) == 0
    assert run([*command, *bad, *sound, "--out", "with"]) != 0
    tables = {name: pd.read_csv(here / name / "table.csv").drop(columns="seconds") for name in ("with", "without")}
    failed = tables["with"][tables["with"]["attack"] == "vandal"].set_index("parameters")
    assert len(failed) == len(VANDALS) and (failed["samples"] == 0).all()
    for how, (_, words) in VANDALS.items():
        parameters = "eps=0.1" if how == "weights" else f"eps=0.1,how={how}"
        assert failed["flags"].str.match(words)[parameters]
    rest = tables["with"][tables["with"]["attack"] != "vandal"].reset_index(drop=True)
    pd.testing.assert_frame_equal(rest.astype(tables["without"].dtypes), tables["without"])
