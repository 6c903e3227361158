from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pytest
import tensorstore

from export.checkpoint.formats import arrays
from export.checkpoint.formats.arrays import WINDOW_BYTES, ArrayRows, decoder_of, memory_bytes
from export.checkpoint.source_sums import SourceSum
from export.checkpoint.variables import ArrayStore
from export.errors import CheckpointError
from export.tables.tasks import DECODER_BYTES
from object_store.stamps import local_stamp

DIM = 256
LARGE_ROWS = WINDOW_BYTES // (4 * DIM) + 1000
"""Rows of a chunk that is a window of its own."""

RAW: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
ZSTD = [*RAW, {"name": "zstd", "configuration": {"level": 1}}]


def zarr2(rows: int, chunk: int, compressor: dict[str, Any] | None) -> dict[str, Any]:
    metadata = {
        "shape": [rows, DIM],
        "chunks": [chunk, DIM],
        "dtype": "<f4",
        "compressor": compressor,
    }
    return {"driver": "zarr", "metadata": metadata}


def zarr3(rows: int, shard: int, chunk: int, codecs: list[dict[str, Any]]) -> dict[str, Any]:
    if shard != chunk or codecs is ZSTD:
        index = [*RAW, {"name": "crc32c"}]
        inner = {"chunk_shape": [chunk, DIM], "codecs": codecs, "index_codecs": index}
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    grid = {"name": "regular", "configuration": {"chunk_shape": [shard, DIM]}}
    metadata = {"shape": [rows, DIM], "data_type": "float32", "chunk_grid": grid, "codecs": codecs}
    return {"driver": "zarr3", "metadata": metadata}


def values_of(rows: int) -> np.ndarray[Any, Any]:
    return (np.arange(rows * DIM, dtype=np.uint32) % 9973).astype(np.float32).reshape(rows, DIM)


def write(directory: Path, metadata: dict[str, Any], values: np.ndarray[Any, Any]) -> ArrayStore:
    where = {"driver": "file", "path": f"{directory}/"}
    stored = {**metadata, "kvstore": where, "create": True, "store_data_equal_to_fill_value": True}
    array = tensorstore.open(stored).result()
    array[: len(values)].write(values).result()
    spec = json.dumps({"driver": metadata["driver"], "kvstore": where})
    told_by = directory / (".zarray" if metadata["driver"] == "zarr" else "zarr.json")
    return ArrayStore(spec, (1, DIM), file=str(told_by), stamp=local_stamp(told_by.stat()))


def read(rows: ArrayRows, first: int, count: int) -> np.ndarray[Any, Any]:
    actual = np.empty((count, 4 * DIM), np.uint8)
    rows.read_into(first, actual)
    return actual.view(np.float32)


FORMS = {
    "zarr2_zstd": lambda rows, chunk: zarr2(rows, chunk, {"id": "zstd", "level": 1}),
    "zarr2_raw": lambda rows, chunk: zarr2(rows, chunk, None),
    "zarr2_blosc": lambda rows, chunk: zarr2(
        rows, chunk, {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
    ),
    "zarr3_sharded": lambda rows, chunk: zarr3(rows, 2 * chunk, chunk, ZSTD),
    "zarr3_plain": lambda rows, chunk: zarr3(rows, chunk, chunk, RAW),
}


def bytes_read() -> int:
    """Returns how many bytes this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("decoded", [0, 1, 2])
def test_rows_of_several_windows_begin_with_the_one_that_is_decoded(
    tmp_path: Path, decoded: int
) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((3 * LARGE_ROWS, DIM), np.float32)  # packs badly
    store = write(tmp_path, FORMS["zarr2_zstd"](len(values), LARGE_ROWS), values)
    chunk_bytes = (tmp_path / "0.0").stat().st_size
    with ArrayRows(store) as rows:
        read(rows, decoded * LARGE_ROWS, 1)
        before = bytes_read()
        actual = read(rows, LARGE_ROWS - 1, 2 if decoded < 2 else LARGE_ROWS + 2)
        chunks = (bytes_read() - before) / chunk_bytes
    np.testing.assert_array_equal(actual, values[LARGE_ROWS - 1 :][: len(actual)])
    assert chunks == pytest.approx({0: 1, 1: 1, 2: 2}[decoded], abs=0.2)


@pytest.mark.parametrize("chunk_count", [1, 4])
def test_chunks_that_fill_a_window_are_decoded_once(tmp_path: Path, chunk_count: int) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((WINDOW_BYTES // (4 * DIM), DIM), np.float32)  # packs badly
    chunk_rows = len(values) // chunk_count
    store = write(tmp_path, FORMS["zarr2_zstd"](len(values), chunk_rows), values)
    stored_bytes = sum(path.stat().st_size for path in tmp_path.glob("*.0"))
    with ArrayRows(store) as rows:
        before = bytes_read()
        for _ in range(3):
            for first in range(0, len(values), chunk_rows):
                read(rows, first, 1)
        assert bytes_read() - before < 1.2 * stored_bytes


@pytest.mark.parametrize(
    ("form", "chunk", "damage"),
    [
        *(
            (form, 70, damage)
            for form in ("zarr2_zstd", "zarr3_sharded")
            for damage in ("overwritten", "emptied", "halved", "gone")
        ),
        ("zarr2_zstd", LARGE_ROWS, "overwritten"),
    ],
)
def test_damaged_chunk_is_an_error_that_names_array_chunk_and_file(
    tmp_path: Path, form: str, chunk: int, damage: str
) -> None:
    values = np.random.default_rng(0).standard_normal((2 * chunk, DIM), np.float32)  # packs badly
    store = write(tmp_path / "params.a", FORMS[form](2 * chunk, chunk), values)
    file = tmp_path / "params.a" / ("1.0" if form == "zarr2_zstd" else "c/0/0")
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        changed = {"overwritten": bytes(20) + data[20:], "emptied": b""}
        file.write_bytes(changed.get(damage, data[: len(data) // 2]))
    message = rf"array 'params\.a' cannot be read.*{re.escape(str(file))}.*copy the checkpoint anew"
    with pytest.raises(CheckpointError, match=message):
        read(ArrayRows(store), 0, 2 * chunk)


def test_chunk_of_another_codec_is_an_error(tmp_path: Path) -> None:
    store = write(tmp_path, FORMS["zarr2_zstd"](70, 70), values_of(70))
    metadata = json.loads((tmp_path / ".zarray").read_text())
    metadata["compressor"] = {
        "id": "blosc",
        "cname": "lz4",
        "clevel": 5,
        "shuffle": 1,
        "blocksize": 0,
    }
    (tmp_path / ".zarray").write_text(json.dumps(metadata))
    store = store._replace(stamp=local_stamp((tmp_path / ".zarray").stat()))
    with pytest.raises(CheckpointError, match=r"0\.0.*Invalid blosc-compressed data"):
        read(ArrayRows(store), 0, 70)


def test_missing_part_of_a_shard_is_never_zeros(tmp_path: Path) -> None:
    metadata = FORMS["zarr3_sharded"](280, 70)
    store = write(tmp_path, metadata, values_of(280))
    sparse = {**json.loads(store.spec), "store_data_equal_to_fill_value": False}
    tensorstore.open(sparse).result()[:70].write(np.zeros((70, DIM), "f4")).result()
    with pytest.raises(CheckpointError, match=r"chunk \{0, 0\} .*is missing"):
        read(ArrayRows(store), 0, 10)


def test_chunk_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    store = write(tmp_path, FORMS["zarr2_zstd"](140, 70), values_of(140))
    rows = ArrayRows(store)
    read(rows, 0, 70)
    (tmp_path / "1.0").write_bytes((tmp_path / "0.0").read_bytes())
    with pytest.raises(CheckpointError, match=r"1\.0 changed while it was read"):
        rows.sums()


@pytest.mark.parametrize("form", FORMS)
def test_stored_checksums_find_rows_that_were_overwritten(tmp_path: Path, form: str) -> None:
    store = write(tmp_path, FORMS[form](280, 70), values_of(280))
    rows = ArrayRows(store)
    read(rows, 140, 140)
    before = rows.sums()
    assert before == ArrayRows(store).stored_sums(140, 280)
    head = ArrayRows(store).stored_sums(0, 140)

    values = values_of(280)
    values[200, 3] += 1
    write(tmp_path, {**FORMS[form](280, 70), "open": True}, values)
    store = store._replace(stamp=None)
    assert ArrayRows(store).stored_sums(140, 280) != before
    assert ArrayRows(store).stored_sums(0, 140) == head


def sum_of(name: str, first: int, stored: list[bytes]) -> tuple[SourceSum, ...]:
    data = b"".join(stored)
    crc = google_crc32c.value(data)
    return (SourceSum(file=name, slice_offset=first, bytes=len(data), crc32c=crc),)


@pytest.mark.parametrize("piece_bytes", [1000, 7 * 4 * DIM, 1 << 20])
@pytest.mark.parametrize("form", ["zarr2_raw", "zarr3_plain"])
def test_stored_checksums_are_of_the_chunks_that_hold_rows(
    tmp_path: Path, form: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_STORED_BYTES", piece_bytes)
    store = write(tmp_path / "a", FORMS[form](80, 7), values_of(80))  # the last chunk is padded
    name = "{}.0" if form == "zarr2_raw" else "c/{}/0"
    chunks = [(tmp_path / "a" / name.format(number)).read_bytes() for number in range(12)]
    assert {len(chunk) for chunk in chunks} == {7 * 4 * DIM}
    rows = ArrayRows(store)
    for first, end, contents in (
        (0, 80, chunks),
        (7, 14, chunks[1:2]),
        (6, 15, chunks[:3]),
        (70, 78, chunks[10:]),
        (7, 7, []),
    ):
        assert rows.stored_sums(first, end) == sum_of("a", first, contents)
    read(rows, 30, 4)
    read(rows, 20, 5)
    assert rows.sums() == sum_of("a", 20, chunks[2:5])


def test_stored_checksums_of_chunks_of_one_row_are_of_those_of_the_rows(tmp_path: Path) -> None:
    store = write(tmp_path / "a", FORMS["zarr2_raw"](4, 1), values_of(4))
    chunks = [(tmp_path / "a" / f"{number}.0").read_bytes() for number in range(4)]
    assert ArrayRows(store).stored_sums(1, 3) == sum_of("a", 1, chunks[1:3])


def test_stored_checksums_of_a_dataset_are_of_its_chunks(tmp_path: Path) -> None:
    values = values_of(80)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=values, chunks=(32, 100))
    spec = {"driver": "hdf5", "path": str(tmp_path / "a.h5"), "member": None, "dataset": "t"}
    padded = np.zeros((96, 300), np.float32)
    padded[:80, :DIM] = values
    chunks = [
        padded[row : row + 32, column : column + 100].tobytes()
        for row in (0, 32, 64)
        for column in (0, 100, 200)
    ]
    with ArrayRows(ArrayStore(json.dumps(spec), (32, 100))) as rows:
        assert rows.stored_sums(0, 80) == sum_of("t", 0, chunks)
        assert rows.stored_sums(32, 64) == sum_of("t", 32, chunks[3:6])
        assert rows.stored_sums(31, 33) == sum_of("t", 31, chunks[:6])


@pytest.mark.parametrize(
    ("shape", "chunk", "itemsize", "expected_bytes"),
    [
        ((), (), 4, 8),
        ((3,), (2,), 8, 2 * 32),
        ((10, 6), (5, 4), 4, 2 * 320),
        ((100, 256), (70, 256), 4, 2 * 143_360),
        ((1 << 20, 256), (1 << 12, 256), 4, 32 << 20),
        ((1 << 16, 256), (1 << 15, 256), 4, 64 << 20),
        ((7, 3), (7, 3), 0, 0),
    ],
)
def test_rows_of_an_array_take_two_copies_of_a_window(
    shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int, expected_bytes: int
) -> None:
    assert memory_bytes(shape, chunk, itemsize) == expected_bytes


def test_decoder_is_the_library_with_its_version() -> None:
    zarr = ArrayStore(json.dumps({"driver": "zarr"}), ())
    dataset = ArrayStore(json.dumps({"driver": "hdf5"}), ())
    assert re.fullmatch(r"tensorstore \d+\.\d+\.\d+", decoder_of(zarr))
    assert decoder_of(dataset) == f"h5py {h5py.__version__}"


def test_array_without_some_of_its_chunks_is_not_opened(tmp_path: Path) -> None:
    store = write(tmp_path, FORMS["zarr2_raw"](80, 7), values_of(80))._replace(absent=3)
    with pytest.raises(CheckpointError) as error:
        ArrayRows(store)
    assert str(error.value) == (
        f"3 of its chunks are not stored ({store.file}): they were lost, or held only zeros, which "
        "Orbax left out of zarr 3 arrays before version 0.10 and which look the same; restore the "
        "checkpoint with the training program and save it with Orbax 0.10 or later"
    )


def test_rows_behind_the_last_one_are_rejected(tmp_path: Path) -> None:
    rows = ArrayRows(write(tmp_path / "a", FORMS["zarr2_raw"](80, 7), values_of(80)))
    np.testing.assert_array_equal(read(rows, 78, 2), values_of(80)[78:])
    with pytest.raises(CheckpointError) as error:
        read(rows, 78, 3)
    assert str(error.value) == (
        "array 'a' has 80 rows, none at 80: the checkpoint changed; read one that is complete"
    )


@pytest.mark.parametrize("change", ["added", "removed"])
def test_files_beside_an_array_may_not_come_or_go_while_it_is_read(
    tmp_path: Path, change: str
) -> None:
    store = write(tmp_path / "a", FORMS["zarr2_raw"](80, 7), values_of(80))
    file = tmp_path / "a" / ("0.1" if change == "added" else "11.0")
    rows = ArrayRows(store)
    read(rows, 0, 7)
    if change == "added":
        file.write_bytes(b"")
    else:
        file.unlink()
    with pytest.raises(CheckpointError) as error, rows:
        pass
    assert str(error.value) == (
        f"data file {file} changed while it was read; export a checkpoint that is complete and "
        "that nothing writes to"
    )


def test_error_while_an_array_is_read_is_not_replaced_by_another(tmp_path: Path) -> None:
    store = write(tmp_path / "a", FORMS["zarr2_raw"](80, 7), values_of(80))
    rows = ArrayRows(store)
    (tmp_path / "a/0.0").unlink()
    with pytest.raises(KeyError, match="the reader's own"), rows:
        raise KeyError("the reader's own")


def test_files_beside_a_dataset_may_change_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=values_of(80), chunks=(32, DIM))
    spec = {"driver": "hdf5", "path": str(path), "member": None, "dataset": "t"}
    store = ArrayStore(json.dumps(spec), (32, DIM), file=str(path), stamp=local_stamp(path.stat()))
    with ArrayRows(store) as rows:
        (tmp_path / "notes").write_text("written meanwhile")
        np.testing.assert_array_equal(read(rows, 3, 40), values_of(80)[3:43])
    rows = ArrayRows(store)
    os.utime(path, (1, 1))
    with pytest.raises(CheckpointError, match=r"a\.h5 changed while it was read"), rows:
        pass


def test_reason_why_an_array_cannot_be_read_is_shortened(tmp_path: Path) -> None:
    directory = tmp_path.joinpath("x" * 200, "y" * 200, "a")
    directory.parent.mkdir(parents=True)
    store = write(directory, FORMS["zarr2_raw"](80, 7), values_of(80))
    (directory / "0.0").unlink()
    with pytest.raises(CheckpointError) as error:
        read(ArrayRows(store), 0, 7)
    message = str(error.value).removeprefix("array 'a' cannot be read: ")
    reason = message.removesuffix("; it is damaged or incomplete, copy the checkpoint anew")
    assert len(reason) == 400
    assert "tensorstore_spec" not in reason


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"shuffle": True}])
def test_stored_checksums_of_a_dataset_find_rows_that_were_overwritten(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=values_of(100), chunks=(32, 100), **options)
    spec = {"driver": "hdf5", "path": str(tmp_path / "a.h5"), "member": None, "dataset": "t"}
    store = ArrayStore(json.dumps(spec), (32, 100))
    with ArrayRows(store) as rows:
        np.testing.assert_array_equal(read(rows, 30, 50), values_of(100)[30:80])
        before = rows.sums()
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["t"][99] += 1
    with ArrayRows(store) as rows:
        assert rows.stored_sums(30, 80) == before
        assert rows.stored_sums(90, 100) != before


def test_damaged_dataset_is_an_error_that_names_array_rows_and_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=values_of(100), chunks=(32, DIM), compression="gzip")
        position = file["t"].id.get_chunk_info(1)
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.seek(position.byte_offset + 4)
        raw.write(bytes(position.size - 4))
    spec = {"driver": "hdf5", "path": str(tmp_path / "a.h5"), "member": None, "dataset": "t"}
    rows = ArrayRows(ArrayStore(json.dumps(spec), (32, DIM)))
    with pytest.raises(CheckpointError, match=r"array 't', chunks of rows 32 to 64 in .*a\.h5"):
        read(rows, 32, 32)


_READ_ALL = """
import json, sys
import numpy as np
from export.checkpoint.formats.arrays import ArrayRows
from export.checkpoint.variables import ArrayStore

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) << 10

def read_bytes():
    return int(open("/proc/self/io").read().split()[1])

rows = ArrayRows(ArrayStore(sys.argv[1], ()))
block = np.empty((1024, int(sys.argv[3])), np.uint8)
before = peak()
begun = read_bytes()
count = int(sys.argv[2])
for first in range(0, count, 1024):
    rows.read_into(first, block)
for first in range(count - 100, 0, -1024):  # the last chunk is decoded already
    rows.read_into(first, block[:100])
read = read_bytes() - begun
rows.sums()
print(json.dumps({"grown": peak() - before, "read": read}))
"""


@pytest.mark.parametrize("form", ["zarr2_zstd", "zarr2_blosc", "zarr3_sharded", "hdf5"])
def test_large_chunks_are_decoded_once_and_one_is_held_at_a_time(tmp_path: Path, form: str) -> None:
    chunk = (40 << 20) // (4 * DIM)
    values = np.random.default_rng(0).standard_normal((2 * chunk, DIM), np.float32)
    if form == "hdf5":
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("t", data=values, chunks=(chunk, DIM), compression="lzf")
        path = str(tmp_path / "a.h5")
        spec = json.dumps({"driver": "hdf5", "path": path, "member": None, "dataset": "t"})
    else:
        spec = write(tmp_path, FORMS[form](2 * chunk, chunk), values).spec
    command = [sys.executable, "-c", _READ_ALL, spec, str(2 * chunk), str(4 * DIM)]
    actual = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    expected_bytes = memory_bytes((2 * chunk, DIM), (chunk, DIM), 4)
    assert actual["grown"] < expected_bytes + DECODER_BYTES
    stored = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert actual["read"] < 1.6 * stored  # forwards both chunks, and backwards the first again
