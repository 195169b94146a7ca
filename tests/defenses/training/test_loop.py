"""One loop trains every defense; killed, it resumes to the same weights; what cannot be done is refused."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from defenses.catalogue import NamedDefense, parse_defense
from defenses.checkpoints import load_checkpoint, read_provenance
from defenses.errors import BadInput, RunFailed
from defenses.files import unsealed
from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.members.images import LabelledImages
from defenses.objectives import Baseline, Defense, Terms, cross_entropy
from defenses.training import optimisation, precision
from defenses.training.data import TrainingData
from defenses.training.loop import train
from defenses.training.precision import require_bfloat16
from defenses.training.recipes import Recipe
from defenses.training.request import TrainingRequest
from defenses.training.scoring import score
from defenses.training.sequential import sequential_step
from defenses.training.state import HISTORY_NAME, STATE_NAME

NETWORK = "mini-resnet(width=2)"
RECIPE = Recipe("test", epochs=3, batch_size=32, learning_rate=1e-2, schedule="one-cycle", shift=0.1, flip=True)
ROOT = Path(__file__).parents[3]


def _images(count: int, seed: int) -> LabelledImages:
    """Ten patterns of growing brightness in noise, 12×12: learnable, but not in one epoch."""
    patterns = torch.rand(10, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    noise = torch.rand(count, 1, 12, 12, generator=generator)
    images = 0.3 * patterns[labels] + 0.5 * labels[:, None, None, None] / 9 + 0.2 * noise
    return LabelledImages((255 * images).to(torch.uint8), labels)


def patterns(train_images: int = 97) -> TrainingData:
    return TrainingData("patterns", 10, _images(train_images, 1), _images(60, 2), _images(50, 3), "checksum")


def _train(
    out: Path,
    defense: str | NamedDefense = "baseline",
    recipe: Recipe = RECIPE,
    members: int = 2,
    seed: int = 0,
    network: str = NETWORK,
    start_from: Path | None = None,
    accept_changed: bool = False,
    **others: Any,
) -> Path:
    named = parse_defense(defense) if isinstance(defense, str) else defense
    request = TrainingRequest(named, network, members, recipe, seed, start_from, accept_changed)
    return train(request, patterns(), out, **others)


def _history(out: Path) -> list[dict[str, str]]:
    with open(out / HISTORY_NAME, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums depend on how work is dealt to threads; byte-identical runs need the same number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- what a run does and leaves ---


@pytest.mark.parametrize(
    "defense",
    ["baseline", "adp-2-0", "adp-2-0.5", "label-smoothing-0.6", "jsd(lambda=0.1)", "advt-fgsm", "advt-pgd+adp-2-0.5"],
)
def test_every_defense_trains_and_learns(tmp_path: Path, defense: str) -> None:
    recipe = replace(RECIPE, epochs=8, batch_size=16, learning_rate=2e-2, shift=0.0, flip=False)
    provenance = read_provenance(_train(tmp_path, defense, recipe, network="mini-resnet(width=4)"))
    assert provenance.defense == parse_defense(defense).text
    rows = _history(tmp_path)
    assert float(rows[-1]["train_accuracy"]) > float(rows[0]["train_accuracy"]) + 0.2
    assert provenance.scores["test_accuracy"] > 0.3, "three times chance"


def test_a_finished_run_leaves_the_checkpoint_with_its_origin_and_the_history(tmp_path: Path) -> None:
    path = _train(tmp_path / "a" / "b", "adp-2-0.5", seed=7)
    assert sorted(p.name for p in path.parent.iterdir()) == ["ensemble.safetensors", "history.csv"]
    found = read_provenance(path)
    assert (found.dataset, found.network, found.members, found.seed, found.epoch) == ("patterns", NETWORK, 2, 7, 3)
    assert (found.data_checksum, found.recipe, found.shape) == ("checksum", RECIPE.as_dict(), (1, 12, 12))
    ensemble = load_checkpoint(path)
    reached = score(ensemble, patterns().test)
    assert {f"test_{name}": value for name, value in reached.items()}.items() <= found.scores.items()
    torch.testing.assert_close(ensemble.mean, patterns().train.mean_image())


def test_the_history_has_a_row_per_epoch_with_the_loss_terms(tmp_path: Path) -> None:
    _train(tmp_path, "adp-2-0.5")
    rows = _history(tmp_path)
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    head = ["epoch", "learning_rate", "scale", "ece", "entropy", "led", "train_accuracy", "frozen"]
    assert list(rows[0]) == [*head, "images_per_second", "seconds"]


def test_progress_is_reported_after_every_batch_and_epoch(tmp_path: Path) -> None:
    batches: list[Any] = []
    epochs: list[dict[str, Any]] = []
    _train(tmp_path, "adp-2-0.5", on_progress=batches.append, on_epoch=epochs.append)
    assert [(p.epoch, p.batch) for p in batches] == [(e, b) for e in (1, 2, 3) for b in (1, 2, 3)]
    assert {(p.epochs, p.batches) for p in batches} == {(3, 3)}, "97 = 3·32 + 1: the single last image is left out"
    assert set(batches[-1].terms) == {"ece", "entropy", "led"} and 0 <= batches[-1].accuracy <= 1
    assert batches[-1].seconds_left == pytest.approx(0, abs=1e-6) and batches[0].images_per_second > 0
    assert [row["epoch"] for row in epochs] == [1, 2, 3]


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    one, same, other = (
        read_provenance(_train(tmp_path / name, "advt-pgd", seed=seed)).weights_sha256
        for name, seed in (("one", 1), ("same", 1), ("other", 2))
    )
    assert one == same != other


def test_batch_norm_knows_the_data_after_a_few_steps_already(tmp_path: Path) -> None:
    still = replace(RECIPE, learning_rate=1e-12, shift=0.0, flip=False)
    ensemble = load_checkpoint(_train(tmp_path, recipe=still, network="resnet(depth=8)"))
    inputs = ensemble.normalise(patterns().train.images(slice(None)))
    for member in ensemble.members:
        seen = member.conv1(inputs).transpose(0, 1).flatten(1)
        spread = seen.std(1)
        assert ((member.bn1.running_mean - seen.mean(1)).abs() < 0.1 * spread).all(), "nine steps, momentum 0.01"
        torch.testing.assert_close(member.bn1.running_var.sqrt(), spread, rtol=0.1, atol=0)


def test_how_fast_batch_norm_follows_changes_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_checkpoint(_train(tmp_path / "first", "advt-pgd+adp-2-0.5"))
    monkeypatch.setattr(optimisation, "REMEMBERED", 1e9)
    second = load_checkpoint(_train(tmp_path / "second", "advt-pgd+adp-2-0.5"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.buffers(), second.buffers(), strict=True))


def test_a_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    path = _train(tmp_path)
    before = path.stat().st_mtime_ns
    assert _train(tmp_path) == path
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"members": 3}, "members 2, not 3"),
        ({"defense": "adp-2-0"}, "defense 'baseline', not"),
        ({"network": "mini-resnet(width=3)"}, "network"),
        ({"recipe": replace(RECIPE, epochs=4)}, "epochs 3, not 4"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_with_another_request_in_it_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str, finished: bool
) -> None:
    if finished:
        _train(tmp_path)
    else:
        _train_until(tmp_path, epoch=1)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(BadInput, match=message):
        _train(tmp_path, **change)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def _train_until(out: Path, epoch: int, **others: Any) -> None:
    """Interrupt a run after an epoch, as Ctrl-C does."""

    def stop(row: dict[str, Any]) -> None:
        if row["epoch"] == epoch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _train(out, on_epoch=stop, **others)


@pytest.mark.parametrize("finished", [True, False])
def test_another_version_of_the_file_is_refused_unless_accepted_and_is_never_taken_for_one_version(
    tmp_path: Path, finished: bool
) -> None:
    old, new = (replace(parse_defense("baseline"), source_digest=text * 64) for text in "ab")
    _train(tmp_path, old) if finished else _train_until(tmp_path, 1, defense=old)
    with pytest.raises(BadInput, match="--accept-changed-defense"):
        _train(tmp_path, new)
    digest = read_provenance(_train(tmp_path, new, accept_changed=True)).defense_digest
    assert old.is_of(digest) == finished, "two versions trained what was resumed"
    assert not new.is_of(digest)


@pytest.mark.parametrize("finished", [True, False])
def test_what_was_trained_when_digests_were_of_bytes_is_found_as_long_as_the_bytes_are_the_same(
    tmp_path: Path, finished: bool
) -> None:
    before = replace(parse_defense("baseline"), source_digest="a" * 64)
    now = replace(before, source_digest="b" * 64, bytes_digest="a" * 64)
    _train(tmp_path, before) if finished else _train_until(tmp_path, 1, defense=before)
    with pytest.raises(BadInput, match="another version"):
        _train(tmp_path, replace(now, bytes_digest="c" * 64))
    assert now.is_of(read_provenance(_train(tmp_path, now)).defense_digest)


@pytest.mark.parametrize("members", [0, -1])
def test_a_refused_request_leaves_no_folder(tmp_path: Path, members: int) -> None:
    with pytest.raises(BadInput, match="at least 1"):
        _train(tmp_path / "new", members=members)
    with pytest.raises(BadInput, match="cannot have linearly independent"):
        _train(tmp_path / "new", "adp-2-0.5", members=10)
    assert not (tmp_path / "new").exists()


# --- in bfloat16 ---


@pytest.fixture
def bfloat16() -> str:
    try:
        require_bfloat16(torch.device("cpu"))
    except BadInput as error:
        pytest.skip(str(error))
    return "bfloat16"


def test_bfloat16_changes_the_members_arithmetic_and_little_else(tmp_path: Path, bfloat16: str) -> None:
    seen: set[torch.dtype] = set()
    recipe = replace(RECIPE, epochs=6, precision=bfloat16)  # type: ignore[arg-type]

    @dataclass(frozen=True)
    class Watching(Baseline):
        def objective(self, logits: Tensor, labels: Tensor) -> Terms:
            seen.add(logits.dtype)
            return super().objective(logits, labels)

    watching = replace(parse_defense("baseline"), defense=Watching())
    low = load_checkpoint(_train(tmp_path / "low", watching, recipe))
    high = load_checkpoint(_train(tmp_path / "high", recipe=replace(recipe, precision="float32")))
    assert seen == {torch.float32}, "objectives are computed in full precision"
    assert {tensor.dtype for tensor in low.state_dict().values()} <= {torch.float32, torch.int64}
    images = patterns().test.images(slice(0, 8))
    assert not torch.equal(low.member_logits(images), high.member_logits(images))
    assert low.precision == torch.float32
    histories = [list(csv.DictReader((tmp_path / name / HISTORY_NAME).open())) for name in ("low", "high")]
    losses = [[float(row["ece"]) for row in history] for history in histories]
    assert losses[0] == pytest.approx(losses[1], rel=0.01) and losses[0][-1] < 0.95 * losses[0][0]


@pytest.mark.parametrize("strategy", ["independent", "sequential"])
def test_bfloat16_reaches_the_members_in_every_strategy(tmp_path: Path, bfloat16: str, strategy: str) -> None:
    inside: set[torch.dtype] = set()
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: inside.add(output.dtype) if isinstance(module, torch.nn.Conv2d) else None
    )
    try:
        with pytest.raises(KeyboardInterrupt):
            _train(tmp_path, recipe=replace(RECIPE, precision=bfloat16, strategy=strategy), on_epoch=_interrupt)  # type: ignore[arg-type]
    finally:
        hook.remove()
    assert inside == {torch.bfloat16}


def _interrupt(row: dict[str, Any]) -> None:
    raise KeyboardInterrupt


def test_a_processor_without_bfloat16_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(BadInput, match="bfloat16 does not work on this cpu; use --precision float32"):
        _train(tmp_path / "new", recipe=replace(RECIPE, precision="bfloat16"))
    assert not (tmp_path / "new").exists()


def test_a_users_own_forward_pass_is_not_trained_in_bfloat16(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Mine(Baseline):
        def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
            return super().forward(ensemble, images, labels)

    with pytest.raises(BadInput, match=r"own forward pass.*float32"):
        _train(
            tmp_path / "new", replace(parse_defense("baseline"), defense=Mine()), replace(RECIPE, precision="bfloat16")
        )


@pytest.mark.parametrize(
    "spec", ["gal", "trs(lambda_a=1,lambda_b=0.01)", "dverge(warm_up=0)", "igat", "mrboost(steps=2)", "barre(steps=2)"]
)
def test_a_defense_with_its_own_forward_pass_uses_bfloat16_everywhere(tmp_path: Path, bfloat16: str, spec: str) -> None:
    """In its attacks, its second derivatives and the earlier members too; the loss is nearly that of float32."""
    inside: list[torch.dtype] = []
    first: list[dict[str, Any]] = []

    def note(row: dict[str, Any]) -> None:
        first.append(row)
        raise KeyboardInterrupt

    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: inside.append(output.dtype) if isinstance(module, torch.nn.Conv2d) else None
    )
    epochs = 2 if "boost" in spec or "barre" in spec else 1
    try:
        for precision in (bfloat16, "float32"):
            recipe = replace(RECIPE, epochs=1, precision=precision)  # type: ignore[arg-type]
            with pytest.raises(KeyboardInterrupt):
                _train(tmp_path / precision, spec, recipe, on_epoch=lambda row: row["epoch"] == epochs and note(row))
            if precision == bfloat16:
                assert set(inside) == {torch.bfloat16}
    finally:
        hook.remove()
    low, high = ({key: row[key] for key in row if "acc" not in key and "second" not in key} for row in first)
    assert low == pytest.approx(high, rel=0.05, abs=0.02)


def test_a_training_begun_before_there_were_precisions_goes_on(tmp_path: Path) -> None:
    _train_until(tmp_path, epoch=1)
    state = torch.load(io.BytesIO(unsealed((tmp_path / STATE_NAME).read_bytes())), weights_only=True)
    asked = json.loads(state["asked"])
    del asked["recipe"]["precision"]
    torch.save({**state, "asked": json.dumps(asked)}, tmp_path / STATE_NAME)
    with pytest.raises(BadInput, match="precision 'float32', not 'bfloat16'"):
        _train(tmp_path, recipe=replace(RECIPE, precision="bfloat16"))
    assert read_provenance(_train(tmp_path)).epoch == RECIPE.epochs


def test_a_state_that_was_changed_is_refused(tmp_path: Path) -> None:
    _train_until(tmp_path, epoch=1)
    path = tmp_path / STATE_NAME
    content = path.read_bytes()
    for place in random.Random(0).sample(range(len(content)), 40):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match=STATE_NAME):
            _train(tmp_path)
    path.write_bytes(content)
    assert read_provenance(_train(tmp_path)).epoch == RECIPE.epochs


# --- killed and resumed ---

KILLED_RECIPE = replace(RECIPE, epochs=4, resolutions=(0.67, 1.0), select="validation", validation=50)
KILLED_DEFENSE = "advt-fgsm+adp-2-0.5"
KILL = """
import os, signal, sys
from pathlib import Path
import torch
sys.path.insert(0, str(Path({here!r})))
import test_loop as t
from defenses import files
from defenses.training import loop, state
torch.set_num_threads(1)
moment = {moment!r}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def batch(progress):
    if moment == f"epoch {{progress.epoch}} batch {{progress.batch}}":
        die()

def epoch(row):
    if moment == f"after epoch {{row['epoch']}}":
        die()

saves = 0
def half_written(path, data):
    global saves
    saves += 1
    with files.replacing(path) as temporary:
        if moment == f"writing state {{saves}}":
            temporary.write_bytes(data[: len(data) // 2])
            die()
        temporary.write_bytes(data)

state.write_bytes = half_written
if moment == "before the last history":
    write = state.write_history
    state.write_history = lambda out, history: die() if len(history) == 4 else write(out, history)
if moment == "before the checkpoint":
    loop.save_checkpoint = lambda *arguments: die()
t._train(Path({out!r}), t.KILLED_DEFENSE, t.KILLED_RECIPE, on_progress=batch, on_epoch=epoch)
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return _train(tmp_path_factory.mktemp("unbroken"), KILLED_DEFENSE, KILLED_RECIPE)


@pytest.mark.parametrize(
    ("moment", "epochs_kept"),
    [
        ("epoch 1 batch 2", 0),
        ("writing state 2", 1),
        ("epoch 3 batch 1", 2),
        ("before the last history", 4),
        ("before the checkpoint", 4),
    ],
)
def test_a_killed_run_goes_on_and_ends_with_the_same_weights(
    tmp_path: Path, unbroken: Path, moment: str, epochs_kept: int
) -> None:
    script = KILL.format(here=str(Path(__file__).parent), moment=moment, out=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / unbroken.name).exists()

    resumed: list[int] = []
    path = _train(tmp_path, KILLED_DEFENSE, KILLED_RECIPE, on_epoch=lambda row: resumed.append(row["epoch"]))
    assert resumed == list(range(epochs_kept + 1, 5))
    ours, theirs = read_provenance(path), read_provenance(unbroken)
    assert ours.weights_sha256 == theirs.weights_sha256
    assert (ours.epoch, ours.recipe) == (theirs.epoch, theirs.recipe)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ensemble.safetensors", "history.csv"]
    timings = ("images_per_second", "seconds")
    without = [[{k: v for k, v in r.items() if k not in timings} for r in _history(p.parent)] for p in (path, unbroken)]
    assert without[0] == without[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "independent"},
        {"strategy": "independent", "freeze_patience": 1, "freeze_tolerance": 0.3},
        {"strategy": "sequential"},
        {"freeze_patience": 1, "freeze_tolerance": 0.3},
        {"strategy": "independent", "select": "validation", "validation": 50},
    ],
    ids=str,
)
@pytest.mark.parametrize("epoch", [1, 2])
def test_an_interrupted_run_of_any_strategy_ends_with_the_same_weights(
    tmp_path: Path, changes: dict[str, Any], epoch: int
) -> None:
    recipe = replace(RECIPE, **changes)
    whole = _train(tmp_path / "whole", recipe=recipe)
    _train_until(tmp_path / "broken", epoch, recipe=recipe)
    broken = _train(tmp_path / "broken", recipe=recipe)
    assert read_provenance(broken).weights_sha256 == read_provenance(whole).weights_sha256


@pytest.mark.parametrize("damage", [b"", b"not a state", "half", "another"])
def test_a_damaged_state_is_refused_with_what_to_do(tmp_path: Path, damage: bytes | str) -> None:
    _train_until(tmp_path, epoch=1)
    state = tmp_path / STATE_NAME
    if damage == "another":
        torch.save({"weights": {}}, state)
    else:
        state.write_bytes(damage if isinstance(damage, bytes) else state.read_bytes()[:-5000])
    with pytest.raises(BadInput, match=f"{state} .*delete it"):
        _train(tmp_path)


def test_a_full_disk_fails_in_one_line_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    _train_until(tmp_path, epoch=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(RunFailed, match=r"could not write .*training\.pt: .*free some space"):
            _train(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert _train(tmp_path).is_file()


def test_a_full_disk_at_the_very_end_writes_no_checkpoint(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(row: dict[str, Any]) -> None:
        if row["epoch"] == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))

    try:
        with pytest.raises(RunFailed, match=r"could not write .*ensemble\.safetensors"):
            _train(tmp_path, on_epoch=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == [HISTORY_NAME, STATE_NAME]
    assert read_provenance(_train(tmp_path)).epoch == 3


# --- numerics ---


@dataclass(frozen=True)
class TurnsBad(Baseline):
    """Its second term becomes infinite at one step."""

    bad_step: int = 5
    steps: list[int] = field(default_factory=list, metadata={"spec": False})

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        self.steps.append(0)
        spoiled = torch.full((len(labels),), float("inf") if len(self.steps) == self.bad_step else 0.0)
        return {**super().objective(logits, labels), "spoiled": spoiled}


def test_a_loss_that_is_not_finite_stops_the_run_and_names_term_place_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        _train(tmp_path, NamedDefense("bad", "bad", TurnsBad()))
    message = str(caught.value)
    assert "term spoiled is inf in epoch 2, batch 2; the last saved epoch is 1" in message
    assert "lower learning rate than 0.01" in message
    assert [row["epoch"] for row in _history(tmp_path)] == ["1"]


@dataclass(frozen=True)
class BadFromTheStart(Defense):
    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        return {"spoiled": torch.log(logits.sum((0, 2)) * 0)}


def test_a_loss_that_is_not_finite_before_the_first_step_is_not_laid_on_the_learning_rate(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"in epoch 1, batch 1; .*No step had been taken: look for a logarithm of 0"):
        _train(tmp_path, NamedDefense("bad", "bad", BadFromTheStart()))


@pytest.mark.parametrize("defense", ["baseline", "adp-2-0.5", "jsd(lambda=1)", "advt-pgd+adp-2-0.5"])
def test_weights_that_explode_are_a_failed_run_not_a_crash(tmp_path: Path, defense: str) -> None:
    with pytest.raises(RunFailed, match=r"the loss is not finite: term .*ece"):
        _train(tmp_path, defense, replace(RECIPE, learning_rate=1e30))


# --- which epoch is kept ---

STEADY = replace(RECIPE, epochs=6, schedule="steps", learning_rate=2e-2, shift=0.0, flip=False)


@dataclass(frozen=True)
class Unlearns(Baseline):
    """Learns for four epochs of three batches, then works against itself: the last epoch is never the best."""

    steps: list[int] = field(default_factory=list, metadata={"spec": False})

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        self.steps.append(0)
        sign = 1 if len(self.steps) <= 12 else -1
        return {"ece": sign * super().objective(logits, labels)["ece"]}


def test_the_last_epoch_is_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    path = _train(tmp_path, NamedDefense("mine", "mine", Unlearns()), STEADY)
    assert read_provenance(path).epoch == 6
    assert "watched_accuracy" not in _history(tmp_path)[0]


@pytest.mark.parametrize("select", ["validation", "test-accuracy"])
def test_the_first_best_epoch_on_the_watched_set_is_kept(tmp_path: Path, select: str) -> None:
    recipe = replace(STEADY, select=select, validation=50 if select == "validation" else 0)
    path = _train(tmp_path / "selected", NamedDefense("mine", "mine", Unlearns()), recipe)
    watched = [float(row["watched_accuracy"]) for row in _history(path.parent)]
    best = watched.index(max(watched)) + 1
    assert best < 6
    assert read_provenance(path).epoch == best
    data = patterns().validation if select == "validation" else patterns().test
    assert data is not None
    assert score(load_checkpoint(path), data)["accuracy"] == max(watched)
    shorter = _train(tmp_path / "shorter", NamedDefense("mine", "mine", Unlearns()), replace(STEADY, epochs=best))
    assert read_provenance(path).weights_sha256 == read_provenance(shorter).weights_sha256


def test_independent_members_are_selected_each_by_its_own_accuracy(tmp_path: Path) -> None:
    recipe = replace(STEADY, learning_rate=0.1, strategy="independent", select="validation", validation=50)
    path = _train(tmp_path, recipe=recipe)
    watched = [float(row["watched_accuracy"]) for row in _history(tmp_path)]
    data = patterns().validation
    assert data is not None
    reached = score(load_checkpoint(path), data)["member_accuracy"]
    assert reached == pytest.approx([max(watched[:6]), max(watched[6:])])


# --- strategies of section 3.1 and the freezing of Algorithm 1 ---


@pytest.mark.parametrize("spec", ["baseline", "adp-2-0.5", "jsd(lambda=1)", "advt-pgd+adp-2-0.5"])
def test_a_sequential_step_is_the_simultaneous_one(spec: str) -> None:
    defense = parse_defense(spec).defense
    one = build_ensemble(NETWORK, 3, (1, 12, 12), 10, seed=1).train()
    one.members[1].eval().requires_grad_(False)  # a frozen member, as in Algorithm 1
    two = copy.deepcopy(one)
    data = patterns().train
    results = []
    for ensemble, step in ((one, defense.step), (two, lambda *rest: sequential_step(defense, *rest))):
        optimiser = torch.optim.SGD(ensemble.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(0)
        results.append(step(ensemble, optimiser, data.images(), data.labels, generator))
    torch.testing.assert_close(two.state_dict(), one.state_dict(), atol=1e-5, rtol=1e-4)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(results[0].logits, results[1].logits, atol=1e-5, rtol=1e-4)
    assert set(results[0].terms) == set(results[1].terms)


def test_a_sequential_step_keeps_one_members_graph_at_a_time() -> None:
    data = patterns().train

    def peak(step: Any) -> int:
        living, most = 0, 0

        class Saved:
            def __init__(self, tensor: Tensor) -> None:
                nonlocal living, most
                self.tensor = tensor
                living += tensor.numel()
                most = max(most, living)

            def __del__(self) -> None:
                nonlocal living
                living -= self.tensor.numel()

        ensemble = build_ensemble(NETWORK, 4, (1, 12, 12), 10).train()
        optimiser = torch.optim.SGD(ensemble.parameters(), lr=0.1)
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            step(ensemble, optimiser, data.images(), data.labels, torch.Generator())
        return most

    defense = parse_defense("adp-2-0.5").defense
    assert peak(lambda *rest: sequential_step(defense, *rest)) < 0.35 * peak(defense.step)


def test_sequential_training_takes_the_whole_run(tmp_path: Path) -> None:
    sequential = _train(tmp_path / "a", "adp-2-0.5", replace(RECIPE, strategy="sequential"))
    simultaneous = _train(tmp_path / "b", "adp-2-0.5")
    a, b = ([float(row["ece"]) for row in _history(path.parent)] for path in (sequential, simultaneous))
    assert a == pytest.approx(b, rel=0.02)


def test_independent_training_is_each_member_alone(tmp_path: Path) -> None:
    recipe = replace(RECIPE, strategy="independent")
    path = _train(tmp_path / "both", recipe=recipe)
    assert [row["epoch"] for row in _history(path.parent)] == list("123456")
    alone = _train(tmp_path / "first", recipe=RECIPE, members=1)
    both, first = load_checkpoint(path), load_checkpoint(alone)
    torch.testing.assert_close(both.members[0].state_dict(), first.members[0].state_dict(), rtol=0, atol=0)
    assert (both.members[0].conv1.weight != both.members[1].conv1.weight).any()


@pytest.mark.parametrize("defense", ["adp-2-0.5", "jsd(lambda=1)", "advt-pgd+adp-2-0"])
def test_members_that_are_coupled_cannot_be_trained_independently(tmp_path: Path, defense: str) -> None:
    with pytest.raises(BadInput, match="couples the members, so they cannot be trained independently"):
        _train(tmp_path / "new", defense, replace(RECIPE, strategy="independent"))
    assert not (tmp_path / "new").exists()


@dataclass(frozen=True)
class OwnsForward(Baseline):
    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        return super().forward(ensemble, images, labels)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_defense_with_its_own_forward_pass_cannot_be_trained_sequentially(tmp_path: Path, wrapped: bool) -> None:
    defense: Defense = OwnsForward()
    if wrapped:
        defense = parse_defense("advt-fgsm").defense.around(defense)
    with pytest.raises(BadInput, match="mine has its own forward pass"):
        _train(tmp_path, NamedDefense("mine", "mine", defense), replace(RECIPE, strategy="sequential"))
    _train(tmp_path, NamedDefense("mine", "mine", defense))


@pytest.mark.parametrize(("strategy", "epochs_run"), [("simultaneous", 2), ("sequential", 2), ("independent", 4)])
def test_training_ends_when_every_member_has_converged(tmp_path: Path, strategy: str, epochs_run: int) -> None:
    recipe = replace(RECIPE, strategy=strategy, learning_rate=1e-12, freeze_patience=1, epochs=10, flip=False, shift=0)
    path = _train(tmp_path, recipe=recipe)
    rows = _history(tmp_path)
    assert len(rows) == epochs_run
    assert rows[-1]["frozen"] == "2"
    assert read_provenance(path).scores["frozen_members"] == [0, 1]


@dataclass(frozen=True)
class LeavesFirstAlone(Baseline):
    """The first member gets no gradient, so it does not improve; its state is noted at every step."""

    seen: list[tuple[bool, Tensor, Tensor]] = field(default_factory=list, metadata={"spec": False})

    def objective(self, logits: Tensor, labels: Tensor) -> Terms:
        return {"ece": cross_entropy(logits, labels)[1:].sum(0)}

    def forward(self, ensemble: Ensemble, images: Tensor, labels: Tensor) -> tuple[Tensor, Terms]:
        first, second = ensemble.members
        self.seen.append((first.training, first.bn1.running_mean.clone(), second.conv1.weight.detach().clone()))
        return super().forward(ensemble, images, labels)


def test_a_converged_member_is_frozen_and_the_others_go_on(tmp_path: Path) -> None:
    defense = LeavesFirstAlone()
    recipe = replace(RECIPE, epochs=5, freeze_patience=2, freeze_tolerance=0.02, learning_rate=2e-2)
    path = _train(tmp_path, NamedDefense("mine", "mine", defense), replace(recipe, shift=0.0, flip=False))
    assert read_provenance(path).scores["frozen_members"] == [0]
    frozen = [int(row["frozen"]) for row in _history(tmp_path)]
    assert frozen == [0, 0, 1, 1, 1]
    before, after = defense.seen[:9], defense.seen[9:]
    assert all(training for training, _, _ in before) and not any(training for training, _, _ in after)
    assert not torch.equal(before[0][1], before[-1][1]), "its running statistics move until it is frozen"
    assert torch.equal(after[0][1], after[-1][1]), "and not afterwards"
    assert not torch.equal(after[0][2], after[-1][2]), "the other member is still trained"


# --- starting from a checkpoint ---


def test_training_can_start_from_a_checkpoint_and_says_so(tmp_path: Path) -> None:
    first = _train(tmp_path / "first")
    still = replace(RECIPE, learning_rate=1e-12, epochs=1)
    second = _train(tmp_path / "second", "adp-2-0.5", still, start_from=first.parent)
    assert read_provenance(second).started_from == read_provenance(first).weights_sha256
    for a, b in zip(load_checkpoint(first).parameters(), load_checkpoint(second).parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    with pytest.raises(BadInput, match="started_from"):
        _train(tmp_path / "second", "adp-2-0.5", still)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"members": 3}, "has members 2, not 3"), ({"network": "mini-resnet(width=3)"}, "has network")],
)
def test_a_start_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    first = _train(tmp_path / "first")
    with pytest.raises(BadInput, match=message):
        _train(tmp_path / "second", start_from=first, **change)
    assert not (tmp_path / "second").exists()


def test_a_start_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.safetensors"):
        _train(tmp_path, start_from=tmp_path / "nothing.safetensors")


@pytest.mark.gpu
def test_a_gpu_trains_and_resumes(tmp_path: Path) -> None:
    _train_until(tmp_path, epoch=1, device="cuda")
    assert read_provenance(_train(tmp_path, device="cuda")).epoch == 3
