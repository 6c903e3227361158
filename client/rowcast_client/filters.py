"""Filters of candidates:
`where("genres").any_of("Drama") & (where("year").at_least(1990) | where("year").is_null())`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from rowcast_client.similar_names import nearest_name

Filter = Mapping[str, Any]
"""Conditions by attribute, and lists of filters, as in JSON:
`{"year": {"ge": 1990}, "any": [{"genres": {"allow": ["Drama"]}}, {"year": {"is_null": True}}]}`.
"""


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


_METHODS = {
    "allow": "any_of",
    "deny": "none_of",
    "ge": "at_least",
    "gt": "above",
    "le": "at_most",
    "lt": "below",
}
"""The method for each key of a condition."""


class where:  # noqa: N801 - reads as a word of the filter
    """Conditions on one attribute. Candidates without a value meet only `none_of` and `is_null`."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    if not TYPE_CHECKING:  # which finds misspelled methods by itself

        def __getattr__(self, name: str) -> NoReturn:
            methods = [method for method in vars(where) if not method.startswith("_")]
            meant = nearest_name(name, [*methods, *_METHODS])
            hint = ""
            if meant is not None:
                hint = f" (did you mean {_METHODS.get(meant, meant)!r}?)"
            raise AttributeError(
                f"where({self._attribute!r}) has no {name!r}{hint}; it has {', '.join(methods)}"
            )

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
