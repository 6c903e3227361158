"""A hook of mkdocs: tables and diagrams that narrow screens can show, and pages that load nothing
from other hosts.

docs/assets/site.css has the styles.
"""

from __future__ import annotations

import logging
import re
from html import escape, unescape
from typing import Any

PROSE_CHARS = 48
"""A table whose longest cell has more characters holds prose: a narrow screen shows its cells one
below the other. A table of names and numbers scrolls sideways.
"""

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td\b([^>]*)>(.*?)</td>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_DIAGRAM = re.compile(r'<pre class="mermaid">.*?</pre>', re.DOTALL)
_LOADING_TAG = re.compile(r"<(?:link|script|img|iframe|source|video|audio|object|embed)\b[^>]*>")
_OTHER_HOST = re.compile(r"""\b(?:href|src|srcset|data|poster)=["']?((?:https?:)?//[^"'\s>]*)""")

_log = logging.getLogger("mkdocs.hooks.docs_pages")


def on_page_content(html: str, **_: Any) -> str:
    """Returns the content of a page with labeled cells, and with diagrams that can scroll."""
    labeled = _TABLE.sub(lambda table: _with_labels(table[0]), html)
    return _DIAGRAM.sub(lambda diagram: f'<div class="diagram">{diagram[0]}</div>', labeled)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Logs a warning, which ends a strict build, for each address that a page would load."""
    for address in addresses_on_other_hosts(output):
        _log.warning("%s loads %s: the site works without a network", page.url, address)
    return output


def addresses_on_other_hosts(page: str) -> list[str]:
    """Returns the addresses that a page loads from other hosts; it does not load linked pages."""
    return [
        address[1]
        for tag in _LOADING_TAG.finditer(page)
        for address in _OTHER_HOST.finditer(tag[0])
    ]


def _with_labels(table: str) -> str:
    """Returns a table of prose whose cells name their columns; another table as it is."""
    cells = [_text(cell[2]) for cell in _CELL.finditer(table)]
    if max(map(len, cells), default=0) <= PROSE_CHARS:
        return table
    columns = [_text(heading) for heading in _HEADING.findall(table)]
    labeled = _ROW.sub(lambda row: _labeled_row(row[0], columns), table)
    return labeled.replace("<table>", "<table data-prose>", 1)


def _labeled_row(row: str, columns: list[str]) -> str:
    names = iter(columns)
    return _CELL.sub(
        lambda cell: f'<td{cell[1]} data-column="{escape(next(names))}">{cell[2]}</td>', row
    )


def _text(content: str) -> str:
    """Returns the text of an element as a reader sees it."""
    return unescape(_TAG.sub("", content)).strip()
