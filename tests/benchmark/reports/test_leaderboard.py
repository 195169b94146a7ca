"""The leaderboard is one page without requests: names stay text, damage is told, claims look like claims."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmark.attacks import parse_attack
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.cli import run
from benchmark.evaluations.whitebox import WhiteBox

MakeCell = Callable[..., Cell]
MakeStore = Callable[..., Store]
HOSTILE = "<script>alert(1)</script>\"' onload=x {{ 7*7 }} \u202e=cmd()"
PGD = WhiteBox(parse_attack("pgd(eps=0.1)"), "strict")


def _right(right: int) -> dict[str, Any]:
    return {"correct": np.arange(50) < right}


class _Page(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def _change(path: Path, column: str, value: object) -> None:
    """Give every row of a file another value, with the metadata as they were."""
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    changed = pa.array([value] * len(table), table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), changed), path)


def _page(folder: Path) -> tuple[str, _Page]:
    text = (folder / "leaderboard.html").read_text(encoding="utf-8")
    return text, _Page(text)


@pytest.fixture
def runs(make_cell: MakeCell, make_store: MakeStore) -> Path:
    """The folder of a run of two defenses."""
    return make_store([(make_cell(PGD, "baseline"), _right(40)), (make_cell(PGD, "adp-2-0.5"), _right(5))]).folder


def _entry(path: Path, **changes: Any) -> Path:
    result = {"tier": "strict", "bound": "linf:0.1", "accuracy": 77.7, "samples": 50}
    entry = {"version": 1, "defense": "Theirs", "dataset": "digits", "network": "net", "members": 3}
    path.write_text(json.dumps({**entry, "results": [result], **changes}), encoding="utf-8")
    return path


def test_the_page_and_the_table_have_every_defense_with_rank_and_interval(runs: Path, here: Path) -> None:
    assert run(["leaderboard", str(runs), "--out", "board"]) == 0
    table = pd.read_csv(here / "board/leaderboard.csv")
    strict = table[table["tier"] == "strict"].set_index("defense")
    assert strict["rank"].to_dict() == {"baseline": 1, "adp-2-0.5": 2}
    assert strict["ci_low"]["baseline"] == pytest.approx(66.2816, abs=1e-3)
    _, page = _page(here / "board")
    words = " ".join(page.words)
    assert all(word in words for word in ("ADP, α=2, β=0.5", "80.0", "66.3 to 90.0", "rank 1 of 2", "50 images"))


def test_the_page_requests_nothing(runs: Path, here: Path) -> None:
    run(["leaderboard", str(runs), str(_entry(here / "e.json", source="https://example.org")), "--out", "board"])
    text, page = _page(here / "board")
    loading = [(tag, a) for tag, a in page.tags if {"src", "srcset", "data", "action", "poster"} & a.keys()]
    assert not loading and not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "img", "base")]
    assert all("//" not in (attributes["href"] or "") for tag, attributes in page.tags if tag == "a")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]


def test_only_the_script_of_the_page_may_run(runs: Path, here: Path) -> None:
    run(["leaderboard", str(runs), "--out", "board"])
    text, _ = _page(here / "board")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "default-src 'none'" in text


def test_hostile_names_stay_text(make_cell: MakeCell, make_store: MakeStore, here: Path) -> None:
    cells = [(make_cell(PGD, f"{name}{HOSTILE}", network=HOSTILE, training=HOSTILE), _right(9)) for name in "ab"]
    folder = make_store(cells).folder
    entry = _entry(here / "e.json", defense=HOSTILE, network=HOSTILE, source=HOSTILE, dataset=HOSTILE, training=HOSTILE)
    assert run(["leaderboard", str(folder), str(entry), "--out", "board"]) == 0
    text, page = _page(here / "board")
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "\u202e" not in text and "<script>alert" not in text
    assert any("{{ 7*7 }}" in words for words in page.words)
    csv = (here / "board/leaderboard.csv").read_text(encoding="utf-8")
    assert "\u202e" not in csv and not re.search(r"(^|,)=", csv, re.MULTILINE)


def test_a_damaged_run_is_named_and_left_out(runs: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs, here / "results/sound")
    shutil.copytree(runs, here / "results/broken")
    cell = next((here / "results/broken/cells").glob("*.parquet"))
    _change(cell, "correct", True)
    assert run(["leaderboard"]) == 0
    assert cell.name in capsys.readouterr().err
    _, page = _page(here / "results/leaderboard")
    assert cell.name in " ".join(page.words) and "1 run ·" in " ".join(page.words)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"claim": 1}', "[" * 100_000])
def test_a_damaged_audit_is_named_and_left_out(
    runs: Path, here: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "audit").mkdir()
    (here / "audit/audit.json").write_text(content, encoding="utf-8")
    (here / "audit/certificate-1.parquet").write_bytes(b"PAR1")
    assert run(["leaderboard", str(runs), "audit", "--out", "board"]) == 0
    assert "audit" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["empty"], ["entry.json"], ["wrong.txt"]])
def test_nothing_to_show_is_bad_input_and_leaves_nothing(here: Path, arguments: list[str]) -> None:
    (here / "empty").mkdir()
    (here / "wrong.txt").write_text("{}", encoding="utf-8")
    (here / "entry.json").write_text("{}", encoding="utf-8")
    assert run(["leaderboard", *arguments, "--out", "board"]) == 2
    assert not (here / "board").exists()


def test_an_entry_without_a_certificate_is_shown_as_a_claim(runs: Path, here: Path) -> None:
    assert run(["leaderboard", str(runs), str(_entry(here / "e.json")), "--out", "board"]) == 0
    _, page = _page(here / "board")
    assert [a.get("class") for tag, a in page.tags if tag == "tr"] == [None, None, None, "outside"]
    table = pd.read_csv(here / "board/leaderboard.csv").set_index("defense")
    assert table["kind"]["Theirs"] == "claimed" and pd.isna(table["rank"]["Theirs"])


def test_filters_know_every_dataset_network_number_of_members_and_bound(
    make_cell: MakeCell, make_store: MakeStore, here: Path
) -> None:
    cells = [(make_cell(PGD, "A"), _right(9)), (make_cell(PGD, "B", network="other", members=5), _right(9))]
    run(["leaderboard", str(make_store(cells).folder), "--out", "board"])
    _, page = _page(here / "board")
    values = {attributes.get("value") for tag, attributes in page.tags if tag == "option"}
    assert {"digits", "linf:0.1", "mini-resnet", "other", "2", "5"} <= values
    rows = [(a["data-network"], a["data-members"]) for tag, a in page.tags if tag == "tr" and "data-network" in a]
    assert sorted(rows) == [("mini-resnet", "2"), ("other", "5")]


def test_a_certificate_is_linked_and_verified_by_the_model_with_its_weights(checkpoint: Path, here: Path) -> None:
    audit = ["audit", str(checkpoint), "--dataset", "digits", "--claim", "fgsm(eps=0.3)=50", "--samples", "20"]
    assert run([*audit, "--out", "results/audits/one"]) == 3
    certificate = here / "results/audits/one/certificate-1.parquet"
    assert run(["leaderboard"]) == 0  # no model with these weights is known here
    table = pd.read_csv(here / "results/leaderboard/leaderboard.csv")
    assert table.empty
    assert run(["leaderboard", "--model", str(checkpoint)]) == 0
    table = pd.read_csv(here / "results/leaderboard/leaderboard.csv")
    assert table["kind"].tolist() == ["certified"] and table["certificate_says"][0].startswith("verified")
    _, page = _page(here / "results/leaderboard")
    (link,) = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert link and (here / "results/leaderboard" / link).resolve() == certificate
    _change(certificate, "label", 7)
    assert run(["leaderboard", "--model", str(checkpoint)]) == 0
    assert pd.read_csv(here / "results/leaderboard/leaderboard.csv").empty
    _, page = _page(here / "results/leaderboard")
    assert "does not verify" in page.words


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("#members=2&dataset=<b>", ["C", "A"]),
        ("#network=other&sort=defense+1", ["B", "C"]),
        ("#bound=linf%3A0.2", []),
    ],
)
def test_a_browser_filters_and_sorts_by_the_address(
    make_cell: MakeCell, make_store: MakeStore, here: Path, tmp_path: Path, address: str, shown: list[str]
) -> None:
    other = WhiteBox(parse_attack("pgd(eps=0.2)"), "strict")
    cells = [
        (make_cell(PGD, "C", network="other"), _right(30)),
        (make_cell(PGD, "A"), _right(10)),
        (make_cell(PGD, "B", network="other", members=5), _right(20)),
        (make_cell(other, "D", dataset="another"), _right(20)),
    ]
    run(["leaderboard", str(make_store(cells).folder), "--out", "board"])
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    page = (here / "board/leaderboard.html").as_uri() + address
    command = ["chromium", *flags.split(), "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    answer = subprocess.run([*command, page], capture_output=True, text=True, timeout=60, check=True)
    (board,) = re.findall(r'<section class="board" data-dataset="digits".*?</section>', answer.stdout, re.DOTALL)
    rows = re.findall(r"<tr data-network=([^>]*)>.*?<b>(.)</b>", board, re.DOTALL)
    hidden = "hidden" in board[: board.index(">")]
    assert [name for attributes, name in rows if "hidden" not in attributes and not hidden] == shown
