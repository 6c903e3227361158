"""The variables of a self-contained SavedModel: an index over linked or copied bytes of a
checkpoint.

TensorFlow reads variables wherever the index says they lie. So no table is restored to be saved
again: its bytes stay where they are and are hard-linked, or the tasks that copy the tables of a
bundle write them into one data file, where TensorFlow wants a variable in one piece.

    variables.data-00000 ...  linked: data files of the checkpoint
    variables.data-<last>     copied: tables; then dense variables and the object graph
    variables.index           written last, once every checksum is known
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bundle.format.checksums import crc32c, joined
from bundle.format.manifest import Segment
from bundle.tables import segments
from export.checkpoint import bands
from export.checkpoint.bands import SlicesOverlap
from export.checkpoint.formats import object_graph as objectgraph
from export.checkpoint.formats.tensorbundle import data_file, string_bytes, write_index
from export.checkpoint.layouts import Plain
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import NUMPY_DTYPES, Entry, Slice
from export.errors import CheckpointError, NotConvertible
from export.tables.links import link_file
from export.tables.plan import rest_tasks
from export.tables.segments import Receipt, Source
from export.tables.tasks import RestTask, TableTask, block_bytes

SEGMENT_BYTES = 512 << 20
"""What one task copies: little enough to be copied again after a crash, and enough that a task
costs nothing.
"""

_UNSLICED_ONLY = ("float16", "uint32", "float8_e5m2", "float8_e4m3fn")
"""Dtypes that TensorFlow 2.20 saves in slices, and cannot restore from more than one ("Dtype half
not supported").
"""


@dataclass(frozen=True)
class VariablesPlan:
    """What the variables of a SavedModel will lie in.

    Attributes:
      prefix: of the new checkpoint.
      files: its data files.
      links: the checkpoint's data file behind each that is a link.
      large: the variables that are not copied by hand, by their new key; one that is copied has no
        crc yet.
      sources: what the tasks read.
      tasks: that copy variables into the last data file, or sum what is linked.
      end: first byte behind what is copied.
    """

    prefix: Path
    files: int
    links: Mapping[Path, str]
    large: Mapping[str, Entry]
    sources: tuple[Source, ...]
    tasks: tuple[TableTask | RestTask, ...]
    end: int

    @property
    def own(self) -> Path:
        """The data file that is written here."""
        return data_file(self.prefix, self.files - 1, self.files)

    @property
    def moved_bytes(self) -> int:
        """Bytes that all tasks copy or sum."""
        return sum(task.bytes for task in self.tasks)

    @property
    def load_bytes(self) -> int:
        """The most memory that TensorFlow holds of large variables while it loads: all, and one
        slice twice.
        """
        sliced = [
            part.bytes for entry in self.large.values() for part in entry.slices if not entry.whole
        ]
        return sum(entry.bytes for entry in self.large.values()) + max(sliced, default=0)

    def peak_memory_bytes(self, workers: int) -> int:
        """Returns the most memory that so many workers together hold, an upper bound."""
        held = sorted((task.memory_bytes for task in self.tasks), reverse=True)
        return sum(held[:workers])


def plan_variables(
    directory: Path,
    variables: Mapping[str, Entry],
    budget_bytes: int,
    link: bool,
    check: bool = False,
) -> VariablesPlan:
    """Plans the data files of large variables; touches nothing.

    Args:
      directory: of the SavedModel.
      variables: the checkpoint's entry of each large variable, by its key in the SavedModel.
      budget_bytes: memory that a worker may hold beyond its libraries.
      link: leave their bytes where they are, and link the files.
      check: sum what is linked too.
    Raises:
      NotConvertible: a variable is stored in a way that TensorFlow could not restore from an index.
      CheckpointError: slices of a variable overlap or leave a gap.
    """
    prefix = directory / "variables" / "variables"
    ordered = {key: _ordered(variables[key]) for key in sorted(variables)}
    files: list[str] = []
    if link:
        files = list(
            dict.fromkeys(part.file for entry in ordered.values() for part in entry.slices)
        )
    count = len(files) + 1
    renamed = {file: str(data_file(prefix, number, count)) for number, file in enumerate(files)}
    own = data_file(prefix, count - 1, count)

    at = 0
    large: dict[str, Entry] = {}
    tasks: list[TableTask | RestTask] = []
    for key, entry in ordered.items():
        stored = _as_bytes(entry)
        if link:
            large[key] = _linked(entry, renamed)._replace(key=key)
            if check:
                tasks += rest_tasks(stored, [(0, entry.shape[0])], budget_bytes)
            continue
        named = entry._replace(key=key)
        tasks += _copies(named, stored, directory, own, at, budget_bytes)
        zeros = (0,) * len(entry.shape)
        whole = Slice(str(own), at, entry.bytes, None, zeros, entry.shape)
        large[key] = entry._replace(key=key, slices=(whole,))
        at += entry.bytes
    sources = tuple(
        Source(f"variable {entry.key!r}", entry.key, entry.slices) for entry in ordered.values()
    )
    return VariablesPlan(
        prefix,
        count,
        {Path(renamed[file]): file for file in files},
        large,
        sources if tasks else (),
        tuple(tasks),
        at,
    )


def link_files(plan: VariablesPlan) -> None:
    """Links the checkpoint's data files; raises what `link_file` does."""
    for path, source in plan.links.items():
        link_file(source, path, 'set output.tables = "inline", which copies')


def write_variables(
    plan: VariablesPlan,
    checkpoint: Checkpoint,
    small: Mapping[str, str],
    graph: bytes,
    receipts: Sequence[Receipt],
) -> None:
    """Writes what remains once all tasks are done: dense variables, the object graph, and the
    index last.

    Args:
      plan: what was copied or linked.
      checkpoint: where dense variables are read.
      small: their keys in it, by their keys in the SavedModel.
      graph: the SavedModel's object graph, a TrackableObjectGraph.
      receipts: of all tasks of the plan.
    Raises:
      CheckpointError: a dense variable does not match its checksum.
      OSError: the destination cannot be written.
    """
    entries = _with_sums(plan, receipts)
    at = plan.end
    with plan.own.open("r+b" if plan.own.exists() else "w+b") as file:
        file.seek(at)
        for key, source in sorted(small.items()):
            entry = checkpoint.entries[source]
            data = checkpoint.read_all(source).tobytes()
            part = Slice(
                str(plan.own), at, len(data), crc32c(data), (0,) * len(entry.shape), entry.shape
            )
            entries[key] = Entry(key, entry.dtype, entry.shape, (part,))
            at += file.write(data)
        text, crc = string_bytes(graph)
        part = Slice(str(plan.own), at, len(text), crc, (), ())
        entries[objectgraph.KEY] = Entry(objectgraph.KEY, "string", (), (part,))
        file.write(text)
        file.truncate()
    write_index(plan.prefix, entries, plan.files)


def _ordered(entry: Entry) -> Entry:
    """Returns an entry with its slices in the order of the rows, without empty ones."""
    if not entry.slices:
        raise NotConvertible(
            f"{entry.key!r} lies in chunks of an array store, which no SavedModel can hold as they "
            "are; export a bundle"
        )
    slices = sorted((part for part in entry.slices if part.bytes), key=lambda part: part.starts)
    return entry._replace(slices=tuple(slices))


def _as_bytes(entry: Entry) -> Entry:
    """Returns a variable as a matrix of bytes, which tasks copy whatever its dtype and shape: a row
    for each index of its first axis.

    Raises:
      NotConvertible: it is cut along another axis than the first two.
      CheckpointError: its slices overlap or leave a gap.
    """
    if any(part.shape[2:] != entry.shape[2:] for part in entry.slices):
        raise NotConvertible(
            f"{entry.key!r} is cut along its third axis or a later one; save it in one piece"
        )
    # Taken from a slice: Python knows the size of few of the dtypes that a checkpoint holds.
    column_bytes = entry.slices[0].bytes // math.prod(entry.slices[0].shape[:2])
    rows = entry.shape[0]
    row_bytes = column_bytes * math.prod(entry.shape[1:2])
    slices = tuple(
        part._replace(
            starts=(part.starts[0], column_bytes * sum(part.starts[1:2])),
            shape=(part.shape[0], column_bytes * math.prod(part.shape[1:2])),
        )
        for part in entry.slices
    )
    try:
        bands.bands(slices, row_bytes, 0, rows)
    except SlicesOverlap as problem:
        raise CheckpointError(f"{entry.key!r}: {problem}; save the checkpoint anew") from problem
    return Entry(entry.key, "int8", (rows, row_bytes), slices)


def _copies(
    entry: Entry, stored: Entry, directory: Path, own: Path, at: int, budget_bytes: int
) -> list[TableTask]:
    """Plans the copy of a variable, as a matrix of bytes, to byte `at` of a data file."""
    rows, row_bytes = stored.shape
    all_bands = bands.bands(stored.slices, row_bytes, 0, rows)
    tasks = []
    for first, count in segments.cut(rows, segments.segment_rows(row_bytes, SEGMENT_BYTES)):
        here = bands.within(all_bands, first, count)
        tasks.append(
            TableTask(
                table=entry.key,
                dim=row_bytes,
                key=stored.key,
                dtype=stored.dtype,
                first_row=first,
                rows=count,
                layout=Plain(),
                stored=(rows, row_bytes),
                slices=tuple(dict.fromkeys(part for band in here for part in band.slices)),
                array=None,
                written_dtype=stored.dtype,
                directory=str(directory),
                file=own.relative_to(directory).as_posix(),
                block_bytes=block_bytes(1, budget_bytes),
                offset=at + first * row_bytes,
                value_dtype=entry.dtype if entry.dtype in NUMPY_DTYPES else "",
            )
        )
    return tasks


def _linked(entry: Entry, renamed: Mapping[str, str]) -> Entry:
    """Returns an entry whose slices lie in linked files.

    Raises:
      NotConvertible: TensorFlow could not restore it from there.
    """
    if any(part.crc32c is None for part in entry.slices):
        raise NotConvertible(
            f'{entry.key!r} has no checksum to be linked with; set output.tables = "inline"'
        )
    slices = tuple(part._replace(file=renamed[part.file]) for part in entry.slices)
    merged = _merged(entry._replace(slices=slices))
    if len(merged.slices) > 1 and entry.dtype in _UNSLICED_ONLY:
        raise NotConvertible(
            f"{entry.key!r} is {entry.dtype} in {len(merged.slices)} slices, which TensorFlow "
            'cannot restore; set output.tables = "inline", which joins them'
        )
    return merged


def _merged(entry: Entry) -> Entry:
    """Joins slices that are row ranges and lie back to back in one file: TensorFlow loads them
    faster, and in less.
    """
    adjacent = all(
        first.file == second.file
        and first.offset + first.bytes == second.offset
        and first.shape[1:] == second.shape[1:] == entry.shape[1:]
        for first, second in pairwise(entry.slices)
    )
    if len(entry.slices) < 2 or not adjacent:
        return entry
    crc = joined((part.crc32c or 0, part.bytes) for part in entry.slices)
    first = entry.slices[0]
    zeros = (0,) * len(entry.shape)
    whole = Slice(first.file, first.offset, entry.bytes, crc, zeros, entry.shape)
    return entry._replace(slices=(whole,))


def _with_sums(plan: VariablesPlan, receipts: Sequence[Receipt]) -> dict[str, Entry]:
    """Returns the entries of large variables with every crc set."""
    written: dict[str, list[Segment]] = defaultdict(list)
    for receipt in receipts:
        if receipt.segment is not None:
            written[receipt.table].append(receipt.segment)
    entries = dict(plan.large)
    for key, parts in written.items():
        (whole,) = entries[key].slices
        row_bytes = whole.bytes // whole.shape[0]
        parts.sort(key=lambda segment: segment.first_row)
        crc = joined((segment.crc32c, segment.rows * row_bytes) for segment in parts)
        entries[key] = entries[key]._replace(slices=(whole._replace(crc32c=crc),))
    return entries
