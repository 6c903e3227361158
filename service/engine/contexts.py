"""Contexts by id: what a request does not send of their features is taken from the bundle's context store.

An id that the store does not hold is data, as everywhere: the context has the defaults, and is counted. Only where a
feature has none is the request refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.columns import Column, checked_offsets
from service.engine import choice, lookup
from service.engine.requests import Ids
from service.engine.steps import Steps
from service.errors import InvalidArgument
from service.generations.generation import Generation, LoadedCorpus

Columns = Mapping[str, Column]


def count(generation: Generation, sent: Columns, ids: Ids | None) -> int:
    """Tells how many contexts a request is of: as many as it has ids, else as its features hold."""
    return lookup.count_examples(generation.manifest, sent) if ids is None else int(ids.size)


def filled(
    generation: Generation, taken: Collection[str], sent: Columns, ids: Ids | None, n: int, steps: Steps
) -> Columns:
    """Returns what was sent, and beside it what the store holds of the other inputs that are taken.

    Args:
      taken: inputs of the n contexts that are wanted.
      ids: of the contexts; None: nothing is taken from a store.
    Raises:
      InvalidArgument: there is no store, more than one, or not one id for each context; or a context is not in the
        store and one of its inputs has no default: names it.
    """
    if ids is None:
        return sent
    if ids.size != n:
        raise InvalidArgument(f"{ids.size} context ids were sent for {n} contexts; one each was expected")
    store = choice.store_of(generation, [name for name in taken if name not in sent])
    if store is None:
        return sent
    names = [name for name in taken if name not in sent and name in store.page.features]
    with steps.phase("lookup"):
        positions = store.store.positions(ids, "context")
        known = positions >= 0
        stored = store.store.features(positions[known], names)
        if not known.all():
            steps.unknown_contexts(generation.model, store.name, int(np.count_nonzero(~known)))
            stored = {name: _with_default(generation, store, name, stored[name], known, ids) for name in names}
    return {**sent, **stored}


def _with_default(
    generation: Generation, store: LoadedCorpus, name: str, stored: Column, known: NDArray[np.bool_], ids: Ids
) -> Column:
    """Returns the column of all contexts: what is stored of those that are known, in between the default."""
    told = generation.manifest.default_of(name)
    if told is None:
        unknown = ids[~known][0]
        shown = repr(unknown[:128]) if isinstance(unknown, str) else str(unknown)
        raise InvalidArgument(
            f"context {shown} is not in store {store.name!r} of {store.page.size} contexts, and its feature {name!r} "
            "has no default; send it"
        )
    default = _column(told)
    offsets = checked_offsets(name, stored, int(np.count_nonzero(known)))
    size, default_size = int(stored.values.size), int(default.values.size)
    values = np.concatenate([stored.values, default.values.astype(stored.values.dtype)])
    weights = None
    if stored.weights is not None:
        beside = np.ones(default_size, np.float32) if default.weights is None else default.weights
        weights = np.concatenate([stored.weights, beside.astype(np.float32)])
    starts, lengths = np.full(known.size, size), np.full(known.size, default_size)
    starts[known], lengths[known] = offsets[:-1], np.diff(offsets)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    return Column(values[places], ends, None if weights is None else weights[places])


def _column(told: Any) -> Column:
    """Returns the one example that a default is, as the manifest writes it."""
    if isinstance(told, dict):
        return Column(np.asarray(told["ids"]), None, np.asarray(told["weights"], np.float32))
    return Column(np.asarray(told).reshape(-1))
