"""Detect attacks that change the model: its state is compared before and after every attack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from defenses.errors import RunFailed

TABLES = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))
"""Attributes in which a module keeps its parameters, buffers, parts and hooks of every kind."""


class ModelChanged(RunFailed):
    """An attack changed the model; the model has been restored."""


@contextmanager
def unchanged(model: nn.Module, who: str) -> Iterator[None]:
    """Restore the model, and raise ModelChanged if its weights, buffers, parts, mode, class or hooks changed."""
    before = [_Module(module) for module in model.modules()]
    try:
        yield
    finally:
        changed = [words for module in before for words in module.restore()]
    if changed:
        told = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise ModelChanged(
            f"{who} changed the model ({told}); it was restored, and this attack has no result; it must change a copy"
        )


class _Module:
    """The saved state of one module: its own tensors, and everything else that decides its output."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        own = vars(module)
        self.kind, self.training = type(module), module.training
        self.functions = _functions(own)
        found = {name: own.get(name) for name in TABLES}
        self.tables = {name: (table, dict(table)) for name, table in found.items() if isinstance(table, dict)}
        """Without the tables of a compiled program, whose parts cannot be replaced."""
        self.tensors = [
            (name, tensor, tensor.detach().clone(), tensor.requires_grad)
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        ]

    def restore(self) -> Iterator[str]:
        """Restore the module, and name each part that had changed."""
        own, kind = vars(self.module), self.kind.__name__
        for name, tensor, kept, needs_gradient in self.tensors:
            if not _same(tensor, kept):
                with torch.no_grad():
                    tensor.data = kept.clone()
                yield f"{name} of {kind}"
            if tensor.requires_grad != needs_gradient:
                tensor.requires_grad_(needs_gradient)
        if self.module.training != self.training:
            self.module.training = self.training
            yield f"mode of {kind}"
        if type(self.module) is not self.kind:
            self.module.__class__ = self.kind
            yield f"class of {kind}"
        functions = _functions(own)
        for name in dict.fromkeys([*self.functions, *functions]):
            if functions.get(name) is not self.functions.get(name):
                own.pop(name, None)
                own.update({name: self.functions[name]} if name in self.functions else {})
                yield f"{name} of {kind}"
        for name, (table, content) in self.tables.items():
            if own.get(name) is not table or _identities(table) != _identities(content):
                own[name] = table
                table.clear()
                table.update(content)
                yield f"{name.strip('_').replace('_', ' ')} of {kind}"


def _functions(own: Mapping[str, Any]) -> dict[str, Any]:
    """Functions that a module stores as attributes: a replaced `forward`, or an activation."""
    return {name: value for name, value in own.items() if callable(value) and not isinstance(value, nn.Module)}


def _identities(table: Mapping[Any, Any]) -> list[tuple[Any, int]]:
    return [(name, id(value)) for name, value in table.items()]


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    return bool(
        one.isnan().equal(other.isnan()) and one.nan_to_num().equal(other.nan_to_num())
    )  # NaN does not equal NaN
