"""Inputs of a reference model that takes activations: rows of the checkpoint, combined in NumPy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import checked_offsets
from export.front_end.interface import ReferenceInputs
from export.front_end.specs import Combiner, ModelSpec, TableFacts
from export.graphs.tensors import composed
from export.recipe.schema import ExportJob
from export.tensorflow_models.lookups.activations import Bag


def dense_input(name: str, job: ExportJob, inputs: ReferenceInputs) -> NDArray[Any]:
    """Returns [n, ...]: an input of the recipe as its tower takes it."""
    part = job.inputs[name]
    tensor = composed(name, part, inputs.columns[name], inputs.n, inputs.padding.get(name))
    values = np.asarray(tensor)
    return values.astype(bool) if part.dtype == "bool" else values


def pooled(name: str, bag: Bag, inputs: ReferenceInputs, model: ModelSpec) -> NDArray[np.float32]:
    """Returns [n, dim]: the rows of each example, combined."""
    found = np.zeros((inputs.n, bag.table.dim), np.float32)
    known = {table.config_name: table for table in model.tables.values()}
    if bag.table.name not in known:
        return found  # no tower needs it
    column = inputs.columns[name]
    offsets = checked_offsets(name, column, inputs.n)
    vectors = read_rows(known[bag.table.name], column.values, inputs).astype(np.float64)
    weights = np.ones(len(vectors))
    if bag.weights is not None:
        weights = inputs.columns[bag.weights].values.astype(np.float64)
    for example, (first, last) in enumerate(pairwise(offsets.tolist())):
        found[example] = _combined(bag.table.combiner, vectors[first:last], weights[first:last])
    return found


def rows_of_ids(
    bag: Bag, ids: NDArray[Any], inputs: ReferenceInputs, model: ModelSpec
) -> NDArray[np.float32]:
    """Returns [number of ids, dim]: a row for each id, example by example.

    Args:
      bag: a feature with an activation for each id.
      ids: [n, ...], of each example.
      inputs, model: as for `pooled`.
    """
    known = {table.config_name: table for table in model.tables.values()}
    if bag.table.name not in known:
        return np.zeros((ids.size, bag.table.dim), np.float32)  # no tower needs it
    return read_rows(known[bag.table.name], ids.reshape(-1), inputs).astype(np.float32)


def read_rows(table: TableFacts, ids: NDArray[Any], inputs: ReferenceInputs) -> NDArray[Any]:
    """Returns [*shape of ids, dim] rows of a table; zeros for ids that are outside."""
    count = np.iinfo(np.int64).max if table.name in inputs.keyed else table.rows
    wanted = ids.astype(np.int64)
    outside = (wanted < 0) | (wanted >= count)
    rows, places = np.unique(np.where(outside, 0, wanted), return_inverse=True)
    values = inputs.read_rows(table.name, rows)[:, : table.dim]
    found: NDArray[Any] = values[places.reshape(ids.shape)]
    found[outside] = 0
    return found


def _combined(combiner: Combiner, vectors: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Returns the vector of one bag."""
    total: NDArray[Any] = weights @ vectors
    divisor = 1.0
    if combiner == "mean":
        divisor = weights.sum()
    elif combiner == "sqrtn":
        divisor = np.sqrt((weights**2).sum())
    return total / divisor if divisor else np.zeros_like(total)
