"""Loads a bundle as a model version: forecast memory, verify, map, warm up; all or nothing, never
on the event loop.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import DigestMismatch, FormatError
from bundle.features.reader import FeatureReader, open_features
from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.formula import parse_formula
from bundle.format.manifest import Corpus, Index, Manifest, Precision, dump
from bundle.storage import catalog, files, integrity, retention
from bundle.stores.attribute_index import AttributeIndex
from bundle.stores.lists import read_list
from bundle.stores.reader import CandidateStore
from bundle.tables import sharding
from bundle.tables.reader import TableReader
from bundle.tables.segments import RowRange
from bundle.tables.sharding import ShardNumber
from runtime.exact import ExactIndex
from runtime.partitions import load_index, partition_rows
from runtime.tower import Device
from runtime.towers import open_form
from service.config import ServiceSettings
from service.observability.logging import fields, logger
from service.resources import free_bytes
from service.versions.filter_cache import FilterCache
from service.versions.throttle import LoadThrottle
from service.versions.tower_forms import choose_forms
from service.versions.version import (
    FilteredCorpus,
    LoadedIndex,
    LoadedList,
    LoadedPart,
    LoadedStore,
    LoadedTower,
    ModelVersion,
    RemoteParts,
    ServedIndex,
    stamp_of,
)

log = logger(__name__)

_TENSORFLOW_BYTES = 600 << 20
"""What a process grows by when a SavedModel makes it import TensorFlow (measured: 510 MB)."""


class LoadRejected(Exception):
    """A sound bundle that will not be served here; the message says why."""


class ShardsMissing(LoadRejected):
    """A router cannot reach all parts of a version yet."""


class InsufficientMemory(LoadRejected):
    """A version may need more memory than there is now.

    Attributes:
      missing_bytes: how much more, in each process; infinite: it exceeds what is allowed, whatever
        is free.
    """

    def __init__(self, message: str, missing_bytes: float) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


@dataclass(frozen=True)
class Loader:
    """Loads model versions, each all or nothing.

    Attributes:
      threads: that will compute; each has its own interpreter of every tower.
      warm_up: serves synthetic requests with a version before it is available, in the thread that
        loads; calls the throttle it is given; raises if the version cannot serve.
      throttle: called after each chunk of work.
      reach: of a router: returns what reaches the shards of a version by its manifest and
        fingerprint; raises LoadRejected if no shard holds a part of it.
    """

    settings: ServiceSettings
    threads: int
    warm_up: Callable[[ModelVersion, LoadThrottle], object]
    throttle: LoadThrottle = field(default_factory=LoadThrottle)
    reach: Callable[[Manifest, int], RemoteParts] | None = None

    @cached_property
    def _compiled(self) -> FilterCache:
        return FilterCache(self.settings.filter_cache_bytes)

    def load(self, model: str, version: int) -> ModelVersion:
        """Loads one version; on any failure everything opened is closed again.

        Raises:
          BundleError: a file is missing, damaged, or not what the format allows.
          LoadRejected: the version needs more memory than there is, or its parts do not fit each
            other.
          OSError: a file exists but cannot be read now.
          Exception: whatever a tower or an index raises that cannot be loaded.
        """
        directory = self.settings.root / model / str(version)
        self.throttle.begin()
        stamp = stamp_of(directory / paths.MANIFEST)
        manifest = catalog.read_manifest(directory)
        self.throttle()
        if (manifest.model, manifest.version) != (model, version):
            raise FormatError(
                f"the manifest is of model {manifest.model!r} version {manifest.version}, but its "
                f"directory is {model}/{version}; do not rename the directories of bundles"
            )
        settings = self.settings
        here = sharding.held_here(
            manifest, settings.shard, self.reach is not None, settings.shard_min_bytes
        )
        memory_bytes = forecast_bytes(here, settings.precision, self.threads, settings.device)
        self._check_memory(memory_bytes)
        fingerprint = crc32c(dump(manifest))
        opened = ExitStack()
        try:
            # Keeps `rowcast-serve pull --keep` from deleting it while it is served.
            held = retention.hold(directory)
            if held is not None:
                opened.callback(os.close, held)
            integrity.check_files(directory, here, settings.verify, self.throttle)
            if settings.shard is None:
                shards = None if self.reach is None else self.reach(manifest, fingerprint)
                loaded = self._open(directory, manifest, shards, opened)
            else:
                loaded = self._open_shard(directory, manifest, settings.shard, opened)
            loaded = replace(
                loaded, memory_bytes=memory_bytes, stamp=stamp, held=here, fingerprint=fingerprint
            )
            self.warm_up(loaded, self.throttle)
            self._prepare_threads(loaded)
        except BaseException:
            opened.close()
            raise
        return loaded

    def _check_memory(self, needed_bytes: int) -> None:
        """Rejects what may not fit beside all that is loaded already, in this process and the
        others.
        """
        allowed_bytes = self.settings.max_load_bytes
        limit_bytes = allowed_bytes or free_bytes() // self.settings.workers
        if needed_bytes > limit_bytes:
            limit = (
                f"{limit_bytes >> 20} MiB are "
                f"{'allowed (max_load_bytes)' if allowed_bytes else 'free for it'}"
            )
            raise InsufficientMemory(
                f"it may need {ceil_div(needed_bytes, 1 << 20)} MiB of memory in addition to its "
                f"tables in each process, {limit}",
                math.inf if allowed_bytes else needed_bytes - limit_bytes,
            )

    def _open(
        self, directory: Path, manifest: Manifest, shards: RemoteParts | None, opened: ExitStack
    ) -> ModelVersion:
        reader = open_features(
            directory, manifest, self.throttle, {} if shards is None else shards.tables
        )
        opened.callback(reader.close)
        self.throttle()
        towers = {name: self._open_tower(directory, manifest, name) for name in manifest.towers}
        corpora = {
            name: self._open_store(directory, name, entry)
            for name, entry in manifest.corpora.items()
        }
        contexts = {
            name: self._open_store(directory, name, entry)
            for name, entry in manifest.contexts.items()
        }
        remote = {} if shards is None else sharding.sharded_indexes(manifest)
        indexes = {}
        for name, entry in manifest.indexes.items():
            corpus = corpora[entry.corpus]
            whole = RowRange(0, entry.partitions)
            here = (
                None
                if name in remote
                else self._open_index(directory, name, entry, whole, corpus, opened)
            )
            indexes[name] = ServedIndex(name, entry, corpus, here, shards, self._compiled)
        loaded = (reader.tables, reader, towers, corpora, contexts, indexes)
        return ModelVersion(
            manifest.model,
            manifest.version,
            directory,
            manifest,
            *loaded,
            close=opened.close,
            shards=shards,
            lists={name: _open_list(directory, manifest, name) for name in manifest.lists},
        )

    def _open_shard(
        self, directory: Path, manifest: Manifest, shard: ShardNumber, opened: ExitStack
    ) -> ModelVersion:
        """Opens the rows and partitions that a shard holds."""
        tables: dict[str, TableReader] = {}
        for name, table in sharding.sharded_tables(manifest, self.settings.shard_min_bytes).items():
            wanted = sharding.row_range(table.rows, shard)
            if wanted.rows:
                tables[name] = TableReader(directory, sharding.of_rows(table, wanted))
                opened.callback(tables[name].close)
                self.throttle()
        parts: dict[str, LoadedIndex] = {}
        for name, index in sharding.sharded_indexes(manifest).items():
            corpus = manifest.corpora[index.corpus]
            partitions = sharding.row_range(index.partitions, shard)
            ranges = partition_rows(corpus.size, index.partitions)[
                partitions.first : partitions.end
            ]
            if ranges:
                held = RowRange(ranges[0].first, ranges[-1].end - ranges[0].first)
                filtered = FilteredCorpus(
                    index.corpus, corpus, self._open_filters(directory, corpus, held)
                )
                parts[name] = self._open_index(directory, name, index, partitions, filtered, opened)
        read = (
            manifest.model,
            manifest.version,
            directory,
            manifest,
            tables,
            FeatureReader({}, {}, {}),
        )
        return ModelVersion(
            *read, towers={}, corpora={}, contexts={}, indexes={}, close=opened.close, parts=parts
        )

    def _open_tower(self, directory: Path, manifest: Manifest, name: str) -> LoadedTower:
        entry = manifest.towers[name]
        chosen = choose_forms(entry, self.settings.precision, self.settings.device)
        device = (
            self.settings.device if all(form.kind == "saved_model" for _, form in chosen) else "cpu"
        )
        parts = tuple(
            LoadedPart(part, form, open_form(directory, part, form, device))
            for part, form in chosen
        )
        formula = None if entry.formula is None else parse_formula(entry.formula)
        tower = LoadedTower(name, entry, manifest, parts, device, formula)
        if formula is not None and (
            vectors := [each for each in formula.names if each not in tower.heads]
        ):
            raise FormatError(
                f"towers.{name}.formula uses {vectors[0]!r}, which is not one number per candidate"
            )
        self.throttle()
        return tower

    def _open_store(self, directory: Path, name: str, entry: Corpus) -> LoadedStore:
        store = CandidateStore(files.locate(directory, entry.file), entry)
        self.throttle()
        return LoadedStore(name, entry, self._open_filters(directory, entry), store)

    def _open_filters(
        self, directory: Path, entry: Corpus, held: RowRange | None = None
    ) -> dict[str, AttributeIndex]:
        filters = {}
        for attribute, index in entry.filters.items():
            filters[attribute] = AttributeIndex(
                directory, index, entry.attributes[attribute], entry.size, held
            )
            self.throttle()
        return filters

    def _open_index(
        self,
        directory: Path,
        name: str,
        entry: Index,
        partitions: RowRange,
        corpus: FilteredCorpus,
        opened: ExitStack,
    ) -> LoadedIndex:
        """Opens some partitions of an index."""
        size = corpus.entry.size
        path = files.locate(directory, entry.vectors)
        found_bytes = path.stat().st_size
        expected_bytes = size * entry.dim * 4
        if found_bytes != expected_bytes:
            raise DigestMismatch(
                f"file {entry.vectors!r} of index {name!r} has {found_bytes} bytes, {size} vectors "
                f"of {entry.dim} float32 have {expected_bytes}"
            )
        part = slice(partitions.first, partitions.end)
        ranges = partition_rows(size, entry.partitions)[part]
        directories = [files.locate(directory, each) for each in entry.directories[part]]
        first = ranges[0].first
        end = ranges[-1].end
        vectors: NDArray[np.float32] = np.asarray(
            np.memmap(path, np.dtype("<f4"), "r", shape=(size, entry.dim))
        )
        vectors = vectors[first:end]
        approximate = load_index(
            directories, entry.distance, vectors, [each.rows for each in ranges]
        )
        self.throttle()
        codes = None
        if entry.codes is not None:
            # faiss is loaded where an index has codes.
            from runtime.codes import VectorCodes

            opened_codes = VectorCodes.load(
                files.locate(directory, entry.codes.file),
                files.locate(directory, entry.codes.codebook),
                size,
                entry.dim,
                entry.distance,
            )
            codes = opened_codes.part(first, end)
            self.throttle()
        if problem := entry.implausible_cost(size):
            # The service chooses by typical costs, until the bundle is exported again.
            log.warning("search_costs_implausible", extra=fields(index=name, problem=problem))
        exact = ExactIndex(vectors, entry.distance)
        index = LoadedIndex(
            entry, approximate, exact, vectors, corpus, self._compiled, first, codes
        )
        opened.callback(self._compiled.forget, index)
        return index

    def _prepare_threads(self, loaded: ModelVersion) -> None:
        """Makes the interpreters of the compute threads and the event loop; one of them is the one
        used here.
        """
        for tower in loaded.towers.values():
            for part in tower.parts:
                for _ in range(self.threads):
                    part.network.prepare_thread()
                    self.throttle()
                part.network.release_thread()


def _open_list(directory: Path, manifest: Manifest, name: str) -> LoadedList:
    entry = manifest.lists[name]
    id_dtype = manifest.corpora[entry.corpus].id_dtype
    return LoadedList(name, entry, read_list(files.locate(directory, entry.file), entry, id_dtype))


def forecast_bytes(
    manifest: Manifest, precision: Precision | None, threads: int, device: Device = "cpu"
) -> int:
    """Returns an upper bound of the memory that loading a version needs, in bytes.

    What is mapped does not count: tables, vectors, attribute indexes. A compiled tower is packed
    once per thread that computes, the event loop's and the loading one among them; an index is held
    twice while it is read; keys of stores and vocabularies become hash tables of about four times
    their bytes.
    """
    sizes = {file.path: file.bytes for file in manifest.files}

    def bytes_under(directory: str) -> int:
        return sum(size for path, size in sizes.items() if path.startswith(directory + "/"))

    total = tensorflow_bytes = 0
    for tower in manifest.towers.values():
        for _, form in choose_forms(tower, precision, device):
            if form.kind == "litert":
                total += sizes.get(form.path, 0) * (3 + threads)
            else:
                total += 3 * bytes_under(form.path)
                tensorflow_bytes = _TENSORFLOW_BYTES
    # The index's vectors are mapped.
    total += sum(2 * bytes_under(index.directory) for index in manifest.indexes.values())
    keyed = (manifest.corpora, manifest.contexts, manifest.vocabularies, manifest.lists)
    total += sum(4 * sizes.get(entry.file, 0) for entries in keyed for entry in entries.values())
    return total + tensorflow_bytes
