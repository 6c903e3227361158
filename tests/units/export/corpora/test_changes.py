"""The changes of a log in a store that is exported: what belongs into a bundle, and what does not;
test_changes_equal_a_rebuild.py exports whole models with a log.
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
from export.errors import NotConvertible, UsageError
from tests.units.bundle.changes.writers import append

NAME = "corpora.movies"


def change(action: str, ids: list[int], kind: str = "candidates", **columns: Any) -> Change:
    """Returns a change of the corpus `movies`."""
    embedded = ("movies",) if "vector:movies" in columns else ()
    if columns.pop("is_sent", False):
        embedded = ()
    head = Head(
        kind=kind,
        action=action,
        target="movies",
        version=1,
        embedded=embedded,
    )
    return Change(head, pa.record_batch({"id": pa.array(ids, pa.int64()), **columns}))


def upsert(ids: list[int], years: list[int], **columns: Any) -> Change:
    stored = {
        "feature:movie": pa.array(ids, pa.int64()),
        "attribute:year": pa.array(years, pa.int64()),
        "vector:movies": vector_array(np.ones((len(ids), 2), np.float32)),
    }
    return change("upsert", ids, **stored, **columns)


def write_log(path: Path, *changes: Change) -> Path:
    append(ChangeLog(path, "movies"), *map(encode, changes))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    written = write_store(
        tmp_path / "store.arrow",
        np.arange(6),
        {"movie": Column(np.arange(6))},
        {"year": pa.array([1990 + row for row in range(6)], pa.int64())},
    )
    return Corpus(file="store.arrow", **vars(written))


def entries(directory: Path, corpus: Corpus) -> list[tuple[int, int]]:
    """Returns the ids and years of a store, in its order."""
    store = CandidateStore(directory / corpus.file, corpus)
    positions = np.arange(store.size)
    years = store.attributes(positions, ["year"])["year"]
    return list(zip(store.ids(positions).tolist(), years, strict=True))


def test_changed_entries_stand_behind_the_others_in_the_order_of_their_last_change(
    tmp_path: Path, corpus: Corpus
) -> None:
    log = write_log(
        tmp_path / "changes.log",
        upsert([1, 100], [2001, 2100]),
        change("delete", [2]),
        change("attributes", [4], **{"attribute:year": pa.array([2004], pa.int64())}),
        upsert([2], [2002]),
        change("attributes", [1], **{"attribute:year": pa.array([2011], pa.int64())}),
    )
    changes = read_changes(log, "movies")
    folded = fold(tmp_path, corpus, changes.of("corpora", "movies"), NAME, log.name)
    unchanged = [(0, 1990), (3, 1993), (5, 1995)]
    assert entries(tmp_path, folded) == [
        *unchanged,
        (100, 2100),
        (4, 2004),
        (2, 2002),
        (1, 2011),
    ]
    assert changes.notes({"corpora": ["movies"], "contexts": []}) == [
        "corpora.movies: 5 changes of 4 entries from changes.log, up to sequence 5"
    ]


def test_what_a_bundle_cannot_hold_is_left_to_the_service_and_reported(
    tmp_path: Path, corpus: Corpus
) -> None:
    log = write_log(
        tmp_path / "changes.log",
        upsert([7, 8], [2007, 2008], expires_s=pa.array([1e10, None], pa.float64())),
        change("delete", [7]),
        upsert([9], [2009], is_sent=True),
        change("upsert", [1], kind="rows", vector=vector_array(np.ones((1, 2), np.float32))),
        change("upsert", [1], kind="contexts"),
    )
    changes = read_changes(log, "movies")
    folded = fold(tmp_path, corpus, changes.of("corpora", "movies"), NAME, log.name)
    assert [key for key, _ in entries(tmp_path, folded)] == [*range(6), 8]
    notes = changes.notes({"corpora": ["movies"], "contexts": []})
    assert notes == [
        "corpora.movies: 1 changes of 1 entries from changes.log, up to sequence 5",
        "changes.log: 1 changes are not in the bundle: a bundle knows no expiry; the service "
        "reads them from the log",
        "changes.log: 1 changes are not in the bundle: rows belong to the version for which they "
        "were sent",
        "changes.log: 1 changes are not in the bundle: the recipe has no contexts.movies",
        "changes.log: 1 changes are not in the bundle: vectors belong to the version for which "
        "they were sent",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [upsert([1], [2001]), change("upsert", [2], **{"feature:film": pa.array([1])})],
            "corpora.movies: change 2 of changes.log does not fit: the batch has a column "
            "'feature:film'",
        ),
        (
            [change("delete", [*range(6)])],
            "corpora.movies: changes.log deletes every entry; at least one was expected",
        ),
    ],
)
def test_a_change_that_does_not_fit_is_rejected(
    tmp_path: Path, corpus: Corpus, changes: list[Change], message: str
) -> None:
    log = write_log(tmp_path / "changes.log", *changes)
    before = entries(tmp_path, corpus)
    with pytest.raises(NotConvertible, match=message):
        fold(tmp_path, corpus, read_changes(log, "movies").of("corpora", "movies"), NAME, log.name)
    assert entries(tmp_path, corpus) == before


def test_a_file_that_is_no_log_of_the_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--with-changes .*none\.log is no file"):
        read_changes(tmp_path / "none.log", "movies")
    log = write_log(tmp_path / "changes.log", upsert([1], [2001]))
    with pytest.raises(
        NotConvertible, match="is the change log of model 'movies'; that of 'books'"
    ):
        read_changes(log, "books")
