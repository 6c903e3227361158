"""Packs candidates and contexts, as people name them for one request or several, into ids, offsets
and columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowcast_client.columns import (
    LISTS,
    Column,
    as_list,
    is_list,
    pack_features,
    pack_ids,
    pack_offsets,
    shown,
)
from rowcast_client.errors import InvalidArgument
from rowcast_client.stubs import embedding_service_pb2 as pb

Candidates = Sequence[Any] | NDArray[Any]
"""Ids: a list or array; or, for several requests, a list of such, one per request."""
Contexts = int | str | Sequence[Any] | NDArray[Any]
"""The id of one context, or a list or array of them, one per request."""


def pack_contexts(name: str, ids: Contexts) -> pb.Ids:
    """Packs the ids of contexts.

    Raises:
      InvalidArgument: They are not all integers or all strings.
    """
    ids = as_list(ids)
    if not is_list(ids):
        ids = [ids]
    return pack_ids(name, ids)


def pack_candidates(
    context: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ids: Candidates | None,
    features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Packs the candidates of one context, or of a list of them, as fields of a request.

    Args:
      context: The features of the contexts; Columns may be those of one or of several.
      ids: The ids of the candidates, or a list of them per context. None: The candidates are given
        by features alone.
      features: The features of the candidates, or a list of them per context.

    Raises:
      InvalidArgument: Contexts, ids and features do not fit each other.
    """
    packed_ids = None
    counts = None
    if ids is not None:
        packed_ids, counts = pack_lists("candidate_ids", ids)

    is_packed = isinstance(context, Mapping) and any(
        isinstance(value, Column) for value in context.values()
    )
    if is_packed:
        # A Column does not show how many contexts it has; the form of the ids does.
        is_several = counts is not None
    else:
        is_several = not isinstance(context, Mapping)
    if packed_ids is not None and is_several == (counts is None):
        raise InvalidArgument(
            "candidate_ids must be a list of ids for one context, or a list of lists for several "
            "contexts"
        )
    columns, feature_counts = _pack_features(features, is_several)
    if packed_ids is None and not columns:
        raise InvalidArgument(
            "candidates are missing: expected candidate_ids, candidate_features, or both"
        )

    # Contexts, ids and features must agree in their number, or the service would read one context's
    # candidates as those of another.
    if counts is None:
        counts = feature_counts
    list_count = len(counts or ())
    context_count = list_count if is_packed else len(context)
    if is_several and (list_count != context_count or feature_counts not in (None, counts)):
        raise InvalidArgument(
            f"{context_count} contexts were sent with {counts} candidate_ids and {feature_counts} "
            "candidate_features: expected one list per context, with one value per candidate"
        )
    return {
        "candidate_ids": packed_ids,
        "candidate_features": columns,
        "offsets": offsets_of("candidate_ids", counts),
    }


def pack_queries_by_id(ids: Candidates | int | str) -> tuple[pb.Ids, list[int] | None]:
    """Packs the ids of one query, or a list of them per query.

    Returns:
      The ids, and how many each query has; None if there is one query of one id.

    Raises:
      InvalidArgument: They are no ids, or lists and ids are mixed.
    """
    ids = as_list(ids)
    if not is_list(ids):
        ids = [ids]
    packed_ids, counts = pack_lists("ids", ids)
    # Without offsets the service would take a flat list for one query of each id.
    if counts is None and len(ids) > 1:
        counts = [len(ids)]
    return packed_ids, counts


def pack_lists(name: str, ids: Candidates) -> tuple[pb.Ids, list[int] | None]:
    """Packs a list of ids, or a list of such lists.

    Returns:
      The ids, and how many each of the lists has; None if it is one list.

    Raises:
      InvalidArgument: They are no ids, or lists and ids are mixed.
    """
    ids = as_list(ids)
    if not is_list(ids):
        raise InvalidArgument(f"{name} is {shown(ids)}: expected a list of ids")
    are_lists = {isinstance(element, LISTS) for element in ids}
    if len(are_lists) > 1:
        raise InvalidArgument(f"{name} mixes ids and lists of ids: expected one of the two")
    if True not in are_lists:
        return pack_ids(name, ids), None
    flat_ids = list(itertools.chain.from_iterable(ids))
    counts = [len(id_list) for id_list in ids]
    return pack_ids(name, flat_ids), counts


def check_list_count(name: str, ids: Any, count: int) -> None:
    """Checks that lists of ids are one for each of a number of requests; a list of ids is for all.

    Raises:
      InvalidArgument: There are more or fewer.
    """
    if is_list(ids) and len(ids) not in (0, count) and isinstance(ids[0], LISTS):
        raise InvalidArgument(
            f"{name} has {len(ids)} lists for {count} requests: expected one list for each, or one "
            "list of ids for all"
        )


def offsets_of(name: str, counts: list[int] | None) -> bytes:
    """Packs the running sums of counts as [n + 1] int32; None: there are none."""
    if counts is None:
        return b""
    return pack_offsets(name, np.cumsum([0, *counts]))


def _pack_features(
    features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, is_several: bool
) -> tuple[dict[str, pb.Column], list[int] | None]:
    """Packs the features of all candidates.

    Args:
      features: The features of the candidates, or a list of them per context.
      is_several: Whether there is a list of contexts.

    Returns:
      The columns, and the number of candidates of each of several contexts by them; None: there is
      one context, or there are no features.

    Raises:
      InvalidArgument: They have another form, or do not have one value per candidate.
    """
    if not features:
        return {}, None
    if not is_several:
        if not isinstance(features, Mapping):
            raise InvalidArgument(
                "candidate_features of one context must be a dict: name -> one value per candidate"
            )
        return pack_features(features), None
    if not is_list(features) or not all(isinstance(entry, Mapping) for entry in features):
        raise InvalidArgument(
            "candidate_features of several contexts must be a list of dicts, one per context"
        )
    names = features[0].keys()
    counts = [
        _candidate_count(f"candidates of context {position}", context_features, names)
        for position, context_features in enumerate(features)
    ]
    # The service has one column per feature, with the candidates of all contexts one after another.
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for context_features in features:
        for name, column in columns.items():
            column.extend(context_features[name])
    return pack_features(columns), counts


def _candidate_count(owner: str, features: Mapping[str, Any], names: Set[str]) -> int:
    """Returns the number of candidates that one context's features describe.

    Args:
      owner: The name of these candidates in messages.
      features: The values of each feature, by its name.
      names: The names of the features of the first context, which all must have.

    Raises:
      InvalidArgument: The names differ, or a feature does not have one value per candidate.
    """
    if features.keys() != names:
        raise InvalidArgument(
            f"{owner} have the features {sorted(features)}, and those of the first context have "
            f"{sorted(names)}: expected the same"
        )
    for name, values in features.items():
        if not is_list(values):
            raise InvalidArgument(
                f"feature {name!r} of the {owner} is of type {type(values).__name__}: expected a "
                "list, with one value per candidate"
            )
    lengths = {len(values) for values in features.values()}
    if len(lengths) > 1:
        raise InvalidArgument(
            f"features of the {owner} have {sorted(lengths)} values: expected equal numbers"
        )
    return min(lengths, default=0)
