"""TensorFlow's V2 checkpoint, the TensorBundle: `P.index` lists variables, `P.data-*` hold their bytes.

Why an own reader, and what it promises: docs/adr/0001-own-tensorbundle-reader.md.

Source: TensorFlow 2.20, tensorflow/core/util/tensor_bundle/tensor_bundle.cc and core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

from export.checkpoint.formats.entry_protos import Form, StoredEntries, decode_cut, decode_entries
from export.checkpoint.formats.orderedcode import name_key
from export.checkpoint.formats.sstable import TableError, read_table
from export.checkpoint.formats.wire import WireError, as_bytes, as_int, made, read_fields
from export.checkpoint.variables import Entry, Slice
from export.errors import CheckpointError
from runtime.object_store import Place, RemotePath, Stamp, local_stamp

FORMAT_VERSION = 1
INDEX_BYTES_MAX = 256 << 20


class _Files:
    """The data files of a checkpoint, each with its stamp; None: it cannot be looked at."""

    def __init__(self, prefix: Place, count: int) -> None:
        self.count = count
        self._prefix = prefix
        self._found: dict[int, tuple[str, Stamp | None]] = {}
        self._listed = prefix.parent.listing() if isinstance(prefix, RemotePath) else {}  # one request for them all

    def find(self, shard: int) -> tuple[str, Stamp | None]:
        if shard not in self._found:
            if shard >= self.count:
                raise WireError(f"a variable lies in data file {shard} of {self.count}")
            name = f"{self._prefix.name}.data-{shard:05d}-of-{self.count:05d}"
            self._found[shard] = str(self._prefix.with_name(name)), self._stamp(name)
        return self._found[shard]

    def _stamp(self, name: str) -> Stamp | None:
        if isinstance(self._prefix, RemotePath):
            return self._listed.get(name)
        try:
            return local_stamp(self._prefix.with_name(name).stat())
        except OSError:
            return None


def read_index(prefix: Place, complete: bool = True) -> tuple[bytes, dict[str, Entry]]:
    """Reads the index of a checkpoint and checks that its data files are there and long enough.

    Args:
      prefix: the checkpoint's path without `.index`.
      complete: whether the data files are checked; `file_problems` does it later.
    Returns:
      The index file's bytes, and every variable by its key.
    Raises:
      CheckpointError: the index is missing, damaged or hostile, or a data file is missing or cut short.
    """
    path = prefix.with_name(f"{prefix.name}.index")
    data = _file_bytes(path)
    try:
        pairs = read_table(data)
        first = pairs.pop(0) if pairs else (None, b"")  # the empty key is before every other
        files = _Files(prefix, _header(first[1] if first[0] == b"" else None, path))
        entries = _entries([key for key, _ in pairs], decode_entries([value for _, value in pairs]), files)
    except OSError as problem:
        raise CheckpointError(f"checkpoint {prefix}: its files cannot be listed: {problem.strerror}") from problem
    except (TableError, WireError, UnicodeDecodeError) as problem:
        raise CheckpointError(
            f"checkpoint index {path}: {problem}; copy the checkpoint anew or take an older one"
        ) from problem
    if complete:
        for wrong in file_problems(entries):
            raise CheckpointError(wrong)
    return data, entries


def _file_bytes(path: Place) -> bytes:
    try:
        size = path.stamp().bytes if isinstance(path, RemotePath) else path.stat().st_size
        if size > INDEX_BYTES_MAX:
            raise CheckpointError(f"checkpoint index {path} has {size} bytes; at most {INDEX_BYTES_MAX} are read")
        if isinstance(path, RemotePath):
            return path.read(0, size)
        with path.open("rb") as file:
            return file.read(size)
    except OSError as problem:
        raise CheckpointError(f"checkpoint index {path} cannot be read: {problem.strerror}") from problem


def _header(data: bytes | None, path: Place) -> int:
    """Returns the number of data files that a BundleHeaderProto tells."""
    if data is None:
        raise CheckpointError(
            f"{path} is a sorted string table without a header, so no checkpoint index; give the prefix of a checkpoint"
        )
    fields = dict(read_fields(data))
    version = dict(read_fields(as_bytes(fields.get(3, b""))))
    if as_int(fields.get(2, 0)) != 0:
        raise CheckpointError(
            f"checkpoint index {path} was written on a big-endian machine, which is not read here; "
            "restore and save it again on a little-endian one"
        )
    if as_int(version.get(2, 0)) > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint index {path} asks for a reader of format {as_int(version[2])}; this one knows "
            f"{FORMAT_VERSION}; a newer product version may read it"
        )
    shards = as_int(fields.get(1, 0))
    if shards < 0:
        raise WireError(f"its header claims {shards} data files")
    return shards


def _entries(keys: Sequence[bytes], stored: StoredEntries, files: _Files) -> dict[str, Entry]:
    """Returns every variable by its key; slices have keys of their own, which rise and begin with a zero byte."""
    plain = bisect_left(keys, b"\1")
    if plain == len(keys):
        return {}
    names = [key.decode() for key in keys[plain:]]
    forms, shards, sizes, listed = (
        stored.forms[plain:],
        stored.shards[plain:],
        stored.sizes[plain:],
        stored.slices[plain:],
    )
    for name, form, size, slices in zip(names, forms, sizes, listed, strict=True):
        if form.bytes != size and form.bytes is not None and not slices:
            raise _lies_about_bytes(name, form, size)
    found = {shard: files.find(shard) for shard in set(shards)}
    paths, stamps = zip(*[found[shard] for shard in shards], strict=True)
    _, dtypes, shapes, _, starts = zip(*forms, strict=True)
    whole = made(Slice, paths, stored.offsets[plain:], sizes, stored.crcs[plain:], starts, shapes, stamps)
    entries = dict(zip(names, made(Entry, names, dtypes, shapes, zip(whole, strict=True), repeat(None)), strict=True))
    if any(listed):
        places = {key: place for place, key in enumerate(keys[:plain])}
        for name, form, protos in zip(names, forms, listed, strict=True):
            if protos:
                entries[name] = _cut_entry(name, form, protos, places, stored, files)
    return entries


def _cut_entry(
    name: str,
    form: Form,
    protos: tuple[bytes, ...],
    places: Mapping[bytes, int],
    stored: StoredEntries,
    files: _Files,
) -> Entry:
    """Returns a variable that is cut into slices, stored at `places`, which need not cover it."""
    if len(set(protos)) != len(protos):
        raise WireError(f"{name!r} lists a slice twice")
    shape, lead = form.shape, name_key(name, len(form.shape))
    parts = []
    for proto in protos:
        key, starts, sizes, fits = decode_cut(proto, shape)
        place = places.get(lead + key, -1)
        if place < 0 or stored.forms[place].number != form.number:
            raise WireError(f"{name!r} lists a slice at {starts} of shape {sizes} that the index does not hold")
        part, size = stored.forms[place], stored.sizes[place]
        if not fits or part.shape != sizes:
            raise WireError(
                f"{name!r} of shape {shape} lists a slice at {starts} of shape {sizes} and stores one of shape "
                f"{part.shape}, which does not fit"
            )
        if part.bytes != size and part.bytes is not None:
            raise _lies_about_bytes(name, part, size)
        path, stamp = files.find(stored.shards[place])
        parts.append((path, stored.offsets[place], size, stored.crcs[place], starts, sizes, stamp))
    return Entry(name, form.dtype, shape, tuple(made(Slice, *zip(*parts, strict=True))))


def _lies_about_bytes(name: str, form: Form, size: int) -> WireError:
    return WireError(f"{name!r} of shape {form.shape}, {form.dtype}, claims {size} bytes")


def file_problems(entries: Mapping[str, Entry]) -> Iterator[str]:
    """Yields what is wrong with data files: one is gone or cut short, or cannot hold all that lies in it."""
    needed: dict[str, tuple[int, str, Stamp | None]] = {}
    claimed: dict[str, int] = {}
    for key, _, _, slices, _ in entries.values():
        for file, offset, size, _, _, _, stamp in slices:
            if size:  # an empty variable may point past the end
                if file not in needed or offset + size > needed[file][0]:
                    needed[file] = offset + size, key, stamp
                claimed[file] = claimed.get(file, 0) + size
    for file, (end, key, stamp) in needed.items():
        if stamp is None:
            yield f"data file {file} cannot be read: {_why_unreadable(file)}; copy all files of the checkpoint"
        elif stamp.bytes < end:
            yield (
                f"data file {file} has {stamp.bytes} bytes, but {key!r} ends at byte {end}: it was cut short; "
                "copy it anew"
            )
        elif stamp.bytes < claimed[file]:
            yield (
                f"data file {file} has {stamp.bytes} bytes, its variables claim {claimed[file]}: they cannot all lie "
                "in it; copy the checkpoint anew or take an older one"
            )


def _why_unreadable(file: str) -> str:
    try:
        os.stat(file)
    except OSError as problem:
        return problem.strerror or str(problem)
    return os.strerror(errno.ENOENT)
