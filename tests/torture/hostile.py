"""Hostile files in place of models, checkpoints, defenses and runs: nothing in them runs, and no name breaks out."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from benchmark.cells.store import Store
from defenses.checkpoints import FILE_NAME
from tests.torture import hostile_data
from tests.torture.attempts import Setting, Tally, alone, call
from tests.torture.material import QUICK, RUN

GIGABYTE = 1 << 30
MARKER = "EXECUTED"
NAMES = {
    "HTML": "<script>alert(1)</script>",
    "HTML attribute": '"><img src=x onerror=alert(1)>',
    "LaTeX": r"\input{/etc/passwd}$^_&%#~",
    "CSV formula": '=HYPERLINK("http://x","y")',
    "ANSI": "\x1b]0;owned\x07\x1b[2J",
    "Markdown": "[x](javascript:alert(1))|`a`",
    "template": "{{ 7*7 }}{% raw %}",
    "path": "../../../../" + MARKER,
    "bidirectional": "\u202egpj.exe",
}


class Bomb:
    """Touches the marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.marker}'",)


def attack(setting: Setting, tally: Tally) -> None:
    home = setting.folder / "home"
    setting.copy_checkpoints(home)
    run = [*RUN[:4], "--attack", "fgsm", "--tier", "strict", "--samples", "8", "--keep-images", "--out", "run"]
    if alone(run, home, setting.folder / "log"):
        raise RuntimeError((setting.folder / "log").read_text())
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + 6 * GIGABYTE, hard))
    marker = setting.folder / MARKER
    made = _files(home, marker)
    for name in setting.draws.sample(sorted(made), setting.amount(len(made), 5)):
        (home / "evil").mkdir()
        path = home / "evil" / name.partition(" ")[0]
        made[name](path)
        listed = home / "results" / "ensembles" / "digits" / "evil" / FILE_NAME
        listed.parent.mkdir(parents=True)
        listed.symlink_to(path)
        for words in _commands(path.relative_to(home)):
            _try(name, words, home, marker, tally)
        shutil.rmtree(home / "evil")
        shutil.rmtree(home / "results")
    data = hostile_data.files(marker, bomb=Bomb(marker))
    for name in setting.draws.sample(sorted(data), setting.amount(len(data), 5)):
        (home / "evil").mkdir()
        path = home / "evil" / name.partition(" ")[0]
        data[name](path)
        for words in _data_commands(path.relative_to(home)):
            _try(name, words, home, marker, tally)
        shutil.rmtree(home / "evil")
    for kind in setting.draws.sample(sorted(NAMES), setting.amount(len(NAMES), 2)):
        _try_name(kind, home, tally)
    _try_manifest(home, marker, tally)
    _try_attack(home, marker, tally)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _commands(path: Path) -> list[list[str]]:
    """Every door that a model can come in by; none of them says --trust."""
    spec = f"{path}:mini-resnet(width=2)" if path.suffix in (".pt", ".pth", ".ckpt") else str(path)
    out = ["--samples", "4", "--threads", "1", "--out", "evil/out"]
    return [
        ["run", "torture", "--attack", "fgsm", "--tier", "strict", "--defense", spec, *out],
        ["run", "torture", "--attack", "fgsm", "--tier", "strict", "--defense", str(path), *out],
        ["verify", "run", "--model", spec],
        ["compare", "small", "--against", spec, "--preset", "torture", "--attack", "fgsm", "--tier", "strict", *out],
        ["train", "baseline", *QUICK, "--start-from", str(path), "--out", "evil/trained"],
        ["list", "checkpoints"],
    ]


def _data_commands(path: Path) -> list[list[str]]:
    """Every door that data can come in by."""
    quick = ["--epochs", "1", "--network", "mini-resnet(width=1)", "--members", "1", "--threads", "1"]
    claim = ["--claim", "fgsm(eps=0.1)=50", "--samples", "4", "--threads", "1", "--out", "evil/audit"]
    return [
        ["train", "baseline", "--dataset", str(path), *quick, "--out", "evil/trained"],
        ["audit", "small", "--dataset", str(path), *claim],
    ]


def _try(name: str, words: list[str], home: Path, marker: Path, tally: Tally) -> None:
    answer = call(words, home, seconds=30)
    tally.tried += 1
    if answer.traceback or answer.code not in (0, 1, 2, 3):
        tally.wrong.append(f"{name}, {words[0]}: exit code {answer.code}: {answer.last}")
    if marker.exists() or (home / MARKER).exists():
        tally.entered.append(f"{name}, {words[0]}: code ran")
        marker.unlink(missing_ok=True)


# --- files ---


def _files(home: Path, marker: Path) -> dict[str, Callable[[Path], object]]:
    """How to write each hostile file, by its name and what is wrong with it."""
    bomb = Bomb(marker)
    good = (home / "small" / FILE_NAME).read_bytes()
    found: dict[str, Callable[[Path], object]] = {}
    for suffix in ("pt", "pth", "ckpt", "safetensors", "pt2"):
        found[f"a.{suffix} plain pickle"] = lambda path: path.write_bytes(pickle.dumps(bomb))
        found[f"b.{suffix} torch.save of a bomb"] = lambda path: torch.save(bomb, path)
        found[f"c.{suffix} TorchScript"] = _torchscript
    for protocol in (0, 2, 4, 5):
        found[f"d{protocol}.pt pickle of protocol {protocol}"] = lambda path, protocol=protocol: path.write_bytes(
            pickle.dumps({"state_dict": bomb}, protocol)
        )
    metadata = _metadata(home / "small" / FILE_NAME)
    nan = {
        name: tensor * float("nan")
        for name, tensor in safetensors.torch.load(good).items()
        if tensor.is_floating_point()
    }
    return found | {
        "e.pt torch.save, old format": lambda path: torch.save(bomb, path, _use_new_zipfile_serialization=False),
        "f.pt bomb in a nest": lambda path: torch.save({"model": {"w": torch.zeros(1), "x": bomb}}, path),
        "g.pt bomb beside DVERGE": lambda path: torch.save({"model0": {"a": bomb}}, path),
        "h.pt module": lambda path: torch.save(nn.Linear(2, 2), path),
        "i.pt2 torch.export": _exported,
        "j.pt torch.export by another name": _exported,
        "k.pt2 torch.export with a pickle": lambda path: _with_pickle(path, bomb),
        "l.pt zip bomb": lambda path: _zip_bomb(path, "archive/data.pkl"),
        "m.pt zip bomb of tensors": lambda path: _zip_bomb(path, "archive/data/0"),
        "n.pt zip with paths": lambda path: _zip(path, {f"../../{MARKER}": b"x", f"/{home}/{MARKER}": b"x"}),
        "o.pt tar": lambda path: path.write_bytes(b"pickle" + bytes(512) * 4),
        "p.safetensors endless header": lambda path: path.write_bytes(struct.pack("<Q", 2**63) + b"{}"),
        "q.safetensors header of 50 MB": lambda path: _header(path, " " * 50_000_000),
        "r.safetensors deep header": lambda path: _header(path, "[" * 100_000),
        "s.safetensors huge shape": lambda path: _header(path, _tensor([2**40, 2**40], [0, 8])),
        "t.safetensors shape of nothing": lambda path: _header(path, _tensor([0, 2**62], [0, 0])),
        "u.safetensors overlapping": lambda path: _header(path, _tensor([2], [-8, 0])),
        "v.safetensors members": lambda path: _own(path, good, metadata, members=1_000_000),
        "w.safetensors classes": lambda path: _own(path, good, metadata, classes=10**9),
        "x.safetensors shape": lambda path: _own(path, good, metadata, shape=[1, 10**6, 10**6]),
        "y.safetensors network": lambda path: _own(path, good, metadata, network="mini-resnet(width=100000000)"),
        "z.safetensors network in a file": lambda path: _own(path, good, metadata, network="evil.py:Net"),
        "A.safetensors defense in a file": lambda path: _own(path, good, metadata, defense="evil.py:Mine"),
        "B.safetensors metadata of a number": lambda path: _own(path, good, metadata, members="9" * 5000),
        "C.safetensors metadata of nothing": lambda path: _save(path, good, "null"),
        "D.safetensors NaN": lambda path: path.write_bytes(
            safetensors.torch.save(safetensors.torch.load(good) | nan, {"adp-benchmark": json.dumps(metadata)})
        ),
        "E.safetensors traversal": lambda path: path.write_bytes(
            safetensors.torch.save({f"../../{MARKER}": torch.zeros(1)}, {"adp-benchmark": json.dumps(metadata)})
        ),
        "F.safetensors ANSI metadata": lambda path: _own(path, good, metadata, defense="\x1b[2J\x1b]0;x\x07", format=1),
        "G.safetensors recipe": lambda path: _own(path, good, metadata, recipe={"name": ["x"], "train_images": {}}),
        "G2.safetensors scores": lambda path: _own(path, good, metadata, scores={"test_accuracy": "much"}),
        "H.safetensors link to a device": lambda path: path.symlink_to("/dev/zero"),
        "I.safetensors link to a secret": lambda path: path.symlink_to("/etc/passwd"),
        "J.safetensors link to itself": lambda path: path.symlink_to(path.name),
        "K.pt pipe": os.mkfifo,
        "L.pt scores": lambda path: torch.save({"state_dict": {"fc.weight": torch.full((10, 2), float("nan"))}}, path),
    }  # fmt: skip


class _Net(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :10]


def _torchscript(path: Path) -> None:
    torch.jit.script(_Net()).save(str(path.with_suffix(".x")))
    path.with_suffix(".x").rename(path)


def _exported(path: Path) -> None:
    program = torch.export.export(_Net(), (torch.rand(2, 1, 8, 8),))
    written = io.BytesIO()
    torch.export.save(program, written)
    path.write_bytes(written.getvalue())


def _with_pickle(path: Path, bomb: Bomb) -> None:
    _exported(path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(entries)).partition("/")[0]
    _zip(path, entries | {f"{root}/data/constants/opaque_obj_0": pickle.dumps(bomb)})


def _zip(path: Path, entries: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def _zip_bomb(path: Path, name: str) -> None:
    """Ten megabytes that unpack to ten gigabytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w", force_zip64=True) as file:
        for _ in range(100):
            file.write(bytes(100_000_000))


def _tensor(shape: list[int], offsets: list[int]) -> str:
    return json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": offsets}})


def _header(path: Path, text: str) -> None:
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + bytes(8))


def _metadata(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["adp-benchmark"])


def _own(path: Path, good: bytes, metadata: dict[str, Any], **changes: object) -> None:
    _save(path, good, json.dumps(metadata | changes))


def _save(path: Path, good: bytes, text: str) -> None:
    path.write_bytes(safetensors.torch.save(safetensors.torch.load(good), {"adp-benchmark": text}))


# --- runs ---


def _try_name(kind: str, home: Path, tally: Tally) -> None:
    """A run whose defense has a hostile name, written by the product itself: every output must be harmless."""
    shutil.copytree(home / "run", home / "named")
    store = Store(home / "named")
    content = store.manifest()
    named = [replace(cell, ensemble=replace(cell.ensemble, defense=NAMES[kind])) for cell in store.asked()]
    store.write_manifest(named, {**content, "title": NAMES[kind], "commands": [NAMES[kind]]})
    before = {path for path in home.rglob("*") if not path.is_relative_to(home / "named")}
    answer = call(["report", "named"], home)
    tally.tried += 1
    if answer.traceback or answer.code != 0:
        tally.wrong.append(f"name with {kind}: exit code {answer.code}: {answer.last}")
    for words in _broken_out(home / "named", answer.out + answer.err):
        tally.entered.append(f"name with {kind}: {words}")
    outside = {path for path in home.rglob("*") if not path.is_relative_to(home / "named")} - before
    if outside:
        tally.entered.append(f"name with {kind}: wrote {sorted(outside)}")
    shutil.rmtree(home / "named")


def _broken_out(folder: Path, said: str) -> list[str]:
    """What a hostile name could do to the readers of a report, in words."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.suffix in
             (".html", ".md", ".tex", ".csv")}  # fmt: skip
    html, markdown, tex = (texts.get(name, "") for name in ("report.html", "table.md", "table.tex"))
    found = [f"a tag in {name}" for name in ("report.html", "table.md") if "<script>alert" in texts.get(name, "")]
    found += ["an attribute in report.html"] * ("<img src=x" in html)
    found += ["a command in table.tex"] * (r"\input{/etc" in tex)
    found += ["a link in table.md"] * bool(re.search(r"(?<!\\)\]\(javascript:", markdown))
    found += [
        f"a formula in {name}"
        for name, text in texts.items()
        if name.endswith(".csv") and ',"=' in text.replace(",=", ',"=')
    ]
    found += [
        f"control characters in {name}" for name, text in (*texts.items(), ("the terminal", said)) if "\x1b" in text
    ]
    return found


def _try_manifest(home: Path, marker: Path, tally: Tally) -> None:
    """A manifest that names a Python file: neither report nor verify may run it."""
    (home / "evil.py").write_text(f"open({str(marker)!r}, 'w')\ndef load(): ...\n")
    shutil.copytree(home / "run", home / "named")
    store = Store(home / "named")
    for spec in ("evil.py:load", str(home / "evil.py:load"), "evil.py:Net(a=1)"):
        named = [replace(cell, ensemble=replace(cell.ensemble, spec=spec, network=spec)) for cell in store.asked()]
        store.write_manifest(named, store.manifest())
        for words in (["report", "named"], ["verify", "named"]):
            _try(f"manifest with {spec}", words, home, marker, tally)
    shutil.rmtree(home / "named")


def _try_attack(home: Path, marker: Path, tally: Tally) -> None:
    """A run with an attack from a file, which is exchanged afterwards: only whoever names it runs it."""
    path = home / "mine.py"
    path.write_text("def attack(model, images, labels): return (images + 0.1).clamp(0, 1)\n")
    words = [*RUN[:4], "--attack", "mine.py:attack(bound=linf:0.1)", "--tier", "strict", "--samples", "8"]
    if alone([*words, "--keep-images", "--out", "attacked"], home, home / "log"):
        raise RuntimeError((home / "log").read_text())
    path.write_text(f"open({str(marker)!r}, 'w')\n{path.read_text()}")
    for asked in (["report", "attacked"], ["verify", "attacked"], ["verify", "attacked", "--model", "small"]):
        _try("attack from a file", asked, home, marker, tally)
    shutil.rmtree(home / "attacked")
