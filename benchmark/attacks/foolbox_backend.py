"""Attacks run by foolbox."""

from __future__ import annotations

import warnings
from typing import Any, cast

import eagerpy
import foolbox
import torch
from torch import Tensor, nn

from benchmark.attacks.attacked import count_classes
from benchmark.attacks.definitions import BIM, CW, DDN, EAD, FGSM, FMN, MIM, PGD
from benchmark.attacks.library_attacks import LibraryAttack
from benchmark.attacks.native.balls import nearest

MARGIN = 2e-4
"""Margin between two log-probabilities: each may differ by half of this between an ensemble and its fast copy."""


class L1FMN(foolbox.attacks.L1FMNAttack):  # type: ignore[misc]  # the library is not typed
    """The library's L1 attack, with a joint projection onto ball and box.

    The library clips to the box after the projection, so a clipped perturbation is shorter than the radius. The next
    radius grows from this shorter length, so the attack stops short of the decision boundary.
    """

    def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
        return eagerpy.astensor(nearest(x.raw, x0.raw, "l1", epsilon.raw[:, None]))


class L2FMN(foolbox.attacks.L2FMNAttack):  # type: ignore[misc]
    """The same in L2: the library's projection divides a norm by itself, so it never shortens a perturbation."""

    def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
        return eagerpy.astensor(nearest(x.raw, x0.raw, "l2", epsilon.raw[:, None]))


class L0FMN(foolbox.attacks.L0FMNAttack):  # type: ignore[misc]
    """The library's L0 attack with a limited radius: its projection fails if the radius is the number of scalars."""

    def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
        return super().project(x, x0, epsilon.minimum(x0[0].flatten(0).shape[0] - 1))


FAST_MINIMUM_NORM = {
    "linf": foolbox.attacks.LInfFMNAttack,
    "l2": L2FMN,
    "l1": L1FMN,
    "l0": L0FMN,
}


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, attack: FGSM) -> Tensor:
    if attack.targeted:  # the library's own attack refuses targets; one step of BIM is the same
        return bim(model, images, labels, BIM(eps=attack.eps, steps=1, targeted=True))
    runner = foolbox.attacks.LinfFastGradientAttack(random_start=False)
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def bim(model: nn.Module, images: Tensor, labels: Tensor, attack: BIM) -> Tensor:
    runner = foolbox.attacks.LinfBasicIterativeAttack(
        abs_stepsize=attack.eps / attack.steps, steps=attack.steps, random_start=False
    )
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def pgd(model: nn.Module, images: Tensor, labels: Tensor, attack: PGD) -> Tensor:
    kind = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD, "l1": foolbox.attacks.L1PGD}[attack.norm]
    runner = kind(abs_stepsize=attack.step, steps=attack.steps, random_start=True)
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def mim(model: nn.Module, images: Tensor, labels: Tensor, attack: MIM) -> Tensor:
    runner = foolbox.attacks.LinfMomentumIterativeFastGradientMethod(
        momentum=attack.decay, abs_stepsize=attack.step, steps=attack.steps, random_start=False
    )
    return _fixed(runner, model, images, labels, attack.eps, attack.targeted)


def cw(model: nn.Module, images: Tensor, labels: Tensor, attack: CW) -> Tensor:
    runner = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=1,
        steps=attack.steps,
        stepsize=attack.lr,
        confidence=attack.kappa,
        initial_const=attack.c,
        abort_early=attack.abort_early,
    )
    return _minimise(runner, model, images, labels, attack.targeted)


def ead(model: nn.Module, images: Tensor, labels: Tensor, attack: EAD) -> Tensor:
    runner = foolbox.attacks.EADAttack(
        binary_search_steps=1,
        steps=attack.steps,
        initial_stepsize=attack.lr,
        confidence=attack.kappa,
        initial_const=attack.c,
        regularization=attack.beta,
        decision_rule="EN",
        abort_early=False,
    )
    return _minimise(runner, model, images, labels, attack.targeted)


def fmn(model: nn.Module, images: Tensor, labels: Tensor, attack: FMN) -> Tensor:
    runner = FAST_MINIMUM_NORM[attack.norm](steps=attack.steps, max_stepsize=attack.step_size, gamma=attack.gamma)
    return _beyond(runner, model, images, labels, attack.targeted)


def ddn(model: nn.Module, images: Tensor, labels: Tensor, attack: DDN) -> Tensor:
    runner = foolbox.attacks.DDNAttack(steps=attack.steps, init_epsilon=attack.init_eps, gamma=attack.gamma)
    return _beyond(runner, model, images, labels, attack.targeted)


def _beyond(runner: Any, model: nn.Module, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    """Aim two times `MARGIN` beyond the decision boundary, and accept images that are `MARGIN` beyond it.

    On the boundary itself, rounding decides: the ensemble that classifies the image rounds differently from the
    attacked copy. Also, an attack that estimates the distance to its goal approaches the goal step by step, and may
    never reach it.
    """
    lift = (-MARGIN if targeted else MARGIN) * nn.functional.one_hot(labels, count_classes(model, images))
    criterion = _criterion(labels, targeted)

    class Beyond(type(criterion)):  # type: ignore[misc]  # the attack checks for the library's two classes
        def __call__(self, perturbed: Any, outputs: Any) -> Any:
            return super().__call__(perturbed, outputs - eagerpy.astensor(lift))

    found = runner.run(_wrap(Lifted(model, 2 * lift), images), images, Beyond(labels))
    return cast(Tensor, found)


class Lifted(nn.Module):
    """A model with a constant added to its logits."""

    def __init__(self, model: nn.Module, lift: Tensor) -> None:
        super().__init__()
        self.model, self.lift = model, lift
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits + self.lift


def brendel_bethge(model: nn.Module, images: Tensor, labels: Tensor, eps: float, walks: int) -> Tensor:
    """Walk along the decision boundary to the nearest point; an image that does not come within eps stays clean."""
    adversarial = images.clone()
    left = torch.arange(len(images), device=images.device)
    for _ in range(walks):
        if not len(left):
            break
        runner = foolbox.attacks.LinfinityBrendelBethgeAttack()
        found = _walk(runner, _wrap(model, images), images[left], labels[left], targeted=False)
        distance = (found - images[left]).flatten(1).abs().amax(1)
        near = (distance > 0) & (distance <= eps)  # an image without a starting point comes back unchanged
        adversarial[left[near]] = found[near]
        left = left[~near]
    return adversarial


def _fixed(runner: Any, model: nn.Module, images: Tensor, labels: Tensor, eps: float, targeted: bool) -> Tensor:
    return runner.run(_wrap(model, images), images, _criterion(labels, targeted), epsilon=eps)


def _minimise(runner: Any, model: nn.Module, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    found = runner.run(_wrap(model, images), images, _criterion(labels, targeted))
    # foolbox returns a black image if it fails; return the clean image instead, as the authors' library does
    failed = found.flatten(1).abs().amax(1) == 0
    return found.where(~failed[:, None, None, None], images)


def _wrap(model: nn.Module, images: Tensor) -> foolbox.PyTorchModel:
    return foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)


def _criterion(labels: Tensor, targeted: bool) -> Any:
    return (
        foolbox.criteria.TargetedMisclassification(labels) if targeted else foolbox.criteria.Misclassification(labels)
    )


def run_class(model: nn.Module, images: Tensor, labels: Tensor, attack: LibraryAttack) -> Tensor:
    """Run any class of the library, with the library's parameter names; an image stays clean if the attack fails."""
    values = attack.settings()
    targeted, eps = bool(values.pop("targeted", False)), values.pop("eps", None)
    if values.get("distance") is not None:
        values["distance"] = getattr(foolbox.distances, values["distance"])
    runner = getattr(foolbox.attacks, attack.callable_name)(**values)
    if eps is not None:
        return _fixed(runner, model, images, labels, eps, targeted)
    if isinstance(runner, foolbox.attacks.SpatialAttack):
        moved, _, _ = runner(_wrap(model, images), images, _criterion(labels, targeted))
        return moved
    if isinstance(runner, foolbox.attacks.DatasetAttack):
        runner.feed(_wrap(model, images), images)  # the attack draws from the other images of the batch
    if hasattr(runner, "init_attack") and "FMN" not in attack.callable_name:  # FMN starts from the image itself
        return _walk(runner, _wrap(model, images), images, labels, targeted)
    return _minimise(runner, model, images, labels, targeted)


def _walk(runner: Any, model: foolbox.PyTorchModel, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    """Walk along the boundary from the library's starting points.

    The library refuses a whole batch if one image has no starting point. Here, such an image starts from an image of
    the batch that the model assigns to another class, or to the target class. Without one, the image stays clean.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*failed to draw sufficient random")  # another start follows
        starts = _starts(runner).run(model, images, _criterion(labels, targeted))
    with torch.no_grad():
        predicted = model(images).argmax(-1)
    for row in (~_reached(model, starts, labels, targeted)).nonzero().flatten():
        there = ((predicted == labels[row]) == targeted).nonzero().flatten()
        starts[row] = images[there[0]] if len(there) else images[row]
    rows = _reached(model, starts, labels, targeted).nonzero().flatten()
    adversarial = images.clone()
    if len(rows):
        criterion = _criterion(labels[rows], targeted)
        adversarial[rows] = runner.run(model, images[rows], criterion, starting_points=starts[rows])
    return adversarial


def _starts(runner: Any) -> Any:
    """The attack that the library uses for starting points."""
    attacks = foolbox.attacks
    if isinstance(runner, attacks.PointwiseAttack):
        return attacks.SaltAndPepperNoiseAttack()
    if isinstance(runner, (attacks.BoundaryAttack, attacks.HopSkipJumpAttack)):
        return attacks.LinearSearchBlendedUniformNoiseAttack(steps=50)
    return attacks.LinearSearchBlendedUniformNoiseAttack()


@torch.no_grad()
def _reached(model: foolbox.PyTorchModel, images: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    return (model(images).argmax(-1) == labels) == targeted
