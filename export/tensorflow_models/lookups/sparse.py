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
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import SAFE_LOOKUPS, SPARSE_LOOKUPS
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.placeholders import placeholder_of
from export.tensorflow_models.lookups.records import Answer, Lookup, of_table


def intercept_sparse(hooks: Hooks, answer: Answer) -> None:
    """Replaces lookups with a combiner; TensorFlow does those that are not recognized."""

    def combined(names: str, encoding: Encoding, original: Callable[..., Any], **how: Any) -> Any:
        table, ids, weights = (how[name] for name in names.split())
        lookup = _bag(table, ids, encoding, weights, how)
        found = answer(lookup) if lookup is not None else None
        return original(**how) if found is None else found

    for point in SPARSE_LOOKUPS:
        hooks.replace(point, partial(combined, "params sp_ids sp_weights", "ragged"))
    for point in SAFE_LOOKUPS:  # they drop negative ids and weights <= 0: "sparse" in a manifest
        hooks.replace(
            point, partial(combined, "embedding_weights sparse_ids sparse_weights", "sparse")
        )


def _bag(
    table: Any, ids: Any, encoding: Encoding, weights: Any, how: Mapping[str, Any]
) -> Lookup | None:
    variable = placeholder_of(table)
    if (
        variable is None
        or not isinstance(ids, tf.SparseTensor | tf.RaggedTensor)
        or ids.shape.rank != 2
    ):
        return None
    variable.mod |= how["partition_strategy"] == "mod"
    lookup = of_table(
        variable,
        ids,
        kind="bag",
        weights=weights,
        encoding=encoding,
        combiner=how["combiner"] or "mean",
        max_norm=None if how["max_norm"] is None else float(how["max_norm"]),
        empty_row=how.get("default_id"),
    )
    if lookup.empty_row is not None and not 0 <= lookup.empty_row < lookup.table.rows:
        raise NotConvertible(
            f"lookup {lookup.path!r} has default_id={lookup.empty_row}, which is not among its "
            f"{lookup.table.rows} rows"
        )
    return lookup
