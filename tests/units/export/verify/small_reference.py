"""A recipe and the features of a model of two tables and a number, which was not traced."""

from __future__ import annotations

from typing import Any

from bundle.format import manifest
from export.front_end.calls import Call
from export.front_end.specs import DenseSpec, FeatureSpec, TowerSpec
from export.recipe.schema import ExportJob
from tests.units.export.traced_features import dense, embedded

ROWS = 10
INPUTS: dict[str, Any] = {
    "user": {"dtype": "int64"},
    "seen": {"dtype": "int64", "kind": "ragged"},
    "seen_weights": {"dtype": "float32", "kind": "ragged", "weights_for": "seen"},
    "age": {"dtype": "float32"},
    "unread": {"dtype": "float32", "shape": [2, 3]},
    "unread_ids": {"dtype": "int64", "kind": "ragged"},
}
USER = embedded("user", "users")
SEEN = embedded(
    "seen", "movies", kind="bag", encoding="ragged", combiner="sum", weights="seen_weights"
)
AGE = dense("age", "float32", ())


def job_of(**sections: Any) -> ExportJob:
    page: dict[str, Any] = {
        "model": "small",
        "checkpoint": {"path": "ckpt"},
        "code": {"factory": "model.py:build"},
        "inputs": INPUTS,
        "towers": {"first": {"role": "query"}, "second": {"role": "query"}},
        "output": {"root": "bundles"},
    }
    return ExportJob.model_validate(page | sections)


def tower(name: str, specs: tuple[FeatureSpec | DenseSpec, ...]) -> TowerSpec:
    """Returns a tower that reads features."""
    inputs = tuple(
        manifest.TowerInput(name=spec.name, feature=spec.name, dtype="float32", shape=(None, 2))
        for spec in specs
    )
    called = tuple(dict.fromkeys(name for spec in specs for name in reads_of(spec)))
    return TowerSpec(name, "query", Call("", called), {}, inputs, (), "result")


def reads_of(spec: FeatureSpec | DenseSpec) -> tuple[str, ...]:
    return spec.reads if spec.weights is None else (*spec.reads, spec.weights)
