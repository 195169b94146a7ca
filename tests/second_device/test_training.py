"""Every defense trains to the same weights on a second device, and a training goes on where it was begun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.training import train_ensemble
from benchmark.ensembles.training import training_data as data_for
from defenses.catalogue import DEFENSES as REGISTERED
from defenses.catalogue import parse_defense
from defenses.checkpoints import FILE_NAME, load_checkpoint, read_provenance
from defenses.errors import BadInput
from defenses.members.diversity import log_ensemble_diversity
from defenses.training.distributed import joined
from defenses.training.loop import train
from defenses.training.recipes import find_recipe
from defenses.training.request import TrainingRequest
from tests.second_device.device import calls, limited

DEFENSES = [
    "adp-2-0",
    "baseline",
    "label-smoothing-0.6",
    "jsd(lambda=0.5)",
    "gal",
    "igat",
    "mce",
    "mrboost",
    "barre",
    "lotos",
    "trs(steps=2)",
    "dverge(steps=2)",
    "advt-pgd",
    "advt-fgsm+adp-2-0.5",
    "advt(attack=pgd,steps=2)+label-smoothing-0.6",
]
STRATEGIES = ["sequential", "independent"]


def _train(defense: str, device: str, out: Path, **changes: object) -> dict[str, torch.Tensor]:
    request = EnsembleRequest(defense, "digits", "mini-resnet(width=2)", 2)
    small = {"epochs": 2, "train_images": 96, "batch_size": 32}
    train_ensemble(request, {**small, **changes}, out=out, device=device, threads=1)
    return load_checkpoint(out).state_dict()


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


QUICK = ["adp-2-0.5", "advt-fgsm"]


def test_every_registered_defense_is_tested() -> None:
    named = {part.partition("(")[0] for spec in (*QUICK, *DEFENSES) for part in spec.split("+")}
    tested = {type(parse_defense(spec).defense).__name__ for spec in (*QUICK, *DEFENSES)} | named
    for name in REGISTERED.names():
        assert name in named or REGISTERED.get(name).__name__ in tested, name


@pytest.mark.parametrize("defense", [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in DEFENSES)])
def test_a_defense_trains_to_the_same_weights(defense: str, here: Path) -> None:
    before = calls.total()
    assert _same(_train(defense, "second", here / "there"), _train(defense, "cpu", here / "here"))
    assert calls.total() > before
    scores = [read_provenance(here / name / FILE_NAME).scores for name in ("here", "there")]
    assert scores[0]["test_accuracy"] == scores[1]["test_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_strategy_trains_to_the_same_weights(strategy: str, here: Path) -> None:
    changes = {"strategy": strategy, "select": "test-accuracy"}
    assert _same(
        _train("baseline", "second", here / "there", **changes), _train("baseline", "cpu", here / "here", **changes)
    )


@pytest.mark.parametrize("first", ["cpu", pytest.param("second", marks=pytest.mark.slow)])
def test_a_training_that_was_stopped_on_one_device_goes_on_on_the_other(first: str, here: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(row: dict[str, object]) -> Iterator[None]:
        raise Stopped

    recipe = find_recipe("fast", "gray", epochs=2, train_images=96, batch_size=32)
    asked = TrainingRequest(parse_defense("adp-2-0.5"), "mini-resnet(width=2)", 2, recipe, 0, None)
    data = data_for("digits", recipe, 0)
    with pytest.raises(Stopped):
        train(asked, data, here / "a", torch.device(first), on_epoch=stop)
    train(asked, data, here / "a", torch.device("second" if first == "cpu" else "cpu"))
    train(asked, data, here / "b", torch.device("cpu"))
    weights = [load_checkpoint(here / name).state_dict() for name in ("a", "b")]
    assert _same(*weights)


def test_a_device_without_float64_trains_to_the_same_weights_but_for_rounding(here: Path) -> None:
    with limited(float64=False):
        with pytest.raises(TypeError):
            torch.zeros(1, device="second").double()
        there = _train("adp-2-0.5", "second", here / "there")
    torch.testing.assert_close(there, _train("adp-2-0.5", "cpu", here / "here"), rtol=1e-4, atol=1e-5)


def test_the_gradient_of_the_diversity_flows_back_to_a_device_without_float64() -> None:
    logits = torch.randn(3, 4, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(4)
    found = []
    for device in ("cpu", "second"):
        with limited(float64=device == "cpu"):
            point = logits.clone().to(device).requires_grad_()
            value = log_ensemble_diversity(point, labels.to(device))
            (gradient,) = torch.autograd.grad(value.sum(), point)
        assert value.device.type == gradient.device.type == device
        found.append((value.detach().cpu(), gradient.cpu()))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_bfloat16_is_refused_where_the_device_has_none(here: Path) -> None:
    with pytest.raises(BadInput, match="bfloat16"):
        _train("baseline", "second", here / "there", precision="bfloat16")


def test_several_processes_are_refused_on_a_device_without_a_way_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="second"), joined(torch.device("second")):
        pass
