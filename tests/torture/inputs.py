"""Bad input for every command and option: exit code 2, one line, no traceback, nothing written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import typer

from benchmark.cli import app
from tests.torture.attempts import Setting, Tally, call
from tests.torture.material import RUN

QUICK = ["--epochs", "1", "--train-images", "32", "--network", "mini-resnet(width=1)", "--members", "1"]
GOOD = {
    "list": ["list", "presets"],
    "data fetch": ["data", "fetch", "digits"],
    "data verify": ["data", "verify", "digits"],
    "data where": ["data", "where", "digits"],
    "preset show": ["preset", "show", "demo"],
    "train": ["train", "baseline", "--dataset", "digits", *QUICK, "--threads", "1", "--out", "made"],
    "run": [*RUN, "--samples", "4", "--out", "made", "--plan"],
    "compare": ["compare", "small", "--against", "other", "--preset", "torture", "--samples", "4", "--attack", "fgsm",
                "--tier", "strict", "--threads", "1", "--out", "made"],
    "audit": ["audit", "small", "--dataset", "digits", "--claim", "fgsm(eps=0.1)=50", "--samples", "4",
              "--threads", "1", "--out", "made"],
    "crosscheck": ["crosscheck", "--defense", "small", "--attack", "fgsm", "--samples", "4", "--threads", "1",
                   "--out", "made"],
    "report": ["report", "small"],
    "leaderboard": ["leaderboard", "small", "--out", "made"],
    "verify": ["verify", "small"],
    "alpha": ["alpha", "--members", "3", "--classes", "10", "--confidence", "0.9"],
}  # fmt: skip
"""A short command of each kind; `report` and `verify` have no run here, so whatever they are given is bad."""
FILES = {
    "raises.py": b"1 / 0",
    "exits.py": b"raise SystemExit(0)",
    "stops.py": b"class Stop(BaseException): pass\nraise Stop",
    "interrupts.py": b"raise GeneratorExit",
    "latin.py": "x = 'é'".encode("latin-1"),
    "nul.py": b"x = 1\0",
    "syntax.py": b"def (",
    "empty.py": b"",
    "deep.py": b"x = " + b"(" * 5000,
    "loop.py": b"def f():\n    f()\nf()",
    "strange.py": b"Mine = 3\nBad = object\ndef model():\n    return 'no model'\ndef needs(a):\n    return a\n",
    "attacks.py": b"""
def attack(model, images, labels, strength=1, eps=0.1, norm="linf"): return images
def anything(model, images, labels, **more): return images
def sizes(model, images, labels, sizes=(1, 2), count: int = 1, bound="linf:0.1"): return images
def odd(model, images, labels, bound=3): return images
def few(model): return model
class Built:
    bound = "l2:1"
    def __init__(self, weight=1.0): self.weight = 1 / weight
    def __call__(self, model, images, labels): return images
class Exits:
    def __init__(self): raise SystemExit(0)
class Uncalled: pass
value = 3
""",
    "text.pt": b"no weights",
    "text.safetensors": b"no weights",
}
NUMBERS = ["-1", "0", "-0", "1e400", "nan", "inf", "-inf", "9" * 5000, "-" + "9" * 400, "99999999999999999999", "1.5"]
NUMBERS += ["0x10", "1_0", "½", "٣", "1e-400", "8/0", "1/3", "True", "None", "0,1,,2", "0,-1", ",", "1e9", "2147483648"]
TEXTS = ["", " ", "\t", "\n", "a\nb", "\x1b[31mred\x1b[0m", "\x07", "🙂", "é" * 200, "\udcff", "x" * 300, "../" * 100]
TEXTS += ["~nosuch/x", "/dev/null", "/proc/self/mem/x", "/nosuch/x", "*", "--", "-", "-x", "'; ls", "$(ls)", "%s%n"]
SPECS = ["adp(", "adp)", "adp()", "adp((alpha=1))", "adp(alpha=1,alpha=2)", "adp(alpha=)", "adp(=1)", "adp(alpha)", "+"]
SPECS += ["adp+", "+adp", "adp+gal", "advt+advt", "adp(alpha=nan,beta=1)", "adp(alpha=inf,beta=1)", "baseline(x=1)"]
SPECS += ["adp(alpha=" + "9" * 5000 + ",beta=1)", "pgd(eps=-1)", "pgd(eps=nan)", "pgd(eps=1e400)", "pgd(steps=0)"]
SPECS += ["pgd(steps=1.5)", "pgd@nosuch", "pgd@", "@art", "pgd(eps=8/0)", "pgd(norm=l7)", "resnet20(depth=-2)", "a=b=c"]
SPECS += ["mini-resnet(width=0)", "mini-resnet(width=-1)", "resnet(depth=9999999999)", "x.pt", "x.safetensors", "."]
SPECS += ["small:resnet20", "small,other", "text.pt:resnet20", "text.pt:", "text.safetensors", "folder.py:Mine"]
SPECS += [f"{name}:{what}" for name in FILES if name.endswith(".py") for what in ("Mine", "", "model", "needs(a=1)")]
LONG, LONGER = "9" * 400, "9" * 5000
ATTACKS = [f"torchattacks:{name}" for name in ("", "NoSuch", "os.system(command=ls)", "__class__", "Attack", "PGD:PGD")]
ATTACKS += ["torchattacks:FGSM(model=x)", "torchattacks:FGSM(eps=nan)", "torchattacks:FGSM(eps=1e400)", "os:system"]
ATTACKS += [f"torchattacks:PGD({name})" for name in ("eps=-1", "steps=0", "steps=1.5", "random_start=maybe", "x=1")]
ATTACKS += [
    f"torchattacks:PGD({name})" for name in ("eps=1,eps=2", "__init__=1", f"steps={LONG}", f"eps={LONGER}", "(")
]
ATTACKS += [f"torchattacks:Pixle(x_dimensions={size})" for size in ("2xinf", "1e400x2", "2x", "nanx1", f"1x{LONGER}")]
ATTACKS += ["art:ProjectedGradientDescent(eps=0.1,norm=l7)", "art:AdversarialPatch", "art:..:x", "art:evasion", ":PGD"]
ATTACKS += [
    "foolbox:LinfPGD",
    "foolbox:LinfPGD(eps=0)",
    "foolbox:LinfPGD(bound=l2:1)",
    "foolbox:LinfPGD(bound=linf:nan)",
]
ATTACKS += [
    "subprocess:run(args=ls)",
    "builtins:eval",
    "../x:y",
    "nosuch:PGD",
    "torchattacks:\x1b[2J",
    "TORCHATTACKS:PGD",
]
ATTACKS += ["torchattacks:PGD(eps=0.1,bound=none)", "torchattacks:PGD(bound=linf:8/0)", "torchattacks:CW(bound=l2:)"]
ATTACKS += [
    f"attacks.py:attack({value})" for value in (f"strength={LONGER}", "strength=x", "model=1", "eps=-1", "eps=inf")
]
ATTACKS += [
    f"attacks.py:anything({value})" for value in (f"x={LONGER}", f"steps={LONG}", "x=\x1b[2J", "bound=l9:1", "x=½")
]
ATTACKS += [f"attacks.py:{name}" for name in ("nosuch", "value", "odd", "few", "Exits", "Uncalled", "__builtins__", "")]
ATTACKS += ["attacks.py:sizes(sizes=1xinf)", "attacks.py:sizes(sizes=x)", f"attacks.py:sizes(count={LONG})", "no.py:a"]
ATTACKS += ["attacks.py:Built(weight=0)", "attacks.py:Built(weight=nan)", "attacks.py/x.py:y", "exits.py:attack"]
"""Attacks of libraries and of files: names that are none, and parameters that make no sense."""
GRID = {
    "title": '"x"', "dataset": '"digits"', "defenses": '["small"]', "attacks": '["fgsm(eps=0.1)"]', "members": "2",
    "network": '"mini-resnet(width=2)"', "tiers": '["strict"]', "recipe": '"fast"', "batch_size": "4", "strong": "{}",
    "blackbox": '{attacks=["fgsm(eps=0.1)"]}', "transfer": '{attacks=["fgsm(eps=0.1)"]}', "diversity": "{}",
    "detection": '{attacks=["fgsm(eps=0.1)"]}', "nosuch": "1",
}  # fmt: skip
"""The keys of a preset with good values."""
TOML = ["3", "-1", "1.5", "nan", "true", '"x"', '""', '" "', "[]", "[1]", "[[]]", "{}", "{a=1}", "1979-05-27", "9" * 30]
TOML += ['"\\u001b[2J"', '["fgsm", 3]', "[{spec=3}]", '[{spec="fgsm", samples=-1}]', "[{samples=3}]", '{samples="x"}']
TOML += [
    "{attacks=3}",
    '{suite="x"}',
    '"=small"',
    '["a=b=c"]',
    '["../x"]',
    '"9999999999"',
    '["Ours="]',
    '["x[/b]=small"]',
]
PRESETS = [b"", b"\xff\xfe", b"\0", b"x", b"[grid]", b"[[grid]]", b"grid = 3", b"grid = [3]", b"a = 1\na = 2"]
PRESETS += [
    b"a = " + b"[" * 10_000,
    b"a = " + b"9" * 5000,
    b"a." * 10_000 + b"b = 1",
    b"title = 'x'",
    b"[[grid]]\nx = 1e999999",
]
"""Whole files that are no preset."""
TOGETHER = [
    ["compare", "small", "--against", "small", "--preset", "torture"],
    ["compare", "small", "--against", "other", "--against", "small"],
    ["compare", "small", "--against", "other", "--preset", "torture", "--dataset", "digits"],
    ["run", "torture", "--executor", "nosuch"],
    ["run", "torture", "--attack", "none", "--tier", "strong"],
    ["run", "torture", "--dataset", "cifar10"],
    ["run", "torture", "--surrogate", "small", "--attack", "fgsm"],
    ["train", "baseline", "--dataset", "digits", "--select", "validation"],
    ["train", "adp-2-0.5", "--dataset", "digits", "--strategy", "independent"],
    ["train", "baseline", "--dataset", "digits", "--validation", "1437"],
    ["train", "baseline", "--dataset", "digits", "--start-from", "small", "--members", "5"],
    ["list"],
    ["list", "presets", "checkpoints"],
    ["alpha"],
    ["report"],
    ["report", "small", "other"],
    ["verify", "."],
    ["nosuch"],
    ["--nosuch"],
]


def attack(setting: Setting, tally: Tally) -> None:
    home = setting.folder / "home"
    setting.copy_checkpoints(home)
    (home / "folder.py").mkdir()
    presets = _presets(setting)
    for name, content in {**FILES, **presets}.items():
        (home / name).write_bytes(content)
    (home / "folder.toml").mkdir()
    for words in _chosen(setting, [*presets, "folder.toml", "nosuch.toml"]):
        _try(words, home, tally)


def _presets(setting: Setting) -> dict[str, bytes]:
    """Files that are no preset, and presets with one value of another kind."""
    wrong = [GRID | {key: value} for key in GRID for value in TOML]
    texts = [
        "\n".join([f"title = {grid['title']}", "[[grid]]", *(f"{key} = {grid[key]}" for key in grid if key != "title")])
        for grid in setting.draws.sample(wrong, setting.amount(120, 5))
    ]
    files = [*PRESETS, *(text.encode() for text in texts)]
    return {f"{number}.toml": content for number, content in enumerate(files)}


def _chosen(setting: Setting, presets: list[str]) -> list[list[str]]:
    """Every option of every command with some values that it should refuse, bad presets, and what does not fit."""
    found = [*TOGETHER] if not setting.few else TOGETHER[:5]
    run = GOOD["run"]
    found += [[*run, "--attack", spec] for spec in ATTACKS]
    found += [[run[0], name, *run[2:]] for name in presets]
    for option in _options():
        found += setting.draws.sample(list(_spoiled(*option)), setting.amount(7, 1))
    return found if not setting.few else setting.draws.sample(found, 30)


def _options() -> Iterator[tuple[str, str, bool]]:
    """Command, parameter and whether it is an argument, for all that the program has."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for inner, one in getattr(command, "commands", {"": command}).items():
            for parameter in one.params:
                flag = getattr(parameter, "is_flag", False) or parameter.name == "help"
                if not flag:
                    path = f"{name} {inner}".strip()
                    argument = parameter.param_type_name == "argument"
                    yield path, parameter.name if argument else parameter.opts[0], argument


def _spoiled(path: str, name: str, argument: bool) -> Iterator[list[str]]:
    """A good command with one value replaced or added; an option also twice, and without a value."""
    good = GOOD.get(path)
    if good is None:
        raise KeyError(f"the command {path!r} is new: write a good one here")
    place = len(path.split())
    for value in (*NUMBERS, *TEXTS, *SPECS):
        if argument:
            yield [*good[:place], value, *good[place + 1 :]]
        else:
            yield [*good, name, value]
    if not argument:
        yield [*good, name]
        yield [*good, name, "1", name, "x"]
        yield [*good, name + "z", "1"]


def _try(words: list[str], home: Path, tally: Tally) -> None:
    before = _files(home)
    answer = call(words, home, seconds=4)
    tally.tried += 1
    told = " ".join(word if len(word) < 60 else f"{word[:50]}…({len(word)})" for word in words)
    told = told.encode("unicode_escape").decode()
    if answer.traceback:
        tally.wrong.append(f"{told}: traceback: {answer.last}")
    elif answer.code == 2:
        if not re.fullmatch(r"adp-bench: [^\n]+\n", answer.err) or answer.out:
            tally.wrong.append(f"{told}: not one line: {answer.err[-300:]!r} {answer.out[-100:]!r}")
        elif re.search(r"[\x00-\x09\x0b-\x1f\x7f]", answer.err):
            tally.entered.append(f"{told}: control characters reach the terminal: {answer.err[-300:]!r}")
        if _files(home) != before:
            tally.wrong.append(f"{told}: wrote {sorted(_files(home) - before)[:3]}")
    elif not (
        answer.code in (0, 1) or (answer.code == 3 and "audit" in words) or (answer.code == 130 and answer.stopped)
    ):
        tally.wrong.append(f"{told}: exit code {answer.code}: {answer.last}")
    elif answer.code == 1 and "train" not in words:
        tally.wrong.append(f"{told}: exit code 1: {answer.last}")
    _clean(home, before)


def _files(home: Path) -> set[Path]:
    return {path for path in home.rglob("*") if "__pycache__" not in path.parts}


def _clean(home: Path, before: set[Path]) -> None:
    """Remove what a command wrote whose input was good."""
    for path in sorted(_files(home) - before):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
