"""Lists of candidates as the recipe names them: written, read back, and rejected."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.errors import BundleError
from bundle.format import paths
from bundle.format.manifest import CandidateList, DenseFeature, EmbeddedFeature, Feature
from bundle.stores.lists import read_list, write_list
from export.corpora.files import locate_corpus
from export.corpora.lists import (
    WrittenList,
    check_segment_input,
    columns_of,
    write_candidate_list,
)
from export.corpora.reading import CorpusReader
from export.errors import ExportError
from export.recipe.schema import ListSection
from tests.bundles.stores import write_corpus

IDS = np.array([10, 20, 30, 40])
TEXTS = np.array(["a", "b", "c", "d"], object)
PART: dict[str, Any] = {"corpus": "movies", "file": "popular.csv", "id": "movie"}
BY_COUNTRY = {**PART, "segment": "country", "by": "country"}


def written(
    directory: Path, rows: str, deleted: Collection[Any] = (), ids: Any = IDS, **part: Any
) -> WrittenList:
    """Writes a list from the rows of a CSV file."""
    corpus = write_corpus(directory, "movies", ids, {}, {}, ())
    (directory / "popular.csv").write_text(rows)
    entry = ListSection.model_validate(part)
    columns = columns_of(entry)
    files = locate_corpus(directory, "popular", columns, "lists")
    reader = CorpusReader(files, "lists.popular", columns, {})
    return write_candidate_list(directory, "popular", entry, reader, corpus, deleted)


def lists_of(directory: Path, entry: CandidateList, dtype: str = "int64") -> dict[str, list[Any]]:
    lists = read_list(directory / entry.file, entry, dtype)
    return {segment: ids.tolist() for segment, ids in lists.items()}


def test_list_keeps_the_order_of_each_segment(tmp_path: Path) -> None:
    rows = "country,movie,count\nDE,30,9\n,10,8\nDE,10,7\nFR,40,7\n,20,1\n"
    result = written(tmp_path, rows, **BY_COUNTRY)
    assert result.entry == CandidateList(
        file="lists/popular.arrow", corpus="movies", size=5, by="country", default=""
    )
    expected = {"DE": [30, 10], "": [10, 20], "FR": [40]}
    assert lists_of(tmp_path, result.entry) == expected
    assert result.notes("popular") == []


def test_list_without_segments_is_one_of_any_type_of_ids(tmp_path: Path) -> None:
    result = written(tmp_path, "movie\nc\na\n", ids=TEXTS, **PART)
    assert lists_of(tmp_path, result.entry, "string") == {"": ["c", "a"]}
    assert result.entry.by is None


def test_segments_of_numbers_are_texts_and_the_default_may_be_any_of_them(tmp_path: Path) -> None:
    table = pa.table({"movie": [20, 30, 20], "country": pa.array([49, 49, 33], pa.int32())})
    parquet.write_table(table, tmp_path / "popular.parquet")
    part = {**BY_COUNTRY, "file": "popular.parquet", "default": "49"}
    result = written(tmp_path, "", **part)
    assert lists_of(tmp_path, result.entry) == {"49": [20, 30], "33": [20]}
    assert result.entry.default == "49"


def test_candidates_that_the_change_log_deletes_are_left_out_and_reported(tmp_path: Path) -> None:
    result = written(tmp_path, "movie\n50\n10\n60\n", deleted={50, 60, 70}, **PART)
    assert lists_of(tmp_path, result.entry) == {"": [10]}
    assert result.notes("popular") == [
        "lists.popular: 2 candidates are left out: the change log deletes them"
    ]


@pytest.mark.parametrize(
    ("rows", "part", "message"),
    [
        ("movie\n10\n50\n60\n", {}, "2 of 3 ids are not in corpus 'movies', such as 50"),
        (
            "movie\n10\n20\n10\n",
            {},
            "lists.popular: id 10 comes 2 times in segment ''; once was expected",
        ),
        ("movie\na\n", {}, "its ids are string, those of corpus 'movies' are int64"),
        ("movie\n", {}, "holds no candidates"),
        ("movie\n10\nx\n", {}, "is text, the ids above are integers"),
        ("film\n10\n", {}, "has no column 'movie'; it has film"),
        ("movie\n10\n", {"file": "gone.csv"}, "lists.popular.file: "),
        ("movie\n10\n", {"file": "popular.txt"}, "lists.popular.file: "),
        (
            "country,movie\nDE,10\nDE,20\nDE,10\n",
            {"segment": "country", "by": "country", "default": "DE"},
            "id 10 comes 2 times in segment 'DE'",
        ),
        (
            "country,movie\nDE,10\n",
            {"segment": "country", "by": "country"},
            "no row is of segment '', which contexts have whose value has no list of its own",
        ),
    ],
)
def test_list_that_does_not_fit_is_rejected_with_what_is_wrong(
    rows: str, part: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError) as problem:
        written(tmp_path, rows, **{**PART, **part})
    assert message in str(problem.value)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("nowhere", "which no tower reads"),
        ("movie", "an input of candidates; one of contexts was expected"),
        ("hour", "which holds numbers; an input of ids was expected"),
    ],
)
def test_segment_is_an_id_of_contexts(by: str, message: str) -> None:
    features: dict[str, Feature] = {
        "country": EmbeddedFeature(kind="single", table="countries", role="context"),
        "movie": EmbeddedFeature(kind="single", table="movies", role="candidate"),
        "hour": DenseFeature(kind="dense", role="context"),
    }
    part = ListSection.model_validate(BY_COUNTRY)
    check_segment_input("popular", part, features)
    with pytest.raises(ExportError) as problem:
        check_segment_input("popular", part.model_copy(update={"by": by}), features)
    assert message in str(problem.value)


def test_segment_without_its_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="'segment' and 'by' belong together"):
        ListSection.model_validate({**PART, "segment": "country"})


@pytest.mark.parametrize(
    ("ids", "segments", "size", "message"),
    [
        ([10, 20], ["", ""], 3, "has 2 rows, the manifest says 3"),
        ([10, None], ["", ""], 2, "with 1 nulls"),
        (["a", "b"], ["", ""], 2, "has ids of string"),
        ([10, 20], ["DE", "DE"], 2, "has no segment ''"),
    ],
)
def test_file_of_a_list_is_held_against_the_manifest(
    ids: list[Any], segments: list[str], size: int, message: str, tmp_path: Path
) -> None:
    entry = CandidateList(file=paths.candidate_list("popular"), corpus="movies", size=size)
    write_list(tmp_path / entry.file, pa.array(ids), pa.array(segments))
    with pytest.raises(BundleError, match=message):
        read_list(tmp_path / entry.file, entry, "int64")
