"""A dataset of the user's: an npz file, a folder of class folders, a function; what it may be, and what is refused."""

from __future__ import annotations

import io
import os
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from benchmark import datasets
from benchmark.cli import run
from benchmark.datasets import catalogue
from benchmark.datasets.npz import read_npz
from benchmark.ensembles.ensemble_request import EnsembleRequest
from benchmark.ensembles.folders import default_folder
from benchmark.ensembles.training import describe_own, training_data
from defenses.catalogue import parse_defense
from defenses.errors import BadInput
from defenses.registry import Registry
from defenses.training.recipes import ENOUGH_STEPS

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _arrays(train: int = 12, test: int = 6, classes: int = 3, shape: tuple[int, ...] = (16, 16, 3)) -> Arrays:
    random = np.random.default_rng(0)
    return {
        "x_train": random.integers(0, 256, (train, *shape), dtype=np.uint8),
        "y_train": np.arange(train) % classes,
        "x_test": random.integers(0, 256, (test, *shape), dtype=np.uint8),
        "y_test": np.arange(test) % classes,
    }


def _saved(name: str = "data.npz", **changes: Any) -> str:
    arrays = {**_arrays(), **changes}
    np.savez(name, **{key: value for key, value in arrays.items() if value is not None})
    return name


# --- what is read ---


def test_an_npz_of_bytes_is_read_with_its_classes_shape_and_checksum() -> None:
    arrays = _arrays()
    data = datasets.load(_saved(class_names=np.array(["cat", "dog", "bird"])))
    assert (data.name, data.classes, data.shape) == ("data.npz", 3, (3, 16, 16))
    assert data.class_names == ("cat", "dog", "bird")
    assert torch.equal(data.test.pixels, torch.from_numpy(arrays["x_test"]).permute(0, 3, 1, 2))
    assert torch.equal(data.train.images()[0], data.train.pixels[0].float() / 255)
    assert data.train.labels.tolist() == arrays["y_train"].tolist()


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_stay_exactly_what_they_are(kind: str) -> None:
    values = np.random.default_rng(1).random((6, 16, 16, 3)).astype(kind)
    data = datasets.load(_saved(x_train=values, y_train=np.arange(6) % 3, x_test=values))
    expected = torch.from_numpy(values.astype(np.float32)).permute(0, 3, 1, 2)
    assert torch.equal(data.test.images(), expected)
    torch.testing.assert_close(data.train.mean_image(), expected.double().mean(0).float(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((16, 16, 3), (3, 16, 16)),
        ((3, 16, 16), (3, 16, 16)),
        ((28, 28), (1, 28, 28)),
        ((1, 16, 20), (1, 16, 20)),
        ((16, 20, 1), (1, 16, 20)),
        ((4, 8, 8), (4, 8, 8)),
        ((16, 16, 32), (32, 16, 16)),
        ((3, 3, 3), (3, 3, 3)),
    ],
)
def test_channels_may_come_first_or_last(given: tuple[int, ...], shape: tuple[int, int, int]) -> None:
    np.savez("data.npz", **_arrays(shape=given))
    entry = datasets.find("data.npz")
    assert entry.shape == shape
    first = given[0] == shape[0] and given[-1] != shape[0]
    x_test = _arrays(shape=given)["x_test"].reshape(6, *(given if len(given) == 3 else (*given, 1)))
    wanted = x_test if first else x_test.transpose(0, 3, 1, 2)
    assert np.array_equal(datasets.load("data.npz").test.pixels.numpy(), wanted)


def test_labels_may_have_keras_second_axis() -> None:
    assert datasets.load(_saved(y_test=(np.arange(6) % 3)[:, None])).test.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_compressed_npz_is_the_same_dataset() -> None:
    np.savez_compressed("packed.npz", **_arrays())
    assert datasets.load("packed.npz").checksum == datasets.load(_saved()).checksum


def test_without_a_training_part_it_can_be_evaluated_and_not_trained_on() -> None:
    _saved(x_train=None, y_train=None)
    assert datasets.find("data.npz").sizes == (0, 6)
    assert any("only be evaluated" in remark for remark in datasets.find("data.npz").remarks)
    request = EnsembleRequest("baseline", "data.npz")
    with pytest.raises(BadInput, match="no training images"):
        training_data("data.npz", request.chosen_recipe, 0)


def test_a_class_without_training_images_is_said() -> None:
    entry = datasets.find(_saved(y_train=np.arange(12) % 2, class_names=np.array(["cat", "dog", "bird"])))
    assert "no training image has class bird" in entry.remarks


def test_a_changed_file_is_another_dataset_with_another_folder() -> None:
    before = datasets.load(_saved())
    folder = default_folder(parse_defense("baseline"), EnsembleRequest("baseline", "data.npz"), _recipe())
    changed = _arrays()
    changed["x_test"][0, 0, 0, 0] ^= 1
    np.savez("data.npz", **changed)
    os.utime("data.npz", ns=(1, 1))
    after = datasets.load("data.npz")
    assert after.checksum != before.checksum
    assert default_folder(parse_defense("baseline"), EnsembleRequest("baseline", "data.npz"), _recipe()) != folder


def _recipe() -> Any:
    return EnsembleRequest("baseline", "data.npz").chosen_recipe


def test_names_of_classes_do_not_change_the_checksum_but_the_axes_do() -> None:
    plain = datasets.load(_saved()).checksum
    assert datasets.load(_saved("named.npz", class_names=np.array(["a", "b", "c"]))).checksum == plain
    flat = {key: value.reshape(len(value), 8, 32, 3) if value.ndim > 1 else value for key, value in _arrays().items()}
    np.savez("flat.npz", **flat)
    assert datasets.load("flat.npz").checksum != plain


# --- what is refused ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_test": None}, "no x_test"),
        ({"y_train": None}, "x_train but no y_train"),
        ({"y_test": np.array([0, 1, 2, 0, 1, -1])}, "from -1 to 2"),
        ({"y_test": np.array([0, 1, 2, 0, 1, 10**6])}, "number the classes from 0"),
        ({"y_test": np.arange(6) / 2}, "integers"),
        ({"y_test": np.arange(5)}, "one class per image"),
        ({"y_test": np.zeros((6, 3), int)}, "one class per image"),
        ({"x_test": np.full((6, 16, 16, 3), 1.5)}, "ranges from 1.5"),
        ({"x_test": np.full((6, 16, 16, 3), np.nan)}, "ranges from nan"),
        ({"x_test": np.full((6, 16, 16, 3), -0.1)}, "ranges from -0.1"),
        ({"x_test": np.zeros((6, 16, 16, 3), np.uint8)}, "bytes from 0 to 0"),
        ({"x_test": np.zeros((6, 16, 16, 3), np.int64)}, "int64"),
        ({"x_test": np.zeros((6, 16), np.uint8)}, r"shape \(6, 16\)"),
        ({"x_test": np.zeros((0, 16, 16, 3), np.uint8), "y_test": np.zeros(0, int)}, "empty"),
        ({"x_test": np.full((6, 8, 8, 3), 9, np.uint8)}, "make them the same"),
        ({"x_test": np.full((6, 16, 16, 3), 0.5)}, "make them the same"),
        ({"x_test": np.full((6, 3, 16, 16), 9, np.uint8)}, "make them the same"),
        ({"class_names": np.array(["cat", "dog"])}, "label 2 and 2 class_names"),
        ({"class_names": np.array(["cat", "dog", "cat"])}, "twice"),
        ({"class_names": np.array([1, 2, 3])}, "list of texts"),
        ({"y_train": np.zeros(12, int), "y_test": np.zeros(6, int)}, "1 class"),
    ],
)
def test_what_is_not_a_dataset_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words) as refusal:
        datasets.find(_saved(**changes))
    assert "data.npz" in str(refusal.value)


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    np.savez("data.npz", **{**_arrays(), "x_test": np.array([Trap()], dtype=object)})
    with pytest.raises(BadInput, match="Python objects"):
        datasets.find("data.npz")
    assert not (tmp_path / "sprung").exists()


def _header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_a_header_that_announces_more_than_there_is_is_refused_before_anything_is_allocated() -> None:
    with zipfile.ZipFile("data.npz", "w") as archive:
        archive.writestr("x_test.npy", _header((10**9, 32, 32, 3)) + b"few")
        archive.writestr("y_test.npy", _header((10**9,)) + b"few")
    with pytest.raises(BadInput, match="declares shape"):
        read_npz(Path("data.npz"))


def test_arrays_larger_than_memory_are_refused_by_their_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmark.datasets.npz.SHARE", 1e-9)
    with pytest.raises(BadInput, match="memory"):
        read_npz(Path(_saved()))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a zip file"])
def test_a_damaged_file_is_one_clear_line(content: bytes) -> None:
    Path("data.npz").write_bytes(content)
    with pytest.raises(BadInput, match=r"data\.npz cannot be read"):
        datasets.find("data.npz")


def test_a_truncated_file_is_refused_wherever_it_ends() -> None:
    whole = Path(_saved()).read_bytes()
    for end in range(0, len(whole), len(whole) // 20):
        Path("part.npz").write_bytes(whole[:end])
        with pytest.raises(BadInput):
            datasets.find("part.npz")


def test_a_flipped_byte_is_noticed() -> None:
    content = bytearray(Path(_saved()).read_bytes())
    content[len(content) // 3] ^= 255
    Path("data.npz").write_bytes(bytes(content))
    with pytest.raises(BadInput, match=r"data\.npz"):
        datasets.find("data.npz")


def test_a_file_that_is_not_there_and_an_unknown_name_are_refused() -> None:
    for spec in ("missing.npz", "cifra10", "nowhere/"):
        with pytest.raises(BadInput):
            datasets.find(spec)


# --- folders ---


def _picture(path: str, size: tuple[int, int] = (16, 16), mode: str = "RGB", value: int = 0) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "1") else (value,) * len(mode)).save(path)


def _folder() -> str:
    for split, count in (("train", 3), ("test", 2)):
        for number, name in enumerate(("ant", "bee")):
            for image in range(count):
                _picture(f"pictures/{split}/{name}/{image}.png", value=100 * number + image)
    return "pictures"


def test_a_folder_of_class_folders_is_read_in_the_order_of_names() -> None:
    data = datasets.load(_folder())
    assert (data.name, data.class_names, data.shape) == ("pictures/", ("ant", "bee"), (3, 16, 16))
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]


def test_a_folder_has_images_of_any_channels() -> None:
    for mode, channels in (("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4)):
        for name in ("a", "b"):
            _picture(f"{mode}/test/{name}/1.png", (20, 16), mode, 7)
        assert datasets.find(f"{mode}").shape == (channels, 16, 20)


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("pictures/train/bee/9.png", {"size": (8, 16)}, "8×16"),
        ("pictures/train/bee/9.png", {"mode": "L"}, "channels"),
    ],
)
def test_an_image_unlike_the_others_is_named(path: str, options: dict[str, Any], words: str) -> None:
    _folder()
    _picture(path, **options)
    with pytest.raises(BadInput, match=words) as refusal:
        datasets.find("pictures")
    assert path in str(refusal.value)


@pytest.mark.parametrize("name", ["9.png", "notes.txt", "9.eps"])
def test_a_file_that_is_no_image_is_named(name: str) -> None:
    _folder()
    Path(f"pictures/test/ant/{name}").write_text("no image")
    with pytest.raises(BadInput, match=name):
        datasets.find("pictures")


def test_hidden_files_are_not_images() -> None:
    _folder()
    Path("pictures/test/ant/.DS_Store").write_text("")
    assert datasets.find("pictures").sizes == (6, 4)


# --- functions ---


def test_a_function_gives_a_dictionary_or_keras_pairs() -> None:
    Path("mine.py").write_text(
        "import numpy as np\n"
        "def arrays(size):\n"
        "    x = np.linspace(0, 1, 6 * size * size).reshape(6, size, size)\n"
        "    return x, np.arange(6) % 2\n"
        "def load(size: int = 8):\n"
        "    return arrays(size), arrays(size)\n"
        "def named(size=8):\n"
        "    x, y = arrays(size)\n"
        "    return {'x_train': x, 'y_train': y, 'x_test': x, 'y_test': y, 'class_names': ['no', 'yes']}\n"
    )
    data = datasets.load("mine.py:load(size=16)")
    assert (data.name, data.shape) == ("mine.py:load(size=16)", (1, 16, 16))
    assert datasets.load("mine.py:named").class_names == ("no", "yes")
    assert datasets.find("mine.py:load(size=8)").name == "mine.py:load"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "NoneType"),
        ("return {'x_tset': 1}", "did you mean x_t"),
        ("raise KeyError('gone')", "KeyError"),
        ("return ([1], [2])", "tuple"),
    ],
)
def test_a_function_that_gives_no_dataset_is_refused(body: str, words: str, tmp_path: Path) -> None:
    Path("wrong.py").write_text(f"def load():\n    {body}\n")
    with pytest.raises(BadInput, match=words):
        datasets.find("wrong.py:load")
    with pytest.raises(BadInput, match="no parameter 'sise'"):
        datasets.find("wrong.py:load(sise=3)")
    with pytest.raises(BadInput, match="defines no 'laod'"):
        datasets.find("wrong.py:laod")


def test_an_installed_package_offers_a_dataset_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "offered.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        "    x = np.linspace(0, 1, 6 * 64).reshape(6, 8, 8)\n"
        "    return (x, np.arange(6) % 2), (x, np.arange(6) % 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("theirs", "offered:load", "adp_benchmark.datasets")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == point.group else [])
    registry: Registry[Any] = Registry("dataset")
    for name in ("digits", "mnist", "cifar10"):
        registry.register(name, catalogue.DATASETS.get(name))
    monkeypatch.setattr(catalogue, "DATASETS", registry)
    assert datasets.load("theirs").shape == (1, 8, 8)
    assert "theirs" in {row["name"] for row in datasets.describe()}


# --- recipes, and the command line ---


@pytest.mark.parametrize("images", [2, 50, 640, 5_000])
def test_a_training_makes_enough_steps_however_few_images_there_are(images: int) -> None:
    for name in ("fast", "reference", "paper"):
        recipe = datasets.find(_saved(**_arrays(train=images))).recipe(name)
        assert recipe.epochs * recipe.batch_count(images) >= ENOUGH_STEPS
        assert not recipe.flip and recipe.resolutions == (1.0,)
        assert not recipe.milestones or max(recipe.milestones) < recipe.epochs


def test_a_setting_that_is_given_is_taken_and_counts() -> None:
    entry = datasets.find(_saved(**_arrays(train=640)))
    assert entry.recipe("fast", epochs=3).epochs == 3
    half, whole = entry.recipe("fast", train_images=320), entry.recipe("fast")
    assert half.epochs > whole.epochs and half.train_images == 320


def test_registered_datasets_keep_their_recipes() -> None:
    assert datasets.find("digits").recipe("fast").epochs == 12
    assert datasets.find("cifar10").recipe("fast").flip


def test_what_will_be_trained_is_said() -> None:
    entry = datasets.find(_saved(class_names=np.array(["cat", "dog", "bird"])))
    said = " ".join(describe_own(entry, entry.recipe("fast")))
    for fact in ("12 training and 6 test", "3×16×16", "cat, dog, bird", "recipe fast", "1000 epochs of 1 batches"):
        assert fact in said
    assert not describe_own(datasets.find("digits"), entry.recipe("fast"))


def test_data_commands_answer_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    _saved()
    assert run(["data", "verify", "data.npz"]) == 0
    assert datasets.load("data.npz").checksum in capsys.readouterr().out
    assert run(["data", "where", "data.npz"]) == 0
    assert capsys.readouterr().out.strip() == "data.npz"
    assert run(["data", "fetch", "data.npz"]) == 0
    assert run(["data", "verify", "missing.npz"]) == 2


@given(st.sampled_from([b"(", b"[", b"{", b"'", b"\\\n", b"9", b"\0", b"\xff"]), st.integers(0, 5000))
def test_a_header_of_any_text_is_refused(tmp_path_factory: pytest.TempPathFactory, piece: bytes, count: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npz"
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': " + piece * count
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_test.npy", b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text)
    with pytest.raises(BadInput):
        read_npz(path)
