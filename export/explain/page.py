"""A drawing as a page of its own: the picture, and below it every feature, table and tower. It loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from export.errors import DestinationError
from export.explain.drawing import Drawing, DrawnPart
from export.explain.groups import grouped
from export.explain.svg import draw_svg
from export.explain.text import shortened
from export.figures import natural, size_text, thousands

OPEN_ROWS = 30
"""Lists up to so long are open when the page is; what is open is printed."""

_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2430;--soft:#5b6675;--line:#d5dbe3;--box:#f6f8fa;--part:#e9edf2;
--context:#1769aa;--candidate:#b4530a;--table:#5d46a8;--tower:#1c7a4c;--output:#39424e}
@media (prefers-color-scheme:dark){:root{--back:#12161c;--text:#e4e9f0;--soft:#9aa6b5;--line:#343d49;--box:#1a2029;
--part:#242c37;--context:#63b3f5;--candidate:#f0a055;--table:#ab98f2;--tower:#5cc794;--output:#aab4c0}}
*{box-sizing:border-box}h1,p,li{overflow-wrap:anywhere}
body{margin:0 auto;max-width:1440px;padding:24px;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:32px 0 8px}p{margin:4px 0;color:var(--soft)}
.facts{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0;padding:0;list-style:none}
.facts li{border:1px solid var(--line);border-radius:8px;padding:8px 16px;background:var(--box)}
.facts b{display:block;font-size:20px;line-height:1.3}.facts span{color:var(--soft);font-size:13px}
.legend span{white-space:nowrap;margin-right:16px}
.legend i{display:inline-block;width:22px;height:4px;border-radius:2px;margin:0 6px 3px 0}
.picture{overflow-x:auto;margin:16px 0}svg{display:block;width:100%;height:auto;min-width:900px;max-width:1152px}
.head{font:600 13px system-ui,sans-serif;fill:var(--soft);text-transform:uppercase;letter-spacing:.06em}
.title,.line{font:11px ui-monospace,"SFMono-Regular",Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--soft)}
.title{font-size:12.5px;font-weight:600;fill:var(--text)}
.box>rect:first-of-type{fill:var(--box);stroke:var(--line)}
.table>rect:first-of-type{stroke:var(--table)}.tower>rect:first-of-type{stroke:var(--tower)}
.box .part{fill:var(--part);stroke:none}.share{fill:var(--table);background:var(--table)}
.context .role,.legend .context{fill:var(--context);background:var(--context)}
.candidate .role,.legend .candidate{fill:var(--candidate);background:var(--candidate)}
.way{fill:none;stroke-width:1.6;opacity:.8}.way.context{stroke:var(--context)}.way.candidate{stroke:var(--candidate)}
.way.output{stroke:var(--output)}
details{margin:8px 0}summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;min-width:60%}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td{max-width:32em;overflow-wrap:break-word}td code{font-size:12.5px}ul.told{padding-left:20px}
@page{margin:12mm}
@media print{body{padding:0}svg{min-width:0}h2{margin-top:20px}table{font-size:11px}
td code{font-size:10.5px;overflow-wrap:anywhere}h2,summary{break-after:avoid}tr,svg{break-inside:avoid}
.facts{margin:8px 0}.facts li{padding:2px 12px}.picture,.scroll{overflow:visible}*{print-color-adjust:exact}}
"""
_UPRIGHT = "@page{size:portrait}@media print{svg{max-height:180mm}}"
_ACROSS = "@page{size:landscape}@media print{svg{max-height:136mm}}"
ACROSS_MAX = 760
"""Pictures up to so high are printed on paper laid across, below the figures; higher ones on paper that stands."""


def explain_page(drawing: Drawing) -> str:
    """Returns the page, HTML with its picture inside."""
    inside = sum(tower.bytes for tower in drawing.towers)
    facts = (
        (thousands(len(drawing.inputs)), "inputs that callers send"),
        (thousands(len(drawing.features)), "features"),
        (thousands(len(drawing.tables)), "tables outside"),
        (size_text(drawing.bytes), "of rows outside"),
        (str(len(drawing.towers)), "tower" if len(drawing.towers) == 1 else "towers"),
        (size_text(inside), "of weights inside"),
    )
    tiles = "".join(f"<li><b>{escape(figure)}</b><span>{what}</span></li>" for figure, what in facts)
    picture = draw_svg(drawing, grouped(drawing))
    paper = _ACROSS if picture.height <= ACROSS_MAX else _UPRIGHT
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(drawing.model)}</title><style>{_STYLE}{paper}</style></head><body>"
        f"<h1>{escape(drawing.model)}</h1><p>What was cut, from {escape(drawing.source)}</p>"
        f'<ul class="facts">{tiles}</ul>'
        "<p>Each id is looked up in a table outside; the rows found, combined, go into a tower.</p>"
        '<p class="legend"><span><i class="context"></i>of a context, once a request</span> '
        '<span><i class="candidate"></i>of each candidate</span> '
        '<span><i class="share"></i>share of all rows\' bytes</span></p>'
        f'<div class="picture">{picture.svg}</div>'
        f"{_lists(drawing)}</body></html>\n"
    )


def write_page(drawing: Drawing, path: Path) -> None:
    """Writes the page, aside and then in its place.

    Raises:
      DestinationError: it cannot be written there.
    """
    aside = path.with_name(f".{path.name}.writing")
    try:
        aside.write_text(explain_page(drawing), encoding="utf-8", errors="backslashreplace")
        aside.replace(path)
    except OSError as problem:
        raise DestinationError(f"--html {path}: {problem.strerror}; choose a file that can be written") from problem


def _lists(drawing: Drawing) -> str:
    stays = drawing.stays or ("Nothing: every table is outside.",)
    told = f"<h2>What stays inside or together, and why</h2>{_told(stays)}"
    if drawing.stores:
        told += f"<h2>Stores and indexes</h2>{_told(drawing.stores)}"
    return told + _features(drawing) + _tables(drawing) + _towers(drawing)


def _features(drawing: Drawing) -> str:
    rows = [
        (
            _code(feature.name),
            escape(", ".join(feature.inputs)),
            escape(feature.role),
            escape(feature.kind),
            _code(feature.table) if feature.table else "",
            escape(feature.ids),
            escape(feature.unknown),
            "may be left out" if feature.default else "",
        )
        for feature in sorted(drawing.features, key=lambda each: natural(each.name))
    ]
    return _list("Features", ("feature", "input", "role", "kind", "table", "id to row", "unknown", ""), rows)


def _tables(drawing: Drawing) -> str:
    readers: dict[str, list[str]] = {}
    for feature in drawing.features:
        readers.setdefault(feature.table, []).append(feature.label)
    rows = [
        (
            _code(table.name),
            thousands(table.rows),
            str(table.dim),
            escape(table.dtype),
            size_text(table.bytes),
            escape(shortened(readers.get(table.name, []), 12)),
            _code(table.source),
        )
        for table in sorted(drawing.tables, key=lambda each: natural(each.name))
    ]
    return _list("Tables", ("table", "rows", "dim", "dtype", "size", "read by", "rows come from"), rows, {1, 2, 4})


def _towers(drawing: Drawing) -> str:
    rows = []
    for tower in drawing.towers:
        gives = ", ".join(tower.outputs)
        order = f"; ordered by {tower.formula}" if tower.formula else f"; result {tower.result}"
        runs = "<br>".join(escape(form) for form in tower.runs)
        cut = tower.parts[0].name != ""
        taken = "" if cut else _taken(tower.parts[0])
        rows.append((_code(tower.name), escape(tower.role), taken, escape(gives + order), size_text(tower.bytes), runs))
        rows += [
            (
                f"└ {_code(part.name)}",
                f"once for each {escape(part.per)}",
                _taken(part),
                escape(", ".join(part.gives)),
                "",
                "",
            )
            for part in tower.parts
            if cut
        ]
    return _list("Towers", ("tower", "role", "takes", "gives", "weights", "runs as"), rows, {4})


def _taken(part: DrawnPart) -> str:
    many = f"{len(part.features)} features: " if len(part.features) > 12 else ""
    told = [*part.takes, many + shortened(part.features, 12)] if part.features else part.takes
    return escape(", ".join(told))


def _list(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Returns a list that is open if it is short; cells are escaped already."""
    ends = set(right)
    look = [" class=n" if at in ends else "" for at in range(len(heads))]
    head = "".join(f"<th{each}>{name}</th>" for each, name in zip(look, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{each}>{cell}</td>" for each, cell in zip(look, row, strict=True)) + "</tr>"
        for row in rows
    )
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    is_open = " open" if len(rows) <= OPEN_ROWS else ""
    return f"<h2>{title}</h2><details{is_open}><summary>{len(rows)} in all</summary>{table}</details>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _told(lines: Sequence[str]) -> str:
    return '<ul class="told">' + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
