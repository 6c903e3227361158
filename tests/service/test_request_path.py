"""The path of a request: our modules that run between its arrival and its response, in the order of
their first call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from tests.service.running import RunningService

ROOT = Path(__file__).parents[2]
PACKAGES = ("service/", "bundle/", "runtime/")
MAX_MODULES = 16
BODIES: dict[str, Any] = {
    "rank": {"context": {"user": 5}, "candidate_ids": [1000, 1007]},
    "retrieve": {"k": 2, "context": {"user": 5}},
}


class Trace:
    """Notes, while it is on, the modules that are called in any thread, and those of them that call
    others of ours.
    """

    def __init__(self) -> None:
        self.on = False
        self.modules: dict[str, None] = {}
        self.callers: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and (module := _module_of(frame)):
            self.modules.setdefault(module)
            caller = frame.f_back
            while caller is not None and not _module_of(caller):
                caller = caller.f_back
            if caller is not None and (above := _module_of(caller)) != module:
                self.callers.add(above)


def _module_of(frame: FrameType) -> str:
    """Returns the path of a module of ours; else ""."""
    path = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    return path if path.startswith(PACKAGES) else ""


@pytest.fixture
def trace() -> Iterator[Trace]:
    """A trace of all threads that are started from now on."""
    trace = Trace()
    before = sys.getprofile()
    threading.setprofile(trace)
    yield trace
    threading.setprofile(before)


@pytest.mark.parametrize("name", BODIES)
def test_request_passes_through_at_most_16_modules_of_the_service(
    name: str,
    trace: Trace,
    write: Callable[..., Any],
    serve: Callable[..., RunningService],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A request passes through a module that calls on into another of ours; those that only return
    are listed too.
    """
    write()
    # On a busy machine, requests would take long enough for the compute threads.
    service = serve(inline_max_us=1_000_000)
    called = list[list[str]]()
    callers = list[set[str]]()
    with httpx.Client(base_url=service.http, timeout=30) as client:
        for _ in range(25):  # what runs now and then beside a request does not run in all of them
            trace.modules = {}
            trace.callers = set()
            trace.on = True
            assert client.post(f"/v1/models/movies:{name}", json=BODIES[name]).status_code == 200
            trace.on = False
            called.append(list(trace.modules))
            callers.append(trace.callers)
    every = [module for module in called[-1] if all(module in modules for modules in called)]
    ours = [module for module in every if module.startswith("service/")]
    passed = [module for module in ours if all(module in modules for modules in callers)]
    report = "\n  ".join(
        (
            f"{name} passes through {len(passed)} modules of service: {', '.join(passed)}",
            f"and calls: {', '.join(module for module in ours if module not in passed)}",
            f"below the service: {', '.join(module for module in every if module not in ours)}",
        )
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{report}\n")
    assert {"service/http/calls.py", "service/dataplane.py", "service/engine/engine.py"} <= set(
        passed
    )
    assert len(passed) <= MAX_MODULES, report
