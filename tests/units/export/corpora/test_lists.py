"""Lists of candidates as the recipe names them: written, read back, and rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.errors import BundleError
from bundle.format import paths
from bundle.format.manifest import CandidateList
from bundle.stores.lists import read_list, write_list
from export.corpora.files import locate_corpus
from export.corpora.lists import columns_of, write_candidate_list
from export.corpora.reading import CorpusReader
from export.errors import ExportError
from export.recipe.schema import ListSection
from tests.bundles.stores import write_corpus

PART = {"corpus": "movies", "file": "popular.csv", "id": "movie"}
SEGMENTS = {"segment": "country", "by": "country"}


def listed(directory: Path, rows: str, ids: Any = (10, 20, 30, 40), **part: Any) -> Any:
    """Writes a list from the rows of a CSV file; returns its segments, and the notes."""
    deleted = part.pop("deleted", ())
    is_text = isinstance(ids[0], str)
    keys = np.array(ids, object) if is_text else np.array(ids)
    corpus = write_corpus(directory, "movies", keys, {}, {}, ())
    (directory / "popular.csv").write_text(rows)
    entry = ListSection.model_validate({**PART, **part})
    columns = columns_of(entry)
    files = locate_corpus(directory, "popular", columns, "lists")
    reader = CorpusReader(files, "lists.popular", columns, {})
    written = write_candidate_list(directory, "popular", entry, reader, corpus, deleted)
    stored = read_list(
        directory / written.entry.file, written.entry, "string" if is_text else "int64"
    )
    segments = {segment: keys.tolist() for segment, keys in stored.items()}
    return segments, written.entry.default, written.notes("popular")


@pytest.mark.parametrize(
    ("rows", "part", "segments"),
    [
        ("movie\n30\n10\n", {}, {"": [30, 10]}),
        ("movie\nc\na\n", {"ids": ("a", "b", "c")}, {"": ["c", "a"]}),
        ("country,movie\nDE,30\n,10\nDE,10\n", SEGMENTS, {"DE": [30, 10], "": [10]}),
        (
            "country,movie\n49,20\n49,30\n33,20\n",
            SEGMENTS | {"default": "49"},
            {"49": [20, 30], "33": [20]},
        ),
        ("movie\n50\n10\n60\n", {"deleted": {50, 60, 70}}, {"": [10]}),
    ],
)
def test_list_keeps_the_order_of_each_segment(
    tmp_path: Path, rows: str, part: dict[str, Any], segments: dict[str, list[Any]]
) -> None:
    stored, default, notes = listed(tmp_path, rows, **part)
    assert (stored, default) == (segments, part.get("default", ""))
    assert bool(notes) == ("deleted" in part)


@pytest.mark.parametrize(
    ("rows", "part", "words"),
    [
        ("movie\n10\n50\n60\n", {}, "2 of 3 ids .*such as 50"),
        ("movie\n10\n20\n10\n", {}, "id 10 comes 2 times"),
        ("movie\na\n", {}, "its ids are string"),
        ("movie\n", {}, "no candidates"),
        ("film\n10\n", {}, "no column 'movie'"),
        ("movie\n10\n", {"file": "popular.txt"}, "lists.popular.file"),
        ("country,movie\nDE,10\nDE,10\n", SEGMENTS | {"default": "DE"}, "segment 'DE'"),
        ("country,movie\nDE,10\n", SEGMENTS, "no row is of segment ''"),
    ],
)
def test_list_that_does_not_fit_is_rejected(
    tmp_path: Path, rows: str, part: dict[str, Any], words: str
) -> None:
    with pytest.raises(ExportError, match=words):
        listed(tmp_path, rows, **part)


@pytest.mark.parametrize(
    ("ids", "segments", "size", "words"),
    [
        ([10, 20], ["", ""], 3, "has 2 rows"),
        ([10, None], ["", ""], 2, "nulls"),
        (["a", "b"], ["", ""], 2, "ids of string"),
        ([10, 20], ["DE", "DE"], 2, "no segment ''"),
    ],
)
def test_file_of_a_list_is_held_against_the_manifest(
    tmp_path: Path, ids: list[Any], segments: list[str], size: int, words: str
) -> None:
    entry = CandidateList(file=paths.candidate_list("popular"), corpus="movies", size=size)
    write_list(tmp_path / entry.file, pa.array(ids), pa.array(segments))
    with pytest.raises(BundleError, match=words):
        read_list(tmp_path / entry.file, entry, "int64")
