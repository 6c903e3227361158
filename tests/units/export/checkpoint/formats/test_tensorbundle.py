"""Indexes of checkpoints: slices, headers, files; and entries that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats import tensorbundle
from export.checkpoint.formats.sstable import read_table
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.checkpoint.tensor_bundles import (
    entry,
    field,
    header,
    shape_proto,
    slice_key,
    slice_proto,
    table,
    text_data,
    write_bundle,
)


def write_index(
    prefix: Path, *pairs: tuple[bytes, bytes], head: bytes | None = None, data: bytes = bytes(1000)
) -> Path:
    Path(f"{prefix}.index").write_bytes(
        table([(b"", head if head is not None else header()), *pairs])
    )
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    return prefix


Pair = tuple[bytes, bytes]


def sliced(shape: tuple[int, ...], *boxes: Any) -> Pair:
    return b"v", field(1, 1) + field(2, shape_proto(shape)) + b"".join(
        field(7, slice_proto(box)) for box in boxes
    )


def stored(box: Any, shape: tuple[int, ...]) -> Pair:
    return slice_key("v", box), entry(1, shape, 0, 4 * shape[0], 0)


HEADER = (b"", header())


def variables(**entries: bytes) -> list[Pair]:
    """Returns the pairs of an index of variables."""
    return [HEADER, *((name.encode(), stored_entry) for name, stored_entry in entries.items())]


def one(*arguments: Any, **options: Any) -> list[Pair]:
    """Returns the pairs of an index of one variable."""
    return variables(v=entry(*arguments, **options))


IMPOSSIBLE = "{index}: a shape of "
NINE_AXES = (-1, 2, 3, 4, 5, 6, 7, 8, 9)

BROKEN: list[tuple[list[Pair], str]] = [
    # The entry of a variable.
    (one(1, (10, 4), 0, 161, 0), "'v' of shape (10, 4), float32, claims 161 bytes"),
    (one(1, (1 << 40, 1 << 40), 0, 160, 0), IMPOSSIBLE + "(1099511627776, 1099511627776), which"),
    (one(1, (-1, 4), 0, 160, 0), IMPOSSIBLE + "(-1, 4), which nothing can have"),
    (one(1, (1,) * 33, 0, 4, 0), IMPOSSIBLE + "(1, 1, 1, 1, 1, 1, 1, 1), which nothing can have"),
    (one(1, (0, 1 << 62), 0, 0, 0), IMPOSSIBLE + "(0, 4611686018427387904), which nothing can"),
    (
        one(1, NINE_AXES, 0, 4, 0),
        "checkpoint index {index}: a shape of (-1, 2, 3, 4, 5, 6, 7, 8), which nothing can have; "
        "copy the checkpoint anew or take an older one",
    ),
    (one(1, (10, 4), 900, 160, 0), "has 1000 bytes, but 'v' ends at byte 1060: it was cut short"),
    (one(1, (10, 4), 1 << 62, 160, 0), "has 1000 bytes, but 'v' ends at byte 46116860184273880"),
    (one(1, (10, 4), (1 << 64) - 8, 160, 0), "'v' at byte -8 of data file 0 with 160 bytes"),
    (one(1, (10, 4), 0, 160, 0, shard=1), "a variable lies in data file 1 of 1"),
    (one(1, (10, 4), 0, 160, 0, shard=7), "a variable lies in data file 7 of 1"),
    (variables(v=field(1, 1) + field(2, field(3, 1))), "a stored variable without a rank"),
    (variables(v=b"\x08"), "no BundleEntryProto"),
    (variables(v=b""), "an entry of dtype 0"),
    ([HEADER, (b"\xff", entry(1, (4,), 0, 16, 0))], "can't decode byte 0xff"),
    (
        variables(**{f"v{number}": entry(1, (100,), 0, 400, 0) for number in range(3)}),
        "has 1000 bytes, its variables claim 1200: they cannot all lie in it; copy the checkpoint",
    ),
    # Its slices.
    ([HEADER, sliced((4,), [(0, 2)])], "'v' lists a slice [(0, 2)] that the index does not hold"),
    ([HEADER, sliced((4, 4), [(0, 2)])], "rank 2 and a slice of rank 1"),
    *(
        (
            [HEADER, sliced((10,), [box]), stored([box], shape)],
            f"'v' of shape (10,) lists a slice at ({box[0]},) of shape ({size},) and stores one "
            f"of shape {shape}, float32, which does not fit",
        )
        for box, size, shape in (
            ((8, 4), 4, (4,)),
            ((0, 4), 4, (5,)),
            ((1, -1), 10, (10,)),
            ((-1, 4), 4, (4,)),
        )
    ),
    (
        [HEADER, sliced((10,), [(0, 4)]), (slice_key("v", [(0, 4)]), entry(3, (4,), 0, 16, 0))],
        "'v' of shape (10,) lists a slice at (0,) of shape (4,) and stores one of shape (4,), "
        "int32, which does not fit",
    ),
    (
        [HEADER, sliced((10,), [(0, 10)], [(0, 10)]), stored([(0, 10)], (10,))],
        "'v' lists a slice [(0, 10)] that the index does not hold, or lists it twice",
    ),
    # The header.
    ([(b"", header(endianness=1))], "{index} was written on a big-endian machine, which is not"),
    ([(b"", header(min_consumer=9))], "{index} needs a reader of format 9; this one knows 1;"),
    ([(b"", header(-3))], "its header claims -3 data files"),
    ([(b"", b"\xff")], "no BundleHeaderProto"),
    ([(b"", header(0)), (b"v", entry(1, (4,), 0, 16, 0))], "a variable lies in data file 0 of 0"),
    ([(b"a", b"")], "{index} is a sorted string table without a header, so no checkpoint index;"),
]
"""Pairs of an index over a data file of 1000 bytes, and the error."""


@pytest.mark.parametrize(("pairs", "message"), BROKEN)
def test_index_that_cannot_be_meant_is_rejected_with_the_reason(
    tmp_path: Path, pairs: list[Pair], message: str
) -> None:
    index = tmp_path / "c.index"
    index.write_bytes(table(pairs))
    (tmp_path / "c.data-00000-of-00001").write_bytes(bytes(1000))
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path / "c")
    assert message.format(index=index) in str(error.value)


def test_read_index_missing_data_file_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"a": np.zeros(3), "b": np.zeros(3)}, files=2)
    file = tmp_path / "c.data-00001-of-00002"
    file.unlink()
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(tmp_path / "c")
    message = (
        f"data file {file} cannot be read: No such file or directory; copy all files of the "
        "checkpoint"
    )
    assert str(error.value) == message
    entries = tensorbundle.read_index(tmp_path / "c").entries
    file.write_bytes(bytes(25))  # it may come while the error is written
    assert list(tensorbundle.file_problems(entries)) == [message]


def test_read_index_of_a_newer_writer_for_this_reader_is_read(tmp_path: Path) -> None:
    prefix = write_index(tmp_path / "c", head=header(min_consumer=1))
    assert dict(open_checkpoint(prefix).entries) == {}


def test_read_index_without_data_files_holds_no_variables(tmp_path: Path) -> None:
    prefix = write_index(tmp_path / "c", head=header(0))
    assert dict(open_checkpoint(prefix).entries) == {}


def test_read_index_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        tensorbundle.read_index(tmp_path / "c")
    message = f"checkpoint index {tmp_path / 'c.index'} cannot be read: No such file or directory"
    assert str(error.value) == message


def test_read_index_has_a_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = write_index(tmp_path / "c", (b"v", entry(1, (4,), 0, 16, 0)))
    size = (tmp_path / "c.index").stat().st_size
    monkeypatch.setattr(tensorbundle, "INDEX_BYTES_MAX", size)
    assert list(open_checkpoint(prefix).entries) == ["v"]
    monkeypatch.setattr(tensorbundle, "INDEX_BYTES_MAX", size - 1)
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(prefix)
    assert str(error.value) == (
        f"checkpoint index {prefix}.index has {size} bytes; at most {size - 1} are read"
    )


@pytest.mark.parametrize(
    ("positions", "size", "metadata"),
    [
        ({"v": (0, 16), "w": (16, 8)}, 24, ""),
        ({"v": (0, 16), "w": (16, 8)}, 23, "'w' ends at byte 24"),
        ({"v": (8, 16), "w": (0, 8)}, 23, "'v' ends at byte 24"),
        ({"v": (8, 16), "w": (16, 8)}, 23, "'v' ends at byte 24"),
        ({"v": (0, 16), "w": (8, 8)}, 24, ""),
        ({"v": (0, 16), "w": (4, 8)}, 23, "its variables claim 24: they cannot all lie in it"),
        ({"v": (0, 0), "w": (99, 0)}, 1, ""),
    ],
)
def test_data_file_must_hold_its_variables(
    tmp_path: Path, positions: dict[str, tuple[int, int]], size: int, metadata: str
) -> None:
    pairs = [
        (name.encode(), entry(1, (count // 4,), offset, count, 0))
        for name, (offset, count) in positions.items()
    ]
    prefix = write_index(tmp_path / "c", *pairs, data=bytes(size))
    actual = open_checkpoint(prefix, complete=False)
    if not metadata:
        assert actual.problems == ()
        return
    (problem,) = actual.problems
    assert problem.startswith(f"data file {prefix}.data-00000-of-00001 has {size} bytes, ")
    assert metadata in problem


VARIABLES: dict[str, np.ndarray[Any, Any] | bytes] = {
    "whole": np.arange(12, dtype=np.float32).reshape(4, 3),
    "cut": np.arange(200, dtype=np.int64).reshape(100, 2),
    "text": b"words",
}
BOXES = {"cut": [[(0, 70), (0, -1)], [(70, 30), (0, 1)], [(70, 30), (1, 1)]]}


def test_index_is_written_as_it_was_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", VARIABLES, boxes=BOXES, files=2)
    read = tensorbundle.read_index(tmp_path / "c")
    positions = {
        key: [(part.starts, part.shape) for part in entry.slices]
        for key, entry in read.entries.items()
    }
    assert positions == {
        "whole": [((0, 0), (4, 3))],
        "cut": [((0, 0), (70, 2)), ((70, 0), (30, 1)), ((70, 1), (30, 1))],
        "text": [((), ())],
    }
    before = (tmp_path / "c.index").read_bytes()

    tensorbundle.write_index(tmp_path / "c", read.entries, 2)
    after = (tmp_path / "c.index").read_bytes()
    # A slice of all columns is declared with their number.
    key = slice_key("cut", BOXES["cut"][0])
    written = dict(read_table(before))
    proto = written.pop(key)
    assert dict(read_table(after))[slice_key("cut", [(0, 70), (0, 2)])] == proto
    del written[b"cut"]
    assert written.items() <= dict(read_table(after)).items()
    assert len(read_table(after)) == len(read_table(before))
    assert dict(tensorbundle.read_index(tmp_path / "c").entries) == dict(read.entries)


def test_index_of_what_it_cannot_say_is_not_written(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"v": np.zeros(3)})
    whole = tensorbundle.read_index(tmp_path / "c").entries["v"]
    (part,) = whole.slices
    message = f"bytes 1 of {part.file} have no crc32c, or the file is none of the checkpoint's"
    for changed in (part._replace(crc32c=None), part._replace(file="elsewhere")):
        with pytest.raises(ValueError, match=r"have no crc32c, or the file is none") as error:
            tensorbundle.write_index(tmp_path / "d", {"v": whole._replace(slices=(changed,))}, 1)
        assert str(error.value) == message.replace(part.file, changed.file)
    with pytest.raises(ValueError, match="float4 is no dtype of an index"):
        tensorbundle.write_index(tmp_path / "c", {"v": whole._replace(dtype="float4")}, 1)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 300])
def test_string_is_stored_with_its_length_and_checksums(count: int) -> None:
    text = np.random.default_rng(0).bytes(count)
    assert tensorbundle.string_bytes(text) == text_data(text)
    data, crc = text_data(text)
    assert tensorbundle.read_string(data, crc) == text
    assert tensorbundle.read_string(data, crc ^ 1) is None
    assert tensorbundle.read_string(data + b"\0", crc) is None
    assert tensorbundle.read_string(data[:-1], crc) is None
    assert tensorbundle.read_string(b"\xff" * 11, crc) is None


def test_read_index_empty_variable_past_the_end_and_unknown_dtype_are_listed(
    tmp_path: Path,
) -> None:
    pairs = (b"empty", entry(1, (0, 4), 5000, b"")), (b"odd", entry(99, (3,), 0, b"abc"))
    entries = open_checkpoint(write_index(tmp_path / "c", *pairs)).entries
    assert (entries["empty"].bytes, entries["odd"].dtype) == (0, "dtype 99")
