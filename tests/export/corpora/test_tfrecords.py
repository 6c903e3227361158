from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.corpora.tfrecords import read_examples
from export.errors import NotConvertible, UsageError
from export.frameworks.loading import load_tensorflow
from tests.export.corpora.example_files import example, masked, record, write_examples

NAMES = ["id", "tags", "score", "title", "gone"]
PLAIN: list[dict[str, Any]] = [
    {"id": [7], "tags": [3, -1], "score": [0.5], "title": ["Zoë"]},
    {"id": [1 << 62], "score": [1.5], "title": [""], "other": [b"\xff"]},
    {"id": [-2], "tags": [], "score": [-2.0], "title": ["x"]},
]


def _read(path: Path, compressed: bool = False, batched_by: str | None = None) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"records": []}
    for batch in read_examples(path, compressed, NAMES, batched_by, path.name):
        found["records"] += batch.records
        for name, array in batch.columns().items():
            found.setdefault(name, []).extend(array.to_pylist())
    return found


@pytest.mark.parametrize("zipped", [False, True])
def test_read_examples_of_tensorflows_own_writer_gives_what_it_wrote(tmp_path: Path, zipped: bool) -> None:
    tf = load_tensorflow()
    path = tmp_path / "own.tfrecord"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP" if zipped else "")) as writer:
        for features in PLAIN:
            page = tf.train.Example.FromString(example(features))
            writer.write(page.SerializeToString())

    found = _read(path, zipped)

    assert found["records"] == [0, 1, 2]
    assert found["id"] == [[7], [1 << 62], [-2]]
    assert found["tags"] == [[3, -1], [], []]
    assert found["score"] == [[0.5], [1.5], [-2.0]]
    assert found["title"] == [["Zoë"], [""], ["x"]]
    assert found["gone"] == [[], [], []]


@pytest.mark.parametrize(
    ("features", "batched_by", "told"),
    [
        ([{"id": [1]}, {"id": [0.5]}], None, "record 2, column 'id' is a float list, the records above"),
        ([{"title": ["a"]}, {"title": [b"b", b"\xff"]}], None, r"record 2, column 'title': b'\xff' is no UTF-8"),
        ([{"id": [1, 2], "tags": [1, 2, 3]}], "id", "record 1, column 'tags' has 3 values for 2 candidates"),
        ([{"id": [1]}, {"tags": [1]}], "id", "record 2 has no values in column 'id', the id"),
        ([{"id": [1]}, b"\xff\xff\xff"], None, "record 2 is no tf.train.Example"),
    ],
)
def test_read_examples_features_that_do_not_fit_name_record_and_column(
    tmp_path: Path, features: list[Any], batched_by: str | None, told: str
) -> None:
    with pytest.raises(NotConvertible) as refusal:
        _read(write_examples(tmp_path / "a.tfrecord", features), batched_by=batched_by)

    assert f"a.tfrecord, {told}" in str(refusal.value)


HUGE = (1 << 62).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("data", "compressed", "problem"),
    [
        (b"\x01\x02", False, "record 1 is cut short in its length"),
        (record(b"") * 2 + record(b"abc")[:-5], False, "record 3 is cut short; copy the file again"),
        (record(b"")[:8] + bytes(8), False, "record 1 is no TFRecord: its length differs from its checksum"),
        (record(example({"id": [1]}))[:-1] + b"\x00", False, "record 1 differs from its checksum"),
        (gzip.compress(record(b""), mtime=0), False, "say compression = 'gzip'"),
        (HUGE + masked(HUGE), False, f"claims {1 << 62} bytes; at most"),
        (gzip.compress(record(b"") * 90, mtime=0)[:-20], True, "a.tfrecord cannot be read"),
        (record(b""), True, "is it compressed at all"),
    ],
)
def test_read_examples_damaged_file_is_a_usage_error(
    tmp_path: Path, data: bytes, compressed: bool, problem: str
) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)

    with pytest.raises(UsageError) as refusal:
        _read(path, compressed)

    assert problem in str(refusal.value)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_read_examples_of_changed_bytes_never_gives_other_values(tmp_path: Path, data: st.DataObject) -> None:
    whole = b"".join(record(example(features)) for features in PLAIN)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(changed[: data.draw(st.integers(place + 1, len(whole)))])

    with pytest.raises(UsageError):
        _read(path)
