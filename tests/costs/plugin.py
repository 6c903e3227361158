"""Measures what each test file costs, and holds the costs against the committed table.

  --costs=check  the run fails if the tests cost more than the table allows, or are marked wrongly;
                 without a table it prints the costs alone
  --costs=write  the run writes the table; files that it did not run keep their entries

Files run in the order of their entries, the costliest first: a broken export or service is known in
the first minutes, and the processes that share the files end at about the same time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.costs.processes import Stopwatch
from tests.costs.table import (
    SLOW_FROM,
    Costs,
    budget_error,
    converted,
    file_of,
    mark_errors,
    nightly_entry,
)

TABLE = "tests/costs/costs.json"
"""The path of the table in the folder of the tests' settings."""
SESSION_FIXTURES = "tests/ (fixtures of the session)"
COLLECTION = "tests/ (collection)"


class Meter:
    """Measures the tests of one process.

    Fixtures of a file belong to the file, and in equal shares to the tests that need them: none of
    these is costly because all of them together need something that is. Fixtures of the session
    belong to neither, since which test happens to need them first differs from run to run. What a
    test costs alone includes the fixtures of both kinds.
    """

    def __init__(self) -> None:
        self._stopwatch = Stopwatch()
        self.files: dict[str, float] = defaultdict(float)
        self._tests: dict[str, float] = {}
        self._fixtures: dict[tuple[str, str], float] = defaultdict(float)
        self._session_fixtures: dict[str, float] = defaultdict(float)
        self._fixtures_of: dict[str, tuple[str, ...]] = {}
        self._in_shared_fixtures = 0.0
        self._in_session_fixtures = 0.0
        self.marks: dict[str, bool] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        before = self._stopwatch.seconds()
        try:
            return (yield)
        finally:
            self.files[COLLECTION] += self._stopwatch.seconds() - before

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.marks[item.nodeid] = item.get_closest_marker("slow") is not None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._in_shared_fixtures = 0.0
        self._in_session_fixtures = 0.0
        before = self._stopwatch.seconds()
        try:
            return (yield)
        finally:
            seconds = self._stopwatch.seconds() - before
            self.files[_entry_of(item)] += seconds - self._in_session_fixtures
            self.files[SESSION_FIXTURES] += self._in_session_fixtures
            self._tests[item.nodeid] = (
                seconds - self._in_session_fixtures - self._in_shared_fixtures
            )
            self._fixtures_of[item.nodeid] = tuple(getattr(item, "fixturenames", ()))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        inner = self._in_shared_fixtures + self._in_session_fixtures
        before = self._stopwatch.seconds()
        try:
            return (yield)
        finally:
            # Of what this fixture needs itself, the seconds are counted already.
            needed = self._in_shared_fixtures + self._in_session_fixtures - inner
            seconds = self._stopwatch.seconds() - before - needed
            if fixturedef.scope in {"session", "package"}:
                self._in_session_fixtures += seconds
                self._session_fixtures[fixturedef.argname] += seconds
            else:
                self._in_shared_fixtures += seconds
                self._fixtures[_file_of(request.node), fixturedef.argname] += seconds

    @property
    def costs(self) -> Costs:
        """The costs of the files, and of the tests that the table lists if this host is as fast."""
        users = Counter(
            (name.partition("::")[0], fixture)
            for name, fixtures in self._fixtures_of.items()
            for fixture in fixtures
        )
        tests = {}
        alone = {}
        for name, seconds in self._tests.items():
            path = name.partition("::")[0]
            with_shares = seconds
            with_all = seconds
            for fixture in self._fixtures_of[name]:
                in_file = self._fixtures.get((path, fixture), 0.0)
                with_shares += in_file / users[path, fixture]
                with_all += in_file + self._session_fixtures.get(fixture, 0.0)
            if with_shares >= SLOW_FROM / 2:
                tests[name] = with_shares
            if with_all >= SLOW_FROM / 2:
                alone[name] = with_all
        return Costs(self.files, tests, alone)


class CostsOfRun:
    """Collects what the processes of a run measured, and decides about the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._mode = config.getoption("--costs")
        self._root = config.rootpath
        self._path = config.rootpath / TABLE
        self._table = Costs.read(self._path)
        self._files: dict[str, float] = defaultdict(float)
        self._converted_files: dict[str, float] = defaultdict(float)
        self._converted_tests: dict[str, float] = {}
        self._converted_alone: dict[str, float] = {}
        self._marks: dict[str, bool] = {}
        self._errors: list[str] = []

    def add(self, measured: Costs, marks: dict[str, bool]) -> None:
        """Adds what one process measured; its files are in the order in which it ran them."""
        for path, seconds in measured.files.items():
            self._files[path] += seconds
        costs = converted(list(measured.files), measured, self._table)
        for path, seconds in costs.files.items():
            self._converted_files[path] += seconds
        self._converted_tests |= costs.tests
        self._converted_alone |= costs.alone
        self._marks |= marks

    def pytest_testnodedown(self, node: Any) -> None:
        """Takes what a worker of pytest-xdist measured."""
        output = getattr(node, "workeroutput", {})
        if "costs" in output:
            *costs, marks = output["costs"]
            self.add(Costs(*costs), marks)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        meter = session.config.pluginmanager.get_plugin("cost-meter")
        if meter is not None:
            self.add(meter.costs, meter.marks)
        measured = self._measured()
        if self._mode == "write" and session.exitstatus == pytest.ExitCode.OK:
            self._table.updated(measured, self._existing()).write(self._path)
        if self._mode == "check" and self._table.files:
            self._errors = mark_errors(self._marks, measured, self._table)
            over_budget = budget_error(measured, self._table)
            if over_budget:
                self._errors.append(over_budget)
            if self._errors and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._files:
            return
        terminalreporter.section("CPU seconds")
        by_folder: dict[str, float] = defaultdict(float)
        for path, seconds in self._files.items():
            by_folder[_folder_of(path)] += seconds
        for folder in sorted(by_folder, key=lambda folder: -by_folder[folder]):
            terminalreporter.write_line(f"{by_folder[folder]:8.1f}  {folder}")
        terminalreporter.write_line(f"{sum(self._files.values()):8.1f}  in all")
        for error in self._errors:
            terminalreporter.write_line(error, red=True)

    def _measured(self) -> Costs:
        """Returns what the run cost, in the unit of the table."""
        tests = {name: cost for name, cost in self._converted_tests.items() if cost >= SLOW_FROM}
        alone = {
            name: cost
            for name, cost in self._converted_alone.items()
            if cost >= SLOW_FROM and name not in tests
        }
        return Costs(self._converted_files, tests, alone)

    def _existing(self) -> set[str]:
        paths = {file_of(entry) for entry in (*self._table.files, *self._files)}
        return {path for path in paths if "(" in path or (self._root / path).exists()}


def _file_of(node: Any) -> str:
    return str(node.nodeid.partition("::")[0])


def _entry_of(item: pytest.Item) -> str:
    """Returns the entry of the table that has the costs of a test: its file's, or that of the
    nightly tests of its file, which a change does not run.
    """
    path = _file_of(item)
    if item.get_closest_marker("nightly") is not None:
        return nightly_entry(path)
    return path


def _folder_of(path: str) -> str:
    """Returns the first folder below `tests`."""
    parts = Path(path).parts
    return "/".join(parts[:2]) if len(parts) > 2 else path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        choices=["check", "write"],
        help=f"measure CPU seconds of test files; hold them against {TABLE}, or write it",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs") is None:
        return
    is_worker = hasattr(config, "workeroutput")
    runs_tests = is_worker or not config.getoption("numprocesses", None)
    if runs_tests:
        config.pluginmanager.register(Meter(), "cost-meter")
    if not is_worker:
        config.pluginmanager.register(CostsOfRun(config), "costs-of-run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts files without an entry first: what is new fails most often."""
    files = Costs.read(config.rootpath / TABLE).files
    by_file: dict[str, float] = defaultdict(float)
    for entry, seconds in files.items():
        by_file[file_of(entry)] += seconds
    items.sort(key=lambda item: -by_file.get(_file_of(item), math.inf))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends what a worker of pytest-xdist measured to the process that started it."""
    config = session.config
    meter = config.pluginmanager.get_plugin("cost-meter")
    if meter is not None and hasattr(config, "workeroutput"):
        costs = meter.costs
        config.workeroutput["costs"] = (dict(costs.files), costs.tests, costs.alone, meter.marks)
