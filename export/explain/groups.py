"""Features and tables that are alike, put together: hundreds of them are a few boxes in a drawing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from export.explain.drawing import Drawing, DrawnFeature, DrawnTable
from export.figures import natural

TOGETHER_MIN = 5
"""So many tables of the same looks become one box; fewer are told one by one."""
BOXES_MAX = 16
"""Of tables: where there were more, shapes are not told apart, and then not even kinds and rules of features."""

_Look = tuple[object, ...]


@dataclass(frozen=True)
class TableGroup:
    """Tables that features of the same looks read; mostly one, or of one shape."""

    tables: tuple[DrawnTable, ...]

    @property
    def rows(self) -> int:
        """Rows of all."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """Bytes of all."""
        return sum(table.bytes for table in self.tables)

    @property
    def shape(self) -> str:
        """Rows of all, columns of each, and their dtype."""
        dims = sorted({table.dim for table in self.tables})
        dim = str(dims[0]) if len(dims) == 1 else f"{dims[0]} to {dims[-1]}"
        return f"{self.rows} rows x {dim} {', '.join(dict.fromkeys(table.dtype for table in self.tables))}"


@dataclass(frozen=True)
class FeatureGroup:
    """Features that look alike, each of which reads one table of a group; `tables` is its place, None of numbers.

    Attributes:
      consumers: towers and parts of towers that take them.
    """

    features: tuple[DrawnFeature, ...]
    tables: int | None
    consumers: tuple[tuple[str, str], ...]

    @property
    def role(self) -> str:
        """Of each."""
        return self.features[0].role

    @property
    def ids(self) -> str:
        """How ids become rows: in full if it is the same for all."""
        told = dict.fromkeys(feature.ids for feature in self.features)
        return next(iter(told)) if len(told) == 1 else _several(feature.rule for feature in self.features)

    @property
    def unknown(self) -> str:
        """What becomes of unknown ids."""
        return _several(feature.unknown for feature in self.features)

    @property
    def default(self) -> str:
        """Whether they may be left out."""
        left_out = sum(feature.default for feature in self.features)
        few = "may be left out" if left_out == len(self.features) else f"{left_out} may be left out"
        return few if left_out else ""

    @property
    def kind(self) -> str:
        """What they are: in full if it is the same for all."""
        told = dict.fromkeys(feature.kind for feature in self.features)
        if len(told) == 1:
            return next(iter(told))
        below = [feature.below for feature in self.features if feature.below is not None]
        if self.tables is not None:
            return _several(told)
        return f"rows below {min(below)} to {max(below)}" if len(below) == len(self.features) else "numbers"


@dataclass(frozen=True)
class Groups:
    """What is drawn: features context first, numbers last; tables in the order of their first readers."""

    features: tuple[FeatureGroup, ...]
    tables: tuple[TableGroup, ...]


def grouped(drawing: Drawing) -> Groups:
    """Puts together what looks alike, and what does so from afar where that leaves too many boxes."""
    found = (_grouped(drawing, shapes=shapes, kinds=kinds) for shapes, kinds in ((True, True), (False, True)))
    return next((each for each in found if len(each.tables) <= BOXES_MAX), _grouped(drawing, shapes=False, kinds=False))


def _grouped(drawing: Drawing, *, shapes: bool, kinds: bool) -> Groups:
    consumers = {feature.name: drawing.consumers(feature.name) for feature in drawing.features}
    looks = {feature.name: (*_look(feature, kinds), consumers[feature.name]) for feature in drawing.features}
    readers: dict[str, list[str]] = {table.name: [] for table in drawing.tables}
    for feature in drawing.features:
        if feature.table:
            readers[feature.table].append(feature.name)
    ordered = _by_first_reader(drawing, readers)
    alike: dict[_Look, list[DrawnTable]] = {}
    for table in ordered:
        read = [repr(looks[name]) for name in readers[table.name]]
        key: _Look = (table.dim, table.dtype, *sorted(read)) if shapes else tuple(sorted(set(read)))
        alike.setdefault(key, []).append(table)
    groups = tuple(
        TableGroup(tuple(sorted(part, key=lambda table: natural(table.name))))
        for tables in alike.values()
        for part in ([tables] if not shapes or len(tables) >= TOGETHER_MIN else [[table] for table in tables])
    )
    place = {table.name: number for number, group in enumerate(groups) for table in group.tables}
    found: dict[_Look, list[DrawnFeature]] = {}
    for feature in drawing.features:
        found.setdefault((looks[feature.name], place.get(feature.table)), []).append(feature)
    features = [
        FeatureGroup(
            tuple(sorted(each, key=lambda feature: natural(feature.name))),
            place.get(each[0].table),
            consumers[each[0].name],
        )
        for each in found.values()
    ]
    features.sort(key=lambda each: (len(groups) if each.tables is None else each.tables, each.role == "candidate"))
    return Groups(tuple(features), groups)


def _several(told: Iterable[str]) -> str:
    """Returns what is told of things that are not all alike."""
    distinct = list(dict.fromkeys(told))
    return ", ".join(distinct) if len(distinct) <= 3 else f"{', '.join(distinct[:2])} and others"


def _look(feature: DrawnFeature, kinds: bool) -> _Look:
    if feature.table and not kinds:
        return (feature.role,)
    numbers = not feature.table
    kind = ("rows" if feature.below is not None else "numbers") if numbers else feature.kind
    return (feature.role, kind, feature.rule, feature.unknown, feature.default)


def _by_first_reader(drawing: Drawing, readers: Mapping[str, Iterable[str]]) -> list[DrawnTable]:
    """Orders tables by their readers: those of contexts only, then those of both, then those of candidates."""
    order = {feature.name: number for number, feature in enumerate(drawing.features)}
    candidate = {feature.name for feature in drawing.features if feature.role == "candidate"}

    def key(table: DrawnTable) -> tuple[float, int]:
        names = list(readers[table.name])
        share = sum(name in candidate for name in names) / max(1, len(names))
        return share, min((order[name] for name in names), default=len(order))

    return sorted(drawing.tables, key=key)
