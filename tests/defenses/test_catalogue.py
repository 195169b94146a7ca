"""A defense is found by name, alias, composition or file, and has one text form."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from defenses.catalogue import PAPER_DEFENSES, parse_defense, register
from defenses.errors import BadInput
from defenses.objectives import ADP, JSD, Baseline, Defense, LabelSmoothing
from defenses.objectives.adversarial_training import AdversarialTraining

MINE = """
from dataclasses import dataclass
from defenses.objectives import Defense, cross_entropy

@dataclass(frozen=True)
class Mine(Defense):
    weight: float = 1.0

    def objective(self, logits, labels):
        return {"mine": self.weight * cross_entropy(logits, labels).sum(0)}

ready = Mine(3.0)
number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize(
    ("text", "canonical", "defense"),
    [
        ("baseline", "baseline", Baseline()),
        ("adp-2-0", "adp(alpha=2,beta=0)", ADP(2, 0)),
        ("adp-2-0.5", "adp(alpha=2,beta=0.5)", ADP(2, 0.5)),
        ("adp( beta=.5, alpha=2.0 )", "adp(alpha=2,beta=0.5)", ADP(2, 0.5)),
        ("adp-2-0.5(temperature=10)", "adp(alpha=2,beta=0.5,temperature=10)", ADP(2, 0.5, 10)),
        ("label-smoothing-0.6", "label-smoothing(target=0.6)", LabelSmoothing(0.6)),
        ("jsd(lambda=1)", "jsd(lambda=1)", JSD(1)),
        ("advt-fgsm", "advt(attack=fgsm)", AdversarialTraining("fgsm")),
        ("advt-pgd+baseline", "advt(attack=pgd)", AdversarialTraining("pgd")),
        ("adp-2-0.5+advt-pgd", "advt(attack=pgd)+adp(alpha=2,beta=0.5)", AdversarialTraining("pgd", inner=ADP(2, 0.5))),
        (
            "advt-fgsm(batch_norm=running) + jsd(lambda=1)",
            "advt(attack=fgsm,batch_norm=running)+jsd(lambda=1)",
            AdversarialTraining("fgsm", batch_norm="running", inner=JSD(1)),
        ),
    ],
)
def test_a_spec_gives_a_defense_and_its_canonical_text(text: str, canonical: str, defense: Defense) -> None:
    named = parse_defense(text)
    assert (named.text, named.defense) == (canonical, defense)
    assert parse_defense(named.text) == named, "the canonical text reads back as the same defense"


@pytest.mark.parametrize("text", [*PAPER_DEFENSES, "label-smoothing-0.6"])
def test_the_short_names_are_the_labels_of_the_tables(text: str) -> None:
    assert parse_defense(text).label == text
    assert parse_defense(parse_defense(text).text).label == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adp-2-05", "did you mean .*adp-2-0.5"),
        ("bseline", "did you mean baseline"),
        ("adp(alpha=2", "cannot read the defense"),
        ("adp(alpha=-1,beta=0)", "alpha is -1"),
        ("adp(alpha=two,beta=0)", "alpha of defense 'adp' is 'two'"),
        ("adp(alpha=nan,beta=0)", "alpha of defense 'adp' is 'nan'"),
        ("adp(alhpa=2,beta=0)", "did you mean alpha"),
        ("adp(alpha=2)", "needs beta"),
        ("adp(alpha=2,alpha=2,beta=0)", "given twice"),
        ("advt-cw", "unknown defense 'advt-cw'"),
        ("advt(attack=cw)", "attack of defense 'advt' is 'cw'; known: fgsm, pgd"),
        ("advt(attack=pgd,eps_low=0.06)", r"\[0.06, 0.05\]"),
        ("advt(attack=pgd,steps=0)", "steps of advt is 0"),
        ("adp-2-0+baseline", "joins two objectives"),
        ("advt-pgd+advt-fgsm", "same wrapper twice"),
        ("", "write a name"),
        ("adp-2-0+", "write a name"),
        ("nowhere.py:Mine", "nowhere.py is not a file"),
    ],
)
def test_a_mistake_in_a_spec_is_answered_with_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_defense(text)


def test_a_class_in_a_file_is_a_defense_with_parameters(file: Path) -> None:
    named = parse_defense(f"{file}:Mine(weight=2)")
    assert named.text == f"{file}:Mine(weight=2)" and named.label == "Mine(weight=2)"
    assert named.defense.weight == 2
    assert len(named.source_digest) == 64


def test_an_instance_in_a_file_is_a_defense_and_can_be_composed(file: Path) -> None:
    named = parse_defense(f"advt-fgsm+{file}:ready")
    assert named.defense.inner.weight == 3
    assert named.label == "advt-fgsm+ready"


def test_a_changed_file_has_another_digest(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(MINE.replace("3.0", "4.0"))
    assert parse_defense(f"{file}:ready").source_digest != parse_defense(f"{other}:ready").source_digest


def test_a_comment_in_a_file_does_not_change_its_digest_and_its_bytes_are_remembered(file: Path) -> None:
    before = parse_defense(f"{file}:ready")
    file.write_text("# a word\n" + MINE)
    after = parse_defense(f"{file}:ready")
    assert after.source_digest == before.source_digest and after.bytes_digest != before.bytes_digest
    bytes_now = hashlib.sha256(file.read_bytes()).hexdigest()
    assert after.bytes_digest == bytes_now and after.is_of(bytes_now), "as in checkpoints of earlier versions"
    assert not before.is_of(bytes_now)


def test_a_file_may_import_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "scale_of_mine.py").write_text("scale = 5.0\n")
    (tmp_path / "mine.py").write_text(
        MINE.replace("ready = Mine(3.0)", "from scale_of_mine import scale\nready = Mine(scale)")
    )
    before = parse_defense(f"{tmp_path}/mine.py:ready")
    assert before.defense.weight == 5
    (tmp_path / "scale_of_mine.py").write_text("scale = 6.0\n")
    assert parse_defense(f"{tmp_path}/mine.py:ready").source_digest != before.source_digest


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("Mien", "defines no 'Mien'; did you mean Mine"),
        ("number", "'number' .* is not a defenses.Defense"),
        ("ready(weight=1)", "is an instance"),
        ("Mine(wieght=1)", "did you mean weight"),
    ],
)
def test_mistakes_about_a_file_are_explained(file: Path, rest: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_defense(f"{file}:{rest}")


@pytest.mark.parametrize("source", ["def broken(:", "import no_such_module_here", "1 / 0"])
def test_a_file_that_does_not_import_is_bad_input_and_may_be_mended(file: Path, source: str) -> None:
    file.write_text(source)
    with pytest.raises(BadInput, match="could not be imported"):
        parse_defense(f"{file}:Mine")
    file.write_text(MINE)
    assert parse_defense(f"{file}:ready").defense.weight == 3


def test_adversarial_training_refuses_to_go_around_a_defense_that_owns_its_step(tmp_path: Path) -> None:
    path = tmp_path / "owner.py"
    path.write_text(
        "from defenses.objectives import Baseline\n"
        "class Owner(Baseline):\n"
        "    def step(self, *arguments):\n"
        "        raise NotImplementedError\n"
    )
    with pytest.raises(BadInput, match="Owner has its own training step"):
        parse_defense(f"advt-pgd+{path}:Owner")


def test_a_taken_name_cannot_be_registered_again() -> None:
    with pytest.raises(BadInput, match="already taken"):
        register("adp")(Baseline)
    with pytest.raises(BadInput, match="already taken"):
        register("adp-2-0.5")(Baseline)


def test_defenses_are_listed_and_read_without_loading_torch() -> None:
    program = (
        "import sys; from defenses.catalogue import DEFENSES, PAPER_DEFENSES, parse_defense;"
        "from defenses.specs import parameters;"
        "[parameters(DEFENSES.get(name)) for name in DEFENSES.targets()];"
        "[parse_defense(spec).defense.check(3, 10) for spec in (*PAPER_DEFENSES, 'gal', 'trs', 'dverge')];"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"], "torch belongs inside the methods of an objective"


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "raise GeneratorExit", "1 / 0"])
def test_a_file_that_ends_the_program_is_bad_input(end: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(end)
    with pytest.raises(BadInput, match="could not be imported"):
        parse_defense(f"{tmp_path}/mine.py:Mine")
