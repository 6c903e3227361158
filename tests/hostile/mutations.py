"""Makes hostile checkpoints of sound ones: bytes, blocks, entries and messages changed, with
checksums that fit again.

A crc proves nothing against whoever writes it: every change but the crudest is sealed as its maker
would.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from export.checkpoint.formats.coding import read_varint
from export.checkpoint.formats.sstable import read_table
from tests.units.export.checkpoint.tensor_bundles import (
    block,
    entry,
    joined,
    sealed,
    table,
    text_data,
    varint,
)

Files = dict[str, bytes]
Pairs = dict[bytes, bytes]
Change = Callable[[random.Random, Files], None]

NUMBERS = [
    0,
    1,
    2,
    3,
    5,
    7,
    63,
    64,
    127,
    128,
    255,
    256,
    4096,
    10**6,
    10**9,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
]
NUMBERS += [2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8]
TEXTS = [
    b"",
    b"/",
    b"..",
    b".",
    b"../../x",
    b"a/b",
    b"\0",
    b"\x1b[31m",
    b"[bold]",
    b"\r\n",
    b"\xff\xfe",
    b"x" * 10_000,
]
TEXTS += [text.encode() for text in ("\u00e9", "\u202e", "\ufffd")]
TEXTS += [
    b"parameters",
    b"_variables",
    b"_iterations",
    b"_sparse_core_table_layouts",
    b"embeddings",
]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Changes some bytes, or cuts, doubles, moves a stretch of them."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        if not changed:
            break
        at = rng.randrange(len(changed))
        size = rng.choice([1, 1, 2, 4, 8, 40])
        kind = rng.randrange(7)
        if kind <= 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 3:
            del changed[at : at + size]
        elif kind == 4:
            changed[at:at] = rng.randbytes(size)
        elif kind == 5:
            other = rng.randrange(len(changed))
            changed[at:at] = changed[other : other + size]
        else:
            del changed[rng.choice([at, len(changed) - 1]) :]
    return bytes(changed)


def reword(rng: random.Random, message: bytes, depth: int = 0) -> bytes:
    """Changes one field of a message: its value, its kind, how often it is there, or one of what it
    holds.
    """
    fields = _fields(message)
    if not fields or rng.random() < 0.1:
        return flip(rng, message)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    choice = rng.randrange(8)
    if choice == 0:
        del fields[at]
    elif choice == 1:
        fields[at:at] = [fields[at]] * rng.choice([1, 1, 2, 50])
    elif choice == 2:
        fields[at] = (rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 2**28]), kind, value)
    elif choice == 3:
        fields.insert(rng.randrange(len(fields) + 1), fields.pop(at))
    elif isinstance(value, int):
        fields[at] = (number, kind, rng.choice([*NUMBERS, value + 1, max(0, value - 1), value * 2]))
    elif choice == 4:
        fields[at] = (number, kind, rng.choice(TEXTS))
    elif depth < 5 and _fields(value):
        fields[at] = (number, kind, reword(rng, value, depth + 1))
    else:
        fields[at] = (number, kind, flip(rng, value))
    return _message(fields)


def change_bytes(rng: random.Random, files: Files) -> None:
    """Any file, nothing sealed."""
    name = rng.choice(sorted(files))
    files[name] = flip(rng, files[name])


def change_entries(rng: random.Random, files: Files) -> None:
    """Entries of the index: their messages, their keys, which there are."""
    name, pairs = _index(files)
    for _ in range(rng.choice([1, 1, 2, 5])):
        key = rng.choice(sorted(pairs) or [b"x"])
        kind = rng.randrange(9)
        if kind == 0:
            pairs.pop(key, None)
        elif kind == 1:
            pairs[rng.choice(sorted(pairs) or [b""])] = pairs.get(key, b"")
        elif kind == 2:
            pairs[rng.choice([*TEXTS, flip(rng, key)])] = pairs.get(key, b"")
        else:
            pairs[key] = reword(rng, pairs.get(key, b""))
    files[name] = table(pairs.items(), per_block=rng.choice([1, 3, 50]))


def change_blocks(rng: random.Random, files: Files) -> None:
    """The blocks of the index, sealed anew: entries with their prefixes and restart points,
    handles, kinds, the footer.
    """
    name, pairs = _index(files)
    body = block(sorted(pairs.items()), interval=rng.choice([1, 2, 16, 1000]))[:-5]
    kind = rng.randrange(4)
    if kind == 0:
        body = flip(rng, body)
    start, size = rng.choices(NUMBERS, k=2) if kind == 1 else (0, len(body))
    index = block(
        [(max(pairs, default=b"z"), varint(start) + varint(size))] * rng.choice([1, 1, 2])
    )
    if kind == 2:
        index = sealed(flip(rng, index[:-5]))
    whole = joined(sealed(body, rng.choice([0, 0, 0, 0, 1, 2, 255])), index)
    files[name] = (
        whole[:-48] + flip(rng, whole[-48:-8]).ljust(40, b"\0")[:40] + whole[-8:]
        if kind == 3
        else whole
    )


def change_text(rng: random.Random, files: Files) -> None:
    """The object graph or another stored message, sealed in its data file and in the index."""
    name, pairs = _index(files)
    texts = [key for key, value in pairs.items() if value.startswith(b"\x08\x07")]
    if not texts:
        return change_entries(rng, files)
    key = rng.choice(texts)
    fields = {number: value for number, _, value in _fields(pairs[key])}
    segment, offset, size = (int(fields.get(number, 0)) for number in (3, 4, 5))
    holders = sorted(file for file in files if ".data-" in file)
    data = files[holders[segment % len(holders)]]
    stored = data[offset : offset + size]
    text = stored[read_varint(stored, 0)[1] + 4 :]
    for _ in range(rng.choice([1, 1, 3, 10])):
        text = reword(rng, text)
    written, crc = text_data(text)
    files[holders[segment % len(holders)]] = data + written
    pairs[key] = entry(7, (), len(data), written, crc, segment)
    files[name] = table(pairs.items())
    return None


CHANGES: tuple[Change, ...] = (
    change_bytes,
    change_entries,
    change_entries,
    change_blocks,
    change_text,
    change_text,
)


def damaged(seed: int, files: Mapping[str, bytes]) -> Files:
    """Returns the files of a checkpoint with one to three changes, the same for the same seed."""
    rng = random.Random(seed)
    result = dict(files)
    changes = CHANGES if any(name.endswith(".index") for name in files) else (change_bytes,)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        with contextlib.suppress(
            Exception
        ):  # an earlier change may have left nothing that can be changed so
            rng.choice(changes)(rng, result)
    return result


def _index(files: Files) -> tuple[str, Pairs]:
    name = next(file for file in files if file.endswith(".index"))
    return name, dict(read_table(files[name]))


def _fields(message: bytes) -> list[tuple[int, int, int | bytes]]:
    """Number, kind and value of each field; [] for what is no message."""
    try:
        actual = UnknownFieldSet(Empty.FromString(message))
    except DecodeError:
        return []
    fields = [(field.field_number, field.wire_type, field.data) for field in actual]
    return fields if all(kind in _SIZES for _, kind, _ in fields) else []


_SIZES = {0: 0, 1: 8, 2: 0, 5: 4}


def _message(fields: list[tuple[int, int, int | bytes]]) -> bytes:
    out = bytearray()
    for number, kind, value in fields:
        out += varint(number << 3 | kind)
        if isinstance(value, bytes):
            out += varint(len(value)) + value
        elif size := _SIZES[kind]:
            out += (value % (1 << 8 * size)).to_bytes(size, "little")
        else:
            out += varint(value)
    return bytes(out)
