"""The changes of a log in a store that is exported: what belongs into a bundle, and what does not.
tests/differential/test_changes_equal_a_rebuild.py exports whole models with a log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundle.changes.log import ChangeLog
from bundle.changes.records import Change, Head, encode, vector_array
from bundle.features.columns import Column
from bundle.format.manifest import Corpus
from bundle.stores.reader import CandidateStore
from bundle.stores.writer import write_store
from export.corpora.changes import fold, read_changes
from export.errors import ExportError
from tests.units.bundle.changes.writers import append


def change(action: str, ids: list[int], kind: str = "candidates", **columns: Any) -> Change:
    """Returns a change of the corpus `movies`."""
    is_sent = columns.pop("is_sent", False)
    embedded = ("movies",) if "vector:movies" in columns and not is_sent else ()
    head = Head(kind=kind, action=action, target="movies", version=1, embedded=embedded)
    return Change(head, pa.record_batch({"id": pa.array(ids, pa.int64()), **columns}))


def upsert(ids: list[int], years: list[int], **columns: Any) -> Change:
    stored = {
        "feature:movie": pa.array(ids, pa.int64()),
        "attribute:year": pa.array(years, pa.int64()),
        "vector:movies": vector_array(np.ones((len(ids), 2), np.float32)),
    }
    return change("upsert", ids, **stored, **columns)


def year(number: int) -> dict[str, Any]:
    return {"attribute:year": pa.array([number], pa.int64())}


def folded(directory: Path, *changes: Change) -> tuple[list[tuple[int, int]], list[str]]:
    """Exports six candidates with a log; returns the ids and years of the store, and the notes."""
    path = directory / "changes.log"
    append(ChangeLog(path, "movies"), *map(encode, changes))
    years = pa.array([1990 + row for row in range(6)], pa.int64())
    movies = {"movie": Column(np.arange(6))}
    store = directory / "store.arrow"
    corpus = Corpus(
        file=store.name, **vars(write_store(store, np.arange(6), movies, {"year": years}))
    )
    log = read_changes(path, "movies")
    corpus = fold(directory, corpus, log.of("corpora", "movies"), "corpora.movies", path.name)
    opened = CandidateStore(directory / corpus.file, corpus)
    everyone = np.arange(opened.size)
    stored = opened.attributes(everyone, ["year"])["year"]
    notes = log.notes({"corpora": {"movies": ["year"]}, "contexts": {}})
    return list(zip(opened.ids(everyone).tolist(), stored, strict=True)), notes


def test_what_a_bundle_cannot_hold_is_left_to_the_service_and_reported(tmp_path: Path) -> None:
    entries, notes = folded(
        tmp_path,
        upsert([7, 8], [2007, 2008], expires_s=pa.array([1e10, None], pa.float64())),
        change("delete", [7]),
        upsert([9], [2009], is_sent=True),
        change("upsert", [1], kind="contexts"),
    )
    assert [key for key, _ in entries] == [*range(6), 8]
    for words in ("1 changes of 1 entries", "expiry", "contexts.movies", "vectors"):
        assert any(words in note for note in notes)


def test_attributes_of_another_version_are_left_out_and_reported(tmp_path: Path) -> None:
    film = {"feature:movie": pa.array([7], pa.int64())}
    titles = {"attribute:title": pa.array(["Heat"])}
    entries, notes = folded(
        tmp_path,
        change("upsert", [7], **film, **titles),
        upsert([8], [2008], **titles),
        change("attributes", [1], **titles),
        change("attributes", [2], **titles, **year(1902)),
        change("attributes", [3], **{"attribute:year": pa.array(["1903"])}),
    )
    years = {key: 1990 + key for key in range(6)} | {2: 1902, 7: None, 8: 2008}
    assert dict(entries) == years
    assert any("4 changes of changes.log set attribute 'title'" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            [change("upsert", [2], **{"feature:film": pa.array([1])})],
            "change 1 .*'feature:movie'",
        ),
        ([change("delete", [*range(6)])], "deletes every entry"),
    ],
)
def test_change_that_does_not_fit_is_rejected(
    tmp_path: Path, changes: list[Change], words: str
) -> None:
    with pytest.raises(ExportError, match=f"corpora.movies: .*{words}"):
        folded(tmp_path, *changes)
    with pytest.raises(ExportError, match="that of 'books'"):
        read_changes(tmp_path / "changes.log", "books")
    with pytest.raises(ExportError, match=r"none\.log"):
        read_changes(tmp_path / "none.log", "movies")
