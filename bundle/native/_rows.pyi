from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# As ChangedRanges in bundle/tables/row_deltas.py has them: the number of the first row, bits,
# ranks, slots, frames, and the memory of each delta.
Deltas = tuple[
    int,
    NDArray[np.uint64],
    NDArray[np.uint32],
    NDArray[np.uint32],
    NDArray[np.uint64],
    tuple[NDArray[np.uint8], ...],
]
# The memory of the segment, the offset of its first row in it, the number of its rows.
Segment = tuple[NDArray[np.uint8], int, int, Deltas | None]
Segments = Sequence[Segment]

class Rows:
    def __new__(cls, dtype: str, dim: int, values: Segments, scales: Segments | None) -> Rows: ...
    def take(
        self, rows: NDArray[np.int64], out: NDArray[np.float32] | None
    ) -> NDArray[np.float32]: ...
    def bags(
        self,
        rows: NDArray[np.int64],
        offsets: NDArray[np.int64],
        combiner: str,
        weights: NDArray[np.float32] | None,
        out: NDArray[np.float32] | None,
    ) -> NDArray[np.float32]: ...

def read_tables(
    readers: tuple[Rows | tuple[Rows, int] | int | None, ...],
    names: tuple[str, ...],
    columns: Mapping[str, tuple[object, object, object]],
    first: int,
    out: NDArray[np.float32],
    start: int,
) -> int: ...
def text_fingerprints(texts: NDArray[Any]) -> NDArray[np.uint64]: ...
def column_fingerprints(
    memory: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> NDArray[np.uint64]: ...
def mark(bits: NDArray[np.uint64], positions: NDArray[np.uint32], value: bool) -> None: ...
def is_marked(bits: NDArray[np.uint64], positions: NDArray[np.uint32]) -> NDArray[np.bool_]: ...
def marked(bits: NDArray[np.uint64]) -> NDArray[np.uint32]: ...
def where_marked(bits: NDArray[np.uint64], positions: NDArray[np.uint32]) -> NDArray[np.uint32]: ...
def pack_codes(
    codes: NDArray[np.uint8], positions: NDArray[np.uint32], out: NDArray[np.uint8]
) -> None: ...
