"""A loaded version of a model, and the changes of its rows, candidates and contexts so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import (
    EXPIRES,
    ID,
    SEQUENCE,
    Absorption,
    Change,
    Kind,
    Run,
    vector_column,
)
from bundle.errors import BundleError, FormatError
from bundle.features.columns import Column
from bundle.storage import arrow
from bundle.tables.changed_rows import Exchange, rounded
from runtime.vectors import is_searchable
from service.changes.changed_parts import ChangedParts
from service.changes.changed_tables import ChangedTables
from service.changes.embedding import (
    CandidateReaders,
    ShardsFailed,
    Unembedded,
    embedded,
    is_of_shards,
)
from service.changes.growing_vectors import Vectors
from service.changes.row_readers import Positions
from service.changes.segments import UNUSABLE, LoadedSegment, SegmentDirectory
from service.changes.store_changes import ChangedCorpus
from service.engine.validation import NotFinite
from service.errors import ServiceError
from service.versions.version import LoadedStore, ModelVersion, ServedIndex

Ids = NDArray[Any]

OTHER_VERSION = "the vectors belong to another version"
"""The reason why a change is dropped: in another training, a vector of a tower or a table has
another meaning.
"""


class ChangeDropped(Exception):
    """A change in the log does not apply to this version; the message says why."""


REJECTIONS = (ChangeDropped, BundleError, ServiceError, NotFinite)
"""The errors that reject a change which does not apply to a version."""


class ChangedVersion:
    """A loaded version, and its changes so far. One thread at a time applies them.

    Attributes:
      loaded: The version as it was loaded.
      tables: The changes of its tables.
      served: The version with the changes that were applied before the last `publish`.
      sequence: The sequence of the last change that was applied, or dropped.
      dropped: The number of changes of the log that do not apply to this version, by the reason.
      is_lost: Whether the state that segments hold is not known any more, so that the log is to be
        applied anew.
      unusable: The reason why the last segments of a corpus are not used, by corpus: all its
        changed candidates are searched exactly.
      begun: The sequence of the last change in the segments that a corpus began with, by corpus.
    """

    def __init__(self, loaded: ModelVersion, segments: SegmentDirectory) -> None:
        """Begins without changes.

        Args:
          loaded: The version as it was loaded.
          segments: The segments of the model.
        """
        self.loaded = loaded
        self.tables = ChangedTables(loaded, segments.path.parent)
        self.served = loaded
        self.sequence = 0
        self.dropped: Counter[str] = Counter()
        self.is_lost = False
        self.unusable: dict[str, str] = {}
        self.begun: dict[str, int] = {}
        self._segments = segments
        self._stores: dict[tuple[Kind, str], ChangedCorpus] = {}
        self._readers = CandidateReaders(loaded)
        self._unembedded = Unembedded()
        self._is_outdated = False

    def publish(self) -> ModelVersion:
        """Returns the version with all changes that were applied; also as `served`.

        Raises:
          ShardsFailed: A shard that holds rows which vectors depend on does not respond. The next
            call tries again.
        """
        if self._is_outdated:
            self.compact()
            # Twice, if vectors are missing: they are computed with all other changes in effect, by
            # the same code that serves requests.
            self.served = self._with_changes()
            if self._unembedded:
                failed_count = self._unembedded.embed(self.served, self._corpus)
                if failed_count:
                    self.dropped["the vector of a candidate cannot be computed"] += failed_count
                self.served = self._with_changes()
            self._is_outdated = False
        return self.served

    def compact(self) -> None:
        """Forgets candidates that were added and replaced or deleted since, if they are many."""
        for (kind, name), store in self._stores.items():
            if store.compact() and kind == "candidates":
                self._readers.forget_from(name, store.store.base_size)

    def _with_changes(self) -> ModelVersion:
        """Returns the version with the changes now, but for vectors that are not computed yet. It
        shares the memory of earlier states.
        """
        loaded = self.loaded
        corpora: dict[str, LoadedStore] = {**loaded.corpora}
        contexts: dict[str, LoadedStore] = {**loaded.contexts}
        indexes: dict[str, ServedIndex] = {**loaded.indexes}
        for (kind, name), changed in self._stores.items():
            if not changed.is_changed:
                continue
            store, store_indexes = changed.served()
            if kind == "candidates":
                corpora[name] = store
            else:
                contexts[name] = store
            indexes.update(store_indexes)

        # Rows of tables that shards hold are laid over what the shards return.
        all_rows = self.tables.rows
        rows_here = {name: rows for name, rows in all_rows.items() if name in loaded.tables}
        shards = loaded.shards
        if shards is not None and len(rows_here) < len(all_rows):
            remote = {name: rows for name, rows in all_rows.items() if name in shards.tables}
            shards = ChangedParts(shards, remote)
        return replace(
            loaded,
            reader=self.served.reader.with_changes(rows_here, self.tables.new_keys),
            shards=shards,
            corpora=corpora,
            contexts=contexts,
            indexes=indexes,
            changes=self.sequence,
        )

    def apply(self, sequence: int, change: Change) -> None:
        """Applies a change; counts it as dropped where it does not apply to this version.

        Args:
          sequence: The sequence of the change in the log.
          change: The change.

        Raises:
          ShardsFailed: A shard that the change needs does not respond; nothing was changed.
        """
        try:
            self.change(change, sequence)
        except REJECTIONS as problem:
            # A change does not fit for good, and is dropped alike by all processes. A shard may
            # respond again: the change must not be lost by then.
            if is_of_shards(self.loaded, problem):
                raise ShardsFailed(str(problem)) from problem
            reason = "it does not fit"
            if isinstance(problem, ChangeDropped):
                reason = str(problem)
            self.dropped[reason] += 1
        self.sequence = sequence
        self._is_outdated = True

    def apply_run(self, run: Run) -> None:
        """Applies a run of changes like repeated calls of `apply`: at once where the effect is the
        same.

        Raises:
          ShardsFailed: A shard that a change needs does not respond; this change and those behind
            it are missing.
          FormatError: A change cannot be read.
        """
        if len(run.sequences) > 1 and self._is_joinable(run):
            first, *_, last = run.sequences
            try:
                self.change(run.last_states, last, first)
            except REJECTIONS:
                # One of them does not fit. One by one, it is dropped, and the others are applied.
                pass
            else:
                self.set_sequence(last)
                return
        for sequence, change in run.changes:
            self.apply(sequence, change)

    def _is_joinable(self, run: Run) -> bool:
        """Returns whether the last states of ids have the effect of all changes of a run.

        That is so for upserts of candidates or contexts, if all are accepted or none is. Where the
        log has the types of the store, no single value decides whether a change is accepted.
        """
        head = run.head
        if head.action != "upsert" or head.kind == "rows":
            return False
        store = self.store(head.kind, head.target)
        if store is None:
            return False
        types = store.store.types
        logged = {field.name: field.type for field in run.schema}
        return all(
            name in logged and arrow.kind_of(logged[name]) == arrow.kind_of(stored)
            for name, stored in types.items()
        )

    def set_sequence(self, sequence: int) -> None:
        """Sets the sequence of the change that was applied last."""
        self.sequence = sequence
        self._is_outdated = True

    def change(self, change: Change, sequence: int, first_sequence: int | None = None) -> None:
        """Applies a change that may not be in the log yet.

        Args:
          change: The change.
          sequence: The sequence that it has in the log, or will have.
          first_sequence: The sequence of the first change, if this one stands for several; None: it
            does not.

        Raises:
          ChangeDropped: The change does not apply to this version; nothing was changed.
          BundleError: The change does not fit the version; nothing was changed.
          ServiceError: The change names something that does not exist; nothing was changed.
          NotFinite: A vector cannot be computed; nothing was changed.
        """
        head = change.head
        if head.absorption is not None:
            self._absorb(head.target, head.version, head.absorption)
            return
        if not change.size:
            return
        self._is_outdated = True
        # A change of a row marks all stores: candidates of any store may be embedded anew.
        try:
            self._make(change, sequence)
        finally:
            for store in self._stores.values():
                store.mark(sequence, first_sequence)

    def _make(self, change: Change, sequence: int) -> None:
        """Makes a change that is no absorption. Raises the errors that `change` lists."""
        head = change.head
        if head.kind == "rows":
            self._change_rows(change, sequence)
            return
        store = self.store(head.kind, head.target)
        if store is None:
            raise ChangeDropped(f"there is no store {head.target!r}")
        if head.action == "delete":
            store.delete(change.ids)
        elif head.action == "attributes":
            store.set_attributes(change.ids, _attributes(change))
        else:
            self._upsert(store, change)

    @property
    def corpora(self) -> dict[str, ChangedCorpus]:
        """The changes of corpora that have some, by name."""
        return {name: store for (kind, name), store in self._stores.items() if kind != "contexts"}

    def store(self, kind: Kind, name: str) -> ChangedCorpus | None:
        """Returns the changes of a corpus or context store; None: there is no such store."""
        key = (kind, name)
        if key not in self._stores:
            loaded = self.loaded
            stores = loaded.contexts
            indexes = {}
            if kind == "candidates":
                stores = loaded.corpora
                indexes = {
                    index_name: index
                    for index_name, index in loaded.indexes.items()
                    if index.entry.corpus == name
                }
            if name not in stores:
                return None
            self._stores[key] = ChangedCorpus(stores[name], indexes)
        return self._stores[key]

    def uses(self, corpus: str, version: int, absorption: Absorption) -> bool:
        """Returns whether segments have the vectors of this version.

        Args:
          corpus: The name of the corpus.
          version: The number of the version whose vectors the segments have.
          absorption: The segments.
        """
        loaded = self.loaded
        is_same_bundle = (version, absorption.fingerprint) == (loaded.version, loaded.fingerprint)
        return is_same_bundle and corpus in loaded.corpora

    def begin_with(self, corpus: str, absorption: Absorption) -> None:
        """Begins with the candidates of a corpus that segments hold, before any of its changes.

        Args:
          corpus: The name of the corpus.
          absorption: The segments.

        Raises:
          BundleError: The segments are damaged, or of another corpus; nothing was changed.
          OSError: The segments cannot be read; nothing was changed.
        """
        store = self.store("candidates", corpus)
        if store is None:
            raise FormatError(f"there is no corpus {corpus!r}")
        segments = self._load_segments(store, absorption)
        store.begin_with(absorption.sequence, segments, self._segments.ended(absorption))
        self.begun[corpus] = absorption.sequence
        self._is_outdated = True

    def _absorb(self, corpus: str, version: int, absorption: Absorption) -> None:
        """Lets segments hold changed candidates, unless the segments cannot be used."""
        # Another version has other vectors, and its own segments: its candidates did not change.
        if not self.uses(corpus, version, absorption):
            return
        store = self.store("candidates", corpus)
        if store is None:
            return

        # Embeds what has changed before: absorbed candidates leave the slots whose vectors are
        # computed.
        self.publish()
        try:
            segments = self._load_segments(store, absorption)
            ended = self._segments.ended(absorption)
        except UNUSABLE as problem:
            # This does no harm: all changed candidates are searched exactly instead.
            self.unusable[corpus] = str(problem)
            return
        try:
            store.absorb(absorption.sequence, segments, ended)
        except FormatError:
            # The store does not know its state at that sequence, such as after a start from the
            # log, while the segment was made.
            self.is_lost = True
            return
        self.unusable.pop(corpus, None)

        # All changed candidates have new positions.
        self._readers.forget_from(corpus, store.store.base_size)
        self._is_outdated = True

    def load(self, corpus: str, absorption: Absorption) -> None:
        """Loads segments of a corpus before they are used.

        Raises:
          BundleError: The segments are damaged, or of another release.
          OSError: The segments cannot be read.
        """
        store = self.store("candidates", corpus)
        if store is not None:
            self._load_segments(store, absorption)

    def _load_segments(self, store: ChangedCorpus, absorption: Absorption) -> list[LoadedSegment]:
        segments = [
            self._segments.load(segment, store.base, store.indexes)
            for segment in absorption.segments
        ]
        # A segment without candidates only ends others, and is not loaded.
        return [segment for segment in segments if segment is not None]

    def exchange_file(self, table: str, exchange: Exchange) -> bool:
        """Reads changed rows of a table from a file; returns False if the rows in the file are not
        those that were applied.
        """
        if not self.tables.exchange_file(table, exchange):
            return False
        self._is_outdated = True
        return True

    def counts(self) -> dict[str, int]:
        """Returns how many rows of each table, and positions of each store, are changed."""
        counts = {**self.tables.counts}
        for (kind, name), store in self._stores.items():
            counts[f"{kind} {name}"] = store.added_count
        return counts

    def expired(self, now_s: float) -> dict[str, list[int | str]]:
        """Returns the ids of candidates that have expired, by corpus."""
        expired = {}
        for (_, name), store in self._stores.items():
            ids = store.expired(now_s)
            if ids:
                expired[name] = ids
        return expired

    def embed(self, index: ServedIndex, columns: Mapping[str, Column], n: int) -> Vectors:
        """Returns the vectors of candidates by the candidate tower of an index, [n, dim].

        They are computed with all changes that were applied.

        Args:
          index: The index.
          columns: The features of n candidates.
          n: The number of candidates.

        Raises:
          BundleError: A column does not fit its feature.
          ServiceError: The tower cannot compute with these features.
          NotFinite: A vector would hold NaN or an infinity.
        """
        return embedded(self.publish(), index, columns, n)

    def readers(self, table: str, rows: NDArray[np.int64], keys: Ids) -> dict[str, Positions]:
        """Returns the candidates whose vectors depend on some rows of a table, by corpus.

        Args:
          table: The name of the table.
          rows: The rows of the table.
          keys: Keys of the table, known or about to be added, whose rows are not in its files.
        """
        return self._readers.positions(table, rows, keys, self._corpus)

    def _upsert(self, store: ChangedCorpus, change: Change) -> None:
        """Adds candidates or contexts.

        Raises:
          ChangeDropped: The vectors were sent for another version.
          FormatError: The candidates or contexts do not fit the store; nothing was changed.
        """
        head = change.head
        is_same_version = head.version == self.loaded.version
        vectors = {}
        for name, index in store.indexes.items():
            logged = change.vectors(vector_column(name))
            if is_same_version and logged is not None:
                vectors[name] = logged
            # Another version embeds the candidate with its own tower, all of them together before
            # they are served.
            elif name in head.embedded:
                vectors[name] = np.zeros((change.size, index.entry.dim), np.float32)
            else:
                raise ChangeDropped(OTHER_VERSION)
        columns = change.columns.select(_store_column_names(change))
        positions = store.upsert(columns, vectors, head.embedded, change.numbers(EXPIRES))
        # Earlier releases accepted vectors that cannot be searched.
        for name, index_vectors in vectors.items():
            is_lost = ~is_searchable(index_vectors)
            if is_lost.any():
                store.delete(change.ids[is_lost])
                self.dropped[f"a vector of index {name!r} cannot be searched"] += 1
        if store.indexes and not is_same_version:
            self._unembedded.add(head.target, store.store.ids(positions))

    def _change_rows(self, change: Change, sequence: int) -> None:
        """Gives rows other vectors, and notes the candidates that read them, to embed them anew.

        Raises:
          ChangeDropped: The vectors were sent for another version.
          BundleError: An id or a vector does not fit the table; nothing was changed.
          ServiceError: A shard does not respond; nothing was changed.
        """
        head = change.head
        if head.version != self.loaded.version:
            raise ChangeDropped(OTHER_VERSION)
        table = self.loaded.manifest.tables.get(head.target)
        if table is None:
            raise ChangeDropped(f"there is no table {head.target!r}")
        vectors = change.vectors()
        assert vectors is not None  # noqa: S101 - the log has vectors of all rows
        vectors = rounded(vectors, table.dtype)
        ids = change.ids
        rows = self.tables.rows_of(ids, head.feature)
        keys = np.empty(0, np.int64)
        takes_keys = self.tables.takes_keys(head.feature)
        if takes_keys:
            keys = ids[(rows < 0) | (rows >= table.rows)]

        # Shards are called before anything is changed: if one does not respond, nothing is.
        reader_vectors: dict[str, tuple[Ids, dict[str, Vectors]]] = {}
        for corpus, positions in self.readers(head.target, rows, keys).items():
            # The segments that a corpus began with have the vectors after all changes up to theirs.
            if sequence > self.begun.get(corpus, 0):
                store = self._corpus(corpus)
                reader_vectors[corpus] = store.store.ids(positions), store.vectors(positions)

        if takes_keys:
            rows = self.tables.add_keys(head.target, ids, rows)
        self.tables.change(head.target, rows, vectors)
        for corpus, (reader_ids, stored_vectors) in reader_vectors.items():
            # Positions are given here, so that they do not depend on when vectors are computed.
            self._corpus(corpus).set_attributes(reader_ids, {}, stored_vectors)
            self._unembedded.add(corpus, reader_ids)

    def _corpus(self, name: str) -> ChangedCorpus:
        """Returns the changes of a corpus of the version."""
        store = self.store("candidates", name)
        assert store is not None  # noqa: S101 - the version has it
        return store


def _store_column_names(change: Change) -> list[str]:
    """Returns the names of the columns of a change that a store holds."""
    return [
        name
        for name in change.columns.schema.names
        if name not in {SEQUENCE, EXPIRES} and not name.startswith("vector")
    ]


def _attributes(change: Change) -> dict[str, Any]:
    return {
        name.removeprefix("attribute:"): change.columns.column(name)
        for name in change.columns.schema.names
        if name != ID and name.startswith("attribute:")
    }
