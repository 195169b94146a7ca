"""The cascade that broke ADP first: short ascents, long ascents, then a walk along the decision boundary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmark.attacks.definitions import Cascade
from benchmark.attacks.native.ascent import restarted
from defenses.errors import BadInput


def cascade(model: nn.Module, images: Tensor, labels: Tensor, attack: Cascade) -> Tensor:
    """Run each part three times on the survivors of the parts before; foolbox runs Brendel and Bethge's attack."""
    try:
        import numba  # noqa: F401
    except ImportError:  # fail before the ascents, not after them
        raise BadInput(
            "the cascade needs numba: in the checkout, pip install -c constraints.txt -e '.[cascade]'"
        ) from None
    from benchmark.attacks.foolbox_backend import brendel_bethge

    short, long = attack.ascents
    adversarial = images.clone()
    left = torch.arange(len(images), device=images.device)
    left = restarted(model, images, labels, short, adversarial, left)
    left = restarted(model, images, labels, long, adversarial, left, first=short.restarts)
    if len(left):
        adversarial[left] = brendel_bethge(model, images[left], labels[left], attack.eps, attack.walks)
    return adversarial
