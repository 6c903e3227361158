"""Retrievals asked at the same time are answered as one, and as each alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bundle.features import Column
from bundle.manifest import EmbeddedFeature, Unknown
from service.engine import joining
from service.engine.requests import Call, Embedding, Exclusion, Neighbors, Retrieval, Retrieved, Target
from service.errors import DeadlineExceeded, Internal, InvalidArgument
from tests.service.engine.test_short_calls import LIMIT_US, learnt, queued, seen
from tests.service.running import CALL, FailingTower, Running, column
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


def asked(user: int, *history: int, **more: Any) -> Retrieval:
    """One query with a bag, a hashed city and a dense value."""
    features = {
        "user": column(user),
        "history": column(*history, offsets=[0, len(history)]),
        "city": column(f"city {user}"),
        "hour": column(user / 8),
    }
    return Retrieval(Target(), 5, features, **more)


CROWD = [asked(1, 1000, 1007), asked(3), asked(1, 1014, 5, 1021), asked(10_000, 1000), asked(2, *[1028] * 9)]
"""Bags of several sizes, an empty one, unknown ids among them."""


def bits(answer: Retrieved) -> tuple[Any, ...]:
    found = answer.neighbors
    return (found.ids.tobytes(), found.scores.tobytes(), found.offsets.tolist(), found.attributes, answer.searched)


@pytest.mark.parametrize("index", ["brute_force", "tree_ah"])
def test_each_of_joined_calls_is_answered_with_the_bits_it_has_alone(index: str, write: Write, run: Run) -> None:
    tree = {"num_leaves": 8, "leaves_to_search": 2, "dimensions_per_block": 2, "reorder": 20}
    write(size=400, index_kind=index, parameters=tree if index == "tree_ah" else None)
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)
    calls = [replace(request, attributes=("title",)) for request in CROWD]

    async def both() -> tuple[list[Retrieved], list[Retrieved]]:
        for request in calls:
            await learnt(service, request)
        alone = [await service.engine.retrieve(request, CALL) for request in calls]
        tower.sizes.clear()
        return alone, await asyncio.gather(*(service.engine.retrieve(request, CALL) for request in calls))

    alone, together = asyncio.run(both())
    assert tower.sizes == [len(calls)]
    assert [bits(answer) for answer in together] == [bits(answer) for answer in alone]
    assert service.engine.in_flight == 0
    for phase in ("queue", "compute", "search", "lookup"):
        assert service.value("rowcast_phase_seconds_count", call="retrieve", phase=phase) == 3 * len(calls), phase
    assert service.value("rowcast_examples_total", call="retrieve") == 3 * len(calls)


def test_so_many_calls_are_joined_and_the_others_take_a_turn_of_their_own(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)

    def computed(of: str) -> float:
        return service.value(f"rowcast_batch_calls_{of}", call="retrieve")

    async def crowd() -> tuple[float, float]:
        await learnt(service, CROWD[0])
        before = computed("count"), computed("sum")
        await asyncio.gather(*(service.engine.retrieve(CROWD[0], CALL) for _ in range(2 * joining.JOINED_MAX + 1)))
        return before

    count, calls = asyncio.run(crowd())
    assert computed("count") - count == 3
    assert computed("sum") - calls == 2 * joining.JOINED_MAX + 1


def test_one_that_cannot_be_answered_fails_alone(write: Write, run: Run) -> None:
    refusing = EmbeddedFeature(kind="single", table="users", role="context", unknown=Unknown(rule="refuse"))
    write(features={"user": refusing})
    service = run(inline_us_max=LIMIT_US)

    async def crowd() -> None:
        good = await learnt(service, CROWD[0])
        calls = [service.engine.retrieve(each, CALL) for each in (CROWD[0], asked(-5, 1000, 1007), CROWD[0])]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[1], InvalidArgument)
        assert "-5" in str(answers[1])
        for answer in (answers[0], answers[2]):
            assert isinstance(answer, Retrieved)
            assert bits(answer) == bits(good)

    asyncio.run(crowd())
    assert service.engine.in_flight == 0


def test_failing_tower_fails_each(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)

    async def crowd() -> None:
        await learnt(service, CROWD[0])
        service.with_network("query", FailingTower(tower))
        calls = (service.engine.retrieve(CROWD[0], CALL) for _ in range(3))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Internal] * 3

    asyncio.run(crowd())
    assert service.engine.in_flight == 0


def test_one_that_is_cancelled_or_late_leaves_the_others_answered(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)
    tower = seen(service)

    async def crowd() -> None:
        await service.engine.retrieve(Retrieval(Target(), features={"user": column(1)}), CALL)
        tower.sizes.clear()
        deadline = time.monotonic() + 0.05
        calls = [asyncio.create_task(_ask(service, call)) for call in (CALL, Call("late", deadline), CALL)]
        gone = await queued(service)
        gone.cancel()
        while time.monotonic() < deadline:
            pass
        answers = await asyncio.gather(*calls, gone, return_exceptions=True)
        kinds = [type(answer) for answer in answers]
        assert kinds == [Retrieved, DeadlineExceeded, Retrieved, asyncio.CancelledError]

    asyncio.run(crowd())
    assert sum(tower.sizes) == 2
    assert service.engine.in_flight == 0


async def _ask(service: Running, call: Call) -> Retrieved:
    return await service.engine.retrieve(Retrieval(Target(), features={"user": column(1)}), call)


def test_calls_of_two_versions_are_answered_each_by_its_own(write: Write, run: Run) -> None:
    write()
    service = run(inline_us_max=LIMIT_US)

    async def swapped() -> None:
        await _ask(service, CALL)
        before = [asyncio.create_task(_ask(service, CALL)) for _ in range(2)]
        await asyncio.sleep(0)
        assert service.engine.in_flight == 2
        write(version=2)
        service.scan()
        assert [(await task).version for task in before] == [1, 1]
        assert (await _ask(service, CALL)).version == 2

    asyncio.run(swapped())


@pytest.mark.parametrize(
    "request_",
    [
        Retrieval(Target(), vectors=np.ones(8, np.float32)),
        Retrieval(Target(), ids=np.array([1000])),
        Retrieval(Target(), features={"user": column(1)}, exact=True),
        Retrieval(Target(), features={"user": column(1)}, exclude=Exclusion(np.array([1000]))),
        Retrieval(Target(), features={"user": column(1)}, filter={}),
        Retrieval(Target(), features={"user": column(1, 2)}),
        Retrieval(Target(), features={"user": column(1, 2, offsets=[0, 1, 2])}),
        Retrieval(Target(), features={"history": column(1, 2)}),
        Retrieval(Target(), features={"history": column(1, 2, offsets=[0, 1])}),
        Retrieval(Target(), features={"liked": column(1, 2, offsets=[0, 2], weights=[1, 2])}),
        Retrieval(Target(), features={"mood": Column(np.ones((1, 1), np.float32))}),
        Embedding(Target(), "query", {"user": column(1)}),
    ],
)
def test_what_is_no_plain_query_of_one_example_is_not_joined(request_: Any) -> None:
    assert joining.likeness(request_) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(CROWD[0], k=6),
        replace(CROWD[0], index="movies"),
        replace(CROWD[0], attributes=("title",)),
        replace(CROWD[0], features={"user": column(1)}),
        replace(CROWD[0], features={**(CROWD[0].features or {}), "history": column("1000", offsets=[0, 1])}),
        replace(CROWD[0], features={**(CROWD[0].features or {}), "history": column(1000)}),
    ],
)
def test_queries_that_differ_in_more_than_their_values_are_not_alike(other: Retrieval) -> None:
    assert joining.likeness(other) is not None
    assert joining.likeness(other) != joining.likeness(CROWD[0])
    assert joining.likeness(CROWD[1]) == joining.likeness(CROWD[0])


def test_split_refuses_an_answer_to_another_number_of_queries() -> None:
    found = Neighbors(np.arange(4), np.ones(4, np.float32), np.array([0, 2, 4]))
    with pytest.raises(ValueError, match="2 queries were answered, 3 were joined"):
        joining.split(Retrieved("movies", 1, found, 40), 3)
