"""Tables that PyTorch saved, with towers in files: from the model file to a bundle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.format.manifest import Manifest
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from export.errors import VerificationFailed
from export.graphs.loading import tf
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from runtime.towers import open_tower
from tests.units.export.given_towers.graphs import extract, operation, write_graph

MODEL = '''
"""Tables of TorchRec and a tower of PyTorch."""
from types import SimpleNamespace


def table(name, rows, dim, feature, pooling="sum"):
    return {
        "name": name,
        "num_embeddings": rows,
        "embedding_dim": dim,
        "feature_names": [feature],
        "pooling": pooling,
    }


TABLES = [
    table("users", 21, 4, "user"),
    table("items", 10, 8, "item"),
    table("tags", 9, 4, "tag", "mean"),
]


def build():
    return TABLES, {"rank": "ranker.npz"}


def build_from_objects():
    configs = [SimpleNamespace(**each) for each in TABLES]
    for config in configs:
        config.pooling = SimpleNamespace(value=config.pooling.upper())
    return configs, {"rank": "ranker.npz"}


def build_from_saved_model():
    return TABLES, {"rank": "saved_model"}


def build_wave():
    return TABLES[:1], {"rank": "wave.npz"}


def build_wave_from_saved_model():
    return TABLES[:1], {"rank": "wave"}

'''
INPUTS = {
    "user": {"dtype": "int64"},
    "item": {"dtype": "int64"},
    "tag": {"dtype": "int64", "kind": "ragged"},
    "age": {"dtype": "float32"},
}
EXPECTED = {"click": "click", "like": "like"}


class Ranker(tf.Module):  # type: ignore[misc]
    """The weights of the graph's ranker in a function of TensorFlow: its layers by hand."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        super().__init__()
        self.weights = {
            name.removeprefix("weights/p_tower_"): tf.Variable(array)
            for name, array in arrays.items()
            if name.startswith("weights/p_tower_")
        }

    def layer(self, name: str, values: Any) -> Any:
        return values @ tf.transpose(self.weights[f"{name}_weight"]) + self.weights[f"{name}_bias"]

    def rank(self, user: Any, item: Any, tag: Any, age: Any) -> dict[str, Any]:
        age = tf.nn.relu(self.layer("age_0", age[:, tf.newaxis]))
        user = self.layer("taste_2", tf.nn.relu(self.layer("taste_0", user)))
        rows = tf.stack([user, self.layer("narrow", item), tag, age], axis=1)
        pairs = tf.matmul(rows, rows, transpose_b=True)
        first, second = np.triu_indices(4, 1)
        crossed = [pairs[:, row, right] for row, right in zip(first, second, strict=True)]
        deep = tf.nn.relu(self.layer("top_0", tf.concat([user, tf.stack(crossed, 1)], axis=1)))
        mean, variance = tf.nn.moments(deep, [1], keepdims=True)
        scale = self.weights["top_2_weight"]
        deep = tf.nn.batch_normalization(
            deep, mean, variance, self.weights["top_2_bias"], scale, 1e-5
        )
        return {name: tf.sigmoid(self.layer(name, deep))[:, 0] for name in ("click", "like")}

    def save(self, folder: Path) -> None:
        specs = {
            name: tf.TensorSpec([None, *shape], tf.float32, name)
            for name, shape in {"user": [4], "item": [8], "tag": [4], "age": []}.items()
        }
        function = tf.function(self.rank, autograph=False).get_concrete_function(**specs)
        tf.saved_model.save(self, str(folder), signatures=function)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = extract(tmp_path_factory.mktemp("torch"), "torch_graphs")
    extract(folder, "torch")
    (folder / "model.py").write_text(MODEL)
    with np.load(folder / "ranker.npz") as file:
        ranker = Ranker({name: file[name] for name in file.files})
    ranker.save(folder / "saved_model")
    return folder


def job_of(factory: str = "build", **changes: Any) -> ExportJob:
    page = {
        "model": factory,
        "checkpoint": {"path": "torch_distributed"},
        "code": {"factory": f"model.py:{factory}"},
        "output": {"root": "bundles"},
        "inputs": INPUTS,
        "towers": {
            "rank": {"role": "ranking", "call": "rank", "outputs": EXPECTED, "result": "click"}
        },
        "features": {"user": {"role": "context"}, "item": {"role": "candidate"}},
        "verify": {"examples": "examples.jsonl", "expected": EXPECTED},
        **changes,
    }
    return ExportJob.model_validate(page)


def publish(folder: Path, job: ExportJob) -> Manifest:
    prepared = bundle_job.prepare(job, folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    return read_manifest(folder / "bundles" / job.model / "1")


def examples_of(folder: Path) -> list[Any]:
    """Returns what the whole model in PyTorch returned, with its inputs."""
    return [json.loads(line) for line in (folder / "examples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("factory", ["build", "build_from_objects", "build_from_saved_model"])
def test_bundle_gives_what_pytorch_gave(factory: str, folder: Path) -> None:
    published = publish(folder, job_of(factory))
    assert {name: (table.rows, table.dim) for name, table in published.tables.items()} == {
        "users": (21, 4),
        "items": (10, 8),
        "tags": (9, 4),
    }
    examples = examples_of(folder)
    bundle = folder / "bundles" / factory / "1"
    tables = {name: TableReader(bundle, table) for name, table in published.tables.items()}
    rows = {
        "user": tables["users"].gather(np.array([example["user"] for example in examples])),
        "item": tables["items"].gather(np.array([example["item"] for example in examples])),
        "tag": np.stack(
            [tables["tags"].gather(np.array(example["tag"])).mean(axis=0) for example in examples]
        ),
        "age": np.array([example["age"] for example in examples], np.float32),
    }
    tower = published.towers["rank"]
    assert len(tower.parts) > 1
    assert {form.kind for form in tower.forms} == {"saved_model", "litert"}
    for form in tower.forms:
        opened = open_tower(bundle, tower.model_copy(update={"forms": (form,)}), "f32")
        outputs = opened.run({tensor.name: rows[tensor.sources[0]] for tensor in tower.inputs})
        for output in EXPECTED:
            wanted = [example[output] for example in examples]
            np.testing.assert_allclose(outputs[output], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factory", ["build_wave", "build_wave_from_saved_model"])
def test_tower_whose_compiled_form_differs_is_served_by_its_saved_model(
    factory: str, folder: Path
) -> None:
    user = np.ones((3, 4), np.float32)
    age = np.arange(3, dtype=np.float32)
    write_graph(
        folder / "wave.npz",
        {
            "weights": [],
            "inputs": {"user": "p_user", "age": "p_age"},
            "operations": [
                operation("norm", "mul", {"result": "p_user"}, 0.0),
                operation("nothing", "sum", {"result": "norm"}, [1]),
                operation("wave", "sin", {"result": "p_age"}),
                operation("score", "add", {"result": "wave"}, {"result": "nothing"}),
            ],
            "outputs": {"result": "score"},
        },
        examples__user=user,
        examples__age=age,
        results__result=np.sin(age),
    )
    wave = tf.Module()
    wave.rank = tf.function(
        lambda user, age: {"result": tf.sin(age) + 0.0 * tf.reduce_sum(user, 1)},
        input_signature=[
            tf.TensorSpec([None, 4], tf.float32, "user"),
            tf.TensorSpec([None], tf.float32, "age"),
        ],
    )
    tf.saved_model.save(wave, str(folder / "wave"), signatures=wave.rank)
    lines = [{"user": row, "age": row / 8, "score": math.sin(row / 8)} for row in range(8)]
    (folder / "wave.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    job = job_of(
        factory,
        inputs={name: INPUTS[name] for name in ("user", "age")},
        towers={"rank": {"role": "ranking", "call": "rank", "outputs": {"score": "result"}}},
        features={"user": {"role": "context"}, "age": {"role": "candidate"}},
        verify={"examples": "wave.jsonl", "expected": {"score": "score"}},
    )
    tower = publish(folder, job).towers["rank"]
    assert {form.kind for form in tower.forms} == {"saved_model"}
    bundle = folder / "bundles" / factory / "1"
    times = np.array([0.5, 1.7e9, -1_732_800_000], np.float32)
    (output,) = open_tower(bundle, tower, "f32").run({"user": user, "age": times}).values()
    np.testing.assert_allclose(output, np.sin(times.astype(np.float64)), atol=1e-6)


def test_recorded_outputs_of_other_rows_are_rejected(folder: Path) -> None:
    lines = examples_of(folder)
    shifted = [json.dumps({**line, "item": (line["item"] + 1) % 10}) for line in lines]
    (folder / "shifted.jsonl").write_text("\n".join(shifted) + "\n")
    job = job_of(model="shifted", verify={"examples": "shifted.jsonl", "expected": EXPECTED})
    with pytest.raises(VerificationFailed, match=r"differs from verify\.expected"):
        publish(folder, job)
    assert not (folder / "bundles/shifted/1").exists()
