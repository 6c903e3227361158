"""Ids that occur in training: files, rules that make rows of them, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from export.checkpoint.trained_rows import TrainedRows
from export.errors import UsageError
from export.front_end.manifest_features import describe_features
from export.front_end.specs import ModelSpec, TableFacts
from export.verify import trained_ids
from tests.units.export.verify.small_reference import AGE, ROWS, SEEN, USER, job_of, tower

SPECS = (USER, SEEN, AGE)


def trained(directory: Path, parts: dict[str, Any], **sections: Any) -> dict[str, TrainedRows]:
    """Reads the ids of a recipe of a model with two tables of 10 rows."""
    job = job_of(verify={"trained_ids": parts} | sections.pop("verify", {}), **sections)
    tables = {name: TableFacts(name, name, ROWS, 2) for name in ("users", "movies")}
    model = ModelSpec(tables, {spec.name: spec for spec in SPECS}, {"t": tower("t", SPECS)})
    return trained_ids.trained_rows(job, directory, model, describe_features(model, job))


def write(directory: Path, name: str, content: str | dict[str, Any]) -> Path:
    path = directory / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        parquet.write_table(pa.table(content), path)
    return path


VOCABULARY = {
    "vocabularies": {"names": {"file": "names.txt"}},
    "features": {"user": {"ids": {"kind": "vocabulary", "vocabulary": "names", "first_row": 1}}},
}


@pytest.mark.parametrize(
    ("name", "content", "part", "rows", "counts"),
    [
        ("i.txt", "3\n1\n7\n", {}, [1, 3, 7], None),
        ("i.txt", "3\r\n1\r\n3", {}, [1, 3], [1, 2]),
        ("i.csv", "user,age\n3,9\n1,8\n", {}, [1, 3], None),
        ("i.csv", "id,count\n3,9\n1,8\n", {}, [1, 3], [8, 9]),
        ("i.csv", "who,often\n3,9\n1,8\n", {"column": "who", "counts": "often"}, [1, 3], [8, 9]),
        ("i.csv", "anything\n3\n", {}, [3], None),
        ("i.parquet", {"user": [3, 1, 3]}, {}, [1, 3], [1, 2]),
        ("i.parquet", {"user": [[3, 1], [], [3]]}, {}, [1, 3], [1, 2]),
        ("i.jsonl", '{"user": 3}\n{"user": 1}\n', {}, [1, 3], None),
        ("i.txt", "3\n1\n7\n", {"order": "frequency"}, [1, 3, 7], [2, 3, 1]),
    ],
)
def test_ids_of_a_file_become_rows_with_the_counts_that_are_known(
    tmp_path: Path,
    name: str,
    content: Any,
    part: dict[str, str],
    rows: list[int],
    counts: list[int] | None,
) -> None:
    write(tmp_path, name, content)
    (read,) = trained(tmp_path, {"user": {"file": name} | part}).items()
    assert read[0] == "users"
    assert read[1].rows.tolist() == rows
    assert (None if read[1].counts is None else read[1].counts.tolist()) == counts
    assert read[1].all_trained == ("order" not in part)
    assert read[1].source == name


def test_ids_become_rows_by_the_rule_of_their_feature(tmp_path: Path) -> None:
    write(tmp_path, "names.txt", "ann\nbob\n007\n12\n")
    write(tmp_path, "i.txt", "12\nann\n007\n")
    assert trained(tmp_path, {"user": "i.txt"}, **VOCABULARY)["users"].rows.tolist() == [1, 3, 4]
    write(tmp_path, "i.txt", "12\n")  # an integer for the file, a text for the vocabulary
    assert trained(tmp_path, {"user": "i.txt"}, **VOCABULARY)["users"].rows.tolist() == [4]
    hashed = {"features": {"seen": {"ids": {"kind": "hash"}}}}
    write(tmp_path, "i.txt", "\n".join(map(str, range(100))))
    rows = trained(tmp_path, {"seen": "i.txt"}, **hashed)["movies"]
    assert rows.counts is None
    assert len(rows.rows) == ROWS


def test_ids_are_taken_from_the_examples_of_the_recipe(tmp_path: Path) -> None:
    examples = {"user": [1, 2, 1], "seen": [[5], [5, 6], []], "count": [9, 9, 9]}
    write(tmp_path, "e.parquet", examples)
    verify = {"examples": "e.parquet"}
    read = trained(tmp_path, {"user": {}, "seen": {}}, verify=verify)
    assert read["users"].rows.tolist() == [1, 2]
    assert read["users"].counts is not None
    assert read["users"].counts.tolist() == [2, 1]
    assert read["movies"].rows.tolist() == [5, 6]
    # Examples may hold ids that the feature does not know.
    write(tmp_path, "e.parquet", examples | {"user": [1, 2, 77]})
    assert trained(tmp_path, {"user": {}}, verify=verify)["users"].rows.tolist() == [1, 2]


def test_rows_of_a_table_and_ids_of_its_feature_are_taken_together(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "id,count\n1,4\n2,5\n")
    write(tmp_path, "b.csv", "id,count\n2,1\n3,2\n")
    joined_rows = trained(tmp_path, {"user": "a.csv", "users": "b.csv"})["users"]
    assert joined_rows.rows.tolist() == [1, 2, 3]
    assert joined_rows.counts is not None
    assert joined_rows.counts.tolist() == [4, 6, 2]
    assert joined_rows.source == "a.csv, b.csv"


@pytest.mark.parametrize(
    ("name", "content", "part", "message"),
    [
        ("i.txt", None, {}, "i.txt cannot be read: No such file or directory"),
        ("i.txt", "", {}, "i.txt is empty; ids that occur in training were expected"),
        ("i.txt", "1\n\n2\n", {}, "i.txt has no id in row 2"),
        ("i.txt", b"\xff\xfe", {}, "i.txt cannot be read: 'utf-8' codec"),
        ("i.parquet", b"PAR1 and no more", {}, "i.parquet cannot be read: "),
        ("i.csv", "", {}, "i.csv cannot be read: Empty CSV file"),
        ("i.csv", "a,b\n1,2\n", {}, "i.csv has no column 'user' or 'id'; it has a, b"),
        ("i.csv", "a,b\n1,2\n", {"column": "c"}, "i.csv has no column 'c'; it has a, b"),
        ("i.csv", "id\n1\n", {"counts": "c"}, "i.csv has no column 'c'; it has id"),
        ("i.csv", "id,count\n1,0\n", {}, "has the count 0 in row 1; how often the id occurs in"),
        ("i.csv", "id,count\n1,-2\n", {}, "has the count -2 in row 1"),
        ("i.csv", "id,count\n1,often\n", {}, "has the count 'often' in row 1"),
        ("i.csv", "id,count\n1,2\n1,3\n", {}, "has id 1 2 times; one count of each id was expe"),
        ("i.csv", "id,count\n1,2\n", {"order": "frequency"}, "has counts, and order = "),
        ("i.txt", "1\n1\n", {"order": "frequency"}, "has id 1 2 times; one count of each id"),
        ("i.parquet", {"user": [1.5]}, {}, "has 1.5 in row 1; an integer or a text was expected"),
        ("i.parquet", {"user": [1, None]}, {}, "has no id in row 2"),
        ("i.parquet", {"user": [[1]], "count": [2]}, {}, "holds lists, which have no counts"),
        ("i.txt", "9999999999999999999", {}, "has an id that is not an int64"),
        ("i.txt", "ann", {}, "i.txt: feature 'user': 'ann' is no integer id"),
        (
            "i.txt",
            "1\n10\n-1\n",
            {},
            "2 of 3 ids of i.txt have no row in table 'users' of 10 rows, such as 10; ids of "
            "feature 'user' that occurred in training were expected",
        ),
    ],
)
def test_file_that_does_not_hold_ids_of_its_feature_is_rejected(
    tmp_path: Path, name: str, content: Any, part: dict[str, str], message: str
) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        write(tmp_path, name, content)
    with pytest.raises(UsageError) as failure:
        trained(tmp_path, {"user": {"file": name} | part})
    assert str(failure.value).startswith("verify.trained_ids.user: ")
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"usr": "i.txt"}, "no feature and no table of this name that reads rows; its features: "),
        ({"age": "i.txt"}, "its features: seen, user; its tables: movies, users"),
        ({"user": {}}, "names no file, and there is no verify.examples to take ids from"),
        ({"users": "texts.txt"}, "has 'ann'; of a table, its rows were expected: integers from 0"),
        ({"users": "below.txt"}, "has -1; of a table, its rows were expected: integers from 0"),
    ],
)
def test_ids_of_nothing_that_reads_rows_are_rejected(
    tmp_path: Path, parts: dict[str, Any], message: str
) -> None:
    write(tmp_path, "i.txt", "1\n")
    write(tmp_path, "texts.txt", "ann\n")
    write(tmp_path, "below.txt", "3\n-1\n")
    with pytest.raises(UsageError) as failure:
        trained(tmp_path, parts)
    assert message in str(failure.value)


def test_files_that_are_too_large_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "i.txt", "1\n2\n")
    write(tmp_path, "i.parquet", {"user": np.arange(3)})
    monkeypatch.setattr(trained_ids, "FILE_BYTES_MAX", 3)
    with pytest.raises(UsageError, match="has more than 3 bytes; give a sample of the ids"):
        trained(tmp_path, {"user": "i.txt"})
    monkeypatch.undo()
    monkeypatch.setattr(trained_ids, "IDS_MAX", 2)
    with pytest.raises(UsageError, match="has more than 2 rows; give a sample of them"):
        trained(tmp_path, {"user": "i.parquet"})
