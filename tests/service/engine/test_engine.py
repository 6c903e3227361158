"""Admission, deadlines, leases and errors: what holds whatever the call is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.engine.requests import Call, Embedding, Retrieval, Retrieved, Target
from service.errors import (
    INTERNAL_SENTENCE,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    NotReady,
    Overloaded,
)
from tests.service.running import CALL, FailingTower, Running, WaitingTower, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]
BY_VECTOR = Retrieval(Target(), vectors=np.ones(8, np.float32))
BY_FEATURES = Retrieval(Target(), features={"user": column(1)})


def waiting(service: Running) -> WaitingTower:
    current = service.switch.current("movies")
    assert current is not None
    tower = WaitingTower(current.towers["query"].parts[0].network)
    service.with_network("query", tower)
    return tower


async def begun(service: Running, tower: WaitingTower, call: Call = CALL) -> asyncio.Task[Retrieved]:
    task = asyncio.create_task(service.engine.retrieve(BY_FEATURES, call))
    assert await asyncio.to_thread(tower.entered.wait, 20)
    return task


def test_call_beyond_the_limit_is_refused_at_once_with_retry_after(write: Write, run: Run) -> None:
    write()
    service = run(in_flight_max=1, retry_after_s=2.5)
    tower = waiting(service)

    async def crowd() -> None:
        first = await begun(service, tower)
        with pytest.raises(Overloaded, match="1 calls are in flight") as refused:
            await service.engine.retrieve(BY_VECTOR, CALL)
        assert refused.value.retry_after_s == 2.5
        assert service.value("rowcast_in_flight") == 1
        tower.let_go.set()
        assert (await first).version == 1
        assert (await service.engine.retrieve(BY_VECTOR, CALL)).version == 1

    asyncio.run(crowd())
    assert service.engine.in_flight == 0


def test_call_whose_deadline_is_over_computes_nothing(write: Write, run: Run) -> None:
    write()
    service = run()
    with pytest.raises(DeadlineExceeded):
        service.ask(service.engine.retrieve(BY_VECTOR, Call("late", time.monotonic() - 1)))
    assert service.value("rowcast_phase_seconds_count", call="retrieve", phase="search") == 0
    assert service.engine.in_flight == 0


def test_deadline_during_a_step_answers_in_time_and_begins_no_further_step(write: Write, run: Run) -> None:
    write()
    service = run()
    tower = waiting(service)

    async def late() -> None:
        with pytest.raises(DeadlineExceeded):
            await service.engine.retrieve(BY_FEATURES, Call("late", time.monotonic() + 0.2))
        assert service.engine.in_flight == 1, "the permit is held until the job has really ended"
        tower.let_go.set()
        assert await service.engine.drained(20)

    asyncio.run(late())
    assert service.value("rowcast_phase_seconds_count", call="retrieve", phase="compute") == 1
    assert service.value("rowcast_phase_seconds_count", call="retrieve", phase="search") == 0


def test_caller_that_asks_for_more_time_than_the_limit_gets_the_limit(write: Write, run: Run) -> None:
    write()
    service = run(timeout_s=0.2)
    tower = waiting(service)
    with pytest.raises(DeadlineExceeded):
        service.ask(service.engine.retrieve(BY_FEATURES, Call("patient", time.monotonic() + 3600)))
    tower.let_go.set()


def test_cancelled_call_keeps_permit_and_lease_until_its_job_ends(write: Write, run: Run) -> None:
    write()
    write(version=2)
    service = run()
    tower = waiting(service)

    async def gone() -> None:
        task = await begun(service, tower)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert service.engine.in_flight == 1
        tower.let_go.set()
        assert await service.engine.drained(20)

    asyncio.run(gone())
    assert service.value("rowcast_phase_seconds_count", call="retrieve", phase="search") == 0


def test_draining_engine_refuses_new_calls_and_waits_for_those_in_flight(write: Write, run: Run) -> None:
    write()
    service = run()
    tower = waiting(service)

    async def going_down() -> None:
        decoding = service.engine.enter()
        first = await begun(service, tower)
        assert service.engine.ready
        service.engine.drain()
        assert service.engine.problem == "the service is going down"
        with pytest.raises(NotReady, match="going down"):
            service.engine.enter()
        tower.let_go.set()
        assert (await service.engine.retrieve(BY_VECTOR, CALL)).version == 1  # of the one that was let in
        assert (await first).version == 1
        assert not await service.engine.drained(0)
        decoding.release()
        assert await service.engine.drained(20)

    asyncio.run(going_down())


def test_caller_beyond_the_limit_is_refused_before_its_body_is_decoded(write: Write, run: Run) -> None:
    write()
    service = run(in_flight_max=2, retry_after_s=3)
    held = [service.engine.enter() for _ in range(2)]
    with pytest.raises(Overloaded) as refused:
        service.engine.enter()
    assert refused.value.retry_after_s == 3
    held[0].release()
    held[0].release()
    with service.engine.enter(), pytest.raises(Overloaded):
        service.engine.enter()
    held[1].release()


def test_unexpected_failure_is_internal_and_says_nothing_of_itself(write: Write, run: Run) -> None:
    write()
    service = run()
    current = service.switch.current("movies")
    assert current is not None
    service.with_network("query", FailingTower(current.towers["query"].parts[0].network))
    with pytest.raises(Internal) as failed:
        service.ask(service.engine.retrieve(BY_FEATURES, CALL))
    assert str(failed.value) == INTERNAL_SENTENCE
    assert "secret" in str(failed.value.__cause__)
    assert service.engine.in_flight == 0


def test_nan_from_a_tower_is_a_bug_and_never_an_answer(write: Write, run: Run) -> None:
    write()
    service = run()
    service.with_network("query", _NanTower(service.switch.current("movies").towers["query"].parts[0].network))  # type: ignore[union-attr]
    with pytest.raises(Internal):
        service.ask(service.engine.embed(Embedding(Target(), "query", {"user": column(1)}), CALL))


class _NanTower(WaitingTower):
    def run(self, inputs: Any) -> Any:
        return {name: value * np.nan for name, value in self._network.run(inputs).items()}


def test_call_records_each_of_its_phases_once_with_the_time_that_its_caller_is_told(write: Write, run: Run) -> None:
    write()
    service = run()
    call = Call("phases")
    service.ask(service.engine.retrieve(BY_FEATURES, call))  # looks up features before the search, candidates after it
    for phase in ("admit", "queue", "lookup", "compute", "search"):
        assert service.value("rowcast_phase_seconds_count", call="retrieve", phase=phase) == 1, phase
        told = service.value("rowcast_phase_seconds_sum", call="retrieve", phase=phase)
        assert told == pytest.approx(call.phases[phase]), phase
    assert service.value("rowcast_examples_total", call="retrieve") == 1


def test_ids_that_were_looked_up_are_counted_beside_those_unknown(write: Write, run: Run) -> None:
    write()
    service = run()
    features = {"user": column(1, 10**9), "history": column(1000, 5, 1007, offsets=[0, 3, 3])}
    service.ask(service.engine.retrieve(Retrieval(Target(), features=features), CALL))
    seen = {name: service.value("rowcast_ids_total", model="movies", feature=name) for name in ("user", "history")}
    unknown = {name: service.value("rowcast_unknown_ids_total", model="movies", feature=name) for name in seen}
    assert (seen, unknown) == ({"user": 2, "history": 3}, {"user": 1, "history": 1})


def ask_of(service: Running, model: str, version: int | None = None) -> Retrieved:
    return service.ask(service.engine.retrieve(Retrieval(Target(model, version), vectors=np.ones(8, np.float32)), CALL))


def test_unnamed_model_is_the_only_one(write: Write, run: Run) -> None:
    write(model="films", version=3)
    assert ask_of(run(), "").model == "films"


def test_unnamed_model_among_several_is_refused_with_their_names(write: Write, run: Run) -> None:
    write(model="films")
    write(model="books")
    with pytest.raises(InvalidArgument, match="'books', 'films'"):
        ask_of(run(), "")


def test_unknown_model_or_version_is_not_found(write: Write, run: Run) -> None:
    write(version=2)
    service = run()
    assert ask_of(service, "movies", 2).version == 2
    with pytest.raises(NotFound, match="no model 'films'; there are 'movies'"):
        ask_of(service, "films")
    with pytest.raises(NotFound, match="version 1 of model 'movies' is not served; version 2 is"):
        ask_of(service, "movies", 1)


def test_empty_root_is_not_ready(run: Run) -> None:
    service = run()
    assert not service.engine.ready
    assert service.engine.problem == "no bundle has come into the root yet"
    assert service.engine.models() == ()
    with pytest.raises(NotReady):
        ask_of(service, "movies")
    with pytest.raises(NotReady):
        service.engine.model(Target())


def test_service_without_a_required_model_is_not_ready(write: Write, run: Run) -> None:
    write(model="films")
    service = run(require=("films", "books"))
    assert "['books']" in service.engine.problem
    write(model="books")
    service.scan()
    assert service.engine.ready


def test_precision_that_a_tower_lacks_leaves_it_at_its_own(write: Write, run: Run) -> None:
    write()
    assert run(precision="int8").engine.ready
