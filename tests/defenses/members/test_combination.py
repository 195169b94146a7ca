"""An ensemble combines its members as it is told, and says so wherever it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from defenses.checkpoints import Provenance, is_checkpoint, load_checkpoint, read_provenance, save_checkpoint
from defenses.errors import BadInput
from defenses.members.combination import (
    RULES,
    Logits,
    Probabilities,
    Random,
    Votes,
    parse_combination,
    split_combination,
)
from defenses.members.ensemble import Ensemble, build_ensemble

SHAPE = (1, 8, 8)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def _by_hand(logits: NDArray[np.float64], rule: str) -> NDArray[np.float64]:
    """The prediction of each rule in numpy, float64, (N, L)."""
    mean = _softmax(logits).mean(0)
    if rule in ("probabilities", "random"):
        return mean
    if rule == "logits":
        return _softmax(logits.mean(0))
    votes = np.zeros_like(mean)
    for member in logits:
        votes[np.arange(len(mean)), member.argmax(-1)] += 1
    return (votes + mean / 2) / (len(logits) + 0.5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])
def test_every_rule_gives_what_numpy_gives_in_float64(rule: str, members: int, scale: float) -> None:
    logits = scale * torch.randn(
        members, 200, 10, generator=torch.Generator().manual_seed(members), dtype=torch.float64
    )
    wanted = _by_hand(logits.numpy(), rule)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        found = parse_combination(rule).combine(logits.to(dtype))
        np.testing.assert_allclose(found.exp().double().numpy(), wanted, atol=tolerance)
        assert torch.isfinite(found).all()
        best = np.sort(wanted)
        clear = best[:, -1] - best[:, -2] > tolerance  # where members are sure, two classes may have half each
        assert clear.any() and (found.argmax(-1).numpy() == wanted.argmax(-1))[clear].all()


def test_the_rules_differ_where_they_should() -> None:
    """One sure member outvotes two hesitant ones in the mean of logits, not in the other two."""
    logits = torch.tensor([[[0.0, 20.0, 0.0]], [[1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]])
    assert [rule().combine(logits).argmax(-1).item() for rule in (Logits, Votes)] == [1, 0]
    assert Probabilities().combine(logits).argmax(-1).item() == 1
    hesitant = torch.tensor([[[0.0, 0.3, 0.0]], [[0.2, 0.0, 0.0]], [[0.2, 0.0, 0.0]]])
    assert Votes().combine(hesitant).argmax(-1).item() == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_of_classes_with_as_many_votes_the_one_with_the_larger_mean_probability_wins(order: tuple[int, ...]) -> None:
    logits = torch.full((3, 1, 3), 0.0)
    for member, (label, height) in enumerate(zip(order, (1.0, 4.0, 2.0), strict=True)):
        logits[member, 0, label] = height
    assert Votes().combine(logits).argmax(-1).item() == order[1]
    equal = torch.zeros(2, 1, 3)
    equal[0, 0, 2] = equal[1, 0, 1] = 1.0
    assert Votes().combine(equal).argmax(-1).item() == 1, "then the class that comes first"


def test_the_most_votes_win_whatever_the_probabilities() -> None:
    logits = torch.tensor([[[50.0, 0.0, 0.0]], [[0.0, 1e-3, 0.0]], [[0.0, 1e-3, 0.0]]])
    assert Probabilities().combine(logits).argmax(-1).item() == 0
    assert Votes().combine(logits).argmax(-1).item() == 1


def test_the_loss_of_votes_has_the_gradient_of_the_mean_probability_in_its_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, 20, 10, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (20,), generator=generator)

    def gradient(rule: type[Votes] | type[Probabilities]) -> Tensor:
        point = logits.clone().requires_grad_()
        loss = nn.functional.cross_entropy(rule().combine(point), labels, reduction="sum")
        return torch.autograd.grad(loss, point)[0].transpose(0, 1).flatten(1)

    votes, mean = gradient(Votes), gradient(Probabilities)
    assert (votes.norm(dim=1) > 0).all()
    torch.testing.assert_close(nn.functional.cosine_similarity(votes, mean), torch.ones(20, dtype=torch.float64))


def test_a_randomised_ensemble_is_right_with_the_probability_of_the_members_that_are() -> None:
    """Three members, three images, label 0: by hand."""
    logits = torch.zeros(3, 3, 2)
    logits[0, :, 0] = torch.tensor([1.0, 1.0, -1.0])
    logits[1, :, 0] = torch.tensor([1.0, -1.0, -1.0])
    logits[2, :, 0] = torch.tensor([1.0, 1.0, -1.0])
    labels = torch.zeros(3, dtype=torch.long)
    assert Random((0.5, 0.3, 0.2)).probability_right(logits, labels).tolist() == pytest.approx([1, 0.7, 0])
    assert Random().probability_right(logits, labels).tolist() == pytest.approx([1, 2 / 3, 0])
    wanted = sum(p * torch.softmax(one.double(), -1) for p, one in zip((0.5, 0.3, 0.2), logits, strict=True))
    torch.testing.assert_close(Random((0.5, 0.3, 0.2)).combine(logits.double()).exp(), wanted)
    logits[0, 0, 1] = float("nan")
    assert Random((0.5, 0.3, 0.2)).probability_right(logits, labels)[0].item() == pytest.approx(0.5)


def test_probabilities_that_sum_to_one_only_nearly_give_no_more_and_no_less_than_one() -> None:
    rule, logits = parse_combination("random(p=0.3333335x0.3333335x0.3333336)"), torch.eye(2).expand(3, 2, 2)
    assert isinstance(rule, Random)
    assert rule.probability_right(logits, torch.tensor([0, 0])).tolist() == [1.0, 0.0]
    torch.testing.assert_close(rule.combine(logits).exp().sum(-1), torch.ones(2))


def test_a_member_of_probability_zero_has_no_say_and_no_gradient() -> None:
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    output = Random((1.0, 0.0)).combine(logits)
    torch.testing.assert_close(output, torch.log_softmax(logits[0], -1))
    (gradient,) = torch.autograd.grad(output[:, 0].sum(), logits)
    assert torch.isfinite(gradient).all() and (gradient[1] == 0).all() and (gradient[0] != 0).any()


def test_the_gradient_of_the_expected_output_is_right_in_float64() -> None:
    logits = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Random((0.5, 0.3, 0.2)).combine, (logits,))


@pytest.mark.parametrize("p", ["0.5x0.4", "1.5x-0.5", "nanx1", "0.5/0.5", "half"])
def test_probabilities_that_are_none_are_bad_input(p: str) -> None:
    with pytest.raises(BadInput):
        parse_combination(f"random(p={p})")


def test_every_member_needs_a_probability(tmp_path: Path) -> None:
    members = list(build_ensemble("mini-resnet(width=2)", 2, SHAPE, 10).members)
    with pytest.raises(BadInput, match="3 probabilities"):
        Ensemble(members, combine="random(p=0.5x0.25x0.25)")
    save_checkpoint(tmp_path / "ensemble.safetensors", Ensemble(members, torch.zeros(SHAPE)), _provenance())
    with pytest.raises(BadInput, match="3 probabilities"):
        load_checkpoint(f"{tmp_path}(combine=random(p=0.5x0.25x0.25))")
    drawn = load_checkpoint(f"{tmp_path}(combine=random(p=1/4x3/4))")
    assert drawn.combination == Random((0.25, 0.75)) and drawn.combination.text == "random(p=0.25x0.75)"
    save_checkpoint(tmp_path / "again.safetensors", drawn, _provenance())
    assert load_checkpoint(tmp_path / "again.safetensors").combination == Random((0.25, 0.75))


def test_an_output_that_is_not_a_number_stays_one() -> None:
    logits = torch.zeros(3, 1, 4)
    logits[1, 0, 2] = float("nan")
    for rule in RULES.values():
        assert rule().combine(logits).isnan().any()


def test_an_ensemble_is_told_its_rule_and_a_member_alone_has_none_to_follow() -> None:
    images = torch.rand(6, *SHAPE)
    members = build_ensemble("mini-resnet(width=2)", 3, SHAPE, 10).eval()
    usual = Ensemble(list(members.members))
    for rule in RULES:
        ensemble = Ensemble(list(members.members), combine=rule).eval()
        wanted = _by_hand(usual.member_logits(images).detach().double().numpy(), rule)
        np.testing.assert_allclose(ensemble(images).exp().detach().numpy(), wanted, atol=1e-5)
        assert ensemble.combination.text == rule
        alone = ensemble.member(1)
        torch.testing.assert_close(alone(images), torch.log_softmax(members.members[1](images), -1))
    with pytest.raises(BadInput, match="did you mean votes"):
        Ensemble(list(members.members), combine="vote")


def _provenance(**others: object) -> Provenance:
    return Provenance("baseline", "patterns", "mini-resnet(width=2)", 2, SHAPE, 10, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_a_checkpoint_keeps_the_rule_and_a_spec_may_ask_for_another(tmp_path: Path, rule: str) -> None:
    folder = tmp_path / "mini-resnet(width=2)"
    folder.mkdir()
    ensemble = build_ensemble("mini-resnet(width=2)", 2, SHAPE, 10, torch.zeros(SHAPE), combine=rule)
    save_checkpoint(folder / "ensemble.safetensors", ensemble, _provenance())
    origin = read_provenance(folder / "ensemble.safetensors")
    assert origin.combine == rule
    assert (origin.identity == origin.weights_sha256) == (rule == "probabilities")
    assert load_checkpoint(folder).combination.text == rule
    for spec in (f"{folder}(combine=votes)", f"{folder}/ensemble.safetensors( combine = votes )"):
        assert is_checkpoint(spec)
        other = load_checkpoint(spec)
        assert other.combination == Votes() and other.provenance is not None
        assert other.provenance.combine == "votes"
        assert (other.provenance.identity == origin.identity) == (rule == "votes")


def test_a_checkpoint_of_before_averages_probabilities_and_an_unknown_rule_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    save_checkpoint(path, build_ensemble("mini-resnet(width=2)", 2, SHAPE, 10, torch.zeros(SHAPE)), _provenance())
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["adp-benchmark"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    del record["combine"]
    save_file(tensors, path, metadata={"adp-benchmark": json.dumps(record)})
    assert load_checkpoint(path).combination == Probabilities()
    record["combine"] = "guess"
    save_file(tensors, path, metadata={"adp-benchmark": json.dumps(record)})
    with pytest.raises(BadInput, match="guess"):
        load_checkpoint(path)


def test_weights_from_outside_take_the_rule_of_the_spec(tmp_path: Path) -> None:
    built = build_ensemble("mini-resnet(width=2)", 2, SHAPE, 10).eval()
    names = []
    for number, member in enumerate(built.members):
        torch.save(member.state_dict(), tmp_path / f"{number}.pt")
        names.append(str(tmp_path / f"{number}.pt"))
    images = torch.rand(5, *SHAPE)
    logits = built.member_logits(images).detach().double().numpy()
    identities = set()
    for spec, rule in (
        (":mini-resnet(width=2)", "probabilities"),
        (":mini-resnet(width=2,combine=logits)", "logits"),
        (":mini-resnet(combine=votes,width=2)", "votes"),
    ):
        ensemble = load_checkpoint(",".join(names) + spec, shape=SHAPE, classes=10)
        np.testing.assert_allclose(ensemble(images).exp().detach().numpy(), _by_hand(logits, rule), atol=1e-5)
        assert ensemble.provenance is not None
        identities.add(ensemble.provenance.identity)
    assert len(identities) == 3


def test_a_function_may_give_an_ensemble_with_a_rule_and_a_spec_another(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(
        "import torch\nfrom torch import nn\nfrom defenses import Ensemble\n"
        "def load():\n    torch.manual_seed(0)\n"
        "    return Ensemble([nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(3)], combine='logits')\n"
    )
    assert load_checkpoint(f"{tmp_path}/models.py:load").combination == Logits()
    found = load_checkpoint(f"{tmp_path}/models.py:load(combine=votes)")
    assert is_checkpoint(f"{tmp_path}/models.py:load(combine=votes)") and found.combination == Votes()


@pytest.mark.parametrize(
    ("spec", "without", "rule"),
    [
        ("a.pt:resnet20", "a.pt:resnet20", None),
        ("a.pt:resnet20(leak=0.1)", "a.pt:resnet20(leak=0.1)", None),
        ("a.pt:resnet20(leak=0.1,combine=logits)", "a.pt:resnet20(leak=0.1)", Logits()),
        ("a.pt(combine=votes)", "a.pt", Votes()),
        ("a.pt:resnet20(leak=0.1,combine=random(p=0.5x0.5))", "a.pt:resnet20(leak=0.1)", Random((0.5, 0.5))),
        ("a.pt(combine=random)", "a.pt", Random()),
        ("net(width=4)-k2(combine=votes)", "net(width=4)-k2", Votes()),
        ("net(width=4)-k2", "net(width=4)-k2", None),
        ("net(combine=votes)-k2", "net(combine=votes)-k2", None),
        (")", ")", None),
        ("", "", None),
    ],
)
def test_the_rule_is_split_off_a_spec(spec: str, without: str, rule: object) -> None:
    assert split_combination(spec) == (without, rule)


@pytest.mark.parametrize("spec", ["a.pt(combine=vote)", "a.pt(combine=)", "a.pt(combine=votes,combine=logits)"])
def test_a_rule_that_cannot_be_read_is_bad_input(spec: str) -> None:
    with pytest.raises(BadInput):
        split_combination(spec)
