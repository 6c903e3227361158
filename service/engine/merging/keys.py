"""Which requests can be computed as one.

A request of n examples and one of m examples are one of n + m if they differ in nothing else: rows
are read and combined, towers run and indexes are searched for each example by itself. The key of a
request holds everything else: its options, and the form of what it sends for each example.

A request that may be wrong has no key if the fault could be hidden by others, such as weights that
are too few. Any other fault is still there in the merged request, which fails; each of its requests
is then computed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from bundle.features.columns import Column
from service.contract.forms import IdLists
from service.contract.messages import (
    Condition,
    EmbeddingRequest,
    Filter,
    Ids,
    LookupRequest,
    Offsets,
    RankingRequest,
    RecommendationRequest,
    RetrievalRequest,
    SelectionRequest,
    Source,
)
from service.engine import lookup
from service.versions.version import ModelVersion

FILTER_SIZE_MAX = 1024
"""Terms and values of a filter that is compared with those of other requests. To compare more takes
the event loop longer, and large filters are seldom equal.
"""
_ABSENT: Hashable = ""
"""The value in a key for a field that is not sent."""


def _options_of(cls: type, *apart: str) -> Callable[[Any], Hashable]:
    """Returns a function that gets the options of a request, or of a part of one: all fields but
    the target and the fields that `apart` names. A field that is added later is an option, too, so
    that it keeps requests apart.
    """
    return attrgetter(
        *[field.name for field in fields(cls) if field.name not in {"target", *apart}]
    )


_SELECTION = ("filter", "crowding", "exclude_ids", "negative_ids", "context_ids")
_QUERIES = ("context", "vectors", "ids", "query_offsets", "not_found")
_CANDIDATES = ("context", "context_ids", "candidate_ids", "candidate_features", "offsets")
_RETRIEVAL_OPTIONS = _options_of(RetrievalRequest, *_QUERIES, *_SELECTION)
_RECOMMENDATION_OPTIONS = _options_of(RecommendationRequest, "context", "sources", *_SELECTION)
_SOURCE_OPTIONS = _options_of(Source, "ids")
_RANKING_OPTIONS = _options_of(RankingRequest, *_CANDIDATES)
_EMBEDDING_OPTIONS = _options_of(EmbeddingRequest, "features")
_LOOKUP_OPTIONS = _options_of(LookupRequest, "ids")


class NotAlike(Exception):
    """A request has a form in which it cannot be merged."""


def batch_key(request: Any, version: ModelVersion) -> Hashable | None:
    """Returns the key of a request, equal for all that can be merged; None: it is computed alone.

    Args:
      request: A request of any call.
      version: The model version that serves it.
    """
    key_of = _KEYS.get(type(request))
    if key_of is None:
        return None
    try:
        return key_of(request, version)
    except NotAlike:
        return None


def query_count(request: RetrievalRequest, version: ModelVersion) -> int:
    """Returns the number of queries of a retrieval.

    Raises:
      NotAlike: The number is not known before the retrieval is checked.
    """
    if request.query_offsets is not None:
        return request.query_offsets.size - 1
    if request.ids is not None:
        return request.ids.size
    if request.vectors is not None:
        return request.vectors.size // _dim(request, version)
    return example_count(request.context or {}, request.context_ids, version)


def example_count(columns: Mapping[str, Column], ids: Ids | None, version: ModelVersion) -> int:
    """Returns the number of examples of a request, by its ids, else by its columns.

    Raises:
      NotAlike: The request has neither, or columns that the model does not have.
    """
    if ids is not None:
        return ids.size
    if not columns or not columns.keys() <= version.manifest.inputs.keys():
        raise NotAlike
    return lookup.count_examples(version.manifest, columns)


def candidate_count(request: RankingRequest, version: ModelVersion) -> int:
    """Returns the number of candidates of a ranking.

    Raises:
      NotAlike: The request has none, or features that the model does not have.
    """
    return example_count(request.candidate_features, request.candidate_ids, version)


def context_count(request: RankingRequest) -> int:
    """Returns the number of contexts of a ranking."""
    if request.offsets is None:
        return 1
    return request.offsets.size - 1


def _retrieval_key(request: RetrievalRequest, version: ModelVersion) -> Hashable:
    n = query_count(request, version)
    if n < 1:
        raise NotAlike
    form: Hashable = _ABSENT
    if request.context is not None:
        form = _columns_key(request.context, n)
    if request.vectors is not None:
        form = form, _vectors_key(request, version, n)
    if request.ids is not None:
        form = form, request.not_found, _queries_key(request.ids, request.query_offsets, n)
    return "retrieve", form, _RETRIEVAL_OPTIONS(request), _selection_key(request, n)


def _recommendation_key(request: RecommendationRequest, version: ModelVersion) -> Hashable:
    n = example_count(request.context, request.context_ids, version)
    if n < 1:
        raise NotAlike
    columns = _columns_key(request.context, n)
    sources = tuple([_source_key(source, n) for source in request.sources])
    options = _RECOMMENDATION_OPTIONS(request)
    return "recommend", columns, sources, options, _selection_key(request, n)


def _source_key(source: Source, n: int) -> Hashable:
    """Returns a key that is equal for sources that differ in the ids of their lists alone."""
    return _SOURCE_OPTIONS(source), source.ids and _lists_key(source.ids, n)


def _selection_key(request: SelectionRequest, n: int) -> Hashable:
    """Returns a key that is equal for requests of the same filter and crowding, and of lists of the
    same form.
    """
    filter_key: Hashable = _ABSENT
    if request.filter is not None:
        filter_key = _filter_key(request.filter)
    crowding: Hashable = _ABSENT
    if request.crowding is not None:
        crowding = tuple(request.crowding.items())
    return (
        filter_key,
        crowding,
        request.exclude_ids and _lists_key(request.exclude_ids, n),
        request.negative_ids and _lists_key(request.negative_ids, n),
        _ids_key(request.context_ids, n),
    )


def _ranking_key(request: RankingRequest, version: ModelVersion) -> Hashable:
    n = context_count(request)
    m = candidate_count(request, version)
    if n < 1 or m < 1:
        raise NotAlike
    if request.offsets is not None:
        _check_offsets(request.offsets, n, m)
    return (
        "rank",
        _RANKING_OPTIONS(request),
        _ids_key(request.context_ids, n),
        _ids_key(request.candidate_ids, m),
        _columns_key(request.context, n),
        _columns_key(request.candidate_features, m),
    )


def _embedding_key(request: EmbeddingRequest, version: ModelVersion) -> Hashable:
    n = example_count(request.features, None, version)
    if n < 1:
        raise NotAlike
    return "embed", _EMBEDDING_OPTIONS(request), _columns_key(request.features, n)


def _lookup_key(request: LookupRequest, version: ModelVersion) -> Hashable:  # noqa: ARG001 - as all
    values, offsets, weights = request.ids
    if offsets is not None or weights is not None or values.ndim != 1:
        raise NotAlike
    return "lookup", _LOOKUP_OPTIONS(request), values.dtype.char


_KEYS: Mapping[type, Callable[[Any, ModelVersion], Hashable]] = {
    RetrievalRequest: _retrieval_key,
    RankingRequest: _ranking_key,
    RecommendationRequest: _recommendation_key,
    EmbeddingRequest: _embedding_key,
    LookupRequest: _lookup_key,
}


def _columns_key(columns: Mapping[str, Column], n: int) -> Hashable:
    """Returns a key that is equal for columns of the same names, types and values per example."""
    # This runs for every request, so it makes one pass over the columns, with few calls.
    forms: dict[str, Hashable] = {}
    for name, (values, offsets, weights) in columns.items():
        size = values.size
        if values.ndim != 1:
            raise NotAlike
        per_example = -1
        if offsets is None:
            per_example = size // n
            if per_example * n != size:
                raise NotAlike
        else:
            _check_offsets(offsets, n, size)
        if weights is None:
            forms[name] = values.dtype.char, per_example
        elif weights.shape == values.shape:
            forms[name] = values.dtype.char, per_example, weights.dtype.char
        else:
            raise NotAlike
    return frozenset(forms.items())


def _ids_key(ids: Ids | None, n: int) -> Hashable:
    """Returns a key that is equal for ids of one type, or for none."""
    if ids is None:
        return _ABSENT
    if ids.shape != (n,):
        raise NotAlike
    return ids.dtype.char


def _vectors_key(request: RetrievalRequest, version: ModelVersion, n: int) -> Hashable:
    vectors = request.vectors
    assert vectors is not None  # noqa: S101 - the caller has looked
    dim = _dim(request, version)
    if request.query_offsets is not None:
        _check_offsets(request.query_offsets, n, vectors.size // dim)
    has_rows = vectors.ndim < 2 or (vectors.ndim == 2 and vectors.shape[1] == dim)
    if not has_rows or vectors.size % dim:
        raise NotAlike
    return vectors.dtype.char, request.query_offsets is None


def _queries_key(ids: Ids, query_offsets: Offsets | None, n: int) -> Hashable:
    if query_offsets is not None:
        _check_offsets(query_offsets, n, ids.size)
    return ids.dtype.char, query_offsets is None


def _lists_key(lists: IdLists, n: int) -> Hashable:
    """Returns a key that is equal for lists of ids of one type, one of each query."""
    if lists.offsets is not None:
        _check_offsets(lists.offsets, n, lists.ids.size)
    elif n > 1:  # all queries share one list, which is not copied for each
        raise NotAlike
    return lists.ids.dtype.char


def _check_offsets(offsets: Offsets, n: int, size: int) -> None:
    """Raises NotAlike if offsets do not begin and end as those of n lists of `size` values."""
    if offsets.shape != (n + 1,) or offsets[0] != 0 or offsets[-1] != size:
        raise NotAlike


def _filter_key(request_filter: Filter) -> Hashable:
    """Returns a key that is equal for filters of the same parts, in the same order."""
    if request_filter.size > FILTER_SIZE_MAX:
        raise NotAlike
    return _nested_key(request_filter)


def _nested_key(request_filter: Filter) -> Hashable:
    conditions = [
        (name, _condition_key(condition)) for name, condition in request_filter.conditions.items()
    ]
    groups = [
        tuple(map(_nested_key, group))
        for group in (request_filter.all, request_filter.any, request_filter.none)
    ]
    return tuple(conditions), *groups, request_filter.near


def _condition_key(condition: Condition) -> Hashable:
    comparisons = condition.ge, condition.gt, condition.le, condition.lt, condition.is_null
    return _tokens_key(condition.allow), _tokens_key(condition.deny), comparisons


def _tokens_key(tokens: Ids | None) -> Hashable:
    if tokens is None:
        return _ABSENT
    if tokens.dtype == object:
        # Equal values of different types are other tokens: 1, 1.0 and True are equal in Python.
        values = tokens.tolist()
        return tuple(values), tuple(map(type, values))
    return tokens.dtype.char, tokens.tobytes()


def _dim(request: RetrievalRequest, version: ModelVersion) -> int:
    """Returns the length of the vectors of the index that a retrieval names."""
    index = version.indexes.get(request.index)
    if index is None and not request.index and len(version.indexes) == 1:
        (index,) = version.indexes.values()
    if index is None:
        raise NotAlike
    return int(index.entry.dim)
