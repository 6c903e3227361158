"""The results of the original model on a recipe's examples, before anything is written: its rows
are those of the checkpoint.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bundle.features.reader import FeatureReader
from bundle.format.manifest import Feature
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.front_end.interface import PartitionedModel, Results
from export.recipe.schema import ExportJob
from export.tables.sources import source_of
from export.verify.recipe_examples import examples_of, keys_of
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results
from export.verify.synthetic_examples import vocabulary_of
from export.verify.table_effects import TrainedRows


@contextmanager
def original_results(
    job: ExportJob,
    base: Path,
    checkpoint: Checkpoint,
    inventory: Inventory,
    traced: PartitionedModel,
    entries: Mapping[str, Feature],
) -> Iterator[tuple[Reference, Results]]:
    """Runs the original model on the recipe's examples, or on synthetic ones.

    Args:
      job, base: The recipe and its folder.
      checkpoint, inventory: The checkpoint, and the tables in it.
      traced: The partitioned model.
      entries: Its features.

    Yields:
      The original model with the examples that it was called with, which can run inside the `with`
      block; and each output of each tower.

    Raises:
      UsageError: The model cannot read the examples.
      VerificationFailed: Its outputs are not finite.
    """
    model = traced.spec
    specs = {name: inventory.table(name) for name in model.tables}
    sources = {name: source_of(spec.layout, spec.key) for name, spec in specs.items()}
    read_rows = checkpoint_rows(checkpoint, sources)
    tables = {name: TrainedRows(name, spec, read_rows) for name, spec in specs.items()}
    vocabularies = {name: vocabulary_of(keys) for name, keys in keys_of(job, base, model).items()}
    features = FeatureReader(entries, tables, vocabularies)
    # The original may need files on this machine in the place of a checkpoint in a store.
    with tempfile.TemporaryDirectory() as folder:
        original = traced.original.reference(inventory, Path(folder))
        examples = examples_of(job, base, model, entries)
        yield finite_results(Reference(job, base, model, original, read_rows, examples, features))
