"""Claims are read, put to the test and answered with a certificate that proves its sentence to somebody else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from benchmark import datasets
from benchmark.attacks.bounds import Bound
from benchmark.claims import audit as audit_module
from benchmark.claims import certificate as certificates
from benchmark.claims.audit import Finding, Terms, audit
from benchmark.claims.certificate import Certificate, read_certificate, read_statement, write_certificate
from benchmark.claims.checking import check
from benchmark.claims.claim import read_claim
from benchmark.cli import run
from benchmark.ensembles.finding import Trained
from benchmark.ensembles.training import training_data
from defenses.catalogue import parse_defense
from defenses.checkpoints import load_checkpoint, read_provenance
from defenses.errors import BadInput, NotVerified
from defenses.training.loop import train
from defenses.training.recipes import fast
from defenses.training.request import TrainingRequest

TERMS = Terms(samples=60, suite="quick")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = replace(fast("tiny"), epochs=3)
    request = TrainingRequest(parse_defense("baseline"), "mini-resnet(width=8)", 2, recipe)
    return train(request, training_data("digits", recipe, 0), tmp_path_factory.mktemp("baseline"))


@pytest.fixture
def trained(path: Path) -> Trained:
    return Trained("baseline", str(path), load_checkpoint(path), read_provenance(path))


@pytest.fixture(scope="module")
def data() -> datasets.Dataset:
    return datasets.load("digits")


@pytest.fixture(scope="module")
def refuted(path: Path, data: datasets.Dataset) -> Finding:
    trained = Trained("baseline", str(path), load_checkpoint(path), read_provenance(path))
    return audit(read_claim("fgsm(eps=0.2)=60"), trained, data, TERMS)


@pytest.fixture
def written(refuted: Finding, data: datasets.Dataset, tmp_path: Path) -> Path:
    assert refuted.certificate is not None
    return _write(tmp_path / "certificate.parquet", refuted.certificate, data)


def _write(path: Path, certificate: Certificate, data: datasets.Dataset) -> Path:
    write_certificate(path, certificate, data.test.images()[torch.from_numpy(certificate.index)].numpy())
    return path


# --- claims ---


def test_claims_are_read() -> None:
    attack = read_claim("pgd(eps=8/255) = 48.4 on 1000")
    assert attack.attack is not None and attack.attack.label == "pgd(eps=8/255)"
    assert (attack.accuracy, attack.bound, attack.samples) == (pytest.approx(0.484), Bound("linf", 8 / 255), 1000)
    assert read_claim("strong(l2:0.5)=30%").bound == Bound("l2", 0.5)
    assert read_claim("clean=93.2").bound is None


def test_a_claim_measured_on_few_images_allows_what_its_own_interval_allows() -> None:
    assert read_claim("clean=50").least == 0.5
    few, many = (read_claim(f"clean=50 on {samples}").least for samples in (10, 10_000))
    assert few == pytest.approx(0.1871, abs=1e-4), "Clopper and Pearson, 5 of 10"
    assert 0.49 < many < 0.5


def test_an_accuracy_inside_the_interval_of_the_claim_does_not_refute_it(
    trained: Trained, data: datasets.Dataset
) -> None:
    terms = replace(TERMS, samples=360)
    assert audit(read_claim("clean=100"), trained, data, terms).outcome == "refuted"
    assert audit(read_claim("clean=100 on 20"), trained, data, terms).outcome == "not refuted"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pgd",
        "pgd(eps=0.1)",
        "pgd(eps=0.1)=101",
        "pgd(eps=0.1)=-1",
        "clean=x",
        "cw(c=1)=5",
        "clean=5 on 0",
        "clean=0.95",
    ],
)
def test_what_is_no_claim_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_claim(text)


# --- audits ---


def test_a_false_claim_is_refuted_and_its_certificate_verifies(
    refuted: Finding, written: Path, trained: Trained, data: datasets.Dataset
) -> None:
    assert refuted.outcome == "refuted" and refuted.interval[1] < 0.6
    found = check(written, trained, data)
    assert found.complaints == () and (found.left, found.images) == (refuted.left, refuted.images)


def test_a_true_claim_is_not_refuted(trained: Trained, data: datasets.Dataset) -> None:
    found = audit(read_claim("pgd(eps=0.001)=80"), trained, data, TERMS)
    assert found.outcome == "not refuted" and found.left / found.images > 0.8
    assert len(found.tried) > 5


def test_the_accuracy_left_is_that_of_the_worst_case_over_everything_tried(
    trained: Trained, data: datasets.Dataset
) -> None:
    from benchmark import evaluate

    found = audit(read_claim("fgsm(eps=0.05)=0"), trained, data, replace(TERMS, samples=40))
    rows = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[:40]
    table = evaluate(trained.ensemble, data.test.images(rows), data.test.labels[rows], ["pgd(eps=0.05)"])
    assert found.left / found.images <= table["accuracy"][0] / 100


def test_a_claim_about_clean_accuracy_needs_no_attack(trained: Trained, data: datasets.Dataset) -> None:
    assert audit(read_claim("clean=50"), trained, data, TERMS).outcome == "not refuted"
    found = audit(read_claim("clean=100"), trained, data, replace(TERMS, samples=360))
    assert found.outcome == "refuted" and found.tried == () and found.certificate is None


def test_until_decided_stops_early_and_looks_at_a_part_of_the_images(trained: Trained, data: datasets.Dataset) -> None:
    terms = replace(TERMS, samples=300, until_decided=True, batch_size=20)
    found = audit(read_claim("fgsm(eps=0.2)=90"), trained, data, terms)
    assert found.outcome == "refuted" and found.images < 300


def test_a_spent_budget_gives_no_verdict(trained: Trained, data: datasets.Dataset) -> None:
    found = audit(read_claim("pgd(eps=0.001)=10"), trained, data, replace(TERMS, budget=0.0))
    assert found.outcome == "cannot be judged"


class _Stopped(Exception):
    """Raised in the middle of an audit."""


@pytest.mark.parametrize(("steps", "until_decided"), [(2, False), (5, True)])
def test_a_stopped_audit_resumes_to_the_finding_of_an_undisturbed_one(
    trained: Trained,
    data: datasets.Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    until_decided: bool,
) -> None:
    claim, kept = read_claim("fgsm(eps=0.05)=1"), tmp_path / "unfinished.npz"
    terms = replace(TERMS, samples=24, batch_size=8, until_decided=until_decided)
    whole = audit(claim, trained, data, terms)
    monkeypatch.setattr("benchmark.claims.unfinished.SECONDS", -1.0)
    real, left = audit_module.craft, [steps]

    def stopping(*arguments: Any, **options: Any) -> Any:
        if left[0] == 0:
            raise _Stopped
        left[0] -= 1
        return real(*arguments, **options)

    monkeypatch.setattr(audit_module, "craft", stopping)
    with pytest.raises(_Stopped):
        audit(claim, trained, data, terms, kept=kept)
    assert kept.exists()
    said: list[str] = []
    left[0] = -1
    resumed = audit(claim, trained, data, terms, said.append, kept)
    assert any("resum" in words for words in said) and not kept.exists()
    assert replace(resumed, seconds=0, certificate=None) == replace(whole, seconds=0, certificate=None)
    assert resumed.certificate is not None and whole.certificate is not None
    assert resumed.certificate.images.tobytes() == whole.certificate.images.tobytes()
    assert resumed.certificate.statement == whole.certificate.statement


def test_an_audit_whose_budget_was_spent_resumes_with_a_larger_one(
    trained: Trained, data: datasets.Dataset, tmp_path: Path
) -> None:
    claim, kept = read_claim("pgd(eps=0.001)=10"), tmp_path / "unfinished.npz"
    assert audit(claim, trained, data, replace(TERMS, budget=0.0), kept=kept).outcome == "cannot be judged"
    said: list[str] = []
    assert audit(claim, trained, data, TERMS, said.append, kept).outcome == "not refuted"
    assert any("resum" in words for words in said)


@pytest.mark.parametrize("damage", ["other claim", "cut", "flipped", "empty"])
def test_the_state_of_another_audit_and_a_damaged_one_are_not_used(
    trained: Trained, data: datasets.Dataset, tmp_path: Path, damage: str
) -> None:
    kept = tmp_path / "unfinished.npz"
    audit(read_claim("pgd(eps=0.001)=10"), trained, data, replace(TERMS, budget=0.0), kept=kept)
    content = bytearray(kept.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    kept.write_bytes({"cut": content[:-100], "empty": b""}.get(damage, bytes(content)))
    said: list[str] = []
    claim = "pgd(eps=0.002)=10" if damage == "other claim" else "pgd(eps=0.001)=10"
    audit(read_claim(claim), trained, data, replace(TERMS, budget=0.0), said.append, kept)
    assert not any("resum" in words for words in said)


# --- certificates ---


def test_a_certificate_without_images_verifies(
    refuted: Finding, trained: Trained, data: datasets.Dataset, tmp_path: Path
) -> None:
    assert refuted.certificate is not None
    rows = np.empty(0, dtype=np.int64)
    empty = Certificate(refuted.certificate.statement, rows, rows, refuted.certificate.images[:0])
    found = check(_write(tmp_path / "empty.parquet", empty, data), trained, data)
    assert found.complaints == () and found.left > refuted.left


def test_images_are_kept_to_the_last_bit(refuted: Finding, written: Path, data: datasets.Dataset) -> None:
    assert refuted.certificate is not None
    found = read_certificate(written, data.test.images().numpy())
    assert found.images.tobytes() == refuted.certificate.images.tobytes()
    assert found.statement == refuted.certificate.statement


def _changed(certificate: Certificate, what: str) -> Certificate:
    images, labels, statement = certificate.images.copy(), certificate.labels.copy(), certificate.statement
    if what == "pixel":
        images[0].flat[3] = 1 - images[0].flat[3] if abs(images[0].flat[3] - 0.5) > 0.3 else 0.0
    elif what == "label":
        labels[0] = (labels[0] + 1) % 10
    elif what == "bound":
        statement = replace(statement, bound="linf:0.1")
    elif what == "claim":
        statement = replace(statement, claim="fgsm(eps=0.3)=60")
    elif what == "claimed accuracy":
        statement = replace(statement, claimed=0.9)
    elif what == "misclassified":
        statement = replace(statement, misclassified=())
    elif what == "clean image":
        images[0] = datasets.load("digits").test.images(slice(int(certificate.index[0]), None))[0].numpy()
    return Certificate(statement, certificate.index, labels, images)


@pytest.mark.parametrize(
    "what", ["pixel", "label", "bound", "claim", "claimed accuracy", "misclassified", "clean image"]
)
def test_a_forged_certificate_with_a_fresh_checksum_does_not_verify(
    refuted: Finding, trained: Trained, data: datasets.Dataset, tmp_path: Path, what: str
) -> None:
    assert refuted.certificate is not None
    forged = _changed(refuted.certificate, what)
    assert check(_write(tmp_path / "forged.parquet", forged, data), trained, data).complaints


def test_other_weights_do_not_verify(written: Path, trained: Trained, data: datasets.Dataset, tmp_path: Path) -> None:
    other = replace(trained, provenance=replace(trained.provenance, weights_sha256="0" * 64))
    assert check(written, other, data).complaints


def test_a_changed_file_is_noticed(written: Path, trained: Trained, data: datasets.Dataset) -> None:
    table = pq.read_table(written)
    metadata = dict(table.schema.metadata)
    stated = json.loads(metadata[certificates.KEY])
    stated["claimed"] = 0.9
    metadata[certificates.KEY] = json.dumps(stated).encode()
    pq.write_table(table.replace_schema_metadata(metadata), written)
    with pytest.raises(NotVerified):
        check(written, trained, data)


def test_a_damaged_certificate_is_refused_or_holds_what_was_written(written: Path, data: datasets.Dataset) -> None:
    content, clean = written.read_bytes(), data.test.images().numpy()
    whole, rng, refused = read_certificate(written, clean), np.random.default_rng(0), 0
    for place in rng.integers(len(content), size=60):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        written.write_bytes(bytes(flipped))
        try:
            found = read_certificate(written, clean)
        except (BadInput, NotVerified):
            refused += 1
            continue
        assert found.statement == whole.statement and found.images.tobytes() == whole.images.tobytes()
        assert (found.index == whole.index).all() and (found.labels == whole.labels).all()
    assert refused > 30


def test_the_command_ends_with_3_where_a_claim_is_refuted_and_its_certificate_is_checked_by_another(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(path.parent)
    asked = ["audit", model, "--dataset", "digits", "--samples", "40", "--out", "audited"]
    assert run([*asked, "--claim", "fgsm(eps=0.3)=95"]) == 3
    assert "refuted" in capsys.readouterr().out
    assert json.loads(Path("audited/audit.json").read_text())[0]["outcome"] == "refuted"
    kept = "audited/certificate-1.parquet"
    assert read_statement(Path(kept)).claimed == 0.95
    assert run(["verify", kept, "--model", model]) == 0
    assert run(["verify", kept, "--model", "baseline"]) == 2, "no trained ensemble is found by that name"
    shutil.copytree(model, "results/ensembles/small")
    assert run(["verify", kept, "--model", "baseline"]) == 0
    assert run(["verify", kept, "--model", "adp-2-0.5"]) == 3, "the weights are those of another defense"
    assert run([*asked, "--claim", "clean=10"]) == 0
    assert run(["verify", "audited/audit.json"]) == 2
    assert run([*asked, "--claim", "clean=10", "--budget", "soon"]) == 2
