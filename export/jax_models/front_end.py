"""Models in JAX, as the exporter's interface to front ends wants them.

Functions are evaluated as TensorFlow operations while TensorFlow's front end traces, which then
finds lookups, rules of ids and towers as in any other model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, StatedTable, Statements
from export.checkpoint.left_out import reject_left_out
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.errors import CheckpointError, NotConvertible
from export.front_end.interface import PartitionedModel
from export.front_end.recipe_layouts import is_derived, recipe_layouts, with_config_names
from export.graphs.functions import fill
from export.jax_models.functions import Calls, JaxFunctions, build_functions
from export.jax_models.parameters import StoredParameters
from export.jax_models.reference import JaxReference
from export.jax_models.specified_tables import SpecifiedTables
from export.recipe.schema import DERIVE, ExportJob
from export.tables.dumped import vectors_key
from export.tensorflow_models.model.tables import check_shape
from export.tensorflow_models.model.tracing import TracedModel, trace_towers


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
        built: list[JaxFunctions] = []

        def build(job: ExportJob, base: Path) -> Calls:
            built.append(build_functions(job, base))
            return Calls(built[-1])

        traced = trace_towers(job, base, inside, build)
        # Values do not matter before the checkpoint is read, and there is no memory without them.
        fill(variable for tower in traced.towers for variable in tower.variables)
        original = JaxModel(job, base, checkpoint, traced, built[-1])
        notes = (*traced.remarks, *_notes_on_batches(built[-1]))
        return PartitionedModel(
            traced.spec, traced.towers, original, traced.own_rows, traced.notes, notes
        )


@dataclass(frozen=True)
class JaxModel:
    """A traced model beside its checkpoint. Implements `OriginalModel`.

    Attributes:
      job, base: the recipe and its folder.
      checkpoint: its checkpoint.
      traced: the model without its tables.
      functions: what the factory returned.
    """

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    traced: TracedModel
    functions: JaxFunctions

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        """See OriginalModel.find_tables."""
        layouts = recipe_layouts(self.job, self.base)
        specified = self._specified(layouts)
        if is_derived(self.job) and specified is not None:
            layouts |= specified.to_derive()
        derived = {name for name, table in layouts.items() if table.kind == DERIVE}
        named = {}
        for name, facts in self.traced.spec.tables.items():
            stated = self._stated_key(name)
            if stated:
                named[name] = stated
            elif facts.config_name in derived:
                named |= {name: facts.config_name} if name != facts.config_name else {}
            elif specified is not None and facts.config_name in specified.specs.tables:
                if not specified.is_found(facts.config_name):
                    layouts[name] = specified.in_stack(facts.config_name)
                elif name != facts.config_name:
                    named[name] = facts.config_name
            elif name not in layouts:
                named[name] = self._stored_table(name, facts.config_name)
        mod = tuple(sorted(name for name, part in self.job.tables.items() if part.mod))
        known = with_config_names(trained, self.traced.spec.tables)
        inventory = recognise(self.checkpoint, Statements(named, mod, layouts), known)
        for name, facts in self.traced.spec.tables.items():
            check_shape(inventory, name, facts, "")
        return inventory

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """See OriginalModel.find_weights."""
        paths = {_path(variable): variable for variable in variables}
        keys = self._stored.find(paths)
        self._check_no_stack(keys.values())
        return [(paths[path], key) for path, key in keys.items()]

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """See OriginalModel.restore_weights."""
        for variable, key in self.find_weights(variables):
            variable.assign(self.checkpoint.read_all(key))
            if hasattr(variable, "restored"):
                variable.restored = True  # not a table, whatever its size

    def note_unmatched_weights(self, dense: Collection[str]) -> tuple[str, ...]:
        """See OriginalModel.note_unmatched_weights."""
        reject_left_out(self.checkpoint, self._stored.left_out(dense))
        unread = self._stored.unread(dense)
        if not unread:
            return ()
        entries = self.checkpoint.entries
        shown = ", ".join(f"{key} {list(entries[key].shape)}" for key in list(unread)[:5])
        more = f" and {len(unread) - 5} more" if len(unread) > 5 else ""
        return (
            f"checkpoint {self.checkpoint.name} also holds {shown}{more}, which the model code "
            "lacks; if they are needed for these outputs, the code is not the one that was trained",
        )

    def combine(self, config: Any, *_values: Any) -> Any:
        """See OriginalModel.combine: functions of JAX have no layers that combine."""
        raise NotConvertible(f"a function of JAX has no embedding layer {config!r}")

    def reference(self, _inventory: Inventory, _directory: Path) -> JaxReference:
        """See OriginalModel.reference."""
        fixed_batches = self.functions.fixed_batches
        return JaxReference(self.job, self.base, self._stored, self.traced.spec, fixed_batches)

    @property
    def _stored(self) -> StoredParameters:
        object_path = self.job.checkpoint.object_path
        return StoredParameters(self.functions, self.checkpoint, object_path)

    def _stated_key(self, name: str) -> str | None:
        """Returns the variable that the recipe states for a table; None: it states none."""
        part = self.job.tables.get(name)
        return vectors_key(self.checkpoint, name) or (part.key if part is not None else None)

    def _specified(self, layouts: Mapping[str, StatedTable]) -> SpecifiedTables | None:
        specs = self.functions.specs
        return None if specs is None else SpecifiedTables(specs, self.checkpoint, dict(layouts))

    def _check_no_stack(self, keys: Collection[str]) -> None:
        """Checks that no parameter is a stack: the rows of one are not in the order of ids.

        Raises:
          CheckpointError: one is.
        """
        for stack in recognise(self.checkpoint, Statements()).rejected:
            if stack.key in keys:
                raise CheckpointError(
                    f"parameter {stack.key!r} cannot be read as it is: {stack.reason}"
                )

    def _stored_table(self, name: str, path: str) -> str:
        """Returns the key of a table; the name that it is recognised by where it is in a stack."""
        key = self._stored.key(path)
        if key:
            return key
        known = recognise(self.checkpoint, Statements())
        if name in {table.name for table in known.tables}:
            return name
        return self._stored.find([path])[path]


def _notes_on_batches(functions: JaxFunctions) -> tuple[str, ...]:
    return tuple(
        f"{call} runs in a batch of {batch} examples, as feature_specs state, and in no other; its "
        "towers take any batch, since it computes each example from its own values. They are "
        "compared with the model in its own batch"
        for call, batch in functions.fixed_batches.items()
    )


def _path(variable: Any) -> str:
    return str(variable.name).partition(":")[0]
