"""The front end of models in JAX.

Functions are evaluated as TensorFlow operations while TensorFlow's front end traces them, which
then finds lookups, rules of ids and towers as in a model of TensorFlow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import FileTable, Inventory, Statements, is_to_be_derived
from export.checkpoint.left_out import listed_shapes, reject_left_out
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.errors import CheckpointError
from export.front_end.calls import Call
from export.front_end.interface import CallResults, OfferedCall, PartitionedModel
from export.front_end.recipe_layouts import is_derived, recipe_layouts, with_config_names
from export.front_end.table_shapes import check_shapes
from export.graphs.placeholders import name_of
from export.jax_models.functions import JaxFunctions, build_functions
from export.jax_models.own_rows import JaxTrainer
from export.jax_models.parameters import StoredParameters
from export.jax_models.reference import JaxReference
from export.jax_models.specified_tables import SpecifiedTables
from export.partition.call_tracing import call_results
from export.partition.tracing import TracedModel, trace_towers
from export.recipe.schema import ExportJob, InputSection
from export.tables.dumped import stated_key


class JaxFrontEnd:
    """Reads models in JAX, with parameters in Orbax. Implements `FrontEnd`."""

    def find_variables(
        self, job: ExportJob, checkpoint: Checkpoint
    ) -> tuple[ExportJob, Checkpoint]:
        """See FrontEnd.find_variables."""
        if job.checkpoint.averages:
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} is Orbax's, where averages are a tree of their "
                "own: write its path as checkpoint.object_path, and leave out checkpoint.averages"
            )
        return job, checkpoint

    def partition(
        self, job: ExportJob, base: Path, checkpoint: Checkpoint, inside: bool = False
    ) -> PartitionedModel:
        """See FrontEnd.partition."""
        functions = build_functions(job, base)
        traced = trace_towers(job, base, functions, inside)
        original = JaxModel(job, base, checkpoint, traced, functions)
        notes = (*traced.remarks, *_notes_on_batches(functions))
        trainer = JaxTrainer(job, functions, traced.spec)
        return PartitionedModel(
            traced.spec, traced.towers, original, traced.own_rows, trainer, traced.notes, notes
        )

    def offered_calls(self, job: ExportJob, base: Path) -> Iterable[OfferedCall]:
        """See FrontEnd.offered_calls."""
        functions = build_functions(job, base)
        names = [*functions.functions]
        bags = tuple(functions.specs.table_of) if functions.specs is not None else ()
        if len(names) > 1 and "" in names:
            # The only function can be called without its name, too.
            names.remove("")
        return [OfferedCall(name, takes_arrays=True, bags=bags) for name in names]

    def call_results(
        self, job: ExportJob, base: Path, call: Call, inputs: Mapping[str, InputSection]
    ) -> CallResults:
        """See FrontEnd.call_results."""
        called = job.model_copy(update={"inputs": dict(inputs)})
        return call_results(build_functions(called, base), call, inputs)


@dataclass(frozen=True)
class JaxModel:
    """A traced model and its checkpoint. Implements `OriginalModel`.

    Attributes:
      job, base: The recipe and its folder.
      checkpoint: The recipe's checkpoint.
      traced: The model without its tables.
      functions: The functions that the factory returned.
    """

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    traced: TracedModel
    functions: JaxFunctions

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        """See OriginalModel.find_tables."""
        layouts = recipe_layouts(self.job, self.base)
        specified = self._specified_tables(layouts)
        if is_derived(self.job) and specified is not None:
            layouts |= specified.to_derive()
        keys = self._keys_of_tables(layouts, specified)
        mod = tuple(sorted(name for name, section in self.job.tables.items() if section.mod))
        trained_rows = with_config_names(trained, self.traced.spec.tables)
        inventory = recognize(self.checkpoint, Statements(keys, mod, layouts), trained_rows)
        check_shapes(inventory, self.traced.spec.tables)
        return inventory

    def _keys_of_tables(
        self, layouts: dict[str, FileTable], specified: SpecifiedTables | None
    ) -> dict[str, str]:
        """Returns the keys of tables whose layout is not stated.

        Args:
          layouts: The stated layouts. Layouts by feature specifications alone are added.
          specified: The tables of feature specifications, if there are any.
        """
        derived_names = {name for name, table in layouts.items() if is_to_be_derived(table)}
        # A table is found by the first of these that says where it is: the recipe's key, a layout
        # to be derived, the feature specifications, a layout file, the path of its parameter.
        keys = {}
        for name, facts in self.traced.spec.tables.items():
            config_name = facts.config_name
            key = stated_key(self.checkpoint, name, self.job)
            if key:
                keys[name] = key
            elif config_name in derived_names:
                if name != config_name:
                    keys[name] = config_name
            elif specified is not None and config_name in specified.specs.tables:
                # A recorded layout wins. Positions of prepared specifications alone are a stated
                # layout: this machine may have prepared them for other devices than training.
                if not specified.is_found(config_name):
                    layouts[name] = specified.in_stack(config_name)
                elif name != config_name:
                    keys[name] = config_name
            elif name not in layouts:
                keys[name] = self._stored_table(name, config_name)
        return keys

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """See OriginalModel.find_weights."""
        paths = {name_of(variable): variable for variable in variables}
        keys = self._stored_parameters.find(paths)
        self._check_no_stack(keys.values())
        return [(paths[path], key) for path, key in keys.items()]

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """See OriginalModel.restore_weights."""
        for variable, key in self.find_weights(variables):
            variable.assign(self.checkpoint.read_all(key))
            # A restored variable is no table, whatever its size.
            if hasattr(variable, "restored"):
                variable.restored = True

    def note_unmatched_weights(self, dense: Collection[str]) -> tuple[str, ...]:
        """See OriginalModel.note_unmatched_weights."""
        # A module with fewer parameters than were saved computes other values: that is an error,
        # not a note.
        reject_left_out(self.checkpoint, self._stored_parameters.left_out(dense))
        unread = self._stored_parameters.unread(dense)
        if not unread:
            return ()
        listed = listed_shapes(self.checkpoint, unread)
        return (
            f"checkpoint {self.checkpoint.name} also holds {listed}, which the model code lacks; "
            "if they are needed for these outputs, the code is not the one that was trained",
        )

    def reference(self, _inventory: Inventory, _directory: Path) -> JaxReference:
        """See OriginalModel.reference."""
        fixed_batches = self.functions.fixed_batches
        return JaxReference(
            self.job, self.base, self._stored_parameters, self.traced.spec, fixed_batches
        )

    @property
    def _stored_parameters(self) -> StoredParameters:
        object_path = self.job.checkpoint.object_path
        return StoredParameters(self.functions, self.checkpoint, object_path)

    def _specified_tables(self, layouts: Mapping[str, FileTable]) -> SpecifiedTables | None:
        specs = self.functions.specs
        if specs is None:
            return None
        return SpecifiedTables(specs, self.checkpoint, dict(layouts))

    def _check_no_stack(self, keys: Collection[str]) -> None:
        """Checks that no parameter is a stack: the rows of a stack are not in the order of ids.

        Raises:
          CheckpointError: A parameter is a stack.
        """
        for stack in recognize(self.checkpoint, Statements()).rejected:
            if stack.key in keys:
                raise CheckpointError(
                    f"parameter {stack.key!r} cannot be read as it is: {stack.reason}"
                )

    def _stored_table(self, name: str, path: str) -> str:
        """Returns the key of a table, or the name by which it is recognized in a stack."""
        key = self._stored_parameters.key(path)
        if key:
            return key
        inventory = recognize(self.checkpoint, Statements())
        if name in {table.name for table in inventory.tables}:
            return name
        # Raises the error that names the missing parameter.
        return self._stored_parameters.find([path])[path]


def _notes_on_batches(functions: JaxFunctions) -> tuple[str, ...]:
    return tuple(
        f"{call} runs in a batch of {batch} examples, as feature_specs state, and in no other; its "
        "towers take any batch, since it computes each example from its own values. They are "
        "compared with the model in its own batch"
        for call, batch in functions.fixed_batches.items()
    )
