"""Which attacks fool new images: every stage of tier strong and every candidate, on eight ensembles.

    python results/strong-stages/measure.py --dverge FOLDER     # measures what stages.csv lacks; needs numba
    python results/strong-stages/measure.py --table             # prints the tables of stages.csv and of committed cells

Three rounds. The attacks of one round are independent of each other: each meets every image that all attacks of the
rounds before left. So the order inside a round can be chosen afterwards. An image counts as fooled where the ensemble
itself, in float32, misclassifies the verified image.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmark import datasets
from benchmark.attacks import parse_attack
from benchmark.cells.store import Store
from benchmark.findings.results import read_results
from benchmark.findings.suites import suite_table
from benchmark.harness.crafting import craft
from benchmark.harness.prepared import predict
from benchmark.harness.subject import Material, Subject, subject_of
from defenses.checkpoints import load_checkpoint
from defenses.specs import value_text

HERE = Path(__file__).parent
FILE = HERE / "stages.csv"
CHECKPOINTS = HERE.parent / "checkpoints"
ROUNDS = (
    ("fgsm({ball})", "bim({ball})", "pgd({ball})", "mim({ball})"),
    (
        "pgd({ball},steps=50,step_size={step},restarts=5)",
        "pgd({ball},steps=50,step_size={step},restarts=5,loss=margin)",
        "pgd({ball},steps=50,step_size={step},restarts=5,loss=pma)",
        "pgd@native({ball},steps=50,step_size={step}) from members",
        "mora({ball})",
        "mora({ball},variant=reference)",
        "apgd-ce({ball})",
        "apgd({ball},loss=pma)",
        "cascade({ball})",
    ),
    ("apgd-t({ball})", "fab-t({ball})", "square({ball})"),
)
MEMBERS = " from members"
LIMITS = (60, 10, 3)
"""Images that a round meets at most; the first ones."""
ENSEMBLES = (
    # name, checkpoint, eps at which most images fall to the first round and a few survive the second
    ("dverge", "dverge_seed_0_3_ResNet20_eps_0.07_epoch_200.pth", 0.02),
    ("advt-pgd", "advt-pgd-resnet(depth=20)-k3-fast-seed0-changed-d4a3a2", 0.03),
    ("adp-2-0.5", "adp-2-0.5-resnet(depth=20)-k3-reference-seed0", 0.01),
    ("advt-pgd+adp-2-0.5", "advt-pgd+adp-2-0.5-resnet(depth=20)-k3-fast-seed0-changed-d4a3a2", 0.03),
    ("baseline", "baseline-resnet(depth=20)-k3-reference-seed0", 0.01),
    ("adp-2-0", "adp-2-0-resnet(depth=20)-k3-reference-seed0", 0.01),
    ("label-smoothing-0.6", "label-smoothing-0.6-resnet(depth=20)-k3-reference-seed0", 0.01),
    ("dverge-baseline", "baseline_seed_0_3_ResNet20_epoch_200.pth", 0.01),
)
COLUMNS = ["ensemble", "eps", "round", "stage", "image", "fooled", "seconds"]


def measure(subject: Subject, name: str, eps: float, known: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """A row per stage and image that it met, stage by stage; ``known`` stages are not run again."""
    left = np.flatnonzero(subject.clean == subject.labels)
    for number, (texts, limit) in enumerate(zip(ROUNDS, LIMITS, strict=True), 1):
        left = left[:limit]
        fooled_here = np.zeros(len(left), dtype=bool)
        for text in texts if len(left) else ():
            text = text.format(ball=f"eps={eps}", step=value_text(eps / 5))
            named = parse_attack(text.removesuffix(MEMBERS))
            shown = named.label + (MEMBERS if text.endswith(MEMBERS) else "")
            before = known[(known["ensemble"] == name) & (known["stage"] == shown)]
            if len(before):
                fooled_here |= before["fooled"].to_numpy(dtype=bool)
                continue
            fooled, began = np.zeros(len(left), dtype=bool), time.process_time()
            for member in range(len(subject.ensemble)) if text.endswith(MEMBERS) else [None]:
                model = subject.fast if member is None else subject.member(member)
                found = craft(model, named, subject.images[left], subject.labels[left], 0, 0, rows=left)
                fooled |= predict(subject.ensemble, found.images, 100) != subject.labels[left]
            seconds = round((time.process_time() - began) / len(left), 2)
            rows = {"ensemble": name, "eps": eps, "round": number, "stage": shown, "image": left}
            yield pd.DataFrame({**rows, "fooled": fooled.astype(int), "seconds": seconds})
            fooled_here |= fooled
        left = left[~fooled_here]


def material(checkpoint: Path) -> Material:
    """An ensemble with the first test images."""
    test = datasets.load("cifar10").test.subset(slice(0, LIMITS[0]))
    return Material(load_checkpoint(checkpoint), None, test, 100, torch.device("cpu"), False, "folded")


def table(found: pd.DataFrame) -> str:
    """Images fooled of images met; behind a plus, the images that no other attack of the round fooled."""
    cells: dict[str, dict[str, str]] = {}
    for (name, _, stage), part in found.sort_values("round", kind="stable").groupby(
        ["ensemble", "round", "stage"], sort=False
    ):
        others = found[(found["ensemble"] == name) & (found["round"] == part["round"].iloc[0])]
        hits = others.groupby("image")["fooled"].sum()
        alone = int(((part["fooled"] == 1) & (part["image"].map(hits) == 1)).sum())
        words = f"{part['fooled'].sum()}/{len(part)}" + (f" +{alone}" if alone else "")
        cells.setdefault(_unbound(str(stage)), {})[str(name)] = words
    whole = pd.DataFrame(cells).T
    return _markdown(whole[[name for name, *_ in ENSEMBLES if name in whole]])


def fooled_first() -> str:
    """Committed cells of tier strong: images that each stage fooled and no earlier one did."""
    cells = suite_table(read_results(Store(HERE.parent / "cifar10-strong")))
    cells = cells.assign(attack=cells["attack"].map(_unbound), eps=cells["eps"].map(value_text))
    return _markdown(cells.pivot_table("fooled_first", "attack", ["defense", "eps"], "first", sort=False))


def _unbound(stage: str) -> str:
    return re.sub(r"\(,?\)", "", re.sub(r"\b(eps|step_size)=[^,)]*,?", "", stage).replace(",)", ")"))


def _markdown(cells: pd.DataFrame) -> str:
    names = [" ".join(name) if isinstance(name, tuple) else str(name) for name in cells.columns]
    rows = [["", *names], ["---"] * (len(names) + 1)]
    rows += [
        [f"`{stage}`", *map(str, row)] for stage, row in zip(cells.index, cells.fillna("").to_numpy(), strict=True)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dverge", type=Path, help="folder with DVERGE's published checkpoints")
    parser.add_argument("--only", action="append", metavar="ENSEMBLE", help="measure this ensemble, not all of them")
    parser.add_argument("--table", action="store_true", help="only print the table")
    asked = parser.parse_args()
    found = pd.read_csv(FILE) if FILE.exists() else pd.DataFrame(columns=COLUMNS)
    for name, checkpoint, eps in () if asked.table else ENSEMBLES:
        folder = asked.dverge if checkpoint.endswith(".pth") else CHECKPOINTS / "cifar10"
        if folder is None or name not in (asked.only or [name]):
            continue
        with subject_of(material(folder / checkpoint)) as subject:
            for part in measure(subject, name, eps, found):
                print(f"{name} · {part['stage'][0]} · {part['fooled'].sum()} of {len(part)}", flush=True)
                found = pd.concat([found, part])
                found.to_csv(FILE, index=False)
    print(table(found), fooled_first(), sep="\n\n")


if __name__ == "__main__":
    main()
