"""Checkpoints of a few bytes that claim much, which a reader that believed them would
never finish.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from bundle.arithmetic import ceil_div
from tests.cases.checkpoints.written import Layout
from tests.hostile.ordeal import FLOOR_BYTES, HELD_PER_BYTE, deadline, endure, memory_limit
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    block,
    entry,
    field,
    header,
    joined,
    node,
    object_graph,
    sealed,
    shape_proto,
    slice_key,
    slice_proto,
    table,
    text_data,
    varint,
)

Claim = Callable[[Path], None]
Pair = tuple[bytes, bytes]
MANY = 4_000
FEW = 1_000
KEY = f"emb/embeddings{SUFFIX}"


def write(
    prefix: Path, pairs: Iterable[Pair], data: bytes = bytes(16), head: bytes | None = None
) -> None:
    write_raw(prefix, table([(b"", header() if head is None else head), *pairs]), data)


def write_raw(prefix: Path, index: bytes, data: bytes = bytes(16)) -> None:
    Path(f"{prefix}.index").write_bytes(index)
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)


def write_graph(prefix: Path, *nodes: bytes, pairs: Iterable[Pair] = (), data: bytes = b"") -> None:
    """An object graph behind the data of other variables."""
    stored, crc = text_data(object_graph(*nodes))
    write(prefix, [(GRAPH.encode(), entry(7, (), len(data), stored, crc)), *pairs], data + stored)


def sliced(shape: tuple[int, ...], boxes: Iterable[tuple[tuple[int, int], ...]]) -> bytes:
    return (
        field(1, 1)
        + field(2, shape_proto(shape))
        + b"".join(field(7, slice_proto(box)) for box in boxes)
    )


# The table.


def keys_that_unfold(prefix: Path) -> None:
    """Entries of ten bytes whose keys have 60 000 bytes each."""
    head = header()
    long = b"k" * 60_000
    entries = [
        varint(0) + varint(0) + varint(len(head)) + head,
        varint(0) + varint(len(long)) + varint(2) + long,
    ]
    entries += [
        varint(len(long)) + varint(3) + varint(2) + struct.pack(">I", n)[1:] for n in range(MANY)
    ]
    body = entries[0] + b"\x08\x01".join(entries[1:]) + b"\x08\x01" + struct.pack("<II", 0, 1)
    write_raw(prefix, joined(sealed(body), block([(b"z", varint(0) + varint(len(body)))])))


# Entries.


def text_of_an_exabyte(prefix: Path) -> None:
    data = varint(2**60) + bytes(12)
    write(prefix, [(GRAPH.encode(), entry(7, (), 0, data))], data)


def slices_that_share_their_bytes(prefix: Path) -> None:
    """5 000 slices, one after the other in the variable, in one place of the file: 20
    MB of 4 KB.
    """
    boxes = [((1000 * number, 1000),) for number in range(5000)]
    stored = entry(1, (1000,), 0, bytes(4000))
    write(
        prefix,
        [(b"v", sliced((5_000_000,), boxes)), *((slice_key("v", box), stored) for box in boxes)],
        bytes(4000),
    )


def slices_that_overlap(prefix: Path) -> None:
    """Every slice holds the 1 000 rows in the middle."""
    boxes = [((number, 1000), (0, -1)) for number in range(1000)]
    key = "column/embedding_weights"
    pairs = []
    for number, box in enumerate(boxes):
        pairs.append((slice_key(key, box), entry(1, (1000, 1), 4000 * number, 4000, 0)))
    write(prefix, [(key.encode(), sliced((2000, 1), boxes)), *pairs], bytes(4_000_000))


def slices_like_bricks(prefix: Path) -> None:
    """Every column is cut at another row: as many bands as columns, each of as many slices."""
    count = 500
    boxes = [
        box
        for at in range(count)
        for box in (((0, at + 1), (at, 1)), ((at + 1, count - at), (at, 1)))
    ]
    pairs = [(KEY.encode(), sliced((count + 1, count), boxes))]
    offset = 0
    for box in boxes:
        pairs.append((slice_key(KEY, box), entry(1, (box[0][1], 1), offset, 4 * box[0][1], 0)))
        offset += 4 * box[0][1]
    nodes = (node({"emb": 1}), node({"embeddings": 2}), node(key=KEY, full_name="emb/embeddings"))
    write_graph(prefix, *nodes, pairs=pairs, data=bytes(offset))


# The object graph.


def embedding_objects_that_share_their_tables(prefix: Path) -> None:
    n = 3000
    objects = [node({"_variables": n + 1}) for _ in range(n)]
    tables = node({f"t{number}": n + 2 for number in range(n)})
    write_graph(
        prefix,
        node({f"o{at}": 1 + at for at in range(n)}),
        *objects,
        tables,
        node({"parameters": n + 3}),
        b"",
    )


def tables_that_share_their_slots(prefix: Path) -> None:
    n = 3000
    objects = [node({"_variables": n + 1 + number}) for number in range(n)]
    tables = [node({"t": 2 * n + 1}) for _ in range(n)]
    slots = node({"parameters": 2 * n + 2, **{f"s{number}": 2 * n + 2 for number in range(n)}})
    write_graph(prefix, node({f"o{at}": 1 + at for at in range(n)}), *objects, *tables, slots, b"")


def optimizers_that_share_their_lists(prefix: Path) -> None:
    n = 1000
    lists = {f"_l{number}": n + 2 for number in range(50)}
    optimizers = [
        node({"_iterations": n + 3, "_variables": n + 1, "_trainable_variables": n + 2, **lists})
        for _ in range(n)
    ]
    list_nodes = [node({str(number): n + 3 for number in range(n)})] * 2
    write_graph(prefix, node({f"o{at}": 1 + at for at in range(n)}), *optimizers, *list_nodes, b"")


def messages_in_messages(prefix: Path) -> None:
    nested = b""
    for _ in range(50_000):
        nested = b"\x0a" + varint(len(nested)) + nested if len(nested) < 200_000 else nested
    write_graph(prefix, nested)


# SparseCore layouts.


def write_stack(prefix: Path, layouts: bytes, rows: int, objects: int = 1) -> None:
    """A stack of [rows, 1] that holds what the layouts say, in embedding objects that share it and
    the layouts.
    """
    stored, crc = text_data(layouts)
    key = f"e/s{SUFFIX}"
    at = 4 * rows
    nodes = [node({f"o{number}": 1 + number for number in range(objects)})]
    nodes += [
        node({"_variables": 1 + objects + number, "_sparse_core_table_layouts": 1 + 3 * objects})
        for number in range(objects)
    ]
    nodes += [node({"s": 1 + 2 * objects + number}) for number in range(objects)]
    nodes += [node({"parameters": 2 + 3 * objects}) for _ in range(objects)]
    pairs = [
        (key.encode(), entry(1, (rows, 1), 0, at, 0)),
        (b"layouts", entry(7, (), at, stored, crc)),
    ]
    write_graph(
        prefix, *nodes, node(key="layouts"), node(key=key), pairs=pairs, data=bytes(at) + stored
    )


def layout(name: str, cores: int, core_rows: int, rows: int = 1, offset: int = 0) -> bytes:
    padded = (ceil_div(rows, cores) * cores, 1)
    return Layout(name, (rows, 1), padded, offset, 0, "s", cores, core_rows).message()


CLAIMS: dict[str, Claim] = {
    "keys that unfold": keys_that_unfold,
    "entries of little": lambda prefix: write(
        prefix, ((b"%06x" % number, b"\x08\x01\x12\x04\x12\x02\x08\x00") for number in range(MANY))
    ),
    "a billion data files": lambda prefix: write(
        prefix, [(b"v", entry(1, (4,), 0, 16, 0, shard=10**9 - 1))], head=header(10**9)
    ),
    "text of an exabyte": text_of_an_exabyte,
    "slice listed very often": lambda prefix: write(
        prefix,
        [
            (b"v", sliced((4,), [((0, -1),)] * MANY)),
            (slice_key("v", [(0, -1)]), entry(1, (4,), 0, 16, 0)),
        ],
    ),
    "slices that share their bytes": slices_that_share_their_bytes,
    "slices that overlap": slices_that_overlap,
    "slices like bricks": slices_like_bricks,
    "chain of objects": lambda prefix: write_graph(
        prefix,
        *(node({"a": number + 1}) for number in range(MANY)),
        node(key=KEY, full_name="a/embeddings"),
    ),
    "objects of nothing": lambda prefix: write_graph(prefix, *([b""] * 50_000)),
    "a million children": lambda prefix: write_graph(
        prefix, node({str(number): 1 for number in range(50_000)}), node()
    ),
    "embedding objects that share their tables": embedding_objects_that_share_their_tables,
    "tables that share their slots": tables_that_share_their_slots,
    "optimizers that share their lists": optimizers_that_share_their_lists,
    "messages in messages": messages_in_messages,
    "tables of one row": lambda prefix: write_stack(
        prefix, b"".join(layout(f"t{at}", 1, FEW, offset=at) for at in range(FEW)), FEW
    ),
    "tables in one place": lambda prefix: write_stack(
        prefix, b"".join(layout(f"t{at}", 1, FEW) for at in range(FEW)), FEW
    ),
    "layouts that many objects share": lambda prefix: write_stack(
        prefix,
        b"".join(layout(f"t{at}", 1, 1000, offset=at) for at in range(1000)),
        1000,
        objects=1000,
    ),
    "cores of an exabyte": lambda prefix: write_stack(
        prefix, layout("t", 2**62, 2**62, rows=2**62), 100
    ),
    "cores without rows": lambda prefix: write_stack(prefix, layout("t", 2**18, 1), 2**18),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_checkpoint_with_huge_sizes_is_rejected_in_time_and_memory_of_its_own_size(
    tmp_path: Path, claim: Claim
) -> None:
    claim(tmp_path / "c")
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    with deadline(20), memory_limit(FLOOR_BYTES + HELD_PER_BYTE * size):
        assert endure(tmp_path / "c")
