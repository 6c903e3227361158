"""What a shard answers its fronts: rows by position, and the nearest of the candidates that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.config import ServiceSettings
from service.engine import filters, search, validation
from service.engine.context import Execution
from service.engine.requests import PartFound, PartSearch, RowPositions, RowsFound, RowsRead
from service.errors import InvalidArgument, NotFound
from service.models.version import LoadedIndex, ModelVersion

_NONE = np.empty(0, np.int64)


def read_rows(
    model_version: ModelVersion, request: RowsRead, settings: ServiceSettings, execution: Execution
) -> RowsFound:
    """Reads rows as they are stored.

    Raises:
      NotFound: this process is another shard, or holds another bundle, or not the table or index.
      InvalidArgument: a position is beyond the rows held.
    """
    _check(model_version, request, settings)
    validation.at_most(settings, "max_values", sum(each.positions.size for each in request.rows), "the request")
    with execution.phase("lookup"):
        rows = tuple([_read(model_version, each) for each in request.rows])
    return RowsFound(model_version.model, model_version.version, rows)


def _read(model_version: ModelVersion, wanted: RowPositions) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Returns rows and scales as they are stored."""
    names, counts, positions, is_index = wanted
    if is_index:
        vectors = _index(model_version, names[0]).vectors
        _check_positions(names[0], positions, len(vectors))
        taken: NDArray[Any] = vectors.take(positions, axis=0)
        return taken.view(np.uint8), np.empty((positions.size, 0), np.uint8)
    found = []
    for name, own in zip(names, np.split(positions, counts.cumsum()[:-1]), strict=True):
        table = model_version.tables.get(name)
        if table is None:
            raise NotFound(f"{validation.show_version(model_version)}: no row of {name[:128]!r} is held here")
        _check_positions(name, own, table.rows)
        found.append(table.stored(own.astype(np.int64)))
    if len({values.shape[1:] + scales.shape[1:] for values, scales in found}) != 1:
        raise InvalidArgument(
            f"tables {', '.join(names)[:128]} are asked together; some of one row layout were expected"
        )
    values, scales = zip(*found, strict=True)
    return np.concatenate(values), np.concatenate(scales)


def search_part(
    model_version: ModelVersion, request: PartSearch, settings: ServiceSettings, execution: Execution
) -> PartFound:
    """Searches the candidates of an index that are held here.

    Raises:
      NotFound: this process is another shard, or holds another bundle, or no part of the index.
      InvalidArgument: the filter does not suit the attributes.
    """
    _check(model_version, request, settings)
    validation.at_most(settings, "max_queries", len(request.vectors), "the search")
    index = _index(model_version, request.index)
    n, size = len(request.vectors), len(index.vectors)
    ends = np.array([index.first, index.first + size])
    excluded = [each[slice(*each.searchsorted(ends))] - index.first for each in request.excluded]
    compiled = filters.compiled(index, request.filter) if request.filter else None
    allowed = search.Allowed(excluded if len(excluded) == n else excluded * n or [_NONE] * n, compiled)
    found = search.nearest(
        *(index, request.vectors, request.k, allowed, execution),
        exact=request.exact,
        recall=request.recall,
        explain=request.explain,
    )
    execution.computed(n)
    positions = found.positions + index.first
    answered = (model_version.model, model_version.version)
    return PartFound(*answered, positions, found.scores, found.offsets, found.explanations)


def _check(model_version: ModelVersion, request: RowsRead | PartSearch, settings: ServiceSettings) -> None:
    if request.shard != settings.shard:
        raise NotFound(f"this process is shard {settings.shard}, not {request.shard}")
    if model_version.fingerprint != request.fingerprint:
        raise NotFound(f"{validation.show_version(model_version)} is another bundle here: copy the same one everywhere")


def _index(model_version: ModelVersion, name: str) -> LoadedIndex:
    if name not in model_version.parts:
        raise NotFound(f"{validation.show_version(model_version)}: no part of index {name[:128]!r} is held here")
    return model_version.parts[name]


def _check_positions(name: str, positions: NDArray[np.uint32], size: int) -> None:
    if positions.size and int(positions.max()) >= size:
        raise InvalidArgument(f"position {positions.max()} of {name[:128]!r} is asked; {size} rows are held here")
