"""The boxes of a drawing, for its picture and its text. Similar tables, and similar features, share
a box, so that a model of hundreds has a few boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from export.explain.drawing import Drawing, FeatureNode, TableNode, TowerNode, shortened
from export.report_text import natural, size_text, thousands

BOXES_MAX = 16
"""The number of boxes of tables above which tables with similar readers share one, and then tables
whose readers have one role.
"""
NAMES_MAX = 4
"""The number of names that a shared box lists."""
_TITLE_LETTERS_MAX = 40
"""The length of the list of all names that fits into the title of a box."""
_WORDS_MAX = 3
"""The number of different descriptions that a shared box lists completely."""


@dataclass
class Box:
    """The content of a box.

    Attributes:
      look: The style of the box: the role of features, or `table`, `tower`, `output`.
      title: The first line, in bold.
      lines: Further lines.
      parts: The names of parts, each in a frame of its own.
      share: The share of the bytes of all tables; None: no bar is drawn.
      hint: The text that appears under the mouse pointer.
    """

    look: str
    title: str
    lines: Sequence[str]
    parts: Sequence[str] = ()
    share: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class Group:
    """Tables that share a box, and the features that read them, one tuple for each box.

    Features without a table, such as numbers, form a group without tables.
    """

    tables: tuple[TableNode, ...]
    readers: tuple[tuple[FeatureNode, ...], ...]


def grouped(drawing: Drawing) -> list[Group]:
    """Returns the groups of a drawing, in less detail where more would leave too many boxes;
    numbers come last.
    """
    for detail in (2, 1, 0):
        groups = _group_tables(drawing, detail)
        if len(groups) <= BOXES_MAX:
            break
    # Tables of contexts come before those of candidates, as in the path of a request.
    groups.sort(key=_candidate_share)
    numbers = _group_similar([feature for feature in drawing.features if not feature.table], 1)
    if numbers:
        groups.append(Group((), numbers))
    return groups


def _candidate_share(group: Group) -> float:
    roles = [feature.role for features in group.readers for feature in features]
    return roles.count("candidate") / max(1, len(roles))


def _group_tables(drawing: Drawing, detail: int) -> list[Group]:
    """Returns the groups of tables.

    Args:
      drawing: The drawing.
      detail: The detail in which tables are distinguished: 2, each is a group; 1, by all that their
        readers have in common; 0, by role and towers of their readers.
    """
    readers: dict[str, list[FeatureNode]] = {table.name: [] for table in drawing.tables}
    for feature in drawing.features:
        if feature.table:
            readers[feature.table].append(feature)

    tables_by_key: dict[object, list[TableNode]] = defaultdict(list)
    for table in sorted(drawing.tables, key=lambda table: natural(table.name)):
        key: object = table.name
        if detail < 2:
            # As a set, so that the number of similar readers does not separate tables.
            key = frozenset(_feature_key(feature, detail) for feature in readers[table.name])
        tables_by_key[key].append(table)

    groups = []
    for tables in tables_by_key.values():
        features = [feature for table in tables for feature in readers[table.name]]
        groups.append(Group(tuple(tables), _group_similar(features, detail)))
    return groups


def _group_similar(
    features: Iterable[FeatureNode], detail: int
) -> tuple[tuple[FeatureNode, ...], ...]:
    """Returns features in tuples that share a box, those of candidates last."""
    ordered = sorted(
        features, key=lambda feature: (feature.role == "candidate", natural(feature.name))
    )
    features_by_key: dict[object, list[FeatureNode]] = defaultdict(list)
    for feature in ordered:
        features_by_key[_feature_key(feature, detail)].append(feature)
    return tuple(map(tuple, features_by_key.values()))


def _feature_key(feature: FeatureNode, detail: int) -> tuple[object, ...]:
    """Returns a key that is equal for features that share a box."""
    if not detail:
        return feature.role, feature.taken_by
    # Numbers of every shape share a box, but not with rows of tables inside the towers.
    kind: object = feature.kind
    if not feature.table:
        kind = feature.kind.startswith("rows below")
    return feature.role, feature.taken_by, kind, feature.rule, feature.unknown, feature.default


def feature_box(features: Sequence[FeatureNode]) -> Box:
    """Returns the box of similar features: role and kind, how ids become rows, and whether a
    request may leave them out.
    """
    first_feature = features[0]
    lines = [f"{first_feature.role}, {_distinct_words(feature.kind for feature in features)}"]
    if first_feature.table:
        # One rule of all features is written in full, different rules by their kinds.
        if len({feature.ids for feature in features}) == 1:
            lines.append(first_feature.ids)
        else:
            lines.append(_distinct_words(feature.rule for feature in features))
        lines.append(f"unknown: {_distinct_words(feature.unknown for feature in features)}")
    optional_count = sum(feature.default for feature in features)
    if optional_count == len(features):
        lines.append("may be left out")
    elif optional_count:
        lines.append(f"{optional_count} may be left out")
    noun = "features" if first_feature.table else "inputs"
    return _box(first_feature.role, [feature.label for feature in features], noun, lines)


def table_box(tables: Sequence[TableNode], total: int) -> Box:
    """Returns the box of similar tables: the rows and bytes of all together, their columns and
    dtypes.

    Args:
      tables: The tables.
      total: The bytes of all tables of the drawing.
    """
    size = sum(table.bytes for table in tables)
    dims = sorted({table.dim for table in tables})
    dim = f"{dims[0]}"
    if len(dims) > 1:
        dim = f"{dims[0]} to {dims[-1]}"
    dtypes = ", ".join(dict.fromkeys(table.dtype for table in tables))
    row_count = sum(table.rows for table in tables)
    rows = f"{thousands(row_count)} rows x {dim} {dtypes}"
    box = _box("table", [table.name for table in tables], "tables", [rows, size_text(size)])
    box.share = size / total if total else 0
    return box


def tower_box(tower: TowerNode) -> Box:
    """Returns the box of a tower and its parts."""
    lines = [f"{tower.role} tower, {size_text(tower.bytes)} of weights"]
    # The hint has all forms.
    if tower.runs:
        lines.append(f"runs as {tower.runs[-1]}")
    if tower.formula:
        lines.append(f"ordered by {tower.formula}")
    parts = [f"{part.label} · once per {part.per}" for part in tower.parts if part.per]
    return Box("tower", tower.name, lines, parts, hint="\n".join([tower.name, *tower.runs]))


def output_box(tower: TowerNode, name: str) -> Box:
    """Returns the box of one of a tower's outputs."""
    lines = []
    # With a formula, no single output orders candidates.
    if name == tower.result and not tower.formula:
        lines.append("result")
    return Box("output", name, lines, hint=f"{tower.name}: {name}")


def _box(look: str, names: Sequence[str], noun: str, lines: Sequence[str]) -> Box:
    """Returns a box with names as its title, or their number if they do not fit."""
    title = ", ".join(names)
    if len(title) > _TITLE_LETTERS_MAX and len(names) > 1:
        title = f"{len(names)} {noun}"
        lines = [shortened(names, NAMES_MAX), *lines]
    return Box(look, title, lines, hint="\n".join(names))


def _distinct_words(words: Iterable[str]) -> str:
    """Returns different descriptions as one text, of many only the first ones."""
    distinct = list(dict.fromkeys(words))
    if len(distinct) > _WORDS_MAX:
        return f"{', '.join(distinct[:2])} and others"
    return ", ".join(distinct)
