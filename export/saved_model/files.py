"""The variables of a self-contained SavedModel: an index over linked or streamed bytes of a
checkpoint.

TensorFlow reads variables wherever the index says they lie. So no table is restored to be saved
again: its bytes are streamed as they stand into one data file, in bounded memory, or stay where
they are and are hard-linked.

    variables.data-00000 ...  linked: data files of the checkpoint; streamed: tables
    variables.data-<last>     dense variables and object graph; streamed: in the file of the tables
    variables.index           written last, once every checksum is known
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from bundle.format.checksums import crc32c, extend, joined
from export.checkpoint import bands
from export.checkpoint.bands import SlicesOverlap
from export.checkpoint.datafiles import DataFiles
from export.checkpoint.formats import object_graph as objectgraph
from export.checkpoint.formats.tensorbundle import data_file, string_bytes, write_index
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry, Slice
from export.errors import CheckpointError, DestinationError, NotConvertible
from export.tables.links import link_file
from export.tables.tasks import WORKER_BYTES
from object_store.stamps import Stamp

CHUNK_BYTES = 512 << 20
"""What one task copies: small enough to be done again after a crash, large enough to cost nothing.
"""
BLOCK_BYTES = 8 << 20
COPY_BYTES = WORKER_BYTES + BLOCK_BYTES
"""The most memory that a worker holds while it copies a chunk."""

_UNSLICED_ONLY = ("float16", "uint32", "float8_e5m2", "float8_e4m3fn")
"""Dtypes that TensorFlow 2.20 saves in slices, and cannot restore from more than one ("Dtype half
not supported").
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a slice: streamed to a place in a data file, or only summed.

    Attributes:
      key, piece: variable, and number of its slice.
      source, offset, bytes: where they lie.
      stamp: of the source when the checkpoint was opened.
      destination, at: where they go; "" is nowhere.
    """

    key: str
    piece: int
    source: str
    offset: int
    bytes: int
    stamp: Stamp | None
    destination: str
    at: int

    @property
    def step(self) -> str:
        """Its name, the same in every run of the same plan."""
        return f"{Path(self.source).name} {self.offset}+{self.bytes} at {self.at}"


@dataclass(frozen=True)
class VariablesPlan:
    """What the variables of a SavedModel will lie in.

    Attributes:
      prefix: of the new checkpoint.
      files: its data files.
      links: the checkpoint's data file behind each that is a link.
      streamed: the variables that are not copied by hand, by their new key; a slice without a crc
        gets that of its chunks.
      chunks: what is streamed into the last data file, or summed.
      end: first byte behind what is streamed.
    """

    prefix: Path
    files: int
    links: Mapping[Path, str]
    streamed: Mapping[str, Entry]
    chunks: tuple[Chunk, ...]
    end: int

    @property
    def own(self) -> Path:
        """The data file that is written here."""
        return data_file(self.prefix, self.files - 1, self.files)

    @property
    def load_bytes(self) -> int:
        """The most memory that TensorFlow holds of large variables while it loads: all, and one
        slice twice.
        """
        sliced = [
            part.bytes
            for entry in self.streamed.values()
            for part in entry.slices
            if not entry.whole
        ]
        return sum(entry.bytes for entry in self.streamed.values()) + max(sliced, default=0)


def plan_variables(
    prefix: Path, variables: Mapping[str, Entry], link: bool, check: bool = False
) -> VariablesPlan:
    """Plans the data files of large variables; touches nothing.

    Args:
      prefix: of the checkpoint to be written.
      variables: the checkpoint's entry of each large variable, by its key in the SavedModel.
      link: leave their bytes where they are, and link the files.
      check: sum what is linked too.
    Raises:
      NotConvertible: a variable is stored in a way that TensorFlow could not restore from an index.
      CheckpointError: slices of a variable overlap or leave a gap.
    """
    ordered = {key: _ordered(key, variables[key]) for key in sorted(variables)}
    sources = (
        list(dict.fromkeys(part.file for entry in ordered.values() for part in entry.slices))
        if link
        else []
    )
    count = len(sources) + 1
    renamed = {
        source: str(data_file(prefix, number, count)) for number, source in enumerate(sources)
    }
    own = str(data_file(prefix, count - 1, count))
    at = 0
    streamed: dict[str, Entry] = {}
    chunks: list[Chunk] = []
    for key, entry in ordered.items():
        placed = []
        for piece, part in enumerate(entry.slices):
            if part.crc32c is None and link:
                raise NotConvertible(
                    f'{entry.key!r} has no checksum to be linked with; set output.tables = "inline"'
                )
            file, offset = (renamed[part.file], part.offset) if link else (own, at)
            if not link or check:
                chunks += _chunks(key, piece, part, "" if link else own, at)
            at += 0 if link else part.bytes
            placed.append(part._replace(file=file, offset=offset))
        streamed[key] = _merged(entry._replace(slices=tuple(placed)))
        if len(streamed[key].slices) > 1 and entry.dtype in _UNSLICED_ONLY:
            cure = (
                'set output.tables = "inline", which joins them'
                if link and _by_rows(entry)
                else "save it anew"
            )
            raise NotConvertible(
                f"{entry.key!r} is {entry.dtype} in {len(entry.slices)} slices, which TensorFlow "
                f"cannot restore; {cure}"
            )
    return VariablesPlan(
        prefix, count, {Path(renamed[each]): each for each in sources}, streamed, tuple(chunks), at
    )


def link_files(plan: VariablesPlan) -> None:
    """Links the checkpoint's data files; raises what `link_file` does."""
    for path, source in plan.links.items():
        link_file(source, path, 'set output.tables = "inline", which copies')


def copy_chunk(chunk: Chunk) -> int:
    """Streams one chunk; returns its crc32c. Holds BLOCK_BYTES.

    Raises:
      CheckpointError: the source is gone, or cut short.
      DestinationError: the destination cannot be written.
    """
    crc = 0
    buffer = np.empty(min(BLOCK_BYTES, chunk.bytes), np.uint8)
    try:
        with ExitStack() as opened:
            files = opened.enter_context(
                DataFiles({chunk.source: chunk.stamp} if chunk.stamp else None)
            )
            out = (
                opened.enter_context(open(chunk.destination, "r+b")) if chunk.destination else None
            )
            if out is not None:
                out.seek(chunk.at)
            for done in range(0, chunk.bytes, BLOCK_BYTES):
                block = buffer[: min(BLOCK_BYTES, chunk.bytes - done)]
                files.read_into(chunk.source, chunk.offset + done, block)
                crc = extend(crc, block)
                if out is not None:
                    out.write(block.data)
            if out is not None:
                out.flush()
                os.fsync(out.fileno())
    except OSError as problem:
        raise DestinationError(
            f"{chunk.destination} cannot be written: {problem.strerror or problem}; free some "
            "space, then run again: it resumes"
        ) from problem
    return crc


def written(chunk: Chunk) -> Chunk:
    """Returns the chunk that reads back, and sums, what another has written."""
    return replace(chunk, source=chunk.destination, offset=chunk.at, stamp=None, destination="")


def write_variables(
    plan: VariablesPlan,
    checkpoint: Checkpoint,
    small: Mapping[str, str],
    graph: bytes,
    sums: Mapping[Chunk, int],
) -> None:
    """Writes what remains once all chunks are there: dense variables, the object graph, and the
    index last.

    Args:
      plan: what was streamed or linked.
      checkpoint: where dense variables are read.
      small: their keys in it, by their keys in the SavedModel.
      graph: the SavedModel's object graph, a TrackableObjectGraph.
      sums: crc32c of every chunk of the plan.
    Raises:
      CheckpointError: a checksum does not match.
      OSError: the destination cannot be written.
    """
    entries = {key: _summed(entry, plan, sums) for key, entry in plan.streamed.items()}
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


def _ordered(key: str, entry: Entry) -> Entry:
    """Returns an entry under its new key, with its slices in the order of the rows, without empty
    ones.
    """
    if not entry.slices:
        raise NotConvertible(
            f"{entry.key!r} lies in chunks of an array store, which no SavedModel can hold as they "
            "are; export a bundle"
        )
    slices = sorted((part for part in entry.slices if part.bytes), key=lambda part: part.starts)
    if len(entry.shape) == 2:
        try:
            bands.bands(slices, entry.shape[1], 0, entry.shape[0])
        except SlicesOverlap as problem:
            raise CheckpointError(
                f"{entry.key!r}: {problem}; save the checkpoint anew"
            ) from problem
    elif sum(math.prod(part.shape) for part in slices) != math.prod(entry.shape):
        raise CheckpointError(
            f"the slices of {entry.key!r} overlap or leave a gap; save the checkpoint anew"
        )
    return entry._replace(key=key, slices=tuple(slices))


def _by_rows(entry: Entry) -> bool:
    return all(part.shape[1:] == entry.shape[1:] for part in entry.slices)


def _merged(entry: Entry) -> Entry:
    """Joins slices that are row ranges and lie back to back in one file: TensorFlow loads them
    faster, and in less.
    """
    adjacent = all(
        first.file == second.file and first.offset + first.bytes == second.offset
        for first, second in pairwise(entry.slices)
    )
    if len(entry.slices) < 2 or not adjacent or not _by_rows(entry):
        return entry
    sums = [(part.crc32c, part.bytes) for part in entry.slices]
    crc = joined([(crc, size) for crc, size in sums if crc is not None])
    first = entry.slices[0]
    whole = Slice(
        first.file,
        first.offset,
        entry.bytes,
        None if any(crc is None for crc, _ in sums) else crc,
        (0,) * len(entry.shape),
        entry.shape,
    )
    return entry._replace(slices=(whole,))


def _chunks(key: str, piece: int, part: Slice, destination: str, at: int) -> Iterator[Chunk]:
    for done in range(0, part.bytes, CHUNK_BYTES):
        size = min(CHUNK_BYTES, part.bytes - done)
        yield Chunk(
            key, piece, part.file, part.offset + done, size, part.stamp, destination, at + done
        )


def _summed(entry: Entry, plan: VariablesPlan, sums: Mapping[Chunk, int]) -> Entry:
    """Holds an entry to what was read of it; returns it with every crc set."""
    chunks = [chunk for chunk in plan.chunks if chunk.key == entry.key]
    if not chunks:
        return entry
    slices = []
    for piece, part in enumerate(entry.slices):
        of_it = [chunk for chunk in chunks if chunk.piece == piece or len(entry.slices) == 1]
        crc = joined((sums[chunk], chunk.bytes) for chunk in of_it)
        if part.crc32c is not None and part.crc32c != crc:
            sources = ", ".join(dict.fromkeys(chunk.source for chunk in of_it))
            raise CheckpointError(
                f"{entry.key!r}: {part.bytes} bytes read from {sources} do not match their "
                "checksum: the checkpoint is damaged; copy it anew or take an older one"
            )
        slices.append(part._replace(crc32c=crc))
    return entry._replace(slices=tuple(slices))
