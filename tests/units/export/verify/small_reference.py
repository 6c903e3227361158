"""A model of two tables and a number, and what its reference model is called with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from bundle.features.columns import Column
from bundle.features.reader import FeatureReader
from bundle.format import manifest, paths
from bundle.tables.key_index import KeyIndex, KeyIndexWriter
from bundle.tables.reader import TableReader
from bundle.tables.vocabularies import Vocabulary
from export.front_end.calls import Call
from export.front_end.interface import ReferenceInputs, ReferenceModel, ReferenceRun, Results
from export.front_end.manifest_features import describe_features
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts, TowerSpec
from export.recipe.schema import ExportJob
from export.tables.dumped import open_dumps
from export.tables.vocabularies import write_vocabulary
from export.verify.examples import Examples
from export.verify.reference_inputs import Reference
from tests.bundles.tables import write_table
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


class FixedResults(ReferenceModel):
    """Gives stated results, and keeps what it was called with."""

    def __init__(self, *results: Results, expected: Mapping[str, Column] | None = None) -> None:
        self.results = list(results)
        self.expected = expected or {}
        self.called: list[tuple[ModelSpec, ReferenceInputs, bool]] = []

    def run(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        expect_numbers: bool = False,
        as_written: bool = False,
    ) -> ReferenceRun:
        self.called.append((model, inputs, expect_numbers))
        expected = self.expected if expect_numbers else {}
        return ReferenceRun(self.results.pop(0), expected)

    def with_recipe(self, _job: ExportJob) -> Self:
        return self


def read_rows(table: str, rows: np.ndarray) -> np.ndarray:
    """Gives each row its own number, from 1 on."""
    return np.repeat(rows[:, np.newaxis].astype(np.float32) + 1, 2, axis=1)


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


def reference_of(
    directory: Path,
    examples: Mapping[str, Column],
    n: int,
    specs: tuple[FeatureSpec | DenseSpec, ...] = (USER, SEEN, AGE),
    original: ReferenceModel | None = None,
    **sections: Any,
) -> Reference:
    """Returns the reference of a model whose tables have 10 rows.

    Args:
      directory: Of the recipe, and where tables are written.
      examples: As callers send them.
      n: Their number.
      specs: The features of the model; the first tower reads the first one, the second one all.
      original: The model as it was trained.
      sections: Of the recipe.
    """
    job = job_of(**sections)
    tables = {name: TableFacts(name, name, ROWS, 2) for name in ("users", "movies")}
    features = {spec.name: spec for spec in specs}
    towers = {"first": tower("first", specs[:1]), "second": tower("second", specs)}
    model = ModelSpec(tables, features, towers)
    entries = describe_features(model, job)
    written = {
        name: TableReader(directory, write_table(directory, name, rows, "float32", ()))
        for name, rows in ((name, np.zeros((ROWS, 2), "<f4")) for name in tables)
    }
    vocabularies = {}
    for name, part in job.vocabularies.items():
        path = directory / paths.vocabulary(name)
        write_vocabulary(directory / part.file, part.dtype, path)
        vocabularies[name] = Vocabulary.open(path)
    indexes = {}
    for name, dump in open_dumps(job, directory).items():
        path = directory / paths.key_index(name)
        with KeyIndexWriter(path) as index:
            index.append(np.fromfile(dump.keys.slices[0].file, "<i8", offset=296))
            index.finish()
        indexes[name] = KeyIndex(path, ROWS)
    reader = FeatureReader(entries, written, vocabularies, indexes)
    example_columns = Examples(n, dict(examples))
    return Reference(
        job, directory, model, original or FixedResults(), read_rows, example_columns, reader
    )


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
