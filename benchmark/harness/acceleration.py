"""The same ensemble, faster to attack: batch norm folded into convolutions, dead weights 0, memory channels-last."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.utils.fusion import fuse_conv_bn_eval

from defenses.errors import BadInput, first_line
from defenses.members.ensemble import Ensemble
from defenses.members.networks import Block, ResidualNetwork
from defenses.registry import did_you_mean
from defenses.training.precision import require_bfloat16

MODES = {
    "none": "attack the ensemble as it is",
    "folded": "attack a copy with batch norm folded into the convolutions",
    "compiled": "attack that copy compiled by torch.compile: slow to start, of use on GPUs",
    "reduced": "attack the folded copy; tier strong first makes a short pass in bfloat16",
}
COPIES = {**{mode: mode for mode in MODES}, "reduced": "folded"}
"""Mode to the copy that attacks in float32 see: a cell's identity has this name."""
TOLERANCE = 1e-4
"""Largest difference of log-probabilities at which the fast copy still counts as the same ensemble."""
SIGNS = 0.999
"""Share of the scalars of a few images on which an FGSM step must go the same way."""
PROBED = 16
"""Images whose gradients, or times, are compared."""
DEAD = 1e-20
"""Smallest weight that is kept. Weight decay shrinks the filters of dead channels without end; what they multiply
becomes subnormal, which a CPU works out a hundred times slower, and is lost in the sums it goes into."""


def check_mode(mode: str) -> str:
    """The mode, if there is one of that name."""
    if mode not in MODES:
        raise BadInput(f"unknown acceleration {mode!r}; {did_you_mean(mode, MODES)}")
    return mode


def accelerated(
    model: nn.Module, probe: Tensor, mode: str = "folded", say: Callable[[str], None] = lambda words: None
) -> nn.Module:
    """A fast copy of an ensemble; anything else, or a copy that differs, is not replaced.

    Attacks run on the copy. What they find is judged by the original. ``say`` is told of a copy that is not used.
    Members of our own networks are folded by their layers, others by the graph that ``torch.fx`` traces.
    """
    if mode == "none" or not isinstance(model, Ensemble) or not all(map(_foldable, model.members)):
        return model
    try:
        fast = _folded(model)
    except Exception as error:  # whatever copying or tracing somebody's code may raise
        words = f"{type(error).__name__}: {first_line(error):.100}"
        say(f"no fast copy can be made ({words}); the ensemble itself is attacked, which takes longer")
        return model
    if mode == "compiled":
        compiled = copy.deepcopy(fast)
        for member in compiled.members:
            assert isinstance(member, nn.Module)
            member.compile(dynamic=True)  # survivors become fewer: one program for every batch size
        try:
            difference = _difference(model, compiled, probe)
        except Exception as error:  # whatever a compiler may raise
            difference = f"cannot be compiled ({type(error).__name__}: {str(error).strip().splitlines()[0]:.100})"
        if not difference:
            return compiled
        say(f"the compiled copy {difference}; going on with the folded one")
    try:
        difference = _difference(model, fast, probe)
    except Exception as error:  # a traced graph may have lost what the code decides while it runs
        difference = f"fails ({type(error).__name__}: {first_line(error):.100})"
    if difference:
        say(f"the fast copy {difference}; the ensemble itself is attacked, which takes longer")
    return model if difference else fast


class InBfloat16(nn.Module):
    """A network that computes in bfloat16; what goes in and comes out is float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).to(torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs.to(torch.bfloat16)).float()


def reduced(model: nn.Module, probe: Tensor, say: Callable[[str], None] = lambda words: None) -> nn.Module:
    """A copy that computes in bfloat16, for attacks whose images the float32 ensemble judges.

    Normalisation and combination of an ensemble stay float32. ``say`` is told where the copy is not faster.
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
        say(f"bfloat16 is not faster here ({ratio:.1f} times the gradients); --acceleration folded takes less time")
    return short


def _speed(short: nn.Module, model: nn.Module, images: Tensor) -> float:
    """How many times the gradients of a model a copy gives in the same time: the best of three, in turn."""
    best = dict.fromkeys((short, model), float("inf"))
    labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    clock = time.process_time if images.device.type == "cpu" else time.perf_counter  # cores may be shared with others
    for _ in range(3):
        for one in best:
            began = clock()
            _signs(one, images, labels).sum().item()  # a GPU has finished then
            best[one] = min(best[one], clock() - began)
    return best[model] / best[short]


@torch.no_grad()
def _folded(model: nn.Module) -> Ensemble:
    fast = copy.deepcopy(model).eval()
    assert isinstance(fast, Ensemble)
    for number, member in enumerate(fast.members):
        if isinstance(member, ResidualNetwork):
            _fold(member)
            member.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        else:  # in the memory layout it has: it may ask for a view of all pixels
            fast.members[number] = fuse(member)
        for weight in fast.members[number].parameters():
            weight[weight.abs() < DEAD] = 0
    return fast.requires_grad_(False)


def _foldable(member: nn.Module) -> bool:
    """Our own networks, and others with batch norm to fold."""
    return isinstance(member, ResidualNetwork) or any(isinstance(part, nn.BatchNorm2d) for part in member.modules())


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


def _difference(model: nn.Module, fast: nn.Module, probe: Tensor) -> str:
    """How a copy differs from the model on a few images, in words; empty where it does not."""
    with torch.no_grad():
        wanted, found = model(probe), fast(probe)
    largest = (wanted - found).abs().max()
    if not largest <= TOLERANCE:  # also when it is not a number
        return f"gives log-probabilities that differ by {largest:.1g}"
    if not torch.equal(wanted.argmax(-1), found.argmax(-1)):
        return "predicts other classes"
    few, labels = probe[:PROBED], wanted[:PROBED].argmax(-1)
    same = (_signs(model, few, labels) == _signs(fast, few, labels)).float().mean()
    return "" if same >= SIGNS else f"has gradients of another sign on {1 - same:.1%} of the scalars"


@torch.enable_grad()
def _signs(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    point = images.detach().clone().requires_grad_()
    loss = nn.functional.nll_loss(model(point), labels, reduction="sum")
    return torch.autograd.grad(loss, point)[0].sign()
