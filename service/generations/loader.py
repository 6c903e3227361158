"""A bundle -> a generation: estimate, open, verify, map, warm up; all or nothing, never on the event loop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bundle import files, retention, staging
from bundle.errors import DigestMismatch, FormatError
from bundle.features import open_features
from bundle.formula import parse_formula
from bundle.manifest import Corpus, Index, Manifest, Precision
from bundle.stores import CandidateStore
from runtime.exact import ExactIndex
from runtime.scann import ScannIndex
from runtime.towers import Device, open_form
from service.generations.forms import choose
from service.generations.generation import Generation, LoadedCorpus, LoadedIndex
from service.generations.loaded_towers import LoadedPart, LoadedTower
from service.generations.pauses import Pauses
from service.memory import free_bytes

Opened = TypeVar("Opened")

_TENSORFLOW_BYTES = 600 << 20
"""What a process grows by when a SavedModel makes it load TensorFlow (measured: 510 MB)."""


class LoadRefused(Exception):
    """A bundle that is whole but will not be served here; says why."""


class NoMemory(LoadRefused):
    """It may need more memory than there is now.

    Attributes:
      missing_bytes: so much more, in each process; infinite: it is more than is allowed, whatever is free.
    """

    def __init__(self, told: str, missing_bytes: float) -> None:
        super().__init__(told)
        self.missing_bytes = missing_bytes


@dataclass(frozen=True)
class Loader:
    """Loads bundle versions, each all or nothing.

    Attributes:
      root: directory of the bundles.
      precision: of the towers; None: what each bundle says.
      verify: `sizes` or `full`, of table shards; everything else is always verified in full.
      threads: that will compute: each has its own interpreter of every tower.
      load_bytes_max: most memory that one version may need, bytes; 0: what is free.
      warm_up: answers synthetic requests with a generation before it is served, in the thread that loads, with the
        pauses that it is given; raises if it cannot.
      device: where SavedModels run.
      processes: tells how many load the same version at the same time, each into memory of its own.
      pause: called after each piece of work.
    """

    root: Path
    precision: Precision | None
    verify: str
    threads: int
    load_bytes_max: int
    warm_up: Callable[[Generation, Pauses], None]
    device: Device = "cpu"
    processes: Callable[[], int] = lambda: 1
    pause: Pauses = field(default_factory=Pauses)

    def load(self, model: str, version: int) -> Generation:
        """Loads one version; on any failure everything opened is closed again.

          Raises:
            BundleError: a file is missing, damaged, or not what the format allows.
            LoadRefused: the version needs more memory than there is, or its parts do not fit each other.
        OSError: a file is there but cannot be read now.
            Exception: whatever a tower or an index raises that cannot be loaded.
        """
        directory = self.root / model / str(version)
        self.pause.begin()
        manifest = staging.read_manifest(directory)
        self.pause()
        if (manifest.model, manifest.version) != (model, version):
            raise FormatError(
                f"the manifest is of model {manifest.model!r} version {manifest.version}, its directory is "
                f"{model}/{version}; a bundle is served from the place it was written for"
            )
        memory_bytes = estimate(manifest, self.precision, self.threads, self.device)
        self._fits(memory_bytes)
        opened = ExitStack()
        try:
            held = retention.hold(directory)  # as long as it is served: `rowcast-serve pull --keep` passes it by
            if held is not None:
                opened.callback(os.close, held)
            staging.check_files(directory, manifest, "full" if self.verify == "full" else "sizes", self.pause)
            generation = self._open(directory, manifest, memory_bytes, opened)
            self.warm_up(generation, self.pause)
            self._prepare_threads(generation)
        except BaseException:
            opened.close()
            raise
        return generation

    def _fits(self, needed_bytes: int) -> None:
        """Refuses what may not fit beside all that is loaded already, in this process and its siblings."""
        if self.load_bytes_max:
            limit_bytes, copies, what = self.load_bytes_max, 1, "allowed (load_bytes_max)"
        else:
            limit_bytes, copies, what = free_bytes(), self.processes(), "free"
        if copies * needed_bytes > limit_bytes:
            each = f" ({-(-needed_bytes >> 20)} MiB in each of {copies} processes)" if copies > 1 else ""
            raise NoMemory(
                f"it may need {-(-copies * needed_bytes >> 20)} MiB of memory beside its tables{each}, "
                f"{limit_bytes >> 20} MiB are {what}",
                math.inf if self.load_bytes_max else needed_bytes - limit_bytes / copies,
            )

    def _open(self, directory: Path, manifest: Manifest, memory_bytes: int, opened: ExitStack) -> Generation:
        reader = open_features(directory, manifest, self.pause)
        opened.callback(reader.close)
        self.pause()
        towers = {name: self._after(self._open_tower(directory, manifest, name)) for name in manifest.towers}
        corpora, contexts = (
            {name: self._after(_open_store(directory, name, page)) for name, page in pages.items()}
            for pages in (manifest.candidates, manifest.contexts)
        )
        indexes = {
            name: self._after(_open_index(directory, name, page, corpora[page.corpus]))
            for name, page in manifest.indexes.items()
        }
        return Generation(
            model=manifest.model,
            version=manifest.version,
            directory=directory,
            manifest=manifest,
            tables=reader.tables,
            reader=reader,
            towers=towers,
            corpora=corpora,
            contexts=contexts,
            indexes=indexes,
            close=opened.close,
            memory_bytes=memory_bytes,
        )

    def _after(self, opened: Opened) -> Opened:
        """Pauses after a piece of work."""
        self.pause()
        return opened

    def _prepare_threads(self, generation: Generation) -> None:
        """Has the compute threads and the event loop find their interpreters made, one of them the one used here."""
        for tower in generation.towers.values():
            for part in tower.parts:
                for _ in range(self.threads):
                    part.network.prepare()
                    self.pause()
                part.network.hand_on()

    def _open_tower(self, directory: Path, manifest: Manifest, name: str) -> LoadedTower:
        page = manifest.towers[name]
        chosen = choose(page, self.precision, self.device)
        device = chosen.device(self.device)
        parts = tuple(LoadedPart(part, form, open_form(directory, part, form, device)) for part, form in chosen.parts)
        formula = None if page.formula is None else parse_formula(page.formula)
        tower = LoadedTower(name, page, manifest, parts, device, formula)
        if formula is not None and (vectors := [each for each in formula.names if each not in tower.heads]):
            raise FormatError(f"towers.{name}.formula takes {vectors[0]!r}, which is no single number of a candidate")
        return tower


def _open_store(directory: Path, name: str, page: Corpus) -> LoadedCorpus:
    return LoadedCorpus(name, page, CandidateStore(files.locate(directory, page.file), page))


def _open_index(directory: Path, name: str, page: Index, corpus: LoadedCorpus) -> LoadedIndex:
    size = corpus.page.size
    path = files.locate(directory, page.vectors)
    expected_bytes = size * page.dim * 4
    if path.stat().st_size != expected_bytes:
        raise DigestMismatch(
            f"file {page.vectors!r} of index {name!r} has {path.stat().st_size} bytes, {size} vectors of "
            f"{page.dim} float32 have {expected_bytes}"
        )
    vectors: NDArray[np.float32] = np.memmap(path, np.dtype("<f4"), "r", shape=(size, page.dim))
    approximate = ScannIndex.load(files.locate(directory, page.directory), page.distance, vectors)
    return LoadedIndex(page, approximate, ExactIndex(vectors, page.distance), vectors, corpus)


def estimate(manifest: Manifest, precision: Precision | None, threads: int, device: Device = "cpu") -> int:
    """Tells the memory that loading a version may need, as an upper bound in bytes; mapped tables do not count.

    A compiled tower is packed once per thread that computes, the event loop's and the loading one among them; an index
    is held twice while it is read; keys of stores and vocabularies become hash tables of about four times their bytes.
    """
    sizes = {file.path: file.bytes for file in manifest.files}

    def under(directory: str) -> int:
        return sum(size for path, size in sizes.items() if path.startswith(directory + "/"))

    total = 0
    tensorflow = False
    for tower in manifest.towers.values():
        for _, form in choose(tower, precision, device).parts:
            if form.kind == "litert":
                total += sizes.get(form.path, 0) * (3 + threads)
            else:
                total += 3 * under(form.path)
                tensorflow = True
    for index in manifest.indexes.values():
        total += 2 * under(index.directory)  # its vectors are mapped
    keyed = (manifest.candidates, manifest.contexts, manifest.vocabularies)
    total += sum(4 * sizes.get(page.file, 0) for pages in keyed for page in pages.values())
    return total + (_TENSORFLOW_BYTES if tensorflow else 0)
