"""Fast copies of an ensemble for attacks: folded batch norm, tiny weights set to 0, channels-last memory."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import cast

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.utils.fusion import fuse_conv_bn_eval

from defenses.errors import BadInput, first_line
from defenses.members.ensemble import Ensemble
from defenses.members.residual import Block, ResidualNetwork
from defenses.registry import did_you_mean
from defenses.training.precision import require_bfloat16

MODES = {
    "none": "attack the ensemble as it is",
    "folded": "attack a copy with batch norm folded into the convolutions",
    "compiled": "attack that copy compiled by torch.compile: slow to start, of use on GPUs",
    "reduced": "attack the folded copy; tier strong first makes a short pass in bfloat16",
}
COPIES = {**{mode: mode for mode in MODES}, "reduced": "folded"}
"""Mode to the name of the copy that float32 attacks run on; the name is part of a cell's identity."""
TOLERANCE = 1e-4
"""Largest difference of log-probabilities at which the fast copy still counts as the same ensemble."""
SIGNS = 0.999
"""Smallest share of scalars, over a few images, whose gradients have the same sign in the model and its copy."""
PROBED = 16
"""Number of images for comparisons of gradients and of speed."""
DEAD = 1e-20
"""Smallest weight that is kept. Weight decay shrinks the filters of dead channels without end. Their products become
subnormal: a CPU computes them a hundred times slower, and they are lost in the sums."""


def check_mode(mode: str) -> str:
    """The mode; BadInput for an unknown name."""
    if mode not in MODES:
        raise BadInput(f"unknown acceleration {mode!r}; {did_you_mean(mode, MODES)}")
    return mode


def accelerated(
    model: nn.Module,
    probe: Tensor,
    mode: str = "folded",
    say: Callable[[str], None] = lambda words: None,
    wanted: Tensor | None = None,
) -> nn.Module:
    """A fast copy of a model with batch norm; the model itself if the copy gives different results.

    Attacks run on the copy, and the original model classifies their images. ``say`` gets a message if the copy is not
    used. The networks of this project are folded layer by layer, others by the graph that ``torch.fx`` traces.
    ``wanted`` is the model's output for the images of ``probe``, if it is already known.
    """
    members = _members(model)
    own_members = not isinstance(model, Ensemble) and callable(getattr(model, "member_logits", None))
    if mode == "none" or own_members or not all(map(_foldable, members)):
        return model
    difference = ""
    try:
        if wanted is None:
            with torch.no_grad():
                wanted = model(probe.clone())
        signs = _signs(model, probe[:PROBED], wanted[:PROBED].argmax(-1))
        ours = all(isinstance(member, ResidualNetwork) for member in members)
        for channels_last in (True,) if ours else (True, False):  # other networks may fail in this layout
            fast = _copy(model, channels_last)
            difference = _difference(fast, probe, wanted, signs)
            if not difference:
                return _compiled(fast, probe, wanted, signs, say) if mode == "compiled" else fast
    except Exception as error:  # copying or tracing foreign code may raise anything
        difference = f"cannot be made ({type(error).__name__}: {first_line(error):.100})"
    kind = "ensemble" if isinstance(model, Ensemble) else "model"
    say(f"the fast copy {difference}; the {kind} itself is attacked, which takes longer")
    return model


def _compiled(fast: nn.Module, probe: Tensor, wanted: Tensor, signs: Tensor, say: Callable[[str], None]) -> nn.Module:
    """The compiled fast copy; the fast copy itself if compiling fails or changes the results."""
    compiled = copy.deepcopy(fast)
    for member in _members(compiled):
        member.compile(dynamic=True)  # the number of survivors falls: one program for all batch sizes
    difference = _difference(compiled, probe, wanted, signs)
    if difference:
        say(f"the compiled copy {difference}; the folded copy is used instead")
    return fast if difference else compiled


class InBfloat16(nn.Module):
    """A network that computes in bfloat16; inputs and outputs are float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).to(torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs.to(torch.bfloat16)).float()


def reduced(model: nn.Module, probe: Tensor, say: Callable[[str], None] = lambda words: None) -> nn.Module:
    """A copy that computes in bfloat16, only for attacks: the float32 ensemble classifies their images.

    Normalisation and combination of an ensemble stay in float32. ``say`` gets a message if the copy is not faster.
    """
    require_bfloat16(probe.device, "--acceleration folded")
    if isinstance(model, Ensemble):
        members = [InBfloat16(member) for member in model.members]
        short: nn.Module = Ensemble(members, model.mean, model.std, model.combination)
    else:
        short = InBfloat16(model)
    short.eval().requires_grad_(False)
    ratio = _speed(short, model, probe)
    if ratio < 1:
        say(f"bfloat16 is not faster here ({ratio:.1f} times the speed of float32); use --acceleration folded")
    return short


def _speed(short: nn.Module, model: nn.Module, images: Tensor) -> float:
    """Speed of a copy relative to the model, in gradients; the best of three alternating measurements."""
    best = dict.fromkeys((short, model), float("inf"))
    labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    clock = time.process_time if images.device.type == "cpu" else time.perf_counter  # cores may be shared
    for _ in range(3):
        for one in best:
            began = clock()
            _signs(one, images, labels).sum().item()  # item() waits for the GPU
            best[one] = min(best[one], clock() - began)
    return best[model] / best[short]


def _members(model: nn.Module) -> list[nn.Module]:
    """The members of an ensemble; any other model counts as one member."""
    return list(model.members) if isinstance(model, Ensemble) else [model]


def _foldable(member: nn.Module) -> bool:
    """True for the networks of this project, and for others with batch norm."""
    return isinstance(member, ResidualNetwork) or any(isinstance(part, nn.BatchNorm2d) for part in member.modules())


@torch.no_grad()
def _copy(model: nn.Module, channels_last: bool) -> nn.Module:
    """A copy with batch norm folded; the networks of this project are always channels-last."""
    fast = copy.deepcopy(model).eval()
    folded = [_folded(member, channels_last) for member in _members(fast)]
    if isinstance(fast, Ensemble):
        fast.members = nn.ModuleList(folded)
    else:
        (fast,) = folded
    for weight in fast.parameters():
        weight[weight.abs() < DEAD] = 0
    return fast.requires_grad_(False)


def _folded(member: nn.Module, channels_last: bool) -> nn.Module:
    if isinstance(member, ResidualNetwork):
        _fold(member)
        return member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fused = _fused(member)
    return _ChannelsLast(fused) if channels_last else fused


def _fused(module: nn.Module) -> nn.Module:
    """Fold by the graph of the whole module; if it cannot be traced, by the graphs of its parts."""
    try:
        return fuse(module)
    except Exception:  # tracing foreign code may raise anything
        for name, part in module.named_children():
            if _foldable(part):
                setattr(module, name, _fused(part))
        return module


class _ChannelsLast(nn.Module):
    """A network in channels-last layout; its gradient keeps the usual layout, because attacks call ``view`` on it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        seen = images.contiguous(memory_format=torch.channels_last)
        if seen.requires_grad:
            seen.register_hook(torch.Tensor.contiguous)
        return cast(Tensor, self.network(seen))


def _fold(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, (Block, ResidualNetwork)):
            for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
                if isinstance(getattr(module, norm, None), nn.BatchNorm2d):
                    setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
                    setattr(module, norm, nn.Identity())
        if isinstance(module, Block) and isinstance(module.shortcut, nn.Sequential):
            projection, norm_after = module.shortcut
            module.shortcut = fuse_conv_bn_eval(projection, norm_after)  # type: ignore[type-var, arg-type]


def _difference(fast: nn.Module, probe: Tensor, wanted: Tensor, signs: Tensor) -> str:
    """The difference between a copy and the model on a few images, in words; empty if there is none."""
    try:
        with torch.no_grad(), redirect_stderr(StringIO()):  # a graph that fails prints its code
            found = fast(probe.clone())
        largest = (wanted.log_softmax(-1) - found.log_softmax(-1)).abs().max()
        if not largest <= TOLERANCE:  # also true for NaN
            return f"gives log-probabilities that differ by {largest:.1g}"
        labels = wanted.argmax(-1)
        if not torch.equal(labels, found.argmax(-1)):
            return "predicts other classes"
        same = (signs == _signs(fast, probe[:PROBED], labels[:PROBED])).float().mean()
    except Exception as error:  # a compiler may raise anything, as may a traced graph without run-time decisions
        return f"fails ({type(error).__name__}: {first_line(error):.100})"
    return "" if same >= SIGNS else f"has gradients of another sign on {1 - same:.1%} of the scalars"


@torch.enable_grad()
def _signs(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    point = images.detach().clone().requires_grad_()
    loss = nn.functional.cross_entropy(model(point.clone()), labels, reduction="sum")
    return torch.autograd.grad(loss, point)[0].sign()
