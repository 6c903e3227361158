"""The calls of a service: their requests, and how their responses are read. Both clients and both
transports use them.

Each function checks and packs its arguments and returns a Call; `Client` and `AsyncClient` send it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike

from rowcast_client.candidates import (
    Candidates,
    Contexts,
    offsets_of,
    pack_candidates,
    pack_contexts,
    pack_id_lists,
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
from rowcast_client.filters import Filter, pack_crowding, pack_filter
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
from rowcast_client.sources import Source, pack_sources
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
    by_context = context is not None or options.get("context_ids") is not None
    if by_context + (vectors is not None) + (ids is not None) != 1:
        raise InvalidArgument(
            "queries must be given as exactly one of context (or context_ids), vectors, and ids"
        )
    fields, call_options = _selection(options)
    counts = None
    if context is not None:
        fields["context"] = pack_requests(context)
    if vectors is not None:
        fields["vectors"], counts = pack_vectors(vectors)
    if ids is not None:
        fields["ids"], counts = pack_queries_by_id(ids)
    if counts is not None:
        fields["query_offsets"] = offsets_of("queries", counts)
    request = pb.RetrieveRequest(
        exact=_flag("exact", exact), not_found=_not_found_rule(not_found), **fields
    )
    return versioned_call(
        "Retrieve", request, pb.RetrieveResponse, unpack_retrieval, **call_options
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
        for several contexts. The candidate store has the others.
      k: The number of candidates of each context to return, best first; 0: all, in the order sent.
      heads: Names of outputs to return in addition to the score.
      formula: The formula of the score over outputs: `click^0.7 * like^0.3`; empty: the model's.
      context_ids: The ID, or a list of IDs, of contexts whose stored features are read where
        `context` has none.
      tower: The name of the ranking tower; empty: the only one.
      not_found: What happens with candidates that the candidate store does not have. "error": The
        call fails; "skip": They are left out, and the response has their ids in `not_found`.
      min_score: The minimum score; candidates with lower scores are left out.
      options: The model, version, label, timeout_s and request_id: see CallOptions.

    Returns:
      One list of candidates with scores per context.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    # Stored contexts need no features, but the number of contexts shows in their list.
    if context is None:
        context = {}
        if is_list(context_ids):
            context = [{}] * len(context_ids)
    request = pb.RankRequest(
        tower=text("tower", tower),
        context=pack_requests(context),
        heads=_names("heads", heads),
        k=_count("k", k),
        formula=text("formula", formula),
        context_ids=pack_contexts(context_ids),
        not_found=_not_found_rule(not_found),
        min_score=_number("min_score", min_score),
        **pack_candidates(context, candidate_ids, candidate_features),
    )
    return versioned_call("Rank", request, pb.RankResponse, unpack_ranking, **options)


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
      tower: The name of the ranking tower; empty: the only one.
      sources: The sources of candidates, such as `[{"index": "movies"}, {"ids": [1, 260]}]`: see
        Source; left out: `index`.
      keep: The number of candidates of each request that the stage before the ranking tower keeps;
        0: as exported.
      skip_stage: Whether all candidates are ranked, without the stage before the ranking tower.
      options: Options such as k, filter and exclude_ids: see SelectOptions; and such as model,
        version and timeout_s: see CallOptions.

    Returns:
      One list of neighbors per request; their scores are the ranking tower's.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    columns = None
    if context is not None:
        columns = pack_requests(context)
    selection, call_options = _selection(options)
    request = pb.RecommendRequest(
        context=columns,
        tower=text("tower", tower),
        sources=pack_sources(sources),
        keep=_count("keep", keep),
        skip_stage=_flag("skip_stage", skip_stage),
        **selection,
    )
    return versioned_call(
        "Recommend", request, pb.RecommendResponse, unpack_retrieval, **call_options
    )


def embed(
    features: Requests, *, tower: str = "", **options: Unpack[CallOptions]
) -> Call[EmbeddingResult]:
    """Computes a tower's vector for each of the given features.

    Args:
      features: The features of one example, or a list of them.
      tower: The name of the tower; empty: the only one.
      options: The model, version, label, timeout_s and request_id: see CallOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    request = pb.EmbedRequest(tower=text("tower", tower), features=pack_requests(features))
    return versioned_call("Embed", request, pb.EmbedResponse, unpack_embedding, **options)


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
    # A column may be nested or hold floats; the ids of a lookup must not, which this checks.
    pack_ids("ids", ids)
    request = pb.LookupRequest(
        feature=feature,
        ids=pack_column(feature, ids),
        not_found=_not_found_rule(not_found),
    )
    return versioned_call("Lookup", request, pb.LookupResponse, unpack_lookup, **options)


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


def _selection(options: SelectOptions) -> tuple[dict[str, Any], CallOptions]:
    """Packs the options of SELECTION and _ID_LISTS that are set.

    Returns:
      The fields of a request, and the options of the call itself.

    Raises:
      InvalidArgument: A value cannot be sent; names the option.
    """
    fields: dict[str, Any] = {}
    call_options: Any = {}
    # Type checkers know the values of a TypedDict by literal names only.
    values: Mapping[str, Any] = {**options}
    for name, value in values.items():
        if name in SELECTION:
            fields[name] = SELECTION[name](name, value)
        elif name in _ID_LISTS:
            fields |= pack_id_lists(name, _ID_LISTS[name], value)
        else:
            # An unknown name goes on to `versioned_call`, whose TypeError names it.
            call_options[name] = value
    return fields, call_options


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
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise InvalidArgument(
            f"version is {version!r}: expected a positive integer, or 0 for the current one"
        )
    if version and label:
        raise InvalidArgument(
            f"version is {version} and label is {label!r}: expected only one of the two"
        )
    spec = request.model
    # Protobuf leaves out a message in which no field is set, such as that of the only model.
    spec.SetInParent()
    spec.name = text("model", model)
    if version:
        spec.version = version
    if label != "":
        spec.label = text("label", label)
    return Call(method, request, response, unpack, timeout_s, request_id)


def _count(name: str, value: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not -(2**31) <= value < 2**31
    ):
        raise InvalidArgument(f"{name} is {value!r}: expected an integer below 2^31")
    return int(value)


def _flag(name: str, value: bool) -> bool:
    # Any object has a truth in Python: that of "no" is True.
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name} is {value!r}: expected True or False")
    return bool(value)


def _number(name: str, value: float | None) -> float | None:
    if isinstance(value, bool) or not isinstance(
        value, (int, float, np.integer, np.floating, type(None))
    ):
        raise InvalidArgument(f"{name} is {value!r}: expected a number")
    if value is None:
        return None
    return float(value)


def _optional_count(name: str, value: int | None) -> int | None:
    # The offset 0 is not the same as none: pages have a pool of `pool_size`.
    if value is None:
        return None
    return _count(name, value)


def text(name: str, value: str | None) -> str:
    """Returns a text, "" for None.

    Raises:
      InvalidArgument: The value is not text, or not all of it is Unicode.
    """
    if value is None:
        return ""
    return check_text(name, value)


def _not_found_rule(rule: NotFoundRule) -> pb.NotFoundRule:
    if rule == "error":
        return pb.NOT_FOUND_RULE_UNSPECIFIED
    if rule == "skip":
        return pb.NOT_FOUND_RULE_SKIP
    raise InvalidArgument(f"not_found is {rule!r}: expected 'error' or 'skip'")


def _names(name: str, values: Iterable[str]) -> list[str]:
    # A text would be iterated by its characters.
    is_sequence = isinstance(values, Iterable) and not isinstance(values, (str, bytes))
    names = list(values) if is_sequence else []
    if not is_sequence or not all(isinstance(entry, str) for entry in names):
        raise InvalidArgument(f"{name} is {values!r}: expected a list of names")
    return [check_text(name, entry) for entry in names]


SELECTION: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("k", "pool_size"), _count),
    **dict.fromkeys(("diversity", "min_score", "recall"), _number),
    **dict.fromkeys(("formula", "index"), text),
    "attributes": _names,
    "context_ids": lambda _, ids: pack_contexts(ids),
    "crowding": lambda _, crowding: pack_crowding(crowding),
    "offset": _optional_count,
    "explain": _flag,
    "filter": lambda _, conditions: pack_filter(conditions),
}
"""Functions that pack the options of SelectOptions, without those in _ID_LISTS."""
_ID_LISTS = {"exclude_ids": "exclude_offsets", "negative_ids": "negative_offsets"}
"""Options that are two fields of a request: the ids, and the offsets between requests."""
