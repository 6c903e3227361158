"""The checks of a bundle: one list, whether it is staged, published or compared with its recipe.

    files       every byte against its checksum, and files that no manifest names
    parts       everything in the bundle opens and answers
    rows        tables and their key indexes against the checkpoint
    towers      every form of every tower against the original model
    candidates  candidates against their files, and their vectors against the original model
    recall      indexes against exact search

`verify` runs those of a published bundle, and with a recipe also those of its model. `run` and
`tables` run those of a staged one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError, NotCommitted
from bundle.features.reader import open_features
from bundle.format.manifest import Manifest, Table, TableCheck
from bundle.storage import files, integrity
from bundle.tables.reader import TableReader
from export.checkpoint.reader import Checkpoint
from export.corpora.changes import LoggedChanges
from export.corpora.recall import measure_again
from export.errors import UsageError, VerificationFailed
from export.front_end.interface import Results
from export.tables.key_indexes import check_key_indexes
from export.verify.bundle_files import check_unlisted, listed_files
from export.verify.candidate_checks import check_candidates
from export.verify.examples import Examples
from export.verify.parity import check_towers, query_vectors
from export.verify.parts import open_parts
from export.verify.reference_inputs import Reference
from export.verify.reference_model import reference_results
from export.verify.stated_layouts import StatedLayout, with_layouts
from export.verify.table_rows import verify_tables

OF_BUNDLE = ("files", "parts", "rows")
OF_MODEL = ("towers", "candidates", "recall")
STAGED = ("rows", "parts", "candidates")
"""Files were digested while they were written, and what towers and indexes give was compared when
they were made: the next steps read them.
"""


@dataclass(frozen=True)
class Subject:
    """A bundle, and what it is compared with.

    Attributes:
      root: its directory.
      manifest: of the bundle.
      checkpoint: whose tables these are; None: rows are not compared.
      rows: the number of rows that are compared of each table; None: all.
      reference: the original model, which examples are known to suit; None: it is not called.
      expected: what the original model gives for the examples.
      judged: how the stated layouts of tables are known.
      linked: tables whose rows lie in the checkpoint's own files, so that only a comparison of all
        rows tells anything.
      open_table: opens a table that may not lie in `root`; None: all do.
      steps_of: the job's steps that write a table, by its name.
      changes: of the log whose changes it contains; None: it contains none.
    """

    root: Path
    manifest: Manifest
    checkpoint: Checkpoint | None = None
    rows: int | None = None
    reference: Reference | None = None
    expected: Results = field(default_factory=dict)
    judged: Mapping[str, StatedLayout] = field(default_factory=dict)
    linked: Collection[str] = ()
    open_table: Callable[[Table], TableReader] | None = None
    steps_of: Callable[[str], Sequence[str]] = lambda _table: ()
    changes: LoggedChanges | None = None


@dataclass(frozen=True)
class Findings:
    """What was found in order.

    Attributes:
      files, bytes: listed files whose checksums were compared.
      unlisted: files in the directory that the manifest does not name, so that nothing reads them.
      opened: parts of the bundle that open and answer.
      tables: what was compared of each table with the checkpoint.
      examples: number of examples that the model and every form of every tower were called with.
      recall: measured anew, by index.
    """

    files: int = 0
    bytes: int = 0
    unlisted: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    tables: Mapping[str, TableCheck] = field(default_factory=dict)
    examples: int = 0
    recall: Mapping[str, float] = field(default_factory=dict)


def check_bundle(subject: Subject, names: Sequence[str]) -> Findings:
    """Runs checks, and what needs a checkpoint or the original model only if the subject has it.

    Args:
      subject: the bundle, and what it is compared with.
      names: the checks, in their order.

    Raises:
      VerificationFailed: something is wrong; names it.
      UsageError: the directory holds no bundle.
    """
    findings = Findings()
    with told_as_failures():
        for name in names:
            findings = replace(findings, **_CHECKS[name](subject))
    return findings


@contextmanager
def told_as_failures() -> Iterator[None]:
    """Turns what a reader of the bundle rejects into a failed check."""
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


def _check_files(subject: Subject) -> dict[str, Any]:
    integrity.check_files(subject.root, subject.manifest, tables="full")
    listed = listed_files(subject.manifest)
    return {
        "files": len(listed),
        "bytes": sum(files.size(subject.root, path) for path in listed),
        "unlisted": check_unlisted(subject.root, subject.manifest),
    }


def _check_parts(subject: Subject) -> dict[str, Any]:
    return {"opened": tuple(open_parts(subject.root, subject.manifest, subject.open_table))}


def _check_rows(subject: Subject) -> dict[str, Any]:
    if subject.checkpoint is None:
        return {}
    checks = {}
    for name, table in subject.manifest.tables.items():
        try:
            checks[name] = _check_table(subject, subject.checkpoint, name, table)
        except VerificationFailed as problem:
            raise VerificationFailed(str(problem), subject.steps_of(name)) from problem
    return {"tables": with_layouts(checks, subject.judged)}


def _check_table(subject: Subject, checkpoint: Checkpoint, name: str, table: Table) -> TableCheck:
    root = subject.root
    manifest = subject.manifest
    checks = verify_tables(checkpoint, root, {name: table}, subject.rows, subject.open_table)
    keys = {name: manifest.keys[name]} if name in manifest.keys else {}
    check_key_indexes(checkpoint, root, manifest.tables, keys, subject.rows is None)
    if name in subject.linked and subject.rows is not None and subject.rows < table.rows:
        return TableCheck(rows_compared=0, rows=table.rows)
    return checks[name]


def _check_towers(subject: Subject) -> dict[str, Any]:
    if subject.reference is None:
        return {}
    towers = subject.manifest.towers
    check_towers(subject.reference, subject.root, towers, subject.expected)
    return {"examples": subject.reference.examples.n}


def _check_candidates(subject: Subject) -> dict[str, Any]:
    reference = subject.reference
    if reference is None:
        return {}

    def vectors(name: str, examples: Examples) -> NDArray[Any]:
        results = reference_results(replace(reference, examples=examples), name)
        return results[name][reference.model.towers[name].result]

    check_candidates(
        subject.root, subject.manifest, reference.job, reference.base, vectors, subject.changes
    )
    return {}


def _check_recalls(subject: Subject) -> dict[str, Any]:
    if subject.reference is None:
        return {}
    manifest = subject.manifest
    recall = {}
    with closing(open_features(subject.root, manifest)) as features:
        for name, index in manifest.indexes.items():
            tower = manifest.towers[index.query_tower]
            queries = query_vectors(subject.reference, subject.root, tower, features)
            recall[name] = check_recall(subject.root, manifest, name, queries)
    return {"recall": recall}


def check_recall(root: Path, manifest: Manifest, name: str, queries: NDArray[np.float32]) -> float:
    """Measures recall of an index against exact search over its vectors, on the examples that it
    was measured on before.

    Raises:
      VerificationFailed: it is below the target, or below what the manifest's measurement allows.
    """
    index = manifest.indexes[name]
    before = index.recall
    path = files.locate(root, index.vectors)
    recall = measure_again(root, name, index, queries, queries, path).value
    if recall < min(before.target, before.value) or recall < before.low:
        raise VerificationFailed(
            f"index {name!r}: recall@{before.k} is {recall:.4f} against exact search over its "
            f"vectors; its manifest has {before.value:.4f} (at least {before.low:.4f}) and the "
            f"target {before.target}; export the index again"
        )
    return recall


_CHECKS: Mapping[str, Callable[[Subject], dict[str, Any]]] = {
    "files": _check_files,
    "parts": _check_parts,
    "rows": _check_rows,
    "towers": _check_towers,
    "candidates": _check_candidates,
    "recall": _check_recalls,
}
