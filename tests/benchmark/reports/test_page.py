"""The page of a run holds every number, fetches nothing, and works by keyboard; in a browser where there is one."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmark.attacks import NamedAttack, RecordedAttack, library_version, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.cells.cell import Cell
from benchmark.cells.store import Store
from benchmark.evaluations.clean import Clean
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.findings.checks import CHECKS
from benchmark.findings.crosscheck import crosscheck_table
from benchmark.findings.layout import Layout
from benchmark.findings.results import read_results
from benchmark.harness.tiers import Tier
from benchmark.machine import hardware
from benchmark.reports import write_report
from benchmark.reports.figures.drawing import Figure, canvas, keep, style
from benchmark.reports.page import Shown, write_page

MakeCell = Callable[..., Cell]
MakeRecords = Callable[[Cell, dict[str, Any]], pd.DataFrame]
MakeStore = Callable[..., Store]
Report = Callable[..., Path]


def _task(text: str, tier: Tier = "strict") -> WhiteBox:
    named = parse_attack(text)
    return WhiteBox(named, tier, tier == "strict" and named.attack.same_in_tiers)


def _right(right: int, samples: int = 50, **columns: Any) -> dict[str, Any]:
    """The first so many images are right."""
    return {"correct": np.arange(samples) < right, **columns}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Figure]]:
    """Two figures, and the folder they are kept in."""
    folder = tmp_path_factory.mktemp("drawn")
    figures = []
    for name in ("curve-digits-pgd", "diversity-digits"):
        with style():
            one = canvas(2.0)
            one.subplots().plot([0, 1], [1, 0])
        words = "Every curve falls, as it must."
        figures.append(Figure(name, f'Figure "{name}" & co', words, one, pd.DataFrame({"x": [0, 1]})))
    keep(folder, figures)
    return folder, figures


def _write(store: Store, figures: Sequence[Figure]) -> None:
    results = read_results(store)
    tables = {name: pd.DataFrame() for name in ("gap", "strong", "transfer", "seeds", "detection", "diversity")}
    write_page(store.folder, Shown(Layout(results), None, crosscheck_table(results), tables, figures))


@pytest.fixture
def store(make_cell: MakeCell, make_store: MakeStore, drawn: tuple[Path, list[Figure]]) -> Store:
    """A run with names that are markup, a failed cell, one that was not run and one that is flagged."""
    fgsm, pgd = "fgsm(eps=0.1)", "pgd(eps=0.1)"
    finished = [
        (make_cell(Clean(), "baseline"), _right(48)),
        (make_cell(_task(fgsm, "paper"), "baseline", published=10.3), _right(20)),
        (make_cell(_task(fgsm), "baseline", published=10.3), _right(9)),
        (make_cell(_task(pgd, "paper"), "baseline"), _right(5)),
        (make_cell(_task(pgd), "baseline"), _right(5)),
        (make_cell(Clean(), "<b>"), _right(47)),
        (make_cell(_task(fgsm, "paper"), "<b>", published=52.8), _right(31)),
        (make_cell(_task(fgsm), "<b>", published=52.8), _right(30)),
        (make_cell(_task(pgd, "paper"), "<b>"), _right(50, unmoved=True)),
    ]
    failed, missing = make_cell(_task(pgd), "<b>"), make_cell(_task("cw(c=1)"), "<b>")
    store = make_store(finished)
    content = {
        "preset": "demo",
        "title": "Title & <i>more</i>",
        "commands": ["adp-bench run demo --threads 1"],
        "versions": {"adp-benchmark": "0.1.0", "torch": "2.9.9"},
        "machine": {"cores": 2, "processor": "A <processor>"},
    }
    store.write_manifest([*store.asked(), failed, missing], content)
    store.write_failure(failed, "out of memory at <script>alert(1)</script>")
    folder, figures = drawn
    shutil.copytree(folder, store.folder / "figures")
    _write(store, figures)
    return store


@pytest.fixture
def page(store: Store) -> str:
    return (store.folder / "report.html").read_text(encoding="utf-8")


def _page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


class _Elements(HTMLParser):
    """Every element in order, as (name, attributes), and the rows of every table as their visible texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._caption = ""
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source"):
            self._inside.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag, f"</{tag}> closes something else"
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if "caption" in self._inside:
            self._caption += data
        elif "td" in self._inside or "th" in self._inside:
            self._rows[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    def table(self, start: str) -> list[list[str]]:
        return next(rows for caption, rows in self.tables.items() if caption.startswith(start))


def test_page_names_no_address_to_fetch_from(page: str) -> None:
    for _, attributes in _Elements(page).found:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not re.search(r"url\(|@import|https?://", page)
    assert "default-src 'none'" in page


def test_script_that_the_page_allows_is_its_own(page: str) -> None:
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_same_store_gives_the_same_bytes(store: Store, page: str, drawn: tuple[Path, list[Figure]]) -> None:
    _write(store, drawn[1])
    assert (store.folder / "report.html").read_text(encoding="utf-8") == page


def test_names_and_reasons_are_text_and_never_markup(page: str) -> None:
    assert "&lt;b&gt;" in page
    assert "Title &amp; &lt;i&gt;more&lt;/i&gt;" in page
    assert "<script>alert" not in page
    assert len(_Elements(page).all("script")) == 1


def test_headings_begin_with_one_title_and_skip_no_level(page: str) -> None:
    levels = [int(tag[1]) for tag, _ in _Elements(page).found if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(deeper - level <= 1 for level, deeper in itertools.pairwise(levels))


def test_ids_are_unique_and_everything_referred_to_exists(page: str) -> None:
    found = _Elements(page).found
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in found:
        for name in ("aria-labelledby", "aria-describedby", "href"):
            if attributes.get(name):
                assert str(attributes[name]).removeprefix("#") in ids


def test_every_figure_has_an_alternative_text_and_its_own_drawing(store: Store, page: str) -> None:
    images = _Elements(page).all("img")
    assert [image["alt"] for image in images] == [
        'Figure "curve-digits-pgd" & co',
        'Figure "diversity-digits" & co',
    ]
    drawn = base64.b64decode(str(images[0]["src"]).partition("base64,")[2])
    assert drawn == (store.folder / "figures" / "curve-digits-pgd.svg").read_bytes()
    assert page.count("Every curve falls, as it must.") == 2


def test_the_bars_of_the_first_screen_have_a_drawing_for_phones(make_cell: MakeCell, report: Report) -> None:
    page = _page(report([(make_cell(_task("pgd(eps=0.1)")), _right(10))]))
    (source,) = _Elements(page).all("source")
    drawn = base64.b64decode(str(source["srcset"]).partition("base64,")[2]).decode()
    width = re.search(r'<svg [^>]*width="([\d.]+)pt"', drawn)
    assert source["media"] == "(max-width: 40rem)" and width and float(width[1]) < 240, "one column of a paper"


def test_every_table_has_a_caption_and_headings_of_columns_and_rows(page: str) -> None:
    elements = _Elements(page)
    assert len(elements.all("caption")) == len(elements.all("table")) == len(elements.tables)
    assert {head.get("scope") for head in elements.all("th")} == {"col", "row"}


def test_tiers_stand_side_by_side_with_the_published_number_and_the_difference(page: str) -> None:
    head, *rows = _Elements(page).table("digits: accuracy in percent, tier paper and tier strict")
    assert head == ["attack", "defense", "published", "paper", "strict", "paper − strict points"]
    assert rows[0] == ["FGSM ε=0.1", "baseline", "10.3", "40.0 26.4–54.8", "18.0 8.6–31.4", "+22.0"]
    assert rows[1][:2] == ["FGSM ε=0.1", "<b>"]
    assert rows[3] == ["PGD ε=0.1", "<b>", "–", "100.0† 92.9–100.0", "– failed", "–"]


def test_attacks_of_one_tier_have_a_table_of_their_own_without_empty_columns(page: str) -> None:
    head, row = _Elements(page).table("digits: accuracy in percent, tier strict")
    assert head == ["attack", "baseline", "<b>"] and row == ["C&W c=1", "–", "– not run"]


def test_what_stands_behind_a_number_is_shown_when_it_is_pointed_at(page: str) -> None:
    cells = [cell for cell in _Elements(page).all("td") if "data-more" in cell]
    behind = [str(cell["data-more"]).split("\n") for cell in cells]
    assert ["95 % interval 26.4–54.8", "50 test images"] in [lines[:2] for lines in behind]
    assert any("warning unmoved" in line for lines in behind for line in lines)
    assert all("backward passes per image" in "".join(lines) for lines in behind if lines[2:3] == ["library"])
    for table in page.split("<table")[1:]:
        inside = table.split("</table>")[0]
        assert inside.count('tabindex="0"') == (1 if "data-more" in inside else 0), "one stop for the Tab key"


def test_a_cell_is_tinted_by_its_accuracy(page: str) -> None:
    tinted = [str(cell["style"]) for cell in _Elements(page).all("td") if "tint" in (cell.get("class") or "")]
    assert {"--share: 40%", "--share: 18%", "--share: 100%"} <= set(tinted)


def test_summary_takes_the_worst_case_over_attacks_of_one_budget_and_leaves_out_what_is_unfinished(page: str) -> None:
    # image by image: the baseline keeps 5 of 50 under both attacks, <b> keeps 31
    assert "10.0 % for baseline (95 % interval 3.3–21.8)" in page
    assert "62.0 % for &lt;b&gt; (95 % interval 47.2–75.3)" in page
    assert "No defense has finished every attack without a bound of this tier" in page
    assert "any of the 2 L∞ attack settings of the tier: 10.0 % (1 with unfinished attacks left out)" in page
    head, *rows = _Elements(page).table("digits: test images that stay correctly classified")
    strict = next(place for place, title in enumerate(head) if title.startswith("strict"))
    assert [row[strict] for row in rows] == ["10.0 3.3–21.8", "– unfinished"]


def test_lead_that_could_be_chance_is_not_called_one(make_cell: MakeCell, report: Report) -> None:
    def words(right: int) -> str:
        pgd = _task("pgd(eps=0.1)")
        return _page(report([(make_cell(pgd, "one"), _right(right)), (make_cell(pgd, "other"), _right(20))]))

    assert "no defense is significantly ahead of all others" in words(24)
    assert "one is significantly ahead of every other defense" in words(40)


def test_several_seeds_are_a_mean_with_its_spread(make_cell: MakeCell, report: Report) -> None:
    pgd = _task("pgd(eps=0.1)")
    cells = [(make_cell(pgd, seed=seed, weights=f"{seed}"), _right(right)) for seed, right in enumerate((10, 20))]
    rows = _Elements(_page(report(cells))).table("digits: accuracy in percent, tier strict")
    assert rows[1][1] == "30.0 ± 14.1 2 seeds"


def test_tiers_are_summed_up_over_the_attacks_that_both_have(make_cell: MakeCell, report: Report) -> None:
    right = {_task("pgd(eps=0.1)", "paper"): 40, _task("pgd(eps=0.1)"): 30, _task("mim(eps=0.1)"): 5}
    page = _Elements(_page(report([(make_cell(task), _right(count)) for task, count in right.items()])))
    (row,) = page.table("digits: test images that stay")[1:]
    assert [field.split()[0] for field in row[2:]] == ["80.0", "60.0"], "paper and strict"
    assert "lowest accuracy under a single L∞ attack: 10.0 %, MIM, ε=0.1" in "".join(
        str(cell.get("data-more")) for cell in page.all("td")
    )


def test_what_tiers_share_is_looked_for_among_attacks_of_one_kind(make_cell: MakeCell, report: Report) -> None:
    right = {_task("cw(c=1)", "paper"): 40, _task("cw(c=1)"): 40, _task("pgd(eps=0.1)"): 30}
    folder = report([(make_cell(task), _right(count)) for task, count in right.items()])
    head, row = _Elements(_page(folder)).table("digits: test images that stay")
    assert row[head.index("strict L∞, ε=0.1, 50 images")].startswith("60.0")


def test_the_worst_case_of_an_l2_attack_is_told_with_its_norm_and_apart_from_linf(
    make_cell: MakeCell, report: Report
) -> None:
    recorded = RecordedAttack("eps=0.5", (("eps", 0.5),), Bound("l2", 0.5))
    l2 = make_cell(WhiteBox(NamedAttack("round", "native", recorded, "1"), "strict"))
    linf = [(make_cell(_task(f"{name}(eps=0.5)")), _right(count)) for name, count in (("fgsm", 9), ("pgd", 8))]
    alone, both = (_page(report(cells)) for cells in ([(l2, _right(5))], [(l2, _right(5)), *linf]))
    (caption,) = (one for one in _Elements(alone).tables if one.startswith("digits: test images that stay"))
    head, row = _Elements(alone).tables[caption]
    assert "L2, ε=0.5, 50 images" in caption and row[head.index("strict")].startswith("10.0")
    assert "Accuracy under round at L2, ε=0.5, on 50 images: 10.0 % for ours" in alone
    (caption,) = (one for one in _Elements(both).tables if one.startswith("digits: test images that stay"))
    head, row = _Elements(both).tables[caption]
    assert "L∞, ε=0.5, 50 images" in caption and row[head.index("strict")].startswith("16.0")
    assert "lowest accuracy under a single L∞ attack: 16.0 %, PGD, ε=0.5" in both
    assert "lowest accuracy under a single L2 attack: 10.0 %, round, ε=0.5" in both
    assert "Lowest accuracy under any of the 2 L∞ attack settings of the tier: 16.0 %." in both


def test_no_lead_is_told_of_numbers_that_were_not_measured_alike(make_cell: MakeCell, report: Report) -> None:
    pgd = _task("pgd(eps=0.1)")
    cells = [(make_cell(pgd, "one"), _right(5)), (make_cell(pgd, "two", batch_size=25), _right(45))]
    assert "ahead of every other defense" not in _page(report(cells))


def test_tiers_on_different_images_are_not_subtracted(make_cell: MakeCell, report: Report) -> None:
    paper, strict = _task("pgd(eps=0.1)", "paper"), _task("pgd(eps=0.1)")
    folder = report([(make_cell(paper, samples=20), _right(16, 20)), (make_cell(strict), _right(10))])
    rows = _Elements(_page(folder)).table("digits: accuracy in percent, tier paper and tier strict")
    assert rows[0][-1] == "paper − strict points" and rows[1][-1] == "–"


def test_no_defense_is_called_ahead_of_one_that_is_not_finished(make_cell: MakeCell, report: Report) -> None:
    one, two, three = (make_cell(_task("pgd(eps=0.1)"), name) for name in ("one", "two", "three"))
    page = _page(report([(one, _right(40)), (two, _right(10))], [three]))
    assert "Not compared: 1 without all of these attacks." in page and "ahead of every other defense (" not in page


def test_an_attack_of_several_libraries_has_a_row_for_each(make_cell: MakeCell, report: Report) -> None:
    right = {"pgd(eps=0.1)": 30, "pgd@art(eps=0.2)": 20, "pgd@native(eps=0.3)": 10, "fgsm(eps=0.1)": 40}
    folder = report([(make_cell(_task(text)), _right(count)) for text, count in right.items()])
    rows = _Elements(_page(folder)).table("digits: accuracy in percent, tier strict")
    assert [(row[0], row[1].split()[0]) for row in rows[1:]] == [
        ("PGD (torchattacks) ε=0.1", "60.0"),
        ("PGD (art) ε=0.2", "40.0"),
        ("PGD (native) ε=0.3", "20.0"),
        ("FGSM ε=0.1", "80.0"),
    ]


def test_a_run_of_several_sittings_says_which_code_finished_how_much(
    make_cell: MakeCell, make_records: MakeRecords, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [(make_cell(_task(f"{name}(eps=0.1)")), _right(10)) for name in ("fgsm", "bim", "pgd")]
    folder = report(cells)
    for commit, sitting in (("", cells[:1]), ("0123456789ab", cells[1:])):
        monkeypatch.setattr(hardware, "commit", lambda commit=commit: commit)
        for cell, columns in sitting:
            Store(folder).write(cell, make_records(cell, columns))
    write_report(Store(folder))
    assert "not recorded (1 cell), 0123456789ab (2 cells)" in _page(folder)


def test_failed_unfinished_and_flagged_cells_come_before_any_table_of_results(page: str) -> None:
    tables = {name: rows for name, rows in _Elements(page).tables.items() if name.startswith("Warnings: ")}
    assert list(tables)[:3] == ["Warnings: failed", "Warnings: not run", "Warnings: unmoved"]
    assert "out of memory" in tables["Warnings: failed"][1][1]
    assert "changed 0 of 50 images" in tables["Warnings: unmoved"][1][1]
    first = page.index('id="warned">Warnings')
    assert first < page.index("<b>failed</b>") < page.index("<b>unmoved</b>") < page.index('id="glance"')
    assert "9 of 11 cells finished" in page
    assert "Warnings concern 1 of 4 numbers" in page


def test_every_flag_is_listed_with_where_what_was_seen_and_advice(page: str) -> None:
    (row,) = _Elements(page).table("Warnings: unmoved")[1:]
    assert row[0] == "digits · <b> · PGD, ε=0.1 · paper" and "changed 0 of 50" in row[1]
    section = page[page.index('id="checks"') : page.index('id="clean"')]
    assert section.count(CHECKS["unmoved"].advice) == 1, "once for all flags of a kind"


def test_run_without_warnings_says_so_and_has_no_warning_section(make_cell: MakeCell, report: Report) -> None:
    page = _page(report([(make_cell(_task("pgd(eps=0.1)")), _right(10))]))
    assert 'id="checks"' not in page
    assert re.search(r"No warnings from \d+ checks on 1 cell", page)


def test_store_without_a_finished_cell_still_gives_a_page(make_cell: MakeCell, report: Report) -> None:
    assert "0 of 1 cells finished" in _page(report([], [make_cell(_task("pgd(eps=0.1)"))]))


def test_settings_to_run_it_again_are_there(page: str) -> None:
    for text in ("adp-bench run demo --threads 1", "2.9.9", "A &lt;processor&gt;", "fast recipe, 12 epochs, seed 0"):
        assert text in page
    rows = _Elements(page).table("Attacks:")
    library = f"torchattacks {library_version('torchattacks')}"
    assert rows[0] == ["attack", "tiers", "library", "settings"]
    assert rows[1] == ["FGSM ε=0.1", "paper, strict", library, "eps 0.1"]
    caption = next(caption for caption in _Elements(page).tables if caption.startswith("Attacks:"))
    assert "The same in all rows: evaluation whitebox, images 50, dataset digits" in caption


# --- in a browser ---


class _Browser:
    """Chromium through ChromeDriver's own protocol, which needs no more than HTTP."""

    def __init__(self, address: str, profile: Path) -> None:
        self.address = address
        flags = (
            "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            "--disable-component-update --disable-sync --window-size=1280,900"
        )
        options = {
            "goog:chromeOptions": {
                "binary": shutil.which("chromium"),
                "args": [*flags.split(), f"--user-data-dir={profile}"],
            },
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self.session = f"/session/{answer['sessionId']}"

    def _ask(self, method: str, path: str, content: object = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, {"Content-Type": "application/json"})
        request.method = method
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def post(self, path: str, content: object) -> Any:
        return self._ask("POST", f"{self.session}{path}", content)

    def run(self, script: str) -> Any:
        return self.post("/execute/sync", {"script": script, "args": []})

    def command(self, name: str, **given: object) -> Any:
        return self.post("/goog/cdp/execute", {"cmd": name, "params": given})

    def press(self, key: str) -> None:
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def log(self, kind: str) -> list[dict[str, Any]]:
        return self.post("/se/log", {"type": kind})

    def close(self) -> None:
        self._ask("DELETE", self.session)


ENTER, ESCAPE = "\ue007", "\ue00c"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Browser]:
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    browser = None
    try:
        assert process.stdout is not None
        port = next(found[1] for line in process.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        browser = _Browser(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("profile"))
        yield browser
    finally:
        if browser is not None:
            browser.close()
        process.terminate()
        process.wait(timeout=20)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def browser(chromium: _Browser, store: Store) -> _Browser:
    """The browser with the page open."""
    chromium.post("/url", {"url": (store.folder / "report.html").as_uri()})
    return chromium


TIERS = (
    "const table = [...document.querySelectorAll('table')]"
    ".find(t => t.caption.textContent.includes('tier paper and tier strict'));"
)


def _column(browser: _Browser, number: int) -> list[str]:
    return browser.run(f"{TIERS} return [...table.tBodies[0].rows].map(row => row.cells[{number}].textContent)")


@pytest.mark.slow
def test_enter_on_a_heading_sorts_numbers_as_numbers_and_the_third_time_restores_the_order(browser: _Browser) -> None:
    before = _column(browser, 3)
    browser.run(f"{TIERS} table.tHead.rows[0].cells[3].firstElementChild.focus()")
    state = f"{TIERS} return table.tHead.rows[0].cells[3].getAttribute('aria-sort')"
    seen = []
    for _ in range(3):
        browser.press(ENTER)
        seen.append((browser.run(state), [text.split()[0] for text in _column(browser, 3)]))
    assert seen[0] == ("ascending", ["10.0", "40.0", "62.0", "100.0†"])
    assert seen[1] == ("descending", ["100.0†", "62.0", "40.0", "10.0"])
    assert seen[2][0] == "none" and _column(browser, 3) == before


@pytest.mark.slow
def test_enter_enlarges_a_figure_and_escape_returns_to_it(browser: _Browser) -> None:
    browser.run("document.querySelector('figure > button').focus()")
    browser.press(ENTER)
    assert browser.run("return document.querySelector('dialog').open")
    width = "document.querySelector('dialog img').getBoundingClientRect().width"
    assert browser.run(f"return {width} > document.querySelector('figure img').getBoundingClientRect().width")
    assert browser.run("return document.querySelector('dialog h2').textContent") == 'Figure "curve-digits-pgd" & co'
    browser.press(ESCAPE)
    assert not browser.run("return document.querySelector('dialog').open")
    assert browser.run("return document.activeElement === document.querySelector('figure > button')")


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_page_never_scrolls_sideways(browser: _Browser, width: int) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.command("Emulation.setDeviceMetricsOverride", **size)
    try:
        browser.run("for (const folded of document.querySelectorAll('details')) folded.open = true")
        assert browser.run("return document.documentElement.scrollWidth") <= width
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")


@pytest.mark.slow
def test_tables_of_accuracies_fit_a_phone(browser: _Browser) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.command("Emulation.setDeviceMetricsOverride", **size)
    try:
        boxes = "[...document.querySelectorAll('[aria-labelledby=glance] .scroll, [aria-labelledby=tiers] .scroll')]"
        wide = browser.run(f"return {boxes}.filter(box => box.scrollWidth > box.clientWidth).length")
        shown = browser.run(f"{TIERS} return getComputedStyle(table.rows[1].cells[1], '::before').content")
        assert wide == 0 and shown == '"FGSM, ε=0.1"', "the attack stands above its defenses"
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")


@pytest.mark.slow
def test_nothing_is_fetched_and_the_console_stays_empty(browser: _Browser) -> None:
    for kind in ("performance", "browser"):
        browser.log(kind)  # what the browser itself asked for before it was given a page
    browser.post("/refresh", {})
    browser.run("document.querySelector('th > button').click(); document.querySelector('figure > button').click()")
    messages = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert any(address.endswith("/report.html") for address in asked)
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    assert len({address for address in asked if address.startswith("file:")}) == 1
    assert browser.log("browser") == []
