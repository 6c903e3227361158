"""Intercepts lookups with a combiner: `embedding_lookup_sparse`, `safe_embedding_lookup_sparse`,
ragged ids.

Source: TensorFlow 2.20, python/ops/embedding_ops.py, ragged/ragged_embedding_ops.py,
ragged/ragged_math_ops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from export.errors import NotConvertible
from export.front_end.specs import Encoding
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_of
from export.partition.lookups.records import ActivationOf, TracedLookup, of_table
from export.tensorflow_models.frameworks.hook_points import SAFE_LOOKUPS, SPARSE_LOOKUPS


def intercept_sparse(hooks: Hooks, activation_of: ActivationOf) -> None:
    """Replaces lookups with a combiner; TensorFlow computes those that are not recognized."""

    def combine(
        names: str, encoding: Encoding, original: Callable[..., Any], **arguments: Any
    ) -> Any:
        table, ids, weights = (arguments[name] for name in names.split())
        lookup = _bag(table, ids, encoding, weights, arguments)
        activation = None
        if lookup is not None:
            activation = activation_of(lookup)
        if activation is None:
            return original(**arguments)
        return activation

    for point in SPARSE_LOOKUPS:
        hooks.replace(point, partial(combine, "params sp_ids sp_weights", "ragged"))
    for point in SAFE_LOOKUPS:  # they drop negative ids and weights <= 0: "sparse" in a manifest
        hooks.replace(
            point, partial(combine, "embedding_weights sparse_ids sparse_weights", "sparse")
        )


def _bag(
    table: Any, ids: Any, encoding: Encoding, weights: Any, arguments: Mapping[str, Any]
) -> TracedLookup | None:
    """Returns a lookup of bags; None if the table is no placeholder, or the ids are no bags.

    Args:
      table: The table as it was passed: a variable, or a list of its partitions.
      ids: The ids as they were passed.
      encoding: The way in which the function treats its ids.
      weights: The weights as they were passed.
      arguments: All arguments of the function.

    Raises:
      NotConvertible: Empty bags read a row that the table does not have.
    """
    variable = placeholder_of(table)
    is_bag = isinstance(ids, tf.SparseTensor | tf.RaggedTensor) and ids.shape.rank == 2
    if variable is None or not is_bag:
        return None
    # The strategy decides which row of which partition in the checkpoint an id reads.
    variable.mod |= arguments["partition_strategy"] == "mod"
    max_norm = None
    if arguments["max_norm"] is not None:
        max_norm = float(arguments["max_norm"])
    lookup = of_table(
        variable,
        ids,
        kind="bag",
        weights=weights,
        encoding=encoding,
        # TensorFlow takes the mean where the argument is None.
        combiner=arguments["combiner"] or "mean",
        max_norm=max_norm,
        empty_row=arguments.get("default_id"),
    )
    if lookup.empty_row is not None and not 0 <= lookup.empty_row < lookup.table.rows:
        raise NotConvertible(
            f"lookup {lookup.path!r} has default_id={lookup.empty_row}, which is not among its "
            f"{lookup.table.rows} rows"
        )
    return lookup
