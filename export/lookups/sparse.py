"""Intercepts lookups that combine: `embedding_lookup_sparse`, `safe_embedding_lookup_sparse`, ragged ids.

Source: TensorFlow 2.20, python/ops/embedding_ops.py, ragged/ragged_embedding_ops.py, ragged/ragged_math_ops.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from export.errors import NotConvertible
from export.frameworks.hooks import hooked
from export.frameworks.loading import load_tensorflow
from export.frameworks.placeholders import stand_in_class
from export.graph.specs import Combiner, Encoding
from export.lookups.gathers import facts_of
from export.lookups.records import Answer, Lookup


@contextlib.contextmanager
def sparse_lookups_intercepted(answer: Answer) -> Iterator[None]:
    """Answers lookups in StandIns that combine, within the `with`; what is not recognised, TensorFlow does itself."""
    from tensorflow.python.ops import embedding_ops
    from tensorflow.python.ops.ragged import ragged_embedding_ops

    def combined(original: Callable[..., Any], **how: Any) -> Any:
        lookup = _combined(how["params"], how["sp_ids"], how["sp_weights"], how, "ragged")
        found = answer(lookup) if lookup is not None else None
        return original(**how) if found is None else found

    def safe(original: Callable[..., Any], **how: Any) -> Any:
        lookup = _combined(how["embedding_weights"], how["sparse_ids"], how["sparse_weights"], how, "sparse")
        found = answer(lookup) if lookup is not None else None
        return original(**how) if found is None else found

    with (
        hooked(embedding_ops.embedding_lookup_sparse, combined),
        hooked(ragged_embedding_ops.embedding_lookup_sparse, combined),
        hooked(embedding_ops.safe_embedding_lookup_sparse, safe),
        hooked(ragged_embedding_ops.safe_embedding_lookup_sparse, safe),
    ):
        yield


def _combined(params: Any, ids: Any, weights: Any, how: dict[str, Any], encoding: Encoding) -> Lookup | None:
    """Describes a bag; `encoding` is whose rules it follows: the safe ones drop negative ids and weights <= 0."""
    tf = load_tensorflow()
    variable: Any = params[0] if isinstance(params, list | tuple) and len(params) == 1 else params
    variable = getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
    known = isinstance(variable, stand_in_class())
    if not known or not isinstance(ids, tf.SparseTensor | tf.RaggedTensor) or ids.shape.rank != 2:
        return None
    variable.mod |= how.get("partition_strategy") == "mod"
    path = variable.name.partition(":")[0]
    combiner: Combiner = how["combiner"] or "mean"
    facts, empty_row = facts_of(variable), how.get("default_id")
    if empty_row is not None and not 0 <= empty_row < facts.rows:
        raise NotConvertible(f"lookup {path!r} has default_id={empty_row}, which is no row of its {facts.rows}")
    return Lookup(
        path=path,
        table=facts,
        variable=variable,
        ids=(ids,),
        weights=weights,
        kind="bag",
        encoding=encoding,
        combiner=combiner,
        length=None,
        max_norm=None if how["max_norm"] is None else float(how["max_norm"]),
        empty_row=empty_row,
    )
