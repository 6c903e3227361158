"""Loads a bundle as a model version: forecast memory, verify, map, warm up; all or nothing, never
on the event loop.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.arithmetic import ceil_div
from bundle.errors import DigestMismatch, FormatError
from bundle.features.reader import FeatureReader, open_features
from bundle.features.sources import RemoteTable
from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.formula import parse_formula
from bundle.format.manifest import Corpus, Index, Manifest, Precision, Tower, TowerForm, dump
from bundle.storage import catalog, files, integrity, retention
from bundle.storage.signatures import KeyRejected, read_signature, signed_files
from bundle.storage.signed_content import check_content
from bundle.stores.attribute_index import AttributeIndex
from bundle.stores.lists import read_list
from bundle.stores.reader import CandidateStore
from bundle.tables import sharding
from bundle.tables.reader import TableReader
from bundle.tables.row_deltas import merged_bytes
from bundle.tables.segments import RowRange
from bundle.tables.shard_number import ShardNumber
from runtime.engines import open_engine
from runtime.exact import ExactIndex
from runtime.partitions import load_index, partition_rows
from runtime.tower import Device
from runtime.towers import find_form, open_form
from service.config import ServiceSettings
from service.context_states.states import ContextStates
from service.context_states.store import ByteStore
from service.observability.logging import fields, logger
from service.resources import free_bytes
from service.versions.filter_cache import FilterCache
from service.versions.rejections import InsufficientMemory, KeysUnusable
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

Once = Callable[[Callable[[], object]], object]
"""Calls a function, unless its work was done before."""

_TENSORFLOW_BYTES = 600 << 20
"""Memory by which a process grows when a SavedModel makes it import TensorFlow (measured: 510 MB).
"""


@dataclass(frozen=True)
class Loader:
    """Loads model versions, each all or nothing.

    Attributes:
      settings: The settings of the service.
      threads: The number of threads that will compute; each has its own interpreter of every tower.
      warm_up: Serves synthetic requests with a version before it is available, in the thread that
        loads; calls the throttle that it gets; raises if the version cannot serve.
      throttle: Called after each chunk of work.
      reach: Returns what reaches the shards of a version by its manifest and fingerprint, and
        raises LoadRejected if no shard holds a part of it; None: the service is no router.
      elsewhere: Tables whose files are not in the directory of the bundle, opened, by name.
    """

    settings: ServiceSettings
    threads: int
    warm_up: Callable[[ModelVersion, LoadThrottle], object]
    throttle: LoadThrottle = field(default_factory=LoadThrottle)
    reach: Callable[[Manifest, int], RemoteParts] | None = None
    elsewhere: Mapping[str, TableReader] = field(default_factory=dict)

    @cached_property
    def _compiled(self) -> FilterCache:
        return FilterCache(self.settings.filter_cache_bytes)

    def load(
        self, model: str, version: int, run_once: Once = lambda compare: compare()
    ) -> ModelVersion:
        """Loads one version; on any failure everything opened is closed again.

        Args:
          model: The model.
          version: Its version.
          run_once: Calls the function that compares all files with the signature, unless that was
            done before.

        Raises:
          BundleError: A file is missing, damaged, or not what the format allows.
          SignatureRejected: The version is not what a trusted key signed.
          LoadRejected: The version needs more memory than there is, or its parts do not fit each
            other; or a key cannot be read now.
          OSError: A file exists but cannot be read now.
          Exception: Whatever a tower or an index raises that cannot be loaded.
        """
        directory = self.settings.root / model / str(version)
        self.throttle.begin()
        # Before the manifest is read: if the file is replaced meanwhile, the version is loaded
        # anew.
        stamp = stamp_of(directory / paths.MANIFEST)
        manifest = catalog.read_manifest(directory)
        self.throttle()
        if (manifest.model, manifest.version) != (model, version):
            raise FormatError(
                f"the manifest is of model {manifest.model!r} version {manifest.version}, but its "
                f"directory is {model}/{version}; do not rename the directories of bundles"
            )
        settings = self.settings
        here = sharding.manifest_of_process(
            manifest, settings.shard, self.reach is not None, settings.shard_min_bytes
        )
        if self.elsewhere:
            local_tables = {
                name: table for name, table in here.tables.items() if name not in self.elsewhere
            }
            here = here.model_copy(update={"tables": local_tables})

        # Before anything is opened: a load that fills the memory may cost a worker that serves.
        memory_bytes = forecast_bytes(here, settings.precision, self.threads, settings.device)
        self._check_memory(memory_bytes)
        fingerprint = crc32c(dump(manifest))
        opened = ExitStack()
        try:
            # Keeps `rowcast-serve pull --keep` from deleting it while it is served.
            hold_descriptor = retention.hold(directory)
            if hold_descriptor is not None:
                opened.callback(os.close, hold_descriptor)
            if settings.verify_signatures:
                try:
                    signed = signed_files(read_signature(directory), settings.verify_signatures)
                except KeyRejected as problem:
                    raise KeysUnusable(f"verify_signatures: {problem}") from problem
                run_once(lambda: check_content(directory, here, signed, self.throttle))
            integrity.check_files(directory, here, settings.verify, self.throttle)
            if settings.shard is not None:
                loaded = self._open_shard(directory, manifest, settings.shard, opened)
            else:
                shards = None
                if self.reach is not None:
                    shards = self.reach(manifest, fingerprint)
                loaded = self._open(directory, manifest, shards, opened)
            loaded = replace(
                loaded,
                memory_bytes=memory_bytes,
                stamp=stamp,
                local_manifest=here,
                fingerprint=fingerprint,
            )

            # In this thread, with pauses. Interpreters that it has made are handed over.
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
        # Every worker loads the version, one after the other.
        limit_bytes = allowed_bytes or free_bytes() // self.settings.workers
        if needed_bytes <= limit_bytes:
            return
        limit = f"{limit_bytes >> 20} MiB are free for it"
        missing_bytes: float = needed_bytes - limit_bytes
        if allowed_bytes:
            limit = f"{limit_bytes >> 20} MiB are allowed (max_load_bytes)"
            # Unloading another version would not help.
            missing_bytes = math.inf
        raise InsufficientMemory(
            f"it may need {ceil_div(needed_bytes, 1 << 20)} MiB of memory in addition to its "
            f"tables in each process, {limit}",
            missing_bytes,
        )

    def _open(
        self, directory: Path, manifest: Manifest, shards: RemoteParts | None, opened: ExitStack
    ) -> ModelVersion:
        """Opens all of a version; what `shards` reach is left to them."""
        remote_tables: Mapping[str, RemoteTable | TableReader] = self.elsewhere
        remote_indexes: Mapping[str, Index] = {}
        if shards is not None:
            remote_tables = shards.tables
            remote_indexes = sharding.sharded_indexes(manifest)

        reader = open_features(directory, manifest, self.throttle, remote_tables)
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
        indexes = {}
        for name, entry in manifest.indexes.items():
            corpus = corpora[entry.corpus]
            here = None
            if name not in remote_indexes:
                whole = RowRange(0, entry.partitions)
                here = self._open_index(directory, name, entry, whole, corpus, opened)
            indexes[name] = ServedIndex(name, entry, corpus, here, shards, self._compiled)
        return ModelVersion(
            manifest.model,
            manifest.version,
            directory,
            manifest,
            reader.tables,
            reader,
            towers,
            corpora,
            contexts,
            indexes,
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
            rows = sharding.row_range(table.rows, shard)
            # A table of fewer rows than shards has none for some of them.
            if rows.rows:
                part = sharding.table_of_rows(table, rows)
                tables[name] = TableReader(directory, part)
                opened.callback(tables[name].close)
                self.throttle()

        parts: dict[str, LoadedIndex] = {}
        for name, index in sharding.sharded_indexes(manifest).items():
            corpus = manifest.corpora[index.corpus]
            partitions = sharding.row_range(index.partitions, shard)
            ranges = partition_rows(corpus.size, index.partitions)
            ranges = ranges[partitions.first : partitions.end]
            if ranges:
                candidates = RowRange(ranges[0].first, ranges[-1].end - ranges[0].first)
                filters = self._open_filters(directory, corpus, candidates)
                filtered = FilteredCorpus(index.corpus, corpus, filters)
                parts[name] = self._open_index(directory, name, index, partitions, filtered, opened)
        return ModelVersion(
            manifest.model,
            manifest.version,
            directory,
            manifest,
            tables,
            FeatureReader({}, {}, {}),
            towers={},
            corpora={},
            contexts={},
            indexes={},
            close=opened.close,
            parts=parts,
        )

    def _open_tower(self, directory: Path, manifest: Manifest, name: str) -> LoadedTower:
        entry = manifest.towers[name]
        chosen = choose_forms(entry, self.settings.precision, self.settings.device)
        # Compiled forms run on the CPU alone, whatever the settings name.
        device: Device = "cpu"
        if all(form.kind == "saved_model" for _, form in chosen):
            device = self.settings.device
        parts = tuple(
            LoadedPart(part, form, open_form(directory, part, form, device))
            for part, form in chosen
        )
        formula = None
        if entry.formula is not None:
            formula = parse_formula(entry.formula)
        states = self._states_of(directory, manifest, name, parts)
        tower = LoadedTower(name, entry, manifest, parts, device, formula, states)
        if formula is not None:
            vectors = [output for output in formula.names if output not in tower.heads]
            if vectors:
                raise FormatError(
                    f"towers.{name}.formula uses {vectors[0]!r}, which is not one number per "
                    "candidate"
                )
        self.throttle()
        return tower

    @cached_property
    def _state_store(self) -> ByteStore | None:
        """Where the states of contexts are; None: they are not stored."""
        settings = self.settings
        if settings.context_states is None:
            return None
        return ByteStore(
            settings.context_states, settings.context_states_bytes, settings.context_states_age_s
        )

    def _states_of(
        self, directory: Path, manifest: Manifest, name: str, parts: tuple[LoadedPart, ...]
    ) -> ContextStates | None:
        """Returns the states of the contexts of a tower; None: they are not stored."""
        extension = manifest.towers[name].extension
        store = self._state_store
        if extension is None or store is None:
            return None
        for part in parts:
            form = find_form(extension.part.forms, (part.form.kind, part.form.precision))
            if part.entry.name != extension.of or form is None:
                continue
            network = open_form(directory, extension.part, form, self.settings.device)
            # Whatever the states depend on: the version with all its files, the tower, its form.
            stamp = hashlib.blake2b(dump(manifest) + f"{name}\n{form.path}".encode())
            states = ContextStates(stamp.digest(), part.entry, extension, network, store)
            if states.is_usable:
                return states
            log.warning(
                "context_states_too_large", extra=fields(tower=name, bytes=states.state_bytes)
            )
        return None

    def _open_store(self, directory: Path, name: str, entry: Corpus) -> LoadedStore:
        store = CandidateStore(files.locate(directory, entry.file), entry)
        self.throttle()
        return LoadedStore(name, entry, self._open_filters(directory, entry), store)

    def _open_filters(
        self, directory: Path, entry: Corpus, candidates: RowRange | None = None
    ) -> dict[str, AttributeIndex]:
        """Opens the attribute indexes of some candidates; None: of all."""
        filters = {}
        for attribute, index in entry.filters.items():
            filters[attribute] = AttributeIndex(
                directory, index, entry.attributes[attribute], entry.size, candidates
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
        # A map of a file that is too short ends the process at the first read behind its end.
        actual_bytes = path.stat().st_size
        expected_bytes = size * entry.dim * 4
        if actual_bytes != expected_bytes:
            raise DigestMismatch(
                f"file {entry.vectors!r} of index {name!r} has {actual_bytes} bytes, {size} "
                f"vectors of {entry.dim} float32 have {expected_bytes}"
            )

        part = slice(partitions.first, partitions.end)
        ranges = partition_rows(size, entry.partitions)[part]
        directories = [files.locate(directory, path) for path in entry.directories[part]]
        first = ranges[0].first
        end = ranges[-1].end
        vectors: NDArray[np.float32] = np.asarray(
            np.memmap(path, np.dtype("<f4"), "r", shape=(size, entry.dim))
        )
        vectors = vectors[first:end]
        partition_sizes = [rows.rows for rows in ranges]
        approximate = load_index(
            entry.engine, directories, entry.distance, vectors, partition_sizes
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

        problem = entry.implausible_cost(size)
        if problem:
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
            for network in tower.networks:
                for _ in range(self.threads):
                    network.prepare_thread()
                    self.throttle()
                network.release_thread()


def _open_list(directory: Path, manifest: Manifest, name: str) -> LoadedList:
    entry = manifest.lists[name]
    id_dtype = manifest.corpora[entry.corpus].id_dtype
    return LoadedList(name, entry, read_list(files.locate(directory, entry.file), entry, id_dtype))


def forecast_bytes(
    manifest: Manifest, precision: Precision | None, threads: int, device: Device = "cpu"
) -> int:
    """Returns an upper bound of the memory that loading a version needs, in bytes.

    What is mapped does not count: tables, vectors, attribute indexes. Which rows deltas have is in
    memory. A compiled tower is packed once per thread that computes, the event loop's and the
    loading one among them; an index takes several times the size of its files while it is read;
    keys of stores and vocabularies become hash tables of about four times their bytes.

    Args:
      manifest: The part of the manifest that the process reads.
      precision: The precision that the settings name; None: towers run what the bundle serves.
      threads: The number of threads that compute, the event loop's and the loading one not
        included.
      device: The device that the settings name.
    """
    sizes = {file.path: file.bytes for file in manifest.files}

    def bytes_under(directory: str) -> int:
        return sum(size for path, size in sizes.items() if path.startswith(directory + "/"))

    total = 0
    tensorflow_bytes = 0
    for tower in manifest.towers.values():
        for form in _forms_in_memory(tower, precision, device):
            if form.kind == "litert":
                total += sizes.get(form.path, 0) * (3 + threads)
            else:
                total += 3 * bytes_under(form.path)
                # Once, however many SavedModels there are.
                tensorflow_bytes = _TENSORFLOW_BYTES

    for index in manifest.indexes.values():
        # Its vectors are mapped: their file does not lie under its directory.
        index_bytes = bytes_under(index.directory)
        if index_bytes:  # a process that leaves it to others needs no engine
            total += open_engine(index.engine).load_factor * index_bytes
    for entries in (manifest.corpora, manifest.contexts, manifest.vocabularies, manifest.lists):
        for entry in entries.values():
            total += 4 * sizes.get(entry.file, 0)
    for table in manifest.tables.values():
        total += sum(merged_bytes(segment) for segment in (*table.segments, *table.scales))
    return total + tensorflow_bytes


def _forms_in_memory(tower: Tower, precision: Precision | None, device: Device) -> list[TowerForm]:
    """Returns the forms of a tower that may be loaded, those of the part that extends states among
    them.
    """
    forms = [form for _, form in choose_forms(tower, precision, device)]
    if tower.extension is not None:
        forms += [form for form in tower.extension.part.forms if form.kind == "litert"]
    return forms
