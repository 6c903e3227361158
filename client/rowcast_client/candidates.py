"""Candidates and contexts as people name them, of one request or of several -> packed ids, offsets
and columns.
"""

from __future__ import annotations

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


def pack_contexts(ids: Contexts | None) -> pb.Ids | None:
    """Packs the ids of contexts; None: none are given.

    Raises:
      InvalidArgument: they are not all integers or all strings.
    """
    if ids is None:
        return None
    ids = as_list(ids)
    return pack_ids("context_ids", ids if is_list(ids) else [ids])


def pack_id_lists(name: str, offsets_name: str, given: Candidates | None) -> dict[str, Any]:
    """Packs a list of candidates for all requests, or one for each, as fields of a request.

    Args:
      name: The option, and the field of the ids.
      offsets_name: The field of their offsets.
      given: None: there are none.

    Raises:
      InvalidArgument: they are no ids, or lists and ids are mixed.
    """
    if given is None:
        return {}
    ids, counts = pack_lists(name, given)
    return {name: ids, offsets_name: offsets_of(name, counts)}


def pack_candidates(
    context: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ids: Candidates | None,
    features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Packs the candidates of one context, or of a list of them, as fields of a request.

    Args:
      context: features of the contexts; Columns may be those of one or of several.
      ids: The ids of the candidates, or a list of them per context. None: The candidates are given
        by features alone.
      features: The features of the candidates, or a list of them per context.
    Raises:
      InvalidArgument: contexts, ids and features do not fit each other.
    """
    packed_ids, counts = (None, None) if ids is None else pack_lists("candidate_ids", ids)
    packed = isinstance(context, Mapping) and any(
        isinstance(value, Column) for value in context.values()
    )
    several = counts is not None if packed else not isinstance(context, Mapping)
    if packed_ids is not None and several == (counts is None):
        raise InvalidArgument(
            "candidate_ids must be a list of ids for one context, or a list of lists for several "
            "contexts"
        )
    columns, feature_counts = _pack_features(features, several)
    if packed_ids is None and not columns:
        raise InvalidArgument(
            "candidates are missing: expected candidate_ids, candidate_features, or both"
        )
    counts = feature_counts if counts is None else counts
    contexts = len(counts or ()) if packed else len(context)
    if several and (len(counts or ()) != contexts or feature_counts not in (None, counts)):
        raise InvalidArgument(
            f"{contexts} contexts were sent with {counts} candidate_ids and {feature_counts} "
            "candidate_features: expected one list per context, with one value per candidate"
        )
    return {
        "candidate_ids": packed_ids,
        "candidate_features": columns,
        "offsets": offsets_of("candidate_ids", counts),
    }


def pack_queries_by_id(ids: Candidates | int | str) -> tuple[pb.Ids, list[int] | None]:
    """Packs the ids of one query, or a list of them per query; returns how many each query has,
    None if there is one query of one id.

    Raises:
      InvalidArgument: they are no ids, or lists and ids are mixed.
    """
    ids = as_list(ids)
    listed = ids if is_list(ids) else [ids]
    packed, counts = pack_lists("ids", listed)
    if counts is None and len(listed) > 1:
        counts = [len(listed)]
    return packed, counts


def pack_lists(name: str, ids: Candidates) -> tuple[pb.Ids, list[int] | None]:
    """Packs ids; returns, of a list of lists, how many each has.

    Raises:
      InvalidArgument: they are no ids, or lists and ids are mixed.
    """
    ids = as_list(ids)
    if not is_list(ids):
        raise InvalidArgument(f"{name} is {shown(ids)}: expected a list of ids")
    nested = {isinstance(one, LISTS) for one in ids}
    if len(nested) > 1:
        raise InvalidArgument(f"{name} mixes ids and lists of ids: expected one of the two")
    if True not in nested:
        return pack_ids(name, ids), None
    return pack_ids(name, [one for several in ids for one in several]), [
        len(several) for several in ids
    ]


def offsets_of(name: str, counts: list[int] | None) -> bytes:
    """Packs the running sums of counts as [n + 1] int32; None: there are none."""
    return b"" if counts is None else pack_offsets(name, np.cumsum([0, *counts]))


def _pack_features(
    features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, several: bool
) -> tuple[dict[str, pb.Column], list[int] | None]:
    """Columns of all candidates, and of several contexts how many candidates each has by them."""
    if not features:
        return {}, None
    if not several:
        if not isinstance(features, Mapping):
            raise InvalidArgument(
                "candidate_features of one context must be a dict: name -> one value per candidate"
            )
        return pack_features(features), None
    if not is_list(features) or not all(isinstance(one, Mapping) for one in features):
        raise InvalidArgument(
            "candidate_features of several contexts must be a list of dicts, one per context"
        )
    names = features[0].keys()
    counts = [
        _count(f"candidates of context {place}", one, names) for place, one in enumerate(features)
    ]
    joined = {name: [value for one in features for value in one[name]] for name in names}
    return pack_features(joined), counts


def _count(whose: str, features: Mapping[str, Any], names: Set[str]) -> int:
    """How many candidates the features of one context are of; `names`: what the first context's
    have.
    """
    if features.keys() != names:
        raise InvalidArgument(
            f"{whose} have the features {sorted(features)}, and those of the first context have "
            f"{sorted(names)}: expected the same"
        )
    for name, values in features.items():
        if not is_list(values):
            raise InvalidArgument(
                f"feature {name!r} of the {whose} is of type {type(values).__name__}: expected a "
                "list, with one value per candidate"
            )
    lengths = {len(values) for values in features.values()}
    if len(lengths) > 1:
        raise InvalidArgument(
            f"features of the {whose} have {sorted(lengths)} values: expected equal numbers"
        )
    return min(lengths, default=0)
