"""Stretches of rows here and there in a variable: in a store, near ones by one request and several at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from export.checkpoint.datafiles import DataFiles
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import volume
from runtime.object_store import RemotePath

GAP_BYTES = 256 << 10
"""Bytes between two stretches that are read with them: another request would take longer."""
SPAN_BYTES_MAX = 8 << 20
REQUESTS = 16

Values = np.ndarray[Any, Any]


def read_stretches(checkpoint: Checkpoint, key: str, stretches: Sequence[tuple[int, int]]) -> Iterator[Values]:
    """Reads stretches of rows of one variable.

    Args:
      checkpoint: the open checkpoint.
      key: a variable of rank 1 or more.
      stretches: first row and how many, ascending where it lies in a store.
    Yields:
      [count, *shape[1:]] of each stretch in turn, as `Checkpoint.read` returns them.
    Raises:
      CheckpointError: as of `Checkpoint.read`.
    """
    if not isinstance(checkpoint.prefix, RemotePath):
        with DataFiles() as files:
            for first, count in stretches:
                yield checkpoint.read(key, first, count, files)
        return
    entry = checkpoint.entries[key]
    row_bytes = max(1, volume(entry.shape[1:]) * entry.itemsize)
    running: deque[tuple[int, list[tuple[int, int]], Future[Values]]] = deque()
    with ThreadPoolExecutor(REQUESTS, thread_name_prefix="rowcast-rows") as pool:
        try:
            for near in _spans(stretches, GAP_BYTES // row_bytes, max(1, SPAN_BYTES_MAX // row_bytes)):
                start, end = near[0][0], sum(near[-1])
                running.append((start, near, pool.submit(checkpoint.read, key, start, end - start)))
                if len(running) >= 2 * REQUESTS:
                    yield from _cut(*running.popleft())
            while running:
                yield from _cut(*running.popleft())
        finally:
            for _, _, future in running:
                future.cancel()


def _spans(stretches: Sequence[tuple[int, int]], gap: int, longest: int) -> Iterator[list[tuple[int, int]]]:
    near: list[tuple[int, int]] = []
    for first, count in stretches:
        if near and not (sum(near[-1]) <= first <= sum(near[-1]) + gap and first + count - near[0][0] <= longest):
            yield near
            near = []
        near.append((first, count))
    if near:
        yield near


def _cut(start: int, near: list[tuple[int, int]], future: Future[Values]) -> Iterator[Values]:
    values = future.result()
    for first, count in near:
        yield values[first - start : first - start + count]
