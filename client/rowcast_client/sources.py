"""Sources of a recommendation, as dicts with the fields of the JSON form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from rowcast_client.candidates import Candidates, offsets_of, pack_lists
from rowcast_client.columns import check_text, is_list
from rowcast_client.errors import InvalidArgument
from rowcast_client.stubs import embedding_service_pb2 as pb


class Source(TypedDict, total=False):
    """A source of candidates of a recommendation: exactly one of `index`, `ids` and `list`.

    Attributes:
      name: The name in the response; left out: the index's, the list's, or "ids".
      index: The name of an index, whose nearest candidates are taken; "": the only one.
      ids: Candidates, in their order: a list for all requests, or a list of lists, one per request.
        Unknown ids are left out.
      list: The name of a list of the bundle, whose first candidates are taken; "": the only one.
      pool_size: The maximum number of candidates for each request; left out or 0: the pool_size of
        the request, or all ids.
      min_count: The minimum number of recommendations of this source, if it has that many.
      max_count: The maximum number of recommendations of this source; left out or 0: any number.
      fallback: Whether it is used only for requests for which the other sources have fewer than k
        candidates.
    """

    name: str
    index: str
    ids: Candidates
    list: str
    pool_size: int
    min_count: int
    max_count: int
    fallback: bool


_TEXTS = ("name", "index", "list")
_KINDS = ("index", "ids", "list")
_COUNTS = ("pool_size", "min_count", "max_count")


def pack_sources(sources: Sequence[Source]) -> list[pb.Source]:
    """Packs the sources of a request.

    Raises:
      InvalidArgument: They are no list of such dicts; names the first field that is wrong.
    """
    if not is_list(sources):
        raise InvalidArgument(
            f"sources is {sources!r}: expected a list of dicts, such as [{{'index': 'movies'}}]"
        )
    return [_packed(f"sources[{number}]", source) for number, source in enumerate(sources)]


def _packed(where: str, source: Mapping[str, Any]) -> pb.Source:
    fields = Source.__annotations__
    if not isinstance(source, Mapping) or {*source} - {*fields}:
        raise InvalidArgument(f"{where} is {source!r}: expected a dict of {', '.join(fields)}")
    packed = pb.Source()
    for name, value in source.items():
        # The only field of two: the offsets belong to a list of lists.
        if name == "ids":
            ids, counts = pack_lists(f"{where}.ids", value)
            packed.ids.CopyFrom(ids)
            packed.offsets = offsets_of(f"{where}.ids", counts)
        else:
            setattr(packed, name, _checked(f"{where}.{name}", name, value))
    if len({*_KINDS} & {*source}) != 1:
        raise InvalidArgument(f"{where} is {source!r}: expected exactly one of {', '.join(_KINDS)}")
    return packed


def _checked(where: str, name: str, value: Any) -> Any:
    if name in _TEXTS:
        return check_text(where, value)
    if name in _COUNTS:
        is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        is_valid = is_integer and 0 <= value < 2**31
        expected = "an integer from 0 to below 2^31"
    else:
        is_valid = isinstance(value, (bool, np.bool_))
        expected = "True or False"
    if not is_valid:
        raise InvalidArgument(f"{where} is {value!r}: expected {expected}")
    if name in _COUNTS:
        return int(value)
    return value
