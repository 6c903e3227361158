from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.corpora.tfrecords import read_examples
from export.graphs.loading import load_tensorflow
from tests.export.corpora.example_files import example

NAMES = ["id", "tags", "score", "title", "gone"]
PLAIN: list[dict[str, Any]] = [
    {"id": [7], "tags": [3, -1], "score": [0.5], "title": ["Zoë"]},
    {"id": [1 << 62], "score": [1.5], "title": [""], "other": [b"\xff"]},
    {"id": [-2], "tags": [], "score": [-2.0], "title": ["x"]},
]


def _read(path: Path, compressed: bool = False) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"records": []}
    for batch in read_examples(path, compressed, NAMES, None, path.name):
        found["records"] += batch.records
        for name, array in batch.columns().items():
            found.setdefault(name, []).extend(array.to_pylist())
    return found


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

    found = _read(path, zipped)

    assert found == {
        "records": [0, 1, 2],
        "id": [[7], [1 << 62], [-2]],
        "tags": [[3, -1], [], []],
        "score": [[0.5], [1.5], [-2.0]],
        "title": [["Zoë"], [""], ["x"]],
        "gone": [[], [], []],
    }
