"""Filters of candidates:
`where("genres").any_of("Drama") & (where("year").at_least(1990) | where("year").is_null())`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rowcast_client.columns import is_list, pack_ids
from rowcast_client.errors import InvalidArgument
from rowcast_client.stubs import embedding_service_pb2 as pb

Filter = Mapping[str, Any]
"""Conditions by attribute, and lists of filters, as in JSON:
`{"year": {"ge": 1990}, "any": [{"genres": {"allow": ["Drama"]}}, {"year": {"is_null": True}}]}`.
"""
BOUNDS = ("ge", "gt", "le", "lt")
GROUPS = ("all", "any", "none")


class Conditions(dict[str, Any]):
    """A filter. `&` joins two that must both match, `|` two of which one must; `~` inverts one."""

    def __and__(self, other: Filter) -> Conditions:
        joined = Conditions(self)
        for name, condition in other.items():
            mine = joined.get(name)
            if mine is None:
                joined[name] = condition
            elif _are_disjoint(mine, condition):
                joined[name] = {**mine, **condition}
            else:
                return Conditions(all=[*_members(self, "all"), *_members(other, "all")])
        return joined

    def __rand__(self, other: Filter) -> Conditions:
        return Conditions(other) & self

    def __or__(self, other: Filter) -> Conditions:  # type: ignore[override]
        return Conditions(any=[*_members(self, "any"), *_members(other, "any")])

    def __ror__(self, other: Filter) -> Conditions:  # type: ignore[override]
        return Conditions(other) | self

    def __ior__(self, other: Filter) -> Conditions:  # type: ignore[override]
        return self | other

    def __invert__(self) -> Conditions:
        return Conditions(none=[self])


def _are_disjoint(some: Any, others: Any) -> bool:
    """Whether two conditions on one attribute are the same as one with the parts of both."""
    conditions = isinstance(some, Mapping) and isinstance(others, Mapping)
    return conditions and some.keys().isdisjoint(others)


def _members(joined: Filter, group: str) -> list[Filter]:
    """Returns the filters in a filter that is nothing but such a group, so that chains of an
    operator stay on one level.
    """
    return list(joined[group]) if [*joined] == [group] else [joined]


def near(
    latitude: float,
    longitude: float,
    *,
    radius_m: float,
    latitude_attribute: str = "latitude",
    longitude_attribute: str = "longitude",
) -> Conditions:
    """The candidate lies within a circle on the earth.

    Args:
      latitude, longitude: The position of the center, in degrees.
      radius_m: The radius in meters.
      latitude_attribute, longitude_attribute: The attributes that hold a candidate's degrees.
    """
    circle = {
        "latitude": latitude,
        "longitude": longitude,
        "radius_m": radius_m,
        "latitude_attribute": latitude_attribute,
        "longitude_attribute": longitude_attribute,
    }
    return Conditions(near=[circle])


class where:  # noqa: N801 - reads as a word of the filter
    """Conditions on one attribute. Candidates without a value meet only `none_of` and `is_null`."""

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

    def is_null(self) -> Conditions:
        """The candidate has no value."""
        return self._meets(is_null=True)

    def is_not_null(self) -> Conditions:
        """The candidate has a value."""
        return self._meets(is_null=False)


def pack_filter(given: Filter | None) -> pb.Filter | None:
    """Packs a filter; None: there is none.

    Raises:
      InvalidArgument: it is no filter; names the attribute.
    """
    return None if given is None else _packed("filter", given)


def _packed(where: str, given: Any) -> pb.Filter:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{where} is {given!r}: expected conditions by attribute")
    packed = pb.Filter()
    for name, value in given.items():
        part = f"{where}.{name}"
        if name not in (*GROUPS, "near") or isinstance(value, Mapping):
            packed.conditions[_text(part, name)].CopyFrom(_condition(part, value))
            continue
        if not is_list(value) or not len(value):
            raise InvalidArgument(f"{part} is {value!r}: expected a list of at least one")
        pack: Any = _circle if name == "near" else _packed
        members = [pack(f"{part}[{number}]", each) for number, each in enumerate(value)]
        getattr(packed, name).extend(members)
    return packed


def _condition(where: str, given: Any) -> pb.Condition:
    if not isinstance(given, Mapping) or {*given} - {"allow", "deny", "is_null", *BOUNDS}:
        raise InvalidArgument(
            f"{where} is {given!r}: expected a dict of allow, deny, ge, gt, le, lt, is_null"
        )
    packed = pb.Condition()
    for kind, value in given.items():
        part = f"{where}.{kind}"
        if kind == "is_null":
            if not isinstance(value, (bool, np.bool_)):
                raise InvalidArgument(f"{part} is {value!r}: expected True or False")
            packed.is_null = bool(value)
            continue
        pack: Any = _number if kind in BOUNDS else _tokens
        getattr(packed, kind).CopyFrom(pack(part, value))
    return packed


def _circle(where: str, given: Any) -> pb.Circle:
    numbers = ("latitude", "longitude", "radius_m")
    attributes = ("latitude_attribute", "longitude_attribute")
    if not isinstance(given, Mapping) or {*given} - {*numbers, *attributes}:
        raise InvalidArgument(f"{where} is {given!r}: expected a dict as `near` returns it")
    packed = pb.Circle()
    for name in numbers:
        number = _number(f"{where}.{name}", given.get(name))
        setattr(packed, name, getattr(number, number.WhichOneof("kind") or "float64"))
    for name in attributes:
        setattr(packed, name, _text(f"{where}.{name}", given.get(name, "")))
    return packed


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{where} is {value!r}: expected a string")
    return value


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


def pack_crowding(given: Mapping[str, int] | None) -> dict[str, int]:
    """Packs how many neighbors may share a value of an attribute, by attribute.

    Raises:
      InvalidArgument: it is no such dict.
    """
    packed = {**given} if isinstance(given, Mapping) else {}
    if given is not None and not isinstance(given, Mapping):
        raise InvalidArgument(f"crowding is {given!r}: expected a dict, such as {{'seller': 3}}")
    for attribute, maximum in packed.items():
        _text("crowding", attribute)
        if type(maximum) is not int or not 0 <= maximum < 2**31:
            raise InvalidArgument(
                f"crowding.{attribute} is {maximum!r}: expected an integer below 2^31"
            )
    return packed
