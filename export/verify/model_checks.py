"""Holds a bundle to the model that was trained: by its page alone, as a service reads it, before it is published and
whenever it is verified again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from bundle.features.reader import open_features
from bundle.format import manifest
from bundle.format.manifest import Manifest
from bundle.storage.staging import read_manifest
from export.errors import UsageError
from export.graph.specs import ModelSpec
from export.model.dense_copy import local_prefix
from export.model.manifest_features import model_vocabularies
from export.model.roots import open_job
from export.model.tables import recognise_tables
from export.model.tracing import trace_towers
from export.model.vocabularies import as_array, read_keys
from export.recipe.schema import ExportJob
from export.tables.dumped import KeyFile, open_dumps
from export.verify import candidate_checks, parity, table_effects
from export.verify.audit import Audit, ModelCheck, open_parts, told_as_failures
from export.verify.examples import Examples, make_examples, read_examples
from export.verify.part_checks import check_parts
from export.verify.recall_checks import check_recall
from export.verify.reference_model import ReadRows, Replay, Results, checkpoint_rows, replay_finite, replay_original
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower


def examples_of(job: ExportJob, base: Path, model: ModelSpec, pages: Mapping[str, manifest.Feature]) -> Examples:
    """Returns the examples of a recipe: those of its file, else made ones, the same in every run."""
    part = job.verify
    if part.examples is not None:
        return read_examples(base / part.examples, model, pages, part.count, part.labels, part.expected)
    keys = {name: read_keys(base / page.file, page.dtype) for name, page in job.vocabularies.items()}
    keys.update({name: as_array(held) for name, held in model_vocabularies(model).items()})
    dumped = {name: KeyFile(table).sample() for name, table in open_dumps(job, base).items()}
    return make_examples(model, pages, keys, part.count, dumped=dumped)


def check_page(replayed: Replay, root: Path, page: Manifest, expected: Results, read_rows: ReadRows) -> None:
    """Asks a whole bundle by its page alone, and compares with the original model.

    Args:
      replayed: the model, the checkpoint and the examples.
      root: directory of the bundle, staged or published.
      page: its manifest.
      expected: what the original model gives for the examples.
      read_rows: reads rows of the checkpoint's tables.
    Raises:
      VerificationFailed: a part does not open, or answers otherwise than the model.
    """

    def vectors(name: str, examples: Examples) -> NDArray[Any]:
        alone = replayed.model.of(name)
        results = replay_original(replace(replayed, model=alone, examples=examples), read_rows)
        return results[name][alone.towers[name].result]

    with told_as_failures():
        values = parity.compare_page(replayed, root, page, expected)
        for name, tower in page.towers.items():
            if tower.parts:
                check_parts(replayed, root, name, tower, values, expected[name])
        tuple(open_parts(root, page))
        candidate_checks.check_candidates(root, page, replayed.job, replayed.base, vectors)


def audit_model(report: Audit, bundle: Path, job: ExportJob, base: Path) -> Audit:
    """Holds a published bundle to its recipe's model and checkpoint, and measures recall anew.

    Args:
      report: that every file is as its manifest tells.
      bundle: its directory.
      job: the recipe that it was exported by.
      base: the recipe's folder.
    Returns:
      The report, with what was compared.
    Raises:
      UsageError: the recipe is of another model, or has not the bundle's towers.
      VerificationFailed: a tower or a candidate is not the model's, or an index finds less than its page says.
      ExportError: the checkpoint or the model code is not what it was.
    """
    page = read_manifest(bundle)
    if job.model != page.model or set(page.towers) != set(job.towers):
        raise UsageError(
            f"the recipe is of model {job.model!r} with towers {', '.join(sorted(job.towers))}; the bundle is of "
            f"{page.model!r} with {', '.join(sorted(page.towers)) or 'none'}; give the recipe that it was exported by"
        )
    checkpoint, job = open_job(job, base)
    traced = trace_towers(job, base)
    examples = examples_of(job, base, traced.spec, page.features)
    with TemporaryDirectory(prefix="rowcast-") as aside, told_as_failures():
        prefix = local_prefix(checkpoint, recognise_tables(checkpoint, traced, job, base), Path(aside, "dense"))
        features = open_features(bundle, page)
        changed = frozenset(table_effects.converted(page.tables))
        replayed = Replay(job, base, traced.spec, prefix, examples, features, changed)
        read_rows = checkpoint_rows(checkpoint, {name: table.source for name, table in page.tables.items()})
        replayed, expected = replay_finite(replayed, read_rows)
        check_page(replayed, bundle, page, expected, read_rows)
        recall = {}
        for name, index in page.indexes.items():
            tower = page.towers[index.query_tower]
            inputs = tower_inputs(tower.inputs, parity.feature_values(replayed, features), examples.n)
            recall[name] = check_recall(bundle, page, name, open_tower(bundle, tower, "f32").run(inputs)[tower.result])
        features.close()
    return replace(report, model_check=ModelCheck(examples.n, recall))
