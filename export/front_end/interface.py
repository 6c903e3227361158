"""The interface between "understand the user's model" and "copy, verify, write, publish".

    FrontEnd.find_variables     recipe, checkpoint -> how its variables are found
    FrontEnd.offered_calls      recipe -> what of its model could be towers, for drafts of recipes
    FrontEnd.call_results       recipe, a call, its inputs -> what could be outputs of a tower
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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import manifest
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.front_end.calls import Call
from export.front_end.specs import ModelSpec, TowerSpec
from export.recipe.schema import ExportJob, InputSection

Rows = NDArray[np.int64]
ReadRows = Callable[[str, Rows], NDArray[Any]]
"""(name of a table, [m] ascending rows) -> [m, columns] values of the checkpoint; the first columns
are the table's.
"""
Results = dict[str, dict[str, NDArray[Any]]]
"""Tower -> output -> [n, ...] float32."""


ComputeRows = Callable[[Mapping[str, NDArray[Any]], int], Rows]
"""([n * size] values by input, n examples) -> [m] rows, -1 for ids to which the lookup gives none.
Raises whatever the model's framework raises for values that it does not compute.
"""


Combine = Callable[[Any, Any, Any, Any], Any]
"""(the `config` of a feature; its ids, a ragged, sparse or dense tensor of which only the structure
counts; their weights, a tensor of the same structure, or None; [m, dim] float32 vectors, one for
each id) -> the combined vectors.
"""


@dataclass(frozen=True)
class OwnRows:
    """The model's own operations between inputs and the rows that a feature looks up.

    Attributes:
      inputs: The inputs whose values the operations read; None if they depend on more than values,
        such as the number of ids of an example.
      compute: A function that runs the operations.
      line: The user's line of the lookup.
    """

    inputs: tuple[str, ...] | None
    compute: ComputeRows
    line: str = ""


class Trainer(Protocol):
    """The framework that trained a model whose towers are TensorFlow's, or may have trained it.

    Attributes:
      framework: The framework's name.
      has_int64: Whether it computes integers of 64 bits as such.
    """

    @property
    def framework(self) -> str: ...  # noqa: D102

    @property
    def has_int64(self) -> bool: ...  # noqa: D102

    @property
    def is_stated(self) -> bool:
        """Whether it is known to have trained the model. Otherwise the recipe must say so
        where its rows are not TensorFlow's.
        """

    def lookups(self) -> Mapping[str, Sequence[OwnRows]] | None:
        """Returns what computes the rows of each lookup, by the `config_name` of its table.

        Lookups whose ids depend on more than inputs are left out. None: the framework does not run
        the model, so that it has not trained it.

        Raises:
          NotConvertible: The framework cannot be run; the message says why.
        """


@dataclass(frozen=True)
class TracedTower:
    """A tower as a function without lookups.

    Attributes:
      spec: The tower's description.
      function: A function of the tensors of `spec.inputs`, in their order, that returns a
        dictionary by the names of `spec.outputs`. It is a pruned function of
        `tf.compat.v1.wrap_function`, since towers are divided and packed by pruning it again
        (`export.graphs.functions.narrowed`).
      variables: The dense variables that the tower reads, in the order of `spec.variables`; they
        need no value before `OriginalModel.restore_weights`.
      lines: The user's line that made the first operation of each type.
    """

    spec: TowerSpec
    function: Any
    variables: tuple[Any, ...]
    lines: Mapping[str, str] = field(default_factory=dict)

    def taking(self, inputs: tuple[manifest.TowerInput, ...]) -> Self:
        """Returns a copy with these input descriptions."""
        return replace(self, spec=replace(self.spec, inputs=inputs))


@dataclass(frozen=True)
class ReferenceInputs:
    """Examples in the form that the original model reads.

    Attributes:
      n: The number of examples.
      columns: Columns by input of the recipe: ids by the model's own rules, rows where the recipe
        states the rule, keys where rows are found by key, or numbers. Weights are columns of their
        own.
      padding: The padding of dense inputs of ids, by input; zeros pad all other inputs.
      read_rows: A function that reads rows of the checkpoint's tables.
      keyed: Tables whose rows are found by key: `read_rows` gets keys instead of rows.
    """

    n: int
    columns: Mapping[str, Column]
    padding: Mapping[str, int | str]
    read_rows: ReadRows
    keyed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReferenceRun:
    """Results of the original model for examples.

    Attributes:
      results: The outputs of the towers.
      expected_numbers: Numbers by input that lie where training's did, according to the model's own
        normalization layers; inputs that no such layer reads are left out.
    """

    results: Results
    expected_numbers: Mapping[str, Column] = field(default_factory=dict)


class ReferenceModel(Protocol):
    """The model as it was trained: not partitioned, in the framework that trained it, on a CPU."""

    def run(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        expect_numbers: bool = False,
        as_written: bool = False,
    ) -> ReferenceRun:
        """Runs the calls of towers on examples.

        A table may be larger than memory, so rows are read when the model asks for them.

        Args:
          model: The towers that are run, with their features and tables.
          inputs: The examples.
          expect_numbers: Whether to find the numbers that the model's normalization layers expect.
          as_written: Whether results are NaN where the model's code gives NaN and a bundle numbers.

        Raises:
          NotConvertible: The model's code raises an error; the message names the user's line.
          CheckpointError: The model's weights cannot be read.
        """

    def with_recipe(self, job: ExportJob) -> Self:
        """Returns the model as the model code of another recipe builds it."""


@dataclass(frozen=True)
class ComparedOperation:
    """An operation of a model in the framework that trained it, beside its counterpart in a tower.

    Attributes:
      name: Its name.
      line: The user's line; "": it is not known.
      operand: Its first operand; None: it has none.
      trained: Its result in the framework that trained.
      served: Its result in the tower.
    """

    name: str
    line: str
    operand: NDArray[Any] | None
    trained: NDArray[Any]
    served: NDArray[Any]


@runtime_checkable
class ForeignModel(ReferenceModel, Protocol):
    """A model that another framework trained than TensorFlow, which computes the towers."""

    @property
    def framework(self) -> str:
        """The framework's name."""

    def operations(self, tower: TowerSpec, inputs: ReferenceInputs) -> Iterator[ComparedOperation]:
        """Yields the operations of a tower's call on examples, each beside its counterpart."""


class OriginalModel(Protocol):
    """The user's model beside its checkpoint."""

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        """Finds every table that a tower reads in the checkpoint.

        Args:
          trained: Rows that training read, by the name of a table: layouts are derived from them
            and compared with them.

        Raises:
          NotConvertible: A table is missing or cannot be exported; the message says how to name it.
            Or trained rows contradict its layout.
          CheckpointError: A table has another shape in the checkpoint.
        """

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """Returns each variable of a tower with its key in the checkpoint; reads no value.

        Raises:
          CheckpointError: Variables are missing or have another shape or dtype; the message names
            them.
        """

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """Assigns each variable of a tower its value.

        Raises:
          CheckpointError: As `find_weights`.
        """

    def note_unmatched_weights(self, dense: Collection[str]) -> tuple[str, ...]:
        """Returns a note if the checkpoint holds matrices that the model code lacks.

        Args:
          dense: Keys of variables that are neither tables nor an optimizer's.

        Raises:
          CheckpointError: An object that the model has holds more variables in the checkpoint.
        """

    def reference(self, inventory: Inventory, directory: Path) -> ReferenceModel:
        """Opens the model as it was trained.

        Args:
          inventory: The inventory of the checkpoint.
          directory: A directory for files that stand for a checkpoint in a store.
        """


@dataclass(frozen=True)
class PartitionedModel:
    """A model, partitioned at its lookups into tables, features and towers.

    Attributes:
      spec: The model's tables, features and towers.
      towers: The towers in the recipe's order.
      original: The whole model, together with its checkpoint.
      own_rows: The model's own operations between inputs and rows, by feature; a feature that is
        left out reads an input's values as they are, or by a rule that the model declares.
      trainer: The framework that trained the model, where that is another one than computes the
        towers.
      stays: Descriptions of what stays inside towers, such as tables, with the reasons.
      notes: Notes on anything else that the user should know.
      combine: Combines vectors as the embedding layer of a feature does; None: no feature has a
        `config`, by which it knows the layer.
    """

    spec: ModelSpec
    towers: tuple[TracedTower, ...]
    original: OriginalModel
    own_rows: Mapping[str, OwnRows] = field(default_factory=dict)
    trainer: Trainer | None = None
    stays: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    combine: Combine | None = None


@dataclass(frozen=True)
class OfferedCall:
    """A call that a model offers, before a recipe states which of them are towers.

    Attributes:
      path: The attribute path of the function; "" is the model itself.
      inputs: The inputs that the model states for it; {}: it states none.
      open_inputs: Those of the inputs whose length the model leaves open.
      parameters: The names of the parameters that the function needs; (): they are not known.
      takes_arrays: Whether it takes arrays alone, as JAX has them.
      bags: The inputs whose ids are looked up before the call, so that it takes activations.
      is_method: Whether it may be no more than a part of another call.
    """

    path: str = ""
    inputs: Mapping[str, InputSection] = field(default_factory=dict)
    open_inputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    takes_arrays: bool = False
    bags: tuple[str, ...] = ()
    is_method: bool = False


@dataclass(frozen=True)
class CallResults:
    """The results of a call that could be outputs of a tower: dense floats.

    Attributes:
      outputs: The shape of each result without the batch, by its key or position; by None where the
        result is one tensor.
      reads: The names of the inputs that each result is computed from.
      ids: The names of the inputs that lookups in tables read.
      rows: The inputs whose values are rows of a table as they are, with its number of rows; that
        of the smallest one where several tables are read.
      has_queries: Whether a retrieval layer in it compares vectors of queries.
      parts: Calls of attributes of the model that take inputs of the call as they are.
    """

    outputs: Mapping[str | int | None, tuple[int | None, ...]]
    reads: Mapping[str | int | None, frozenset[str]]
    ids: frozenset[str]
    rows: Mapping[str, int]
    has_queries: bool
    parts: tuple[Call, ...] = ()


class FrontEnd(Protocol):
    """Understands one kind of training code."""

    def find_variables(
        self, job: ExportJob, checkpoint: Checkpoint
    ) -> tuple[ExportJob, Checkpoint]:
        """Returns a recipe that states how variables are found in its checkpoint, and the
        checkpoint as it is read so.

        Args:
          job: The recipe.
          checkpoint: Its checkpoint, by which a front end recognizes its training code.

        Raises:
          CheckpointError: The checkpoint lacks what the recipe requests.
        """

    def partition(
        self, job: ExportJob, base: Path, checkpoint: Checkpoint, inside: bool = False
    ) -> PartitionedModel:
        """Builds the recipe's model and partitions it; allocates no table.

        Args:
          job: The recipe, as `find_variables` returned it.
          base: The recipe's folder.
          checkpoint: The recipe's checkpoint.
          inside: Whether tables that only plain gathers read stay in the towers, whatever their
            size.

        Raises:
          UsageError: The recipe names a call, input, output or factory that does not exist.
          NotConvertible: The model cannot be partitioned as it is; the message names the feature,
            table or operation, and the cure.
        """

    def offered_calls(self, job: ExportJob, base: Path) -> Iterable[OfferedCall]:
        """Returns the calls that a recipe's model offers; the recipe needs no inputs and towers.

        Raises:
          UsageError: There is no such factory.
          NotConvertible: The model cannot be built.
        """

    def call_results(
        self, job: ExportJob, base: Path, call: Call, inputs: Mapping[str, InputSection]
    ) -> CallResults:
        """Builds a recipe's model, and traces a call that no tower of the recipe needs to make.

        Args:
          job, base: The recipe and its folder.
          call: The call.
          inputs: The inputs of the call.

        Raises:
          ExportError: The call cannot be run with these inputs.
        """
