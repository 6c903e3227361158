"""Prepares traced towers for writing: bounds functions that saturate, splits ranking towers into
parts and packs inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bundle.format import manifest
from export.front_end.interface import PartitionedModel
from export.recipe.schema import ExportJob
from export.towers.division import Split, split_tower
from export.towers.packing import pack
from export.towers.positions.extending import extension_of
from export.towers.saturating_functions import with_saturating_functions


def arrange_towers(
    traced: PartitionedModel, job: ExportJob, features: Mapping[str, manifest.Feature]
) -> tuple[PartitionedModel, dict[str, Split]]:
    """Writes functions as LiteRT computes them, splits ranking towers unless the recipe disables
    it, and packs inputs.

    Args:
      traced: The model, with one tower input for each feature.
      job: The recipe.
      features: The features of the manifest.
    Returns:
      The model with its towers as they are written, and the parts of ranking towers by name.
    """
    splits = {}
    towers = []
    for traced_tower in traced.towers:
        tower = with_saturating_functions(traced_tower)
        name = tower.spec.name
        if tower.spec.role == "ranking" and job.towers[name].split:
            # Before the tower is packed: a packed input may belong to both sides.
            names = [tensor.feature for tensor in tower.spec.inputs]
            split = split_tower(tower, {feature: features[feature].role for feature in names})
            packed_parts = tuple(pack(part) for part in split.parts)
            split = replace(split, parts=packed_parts)
            splits[name] = with_extension(split, name, features)
        towers.append(pack(tower))
    spec = replace(traced.spec, towers={tower.spec.name: tower.spec for tower in towers})
    return replace(traced, spec=spec, towers=tuple(towers)), splits


def with_extension(split: Split, name: str, features: Mapping[str, manifest.Feature]) -> Split:
    """Returns parts of the tower `name` with what extends the state of a context, where its
    sequences are histories that are padded at their end.
    """
    of_contexts = [part for part in split.parts if part.spec.per == "context"]
    if not of_contexts:
        return split
    extension, problem = extension_of(of_contexts[0], features)
    if problem:
        note = f"tower {name!r}: the state of a context is not stored between requests: {problem}"
        split = replace(split, notes=(*split.notes, note))
    return replace(split, extension=extension)
