"""The turns to decode large bodies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.decode_turns import DecodeTurns
from service.engine.context import RequestContext, check_decoding
from service.errors import Cancelled, DeadlineExceeded

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request(timeout_s: float = 60.0) -> RequestContext:
    return RequestContext("rank", "id", time.monotonic() + timeout_s)


@pytest.fixture
def turns() -> Iterator[DecodeTurns]:
    with ThreadPoolExecutor(2) as threads:
        yield DecodeTurns(threads)


async def decode(turns: DecodeTurns, context: RequestContext) -> str:
    await turns.take(context)
    try:
        return await turns.run(context, str.lower, "DECODED")
    finally:
        turns.leave(context)


@contextlib.asynccontextmanager
async def turn(turns: DecodeTurns) -> AsyncIterator[None]:
    context = request()
    await turns.take(context)
    yield
    turns.leave(context)


async def test_request_whose_deadline_passes_leaves_the_turn_to_others(turns: DecodeTurns) -> None:
    async with turn(turns):
        with pytest.raises(DeadlineExceeded):
            await decode(turns, request(timeout_s=0.01))
    assert await decode(turns, request()) == "decoded"


async def test_request_whose_client_hangs_up_leaves_the_turn_to_others(turns: DecodeTurns) -> None:
    gone = asyncio.Event()
    context = request()
    context.disconnected = gone.wait
    async with turn(turns):
        waiting = asyncio.ensure_future(decode(turns, context))
        await asyncio.sleep(0.01)
        gone.set()
        with pytest.raises(Cancelled):
            await waiting
    assert await decode(turns, request()) == "decoded"


async def test_turn_lasts_as_long_as_its_thread_which_ends_with_its_request(
    turns: DecodeTurns,
) -> None:
    context = request()
    steps = threading.Event()

    def endless() -> None:
        while True:
            steps.set()
            check_decoding()

    async def decode_endlessly() -> None:
        await turns.take(context)
        try:
            await turns.run(context, endless)
        finally:
            turns.leave(context)

    decoding = asyncio.ensure_future(decode_endlessly())
    await asyncio.to_thread(steps.wait)
    with pytest.raises(DeadlineExceeded):
        await decode(turns, request(timeout_s=0.01))
    decoding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await decoding
    assert await decode(turns, request()) == "decoded"
