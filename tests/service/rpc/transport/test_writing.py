from __future__ import annotations

import asyncio
from typing import cast

import pytest

from service.rpc.transport.writing import Writer
from tests.service.rpc.transport.peers import run


class Taken:
    """What a writer wrote, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.pieces.append(data)

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
def taken() -> Taken:
    return Taken()


def writer_to(taken: Taken) -> Writer:
    return Writer(cast(asyncio.Transport, taken))


def test_what_is_held_goes_out_as_one_and_in_order(taken: Taken) -> None:
    async def test() -> None:
        writer = writer_to(taken)
        writer.write(b"a")
        writer.hold()
        writer.write(b"b")
        writer.hold()
        writer.write(b"c")
        assert taken.pieces == [b"a"]
        await asyncio.sleep(0)
        assert taken.pieces == [b"a", b"bc"]
        writer.write(b"d")
        assert taken.pieces == [b"a", b"bc", b"d"]

    run(test)


def test_what_was_flushed_is_not_written_again(taken: Taken) -> None:
    async def test() -> None:
        writer = writer_to(taken)
        writer.hold()
        writer.write(b"a")
        writer.flush()
        await asyncio.sleep(0)
        assert taken.pieces == [b"a"]

    run(test)


def test_what_is_held_for_a_peer_that_is_gone_is_dropped(taken: Taken) -> None:
    async def test() -> None:
        writer = writer_to(taken)
        writer.hold()
        writer.write(b"a")
        taken.closing = True
        await asyncio.sleep(0)
        assert taken.pieces == []

    run(test)
