"""The interface between "understand the user's model" and "copy, verify, write, publish".

    FrontEnd.find_variables     recipe, checkpoint -> how its variables are found
    FrontEnd.partition          recipe, checkpoint -> PartitionedModel
        .spec                   tables, features and towers, as plain data
        .towers                 activations and dense inputs -> outputs, as TensorFlow functions
        .original               OriginalModel: the user's model beside its checkpoint
            .find_tables        where the checkpoint stores each table
            .restore_weights    values of the towers' own variables
            .reference          ReferenceModel: the model as it was trained, run on examples

A front end understands one kind of training code. Everything else in the exporter imports this
package, and `export.front_end_choice` alone knows which front ends there are.

Towers are functions of TensorFlow whatever the training code is, since SavedModels and LiteRT are
written from them: a front end of another framework evaluates its computation as TensorFlow
operations, in a trace of its own. Their variables need not be the checkpoint's: `original` knows
which stored value belongs to each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import manifest
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.front_end.specs import ModelSpec, TowerSpec
from export.recipe.schema import ExportJob

Rows = NDArray[np.int64]
ReadRows = Callable[[str, Rows], NDArray[Any]]
"""(name of a table, [m] ascending rows) -> [m, columns] values of the checkpoint; the first columns
are the table's.
"""
Results = dict[str, dict[str, NDArray[Any]]]
"""Tower -> output -> [n, ...] float32."""


ComputeRows = Callable[[Mapping[str, NDArray[Any]], int], Rows]
"""(by input [n * size] values, n examples) -> [m] rows, -1 for ids to which the lookup gives none.
Raises whatever the model's framework raises for values that it does not compute.
"""


@dataclass(frozen=True)
class OwnRows:
    """The model's own operations between inputs and the rows that a feature looks up.

    Attributes:
      inputs: the inputs whose values they take; None: they depend on more than values, such as how
        many ids an example has.
      compute: runs them.
    """

    inputs: tuple[str, ...] | None
    compute: ComputeRows


@dataclass(frozen=True)
class TracedTower:
    """A tower as a function without lookups.

    Attributes:
      spec: its description.
      function: takes the tensors of `spec.inputs`, in their order; returns a dict by the names of
        `spec.outputs`. A pruned function of `tf.compat.v1.wrap_function`, since towers are divided
        and packed by pruning it again (`export.graphs.functions.narrowed`).
      variables: the dense variables that it reads, in the order of `spec.variables`; they need no
        value before `OriginalModel.restore_weights`.
      lines: the user's line that made the first operation of each type.
    """

    spec: TowerSpec
    function: Any
    variables: tuple[Any, ...]
    lines: Mapping[str, str] = field(default_factory=dict)

    def taking(self, inputs: tuple[manifest.TowerInput, ...]) -> Self:
        """Returns a copy with other input descriptions."""
        return replace(self, spec=replace(self.spec, inputs=inputs))


@dataclass(frozen=True)
class ReferenceInputs:
    """Examples as the original model takes them.

    Attributes:
      n: the number of examples.
      columns: by input of the recipe: ids by the model's own rules, rows where the recipe states
        the rule, keys where rows are found by key, numbers; weights are columns of their own.
      padding: what fills up dense inputs of ids, by input; others are filled up with zeros.
      read_rows: reads rows of the checkpoint's tables.
      keyed: tables whose rows are found by key: `read_rows` is given keys instead of rows.
    """

    n: int
    columns: Mapping[str, Column]
    padding: Mapping[str, int | str]
    read_rows: ReadRows
    keyed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReferenceRun:
    """What the original model gives for examples.

    Attributes:
      results: each output of each tower.
      expected_numbers: by input, the numbers that lie where training's did, as the model's own
        normalization layers tell; of inputs that no such layer takes there are none.
    """

    results: Results
    expected_numbers: Mapping[str, Column] = field(default_factory=dict)


class ReferenceModel(Protocol):
    """The model as it was trained: not partitioned, in the framework that trained it, on a CPU."""

    def run(
        self, model: ModelSpec, inputs: ReferenceInputs, expect_numbers: bool = False
    ) -> ReferenceRun:
        """Runs the calls of towers on examples.

        A table may be larger than memory, so rows are read when the model asks for them.

        Args:
          model: the towers that are run, with their features and tables.
          inputs: the examples.
          expect_numbers: whether to find the numbers that the model's normalization layers expect.

        Raises:
          NotConvertible: the model's code raises; names the user's line.
          CheckpointError: its weights cannot be read.
        """


class OriginalModel(Protocol):
    """The user's model beside its checkpoint."""

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        """Finds every table that a tower reads in the checkpoint.

        Args:
          trained: rows that training read, by the name of a table: layouts are derived from them
            and compared with them.

        Raises:
          NotConvertible: a table is missing or cannot be exported; says how to name it. Or trained
            rows contradict its layout.
          CheckpointError: a table has another shape in the checkpoint.
        """

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """Returns each variable of a tower with its key in the checkpoint; reads no value.

        Raises:
          CheckpointError: variables are missing or of another shape or dtype; names them.
        """

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """Assigns each variable of a tower its value; raises what `find_weights` does."""

    def note_unmatched_weights(self, dense: Collection[str]) -> tuple[str, ...]:
        """Returns a note if the checkpoint holds matrices that the model code lacks.

        Args:
          dense: keys of variables that are neither tables nor an optimizer's.

        Raises:
          CheckpointError: an object that the model has holds more variables in the checkpoint.
        """

    def combine(self, config: Any, ids: Any, weights: Any, vectors: Any) -> Any:
        """Combines vectors as the embedding layer of a feature does.

        Args:
          config: the `config` of the feature; only features that have one are combined so.
          ids: ragged, sparse or dense tensor; only its structure counts.
          weights: the same of the ids' weights; None: the feature has none.
          vectors: [m, dim] float32, one for each id.
        """

    def reference(self, inventory: Inventory, directory: Path) -> ReferenceModel:
        """Opens the model as it was trained.

        Args:
          inventory: what the checkpoint holds.
          directory: where files may be written that stand for a checkpoint in a store.
        """


@dataclass(frozen=True)
class PartitionedModel:
    """A model, partitioned at its lookups into tables, features and towers.

    Attributes:
      spec: its tables, features and towers.
      towers: in the recipe's order.
      original: the whole model beside its checkpoint.
      own_rows: by feature, the model's own operations between inputs and rows; a feature that is
        not there reads an input's values as they are, or by a rule that the model declares.
      stays: what stays inside towers, such as tables, and why.
      notes: what else the user should know.
    """

    spec: ModelSpec
    towers: tuple[TracedTower, ...]
    original: OriginalModel
    own_rows: Mapping[str, OwnRows] = field(default_factory=dict)
    stays: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class FrontEnd(Protocol):
    """Understands one kind of training code."""

    def find_variables(
        self, job: ExportJob, checkpoint: Checkpoint
    ) -> tuple[ExportJob, Checkpoint]:
        """Returns a recipe that states how variables are found in its checkpoint, and the
        checkpoint as it is read so.

        Args:
          job: the recipe.
          checkpoint: its checkpoint, which a front end knows its training code by.

        Raises:
          CheckpointError: it lacks what the recipe requests.
        """

    def partition(
        self, job: ExportJob, base: Path, checkpoint: Checkpoint, inside: bool = False
    ) -> PartitionedModel:
        """Builds the recipe's model and partitions it; allocates no table.

        Args:
          job: the recipe, as `find_variables` returned it.
          base: its folder.
          checkpoint: its checkpoint.
          inside: whether tables that only plain gathers read stay in the towers, whatever their
            size.

        Raises:
          UsageError: the recipe names a call, input, output or factory that is not there.
          NotConvertible: the model cannot be partitioned as it is; names the feature, table or
            operation, and the cure.
        """
