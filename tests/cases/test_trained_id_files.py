"""Files of ids that occur in training: the rows that they become by the rule of their
feature, and what is rejected with the key of the recipe.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.storage.tfrecords import framed
from export.checkpoint.trained_rows import TrainedRows
from export.errors import UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.specs import ModelSpec, TableFacts
from export.verify import trained_ids
from rows import ids
from tests.bundles.tfrecords import example
from tests.units.export.verify.small_reference import AGE, ROWS, SEEN, USER, job_of, tower

SPECS = (USER, SEEN, AGE)


def trained(directory: Path, parts: dict[str, Any], **sections: Any) -> dict[str, TrainedRows]:
    """Reads the ids of a recipe of a model with two tables of 10 rows."""
    job = job_of(verify={"trained_ids": parts} | sections.pop("verify", {}), **sections)
    tables = {name: TableFacts(name, name, ROWS, 2) for name in ("users", "movies")}
    model = ModelSpec(tables, {spec.name: spec for spec in SPECS}, {"t": tower("t", SPECS)})
    return trained_ids.trained_rows(job, directory, model, describe_features(model, job))


def write(directory: Path, name: str, content: str | bytes | dict[str, Any]) -> None:
    if isinstance(content, str):
        (directory / name).write_text(content)
    elif isinstance(content, bytes):
        (directory / name).write_bytes(content)
    else:
        parquet.write_table(pa.table(content), directory / name)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("i.txt", "3\n1\n3\n", {}),
        ("i.txt", "3\r\n1\r\n3", {}),
        ("i.txt", "\ufeff3\n1\n", {}),
        ("i.csv", "\ufeffuser,age\n3,9\n1,8\n", {}),
        ("i.jsonl", '\ufeff{"user": 3}\n{"user": 1, "age": 9}\n', {}),
        ("i.csv", "user,age\n3,9\n1,8\n", {}),
        ("i.csv", "id,count\n3,9\n1,8\n", {}),
        ("i.csv", "who,often\n3,9\n1,8\n", {"column": "who"}),
        ("i.csv", "anything\n3\n1\n", {}),
        ("i.parquet", {"user": [3, 1, 3]}, {}),
        ("i.parquet", {"user": [[3, 1], [], [3]]}, {}),
        ("i.jsonl", '{"user": 3}\n{"user": 1}\n', {}),
        ("i.csv.gz", gzip.compress(b"user\n3\n1\n", mtime=0), {}),
        ("i.txt.gz", gzip.compress(b"3\n1\n", mtime=0), {}),
        ("i.tfrecord", framed(example({"user": [3, 1]}).SerializeToString()), {}),
    ],
)
def test_ids_of_a_file_become_rows(
    tmp_path: Path, name: str, content: Any, part: dict[str, str]
) -> None:
    write(tmp_path, name, content)
    read = trained(tmp_path, {"user": {"file": name} | part})
    assert read["users"].rows.tolist() == [1, 3]


NAMES = {"kind": "vocabulary", "vocabulary": "names", "first_row": 1}
VOCABULARY: dict[str, Any] = {
    "vocabularies": {"names": {"file": "names.txt"}},
    "features": {"user": {"ids": NAMES}},
}


def test_ids_become_rows_by_the_rule_of_their_feature(tmp_path: Path) -> None:
    write(tmp_path, "names.txt", "\ufeffann\nbob\n007\n12\n")
    for text, rows in (("12\nann\n007\n", [1, 3, 4]), ("12\n", [4])):
        write(tmp_path, "i.txt", text)
        read = trained(tmp_path, {"user": "i.txt"}, **VOCABULARY)
        assert read["users"].rows.tolist() == rows
    write(tmp_path, "i.txt", "\n".join(map(str, range(100))))
    hashed = trained(tmp_path, {"seen": "i.txt"}, features={"seen": {"ids": {"kind": "hash"}}})
    assert hashed["movies"].rows.tolist() == [*range(ROWS)]


def test_ids_of_several_files_and_of_the_examples_are_taken_together(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "id\n1\n2\n")
    write(tmp_path, "b.csv", "id\n2\n3\n")
    joined = trained(tmp_path, {"user": "a.csv", "users": "b.csv"})["users"]
    assert joined.rows.tolist() == [1, 2, 3]
    # Examples may hold ids that the feature does not know.
    examples = {"user": [1, 2, 1, 77], "seen": [[5], [5, 6], [], []]}
    write(tmp_path, "e.parquet", examples)
    read = trained(tmp_path, {"user": {}, "seen": {}}, verify={"examples": "e.parquet"})
    assert read["users"].rows.tolist() == [1, 2]
    assert read["movies"].rows.tolist() == [5, 6]


REJECTED: list[tuple[str, Any, dict[str, str], tuple[str, ...]]] = [
    # the file, its content, what else the recipe says of it, words of the message
    ("i.txt", None, {}, ("No such file",)),
    ("i.csv", "id\n", {}, ("is empty",)),
    ("i.txt", "", {}, ("no rows",)),
    ("i.txt", "1\n\n2\n", {}, ("empty id", "row 2")),
    ("i.txt", b"\xfe", {}, ("no readable text",)),
    ("i.txt", "1\n".encode("utf-16"), {}, ("not UTF-8", "iconv")),
    ("i.csv", gzip.compress(b"user\n3\n1\n", mtime=0), {}, ("ends in .gz",)),
    ("i.parquet", b"PAR1 and no more", {}, ("no readable Parquet",)),
    ("i.csv", "a,b\n1,2\n", {}, ("'user' or 'id'", "a, b")),
    ("i.csv", "a,b\n1,2\n", {"column": "c"}, ("'c'", "a, b")),
    ("i.parquet", {"user": [1.5]}, {}, ("1.5", "row 1")),
    ("i.txt", "9999999999999999999", {}, ("int64",)),
    ("i.txt", "ann", {}, ("'ann'", "integer")),
    ("i.txt", "1\n10\n-1\n", {}, ("2 of 3 ids", "10 rows")),
]


@pytest.mark.parametrize(("name", "content", "part", "words"), REJECTED)
def test_file_that_does_not_hold_ids_of_its_feature_is_rejected(
    tmp_path: Path, name: str, content: Any, part: dict[str, str], words: tuple[str, ...]
) -> None:
    if content is not None:
        write(tmp_path, name, content)
    with pytest.raises(UsageError) as failure:
        trained(tmp_path, {"user": {"file": name} | part})
    for expected in ("verify.trained_ids.user", *words):
        assert expected in str(failure.value)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"usr": "i.txt"}, ("seen, user", "movies, users")),
        ({"user": {}}, ("verify.examples",)),
        ({"users": "texts.txt"}, ("'ann'", "rows")),
        ({"users": "below.txt"}, ("-1", "from 0")),
    ],
)
def test_ids_of_nothing_that_reads_rows_are_rejected(
    tmp_path: Path, parts: dict[str, Any], words: tuple[str, ...]
) -> None:
    for name, text in (("i.txt", "1\n"), ("texts.txt", "ann\n"), ("below.txt", "3\n-1\n")):
        write(tmp_path, name, text)
    with pytest.raises(UsageError) as failure:
        trained(tmp_path, parts)
    assert all(expected in str(failure.value) for expected in words)


def test_file_that_is_too_large_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "i.txt", "1\n2\n")
    write(tmp_path, "i.parquet", {"user": np.arange(3)})
    for limit, file in (("FILE_BYTES_MAX", "i.txt"), ("IDS_MAX", "i.parquet")):
        with monkeypatch.context() as patch:
            patch.setattr(ids, limit, 2)
            with pytest.raises(UsageError, match=r"more than 2 .*sample"):
                trained(tmp_path, {"user": file})
