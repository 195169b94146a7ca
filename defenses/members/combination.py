"""Combination rules: what an ensemble makes of its members' logits (K, N, L).

A rule gives log-probabilities (N, L): their argmax is the prediction, and attacks ascend the losses of them.
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
    """Base of every rule; its fields are the parameters that a user may write, as in other specs."""

    name: ClassVar[str]

    @property
    def text(self) -> str:
        """The one text form, such as ``logits``."""
        return specs.canonical(self.name, self)

    randomised: ClassVar[bool] = False
    """True when the ensemble answers with a member that is drawn: a prediction is then right with a probability."""

    @abstractmethod
    def combine(self, logits: Tensor) -> Tensor:
        """The log of the ensemble's prediction, (N, L), with a gradient to the members' logits."""

    def check(self, members: int) -> None:
        """Refuse an ensemble with a number of members that the rule does not suit; a rule may suit any."""
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
    """Each member votes for its class; the mean of the softmax outputs counts as half a vote more.

    The probability of class c is (votes for c + p̄_c / 2) / (K + 1/2). Half a vote never outweighs a whole one, so the
    class with the most votes wins, and of classes with as many votes the one with the larger mean probability (then the
    one that comes first). Votes have no gradient. With them held fixed, the cross-entropy of the output has a gradient
    in the direction of that of the mean probability.
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
    """One member, drawn with probability p_k for every image, gives the prediction: a randomised ensemble.

    The output is the log of the expected probabilities, log Σ_k p_k softmax(z_k): attacks ascend the exact expectation
    over the draw. A prediction is right with the probability of the members that are right, `probability_right`.
    """

    name: ClassVar[str] = "random"
    randomised: ClassVar[bool] = True

    p: tuple[float, ...] = ()
    """The probability of each member, written ``0.5x0.3x0.2``; equal ones where none are given."""

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
        return torch.tensor(self.p or (1 / members,) * members, dtype=torch.float64)

    def combine(self, logits: Tensor) -> Tensor:
        weights = self.weights(len(logits)).to(logits.dtype).to(logits.device)  # not every device has float64
        return (logits.log_softmax(-1) + weights.log()[:, None, None]).logsumexp(0)

    def probability_right(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Σ_k p_k · [member k predicts the label], (N,), exact; a member whose output has NaN is wrong."""
        right = (logits.argmax(-1) == labels) & ~logits.isnan().any(-1)
        if self.p:
            return self.weights(len(logits)) @ right.cpu().double()
        return right.cpu().double().mean(0)  # to the last bit: all right is 1


RULES: dict[str, type[Combination]] = {rule.name: rule for rule in (Probabilities, Logits, Votes, Random)}
SUM_TOLERANCE = 1e-6
"""How far the sum of written probabilities may be from 1."""
USUAL = Probabilities()
"""What an ensemble does unless told otherwise."""


def parse_combination(text: str) -> Combination:
    """Read a rule: ``votes``, ``random`` or ``random(p=0.5x0.3x0.2)``."""
    call = specs.parse(text, "combination rule")
    if call.name not in RULES:
        raise BadInput(f"unknown combination rule {call.name!r}; {did_you_mean(call.name, RULES)}")
    return specs.build(RULES[call.name], call, "combination rule")


def split_combination(spec: str) -> tuple[str, Combination | None]:
    """``weights.pt:resnet20(leak=0.1,combine=votes)`` without the rule, and the rule; None where it names none."""
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
    """Where the parenthesis opens that closes at the end of a text; -1 where none does."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return place if text[place] == "(" else -1
    return -1
