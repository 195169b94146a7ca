"""Networks of the user's: trained, saved, loaded again only when the user names the file, and watched by hooks."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmark.harness.acceleration import accelerated
from benchmark.harness.prepared import prepared
from defenses.catalogue import parse_defense
from defenses.checkpoints import is_checkpoint, load_checkpoint, read_provenance
from defenses.errors import BadInput
from defenses.members import networks
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.images import LabelledImages
from defenses.members.layers import before_relu, depth, features, has_features
from defenses.members.networks import build_network, canonical_network, check_network, find_network
from defenses.registry import Registry
from defenses.training.data import TrainingData
from defenses.training.loop import train
from defenses.training.recipes import Recipe
from defenses.training.request import TrainingRequest

VGG = """
import torch
from torch import nn


class VGG(nn.Module):
    def __init__(self, shape, classes, width: int = 4):
        super().__init__()
        channels, height, across = shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width * (height // 4) * (across // 4), classes)

    def forward(self, images):
        hidden = self.body(images)
        return self.head(self.drop(hidden.view(hidden.size(0), -1)))


def dense(shape, classes, **more):
    layer = nn.Linear(shape[0] * shape[1] * shape[2], classes, bias=more.get("bias", True))
    return nn.Sequential(nn.Flatten(), layer)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(VGG)
    return tmp_path


@pytest.fixture
def data() -> TrainingData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (24, 3, 16, 16), generator=generator, dtype=torch.uint8)
    images = LabelledImages(pixels, torch.arange(24) % 3)
    return TrainingData("noise", 3, images, images, checksum="0")


RECIPE = Recipe("fast", epochs=2, batch_size=8, learning_rate=1e-3, schedule="one-cycle")


def _trained(data: TrainingData, out: str, defense: str = "baseline", spec: str = "mine.py:VGG(width=8)") -> Path:
    return train(TrainingRequest(parse_defense(defense), spec, 2, RECIPE), data, Path(out))


# --- specs ---


def test_a_spec_has_one_text_in_the_order_of_the_signature() -> None:
    assert canonical_network("mine.py:VGG(width=8)") == "mine.py:VGG(width=8)"
    assert canonical_network("mine.py:VGG(width=4)") == canonical_network("mine.py:VGG()") == "mine.py:VGG"
    assert canonical_network("mine.py:dense(bias=false)") == "mine.py:dense(bias=false)"
    assert canonical_network("resnet20") == "resnet(depth=20)"


def test_it_is_built_with_the_shape_and_the_classes_of_the_data() -> None:
    network = build_network("mine.py:VGG(width=8)", (3, 16, 16), 4)
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 4)
    assert network.head.in_features == 8 * 4 * 4


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mine.py:VGG(widht=8)", "did you mean width"),
        ("mine.py:VGG(width=wide)", "whole number"),
        ("mine.py:VGG(classes=3)", "omit it"),
        ("mine.py:VVG", "did you mean VGG"),
        ("gone.py:VGG", "not a file"),
        ("wrong.py:no_shape", "does not accept 'shape'"),
        ("wrong.py:needs_more", "needs width"),
        ("wrong.py:Raises", "ZeroDivisionError"),
        ("wrong.py:no_module", "returns a int"),
        ("wrong.py:no_parameters", "no trainable parameters"),
        ("wrong.py:one_size", "fails on 2 images"),
        ("wrong.py:wrong_classes", r"gives shape \(2, 7\)"),
        ("wrong.py:Two", "gives a tuple"),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused_in_one_line(spec: str, words: str) -> None:
    Path("wrong.py").write_text(
        "from torch import nn\n"
        "def no_shape(classes): return nn.Linear(1, classes)\n"
        "def needs_more(shape, classes, width): return nn.Linear(1, classes)\n"
        "class Raises(nn.Module):\n"
        "    def __init__(self, shape, classes): 1 / 0\n"
        "def no_module(shape, classes): return 3\n"
        "def no_parameters(shape, classes): return nn.Flatten()\n"
        "def one_size(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))\n"
        "def wrong_classes(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(768, 7))\n"
        "class Two(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.inner = nn.Linear(768, classes)\n"
        "    def forward(self, images):\n"
        "        return self.inner(images.flatten(1)), None\n"
    )
    with pytest.raises(BadInput, match=words):
        check_network(spec, (3, 16, 16), 3)


def test_an_installed_package_offers_a_network_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("their_networks.py").write_text(VGG)
    point = EntryPoint("their-vgg", "their_networks:VGG", "adp_benchmark.networks")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == point.group else [])
    registry: Registry[Any] = Registry("network")
    registry.register("resnet", networks.ResNet)
    monkeypatch.setattr(networks, "NETWORKS", registry)
    assert canonical_network("their-vgg(width=8)") == "their-vgg(width=8)"
    assert build_network("their-vgg(width=8)", (3, 16, 16), 4).head.out_features == 4
    with pytest.raises(BadInput, match="did you mean width"):
        canonical_network("their-vgg(widht=8)")


# --- trained, and loaded again ---


def test_a_trained_ensemble_is_loaded_again_when_the_user_names_the_file(data: TrainingData) -> None:
    path = _trained(data, "out")
    origin = read_provenance(path)
    assert origin.network == "mine.py:VGG(width=8)" and origin.network_digest == find_network(origin.network).digest
    images = data.test.images()
    first = load_checkpoint(path, network_file="mine.py:VGG(width=8)")
    for spec in ("out:mine.py:VGG(width=8)", f"{path}:mine.py:VGG(width=8)"):
        assert is_checkpoint(spec)
        assert torch.equal(load_checkpoint(spec)(images), first(images))


def test_a_file_that_only_a_checkpoint_names_is_never_run(data: TrainingData) -> None:
    path = _trained(data, "out")
    Path("mine.py").rename("gone.py")
    Path("mine.py").write_text("from pathlib import Path\nPath('sprung').touch()\n" + VGG)
    with pytest.raises(BadInput, match=r"only if you name it.*--network"):
        load_checkpoint(path)
    assert not Path("sprung").exists()


def test_the_file_may_move_but_not_change(data: TrainingData) -> None:
    path = _trained(data, "out")
    Path("moved").mkdir()
    Path("moved/other.py").write_text("# a comment\n" + VGG)
    assert len(load_checkpoint(path, network_file="moved/other.py:VGG(width=8)")) == 2
    with pytest.raises(BadInput, match=r"not of moved/other\.py:VGG"):
        load_checkpoint(path, network_file="moved/other.py:VGG")
    Path("changed.py").write_text(VGG.replace("nn.ReLU", "nn.ELU"))
    with pytest.raises(BadInput, match="another version"):
        load_checkpoint(path, network_file="changed.py:VGG(width=8)")
    with pytest.raises(BadInput, match="did you mean VGG"):
        load_checkpoint(path, network_file="changed.py:VG")


def test_a_state_dict_of_the_users_network_is_a_checkpoint(data: TrainingData) -> None:
    network = build_network("mine.py:VGG(width=8)", (3, 16, 16), 3).eval()
    torch.save(network.state_dict(), "weights.pt")
    spec = "weights.pt:mine.py:VGG(width=8)"
    found = load_checkpoint(spec, shape=(3, 16, 16), classes=3)
    images = data.test.images()
    assert is_checkpoint(spec) and torch.allclose(found.members[0](images), network(images))
    assert found.provenance is not None
    Path("changed.py").write_text(VGG.replace("nn.MaxPool2d", "nn.AvgPool2d"))
    other = load_checkpoint("weights.pt:changed.py:VGG(width=8)", shape=(3, 16, 16), classes=3)
    assert other.provenance is not None
    assert other.provenance.weights_sha256 != found.provenance.weights_sha256  # the same weights in other code


def test_dropout_depends_on_the_seed_alone(data: TrainingData) -> None:
    torch.manual_seed(1)
    first = read_provenance(_trained(data, "one")).weights_sha256
    torch.manual_seed(2)
    assert read_provenance(_trained(data, "two")).weights_sha256 == first


@pytest.mark.parametrize("defense", ["adp-2-0.5", "gal", "dverge(warm_up=0)", "advt-pgd"])
def test_every_kind_of_defense_trains_a_network_of_the_users(defense: str, data: TrainingData) -> None:
    path = _trained(data, "out", defense)
    assert len(load_checkpoint(path, network_file="mine.py:VGG(width=8)")) == 2


# --- inside a member ---


def _members() -> Ensemble:
    return build_ensemble("mine.py:VGG(width=8)", 2, (3, 16, 16), 3).eval()


def test_features_are_what_the_last_linear_layer_gets() -> None:
    ensemble, images = _members(), torch.rand(4, 3, 16, 16)
    for member in ensemble.members:
        assert has_features(member)
        torch.testing.assert_close(member.head(features(member, images)), member(images))
    assert ensemble.member_features(images).shape == (2, 4, 8 * 4 * 4)


def test_layers_are_what_enters_the_activations_and_the_logits() -> None:
    member, images = _members().members[0], torch.rand(4, 3, 16, 16)
    first, second, logits = before_relu(member, images)
    assert depth(member, images[:1]) == 3
    torch.testing.assert_close(first, member.body[:2](images))  # before the ReLU, which works in place
    assert first.min() < 0 and second.min() < 0
    torch.testing.assert_close(logits, member(images))


def test_without_activations_that_are_modules_layers_are_what_convolutions_give() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.relu(self.conv(images)).mean((-2, -1)))

    member, images = Plain(), torch.rand(4, 3, 16, 16)
    hidden, logits = before_relu(member, images)
    assert torch.equal(hidden, member.conv(images)) and torch.equal(logits, member(images))


def test_what_is_missing_is_said() -> None:
    with pytest.raises(BadInput, match="no method before_relu"):
        list(before_relu(nn.Flatten(), torch.rand(1, 3)))
    with pytest.raises(BadInput, match=r"no features\(images\)"):
        features(nn.Flatten(), torch.rand(1, 3))


# --- acceleration ---


def _used() -> tuple[Ensemble, torch.Tensor]:
    """An ensemble whose batch norm has seen images."""
    ensemble = build_ensemble("mine.py:VGG(width=8)", 2, (3, 16, 16), 3).train()
    images = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        ensemble(images)
    return ensemble.eval(), images


def test_batch_norm_of_a_users_network_is_folded_and_the_answers_are_the_same() -> None:
    ensemble, images = _used()
    said: list[str] = []
    with prepared(ensemble):
        fast = accelerated(ensemble, images, say=said.append)
        assert fast is not ensemble and isinstance(fast, Ensemble) and not said
        assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
        torch.testing.assert_close(fast(images), ensemble(images), rtol=0, atol=1e-4)


def test_code_that_cannot_be_traced_is_folded_by_its_parts_and_still_decides() -> None:
    class Deciding(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.inner(images) if images.sum() > 0 else 1 + self.inner(-images)

    ensemble, images = _used()
    deciding = Ensemble([Deciding(member) for member in ensemble.members]).eval()
    said: list[str] = []
    with prepared(deciding):
        fast = accelerated(deciding, images, say=said.append)
        assert fast is not deciding and not said
        assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
        for given in (images, -images):
            torch.testing.assert_close(fast(given), deciding(given), rtol=0, atol=1e-4)


def test_noise_that_tracing_would_freeze_is_noticed() -> None:
    class Noisy(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.inner(images) + 0.1 * torch.randn(3)

    ensemble, images = _used()
    noisy = Ensemble([Noisy(member) for member in ensemble.members]).eval()
    with prepared(noisy):
        assert accelerated(noisy, images) is noisy
