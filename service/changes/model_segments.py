"""The segments of one model: which candidates are to be absorbed next, what the log names, and what
is on the disk.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bundle.changes.log import Record
from bundle.changes.records import (
    Absorption,
    SegmentName,
    absorption_change,
    decode_head,
    encode,
)
from bundle.changes.segments import TEMPORARY, read_part
from service.changes.absorbed_parts import AbsorbedParts
from service.changes.applied_log import AppliedLog
from service.changes.segments import UNUSABLE, SegmentDirectory
from service.changes.store_changes import ChangedCorpus
from service.versions.version import LoadedStore, ModelVersion, ServedIndex


class PlannedAbsorption(NamedTuple):
    """Changed candidates that are to be absorbed into a segment.

    Attributes:
      version: The version as it was loaded.
      corpus: The name of the corpus.
      sequence: Of the last change that the segment contains.
      base: The corpus as the bundle has it.
      indexes: Those over it.
      kept_segments: The segments before, which stay.
      parts: The candidates.
    """

    version: ModelVersion
    corpus: str
    sequence: int
    base: LoadedStore
    indexes: Mapping[str, ServedIndex]
    kept_segments: tuple[SegmentName, ...]
    parts: AbsorbedParts


class ModelSegments:
    """The segments of one model. Safe for any number of threads: it holds the lock of the log where
    versions change, and not while a segment is loaded.
    """

    def __init__(self, log: AppliedLog, directory: SegmentDirectory, versions_path: Path) -> None:
        """Begins without loaded segments.

        Args:
          log: The log, which names the segments that are in effect.
          directory: Where they are.
          versions_path: The directory of the versions of the model.
        """
        self._log = log
        self._directory = directory
        self._versions_path = versions_path

    @property
    def path(self) -> Path:
        """The directory of the segments."""
        return self._directory.path

    @property
    def unusable(self) -> dict[tuple[int, str], str]:
        """Why segments are not used, by version and corpus."""
        with self._log.lock:
            return {
                (version.loaded.version, corpus): problem
                for version in self._log.versions
                for corpus, problem in version.unusable.items()
            }

    @property
    def unusable_segments(self) -> list[SegmentName]:
        """The last segments of the corpora whose segments are not used."""
        with self._log.lock:
            absorptions = self._log.summary.absorptions
            return [segment for key in self.unusable for segment in absorptions[key].segments]

    @property
    def changed_candidates(self) -> tuple[int, int]:
        """How many positions of changed candidates lie in segments, and how many are searched
        exactly, over all versions.
        """
        with self._log.lock:
            stores = [store for version in self._log.versions for store in version.corpora.values()]
            in_segments = sum(part.store.size for store in stores for part in store.segments)
            return in_segments, sum(store.slot_count for store in stores)

    def is_due(self, slots_max: int) -> bool:
        """Returns whether there is something to absorb; as of `planned`."""
        with self._log.lock:
            return any(
                _kept_count(store, slots_max) is not None
                for version in self._log.whole_versions
                for store in version.corpora.values()
            )

    def planned(self, slots_max: int) -> PlannedAbsorption | None:
        """Returns what is to be absorbed next; None: nothing is due.

        Args:
          slots_max: Positions of changed candidates of a corpus, ended ones included, that are
            searched exactly.

        Raises:
          LogDamaged, FormatError, OSError: The log cannot be read.
        """
        with self._log.lock:
            self._log.follow()
            for version in self._log.whole_versions:
                version.publish()
                for corpus, store in version.corpora.items():
                    kept_count = _kept_count(store, slots_max)
                    if kept_count is None:
                        continue
                    return PlannedAbsorption(
                        version.loaded,
                        corpus,
                        version.sequence,
                        store.base,
                        store.indexes,
                        tuple(segment.name for segment in store.segments[:kept_count]),
                        store.parts(kept_count),
                    )
        return None

    def absorb(self, planned: PlannedAbsorption, segment: SegmentName) -> bool:
        """Has every process use a segment from now on, by a record in the log.

        Args:
          planned: What the segment holds.
          segment: The segment, which is complete.

        Returns:
          Whether the version is still served; if not, nothing was written.

        Raises:
          BundleError, OSError: The segment cannot be used, or the log cannot be written.
        """
        loaded = planned.version
        # Before the log is locked: opening it takes longer than all that follows.
        self._directory.load(segment, planned.base, planned.indexes)
        absorption = Absorption(
            fingerprint=loaded.fingerprint,
            sequence=planned.sequence,
            segments=(*planned.kept_segments, segment),
        )
        change = absorption_change(planned.corpus, loaded.version, time.time(), absorption)
        with self._log.lock:
            if all(version.loaded is not loaded for version in self._log.versions):
                return False
            with self._log.writing() as writer:
                (sequence,) = writer.append([encode(change)])
            self._log.add(sequence, change)
        return True

    def preload(self) -> None:
        """Loads segments that another process has completed, before the log names them."""
        for name in self._directory.names():
            if name.startswith(TEMPORARY) or self._directory.is_loaded(name):
                continue
            with self._log.lock:
                store = self._store_of_new(name)
            if store is not None:
                with suppress(*UNUSABLE):  # whoever needs it reports why
                    segment = self._directory.name(name)
                    self._directory.load(segment, store.base, store.indexes)

    def sweep(self) -> None:
        """Removes segments that the log names no more, of versions that are gone, and what was
        never finished. Whoever still uses them has them open. Only one process may sweep at a time.

        Raises:
          LogDamaged, FormatError, OSError: The log cannot be read; nothing was removed.
        """
        with self._log.lock:
            self._log.follow()  # another process may have named some since
            used = {
                segment.name
                for (version, _), absorption in self._log.summary.absorptions.items()
                if self._has_version(version)
                for segment in absorption.segments
            }
        for name in self._directory.names():
            if name not in used:
                shutil.rmtree(self.path / name, ignore_errors=True)

    def lacking(self, records: Sequence[Record]) -> list[SegmentName]:
        """Returns the segments that records of another log put into effect and that are not here.

        Those of versions that are not here are left out, and those that a later one of the records
        replaces.
        """
        last: dict[tuple[int, str], Absorption] = {}
        for record in records:
            head = decode_head(record.payload)
            if head.absorption is not None and record.sequence > self._log.sequence:
                last[head.version, head.target] = head.absorption
        return [
            segment
            for (number, corpus), absorption in last.items()
            if self._is_wanted(number, corpus, absorption)
            for segment in absorption.segments
            if not (self.path / segment.name).exists()
        ]

    def begin_anew(self) -> None:
        """Has the versions whose segments were not used begin with them, if they are whole now."""
        with self._log.lock:
            unusable = [
                (version, corpus) for version in self._log.versions for corpus in version.unusable
            ]
        is_usable = False
        for version, corpus in unusable:
            with suppress(*UNUSABLE):
                absorption = self._log.summary.absorptions[version.loaded.version, corpus]
                version.load(corpus, absorption)
                is_usable = True
        if is_usable:
            with self._log.lock:
                self._log.restore()

    def part(self, name: str, file: str, offset: int, bytes_max: int) -> bytes:
        """Returns a part of a file of a segment; see `read_part`."""
        return read_part(self.path / name, file, offset, bytes_max)

    def _store_of_new(self, name: str) -> ChangedCorpus | None:
        """Returns the corpus of which a segment is newer than those that it has; None: there is
        none.
        """
        for version in self._log.versions:
            for corpus, store in version.corpora.items():
                prefix = segment_prefix(version.loaded, corpus)
                absorption = self._log.summary.absorptions.get((version.loaded.version, corpus))
                last = 0
                if absorption is not None:
                    last = absorption.sequence
                number = name.removeprefix(prefix).partition("-")[0]
                if name.startswith(prefix) and number.isdecimal() and int(number) > last:
                    return store
        return None

    def _is_wanted(self, number: int, corpus: str, absorption: Absorption) -> bool:
        """Returns whether a version that is here uses segments, or will when it is loaded."""
        with self._log.lock:
            for version in self._log.versions:
                if version.loaded.version == number:
                    return version.uses(corpus, number, absorption)
        return self._has_version(number)

    def _has_version(self, number: int) -> bool:
        return (self._versions_path / str(number)).exists()


def segment_prefix(loaded: ModelVersion, corpus: str) -> str:
    """Returns how the names of the segments of a corpus begin, before the sequence."""
    return f"{loaded.version}-{loaded.fingerprint:08x}-{corpus}-"


def _kept_count(store: ChangedCorpus, slots_max: int) -> int | None:
    """Returns how many segments stay if the candidates behind them are absorbed now; None: nothing
    is to be absorbed.

    Each segment that stays has at least twice as many candidates as all behind it, so that there
    are few, and a candidate is written again only as often as they double.
    """
    counts = store.segment_counts
    is_worn = [2 * live_count < size for size, live_count in counts]
    worn_count = sum(
        size - live_count for (size, live_count), worn in zip(counts, is_worn, strict=True) if worn
    )
    if max(store.slot_count, worn_count) < slots_max:
        return None
    behind = store.added_count - sum(live_count for _, live_count in counts)
    kept_count = len(counts)
    while kept_count and counts[kept_count - 1][1] < 2 * behind:
        kept_count -= 1
        behind += counts[kept_count][1]
    if any(is_worn):
        kept_count = min(kept_count, is_worn.index(True))
    return kept_count
