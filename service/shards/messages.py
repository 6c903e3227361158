"""Messages of the internal service of shards: requests and responses, for the shard and for the
router.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from bundle.tables.shard_number import ShardNumber
from service.codec.protobuf import explanation_message, read_explanation
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.contract.messages import Filter, Target
from service.contract.packed import unpack
from service.contract.reading import read_submessage
from service.contract.writing import write_message
from service.engine.neighbors import Neighbors
from service.engine.retrieval.served_search import IndexSearch
from service.errors import Internal, InvalidArgument
from service.shards.calls import (
    RowPositions,
    RowsRequest,
    RowsResult,
    SearchRequest,
    SearchResult,
)

_UINT32 = np.dtype("<u4")
_FLOAT32 = np.dtype("<f4")
LIST_BYTES = 64
"""Upper bound of the size of one list's framing in a request."""
MESSAGE_LIMITS = ("max_request_bytes", "max_response_bytes", "max_filter_terms")
"""Settings of a shard that a router's calls must keep to."""


# All readers of an operation take the same parameters.
def read_rows(message: shard_pb.RowsRequest, _: object, settings: ServiceSettings) -> RowsRequest:  # noqa: ARG001
    """Reads a RowsRequest.

    Raises:
      InvalidArgument: Packed bytes are truncated, or the counts do not fit the tables.
    """
    rows = tuple([_row_positions(rows) for rows in message.rows])
    return RowsRequest(*_bundle(message.bundle), rows)


def read_search(
    message: shard_pb.SearchRequest, _: object, settings: ServiceSettings
) -> SearchRequest:
    """Reads a SearchRequest.

    Raises:
      InvalidArgument: Packed bytes are truncated, or the vectors are no [n, dim]; names the field.
    """
    if message.dim < 1 or len(message.vectors) % (4 * message.dim):
        expected = f"a list of float32 vectors of dim {message.dim}"
        raise InvalidArgument.of_field("vectors", f"{len(message.vectors)} bytes", expected, "has")

    search_filter = None
    if message.HasField("filter"):
        search_filter = read_submessage(Filter, message.filter, "filter", settings)
    search = IndexSearch(
        index=message.index,
        vectors=unpack(message.vectors, _FLOAT32, "vectors").reshape(-1, message.dim),
        k=message.k,
        exact=message.exact,
        recall=message.recall,
        filter=search_filter,
        denied=unpack(message.denied, _UINT32, "denied"),
        excluded=tuple(
            [unpack(exclusion.positions, _UINT32, "excluded") for exclusion in message.excluded]
        ),
        explain=message.explain,
    )
    return SearchRequest(*_bundle(message.bundle), search)


def _row_positions(message: shard_pb.Rows) -> RowPositions:
    counts = unpack(message.counts, _UINT32, "counts")
    positions = unpack(message.positions, _UINT32, "positions")
    if not message.index and (
        counts.size != len(message.tables) or int(counts.sum()) != positions.size
    ):
        value = f"{counts.size} values with the sum {counts.sum()}"
        expected = f"one count per table ({len(message.tables)}) with the sum {positions.size}"
        raise InvalidArgument.of_field("counts", value, expected, "has")
    return RowPositions(tuple(message.tables), counts, positions, message.index)


def _bundle(message: shard_pb.Bundle) -> tuple[Target, int, ShardNumber]:
    """Returns the model and version, the fingerprint and the shard that the router calls."""
    if not message.model or message.version < 1:
        value = f"{message.model!r} version {message.version}"
        raise InvalidArgument.of_field("bundle", value, "a model and a version")
    target = Target(message.model, message.version)
    return target, message.fingerprint, ShardNumber(message.number, message.total)


def rows_message(result: RowsResult) -> shard_pb.RowsResponse:
    """Returns the rows as a message."""
    rows = [
        shard_pb.StoredRows(values=values.tobytes(), scales=scales.tobytes())
        for values, scales in result.rows
    ]
    return shard_pb.RowsResponse(rows=rows)


def found_message(result: SearchResult) -> shard_pb.SearchResponse:
    """Returns the candidates that a search found as a message."""
    neighbors = result.neighbors
    return shard_pb.SearchResponse(
        positions=neighbors.positions.astype(_UINT32).tobytes(),
        scores=neighbors.scores.astype(_FLOAT32, copy=False).tobytes(),
        counts=np.diff(neighbors.offsets).astype(_UINT32).tobytes(),
        explanations=[explanation_message(explanation) for explanation in neighbors.explanations],
    )


def search_message(bundle: shard_pb.Bundle, search: IndexSearch) -> shard_pb.SearchRequest:
    """Returns a search of a shard as a message."""
    message = shard_pb.SearchRequest(
        bundle=bundle,
        index=search.index,
        vectors=search.vectors.tobytes(),
        dim=search.vectors.shape[1],
        k=search.k,
        exact=search.exact,
        recall=search.recall,
        denied=search.denied.astype(_UINT32, copy=False).tobytes(),
        excluded=[
            shard_pb.Excluded(positions=positions.astype(_UINT32, copy=False).tobytes())
            for positions in search.excluded
        ],
        explain=search.explain,
    )
    if search.filter is not None:
        message.filter.SetInParent()
        write_message(search.filter, message.filter)
    return message


def read_found(
    message: shard_pb.SearchResponse, search: IndexSearch, held_positions: range, shard: ShardNumber
) -> Neighbors:
    """Reads what a shard found.

    Args:
      message: The shard's response.
      search: The search that was requested.
      held_positions: The positions of the candidates that the shard holds.
      shard: The shard, which errors name.

    Raises:
      Internal: The response does not fit the request, such as by more than k candidates of a query,
        by fewer although the shard holds more, or by candidates that it does not hold.
    """
    # A response that does not fit, such as of another release, counts as a failed call, so that the
    # router calls another replica instead of merging it.
    query_count = len(search.vectors)
    count_bytes = len(message.counts)
    position_bytes = len(message.positions)
    score_bytes = len(message.scores)
    sizes = [count_bytes, position_bytes, score_bytes]
    has_counts = count_bytes == 4 * query_count
    if not has_counts or position_bytes % 4 or position_bytes != score_bytes:
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
    if (
        positions.size
        and not held_positions.start <= positions.min() <= positions.max() < held_positions.stop
    ):
        raise Internal(
            f"shard {shard} returned candidates {positions.min()} to {positions.max()} of index "
            f"{search.index!r}; it holds {held_positions.start} to {held_positions.stop - 1}"
        )
    if not np.isfinite(scores).all():
        raise Internal(f"shard {shard} returned a score that is not finite")
    # One number for each pair of query and candidate: a pair that occurs twice leaves fewer.
    queries = np.repeat(np.arange(query_count), counts)
    if (
        len(np.unique(queries * len(held_positions) + positions - held_positions.start))
        != positions.size
    ):
        raise Internal(f"shard {shard} returned a candidate of index {search.index!r} twice")
    # How many candidates match a filter, only the shard knows.
    if search.filter is None and (counts < _minimum_counts(search, held_positions)).any():
        raise Internal(
            f"shard {shard} returned {counts.tolist()[:16]} candidates of index {search.index!r} "
            f"for queries of k {search.k}; it holds more that are not excluded"
        )
    explanation_count = 0
    if search.explain:
        explanation_count = query_count
    if len(message.explanations) != explanation_count:
        raise Internal(
            f"shard {shard} explained {len(message.explanations)} of {query_count} queries"
        )

    explanations = tuple([read_explanation(explanation) for explanation in message.explanations])
    return Neighbors(positions, scores, offsets_of(counts), explanations)


def _minimum_counts(search: IndexSearch, held_positions: range) -> NDArray[np.int64]:
    """Returns how many candidates a shard must return for each query of a search without a
    filter.
    """

    def count(positions: NDArray[np.uint32]) -> int:
        first, end = positions.searchsorted([held_positions.start, held_positions.stop])
        return int(end - first)

    # Without lists, one 0 stands for all queries.
    counts = [count(positions) for positions in search.excluded]
    excluded = np.array(counts or [0], np.int64)
    # A candidate in both lists is subtracted twice: the count is a lower bound.
    remaining = len(held_positions) - count(search.denied) - excluded
    return np.minimum(search.k, remaining)


def description(
    settings: ServiceSettings, bundles: Iterable[tuple[str, int, int]]
) -> shard_pb.DescribeResponse:
    """Returns the description of a shard.

    Args:
      settings: The settings of the shard.
      bundles: The loaded bundles, each by model, version and fingerprint.
    """
    number, total = settings.shard or (0, 0)
    return shard_pb.DescribeResponse(
        number=number,
        total=total,
        min_bytes=settings.shard_min_bytes,
        bundles=[
            shard_pb.Bundle(model=model, version=version, fingerprint=fingerprint)
            for model, version, fingerprint in bundles
        ],
        **{name: getattr(settings, name) for name in MESSAGE_LIMITS},
    )
