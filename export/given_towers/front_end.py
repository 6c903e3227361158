"""The front end of tables of PyTorch with towers that the user brings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory, Statements
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.errors import CheckpointError, UsageError
from export.front_end.calls import Call
from export.front_end.interface import CallResults, OfferedCall, PartitionedModel
from export.front_end.recipe_layouts import recipe_layouts
from export.front_end.table_shapes import check_shapes
from export.given_towers.model_file import GivenTowers, read_model_file, tower_calls
from export.given_towers.reference import GivenReference
from export.partition.call_tracing import call_results
from export.partition.tracing import TracedModel, trace_towers
from export.recipe.schema import ExportJob, InputSection, TowerSection
from export.tables.dumped import stated_key


class GivenTowersFrontEnd:
    """Reads tables that PyTorch saved, and towers in files. Implements `FrontEnd`."""

    def find_variables(
        self, job: ExportJob, checkpoint: Checkpoint
    ) -> tuple[ExportJob, Checkpoint]:
        """See FrontEnd.find_variables."""
        if job.checkpoint.averages or job.checkpoint.object_path or job.checkpoint.by:
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} is PyTorch's, whose tables are found by their "
                "names: leave out checkpoint.averages, object_path and by; name a table's variable "
                "as tables.NAME.key"
            )
        return job, checkpoint

    def partition(
        self, job: ExportJob, base: Path, checkpoint: Checkpoint, inside: bool = False
    ) -> PartitionedModel:
        """See FrontEnd.partition."""
        _check_expected(job)
        towers = read_model_file(job, base)
        traced = trace_towers(job, base, towers, inside)
        original = GivenModel(job, base, checkpoint, traced, towers)
        return PartitionedModel(traced.spec, traced.towers, original, stays=traced.notes)

    def offered_calls(self, job: ExportJob, base: Path) -> Iterable[OfferedCall]:
        """See FrontEnd.offered_calls: a call for each file of the model file."""
        return tower_calls(job, base)

    def call_results(
        self, job: ExportJob, base: Path, call: Call, inputs: Mapping[str, InputSection]
    ) -> CallResults:
        """See FrontEnd.call_results."""
        tower = TowerSection(role="ranking", call=call.path)
        called = job.model_copy(update={"inputs": dict(inputs), "towers": {"tower": tower}})
        return call_results(read_model_file(called, base), call, inputs)


@dataclass(frozen=True)
class GivenModel:
    """Towers in files, and a checkpoint of PyTorch. Implements `OriginalModel`.

    Attributes:
      job, base: The recipe and its folder.
      checkpoint: The recipe's checkpoint.
      traced: The towers and their tables.
      towers: The towers that the model file describes.
    """

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    traced: TracedModel
    towers: GivenTowers

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        """See OriginalModel.find_tables."""
        layouts = recipe_layouts(self.job, self.base)
        keys = {}
        for name in self.traced.spec.tables:
            key = stated_key(self.checkpoint, name, self.job)
            # A table without a key is found by its own name.
            if key:
                keys[name] = key
        inventory = recognize(self.checkpoint, Statements(keys, (), layouts), trained)
        check_shapes(inventory, self.traced.spec.tables)
        return inventory

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """See OriginalModel.find_weights: a tower's file holds its weights."""
        return [(variable, "") for variable in variables]

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """See OriginalModel.restore_weights."""

    def note_unmatched_weights(self, _dense: Collection[str]) -> tuple[str, ...]:
        """See OriginalModel.note_unmatched_weights."""
        return ()

    def reference(self, _inventory: Inventory, _directory: Path) -> GivenReference:
        """See OriginalModel.reference."""
        return GivenReference(self.job, self.towers, self.traced.spec)


def _check_expected(job: ExportJob) -> None:
    """Checks that each tower is compared with what training recorded: nothing else here runs
    PyTorch on the checkpoint's rows.

    Raises:
      UsageError: A tower is not compared.
    """
    expected = job.verify.expected
    for name, section in job.towers.items():
        outputs = section.outputs or {"result": ""}
        # An output is named alone, or with its tower where several towers have it.
        expected_names = {*outputs, *(f"{name}.{output}" for output in outputs)}
        if expected_names.isdisjoint(expected):
            output = section.result or next(iter(outputs))
            raise UsageError(
                f"tower {name!r} of PyTorch is compared with nothing that PyTorch computed: record "
                "what the whole model returns for some examples, name their file as "
                f"verify.examples, and the column of a recorded output as verify.expected.{output}"
            )
