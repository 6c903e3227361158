"""Both doors in front of a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.service.doors import RunningDoors, ScriptedEngine, desk_of, settings_of


@pytest.fixture(scope="session")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="session")
def doors(engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDoors]:
    settings = settings_of(tmp_path_factory.mktemp("root"), body_bytes_max=4096)
    with RunningDoors(desk_of(engine, settings)) as running:
        yield running


@pytest.fixture
def http(doors: RunningDoors, engine: ScriptedEngine) -> Iterator[httpx.Client]:
    engine.problem, engine.held = None, None
    engine.asked.clear()
    engine.begun.clear()
    engine.given_up.clear()
    with httpx.Client(base_url=doors.http, timeout=10) as client:
        yield client
