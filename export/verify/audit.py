"""Checks a published bundle again: every byte against its checksum, everything in it opened and asked once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from bundle.errors import BundleError, NotCommitted
from bundle.features.reader import open_features
from bundle.format import paths
from bundle.format.manifest import Index, Manifest, TableCheck, Tower, TowerPart
from bundle.storage import files, staging
from bundle.stores.attribute_index import check_attribute_index
from bundle.stores.reader import check_store
from export.checkpoint.reader import Checkpoint
from export.errors import UsageError, VerificationFailed
from export.figures import count_text, partitions_text, report_table, size_text
from export.frameworks.loading import load_tensorflow
from export.tables.key_indexes import check_key_indexes
from export.verify.table_rows import SAMPLE_ROWS, verify_tables
from runtime.exact import ExactIndex
from runtime.partitions import load_index
from runtime.towers import open_form
from runtime.vectors import VectorFile

UNLISTED_SHOWN = 20


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
            "tables": {name: check.model_dump() for name, check in self.tables.items()}
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
            checks.add_row(f"rows of table {name}", f"{check.rows_compared} of {check.rows} {how}")
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
      VerificationFailed: a file cannot be read, differs from its checksum, does not open, or a row is not the
        checkpoint's.
    """
    with told_as_failures():
        if (bundle / "saved_model.pb").is_file():
            raise UsageError(
                f"{bundle} is a SavedModel, no bundle; assets.extra/rowcast.json in it tells how it was proved before "
                "it was published"
            )
        manifest = staging.read_manifest(bundle)
        staging.check_files(bundle, manifest, tables="full")
        unlisted = check_unlisted(bundle, manifest)
        opened = tuple(open_parts(bundle, manifest))
    checks: dict[str, TableCheck] = {}
    if checkpoint is not None:
        checks = verify_tables(checkpoint, bundle, manifest.tables, None if full else SAMPLE_ROWS)
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
      VerificationFailed: one lies in a directory that is opened as a whole, whose reader might take it for a part.
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
                    f"file {path!r} is not in the manifest, yet {directory!r} is opened as a whole; remove it, or copy "
                    "the bundle again"
                )
    return tuple(unlisted)


def _towers_and_parts(manifest: Manifest) -> Iterator[tuple[str, Tower | TowerPart]]:
    for name, tower in manifest.towers.items():
        yield f"tower {name}", tower
        for part in tower.parts:
            yield f"tower {name}, part {part.name}", part


def _listed(manifest: Manifest) -> set[str]:
    shards = {str(shard.file) for table in manifest.tables.values() for shard, _ in table.extents()}
    return shards | {str(file.path) for file in manifest.files}


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


def open_parts(bundle: Path, manifest: Manifest) -> Iterator[str]:
    """Opens each part of a bundle as a service would, but for the index of a corpus' ids, which may be large."""
    features = open_features(bundle, manifest)
    for name, table in features.tables.items():
        table.gather(np.array([0, table.rows - 1], np.int64))
        yield f"table {name}"
    features.close()
    for label, entry in _towers_and_parts(manifest):
        for form in entry.forms:
            if form.kind == "saved_model":
                load_tensorflow()  # set as the exporter needs it, before SavedModels import it as it comes
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
    """Searches an index for some of its own vectors; brute force must find what is nearest to them."""
    size = manifest.candidates[index.corpus].size
    vectors = VectorFile(files.locate(bundle, index.vectors), index.dim)
    if len(vectors) != size:
        raise VerificationFailed(
            f"index {index.directory!r} has {len(vectors)} vectors; {size} were expected"
        )
    queries = vectors[np.unique([0, size // 2, size - 1])]
    directories = [bundle / each for each in index.directories]
    found, scores = load_index(directories, index.distance, vectors.mapped).search(queries, 1)
    best = scores  # of a tree, which may miss the nearest
    if index.kind == "brute_force":
        best = ExactIndex(vectors, index.distance).search(queries, 1)[1]
    for at, score, nearest in zip(found[:, 0], scores[:, 0], best[:, 0], strict=True):
        if at < 0 or not np.allclose(score, nearest, rtol=1e-4, atol=1e-5):
            raise VerificationFailed(
                f"index {index.directory!r} finds position {at} with score {score:.6g} for one of its own vectors, the "
                f"nearest has {nearest:.6g}: it was built from other vectors, or in another order"
            )
