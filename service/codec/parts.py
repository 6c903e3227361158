"""Messages of the internal service of shards: requests and answers, for the shard and for the front."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bundle.tables.offsets import offsets_of
from bundle.tables.sharding import ShardNumber
from service.codec import protobuf
from service.codec.protobuf import packed
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.config import ServiceSettings
from service.engine import requests
from service.errors import InvalidArgument

_UINT32, _FLOAT32 = np.dtype("<u4"), np.dtype("<f4")


def read_rows(message: shard_pb.RowsRequest, _: object, settings: ServiceSettings) -> requests.RowsRead:  # noqa: ARG001 - as all readers
    """Reads a RowsRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or the counts are not those of the tables.
    """
    rows = tuple([_row_positions(each) for each in message.rows])
    return requests.RowsRead(_target(message.bundle), message.bundle.fingerprint, _shard(message.bundle), rows)


def read_search(message: shard_pb.SearchRequest, _: object, settings: ServiceSettings) -> requests.PartSearch:
    """Reads a SearchRequest.

    Raises:
      InvalidArgument: packed bytes are truncated, or the vectors are no [n, dim]; names the field.
    """
    if message.dim < 1 or len(message.vectors) % (4 * message.dim):
        raise InvalidArgument(
            f"vectors has {len(message.vectors)} bytes; float32 vectors of dim {message.dim} expected"
        )
    vectors = packed(message.vectors, _FLOAT32, "vectors").reshape(-1, message.dim)
    return requests.PartSearch(
        _target(message.bundle),
        fingerprint=message.bundle.fingerprint,
        shard=_shard(message.bundle),
        index=message.index,
        vectors=vectors,
        k=message.k,
        exact=message.exact,
        recall=message.recall,
        filter=protobuf.read_filter(message.filter, settings) if message.HasField("filter") else None,
        excluded=tuple([packed(each.positions, _UINT32, "excluded").astype(np.int64) for each in message.excluded]),
        explain=message.explain,
    )


def _row_positions(message: shard_pb.Rows) -> requests.RowPositions:
    positions = packed(message.positions, _UINT32, "positions")
    if message.index:
        return requests.RowPositions((message.index,), np.array([positions.size], _UINT32), positions, is_index=True)
    counts = packed(message.counts, _UINT32, "counts")
    if counts.size != len(message.tables) or int(counts.sum()) != positions.size:
        raise InvalidArgument(
            f"counts are {counts.size}, {counts.sum()} together; one of each of {len(message.tables)} tables, of "
            f"{positions.size} positions, was expected"
        )
    return requests.RowPositions(tuple(message.tables), counts, positions)


def rows_message(answer: requests.RowsFound) -> shard_pb.RowsResponse:
    """Returns the answer as its message."""
    rows = [shard_pb.StoredRows(values=values.tobytes(), scales=scales.tobytes()) for values, scales in answer.rows]
    return shard_pb.RowsResponse(rows=rows)


def found_message(answer: requests.PartFound) -> shard_pb.SearchResponse:
    """Returns the answer as its message."""
    return shard_pb.SearchResponse(
        positions=answer.positions.astype(_UINT32).tobytes(),
        scores=answer.scores.astype(_FLOAT32, copy=False).tobytes(),
        counts=np.diff(answer.offsets).astype(_UINT32).tobytes(),
        explanations=[pb.Explanation(**vars(each)) for each in answer.explanations],
    )


def search_message(request: requests.PartSearch) -> shard_pb.SearchRequest:
    """Returns a request as its message."""
    return shard_pb.SearchRequest(
        bundle=bundle_message(request.target, request.fingerprint, request.shard),
        index=request.index,
        vectors=request.vectors.tobytes(),
        dim=request.vectors.shape[1],
        k=request.k,
        exact=request.exact,
        recall=request.recall,
        filter=None if request.filter is None else protobuf.filter_message(request.filter),
        excluded=[shard_pb.Excluded(positions=each.astype(_UINT32).tobytes()) for each in request.excluded],
        explain=request.explain,
    )


def read_found(message: shard_pb.SearchResponse, target: requests.Target) -> requests.PartFound:
    """Reads a SearchResponse."""
    counts = np.frombuffer(message.counts, _UINT32)
    return requests.PartFound(
        target.model,
        target.version or 0,
        np.frombuffer(message.positions, _UINT32).astype(np.int64),
        np.frombuffer(message.scores, _FLOAT32),
        offsets_of(counts),
        tuple([
            requests.Explanation(each.path, each.matches, each.selectivity, each.scored, each.search_ms)
            for each in message.explanations
        ]),
    )  # fmt: skip


def bundle_message(target: requests.Target, fingerprint: int, shard: ShardNumber) -> shard_pb.Bundle:
    """Returns which bundle is asked, and which shard."""
    version = target.version or 0
    return shard_pb.Bundle(
        model=target.model, version=version, fingerprint=fingerprint, number=shard.number, total=shard.total
    )


def _shard(bundle: shard_pb.Bundle) -> ShardNumber:
    return ShardNumber(bundle.number, bundle.total)


def _target(bundle: shard_pb.Bundle) -> requests.Target:
    if not bundle.model or bundle.version < 1:
        raise InvalidArgument(
            f"bundle is {bundle.model!r} version {bundle.version}; a model and a version are expected"
        )
    return requests.Target(bundle.model, bundle.version)


def description(settings: ServiceSettings, bundles: Iterable[tuple[str, int, int]]) -> shard_pb.DescribeResponse:
    """Returns what describes a shard: its bundles by model, version and fingerprint."""
    number, total = settings.shard or (0, 0)
    return shard_pb.DescribeResponse(
        number=number,
        total=total,
        least_bytes=settings.shard_least_bytes,
        bundles=[shard_pb.Bundle(model=model, version=version, fingerprint=crc) for model, version, crc in bundles],
    )
