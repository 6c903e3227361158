"""How long a plan will take, told from how fast the beginning of its source is read and summed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bundle.format.checksums import crc32c
from export.checkpoint.datafiles import DataFiles
from export.figures import size_text
from export.tables.plan import ExportPlan

SAMPLE_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Pace:
    """An estimate.

    Attributes:
      sample_bytes: that were read.
      bytes_per_s: at which they were read and summed by one worker; from memory if they had been read lately.
      seconds: that reading and writing would take one worker at this rate; None where nothing could be sampled.
    """

    sample_bytes: int
    bytes_per_s: float
    seconds: float | None

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate as JSON values."""
        return {
            "estimated_s": self.seconds,
            "sampled_bytes": self.sample_bytes,
            "sampled_bytes_per_s": self.bytes_per_s,
        }

    def told(self) -> str:
        """Returns the estimate as a sentence."""
        if self.seconds is None:
            return "how long it takes is not known: its storage was not sampled"
        if not self.sample_bytes:
            return "it takes no time that counts: nothing is copied"
        took = "less than a second" if self.seconds < 1 else f"about {self.seconds:,.0f} s"
        return (
            f"{took} by one worker, at the {size_text(int(self.bytes_per_s))}/s at which its first "
            f"{size_text(self.sample_bytes)} were read; the destination may be slower"
        )


def measure_pace(plan: ExportPlan) -> Pace:
    """Reads the beginning of a plan's source; writes nothing.

    Raises:
      CheckpointError: a data file is gone or cannot be read.
    """
    parts = dict.fromkeys(part for task in plan.tasks for part in task.slices)
    return sample_pace(((part.file, part.offset, part.bytes) for part in parts), plan.read_bytes + plan.bytes)


def sample_pace(pieces: Iterable[tuple[str, int, int]], moved_bytes: int) -> Pace:
    """Reads the beginning of a source.

    Args:
      pieces: (file, first byte, bytes) of what would be read, in its order.
      moved_bytes: that would be read and written.
    Raises:
      CheckpointError: a data file is gone or cannot be read.
    """
    if not moved_bytes:
        return Pace(0, 0.0, 0.0)
    buffer, done = np.empty(_BLOCK_BYTES, np.uint8), 0
    begun = time.perf_counter()
    with DataFiles() as files:
        for file, offset, size in pieces:
            for start in range(0, min(size, SAMPLE_BYTES - done), _BLOCK_BYTES):
                block = buffer[: min(_BLOCK_BYTES, size - start)]
                files.read_into(file, offset + start, block)
                crc32c(block)
                done += block.size
            if done >= SAMPLE_BYTES:
                break
    rate = done / max(time.perf_counter() - begun, 1e-9)
    return Pace(done, rate, moved_bytes / rate if done else None)
