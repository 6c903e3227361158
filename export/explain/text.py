"""A drawing as text, narrow enough for a terminal: each table with its readers and takers, then the towers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from export.explain.drawing import Drawing, DrawnTower, summary
from export.explain.groups import FeatureGroup, Groups, TableGroup, grouped
from export.figures import size_text

WIDTH = 80
NAMES_SHOWN = 8


def explain_text(drawing: Drawing) -> str:
    """Returns lines of at most WIDTH characters, but for names that are longer."""
    groups = grouped(drawing)
    lines = [f"{drawing.model}: what was cut, from {drawing.source}", *_wrapped(summary(drawing), 0, 0), ""]
    lines += ["features -> tables"]
    for number, table in enumerate(groups.tables):
        lines += _table(table, [each for each in groups.features if each.tables == number])
    numbers = [each for each in groups.features if each.tables is None]
    if numbers:
        lines += ["", "numbers -> towers"]
        for each in numbers:
            lines += _wrapped(f"{_names(each)}  {each.role}, {each.kind}{_default(each)}", 2, 6)
            lines += _wrapped(f"=> {_takers(each)}", 4, 7)
    if drawing.towers:
        lines += ["", "towers -> outputs"]
    for tower in drawing.towers:
        lines += _tower(tower, groups)
    for title, told in (("inside or together, and why", drawing.stays), ("stores", drawing.stores)):
        if told:
            lines += ["", title, *(line for each in told for line in _wrapped(each, 2, 4))]
    return "\n".join(lines)


def shortened(names: Sequence[str], shown: int = NAMES_SHOWN) -> str:
    """Returns names with commas between, the first ones of many."""
    more = len(names) - shown
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:shown])} and {more} more"


def _table(group: TableGroup, readers: Sequence[FeatureGroup]) -> Iterator[str]:
    names = shortened([table.name for table in group.tables])
    many = f"{len(group.tables)} tables, together " if len(group.tables) > 1 else ""
    figures = f"{many}{group.shape}, {size_text(group.bytes)}"
    yield from _wrapped(f"{names}  {figures}", 2, 6)
    if len(group.tables) == 1 and group.tables[0].source != group.tables[0].name:
        yield from _wrapped(f"from {group.tables[0].source}", 4, 9)
    for each in readers:
        told = f"<- {_names(each)}  {each.role}, {each.kind}; {each.ids}; unknown: {each.unknown}"
        yield from _wrapped(told + _default(each), 4, 7)
        if each.consumers:
            yield from _wrapped(f"=> {_takers(each)}", 7, 10)


def _tower(tower: DrawnTower, groups: Groups) -> Iterator[str]:
    score = f"ordered by {tower.formula}" if tower.formula else f"result {tower.result}"
    size = f"{size_text(tower.bytes)} of weights"
    yield from _wrapped(f"{tower.name}  {tower.role}, {size} -> {', '.join(tower.outputs)} ({score})", 2, 6)
    for form in tower.runs:
        yield from _wrapped(f"runs as {form}", 4, 8)
    for part in tower.parts:
        takers = [each for each in groups.features if (tower.name, part.name) in each.consumers]
        names = list(dict.fromkeys(feature.label for each in takers for feature in each.features))
        count = sum(len(each.features) for each in takers)
        many = [f"{count} features ({shortened(names, 4)})"] if count > NAMES_SHOWN else names
        taken = ", ".join([*([shortened(part.takes, 4)] if part.takes else []), *many]) or "nothing"
        what = f"{part.name}, once for each {part.per}, takes" if part.name else "takes"
        gives = f" -> {shortened(part.gives, 4)}" if part.name else ""
        yield from _wrapped(f"{what} {taken}{gives}", 4, 8)


def _names(group: FeatureGroup) -> str:
    names = [each.label for each in group.features]
    return f"{len(names)} features: {shortened(names)}" if len(names) > NAMES_SHOWN else shortened(names)


def _takers(group: FeatureGroup) -> str:
    parts: dict[str, list[str]] = {}
    for tower, part in group.consumers:
        parts.setdefault(tower, []).append(part)
    return ", ".join(f"{tower} ({', '.join(names)})" if any(names) else tower for tower, names in parts.items())


def _default(group: FeatureGroup) -> str:
    return f"; {group.default}" if group.default else ""


def _wrapped(text: str, first: int, later: int) -> list[str]:
    return wrap(
        text,
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * later,
        break_long_words=False,
        break_on_hyphens=False,
    )
