"""Attacks from Python code: specs, objects of the libraries, and callables with a bound."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from benchmark.attacks import Asked, NamedAttack, bounded, library_version, parse_attack
from benchmark.attacks.bounds import Bound
from benchmark.attacks.library_attacks import SET_HERE, LibraryClass, library_classes
from benchmark.attacks.own_attacks import from_callable
from benchmark.attacks.signatures import as_plain, is_plain
from defenses.errors import BadInput

GivenAttack = str | NamedAttack | Callable[..., Any] | tuple[Any, Bound | None]
"""A spec, a library object, a callable with a known bound, or a pair of an object or callable and a bound or None."""
BASES = {
    "torchattacks": ("torchattacks.attack", "Attack"),
    "art": ("art.attacks.attack", "EvasionAttack"),
    "foolbox": ("foolbox.attacks.base", "Attack"),
}
OTHER_NAMES = {
    "rho": "thr_decr",
    "resc_schedule": "rescale_schedule",
    "distance": "_distance",
    "initial_gradient_eval_steps": "initial_num_evals",
    "max_gradient_eval_steps": "max_num_evals",
    "max_iterations": "max_patches",
    "mutation_probability": "min_mutation_probability",
    "mutation_range": "min_mutation_range",
    "max_translation": "max_trans",
    "max_rotation": "max_rot",
    "num_translations": "num_trans",
    "num_rotations": "num_rots",
    "x_dimensions": "p1_x_dimensions",
    "y_dimensions": "p1_y_dimensions",
}
"""Attributes that hold a parameter under another name."""
PASSED_OVER = {name for names in SET_HERE.values() for name in names} - {"init_attack"}
"""Parameters of an object that the harness sets itself."""


def as_attack(given: GivenAttack) -> NamedAttack:
    """The attack of a spec, a library object or a callable."""
    if isinstance(given, NamedAttack):
        return given
    if isinstance(given, str):
        return parse_attack(given)
    bound: Bound | None = None
    said = False
    if isinstance(given, tuple):
        if len(given) != 2 or not (given[1] is None or isinstance(given[1], Bound)):
            raise BadInput(f"attack {given!r} is a tuple; give (attack, Bound('l2', 0.5)), or (attack, None)")
        (thing, bound), said = given, True
    else:
        thing = given
    asked: Asked | None = bound if bound is not None else "none" if said else None
    library = _library_of(thing)
    if library:
        known = library_classes(library).get(type(thing).__name__)
        if known is None or known.target is not type(thing) or known.left_out:
            reason = known.left_out if known else "is not a class of the library itself"
            raise BadInput(f"{type(thing).__name__} of {library} cannot be used: it {reason}")
        attack = known.build(_values(known, thing, bound))
        return bounded(NamedAttack(known.name, library, attack, library_version(library)), asked)
    own = from_callable(thing, bound)
    if not own.bound_known and not said:
        raise BadInput(
            f"attack {own.callable_name} has no known bound; write "
            f"({own.callable_name}, Bound('l2', 0.5)), or ({own.callable_name}, None) for an attack without a bound"
        )
    return bounded(NamedAttack(own.callable_name, "python", own), None if bound else asked)


def _library_of(thing: object) -> str:
    """The library of an object; only libraries that are already imported are checked."""
    for library, (module, name) in BASES.items():
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(thing, base):
            return library
    return ""


def _values(known: LibraryClass, thing: Any, bound: Bound | None) -> dict[str, Any]:
    """The parameters that an object was built with, from its attributes."""
    values: dict[str, Any] = {}
    for name, given in inspect.signature(type(thing)).parameters.items():
        kept = getattr(thing, name, None)
        if name not in known.parameters and name not in PASSED_OVER and kept is not None and kept is not given.default:
            raise BadInput(
                f"{name} of {known.library}:{known.name} is an object, which cannot be copied; give a spec instead"
            )
    for name in known.parameters:
        if name == "targeted":
            values[name] = _targeted(known, thing)
        elif name == "eps" and known.fixed_epsilon:
            if bound is None or bound.norm != known.bound_facts.norm:
                raise BadInput(
                    f"{known.library}:{known.name} receives eps when it runs; "
                    f"give ({known.name}(…), Bound({known.bound_facts.norm!r}, …))"
                )
            values[name] = bound.radius
        else:
            values[name] = _value(known, thing, name)
    return values


def _value(known: LibraryClass, thing: Any, name: str) -> Any:
    place = OTHER_NAMES[name] if name in OTHER_NAMES and hasattr(thing, OTHER_NAMES[name]) else name
    if not hasattr(thing, place):  # ART's PGD stores some parameters in the attack that it wraps
        thing = getattr(thing, "_attack", None)
    if not hasattr(thing, place):
        raise BadInput(
            f"the object of {known.library}:{known.name} does not store its parameter {name}; "
            f"give the spec '{known.library}:{known.name}(…)' instead"
        )
    value = getattr(thing, place)
    if name == "distance" and value is not None:
        value = {0: "l0", 1: "l1", 2: "l2"}.get(getattr(value, "p", -1), "linf")
    value = as_plain(name, value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value)
    if not is_plain(value):
        raise BadInput(f"{name} of {known.library}:{known.name} has type {type(value).__name__}; give a number or text")
    return value


def _targeted(known: LibraryClass, thing: Any) -> bool:
    if known.library == "torchattacks" and thing.targeted and thing.attack_mode != "targeted(label)":
        raise BadInput(
            f"torchattacks:{known.name} is in mode {thing.attack_mode!r}, but the harness chooses the targets; "
            "use set_mode_targeted_by_label()"
        )
    default = known.parameters["targeted"].default
    return bool(getattr(thing, "targeted", default)) if known.library != "foolbox" else bool(default)
