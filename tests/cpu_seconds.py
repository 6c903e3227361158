"""Prints what the tests cost in CPU seconds: each folder, the costliest files and tests.

A test costs what its process and all below it have used meanwhile, fixtures included. Unlike the
time on a clock, that hardly depends on what else the machine does.

    python -m pytest -p tests.cpu_seconds ...
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import cast

import psutil
import pytest

CPU_S = "cpu_s"
COSTLIEST = 40
FOLDERS = 3
"""Number of parts of a test's path that name its folder."""

_used_s = 0.0
_tests: dict[str, float] = {}


def cpu_seconds() -> float:
    """Returns what this process has used so far, with those that it started and what they did."""
    own = psutil.Process()
    used_s = 0.0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def pytest_collection_finish() -> None:
    """Begins with the first test: what was collected is nobody's."""
    global _used_s  # noqa: PLW0603
    _used_s = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes in a test's last report what was used since the test before."""
    global _used_s  # noqa: PLW0603
    report = yield
    if call.when == "teardown":
        used_s = cpu_seconds()
        report.user_properties.append((CPU_S, used_s - _used_s))
        _used_s = used_s
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collects the costs in the process that prints them."""
    if report.when == "teardown":
        _tests[report.nodeid] = cast("float", dict(report.user_properties)[CPU_S])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints both tables."""
    folders = defaultdict[str, float](float)
    files = defaultdict[str, float](float)
    sizes = Counter[str]()
    for test, cpu_s in _tests.items():
        file = test.partition("::")[0]
        folder = "/".join(file.split("/")[:-1][:FOLDERS])
        files[file] += cpu_s
        folders[folder] += cpu_s
        sizes[folder] += 1

    terminalreporter.section("CPU seconds")
    for folder, cpu_s in descending(folders):
        terminalreporter.write_line(f"{cpu_s:8.1f}  {sizes[folder]:5} tests  {folder}")
    terminalreporter.write_line(f"{sum(folders.values()):8.1f}  {sizes.total():5} tests  in all")
    terminalreporter.write_line(f"{cpu_seconds():8.1f}  with imports and collection")
    for costs in (files, _tests):
        terminalreporter.write_line("")
        for name, cpu_s in descending(costs)[:COSTLIEST]:
            if cpu_s >= 1:
                terminalreporter.write_line(f"{cpu_s:8.1f}  {name}")


def descending(costs: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns names and costs, the highest first."""
    return sorted(costs.items(), key=lambda item: -item[1])
