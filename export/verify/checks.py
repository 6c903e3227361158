"""The checks of a bundle: one list, whether it is staged, published or compared with its recipe.

    files       every byte against its checksum, and files that no manifest names
    parts       everything in the bundle opens and can be used
    rows        tables and their key indexes against the checkpoint
    towers      every form of every tower against the original model
    candidates  candidates against their files, and their vectors against the original model
    recall      indexes against exact search

`verify` runs `OF_BUNDLE`, and with a recipe also `OF_MODEL`. `run` and `tables` run `STAGED`.
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
from export.corpora.changes import ServedChanges
from export.corpora.recall import measure_again
from export.errors import UsageError, VerificationFailed
from export.front_end.interface import Results
from export.tables.key_indexes import check_key_indexes
from export.verify.bundle_files import check_unlisted
from export.verify.candidate_checks import check_candidates
from export.verify.examples import Examples
from export.verify.extensions import check_extension
from export.verify.parity import check_towers, query_vectors
from export.verify.parts import open_parts
from export.verify.reference_inputs import Reference
from export.verify.reference_model import reference_results
from export.verify.stated_layouts import StatedLayout, with_layouts
from export.verify.table_rows import verify_tables

OF_BUNDLE = ("files", "parts", "rows")
OF_MODEL = ("towers", "candidates", "recall")
STAGED = ("rows", "parts", "candidates")
"""The checks of a staged bundle. Files were digested while they were written. Towers and indexes
were compared when they were made, because the next steps of the job read them.
"""


@dataclass(frozen=True)
class CheckedBundle:
    """A bundle, and what its checks compare it with.

    Attributes:
      root: The bundle's directory.
      manifest: The bundle's manifest.
      checkpoint: The checkpoint that the tables come from; None: rows are not compared.
      rows: The number of rows that are compared of each table; None: all.
      reference: The original model, with examples that it can compute; None: it is not called.
      expected: The outputs of the original model for the examples.
      layouts: The evidence for the layouts that the training program did not record, by table.
      linked: Tables whose rows lie in the checkpoint's own files, so that only a comparison of all
        rows proves anything.
      open_table: Opens a table that may not lie in `root`; None: all of them do.
      steps_of: Returns the steps of the job that write a table, by the table's name.
      changes: The changes of the service that the bundle contains; None: it contains none.
    """

    root: Path
    manifest: Manifest
    checkpoint: Checkpoint | None = None
    rows: int | None = None
    reference: Reference | None = None
    expected: Results = field(default_factory=dict)
    layouts: Mapping[str, StatedLayout] = field(default_factory=dict)
    linked: Collection[str] = ()
    open_table: Callable[[Table], TableReader] | None = None
    steps_of: Callable[[str], Sequence[str]] = lambda _table: ()
    changes: ServedChanges | None = None


@dataclass(frozen=True)
class Findings:
    """The results of the checks: the parts of the bundle that are in order.

    Attributes:
      files: The number of listed files whose checksums were compared.
      bytes: The size of these files.
      unlisted: Files in the directory that the manifest does not name, so that nothing reads them.
      opened: Parts of the bundle that open and can be used.
      tables: The comparison of each table with the checkpoint.
      examples: The number of examples that the model and every form of every tower were called
        with.
      recall: The recall of each index, measured again.
    """

    files: int = 0
    bytes: int = 0
    unlisted: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    tables: Mapping[str, TableCheck] = field(default_factory=dict)
    examples: int = 0
    recall: Mapping[str, float] = field(default_factory=dict)


def check_bundle(bundle: CheckedBundle, names: Sequence[str]) -> Findings:
    """Runs checks; one that needs a checkpoint or the original model is skipped without it.

    Args:
      bundle: The bundle, and what it is compared with.
      names: The checks, in their order.

    Raises:
      VerificationFailed: A check fails; the message names what is wrong.
      UsageError: The directory holds no bundle.
    """
    findings = Findings()
    with raising_verification_failed():
        for name in names:
            findings = replace(findings, **_CHECKS[name](bundle))
    return findings


@contextmanager
def raising_verification_failed() -> Iterator[None]:
    """Turns the errors of a reader of the bundle into those of a failed check."""
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


def _check_files(bundle: CheckedBundle) -> dict[str, Any]:
    integrity.check_files(bundle.root, bundle.manifest, tables="full")
    listed = bundle.manifest.listed_files
    return {
        "files": len(listed),
        "bytes": sum(files.size(bundle.root, path) for path in listed),
        "unlisted": check_unlisted(bundle.root, bundle.manifest),
    }


def _check_parts(bundle: CheckedBundle) -> dict[str, Any]:
    return {"opened": tuple(open_parts(bundle.root, bundle.manifest, bundle.open_table))}


def _check_rows(bundle: CheckedBundle) -> dict[str, Any]:
    if bundle.checkpoint is None:
        return {}
    checks = {}
    for name, table in bundle.manifest.tables.items():
        try:
            checks[name] = _check_table(bundle, bundle.checkpoint, name, table)
        except VerificationFailed as problem:
            # With its steps, the next run of the job makes the table again.
            raise VerificationFailed(str(problem), bundle.steps_of(name)) from problem
    return {"tables": with_layouts(checks, bundle.layouts)}


def _check_table(
    bundle: CheckedBundle, checkpoint: Checkpoint, name: str, table: Table
) -> TableCheck:
    root = bundle.root
    manifest = bundle.manifest
    checks = verify_tables(checkpoint, root, {name: table}, bundle.rows, bundle.open_table)
    keys = {}
    if name in manifest.keys:
        keys[name] = manifest.keys[name]
    check_key_indexes(checkpoint, root, manifest.tables, keys, bundle.rows is None)

    # A sample of a linked table compares the checkpoint's files with themselves.
    is_sample = bundle.rows is not None and bundle.rows < table.rows
    if name in bundle.linked and is_sample:
        return TableCheck(rows_compared=0, rows=table.rows)
    return checks[name]


def _check_towers(bundle: CheckedBundle) -> dict[str, Any]:
    if bundle.reference is None:
        return {}
    towers = bundle.manifest.towers
    check_towers(bundle.reference, bundle.root, towers, bundle.expected)
    for name, tower in towers.items():
        check_extension(bundle.reference, bundle.root, name, tower)
    return {"examples": bundle.reference.examples.n}


def _check_candidates(bundle: CheckedBundle) -> dict[str, Any]:
    reference = bundle.reference
    if reference is None:
        return {}

    def vectors(name: str, examples: Examples) -> NDArray[Any]:
        # Candidates hold the inputs of this tower alone, so no other tower can run.
        results = reference_results(replace(reference, examples=examples), name)
        return results[name][reference.model.towers[name].result]

    check_candidates(
        bundle.root, bundle.manifest, reference.job, reference.base, vectors, bundle.changes
    )
    return {}


def _check_recalls(bundle: CheckedBundle) -> dict[str, Any]:
    if bundle.reference is None:
        return {}
    manifest = bundle.manifest
    recall = {}
    with closing(open_features(bundle.root, manifest)) as features:
        for name, index in manifest.indexes.items():
            tower = manifest.towers[index.query_tower]
            queries = query_vectors(bundle.reference, bundle.root, tower, features)
            recall[name] = check_recall(bundle.root, manifest, name, queries)
    return {"recall": recall}


def check_recall(root: Path, manifest: Manifest, name: str, queries: NDArray[np.float32]) -> float:
    """Measures recall of an index against exact search over its vectors, on the examples that it
    was measured on before.

    Raises:
      VerificationFailed: The recall is below the target, or below the range that the measurement
        in the manifest allows.
    """
    index = manifest.indexes[name]
    published = index.recall
    path = files.locate(root, index.vectors)
    recall = measure_again(root, name, index, queries, queries, path).value

    required = min(published.target, published.value)
    if recall < required or recall < published.low:
        raise VerificationFailed(
            f"index {name!r}: recall@{published.k} is {recall:.4f} against exact search over its "
            f"vectors; its manifest has {published.value:.4f} (at least {published.low:.4f}) and "
            f"the target {published.target}; export the index again"
        )
    return recall


_CHECKS: Mapping[str, Callable[[CheckedBundle], dict[str, Any]]] = {
    "files": _check_files,
    "parts": _check_parts,
    "rows": _check_rows,
    "towers": _check_towers,
    "candidates": _check_candidates,
    "recall": _check_recalls,
}
