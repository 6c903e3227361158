"""Writes what an export makes of a traced model, and compares it with the original."""

from __future__ import annotations

from pathlib import Path

from bundle.format import manifest
from bundle.format.manifest import TableSource
from export.checkpoint.reader import open_checkpoint
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
