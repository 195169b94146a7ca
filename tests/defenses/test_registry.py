"""Names lead to the right thing, or to a message that helps."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import pytest

from defenses.errors import BadInput
from defenses.registry import Registry, did_you_mean


@pytest.fixture
def shapes() -> Registry[type]:
    registry: Registry[type] = Registry("shape")
    registry.register("circle", complex)
    registry.register("square", int)
    registry.alias("unit-circle", "circle(radius=1)")
    return registry


@pytest.fixture
def installed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution on the path whose entry points offer one good shape and one that does not import."""
    information = tmp_path / "plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[adp_benchmark.shapes]\nhexagon = collections:OrderedDict\nbroken = no_such_module_here:Thing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return information


def test_a_registered_name_gives_its_target(shapes: Registry[type]) -> None:
    assert shapes.get("circle") is complex


def test_the_decorator_registers_and_returns_what_it_decorates(shapes: Registry[type]) -> None:
    class Triangle:
        pass

    assert shapes.decorator("triangle")(Triangle) is Triangle
    assert shapes.get("triangle") is Triangle


def test_names_are_sorted_and_include_aliases_and_targets_do_not(shapes: Registry[type]) -> None:
    assert shapes.names() == ["circle", "square", "unit-circle"]
    assert shapes.targets() == ["circle", "square"]


def test_an_alias_expands_to_its_spec_and_other_names_to_themselves(shapes: Registry[type]) -> None:
    assert shapes.expand("unit-circle") == "circle(radius=1)"
    assert shapes.expand("circle") == "circle"
    assert shapes.aliases() == {"unit-circle": "circle(radius=1)"}


def test_the_dictionary_of_aliases_is_a_copy(shapes: Registry[type]) -> None:
    shapes.aliases().clear()
    assert shapes.expand("unit-circle") == "circle(radius=1)"


def test_an_unknown_name_is_answered_with_the_nearest_one(shapes: Registry[type]) -> None:
    with pytest.raises(BadInput, match=r"^unknown shape 'cirlce'; did you mean circle"):
        shapes.get("cirlce")


def test_a_name_unlike_all_others_is_answered_with_the_whole_list(shapes: Registry[type]) -> None:
    with pytest.raises(BadInput, match=r"^unknown shape 'zzz'; known: circle, square, unit-circle$"):
        shapes.get("zzz")


def test_did_you_mean_overlooks_case() -> None:
    assert did_you_mean("ADP", ["adp", "baseline"]) == "did you mean adp?"
    assert did_you_mean("resnet20", ["ResNet20"]) == "did you mean ResNet20?"


def test_did_you_mean_admits_that_nothing_is_known() -> None:
    assert did_you_mean("anything", []) == "none are known"


@pytest.mark.parametrize("name", ["circle", "unit-circle"])
def test_a_taken_name_is_refused_for_a_target_and_for_an_alias(shapes: Registry[type], name: str) -> None:
    with pytest.raises(BadInput, match=f"shape name '{name}' is already taken"):
        shapes.register(name, str)
    with pytest.raises(BadInput, match=f"shape name '{name}' is already taken"):
        shapes.alias(name, "square")


def test_after_a_refused_registration_the_first_target_stays(shapes: Registry[type]) -> None:
    with pytest.raises(BadInput):
        shapes.register("circle", str)
    assert shapes.get("circle") is complex


def test_registering_the_same_thing_again_is_no_collision(shapes: Registry[type]) -> None:
    shapes.register("circle", complex)
    shapes.alias("unit-circle", "circle(radius=1)")
    shapes.register("counter", "collections:Counter")
    shapes.get("counter")
    shapes.register("counter", "collections:Counter")
    assert shapes.get("counter") is collections.Counter


def test_a_lazy_target_is_imported_only_when_it_is_asked_for() -> None:
    program = (
        "import sys; from defenses.registry import Registry; r = Registry('shape');"
        "r.register('lazy', 'wave:Wave_read'); r.names(); before = 'wave' in sys.modules;"
        "print(before, r.get('lazy').__name__, 'wave' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "Wave_read", "True"]


@pytest.mark.parametrize("target", ["no_such_module_here:Thing", "collections:NoSuchThing", "no colon at all"])
def test_a_lazy_target_that_does_not_import_is_named_in_one_line(shapes: Registry[type], target: str) -> None:
    shapes.register("lazy", target)
    with pytest.raises(BadInput, match=f"shape 'lazy' comes from '{target}', which cannot be imported") as caught:
        shapes.get("lazy")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("installed_plugin")
def test_an_installed_package_adds_names_through_its_entry_points(shapes: Registry[type]) -> None:
    assert shapes.get("hexagon") is collections.OrderedDict
    assert "hexagon" in shapes.names()


@pytest.mark.usefixtures("installed_plugin")
def test_a_broken_entry_point_disturbs_only_whoever_asks_for_it(shapes: Registry[type]) -> None:
    assert "broken" in shapes.names()
    with pytest.raises(BadInput, match="shape 'broken' comes from 'no_such_module_here:Thing'"):
        shapes.get("broken")


@pytest.mark.usefixtures("installed_plugin")
def test_entry_points_of_another_kind_are_left_alone() -> None:
    colours: Registry[type] = Registry("colour")
    assert colours.names() == []


@pytest.mark.usefixtures("installed_plugin")
def test_an_entry_point_that_takes_a_used_name_is_refused_every_time(shapes: Registry[type]) -> None:
    shapes.register("hexagon", dict)
    for _ in range(2):
        with pytest.raises(BadInput, match="shape name 'hexagon' is already taken"):
            shapes.names()
