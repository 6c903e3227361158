"""The calls of a service: what each sends and how its response is read. Both clients and both
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
    is_list,
    pack_column,
    pack_ids,
    pack_requests,
    pack_vectors,
)
from rowcast_client.descriptions import described
from rowcast_client.errors import InvalidArgument
from rowcast_client.filters import Filter, pack_crowding, pack_filter
from rowcast_client.model_details import ModelDetails, ModelState
from rowcast_client.results import (
    Embedded,
    LookedUp,
    Ranked,
    Retrieved,
    unpack_embedded,
    unpack_looked_up,
    unpack_ranked,
    unpack_retrieved,
)
from rowcast_client.sources import Source, pack_sources
from rowcast_client.stubs import embedding_service_pb2 as pb

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
      model: left out: the only one.
    """

    model: str


class SelectOptions(CallOptions, total=False):
    """Options of retrieve and recommend: which candidates are returned, how many, and in which
    order.

    Attributes:
      k: neighbors wanted of each request; left out or 0: 10.
      pool_size: how many are retrieved before they are ranked or reordered; left out or 0: max(100,
        10 k).
      filter: conditions on their attributes: `where("year").at_least(1990)`, or a dict as in JSON.
      exclude_ids: candidates never returned: a list for all requests, or a list of lists, one per
        request.
      negative_ids: candidates that the neighbors must not be like, given as `exclude_ids`; they are
        not returned either.
      offset: The position of the first neighbor to return, for pages: the list is made over a pool
        of `pool_size`.
      crowding: how many neighbors may have the same value of an attribute, by attribute:
        `{"seller": 3}`.
      diversity: 0: by score alone; up to 1: less and less like the neighbors before.
      min_score: neighbors with lower scores are left out.
      formula: gives the score: over outputs in recommend; over `score` and numeric attributes in
        retrieve.
      attributes: returned with each neighbor, such as `["title"]`.
      index: left out: the only one.
      recall: at least this one, by the index's measured curve; left out or 0: as exported.
      explain: the response has an explanation of each request.
      context_ids: The ID, or a list of IDs, of contexts whose stored features are taken where
        `context` sends none.
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
      method: its name in the contract, such as "Retrieve".
      request: the message that goes out.
      response: class of the message that comes back.
      unpack: reads that message.
      timeout_s: time for all attempts together; None: the client's.
      request_id: under which the service logs it; None: a new one.
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
) -> Call[Retrieved]:
    """Finds the k nearest candidates of each query.

    Queries are given by exactly one of context (or context_ids, or both), vectors and ids.

    Args:
      context: features of one query, `{"user_id": 5, "history": [1, 2, 3]}`, or a list of such
        dicts.
      vectors: The vectors of one query: [dim], or [m, dim], for which a candidate has its best
        score; for n queries, a list of n such arrays, or [n, m, dim].
      ids: candidates whose own vectors are the query: of one query an id, or a list, for which a
        candidate has its best score; of n queries a list of n lists.
      exact: search exactly, whatever the index.
      not_found: What happens with `ids` that do not exist. "error": The call fails; "skip": It does
        without them, and the response has them in `not_found`.
      options: k, filter, exclude_ids and more: see SelectOptions; model, version, timeout_s and
        more: see CallOptions.

    Returns:
      One list of neighbors per query.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    by_context = context is not None or options.get("context_ids") is not None
    if by_context + (vectors is not None) + (ids is not None) != 1:
        raise InvalidArgument(
            "queries must be given as exactly one of context (or context_ids), vectors, and ids"
        )
    fields, others = _selection(options)
    counts = None
    if context is not None:
        fields["context"] = pack_requests(context)
    if vectors is not None:
        fields["vectors"], counts = pack_vectors(vectors)
    if ids is not None:
        fields["ids"], counts = pack_queries_by_id(ids)
    if counts is not None:
        fields["query_offsets"] = offsets_of("queries", counts)
    request = pb.RetrieveRequest(exact=bool(exact), not_found=_not_found_rule(not_found), **fields)
    return versioned_call("Retrieve", request, pb.RetrieveResponse, unpack_retrieved, **others)


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
    **options: Unpack[CallOptions],
) -> Call[Ranked]:
    """Scores candidates for each context.

    Args:
      context: features of one context, or a list of them; None: all are stored, or have defaults.
      candidate_ids: The ids of the candidates; for several contexts a list of lists, one per
        context. None: Candidates are given by features alone.
      candidate_features: name -> one value per candidate; of several contexts a list of such
        dicts. What is not sent is taken from the candidate store.
      k: only the k best of each context, best first; 0: all, in the order sent.
      heads: outputs returned beside the score.
      formula: over outputs, gives the score: `click^0.7 * like^0.3`; empty: the model's own.
      context_ids: The ID, or a list of IDs, of contexts whose stored features are taken where
        `context` sends none.
      tower: empty: the only ranking tower.
      not_found: What happens with candidates that the candidate store does not have. "error": The
        call fails; "skip": They are left out, and the response has their ids in `not_found`.
      options: model, version, label, timeout_s, request_id: see CallOptions.

    Returns:
      One list of candidates with scores per context.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    if context is None:
        context = [{}] * len(context_ids) if is_list(context_ids) else {}
    request = pb.RankRequest(
        tower=text("tower", tower),
        context=pack_requests(context),
        heads=_names("heads", heads),
        k=_count("k", k),
        formula=text("formula", formula),
        context_ids=pack_contexts(context_ids),
        not_found=_not_found_rule(not_found),
        **pack_candidates(context, candidate_ids, candidate_features),
    )
    return versioned_call("Rank", request, pb.RankResponse, unpack_ranked, **options)


def recommend(
    context: Requests | None = None,
    *,
    tower: str = "",
    sources: Sequence[Source] = (),
    keep: int = 0,
    skip_stage: bool = False,
    **options: Unpack[SelectOptions],
) -> Call[Retrieved]:
    """Retrieves candidates, ranks them and returns the k best, all with one version of the model.

    Args:
      context: features of one request, for the query tower and the ranking tower, or a list of
        them; None: all are stored, or have defaults.
      tower: empty: the only ranking tower.
      sources: Where candidates come from, such as `[{"index": "movies"}, {"ids": [1, 260]}]`: see
        Source; left out: from `index`.
      keep: How many candidates of each request the stage before the ranking tower keeps; 0: as
        exported.
      skip_stage: Whether all candidates are ranked, without the stage before the ranking tower.
      options: k, filter, exclude_ids and more: see SelectOptions; model, version, timeout_s and
        more: see CallOptions.

    Returns:
      One list of neighbors per request; their scores are the ranking tower's.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    packed = None if context is None else pack_requests(context)
    selection, others = _selection(options)
    request = pb.RecommendRequest(
        context=packed,
        tower=text("tower", tower),
        sources=pack_sources(sources),
        keep=_count("keep", keep),
        skip_stage=bool(skip_stage),
        **selection,
    )
    return versioned_call("Recommend", request, pb.RecommendResponse, unpack_retrieved, **others)


def embed(features: Requests, *, tower: str = "", **options: Unpack[CallOptions]) -> Call[Embedded]:
    """Computes a tower's vector for each of the given features.

    Args:
      features: The features of one example, or a list of them.
      tower: empty: the only one.
      options: model, version, label, timeout_s, request_id: see CallOptions.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    request = pb.EmbedRequest(tower=text("tower", tower), features=pack_requests(features))
    return versioned_call("Embed", request, pb.EmbedResponse, unpack_embedded, **options)


def lookup(
    feature: str,
    ids: Candidates,
    *,
    not_found: NotFoundRule = "error",
    **options: Unpack[CallOptions],
) -> Call[LookedUp]:
    """Reads the table rows that a feature's ids stand for.

    Args:
      feature: The name of the feature whose table and id rule are used.
      ids: a list of ids.
      not_found: "skip": The response has the ids that the table does not have in `not_found`, and
        zeros for those that the feature rejects. "error": The call fails if the feature rejects
        one.
      options: model, version, label, timeout_s, request_id: see CallOptions.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py`
        lists them.
    """
    pack_ids("ids", ids)  # rejects what is no flat list of ids
    request = pb.LookupRequest(
        feature=feature,
        ids=pack_column(feature, ids),
        not_found=_not_found_rule(not_found),
    )
    return versioned_call("Lookup", request, pb.LookupResponse, unpack_looked_up, **options)


def models(
    *, timeout_s: float | None = None, request_id: str | None = None
) -> Call[Sequence[ModelState]]:
    """Lists the models of the service, with the state of each version.

    Args:
      timeout_s: The timeout in seconds for all attempts together; None: The client's timeout.
      request_id: under which the service logs the call; None: a new one.
    """
    request = pb.ListModelsRequest()
    response = pb.ListModelsResponse
    return Call("ListModels", request, response, _unpack_models, timeout_s, request_id)


def model(name: str = "", **options: Unpack[VersionOptions]) -> Call[ModelDetails]:
    """Describes a model: the features of each call, readers, tables, towers, indexes.

    Args:
      name: empty: the only one.
      options: version, label, timeout_s, request_id: see VersionOptions.
    """
    return versioned_call(
        "GetModel",
        pb.GetModelRequest(),
        pb.GetModelResponse,
        described,
        model=name,
        **options,
    )


def _unpack_models(message: pb.ListModelsResponse) -> list[ModelState]:
    return [described(state) for state in message.models]


def _selection(options: SelectOptions) -> tuple[dict[str, Any], CallOptions]:
    """Packs what is given of SELECTION as fields of a request; returns the other options too."""
    fields: dict[str, Any] = {}
    others: Any = {}
    values: Mapping[str, Any] = {**options}
    for name, value in values.items():
        if name in SELECTION:
            fields[name] = SELECTION[name](name, value)
        elif name in _ID_LISTS:
            fields |= pack_id_lists(name, _ID_LISTS[name], value)
        else:
            others[name] = value
    return fields, others


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
    """A call of one version of a model; takes the names of CallOptions, and has their defaults."""
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise InvalidArgument(
            f"version is {version!r}: expected a positive integer, or 0 for the current one"
        )
    if version and label:
        raise InvalidArgument(
            f"version is {version} and label is {label!r}: expected only one of the two"
        )
    spec = request.model
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


def _number(name: str, value: float | None) -> float | None:
    if isinstance(value, bool) or not isinstance(
        value, (int, float, np.integer, np.floating, type(None))
    ):
        raise InvalidArgument(f"{name} is {value!r}: expected a number")
    return None if value is None else float(value)


def text(name: str, value: str | None) -> str:
    """Returns a text, "" for None; raises InvalidArgument if it is none."""
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}: expected text")
    return value or ""


def _not_found_rule(rule: NotFoundRule) -> pb.NotFoundRule:
    if rule == "error":
        return pb.NOT_FOUND_RULE_UNSPECIFIED
    if rule == "skip":
        return pb.NOT_FOUND_RULE_SKIP
    raise InvalidArgument(f"not_found is {rule!r}: expected 'error' or 'skip'")


def _names(name: str, values: Iterable[str]) -> list[str]:
    listed = (
        list(values)
        if isinstance(values, Iterable) and not isinstance(values, (str, bytes))
        else None
    )
    if listed is None or not all(isinstance(value, str) for value in listed):
        raise InvalidArgument(f"{name} is {values!r}: expected a list of names")
    return listed


SELECTION: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("k", "pool_size"), _count),
    **dict.fromkeys(("diversity", "min_score", "recall"), _number),
    **dict.fromkeys(("formula", "index"), text),
    "attributes": _names,
    "context_ids": lambda _, given: pack_contexts(given),
    "crowding": lambda _, given: pack_crowding(given),
    "offset": lambda name, given: None if given is None else _count(name, given),
    "explain": lambda _, given: bool(given),
    "filter": lambda _, given: pack_filter(given),
}
"""What packs each of SelectOptions but those of _ID_LISTS."""
_ID_LISTS = {"exclude_ids": "exclude_offsets", "negative_ids": "negative_offsets"}
"""Options that are two fields of a request: the ids, and the offsets of each request's."""
