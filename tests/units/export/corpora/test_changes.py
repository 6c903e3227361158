"""The changes of a service in a store that is exported: what belongs into a bundle, and what does
not. tests/differential/test_changes_equal_a_rebuild.py exports whole models with changes.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from bundle.changes.file import FILE_NAME, ChangesFile
from bundle.changes.states import State
from bundle.features.columns import Column
from bundle.format.manifest import Corpus
from bundle.stores.reader import MappedColumns
from bundle.stores.writer import write_store
from export.corpora.changes import fold, read_changes
from export.corpora.files import locate_corpus
from export.errors import ExportError, VerificationFailed
from export.recipe.schema import CorpusSection
from export.verify.candidate_checks import CheckedStore, StoredInput, check_store
from tests.e2e.process import WAIT_S


def state(key: int | str, content: Any, attribute: str = "", **fields: Any) -> State:
    """Returns a state of a candidate of the corpus `movies`, without its sequence."""
    text = None if content is None and not attribute else orjson.dumps(content).decode()
    default = State(
        0, "candidates", "movies", key, attribute, None, 1, False, None, time.time(), text
    )
    return default._replace(**fields)


def film(year: Any, **columns: Any) -> dict[str, Any]:
    """Returns the content of an upsert."""
    return {"feature:movie": 7} | {"attribute:year": year, "attribute:mood": None} | columns


def write(path: Path, *states: State) -> None:
    """Has a service write states, and end."""
    file = ChangesFile(path, "movies")
    with file.writing(time.monotonic() + WAIT_S) as writer:
        writer.put(states)
    file.close()


class Exported:
    """Six candidates that were exported with changes, and compared with their file and these.

    Attributes:
      entries: The ids, years and moods of the store.
      notes: The notes of the export.
    """

    def __init__(self, directory: Path, *states: State) -> None:
        self._path = directory / FILE_NAME
        write(self._path, *states)
        rows = directory / "movies.csv"
        lines = [f"{row},{1990 + row},calm" for row in range(6)]
        rows.write_text("\n".join(["movie,year,mood", *lines]))
        attributes = {
            "year": pa.array([1990 + row for row in range(6)], pa.int64()),
            "mood": pa.array(["calm"] * 6, pa.large_string()),
        }
        features = {"movie": Column(np.arange(6))}
        store = directory / "store.arrow"
        written = write_store(store, np.arange(6), features, attributes)
        changes = read_changes(self._path, "movies")
        corpus = fold(
            directory,
            Corpus(file=store.name, **vars(written)),
            changes.of("corpora", "movies"),
            "corpora.movies",
            self._path.name,
        )
        self._last = changes.last
        opened = MappedColumns(directory / corpus.file, corpus)
        section = CorpusSection(
            file=rows.name, id="movie", features={"movie": "movie"}, attributes=("year", "mood")
        )
        files = locate_corpus(directory, "movies", section)
        inputs = {"movie": StoredInput(takes_lists=False)}
        self._store = CheckedStore(opened, "corpora", "movies", section, files, inputs, store.name)
        positions = np.arange(opened.size)
        values = opened.attributes(positions, ["year", "mood"])
        self.entries = {
            key: (year, mood)
            for key, year, mood in zip(
                opened.ids(positions).tolist(), values["year"], values["mood"], strict=True
            )
        }
        self.notes = changes.notes({"corpora": ["movies"], "contexts": []})
        self.notes += changes.notes_of("corpora", "movies", opened.types)
        self.verify(self._path)

    def verify(self, path: Path) -> None:
        """Compares the store with its file and the changes once more."""
        changes = read_changes(path, "movies", self._last)
        assert changes.last == self._last
        check_store(self._store, changes.of("corpora", "movies"))

    def change(self, *states: State) -> None:
        """Has the service, which goes on, write further states."""
        write(self._path, *states)


def test_what_a_bundle_cannot_hold_is_left_to_the_service_and_reported(tmp_path: Path) -> None:
    exported = Exported(
        tmp_path,
        state(7, film(2007), expires_s=1e10),
        state(7, 2017, "year"),
        state(8, film(2008)),
        state(9, film(2009), is_sent=True),
        state(1, {}, kind="contexts"),
    )
    assert [*exported.entries] == [*range(6), 8]
    for words in ("changes of 1 entries", "expiry", "contexts.movies", "vectors"):
        assert any(words in note for note in exported.notes)


def test_what_the_recipe_has_no_place_for_is_left_out_and_reported(tmp_path: Path) -> None:
    """No more than that: the rest of an entry is in the bundle, and other entries stay in their
    places.
    """
    exported = Exported(
        tmp_path,
        state(7, film(2007, **{"attribute:title": "Heat", "feature:film": 7})),
        state(8, {"feature:film": 8}),
        state(9, film(2009, **{"feature:movie": "nine"})),
        state("ten", film(2010)),
        state(11, film("early")),
        state(1, "Heat", "title"),
        state(3, "late", "year"),
        state(4, "sad", "mood"),
        state(4, "late", "year"),
        state(0, {"feature:film": 1}),
    )
    assert [*exported.entries] == [0, 1, 2, 3, 5, 7, 11, 4]
    assert exported.entries[7] == (2007, None)
    assert exported.entries[11] == (None, None)
    assert exported.entries[4] == (1994, "sad")
    for words in (
        "2 entries in changes.sqlite, first of 7, are not in the bundle, or not whole: this "
        "version has no place for attribute title",
        "3 entries in changes.sqlite, first of 11,.* attribute year",
        "1 entries in changes.sqlite, first of 7,.* feature film",
        "2 entries in changes.sqlite, first of 8,.* feature movie is missing",
        "2 entries in changes.sqlite, first of 9,.* does not fit",
    ):
        assert any(re.search(words, note) for note in exported.notes), exported.notes


def test_bundle_is_verified_after_its_service_has_gone_on(tmp_path: Path) -> None:
    """What was changed later is left out, and the rest is still compared. A backup says as much as
    the file, and is left as it is.
    """
    exported = Exported(
        tmp_path, state(7, film(2007)), state(8, film(2008)), state(1, None), state(2, 1902, "year")
    )
    backup = tmp_path / "backup.sqlite"
    file = ChangesFile(tmp_path / FILE_NAME, "movies")
    file.back_up(backup)
    file.close()
    backup.chmod(0o400)
    content = backup.read_bytes()
    exported.verify(backup)
    assert backup.read_bytes() == content
    assert not [*tmp_path.glob("backup.sqlite-*")]

    exported.change(
        state(7, None), state(2, film(2000)), state(3, 1903, "year"), state(9, film(2009))
    )
    exported.verify(tmp_path / FILE_NAME)
    # States that count for the bundle are compared still: one of another value is found.
    file = ChangesFile(tmp_path / FILE_NAME, "movies")
    (exported_state,) = file.states_of("candidates", "movies", [8])[8].values()
    with file.writing(time.monotonic() + WAIT_S) as writer:
        writer.copy([exported_state._replace(content=orjson.dumps(film(2018)).decode())])
    file.close()
    with pytest.raises(VerificationFailed, match=r"year of 8 is 2008.*2018"):
        exported.verify(tmp_path / FILE_NAME)


def test_changes_that_cannot_be_taken_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="deletes every entry"):
        Exported(tmp_path, *(state(key, None) for key in range(6)))
    with pytest.raises(ExportError, match="of model 'movies'; 'books' was expected"):
        read_changes(tmp_path / FILE_NAME, "books")
    with pytest.raises(ExportError, match=r"none\.sqlite"):
        read_changes(tmp_path / "none.sqlite", "movies")
