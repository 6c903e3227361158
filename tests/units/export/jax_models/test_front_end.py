"""A model of plain functions in JAX, from an Orbax checkpoint to a bundle."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.format.manifest import EmbeddedFeature, Manifest
from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from export.errors import CheckpointError, NotConvertible, UsageError, VerificationFailed
from export.graphs.elementwise import ELEMENTWISE
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower

jax = pytest.importorskip("jax")
checkpoints = pytest.importorskip("orbax.checkpoint")

USERS = 60
GENRES = 9
DIM = 4
OUT = 3
MODEL = '''
"""Two towers of plain functions."""
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

SHAPES = json.loads(Path(__file__).with_name("shapes.json").read_text())


def query(parameters, inputs):
    user = jnp.take(parameters["users"], inputs["user"] % 60, axis=0)
    liked = parameters["genres"][inputs["genres"]]  # ids below 0 count from the end
    mask = (inputs["genres"] != 0).astype(liked.dtype)[..., None]
    mean = (liked * mask).sum(1) / jnp.maximum(mask.sum(1), 1)
    x = jnp.concatenate([user, mean, inputs["age"][:, None]], axis=-1)
    for layer in parameters["layers"]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return {"vector": x, "first": x[:, 0]}


def shapes():
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(tuple(shape), jnp.float32),
        SHAPES,
        is_leaf=lambda part: isinstance(part, list) and all(isinstance(x, int) for x in part),
    )


def build():
    return shapes(), {"query": query}


def candidate(parameters, inputs):
    return parameters["genres"][inputs["item"]][:, :3]


def build_two_towers():
    return shapes(), {"query": query, "candidate": candidate}


def build_arrays():
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes()), {"query": query}


def build_model_itself():
    return query


def build_with_dropout():
    def noisy(parameters, inputs):
        found = query(parameters, inputs)
        return found["vector"] * jax.random.bernoulli(jax.random.key(1), 0.5, (3,))

    return shapes(), {"query": noisy}


def build_with_names_of_ours():
    return shapes(), {"variables": query}


def build_read_whole():
    def shifted(parameters, inputs):
        found = query(parameters, inputs)
        return {**found, "vector": found["vector"] + parameters["genres"].mean(0)[:3]}

    return shapes(), {"query": shifted}


def build_with_more():
    def shifted(parameters, inputs):
        found = query(parameters, inputs)
        return {**found, "vector": found["vector"] + parameters["more"]}

    return {**shapes(), "more": jax.ShapeDtypeStruct((3,), jnp.float32)}, {"query": shifted}


def build_with_narrow_bias():
    (layer,) = shapes()["layers"]
    narrow = {**layer, "b": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
    return {**shapes(), "layers": [narrow]}, {"query": query}
'''
OF_A_STACK = """
import jax
import jax.numpy as jnp


def query(parameters, inputs):
    return jnp.take(parameters["embedding"]["users_movies"]["table"], inputs["user"], axis=0)


def build():
    stack = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    return {"embedding": {"users_movies": {"table": stack}}}, {"query": query}
"""
SHAPES = {
    "users": [USERS, DIM],
    "genres": [GENRES, DIM],
    "layers": [{"w": [2 * DIM + 1, OUT], "b": [OUT]}],
}


def parameters(seed: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def array(*shape: int) -> Any:
        return random.normal(0, 0.5, shape).astype(np.float32)

    layers = [{"w": array(2 * DIM + 1, OUT), "b": array(OUT)}]
    return {"users": array(USERS, DIM), "genres": array(GENRES, DIM), "layers": layers}


def save(folder: Path, tree: Any) -> None:
    with checkpoints.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", tree, force=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jax")
    (root / "model.py").write_text(MODEL)
    (root / "shapes.json").write_text(json.dumps(SHAPES))
    stored = parameters()
    moments = {"0": {"mu": parameters(4), "nu": parameters(5)}}
    save(root, {"params": stored, "opt_state": moments, "step": np.int32(7)})
    return root


def job_of(**changes: Any) -> ExportJob:
    page = {
        "model": "plain",
        "checkpoint": {"path": "checkpoint"},
        "code": {"factory": "model.py:build"},
        "output": {"root": "bundles"},
        "inputs": {
            "user": {"dtype": "int32"},
            "genres": {
                "dtype": "int32",
                "shape": [3],
                "pad": 0,
                "pad_side": "start",
                "keep": "last",
            },
            "age": {"dtype": "float32"},
        },
        "towers": {
            "query": {
                "role": "query",
                "call": "query",
                "outputs": {"vector": "vector", "first": "first"},
                "result": "vector",
            }
        },
        "tables": {"users": {}, "genres": {}},
        **changes,
    }
    return ExportJob.model_validate(page)


@pytest.fixture(scope="module")
def published(folder: Path) -> Manifest:
    prepared = bundle_job.prepare(job_of(), folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    return read_manifest(folder / "bundles" / "plain" / "1")


def test_index_whose_queries_take_the_mask_of_a_padded_history_is_published(
    folder: Path,
) -> None:
    rows = "".join(f"{row}\n" for row in range(GENRES))
    (folder / "items.csv").write_text(f"item\n{rows}")
    job = job_of()
    changes: dict[str, Any] = {
        "model": "two_towers",
        "code": {"factory": "model.py:build_two_towers"},
        "inputs": {
            **job.model_dump()["inputs"],
            "genres": {"dtype": "int32", "shape": [3]},
            "item": {"dtype": "int32"},
        },
        "towers": {
            "query": {"role": "query", "call": "query", "outputs": {"vector": "vector"}},
            "candidate": {"role": "candidate", "call": "candidate"},
        },
        "corpora": {"items": {"file": "items.csv", "id": "item", "features": {"item": "item"}}},
        "indexes": {
            "items": {
                "corpus": "items",
                "query_tower": "query",
                "candidate_tower": "candidate",
                "recall": {"k": 5},
            }
        },
    }
    prepared = bundle_job.prepare(job_of(**changes), folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))

    manifest = read_manifest(folder / "bundles" / "two_towers" / "1")
    index = manifest.indexes["items"]
    assert index.recall.value == 1
    # Nobody can send an empty history: nothing pads it.
    assert index.recall_of_cold_users is None

    example = {"user": 3, "genres": [1, 2, 3], "age": 20.0, "item": 4}
    (folder / "examples.jsonl").write_text(f"{json.dumps(example)}\n" * 4)
    index_part = changes["indexes"]["items"]
    index_part["recall"]["of_cold_users"] = 0.5
    changes["verify"] = {"examples": "examples.jsonl"}
    prepared = bundle_job.prepare(job_of(**changes), folder, ExportSettings())
    with pytest.raises(
        UsageError, match=r"items\.recall\.of_cold_users is a limit .* tower 'query' has no bags"
    ):
        bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))


def rejected(folder: Path, **changes: Any) -> str:
    with pytest.raises((CheckpointError, NotConvertible, UsageError)) as caught:
        bundle_job.prepare(job_of(**changes), folder, ExportSettings())
    return str(caught.value)


def test_tables_and_rules_of_ids_are_found(published: Manifest) -> None:
    assert {name: table.rows for name, table in published.tables.items()} == {
        "users": USERS,
        "genres": GENRES,
    }
    assert published.tables["users"].source.key == "params.users"
    assert published.verification.tables["users"].rows == USERS
    kinds = {
        feature.table: feature.kind
        for feature in published.features.values()
        if isinstance(feature, EmbeddedFeature)
    }
    assert kinds == {"users": "single", "genres": "sequence"}


def test_towers_in_both_forms_give_what_jax_gives(folder: Path, published: Manifest) -> None:
    stored = parameters()
    users = np.array([5, 59], np.int32)
    genres = np.array([[1, 2, 0], [-1, 8, 3]], np.int32)
    ages = np.array([0.5, -1.5], np.float32)
    wanted = expected(stored, users, genres, ages)
    tower = published.towers["query"]
    activations = {
        "user": stored["users"][users],
        "genres": stored["genres"][genres],
        "age": ages,
        "ids": genres,
    }
    assert {form.kind for form in tower.forms} == {"saved_model", "litert"}
    for form in tower.forms:
        one_form = tower.model_copy(update={"forms": (form,)})
        opened = open_tower(folder / "bundles" / "plain" / "1", one_form, "f32")
        inputs = {
            tensor.name: activations[
                "ids" if tensor.dtype == "int32" else tensor.sources[0].partition("@")[0]
            ]
            for tensor in tower.inputs
        }
        outputs = opened.run(inputs)
        np.testing.assert_allclose(outputs["vector"], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs["first"], wanted[:, 0], rtol=1e-5, atol=1e-6)


def test_lists_are_padded_and_cut_as_in_training_for_lookups_and_masks_alike(
    folder: Path, published: Manifest
) -> None:
    lists = [[4], [], [1, 2, 3, 4, 5], [6, 0, 7]]
    trained = np.array([[0, 0, 4], [0, 0, 0], [3, 4, 5], [6, 0, 7]])
    users = np.array([5, 59, 0, 7])
    ages = np.array([0.5, -1.5, 0.0, 1.0], np.float32)
    values = np.array([genre for genres in lists for genre in genres])
    columns = {
        "user": Column(users),
        "genres": Column(values, np.cumsum([0, *map(len, lists)])),
        "age": Column(ages),
    }
    root = folder / "bundles" / "plain" / "1"
    tower = published.towers["query"]
    with closing(open_features(root, published)) as features:
        activations = features.activations(published.features, columns, len(lists))
        fitted = features.fit(columns, len(lists))
    inputs = {name: activation.values for name, activation in activations.items()}
    vectors = open_tower(root, tower, "f32").run(tower_inputs(tower.inputs, inputs, len(lists)))
    wanted = expected(parameters(), users, trained, ages)
    np.testing.assert_allclose(vectors["vector"], wanted, rtol=1e-5, atol=1e-6)
    assert (fitted.cut, fitted.padded) == ({"genres": 1}, {"genres": 2})


def expected(stored: dict[str, Any], users: Any, genres: Any, ages: Any) -> Any:
    """The model in NumPy."""
    mask = (genres != 0)[..., np.newaxis]
    liked = (stored["genres"][genres] * mask).sum(1) / np.maximum(mask.sum(1), 1)
    x = np.concatenate([stored["users"][users], liked, ages[:, np.newaxis]], axis=1)
    return np.tanh(x @ stored["layers"][0]["w"] + stored["layers"][0]["b"])


def test_operation_that_is_evaluated_wrongly_is_not_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ELEMENTWISE["logistic"]

    def handle(equation: Any, operand: Any) -> Any:
        return wrong(equation.sizes.full(operand))

    from export.jax_models import evaluation

    monkeypatch.setitem(evaluation.OPERATIONS, "tanh", handle)
    prepared = bundle_job.prepare(job_of(model="wrong"), folder, ExportSettings())
    with pytest.raises(VerificationFailed, match="tower 'query'"):
        bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    assert not (folder / "bundles" / "wrong" / "1").exists()


def test_array_among_the_parameters_is_rejected(folder: Path) -> None:
    message = rejected(folder, code={"factory": "model.py:build_arrays"})
    assert "returned a ndarray among the parameters, which takes memory" in message
    assert "jax.eval_shape" in message


def test_other_result_of_the_factory_is_rejected(folder: Path) -> None:
    message = rejected(folder, code={"factory": "model.py:build_model_itself"})
    assert "the checkpoint is Orbax's" in message
    assert "shapes, {name: function}" in message


def test_call_that_the_factory_lacks_is_rejected(folder: Path) -> None:
    message = rejected(folder, towers={"query": {"role": "query", "call": "score"}})
    assert message.startswith("towers.query.call is 'score'")
    assert "'query'" in message


def test_parameter_that_is_also_read_whole_stays_in_the_tower(folder: Path, tmp_path: Path) -> None:
    changes = {
        "code": {"factory": "model.py:build_read_whole"},
        "output": {"root": str(tmp_path)},
    }
    message = rejected(folder, **changes)
    assert "tables.genres: no tower reads a table of that name; they read users" in message

    prepared = bundle_job.prepare(job_of(**changes, tables={"users": {}}), folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    assert list(read_manifest(tmp_path / "plain" / "1").tables) == ["users"]


def test_function_may_have_any_name(folder: Path) -> None:
    outputs = {"vector": "vector"}
    towers = {"query": {"role": "query", "call": "variables", "outputs": outputs}}
    job = job_of(code={"factory": "model.py:build_with_names_of_ours"}, towers=towers)
    assert bundle_job.prepare(job, folder, ExportSettings()).traced.spec.towers["query"].inputs


def test_dropout_left_on_is_rejected_with_its_line(folder: Path) -> None:
    message = rejected(folder, code={"factory": "model.py:build_with_dropout"})
    line = MODEL.splitlines().index(next(x for x in MODEL.splitlines() if "bernoulli" in x)) + 1
    assert f"random_bits (model.py:{line})" in message
    assert "deterministic=True" in message


def test_parameter_that_is_missing_is_named(folder: Path) -> None:
    message = rejected(folder, code={"factory": "model.py:build_with_more"})
    assert "parameter more [3] is not in the checkpoint" in message


def test_parameter_of_another_dtype_is_named(folder: Path) -> None:
    message = rejected(folder, code={"factory": "model.py:build_with_narrow_bias"})
    assert "parameter layers.0.b is bfloat16 [3] in the model and float32 [3] there" in message


def test_ids_of_64_bits_are_rejected(folder: Path) -> None:
    inputs = {
        "user": {"dtype": "int64"},
        "genres": {"dtype": "int32", "shape": [3]},
        "age": {"dtype": "float32"},
    }
    assert "write int32 as inputs.user.dtype" in rejected(folder, inputs=inputs)


def test_ragged_input_is_rejected(folder: Path) -> None:
    inputs = {
        "user": {"dtype": "int32"},
        "genres": {"dtype": "int32", "kind": "ragged"},
        "age": {"dtype": "float32"},
    }
    message = rejected(folder, inputs=inputs)
    assert "'genres'" in message
    assert 'inputs.genres.kind = "dense"' in message


def test_parameters_in_several_places_need_an_object_path(tmp_path: Path, folder: Path) -> None:
    for name in ("model.py", "shapes.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    save(tmp_path, {"params": parameters(), "ema": parameters(8)})
    assert "'ema' or 'params'" in rejected(tmp_path)
    averaged = {"path": "checkpoint", "object_path": "ema"}
    prepared = bundle_job.prepare(job_of(checkpoint=averaged), tmp_path, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    table = read_manifest(tmp_path / "bundles" / "plain" / "1").tables["users"]
    assert table.source.key == "ema.users"


def test_averages_are_a_tree_of_their_own(folder: Path) -> None:
    message = rejected(folder, checkpoint={"path": "checkpoint", "averages": True})
    assert "write its path as checkpoint.object_path" in message


def test_parameters_in_lists_without_names_are_rejected_with_a_remedy(
    tmp_path: Path, folder: Path
) -> None:
    for name in ("model.py", "shapes.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    trainable = jax.tree.leaves(parameters())
    untrained = [np.zeros(3, np.float32)]
    save(tmp_path, [trainable, untrained, jax.tree.leaves(parameters(4))])
    message = rejected(tmp_path)
    assert "parameter users [60, 4] is not in the checkpoint" in message
    assert "as RecML's KerasTrainer saves them, let the factory return the model" in message
    assert "save them as a dict by name" in message


@pytest.mark.parametrize("threshold", [0, 10_000])
def test_stack_that_is_taken_as_a_parameter_is_rejected(tmp_path: Path, threshold: int) -> None:
    (tmp_path / "model.py").write_text(OF_A_STACK)
    stack = np.zeros((64, 8), np.float32)
    save(tmp_path, {"embedding": {"users_movies": {"table": stack, "slot": {"0": stack}}}})
    message = rejected(
        tmp_path,
        inputs={"user": {"dtype": "int32"}},
        towers={"query": {"role": "query", "call": "query"}},
        tables={},
        code={"factory": "model.py:build", "table_threshold": threshold},
    )
    assert "embedding.users_movies.table" in message
    assert "how its rows are spread over cores is not in the checkpoint" in message


@pytest.mark.parametrize(("dtype", "largest"), [("bfloat16", 0.01), ("int8", 0.02)])
def test_narrower_rows_are_written_and_measured(folder: Path, dtype: str, largest: float) -> None:
    tables = {name: {"dtype": dtype, "max_abs_error": largest} for name in ("users", "genres")}
    query = {
        "role": "query",
        "call": "query",
        "outputs": {"vector": "vector"},
        "max_abs_error": {"f32": largest},
    }
    job = job_of(model=f"narrow_{dtype}", tables=tables, towers={"query": query})
    prepared = bundle_job.prepare(job, folder, ExportSettings())
    manifest = bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True))).manifest
    assert {table.dtype for table in manifest.tables.values()} == {dtype}

    stored = parameters()
    bundle = folder / "bundles" / f"narrow_{dtype}" / "1"
    for name, table in manifest.tables.items():
        rows = TableReader(bundle, table).gather(np.arange(table.rows))
        error = np.abs(rows - stored[name]).max()
        assert 0 < error <= largest


def test_parameter_that_is_not_finite_is_named_before_anything_is_written(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("model.py", "shapes.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    tree = parameters()
    tree["layers"][0]["b"][1] = np.inf
    save(tmp_path, {"params": tree})
    message = (
        "variable 'params.layers.0.b' [3] holds NaN or an infinity in 1 of 3 values, the first at "
        "[1]; take an older checkpoint"
    )
    assert message in rejected(tmp_path)
    allowed = {"path": "checkpoint", "allow_non_finite": ["params.layers.0.b"]}
    bundle_job.prepare(job_of(checkpoint=allowed), tmp_path, ExportSettings())
    misspelled = {"path": "checkpoint", "allow_non_finite": ["params.layers.0.c"]}
    assert "has no variable 'params.layers.0.c'; did you mean 'params.layers.0." in rejected(
        tmp_path, checkpoint=misspelled
    )
