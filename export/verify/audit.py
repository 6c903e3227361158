"""Checks a published bundle again: every byte against its checksum, everything in it opened and
asked once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from bundle.errors import BundleError, NotCommitted
from bundle.features.reader import open_features
from bundle.format import paths
from bundle.format.manifest import Index, Manifest, Table, TableCheck, Tower, TowerPart
from bundle.storage import catalog, files, integrity
from bundle.stores.attribute_index import check_attribute_index
from bundle.stores.reader import check_store
from bundle.tables.reader import TableReader
from export.checkpoint.reader import Checkpoint
from export.corpora.indexes import index_steps
from export.errors import UsageError, VerificationFailed
from export.graphs.loading import load_tensorflow
from export.report_text import count_text, decoder_text, partitions_text, report_table, size_text
from export.tables.key_indexes import check_key_indexes
from export.verify.stated_layouts import with_judgements
from export.verify.table_rows import SAMPLE_ROWS, verify_tables
from runtime.exact import ExactIndex
from runtime.partitions import load_index, partition_rows
from runtime.scann_build import match_stored
from runtime.towers import open_form
from runtime.vectors import VectorFile

UNLISTED_SHOWN = 20
VECTORS_COMPARED = 256
"""Of each partition of an index."""
SAME_SHARE_MIN = 0.95
"""Share of compared vectors that an index must hold at their positions.

It is 1 on the machine that built the index; another processor may round a vector to another code.
Of distinct vectors in another order, at most 0.15 had the same code by chance, and 0.46 with the
coarsest parameters (docs/adr/0040-indexes-are-checked-by-their-codes.md).
"""
QUERIES = 64
"""Own vectors that an index is searched for."""


@dataclass(frozen=True)
class ModelCheck:
    """What was compared with the original model and found equal, within the recipe's limits."""

    examples: int
    """That the model and every form of every tower were called with."""
    recall: dict[str, float]
    """Measured anew, by index."""


@dataclass(frozen=True)
class Audit:
    """What was found in order."""

    bundle: str
    model: str
    version: int
    files: int
    bytes: int
    unlisted: tuple[str, ...]
    """Files in its directory that its manifest does not name, so that nothing ever reads them."""
    tables: dict[str, TableCheck]
    """Whose rows were compared with a checkpoint; {} if none was given."""
    converted: Mapping[str, str]
    """Tables whose rows are not as they were trained -> what they became."""
    opened: tuple[str, ...]
    """Parts of the bundle that open and answer."""
    model_check: ModelCheck | None = None
    """None if no recipe was given."""

    def to_json(self) -> dict[str, Any]:
        """Returns the audit as JSON values."""
        report = asdict(replace(self, tables={}))
        del report["converted"]
        return report | {
            "tables": {
                name: check.model_dump(exclude_none=True) for name, check in self.tables.items()
            }
        }

    def to_table(self) -> RenderableType:
        """Returns the audit for a terminal."""
        checks = report_table(f"{self.model} version {self.version}", "checked", "result")
        checks.add_row(
            "checksums",
            f"{count_text(self.files, 'file')}, {size_text(self.bytes)}: every byte as committed",
        )
        for name, check in self.tables.items():
            how = (
                f"right as {self.converted[name]}"
                if name in self.converted
                else "equal bit for bit"
            )
            if check.stated_layout is not None:
                how += f", by its stated layout ({check.stated_layout})"
            found = f"{check.rows_compared} of {check.rows} {how}{decoder_text(check.decoder)}"
            checks.add_row(f"rows of table {name}", found)
        for what in self.opened:
            checks.add_row(what, "opens and answers")
        if self.model_check is not None:
            checks.add_row(
                "towers and candidates",
                f"{self.model_check.examples} examples as the original model",
            )
            for name, recall in self.model_check.recall.items():
                checks.add_row(f"index {name}", f"recall {recall:.4f} against exact search")
        notes = [
            Text(f"note: {path} is no part of the bundle")
            for path in self.unlisted[:UNLISTED_SHOWN]
        ]
        return Group(checks, *notes, Text(f"{self.bundle} is whole"))


def audit(bundle: Path, checkpoint: Checkpoint | None = None, full: bool = False) -> Audit:
    """Checks a bundle.

    Args:
      bundle: its directory.
      checkpoint: compare the tables with it too.
      full: compare every row, not a sample.

    Raises:
      UsageError: the directory holds no bundle.
      VerificationFailed: a file cannot be read, differs from its checksum, does not open, or a row
        is not the checkpoint's.
    """
    with told_as_failures():
        if (bundle / "saved_model.pb").is_file():
            raise UsageError(
                f"{bundle} is a SavedModel, no bundle; assets.extra/rowcast.json in it tells how "
                "it was proved before it was published"
            )
        manifest = catalog.read_manifest(bundle)
        integrity.check_files(bundle, manifest, tables="full")
        unlisted = check_unlisted(bundle, manifest)
        opened = tuple(open_parts(bundle, manifest))
    checks: dict[str, TableCheck] = {}
    if checkpoint is not None:
        checks = verify_tables(checkpoint, bundle, manifest.tables, None if full else SAMPLE_ROWS)
        published = manifest.verification.tables
        judged = {name: check.stated_layout for name, check in published.items()}
        checks = with_judgements(checks, judged)
        check_key_indexes(checkpoint, bundle, manifest.tables, manifest.keys, full)
    converted = {
        name: table.dtype for name, table in manifest.tables.items() if table.error is not None
    }
    listed = _listed(manifest)
    total = sum(files.size(bundle, path) for path in listed)
    return Audit(
        str(bundle),
        manifest.model,
        manifest.version,
        len(listed),
        total,
        unlisted,
        checks,
        converted,
        opened,
    )


def check_unlisted(bundle: Path, manifest: Manifest) -> tuple[str, ...]:
    """Returns the files beside those that the manifest names.

    Raises:
      VerificationFailed: one lies in a directory that is opened as a whole, whose reader might take
        it for a part.
    """
    found = {
        (Path(at) / name).relative_to(bundle).as_posix()
        for at, _, names in os.walk(bundle)
        for name in names
    }
    unlisted = sorted(found - _listed(manifest) - {paths.MANIFEST})
    forms = [form for _, entry in _towers_and_parts(manifest) for form in entry.forms]
    opened = [str(form.path) for form in forms if form.kind == "saved_model"]
    opened += [str(index.directory) for index in manifest.indexes.values()]
    for path in unlisted:
        for directory in opened:
            if path.startswith(f"{directory}/"):
                raise VerificationFailed(
                    f"file {path!r} is not in the manifest, yet {directory!r} is opened as a "
                    "whole; remove it, or copy the bundle again"
                )
    return tuple(unlisted)


def _towers_and_parts(manifest: Manifest) -> Iterator[tuple[str, Tower | TowerPart]]:
    for name, tower in manifest.towers.items():
        yield f"tower {name}", tower
        for part in tower.parts:
            yield f"tower {name}, part {part.name}", part


def _listed(manifest: Manifest) -> set[str]:
    segments = {
        str(segment.file) for table in manifest.tables.values() for segment, _ in table.extents()
    }
    return segments | {str(file.path) for file in manifest.files}


@contextmanager
def told_as_failures() -> Iterator[None]:
    """Turns what a reader of the bundle refuses into a failed check."""
    try:
        yield
    except NotCommitted as problem:
        raise UsageError(str(problem)) from problem
    except BundleError as problem:
        raise VerificationFailed(str(problem)) from problem
    except OSError as problem:
        raise VerificationFailed(
            f"{problem.filename or 'a file'}: {problem.strerror or problem}"
        ) from problem


def open_parts(
    bundle: Path,
    manifest: Manifest,
    open_table: Callable[[Table], TableReader] | None = None,
) -> Iterator[str]:
    """Opens each part of a bundle as a service would, but for the index of a corpus' ids, which may
    be large.

    Args:
      bundle: its directory.
      manifest: of the bundle.
      open_table: opens a table that may not lie in `bundle`.
    """
    elsewhere = {}
    if open_table is not None:
        elsewhere = {name: open_table(table) for name, table in manifest.tables.items()}
    features = open_features(bundle, manifest, remote=elsewhere)
    for name, table in features.tables.items():
        table.gather(np.array([0, table.rows - 1], np.int64))
        yield f"table {name}"
    features.close()
    for label, entry in _towers_and_parts(manifest):
        for form in entry.forms:
            if form.kind == "saved_model":
                # set as the exporter needs it, before SavedModels import it as it comes
                load_tensorflow()
            open_form(bundle, entry, form)
            yield f"{label}, {form.kind} {form.precision}"
    for kind, corpora in (("candidates", manifest.candidates), ("contexts", manifest.contexts)):
        for name, corpus in corpora.items():
            check_store(files.locate(bundle, corpus.file), corpus)
            yield f"{kind} {name}"
            for attribute in corpus.filters:
                check_attribute_index(bundle, corpus, attribute)
                yield f"{kind} {name}, filter {attribute}"
    for name, index in manifest.indexes.items():
        _check_index(bundle, manifest, index)
        yield f"index {name}{partitions_text(index.partitions)}"


def _check_index(bundle: Path, manifest: Manifest, index: Index) -> None:
    """Checks that an index was built from its vectors, in their order, and finds something.

    A tree need not find what exact search finds: how much it finds is its recall, which depends on
    the queries. So vectors are looked up where the index stores them, not searched for.
    """
    size = manifest.candidates[index.corpus].size
    path = files.locate(bundle, index.vectors)
    vectors = VectorFile(path, index.dim)
    if len(vectors) != size:
        raise VerificationFailed(
            f"index {index.directory!r} has {len(vectors)} vectors; {size} were expected"
        )

    directories = [bundle / directory for directory in index.directories]
    loaded = load_index(directories, index.distance, vectors.mapped)
    ranges = partition_rows(size, len(directories))
    for directory, rows in zip(directories, ranges, strict=True):
        own = VectorFile(path, index.dim, rows)
        compared = _spread(len(own), VECTORS_COMPARED)
        same = match_stored(directory, own, compared, index.distance, index.kind)
        if same.mean() < SAME_SHARE_MIN:
            raise VerificationFailed(
                f"index {directory.relative_to(bundle).as_posix()!r} does not hold "
                f"{np.count_nonzero(~same)} of {same.size} vectors compared at their positions: it "
                "was built from other vectors, or in another order; export the index again",
                steps=index_steps(index),
            )

    queries = vectors[_spread(size, QUERIES)]
    found, scores = loaded.search(queries, 1)
    if index.kind == "brute_force":
        nearest = ExactIndex(vectors, index.distance).search(queries, 1)[1]
        right = np.allclose(scores, nearest, rtol=1e-4, atol=1e-5)
    else:
        right = bool((found >= 0).any())
    if not right:
        raise VerificationFailed(
            f"index {index.directory!r} does not find what is nearest to its own vectors; export "
            "the index again",
            steps=index_steps(index),
        )


def _spread(size: int, count: int) -> NDArray[np.int64]:
    """Returns up to `count` different positions below `size`, evenly spread."""
    positions = np.linspace(0, size - 1, min(size, count)).round().astype(np.int64)
    return np.unique(positions)
