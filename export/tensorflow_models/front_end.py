"""Models in TensorFlow and Keras, as the exporter's interface to front ends wants them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.front_end.interface import CallResults, OfferedCall, PartitionedModel, Trainer
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import note_untested_releases, tf
from export.graphs.tensors import with_values
from export.partition.call_tracing import call_results
from export.partition.tracing import TracedModel
from export.recipe.schema import ExportJob, InputSection
from export.tensorflow_models.frameworks.keras_graphs import KerasGraph
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.lookups.embedding_layers import original_lookup
from export.tensorflow_models.model.archived_inputs import with_archived_orders
from export.tensorflow_models.model.attribute_models import attribute_calls_recorded
from export.tensorflow_models.model.built_model import BuiltModel, trace_model
from export.tensorflow_models.model.dense_copy import local_prefix
from export.tensorflow_models.model.described_model import check_described_model
from export.tensorflow_models.model.exchangeable import check_exchangeable
from export.tensorflow_models.model.offered_calls import offered_calls
from export.tensorflow_models.model.roots import build_root, find_variables
from export.tensorflow_models.model.saved_models import trained_model
from export.tensorflow_models.model.tables import recognize_tables
from export.tensorflow_models.model.weights import TrainedModel
from export.tensorflow_models.reference.model import TensorFlowReference
from export.tensorflow_models.reference.tables import as_table


def builds_keras_model(job: ExportJob, base: Path) -> bool:
    """Returns whether a recipe's factory returns a model of Keras 3; allocates no table.

    A factory that raises has its message where its model is needed.
    """
    try:
        return is_keras_3_layer(BuiltModel(job, base).root)
    except (NotConvertible, UsageError):
        return False


MakeTrainer = Callable[[ExportJob, Path, Mapping[int, str]], Trainer]
"""(recipe, its folder, the `config_name` of each table by its position among the variables of a
model of Keras 3) -> the framework that may have trained the model.
"""


@dataclass(frozen=True)
class TensorFlowFrontEnd:
    """Reads models in TensorFlow and Keras. Implements `FrontEnd`.

    Attributes:
      make_trainer: Returns what computes rows in another framework than TensorFlow.
    """

    make_trainer: MakeTrainer

    def find_variables(
        self, job: ExportJob, checkpoint: Checkpoint
    ) -> tuple[ExportJob, Checkpoint]:
        """See FrontEnd.find_variables."""
        return find_variables(job, checkpoint)

    def partition(
        self, job: ExportJob, base: Path, checkpoint: Checkpoint, inside: bool = False
    ) -> PartitionedModel:
        """See FrontEnd.partition."""

        def build(job: ExportJob, base: Path) -> Any:
            root = build_root(job, base)
            if not isinstance(root, NamedGraph | KerasGraph):
                # Before tracing: id rules take the mean and the variance as constants.
                path = job.checkpoint.object_path
                trained_model(root, checkpoint, path).restore_normalizations()
            return root

        job, notes = with_archived_orders(job, checkpoint)
        traced = trace_model(job, base, inside, build)
        path = job.checkpoint.object_path
        # The checks reject a model that is not the saved one; what they cannot compare is a note.
        notes += check_exchangeable(traced, checkpoint, job)
        saved = trained_model(traced.root, checkpoint, path)
        notes += check_described_model(saved.root, checkpoint, path)
        original = TensorFlowModel(job, base, checkpoint, traced)
        notes = (*notes, *note_untested_releases(), *traced.remarks)
        trained_with = job.code.trained_with
        if trained_with not in (None, "tensorflow"):
            notes = (
                *notes,
                "the numbers inside of towers are compared with Keras on TensorFlow, and not with "
                f"Keras on {trained_with}, which trained the model",
            )
        return PartitionedModel(
            traced.spec,
            traced.towers,
            original,
            traced.own_rows,
            self._trainer(traced, job, base),
            stays=traced.notes,
            notes=notes,
            combine=original.combine,
        )

    def offered_calls(self, job: ExportJob, base: Path) -> Iterable[OfferedCall]:
        """See FrontEnd.offered_calls."""
        return offered_calls(BuiltModel(job, base).root)

    def call_results(
        self, job: ExportJob, base: Path, call: Call, inputs: Mapping[str, InputSection]
    ) -> CallResults:
        """See FrontEnd.call_results."""
        # A call that fails may leave layers built, so the model is built anew each time.
        model = BuiltModel(job, base)
        with attribute_calls_recorded(model.root) as attribute_calls:
            return call_results(model, call, inputs, attribute_calls)

    def _trainer(self, traced: TracedModel, job: ExportJob, base: Path) -> Trainer | None:
        """Returns what may have trained a model of Keras 3, whose code runs on other frameworks,
        too; None for other models, and for those that TensorFlow trained.
        """
        if not is_keras_3_layer(traced.root) or job.code.trained_with == "tensorflow":
            return None
        tables = {}
        for position, variable in enumerate(traced.root.variables):
            for name, table in traced.tables.items():
                if variable.value is table:
                    tables[position] = traced.spec.tables[name].config_name
        return self.make_trainer(job, base, tables)


@dataclass(frozen=True)
class TensorFlowModel:
    """A traced model beside its checkpoint. Implements `OriginalModel`.

    Attributes:
      job, base: The recipe and its folder.
      checkpoint: The recipe's checkpoint.
      traced: The model without its tables.
    """

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    traced: TracedModel

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        """See OriginalModel.find_tables."""
        return recognize_tables(self.checkpoint, self.traced, self.job, self.base, trained)

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """See OriginalModel.find_weights."""
        return self._trained.find_weights(variables)

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """See OriginalModel.restore_weights."""
        self._trained.restore_weights(variables)

    def note_unmatched_weights(self, dense: Collection[str]) -> tuple[str, ...]:
        """See OriginalModel.note_unmatched_weights."""
        return self._trained.note_unmatched_weights(dense)

    def combine(self, config: Any, ids: Any, weights: Any, vectors: Any) -> Any:
        """See PartitionedModel.combine.

        The layer's own lookup runs on the vectors alone: the ids become the positions of their
        vectors, so it does not matter in which dtype and order the table is stored.
        """
        count = tf.shape(vectors, tf.int64)[0]
        positions = with_values(ids, tf.range(count))
        tables = {config.table: as_table(vectors)}
        return self._lookup(positions, weights, tables, config)

    def reference(self, inventory: Inventory, directory: Path) -> TensorFlowReference:
        """See OriginalModel.reference."""
        spec = self.traced.spec
        prefix = local_prefix(self.checkpoint, inventory, spec, self.job, directory)
        return TensorFlowReference(self.job, self.base, self.checkpoint, prefix, spec)

    @cached_property
    def _trained(self) -> TrainedModel:
        return trained_model(self.traced.root, self.checkpoint, self.job.checkpoint.object_path)

    @cached_property
    def _lookup(self) -> Any:
        return original_lookup()
