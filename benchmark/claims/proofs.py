"""Find certificates in folders, and check each one if its data and its model are available."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.attacks.bounds import read_bound
from benchmark.claims.certificate import Statement, read_statement
from benchmark.findings.board import Proof
from defenses.errors import BadInput, NotVerified, RunFailed

if TYPE_CHECKING:
    from benchmark.ensembles.finding import Trained

AUDIT = "audit.json"
"""The file that marks a folder as a folder of audits."""


def certificates_in(folder: Path) -> list[Path]:
    """The certificates of an audit; BadInput if its summary is unreadable, or has fewer claims than certificates."""
    path = folder / AUDIT
    try:
        audited = json.loads(path.read_text(encoding="utf-8"))
        claims = [str(entry["claim"]) for entry in audited]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({type(error).__name__}); run the audit again") from None
    found = sorted(folder.glob("certificate-*.parquet"))
    if len(found) > len(claims):
        raise BadInput(
            f"{folder} has {len(found)} certificates, but its {AUDIT} has {len(claims)} claims; run the audit again"
        )
    return found


class Checker:
    """Checks certificates against the given models, then against the checkpoints here; nothing is downloaded."""

    def __init__(self, models: Sequence[str] = (), trust: bool = False) -> None:
        self.models, self.trust = models, trust

    def proof(self, path: Path) -> Proof:
        """A certificate with the result of its check; BadInput if the file is not a certificate."""
        stated = read_statement(path)
        if not stated.bound:
            raise BadInput(f"{path} has no bound, so it proves nothing about attacks")
        about = (stated.dataset, stated.data, stated.weights, stated.model, read_bound(stated.bound), stated.claim)
        return Proof(str(path), *about, *self._checked(path, stated))

    def _checked(self, path: Path, stated: Statement) -> tuple[bool, str, int, int]:
        """Whether it verifies, the result in words, its number of images, and the number of images left."""
        from benchmark import datasets
        from benchmark.claims.checking import check

        here = {row["name"] for row in datasets.describe() if row["present"]}
        if stated.dataset not in here:  # never load data that only a certificate names
            return False, f"not checked: the dataset {stated.dataset} is not here", 0, 0
        trained = self._model(stated)
        if trained is None:
            return False, "not checked: no model here has its weights", 0, 0
        try:
            found = check(path, trained, datasets.load(stated.dataset))
        except (BadInput, NotVerified, RunFailed) as error:
            return False, f"does not verify: {error}", 0, 0
        if found.complaints:
            return False, f"does not verify: {'; '.join(found.complaints)}", 0, 0
        return True, f"verified: {found.sentence}", found.images, found.left

    def _model(self, stated: Statement) -> Trained | None:
        from benchmark import datasets
        from benchmark.ensembles.finding import load_outside
        from benchmark.run.reverification import trained_with

        for spec in self.models:
            trained = load_outside(spec, datasets.find(stated.dataset), self.trust)
            if trained.provenance.identity == stated.weights:
                return trained
        try:
            return trained_with(stated.weights, stated.model)
        except BadInput:
            return None
