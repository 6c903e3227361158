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
from export.partition.lookups.activations import Bag
from export.recipe.schema import ExportJob


def dense_input(name: str, job: ExportJob, inputs: ReferenceInputs) -> NDArray[Any]:
    """Returns [n, ...]: an input of the recipe as its tower takes it."""
    section = job.inputs[name]
    column = inputs.columns[name]
    tensor = composed(name, section, column, inputs.n, inputs.padding.get(name))
    values = np.asarray(tensor)
    if section.dtype == "bool":
        return values.astype(bool)
    return values


def pooled(name: str, bag: Bag, inputs: ReferenceInputs, model: ModelSpec) -> NDArray[np.float32]:
    """Returns [n, dim]: the rows of each example, combined."""
    activations = np.zeros((inputs.n, bag.table.dim), np.float32)
    tables = {table.config_name: table for table in model.tables.values()}
    if bag.table.name not in tables:
        # No tower needs it.
        return activations
    column = inputs.columns[name]
    offsets = checked_offsets(name, column, inputs.n)
    vectors = read_rows(tables[bag.table.name], column.values, inputs)
    vectors = vectors.astype(np.float64)
    weights = np.ones(len(vectors))
    if bag.weights is not None:
        weights = inputs.columns[bag.weights].values.astype(np.float64)
    for example, (start, end) in enumerate(pairwise(offsets.tolist())):
        bag_vectors = vectors[start:end]
        activations[example] = _combine(bag.table.combiner, bag_vectors, weights[start:end])
    return activations


def rows_of_ids(
    bag: Bag, ids: NDArray[Any], inputs: ReferenceInputs, model: ModelSpec
) -> NDArray[np.float32]:
    """Returns [number of ids, dim]: a row for each id, example by example.

    Args:
      bag: A feature with an activation for each id.
      ids: [n, ...] ids, those of each example.
      inputs: The examples.
      model: The towers that are run, with their tables.
    """
    tables = {table.config_name: table for table in model.tables.values()}
    if bag.table.name not in tables:
        # No tower needs it.
        return np.zeros((ids.size, bag.table.dim), np.float32)
    vectors = read_rows(tables[bag.table.name], ids.reshape(-1), inputs)
    return vectors.astype(np.float32)


def read_rows(table: TableFacts, ids: NDArray[Any], inputs: ReferenceInputs) -> NDArray[Any]:
    """Returns [*shape of ids, dim] rows of a table; zeros for ids that are outside of it."""
    row_count = table.rows
    if table.name in inputs.keyed:
        # Any integer may be a key.
        row_count = np.iinfo(np.int64).max
    row_ids = ids.astype(np.int64)
    is_outside = (row_ids < 0) | (row_ids >= row_count)
    # A row that several examples read is read once.
    row_ids = np.where(is_outside, 0, row_ids)
    unique_rows, positions = np.unique(row_ids, return_inverse=True)
    values = inputs.read_rows(table.name, unique_rows)[:, : table.dim]
    vectors: NDArray[Any] = values[positions.reshape(ids.shape)]
    vectors[is_outside] = 0
    return vectors


def _combine(combiner: Combiner, vectors: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Returns the vector of one bag."""
    total: NDArray[Any] = weights @ vectors
    divisor = 1.0
    if combiner == "mean":
        divisor = weights.sum()
    elif combiner == "sqrtn":
        divisor = np.sqrt((weights**2).sum())
    # A bag without ids, or whose weights add up to zero.
    if not divisor:
        return np.zeros_like(total)
    return total / divisor
