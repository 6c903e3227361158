"""What a checkpoint goes through when it is inspected, planned and read: only values or typed
errors may come of it.
"""

from __future__ import annotations

import io
import re
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import orjson
from rich.console import Console

from command_line.program import sentence
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import NUMPY_DTYPES
from export.cli.documents import inspected
from export.cli.report import render
from export.cli.terminal import SafeReport
from export.errors import ExportError
from export.tables.plan import plan_tables

CPU_S_MAX = 5.0
FLOOR_BYTES = 8 << 20
"""What a trial may hold beside the file: mostly what Python and rich take for the page."""
HELD_PER_BYTE = 256
"""An entry of 13 bytes, or a table of 34, becomes objects of Python: specs, plan, page; each of
bounded size.
"""
OBEYED = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
ROWS_READ = 50


class TooSlow(BaseException):
    """The processor time of one trial is spent."""


@contextmanager
def deadline(cpu_s: float = CPU_S_MAX) -> Iterator[None]:
    """Ends what runs longer; processor time of this process, so that a busy machine
    does not count.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {cpu_s} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """Fails if the block allocates more than `limit` bytes at a time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"{peak} bytes allocated, {limit} allowed"


def endure(prefix: Path) -> str:
    """Inspects, plans and reads a checkpoint as the commands do.

    Returns:
      The error's sentence; "" if nothing was rejected.
    """
    try:
        checkpoint = open_checkpoint(prefix)
        inventory = recognize(checkpoint)
        page = orjson.loads(orjson.dumps(inspected(inventory)))
        assert set(page["tables"]) == {table.name for table in inventory.tables}
        assert len(page["tables"]) == len(inventory.tables)
        screen = io.StringIO()
        Console(file=screen, width=200).print(SafeReport(render(page)))
        assert not OBEYED.search(screen.getvalue()), OBEYED.findall(screen.getvalue())
    except ExportError as problem:
        return sentence(str(problem))
    rejected = ""
    for key, entry in checkpoint.entries.items():
        try:
            if entry.dtype in NUMPY_DTYPES:
                assert checkpoint.read_all(key).shape == entry.shape
                rows = min(entry.shape[0], ROWS_READ) if entry.shape else 0
                if rows:
                    checkpoint.read(key, entry.shape[0] - rows, rows)
            elif entry.dtype == "string":
                checkpoint.read_string(key)
        except ExportError as problem:
            rejected = str(problem)
    try:
        plan = plan_tables(checkpoint, inventory, prefix.parent / "out")
        for task in (*plan.unpacked, *plan.tasks):
            place = (prefix.parent / "out" / task.file).resolve()
            assert place.is_relative_to((prefix.parent / "out").resolve())
    except ExportError as problem:
        rejected = str(problem)
    return rejected
