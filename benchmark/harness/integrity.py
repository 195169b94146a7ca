"""An attack may look at a model and never change it: what the model is made of is compared around every attack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from defenses.errors import RunFailed

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")


class ModelChanged(RunFailed):
    """An attack changed the model that it was given; the model is as it was again."""


@contextmanager
def unchanged(model: nn.Module, who: str) -> Iterator[None]:
    """Fail where the model differs afterwards in weights, buffers, mode or forward, and put it back in any case."""
    before = [_Module(module) for module in model.modules()]
    try:
        yield
    finally:
        changed = [words for module in before for words in module.restore()]
    if changed:
        told = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise ModelChanged(f"{who} changed the model ({told}); it was restored, and this attack has no result")


class _Module:
    """One module as it was: its own tensors, and what else decides its output."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        own = vars(module)
        self.kind, self.training, self.forward = type(module), module.training, own.get("forward")
        self.hooks = {name: dict(own[name]) for name in HOOKS if own.get(name)}
        self.children = None if isinstance(module, torch.jit.ScriptModule) else dict(own["_modules"])
        """None for a compiled program, whose parts nobody can exchange."""
        self.tensors = [
            (name, tensor, tensor.detach().clone(), tensor.requires_grad)
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        ]

    def restore(self) -> Iterator[str]:
        """Put everything back; what had changed, in words."""
        own, kind = vars(self.module), self.kind.__name__
        for name, tensor, kept, needs_gradient in self.tensors:
            replaced = self.children is not None and getattr(self.module, name, None) is not tensor
            if replaced or not _same(tensor, kept):
                with torch.no_grad():
                    tensor.data = kept.clone()
                if replaced:
                    setattr(self.module, name, tensor)
                yield f"{name} of {kind}"
            if tensor.requires_grad != needs_gradient:
                tensor.requires_grad_(needs_gradient)
        if self.module.training != self.training:
            self.module.training = self.training
            yield f"mode of {kind}"
        if own.get("forward") is not self.forward or type(self.module) is not self.kind:
            self.module.__class__ = self.kind
            own.pop("forward", None)
            own.update({"forward": self.forward} if self.forward else {})
            yield f"forward of {kind}"
        if self.children is not None and own["_modules"] != self.children:
            own["_modules"].clear()
            own["_modules"].update(self.children)
            yield f"parts of {kind}"
        for name in HOOKS:
            if own.get(name, {}) != self.hooks.get(name, {}):
                own[name].clear()
                own[name].update(self.hooks.get(name, {}))
                yield f"hooks of {kind}"


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    return bool(
        one.isnan().equal(other.isnan()) and one.nan_to_num().equal(other.nan_to_num())
    )  # NaN is no NaN's equal
