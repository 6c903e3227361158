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
from export.tables.plan import plan_sums
from export.tables.segments import Receipt, Source
from export.tables.tasks import SumTask, TableTask, block_bytes

SEGMENT_BYTES = 512 << 20
"""Bytes that one task copies: few enough to be copied again after a crash, and enough to make the
cost of starting a task negligible.
"""

_UNSLICED_ONLY = ("float16", "uint32", "float8_e5m2", "float8_e4m3fn")
"""Dtypes that TensorFlow 2.20 saves in slices, and cannot restore from more than one ("Dtype half
not supported").
"""


@dataclass(frozen=True)
class VariablesPlan:
    """The files in which the variables of a SavedModel will lie.

    Attributes:
      prefix: Path of the new checkpoint, without the suffixes of its files.
      file_count: Number of its data files.
      links: The checkpoint's data file behind each data file that is a link.
      large: Entries of the variables that tasks copy or that are linked, by their new key. The
        entry of a variable that is copied has no checksum yet.
      sources: The stored variables that the tasks read.
      tasks: Tasks that copy variables into the last data file, or sum linked bytes.
      end: Offset of the first byte after the copied variables.
    """

    prefix: Path
    file_count: int
    links: Mapping[Path, str]
    large: Mapping[str, Entry]
    sources: tuple[Source, ...]
    tasks: tuple[TableTask | SumTask, ...]
    end: int

    @property
    def written_file(self) -> Path:
        """The data file that the export writes, the last one; all files before it are links."""
        return data_file(self.prefix, self.file_count - 1, self.file_count)

    @property
    def moved_bytes(self) -> int:
        """Bytes that all tasks copy or sum."""
        return sum(task.bytes for task in self.tasks)

    @property
    def load_bytes(self) -> int:
        """The maximum memory of large variables while TensorFlow loads them: all of them, and one
        slice twice.
        """
        total_bytes = sum(entry.bytes for entry in self.large.values())
        # TensorFlow reads a slice into a buffer and copies it into its variable; a variable in one
        # piece needs no copy.
        largest_slice = 0
        for entry in self.large.values():
            if not entry.whole:
                largest_slice = max([largest_slice, *(part.bytes for part in entry.slices)])
        return total_bytes + largest_slice

    def peak_memory_bytes(self, workers: int) -> int:
        """Returns an upper bound of the memory that a number of workers hold together."""
        largest_first = sorted((task.memory_bytes for task in self.tasks), reverse=True)
        return sum(largest_first[:workers])


def plan_variables(
    directory: Path,
    variables: Mapping[str, Entry],
    budget_bytes: int,
    link: bool,
    check: bool = False,
) -> VariablesPlan:
    """Plans the data files of large variables; touches nothing.

    Args:
      directory: The directory of the SavedModel.
      variables: The checkpoint's entry of each large variable, by its key in the SavedModel.
      budget_bytes: Memory that a worker may hold beyond its libraries.
      link: Whether the bytes stay where they are, and the files are linked.
      check: Whether linked bytes are summed, too.

    Raises:
      NotConvertible: A variable is stored in a way that TensorFlow could not restore from an index.
      CheckpointError: Slices of a variable overlap or leave a gap.
    """
    prefix = directory / "variables" / "variables"
    ordered_entries = {key: _order_slices(variables[key]) for key in sorted(variables)}

    # The linked files come first, each once, and the written file is the last one. An index names
    # files by their number, so that all numbers are known before any variable is planned.
    linked_files: dict[str, None] = {}
    if link:
        for entry in ordered_entries.values():
            linked_files.update(dict.fromkeys(part.file for part in entry.slices))
    file_count = len(linked_files) + 1
    new_paths = {
        file: str(data_file(prefix, number, file_count)) for number, file in enumerate(linked_files)
    }
    written_file = data_file(prefix, file_count - 1, file_count)

    offset = 0
    large: dict[str, Entry] = {}
    tasks: list[TableTask | SumTask] = []
    for key, entry in ordered_entries.items():
        byte_matrix = _as_byte_matrix(entry)
        if link:
            large[key] = _link_entry(entry, new_paths)._replace(key=key)
            if check:
                tasks += plan_sums(byte_matrix, [(0, entry.shape[0])], budget_bytes)
            continue

        # A copied variable is one slice, also if the checkpoint cut it by columns: TensorFlow then
        # loads it in the memory of its values.
        renamed_entry = entry._replace(key=key)
        tasks += _plan_copies(
            renamed_entry, byte_matrix, directory, written_file, offset, budget_bytes
        )
        zeros = (0,) * len(entry.shape)
        whole = Slice(str(written_file), offset, entry.bytes, None, zeros, entry.shape)
        large[key] = entry._replace(key=key, slices=(whole,))
        offset += entry.bytes

    sources: tuple[Source, ...] = ()
    if tasks:
        sources = tuple(
            Source(f"variable {entry.key!r}", entry.key, entry.slices)
            for entry in ordered_entries.values()
        )
    links = {Path(new_paths[file]): file for file in linked_files}
    return VariablesPlan(prefix, file_count, links, large, sources, tuple(tasks), offset)


def link_files(plan: VariablesPlan) -> None:
    """Links the checkpoint's data files.

    Raises:
      CheckpointError: A data file is gone.
      DestinationError: The destination cannot hold hard links to a data file.
    """
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
      plan: The plan whose variables were copied or linked.
      checkpoint: The checkpoint that dense variables are read from.
      small: Keys of dense variables in the checkpoint, by their keys in the SavedModel.
      graph: The SavedModel's object graph, a TrackableObjectGraph.
      receipts: Receipts of all tasks of the plan.

    Raises:
      CheckpointError: A dense variable does not match its checksum.
      OSError: The destination cannot be written.
    """
    entries = _with_sums(plan, receipts)
    path = plan.written_file
    offset = plan.end
    # Tasks have written into the file, unless all variables are linked: opened with "w" alone, it
    # would lose the tables.
    mode = "r+b" if path.exists() else "w+b"
    with path.open(mode) as file:
        file.seek(offset)
        for key, checkpoint_key in sorted(small.items()):
            entry = checkpoint.entries[checkpoint_key]
            data = checkpoint.read_all(checkpoint_key).tobytes()
            zeros = (0,) * len(entry.shape)
            whole = Slice(str(path), offset, len(data), crc32c(data), zeros, entry.shape)
            entries[key] = Entry(key, entry.dtype, entry.shape, (whole,))
            offset += file.write(data)

        encoded_graph, crc = string_bytes(graph)
        whole = Slice(str(path), offset, len(encoded_graph), crc, (), ())
        entries[objectgraph.KEY] = Entry(objectgraph.KEY, "string", (), (whole,))
        file.write(encoded_graph)
        # An earlier run may have written more.
        file.truncate()
    write_index(plan.prefix, entries, plan.file_count)


def _order_slices(entry: Entry) -> Entry:
    """Returns an entry with its slices in the order of the rows, without empty ones."""
    if not entry.slices:
        raise NotConvertible(
            f"{entry.key!r} lies in chunks of an array store, which no SavedModel can hold as they "
            "are; export a bundle"
        )
    slices = sorted((part for part in entry.slices if part.bytes), key=lambda part: part.starts)
    return entry._replace(slices=tuple(slices))


def _as_byte_matrix(entry: Entry) -> Entry:
    """Returns a variable as a matrix of bytes, which tasks copy whatever its dtype and shape: a row
    for each index of its first axis.

    Raises:
      NotConvertible: The variable is cut along another axis than the first two.
      CheckpointError: Its slices overlap or leave a gap.
    """
    if any(part.shape[2:] != entry.shape[2:] for part in entry.slices):
        raise NotConvertible(
            f"{entry.key!r} is cut along its third axis or a later one; save it in one piece"
        )
    # Computed from a slice: Python knows the size of few of the dtypes that a checkpoint holds. A
    # column is all that lies behind an index of the second axis.
    first_slice = entry.slices[0]
    column_bytes = first_slice.bytes // math.prod(first_slice.shape[:2])
    rows = entry.shape[0]
    row_bytes = column_bytes * math.prod(entry.shape[1:2])

    # The slice [1:2] of a shape is empty for a vector, whose sum is 0 and whose product is 1.
    slices = tuple(
        part._replace(
            starts=(part.starts[0], column_bytes * sum(part.starts[1:2])),
            shape=(part.shape[0], column_bytes * math.prod(part.shape[1:2])),
        )
        for part in entry.slices
    )
    try:
        # Computed for its errors alone.
        bands.bands(slices, row_bytes, 0, rows)
    except SlicesOverlap as problem:
        raise CheckpointError(f"{entry.key!r}: {problem}; save the checkpoint anew") from problem
    return Entry(entry.key, "int8", (rows, row_bytes), slices)


def _plan_copies(
    entry: Entry, byte_matrix: Entry, directory: Path, file: Path, offset: int, budget_bytes: int
) -> list[TableTask]:
    """Plans the copy of a variable to an offset of a data file.

    Args:
      entry: The variable, with the key that it gets in the SavedModel.
      byte_matrix: The variable as a matrix of bytes.
      directory: The directory of the SavedModel.
      file: The data file.
      offset: Offset of the variable's first byte in the data file.
      budget_bytes: Memory that a worker may hold beyond its libraries.
    """
    rows, row_bytes = byte_matrix.shape
    all_bands = bands.bands(byte_matrix.slices, row_bytes, 0, rows)
    # Tasks look for NaN and infinity in values of this dtype; in a dtype that NumPy lacks they
    # cannot.
    value_dtype = entry.dtype if entry.dtype in NUMPY_DTYPES else ""
    tasks = []
    for first, count in segments.cut(rows, segments.segment_rows(row_bytes, SEGMENT_BYTES)):
        task_bands = bands.within(all_bands, first, count)
        tasks.append(
            TableTask(
                table=entry.key,
                dim=row_bytes,
                key=byte_matrix.key,
                dtype=byte_matrix.dtype,
                first_row=first,
                rows=count,
                layout=Plain(),
                stored=(rows, row_bytes),
                slices=tuple(dict.fromkeys(part for band in task_bands for part in band.slices)),
                array=None,
                written_dtype=byte_matrix.dtype,
                directory=str(directory),
                file=file.relative_to(directory).as_posix(),
                block_bytes=block_bytes(1, budget_bytes),
                offset=offset + first * row_bytes,
                value_dtype=value_dtype,
            )
        )
    return tasks


def _link_entry(entry: Entry, new_paths: Mapping[str, str]) -> Entry:
    """Returns an entry whose slices lie in linked files.

    Args:
      entry: The checkpoint's entry.
      new_paths: The path of each link, by the path of the checkpoint's data file.

    Raises:
      NotConvertible: TensorFlow could not restore the variable from the linked files.
    """
    if any(part.crc32c is None for part in entry.slices):
        raise NotConvertible(
            f'{entry.key!r} has no checksum to be linked with; set output.tables = "inline"'
        )
    slices = tuple(part._replace(file=new_paths[part.file]) for part in entry.slices)
    merged = _merge_slices(entry._replace(slices=slices))
    if len(merged.slices) > 1 and entry.dtype in _UNSLICED_ONLY:
        raise NotConvertible(
            f"{entry.key!r} is {entry.dtype} in {len(merged.slices)} slices, which TensorFlow "
            'cannot restore; set output.tables = "inline", which joins them'
        )
    return merged


def _merge_slices(entry: Entry) -> Entry:
    """Joins slices that are row ranges and lie back to back in one file: TensorFlow loads one slice
    faster, and in less memory.
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
    """Returns the entries of large variables, all with their crc32c."""
    segments_by_key: dict[str, list[Segment]] = defaultdict(list)
    for receipt in receipts:
        # Tasks that only sum linked bytes write no segment.
        if receipt.segment is not None:
            segments_by_key[receipt.table].append(receipt.segment)

    entries = dict(plan.large)
    for key, written_segments in segments_by_key.items():
        (whole,) = entries[key].slices
        row_bytes = whole.bytes // whole.shape[0]
        # Receipts come in the order in which tasks end; checksums join in the order of the rows.
        written_segments.sort(key=lambda segment: segment.first_row)
        crc = joined((segment.crc32c, segment.rows * row_bytes) for segment in written_segments)
        entries[key] = entries[key]._replace(slices=(whole._replace(crc32c=crc),))
    return entries
