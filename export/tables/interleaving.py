"""Rows of a stored variable in the order of the table, in pieces that stay in the cache from the
read to the write.

A checkpoint of thousands of cores keeps the rows of each core, a lane, apart. To hold a long read
of every lane takes much memory and more of its bandwidth than the copy itself, so that some lanes
are read at a time and become stripes:

    lanes     0 1 2 3 4 5            read        written
    rows 0    a a a b b b            lanes 0-2   stripes a, at rows 0 and 6
         6    a a a b b b            lanes 3-5   stripes b, at rows 3 and 9
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bundle.arithmetic import ceil_div
from export.checkpoint.stored_rows import Bytes, StoredRows
from export.tables.tasks import STRIPE_BYTES, TableTask


def stripes_of(stored: StoredRows, task: TableTask) -> Iterator[tuple[int, Bytes]]:
    """Yields the rows of a task, without padding columns: each once, in the order in which they are
    read.

    Args:
      stored: the variable.
      task: what to read; a block that is read and one that is dealt are held.
    Yields:
      Stripes: first row, and [n, bytes of a row] as stored; good until the next one is asked for.
    Raises:
      CheckpointError: as of `StoredRows.read_each`.
    """
    lanes = task.layout.lanes
    width = task.stored_row_bytes
    exact = task.dim * task.itemsize
    abreast = min(lanes, task.rows, max(1, min(STRIPE_BYTES, task.block_bytes) // width))
    deep = min(ceil_div(task.rows, lanes), max(1, task.block_bytes // (abreast * width)))
    read = np.empty((abreast * deep, width), np.uint8)
    as_read = abreast == 1 and width == exact
    dealt = read if as_read else np.empty((abreast * deep, exact), np.uint8)
    # Rows move as one value each: short ones 8 times as fast as byte by byte.
    row_value = np.dtype((np.void, exact))
    bases = task.layout.bases().tolist()
    end = task.first_row + task.rows
    for first, places, rounds in _groups(task.first_row, end, lanes, abreast, deep):
        here = read[: rounds * places]
        stored.read_each(
            ((bases[row % lanes] + row // lanes, rounds) for row in range(first, first + places)),
            here,
        )
        stripes = dealt[: rounds * places].reshape(rounds, places, exact)
        if not as_read:
            read_rows = np.ndarray(
                (places, rounds), row_value, here, strides=(rounds * width, width)
            )
            stripes.view(row_value)[..., 0] = read_rows.T
        if places == lanes:
            yield first, stripes.reshape(-1, exact)
        else:
            yield from ((first + number * lanes, stripe) for number, stripe in enumerate(stripes))


def _groups(
    first: int, end: int, lanes: int, abreast: int, deep: int
) -> Iterator[tuple[int, int, int]]:
    """Yields rows [first, end) as first row, lanes side by side and rows of each of them."""
    for start in range(first, end, lanes * deep):
        for row in range(start, min(start + lanes, end), abreast):
            places = min(abreast, start + lanes - row, end - row)
            rounds = min(deep, (end - row - places) // lanes + 1)
            yield row, places, rounds
            left = end - row - rounds * lanes  # of a last round that not all of these lanes reach
            if rounds < deep and left > 0:
                yield row + rounds * lanes, left, 1
