"""A second front end, written by hand: its model is a function of NumPy arrays, as a model of JAX
would be, and its tower is evaluated as TensorFlow operations in a trace of its own. Everything else
of the exporter is as it is for TensorFlow's models.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from bundle.format import manifest
from bundle.storage.catalog import read_manifest
from export import front_end_choice
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory, Statements
from export.checkpoint.reader import Checkpoint
from export.checkpoint.trained_rows import NO_ROWS, TrainedRows
from export.errors import VerificationFailed
from export.front_end.calls import Call
from export.front_end.interface import (
    PartitionedModel,
    ReferenceInputs,
    ReferenceModel,
    ReferenceRun,
    TracedTower,
)
from export.front_end.specs import ModelSpec, TableFacts, TowerSpec
from export.graphs.functions import narrowed
from export.graphs.loading import tf
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from runtime.towers import open_tower
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.traced_features import dense, embedded

USERS = 50
DIM = 4
OUT = 3
RANDOM = np.random.default_rng(8)
VALUES = {
    "params.users": RANDOM.normal(size=(USERS, DIM)).astype(np.float32),
    "params.kernel": RANDOM.normal(size=(DIM + 1, OUT)).astype(np.float32),
}
SPEC = ModelSpec(
    {"users": TableFacts("users", "params.users", USERS, DIM)},
    {"user": embedded("user", "users"), "age": dense("age", "float32", ())},
    {
        "query": TowerSpec(
            name="query",
            role="query",
            call=Call("query", ("user", "age")),
            paths={"result": ()},
            inputs=(
                manifest.TowerInput(
                    name="user", feature="user", dtype="float32", shape=(None, DIM)
                ),
                manifest.TowerInput(name="age", feature="age", dtype="float32", shape=(None,)),
            ),
            outputs=(manifest.TowerOutput(name="result", dtype="float32", shape=(None, OUT)),),
            result="result",
            variables=("params.kernel",),
        )
    },
)


def query(
    rows: NDArray[np.float32], ages: NDArray[np.float32], kernel: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The model as its author wrote it."""
    return np.tanh(np.concatenate([rows, ages[:, np.newaxis]], axis=1) @ kernel)


def trace_query() -> TracedTower:
    with tf.init_scope():
        kernel = tf.Variable(tf.zeros([DIM + 1, OUT]), name="params.kernel")

    def evaluated(user: Any, age: Any) -> Any:
        return tf.tanh(tf.concat([user, age[:, tf.newaxis]], 1) @ kernel)

    specs = [tf.TensorSpec([None, DIM]), tf.TensorSpec([None])]
    whole = tf.compat.v1.wrap_function(evaluated, specs)
    inputs = whole.graph.inputs[:2]
    function, variables = narrowed("query", whole, inputs, {"result": whole.outputs[0]})
    return TracedTower(SPEC.towers["query"], function, variables)


class NumpyReference:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._kernel = checkpoint.read_all("params.kernel")

    def with_recipe(self, _job: ExportJob) -> Self:
        return self

    def run(
        self, model: ModelSpec, inputs: ReferenceInputs, *_options: bool, **_by_name: bool
    ) -> ReferenceRun:
        assert list(model.towers) == ["query"]
        ids = inputs.columns["user"].values
        is_row = (ids >= 0) & (ids < model.tables["users"].rows)
        rows, positions = np.unique(np.where(is_row, ids, 0), return_inverse=True)
        vectors = inputs.read_rows("users", rows)[positions] * is_row[:, np.newaxis]
        ages = inputs.columns["age"].values
        return ReferenceRun({"query": {"result": query(vectors, ages, self._kernel)}})


@dataclass(frozen=True)
class NumpyModel:
    checkpoint: Checkpoint

    def find_tables(self, trained: Mapping[str, TrainedRows] = NO_ROWS) -> Inventory:
        return recognize(self.checkpoint, Statements(named={"users": "params.users"}), trained)

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        return [(variable, variable.name.partition(":")[0]) for variable in variables]

    def restore_weights(self, variables: Iterable[Any]) -> None:
        for variable, key in self.find_weights(variables):
            variable.assign(self.checkpoint.read_all(key))

    def note_unmatched_weights(self, _dense: Collection[str]) -> tuple[str, ...]:
        return ()

    def combine(self, config: Any, ids: Any, weights: Any, vectors: Any) -> Any:
        raise AssertionError(f"no feature of this model has a layer: {config}")

    def reference(self, _inventory: Inventory, _directory: Path) -> ReferenceModel:
        return NumpyReference(self.checkpoint)


class NumpyFrontEnd:
    def find_variables(
        self, job: ExportJob, checkpoint: Checkpoint
    ) -> tuple[ExportJob, Checkpoint]:
        return job, checkpoint

    def partition(
        self, _job: ExportJob, _base: Path, checkpoint: Checkpoint, inside: bool = False
    ) -> PartitionedModel:
        del inside  # its one table always leaves the tower
        return PartitionedModel(SPEC, (trace_query(),), NumpyModel(checkpoint))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExportJob:
    monkeypatch.setattr(front_end_choice, "front_end_of", lambda _job, _base: NumpyFrontEnd())
    write_bundle(tmp_path / "ckpt-1", VALUES)
    return ExportJob.model_validate(
        {
            "model": "users",
            "checkpoint": {"path": "ckpt-1"},
            "code": {"factory": "model.py:build"},
            "output": {"root": "bundles"},
            "inputs": {"user": {"dtype": "int64"}, "age": {"dtype": "float32"}},
            "towers": {"query": {"role": "query", "call": "query"}},
        }
    )


def test_bundle_of_another_front_end_answers_as_its_model_does(
    job: ExportJob, tmp_path: Path
) -> None:
    prepared = bundle_job.prepare(job, tmp_path, ExportSettings())
    published = bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))

    bundle = tmp_path / "bundles" / "users" / "1"
    written = read_manifest(bundle)
    assert written.verification.tables["users"].rows == USERS
    assert {form.kind for form in written.towers["query"].forms} == {"saved_model", "litert"}
    rows = VALUES["params.users"][[7, 49]]
    ages = np.array([0.5, -2], np.float32)
    for form in written.towers["query"].forms:
        tower = written.towers["query"].model_copy(update={"forms": (form,)})
        actual = open_tower(bundle, tower, "f32").run({"user": rows, "age": ages})["result"]
        np.testing.assert_allclose(actual, query(rows, ages, VALUES["params.kernel"]), rtol=1e-5)
    assert published.manifest == written


def test_self_contained_saved_model_of_another_front_end_is_proved(
    job: ExportJob, tmp_path: Path
) -> None:
    inline = job.output.model_copy(update={"tables": "inline"})
    prepared = prepare_inline(job.model_copy(update={"output": inline}), tmp_path, ExportSettings())
    report = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
    assert report["verification"]["proved"]
    loaded = tf.saved_model.load(report["saved_model"]).signatures["query"]
    actual = loaded(user=tf.constant([7], tf.int64), age=tf.constant([0.5]))["result"]
    rows = VALUES["params.users"][[7]]
    ages = np.array([0.5], np.float32)
    np.testing.assert_allclose(actual, query(rows, ages, VALUES["params.kernel"]), rtol=1e-5)


def test_tower_that_is_not_the_front_ends_model_is_not_published(
    job: ExportJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NumpyReference, "run", _run_of_another_model)
    prepared = bundle_job.prepare(job, tmp_path, ExportSettings())
    with pytest.raises(VerificationFailed, match="tower 'query'"):
        bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    assert not (tmp_path / "bundles" / "users" / "1").exists()
    shutil.rmtree(tmp_path / "bundles")


def _run_of_another_model(
    _self: NumpyReference, _model: ModelSpec, inputs: ReferenceInputs, _expect: bool = False
) -> ReferenceRun:
    return ReferenceRun({"query": {"result": np.ones((inputs.n, OUT), np.float32)}})
