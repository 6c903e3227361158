"""Filters of candidates:
`where("genres").any_of("Drama", "Comedy") & where("year").between(1990, 2000)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from rowcast_client.columns import is_list, pack_ids
from rowcast_client.errors import InvalidArgument
from rowcast_client.stubs import embedding_service_pb2 as pb

Filter = Mapping[str, Mapping[str, Any]]
"""Conditions by attribute, as in JSON:
`{"genres": {"allow": ["Drama"], "deny": ["Horror"]}, "year": {"ge": 1990}}`.
"""
BOUNDS = ("ge", "gt", "le", "lt")


class Conditions(dict[str, dict[str, Any]]):
    """A filter; `&` joins two, and candidates meet both."""

    def __and__(self, other: Filter) -> Conditions:
        joined = Conditions({name: dict(condition) for name, condition in self.items()})
        for name, condition in other.items():
            mine = joined.setdefault(name, {})
            for kind, value in condition.items():
                if kind in mine and kind != "deny":
                    raise InvalidArgument(
                        f"filter.{name}.{kind} was given twice: expected one value"
                    )
                mine[kind] = [*mine.get(kind, ()), *value] if kind == "deny" else value
        return joined

    def __or__(self, other: object) -> NoReturn:
        """Rejects `|`: as a dict, a filter would silently keep only one of two conditions."""
        raise InvalidArgument(
            "filters cannot be joined by |, because a filter has no OR across conditions: send a "
            "request for each and merge the results, or use any_of for several values of one "
            "attribute; & joins conditions that must all hold"
        )

    __ror__ = __or__
    __ior__ = __or__


class where:  # noqa: N801 - reads as a word of the filter
    """Conditions on one attribute. Candidates without a value meet only `none_of`."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def _meets(self, **condition: Any) -> Conditions:
        return Conditions({self._attribute: condition})

    def any_of(self, *values: int | str | bool) -> Conditions:
        """One of the candidate's values is among these."""
        return self._meets(allow=list(values))

    def none_of(self, *values: int | str | bool) -> Conditions:
        """None of the candidate's values is among these, even if `any_of` allows one."""
        return self._meets(deny=list(values))

    def between(self, minimum: float, maximum: float) -> Conditions:
        """The candidate's number is between these, both included."""
        return self._meets(ge=minimum, le=maximum)

    def at_least(self, minimum: float) -> Conditions:
        """The candidate's number is this or larger."""
        return self._meets(ge=minimum)

    def at_most(self, maximum: float) -> Conditions:
        """The candidate's number is this or smaller."""
        return self._meets(le=maximum)

    def above(self, bound: float) -> Conditions:
        """The candidate's number is larger."""
        return self._meets(gt=bound)

    def below(self, bound: float) -> Conditions:
        """The candidate's number is smaller."""
        return self._meets(lt=bound)


def pack_filter(given: Filter | None) -> pb.Filter | None:
    """Packs a filter; None: there is none.

    Raises:
      InvalidArgument: it is no filter; names the attribute.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"filter is {given!r}: expected conditions by attribute")
    packed = pb.Filter()
    for name, condition in given.items():
        if (
            not isinstance(name, str)
            or not isinstance(condition, Mapping)
            or {*condition} - {"allow", "deny", *BOUNDS}
        ):
            raise InvalidArgument(
                f"filter.{name} is {condition!r}: expected a dict of allow, deny, ge, gt, le, lt"
            )
        message = packed.conditions[name]
        for kind, value in condition.items():
            pack: Any = _number if kind in BOUNDS else _tokens
            getattr(message, kind).CopyFrom(pack(f"filter.{name}.{kind}", value))
    return packed


def _tokens(where: str, values: Any) -> pb.Ids:
    truths = (
        is_list(values)
        and len(values) > 0
        and all(isinstance(one, (bool, np.bool_)) for one in values)
    )
    return pack_ids(where, [str(one).lower() for one in values] if truths else values)


def _number(where: str, value: Any) -> pb.Number:
    if (
        isinstance(value, (int, np.integer))
        and not isinstance(value, bool)
        and -(2**63) <= value < 2**63
    ):
        return pb.Number(int64=int(value))
    if not isinstance(value, (float, np.floating)):
        raise InvalidArgument(f"{where} is {value!r}: expected a number")
    return pb.Number(float64=float(value))


def pack_crowding(given: tuple[str, int] | None) -> pb.Crowding | None:
    """Packs an attribute and how many neighbors may share a value of it; None: any number.

    Raises:
      InvalidArgument: it is no such pair.
    """
    if given is None:
        return None
    try:
        attribute, maximum = given
        return pb.Crowding(attribute=attribute, max=maximum)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"crowding is {given!r}: expected an attribute and a number, such as ('seller', 3)"
        ) from None
