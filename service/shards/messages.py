"""Messages of the internal service of shards: requests and answers, for the shard and for the
router.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from bundle.tables.sharding import ShardNumber
from service.codec import protobuf
from service.codec.protobuf import explanation_message, packed, read_explanation
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.engine.calls import Target
from service.engine.limits import NotFinite
from service.engine.retrieval.search import Found
from service.engine.retrieval.sharded_search import IndexSearch
from service.errors import Internal, InvalidArgument
from service.shards.calls import (
    PartFound,
    PartSearch,
    RowPositions,
    RowsFound,
    RowsRead,
)

_UINT32 = np.dtype("<u4")
_FLOAT32 = np.dtype("<f4")
LIST_BYTES = 64
"""Of the framing of one list in a request, at most."""
MESSAGE_LIMITS = ("max_request_bytes", "max_response_bytes", "max_filter_terms")
"""Settings of a shard that a router's calls must keep to."""


# as all readers
def read_rows(message: shard_pb.RowsRequest, _: object, settings: ServiceSettings) -> RowsRead:  # noqa: ARG001
    """Reads a RowsRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or the counts are not those of the tables.
    """
    return RowsRead(
        *_bundle(message.bundle), tuple([_row_positions(each) for each in message.rows])
    )


def read_search(
    message: shard_pb.SearchRequest, _: object, settings: ServiceSettings
) -> PartSearch:
    """Reads a SearchRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or the vectors are no [n, dim]; names the field.
    """
    if message.dim < 1 or len(message.vectors) % (4 * message.dim):
        expected = f"a list of float32 vectors of dim {message.dim}"
        raise InvalidArgument.of_field("vectors", f"{len(message.vectors)} bytes", expected, "has")
    search = IndexSearch(
        index=message.index,
        vectors=packed(message.vectors, _FLOAT32, "vectors").reshape(-1, message.dim),
        k=message.k,
        exact=message.exact,
        recall=message.recall,
        filter=protobuf.read_filter(message.filter, settings)
        if message.HasField("filter")
        else None,
        denied=packed(message.denied, _UINT32, "denied"),
        excluded=tuple([packed(each.positions, _UINT32, "excluded") for each in message.excluded]),
        explain=message.explain,
    )
    return PartSearch(*_bundle(message.bundle), search)


def _row_positions(message: shard_pb.Rows) -> RowPositions:
    counts = packed(message.counts, _UINT32, "counts")
    positions = packed(message.positions, _UINT32, "positions")
    if not message.index and (
        counts.size != len(message.tables) or int(counts.sum()) != positions.size
    ):
        value = f"{counts.size} values with the sum {counts.sum()}"
        expected = f"one count per table ({len(message.tables)}) with the sum {positions.size}"
        raise InvalidArgument.of_field("counts", value, expected, "has")
    return RowPositions(tuple(message.tables), counts, positions, message.index)


def _bundle(message: shard_pb.Bundle) -> tuple[Target, int, ShardNumber]:
    """Returns the model and version, the fingerprint and the shard that are meant."""
    if not message.model or message.version < 1:
        value = f"{message.model!r} version {message.version}"
        raise InvalidArgument.of_field("bundle", value, "a model and a version")
    target = Target(message.model, message.version)
    return target, message.fingerprint, ShardNumber(message.number, message.total)


def rows_message(answer: RowsFound) -> shard_pb.RowsResponse:
    """Returns the answer as its message."""
    rows = [
        shard_pb.StoredRows(values=values.tobytes(), scales=scales.tobytes())
        for values, scales in answer.rows
    ]
    return shard_pb.RowsResponse(rows=rows)


def found_message(answer: PartFound) -> shard_pb.SearchResponse:
    """Returns the answer as its message."""
    if answer.overflow:
        return shard_pb.SearchResponse(overflow=True)
    found = answer.found
    return shard_pb.SearchResponse(
        positions=found.positions.astype(_UINT32).tobytes(),
        scores=found.scores.astype(_FLOAT32, copy=False).tobytes(),
        counts=np.diff(found.offsets).astype(_UINT32).tobytes(),
        explanations=[explanation_message(each) for each in found.explanations],
    )


def search_message(bundle: shard_pb.Bundle, search: IndexSearch) -> shard_pb.SearchRequest:
    """Returns a search of a shard as its message."""
    return shard_pb.SearchRequest(
        bundle=bundle,
        index=search.index,
        vectors=search.vectors.tobytes(),
        dim=search.vectors.shape[1],
        k=search.k,
        exact=search.exact,
        recall=search.recall,
        filter=None if search.filter is None else protobuf.filter_message(search.filter),
        denied=search.denied.astype(_UINT32, copy=False).tobytes(),
        excluded=[
            shard_pb.Excluded(positions=each.astype(_UINT32, copy=False).tobytes())
            for each in search.excluded
        ],
        explain=search.explain,
    )


def read_found(
    message: shard_pb.SearchResponse, search: IndexSearch, held: range, shard: ShardNumber
) -> Found:
    """Reads what a shard found.

    Args:
      message: The shard's response.
      search: The search that was requested.
      held: The positions of the candidates that the shard holds.
      shard: Names the shard in errors.

    Raises:
      NotFinite: A score is beyond float32.
      Internal: The response does not fit the request, such as by more than k candidates of a query,
        by fewer although the shard holds more, or by candidates that it does not hold.
    """
    if message.overflow:
        raise NotFinite("a candidate's score")
    query_count = len(search.vectors)
    sizes = [len(message.counts), len(message.positions), len(message.scores)]
    if any(size % 4 for size in sizes) or sizes[0] != 4 * query_count or sizes[1] != sizes[2]:
        raise Internal(
            f"shard {shard} returned {sizes} bytes for a search of {query_count} queries"
        )

    counts = np.frombuffer(message.counts, _UINT32).astype(np.int64)
    positions = np.frombuffer(message.positions, _UINT32).astype(np.int64)
    scores = np.frombuffer(message.scores, _FLOAT32)
    if counts.sum() != positions.size or counts.max(initial=0) > search.k:
        raise Internal(
            f"shard {shard} returned {positions.size} candidates for {query_count} queries of "
            f"k {search.k}, {counts.max(initial=0)} for one of them"
        )
    if positions.size and not held.start <= positions.min() <= positions.max() < held.stop:
        raise Internal(
            f"shard {shard} returned candidates {positions.min()} to {positions.max()} of index "
            f"{search.index!r}; it holds {held.start} to {held.stop - 1}"
        )
    queries = np.repeat(np.arange(query_count), counts)
    if not np.isfinite(scores).all():
        raise Internal(f"shard {shard} returned a score that is not finite")
    if len(np.unique(queries * len(held) + positions - held.start)) != positions.size:
        raise Internal(f"shard {shard} returned a candidate of index {search.index!r} twice")
    if search.filter is None and (counts < _least_counts(search, held)).any():
        raise Internal(
            f"shard {shard} returned {counts.tolist()[:16]} candidates of index {search.index!r} "
            f"for queries of k {search.k}; it holds more that are not excluded"
        )
    if len(message.explanations) != (query_count if search.explain else 0):
        raise Internal(
            f"shard {shard} explained {len(message.explanations)} of {query_count} queries"
        )

    explanations = tuple([read_explanation(each) for each in message.explanations])
    return Found(positions, scores, offsets_of(counts), explanations)


def _least_counts(search: IndexSearch, held: range) -> NDArray[np.int64]:
    """Returns how many candidates a shard must return for each query of a search without a
    filter.
    """

    def count(positions: NDArray[np.uint32]) -> int:
        first, end = positions.searchsorted([held.start, held.stop])
        return int(end - first)

    excluded = np.array([*map(count, search.excluded)] or [0], np.int64)
    return np.minimum(search.k, len(held) - count(search.denied) - excluded)


def description(
    settings: ServiceSettings, bundles: Iterable[tuple[str, int, int]]
) -> shard_pb.DescribeResponse:
    """Returns what describes a shard: its bundles by model, version and fingerprint."""
    number, total = settings.shard or (0, 0)
    return shard_pb.DescribeResponse(
        number=number,
        total=total,
        min_bytes=settings.shard_min_bytes,
        bundles=[
            shard_pb.Bundle(model=model, version=version, fingerprint=crc)
            for model, version, crc in bundles
        ],
        **{name: getattr(settings, name) for name in MESSAGE_LIMITS},
    )
