"""Files of safetensors: which one a path means, and the errors of damaged ones."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.formats.safetensors import find_safetensors, list_safetensors
from export.errors import CheckpointError
from tests.units.export.checkpoint.formats.safetensors_files import write_header, write_safetensors

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
NAME = "a.safetensors"
INDEX = "m.safetensors.index.json"


def test_fingerprint_is_of_header_and_file(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / NAME, {"t": TABLE})
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
    ("names", "actual"),
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
    tmp_path: Path, names: list[str], actual: str | None
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert find_safetensors(tmp_path) == (None if actual is None else tmp_path / actual)


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


def test_file_of_a_header_alone_holds_no_tensors(tmp_path: Path) -> None:
    assert dict(list_safetensors(write_header(tmp_path / NAME, {})).entries) == {}


def test_metadata_of_a_file_that_are_not_known_are_rejected(tmp_path: Path) -> None:
    path = write_header(tmp_path / NAME, {"__metadata__": {"format": "pt", "sharding": "mod"}})
    with pytest.raises(CheckpointError, match=r"unknown: '__metadata__\.sharding'"):
        list_safetensors(path)


@pytest.mark.parametrize(
    ("more", "named"),
    [({"row_order": "mod"}, "unknown: 'row_order'"), ({"metadata": {"mod": 4}}, "'metadata.mod'")],
)
def test_metadata_of_an_index_that_are_not_known_are_rejected(
    more: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write_safetensors(tmp_path / NAME, {"t": TABLE})
    index = {"metadata": {"total_size": 48}, "weight_map": {"t": NAME}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert list(list_safetensors(tmp_path / INDEX).entries) == ["t"]
    (tmp_path / INDEX).write_text(json.dumps(index | more))
    with pytest.raises(CheckpointError, match=named):
        list_safetensors(tmp_path / INDEX)


def test_tensor_of_other_values_is_listed_and_not_read(tmp_path: Path) -> None:
    tensor = {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}
    path = write_header(tmp_path / NAME, {"t": tensor}, bytes(4))
    entry = list_safetensors(path).entries["t"]
    assert (entry.dtype, entry.shape, entry.slices) == ("F8_E4M3", (4,), ())


def sized(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


DAMAGED = "{file}: the header of tensor 't' is damaged: "
NO_METADATA = "{file}: its content is not what was expected (I"
CUT_SHORT = "{file} is cut short: 't' lies behind its end; copy it anew"
NOT_BESIDE = ", which is not beside it; copy all files of the checkpoint"

BROKEN_FILES: list[tuple[bytes, str]] = [
    # A header may have 100 megabytes.
    (struct.pack("<Q", 100_000_000), "{file} is cut short in its header; copy it anew"),
    (
        struct.pack("<Q", 100_000_001),
        "{file} begins with a header of 100000001 bytes; at most 100000000 are allowed: it is no "
        "file of safetensors, or damaged",
    ),
    (sized(b"{}")[:-1], "{file} is cut short in its header; copy it anew"),
    *((sized(content), NO_METADATA) for content in (b"{", b"[]", b"\xff")),
]
GOOD = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}
UNKNOWN = (
    "{file}: written by a newer release than safetensors 0.8.0 (the newest that is read); these "
    "fields are unknown: "
)
BROKEN_TENSORS: list[tuple[Any, str]] = [
    (GOOD | {"row_order": "mod"}, UNKNOWN + "'t.row_order'. They may"),
    (1, "{file}: the field 't' is 1 ("),
    (
        {"dtype": "F32", "shape": [1]},
        "{file}: the field 't.data_offsets' is missing; it is damaged",
    ),
    (GOOD | {"data_offsets": [0]}, "{file}: the field 't.data_offsets' is [0] ("),
    (GOOD | {"shape": [4, 3.0]}, "{file}: the field 't.shape.1' is 3.0 ("),
    (GOOD | {"shape": [-4, 3]}, DAMAGED + "shape (-4, 3) and data_offsets [0, 48] cannot be"),
    (GOOD | {"shape": [True, 12]}, "{file}: the field 't.shape.0' is True ("),
    (GOOD | {"data_offsets": [-1, 47]}, DAMAGED + "shape (4, 3) and data_offsets [-1, 47] cannot"),
    (GOOD | {"data_offsets": [48, 0]}, DAMAGED + "shape (4, 3) and data_offsets [48, 0] cannot be"),
    (GOOD | {"data_offsets": [0, 49]}, CUT_SHORT),
    (
        GOOD | {"data_offsets": [0, 44]},
        "{file}: tensor 't' of shape [4, 3] and float32 has 44 bytes; copy the file anew",
    ),
    (GOOD | {"dtype": "F64"}, "{file}: tensor 't' of shape [4, 3] and float64 has 48 bytes"),
]
BROKEN_FILES += [
    (sized(json.dumps({"t": tensor}).encode()) + bytes(48), metadata)
    for tensor, metadata in BROKEN_TENSORS
]
HALF = {"dtype": "F32", "shape": [2, 3]}
FIRST = HALF | {"data_offsets": [0, 24]}
SECOND = HALF | {"data_offsets": [24, 48]}
NOT_FILLED = "{file}: its header is damaged: "
BROKEN_FILES += [
    (sized(header.encode()) + bytes(48), NOT_FILLED + message)
    for header, message in (
        # One flipped bit made "a" of "c".
        (
            f'{{"a": {json.dumps(FIRST)}, "a": {json.dumps(SECOND)}}}',
            "a tensor begins at byte 24 of the data, where 0 was expected; copy the file anew",
        ),
        (
            json.dumps({"a": FIRST, "b": FIRST}),
            "a tensor begins at byte 0 of the data, where 24 was expected; copy the file anew",
        ),
        (json.dumps({"a": FIRST}), "its tensors end at byte 24 of 48 of the data; copy the file"),
        ("{}", "its tensors end at byte 0 of 48 of the data; copy the file anew"),
    )
]
BROKEN_INDEXES: list[tuple[str, str]] = [
    ("{", NO_METADATA),
    ("[]", NO_METADATA),
    ("{}", "{file}: the field 'weight_map' is missing; it is damaged"),
    ('{"weight_map": [1]}', "{file}: the field 'weight_map' is [1] ("),
    *(
        (json.dumps({"weight_map": {"t": name}}), f"{{file}} names {name!r}{NOT_BESIDE}")
        for name in ("none.safetensors", "sub/a.safetensors", "sub", "..")
    ),
    (
        json.dumps({"weight_map": {"t": "1.safetensors", "n": "2.safetensors"}}),
        "{file}: tensor 't' is in two files; save it anew",
    ),
]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((NAME, content, message) for content, message in BROKEN_FILES),
        *((INDEX, text.encode(), message) for text, message in BROKEN_INDEXES),
    ],
)
def test_broken_file_or_index_is_rejected_with_the_reason(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / "sub").mkdir()
    for sibling in ("1.safetensors", "2.safetensors", "sub/a.safetensors"):
        write_safetensors(tmp_path / sibling, {"t": TABLE})
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        list_safetensors(file)
    assert str(error.value).startswith(message.format(file=file))
