"""Files of safetensors, written by the page that describes the format."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats.safetensors import find_safetensors, list_safetensors
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
COUNTS = np.arange(5, dtype=np.int64)


def write_header(path: Path, header: Mapping[str, Any] | bytes, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write(path: Path, **tensors: np.ndarray[Any, Any]) -> Path:
    """Writes a file of float32 and int64 tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        dtype = {"float32": "F32", "int64": "I64"}[values.dtype.name]
        place = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": place}
        data += values.tobytes()
    return write_header(path, header, data)


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        list_safetensors(path)
    return str(error.value)


def test_tensors_of_a_file_are_listed_and_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", t=TABLE, n=COUNTS, empty=TABLE[:0])
    checkpoint = open_checkpoint(path)
    assert checkpoint.storage.kind == "PyTorch"
    assert {key: (each.dtype, each.shape) for key, each in checkpoint.entries.items()} == {
        "t": ("float32", (4, 3)),
        "n": ("int64", (5,)),
        "empty": ("float32", (0, 3)),
    }
    for key, values in (("t", TABLE), ("n", COUNTS)):
        (part,) = checkpoint.entries[key].slices
        content = path.read_bytes()
        assert content[part.offset : part.offset + part.bytes] == values.tobytes()
        assert (part.starts, part.shape) == ((0,) * values.ndim, values.shape)
        np.testing.assert_array_equal(checkpoint.read_all(key), values)


def test_fingerprint_is_of_header_and_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", t=TABLE)
    before = list_safetensors(path).fingerprint
    assert re.fullmatch("crc32c:[0-9a-f]{8}", before)
    assert list_safetensors(path).fingerprint == before
    copied = tmp_path / "b.safetensors"
    copied.write_bytes(path.read_bytes())
    assert list_safetensors(copied).fingerprint != before
    with path.open("r+b") as file:
        file.seek(8)
        file.write(path.read_bytes()[8:].replace(b'"t"', b'"u"'))
    assert list_safetensors(path).fingerprint != before


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.safetensors"], "a.safetensors"),
        (
            ["a.safetensors", "b.safetensors", "m.safetensors.index.json"],
            "m.safetensors.index.json",
        ),
        (["config.json", "a.safetensors"], "a.safetensors"),
        (["config.json"], None),
        ([], None),
    ],
)
def test_directory_is_its_only_file_or_its_index(
    tmp_path: Path, names: list[str], found: str | None
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert find_safetensors(tmp_path) == (None if found is None else tmp_path / found)


def test_path_is_a_file_of_safetensors_by_its_name(tmp_path: Path) -> None:
    for name in ("a.safetensors", "a.safetensors.index.json", "a.json"):
        assert find_safetensors(tmp_path / name) is None
        (tmp_path / name).write_bytes(b"")
    assert find_safetensors(tmp_path / "a.safetensors") == tmp_path / "a.safetensors"
    index = tmp_path / "a.safetensors.index.json"
    assert find_safetensors(index) == index
    assert find_safetensors(tmp_path / "a.json") is None


def test_directory_of_several_files_lists_five_of_them(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.safetensors").write_bytes(b"")
    names = ", ".join(f"{number}.safetensors" for number in range(5))
    with pytest.raises(CheckpointError) as error:
        find_safetensors(tmp_path)
    assert str(error.value) == (
        f"directory {tmp_path} holds 6 checkpoints of safetensors ({names}); give one of them, or "
        "the index of them all"
    )


def write_index(path: Path, **files: str) -> Path:
    path.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return path


def test_files_of_an_index_are_one_checkpoint(tmp_path: Path) -> None:
    index = write_index(tmp_path / "m.safetensors.index.json", t="1.safetensors", n="2.safetensors")
    write(tmp_path / "1.safetensors", t=TABLE)
    write(tmp_path / "2.safetensors", n=COUNTS)
    checkpoint = open_checkpoint(tmp_path)
    np.testing.assert_array_equal(checkpoint.read_all("t"), TABLE)
    np.testing.assert_array_equal(checkpoint.read_all("n"), COUNTS)

    write(tmp_path / "2.safetensors", n=COUNTS, t=TABLE)
    assert refused(index) == f"{index}: tensor 't' is in two files; save it anew"
    (tmp_path / "2.safetensors").unlink()
    missing = "which is not beside it; copy all files of the checkpoint"
    assert refused(index) == f"{index} names '2.safetensors', {missing}"
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub/2.safetensors", n=COUNTS)
    for name in ("sub/2.safetensors", "sub", ".."):
        write_index(index, t=name)
        assert refused(index) == f"{index} names {name!r}, {missing}"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": [1]}'])
def test_damaged_index_is_refused(tmp_path: Path, text: str) -> None:
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(text)
    assert refused(index).startswith(f"{index} is no index of safetensors: ")


def test_header_is_at_most_100_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_000))
    assert refused(path) == f"{path} is cut short in its header; copy it anew"
    path.write_bytes(struct.pack("<Q", 100_000_001))
    assert refused(path) == (
        f"{path} begins with a header of 100000001 bytes; at most 100000000 are allowed: it is no "
        "file of safetensors, or damaged"
    )


def test_file_ends_with_its_header_or_its_last_tensor(tmp_path: Path) -> None:
    path = write_header(tmp_path / "a.safetensors", {})
    assert dict(list_safetensors(path).entries) == {}
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(path) == f"{path} is cut short in its header; copy it anew"
    write(path, t=TABLE)
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(path) == f"{path} is cut short: 't' lies behind its end; copy it anew"


@pytest.mark.parametrize("header", [b"{", b"[]", b"\xff"])
def test_damaged_header_is_refused(tmp_path: Path, header: bytes) -> None:
    path = write_header(tmp_path / "a.safetensors", header)
    assert refused(path).startswith(f"{path}: its header is damaged: ")


GOOD = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (1, "the header of tensor 't' is damaged: "),
        ({"dtype": "F32"}, "the header of tensor 't' is damaged: 'data_offsets'"),
        (GOOD | {"data_offsets": [0]}, "the header of tensor 't' is damaged: not enough values"),
        (GOOD | {"shape": [4, 3.0]}, "shape (4, 3.0) and data_offsets [0, 48] cannot be"),
        (GOOD | {"shape": [-4, 3]}, "shape (-4, 3) and data_offsets [0, 48] cannot be"),
        (GOOD | {"shape": [True, 12]}, "shape (True, 12) and data_offsets [0, 48] cannot be"),
        (GOOD | {"data_offsets": [-1, 47]}, "shape (4, 3) and data_offsets [-1, 47] cannot be"),
        (GOOD | {"data_offsets": [48, 0]}, "shape (4, 3) and data_offsets [48, 0] cannot be"),
        (GOOD | {"data_offsets": [0, 49]}, "is cut short: 't' lies behind its end; copy it anew"),
        (
            GOOD | {"data_offsets": [0, 44]},
            "tensor 't' of shape [4, 3] and float32 has 44 bytes; copy the file anew",
        ),
        (GOOD | {"dtype": "F64"}, "tensor 't' of shape [4, 3] and float64 has 48 bytes"),
    ],
)
def test_tensor_that_cannot_be_is_refused(tmp_path: Path, tensor: Any, told: str) -> None:
    path = write_header(tmp_path / "a.safetensors", {"t": tensor}, bytes(48))
    assert told in refused(path)


def test_tensor_of_other_values_is_listed_and_not_read(tmp_path: Path) -> None:
    tensor = {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}
    path = write_header(tmp_path / "a.safetensors", {"t": tensor}, bytes(4))
    entry = list_safetensors(path).entries["t"]
    assert (entry.dtype, entry.shape, entry.slices) == ("F8_E4M3", (4,), ())
