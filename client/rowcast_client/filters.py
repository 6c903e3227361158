"""Filters of candidates:
`where("genres").any_of("Drama") & (where("year").at_least(1990) | where("year").is_null())`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rowcast_client.columns import check_text, is_list, pack_ids
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

    def __and__(self, second: Filter) -> Conditions:
        joined = Conditions(self)
        for name, condition in second.items():
            first_condition = joined.get(name)
            if first_condition is None:
                joined[name] = condition
            elif _are_disjoint(first_condition, condition):
                joined[name] = {**first_condition, **condition}
            else:
                # One dict cannot hold two bounds of a kind; a group of both filters can.
                return Conditions(all=[*_members(self, "all"), *_members(second, "all")])
        return joined

    def __rand__(self, first: Filter) -> Conditions:
        return Conditions(first) & self

    # A dict's own `|` merges, and takes the right value of a name that both have; a filter's must
    # not.
    def __or__(self, second: Filter) -> Conditions:  # type: ignore[override]
        return Conditions(any=[*_members(self, "any"), *_members(second, "any")])

    def __ror__(self, first: Filter) -> Conditions:  # type: ignore[override]
        return Conditions(first) | self

    def __ior__(self, second: Filter) -> Conditions:  # type: ignore[override]
        return self | second

    def __invert__(self) -> Conditions:
        return Conditions(none=[self])


def _are_disjoint(first: Any, second: Any) -> bool:
    """Returns whether one condition with the parts of both means the same as the two together."""
    # The values of a group's name are lists, which never merge.
    are_conditions = isinstance(first, Mapping) and isinstance(second, Mapping)
    return are_conditions and first.keys().isdisjoint(second)


def _members(joined: Filter, group: str) -> list[Filter]:
    """Returns the filters in a filter that is nothing but such a group, so that chains of an
    operator stay on one level.
    """
    if [*joined] == [group]:
        return list(joined[group])
    return [joined]


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
        """The candidate has one of these values."""
        return self._meets(allow=list(values))

    def none_of(self, *values: int | str | bool) -> Conditions:
        """The candidate has none of these values, even if `any_of` allows one of its values."""
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


def pack_filter(conditions: Filter | None) -> pb.Filter | None:
    """Packs a filter; None: there is none.

    Raises:
      InvalidArgument: It is no filter; names the attribute.
    """
    if conditions is None:
        return None
    return _packed("filter", conditions)


def _packed(path: str, conditions: Any) -> pb.Filter:
    """Packs a filter; `path` names it in messages, as the service's errors do."""
    if not isinstance(conditions, Mapping):
        raise InvalidArgument(f"{path} is {conditions!r}: expected conditions by attribute")
    packed = pb.Filter()
    for name, value in conditions.items():
        value_path = f"{path}.{name}"
        # An attribute may have the name of a group: its condition is a dict, a group is a list.
        if name not in (*GROUPS, "near") or isinstance(value, Mapping):
            condition = _condition(value_path, value)
            packed.conditions[check_text(value_path, name)].CopyFrom(condition)
            continue
        if not is_list(value) or not len(value):
            raise InvalidArgument(f"{value_path} is {value!r}: expected a list of at least one")
        pack: Any = _packed
        if name == "near":
            pack = _circle
        members = [pack(f"{value_path}[{index}]", member) for index, member in enumerate(value)]
        getattr(packed, name).extend(members)
    return packed


def _condition(path: str, condition: Any) -> pb.Condition:
    if not isinstance(condition, Mapping) or {*condition} - {"allow", "deny", "is_null", *BOUNDS}:
        raise InvalidArgument(
            f"{path} is {condition!r}: expected a dict of allow, deny, ge, gt, le, lt, is_null"
        )
    packed = pb.Condition()
    for kind, value in condition.items():
        value_path = f"{path}.{kind}"
        if kind == "is_null":
            if not isinstance(value, (bool, np.bool_)):
                raise InvalidArgument(f"{value_path} is {value!r}: expected True or False")
            packed.is_null = bool(value)
        elif kind in BOUNDS:
            getattr(packed, kind).CopyFrom(_number(value_path, value))
        else:
            getattr(packed, kind).CopyFrom(_tokens(value_path, value))
    return packed


def _circle(path: str, circle: Any) -> pb.Circle:
    numbers = ("latitude", "longitude", "radius_m")
    attributes = ("latitude_attribute", "longitude_attribute")
    if not isinstance(circle, Mapping) or {*circle} - {*numbers, *attributes}:
        raise InvalidArgument(f"{path} is {circle!r}: expected a dict as `near` returns it")
    packed = pb.Circle()
    for name in numbers:
        number = _number(f"{path}.{name}", circle.get(name))
        # The fields of a circle are floats, into which a Number of either kind is copied.
        setattr(packed, name, getattr(number, number.WhichOneof("kind") or "float64"))
    for name in attributes:
        setattr(packed, name, check_text(f"{path}.{name}", circle.get(name, "")))
    return packed


def _tokens(path: str, values: Any) -> pb.Ids:
    """Packs the values that a condition allows or denies."""
    are_bools = (
        is_list(values)
        and len(values) > 0
        and all(isinstance(value, (bool, np.bool_)) for value in values)
    )
    # The contract has truth values of a condition as the texts "true" and "false".
    if are_bools:
        values = [str(value).lower() for value in values]
    return pack_ids(path, values)


def _number(path: str, value: Any) -> pb.Number:
    # Integers stay integers: a float would round those beyond 2^53.
    if (
        isinstance(value, (int, np.integer))
        and not isinstance(value, bool)
        and -(2**63) <= value < 2**63
    ):
        return pb.Number(int64=int(value))
    if not isinstance(value, (float, np.floating)):
        raise InvalidArgument(f"{path} is {value!r}: expected a number")
    return pb.Number(float64=float(value))


def pack_crowding(crowding: Mapping[str, int] | None) -> dict[str, int]:
    """Packs how many neighbors may share a value of an attribute, by attribute.

    Raises:
      InvalidArgument: It is no such dict.
    """
    if crowding is None:
        return {}
    if not isinstance(crowding, Mapping):
        raise InvalidArgument(f"crowding is {crowding!r}: expected a dict, such as {{'seller': 3}}")
    packed = {**crowding}
    for attribute, maximum in packed.items():
        check_text("crowding", attribute)
        # The type itself, since a bool is an int for isinstance.
        if type(maximum) is not int or not 0 <= maximum < 2**31:
            raise InvalidArgument(
                f"crowding.{attribute} is {maximum!r}: expected an integer below 2^31"
            )
    return packed
