"""The calls of a service: their requests, and how their responses are read. Both clients and both
transports use them.

Each function checks and packs its arguments and returns a Call; `Client` and `AsyncClient` send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, Unpack

from numpy.typing import ArrayLike

from rowcast_client.candidates import (
    Candidates,
    Contexts,
    check_list_count,
    offsets_of,
    pack_candidates,
    pack_queries_by_id,
)
from rowcast_client.columns import (
    Features,
    check_text,
    is_list,
    pack_column,
    pack_ids,
    pack_requests,
    pack_vectors,
)
from rowcast_client.errors import InvalidArgument
from rowcast_client.fields import packed_fields, packers_of
from rowcast_client.filters import Filter
from rowcast_client.model_details import RECORDS, ModelDetails, ModelState
from rowcast_client.results import (
    EmbeddingResult,
    LookupResult,
    RankingResult,
    RetrievalResult,
    unpack_embedding,
    unpack_lookup,
    unpack_ranking,
    unpack_retrieval,
)
from rowcast_client.sources import Source
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs.message_values import value_of

Result_co = TypeVar("Result_co", covariant=True)
Requests = Features | Sequence[Features]
NotFoundRule = Literal["error", "skip"]
"""What happens with ids that do not exist."""


class VersionOptions(TypedDict, total=False):
    """Options of every call that goes to one version of a model.

    Attributes:
      version: The version; the current one if this is left out or 0.
      label: The label of the version, instead of its number.
      timeout_s: The timeout in seconds for all attempts together; the client's if left out.
      request_id: The ID under which the service logs the call; a new one if left out.
    """

    version: int
    label: str
    timeout_s: float | None
    request_id: str | None


class CallOptions(VersionOptions, total=False):
    """Options of the five calls, beside their own.

    Attributes:
      model: The name of the model; the only one if left out.
    """

    model: str


class SelectOptions(CallOptions, total=False):
    """Options of retrieve and recommend: which candidates are returned, how many, and in which
    order.

    Attributes:
      k: The number of neighbors of each request; 10 if left out or 0.
      pool_size: The number of candidates that are retrieved before they are ranked or reordered;
        max(100, 10 k) if left out or 0.
      filter: Conditions on the candidates' attributes: `where("year").at_least(1990)`, or a dict as
        in JSON.
      exclude_ids: Candidates never returned: a list for all requests, or a list of lists, one per
        request.
      negative_ids: Candidates that the neighbors must not be like, in the form of `exclude_ids`;
        they are not returned either.
      offset: The position of the first neighbor to return, for pages: the list is made over a pool
        of `pool_size`.
      crowding: The maximum number of neighbors with the same value of an attribute, by attribute:
        `{"seller": 3}`.
      diversity: The weight of diversity: 0 orders by score alone; up to 1, neighbors are less and
        less like the ones before.
      min_score: The minimum score; neighbors with lower scores are left out.
      formula: The formula of the score: over outputs in recommend; over `score` and numeric
        attributes in retrieve.
      attributes: Names of attributes to return with each neighbor, such as `["title"]`.
      index: The name of the index; the only one if left out.
      recall: The minimum recall, by the index's measured curve; as exported if left out or 0.
      explain: Whether the response has an explanation of each request.
      context_ids: The ID, or a list of IDs, of contexts whose stored features are read where
        `context` has none.
    """

    k: int
    pool_size: int
    filter: Filter | None
    exclude_ids: Candidates | None
    negative_ids: Candidates | None
    offset: int | None
    crowding: Mapping[str, int] | None
    diversity: float
    min_score: float | None
    formula: str
    attributes: Sequence[str]
    index: str
    recall: float
    explain: bool
    context_ids: Contexts | None


class Call(NamedTuple, Generic[Result_co]):
    """One call, ready to be sent.

    Attributes:
      method: The name of the method in the contract, such as "Retrieve".
      request: The message of the request.
      response: The class of the response's message.
      unpack: The function that reads a response.
      timeout_s: The timeout in seconds for all attempts together; None: The client's timeout.
      request_id: The ID under which the service logs the call; None: a new one.
    """

    method: str
    request: Any
    response: Any
    unpack: Callable[[Any], Result_co]
    timeout_s: float | None
    request_id: str | None


def retrieve(
    context: Requests | None = None,
    *,
    vectors: ArrayLike | Sequence[ArrayLike] | None = None,
    ids: Candidates | int | str | None = None,
    exact: bool = False,
    not_found: NotFoundRule = "error",
    **options: Unpack[SelectOptions],
) -> Call[RetrievalResult]:
    """Finds the k nearest candidates of each query.

    Queries are given by exactly one of context (or context_ids, or both), vectors and ids.

    Args:
      context: The features of one query, `{"user_id": 5, "history": [1, 2, 3]}`, or a list of such
        dicts.
      vectors: The vectors of one query: [dim], or [m, dim], for which a candidate has its best
        score; for n queries, a list of n such arrays, or [n, m, dim].
      ids: Candidates whose vectors are the query: an id or a list for one query, for which a
        candidate has its best score; a list of n lists for n queries.
      exact: Whether to search exactly, whatever the index.
      not_found: What happens with `ids` that do not exist. "error": The call fails; "skip": It does
        without them, and the response has them in `not_found`.
      options: Options such as k, filter and exclude_ids: see SelectOptions; and such as model,
        version and timeout_s: see CallOptions.

    Returns:
      One list of neighbors per query.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    return call(
        "Retrieve",
        unpack_retrieval,
        options,
        context=context,
        vectors=vectors,
        ids=ids,
        exact=exact,
        not_found=not_found,
    )


def rank(
    context: Requests | None = None,
    candidate_ids: Candidates | None = None,
    *,
    candidate_features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    k: int = 0,
    heads: Sequence[str] = (),
    formula: str = "",
    context_ids: Contexts | None = None,
    tower: str = "",
    not_found: NotFoundRule = "error",
    min_score: float | None = None,
    **options: Unpack[CallOptions],
) -> Call[RankingResult]:
    """Scores candidates for each context.

    Args:
      context: The features of one context, or a list of them; None: all are stored, or have
        defaults.
      candidate_ids: The ids of the candidates; for several contexts a list of lists, one per
        context. None: Candidates are given by features alone.
      candidate_features: One value per candidate, by the name of the feature; a list of such dicts
        for several contexts. The corpus has the others.
      k: The number of candidates of each context to return, best first; all, in the order
        sent, if left out or 0.
      heads: Names of outputs to return in addition to the score.
      formula: The formula of the score over outputs: `click^0.7 * like^0.3`; the
        model's if left out.
      context_ids: The ID, or a list of IDs, of contexts whose stored features are read where
        `context` has none.
      tower: The name of the ranking tower; the only one if left out.
      not_found: What happens with candidates that the corpus does not have. "error": The
        call fails; "skip": They are left out, and the response has their ids in `not_found`.
      min_score: The minimum score; candidates with lower scores are left out.
      options: The model, version, label, timeout_s and request_id: see CallOptions.

    Returns:
      One list of candidates with scores per context.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    return call(
        "Rank",
        unpack_ranking,
        options,
        context=context,
        candidate_ids=candidate_ids,
        candidate_features=candidate_features,
        k=k,
        heads=heads,
        formula=formula,
        context_ids=context_ids,
        tower=tower,
        not_found=not_found,
        min_score=min_score,
    )


def recommend(
    context: Requests | None = None,
    *,
    tower: str = "",
    sources: Sequence[Source] = (),
    keep: int = 0,
    skip_stage: bool = False,
    **options: Unpack[SelectOptions],
) -> Call[RetrievalResult]:
    """Retrieves candidates, ranks them and returns the k best, all with one version of the model.

    Args:
      context: The features of one request, for the query tower and the ranking tower, or a list of
        them; None: all are stored, or have defaults.
      tower: The name of the ranking tower; the only one if left out.
      sources: The sources of candidates, such as `[{"index": "movies"}, {"ids": [1, 260]}]`: see
        Source; left out: `index`.
      keep: The number of candidates of each request that the stage before the ranking tower keeps;
        as exported if left out or 0.
      skip_stage: Whether all candidates are ranked, without the stage before the ranking tower.
      options: Options such as k, filter and exclude_ids: see SelectOptions; and such as model,
        version and timeout_s: see CallOptions.

    Returns:
      One list of neighbors per request; their scores are the ranking tower's.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    return call(
        "Recommend",
        unpack_retrieval,
        options,
        context=context,
        tower=tower,
        sources=sources,
        keep=keep,
        skip_stage=skip_stage,
    )


def embed(
    features: Requests, *, tower: str = "", **options: Unpack[CallOptions]
) -> Call[EmbeddingResult]:
    """Computes a tower's vector for each of the given features.

    Args:
      features: The features of one example, or a list of them.
      tower: The name of the tower; the only one if left out.
      options: The model, version, label, timeout_s and request_id: see CallOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    return call("Embed", unpack_embedding, options, features=features, tower=tower)


def lookup(
    feature: str,
    ids: Candidates,
    *,
    not_found: NotFoundRule = "error",
    **options: Unpack[CallOptions],
) -> Call[LookupResult]:
    """Reads the table rows that a feature's ids stand for.

    Args:
      feature: The name of the feature whose table and id rule are used.
      ids: A list of ids.
      not_found: "skip": The response has the ids that the table does not have in `not_found`, and
        zeros for those that the feature rejects. "error": The call fails if the feature rejects
        one.
      options: The model, version, label, timeout_s and request_id: see CallOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    return call("Lookup", unpack_lookup, options, feature=feature, ids=ids, not_found=not_found)


def models(
    *, timeout_s: float | None = None, request_id: str | None = None
) -> Call[Sequence[ModelState]]:
    """Lists the models of the service, with the state of each version.

    Args:
      timeout_s: The timeout in seconds for all attempts together; None: The client's timeout.
      request_id: The ID under which the service logs the call; None: a new one.
    """
    request = pb.ListModelsRequest()
    response = pb.ListModelsResponse
    return Call("ListModels", request, response, _unpack_models, timeout_s, request_id)


def model(name: str = "", **options: Unpack[VersionOptions]) -> Call[ModelDetails]:
    """Describes a model: the features of each call, readers, tables, towers, indexes.

    Args:
      name: The name of the model; empty: the only one.
      options: The version, label, timeout_s and request_id: see VersionOptions.
    """
    return versioned_call(
        "GetModel",
        pb.GetModelRequest(),
        pb.GetModelResponse,
        lambda message: value_of(message, RECORDS),
        model=name,
        **options,
    )


def _unpack_models(message: pb.ListModelsResponse) -> list[ModelState]:
    return [value_of(state, RECORDS) for state in message.models]


def call(
    method: str, unpack: Callable[[Any], Result_co], options: Any, **values: Any
) -> Call[Result_co]:
    """Returns one of the five calls.

    Args:
      method: The name of the method in the contract.
      unpack: The function that reads a response.
      options: Further values, and those of CallOptions.
      values: The values of the fields of the request.

    Raises:
      InvalidArgument: A value cannot be sent, or some of them do not fit each other.
    """
    values |= options
    fields: dict[str, Any] = {}
    if method in _TOGETHER:
        fields = _TOGETHER[method](values)
    request = getattr(pb, f"{method}Request")
    packers = packers_of(request)
    if is_list(values.get("context")):
        for name in ("exclude_ids", "negative_ids"):
            check_list_count(name, values.get(name), len(values["context"]))
    names = [name for name in values if name in packers]
    fields |= packed_fields(request, {name: values.pop(name) for name in names})
    # An unknown name goes on to `versioned_call`, whose TypeError names it.
    response = getattr(pb, f"{method}Response")
    return versioned_call(method, request(**fields), response, unpack, **values)


def _queries(values: dict[str, Any]) -> dict[str, Any]:
    """Packs the queries of a retrieval, without those that are contexts."""
    vectors = values.pop("vectors")
    ids = values.pop("ids")
    by_context = values["context"] is not None or values.get("context_ids") is not None
    if by_context + (vectors is not None) + (ids is not None) != 1:
        raise InvalidArgument(
            "queries must be given as exactly one of context (or context_ids), vectors, and ids"
        )
    fields: dict[str, Any] = {}
    counts = None
    if vectors is not None:
        fields["vectors"], counts = pack_vectors(vectors)
    if ids is not None:
        fields["ids"], counts = pack_queries_by_id(ids)
    if counts is not None:
        fields["query_offsets"] = offsets_of("queries", counts)
    return fields


def _contexts_and_candidates(values: dict[str, Any]) -> dict[str, Any]:
    """Packs the contexts of a ranking and their candidates."""
    context = values.pop("context")
    # Stored contexts need no features, but the number of contexts shows in their list.
    if context is None:
        context = {}
        if is_list(values["context_ids"]):
            context = [{}] * len(values["context_ids"])
    candidates = pack_candidates(
        context, values.pop("candidate_ids"), values.pop("candidate_features")
    )
    return {"context": pack_requests(context), **candidates}


def _ids_of_feature(values: dict[str, Any]) -> dict[str, Any]:
    """Packs the ids of a lookup."""
    ids = values.pop("ids")
    # A column may be nested or hold floats; the ids of a lookup must not, which this checks.
    pack_ids("ids", ids)
    return {"ids": pack_column(values["feature"], ids)}


_TOGETHER = {
    "Retrieve": _queries,
    "Rank": _contexts_and_candidates,
    "Lookup": _ids_of_feature,
}
"""Functions that pack the values that must fit each other, and take them out."""


def versioned_call(
    method: str,
    request: Any,
    response: Any,
    unpack: Callable[[Any], Result_co],
    *,
    model: str = "",
    version: int = 0,
    label: str = "",
    timeout_s: float | None = None,
    request_id: str | None = None,
) -> Call[Result_co]:
    """Returns a call of one version of a model.

    Args:
      method: The name of the method in the contract.
      request: The message of the request, without the model.
      response: The class of the response's message.
      unpack: The function that reads a response.
      model, version, label, timeout_s, request_id: The values of CallOptions, or their defaults.

    Raises:
      InvalidArgument: One of these values cannot be sent, or both version and label are set.
    """
    fields = packed_fields(pb.ModelSpec, {"version": version, "label": label})
    if version and label:
        raise InvalidArgument(
            f"version is {version} and label is {label!r}: expected only one of the two"
        )
    # Also without any: protobuf would leave the message of the only model out.
    request.model.CopyFrom(pb.ModelSpec(name=check_text("model", model or ""), **fields))
    return Call(method, request, response, unpack, timeout_s, request_id)
