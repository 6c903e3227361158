"""`scripts/docs_pages.py`: what the documentation site changes in pages, and what it rejects."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "docs_pages.py"
PROSE = "What the service does with an id that no table of the model knows."


@pytest.fixture(scope="module")
def hook() -> Any:
    specification = importlib.util.spec_from_file_location("docs_pages", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def table(meaning: str) -> str:
    return (
        "<table>\n<thead>\n<tr>\n<th>key</th>\n<th>a &amp; b</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n"
        f'<td><code>k</code></td>\n<td style="text-align: right;">{meaning}</td>\n</tr>\n</tbody>\n'
        "</table>"
    )


def test_cells_of_a_table_of_prose_name_their_columns(hook: Any) -> None:
    content = hook.on_page_content(f"<p>before</p>{table(PROSE)}{table('short')}")

    labeled, _, unchanged = content.partition("</table>")
    assert labeled.startswith("<p>before</p><table data-prose>")
    assert '<td data-column="key"><code>k</code></td>' in labeled
    assert f'<td style="text-align: right;" data-column="a &amp; b">{PROSE}</td>' in labeled
    assert unchanged == table("short")


def test_diagrams_are_put_where_they_can_scroll(hook: Any) -> None:
    diagram = '<pre class="mermaid"><code>flowchart LR</code></pre>'
    assert hook.on_page_content(diagram) == f'<div class="diagram">{diagram}</div>'


@pytest.mark.parametrize(
    ("page", "addresses"),
    [
        ('<a href="https://example.org">elsewhere</a>', []),
        ('<script src="assets/a.js"></script><link href="../a.css" rel="stylesheet">', []),
        ('<script src="https://cdn.example/a.js"></script>', ["https://cdn.example/a.js"]),
        ("<link rel=stylesheet href=//cdn.example/a.css>", ["//cdn.example/a.css"]),
        ("<img alt='x' src='http://cdn.example/a.png'>", ["http://cdn.example/a.png"]),
    ],
)
def test_what_a_page_loads_from_other_hosts_is_found(
    page: str, addresses: list[str], hook: Any
) -> None:
    assert hook.addresses_on_other_hosts(page) == addresses
