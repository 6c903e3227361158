"""Which thread decodes a body."""

from __future__ import annotations

import asyncio
import threading

import pytest

from service.errors import InvalidArgument
from service.wire.decoding import AT_ONCE_BYTES_MAX, decoded


@pytest.mark.parametrize(("size_bytes", "here"), [(0, True), (AT_ONCE_BYTES_MAX, True), (AT_ONCE_BYTES_MAX + 1, False)])
def test_body_is_decoded_on_the_loop_unless_it_is_large(size_bytes: int, here: bool) -> None:
    thread = asyncio.run(decoded(size_bytes, threading.get_ident))
    assert (thread == threading.get_ident()) is here


@pytest.mark.parametrize("size_bytes", [1, AT_ONCE_BYTES_MAX + 1])
def test_body_that_is_refused_is_told_as_it_was(size_bytes: int) -> None:
    def refuse(body: bytes) -> None:
        raise InvalidArgument(f"{body!r} is no request")

    with pytest.raises(InvalidArgument, match="b'x' is no request"):
        asyncio.run(decoded(size_bytes, refuse, b"x"))


def test_loop_goes_on_while_a_large_body_is_decoded() -> None:
    gone_on = threading.Event()

    async def ask() -> bool:
        asyncio.get_running_loop().call_later(0.01, gone_on.set)
        return await decoded(AT_ONCE_BYTES_MAX + 1, gone_on.wait, 10)

    assert asyncio.run(ask())
