"""The workers of a service as one of them sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.engine.descriptions import ModelState
from service.generations.shelf import VersionState
from service.metrics import Metrics
from service.workers import crew as crews
from service.workers.board import State
from service.workers.crew import Crew
from service.workers.place import Place
from tests.service.workers.places import close, places

PATIENCE_S = 20.0


@pytest.fixture
def several(tmp_path: Path) -> Iterator[list[Place]]:
    made = places(tmp_path)
    yield made
    close(made)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            await asyncio.sleep(0.01)


def crew_of(place: Place, changed: Callable[[], None] = lambda: None, *states: str) -> Crew:
    versions = tuple(VersionState(len(states) - at, state) for at, state in enumerate(states))
    return Crew(place, Metrics(), lambda: (ModelState("m", versions),), lambda: 7 + place.index, changed)


def test_worker_hears_when_another_becomes_ready(several: list[Place]) -> None:
    async def run() -> None:
        heard: list[str] = []
        here = crew_of(several[0], lambda: heard.append(here.problem))
        there = crew_of(several[1])
        await here.start()
        there.tell(State.OPEN, "no bundle has come into the root yet")
        await until(lambda: heard == ["worker 1: no bundle has come into the root yet"])
        assert not here.serving
        there.tell(State.READY)
        await until(lambda: heard[1:] == [""])
        assert here.serving
        await here.stop()

    asyncio.run(run())


@pytest.mark.parametrize("state", [State.DOWN, State.STARTING, State.DRAINING])
def test_worker_without_open_doors_is_in_nobodys_way(several: list[Place], state: State) -> None:
    async def run() -> str:
        several[1].board.tell(1, state)
        return crew_of(several[0]).problem

    assert asyncio.run(run()) == ""


def test_models_of_a_worker_that_does_not_answer_are_left_out(several: list[Place]) -> None:
    async def run() -> tuple[ModelState, ...]:
        here, there = crew_of(several[0], lambda: None, "available"), crew_of(several[1], lambda: None, "loading")
        await here.start()
        await there.start()
        both = await here.models()
        await there.stop()
        alone = await here.models()
        await here.stop()
        return both + alone

    loading, available = asyncio.run(run())
    assert [(each.state, each.problem) for each in loading.versions] == [("loading", "worker 1: loading")]
    assert [each.state for each in available.versions] == ["available"]


def test_revision_is_the_least_of_those_who_answer(several: list[Place]) -> None:
    async def run() -> list[int]:
        here, there = crew_of(several[0]), crew_of(several[1])
        await there.start()
        told = [await there.revision()]
        await here.start()
        told.append(await there.revision())
        await here.stop()
        await there.stop()
        return told

    assert asyncio.run(run()) == [8, 7]


def test_service_is_alive_until_a_worker_stands_still_for_long(
    several: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crews, "BEAT_S", 0.01)
    monkeypatch.setattr(crews, "_STUCK_BEATS", 5)

    async def run() -> None:
        here, there = crew_of(several[0]), crew_of(several[1])
        several[1].board.tell(1, State.READY)
        await here.start()
        await there.start()
        await until(lambda: several[1].board.beats(1) > 20)
        assert here.live
        await there.stop()
        await until(lambda: not here.live)
        several[1].board.tell(1, State.DOWN)  # its parent knows
        await until(lambda: here.live)
        await here.stop()

    asyncio.run(run())
