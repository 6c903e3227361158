"""Merges requests with equal keys into one, which has their examples, one request after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.offsets import lengths_of, offsets_of
from service.contract.forms import IdLists
from service.contract.messages import (
    Columns,
    EmbeddingRequest,
    Ids,
    LookupRequest,
    Offsets,
    RankingRequest,
    RecommendationRequest,
    RetrievalRequest,
    SelectionRequest,
    Source,
)
from service.engine.merging.keys import (
    candidate_count,
    context_count,
    example_count,
    query_count,
)
from service.versions.version import ModelVersion


@dataclass(frozen=True)
class MergedRequest:
    """Several requests as one.

    Attributes:
      request: The merged request.
      ends: [r + 1]; request i has the examples ends[i]:ends[i + 1]: queries, contexts, examples
        or, of a lookup, ids.
    """

    request: Any
    ends: Offsets


def merge(requests: Sequence[Any], version: ModelVersion) -> MergedRequest:
    """Returns one request for several whose keys are equal.

    Args:
      requests: The requests.
      version: The model version that serves them.
    """
    return _MERGES[type(requests[0])](requests, version)


def _merge_retrievals(requests: Sequence[RetrievalRequest], version: ModelVersion) -> MergedRequest:
    counts = [query_count(request, version) for request in requests]
    first = requests[0]
    changes: dict[str, Any] = {}
    if first.context is not None:
        contexts = [request.context or {} for request in requests]
        if first.context_ids is None:
            changes["context"] = _merge_columns_with_count(contexts, sum(counts))
        else:
            changes["context"] = _merge_columns(contexts)
    if first.vectors is not None:
        # Flat, since one request may have [n, dim] and another one [n * dim] vectors.
        vectors = [request.vectors.ravel() for request in requests if request.vectors is not None]
        changes["vectors"] = np.concatenate(vectors)
    if first.ids is not None:
        changes["ids"] = _merge_ids([request.ids for request in requests])
    if first.query_offsets is not None:
        changes["query_offsets"] = _merge_offsets([request.query_offsets for request in requests])
    changes |= _merge_selections(requests)
    return MergedRequest(replace(first, **changes), offsets_of(counts))


def _merge_recommendations(
    requests: Sequence[RecommendationRequest], version: ModelVersion
) -> MergedRequest:
    counts = [example_count(request.context, request.context_ids, version) for request in requests]
    contexts = [request.context for request in requests]
    if requests[0].context_ids is None:
        context = _merge_columns_with_count(contexts, sum(counts))
    else:
        context = _merge_columns(contexts)
    # Equal keys: all requests have the same sources in the same order, but for the ids.
    same_sources = zip(*[request.sources for request in requests], strict=True)
    sources = tuple(map(_merge_source, same_sources))
    changes = _merge_selections(requests)
    merged = replace(requests[0], context=context, sources=sources, **changes)
    return MergedRequest(merged, offsets_of(counts))


def _merge_source(sources: Sequence[Source]) -> Source:
    """Returns the source that stands for the same source of each request."""
    if sources[0].ids is None:
        return sources[0]
    return replace(sources[0], ids=_merge_lists([source.ids for source in sources]))


def _merge_selections(requests: Sequence[SelectionRequest]) -> dict[str, Any]:
    """Returns the merged fields that hold context ids, excluded ids and negative ids."""
    changes: dict[str, Any] = {}
    if requests[0].context_ids is not None:
        changes["context_ids"] = _merge_ids([request.context_ids for request in requests])
    if requests[0].exclude_ids is not None:
        changes["exclude_ids"] = _merge_lists([request.exclude_ids for request in requests])
    if requests[0].negative_ids is not None:
        changes["negative_ids"] = _merge_lists([request.negative_ids for request in requests])
    return changes


def _merge_rankings(requests: Sequence[RankingRequest], version: ModelVersion) -> MergedRequest:
    counts = [context_count(request) for request in requests]
    candidate_counts = [candidate_count(request, version) for request in requests]
    offsets = []
    for request, count in zip(requests, candidate_counts, strict=True):
        if request.offsets is None:
            # One context owns all candidates of its request, but not those of the others.
            offsets.append(np.array([0, count], np.int64))
        else:
            offsets.append(request.offsets)
    features_by_request = [request.candidate_features for request in requests]
    if requests[0].candidate_ids is None:
        candidate_features = _merge_columns_with_count(features_by_request, sum(candidate_counts))
    else:
        candidate_features = _merge_columns(features_by_request)
    merged = replace(
        requests[0],
        context=_merge_columns([request.context for request in requests]),
        context_ids=_merge_ids([request.context_ids for request in requests]),
        candidate_ids=_merge_ids([request.candidate_ids for request in requests]),
        candidate_features=candidate_features,
        offsets=_merge_offsets(offsets),
    )
    return MergedRequest(merged, offsets_of(counts))


def _merge_embeddings(requests: Sequence[EmbeddingRequest], version: ModelVersion) -> MergedRequest:
    counts = [example_count(request.features, None, version) for request in requests]
    features = _merge_columns_with_count([request.features for request in requests], sum(counts))
    return MergedRequest(replace(requests[0], features=features), offsets_of(counts))


def _merge_lookups(
    requests: Sequence[LookupRequest],
    version: ModelVersion,  # noqa: ARG001 - as all
) -> MergedRequest:
    values = [request.ids.values for request in requests]
    merged = replace(requests[0], ids=Column(np.concatenate(values)))
    return MergedRequest(merged, offsets_of([ids.size for ids in values]))


_MERGES: Mapping[type, Callable[[Any, ModelVersion], MergedRequest]] = {
    RetrievalRequest: _merge_retrievals,
    RankingRequest: _merge_rankings,
    RecommendationRequest: _merge_recommendations,
    EmbeddingRequest: _merge_embeddings,
    LookupRequest: _merge_lookups,
}


def _merge_columns_with_count(columns_by_request: Sequence[Columns], n: int) -> dict[str, Column]:
    """Returns the columns of all requests. At least one of the columns has offsets, which show that
    there are n examples; columns without offsets may not show it.
    """
    merged = _merge_columns(columns_by_request)
    for column in merged.values():
        if column.offsets is not None:
            return merged
    # Any column gets offsets: without them, all examples have the same number of values.
    name, column = next(iter(merged.items()))
    offsets = np.arange(n + 1) * (column.values.size // n)
    merged[name] = column._replace(offsets=offsets)
    return merged


def _merge_columns(columns_by_request: Sequence[Columns]) -> dict[str, Column]:
    """Returns the columns of all requests."""
    merged = {}
    for name in columns_by_request[0]:
        merged[name] = _merge_column([columns[name] for columns in columns_by_request])
    return merged


def _merge_column(columns: Sequence[Column]) -> Column:
    values: NDArray[Any] = np.concatenate([column.values for column in columns])
    offsets = None
    if columns[0].offsets is not None:
        offsets = _merge_offsets([column.offsets for column in columns])
    weights = None
    if columns[0].weights is not None:
        parts = [column.weights for column in columns if column.weights is not None]
        weights = np.concatenate(parts)
    return Column(values, offsets, weights)


def _merge_offsets(offsets_by_request: Sequence[Offsets | None]) -> Offsets:
    """Returns the offsets of all requests. The offsets of each request begin at 0."""
    parts = [offsets for offsets in offsets_by_request if offsets is not None]
    ends = offsets_of([int(offsets[-1]) for offsets in parts])
    # Values of a request lie behind those of all requests before it.
    request_starts = ends[:-1].repeat([offsets.size - 1 for offsets in parts])
    merged = np.concatenate([offsets[:-1] for offsets in parts]) + request_starts
    return np.append(merged, ends[-1])


def _merge_ids(ids_by_request: Sequence[Ids | None]) -> Ids | None:
    parts = [ids for ids in ids_by_request if ids is not None]
    if not parts:
        return None
    merged: Ids = np.concatenate(parts)
    return merged


def _merge_lists(lists_by_request: Sequence[IdLists | None]) -> IdLists:
    """Returns the lists of all requests. A request whose lists have no offsets has one query."""
    ids = []
    lengths = []
    for lists in lists_by_request:
        assert lists is not None  # noqa: S101 - their keys are equal
        ids.append(lists.ids)
        if lists.offsets is None:
            lengths.append(np.array([lists.ids.size]))
        else:
            lengths.append(lengths_of(lists.offsets))
    return IdLists(np.concatenate(ids), offsets_of(np.concatenate(lengths)))
