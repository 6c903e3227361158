"""Filters: conditions on attributes, validated, then compiled to the candidates that match."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.stores.attribute_index import ANY_VALUE, Bounds
from bundle.stores.overlay import ChangedAttributeIndex, PickedCandidates
from bundle.tables import id_values
from bundle.tables.id_values import distinct
from bundle.tables.position_sets import PositionSet
from runtime.exact import VectorBlock
from service.contract.messages import Circle, Condition, Filter, Ids
from service.engine.validation import check_names, name_hint, show_id
from service.errors import FieldViolation, InvalidArgument, one_of
from service.versions.version import FilteredCorpus, LoadedIndex, LoadedStore, ModelVersion

if TYPE_CHECKING:  # faiss is loaded where an index has codes
    from runtime.code_blocks import PackedBlocks
    from runtime.codes import PackedCodes

Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]
_TRUTHS = {"false": 0, "true": 1}
_EARTH_RADIUS_M = 6_371_008.8
_STRINGS_PER_STEP = 8_192
"""Number of strings of a filter that are spelled at a time: the deadline is checked in between."""
_BOX_MARGIN = 1e-9
"""Degrees by which the box around a circle is larger: a rounded coordinate on its edge lies in it.
"""
_POSITIONS_PER_LEFT = 10
"""Number of all positions for each that is left from which on it takes no longer to look up those
that are left than to mark the others (measured with a million positions).
"""
_CANDIDATES_PER_SORTED = 16
"""Number of candidates for each position from which on it takes less time to sort the positions
than to mark them (measured with a million candidates).
"""
_HAVERSINE_MARGIN = 1e-9
"""Share of a haversine by which rounding may change it, and more."""
_NO_POSITIONS = np.empty(0, np.uint32)
_POSITION_BYTES = 4
_OBJECT_BYTES = 512
"""Memory of the Python objects of a filter in the cache, in bytes, about."""
_TOKENS_EXPLAINED_MAX = 100
"""Number of values of a condition that an explanation looks up: each takes some 10 µs."""
_PARTS = "allow, deny, ge, gt, le, lt or is_null"


@dataclass(frozen=True, eq=False)
class Matches:
    """The candidates that match a filter.

    Attributes:
      count: The number of matches, m.
      listed: [m] uint32 positions, ascending; None: they are listed from the set when needed.
      as_set: The same positions; None: not needed yet, as are the block and the codes.
      block: Their vectors side by side, in the order of positions.
      codes: Their codes, in the same order.
    """

    count: int
    listed: NDArray[np.uint32] | None = None
    as_set: PositionSet | None = None
    block: VectorBlock | None = None
    codes: PackedCodes | PackedBlocks | None = None

    @classmethod
    def at(cls, positions: NDArray[np.uint32], block: VectorBlock | None = None) -> Matches:
        """Returns the matches at [m] uint32 positions, ascending and distinct."""
        return cls(positions.size, positions, block=block)

    @cached_property
    def positions(self) -> NDArray[np.uint32]:
        """[m] uint32, ascending."""
        if self.listed is not None:
            return self.listed
        assert self.as_set is not None  # noqa: S101 - otherwise they are listed
        return self.as_set.positions()

    @property
    def bytes(self) -> int:
        """Memory that the matches take, at most."""
        size = _OBJECT_BYTES + _POSITION_BYTES * self.count
        if self.as_set is not None:
            size += self.as_set.bytes
        if self.block is not None:
            size += self.block.vectors.nbytes
        if self.codes is not None:
            size += self.codes.bytes
        return size

    def with_set(self, size: int) -> Matches:
        """Returns these matches with the set of them among `size` candidates."""
        if self.as_set is not None:
            return self
        return replace(self, as_set=PositionSet.of(self.positions, size))

    def among(self, candidates: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Returns those of some candidates that match, in their order; needs `with_set`."""
        assert self.as_set is not None  # noqa: S101 - the search made it
        matching: NDArray[np.uint32] = candidates[self.as_set.where(candidates)]
        return matching

    def with_block(self, index: LoadedIndex) -> Matches:
        """Returns these matches with a block of the vectors of an index."""
        vectors = index.vectors.take(self.positions, axis=0, mode="clip")
        block = VectorBlock(vectors, index.entry.distance)
        return replace(self, listed=self.positions, block=block)


class CompiledFilter(NamedTuple):
    """A filter with its key in the cache, what matches it, and whether the cache held it.

    Attributes:
      key: The key in the cache; b"": it is no filter of a request, and is not kept.
      matches: The candidates that match.
      is_cached: Whether the cache held them.
    """

    key: bytes
    matches: Matches
    is_cached: bool


def compile_filter(
    index: LoadedIndex, request_filter: Filter, check: Callable[[], object]
) -> CompiledFilter:
    """Returns the candidates that match a filter, from the cache where it holds them.

    Args:
      index: The index whose candidates are meant.
      request_filter: The filter.
      check: Raises if the request has no time left; called before each nested filter and
        circle, and between parts of many strings.

    Raises:
      InvalidArgument: An attribute is unknown or not filtered on, or a condition does not suit it.
    """
    # A digest of bounded size stands for filters with up to a million values.
    text = repr(_spell(request_filter, check))
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    cached_matches: Matches | None = index.compiled.get(index, key)
    if cached_matches is not None:  # it was checked before
        return CompiledFilter(key, cached_matches, True)
    wanted = check_filter(index.corpus, request_filter)
    return CompiledFilter(key, _matches(index.corpus, len(index.vectors), wanted, check), False)


def match_candidates(
    corpus: LoadedStore, request_filter: Filter, positions: Positions, check: Callable[[], object]
) -> Mask:
    """Returns which of some candidates match a filter, [m] bool; the cache is not used.

    Args:
      corpus: The candidates.
      request_filter: The filter.
      positions: [m] int64, in any order.
      check: As of `compile_filter`.

    Raises:
      InvalidArgument: As `compile_filter`.
    """
    wanted = check_filter(corpus, request_filter)
    picked = PickedCandidates(corpus.store, positions)
    indexes = {name: ChangedAttributeIndex(picked, name) for name in corpus.filters}
    candidates = FilteredCorpus(corpus.name, corpus.entry, indexes)
    size = int(positions.size)
    parts = _condition_parts(candidates, wanted)
    is_matching = np.zeros(size, bool)
    is_matching[_matching(candidates, wanted, parts, size, check).positions()] = True
    return is_matching


def is_among(positions: NDArray[Any], ascending: NDArray[Any]) -> Mask:
    """Returns which positions are among some that ascend, [m] bool."""
    if not ascending.size:
        return np.zeros(positions.size, bool)
    is_equal: Mask = (
        ascending[np.minimum(ascending.searchsorted(positions), ascending.size - 1)] == positions
    )
    return is_equal


def not_among(ascending: NDArray[Any], size: int) -> NDArray[np.uint32]:
    """Returns the positions below a size that are not among some, ascending.

    Args:
      ascending: [m] positions below the size, ascending and distinct.
      size: The number of all positions.
    """
    count = size - ascending.size
    if count > size // _POSITIONS_PER_LEFT:
        is_left = np.ones(size, bool)
        is_left[ascending] = False
        return is_left.nonzero()[0].astype(np.uint32)
    # To look up the few that are left takes less time than to mark all others.
    numbers = np.arange(count, dtype=np.uint32)
    left_below = ascending - np.arange(ascending.size, dtype=ascending.dtype)
    return numbers + left_below.searchsorted(numbers, side="right").astype(np.uint32)


def check_filter(corpus: FilteredCorpus, request_filter: Filter, where: str = "filter") -> Filter:
    """Returns a filter with the tokens of its conditions as the indexes of its attributes take
    them.

    Raises:
      InvalidArgument: As `compile_filter`.
    """
    attributes = corpus.entry.attributes
    unknown = [name for name in sorted(request_filter.conditions) if name not in attributes]
    if len(unknown) > 1:
        owner = f"corpus {corpus.name!r}"
        check_names(unknown, attributes, where, "an attribute", owner)
    for number, circle in enumerate(request_filter.near):
        _check_circle(corpus, circle, f"{where}.near[{number}]")
    # Sorted, as in the key of the cache: filters that differ in the order of their names are equal.
    conditions = {
        name: _checked_condition(corpus, name, condition, f"{where}.{name}")
        for name, condition in sorted(request_filter.conditions.items())
    }

    def checked_group(group: str) -> tuple[Filter, ...]:
        members = enumerate(getattr(request_filter, group))
        checked = [
            check_filter(corpus, nested_filter, f"{where}.{group}[{number}]")
            for number, nested_filter in members
        ]
        return tuple(checked)

    return Filter(
        conditions,
        all=checked_group("all"),
        any=checked_group("any"),
        none=checked_group("none"),
        near=request_filter.near,
    )


def unmatched(
    corpus: FilteredCorpus, request_filter: Filter, where: str = "filter"
) -> Iterator[str]:
    """Yields the conditions of a checked filter that no candidate meets, and of conditions that
    allow values those that no candidate has: some are misspelt.
    """
    for name, condition in request_filter.conditions.items():
        indexed = corpus.filters[name]
        if condition.allow is not None:
            path = f"{where}.{name}.allow"
            tokens = condition.allow[:_TOKENS_EXPLAINED_MAX]
            values = _tokens(indexed.kind, tokens, path)
            for token, value in zip(tokens.tolist(), values.tolist(), strict=True):
                if not indexed.rows_of(np.array([value], values.dtype)).size:
                    yield f"{path}: {show_id(token)}"
        bounds = _bounds_of(condition)
        if bounds != ANY_VALUE and not indexed.rows_between(bounds).size:
            yield f"{where}.{name}"
    for group in ("all", "any"):
        for number, nested in enumerate(getattr(request_filter, group)):
            yield from unmatched(corpus, nested, f"{where}.{group}[{number}]")


def check_attribute(version: ModelVersion, name: str, where: str) -> None:
    """Rejects an attribute that no corpus has, before the form of its condition is judged.

    Raises:
      InvalidArgument: No corpus has it; the message shows the form of a filter.
    """
    corpora = [*version.corpora.values()]
    if corpora and not any(name in corpus.entry.attributes for corpus in corpora):
        raise _no_attribute(corpora[0], name, where, f"a filter is such as {Filter.example}; ")


def _no_attribute(
    corpus: FilteredCorpus | LoadedStore, name: str, where: str, form: str = ""
) -> InvalidArgument:
    hint = name_hint(name, corpus.entry.attributes, "has")
    owner = f"corpus {corpus.name!r}"
    message = f"{where}: {owner} has no attribute {show_id(name)}; {form}{hint}"
    violation = FieldViolation(where, show_id(name), f"an attribute of {owner}")
    return InvalidArgument(message, violation)


def _check_circle(corpus: FilteredCorpus, circle: Circle, where: str) -> None:
    for part in ("latitude_attribute", "longitude_attribute"):
        name = getattr(circle, part)
        kind = _kind(corpus, name, f"{where}.{part}")
        if kind not in ("int64", "double"):
            raise _mismatch(f"{where}.{part}", name, kind, "a number")
    ranges = {"latitude": (-90, 90), "longitude": (-180, 180), "radius_m": (0, math.inf)}
    for part, (lowest, highest) in ranges.items():
        value = getattr(circle, part)
        if not (lowest <= value <= highest and math.isfinite(value)):
            expected = "at least 0"
            if math.isfinite(highest):
                expected = f"{lowest} to {highest}"
            raise InvalidArgument.of_field(f"{where}.{part}", value, expected)


def _kind(corpus: FilteredCorpus, name: str, where: str) -> str:
    """Returns the type of an attribute that requests may filter by."""
    if name not in corpus.entry.attributes:
        raise _no_attribute(corpus, name, where)
    if name not in corpus.filters:
        message = (
            f"{where}: {name!r} is not filtered on; name it in corpora.{corpus.name}.filters of "
            "the recipe and export again"
        )
        expected = one_of(", ".join(map(repr, corpus.filters)) or "none")
        raise InvalidArgument(message, FieldViolation(where, repr(name), expected))
    return corpus.filters[name].kind


def _checked_condition(
    corpus: FilteredCorpus, name: str, condition: Condition, where: str
) -> Condition:
    """Returns a condition with its tokens as the index of its attribute takes them."""
    kind = _kind(corpus, name, where)
    values_by_part = {part: value for part, value in vars(condition).items() if value is not None}
    if not values_by_part:
        raise InvalidArgument.of_field(where, "no condition", _PARTS, "has")
    for part, value in values_by_part.items():
        if part == "is_null":
            continue
        if part in Bounds._fields:
            if kind not in ("int64", "double"):
                raise _mismatch(f"{where}.{part}", name, kind, "a number for bounds")
            if not math.isfinite(value):
                raise InvalidArgument.of_field(f"{where}.{part}", value, "a finite number")
        elif kind == "double":
            raise _mismatch(f"{where}.{part}", name, kind, "ge, gt, le, lt or is_null")
        elif part == "allow" and not value.size:
            raise InvalidArgument.of_field(
                f"{where}.allow", "empty", "at least one value", hint="leave it out to allow all"
            )
        else:
            values_by_part[part] = _tokens(kind, value, f"{where}.{part}")
    return Condition(**values_by_part)


def _mismatch(where: str, name: str, kind: str, expected: str) -> InvalidArgument:
    """Returns the error for a part of a filter that does not suit the type of its attribute."""
    message = f"{where}: {name!r} is {kind}; {expected} was expected"
    return InvalidArgument(message, FieldViolation(where, f"{name!r} of type {kind}", expected))


def _tokens(kind: str, ids: Ids, where: str) -> Ids:
    """Returns tokens as the index of an attribute of this kind takes them."""
    if kind == "int64":
        try:
            return id_values.integers(where, ids)
        except FeatureError as problem:
            raise InvalidArgument.of_misfit(where, problem) from problem
    for token in ids.tolist():
        if kind == "bool" and token not in _TRUTHS:
            raise InvalidArgument.of_field(where, show_id(token), "true or false", "holds")
        if not isinstance(token, str):
            raise InvalidArgument.of_field(where, show_id(token), "a string", "holds")
    if kind == "bool":
        return np.array([_TRUTHS[token] for token in ids.tolist()], np.int64)
    return ids.astype(object)  # none at all come as integers


def _spell(request_filter: Filter, check: Callable[[], object]) -> list[Any]:
    """Returns a spelling that filters of the same conditions, tokens and bounds share.

    Filters that differ in the types of tokens differ here, too: one may be rejected.
    """
    conditions = []
    for name, condition in sorted(request_filter.conditions.items()):
        parts = vars(condition).items()
        part_spellings = [
            (part, _spell_value(value, check)) for part, value in parts if value is not None
        ]
        conditions.append((name, part_spellings))
    groups = [
        [_spell(nested, check) for nested in group]
        for group in (request_filter.all, request_filter.any, request_filter.none)
    ]
    return [conditions, groups, request_filter.near]


def _spell_value(value: Any, check: Callable[[], object]) -> Any:
    """Returns a bound as it is, tokens in ascending order, and the digest of many strings in the
    order in which they were sent: sorting a million keeps every other thread waiting for a second.
    """
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype != object:
        return value.dtype.str, distinct(value).tobytes()
    if value.size <= _STRINGS_PER_STEP:  # whose types may differ, so that their texts have an order
        return sorted({repr(token) for token in value.tolist()})
    digest = hashlib.blake2b(digest_size=16)
    for first in range(0, value.size, _STRINGS_PER_STEP):
        check()
        text = repr(value[first : first + _STRINGS_PER_STEP].tolist())
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()


def _matches(
    corpus: FilteredCorpus, size: int, checked_filter: Filter, check: Callable[[], object]
) -> Matches:
    """Returns which of `size` candidates match a filter that was checked."""
    parts = _condition_parts(corpus, checked_filter)
    if len(parts) == 1 and not checked_filter.nested and not checked_filter.near:
        positions, required = parts[0]
        # To sort few positions costs less than to look through a set.
        if required and positions.size * _CANDIDATES_PER_SORTED < size:
            return Matches.at(distinct(positions))
    matching = _matching(corpus, checked_filter, parts, size, check)
    return Matches(len(matching), as_set=matching)


class _ConditionPart(NamedTuple):
    """The candidates that have a value which a part of a condition names, and whether the part
    requires or forbids such a value.
    """

    positions: NDArray[np.uint32]
    required: bool


def _condition_parts(corpus: FilteredCorpus, checked_filter: Filter) -> list[_ConditionPart]:
    parts = []
    for name, condition in checked_filter.conditions.items():
        indexed = corpus.filters[name]
        if condition.allow is not None:
            parts.append(_ConditionPart(indexed.rows_of(condition.allow), True))
        bounds = _bounds_of(condition)
        if bounds != ANY_VALUE:
            parts.append(_ConditionPart(*indexed.rows_by_bounds(bounds)))
        if condition.deny is not None:
            parts.append(_ConditionPart(indexed.rows_of(condition.deny), False))
        if condition.is_null is not None:
            rows, have_value = indexed.rows_by_bounds(ANY_VALUE)
            parts.append(_ConditionPart(rows, have_value != condition.is_null))
    return parts


def _bounds_of(condition: Condition) -> Bounds:
    return Bounds(condition.ge, condition.gt, condition.le, condition.lt)


def _matching(
    corpus: FilteredCorpus,
    checked_filter: Filter,
    parts: list[_ConditionPart],
    size: int,
    check: Callable[[], object],
) -> PositionSet:
    """Returns which of the candidates match a filter.

    Args:
      corpus: The candidates.
      checked_filter: The filter, checked.
      parts: The parts of its own conditions.
      size: The number of candidates.
      check: As of `compile_filter`.
    """

    def set_of(nested: Filter) -> PositionSet:
        check()
        return _matching(corpus, nested, _condition_parts(corpus, nested), size, check)

    required_sets = [PositionSet.of(positions, size) for positions, required in parts if required]
    required_sets += map(set_of, checked_filter.all)
    if checked_filter.any:
        required_sets.append(reduce(operator.ior, map(set_of, checked_filter.any)))
    if checked_filter.near:
        inside = PositionSet.of(_NO_POSITIONS, size)
        for circle in checked_filter.near:
            check()
            inside.add(_circle_positions(corpus, circle, size))
        required_sets.append(inside)
    matching = reduce(operator.iand, required_sets) if required_sets else PositionSet.all(size)

    for positions, required in parts:
        if not required:
            matching.remove(positions)
    for nested_filter in checked_filter.none:
        matching -= set_of(nested_filter)
    return matching


def _circle_positions(corpus: FilteredCorpus, circle: Circle, size: int) -> NDArray[np.uint32]:
    """Returns the candidates in a circle, by their great-circle distance from its center.

    Source: https://en.wikipedia.org/wiki/Haversine_formula
    """
    angle = circle.radius_m / _EARTH_RADIUS_M
    center_latitude = math.radians(circle.latitude)
    height = math.degrees(angle) + _BOX_MARGIN
    south = circle.latitude - height
    north = circle.latitude + height

    # A box around the circle, whose candidates the indexes give without a pass over all of them.
    west: float | None = None
    east: float | None = None
    if abs(circle.latitude) + height < 90:  # no pole is in the circle
        width = math.degrees(math.asin(math.sin(angle) / math.cos(center_latitude))) + _BOX_MARGIN
        # Where the box crosses the date line, any longitude may lie in it.
        if circle.longitude - width >= -180 and circle.longitude + width <= 180:
            west = circle.longitude - width
            east = circle.longitude + width
    latitude_index = corpus.filters[circle.latitude_attribute]
    longitude_index = corpus.filters[circle.longitude_attribute]
    latitude_bounds = Bounds(ge=south, le=north)
    longitude_bounds = Bounds(ge=west, le=east)
    box = PositionSet.of(latitude_index.rows_between(latitude_bounds), size)
    box &= PositionSet.of(longitude_index.rows_between(longitude_bounds), size)
    positions, latitudes = latitude_index.numbers_between(latitude_bounds, box)
    rows_in_longitude, longitudes = longitude_index.numbers_between(longitude_bounds, box)
    # By candidate: most of this memory is never touched.
    longitude_of = np.empty(size)
    longitude_of[rows_in_longitude] = longitudes
    longitudes = longitude_of[positions]

    # What is far enough from the edge needs no sines.
    latitude_distances = np.radians(latitudes - circle.latitude)
    longitude_distances = np.radians(longitudes - circle.longitude)
    least, most = _haversine_bounds(center_latitude, latitude_distances, longitude_distances)
    limit = math.sin(min(angle, math.pi) / 2) ** 2
    is_inside = most < limit * (1 - _HAVERSINE_MARGIN)
    (near_edge,) = ((least <= limit * (1 + _HAVERSINE_MARGIN)) & ~is_inside).nonzero()

    latitudes_rad = np.radians(latitudes[near_edge])
    haversine = np.sin((latitudes_rad - center_latitude) / 2) ** 2
    haversine += (
        math.cos(center_latitude)
        * np.cos(latitudes_rad)
        * np.sin(longitude_distances[near_edge] / 2) ** 2
    )
    distance = 2 * _EARTH_RADIUS_M * np.arcsin(np.sqrt(np.minimum(haversine, 1)))
    is_inside[near_edge] = distance <= circle.radius_m
    inside: NDArray[np.uint32] = positions[is_inside.nonzero()]
    return inside


def _haversine_bounds(
    center_latitude: float,
    latitude_distances: NDArray[np.float64],
    longitude_distances: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns limits of the haversine of the angle between a center and points, [n] each.

    Args:
      center_latitude: The latitude of the center, in radians.
      latitude_distances: [n] latitudes of the points less that of the center, in radians.
      longitude_distances: [n] the same of their longitudes.
    """
    # sin(x / 2)² is at most x² / 4, and at least this less x⁴ / 48.
    highest = np.abs(latitude_distances).max(initial=0)
    widest = np.abs(longitude_distances).max(initial=0)
    by_latitude = latitude_distances**2 / 4
    by_longitude = longitude_distances**2 / 4 * math.cos(center_latitude)
    # The cosine of a latitude is near its tangent at the center, within half of the square.
    cosines = math.cos(center_latitude) - math.sin(center_latitude) * latitude_distances
    error = highest**2 / 2
    least_cosines = np.maximum(cosines - error, 0)
    most_cosines = np.minimum(cosines + error, 1)
    least = by_latitude * max(0, 1 - highest**2 / 12)
    least += by_longitude * max(0, 1 - widest**2 / 12) * least_cosines
    return least, by_latitude + by_longitude * most_cosines
