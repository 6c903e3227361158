"""A loaded version of a model, and the changes of its rows, candidates and contexts so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from bundle.format.manifest import EmbeddedFeature, KeyedIds, Manifest, inputs_of
from bundle.storage import arrow
from bundle.tables.changed_rows import ChangedRows, Exchange, rounded
from bundle.tables.id_values import distinct, integers
from bundle.tables.new_keys import NewKeys
from service.changes.changed_parts import ChangedParts
from service.changes.growing_vectors import Vectors
from service.changes.row_readers import Positions, RowReaders
from service.changes.segments import UNUSABLE, LoadedSegment, SegmentDirectory
from service.changes.store_changes import ChangedCorpus
from service.engine import lookup, towers
from service.engine.computation import completed
from service.engine.execution import Execution
from service.engine.limits import NotFinite
from service.errors import SHARD_FAILURES, ServiceError
from service.versions.version import LoadedStore, ModelVersion, ServedIndex

Ids = NDArray[Any]

OTHER_VERSION = "the vectors belong to another version"
"""Why a change is dropped: a tower, or a table, of another training gives a vector another meaning.
"""


_EMBEDDED_TOGETHER = 1024
"""Candidates whose vectors are computed at a time."""


class ChangeDropped(Exception):
    """A change in the log does not apply to this version; the message says why."""


class ShardsFailed(Exception):
    """Shards that a router needs to apply a change do not respond now."""


_REJECTED = (ChangeDropped, BundleError, ServiceError, NotFinite)
"""How a change is rejected that does not apply to a version."""


class ChangedVersion:
    """A loaded version, and its changes so far. One thread at a time applies them.

    Attributes:
      loaded: The version as it was loaded.
      served: The version with the changes that were applied before the last `publish`.
      sequence: Of the last change that was applied, or dropped.
      dropped: How many changes of the log do not apply to this version, by the reason.
      is_lost: Whether the state that segments hold is not known any more, so that the log is to be
        applied anew.
      unusable: By corpus, why its last segments are not used: all its changed candidates are
        searched exactly.
      begun: By corpus, the sequence of the last change in the segments that it began with.
    """

    def __init__(self, loaded: ModelVersion, segments: SegmentDirectory) -> None:
        """Begins without changes.

        Args:
          loaded: The version as it was loaded.
          segments: Those of the model.
        """
        self.loaded = loaded
        self.unusable: dict[str, str] = {}
        self._segments = segments
        self.begun: dict[str, int] = {}
        self.is_lost = False
        self.served = loaded
        self.sequence = 0
        self.dropped: Counter[str] = Counter()
        self._rows: dict[str, ChangedRows] = {}
        self._new_keys: dict[str, NewKeys] = {}
        self._stores: dict[tuple[Kind, str], ChangedCorpus] = {}
        self._readers: dict[tuple[str, str], RowReaders] = {}
        """The candidates of a corpus that read a table, by both names."""
        self._unembedded: dict[str, list[Ids]] = {}
        """Ids of candidates, by corpus, whose vectors are not those of their features and rows."""
        self._is_outdated = False

    def publish(self) -> ModelVersion:
        """Returns the version with all changes that were applied; also as `served`.

        Raises:
          ShardsFailed: A shard that holds what vectors are computed with does not respond. The next
            call tries again.
        """
        if self._is_outdated:
            self.compact()
            self.served = self._with_changes()
            if self._unembedded:
                self._embed()
                self.served = self._with_changes()
            self._is_outdated = False
        return self.served

    def compact(self) -> None:
        """Forgets candidates that were added and replaced or deleted since, if they are many."""
        for (kind, name), store in self._stores.items():
            if store.compact() and kind == "candidates":
                self._forget_readers(name, store)

    def _forget_readers(self, corpus: str, store: ChangedCorpus) -> None:
        """Forgets what candidates behind the bundle's read: they have other positions now."""
        for (name, _), readers in self._readers.items():
            if name == corpus:
                readers.forget_from(store.store.base_size)

    def _with_changes(self) -> ModelVersion:
        loaded = self.loaded
        corpora: dict[str, LoadedStore] = {**loaded.corpora}
        contexts: dict[str, LoadedStore] = {**loaded.contexts}
        indexes: dict[str, ServedIndex] = {**loaded.indexes}
        for (kind, name), changed in self._stores.items():
            if not changed.is_changed:
                continue
            store, store_indexes = changed.served()
            stores = corpora if kind == "candidates" else contexts
            stores[name] = store
            indexes.update(store_indexes)
        rows_here = {name: rows for name, rows in self._rows.items() if name in loaded.tables}
        shards = loaded.shards
        if shards is not None and len(rows_here) < len(self._rows):
            remote = {name: rows for name, rows in self._rows.items() if name in shards.tables}
            shards = ChangedParts(shards, remote)
        return replace(
            loaded,
            reader=self.served.reader.with_changes(rows_here, self._new_keys),
            shards=shards,
            corpora=corpora,
            contexts=contexts,
            indexes=indexes,
            changes=self.sequence,
        )

    def apply(self, sequence: int, change: Change) -> None:
        """Applies a change; counts it as dropped where it does not apply to this version.

        Args:
          sequence: Of the change in the log.
          change: The change.

        Raises:
          ShardsFailed: A shard that it needs does not respond; nothing was changed.
        """
        try:
            self.change(change, sequence)
        except _REJECTED as problem:
            if self._is_of_shards(problem):
                raise ShardsFailed(str(problem)) from problem
            reason = str(problem) if isinstance(problem, ChangeDropped) else "it does not fit"
            self.dropped[reason] += 1
        self.sequence = sequence
        self._is_outdated = True

    def apply_run(self, run: Run) -> None:
        """Applies a run of changes as `apply` does one by one, at once where that gives the same.

        Raises:
          ShardsFailed: A shard that a change needs does not respond; it and the ones behind it are
            missing.
          FormatError: A change cannot be read.
        """
        if len(run.sequences) > 1 and self._is_joinable(run):
            first, *_, last = run.sequences
            try:
                self.change(run.last_states, last, first)
            except _REJECTED:
                pass  # one by one, each has its reason
            else:
                self.set_sequence(last)
                return
        for sequence, change in run.changes:
            self.apply(sequence, change)

    def _is_joinable(self, run: Run) -> bool:
        """Returns whether the last states of ids have the effect of all changes of a run.

        That is so for upserts of candidates or contexts, if all are accepted or none is. Values
        decide that only where the store holds values of another type.
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
            name in logged and arrow.kind_of(logged[name]) == arrow.kind_of(kind)
            for name, kind in types.items()
        )

    def set_sequence(self, sequence: int) -> None:
        """Says which sequence the change has that was applied last."""
        self.sequence = sequence
        self._is_outdated = True

    def change(self, change: Change, sequence: int, first_sequence: int | None = None) -> None:
        """Applies a change that may not be in the log yet.

        Args:
          change: The change.
          sequence: That it has in the log, or will have.
          first_sequence: Of the first one, if the change stands for several; None: it does not.

        Raises:
          ChangeDropped: It does not apply to this version; nothing was changed.
          BundleError, ServiceError, NotFinite: It does not fit the version; nothing was changed.
        """
        head = change.head
        if head.absorption is not None:
            self._absorb(head.target, head.version, head.absorption)
            return
        if not change.size:
            return
        self._is_outdated = True
        try:
            self._make(change, sequence)
        finally:
            for store in self._stores.values():
                store.mark(sequence, first_sequence)

    def _make(self, change: Change, sequence: int) -> None:
        """Makes a change that is no absorption; errors as of `change`."""
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
            stores = loaded.corpora if kind == "candidates" else loaded.contexts
            if name not in stores:
                return None
            indexes = {}
            if kind == "candidates":
                indexes = {
                    index_name: index
                    for index_name, index in loaded.indexes.items()
                    if index.entry.corpus == name
                }
            self._stores[key] = ChangedCorpus(stores[name], indexes)
        return self._stores[key]

    def uses(self, corpus: str, version: int, absorption: Absorption) -> bool:
        """Returns whether segments have the vectors of this version.

        Args:
          corpus: The name of the corpus.
          version: The number of the version whose vectors they have.
          absorption: The segments.
        """
        loaded = self.loaded
        is_own = (version, absorption.fingerprint) == (loaded.version, loaded.fingerprint)
        return is_own and corpus in loaded.corpora

    def begin_with(self, corpus: str, absorption: Absorption) -> None:
        """Begins with what segments hold of a corpus, before any change of it.

        Args:
          corpus: The name of the corpus.
          absorption: The segments.

        Raises:
          BundleError, OSError: They cannot be used; nothing was changed.
        """
        store = self.store("candidates", corpus)
        if store is None:
            raise FormatError(f"there is no corpus {corpus!r}")
        segments = self._loaded_segments(store, absorption)
        store.begin_with(absorption.sequence, segments, self._segments.ended(absorption))
        self.begun[corpus] = absorption.sequence
        self._is_outdated = True

    def _absorb(self, corpus: str, version: int, absorption: Absorption) -> None:
        """Has segments hold changed candidates, unless they cannot be used."""
        store = self.store("candidates", corpus)
        if store is None or not self.uses(corpus, version, absorption):
            return
        self.publish()  # embeds what has changed before
        try:
            segments = self._loaded_segments(store, absorption)
            ended = self._segments.ended(absorption)
        except UNUSABLE as problem:
            self.unusable[corpus] = str(problem)
            return
        try:
            store.absorb(absorption.sequence, segments, ended)
        except FormatError:  # such as after a start from the log, while the segment was made
            self.is_lost = True
            return
        self.unusable.pop(corpus, None)
        self._forget_readers(corpus, store)
        self._is_outdated = True

    def load(self, corpus: str, absorption: Absorption) -> None:
        """Loads segments of a corpus before they are used.

        Raises:
          BundleError, OSError: They cannot be used.
        """
        store = self.store("candidates", corpus)
        if store is not None:
            self._loaded_segments(store, absorption)

    def _loaded_segments(self, store: ChangedCorpus, absorption: Absorption) -> list[LoadedSegment]:
        loaded = [
            self._segments.load(segment, store.base, store.indexes)
            for segment in absorption.segments
        ]
        return [segment for segment in loaded if segment is not None]

    def changed_rows(self, table: str) -> ChangedRows:
        """Returns the changed rows of a table."""
        return self._rows.get(table) or ChangedRows.none(self.loaded.manifest.tables[table].dim)

    def tables(self) -> list[str]:
        """Returns the tables that have changed rows."""
        return list(self._rows)

    def exchange_file(self, table: str, exchange: Exchange) -> bool:
        """Reads changed rows of a table from a file; returns False if they are not those that were
        applied.
        """
        changed = self.changed_rows(table).with_file(exchange)
        if changed is None:
            return False
        self._rows[table] = changed
        self._is_outdated = True
        return True

    def counts(self) -> dict[str, int]:
        """Returns how many rows of each table, and positions of each store, are changed."""
        counts = {f"table {name}": changed.count for name, changed in self._rows.items()}
        for name, changed in self._rows.items():
            if changed.file is not None:
                counts[f"a file of table {name}"] = changed.file.header.count
        for name, new_keys in self._new_keys.items():
            counts[f"new rows of table {name}"] = new_keys.count
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

    def rows_of(self, ids: Ids, feature: str) -> NDArray[np.int64]:
        """Returns the rows that ids stand for, -1 of unknown ones.

        Args:
          ids: [m], as clients send them.
          feature: By whose rule they become rows; "": they are rows.

        Raises:
          FeatureError: A value is no id of the feature.
        """
        if not feature:
            return np.asarray(ids, np.int64)
        name, entry = lookup.embedded_feature(self.loaded, feature)
        (read,) = inputs_of(name, entry)
        rows, _ = self.loaded.reader.rows(name, {read: Column(ids)}, ids.size)
        new_keys = self._new_keys.get(entry.table)
        if new_keys is not None and self.takes_keys(feature):
            is_unknown = rows < 0
            rows[is_unknown] = new_keys.find(integers(read, ids[is_unknown]))
        return rows

    def takes_keys(self, feature: str) -> bool:
        """Returns whether ids of a feature that its table does not know can become rows of it."""
        if not feature:
            return False
        _, entry = lookup.embedded_feature(self.loaded, feature)
        return self._takes_keys(entry)

    def key_feature(self, table: str) -> str:
        """Returns a feature by which a table takes new keys; "": it takes none."""
        for name, entry in self.loaded.manifest.features.items():
            if not isinstance(entry, EmbeddedFeature) or entry.table != table:
                continue
            if self._takes_keys(entry):
                return name
        return ""

    def _takes_keys(self, entry: EmbeddedFeature) -> bool:
        growing = self.loaded.reader.growing
        return isinstance(entry.ids, KeyedIds) and growing.get(entry.table) == entry.ids.keys

    def embed(self, index: ServedIndex, columns: Mapping[str, Column], n: int) -> Vectors:
        """Returns the vectors of candidates by the candidate tower of an index, [n, dim].

        They are computed with all changes that were applied.

        Args:
          index: The index.
          columns: The features of n candidates.
          n: Their number.

        Raises:
          BundleError: A column does not fit its feature.
          ServiceError, NotFinite: The tower cannot compute with them.
        """
        return _embedded(self.publish(), index, columns, n)

    def readers(self, table: str, rows: NDArray[np.int64], keys: Ids) -> dict[str, Positions]:
        """Returns the candidates whose vectors depend on some rows of a table, by corpus.

        Args:
          table: The name of the table.
          rows: Its rows.
          keys: Keys whose rows are not in its files, and that it has, or is about to get.
        """
        positions = {}
        for corpus in self.loaded.corpora:
            features = self._features_of(corpus, table)
            if features:
                store = self.store("candidates", corpus)
                assert store is not None  # noqa: S101 - the corpus is loaded
                row_readers = self._row_readers(corpus, table, features)
                positions[corpus] = row_readers.positions(store.store, rows, keys)
        return {corpus: readers for corpus, readers in positions.items() if readers.size}

    def _features_of(self, corpus: str, table: str) -> list[str]:
        """Returns the features by which candidate towers over a corpus read a table."""
        loaded = self.loaded
        names = [
            name
            for index in loaded.indexes.values()
            if index.entry.corpus == corpus
            for name in loaded.towers[index.entry.candidate_tower].features
            if _reads(loaded.manifest, name, table)
        ]
        return list(dict.fromkeys(names))

    def _row_readers(self, corpus: str, table: str, features: Sequence[str]) -> RowReaders:
        key = (corpus, table)
        if key not in self._readers:
            loaded = self.loaded
            stored = loaded.corpora[corpus].entry.features
            self._readers[key] = RowReaders(loaded.manifest, loaded.reader, features, stored)
        return self._readers[key]

    def _embed(self) -> None:
        """Computes the vectors of candidates whose rows have changed."""
        for corpus, parts in self._unembedded.items():
            store = self.store("candidates", corpus)
            assert store is not None  # noqa: S101 - it has such candidates
            positions = distinct(store.store.positions(np.concatenate(parts)))
            positions = positions[positions >= 0]
            for start in range(0, positions.size, _EMBEDDED_TOGETHER):
                self._embed_some(store, positions[start : start + _EMBEDDED_TOGETHER])
        self._unembedded = {}

    def _embed_some(self, store: ChangedCorpus, positions: Positions) -> None:
        columns = store.store.features(positions, store.base.entry.features)
        try:
            vectors = {
                name: _embedded(self.served, index, columns, positions.size)
                for name, index in store.indexes.items()
            }
            store.embed(positions, vectors)
        except (BundleError, ServiceError, NotFinite) as problem:
            if self._is_of_shards(problem):
                raise ShardsFailed(str(problem)) from problem
            if positions.size > 1:  # the others have vectors
                for position in positions:
                    self._embed_some(store, np.array([position]))
                return
            self.dropped["the vector of a candidate cannot be computed"] += 1

    def _is_of_shards(self, problem: Exception) -> bool:
        """Returns whether shards are at fault, and not the change."""
        return self.loaded.shards is not None and isinstance(problem, SHARD_FAILURES)

    def _upsert(self, store: ChangedCorpus, change: Change) -> None:
        """Adds candidates or contexts.

        Raises:
          ChangeDropped: Their vectors were sent for another version.
          FormatError: They do not fit the store; nothing was changed.
        """
        head = change.head
        is_own = head.version == self.loaded.version
        vectors = {}
        for name, index in store.indexes.items():
            logged = change.vectors(vector_column(name))
            if is_own and logged is not None:
                vectors[name] = logged
            elif name in head.embedded:
                vectors[name] = np.zeros((change.size, index.entry.dim), np.float32)
            else:
                raise ChangeDropped(OTHER_VERSION)
        columns = change.columns.select(_stored_columns(change))
        positions = store.upsert(columns, vectors, head.embedded, change.numbers(EXPIRES))
        if store.indexes and not is_own:
            self._unembedded.setdefault(head.target, []).append(store.store.ids(positions))

    def _change_rows(self, change: Change, sequence: int) -> None:
        head = change.head
        if head.version != self.loaded.version:
            raise ChangeDropped(OTHER_VERSION)
        table = self.loaded.manifest.tables.get(head.target)
        if table is None:
            raise ChangeDropped(f"there is no table {head.target!r}")
        vectors = change.vectors()
        assert vectors is not None  # noqa: S101 - the log has them of all rows
        vectors = rounded(vectors, table.dtype)
        ids = change.ids
        rows = self.rows_of(ids, head.feature)
        changed = self.changed_rows(head.target)
        keys = np.empty(0, np.int64)
        takes_keys = self.takes_keys(head.feature)
        if takes_keys:
            keys = ids[(rows < 0) | (rows >= table.rows)]

        # Shards are called before anything is changed: if one does not respond, nothing is.
        reader_vectors: dict[str, tuple[Ids, dict[str, Vectors]]] = {}
        for corpus, positions in self.readers(head.target, rows, keys).items():
            if sequence > self.begun.get(corpus, 0):
                store = self._corpus(corpus)
                reader_vectors[corpus] = store.store.ids(positions), store.vectors(positions)

        if takes_keys:
            rows = self._with_new_rows(head.target, ids, rows)
        self._rows[head.target] = changed.with_rows(rows, vectors)
        for corpus, (reader_ids, stored) in reader_vectors.items():
            # Positions are given here, so that they do not depend on when vectors are computed.
            self._corpus(corpus).set_attributes(reader_ids, {}, stored)
            self._unembedded.setdefault(corpus, []).append(reader_ids)

    def _corpus(self, name: str) -> ChangedCorpus:
        """Returns the changes of a corpus of the version."""
        store = self.store("candidates", name)
        assert store is not None  # noqa: S101 - the version has it
        return store

    def _with_new_rows(
        self, table: str, keys: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Gives the keys that have no row of a table the next ones; returns the rows of all."""
        is_new = rows < 0
        if not is_new.any():
            return rows
        new_keys = self._new_keys.get(table)
        if new_keys is None:
            new_keys = NewKeys.none(self.loaded.manifest.tables[table].rows)
        rows[is_new] = np.arange(np.count_nonzero(is_new)) + new_keys.end_row
        self._new_keys[table] = new_keys.with_keys(keys[is_new])
        return rows


def _embedded(
    version: ModelVersion, index: ServedIndex, columns: Mapping[str, Column], n: int
) -> Vectors:
    """Returns the vectors of candidates in a version; errors as of `ChangedVersion.embed`."""
    tower = version.towers[index.entry.candidate_tower]
    execution = Execution("change")
    sent = {name: column for name, column in columns.items() if name in tower.inputs}
    fitted = lookup.fit(version, sent, n, execution)
    vectors: Vectors = completed(towers.result(version, tower, fitted, n, execution))
    return np.asarray(vectors, np.float32)


def _reads(manifest: Manifest, name: str, table: str) -> bool:
    """Returns whether a feature reads a table."""
    feature = manifest.features[name]
    return isinstance(feature, EmbeddedFeature) and not feature.indicator and feature.table == table


def _stored_columns(change: Change) -> list[str]:
    """Returns the names of the columns that a store has."""
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
