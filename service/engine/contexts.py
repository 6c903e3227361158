"""Contexts by id: the features that a request does not send are taken from the bundle's context store.

An id that the store does not hold is counted, and the context has the defaults. Only where a feature has no default is
the request rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.columns import Column, checked_offsets
from service.engine.context import Execution
from service.engine.lookup import count_examples
from service.engine.requests import Ids
from service.engine.validation import choose_context_store, show_id
from service.errors import InvalidArgument
from service.models.version import LoadedStore, ModelVersion

Columns = Mapping[str, Column]


def count(model_version: ModelVersion, sent: Columns, ids: Ids | None) -> int:
    """Returns how many contexts a request has: as many as ids, else as its features hold."""
    return count_examples(model_version.manifest, sent) if ids is None else int(ids.size)


def complete(
    model_version: ModelVersion, inputs: Collection[str], sent: Columns, ids: Ids | None, n: int, execution: Execution
) -> Columns:
    """Returns the columns that were sent, and beside them what the store holds of the other inputs.

    Args:
      inputs: of the n contexts, that are needed.
      ids: of the contexts; None: nothing is taken from a store.
    Raises:
      InvalidArgument: there is no store, more than one, or not one id for each context; or a context is not in the
        store and one of its inputs has no default: names it.
    """
    if ids is None:
        return sent
    if ids.size != n:
        raise InvalidArgument(f"{ids.size} context ids were sent for {n} contexts; one each was expected")
    store = choose_context_store(model_version, [name for name in inputs if name not in sent])
    if store is None:
        return sent
    names = [name for name in inputs if name not in sent and name in store.entry.features]
    with execution.phase("lookup"):
        positions = store.store.positions(ids, "context")
        known = positions >= 0
        stored = store.store.features(positions[known], names)
        if not known.all():
            execution.missing_contexts(model_version.model, store.name, int(np.count_nonzero(~known)))
            stored = {name: _with_default(model_version, store, name, stored[name], known, ids) for name in names}
    return {**sent, **stored}


def _with_default(
    model_version: ModelVersion, store: LoadedStore, name: str, stored: Column, known: NDArray[np.bool_], ids: Ids
) -> Column:
    """Returns the column of all contexts: what is stored of the known ones, the default for the others."""
    written = model_version.manifest.default_of(name)
    if written is None:
        raise InvalidArgument(
            f"context {show_id(ids[~known][0])} is not in store {store.name!r} of {store.entry.size} contexts, "
            f"and its feature {name!r} has no default; send it"
        )
    default = _default_column(written)
    offsets = checked_offsets(name, stored, int(np.count_nonzero(known)))
    size, default_size = int(stored.values.size), int(default.values.size)
    values = np.concatenate([stored.values, default.values.astype(stored.values.dtype)])
    weights = None
    if stored.weights is not None:
        default_weights = np.ones(default_size, np.float32) if default.weights is None else default.weights
        weights = np.concatenate([stored.weights, default_weights.astype(np.float32)])
    starts, lengths = np.full(known.size, size), np.full(known.size, default_size)
    starts[known], lengths[known] = offsets[:-1], np.diff(offsets)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    return Column(values[places], ends, None if weights is None else weights[places])


def _default_column(written: Any) -> Column:
    """Returns the one example that a default is, as the manifest writes it."""
    if isinstance(written, dict):
        return Column(np.asarray(written["ids"]), None, np.asarray(written["weights"], np.float32))
    return Column(np.asarray(written).reshape(-1))
