"""What became of each entry: a record beside its run, rows of the table on the console and on the
page.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from examples.zoo.entries import Entry

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/zoo.md"
BEGIN = "<!-- written by make zoo: begin -->"
END = "<!-- end -->"
COLUMNS = ("model", "published as", "result", "largest difference", "seconds")
RECORD = "outcome.json"
"""The file in the folder of a run that records the outcome."""
UNCHANGED = "unchanged"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one entry.

    Attributes:
      entry: The entry.
      revision: The commit or version that was run.
      result: The result in words.
      as_stated: Whether the entry states this result.
      largest: The largest difference of a response; None if there is none.
      seconds: The duration of all steps.
      day: The day of the run, as YYYY-MM-DD.
      versions: The versions of the packages of the run, by the names of their projects.
    """

    entry: Entry
    revision: str
    result: str
    as_stated: bool
    largest: float | None = None
    seconds: float = 0.0
    day: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def difference(self) -> str:
        """The largest difference in words."""
        if self.largest is None:
            return ""
        return f"{self.largest:.1e}"

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of COLUMNS."""
        source = self.entry.source
        name = source.folder or source.packages[0]
        published = f"{name}@{self.revision[:10]}: {self.entry.file}"
        seconds = f"{self.seconds:.0f}" if self.seconds else ""
        return self.entry.name, published, self.result, self.difference, seconds

    def markdown(self) -> str:
        """Returns the line of the page: the largest difference, after what else there is to say of
        a model that did not run unchanged.
        """
        source = self.entry.source
        recipe = f"[{self.entry.name}](../../{self.entry.recipe.relative_to(ROOT).as_posix()})"
        revision = self.revision or source.revision
        commit = revision if source.folder else f"v{revision}"
        project = source.url.rpartition("/")[2]
        link = f"{source.url}/blob/{commit}/{self.entry.file}"
        published = f"[{project}/{self.entry.file}]({link})"
        # An error says what is wrong in its first sentence, the remedy in those that follow.
        result = ""
        if self.result != UNCHANGED:
            result = self.result.partition(". ")[0]
        facts = ", ".join(filter(None, (" ".join(result.split()), self.difference)))
        return f"- {recipe}, {published}: {facts}"

    def write(self, folder: Path) -> None:
        """Writes the record of a run to its folder."""
        record = {
            "repository": self.entry.source.url,
            "revision": self.revision,
            "result": self.result,
            "as_stated": self.as_stated,
            "largest_difference": self.largest,
            "seconds": round(self.seconds, 1),
            "day": self.day,
            "versions": self.versions,
        }
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_outcome(entry: Entry, folder: Path) -> Outcome:
    """Returns what a run recorded in its folder; NOT_RUN if there is no record."""
    try:
        text = (folder / RECORD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return Outcome(entry, "", NOT_RUN, as_stated=True)
    record: dict[str, Any] = json.loads(text)
    return Outcome(
        entry,
        record["revision"],
        record["result"],
        record["as_stated"],
        record["largest_difference"],
        record["seconds"],
        record["day"],
        record["versions"],
    )


def versions_of(entry: Entry) -> dict[str, str]:
    """Returns the versions of the packages that a run of an entry uses. That of rowcast is missing:
    the checkout runs, and its installation has the version of the day when it was installed.
    """
    keras = "keras" if entry.source.keras == 3 else "tf_keras"
    return {name: version(name) for name in ("tensorflow", keras, "jax")}


def today() -> str:
    """Returns the day as YYYY-MM-DD."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def print_table(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints the outcomes."""
    table = Table(box=box.SIMPLE_HEAD, title="published recommenders, beside their own results")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in COLUMNS[3:] else "left")
    for outcome in outcomes:
        table.add_row(*outcome.cells(), style=None if outcome.as_stated else "red")
    console.print(table)


def write_page(outcomes: Sequence[Outcome], page: Path = PAGE) -> None:
    """Writes the outcomes between the marks of the page.

    Args:
      outcomes: The outcomes of the whole zoo.
      page: The Markdown file with the marks.

    Raises:
      ValueError: The page has no marks.
    """
    before, _, table_and_after = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = table_and_after.partition(END)
    if not end:
        raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
    rows = "\n".join(outcome.markdown() for outcome in outcomes)
    text = f"{before}{BEGIN}\n{circumstances(outcomes)}\n\n{rows}\n{END}{after}"
    page.write_text(text, encoding="utf-8")


def circumstances(outcomes: Sequence[Outcome]) -> str:
    """Returns how many models ran, when and with what: a line for each sentence."""
    runs = [outcome for outcome in outcomes if outcome.result != NOT_RUN]
    lines = []
    for is_unseen, title in ((False, "Developed with"), (True, "Tried afterwards")):
        entries = [outcome for outcome in outcomes if outcome.entry.unseen == is_unseen]
        # The first word of a result is its kind.
        kinds = Counter(
            outcome.result.split()[0].rstrip(":")
            for outcome in entries
            if outcome.result != NOT_RUN
        )
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
        lines.append(f"{title}: {len(entries)}. Runs: {kinds.total()} ({counts}).")
    # Both generations of Keras run, each in processes of its own.
    versions = sorted({pair for outcome in runs for pair in outcome.versions.items()})
    packages = ", ".join(f"{name} {number}" for name, number in versions) or "none"
    days = ", ".join(sorted({outcome.day for outcome in runs})) or "none"
    lines.append(f"Days: {days}. Versions: {packages}.")
    return "\n".join(lines)
