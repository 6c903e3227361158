"""Runs the costliest test files first, and measures what each costs.

  --costs   measures CPU seconds, prints the costliest files, and writes tests/costs/costs.json if
            all tests pass; files that did not run keep their entries

The table decides about the order alone: a broken export or service is known in the first minutes,
and the processes that share the files end at about the same time.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.costs.processes import Stopwatch

TABLE = "tests/costs/costs.json"
"""The path of the table in the folder of the tests' settings: CPU seconds by file."""
_SHOWN = 30
"""Number of files that are printed."""


class Meter:
    """Measures the files that one process runs.

    Attributes:
      seconds: The CPU seconds of each file. What several files share is paid by the first of them.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stopwatch = Stopwatch()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = self._stopwatch.seconds()
        try:
            return (yield)
        finally:
            self.seconds[_file_of(item)] += self._stopwatch.seconds() - before


class CostsOfRun:
    """Collects what the processes of a run measured."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._seconds: dict[str, float] = defaultdict(float)

    def add(self, seconds: dict[str, float]) -> None:
        """Adds what one process measured."""
        for path, cost in seconds.items():
            self._seconds[path] += cost

    def pytest_testnodedown(self, node: Any) -> None:
        """Takes what a worker of pytest-xdist measured."""
        self.add(getattr(node, "workeroutput", {}).get("costs", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        meter = session.config.pluginmanager.get_plugin("cost-meter")
        if meter is not None:
            self.add(meter.seconds)
        if session.exitstatus != pytest.ExitCode.OK:
            return
        costs = _table(self._root) | {path: round(cost, 1) for path, cost in self._seconds.items()}
        existing = {path: costs[path] for path in sorted(costs) if (self._root / path).exists()}
        table_path = self._root / TABLE
        table_path.parent.mkdir(parents=True, exist_ok=True)
        table_path.write_text(json.dumps(existing, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds")
        costliest = sorted(self._seconds, key=lambda path: -self._seconds[path])
        for path in costliest[:_SHOWN]:
            terminalreporter.write_line(f"{self._seconds[path]:8.1f}  {path}")
        terminalreporter.write_line(f"{sum(self._seconds.values()):8.1f}  in all")


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _table(root: Path) -> dict[str, float]:
    path = root / TABLE
    if not path.exists():
        return {}
    costs: dict[str, float] = json.loads(path.read_text())
    return costs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", action="store_true", help=f"measure CPU seconds of test files; write {TABLE}"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--costs"):
        return
    is_worker = hasattr(config, "workeroutput")
    if is_worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Meter(), "cost-meter")
    if not is_worker:
        config.pluginmanager.register(CostsOfRun(config), "costs-of-run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts files without an entry first: what is new fails most often."""
    costs = _table(config.rootpath)
    items.sort(key=lambda item: -costs.get(_file_of(item), math.inf))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends what a worker of pytest-xdist measured to the process that started it."""
    config = session.config
    meter = config.pluginmanager.get_plugin("cost-meter")
    if meter is not None and hasattr(config, "workeroutput"):
        config.workeroutput["costs"] = dict(meter.seconds)
