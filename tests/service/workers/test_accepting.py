"""Workers that take connections from one listener: each about as many."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from service.workers.accepting import sharing
from service.workers.board import Door, State
from service.workers.place import Place
from tests.service.workers.places import close, places


@pytest.fixture
def several(tmp_path: Path) -> Iterator[list[Place]]:
    made = places(tmp_path, 3)
    yield made
    close(made)


class Named(asyncio.Protocol):
    """Tells who took the connection."""

    def __init__(self, name: int, held: Counter[int]) -> None:
        self._name, self._held = name, held

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._held[self._name] += 1
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(str(self._name).encode())

    def connection_lost(self, _: Exception | None) -> None:
        self._held[self._name] -= 1


Connect = Callable[[], Awaitable[str]]


def run(several: list[Place], test: Callable[[Connect, Counter[int]], Awaitable[None]]) -> None:
    """Runs a test with every place taking connections; it gets what connects and returns the taker's name."""

    async def serve() -> None:
        held: Counter[int] = Counter()
        listener = several[0].listeners[Door.HTTP]
        own = [listener.dup() for _ in several]  # a loop knows each descriptor once; a process has its own
        taking = [
            await sharing(place, Door.HTTP)(
                each, functools.partial(Named, place.index, held), functools.partial(held.__getitem__, place.index)
            )
            for place, each in zip(several, own, strict=True)
        ]
        writers: list[asyncio.StreamWriter] = []

        async def connect() -> str:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writers.append(writer)
            return (await reader.read(1)).decode()

        try:
            await test(connect, held)
        finally:
            for each in taking:
                each.close()
                await each.wait_closed()
            for writer in writers:
                writer.close()
                await writer.wait_closed()
            for copy in own:
                copy.close()

    asyncio.run(serve())


def test_connections_are_dealt_evenly_among_ready_workers(several: list[Place]) -> None:
    for place in several:
        place.board.tell(place.index, State.READY)

    async def test(connect: Connect, held: Counter[int]) -> None:
        for _ in range(30):
            await connect()
        assert held == {0: 10, 1: 10, 2: 10}
        assert [several[0].board.connections(each, Door.HTTP) for each in range(3)] == [10, 10, 10]

    run(several, test)


@pytest.mark.parametrize(("count", "apart_max"), [(60, 6), (300, 25)])
def test_connections_that_come_at_once_are_dealt_evenly_too(count: int, apart_max: int, several: list[Place]) -> None:
    for place in several:
        place.board.tell(place.index, State.READY)

    async def test(connect: Connect, held: Counter[int]) -> None:
        await asyncio.gather(*(connect() for _ in range(count)))
        assert sum(held.values()) == count
        assert max(held.values()) - min(held.values()) <= apart_max

    run(several, test)


def test_connections_of_a_caller_that_starts_anew_are_dealt_evenly(several: list[Place]) -> None:
    for place in several:
        place.board.tell(place.index, State.READY)

    async def test(connect: Connect, held: Counter[int]) -> None:
        several[0].board.hold(1, Door.HTTP, 20)  # as they were a moment ago
        several[0].board.hold(2, Door.HTTP, 20)
        await asyncio.gather(*(connect() for _ in range(12)))
        assert held == {0: 4, 1: 4, 2: 4}

    run(several, test)


def test_worker_that_holds_many_takes_several_at_once(several: list[Place]) -> None:
    board, own = several[0].board, several[0]
    for place in several:
        board.tell(place.index, State.READY)
        board.hold(place.index, Door.HTTP, 40)
    took: Counter[int] = Counter()

    async def serve() -> None:
        loop, rounds, held = asyncio.get_running_loop(), 0, Counter({0: 40})

        def go_round() -> None:
            nonlocal rounds
            rounds += 1
            loop.call_soon(go_round)

        class Counted(Named):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                took[rounds] += 1

        listener = own.listeners[Door.HTTP].dup()
        callers = [socket.create_connection(listener.getsockname()) for _ in range(10)]
        go_round()
        make = functools.partial(Counted, 0, held)
        taking = await sharing(own, Door.HTTP)(listener, make, functools.partial(held.__getitem__, 0))
        while took.total() < len(callers):
            await asyncio.sleep(0)
        taking.close()
        for each in (listener, *callers):
            each.close()
        while held[0] > 40:
            await asyncio.sleep(0)

    asyncio.run(serve())
    assert max(took.values()) == 10


def test_worker_that_is_not_ready_leaves_connections_to_those_that_are(several: list[Place]) -> None:
    board = several[0].board
    board.tell(0, State.OPEN, "loading")
    board.tell(1, State.READY)
    board.tell(2, State.DRAINING)

    async def test(connect: Connect, held: Counter[int]) -> None:
        assert {await connect() for _ in range(5)} == {"1"}

    run(several, test)


def test_workers_none_of_which_is_ready_take_connections_all_the_same(several: list[Place]) -> None:
    async def test(connect: Connect, held: Counter[int]) -> None:
        assert len([await connect() for _ in range(6)]) == 6

    run(several, test)


def test_connection_left_to_a_worker_that_does_not_take_it_is_taken_after_all(several: list[Place]) -> None:
    board = several[0].board
    for place in several:
        board.tell(place.index, State.READY)

    async def alone() -> None:
        held: Counter[int] = Counter({0: 4})
        listener = several[0].listeners[Door.HTTP]
        taking = await sharing(several[0], Door.HTTP)(listener, lambda: Named(0, held), lambda: held[0])
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await asyncio.wait_for(reader.read(1), 10) == b"0"  # 1 and 2 hold none, and are stuck
        writer.close()
        await writer.wait_closed()
        taking.close()

    asyncio.run(alone())
