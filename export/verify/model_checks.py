"""Compares a bundle with the model that was trained, before it is published and whenever it is
verified again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import open_features
from bundle.format.manifest import Feature, Manifest, Table
from bundle.storage import files
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from export.corpora.recall import measure_again
from export.errors import UsageError, VerificationFailed
from export.front_end.specs import ModelSpec
from export.front_end_choice import front_end_of
from export.recipe.schema import ExportJob
from export.tables.dumped import KeyFile, open_dumps
from export.tables.vocabularies import as_array, read_keys
from export.verify.audit import Audit, ModelCheck, open_parts, told_as_failures
from export.verify.candidate_checks import check_candidates
from export.verify.examples import Examples, Keys, make_examples, read_examples
from export.verify.parity import check_towers, query_vectors
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results, reference_results
from export.verify.table_effects import converted


def examples_of(
    job: ExportJob, base: Path, model: ModelSpec, entries: Mapping[str, Feature]
) -> Examples:
    """Returns the examples of a recipe: those of its file, else made ones, the same in
    every run.
    """
    part = job.verify
    if part.examples is not None:
        return read_examples(
            base / part.examples, model, entries, part.count, part.labels, part.expected
        )
    dumped = {name: KeyFile(table).sample() for name, table in open_dumps(job, base).items()}
    return make_examples(model, entries, keys_of(job, base, model), part.count, dumped=dumped)


def keys_of(job: ExportJob, base: Path, model: ModelSpec) -> Keys:
    """Returns the keys of the recipe's and the model's vocabularies."""
    keys = {
        name: read_keys(base / part.file, part.dtype) for name, part in job.vocabularies.items()
    }
    return keys | {name: as_array(held) for name, held in model.vocabularies.items()}


def check_manifest(
    reference: Reference,
    root: Path,
    manifest: Manifest,
    open_table: Callable[[Table], TableReader] | None = None,
) -> None:
    """Opens all parts of a bundle by its manifest alone, and compares its candidates with their
    files and the model.

    Args:
      reference: the examples and the model.
      root: directory of the staged bundle.
      manifest: of the bundle.
      open_table: opens a table that may not lie in `root`.

    Raises:
      VerificationFailed: a part does not open, or a candidate or its vector is another.
    """

    def vectors(name: str, examples: Examples) -> NDArray[Any]:
        results = reference_results(replace(reference, examples=examples), name)
        return results[name][reference.model.towers[name].result]

    with told_as_failures():
        tuple(open_parts(root, manifest, open_table))
        check_candidates(root, manifest, reference.job, reference.base, vectors)


def check_recall(root: Path, manifest: Manifest, name: str, queries: NDArray[np.float32]) -> float:
    """Measures recall of an index against exact search over its vectors.

    Args:
      root: directory of the bundle.
      manifest: of the bundle.
      name: of the index.
      queries: [q, dim] float32: what its query tower gives for the examples.
    Returns:
      recall@k on the examples that it was measured on before.
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


def audit_model(report: Audit, bundle: Path, job: ExportJob, base: Path) -> Audit:
    """Compares a published bundle with its recipe's model and checkpoint, and measures recall anew.

    Args:
      report: that every file is as its manifest says.
      bundle: its directory.
      job: the recipe that it was exported by.
      base: the recipe's folder.
    Returns:
      The report, with what was compared.
    Raises:
      UsageError: the recipe is of another model, or has not the bundle's towers.
      VerificationFailed: a tower or a candidate is not the model's, or an index finds less than its
        manifest says.
      ExportError: the checkpoint or the model code is not what it was.
    """
    manifest = read_manifest(bundle)
    if job.model != manifest.model or set(manifest.towers) != set(job.towers):
        raise UsageError(
            f"the recipe is of model {job.model!r} with towers {', '.join(sorted(job.towers))}; "
            "the bundle is of "
            f"{manifest.model!r} with {', '.join(sorted(manifest.towers)) or 'none'}; give the "
            "recipe that it was exported by"
        )
    front_end = front_end_of(job)
    checkpoint, job = front_end.open_checkpoint(job, base)
    traced = front_end.partition(job, base, checkpoint)
    examples = examples_of(job, base, traced.spec, manifest.features)
    with TemporaryDirectory(prefix="rowcast-") as aside, told_as_failures():
        inventory = traced.original.find_tables()
        original = traced.original.reference(inventory, Path(aside, "dense"))
        features = open_features(bundle, manifest)
        read_rows = checkpoint_rows(
            checkpoint, {name: table.source for name, table in manifest.tables.items()}
        )
        reference = Reference(
            job,
            base,
            traced.spec,
            original,
            read_rows,
            examples,
            features,
            converted(manifest.tables),
        )
        reference, expected = finite_results(reference)
        check_towers(reference, bundle, manifest.towers, expected)
        check_manifest(reference, bundle, manifest)
        recall = {}
        for name, index in manifest.indexes.items():
            queries = query_vectors(reference, bundle, manifest.towers[index.query_tower], features)
            recall[name] = check_recall(bundle, manifest, name, queries)
        features.close()
    return replace(report, model_check=ModelCheck(examples.n, recall))
