"""A front end of perceptrons that a dictionary describes, as one of another framework would be:

    {"tables": {"user": "users"}, "numbers": ["hour"], "layers": ["hidden", "scores"]}

The rows of ids and numbers are joined, in the order of the dictionary, and pass through the layers.
A checkpoint of TensorFlow holds `users`, and `hidden_weights` and `hidden_bias` of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory, Statements
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.front_end.calls import Call
from export.front_end.interface import (
    CallResults,
    OfferedCall,
    PartitionedModel,
    ReferenceInputs,
    ReferenceRun,
)
from export.front_end.specs import ModelSpec
from export.front_end.table_shapes import check_shapes
from export.front_end_choice import Choice
from export.graphs.loading import tf
from export.graphs.placeholders import without_memory
from export.model_code.factories import factory_of
from export.partition.reference_inputs import dense_input, read_rows
from export.partition.traceable_model import TraceableModel
from export.partition.tracing import trace_towers
from export.recipe.schema import ExportJob, InputSection


def key_of(name: str) -> str:
    return f"{name}/.ATTRIBUTES/VARIABLE_VALUE"


@dataclass(frozen=True)
class Perceptron(TraceableModel):
    """The model in TensorFlow's operations, which become its tower."""

    tables: Mapping[str, str]
    numbers: tuple[str, ...]
    layers: tuple[str, ...]
    variables: Mapping[str, Any]
    has_initial_values = False

    @classmethod
    def described(cls, job: ExportJob, base: Path, checkpoint: Checkpoint) -> Self:
        page = factory_of(job, base)()
        layers = tuple(page["layers"])
        parts = [f"{layer}_{part}" for layer in layers for part in ("weights", "bias")]
        variables = {}
        for name in (*page["tables"].values(), *parts):
            shape = tf.TensorShape(checkpoint.entries[key_of(name)].shape)
            variables[name] = without_memory(name, shape, tf.float32, True)
        return cls(page["tables"], tuple(page["numbers"]), layers, variables)

    def function(self, call: Call) -> Callable[[Mapping[str, Any]], Any]:
        def run(inputs: Mapping[str, Any]) -> Any:
            parts = [
                tf.gather(self.variables[table], inputs[name])
                for name, table in self.tables.items()
            ]
            parts += [inputs[name][:, None] for name in self.numbers]
            values = tf.concat(parts, 1)
            for layer in self.layers:
                weights = self.variables[f"{layer}_weights"]
                values = tf.nn.relu(values @ weights + self.variables[f"{layer}_bias"])
            return values

        return run


class PerceptronFrontEnd:
    """Implements `FrontEnd`."""

    def find_variables(
        self, job: ExportJob, checkpoint: Checkpoint
    ) -> tuple[ExportJob, Checkpoint]:
        return job, checkpoint

    def partition(
        self, job: ExportJob, base: Path, checkpoint: Checkpoint, inside: bool = False
    ) -> PartitionedModel:
        model = Perceptron.described(job, base, checkpoint)
        traced = trace_towers(job, base, model, inside)
        original = OriginalPerceptron(job, checkpoint, model, traced.spec)
        return PartitionedModel(traced.spec, traced.towers, original, traced.own_rows)

    def offered_calls(self, job: ExportJob, base: Path) -> Iterable[OfferedCall]:
        page = factory_of(job, base)()
        ids = dict.fromkeys(page["tables"], InputSection(dtype="int64"))
        return [
            OfferedCall("", ids | dict.fromkeys(page["numbers"], InputSection(dtype="float32")))
        ]

    def call_results(
        self, job: ExportJob, base: Path, call: Call, inputs: Mapping[str, InputSection]
    ) -> CallResults:
        raise NotImplementedError


@dataclass(frozen=True)
class OriginalPerceptron:
    """The model beside its checkpoint. Implements `OriginalModel` and `ReferenceModel`."""

    job: ExportJob
    checkpoint: Checkpoint
    model: Perceptron
    spec: ModelSpec

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        keys = {name: key_of(name) for name in self.spec.tables}
        inventory = recognize(self.checkpoint, Statements(keys), trained)
        check_shapes(inventory, self.spec.tables)
        return inventory

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        return [(variable, key_of(variable.name.partition(":")[0])) for variable in variables]

    def restore_weights(self, variables: Iterable[Any]) -> None:
        for variable, key in self.find_weights(variables):
            variable.assign(self.checkpoint.read_all(key))

    def note_unmatched_weights(self, _dense: Collection[str]) -> tuple[str, ...]:
        return ()

    def reference(self, _inventory: Inventory, _directory: Path) -> Self:
        return self

    def with_recipe(self, job: ExportJob) -> Self:
        return replace(self, job=job)

    def run(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        expect_numbers: bool = False,
        as_written: bool = False,
    ) -> ReferenceRun:
        """Computes the scores in NumPy."""
        parts = []
        for name, table in self.model.tables.items():
            ids = dense_input(name, self.job, inputs)
            parts.append(read_rows(model.tables[table], ids, inputs))
        numbers = (dense_input(name, self.job, inputs) for name in self.model.numbers)
        parts += [values[:, None] for values in numbers]

        def read(name: str) -> NDArray[Any]:
            return self.checkpoint.read_all(key_of(name))

        scores = scores_of(parts, self.model.layers, read)
        return ReferenceRun({name: {"result": scores} for name in model.towers})


def scores_of(
    parts: Iterable[NDArray[Any]], layers: Iterable[str], read: Callable[[str], NDArray[Any]]
) -> NDArray[np.float32]:
    """Returns [n, 1]: what a perceptron computes of its inputs, [n, size] each."""
    values = np.concatenate(list(parts), 1)
    for layer in layers:
        values = np.maximum(values @ read(f"{layer}_weights") + read(f"{layer}_bias"), 0)
    return values.astype(np.float32)


PERCEPTRONS = Choice(
    lambda _location, job, _base: job.code.factory == "perceptron.py:describe", PerceptronFrontEnd
)
