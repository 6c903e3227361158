"""The calls of a service: what each sends and how its answer is read. Both clients and both transports go through here.

Each function checks and packs its arguments and returns a Call; `Client` and `AsyncClient` send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rowcast_client.columns import (
    Column,
    Features,
    pack_column,
    pack_features,
    pack_ids,
    pack_offsets,
    pack_requests,
    pack_vectors,
)
from rowcast_client.details import ModelDetails, ModelState, unpack_details, unpack_models
from rowcast_client.errors import InvalidArgument
from rowcast_client.results import (
    Embedded,
    LookedUp,
    Ranked,
    Retrieved,
    unpack_embedded,
    unpack_looked_up,
    unpack_ranked,
    unpack_recommended,
    unpack_retrieved,
)
from rowcast_client.stubs import embedding_service_pb2 as pb

Result_co = TypeVar("Result_co", covariant=True)
Requests = Features | Sequence[Features]
Candidates = Sequence[Any] | NDArray[Any]
"""Ids: a list or array; or, for several requests, a list of such, one per request."""


@dataclass(frozen=True)
class Call(Generic[Result_co]):
    """One call, ready to be sent.

    Attributes:
      method: its name in the contract, such as "Retrieve".
      request: the message that goes out.
      response: class of the message that comes back.
      unpack: reads that message.
      timeout_s: time for all attempts together; None: the client's.
      request_id: under which the service logs it; None: a new one.
      vectors: how many queries the vectors of a retrieval are.
    """

    method: str
    request: Any
    response: Any
    unpack: Callable[[Any], Result_co]
    timeout_s: float | None
    request_id: str | None
    vectors: int = 1


def retrieve(
    features: Requests | None = None,
    *,
    k: int = 0,
    vectors: ArrayLike | None = None,
    ids: Candidates | None = None,
    exclude: Candidates | None = None,
    attributes: Sequence[str] = (),
    exact: bool = False,
    index: str = "",
    model: str = "",
    version: int = 0,
    timeout_s: float | None = None,
    request_id: str | None = None,
) -> Call[Retrieved]:
    """Finds the k nearest candidates of each query.

    Queries are told by exactly one of features, vectors and ids.

    Args:
      features: of one query, `{"user_id": 5, "history": [1, 2, 3]}`, or a list of such dicts.
      k: neighbors wanted per query; 0: 10.
      vectors: [dim], or [n, dim] for n queries.
      ids: candidates whose own vectors are the queries.
      exclude: candidates never returned: a list for all queries, or a list of lists, one per query.
      attributes: returned with each neighbor, such as `["title"]`.
      exact: search exactly, whatever the index.
      index: empty: the only one.
      model: empty: the only one.
      version: 0: the newest.
      timeout_s: for all attempts together; None: the client's.
      request_id: under which the service logs the call; None: a new one.

    Returns:
      One list of neighbors per query.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py` lists them.
    """
    if sum(told is not None for told in (features, vectors, ids)) != 1:
        raise InvalidArgument("queries must be told by exactly one of features, vectors and ids")
    packed, queries = pack_vectors(vectors) if vectors is not None else (b"", 1)
    request = pb.RetrieveRequest(
        model=_model(model, version),
        index=index,
        k=_count("k", k),
        features=pack_requests(features) if features is not None else None,
        vectors=packed,
        ids=pack_ids("ids", ids) if ids is not None else None,
        attributes=_names("attributes", attributes),
        exact=exact,
        **_exclusion(exclude),
    )
    return Call("Retrieve", request, pb.RetrieveResponse, unpack_retrieved, timeout_s, request_id, queries)


def rank(
    context: Requests,
    candidates: Candidates | None = None,
    *,
    features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    k: int = 0,
    heads: Sequence[str] = (),
    tower: str = "",
    model: str = "",
    version: int = 0,
    timeout_s: float | None = None,
    request_id: str | None = None,
) -> Call[Ranked]:
    """Scores candidates for each context.

    Args:
      context: features of one context, or a list of them.
      candidates: ids; of several contexts a list of lists of ids, one per context. None: told by features alone.
      features: of the candidates, name -> one value per candidate; of several contexts a list of such dicts. What is
        not sent is taken from the candidate store.
      k: only the k best of each context, best first; 0: all, in the order sent.
      heads: outputs returned beside the score.
      tower: empty: the only ranking tower.
      model: empty: the only one.
      version: 0: the newest.
      timeout_s: for all attempts together; None: the client's.
      request_id: under which the service logs the call; None: a new one.

    Returns:
      One list of candidates with scores per context.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py` lists them.
    """
    lists = None if candidates is None else _lists("candidates", candidates)
    flat = candidates if lists is None else [one for ids in lists for one in ids]
    packed = isinstance(context, Mapping) and any(isinstance(value, Column) for value in context.values())
    several = not isinstance(context, Mapping) or (packed and lists is not None)
    if candidates is not None and several == (lists is None):
        raise InvalidArgument("candidates of one context are a list of ids; of a list of contexts a list of lists")
    columns, feature_counts = _candidate_features(features, several)
    if candidates is None and not columns:
        raise InvalidArgument("candidates must be told by their ids, by features, or by both")
    counts = feature_counts if lists is None else [len(one) for one in lists]
    contexts = len(counts or ()) if packed else len(context)
    if several and (counts is None or len(counts) != contexts or feature_counts not in (None, counts)):
        raise InvalidArgument(
            f"{contexts} contexts were sent with candidates {counts} and features of candidates {feature_counts}: "
            "expected as many lists as contexts, with one value per candidate"
        )
    request = pb.RankRequest(
        model=_model(model, version),
        tower=tower,
        context=pack_requests(context),
        candidate_ids=None if flat is None else pack_ids("candidates", flat),
        candidates=columns,
        offsets=pack_offsets("candidates", np.cumsum([0, *counts])) if counts is not None else b"",
        heads=_names("heads", heads),
        k=_count("k", k),
    )
    return Call("Rank", request, pb.RankResponse, unpack_ranked, timeout_s, request_id)


def recommend(
    features: Requests,
    *,
    k: int = 0,
    candidates: int = 0,
    exclude: Candidates | None = None,
    attributes: Sequence[str] = (),
    index: str = "",
    tower: str = "",
    model: str = "",
    version: int = 0,
    timeout_s: float | None = None,
    request_id: str | None = None,
) -> Call[Retrieved]:
    """Retrieves candidates, ranks them and returns the k best, all with one version of the model.

    Args:
      features: query and context features of one request, or a list of them.
      k: recommendations wanted; 0: 10.
      candidates: how many are retrieved and ranked; 0: max(100, 10 k).
      exclude: candidates never returned: a list for all requests, or a list of lists, one per request.
      attributes: returned with each neighbor.
      index: empty: the only one.
      tower: empty: the only ranking tower.
      model: empty: the only one.
      version: 0: the newest.
      timeout_s: for all attempts together; None: the client's.
      request_id: under which the service logs the call; None: a new one.

    Returns:
      One list of neighbors per request; their scores are the ranking tower's.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py` lists them.
    """
    request = pb.RecommendRequest(
        model=_model(model, version),
        features=pack_requests(features),
        k=_count("k", k),
        candidates=_count("candidates", candidates),
        attributes=_names("attributes", attributes),
        index=index,
        tower=tower,
        **_exclusion(exclude),
    )
    return Call("Recommend", request, pb.RecommendResponse, unpack_recommended, timeout_s, request_id)


def embed(
    features: Requests,
    *,
    tower: str = "",
    model: str = "",
    version: int = 0,
    timeout_s: float | None = None,
    request_id: str | None = None,
) -> Call[Embedded]:
    """Computes a tower's vector for each of the given features.

    Args:
      features: of one example, or a list of them.
      tower: empty: the only one.
      model: empty: the only one.
      version: 0: the newest.
      timeout_s: for all attempts together; None: the client's.
      request_id: under which the service logs the call; None: a new one.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py` lists them.
    """
    request = pb.EmbedRequest(model=_model(model, version), tower=tower, features=pack_requests(features))
    return Call("Embed", request, pb.EmbedResponse, unpack_embedded, timeout_s, request_id)


def lookup(
    feature: str,
    ids: Candidates,
    *,
    model: str = "",
    version: int = 0,
    timeout_s: float | None = None,
    request_id: str | None = None,
) -> Call[LookedUp]:
    """Reads the table rows that a feature's ids stand for.

    Args:
      feature: whose table and id rule are used.
      ids: a list of ids.
      model: empty: the only one.
      version: 0: the newest.
      timeout_s: for all attempts together; None: the client's.
      request_id: under which the service logs the call; None: a new one.

    Raises:
      InvalidArgument: a value cannot be sent; the service's own errors are raised as `errors.py` lists them.
    """
    pack_ids("ids", ids)  # refuses what is no flat list of ids
    request = pb.LookupRequest(model=_model(model, version), feature=feature, ids=pack_column(feature, ids))
    return Call("Lookup", request, pb.LookupResponse, unpack_looked_up, timeout_s, request_id)


def models(*, timeout_s: float | None = None, request_id: str | None = None) -> Call[tuple[ModelState, ...]]:
    """Lists the models of the service, with the state of each version.

    Args:
      timeout_s: for all attempts together; None: the client's.
      request_id: under which the service logs the call; None: a new one.
    """
    return Call("ListModels", pb.ListModelsRequest(), pb.ListModelsResponse, unpack_models, timeout_s, request_id)


def model(
    name: str = "", *, version: int = 0, timeout_s: float | None = None, request_id: str | None = None
) -> Call[ModelDetails]:
    """Tells how the calls of a model are written: features, types, defaults, tables, indexes, attributes.

    Args:
      name: empty: the only one.
      version: 0: the newest.
      timeout_s: for all attempts together; None: the client's.
      request_id: under which the service logs the call; None: a new one.
    """
    request = pb.GetModelRequest(model=_model(name, version))
    return Call("GetModel", request, pb.ModelDetails, unpack_details, timeout_s, request_id)


def _model(name: str, version: int) -> pb.ModelSpec:
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise InvalidArgument(f"version is {version!r}: expected a positive integer, or 0 for the newest")
    return pb.ModelSpec(name=name, version=version)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not -(2**31) <= value < 2**31:
        raise InvalidArgument(f"{name} is {value!r}: expected an integer below 2^31")
    return int(value)


def _names(name: str, values: Sequence[str]) -> Sequence[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise InvalidArgument(f"{name} is {values!r}: expected a list of names")
    return values


def _lists(name: str, ids: Candidates) -> list[Sequence[Any]] | None:
    """The lists of a list of lists; None if it is a flat list of ids."""
    if isinstance(ids, np.ndarray):
        return list(ids) if ids.ndim > 1 else None
    if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Sequence):
        raise InvalidArgument(f"{name} is {ids!r}: expected a list of ids")
    nested = [isinstance(one, (list, tuple, np.ndarray)) for one in ids]
    if not any(nested):
        return None
    if not all(nested):
        raise InvalidArgument(f"{name} mixes ids and lists of ids: expected one of the two")
    return list(ids)


def _exclusion(exclude: Candidates | None) -> dict[str, Any]:
    if exclude is None:
        return {}
    lists = _lists("exclude", exclude)
    if lists is None:
        return {"exclude_ids": pack_ids("exclude", exclude)}
    return {
        "exclude_ids": pack_ids("exclude", [one for ids in lists for one in ids]),
        "exclude_offsets": pack_offsets("exclude", np.cumsum([0, *map(len, lists)])),
    }


def _candidate_features(
    features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, several: bool
) -> tuple[dict[str, pb.Column], list[int] | None]:
    """Columns of all candidates, and how many candidates each of several contexts has by them."""
    if not features:
        return {}, None
    if isinstance(features, Mapping):
        if several:
            raise InvalidArgument("features of the candidates of several contexts are a list of dicts, one per context")
        return pack_features(features), None
    if not several:
        raise InvalidArgument("features of the candidates of one context are one dict: name -> one value per candidate")
    names = features[0].keys()
    for place, one in enumerate(features):
        if one.keys() != names:
            raise InvalidArgument(
                f"candidates of context {place} have features {sorted(one)}, the first's have {sorted(names)}: "
                "expected the same"
            )
    counts = [{len(values) for values in one.values()} for one in features]
    for place, lengths in enumerate(counts):
        if len(lengths) > 1:
            raise InvalidArgument(
                f"features of the candidates of context {place} have {sorted(lengths)} values: expected as many"
            )
    joined = {name: [value for one in features for value in one[name]] for name in names}
    return pack_features(joined), [min(lengths, default=0) for lengths in counts]
