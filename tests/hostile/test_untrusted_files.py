"""Files of a few bytes that claim much, share much, or are no files: each is a typed error, in time
and memory of its own size.
"""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.checksums import crc32c, mask
from bundle.format.features import DenseFeature
from bundle.storage.tfrecords import framed
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, ExportError
from export.given_towers.exported_graphs import ExportedGraphTower
from export.graphs.loading import load_tensorflow
from export.recipe.schema import read_recipe
from export.tables.vocabularies import read_keys
from rows.batches import read_batches
from rows.errors import RowsError
from rows.files import source_file
from rows.requests import RequestReader, numbered_records
from tests.hostile.ordeal import FLOOR_BYTES, HELD_PER_BYTE, deadline, memory_limit
from tests.units.export.checkpoint.formats.safetensors_files import write_header

tf = load_tensorflow()
from tensorflow_serving.apis import prediction_log_pb2  # noqa: E402 - TensorFlow is loaded first

MESSAGE_CHARACTERS_MAX = 2_000
Write = Callable[[Path], Path]
Read = Callable[[Path], object]


def pickle_of_shared_tuples(levels: int = 50) -> bytes:
    """Returns the pickle of a dict whose key has 2^levels parts: each list is remembered before it
    is filled by twice the level below.
    """
    code = b"\x80\x02K\x01\x85q\x000"
    for level in range(1, levels + 1):
        filled = 2 * level - 1
        size_of = 2 * level
        below = b"h" + bytes([size_of - 2])
        code += b"]q" + bytes([filled]) + b"(" + below * 2 + b"e0"
        code += b"ctorch\nSize\nh" + bytes([filled]) + b"\x85Rq" + bytes([size_of]) + b"0"
    return code + b"}h" + bytes([2 * levels]) + b"K\x01s."


def pickle_of_doubled_paths(levels: int = 17) -> bytes:
    text = b"a" * 65_536
    code = b"\x80\x02X" + struct.pack("<I", len(text)) + text + b"q\x000"
    for level in range(levels):
        code += b"cpathlib\nPosixPath\nh" + bytes([level]) + b"h" + bytes([level])
        code += b"\x86Rq" + bytes([level + 1]) + b"0"
    return code + b"h" + bytes([levels]) + b"."


def pickle_of_repeated_names() -> bytes:
    """Returns a pickle that names a dtype of 100,000 characters by four bytes, each time."""
    name = b"n" * 100_000
    texts = b"X\x05\x00\x00\x00torchq\x00X" + struct.pack("<I", len(name)) + name + b"q\x01("
    return b"\x80\x04" + texts + b"h\x00h\x01\x93" * 50_000 + b"t."


def metadata(code: bytes) -> Write:
    def write(directory: Path) -> Path:
        (directory / ".metadata").write_bytes(code)
        (directory / "__0_0.distcp").write_bytes(b"")
        return directory

    return write


def tensor_of(shape: list[int]) -> Write:
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
    return lambda directory: write_header(directory / "a.safetensors", {"x": tensor}, b"1234")


def zarr_of(shape: list[int]) -> Write:
    def write(directory: Path) -> Path:
        leaf = {"key_metadata": [{"key": "a", "key_type": 2}]}
        tree = {"tree_metadata": {"a": {**leaf, "value_metadata": {"value_type": "jax.Array"}}}}
        array = {"zarr_format": 2, "dtype": "<f4", "compressor": None, "fill_value": None}
        array |= {"shape": shape, "chunks": shape, "order": "C", "filters": None}
        (directory / "a").mkdir()
        (directory / "_METADATA").write_text(json.dumps(tree))
        (directory / "a/.zarray").write_text(json.dumps(array))
        return directory

    return write


def weights_index_of(name: str) -> Write:
    def write(directory: Path) -> Path:
        file = directory / "m.weights.json"
        file.write_text(json.dumps({"weight_map": {"x": name}}))
        return file

    return write


def tower_of(compression: int, claimed_rows: int, rows: int) -> Write:
    """Returns a writer of a tower's file, with an array that claims other rows than it has."""

    def write(directory: Path) -> Path:
        array = io.BytesIO()
        header = {"descr": "<f4", "fortran_order": False, "shape": (claimed_rows,)}
        np.lib.format.write_array_header_1_0(array, header)
        array.write(bytes(4 * rows))
        file = directory / "a.npz"
        with zipfile.ZipFile(file, "w", compression) as archive:
            archive.writestr("graph.npy", array.getvalue())
        return file

    return write


def records_of(**tensors: object) -> Write:
    def write(directory: Path) -> Path:
        log = prediction_log_pb2.PredictionLog()
        for name, tensor in tensors.items():
            log.predict_log.request.inputs[name].CopyFrom(tensor)
        file = directory / "a.tfrecord"
        file.write_bytes(framed(log.SerializeToString()))
        return file

    return write


def proto_of(shape: list[int], **values: object) -> object:
    proto = tf.make_tensor_proto(0.0)
    proto.ClearField("float_val")
    proto.tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    for field, content in values.items():
        if field == "dtype":
            proto.dtype = content
        else:
            getattr(proto, field).extend(content)
    return proto


def examples_with_names_of_their_own(directory: Path) -> Path:
    log = prediction_log_pb2.PredictionLog()
    for number in range(10_000):
        example = log.classify_log.request.input.example_list.examples.add()
        example.features.feature[f"n{number}"].int64_list.value.append(1)
    file = directory / "a.tfrecord"
    file.write_bytes(framed(log.SerializeToString()))
    return file


def record_of_a_large_length(directory: Path) -> Path:
    length = struct.pack("<Q", 256 << 20)
    file = directory / "a.tfrecord"
    file.write_bytes(length + struct.pack("<I", mask(crc32c(length))) + b"data")
    return file


def lines_of(text: str) -> Write:
    def write(directory: Path) -> Path:
        file = directory / "a.jsonl"
        file.write_text(text)
        return file

    return write


def read_requests(path: Path, labels: Sequence[str] = ()) -> object:
    feature = DenseFeature(kind="dense", role="context")
    reader = RequestReader({"x": feature}, ["x"], {}, labels)
    return [
        reader.columns(reader.read(record, where, "prediction-log"), [])
        for where, record in numbered_records(source_file(path))
    ]


def read_label(path: Path) -> object:
    return read_requests(path, ["label"])


def read_lines(path: Path) -> object:
    return list(read_batches(source_file(path)))


SPARSE = {
    "x": tf.make_tensor_proto(np.zeros((1, 2), np.int64)),
    "x_1": tf.make_tensor_proto(np.ones(1, np.int64)),
    "x_2": tf.make_tensor_proto(np.array([1 << 33, 1], np.int64)),
}
CHECKPOINTS: dict[str, Write] = {
    "pickle whose key is hashed without end": metadata(pickle_of_shared_tuples()),
    "pickle that doubles a path": metadata(pickle_of_doubled_paths()),
    "pickle with a large index of its memo": metadata(b"\x80\x02]r\x00\x00\x00\x40."),
    "pickle that repeats a long name": metadata(pickle_of_repeated_names()),
    "pickle that is nested": metadata(b"\x80\x02" + b"(" * 30_000 + b"t" * 30_000 + b"."),
    "tensor of many axes": tensor_of([1] * 300_000),
    "tensor of many large axes": tensor_of([1 << 62] * 100_000),
    "zarr array of many axes": zarr_of([1] * 300_000),
    "index of weights that names a directory": weights_index_of("/"),
    "index of weights that names this directory": weights_index_of("."),
    "index of weights that names a long file": weights_index_of("a" * 100_000),
}
OTHERS: dict[str, tuple[Read, Write]] = {
    "tower that claims rows": (ExportedGraphTower, tower_of(zipfile.ZIP_STORED, 1 << 40, 1)),
    "tower that is compressed": (ExportedGraphTower, tower_of(zipfile.ZIP_DEFLATED, 1, 1 << 24)),
    "sparse tensor of many rows": (read_requests, records_of(**SPARSE)),
    "value that stands for many": (
        read_requests,
        records_of(x=proto_of([1 << 33], float_val=[1.0])),
    ),
    "many rows without values": (read_requests, records_of(x=proto_of([1 << 33, 0]))),
    "text that stands for many": (
        read_requests,
        records_of(x=proto_of([1 << 20], string_val=[b"x" * 50_000], dtype=7)),
    ),
    "examples with names of their own": (read_label, examples_with_names_of_their_own),
    "record that claims much": (read_requests, record_of_a_large_length),
    "example that is nested": (read_lines, lines_of('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}")),
}


CLAIMS = {name: (open_checkpoint, write) for name, write in CHECKPOINTS.items()} | OTHERS


@pytest.mark.parametrize(("read", "write"), CLAIMS.values(), ids=list(CLAIMS))
def test_file_that_claims_much_is_rejected_at_the_cost_of_its_bytes(
    tmp_path: Path, read: Read, write: Write
) -> None:
    path = write(tmp_path)
    size_bytes = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    limit = memory_limit(FLOOR_BYTES + HELD_PER_BYTE * size_bytes)
    with deadline(20), limit, pytest.raises((ExportError, RowsError)) as error:
        read(path)
    message = str(error.value)
    assert len(message) < MESSAGE_CHARACTERS_MAX
    assert path.name in message


READERS: dict[str, Read] = {
    **dict.fromkeys(
        ["a.safetensors", "a.weights.h5", "a.keras", "a.index", ".metadata"], open_checkpoint
    ),
    "a.toml": read_recipe,
    "a.jsonl": read_lines,
    "a.parquet": read_lines,
    "a.npz": ExportedGraphTower,
    "a.tfrecord": read_requests,
    "a.txt": lambda path: read_keys(path, "string"),
}


@pytest.mark.parametrize("name", READERS)
def test_fifo_in_the_place_of_a_file_is_rejected_and_not_waited_for(
    tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises((ExportError, RowsError)):
        READERS[name](tmp_path / name)


UNKNOWN_FIELD = "these fields are unknown: "
GOLDEN = Path(__file__).parents[1] / "differential"
NAMES_OF_DATA = {"tree_metadata", "weight_map"}
"""Objects whose keys are names that a program chose, and no fields."""
FREE = {"metrics", "performance_metrics", "item_handlers", "metadata", "configuration"}
"""Fields whose contents are not read, or are read by tensorstore."""


def fields_of(value: object, name: str, path: tuple[str | int, ...] = ()) -> Iterator[Any]:
    """Yields the path of each field of a JSON value, one of those with the same path but for
    positions and for names of data.
    """
    children: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict) and name not in FREE:
        children = value.items()
    elif isinstance(value, list):
        # The items of a list have the same fields.
        children = enumerate(value[:1])
    for key, child in children:
        if isinstance(key, str) and name not in NAMES_OF_DATA:
            yield (*path, key)
        parent = name
        if isinstance(key, str):
            parent = key
        yield from fields_of(child, parent, (*path, key))
        if name in NAMES_OF_DATA:
            break


def changes_of(content: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yields the content of a JSON file with a field renamed, removed or of another type: the kind
    of change, the name of the field, and the content.
    """
    for path in fields_of(json.loads(content), name):
        for change in ("renamed", "removed", "retyped"):
            root = json.loads(content)
            parent = root
            for step in path[:-1]:
                parent = parent[step]
            field = path[-1]
            value = parent.pop(field)
            if change == "renamed":
                parent[f"{field}_renamed"] = value
            elif change == "retyped":
                parent[field] = {str: 7.5, type(None): 7.5}.get(type(value), "text")
            yield change, field, json.dumps(root)


def rows_of(path: Path) -> dict[str, Any]:
    """Returns what `inspect` shows of each table, with its rows as they are stored."""
    checkpoint = open_checkpoint(path)
    inventory = recognize(checkpoint)
    rows: dict[str, Any] = {}
    for table in inventory.tables:
        stored = checkpoint.read(table.key, 0, table.stored[0])
        rows[table.name] = (table.rows, table.dim, table.layout, stored.tobytes())
    for entry in inventory.dense:
        rows[entry.key] = (entry.shape, entry.dtype)
    return rows


METADATA_FILES = [
    ("orbax", "loose_zarr2", "_METADATA"),
    ("orbax", "loose_zarr2", "_CHECKPOINT_METADATA"),
    ("orbax", "loose_zarr2", "array_metadatas/process_0"),
    ("orbax", "loose_zarr2", "params.a/.zarray"),
    ("orbax", "loose_zarr3", "_METADATA"),
    ("orbax", "loose_zarr3", "params.a/zarr.json"),
    ("torch", "torch_safetensors", "model.safetensors.index.json"),
]


@pytest.mark.parametrize(("archive", "case", "name"), METADATA_FILES)
def test_metadata_of_another_release_give_the_same_rows_or_name_file_and_field(
    tmp_path: Path, archive: str, case: str, name: str
) -> None:
    with tarfile.open(GOLDEN / f"{archive}.tar.xz") as members:
        members.extractall(tmp_path, filter="data")
    directory = tmp_path / case
    file = directory / name
    content = file.read_text()
    expected = rows_of(directory)

    for change, field, changed in changes_of(content, file.name):
        file.write_text(changed)
        check_rows_or_error(directory, expected, file.name, change, field)


def check_rows_or_error(
    path: Path, expected: dict[str, Any], file: str, change: str, field: str
) -> None:
    """Checks that a changed checkpoint has the same rows, or that its error names file and field,
    and does not take a field of another release for damage.
    """
    try:
        actual = rows_of(path)
    except CheckpointError as error:
        message = str(error)
        assert file in message, message
        assert field in message, message
        if change == "renamed":
            assert UNKNOWN_FIELD in message, message
            assert "copy" not in message, message
    else:
        assert actual == expected, (change, field)


def test_header_of_another_release_of_safetensors_names_file_and_field(tmp_path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    content = {"x": tensor, "__metadata__": {"format": "pt"}}
    path = write_header(tmp_path / "a.safetensors", content, bytes(24))
    expected = rows_of(path)
    for change, field, changed in changes_of(json.dumps(tensor), ""):
        write_header(path, {"x": json.loads(changed)}, bytes(24))
        check_rows_or_error(path, expected, path.name, change, field)
