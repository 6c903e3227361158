from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Converted = tuple[NDArray[Any], NDArray[np.float32] | None, tuple[float, float, float, float], NDArray[np.int64]]
Shards = Sequence[tuple[NDArray[np.uint8], int, int]]

class Rows:
    def __new__(cls, dtype: str, dim: int, values: Shards, scales: Shards | None) -> Rows: ...
    def take(self, rows: NDArray[np.int64], out: NDArray[np.float32] | None) -> NDArray[np.float32]: ...
    def bags(
        self,
        rows: NDArray[np.int64],
        offsets: NDArray[np.int64],
        combiner: str,
        weights: NDArray[np.float32] | None,
        out: NDArray[np.float32] | None,
    ) -> NDArray[np.float32]: ...

def beside(
    readers: tuple[Rows | tuple[Rows, int] | int | None, ...],
    names: tuple[str, ...],
    columns: Mapping[str, tuple[object, object, object]],
    first: int,
    out: NDArray[np.float32],
    start: int,
) -> int: ...
def integers(values: list[object]) -> NDArray[np.int64] | None: ...
def plain_lists(body: bytes, member: str) -> tuple[dict[str, NDArray[np.int64]], bytes] | None: ...
def plain_columns(body: bytes, numbers: tuple[int, ...], column: type[tuple[Any, ...]]) -> tuple[Any, ...] | None: ...
def nearest(
    vectors: NDArray[np.float32], query: NDArray[np.float32], positions: NDArray[np.uint32], k: int, distance: str
) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...
def converted(values: NDArray[np.float32], dtype: str) -> Converted: ...
