"""Writes what an export makes of a traced model, and compares it with the original."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bundle.format import manifest
from bundle.format.manifest import TableSource
from export.checkpoint.reader import open_checkpoint
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.recipe.settings import ExportSettings
from export.verify.examples import Examples
from export.verify.parity import check_towers
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, reference_results
from tests.units.export.traced_models import MODELS, TracedCheckpoint
from tests.units.export.written_towers import write_towers


def check_parity(
    trained: TracedCheckpoint, directory: Path, *examples: Examples
) -> dict[str, manifest.Tower]:
    """Writes every tower twice, and compares both with the original model on examples, and on those
    that are made.
    """
    checkpoint = open_checkpoint(trained.prefix)
    read_rows = checkpoint_rows(
        checkpoint,
        {name: TableSource(layout="plain", key=key) for name, key in trained.keys.items()},
    )
    written = write_towers(trained.model, trained.job, trained.prefix, directory)
    assert all(len(tower.forms) == 2 for tower in written[1].values())
    for example in (*examples, trained.examples()):
        reference = Reference(
            trained.job,
            MODELS,
            trained.model.spec,
            trained.reference_model,
            read_rows,
            example,
            trained.reader,
        )
        checked = check_towers(reference, *written, reference_results(reference))
    return checked


def check_self_contained(
    trained: TracedCheckpoint, directory: Path, examples: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Exports a self-contained SavedModel: two loaders run examples, compared with the original
    model.
    """
    updates: dict[str, Any] = {
        "checkpoint": trained.job.checkpoint.model_copy(update={"path": str(trained.prefix)}),
        "output": trained.job.output.model_copy(
            update={"root": str(directory / "out"), "tables": "inline"}
        ),
    }
    if examples:
        (directory / "examples.jsonl").write_text(
            "".join(json.dumps(example) + "\n" for example in examples)
        )
        updates["verify"] = trained.job.verify.model_copy(
            update={"examples": str(directory / "examples.jsonl")}
        )
    prepared = prepare_inline(trained.job.model_copy(update=updates), MODELS, ExportSettings())
    report = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    assert report["verification"]["loaded_by"] == [
        "tf.saved_model.load",
        "tf.compat.v1.saved_model.load",
    ]
    return report
