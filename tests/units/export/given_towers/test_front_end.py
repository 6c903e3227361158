"""Tables that PyTorch saved, with towers in files: from the model file to a bundle."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.tables.reader import TableReader
from export.drafts.drafting import draft_recipe
from export.errors import VerificationFailed
from runtime.towers import open_tower
from tests.units.export.given_towers.graphs import extract, operation, write_graph
from tests.units.export.job_runs import publish

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
    return TABLES, {"rank": "bundles/build_from_objects/1/towers/rank/saved_model"}


def build_wave():
    return TABLES[:1], {"rank": "wave.npz"}

'''
INPUTS = {
    "user": {"dtype": "int64"},
    "item": {"dtype": "int64"},
    "tag": {"dtype": "int64", "kind": "ragged"},
    "age": {"dtype": "float32"},
}
EXPECTED = {"click": "click", "like": "like"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = extract(tmp_path_factory.mktemp("torch"), "torch_graphs")
    extract(folder, "torch")
    (folder / "model.py").write_text(MODEL)
    return folder


def page_of(factory: str = "build", **changes: Any) -> dict[str, Any]:
    return {
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


def examples_of(folder: Path) -> list[Any]:
    """Returns what the whole model in PyTorch returned, with its inputs."""
    return [json.loads(line) for line in (folder / "examples.jsonl").read_text().splitlines()]


def test_draft_has_the_inputs_and_outputs_of_towers_in_files(folder: Path) -> None:
    draft = draft_recipe("model.py:build", "torch_distributed", Path("examples.jsonl"), folder)
    page = tomllib.loads(draft.text)
    assert page["inputs"] == INPUTS
    assert page["towers"]["rank"]["call"] == "rank"
    assert page["towers"]["rank"]["outputs"] == EXPECTED
    without_examples = draft_recipe("model.py:build", "torch_distributed", None, folder)
    ids = {"dtype": "int64", "kind": "ragged"}
    page = tomllib.loads(without_examples.text)
    assert page["inputs"] == {"user": ids, "item": ids, "tag": ids, "age": {"dtype": "float32"}}
    assert "record what the whole model returns" in without_examples.problem


@pytest.mark.parametrize("factory", ["build_from_objects", "build_from_saved_model"])
def test_bundle_gives_what_pytorch_gave(factory: str, folder: Path) -> None:
    """The tower of the first bundle is the SavedModel that the second is given."""
    published = publish(page_of(factory), folder).manifest
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


def test_tower_whose_compiled_form_differs_is_served_by_its_saved_model(folder: Path) -> None:
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
    lines = [{"user": row, "age": row / 8, "score": math.sin(row / 8)} for row in range(8)]
    (folder / "wave.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    page = page_of(
        "build_wave",
        inputs={name: INPUTS[name] for name in ("user", "age")},
        towers={"rank": {"role": "ranking", "call": "rank", "outputs": {"score": "result"}}},
        features={"user": {"role": "context"}, "age": {"role": "candidate"}},
        verify={"examples": "wave.jsonl", "expected": {"score": "score"}},
    )
    tower = publish(page, folder).manifest.towers["rank"]
    assert {form.kind for form in tower.forms} == {"saved_model"}
    bundle = folder / "bundles/build_wave/1"
    times = np.array([0.5, 1.7e9, -1_732_800_000], np.float32)
    (output,) = open_tower(bundle, tower, "f32").run({"user": user, "age": times}).values()
    np.testing.assert_allclose(output, np.sin(times.astype(np.float64)), atol=1e-6)


def test_recorded_outputs_of_other_rows_are_rejected(folder: Path) -> None:
    lines = examples_of(folder)
    shifted = [json.dumps({**line, "item": (line["item"] + 1) % 10}) for line in lines]
    (folder / "shifted.jsonl").write_text("\n".join(shifted) + "\n")
    page = page_of(model="shifted", verify={"examples": "shifted.jsonl", "expected": EXPECTED})
    with pytest.raises(VerificationFailed, match=r"differs from verify\.expected"):
        publish(page, folder)
    assert not (folder / "bundles/shifted/1").exists()
