"""Audits: the claimed attack first, then stronger attacks by cost, until the claim is refuted or no attack is left."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark.claims.certificate import Certificate, Statement
from benchmark.claims.claim import Claim
from benchmark.claims.unfinished import UnfinishedFile
from benchmark.evaluations.whitebox import WhiteBox
from benchmark.evaluations.worst_case import Stage, stages
from benchmark.findings import sequential
from benchmark.findings.statistics import accuracy_interval
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import predict
from benchmark.harness.records import Span
from benchmark.harness.subject import Material, Subject, subject_of
from defenses.checkpoints import versions
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.datasets import Dataset
    from benchmark.ensembles.finding import Trained
    from benchmark.harness.tiers import Tier

Outcome = Literal["refuted", "not refuted", "cannot be judged"]
Rows = NDArray[np.int64]
DEAD = 0.2
"""Attacks without gradients come first if more than this share of images had no gradient or never moved."""


@dataclass(frozen=True)
class Terms:
    """The settings of an audit."""

    samples: int = 200
    """Largest number of images, taken in a fixed random order of the test set."""
    until_decided: bool = False
    """Attack batch by batch and stop as soon as the claim is refuted; intervals are then valid at any time."""
    tier: Tier = "strict"
    """Tier of the claimed attack; the other attacks always get true labels and correct outputs."""
    batch_size: int = 100
    seed: int = 0
    alpha: float = 0.05
    budget: float | None = None
    """Seconds after which no new attack starts."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    suite: str = "full"
    acceleration: str = "folded"


@dataclass(frozen=True)
class Finding:
    """The result of an audit for one claim, with its certificate."""

    claim: Claim
    outcome: Outcome
    sentence: str
    left: int
    images: int
    interval: tuple[float, float]
    as_claimed: float | None
    tried: tuple[str, ...]
    """Attacks in the order they were tried."""
    certificate: Certificate | None
    seconds: float


def audit(
    claim: Claim,
    trained: Trained,
    data: Dataset,
    terms: Terms,
    say: Callable[[str], None] = lambda words: None,
    kept: Path | None = None,
) -> Finding:
    """Test one claim about a model.

    ``kept`` is a file for the state of an unfinished audit. An audit that was stopped, or whose budget was spent,
    resumes from it. It is removed when the audit ends with a verdict.
    """
    if terms.samples > len(data.test):
        raise BadInput(f"samples is {terms.samples}; {data.name} has only {len(data.test)} test images; choose fewer")
    if claim.attack:
        claim.attack.check_classes(data.classes)
    # a fixed order, so that a larger audit extends a smaller one; random, so that the first images are representative
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[: terms.samples]
    material = Material(
        ensemble=trained.ensemble,
        surrogate=None,
        test=data.test.subset(order),
        batch_size=terms.batch_size,
        device=terms.device,
        keep_images=False,
        acceleration=terms.acceleration,
        spec=trained.spec,
    )
    file = UnfinishedFile(kept)
    with subject_of(material, say=say) as subject:
        if subject.expected is not None:
            raise BadInput(
                f"{trained.spec} is randomised: an image fools it with a probability, which no certificate can prove; "
                "use adp-bench run, which gives the expected accuracy"
            )
        work = _Audit(claim, terms, subject, order.numpy(), say, file, _identity(claim, trained, data, terms))
        work.go()
        if work.over_budget:
            file.write(work.found, now=True)
        else:
            file.remove()
        return work.finding(trained, data)


def _identity(claim: Claim, trained: Trained, data: Dataset, terms: Terms) -> str:
    """A digest of all settings that change the attacks; an audit may resume with another budget or alpha."""
    same = replace(terms, budget=None, alpha=0.5)
    return hashlib.sha256(repr((claim, trained.provenance.identity, data.checksum, same)).encode()).hexdigest()


class _Audit:
    """A running audit: the images that are left, the adversarial images so far, and the start time."""

    def __init__(
        self,
        claim: Claim,
        terms: Terms,
        subject: Subject,
        order: Rows,
        say: Callable[[str], None],
        file: UnfinishedFile,
        identity: str,
    ) -> None:
        self.claim, self.terms, self.subject, self.order, self.say, self.file = claim, terms, subject, order, say, file
        self.began = time.monotonic()
        self.right = subject.clean == subject.labels
        self.seen = 0
        """Number of images so far; the rest of the order is not used."""
        self.over_budget = False
        self.found = file.read(identity)
        if self.found.tried:
            before, fooled = len(self.found.tried), len(self.found.adversarial)
            say(f"resuming after {before} attacks; they fooled {fooled} images")

    # --- the state ---

    @property
    def correct(self) -> NDArray[np.bool_]:
        """For every image so far: correctly classified and not fooled yet."""
        left = self.right[: self.seen].copy()
        left[[place for place in self.found.adversarial if place < self.seen]] = False
        return left

    def interval(self) -> tuple[float, float]:
        """Confidence interval of the remaining accuracy, for the alpha of the terms."""
        correct = self.correct
        if self.terms.until_decided:
            found = sequential.interval(correct, alpha=self.terms.alpha)
            return found.low, found.high
        return accuracy_interval(int(correct.sum()), len(correct), 1 - self.terms.alpha)

    def refuted(self) -> bool:
        """Whether the whole interval of the remaining accuracy lies below the claim."""
        return self.seen > 0 and self.interval()[1] < self.claim.least

    # --- the attacks ---

    def go(self) -> None:
        """Attack batch by batch, or all images at once, until the claim is refuted or the budget is spent."""
        size = self.terms.batch_size if self.terms.until_decided else self.terms.samples
        for first in range(0, self.terms.samples, size):
            self.seen = min(first + size, self.terms.samples)
            if self.refuted() or self.over_budget:
                return
            if self.claim.bound is not None and self._attack(first):
                return

    def _attack(self, first: int) -> bool:
        """Attack the images from ``first`` on; True if the claim is refuted or the budget is spent."""
        dead = self._as_claimed(first) if self.claim.attack else 0.0
        if self.refuted():
            return True
        for stage, reason in self._stages(dead):
            spent = time.monotonic() - self.began
            if self.terms.budget is not None and spent > self.terms.budget:
                self.over_budget = True
                return True
            places = np.flatnonzero(self.correct)
            places = places[places >= first]
            if not len(places):
                return False
            self.say(f"{stage.label} on {len(places)} images: {reason}")
            self._run(stage, places)
            if self.refuted():
                return True
        return False

    def _as_claimed(self, first: int) -> float:
        """Run the claimed attack as claimed; return the share of images without a gradient or without a change."""
        named = self.claim.attack
        assert named is not None
        tier = self.terms.tier
        found = self.found
        self.say(f"{named.label} on {self.seen - first} images: as claimed, tier {tier}")
        task = WhiteBox(named, tier)
        for start in range(max(first, len(found.dead)), self.seen, self.terms.batch_size):
            span = Span(start, min(start + self.terms.batch_size, self.seen))
            records = task.batch(self.subject, span, self.terms.seed)
            found.claimed_right += records["correct"].astype(bool).tolist()
            found.dead += (records["zero_gradient"] | records["unmoved"]).astype(bool).tolist()
            self.file.write(found)
        places = np.flatnonzero(self.correct)
        self._run(Stage(named), places[places >= first])  # again with true labels, to keep its images
        return float(np.mean(found.dead[first : self.seen]))

    def _stages(self, dead: float) -> Iterator[tuple[Stage, str]]:
        """Stronger attacks with reasons, cheapest first; query-only first if the claimed attack had no gradient."""
        assert self.claim.bound is not None
        members = len(self.subject.ensemble)
        found = stages(self.terms.suite, self.claim.bound, members, self.subject.classes)
        if dead > DEAD:
            found = tuple(sorted(found, key=lambda stage: not stage.named.attack.query_only))
        steps = getattr(self.claim.attack.attack, "steps", 1) if self.claim.attack else 1
        for stage in found:
            attack = stage.named.attack
            if attack.query_only:
                reason = "needs no gradient" + (", which the claimed attack lacked" * (dead > DEAD))
            elif stage.member is not None:
                reason = "an attack on one member may transfer to the ensemble"
            elif getattr(attack, "steps", 1) > steps:
                reason = "more steps" + (" and restarts" * (getattr(attack, "restarts", 1) > 1))
            else:
                reason = "the next in order of cost"
            yield stage, reason

    def _run(self, stage: Stage, places: Rows) -> None:
        """Attack the remaining images, batch by batch, and keep the adversarial images that fool the model."""
        found, subject, size = self.found, self.subject, self.terms.batch_size
        found.tried[stage.label] = None
        key = f"{stage.label}, images to {self.seen}"
        # a resumed stage keeps its batches, even if some of their images are already fooled
        places = np.array(found.begun.setdefault(key, places.tolist()), dtype=np.int64)
        model = subject.fast if stage.member is None else subject.member(stage.member)
        for start in range(size * found.batches.get(key, 0), len(places), size):
            part = places[start : start + size]
            labels = subject.labels[part]
            images = subject.images[torch.from_numpy(part).to(subject.images.device)]
            crafted = craft(model, stage.named, images, labels, 0, self.terms.seed, rows=part)
            found.moved |= not crafted.found["unmoved"].all()
            fooled = predict(subject.ensemble, crafted.images, size) != labels
            for place, image in zip(part[fooled].tolist(), crafted.images[torch.from_numpy(fooled)], strict=True):
                found.adversarial[place] = image.cpu()
            found.broken_by[stage.label] += int(fooled.sum())
            found.batches[key] = found.batches.get(key, 0) + 1
            self.file.write(found)

    # --- the result ---

    def finding(self, trained: Trained, data: Dataset) -> Finding:
        """The outcome in one sentence, with the certificate."""
        correct, low_high = self.correct, self.interval()
        left, images = int(correct.sum()), self.seen
        claimed_right = self.found.claimed_right
        as_claimed = float(np.mean(claimed_right)) if claimed_right else None
        outcome = self._outcome()
        sentence = self._sentence(outcome, left, images, low_high, as_claimed)
        certificate = self._certificate(trained, data, sentence) if self.claim.bound else None
        seconds = time.monotonic() - self.began
        return Finding(
            self.claim,
            outcome,
            sentence,
            left,
            images,
            low_high,
            as_claimed,
            tuple(self.found.tried),
            certificate,
            seconds,
        )

    def _outcome(self) -> Outcome:
        if self.refuted():
            return "refuted"
        if self.claim.bound is not None and (not self.found.moved or self.over_budget):
            return "cannot be judged"
        return "not refuted"

    def _sentence(
        self, outcome: Outcome, left: int, images: int, bounds: tuple[float, float], as_claimed: float | None
    ) -> str:
        accuracy = f"{100 * left / images:.1f} % [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"
        again = "" if as_claimed is None else f"; run as claimed, the attack leaves {100 * as_claimed:.1f} %"
        claimed = self.claim.words
        if self.claim.bound is None:
            word = "refuted" if outcome == "refuted" else "not refuted"
            return f"{word}: clean accuracy is {accuracy} on {images} images, {claimed}"
        if outcome == "refuted":
            strongest = self.found.broken_by.most_common(1)
            by = f"; {strongest[0][0]} broke the most" if strongest and strongest[0][1] else ""
            return f"refuted: {accuracy} of {images} images are left within {self.claim.bound}{by}; {claimed}{again}"
        if self.over_budget:
            return (
                f"cannot be judged: the budget is spent after {len(self.found.tried)} attacks on {images} images, "
                f"{accuracy} are left, {claimed}{again}; give a larger --budget"
            )
        if outcome == "cannot be judged":
            return f"cannot be judged: no attack changed any image, so nothing was tested; {claimed}"
        return (
            f"not refuted by {len(self.found.tried)} attacks on {images} images: {accuracy} are left within "
            f"{self.claim.bound}, {claimed}{again}; this is not a proof"
        )

    def _certificate(self, trained: Trained, data: Dataset, sentence: str) -> Certificate:
        places = sorted(self.found.adversarial)
        shape = (0, *self.subject.images.shape[1:])
        images = torch.stack([self.found.adversarial[place] for place in places]).numpy() if places else np.empty(shape)
        statement = Statement(
            claim=self.claim.text,
            claimed=self.claim.accuracy,
            bound=str(self.claim.bound),
            dataset=data.name,
            data=data.checksum,
            weights=trained.provenance.identity,
            model=trained.label,
            tried=tuple(int(row) for row in self.order[: self.seen]),
            misclassified=tuple(int(row) for row in self.order[: self.seen][~self.right[: self.seen]]),
            broken_by={name: count for name, count in self.found.broken_by.items() if count},
            sentence=sentence,
            versions=versions(),
        )
        return Certificate(statement, self.order[places], self.subject.labels[places], images.astype(np.float32))
