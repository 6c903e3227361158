"""The proof of a written SavedModel: its results are compared with those of the original model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format import manifest
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import UsageError, VerificationFailed
from export.front_end.interface import (
    PartitionedModel,
    ReferenceInputs,
    ReferenceRun,
    TracedTower,
)
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts
from export.graphs.loading import load_tensorflow, tf
from export.saved_model.files import VariablesPlan, plan_variables, write_variables
from export.saved_model.graph import InlineGraph, build_graph, variable_key, write_graph
from export.saved_model.proofs import prove
from export.tables.plan import BUDGET_BYTES
from export.tables.segments import carry_out
from tests.id_graphs import hash_ids
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import recipe

load_tensorflow()
ROWS = np.array([[10 * row + 1, 10 * row + 2] for row in range(5)], np.float32)
KEY = variable_key("table_0")
WEIGHT = 3.0
INPUTS = {
    "user": {"dtype": "int64"},
    "tag": {"dtype": "int64", "kind": "ragged"},
    "weight": {"dtype": "float32", "kind": "ragged", "weights_for": "tag"},
    "age": {"dtype": "float32"},
}
EXAMPLES: list[dict[str, Any]] = [
    {"user": 1, "tag": [0, 2], "weight": [0.5, 2.0], "age": 0.25},
    {"user": 4, "tag": [], "weight": [], "age": 1.5},
]
SCORES = [
    (11 + 12) + 0.5 * (1 + 2) + 2 * (21 + 22) + 3 * 0.25,
    (41 + 42) + 3 * 1.5,
]


@dataclass
class Model:
    """Stands for the original model: gives recorded scores, and notes what it was called with."""

    scores: list[float]
    called: list[ReferenceInputs] = field(default_factory=list)

    def reference(self, _inventory: Any, _directory: Path) -> Model:
        return self

    def run(
        self, _model: ModelSpec, inputs: ReferenceInputs, *_options: bool, **_by_name: bool
    ) -> ReferenceRun:
        self.called.append(inputs)
        return ReferenceRun({"tower": {"score": np.array(self.scores, np.float32)}})

    def restore_weights(self, variables: Iterable[Any]) -> None:
        for variable in variables:
            variable.assign(tf.fill(variable.shape, WEIGHT))


def score_tower() -> TracedTower:
    factor = tf.Variable([0.0], name="factor")

    def call(activations: Mapping[str, Any]) -> dict[str, Any]:
        total = tf.reduce_sum(activations["user"] + activations["tag"], 1)
        return {"score": total + activations["age"] * factor[0]}

    return tower_of(trace(call, user=numbers(2), tag=numbers(2), age=numbers()))


@dataclass(frozen=True)
class Written:
    """A SavedModel as it was written, and what it was written from."""

    directory: Path
    base: Path
    graph: InlineGraph
    plan: VariablesPlan
    checkpoint: Checkpoint
    model: Model

    def proved(self, **changes: Any) -> dict[str, Any]:
        inventory = recognize(self.checkpoint, Statements(named={"users": "users"}))
        plan = changes.pop("plan", self.plan)
        return prove(
            self.directory, self.graph, self.base, self.checkpoint, inventory, plan, **changes
        )

    def beyond_memory(self) -> VariablesPlan:
        """Returns the plan as if the table were larger than the memory of any machine."""
        (part,) = self.plan.large[KEY].slices
        huge = self.plan.large[KEY]._replace(slices=(part._replace(bytes=1 << 60),))
        return replace(self.plan, large={KEY: huge})


def write(
    folder: Path,
    examples: list[dict[str, Any]],
    scores: list[float],
    user: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Written:
    """Writes a SavedModel of one tower; `user` is the recipe's part of the feature `user`."""
    write_bundle(folder / "ckpt-1", {"users": ROWS, "factor": np.array([WEIGHT], np.float32)})
    (folder / "examples.jsonl").write_text(
        "".join(f"{json.dumps(example)}\n" for example in examples)
    )
    checkpoint = open_checkpoint(folder / "ckpt-1")
    tower = score_tower()
    part = dict(user or {})
    entry: dict[str, Any] = {key: part[key] for key in ("unknown", "default") if key in part}
    unknown = manifest.Unknown.model_validate(entry.pop("unknown", {}))
    user_spec = embedded("user", "users")
    described = user_spec.entry.model_copy(update={**entry, "unknown": unknown})
    if part.get("ids", {}).get("kind") == "hash":
        described = described.model_copy(update={"ids": hash_ids(5)})
    specs: dict[str, FeatureSpec | DenseSpec] = {
        "user": user_spec,
        "tag": embedded("tag", "users", "weight", kind="bag", combiner="sum", encoding="ragged"),
        "age": dense("age", "float32", ()),
    }
    facts = {"users": TableFacts("users", "users", 5, 2)}
    model = ModelSpec(facts, specs, {"tower": tower.spec})
    job = recipe(
        "model.py:build",
        {**INPUTS, "user": {"dtype": "int64"}},
        {"tower": {"role": "ranking", **sections}},
        {"features": {"user": part}, "verify": {"examples": "examples.jsonl"}},
    )
    original = Model(scores)
    traced = PartitionedModel(model, (tower,), original)  # type: ignore[arg-type]
    entries: dict[str, manifest.Feature] = {name: spec.entry for name, spec in specs.items()}
    entries["user"] = described
    tables = {"users": recognize(checkpoint, Statements(named={"users": "users"})).table("users")}
    graph = build_graph(job, folder, traced, entries, tables)
    directory = folder / "saved_model"
    objects = write_graph(graph, directory)
    plan = plan_variables(directory, {KEY: checkpoint.entries["users"]}, BUDGET_BYTES, link=False)
    plan.written_file.parent.mkdir(exist_ok=True)
    plan.written_file.touch()
    receipts = [carry_out(task) for task in plan.tasks]
    small = {variable_key("weight_0"): "factor"}
    write_variables(plan, checkpoint, small, objects, receipts)
    return Written(directory, folder, graph, plan, checkpoint, original)


def without(*inputs: str) -> list[dict[str, Any]]:
    return [{key: example[key] for key in example if key not in inputs} for example in EXAMPLES]


SHIFTED = [SCORES[0] - (11 + 12) + (31 + 32), SCORES[1] - (41 + 42) + (31 + 32)]
"""The scores of examples whose user is row 3."""


@pytest.mark.parametrize(
    ("examples", "scores", "user"),
    [
        (EXAMPLES, SCORES, {}),
        (without("user"), SHIFTED, {"default": 3}),
        ([{**example, "user": []} for example in EXAMPLES], SHIFTED, {"default": 3}),
        (without("weight"), [SCORES[0] + 0.5 * (1 + 2) - (21 + 22), SCORES[1]], {}),
    ],
    ids=["whole", "without an input", "an empty input", "without weights"],
)
def test_answers_are_held_to_the_original_model(
    tmp_path: Path, examples: list[dict[str, Any]], scores: list[float], user: dict[str, Any]
) -> None:
    written = write(tmp_path, examples, scores, user)
    # Where memory is short, the rows of the examples alone are read.
    proof = written.proved(plan=written.beyond_memory())
    assert (proof["proved"], proof["examples"], proof["loaded_by"]) == (True, 2, [])
    assert proof["max_abs_error"] == {"tower": {"score": 0.0}}
    assert str(1 << 60)[:6] in proof["note"]
    if user or scores != SCORES:
        return
    proof = written.proved()
    assert (proof["proved"], proof["note"]) == (True, "")
    assert proof["loaded_by"] == ["tf.saved_model.load", "tf.compat.v1.saved_model.load"]
    assert proof["max_abs_error"] == {"tower": {"score": 0.0}}


def test_answer_or_row_that_differs_is_rejected(tmp_path: Path) -> None:
    written = write(tmp_path / "answer", EXAMPLES, [SCORES[0], SCORES[1] + 0.01])
    with pytest.raises(VerificationFailed, match="signature 'tower', output 'score'"):
        written.proved()
    written = write(tmp_path / "row", EXAMPLES, SCORES)
    with written.plan.written_file.open("r+b") as file:
        file.seek(1 * 8)
        file.write(np.array([12.0], np.float32).tobytes())
    with pytest.raises(VerificationFailed, match="example 0 is "):
        written.proved(plan=written.beyond_memory())


def test_id_of_another_dtype_than_the_signature_takes_is_rejected(tmp_path: Path) -> None:
    examples = [{**example, "user": f"user {example['user']}"} for example in EXAMPLES]
    written = write(tmp_path, examples, SCORES, {"ids": {"kind": "hash"}})
    with pytest.raises(UsageError, match=r"feature 'user': .*features\.user\.ids\.dtype"):
        written.proved(plan=written.beyond_memory())
