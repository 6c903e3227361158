"""Where a body is decoded: at once on the event loop, or in a thread where it would hold every other call up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

AT_ONCE_BYTES_MAX = 64 << 10
"""Decoding this much takes about a millisecond at most; less than that is not worth a thread."""

Asked = ParamSpec("Asked")
Request = TypeVar("Request")


async def decoded(
    size_bytes: int, read: Callable[Asked, Request], *args: Asked.args, **kwargs: Asked.kwargs
) -> Request:
    """Returns what `read` makes of a body of `size_bytes`; raises what it raises."""
    if size_bytes <= AT_ONCE_BYTES_MAX:
        return read(*args, **kwargs)
    return await asyncio.to_thread(read, *args, **kwargs)
