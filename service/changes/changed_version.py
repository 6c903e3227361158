"""A loaded version of a model, and the changes of its rows, candidates and contexts so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes.records import EXPIRES, ID, Change, Kind, Run, vector_column
from bundle.errors import BundleError, UnknownCandidate
from bundle.features.columns import Column
from bundle.storage import arrow
from bundle.tables.row_records import KEY
from bundle.tables.stored_rows import stored_bytes
from service.changes.changed_parts import ChangedParts
from service.changes.changed_tables import ChangedTables
from service.changes.embedding import (
    Dependents,
    embed_all,
    embed_candidates,
    embedded,
    missing_inputs,
    shards_needed,
)
from service.changes.growing_vectors import Vectors
from service.changes.row_dependents import Positions
from service.changes.store_changes import ChangedCorpus
from service.changes.tower_checks import TowerChecks
from service.engine.validation import NotFinite, show_id
from service.errors import InvalidArgument, ServiceError
from service.versions.version import LoadedStore, ModelVersion, ServedIndex

Ids = NDArray[Any]

OTHER_VERSION = "the vectors belong to another version"
"""The reason why a change is dropped: in another training, a vector of a tower or a table has
another meaning.
"""
NOT_EMBEDDED = "the vector of a candidate cannot be computed"
"""The reason why no request finds a candidate; once the rows that it reads have changed, its vector
is computed again.
"""


class ChangeDropped(Exception):
    """A change in the log does not apply to this version; the message says why."""


REJECTIONS = (ChangeDropped, BundleError, ServiceError, NotFinite)
"""The errors that reject a change which does not apply to a version."""


class ChangedVersion:
    """A loaded version, and its changes so far. One thread at a time applies them.

    Attributes:
      loaded: The version as it was loaded.
      included: The sequence up to which its bundle contains the changes of the log; 0: none.
      tables: The changes of its tables.
      towers: Checks what its towers will read.
      served: The version with the changes that were applied before the last `publish`.
      sequence: The sequence of the last change that was applied, or dropped.
    """

    def __init__(self, loaded: ModelVersion, included: int) -> None:
        """Begins without changes.

        Args:
          loaded: The version as it was loaded.
          included: The sequence up to which its bundle contains the changes of the log; 0: none.
        """
        self.loaded = loaded
        self.included = included
        self.tables = ChangedTables(loaded)
        self.served = loaded
        self.sequence = 0
        self.towers = TowerChecks(loaded)
        self._stores: dict[tuple[Kind, str], ChangedCorpus] = {}
        self._dependents = Dependents(loaded)
        self._dropped: Counter[str] = Counter()
        """The number of changes of the log that do not apply to this version, by the reason."""
        self._is_outdated = False

    def publish(self) -> ModelVersion:
        """Returns the version with all changes that were applied; also as `served`.

        Raises:
          ShardsFailed: A shard that holds rows which vectors depend on does not respond. The next
            call tries again.
        """
        if self._is_outdated:
            unembedded = [store for store in self._stores.values() if store.unembedded.size]
            if unembedded:
                # Vectors are computed with all other changes in effect, by the same code that
                # serves requests.
                self.served = self._with_changes(searched=False)
                for store in unembedded:
                    embed_all(self.served, store)
            self.served = self._with_changes(searched=True)
            self._is_outdated = False
        return self.served

    def _with_changes(self, *, searched: bool) -> ModelVersion:
        """Returns the version with the changes now, but for vectors that are not computed yet. It
        shares the memory of earlier states.

        Args:
          searched: As of `ChangedCorpus.served`.
        """
        loaded = self.loaded
        corpora: dict[str, LoadedStore] = {**loaded.corpora}
        contexts: dict[str, LoadedStore] = {**loaded.contexts}
        indexes: dict[str, ServedIndex] = {**loaded.indexes}
        for (kind, name), changed in self._stores.items():
            if not changed.is_changed:
                continue
            store, store_indexes = changed.served(searched=searched)
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

    def apply(self, sequence: int, change: Change, count: int = 1) -> None:
        """Applies a change; counts it as dropped where it does not apply to this version.

        Args:
          sequence: The sequence of the change in the log.
          change: The change.
          count: The number of changes that it is made of, all or none of which apply.

        Raises:
          ShardsFailed: A shard that the change needs does not respond; nothing was changed.
        """
        # A change does not fit for good, and is dropped alike by all processes. A shard may respond
        # again: the change must not be lost by then.
        try:
            with shards_needed(self.loaded):
                self.change(change)
        except REJECTIONS as problem:
            with shards_needed(self.loaded):
                self._restore(change)
            reason = "it does not fit"
            if isinstance(problem, ChangeDropped):
                reason = str(problem)
            self._dropped[reason] += count
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
        if run.head.kind == "rows":
            self._apply_rows(run)
            return
        store = self.store(run.head.kind, run.head.target)
        if store is None or not self._is_joinable(run, store):
            self._apply_singly(run)
            return
        rest: Run | None = run
        while rest is not None:
            # Up to the change behind which positions are compacted: they are given as by `apply`.
            count = int(rest.sizes.cumsum().searchsorted(store.slots_left)) + 1
            last = rest.sequences[:count][-1]
            part = rest.up_to(last)
            rest = rest.behind(last)
            assert part is not None  # noqa: S101 - it has one change at least
            try:
                self.change(part.joined)
            except REJECTIONS:
                # One of them does not fit. One by one, it is dropped, and the others are applied.
                self._apply_singly(part)
            else:
                self.set_sequence(last)

    def _apply_rows(self, run: Run) -> None:
        """Applies changes of rows: at once if no vector of a candidate depends on them. Candidates
        that do depend get positions at each change.
        """
        count = len(run.sequences)
        # A change of which every row was outdated is in the log for its offset alone.
        changed_count = int(np.count_nonzero(run.sizes))
        if run.head.version != self.loaded.version:
            if changed_count:
                self._dropped[OTHER_VERSION] += changed_count
            self.set_sequence(run.sequences[-1])
            return
        change = run.joined
        if count == 1 or not self._dependents_of(change):
            self.apply(run.sequences[-1], change, changed_count)
            return
        for part in (run.part(0, count // 2), run.part(count // 2, count)):
            assert part is not None  # noqa: S101 - there are two changes at least
            self._apply_rows(part)

    def _apply_singly(self, run: Run) -> None:
        for sequence, change in run.changes:
            self.apply(sequence, change)

    def _is_joinable(self, run: Run, store: ChangedCorpus) -> bool:
        """Returns whether all changes of a run are accepted, or none is: they are upserts, and the
        log has the types of the store, so that no single value decides.
        """
        if len(run.sequences) == 1 or run.head.action != "upsert":
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

    def change(self, change: Change, *, is_new: bool = False) -> None:
        """Applies a change that may not be in the log yet.

        Args:
          change: The change.
          is_new: Whether to reject rows with which the vector of a candidate cannot be computed.

        Raises:
          ChangeDropped: The change does not apply to this version; nothing was changed.
          BundleError: The change does not fit the version; nothing was changed.
          ServiceError: The change names something that does not exist; nothing was changed.
          NotFinite: A vector cannot be computed; nothing was changed.
        """
        if not change.size:
            return
        self._is_outdated = True
        head = change.head
        if head.kind == "rows":
            self._change_rows(change, is_new)
        else:
            store = self.store(head.kind, head.target)
            if store is None:
                what = "corpus" if head.kind == "candidates" else "context store"
                raise ChangeDropped(f"there is no {what} {head.target!r}")
            if head.action == "delete":
                store.delete(change.ids)
            elif head.action == "attributes":
                store.set_attributes(change.ids, _attributes(change))
            else:
                self._upsert(store, change)
        self._compact(change.time_s)

    def _restore(self, change: Change) -> None:
        """Gives ids whose candidates or contexts do not fit those that the bundle has: the change
        replaced all that came before it, but for attributes of changes with larger numbers.
        """
        head = change.head
        if head.kind == "rows" or head.action != "upsert":
            return
        store = self.store(head.kind, head.target)
        # Its ids may not even be of the store's kind.
        if store is not None:
            with suppress(UnknownCandidate):
                store.restore(change.ids, change.later_attributes)
                self._compact(change.time_s)

    def _compact(self, now_s: float) -> None:
        """Compacts the stores in which this is due after a change; `now_s`: its time."""
        for (kind, name), store in self._stores.items():
            if store.compact(now_s) and kind == "candidates":
                self._dependents.forget_from(name, store.store.base_size)

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

    @property
    def counts(self) -> dict[tuple[Kind, str], int]:
        """The number of changed rows of each table, and of candidates or contexts behind those of
        the bundle that have not expired.
        """
        now_s = time.time()
        counts: dict[tuple[Kind, str], int] = {}
        for table, changed in self.tables.rows.items():
            counts["rows", table] = changed.count
        for key, store in self._stores.items():
            counts[key] = store.unexpired_count(now_s)
        return counts

    @property
    def dropped(self) -> dict[str, int]:
        """The number of changes of the log that do not apply to this version, and of candidates
        that it cannot embed now, by the reason.
        """
        dropped = {**self._dropped}
        hidden_count = sum(store.hidden.size for store in self._stores.values())
        if hidden_count:
            dropped[NOT_EMBEDDED] = hidden_count
        return dropped

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

    def dependents(self, table: str, rows: NDArray[np.int64], keys: Ids) -> dict[str, Positions]:
        """Returns the candidates whose vectors depend on some rows of a table, by corpus.

        Args:
          table: The name of the table.
          rows: The rows of the table.
          keys: Keys of the table, known or about to be added, whose rows are not in its files.
        """
        return self._dependents.positions(table, rows, keys, self._corpus)

    def _upsert(self, store: ChangedCorpus, change: Change) -> None:
        """Adds candidates or contexts.

        Raises:
          ChangeDropped: The vectors were sent for another version, and this one cannot compute
            its own.
          FormatError: The candidates or contexts do not fit the store; nothing was changed.
        """
        head = change.head
        vectors = {}
        logged_names = set[str]()
        computed = set(head.embedded)
        for name, index in store.indexes.items():
            logged = change.vectors(vector_column(name))
            if head.version == self.loaded.version and logged is not None:
                vectors[name] = logged
                logged_names.add(name)
                continue
            # Another version embeds the candidate with its own tower, all of them together before
            # they are served.
            if missing_inputs(self.loaded, store.base.entry, index):
                raise ChangeDropped(OTHER_VERSION)
            vectors[name] = np.zeros((change.size, index.entry.dim), np.float32)
            computed.add(name)
        expires_s = change.numbers(EXPIRES)
        store.upsert(change.store_columns, vectors, computed, expires_s, logged_names)

    def _change_rows(self, change: Change, is_new: bool) -> None:
        """Gives rows other vectors, and embeds the candidates that depend on them anew: now, or all
        together before they are served.

        Raises:
          ChangeDropped: The vectors were sent for another version.
          InvalidArgument: The change is new, and the vector of a candidate cannot be computed with
            these rows; nothing was changed.
          ServiceError: A shard does not respond; nothing was changed.
        """
        head = change.head
        if head.version != self.loaded.version:
            raise ChangeDropped(OTHER_VERSION)
        rows = change.ids
        assert change.rows is not None  # noqa: S101 - the log has all rows
        table = self.loaded.manifest.tables[head.target]
        keys = change.numbers(KEY)
        is_beyond = keys is None and rows.max() >= table.rows
        if is_beyond or change.rows.row_bytes != stored_bytes(table.dtype, table.dim):
            raise ChangeDropped(OTHER_VERSION)

        # Shards are called before anything is changed: if one does not respond, nothing is.
        dependents: dict[str, tuple[Positions, dict[str, Vectors]]] = {}
        for corpus, unordered in self._dependents_of(change).items():
            store = self._corpus(corpus)
            # Their order does not depend on earlier changes, which may be compacted away.
            positions = unordered[store.store.ids(unordered).argsort()]
            dependents[corpus] = positions, store.vectors(positions)

        is_embedded = {
            corpus: np.ones(positions.size, bool) for corpus, (positions, _) in dependents.items()
        }
        rows_before = {**self.tables.rows}
        new_keys_before = {**self.tables.new_keys}
        if keys is not None:
            self.tables.add_keys(head.target, keys, rows)
        self.tables.change(head.target, rows, change.rows)
        if is_new and dependents:
            try:
                served = self._with_changes(searched=False)
                for corpus, (positions, vectors) in dependents.items():
                    store = self._corpus(corpus)
                    problems = embed_candidates(served, store, positions, vectors)
                    _check_embedded(store, positions, problems)
                    is_embedded[corpus][[*problems]] = False
            except Exception:
                self.tables.rows = rows_before
                self.tables.new_keys = new_keys_before
                raise
        for corpus, (positions, vectors) in dependents.items():
            store = self._corpus(corpus)
            ids = store.store.ids(positions)
            # Positions are given here, so that they do not depend on when vectors are computed.
            store.set_attributes(ids, {}, vectors)
            if is_new:
                store.note_embedded(ids, is_embedded[corpus])
            else:
                store.note_unembedded(ids)

    def _dependents_of(self, change: Change) -> dict[str, Positions]:
        """Returns the candidates whose vectors depend on the rows of a change, by corpus."""
        table = change.head.target
        rows = change.ids
        keys = change.numbers(KEY)
        new_keys = np.empty(0, np.int64)
        if keys is not None:
            new_keys = keys[rows >= self.loaded.manifest.tables[table].rows]
        return self.dependents(table, rows, new_keys)

    def _corpus(self, name: str) -> ChangedCorpus:
        """Returns the changes of a corpus of the version."""
        store = self.store("candidates", name)
        assert store is not None  # noqa: S101 - the version has it
        return store


def _check_embedded(
    store: ChangedCorpus, positions: Positions, problems: Mapping[int, Exception]
) -> None:
    """Rejects new rows with which vectors would not be finite. Candidates that are hidden have no
    vectors yet, and block no row; of others, the tower cannot compute some whatever the rows.

    Args:
      store: The corpus.
      positions: The positions of candidates that read the rows.
      problems: Why a vector cannot be computed, by the number of its candidate.
    """
    for number, problem in problems.items():
        ids = store.store.ids(positions[[number]])
        if isinstance(problem, NotFinite) and not store.is_hidden(ids).any():
            id_text = show_id(ids.tolist()[0])
            value = f"numbers with which {problem} is not finite for candidates such as {id_text}"
            expected = "a row of which the candidate tower computes finite vectors"
            raise InvalidArgument.of_field("vectors", value, expected, "has") from problem


def _attributes(change: Change) -> dict[str, Any]:
    return {
        name.removeprefix("attribute:"): change.columns.column(name)
        for name in change.columns.schema.names
        if name != ID and name.startswith("attribute:")
    }
