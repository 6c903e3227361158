"""The turns to decode large bodies."""

from __future__ import annotations

import asyncio
import time

import pytest

from service.decode_turns import DecodeTurns
from service.engine.context import RequestContext
from service.errors import Cancelled, DeadlineExceeded

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request(timeout_s: float = 60.0) -> RequestContext:
    return RequestContext("rank", "id", time.monotonic() + timeout_s)


async def decode(turns: DecodeTurns, context: RequestContext) -> str:
    async with turns.turn(context):
        return "decoded"


async def test_turns_are_taken_one_after_the_other() -> None:
    turns = DecodeTurns()
    async with turns.turn(request()):
        waiting = asyncio.ensure_future(decode(turns, request()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
    assert await waiting == "decoded"


async def test_request_whose_deadline_passes_leaves_the_turn_to_others() -> None:
    turns = DecodeTurns()
    async with turns.turn(request()):
        with pytest.raises(DeadlineExceeded):
            await decode(turns, request(timeout_s=0.01))
    assert await decode(turns, request()) == "decoded"


async def test_request_whose_client_hangs_up_leaves_the_turn_to_others() -> None:
    turns = DecodeTurns()
    gone = asyncio.Event()
    context = request()
    context.disconnected = gone.wait
    async with turns.turn(request()):
        waiting = asyncio.ensure_future(decode(turns, context))
        await asyncio.sleep(0.01)
        gone.set()
        with pytest.raises(Cancelled):
            await waiting
    assert await decode(turns, request()) == "decoded"


async def test_request_that_is_cancelled_leaves_the_turn_to_others() -> None:
    turns = DecodeTurns()
    async with turns.turn(request()):
        waiting = asyncio.ensure_future(decode(turns, request()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await decode(turns, request()) == "decoded"
