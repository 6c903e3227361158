from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.corpora import tfrecords
from export.corpora.tfrecords import read_examples
from export.errors import NotConvertible, UsageError
from export.graphs.loading import load_tensorflow
from tests.units.export.corpora.example_files import example, write_examples

NAMES = ["id", "tags", "score", "title", "gone"]
PLAIN: list[dict[str, Any]] = [
    {"id": [7], "tags": [3, -1], "score": [0.5], "title": ["Zoë"]},
    {"id": [1 << 62], "score": [1.5], "title": [""], "other": [b"\xff"]},
    {"id": [-2], "tags": [], "score": [-2.0], "title": ["x"]},
]


def _read(path: Path, compressed: bool = False) -> dict[str, list[Any]]:
    actual: dict[str, list[Any]] = {"records": []}
    for batch in read_examples(path, compressed, NAMES, None, path.name):
        actual["records"] += batch.records
        for name, array in batch.columns().items():
            actual.setdefault(name, []).extend(array.to_pylist())
    return actual


@pytest.mark.parametrize("zipped", [False, True])
def test_read_examples_of_tensorflows_own_writer_gives_what_it_wrote(
    tmp_path: Path, zipped: bool
) -> None:
    tf = load_tensorflow()
    path = tmp_path / "own.tfrecord"
    with tf.io.TFRecordWriter(
        str(path), tf.io.TFRecordOptions(compression_type="GZIP" if zipped else "")
    ) as writer:
        for features in PLAIN:
            page = tf.train.Example.FromString(example(features))
            writer.write(page.SerializeToString())

    actual = _read(path, zipped)

    assert actual == {
        "records": [0, 1, 2],
        "id": [[7], [1 << 62], [-2]],
        "tags": [[3, -1], [], []],
        "score": [[0.5], [1.5], [-2.0]],
        "title": [["Zoë"], [""], ["x"]],
        "gone": [[], [], []],
    }


def _batches(path: Path, batched_by: str | None = None) -> list[list[int]]:
    """Returns the record of each candidate, batch by batch."""
    return [
        list(batch.records) for batch in read_examples(path, False, ["id"], batched_by, path.name)
    ]


def test_read_examples_holds_as_many_records_as_fit_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_examples(tmp_path / "a.tfrecord", [{"id": [number]} for number in range(7)])
    assert _batches(path) == [[0, 1, 2, 3, 4, 5, 6]]
    with monkeypatch.context() as patch:
        patch.setattr(tfrecords, "BATCH_CANDIDATES", 3)
        assert _batches(path) == [[0, 1, 2], [3, 4, 5], [6]]
        patch.setattr(tfrecords, "BATCH_CANDIDATES", 7)
        assert _batches(path) == [[0, 1, 2, 3, 4, 5, 6]]
    size = len(example({"id": [1]}))
    for batch_bytes, expected in (
        (1, [[0], [1], [2], [3], [4], [5], [6]]),
        (2 * size, [[0, 1], [2, 3], [4, 5], [6]]),
        (2 * size + 1, [[0, 1, 2], [3, 4, 5], [6]]),
    ):
        monkeypatch.setattr(tfrecords, "BATCH_BYTES", batch_bytes)
        assert _batches(path) == expected


def test_read_examples_counts_the_candidates_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"id": [1, 2]}, {"id": [3]}, {"id": [4, 5]}]
    path = write_examples(tmp_path / "a.tfrecord", records)
    monkeypatch.setattr(tfrecords, "BATCH_CANDIDATES", 3)
    assert _batches(path, "id") == [[0, 0, 1], [2, 2]]
    monkeypatch.setattr(tfrecords, "BATCH_CANDIDATES", 1)
    assert _batches(path, "id") == [[0, 0], [1], [2, 2]]


def test_read_examples_takes_a_record_of_the_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_examples(tmp_path / "a.tfrecord", [{"id": [1]}])
    size = len(example({"id": [1]}))
    monkeypatch.setattr("bundle.storage.tfrecords.RECORD_BYTES_MAX", size)
    assert _batches(path) == [[0]]
    monkeypatch.setattr("bundle.storage.tfrecords.RECORD_BYTES_MAX", size - 1)
    with pytest.raises(UsageError) as rejection:
        _batches(path)
    assert str(rejection.value) == (
        f"a.tfrecord, record 1 claims {size} bytes; at most {size - 1} are taken"
    )


def test_read_examples_of_other_lists_tells_both_kinds(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.tfrecord", [{"id": ["a"]}, {"id": []}, {"id": [0.5]}])
    with pytest.raises(NotConvertible) as rejection:
        _batches(path)
    assert str(rejection.value) == (
        "a.tfrecord, record 3, column 'id' is a float list, the records above hold bytes lists"
    )
