"""The boxes of a drawing, for its picture and its text: what is alike is put together, so that
hundreds are a few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from export.explain.drawing import Drawing, FeatureNode, TableNode, TowerNode, shortened
from export.report_text import natural, size_text, thousands

BOXES_MAX = 16
"""Of tables: where there were more, those whose readers are alike share one, and then those of
readers of one role.
"""
NAMES_MAX = 4


@dataclass
class Box:
    """What one box says; `look` is a role or `table`, `tower`, `output`, `share` that of all
    tables' bytes.
    """

    look: str
    title: str
    lines: Sequence[str]
    parts: Sequence[str] = ()
    share: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class Group:
    """Tables that are alike, and the features that read them in sets that are alike; numbers have
    no tables.
    """

    tables: tuple[TableNode, ...]
    readers: tuple[tuple[FeatureNode, ...], ...]


def grouped(drawing: Drawing) -> list[Group]:
    """Puts together what is alike, and what is so from afar where that leaves too many boxes;
    numbers come last.
    """
    for detail in (2, 1, 0):
        groups = _grouped(drawing, detail)
        if len(groups) <= BOXES_MAX:
            break
    numbers = _alike([feature for feature in drawing.features if not feature.table], 1)
    groups.sort(key=_candidate_share)
    return [*groups, *([Group((), numbers)] if numbers else [])]


def _candidate_share(group: Group) -> float:
    roles = [feature.role for features in group.readers for feature in features]
    return roles.count("candidate") / max(1, len(roles))


def _grouped(drawing: Drawing, detail: int) -> list[Group]:
    readers: dict[str, list[FeatureNode]] = {table.name: [] for table in drawing.tables}
    for feature in drawing.features:
        if feature.table:
            readers[feature.table].append(feature)
    alike: dict[object, list[TableNode]] = defaultdict(list)
    for table in sorted(drawing.tables, key=lambda table: natural(table.name)):
        alike[
            table.name
            if detail == 2
            else frozenset(_look(each, detail) for each in readers[table.name])
        ].append(table)
    return [
        Group(
            tuple(tables),
            _alike([feature for table in tables for feature in readers[table.name]], detail),
        )
        for tables in alike.values()
    ]


def _alike(features: Iterable[FeatureNode], detail: int) -> tuple[tuple[FeatureNode, ...], ...]:
    found: dict[object, list[FeatureNode]] = defaultdict(list)
    for feature in sorted(
        features, key=lambda each: (each.role == "candidate", natural(each.name))
    ):
        found[_look(feature, detail)].append(feature)
    return tuple(map(tuple, found.values()))


def _look(feature: FeatureNode, detail: int) -> tuple[object, ...]:
    kind = feature.kind if feature.table else feature.kind.startswith("rows below")
    look = (feature.role, feature.taken_by, kind, feature.rule, feature.unknown, feature.default)
    return look if detail else look[:2]


def feature_box(features: Sequence[FeatureNode]) -> Box:
    """Returns the box of features that are alike: role and kind, how ids become rows, and whether
    they are needed.
    """
    first = features[0]
    optional = sum(feature.default for feature in features)
    lines = [f"{first.role}, {_several(feature.kind for feature in features)}"]
    if first.table:
        same = len({feature.ids for feature in features}) == 1
        lines.append(first.ids if same else _several(feature.rule for feature in features))
        lines.append(f"unknown: {_several(feature.unknown for feature in features)}")
    if optional:
        lines.append(
            f"{optional} may be left out" if optional < len(features) else "may be left out"
        )
    return _box(
        first.role,
        [feature.label for feature in features],
        "features" if first.table else "inputs",
        lines,
    )


def table_box(tables: Sequence[TableNode], total: int) -> Box:
    """Returns the box of tables that are alike: rows of all, columns of each, dtypes, and bytes of
    all.
    """
    size = sum(table.bytes for table in tables)
    dims = sorted({table.dim for table in tables})
    dim = f"{dims[0]}" if len(dims) == 1 else f"{dims[0]} to {dims[-1]}"
    dtypes = ", ".join(dict.fromkeys(table.dtype for table in tables))
    rows = f"{thousands(sum(table.rows for table in tables))} rows x {dim} {dtypes}"
    box = _box("table", [table.name for table in tables], "tables", [rows, size_text(size)])
    box.share = size / total if total else 0
    return box


def tower_box(tower: TowerNode) -> Box:
    """Returns the box of a tower and its parts."""
    lines = [
        f"{tower.role} tower, {size_text(tower.bytes)} of weights",
        *(f"runs as {run}" for run in tower.runs[-1:]),
    ]
    lines += [f"ordered by {tower.formula}"] if tower.formula else []
    parts = [f"{part.label} · once per {part.per}" for part in tower.parts if part.per]
    return Box("tower", tower.name, lines, parts, hint="\n".join([tower.name, *tower.runs]))


def output_box(tower: TowerNode, name: str) -> Box:
    """Returns the box of one of a tower's outputs."""
    lines = ["result"] if name == tower.result and not tower.formula else []
    return Box("output", name, lines, hint=f"{tower.name}: {name}")


def _box(look: str, names: Sequence[str], noun: str, lines: Sequence[str]) -> Box:
    if len(", ".join(names)) > 40 and len(names) > 1:
        return Box(
            look,
            f"{len(names)} {noun}",
            [shortened(names, NAMES_MAX), *lines],
            hint="\n".join(names),
        )
    return Box(look, ", ".join(names), lines, hint="\n".join(names))


def _several(words: Iterable[str]) -> str:
    """Returns the words of things that are not all alike."""
    distinct = list(dict.fromkeys(words))
    return ", ".join(distinct) if len(distinct) <= 3 else f"{', '.join(distinct[:2])} and others"
