"""``adp-bench audit``: test the accuracy that a paper claims for a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmark.machine.terminal import visible
from benchmark.machine.waiting import load_torch
from defenses.errors import BadInput

if TYPE_CHECKING:
    from benchmark.claims.audit import Finding

REFUTED = 3
"""Exit code for a refuted claim."""


def audit(
    model: Annotated[str, typer.Argument(help="Defense spec, or a trained model of your own.")],
    dataset: Annotated[str, typer.Option(help="Dataset; `adp-bench list datasets` shows the names.")],
    claim: Annotated[
        list[str],
        typer.Option(
            help='Claimed accuracy: "pgd(eps=8/255)=48.4", "strong(linf:8/255)=30", "clean=93.2". May be repeated.'
        ),
    ],
    samples: Annotated[int, typer.Option(help="Largest number of test images, drawn in a fixed random order.")] = 200,
    until: Annotated[
        str | None, typer.Option(help="decided: attack batch by batch, and stop when the claim is refuted.")
    ] = None,
    tier: Annotated[str, typer.Option(help="Tier of the claimed attack: strict or paper.")] = "strict",
    alpha: Annotated[float, typer.Option(help="Largest probability of refuting a true claim.")] = 0.05,
    budget: Annotated[str | None, typer.Option(help="Start no new attack after this time: 90s, 30m, 2h.")] = None,
    network: Annotated[str | None, typer.Option(help="Network of each member, if the model is a defense spec.")] = None,
    members: Annotated[int, typer.Option(help="Number of members, if the model is a defense spec.")] = 3,
    recipe: Annotated[
        str,
        typer.Option(help="Training recipe, if the model is a defense spec.  [default: the preset's]"),
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of training and of the attacks.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Number of images in an attack batch.")] = 100,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.  [default: all cores; 1 for digits]")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow TorchScript and torch.export models, which can run code when loaded.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder.  [default: under results/audits]")] = None,
) -> None:
    """Test a published accuracy. Run the claimed attack, then stronger ones. Exit code 3 means refuted."""
    load_torch()
    from benchmark import datasets
    from benchmark.claims.audit import Terms
    from benchmark.claims.audit import audit as audit_claim
    from benchmark.claims.certificate import write_certificate
    from benchmark.claims.claim import read_claim
    from benchmark.ensembles.ensemble_request import EnsembleRequest
    from benchmark.ensembles.finding import find_or_train
    from benchmark.harness.tiers import check_tier
    from benchmark.machine.clock import seconds_of
    from benchmark.machine.devices import find_device, present, set_threads
    from benchmark.plan.presets import usual_recipe
    from benchmark.reports.figures.drawing import slug
    from defenses.files import writable_folder, write_text

    if until not in (None, "decided"):
        raise BadInput(f"--until is {until!r}; write --until decided, or omit the option")
    if not 0 < alpha < 1:
        raise BadInput(f"--alpha is {alpha:g}; it must lie between 0 and 1")
    for name, value in (("samples", samples), ("batch-size", batch_size)):
        if value < 1:
            raise BadInput(f"--{name} is {value}; it must be at least 1")
    if check_tier(tier) == "strong":
        raise BadInput('--tier strong does not apply to one attack; claim "strong(linf:8/255)=…" instead')
    claims = [read_claim(text) for text in claim]
    terms = Terms(
        samples=samples,
        until_decided=until == "decided",
        tier=check_tier(tier),
        batch_size=batch_size,
        seed=seed,
        alpha=alpha,
        budget=seconds_of(budget) if budget else None,
        device=present(find_device(device)),
    )
    chosen = recipe or usual_recipe(dataset, network or "")
    request = EnsembleRequest(model, dataset, network or "", members, chosen, seed, trust)
    set_threads(threads, [request.about.threads])

    def say(words: str) -> None:
        typer.echo(visible(words), err=True)

    trained, data = find_or_train(request, str(terms.device), say), datasets.load(dataset)
    folder = out or Path("results/audits") / slug(Path(model).name, dataset)
    writable_folder(folder)
    findings: list[Finding] = []
    for number, one in enumerate(claims, 1):
        found = audit_claim(one, trained, data, terms, say, folder / f"unfinished-{number}.npz")
        findings.append(found)
        if found.certificate is not None:
            path = folder / f"certificate-{number}.parquet"
            clean = data.test.subset(_rows(found.certificate.index)).images().numpy()
            write_certificate(path, found.certificate, clean)
            say(f"certificate: {path}")
        typer.echo(visible(f"{one.text}: {found.sentence}"))
        write_text(folder / "audit.json", json.dumps([_entry(f) for f in findings], indent=1) + "\n")
    if any(found.outcome == "refuted" for found in findings):
        raise typer.Exit(REFUTED)


def _rows(index: Any) -> Any:
    import torch

    return torch.from_numpy(index)


def _entry(found: Finding) -> dict[str, Any]:
    return {
        "claim": found.claim.text,
        "outcome": found.outcome,
        "sentence": found.sentence,
        "images": found.images,
        "left": found.left,
        "interval": [round(100 * bound, 4) for bound in found.interval],
        "as_claimed": None if found.as_claimed is None else round(100 * found.as_claimed, 4),
        "tried": list(found.tried),
        "seconds": round(found.seconds, 1),
    }
