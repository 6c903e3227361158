"""The segments of one model: the candidates that are to be absorbed next, the segments that the log
names, and those that are on the disk.
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
from service.changes.applied_log import WAIT_S, AppliedLog
from service.changes.segments import UNUSABLE, SegmentDirectory
from service.changes.store_changes import ChangedCorpus
from service.versions.version import LoadedStore, ModelVersion, ServedIndex


class PlannedAbsorption(NamedTuple):
    """Changed candidates that are to be absorbed into a segment.

    Attributes:
      version: The version as it was loaded.
      corpus: The name of the corpus.
      sequence: The sequence of the last change that the segment contains.
      base: The corpus as the bundle has it.
      indexes: The indexes over the corpus by name.
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
    """The segments of one model. Safe for any number of threads: it holds the state of the log
    where versions change, and not while a segment is loaded.
    """

    def __init__(self, log: AppliedLog, directory: SegmentDirectory, versions_path: Path) -> None:
        """Begins without loaded segments.

        Args:
          log: The log, which names the segments that are in effect.
          directory: The directory of the segments.
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
        return {
            (version.loaded.version, corpus): problem
            for version in self._log.versions
            for corpus, problem in list(version.unusable.items())
        }

    @property
    def unusable_segments(self) -> list[SegmentName]:
        """The last segments of the corpora whose segments are not used."""
        with self._log.held():
            segments: list[SegmentName] = []
            for key in self.unusable:
                segments += self._log.summary.absorptions[key].segments
            return segments

    @property
    def changed_candidates(self) -> tuple[int, int]:
        """The number of positions of changed candidates that lie in segments, and of those that are
        searched exactly, over all versions. The caller holds the state.
        """
        in_segments = 0
        in_slots = 0
        for version in self._log.versions:
            for store in version.corpora.values():
                in_segments += sum(segment.store.size for segment in store.segments)
                in_slots += store.slot_count
        return in_segments, in_slots

    def is_due(self, slots_max: int) -> bool:
        """Returns whether there is something to absorb. See `planned`."""
        with self._log.held():
            for version in self._log.whole_versions:
                for store in version.corpora.values():
                    if _kept_count(store, slots_max) is not None:
                        return True
        return False

    def planned(self, slots_max: int) -> PlannedAbsorption | None:
        """Returns what is to be absorbed next; None: nothing is due.

        Args:
          slots_max: The maximum number of positions of changed candidates of a corpus, ended ones
            included, that are searched exactly.

        Raises:
          LogLocked: Another process has held the lock of the log for `WAIT_S`.
          LogDamaged: The log is damaged.
          FormatError: The log has records of another release.
          OSError: The log cannot be read.
        """
        # Another process may have absorbed candidates since.
        with self._log.caught_up(time.monotonic() + WAIT_S):
            for version in self._log.whole_versions:
                # Embeds what has changed: a segment holds vectors, and none that are to come.
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
        """Lets every process use a segment from now on, by a record in the log.

        Args:
          planned: The candidates that the segment holds.
          segment: The segment, which is complete.

        Returns:
          Whether the version is still served; if not, nothing was written.

        Raises:
          BundleError: The segment cannot be used, or the log is damaged.
          OSError: The segment cannot be read, or the log cannot be written.
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
        with self._log.writing(time.monotonic() + WAIT_S) as writer:
            if all(version.loaded is not loaded for version in self._log.versions):
                return False
            (sequence,) = writer.append([encode(change)])
            writer.release()
            self._log.add(sequence, change)
        return True

    def preload(self) -> None:
        """Loads segments that another process has completed, before the log names them."""
        for name in self._directory.names():
            if name.startswith(TEMPORARY) or self._directory.is_loaded(name):
                continue
            with self._log.held():
                store = self._corpus_of_new_segment(name)
            # Without the lock: to open a segment takes longer than requests may wait for it. One
            # that cannot be used is reported when the log names it.
            if store is not None:
                with suppress(*UNUSABLE):
                    segment = self._directory.name(name)
                    self._directory.load(segment, store.base, store.indexes)

    def sweep(self) -> None:
        """Removes segments that the log names no more, segments of versions that are gone, and
        segments that were never finished. Processes that still use them have their files open. Only
        one process may sweep at a time.

        Raises:
          LogLocked: Another process has held the lock of the log for `WAIT_S`; nothing was removed.
          LogDamaged: The log is damaged; nothing was removed.
          FormatError: The log has records of another release; nothing was removed.
          OSError: The log cannot be read; nothing was removed.
        """
        used: set[str] = set()
        # Another process may have named some since.
        with self._log.caught_up(time.monotonic() + WAIT_S):
            for (version, _), absorption in self._log.summary.absorptions.items():
                if self._has_version(version):
                    used.update(segment.name for segment in absorption.segments)
        for name in self._directory.names():
            if name not in used:
                shutil.rmtree(self.path / name, ignore_errors=True)

    def lacking(self, records: Sequence[Record]) -> list[SegmentName]:
        """Returns the segments that records of another log put into effect and that are not here.

        Segments of versions that are not here are left out, and segments that a later record
        replaces.
        """
        absorptions: dict[tuple[int, str], Absorption] = {}
        for record in records:
            head = decode_head(record.payload)
            if head.absorption is not None and record.sequence > self._log.sequence:
                absorptions[head.version, head.target] = head.absorption
        lacking: list[SegmentName] = []
        for (number, corpus), absorption in absorptions.items():
            if not self._is_used_here(number, corpus, absorption):
                continue
            segments = absorption.segments
            lacking += [segment for segment in segments if not (self.path / segment.name).exists()]
        return lacking

    def begin_anew(self) -> None:
        """Lets versions whose segments were not used begin with these, if they are whole now."""
        with self._log.held():
            unusable = [
                (version, corpus) for version in self._log.versions for corpus in version.unusable
            ]
        # Loaded without the lock, like all segments. The log is applied anew only if that helps.
        is_usable = False
        for version, corpus in unusable:
            with suppress(*UNUSABLE):
                absorption = self._log.summary.absorptions[version.loaded.version, corpus]
                version.load(corpus, absorption)
                is_usable = True
        if is_usable:
            with self._log.held():
                self._log.restore()

    def part(self, name: str, file: str, offset: int, bytes_max: int) -> bytes:
        """Returns a part of a file of a segment; see `read_part`."""
        return read_part(self.path / name, file, offset, bytes_max)

    def _corpus_of_new_segment(self, name: str) -> ChangedCorpus | None:
        """Returns the corpus for which a segment is newer than all that the log names; None: there
        is none. The name of the segment shows it: its files are not read.
        """
        for version in self._log.versions:
            for corpus, store in version.corpora.items():
                prefix = segment_prefix(version.loaded, corpus)
                absorption = self._log.summary.absorptions.get((version.loaded.version, corpus))
                last_sequence = 0
                if absorption is not None:
                    last_sequence = absorption.sequence
                number = name.removeprefix(prefix).partition("-")[0]
                if name.startswith(prefix) and number.isdecimal() and int(number) > last_sequence:
                    return store
        return None

    def _is_used_here(self, number: int, corpus: str, absorption: Absorption) -> bool:
        """Returns whether a version that is here uses segments, or will when it is loaded."""
        with self._log.held():
            for version in self._log.versions:
                if version.loaded.version == number:
                    return version.uses(corpus, number, absorption)
        return self._has_version(number)

    def _has_version(self, number: int) -> bool:
        return (self._versions_path / str(number)).exists()


def segment_prefix(loaded: ModelVersion, corpus: str) -> str:
    """Returns the beginning of the names of a corpus's segments, up to the sequence."""
    return f"{loaded.version}-{loaded.fingerprint:08x}-{corpus}-"


def _kept_count(store: ChangedCorpus, slots_max: int) -> int | None:
    """Returns the number of segments that stay if the candidates behind them are absorbed now;
    None: nothing is to be absorbed.

    Each segment that stays has at least twice as many candidates as all behind it, so that there
    are few, and a candidate is written again only as often as they double.
    """
    # Segments of which most candidates ended are made anew, too.
    counts = store.segment_counts
    is_worn = [2 * live_count < size for size, live_count in counts]
    ended_count = 0
    for (size, live_count), worn in zip(counts, is_worn, strict=True):
        if worn:
            ended_count += size - live_count
    if max(store.slot_count, ended_count) < slots_max:
        return None

    # From the last segment back, as long as one is not twice as large as what follows it.
    live_behind = store.added_count - sum(live_count for _, live_count in counts)
    kept_count = len(counts)
    while kept_count and counts[kept_count - 1][1] < 2 * live_behind:
        kept_count -= 1
        live_behind += counts[kept_count][1]

    # A new segment comes last: a worn one is made anew together with all behind it.
    if any(is_worn):
        kept_count = min(kept_count, is_worn.index(True))
    return kept_count
