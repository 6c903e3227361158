"""Checkpoints of TensorFlow that are broken: indexes, object graphs and layouts of stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.checkpoints.inspections import Case, Write
from tests.cases.checkpoints.written import STACKED, stacks
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    block,
    entry,
    field,
    header,
    joined,
    node,
    object_graph,
    shape_proto,
    slice_key,
    slice_proto,
    table,
    text_data,
    varint,
    write_bundle,
)

Pair = tuple[bytes, bytes]
HEADER = (b"", header())


def file_of(content: bytes) -> Write:
    """Returns what writes an index over a data file of 1,000 bytes."""

    def write(directory: Path) -> Path:
        (directory / "c.index").write_bytes(content)
        (directory / "c.data-00000-of-00001").write_bytes(bytes(1000))
        return directory / "c"

    return write


def index(*pairs: Pair) -> Write:
    return file_of(table(pairs))


def variable(*arguments: Any, **options: Any) -> Write:
    """Returns what writes an index of one variable."""
    return index(HEADER, (b"v", entry(*arguments, **options)))


def sliced(shape: tuple[int, ...], *boxes: Any) -> Pair:
    slices = b"".join(field(7, slice_proto(box)) for box in boxes)
    return b"v", field(1, 1) + field(2, shape_proto(shape)) + slices


def stored(box: tuple[int, int], size: int, dtype: int = 1) -> Pair:
    return slice_key("v", [box]), entry(dtype, (size,), 0, 4 * size, 0)


def one_block(content: bytes) -> Write:
    handle = varint(0) + varint(len(content) - 5)
    return file_of(joined(content, block([(b"z", handle)])))


def graph(*nodes: bytes) -> Write:
    def write(directory: Path) -> Path:
        write_bundle(directory / "c", {GRAPH: object_graph(*nodes)})
        return directory / "c"

    return write


def without_file(directory: Path) -> Path:
    write_bundle(directory / "c", {"a": np.zeros(3), "b": np.zeros(3)}, files=2)
    (directory / "c.data-00001-of-00002").unlink()
    return directory / "c"


def text_that_is_damaged(directory: Path) -> Path:
    """Writes a graph of which a bit differs."""
    text, crc = text_data(object_graph(node()))
    pairs = [HEADER, (GRAPH.encode(), entry(7, (), 0, text, crc))]
    (directory / "c.index").write_bytes(table(pairs))
    changed = text[:-1] + bytes([text[-1] ^ 1])
    (directory / "c.data-00000-of-00001").write_bytes(changed)
    return directory / "c"


def stack(**changes: Any) -> Write:
    """Returns what writes a stack of two tables; the layout of the first one is changed."""
    users, items = STACKED
    return stacks(users._replace(**changes), items)


OUTSIDE = "names a node outside it"
IMPOSSIBLE = "which nothing can have"
NO_FIT = "which does not fit"

BROKEN_INDEXES: dict[str, Case] = {
    # The file.
    "block that is compressed": (one_block(block([(b"a", b"")], kind=1)), "snappy"),
    "block without its checksum": (one_block(block([(b"a", b"")])[:-1] + b"?"), "checksum"),
    "big-endian": (index((b"", header(endianness=1))), "big-endian"),
    "reader of the future": (index((b"", header(min_consumer=9))), "format 9", "knows 1"),
    "no header": (index((b"a", b"")), "{path}.index", "without a header"),
    "data file that is gone": (without_file, "c.data-00001-of-00002", "copy all files"),
    # The entry of a variable.
    "too many bytes": (variable(1, (10, 4), 0, 161, 0), "'v'", "161 bytes"),
    "product too large": (variable(1, (1 << 40, 1 << 40), 0, 160, 0), IMPOSSIBLE),
    "extent below zero": (variable(1, (-1, 4), 0, 160, 0), "(-1, 4)", IMPOSSIBLE),
    "values behind the end": (variable(1, (10, 4), 900, 160, 0), "byte 1060", "cut short"),
    "file of a few": (variable(1, (10, 4), 0, 160, 0, shard=1), "data file 1 of 1"),
    "name that is no text": (index(HEADER, (b"\xff", entry(1, (4,), 0, 16, 0))), "0xff"),
    "values that share bytes": (
        index(HEADER, *((b"v%d" % number, entry(1, (100,), 0, 400, 0)) for number in range(3))),
        "1000 bytes",
        "claim 1200",
    ),
    # Its slices.
    "slice that is not there": (index(HEADER, sliced((4,), [(0, 2)])), "does not hold"),
    "slice listed twice": (
        index(HEADER, sliced((10,), [(0, 10)], [(0, 10)]), stored((0, 10), 10)),
        "lists it twice",
    ),
    "slice behind the end": (index(HEADER, sliced((10,), [(8, 4)]), stored((8, 4), 4)), NO_FIT),
    "slice of another shape": (index(HEADER, sliced((10,), [(0, 4)]), stored((0, 4), 5)), NO_FIT),
    "slice of another dtype": (
        index(HEADER, sliced((10,), [(0, 4)]), stored((0, 4), 4, dtype=3)),
        "int32",
        NO_FIT,
    ),
    # The object graph.
    "child outside": (graph(node({"a": 1})), OUTSIDE),
    "slot outside": (graph(node(slots=[(0, "m", 1)])), OUTSIDE),
    "graph of another checksum": (text_that_is_damaged, GRAPH, "checksum"),
    # Layouts of stacks.
    "layouts that are none": (stacks(raw=b"\xff"), "SparseCoreTableLayouts"),
    "unknown field of a layout": (stacks(raw=field(1, field(99, 2))), "unknown", "99"),
    "cores of more rows": (stack(cores=8), "makes 256 rows", "128"),
    "too many cores": (
        stack(cores=1 << 40, core_rows=1, padded=(1 << 40, 8)),
        "1 to 1048576 cores",
    ),
    "table wider than its stack": (stack(shape=(50, 9)), "[50, 9]", "1 to 8 columns"),
    "rotation of as many as cores": (stack(rotation=4), "rotated by 4", "0 to 3"),
    "rows behind the core's": (stack(offset=20), "rows 20 to 33", "32"),
    "tables that overlap": (stack(offset=12), "both hold row 16"),
    "tables of other cores": (stack(cores=8, core_rows=16), "8 and 4 cores"),
    "name twice": (stack(name="items"), "'items' twice"),
    "stack that is not there": (stack(stack="z"), "'z'", "users_items"),
}
