"""The plan of ``crosscheck --every-class``: parameters and images for every attack class of the libraries."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.attacks import NamedAttack, parse_attack
from benchmark.attacks.bounds import Norm
from benchmark.attacks.library_attacks import LibraryClass, library_classes
from benchmark.attacks.library_facts import LIBRARIES, NEEDS_COLOUR
from benchmark.datasets.catalogue import DATASETS
from benchmark.evaluations.task import Amount
from benchmark.evaluations.whitebox import Row, WhiteBoxSection
from benchmark.plan.grid import Grid
from benchmark.plan.labels import read_labels
from benchmark.plan.presets import Preset, usual_recipe

NAME = "every-class"
IMAGES = 20
GREY, COLOUR = "digits", "cifar10"
"""The dataset for most classes, and the dataset for classes that accept only images with three channels."""
RADII: dict[str, dict[Norm, str]] = {
    GREY: {"linf": "0.2", "l2": "1", "l1": "4", "l0": "6"},
    COLOUR: {"linf": "0.01", "l2": "0.25", "l1": "5", "l0": "30"},
}
ARGUMENTS = {
    "torchattacks:GN": "bound=l2:1",
    "torchattacks:JSMA": "bound=l0:6",
    "torchattacks:OnePixel": "bound=l0:1",
    "torchattacks:Pixle": "x_dimensions=1x3,y_dimensions=1x3,bound=l0:12",
    "art:AutoConjugateGradient": "max_iter=20,nb_random_init=1",
    "art:AutoProjectedGradientDescent": "max_iter=20,nb_random_init=1",
    "art:BasicIterativeMethod": "max_iter=20",
    "art:BoundaryAttack": "max_iter=20",
    "art:BrendelBethgeAttack": "norm=l2,steps=10",
    "art:CarliniL0Method": "binary_search_steps=1,max_iter=5,initial_const=1",
    "art:CarliniL2Method": "binary_search_steps=2,initial_const=1",
    "art:CarliniLInfMethod": "learning_rate=0.1,initial_const=5",
    "art:DeepFool": "max_iter=20",
    "art:ElasticNet": "binary_search_steps=2,max_iter=30,initial_const=1",
    "art:HopSkipJump": "max_iter=3,max_eval=500",
    "art:MomentumIterativeMethod": "max_iter=20",
    "art:NewtonFool": "max_iter=10",
    "art:PixelAttack": "th=3,max_iter=3,bound=l0:3",
    "art:ProjectedGradientDescent": "max_iter=20",
    "art:ProjectedGradientDescentNumpy": "max_iter=20",
    "art:ProjectedGradientDescentPyTorch": "max_iter=20",
    "art:RescalingAutoConjugateGradient": "max_iter=20,nb_random_init=1",
    "art:SaliencyMapMethod": "theta=0.5,gamma=0.1,bound=l0:6",
    "art:ShadowAttack": "nb_steps=20,bound=none",
    "art:SignOPTAttack": "max_iter=5,query_limit=500,k=20,num_trial=10",
    "art:SimBA": "attack=px,max_iter=300,bound=l2:1",
    "art:SpatialTransformation": "max_translation=15,num_translations=3,max_rotation=30,num_rotations=5,bound=none",
    "art:TargetedUniversalPerturbation": "max_iter=1",
    "art:ThresholdAttack": "th=25,es=1,max_iter=3,bound=linf:25/255",
    "art:UniversalPerturbation": "attacker=fgsm,max_iter=1",
    "art:Wasserstein": "max_iter=10,bound=none",
    "art:ZooAttack": (
        "learning_rate=0.1,initial_const=10,max_iter=20,use_resize=false,use_importance=false,nb_parallel=16"
    ),
    "foolbox:BoundaryAttack": "steps=300",
    "foolbox:EADAttack": "binary_search_steps=2,steps=100,initial_const=1",
    "foolbox:GenAttack": "steps=100",
    "foolbox:HopSkipJumpAttack": "steps=3,max_gradient_eval_steps=500",
    "foolbox:L0BrendelBethgeAttack": "steps=3",
    "foolbox:L1BrendelBethgeAttack": "steps=3",
    "foolbox:L2BrendelBethgeAttack": "steps=20",
    "foolbox:L2CarliniWagnerAttack": "binary_search_steps=2,steps=100,initial_const=1",
    "foolbox:LinfinityBrendelBethgeAttack": "steps=20",
    "foolbox:SpatialAttack": "bound=none",
    "foolbox:VirtualAdversarialAttack": "steps=5",
}
"""Arguments that differ from the library's defaults: bounds that a spec must give, and less work if the default takes
long on twenty images."""


def tried(one: LibraryClass, dataset: str) -> NamedAttack:
    """The attack of a class, with its parameters in this plan."""
    facts, given = one.bound_facts, ARGUMENTS.get(f"{one.library}:{one.name}", "")
    arguments = [given] if given else []
    if facts.kind == "radius":
        radius = RADII[dataset][facts.norm or "linf"]
        arguments.append(f"{facts.radius}={radius}")
        if "alpha" in one.parameters:  # torchattacks' default does not grow with eps
            arguments.append(f"alpha={float(radius) / 4:g}")
    elif facts.kind == "asked for" and "bound=" not in given:
        arguments.append("bound=none")  # a class without a bound in ARGUMENTS, such as a new one
    return parse_attack(f"{one.library}:{one.name}({','.join(arguments)})")


def every_class_preset(libraries: Sequence[str], defense: str, samples: int | None = None) -> Preset:
    """A preset with every usable class, on a few images, in tier strict."""
    rows: dict[str, list[Row]] = {GREY: [], COLOUR: []}
    count = samples or IMAGES
    classes = [one for library in libraries or LIBRARIES for one in library_classes(library).values()]
    for one in sorted(classes, key=lambda one: f"{one.library}:{one.name}" in ARGUMENTS):  # slow ones last
        if not one.left_out:
            dataset = COLOUR if (one.library, one.name) in NEEDS_COLOUR else GREY
            rows[dataset].append(Row(tried(one, dataset), Amount(count, count)))
    grids = tuple(_grid(dataset, defense, tuple(found)) for dataset, found in rows.items() if found)
    return Preset(NAME, "Every attack class of the libraries", grids)


def _grid(dataset: str, defense: str, rows: tuple[Row, ...]) -> Grid:
    defenses, labels = read_labels([defense])
    return Grid(
        dataset=dataset,
        defenses=defenses,
        labels=labels,
        tiers=("strict",),
        members=3,
        network=DATASETS.get(dataset).network,
        recipe=usual_recipe(dataset),
        batch_size=100,
        sections=(WhiteBoxSection(rows),),
    )
