"""The figures of a run: tables on the console and in `benchmarks/results`, and the summary in the
documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

BEGIN = "<!-- written by python -m benchmarks: begin -->"
END = "<!-- end -->"
DOCUMENT = Path("docs/explanation/benchmarks.md")
RESULTS = Path("benchmarks/results")
PEER_TARGET = 1.3
"""Minimum ratio of rowcast's requests per second to a peer's on R, each at its best."""
SHARE_TARGETS = {
    ("R f32, HTTP protobuf", "8", "2"): 0.88,
    ("R int8, HTTP protobuf", "8", "2"): 0.70,
    ("Q, HTTP protobuf", "32", "1"): 0.65,
}
"""Minimum share of the bare call's throughput, by request, callers and threads of the bare call."""
CLIENT_TARGETS = {
    "gRPC, rowcast-client": "by gRPC, bare stub",
    "HTTP, rowcast-client": "by HTTP, bare httpx, JSON",
}
"""Calls of the client, and the column with their CPU by that of the bare call."""
CLIENT_TARGET = 1.3
"""Maximum of these ratios."""
OVERLOAD = {
    "load": "load",
    "offered/s": "offered/s",
    "goodput by peak": "goodput / peak",
    "p99 ms of responses": "p99 ms of responses",
    "p99 ms of rejections": "p99 ms of rejections",
    "recovered after s": "s to recover",
}
"""The columns of the overload table on the page, by the name that a run gives them."""
_RANKING = "R f32, HTTP JSON"
_INT8 = "R int8, HTTP JSON"
_RETRIEVAL = "Q, HTTP JSON"
_OWN = {"rowcast": _RANKING, "rowcast int8": _INT8}
_BEST = "rowcast f32 by it, each at its best"


@dataclass(frozen=True)
class Sheet:
    """A table under a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Returns it as Markdown."""
        return f"### {self.title}\n\n{_table(self.columns, self.records())}\n"

    def show(self, console: Console) -> None:
        """Prints it."""
        table = Table(*self.columns, title=self.title)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def records(self) -> list[dict[str, str]]:
        """Returns each row as a dict by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def document(
    description: str, sheets: Sequence[Sheet], page: Path = DOCUMENT, results: Path = RESULTS
) -> None:
    """Writes all tables to a file named by the day, and a summary of them between the marks of the
    page.

    Targets belong to the file of the day, not to the page.

    Args:
      description: The circumstances of the run, which begin with its day.
      sheets: The tables of a whole run.
    Raises:
      ValueError: The page has no marks.
    """
    before, _, marked = page.read_text().partition(BEGIN)
    _, end, after = marked.partition(END)
    if not end:
        raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
    write_tables(description, sheets, results / f"{description[:10]}.md")
    page.write_text(f"{before}{BEGIN}\n{_summary(description, sheets)}\n{END}{after}")


def write_tables(description: str, sheets: Sequence[Sheet], file: Path) -> None:
    """Writes all tables to a file."""
    file.parent.mkdir(exist_ok=True)
    tables = "\n".join(sheet.markdown() for sheet in sheets)
    file.write_text(f"# {description[:10]}\n\n{description}\n\n{_targets(sheets)}\n{tables}")


def _records(sheets: Sequence[Sheet]) -> dict[str, list[dict[str, str]]]:
    """Returns the rows of each table by the first word of its title."""
    return {sheet.title.partition(",")[0].partition(" ")[0]: sheet.records() for sheet in sheets}


def _by_request(service: Sequence[dict[str, str]]) -> dict[str, dict[str, str]]:
    """Returns the row of each kind of request at its best number of callers."""
    return {row["request"]: row for row in sorted(service, key=_rate)}


def _summary(description: str, sheets: Sequence[Sheet]) -> str:
    records = _records(sheets)
    service = records["Service"]
    peers = records.get("Peers", [])
    start = records["Start"][-1]
    best = _by_request(service)
    requests = [best[name] for name in dict.fromkeys(row["request"] for row in service)]
    overload = [
        {title: row[name] for name, title in OVERLOAD.items()} for row in records["Overload"]
    ]
    ranked = {"rowcast": best[_RANKING], "rowcast, int8": best[_INT8]}
    parts = [
        description,
        "\n## Ranking beside other servers",
        "Each server ranks 200 candidates by a DCN v2 over HTTP, at its best number of callers: in "
        "JSON, Triton in its binary form. All compute in float32 except `rowcast, int8`.",
        _chart(best, peers),
        _beside(ranked, peers, start),
        "\nScores by int8 differ from those by float32 as follows, over the 64 requests:\n",
        _table(tuple(records["Error"][0]), records["Error"]),
        "\n## Retrieval beside a service written by hand",
        "The 100 nearest of the candidates of Q, JSON over HTTP. The other service is FastAPI with "
        "the query tower in TensorFlow and a ScaNN index with the same parameters.\n",
        _beside({"rowcast": best[_RETRIEVAL]}, records.get("Retrieval", []), start),
        "\n## Ranking and retrieval, by transport",
        "R is the ranking above, Q the retrieval, each at its best number of callers.\n",
        _table(("request", "callers", "requests/s", "p50 ms", "p99 ms", "CPU ms"), requests),
        "\nThe share of the tower, or of the search, that is called in process by some threads "
        "with nothing around it:\n",
        _table(tuple(records["Bare"][0])[:6], records["Bare"]),
        "\n## Overload",
        "Requests arrive at twice and ten times the peak rate, each with a deadline of 250 ms.\n",
        _table(tuple(OVERLOAD.values()), overload),
    ]
    if "Client" in records:
        parts += [
            "\n## The Python client",
            "CPU of a caller that retrieves the 10 nearest candidates, beside that of a caller "
            "that writes the messages itself.\n",
            _table(tuple(records["Client"][0]), records["Client"]),
        ]
    return "\n".join(parts)


def _targets(sheets: Sequence[Sheet]) -> str:
    records = _records(sheets)
    if not {"Service", "Bare", "Overload", "Start"} <= records.keys():
        return ""
    return (
        "## Targets\n"
        "The bare call is the compiled tower, called in process by two threads, or the index, "
        "searched by one.\n\n"
        f"{_figures(records)}\n"
    )


def _best(row: dict[str, str]) -> tuple[str, str]:
    """Returns the number of callers at which a peer is best, and its requests per second then."""
    rates = {name.split()[1]: rate for name, rate in row.items() if name.startswith("requests/s, ")}
    return max(rates.items(), key=lambda item: float(item[1]))


def _chart(best: dict[str, dict[str, str]], peers: Sequence[dict[str, str]]) -> str:
    """Returns a bar for each server, at the best of the ways to run it."""
    rates = {name: int(best[request]["requests/s"]) for name, request in _OWN.items()}
    for name, rate in ((row["peer"].partition(",")[0], int(_best(row)[1])) for row in peers):
        rates[name] = max(rate, rates.get(name, 0))
    names = ", ".join(f'"{name}"' for name in rates)
    parts = (
        f"{axis}Axis{part}Color" for axis in "xy" for part in ("Label", "Title", "Tick", "Line")
    )
    grey = ", ".join(f'{part}: "#808080"' for part in parts)
    colors = f"backgroundColor: transparent, {grey}"  # readable in light and dark
    return f"""
```mermaid
---
config:
  xyChart: {{ height: 300 }}
  themeVariables: {{ xyChart: {{ plotColorPalette: "#3f51b5", {colors} }} }}
---
xychart-beta
    x-axis [{names}]
    y-axis "requests/s" 0 --> {max(rates.values())}
    bar [{", ".join(map(str, rates.values()))}]
```
"""


def _beside(
    rowcast_rows: dict[str, dict[str, str]], peers: Sequence[dict[str, str]], start: dict[str, str]
) -> str:
    """Returns rowcast's rows, by name, and those of its peers; the ratio is that of the first."""
    columns = (
        "server",
        "callers",
        "requests/s",
        "p50 / p99 ms",
        "CPU ms",
        "s to ready",
        "PSS MiB",
        "rowcast / server",
    )
    memory = start["PSS MiB, after requests"]
    rows = []
    for name, row in rowcast_rows.items():
        tails = f"{row['p50 ms']} / {row['p99 ms']}"
        figures = (row["callers"], row["requests/s"], tails, row["CPU ms"])
        rows.append((name, *figures, start["s to ready"], memory, ""))
    for row in peers:
        callers, rate = _best(row)
        tails = row[f"p50 / p99 ms, {callers}"]
        figures = (callers, rate, tails, row["CPU ms"])
        rows.append((row["peer"], *figures, row["s to ready"], row["PSS MiB"], row[_BEST]))
    return _table(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def _table(columns: Sequence[str], rows: Sequence[dict[str, str]]) -> str:
    lines = [f"| {' | '.join(row[name] for name in columns)} |" for row in rows]
    return "\n".join((f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines))


def _figures(records: dict[str, list[dict[str, str]]]) -> str:
    """Returns a table of all targets with what the run measured, met or missed."""
    shares = {
        (row["request"], row["callers"], row["threads"]): float(row["share"])
        for row in records["Bare"]
    }
    at_least = [
        (f"{key[0]}, {key[1]} callers: share of the bare call", shares[key], bound)
        for key, bound in SHARE_TARGETS.items()
        if key in shares
    ]
    at_least += [
        (f"{_RANKING}: times the requests/s of {row['peer']}", float(row[_BEST]), PEER_TARGET)
        for row in records.get("Peers", [])
    ]
    twice = records["Overload"][0]
    at_least.append(("Overload, 2 x: goodput by peak", float(twice["goodput by peak"]), 0.95))
    at_most = [
        ("Overload, 2 x: p99 ms of rejections", float(twice["p99 ms of rejections"]), 2.0),
        ("One worker: s to ready", float(records["Start"][0]["s to ready"]), 1.0),
    ]
    at_most += [
        (
            f"{row['call']}: CPU {CLIENT_TARGETS[row['call']]}",
            float(row[CLIENT_TARGETS[row["call"]]]),
            CLIENT_TARGET,
        )
        for row in records.get("Client", [])
        if row["call"] in CLIENT_TARGETS
    ]
    rows = [
        (name, f"at least {bound:g}", f"{value:.2f}", _met(value >= bound))
        for name, value, bound in at_least
    ]
    rows += [
        (name, f"at most {bound:g}", f"{value:.2f}", _met(value <= bound))
        for name, value, bound in at_most
    ]
    columns = ("figure", "target", "measured", "")
    return _table(columns, [dict(zip(columns, row, strict=True)) for row in rows])


def _met(met: bool) -> str:
    return "met" if met else "missed"


def _rate(row: dict[str, str]) -> float:
    return float(row["requests/s"])
