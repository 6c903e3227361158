"""Files of towers, model files and recipes for PyTorch's tables that cannot be exported: each is
refused with what is wrong, and a remedy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import ExportError
from export.given_towers.tower import open_tower
from export.graphs.loading import load_tensorflow, tf
from export.jobs import bundle_job
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.units.export.given_towers.graphs import extract, operation, write_graph, write_sum

load_tensorflow()
Arrays = dict[str, Any]
Change = Callable[[Arrays], object]


def graph_with(change: Callable[[Any], object]) -> Change:
    """Returns a change of the graph in the arrays of a file."""

    def apply(arrays: Arrays) -> None:
        graph = json.loads(arrays["graph"].tobytes())
        change(graph)
        arrays["graph"] = np.frombuffer(json.dumps(graph).encode(), np.uint8)

    return apply


def without(name: str) -> Change:
    return lambda arrays: arrays.pop(name)


BIAS = "weights/p_tower_click_bias"
NORMALIZED = "weights/p_tower_normalize_weight"
CHANGED_FILES: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "operation": (
        "routed",
        lambda arrays: None,
        ("randn (torch_towers.py:334)", "SavedModel"),
    ),
    "weight": (
        "ranker",
        lambda arrays: arrays.update({BIAS: arrays[BIAS] + 0.01}),
        ("'click' differs",),
    ),
    "weight that is not finite": (
        "ranker",
        lambda arrays: arrays.update({BIAS: arrays[BIAS] * np.nan}),
        ("'p_tower_click_bias'", "1 of 1"),
    ),
    "shape of results": (
        "cross",
        lambda arrays: arrays.update({"results/": arrays["results/"][:, np.newaxis]}),
        ("[5]", "[5, 1]"),
    ),
    "lost result": (
        "cross",
        lambda arrays: arrays.update({"results/": arrays["results/"] * np.nan}),
        ("differs",),
    ),
    "no name": (
        "cross",
        graph_with(lambda graph: graph["operations"][0].pop("name")),
        ("operations.0.name", "write_tower"),
    ),
    "unknown key": (
        "cross",
        graph_with(lambda graph: graph.update(version=2)),
        ("'version'", "write_tower"),
    ),
    "unknown option": (
        "cross",
        graph_with(lambda graph: graph["operations"][-1]["options"].update(dimension=3)),
        ("'sum_1' (sum)",),
    ),
    "result of no operation": (
        "cross",
        graph_with(lambda graph: graph["operations"].pop(0)),
        ("'cat'",),
    ),
    **{
        f"no {name}": ("cross", without(name), (name,))
        for name in ("graph", NORMALIZED, "examples/user")
    },
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(tmp_path_factory.mktemp("graphs"), "torch_graphs")


@pytest.mark.parametrize("case", CHANGED_FILES)
def test_file_of_a_tower_that_was_changed_is_refused(
    case: str, written: Path, tmp_path: Path
) -> None:
    name, change, words = CHANGED_FILES[case]
    with np.load(written / f"{name}.npz") as file:
        arrays = {name: file[name].copy() for name in file.files}
    change(arrays)
    np.savez(tmp_path / "tower.npz", **arrays)
    check_refused(tmp_path / "tower.npz", "tower.npz", *words)


def check_refused(path: Path, *words: str) -> None:
    with pytest.raises(ExportError) as refusal:
        open_tower(path)
    assert [word for word in words if word not in str(refusal.value)] == [], refusal.value
    assert len(str(refusal.value)) < 500 + len(str(path))


@pytest.mark.parametrize("size", [0, 100, -100])
def test_file_of_a_tower_that_was_cut_is_refused(size: int, written: Path, tmp_path: Path) -> None:
    (tmp_path / "tower.npz").write_bytes((written / "cross.npz").read_bytes()[:size])
    check_refused(tmp_path / "tower.npz", "cannot be read")


CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "index by a mask": (("index", [{"result": "m"}]), "torch.where"),
    "index of dimensions apart": (
        ("index", [{"result": "z"}, None, {"result": "z"}]),
        "torch.gather",
    ),
    "norm of order 0": (("linalg_vector_norm", 0), "order 1, 2 or inf"),
    "size of words": (("view", ["no size " * 99]), "'result' (view)"),
}


@pytest.mark.parametrize("case", CALLS)
def test_call_of_an_operation_that_has_no_counterpart_is_refused(case: str, tmp_path: Path) -> None:
    (name, *arguments), word = CALLS[case]
    graph = {
        "weights": ["m", "z"],
        "inputs": {"x": "p_x"},
        "operations": [operation("result", name, {"result": "p_x"}, *arguments)],
        "outputs": {"": "result"},
    }
    write_graph(
        tmp_path / "tower.npz",
        graph,
        examples__x=np.ones((2, 3, 1), np.float32),
        results__=np.ones(2, np.float32),
        weights__m=np.array([True, False]),
        weights__z=np.array([0]),
    )
    check_refused(tmp_path / "tower.npz", word)


@pytest.mark.parametrize(
    ("number", "recorded", "is_close"),
    [(50, 100.009, True), (50, 100.011, False), (0, 0.9e-7, True), (0, 1.1e-7, False)],
)
def test_results_may_differ_by_a_ten_thousandth_of_the_largest(
    number: float, recorded: float, is_close: bool, tmp_path: Path
) -> None:
    graph = {
        "weights": ["two"],
        "inputs": {"x": "p_x"},
        "operations": [operation("twice", "mul", {"result": "p_x"}, {"result": "two"})],
        "outputs": {"": "twice"},
    }
    write_graph(
        tmp_path / "tower.npz",
        graph,
        examples__x=np.array([number], np.float32),
        results__=np.array([recorded], np.float32),
        weights__two=np.float32(2),
    )
    if is_close:
        tower = open_tower(tmp_path / "tower.npz")
        assert tower({"x": tf.constant([3.0])}).numpy().tolist() == [6]
    else:
        check_refused(tmp_path / "tower.npz", "differs")


class Scaled(tf.Module):  # type: ignore[misc]
    """A module with two functions that may be signatures."""

    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        self.factor = tf.Variable(factor)

    def scaled(self, user: Any) -> dict[str, Any]:
        return {"score": tf.reduce_sum(user * self.factor, -1)}

    def negated(self, user: Any) -> dict[str, Any]:
        return {"score": -tf.reduce_sum(user, -1)}


def saved(
    folder: Path, names: Mapping[str, str], *, batch: int | None = None, factor: float = 3.0
) -> Path:
    """Saves a module with signatures by name, each of one of its methods."""
    module = Scaled(factor)
    spec = tf.TensorSpec([batch, 2], tf.float32, "user")
    functions = {
        name: tf.function(getattr(module, method)).get_concrete_function(spec)
        for name, method in names.items()
    }
    tf.saved_model.save(module, str(folder / "tower"), signatures=functions)
    return folder / "tower"


@pytest.mark.parametrize(
    ("names", "score"),
    [
        ({"other": "scaled"}, 9),
        ({"first": "negated", "serving_default": "scaled"}, 9),
    ],
)
def test_saved_model_is_its_default_signature_or_the_only_one(
    names: dict[str, str], score: float, tmp_path: Path
) -> None:
    tower = open_tower(saved(tmp_path, names))
    assert tower({"user": tf.constant([[1.0, 2.0]])})["score"].numpy().tolist() == [score]


def test_saved_model_that_is_no_tower_is_refused(tmp_path: Path) -> None:
    several = {"b": "scaled", "a": "negated"}
    only = {"other": "scaled"}
    check_refused(saved(tmp_path / "several", several), "'serving_default'", "a, b")
    check_refused(saved(tmp_path / "fixed", only, batch=7), "'user'", "fixed batch of 7")
    lost = saved(tmp_path / "lost", only, factor=float("inf"))
    check_refused(lost, "'Variable:0'", "1 of 1")
    assert open_tower(lost, ["Variable:0"]).inputs.keys() == {"user"}
    damaged = tmp_path / ("d" * 200)
    damaged.mkdir()
    (damaged / "saved_model.pb").write_bytes(b"damaged")
    check_refused(damaged, "cannot be read")


TABLE = {
    "name": "users",
    "num_embeddings": 21,
    "embedding_dim": 4,
    "feature_names": ["user"],
    "pooling": "sum",
}
FILES = {"rank": "rank.npz"}
NUMBERS = {"dtype": "float32", "shape": [4]}
IDS = {"dtype": "int64"}
BAG = {"dtype": "int64", "kind": "ragged"}
INPUTS = {"user": IDS, "item": NUMBERS}
WEIGHT = {"dtype": "float32", "kind": "ragged", "weights_for": "user"}
RANK: dict[str, Any] = {"role": "ranking", "call": "rank"}
VERIFY = {"examples": "examples.jsonl", "expected": {"result": "score"}}
MEAN = [{**TABLE, "pooling": "mean"}]


def fields(**changes: Any) -> Any:
    return [{**TABLE, **changes}], FILES


MODELS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "a list": ([[TABLE], FILES], {}, ("list", "num_embeddings")),
    "three values": (([TABLE], FILES, 1), {}, ("tuple",)),
    "files in a list": (([TABLE], ["rank.npz"]), {}, ("tuple",)),
    "a file": ("rank.npz", {}, ("str",)),
    "one table": ((TABLE, FILES), {}, ("tables are a dict",)),
    "no tables": ((None, FILES), {}, ("tables are a NoneType",)),
    "name": (fields(name=3), {}, ("tables[0].name", "3")),
    "rows": (fields(num_embeddings=True), {}, ("tables[0].num_embeddings", "True")),
    "no rows": (fields(num_embeddings=None), {}, ("tables[0].num_embeddings", "integer")),
    "dim": (fields(embedding_dim="2"), {}, ("tables[0].embedding_dim", "'2'")),
    "features": (fields(feature_names="user"), {}, ("tables[0].feature_names", "'user'")),
    "pooling": (fields(pooling="max"), {}, ("tables[0].pooling", "sum or mean")),
    "feature of two tables": (
        ([TABLE, {**TABLE, "name": "b"}], FILES),
        {},
        ("tables[1].feature_names", "'user'"),
    ),
    "other file": (([TABLE], {"rank": "none.npz"}), {}, ("none.npz does not exist",)),
    "other form": (([TABLE], {"rank": "rank.pt"}), {}, ("rank.pt", "no form")),
    "other call": (
        ([TABLE], FILES),
        {"towers": {"rank": {**RANK, "call": "score"}}},
        ("towers.rank.call", "'rank'"),
    ),
    "arguments": (
        ([TABLE], FILES),
        {"towers": {"rank": {**RANK, "arguments": ["user"]}}},
        ("'arguments'",),
    ),
    "no input": (
        ([TABLE], FILES),
        {"inputs": {"user": IDS, "age": NUMBERS}, "features": {"age": {"role": "candidate"}}},
        ("'item'", "age, user"),
    ),
    "another dtype": (
        ([TABLE], FILES),
        {"inputs": {"user": IDS, "item": {"dtype": "int64", "shape": [4]}}},
        ("'item'", "int64 [?, 4]", "inputs.item"),
    ),
    "another shape": (
        ([TABLE], FILES),
        {"inputs": {"user": IDS, "item": {"dtype": "float32"}}},
        ("'item'", "float32 [?]"),
    ),
    "ids without a table": (([], FILES), {}, ("'user'", "int64 [?]")),
    "weights of a mean": (
        (MEAN, FILES),
        {"inputs": {"user": BAG, "weight": WEIGHT, "item": NUMBERS}},
        ("'weight'", "'mean'"),
    ),
    "table of another size": (fields(num_embeddings=22), {}, ("[22, 4]", "[21, 4]")),
    "compared with nothing": (
        ([TABLE], FILES),
        {"verify": {"examples": "examples.jsonl"}},
        ("'rank'", "verify.expected.result"),
    ),
    **{
        key: (
            ([TABLE], FILES),
            {"checkpoint": {"path": "torch_distributed", key: value}},
            ("PyTorch", "names"),
        )
        for key, value in {"averages": True, "object_path": "model", "by": "names"}.items()
    },
}


def build(case: str) -> Any:
    """The factory of every recipe."""
    return MODELS[case][0]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a checkpoint of PyTorch and all that its recipe names."""
    folder = tmp_path_factory.mktemp("project")
    extract(folder, "torch")
    write_sum(folder / "rank.npz", width=4)
    (folder / "rank.pt").touch()
    (folder / "examples.jsonl").write_text('{"score": 1.0}\n')
    return folder


@pytest.mark.parametrize("case", MODELS)
def test_model_file_or_recipe_is_refused(case: str, project: Path) -> None:
    _, changes, words = MODELS[case]
    page = {
        "model": "refused",
        "checkpoint": {"path": "torch_distributed"},
        "code": {"factory": f"{__file__}:build", "arguments": {"case": case}},
        "output": {"root": "bundles"},
        "inputs": INPUTS,
        "towers": {"rank": RANK},
        "features": {"item": {"role": "candidate"}},
        "verify": VERIFY,
        **changes,
    }
    with pytest.raises(ExportError) as refusal:
        bundle_job.prepare(ExportJob.model_validate(page), project, ExportSettings())
    assert [word for word in words if word not in str(refusal.value)] == [], refusal.value
