"""The committed table of what the tests cost, and the rules that it decides.

The unit is a CPU second of the host that wrote the table first. A run on another host is converted
by the files that both know, so that neither a slow machine nor a busy neighbor breaks a rule.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

COMMAND = "make costs"

SLOW_ABOVE = 10.0
"""A test that costs more must be marked `slow`."""
SLOW_FROM = 2.0
"""A test that costs less must not be marked `slow`. The table lists those that cost more."""
GROWTH_MAX = 0.02
"""By how much of the whole a change may raise the costs without updating the table."""

NOISE_RATIO = 2.0
NOISE_SECONDS = 1.0
"""The same file took up to 1.7 times as many CPU seconds on a machine whose cores were busy. A file
has grown if it costs more than this ratio of its entry, and these seconds more.
"""
_NEIGHBORS = 10
_COMPARABLE_SECONDS = 0.2
_FASTEST_RATIO = 0.25
"""A file that costs less than this ratio of its entry ran in part, so that its cost says nothing
about the host.
"""


@dataclass(frozen=True)
class Costs:
    """What tests cost, in CPU seconds.

    Attributes:
      files: The cost of each file by its path: of its tests, and of the fixtures that they share.
        Nightly tests have an entry of their own, of the name that `nightly_entry` gives.
      tests: The cost of each test that is at least `SLOW_FROM`, by its node id, with its share of
        the fixtures of its file.
      alone: The cost of each other test that is at least `SLOW_FROM` where no test before it has
        paid for the fixtures that it needs, by its node id.
    """

    files: Mapping[str, float]
    tests: Mapping[str, float]
    alone: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        if not path.exists():
            return cls({}, {})
        content = json.loads(path.read_text())
        return cls(content["files"], content["tests"], content["alone"])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = {"files": self.files, "tests": self.tests, "alone": self.alone}
        content = {
            part: {name: round(costs[name], 1) for name in sorted(costs)}
            for part, costs in parts.items()
        }
        path.write_text(json.dumps(content, indent=1) + "\n")

    def updated(self, measured: Self, existing: Set[str]) -> Costs:
        """Returns this table with the files of a run replaced, and without files that are gone."""
        ran = {file_of(entry) for entry in measured.files}
        files = _replaced(self.files, measured.files, ran)
        if not existing <= ran:
            # What all files share costs a part of them less.
            files |= {name: cost for name, cost in self.files.items() if "(" in name}
        tests = _replaced(self.tests, measured.tests, ran)
        alone = _replaced(self.alone, measured.alone, ran)
        return Costs(
            *(
                {name: cost for name, cost in costs.items() if file_of(name) in existing}
                for costs in (files, tests, alone)
            )
        )


def _replaced(
    costs: Mapping[str, float], measured: Mapping[str, float], files: Collection[str]
) -> dict[str, float]:
    """Returns costs by entry, those of the files that were measured replaced."""
    older = {name: cost for name, cost in costs.items() if file_of(name) not in files}
    return {**older, **measured}


def file_of(name: str) -> str:
    """Returns the path of the file of a test, or of an entry of `Costs.files`."""
    return name.partition("::")[0]


def nightly_entry(path: str) -> str:
    """Returns the entry of `Costs.files` for the nightly tests of a file."""
    return f"{path}::nightly"


def converted(order: Sequence[str], measured: Costs, table: Costs) -> Costs:
    """Returns measured costs in the unit of the table.

    Args:
      order: The files in the order in which one process ran them. A host that slows down in the
        middle of a run is known by the files that ran before and after.
      measured: The costs of these files in CPU seconds of this host.
      table: The committed costs.
    """
    speeds = {
        entry: _speed_near(position, order, measured, table) for position, entry in enumerate(order)
    }
    speeds_of_files = {file_of(entry): speed for entry, speed in speeds.items()}
    return Costs(
        {entry: seconds / speeds[entry] for entry, seconds in measured.files.items()},
        *(
            {name: seconds / speeds_of_files[file_of(name)] for name, seconds in costs.items()}
            for costs in (measured.tests, measured.alone)
        ),
    )


def _speed_near(position: int, order: Sequence[str], measured: Costs, table: Costs) -> float:
    """Returns how many CPU seconds of this host one of the table took around a file.

    The median ratio of the files near it, each with the weight of its entry; 1 if none of them has
    an entry worth comparing. The file itself is none of them, so that it cannot hide its growth.
    """
    near = [
        *order[max(0, position - _NEIGHBORS) : position],
        *order[position + 1 : position + 1 + _NEIGHBORS],
    ]
    ratios = []
    for path in near:
        entry = table.files.get(path, 0.0)
        if entry >= _COMPARABLE_SECONDS and measured.files[path] >= _FASTEST_RATIO * entry:
            ratios.append((measured.files[path] / entry, entry))
    ratios.sort()
    half = sum(weight for _, weight in ratios) / 2
    for ratio, weight in ratios:
        half -= weight
        if half <= 0:
            return ratio
    return 1.0


def growth(measured: Costs, table: Costs) -> dict[str, float]:
    """Returns by how many seconds files exceed their entries, if by more than noise.

    A new file has grown by all that it costs.
    """
    grown = {}
    for path, seconds in measured.files.items():
        entry = table.files.get(path, 0.0)
        if seconds > NOISE_RATIO * entry and seconds > entry + NOISE_SECONDS:
            grown[path] = seconds - entry
    return grown


def budget_error(measured: Costs, table: Costs) -> str:
    """Returns why the costs of a run are above the table's, or "" if they are not."""
    grown = growth(measured, table)
    total = sum(table.files.values())
    if sum(grown.values()) <= GROWTH_MAX * total:
        return ""
    lines = [
        f"The tests cost {sum(grown.values()):.0f} CPU s more than the {total:.0f} of "
        f"the table; {GROWTH_MAX * total:.0f} are allowed. Make them cheaper, or commit the "
        f"table that `{COMMAND}` writes and say why:"
    ]
    for path in sorted(grown, key=lambda path: -grown[path]):
        entry = table.files.get(path, 0.0)
        lines.append(f"  {path}: {entry:.1f} CPU s in the table, {measured.files[path]:.1f} now")
    return "\n".join(lines)


def mark_errors(marks: Mapping[str, bool], measured: Costs, table: Costs) -> list[str]:
    """Returns a line for each test that is marked `slow` and should not be, or the other way round.

    The cases of a parametrized test that carry the same mark are judged together, by the costliest
    of them: a mark stands at a test, and which of its cases pays for what they share is chance. A
    cheap test may be marked if it needs costly fixtures: without a mark, the quick tests would have
    to make them.

    The table decides about the tests of its files, so that a run on a busy machine gives the same
    result as any other; the run decides where it exceeds the limit by more than noise.

    Args:
      marks: Whether each test that was collected is marked, by its node id.
      measured: The costs of this run.
      table: The committed costs.
    """
    files_in_table = {file_of(entry) for entry in table.files}
    files_of_run = {file_of(entry) for entry in measured.files}
    costliest: dict[tuple[str, bool], float] = {}
    costly_alone: set[str] = set()
    for name, is_marked in marks.items():
        path = file_of(name)
        if path not in files_in_table and path not in files_of_run:
            continue
        seconds = table.tests.get(name, 0.0)
        seconds_now = measured.tests.get(name, 0.0)
        if path not in files_in_table or seconds_now > NOISE_RATIO * max(seconds, SLOW_ABOVE):
            seconds = seconds_now
        test = name.partition("[")[0], is_marked
        costliest[test] = max(seconds, costliest.get(test, 0.0))
        costs = table
        if path not in files_in_table:
            costs = measured
        if name in costs.alone:
            costly_alone.add(name.partition("[")[0])
    errors = []
    for (name, is_marked), seconds in costliest.items():
        if is_marked and seconds < SLOW_FROM and name not in costly_alone:
            errors.append(f"{name} is marked slow, but costs less than {SLOW_FROM:.0f} CPU s")
        if not is_marked and seconds > SLOW_ABOVE:
            errors.append(f"{name} costs {seconds:.0f} CPU s, and is not marked slow")
    return errors
