"""Combination rules: the prediction of an ensemble from its members' logits (K, N, L).

A rule returns log-probabilities (N, L). Their argmax is the prediction, and attacks compute their losses from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from defenses import specs
from defenses.errors import BadInput
from defenses.registry import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Combination(ABC):
    """Base class of the rules; the fields of a rule are the parameters of its spec."""

    name: ClassVar[str]

    @property
    def text(self) -> str:
        """The canonical spec, such as ``logits``."""
        return specs.canonical(self.name, self)

    randomised: ClassVar[bool] = False
    """True if a randomly drawn member predicts, so that a prediction is correct with a probability."""

    @abstractmethod
    def combine(self, logits: Tensor) -> Tensor:
        """The log of the ensemble's prediction, (N, L), with a gradient to the members' logits."""

    def check(self, members: int) -> None:
        """Raise BadInput if the rule does not fit this number of members; by default, it fits every number."""
        return None


@dataclass(frozen=True)
class Probabilities(Combination):
    """The mean of the softmax outputs, as in the paper (eq. 1)."""

    name: ClassVar[str] = "probabilities"

    def combine(self, logits: Tensor) -> Tensor:
        from defenses.members.diversity import log_mean_probability

        return log_mean_probability(logits)


@dataclass(frozen=True)
class Logits(Combination):
    """The softmax of the mean of the logits."""

    name: ClassVar[str] = "logits"

    def combine(self, logits: Tensor) -> Tensor:
        return logits.mean(0).log_softmax(-1)


@dataclass(frozen=True)
class Votes(Combination):
    """Each member votes for its predicted class; the mean of the softmax outputs counts as half a vote.

    The probability of class c is (votes for c + p̄_c / 2) / (K + 1/2). Half a vote never outweighs a whole one, so the
    class with the most votes wins. Among classes with equal votes, the class with the largest mean probability wins; if
    these are equal too, the first class wins. Votes have no gradient. With fixed votes, the gradient of the output's
    cross-entropy has the direction of the gradient of the mean probability's cross-entropy.
    """

    name: ClassVar[str] = "votes"

    def combine(self, logits: Tensor) -> Tensor:
        import torch

        from defenses.members.diversity import log_mean_probability

        votes = torch.nn.functional.one_hot(logits.detach().argmax(-1), logits.shape[-1]).sum(0)
        mean = log_mean_probability(logits)
        return torch.logaddexp(votes.to(mean.dtype).log(), mean - math.log(2)) - math.log(len(logits) + 0.5)


@dataclass(frozen=True)
class Random(Combination):
    """A randomised ensemble: for every image, one member is drawn with probability p_k and predicts.

    The output is the log of the expected probabilities, log Σ_k p_k softmax(z_k), so attacks use the exact expectation
    over the draw. `probability_right` is the probability that a prediction is correct.
    """

    name: ClassVar[str] = "random"
    randomised: ClassVar[bool] = True

    p: tuple[float, ...] = ()
    """The probability of each member, written ``0.5x0.3x0.2``; by default, all are equal."""

    def __post_init__(self) -> None:
        if self.p and not (min(self.p) >= 0 and abs(sum(self.p) - 1) <= SUM_TOLERANCE):
            raise BadInput(f"p of the rule 'random' is {specs.value_text(self.p)}; give probabilities whose sum is 1")

    def check(self, members: int) -> None:
        if self.p and len(self.p) != members:
            raise BadInput(
                f"p of the rule 'random' has {len(self.p)} probabilities, the ensemble {members} members; give one each"
            )

    def weights(self, members: int) -> Tensor:
        """The probability of each member, in double precision."""
        import torch

        self.check(members)
        given = torch.tensor(self.p or (1,) * members, dtype=torch.float64)
        return given / given.sum()

    def combine(self, logits: Tensor) -> Tensor:
        weights = self.weights(len(logits)).to(logits.dtype).to(logits.device)  # not every device has float64
        return (logits.log_softmax(-1) + weights.log()[:, None, None]).logsumexp(0)

    def probability_right(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Σ_k p_k · [member k predicts the label], (N,), exact; a member whose output has NaN is wrong."""
        import torch

        right = (logits.argmax(-1) == labels) & ~logits.isnan().any(-1)
        if not self.p:
            return right.cpu().double().mean(0)  # exact: the mean of ones is 1
        share = self.weights(len(logits)) @ right.cpu().double()
        return torch.where(right.all(0).cpu(), 1.0, share)  # the sum of the weights may differ from 1 by rounding


RULES: dict[str, type[Combination]] = {rule.name: rule for rule in (Probabilities, Logits, Votes, Random)}
SUM_TOLERANCE = 1e-6
"""Largest accepted difference between 1 and the sum of the given probabilities."""
USUAL = Probabilities()
"""The default rule."""


def parse_combination(text: str) -> Combination:
    """Read a rule: ``votes``, ``random`` or ``random(p=0.5x0.3x0.2)``."""
    call = specs.parse(text, "combination rule")
    if call.name not in RULES:
        raise BadInput(f"unknown combination rule {call.name!r}; {did_you_mean(call.name, RULES)}")
    return specs.build(RULES[call.name], call, "combination rule")


def split_combination(spec: str) -> tuple[str, Combination | None]:
    """The spec ``weights.pt:resnet20(leak=0.1,combine=votes)`` without its rule, and the rule; None without a rule."""
    place = _last_parenthesis(spec)
    before, parts = spec[:place], specs.split(spec[place + 1 : -1], ",")
    asked = [part for part in parts if part.partition("=")[0].strip() == "combine"]
    if place < 0 or not asked:
        return spec, None
    if len(asked) > 1:
        raise BadInput(f"{spec!r} contains two combination rules; write combine= once")
    rest = ",".join(part for part in parts if part not in asked)
    return f"{before}({rest})" if rest.strip() else before, parse_combination(asked[0].partition("=")[2].strip())


def _last_parenthesis(text: str) -> int:
    """The position of the opening parenthesis that the last character closes; -1 if there is none."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return place if text[place] == "(" else -1
    return -1
