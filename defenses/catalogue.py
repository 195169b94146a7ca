"""Every defense by name: registered ones, aliases, compositions with ``+``, and ``file.py:name``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from defenses import specs
from defenses.errors import USER_FILE, BadInput
from defenses.objectives import (
    ADP,
    BARRE,
    DVERGE,
    GAL,
    IGAT,
    JSD,
    LOTOS,
    MCE,
    TRS,
    AdversarialTraining,
    Baseline,
    Defense,
    LabelSmoothing,
    MRBoost,
)
from defenses.registry import Registry, did_you_mean
from defenses.source_digest import source_digest

Class = TypeVar("Class", bound=type)


DEFENSES: Registry[Any] = Registry("defense")
DEFENSES.register("baseline", Baseline)
DEFENSES.register("adp", ADP)
DEFENSES.register("label-smoothing", LabelSmoothing)
DEFENSES.register("jsd", JSD)
DEFENSES.register("gal", GAL)
DEFENSES.register("trs", TRS)
DEFENSES.register("dverge", DVERGE)
DEFENSES.register("igat", IGAT)
DEFENSES.register("mce", MCE)
DEFENSES.register("mrboost", MRBoost)
DEFENSES.register("barre", BARRE)
DEFENSES.register("lotos", LOTOS)
DEFENSES.register("advt", AdversarialTraining)
DEFENSES.alias("adp-2-0", "adp(alpha=2,beta=0)")
DEFENSES.alias("adp-2-0.5", "adp(alpha=2,beta=0.5)")
DEFENSES.alias("label-smoothing-0.6", "label-smoothing(target=0.6)")
DEFENSES.alias("advt-fgsm", "advt(attack=fgsm)")
DEFENSES.alias("advt-pgd", "advt(attack=pgd)")

PAPER_DEFENSES = (
    "baseline",
    "adp-2-0",
    "adp-2-0.5",
    "advt-fgsm",
    "advt-fgsm+adp-2-0.5",
    "advt-pgd",
    "advt-pgd+adp-2-0.5",
)
"""The seven defenses in the paper's tables."""


@dataclass(frozen=True)
class NamedDefense:
    """A defense with its canonical spec."""

    text: str
    """Canonical spec, such as ``advt(attack=pgd)+adp(alpha=2,beta=0.5)``."""
    label: str
    """Short name for tables, such as ``advt-pgd+adp-2-0.5``."""
    defense: Defense
    source_digest: str = ""
    """`source_digest` of the user's files that define the defense; empty for registered defenses."""
    bytes_digest: str = ""
    """sha256 of the bytes of these files; checkpoints of earlier versions store it instead of ``source_digest``."""

    def is_of(self, digest: str) -> bool:
        """True if a checkpoint with this digest was trained with the current version of the defense's file."""
        return digest in (self.source_digest, self.bytes_digest)


def register(name: str) -> Callable[[Class], Class]:
    """Register a defense under a name: write ``@register("my-defense")`` above a frozen dataclass."""
    return DEFENSES.decorator(name)


def parse_defense(text: str) -> NamedDefense:
    """Read a defense spec, such as ``adp(alpha=2,beta=0.5)`` or ``advt-pgd+adp-2-0.5``."""
    parts = [_part(piece.strip(), text) for piece in specs.split(text)]
    wrappers = [part for part in parts if hasattr(part.defense, "around")]
    objectives = [part for part in parts if part not in wrappers]
    if len(objectives) > 1:
        names = " and ".join(part.label for part in objectives)
        raise BadInput(f"{text!r} joins two objectives, {names}; keep one (only advt and igat can be added to it)")
    if len({part.text.partition("(")[0] for part in wrappers}) < len(wrappers):
        raise BadInput(f"{text!r} contains the same wrapper twice; write it once")
    wrappers.sort(key=lambda part: part.text)
    defense: Any = objectives[0].defense if objectives else Baseline()
    for wrapper in reversed(wrappers):
        defense = wrapper.defense.around(defense)  # type: ignore[attr-defined]
    shown = [*wrappers, *(part for part in objectives if not wrappers or part.text != "baseline")]
    return NamedDefense(
        "+".join(part.text for part in shown),
        "+".join(part.label for part in shown),
        defense,
        _joined(part.source_digest for part in shown),
        _joined(part.bytes_digest for part in shown),
    )


def _joined(digests: Iterable[str]) -> str:
    whole = "".join(digests)
    return whole if len(whole) <= 64 else hashlib.sha256(whole.encode()).hexdigest()


def _part(piece: str, whole: str) -> NamedDefense:
    if not piece:
        raise BadInput(f"cannot read the defense {whole!r}; write a name, or names joined with +")
    if ".py:" in piece:
        return _from_file(piece)
    text, defense = specs.resolve(DEFENSES, piece)
    labels = {specs.resolve(DEFENSES, alias)[0]: alias for alias in DEFENSES.aliases()}
    return NamedDefense(text, labels.get(text, text), defense)


def _from_file(piece: str) -> NamedDefense:
    """``file.py:Name`` or ``file.py:Name(key=value)``: a Defense class, or an instance, in that file."""
    location, _, rest = piece.partition(".py:")
    path = Path(location + ".py")
    call = specs.parse(rest, "defense")
    module = import_file(path)
    target = getattr(module, call.name, None)
    kinds = {name: value for name, value in vars(module).items() if _is_defense(value, module.__name__)}
    if target is None:
        raise BadInput(f"{path} defines no {call.name!r}; {did_you_mean(call.name, kinds)}")
    digests = source_digest(path), hashlib.sha256(path.read_bytes()).hexdigest()
    if isinstance(target, Defense):
        if call.arguments:
            raise BadInput(f"{call.name!r} in {path} is an instance, which takes no parameters; set them in the file")
        return NamedDefense(f"{path}:{call.name}", call.name, target, *digests)
    if not (isinstance(target, type) and issubclass(target, Defense)):
        raise BadInput(f"{call.name!r} in {path} is not a defenses.Defense; {did_you_mean(call.name, kinds)}")
    instance = specs.build(target, call, "defense")
    text = specs.canonical(call.name, instance)
    return NamedDefense(f"{path}:{text}", text, instance, *digests)


def _is_defense(value: object, module: str) -> bool:
    return isinstance(value, Defense) or (
        isinstance(value, type) and issubclass(value, Defense) and value.__module__ == module
    )


def import_file(path: Path) -> ModuleType:
    """Import a user's Python file; a second call returns the same module.

    The file can import other files of its folder, unless an installed package has the same name.
    """
    if not path.is_file():
        raise BadInput(f"{path} is not a file; write the path of a Python file before the colon")
    name = f"{USER_FILE}{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses look their module up while the file runs
    try:
        spec.loader.exec_module(module)
    except (BadInput, KeyboardInterrupt):
        del sys.modules[name]
        raise
    except BaseException as error:  # SystemExit too: a file that exits defines nothing
        del sys.modules[name]
        raise BadInput(f"{path} could not be imported: {type(error).__name__}: {error}; correct the file") from error
    return module
