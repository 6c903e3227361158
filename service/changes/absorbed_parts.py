"""The changed candidates that a segment is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.segments import EXPIRES, sent_column
from bundle.stores.changed import ChangedStore
from service.changes.growing_vectors import Vectors

Positions = NDArray[np.int64]

_CANDIDATES_PER_BATCH = 1024
"""Number of candidates that are taken out of the store at a time. Each batch holds the GIL: with
more candidates, requests would wait for it.
"""


@dataclass(frozen=True, eq=False)
class AbsorbedParts:
    """Candidates that a segment is to hold.

    Attributes:
      store: The candidates as they were when the segment was planned.
      positions: [m] int64, the positions that the segment is to hold, ascending, all behind those
        of the bundle.
      ended: [e] uint32, the positions before these whose candidates had ended.
      vectors: The vectors of all positions behind those of the bundle by index, one part after the
        other.
      sent_ids: The ids of candidates whose vectors were sent, by index.
      expiry_s: The times when candidates expire, in Unix seconds, by id.
    """

    store: ChangedStore
    positions: Positions
    ended: NDArray[np.uint32]
    vectors: Mapping[str, Sequence[Vectors]]
    sent_ids: Mapping[str, Collection[int | str]]
    expiry_s: Mapping[int | str, float]

    def batches(self) -> Iterator[tuple[Any, dict[str, Vectors]]]:
        """Yields columns of candidates, a `pyarrow.RecordBatch`, and their vectors by index."""
        import pyarrow as pa

        for start in range(0, self.positions.size, _CANDIDATES_PER_BATCH):
            positions = self.positions[start : start + _CANDIDATES_PER_BATCH]
            columns = self.store.arrays(positions, [*self.store.types])
            ids = self.store.ids(positions).tolist()

            # A process that starts begins with the segments, and reads no earlier record: what the
            # records say of a candidate beside its columns must be in the segment, too.
            expires_s = [self.expiry_s.get(key) for key in ids]
            columns[EXPIRES] = pa.array(expires_s, pa.float64())
            for name, sent_ids in self.sent_ids.items():
                was_sent = [key in sent_ids for key in ids]
                columns[sent_column(name)] = pa.array(was_sent, pa.bool_())

            changed_positions = positions - self.store.base_size
            vectors = {
                name: vectors_at(parts, changed_positions) for name, parts in self.vectors.items()
            }
            yield pa.record_batch(columns), vectors


def vectors_at(parts: Sequence[Vectors], positions: Positions) -> Vectors:
    """Returns vectors by position, [m, dim]; the parts lie one behind the other."""
    vectors: Vectors = np.empty((positions.size, parts[0].shape[1]), np.float32)
    part_start = 0
    for part in parts:
        is_in_part = (positions >= part_start) & (positions < part_start + len(part))
        vectors[is_in_part] = part[positions[is_in_part] - part_start]
        part_start += len(part)
    return vectors
