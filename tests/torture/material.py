"""What is attacked: small checkpoints, a preset with every evaluation, a dataset on a host here, and their folders."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmark.datasets import formats
from benchmark.datasets.catalogue import DATASETS, Entry
from benchmark.datasets.sources import Gzips
from benchmark.ensembles import folders
from benchmark.plan import presets
from tests.torture.attempts import alone

TRAIN = ["--dataset", "digits", "--network", "mini-resnet(width=2)", "--members", "2", "--threads", "1"]
QUICK = [*TRAIN, "--train-images", "300", "--learning-rate", "0.01", "--epochs", "2"]
RUN = ["run", "torture", "--threads", "1", "--surrogate", "surrogate"]
PRESET = """
title = "Every evaluation, small"
[[grid]]
dataset = "digits"
network = "mini-resnet(width=2)"
members = 2
batch_size = 4
defenses = ["small"]
tiers = ["paper", "strict", "strong"]
attacks = [
    { spec = "none", samples = 8 },
    { spec = "fgsm(eps=0.1)", samples = 8 },
    { spec = "pgd(eps=0.1,steps=4)", samples = 12, tiers = ["strict"] },
]
[grid.strong]
samples = 4
suite = "quick"
[grid.blackbox]
attacks = ["pgd(eps=0.2,steps=4)"]
samples = 8
[grid.transfer]
attacks = ["pgd(eps=0.1,steps=4)"]
samples = 8
[grid.detection]
attacks = ["fgsm(eps=0.3)"]
samples = 8
[grid.diversity]
"""


def install_preset(folder: Path) -> None:
    """Let ``torture`` be a preset of this process and of those forked from it, and no ensemble be found elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in presets.FOLDER.glob("*.toml"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "torture.toml").write_text(PRESET, encoding="utf-8")
    presets.FOLDER = folder
    folders.BESIDE = Path("nowhere")


def train_checkpoints(folder: Path) -> None:
    """The ensembles ``small``, ``other`` and ``surrogate`` in a new folder."""
    folder.mkdir()
    for seed, name in enumerate(("small", "other", "surrogate")):
        words = ["train", "baseline", *QUICK, "--seed", str(seed), "--out", name]
        if alone(words, folder, folder / "log") != 0:
            raise RuntimeError((folder / "log").read_text())
    (folder / "log").unlink()


def table(folder: Path) -> pd.DataFrame:
    """The table of a run without what the clock decides."""
    return pd.read_csv(folder / "table.csv", keep_default_na=False, dtype=str).drop(columns="seconds")


# --- a dataset on a host of this machine ---


def _idx(*shape: int) -> bytes:
    values = np.random.default_rng(sum(shape)).integers(0, 10, shape, dtype=np.uint8)
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + values.tobytes()


FILES = {
    "train-images-idx3-ubyte": _idx(2000, 8, 8),
    "train-labels-idx1-ubyte": _idx(2000),
    "t10k-images-idx3-ubyte": _idx(500, 8, 8),
    "t10k-labels-idx1-ubyte": _idx(500),
}


class _Slow(http.server.BaseHTTPRequestHandler):
    """Sends the files in ten pieces, so that a kill finds one half way."""

    def do_GET(self) -> None:
        body = gzip.compress(FILES[self.path.strip("/").removesuffix(".gz")], mtime=0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        step = len(body) // 10 + 1
        try:
            for first in range(0, len(body), step):
                self.wfile.write(body[first : first + step])
                self.wfile.flush()
                time.sleep(0.005)
        except OSError:
            pass  # the client was killed, as intended

    def log_message(self, *_: object) -> None: ...


class Host:
    """A process that serves the dataset ``toy``, which is registered here; it ends with the block."""

    def __init__(self, data: Path) -> None:
        os.environ["ADP_BENCH_DATA"], os.environ["NO_PROXY"] = str(data), "127.0.0.1"

    def __enter__(self) -> Host:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            server.serve_forever()
        server.socket.close()
        checksums = {name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in FILES.items()}
        address = Gzips(f"http://127.0.0.1:{server.server_port}/")
        DATASETS.register(
            "toy",
            Entry("toy", 10, (1, 8, 8), (2000, 500), False, "here", formats.idx_splits, "tiny", network="mini-resnet",
                  threads=1, folder="toy", files=checksums, sources=(address,)),
        )  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def installed(data: Path) -> dict[str, bytes]:
    """The files of ``toy`` that are in place."""
    return {name: (data / "toy" / name).read_bytes() for name in FILES if (data / "toy" / name).is_file()}
