"""How workers ask each other: one word over a Unix socket, the answer until its end. The directory is private."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from service import logs

_log = logs.logger(__name__)

ANSWER_S_MAX = 1.0
"""An answer takes milliseconds; a worker that is stopped, starting or gone gives none."""
_WORD_BYTES_MAX = 64


class Answers:
    """Answers the other workers."""

    def __init__(self, path: Path, words: Mapping[str, Callable[[], Awaitable[bytes]]]) -> None:
        """Answers each word of `words` with what its function returns, on a socket at `path`."""
        self._path, self._words = path, words
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Begins to answer, in place of whoever did so before.

        Raises:
          OSError: the socket cannot be made there.
        """
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, self._path)

    async def stop(self) -> None:
        """Answers no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            word = await asyncio.wait_for(reader.read(_WORD_BYTES_MAX), ANSWER_S_MAX)
            writer.write(await self._words[word.decode()]())
            await asyncio.wait_for(writer.drain(), ANSWER_S_MAX)
        except (TimeoutError, ConnectionError):  # who asked has gone, or waits no longer
            pass
        except Exception:  # noqa: BLE001 - the other workers' questions end nothing here
            _log.exception("exchange_failed")
        finally:
            await _closed(writer)


async def ask(path: Path, word: str) -> bytes | None:
    """Asks one worker; None: it does not answer in time."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S_MAX):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(word.encode())
                return await reader.read() or None
            finally:
                await _closed(writer)
    return None


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
