"""Segments as a process serves them: mapped files, and an index that ScaNN has loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.changes import segments
from bundle.changes.records import Absorption, SegmentName
from bundle.changes.segments import CANDIDATES, Segment, open_segment, scann_directory
from bundle.errors import BundleError, FormatError
from bundle.format.checksums import crc32c
from bundle.format.indexes import DepthPoint
from bundle.format.manifest import CostPoint, Index
from bundle.storage import files
from bundle.stores.attribute_index import AttributeIndex
from bundle.stores.reader import CandidateStore
from runtime.exact import ExactIndex
from runtime.scann import ScannIndex
from service.versions.version import (
    FilteredCorpus,
    LiveIndex,
    LoadedIndex,
    LoadedStore,
    ServedIndex,
)

UNUSABLE = (BundleError, OSError)
"""The errors that make a segment unusable for a process."""
_TREE_MIN = 2048
"""Number of vectors below which their exact scores take less time than a tree (ADR 63)."""


@dataclass(frozen=True, eq=False)
class LoadedSegment:
    """A segment of a corpus, ready to be searched.

    Attributes:
      name: The name and checksum in the log.
      segment: The files.
      store: The candidates, in the order of their positions.
      indexes: The indexes by name.
    """

    name: SegmentName
    segment: Segment
    store: CandidateStore
    indexes: Mapping[str, LoadedIndex]


class SegmentDirectory:
    """The segments of a model beside its log, some of which are loaded. Used under the lock of the
    model, but for `load`.
    """

    def __init__(self, path: Path) -> None:
        """Begins without loaded segments.

        Args:
          path: The directory, which need not exist.
        """
        self.path = path
        self._loaded: dict[str, LoadedSegment] = {}

    def load(
        self, wanted: SegmentName, base: LoadedStore, indexes: Mapping[str, ServedIndex]
    ) -> LoadedSegment | None:
        """Loads a segment, or returns it if it is loaded; None: it holds no candidates.

        Args:
          wanted: The segment.
          base: The store of the corpus as the bundle has it.
          indexes: The indexes over it.

        Raises:
          BundleError: The segment is damaged, or of another release.
          OSError: The segment is missing, or cannot be read.
        """
        # Not under the lock of the model: requests would wait for it. Two threads that load the
        # same segment each load it; the last one stays.
        loaded = self._loaded.get(wanted.name)
        if loaded is None:
            segment = open_segment(self.path / wanted.name, wanted.checksum)
            if not segment.manifest.size:
                return None
            loaded = _load_segment(wanted, segment, base, indexes)
            self._loaded[wanted.name] = loaded
        return loaded

    def ended(self, absorption: Absorption) -> NDArray[np.uint32]:
        """Returns the positions before the last segment that were ended when it was made.

        Raises:
          BundleError: The last segment is damaged, or of another release.
          OSError: The last segment is missing, or cannot be read.
        """
        last = absorption.segments[-1]
        loaded = self._loaded.get(last.name)
        if loaded is not None:
            return loaded.segment.ended()
        return open_segment(self.path / last.name, last.checksum).ended()

    def is_loaded(self, name: str) -> bool:
        """Returns whether a segment is loaded."""
        return name in self._loaded

    def name(self, directory: str) -> SegmentName:
        """Returns the name of a complete segment, with the checksum of its manifest.

        Raises:
          OSError: The segment is missing, or not complete.
        """
        content = (self.path / directory / segments.MANIFEST).read_bytes()
        return SegmentName(name=directory, checksum=crc32c(content))

    def forget_others(self, used: set[str]) -> None:
        """Forgets the loaded segments whose names are not in use."""
        for name in set(self._loaded) - used:
            # Compiled filters would keep the index in memory.
            for index in self._loaded.pop(name).indexes.values():
                index.compiled.forget(index)

    def names(self) -> list[str]:
        """Returns the names of all segments, those that are not complete included."""
        return segments.segment_names(self.path)


def _load_segment(
    name: SegmentName, segment: Segment, base: LoadedStore, indexes: Mapping[str, ServedIndex]
) -> LoadedSegment:
    """Opens the files of a segment.

    Args:
      name: The name in the log.
      segment: The files.
      base: The store of the corpus as the bundle has it.
      indexes: The indexes over it.

    Raises:
      BundleError: The segment does not fit the version, or is damaged.
      OSError: A file cannot be read.
    """
    manifest = segment.manifest
    directory = segment.directory
    has_indexes = set(manifest.indexes) == set(indexes)
    has_filters = set(manifest.filters) == set(base.filters)
    if not has_indexes or not has_filters:
        raise FormatError(f"segment {directory.name!r} has other indexes than the version")
    entry = segment.corpus(base.entry)
    store = CandidateStore(files.locate(directory, CANDIDATES), entry)
    filters: dict[str, Any] = {
        attribute: AttributeIndex(directory, index, entry.attributes[attribute], entry.size)
        for attribute, index in entry.filters.items()
    }
    corpus = FilteredCorpus(base.name, entry, filters)
    loaded_indexes = {
        index_name: _load_index(segment, index, corpus, base.entry.size)
        for index_name, index in indexes.items()
    }
    return LoadedSegment(name, segment, store, loaded_indexes)


def _load_index(
    segment: Segment, served: ServedIndex, corpus: FilteredCorpus, base_size: int
) -> LoadedIndex:
    """Loads an index of a segment.

    Args:
      segment: The segment.
      served: The index in the bundle.
      corpus: The candidates of the segment, with their filters.
      base_size: The number of candidates of the bundle.

    Raises:
      BundleError: The vectors have another length than those of the bundle, or are damaged.
      OSError: A file cannot be read.
    """
    name = served.name
    segment_index = segment.manifest.indexes[name]
    if segment_index.dim != served.entry.dim:
        raise FormatError(
            f"segment {segment.directory.name!r} has vectors of {segment_index.dim} numbers of "
            f"index {name!r}; {served.entry.dim} were expected"
        )
    vectors = segment.vectors(name)
    approximate = None
    entry = served.entry
    if segment_index.parameters:
        entry = segment_entry(entry, base_size, segment_index.parameters, len(vectors))
        approximate = ScannIndex.load(
            segment.directory / scann_directory(name),
            entry.distance,
            vectors,
            f"segment {segment.directory.name!r}",
        )
    exact = ExactIndex(vectors, entry.distance)
    return LoadedIndex(entry, approximate, exact, vectors, corpus, served.compiled)


def without_ended(index: LoadedIndex, live: NDArray[np.uint32]) -> LoadedIndex:
    """Returns the index that is searched for a segment some of whose candidates ended.

    A tree does not know which of its candidates ended. To find the nearest of a few live
    ones, it would have to return nearly all. So live candidates are searched exactly once they are
    few.

    Args:
      index: The index of the segment.
      live: [m], the positions of the candidates that have not ended, ascending.
    """
    if index.approximate is None or live.size >= _TREE_MIN:
        return index
    return LiveIndex.of(index.entry, index.exact, index.vectors, index.corpus, live)


def segment_parameters(entry: Index, size: int) -> dict[str, int]:
    """Returns the parameters that ScaNN is trained with over the vectors of a segment; {}: they are
    searched exactly, since they are few, or since those of the bundle are.

    Args:
      entry: The index in the bundle.
      size: The number of vectors.
    """
    if entry.kind != "tree_ah" or size < _TREE_MIN:
        return {}
    # As many leaves as vectors in each: a search compares about as many of both.
    return {
        "num_leaves": round(math.sqrt(size)),
        "leaves_to_search": 1,
        "dimensions_per_block": entry.parameters["dimensions_per_block"],
        "reorder": entry.parameters["reorder"],
    }


def segment_entry(entry: Index, base_size: int, parameters: Mapping[str, int], size: int) -> Index:
    """Returns the entry of the index of a segment.

    Each search scans at least as many vectors of the segment as of the bundle, or all of them, and
    reorders as many. The fewer vectors there are, the larger is the share of the nearest ones among
    so many, so that a setting that reaches a recall in the bundle reaches it in the segment.

    Args:
      entry: The index in the bundle.
      base_size: The number of its vectors.
      parameters: The parameters that ScaNN was trained with.
      size: The number of vectors of the segment.
    """
    base_leaves: int = entry.parameters["num_leaves"]
    leaves = parameters["num_leaves"]

    def scaled(leaves_to_search: int) -> int:
        # The number of vectors that a search of the bundle scans.
        scanned = leaves_to_search / base_leaves * base_size
        return max(1, min(leaves, math.ceil(leaves * scanned / size)))

    def scaled_point(point: CostPoint) -> CostPoint:
        setting = dict(point.parameters)
        setting["leaves_to_search"] = scaled(setting["leaves_to_search"])
        return point.model_copy(update={"parameters": setting})

    def scaled_depth(depth: DepthPoint) -> DepthPoint:
        return depth.model_copy(update={"leaves_to_search": scaled(depth.leaves_to_search)})

    leaves_to_search = scaled(entry.parameters["leaves_to_search"])
    return entry.model_copy(
        update={
            "parameters": {**parameters, "leaves_to_search": leaves_to_search},
            "curve": tuple(map(scaled_point, entry.curve)),
            "depths": tuple(map(scaled_depth, entry.depths)),
            "partitions": 1,
            "codes": None,
        }
    )
