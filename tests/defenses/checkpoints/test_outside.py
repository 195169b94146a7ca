"""Models from outside: each kind is recognised by what is in it, says so, and gives what its author's code gave."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmark import datasets
from defenses import load_checkpoint
from defenses.checkpoints import EXAMPLE_RESNET18, Provenance, is_checkpoint, save_checkpoint
from defenses.errors import BadInput
from defenses.members.ensemble import Ensemble, build_ensemble, predict_logits
from defenses.members.images import LabelledImages
from defenses.members.networks import build_network

NETWORK = "mini-resnet(width=2)"
SHAPE = (1, 8, 8)
KNOWN: dict[str, Any] = {"shape": SHAPE, "classes": 10}
IMAGES = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(0))


def _network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(NETWORK, SHAPE, 10)
        network(torch.rand(16, *SHAPE))  # so that the statistics of batch norms are not those they begin with
    return network.eval()


def _refusal(spec: object, **known: Any) -> str:
    with pytest.raises(BadInput) as caught:
        load_checkpoint(str(spec), **known)
    assert str(spec).partition(":")[0] in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def _origin(ensemble: Ensemble) -> Provenance:
    assert ensemble.provenance is not None
    return ensemble.provenance


def _same(ensemble: Ensemble, *members: nn.Module, images: Tensor = IMAGES) -> None:
    """The ensemble's members give what these modules give for the same images."""
    wanted = torch.stack([member(images) for member in members])
    torch.testing.assert_close(ensemble.member_logits(IMAGES), wanted)


def _text(name: str, dense: str = "linear") -> str:
    """A tensor's name as others write it."""
    parts = name.replace("shortcut", "downsample").split(".")
    if parts[0] == "layers":
        parts[:2] = [f"layer{int(parts[1]) + 1}"]
    return ".".join(dense if part == "fc" else part for part in parts)


WRAPPINGS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda state: state,
    "DataParallel": lambda state: {f"module.{name}": value for name, value in state.items()},
    "compiled and wrapped": lambda state: {f"_orig_mod.module.model.{name}": value for name, value in state.items()},
    "training script": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "tutorial": lambda state: {"model_state_dict": state, "loss": 0.3},
    "kuangliu": lambda state: {"net": {f"module.{_text(name)}": v for name, v in state.items()}, "acc": 94.1},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_state_dict_loads_into_the_network_that_is_named_however_it_was_wrapped(
    tmp_path: Path, wrapping: str
) -> None:
    path = tmp_path / "weights.pt"
    torch.save(WRAPPINGS[wrapping](_network().state_dict()), path)
    loaded = load_checkpoint(f"{path}:{NETWORK}", **KNOWN)
    _same(loaded, _network())
    recognised = f"state dict, 1 × {NETWORK}, no normalisation: it gets pixels in [0, 1]"
    assert _origin(loaded).recognised == recognised and _origin(loaded).dataset == ""


def test_safetensors_are_recognised_by_content_too(tmp_path: Path) -> None:
    for name in ("weights.safetensors", "weights.pt"):
        save_file(_network().state_dict(), tmp_path / name)
        _same(load_checkpoint(f"{tmp_path / name}:{NETWORK}", **KNOWN), _network())


def test_the_normalisation_comes_from_the_spec_or_from_the_file_and_never_from_both(tmp_path: Path) -> None:
    plain, normalised = tmp_path / "plain.pt", tmp_path / "normalised.pt"
    state = {f"model.{name}": value for name, value in _network().state_dict().items()}
    torch.save(state, plain)
    torch.save(state | {"normalizer.mean": torch.tensor([0.25]), "normalizer.std": torch.tensor([0.5])}, normalised)
    inputs = (IMAGES - 0.25) / 0.5
    by_spec = load_checkpoint(f"{plain}:mini-resnet(mean=0.25,width=2,std=1/2)", **KNOWN)
    by_file = load_checkpoint(f"{normalised}:{NETWORK}", **KNOWN)
    _same(by_spec, _network(), images=inputs)
    _same(by_file, _network(), images=inputs)
    assert "normalised by the mean and std of the spec" in _origin(by_spec).recognised
    assert "normalised by the mean and std in the file" in _origin(by_file).recognised
    assert "is normalised by the mean and std in the file; omit mean and std" in _refusal(
        f"{normalised}:mini-resnet(width=2,mean=0)", **KNOWN
    )


def test_a_mean_for_each_channel_is_written_with_blanks(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    network = build_network(NETWORK, (3, 8, 8), 10).eval()
    torch.save(network.state_dict(), path)
    spec = f"{path}:mini-resnet(width=2,mean=0.1 0.2 0.3)"
    loaded = load_checkpoint(spec, shape=(3, 8, 8), classes=10)
    images = torch.rand(2, 3, 8, 8)
    wanted = network(images - torch.tensor([0.1, 0.2, 0.3])[:, None, None])
    torch.testing.assert_close(loaded.member_logits(images)[0], wanted)


@pytest.mark.parametrize(
    ("network", "known", "message"),
    [
        ("", KNOWN, "is a plain state dict"),
        (f":{NETWORK}", {}, "does not store the image shape"),
        (":mini-resnett", KNOWN, "did you mean mini-resnet"),
        (":mini-resnet(width=3)", KNOWN, "has shape"),
        (":resnet20", KNOWN, "tensor"),
        (f":{NETWORK}", {"shape": SHAPE, "classes": 7}, "has shape (10,), this network needs (7,)"),
        (f":{NETWORK}", {"shape": (3, 8, 8), "classes": 10}, "this network needs (2, 3, 3, 3)"),
        (":mini-resnet(width=2,std=0)", KNOWN, "must be above 0"),
        (":mini-resnet(width=2,mean=0.1 0.2)", KNOWN, "a mean or std of 2 numbers; images have 1 channels"),
        (":mini-resnet(width=2,mean=grey)", KNOWN, "mean is 'grey'; write one number"),
    ],
)
def test_weights_that_do_not_suit_what_is_said_about_them_are_refused(
    tmp_path: Path, network: str, known: dict[str, Any], message: str
) -> None:
    path = tmp_path / "weights.pt"
    torch.save(_network().state_dict(), path)
    with pytest.raises(BadInput) as caught:
        load_checkpoint(f"{path}{network}", **known)
    assert message in str(caught.value)


def test_files_with_commas_between_them_are_one_ensemble_in_that_order(tmp_path: Path) -> None:
    files = [tmp_path / f"seed{seed}.pt" for seed in (2, 0, 1)]
    for seed, file in zip((2, 0, 1), files, strict=True):
        torch.save(_network(seed).state_dict(), file)
    loaded = load_checkpoint(f"{','.join(map(str, files))}:{NETWORK}", **KNOWN)
    _same(loaded, _network(2), _network(0), _network(1))
    assert _origin(loaded).members == 3
    assert _origin(loaded).recognised.startswith(f"3 files, state dict, 3 × {NETWORK}, ")
    with pytest.raises(BadInput, match=r"no checkpoint at nowhere\.pt"):
        load_checkpoint(f"{files[0]},nowhere.pt:{NETWORK}", **KNOWN)


def test_files_that_normalise_differently_are_no_ensemble(tmp_path: Path) -> None:
    for index in range(2):
        state = {f"model.{name}": value for name, value in _network().state_dict().items()}
        torch.save(state | {"normalizer.mean": torch.tensor([0.1 * index])}, tmp_path / f"{index}.pt")
    spec = f"{tmp_path}/0.pt,{tmp_path}/1.pt:{NETWORK}"
    assert "the members normalise by different mean" in _refusal(spec, **KNOWN)


def test_this_projects_own_files_join_as_well(tmp_path: Path) -> None:
    for seed in range(2):
        ensemble = build_ensemble(NETWORK, 1, SHAPE, 10, 0.5 * torch.ones(SHAPE), seed)
        origin = Provenance("baseline", "digits", NETWORK, 1, SHAPE, 10)
        save_checkpoint(tmp_path / f"{seed}.safetensors", ensemble, origin)
    spec = f"{tmp_path}/0.safetensors,{tmp_path}/1.safetensors"
    loaded = load_checkpoint(spec, dataset="digits")
    assert len(loaded) == 2 and "adp-benchmark" in _origin(loaded).recognised
    assert "has dataset 'digits', not 'mnist'" in _refusal(spec, dataset="mnist")


def _write_torchscript(path: Path, module: nn.Module) -> None:
    torch.jit.save(torch.jit.trace(module, IMAGES[:2]), path)


def _write_exported(path: Path, module: nn.Module) -> None:
    program = torch.export.export(module, (IMAGES[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with open(path, "wb") as file:  # by its name alone, the file could be anything
        torch.export.save(program, file)


PROGRAMS = {"TorchScript": _write_torchscript, "torch.export": _write_exported}


@pytest.mark.parametrize("name", ["program.pt", "program.pth"])
@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_is_recognised_by_content_and_has_outputs_and_gradients_of_the_original(
    tmp_path: Path, kind: str, name: str
) -> None:
    PROGRAMS[kind](tmp_path / name, _network())
    loaded = load_checkpoint(tmp_path / name, trust=True)
    assert not loaded.training and len(loaded) == 1
    assert _origin(loaded).recognised.startswith(f"{kind} program, 1 × ")
    assert "taken to normalise pixels in [0, 1] itself" in _origin(loaded).recognised
    for size in (1, 3, 5):
        images = IMAGES[:size].clone().requires_grad_()
        (found,) = torch.autograd.grad(loaded.member_logits(images)[0, :, 3].sum(), images)
        (wanted,) = torch.autograd.grad(_network()(images)[:, 3].sum(), images)
        torch.testing.assert_close(found, wanted)
    assert f"omit :{NETWORK}" in _refusal(f"{tmp_path / name}:{NETWORK}", **KNOWN)


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_that_is_damaged_is_refused(tmp_path: Path, kind: str) -> None:
    PROGRAMS[kind](tmp_path / "whole.pt2", _network())
    with zipfile.ZipFile(tmp_path / "whole.pt2") as whole, zipfile.ZipFile(tmp_path / "part.pt2", "w") as part:
        for name in whole.namelist():
            if "/data" not in name:
                part.writestr(name, whole.read(name))
    assert f"is a {kind} program that does not load" in _refusal(tmp_path / "part.pt2", trust=True)


class Mischief:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def test_a_pickle_inside_an_exported_program_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write_exported(tmp_path / "whole.pt2", _network())
    torch.save(Mischief(), "evil")
    for target in ("sample_inputs/model.pt", "constants/opaque_obj_0"):
        with zipfile.ZipFile("whole.pt2") as whole, zipfile.ZipFile("evil.pt2", "w") as evil:
            for name in whole.namelist():
                replaced = name.endswith(target)
                evil.writestr(name, Path("evil").read_bytes() if replaced else whole.read(name))
            if "opaque" in target:
                evil.writestr(f"whole/data/{target}", pickle.dumps(Mischief()))
        _refusal("evil.pt2", trust=True)
        assert not Path("executed").exists()


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("name", ["program.pt2", "weights.pth"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_is_loaded_only_on_trust_whatever_its_file_is_called(tmp_path: Path, kind: str, name: str) -> None:
    PROGRAMS[kind](tmp_path / name, _network())
    words = _refusal(tmp_path / name)
    assert kind in words and "--trust" in words


def test_expressions_in_an_exported_program_are_not_evaluated_without_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_exported(tmp_path / "whole.pt2", _network())
    code = "__import__('pathlib').Path('executed').touch()"
    replaced = 0
    with zipfile.ZipFile("whole.pt2") as whole, zipfile.ZipFile("weights.pth", "w") as evil:
        for name in whole.namelist():
            content = whole.read(name)
            if b'"expr_str"' in content:
                content, found = re.subn(rb'"expr_str": ?"[^"]*"', f'"expr_str": "{code}"'.encode(), content)
                replaced += found
            evil.writestr(name, content)
    assert replaced
    _refusal("weights.pth")
    assert not Path("executed").exists()


FUNCTIONS = """
import torch
from torch import nn

from defenses import Defense, Ensemble


class Net(nn.Module):
    def __init__(self, slope=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(640.0).reshape(10, 64).sin() * slope)

    def forward(self, images):
        return images.flatten(1) @ self.weight.T


class Mine(Defense):
    pass


def one():
    return Net()

def several():
    return [Net(1.0), Net(2.0)]

def ensemble():
    return Ensemble([Net(1.0), Net(2.0)], 0.5)

def asks(path):
    return Net()

def number():
    return 3

def empty():
    return []

def broken():
    raise ValueError("no such file")

ready = Net()
defense = Mine()
text = "text"
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(FUNCTIONS)
    return path


def test_a_function_gives_a_module_a_list_of_them_or_an_ensemble(functions: Path) -> None:
    weight = torch.arange(640.0).reshape(10, 64).sin()
    flat = IMAGES.flatten(1)
    cases: dict[str, list[Tensor]] = {
        "one": [flat @ weight.T],
        "ready": [flat @ weight.T],
        "Net": [flat @ weight.T],
        "several": [flat @ weight.T, 2 * flat @ weight.T],
        "ensemble": [(flat - 0.5) @ weight.T, 2 * (flat - 0.5) @ weight.T],
    }
    for name, wanted in cases.items():
        loaded = load_checkpoint(f"{functions}:{name}")
        torch.testing.assert_close(loaded.member_logits(IMAGES), torch.stack(wanted))
        assert _origin(loaded).recognised.startswith(f"{name}() of models.py, {len(wanted)} × Net, ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("asks", "cannot be called without arguments (missing a required argument: 'path')"),
        ("number", "gives int; it must give a torch module"),
        ("empty", "gives an empty list; it must give a torch module"),
        ("broken", "failed: ValueError: no such file"),
        ("one(seed=1)", "is called without arguments"),
        ("text", "names no function that returns a model"),
    ],
)
def test_a_function_that_gives_no_model_is_refused(functions: Path, name: str, message: str) -> None:
    assert message in _refusal(f"{functions}:{name}")


def test_only_what_is_trained_already_counts_as_a_checkpoint(functions: Path, tmp_path: Path) -> None:
    yes = ["a.pt", "a.pth:resnet20", "a.pt,b.safetensors:resnet(depth=20)", "a.pt2", EXAMPLE_RESNET18]
    yes += [f"{functions}:{name}" for name in ("one", "ready", "Net", "number")]
    no = ["baseline", "adp(alpha=2,beta=0.5)", "advt-pgd+adp-2-0.5", "nowhere.py:one", str(tmp_path)]
    no += [f"{functions}:{name}" for name in ("Mine", "defense", "text", "missing")]
    no += [f"advt-pgd+{functions.name}:one"]
    assert {spec: is_checkpoint(spec) for spec in yes + no} == dict.fromkeys(yes, True) | dict.fromkeys(no, False)


def test_models_that_differ_in_weights_network_normalisation_or_code_differ_in_identity(tmp_path: Path) -> None:
    for seed in range(2):
        torch.save(_network(seed).state_dict(), tmp_path / f"{seed}.pt")
    (tmp_path / "a.py").write_text(FUNCTIONS)
    (tmp_path / "b.py").write_text(FUNCTIONS + "# another file")
    specs = [f"{tmp_path}/{seed}.pt:{NETWORK}" for seed in range(2)]
    specs += [f"{tmp_path}/0.pt:mini-resnet(width=2,{more})" for more in ("mean=0.5", "std=0.5", "leak=0.1")]
    specs += [f"{tmp_path}/{file}.py:{name}" for file in "ab" for name in ("one", "several")]
    found = [_origin(load_checkpoint(spec, **KNOWN)).weights_sha256 for spec in specs]
    assert len(set(found)) == len(specs) and all(len(text) == 64 for text in found)
    assert found == [_origin(load_checkpoint(spec, **KNOWN)).weights_sha256 for spec in specs]


def _dverge(members: int = 2) -> dict[str, dict[str, Tensor]]:
    """A dictionary in the format of DVERGE's authors, with an 8-layer network."""
    ensemble = build_ensemble("resnet-bn-shortcut(depth=8)", members, (3, 32, 32), 10)
    stored = {}
    for index, member in enumerate(ensemble.members):
        state = {f"model.{_text(name, 'fc')}": tensor for name, tensor in member.state_dict().items()}
        normalizer = {"normalizer.mean": torch.tensor([0.4, 0.5, 0.6]), "normalizer.std": torch.tensor([0.2, 0.3, 0.2])}
        stored[f"model{index}"] = {**state, **normalizer}
    return stored


def test_a_published_pth_loads_with_its_normalisation_depth_and_members(tmp_path: Path) -> None:
    path = tmp_path / "published.pth"
    torch.save(_dverge(), path)
    loaded = load_checkpoint(path, dataset="cifar10", members=2, network="resnet-bn-shortcut(depth=8)")
    assert loaded.mean.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert loaded.std.flatten().tolist() == pytest.approx([0.2, 0.3, 0.2])
    original = build_ensemble("resnet-bn-shortcut(depth=8)", 2, (3, 32, 32), 10).eval()
    images = torch.rand(3, 3, 32, 32)
    normalised = (images - loaded.mean) / loaded.std
    torch.testing.assert_close(loaded.member_logits(images), original.member_logits(normalised))


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pth"
    torch.save({"model0": Mischief()}, path)
    assert "does not load as plain weights" in _refusal(path)
    path.write_bytes(pickle.dumps(Mischief()))
    message = _refusal(path)
    assert "does not load as plain weights" in message and "\n" not in message
    assert not (tmp_path / "executed").exists()


def _without(name: str) -> dict[str, dict[str, Tensor]]:
    stored = _dverge()
    del stored["model1"][name]
    return stored


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: {}, "contains no known weights"),
        (lambda: torch.zeros(3), "contains no known weights"),
        (lambda: {"state_dict": {}}, "contains no known weights"),
        (lambda: {"model0": torch.zeros(3)}, "is a plain state dict"),
        (lambda: _dverge() | {"epoch": 3}, "not in DVERGE's format: its entries are model0, model1, epoch"),
        (lambda: {"model0": {"a": torch.zeros(1)}}, "no tensor 'normalizer.mean'"),
        (lambda: _without("model.fc.weight"), "no tensor 'model.fc.weight'"),
        (lambda: _without("model.layer1.0.bn1.bias"), "lacks tensor 'layers.0.0.bn1.bias'"),
        (lambda: _dverge() | {"model1": {**_dverge()["model1"], "model.x": torch.zeros(1)}}, "unexpected tensor 'x'"),
        (
            lambda: _dverge() | {"model1": {**_dverge()["model1"], "normalizer.mean": torch.zeros(3)}},
            "the members normalise by different mean",
        ),
    ],
)
def test_other_pth_files_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "other.pth"
    torch.save(content(), path)
    assert message in _refusal(path)


def test_a_truncated_pth_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "published.pth"
    torch.save(_dverge(), path)
    path.write_bytes(path.read_bytes()[:-1000])
    assert "does not load as plain weights" in _refusal(path)


PUBLISHED = [
    ("baseline_seed_0_3_ResNet20_epoch_200.pth", 0.946, 0.9341),
    ("dverge_seed_0_3_ResNet20_eps_0.07_epoch_200.pth", 0.924, 0.9199),
]


@pytest.fixture(scope="module")
def cifar10_test() -> LabelledImages:
    if not next(row["present"] for row in datasets.describe() if row["name"] == "cifar10"):
        pytest.skip("CIFAR-10 is not on disk; `adp-bench data fetch cifar10` gets it")
    return datasets.load("cifar10").test


def _accuracy(path: Path, data: LabelledImages) -> float:
    predicted = predict_logits(load_checkpoint(path), data).softmax(-1).mean(0).argmax(-1)
    return (predicted == data.labels).double().mean().item()


@pytest.mark.parametrize(("name", "first_500", "all_images"), PUBLISHED)
def test_the_published_ensembles_meet_their_clean_accuracy_on_the_first_500_images(
    shared: Path, cifar10_test: LabelledImages, name: str, first_500: float, all_images: float
) -> None:
    accuracy = _accuracy(shared / "checkpoints" / "dverge" / name, cifar10_test.subset(slice(0, 500)))
    assert accuracy == pytest.approx(first_500, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first_500", "all_images"), PUBLISHED)
def test_the_published_ensembles_meet_their_clean_accuracy_on_all_images(
    shared: Path, cifar10_test: LabelledImages, name: str, first_500: float, all_images: float
) -> None:
    accuracy = _accuracy(shared / "checkpoints" / "dverge" / name, cifar10_test)
    assert accuracy == pytest.approx(all_images, abs=1.01e-4), "one image may fall on the other side"


@pytest.fixture(scope="module")
def their_resnet18() -> nn.Module:
    """pyautoattack's example as its own code builds and loads it."""
    from importlib.metadata import distribution

    from defenses.catalogue import import_file

    folder = Path(str(distribution("pyautoattack").locate_file("pyautoattack/examples")))
    network = import_file(folder / "resnet.py").ResNet18()
    network.load_state_dict(torch.load(folder / "model_test.pt", weights_only=True, map_location="cpu"))
    assert isinstance(network, nn.Module)
    return network.eval()


def test_pyautoattacks_resnet18_gives_what_its_own_code_gives(their_resnet18: nn.Module) -> None:
    loaded = load_checkpoint(EXAMPLE_RESNET18, dataset="cifar10")
    images = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(loaded.member_logits(images)[0], their_resnet18(images))
    assert _origin(loaded).recognised.startswith("pyautoattack's example, 1 × resnet18, no normalisation")


def test_pyautoattacks_resnet18_is_right_on_94_of_the_first_100_images(cifar10_test: LabelledImages) -> None:
    data = cifar10_test.subset(slice(0, 100))
    predicted = predict_logits(load_checkpoint(EXAMPLE_RESNET18), data)[0].argmax(-1)
    assert int((predicted == data.labels).sum()) == 94
