"""Figures of a run as tables, on the console and as Markdown in `docs/benchmarks.md`, and as a plot beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.figures import Figures, Group
from tests.bench.goals import Goal, best, goals
from tests.bench.limits import BATCH
from tests.bench.rounds import CALLERS, SHARES, Block

BEGIN, END = "<!-- written by python -m tests.bench: begin -->", "<!-- end -->"
DOCUMENT, PLOT = Path("docs/benchmarks.md"), Path("docs/figures/serving.svg")


@dataclass(frozen=True)
class Sheet:
    """A table under a title."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [f"### {self.title}", f"| {' | '.join(self.heads)} |", "|---" * len(self.heads) + "|"]
        return "\n".join((*lines, *(f"| {' | '.join(row)} |" for row in self.rows), ""))

    def table(self) -> Table:
        shown = Table(*self.heads, title=self.title)
        for row in self.rows:
            shown.add_row(*row)
        return shown


def sheets(figures: Figures) -> list[Sheet]:
    """Returns the tables of a run, those without figures left out."""
    bare = []
    for name, calls in figures.bare.items():
        rates = [f"{calls[callers].per_s * (1 if name == 'scann' else BATCH):,.0f}" for callers in (1, 2)]
        bare.append((name, *rates, f"{calls[1].p50_ms:.3f}", f"{calls[2].cpu_ms:.3f}"))
    found = [
        Sheet("Aims", ("", "aim", "wanted", "reached", "bare", "met"), [goal_row(goal) for goal in goals(figures)]),
        Sheet(
            "Bare calls, in process",
            ("call", "candidates or queries a second, 1 caller", "2 callers", "ms a call", "CPU ms, 2 callers"),
            bare,
        ),
        blocks_sheet("R: rank 200 candidates, thousand candidates a second", figures.ranking, BATCH / 1e3, "{:.1f}"),
        blocks_sheet("Q: retrieve 100 nearest, queries a second", figures.retrieval, 1, "{:,.0f}"),
    ]
    for group in figures.peers:
        names = ", ".join(name for name in group.blocks if not name.startswith("rowcast"))
        found.append(blocks_sheet(f"R beside {names}", group, BATCH / 1e3, "{:.1f}", best(group, "HTTP JSON", "f32")))
    if figures.absent:
        found.append(Sheet("Not measured", ("peer", "why"), list(figures.absent.items())))
    found += [engine_sheet(figures), footprint_sheet(figures)]
    return [sheet for sheet in found if sheet.rows]


def goal_row(goal: Goal) -> tuple[str, ...]:
    """Returns a goal as a row."""
    sign = "≥" if goal.least else "≤"
    met = {True: "yes", False: "**no**", None: "not measured"}[goal.met]
    return (
        str(goal.number),
        goal.text,
        f"{sign} {goal.wanted:g}",
        "" if goal.met is None else f"{goal.reached:.2f}",
        "" if math.isnan(goal.bare) else f"{goal.bare:.2f}",
        met,
    )


def blocks_sheet(title: str, group: Group, times: float, form: str, beside: str = "") -> Sheet:
    """Returns what the contestants of a group did.

    Args:
      times: what a request counts for.
      form: of the counts.
      beside: a contestant; the first column after the counts is how many times the other's throughput it has.
    """
    heads = ["who", *(f"{callers} callers" for callers in CALLERS)] + (["rowcast f32 by it"] if beside else [])
    heads += ["p50 / p99 ms, 1 caller", "8", "32", *(f"open {share:.0%}: p50 / p99 / p99.9 ms" for share in SHARES)]
    heads += ["CPU µs a candidate" if times != 1 else "CPU µs a query", "generator µs a request"]
    rows = []
    for name, blocks in group.blocks.items():
        closed = [blocks[f"closed {callers}"] for callers in CALLERS]
        row = [name, *(form.format(each.requests_per_s * times) for each in closed)]
        row += [f"{group.capacity(beside) / group.capacity(name):.2f}"] if beside else []
        row += [f"{each.p50_ms:.2f} / {each.p99_ms:.2f}" for each in closed]
        row += [open_cell(blocks.get(f"open {share}")) for share in SHARES]
        row += [f"{blocks['closed 8'].cpu_ms / (times if times == 1 else BATCH) * 1e3:.1f}"]
        rows.append([*row, f"{blocks['closed 8'].generator_ms * 1e3:.0f}"])
    return Sheet(title, heads, rows)


def open_cell(block: Block | None) -> str:
    """Returns the latencies of an open loop, and the share that was refused if any."""
    if block is None:
        return ""
    told = f"{block.p50_ms:.2f} / {block.p99_ms:.2f} / {block.p999_ms:.2f}"
    return f"{told}, {block.failed:.1%} refused" if block.failed else told


def engine_sheet(figures: Figures) -> Sheet:
    """Returns what else searches."""
    rows = []
    for name, each in figures.engines.items():
        if each.one is None or each.two is None:
            rows.append((name, "", "", "", "", "", each.problem))
            continue
        told = (f"{each.one.per_s:,.0f}", f"{each.two.per_s:,.0f}", f"{each.one.p50_ms:.3f}", f"{each.build_s:.1f}")
        rows.append((name, f"{each.recall:.3f}", *told, each.parameters))
    heads = (
        "engine",
        "recall@100",
        "queries a second, 1 thread",
        "2 threads",
        "p50 ms",
        "build s",
        "parameter, or why not",
    )
    return Sheet("Q in process, one engine after another", heads, rows)


def footprint_sheet(figures: Figures) -> Sheet:
    """Returns start and memory of every program."""
    rows = []
    for group in (figures.ranking, *figures.peers):
        for name, each in group.footprints.items():
            sizes = (each.pss_bytes, each.file_bytes, each.rss_bytes)
            memory = [f"{size / 2**20:,.0f}" for size in sizes]
            rows.append((name, f"{each.ready_s:.2f}", *memory, str(each.processes)))
    heads = ("program", "s from start to the first answer", "PSS, MiB", "of files", "sum of RSS, MiB", "processes")
    return Sheet("Start and memory", heads, rows)


def show(figures: Figures, console: Console) -> None:
    """Prints everything."""
    for sheet in sheets(figures):
        console.print(sheet.table())


def document(figures: Figures, page: Path = DOCUMENT, plot: Path = PLOT) -> None:
    """Writes the tables between the marks of the page, and the plot.

    Raises:
      ValueError: the page has no marks.
    """
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page}: the marks {BEGIN!r} and {END!r} are missing")
    how = f"scale {figures.scale:g}, {figures.rounds} rounds of blocks of {figures.seconds:g} s"
    lines = [
        f"Taken {figures.taken} on {figures.machine}; {how}.",
        "",
        f"![throughput and latency]({plot.relative_to(page.parent)})",
        "",
    ]
    tables = "\n".join(sheet.markdown() for sheet in sheets(figures))
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{tables}{END}{after}")
    draw(figures, plot)


def bars(figures: Figures) -> dict[str, float]:
    """Returns throughputs by that of the rowcast over JSON that took turns with them, whose own is 1."""
    found = {"rowcast f32": 1.0}
    for group in figures.peers:
        own = best(group, "HTTP JSON", "f32")
        for name in group.blocks:
            if name != own:
                shown = "rowcast int8" if name.startswith("rowcast") else name
                found[shown] = group.capacity(name) / group.capacity(own)
    return found


def draw(figures: Figures, plot: Path) -> None:
    """Draws throughput by rowcast's, and latency over load."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "rowcast"
    from matplotlib import pyplot

    shown, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    shares = bars(figures)
    left.barh(
        list(shares), list(shares.values()), color=["#c0504d" if "rowcast" in name else "#7f9db9" for name in shares]
    )
    left.invert_yaxis()
    left.set(title="R: best throughput by that of rowcast f32, JSON", xlabel="times")
    names = [best(figures.ranking, "HTTP JSON", precision) for precision in ("f32", "int8")]
    lines = [(figures.ranking, name) for name in names if name]
    lines += [(group, name) for group in figures.peers for name in group.blocks if not name.startswith("rowcast")]
    right.set_prop_cycle(color=mpl.color_sequences["tab20"])  # more peers than the usual ten
    for group, name in lines:
        tails = [group.blocks[name][f"open {share}"].p99_ms for share in SHARES]
        rates = [share * group.capacity(name) * BATCH / 1e3 for share in SHARES]
        right.plot(rates, tails, "o-", label=name, linewidth=3 if "rowcast" in name else 1)
    right.set(
        title="R: p99 at 50, 70 and 90 % of own capacity",
        xlabel="thousand candidates a second",
        ylabel="ms",
        yscale="log",
    )
    right.legend(fontsize=7)
    plot.parent.mkdir(parents=True, exist_ok=True)
    shown.savefig(plot, format="svg", metadata={"Date": None})
    pyplot.close(shown)
