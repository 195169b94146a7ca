"""How long training takes: the relative cost of each epoch, and the seconds of all of them."""

from __future__ import annotations

import time

import torch

from defenses.members.ensemble import Ensemble, build_ensemble
from defenses.objectives import Defense, Place
from defenses.training.data import TrainingData
from defenses.training.recipes import Recipe
from defenses.training.request import TrainingRequest


def relative_costs(defense: Defense, recipe: Recipe, ensemble: Ensemble, from_checkpoint: bool) -> list[float]:
    """The relative cost of each epoch: its pixels times the work of the defense per pixel."""
    places = [Place(epoch, recipe.epochs, from_checkpoint) for epoch in range(recipe.epochs)]
    generator = torch.Generator()  # its draws do not matter here
    return [recipe.scale_at(place.epoch) ** 2 * defense.at(place, ensemble, generator).cost for place in places]


def estimate_seconds(request: TrainingRequest, data: TrainingData, device: torch.device | str) -> float:
    """The estimated seconds of training, from two steps with a temporary ensemble."""
    recipe, whole = request.recipe, request.named.defense
    mean = data.train.mean_image()
    ensemble = build_ensemble(request.network, request.members, data.shape, data.classes, mean).to(device)
    ensemble.precision = getattr(torch, recipe.precision)
    rows = slice(0, recipe.batch_size)
    images, labels = data.train.images(rows).to(device), data.train.labels[rows].to(device)
    optimiser = torch.optim.Adam(ensemble.train().parameters())
    generator = torch.Generator().manual_seed(0)
    defense = whole.at(Place(recipe.epochs - 1, recipe.epochs), ensemble, generator)
    for _ in range(2):  # the first step is slower, because it allocates memory
        began = time.perf_counter()
        defense.step(ensemble, optimiser, images, labels, generator)
        seconds = time.perf_counter() - began
    if whole.boosts:  # the step had all members at once; boosting attacks the k-th with those before it
        seconds *= (request.members + 1) / 2
    batches = recipe.batch_count(recipe.train_images or len(data.train))
    return seconds * batches * sum(relative_costs(whole, recipe, ensemble, False)) / defense.cost
