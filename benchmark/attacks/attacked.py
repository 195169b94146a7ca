"""The model as an attack sees it: in evaluation mode, frozen, with a sound output and counters of its passes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from defenses.members.combination import USUAL, Combination, Random
from defenses.members.diversity import log_mean_probability
from defenses.members.ensemble import Ensemble

Output = Literal["log-probabilities", "probabilities"]
REPORT = 1.0
"""Seconds between two reports of an attack."""


class AttackedModel(nn.Module):
    """Wraps a model that gives logits, or an `Ensemble`, for one batch of one attack.

    With ``log-probabilities``, every row is shifted so that its smallest entry is 0: softmax, argmax,
    cross-entropy and margins stay the same, and losses that mask a class by multiplying with 0 work.
    With ``probabilities``, the output is the predicted probabilities, which the paper's L∞ attacks used as logits.
    With ``eot`` above 1, the output is the log of the mean probabilities over ``eot`` draws of a random model. Its
    gradient is the gradient of this expectation.
    """

    def __init__(
        self,
        model: nn.Module,
        output: Output = "log-probabilities",
        draws: Sequence[object] | None = None,
        clean: Tensor | None = None,
        report: Callable[[AttackedModel], None] = lambda attacked: None,
        eot: int = 1,
    ) -> None:
        super().__init__()
        self.model = model
        self.output_kind = output
        self.eot = eot
        self.draws = draws
        """One value per image of the batch; `uniform` derives each image's random seed from it."""
        self.forwards = 0
        self.backwards = 0
        self.classes = 0
        """Number of classes of the model; known after the first pass."""
        self.report, self.reported = report, time.monotonic()
        """A function that is called about every second while the attack runs, and the time of its last call."""
        self.dead_gradient: Tensor | None = None
        """Mask of the rows whose first gradient was zero or not finite."""
        self.clean = clean
        self.left = None if clean is None else clean.new_zeros(len(clean), dtype=torch.bool)
        """Mask of the rows of ``clean`` for which the model received a changed image at least once."""
        self.undefined = None if clean is None else clean.new_zeros(len(clean), dtype=torch.bool)
        """Mask of the rows of ``clean`` for which the model gave NaN; all rows if it did so for a part of the batch."""
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        output = self._expected(self.model, images)
        if self.output_kind == "probabilities":
            return torch.softmax(output, dim=-1)
        return output - output.detach().amin(-1, keepdim=True)

    def member_logits(self, images: Tensor) -> Tensor:
        """Logits of every member, (K, N, L), for attacks on ensembles; any other model counts as one member."""
        return self._expected(self._of_every_member, images)

    def logits_of(self, members: Tensor, images: Tensor) -> Tensor:
        """Logits of one member per image, (N, L); ``members`` are their numbers. Counts as one pass per image."""
        return self._expected(lambda seen: self._of_members(members, seen), images)

    def _of_every_member(self, images: Tensor) -> Tensor:
        member_logits = getattr(self.model, "member_logits", None)
        return member_logits(images) if callable(member_logits) else self.model(images)[None]

    def _of_members(self, members: Tensor, images: Tensor) -> Tensor:
        model = self.model
        if not isinstance(model, Ensemble) or type(model).member_logits is not Ensemble.member_logits:
            return self._of_every_member(images)[members, torch.arange(len(images), device=images.device)]
        inputs = model.normalise(images)
        rows = [torch.nonzero(members == number).flatten() for number in range(len(model))]
        parts = [model.logits_of(one, inputs[own]) for one, own in zip(model.members, rows, strict=True) if len(own)]
        return torch.cat(parts)[torch.cat(rows).argsort()]

    def _expected(self, function: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """The output of the model; with ``eot``, the log of the mean probabilities over the draws."""
        counted = self._counted(images)
        if self.eot == 1:
            output = function(counted)
        else:
            output = log_mean_probability(torch.stack([function(counted.clone()) for _ in range(self.eot)]))
        output = _attached(output, counted).to(images.dtype)  # libraries mix dtypes: the output gets that of the images
        self._see_output(output)
        return output

    @property
    def randomised(self) -> bool:
        """Whether predictions are random. If so, more steps may make a correct prediction still less likely."""
        return self.eot > 1 or self.combination.randomised

    @torch.no_grad()
    def probability_right(self, images: Tensor, labels: Tensor) -> Tensor:
        """Probability of a correct prediction, (N,): from the members of a randomised ensemble; else 0 or 1."""
        if self.combination.randomised:
            return self.expected(self.member_logits(images).argmax(-1) == labels)
        return (self(images).argmax(-1) == labels).float()

    def expected(self, right: Tensor) -> Tensor:
        """Expected accuracy on each image, (N,), from a mask of the members that are right, (K, N).

        The members of a randomised ensemble count with their probabilities; those of other ensembles count equally.
        """
        return (self.weights(len(right)).to(right.device)[:, None] * right.float()).sum(0)

    def weights(self, members: int) -> Tensor:
        """The probability of each member, (K,), on the CPU; all are equal if the ensemble is not randomised."""
        rule = self.combination if isinstance(self.combination, Random) else Random()
        return rule.weights(members).float()

    @property
    def combination(self) -> Combination:
        """How the model combines its members' logits."""
        return self.model.combination if isinstance(self.model, Ensemble) else USUAL

    def uniform(self, chosen: Tensor, shape: Sequence[int], key: int) -> Tensor:
        """Random numbers in [0, 1), on the CPU, for the chosen images of the batch; ``key`` distinguishes draws.

        The numbers of an image depend only on the image, not on its batch or on the order of attacks.
        """
        if self.draws is None:
            return torch.rand((len(chosen), *shape))
        generator = torch.Generator()
        drawn = []
        for place in chosen.tolist():
            generator.manual_seed(number_from(self.draws[place], key))
            drawn.append(torch.rand(tuple(shape), generator=generator))
        return torch.stack(drawn)

    def _counted(self, images: Tensor) -> Tensor:
        self.forwards += self.eot * len(images)
        if self.clean is not None and self.left is not None:
            # the rows of a partial batch are unknown, so every row counts as changed
            whole = images.shape == self.clean.shape
            self.left |= (images.detach() != self.clean).flatten(1).any(1) if whole else True
        if time.monotonic() - self.reported > REPORT:
            self.report(self)
            self.reported = time.monotonic()
        images = images.clone()  # a model may change its input in place
        if images.requires_grad:
            images.register_hook(self._see_gradient)  # an attack may reuse one tensor: hook each pass, not the tensor
        return images if self.clean is None else images.to(self.clean.dtype)  # NumPy may turn images into float64

    def _see_output(self, output: Tensor) -> None:
        self.classes = output.shape[-1]
        if self.undefined is not None:
            rows = output.detach().isnan().any(-1).view(-1, output.shape[-2]).any(0)
            self.undefined |= rows if len(rows) == len(self.undefined) else rows.any()

    def _see_gradient(self, gradient: Tensor) -> None:
        self.backwards += self.eot * len(gradient)
        if self.dead_gradient is None:
            size = gradient.detach().flatten(1).abs().amax(1)
            self.dead_gradient = ~(torch.isfinite(size) & (size > 0))


def _attached(output: Tensor, images: Tensor) -> Tensor:
    """The output, with a zero gradient if the model blocks gradients; this gives a warning instead of an error."""
    if images.requires_grad and torch.is_grad_enabled() and not output.requires_grad:
        return output + 0 * images.flatten(1).sum(1, keepdim=True)
    return output


def number_from(*parts: object) -> int:
    """A hash of the parts as a number below 2⁵⁶, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def library_seed() -> int:
    """The seed of the harness, for libraries that seed the global generator themselves."""
    return torch.initial_seed() % 2**31


@torch.no_grad()
def count_classes(model: nn.Module, images: Tensor) -> int:
    """The number of classes of a model."""
    return model(images[:1]).shape[-1]
