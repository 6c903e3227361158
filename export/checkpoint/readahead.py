"""Reads of files in a store: ranged, several at a time, ahead of a reader that goes on where it stopped.

A read that continues none gets exactly its bytes, so that single rows cost no more than they hold. One that continues
another tells of a stream: what follows is fetched meanwhile, twice as far each time, within READ_AHEAD_BYTES in all.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor

from export.errors import CheckpointError, CheckpointOffline
from runtime.object_store import RemotePath

CONNECTIONS = 8
PART_BYTES = 4 << 20
"""The most that one request asks for."""
READ_AHEAD_BYTES = 64 << 20
"""What is fetched before it is asked for, all streams of one reader together."""
STREAMS_MAX = 4096


class ReadAhead:
    """A reader of files in a store, for one thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="rowcast-fetch")
        self._streams: OrderedDict[tuple[str, int], _Stream] = OrderedDict()
        self._ahead = 0

    def read_into(self, file: str, offset: int, view: memoryview, end: int | None) -> None:
        """Fills a view from byte `offset` of a file.

        Args:
          file: URL of the data file.
          offset: its first byte to read.
          view: bytes; filled completely.
          end: byte beyond which nothing is fetched ahead; None: nothing at all.
        Raises:
          CheckpointError: the file is gone, ends early or cannot be read.
        """
        stream = self._streams.pop((file, offset), None)
        if stream is None:
            stream = _Stream(self._pool, file, offset)
        else:
            self._ahead -= stream.ahead
            if end is not None:
                limit = READ_AHEAD_BYTES // (len(self._streams) + 1)
                stream.fetch_ahead(len(view), min(limit, end - offset - len(view)))
        stream.fill(view)
        self._streams[file, stream.at] = stream
        self._ahead += stream.ahead
        while len(self._streams) > STREAMS_MAX or (self._ahead > READ_AHEAD_BYTES and len(self._streams) > 1):
            _, oldest = self._streams.popitem(last=False)
            self._ahead -= oldest.ahead
            oldest.drop()

    def close(self) -> None:
        """Lets go of what is still being fetched."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Stream:
    """One place of one file that a reader goes on from."""

    def __init__(self, pool: ThreadPoolExecutor, file: str, at: int) -> None:
        self.at = at
        self._pool, self._file, self._asked_to = pool, file, at
        self._window = PART_BYTES // 8
        self._parts: deque[tuple[int, Future[bytes]]] = deque()
        self._left = memoryview(b"")

    @property
    def ahead(self) -> int:
        """Bytes asked for and not yet handed out."""
        return self._asked_to - self.at

    def fetch_ahead(self, wanted: int, most: int) -> None:
        """Has what follows the next `wanted` bytes fetched, at most `most` of it, unless enough of it is on its way."""
        if self.ahead - wanted < self._window // 2:
            self._window = max(0, min(2 * self._window, most))
            self._ask(self.at + wanted + self._window)

    def fill(self, view: memoryview) -> None:
        self._ask(self.at + len(view))
        done = 0
        while done < len(view):
            if not self._left:
                self._left = self._next()
            count = min(len(self._left), len(view) - done)
            view[done : done + count] = self._left[:count]
            self._left = self._left[count:]
            done += count
        self.at += done

    def drop(self) -> None:
        for _, part in self._parts:
            part.cancel()

    def _ask(self, end: int) -> None:
        while self._asked_to < end:
            count = min(PART_BYTES, end - self._asked_to)
            self._parts.append((count, self._pool.submit(RemotePath(self._file).read, self._asked_to, count)))
            self._asked_to += count

    def _next(self) -> memoryview:
        count, part = self._parts.popleft()
        try:
            data = part.result()
        except FileNotFoundError as problem:
            raise CheckpointError(
                f"data file {self._file} is gone; did its training job delete the checkpoint? Keep more of them "
                "(max_to_keep)"
            ) from problem
        except OSError as problem:
            raise CheckpointOffline(
                f"data file {self._file} cannot be read: {problem.strerror or problem}; once it can, run again: it "
                "resumes"
            ) from problem
        if len(data) != count:
            raise CheckpointError(
                f"data file {self._file} ends before byte {self._asked_to}: it was cut short; copy it anew"
            )
        return memoryview(data)
