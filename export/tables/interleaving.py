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
      stored: The variable.
      task: The task whose rows are read. Two blocks are in memory: one in the order of the
        variable, one in the order of the table.
    Yields:
      Stripes: the first row, and [n, bytes of a row] as stored, valid until the next one is
      requested.
    Raises:
      CheckpointError: See `StoredRows.read_each`.
    """
    lanes = task.layout.lanes
    width = task.stored_row_bytes
    row_bytes = task.dim * task.itemsize
    lanes_max = min(lanes, task.rows, max(1, min(STRIPE_BYTES, task.block_bytes) // width))
    rounds_max = min(ceil_div(task.rows, lanes), max(1, task.block_bytes // (lanes_max * width)))
    read_block = np.empty((lanes_max * rounds_max, width), np.uint8)
    keeps_order = lanes_max == 1 and width == row_bytes
    table_block = read_block
    if not keeps_order:
        table_block = np.empty((lanes_max * rounds_max, row_bytes), np.uint8)
    # Each row moves as one value: short rows move 8 times as fast as byte by byte.
    row_dtype = np.dtype((np.void, row_bytes))
    bases = task.layout.bases().tolist()
    end = task.first_row + task.rows
    for first, lane_count, rounds in _groups(task.first_row, end, lanes, lanes_max, rounds_max):
        block = read_block[: rounds * lane_count]
        ranges = [
            (bases[row % lanes] + row // lanes, rounds) for row in range(first, first + lane_count)
        ]
        stored.read_each(ranges, block)
        stripes = table_block[: rounds * lane_count].reshape(rounds, lane_count, row_bytes)
        if not keeps_order:
            read_rows = np.ndarray(
                (lane_count, rounds), row_dtype, block, strides=(rounds * width, width)
            )
            stripes.view(row_dtype)[..., 0] = read_rows.T
        # With all lanes side by side, one round follows the other in the table without a gap.
        if lane_count == lanes:
            yield first, stripes.reshape(-1, row_bytes)
        else:
            yield from ((first + number * lanes, stripe) for number, stripe in enumerate(stripes))


def _groups(
    first: int, end: int, lanes: int, lanes_max: int, rounds_max: int
) -> Iterator[tuple[int, int, int]]:
    """Yields groups of rows [first, end): the first row, the number of lanes side by side, and the
    number of rows of each lane.
    """
    for start in range(first, end, lanes * rounds_max):
        for row in range(start, min(start + lanes, end), lanes_max):
            lane_count = min(lanes_max, start + lanes - row, end - row)
            rounds = min(rounds_max, (end - row - lane_count) // lanes + 1)
            yield row, lane_count, rounds
            # The rows of a last round, which only some of these lanes reach.
            remaining_rows = end - row - rounds * lanes
            if rounds < rounds_max and remaining_rows > 0:
                yield row + rounds * lanes, remaining_rows, 1
