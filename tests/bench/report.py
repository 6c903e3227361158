"""The figures of a run as tables, on the console and as Markdown in `docs/explanation/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

BEGIN, END = "<!-- written by python -m tests.bench: begin -->", "<!-- end -->"
DOCUMENT = Path("docs/explanation/benchmarks.md")


@dataclass(frozen=True)
class Sheet:
    """A table under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Returns it as Markdown."""
        lines = [f"### {self.title}", "", f"| {' | '.join(self.columns)} |", "|---" * len(self.columns) + "|"]
        return "\n".join((*lines, *(f"| {' | '.join(row)} |" for row in self.rows), ""))

    def show(self, console: Console) -> None:
        """Prints it."""
        table = Table(*self.columns, title=self.title)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def document(how: str, sheets: Sequence[Sheet], page: Path = DOCUMENT) -> None:
    """Writes the tables between the marks of the page.

    Raises:
      ValueError: the page has no marks.
    """
    before, _, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
    tables = "\n".join(sheet.markdown() for sheet in sheets)
    page.write_text(f"{before}{BEGIN}\n{how}\n\n{tables}{END}{after}")
