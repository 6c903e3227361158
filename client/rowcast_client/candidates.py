"""Candidates and contexts as people name them, of one request or of several -> packed ids, offsets and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowcast_client.columns import LISTS, is_list, pack_features, pack_ids, pack_offsets
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
    return None if ids is None else pack_ids("context_ids", ids if is_list(ids) else [ids])


def lists_of(name: str, ids: Candidates) -> list[Sequence[Any]] | None:
    """The lists of a list of lists; None if it is a flat list of ids."""
    if not is_list(ids):
        raise InvalidArgument(f"{name} is {ids!r}: expected a list of ids")
    nested = {isinstance(one, LISTS) for one in ids}
    if len(nested) > 1:
        raise InvalidArgument(f"{name} mixes ids and lists of ids: expected one of the two")
    return list(ids) if True in nested else None


def exclusion_of(exclude: Candidates | None) -> dict[str, Any]:
    """The fields of a request that exclude candidates."""
    if exclude is None:
        return {}
    lists = lists_of("exclude", exclude)
    if lists is None:
        return {"exclude_ids": pack_ids("exclude", exclude)}
    return {
        "exclude_ids": pack_ids("exclude", [one for ids in lists for one in ids]),
        "exclude_offsets": pack_offsets("exclude", np.cumsum([0, *map(len, lists)])),
    }


def candidate_features(
    features: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, several: bool
) -> tuple[dict[str, pb.Column], list[int] | None]:
    """Columns of all candidates, and how many candidates each of several contexts has by them.

    Raises:
      InvalidArgument: they are not one value per candidate, of one context or of as many as were given.
    """
    if not features:
        return {}, None
    if not several:
        if not isinstance(features, Mapping):
            raise InvalidArgument(
                "features of the candidates of one context are one dict: name -> one value per candidate"
            )
        return pack_features(features), None
    if not is_list(features) or not all(isinstance(one, Mapping) for one in features):
        raise InvalidArgument("features of the candidates of several contexts are a list of dicts, one per context")
    names = features[0].keys()
    counts = [_count(f"candidates of context {place}", one, names) for place, one in enumerate(features)]
    joined = {name: [value for one in features for value in one[name]] for name in names}
    return pack_features(joined), counts


def _count(whose: str, features: Mapping[str, Any], names: Set[str]) -> int:
    """How many candidates the features of one context are of; `names`: what the first context's have."""
    if features.keys() != names:
        raise InvalidArgument(
            f"{whose} have features {sorted(features)}, the first's have {sorted(names)}: expected the same"
        )
    for name, values in features.items():
        if not is_list(values):
            raise InvalidArgument(
                f"feature {name!r} of the {whose} is a {type(values).__name__}: expected a list, a value per candidate"
            )
    lengths = {len(values) for values in features.values()}
    if len(lengths) > 1:
        raise InvalidArgument(f"features of the {whose} have {sorted(lengths)} values: expected as many")
    return min(lengths, default=0)
