"""Ids that no table has a row for: the service gives what the framework gives, whether the table is
extracted or stays inside the tower, and the parity check notices where it would not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import IDENTITY, Unknown, dump
from bundle.storage.catalog import read_manifest
from export.errors import ExportError, UsageError, VerificationFailed
from export.graphs.loading import load_tensorflow
from export.jobs.staged import Published
from export.recipe.schema import read_recipe
from export.verify.published import verify_against_recipe
from service.errors import InvalidArgument
from tests.differential.random_models.serving import response_to
from tests.units.export.movies_job import export

pytestmark = pytest.mark.slow

ROWS = 7
IDS = [0, ROWS - 1, ROWS, ROWS + 90, -1, -ROWS, -ROWS - 1, -500]
"""The first and the last row, and ids around and far outside of them."""
EXTRACTED = 0
INSIDE = 10_000
THRESHOLDS = (EXTRACTED, INSIDE)
"""Limits of rows below and above that of the tables."""

JAX = """
import jax
import jax.numpy as jnp

MODES = {{
    "clip": lambda t, ids: jnp.take(t, ids, axis=0, mode="clip"),
    "index": lambda t, ids: t[ids],
    "get_clip": lambda t, ids: t.at[ids].get(mode="clip"),
    "promise": lambda t, ids: t.at[ids].get(mode="promise_in_bounds"),
    "wrap": lambda t, ids: jnp.take(t, ids, axis=0, mode="wrap"),
    "zeros": lambda t, ids: jnp.take(t, ids, axis=0, mode="fill", fill_value=0),
    "take": lambda t, ids: jnp.take(t, ids, axis=0),
}}


def score(parameters, inputs):
    rows = [MODES[name](parameters[name], inputs[name]) for name in {modes}]
    return {{"vector": jnp.concatenate(rows, axis=1)}}


def build():
    return {{name: jax.ShapeDtypeStruct(({rows}, 2), jnp.float32) for name in {modes}}}, score
"""
DEFINED = ("clip", "index", "get_clip", "promise", "wrap", "zeros")
"""Modes in which every id has a vector of numbers."""


@dataclass(frozen=True)
class Project:
    """A model that was saved with its recipe.

    Attributes:
      folder: The folder of both.
      call: The trained model: ids by input -> [n, width] float32.
    """

    folder: Path
    call: Any

    def export(self) -> Published:
        return export(self.folder / "recipe.toml")

    def served(self, ids: Mapping[str, Sequence[Any]]) -> NDArray[np.float32]:
        """Returns the vectors with which the service responds to ids by input."""
        parts = [{"features": example} for example in examples_of(ids)]
        response = response_to(
            self.folder / "bundles", "embed", {"tower": "query", "requests": parts}
        )
        return np.array([result["vector"] for result in response["results"]], np.float32)


def examples_of(ids: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns an object for each example."""
    return [dict(zip(ids, values, strict=True)) for values in zip(*ids.values(), strict=True)]


def write_recipe(
    folder: Path,
    inputs: Mapping[str, Any],
    threshold: int,
    more: str = "",
    checkpoint: str = "checkpoint",
) -> None:
    lines = [
        'model = "random"',
        f'checkpoint.path = "{checkpoint}"',
        'code.factory = "model.py:build"',
        f"code.table_threshold = {threshold}",
        'output.root = "bundles"',
        *(f"inputs.{name} = {value}" for name, value in inputs.items()),
        "[towers.query]",
        'role = "query"',
        'outputs = { vector = "vector" }',
        more,
    ]
    (folder / "recipe.toml").write_text("\n".join(lines) + "\n")


def jax_project(folder: Path, modes: Sequence[str], threshold: int, more: str = "") -> Project:
    jax = pytest.importorskip("jax")
    from tests.units.export.checkpoint.orbax_trees import write_item

    code = JAX.format(modes=repr(tuple(modes)), rows=ROWS)
    (folder / "model.py").write_text(code)
    random = np.random.default_rng(5)
    parameters = {name: random.normal(0, 1, (ROWS, 2)).astype(np.float32) for name in modes}
    write_item(folder / "checkpoint", {f"params.{name}": rows for name, rows in parameters.items()})
    write_recipe(folder, dict.fromkeys(modes, '{ dtype = "int32" }'), threshold, more)
    names: dict[str, Any] = {}
    exec(code, names)

    def call(ids: Mapping[str, Sequence[Any]]) -> NDArray[np.float32]:
        batch = {name: np.asarray(values, np.int32) for name, values in ids.items()}
        return np.asarray(jax.jit(names["score"])(parameters, batch)["vector"])

    return Project(folder, call)


def with_examples(folder: Path, ids: Mapping[str, Sequence[Any]]) -> str:
    """Writes examples; returns the lines of a recipe that name them."""
    lines = "".join(json.dumps(example) + "\n" for example in examples_of(ids))
    (folder / "examples.jsonl").write_text(lines)
    return '[verify]\nexamples = "examples.jsonl"'


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_every_mode_of_jax_is_served_for_every_id(threshold: int, tmp_path: Path) -> None:
    ids = dict.fromkeys(DEFINED, IDS)
    project = jax_project(tmp_path, DEFINED, threshold, with_examples(tmp_path, ids))
    project.export()
    np.testing.assert_array_equal(project.served(ids), project.call(ids))


KNOWN = [0, ROWS - 1, -1, -ROWS]
"""Ids that `jnp.take` has a row for; it reads NaN for all others."""


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_ids_of_which_jax_makes_nan_are_rejected(threshold: int, tmp_path: Path) -> None:
    project = jax_project(tmp_path, ["take"], threshold)
    project.export()
    np.testing.assert_array_equal(project.served({"take": KNOWN}), project.call({"take": KNOWN}))
    for unknown in set(IDS) - set(KNOWN):
        with pytest.raises(InvalidArgument, match=rf"id {unknown} is not in .*rejects unknown"):
            project.served({"take": [unknown]})


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_examples_with_ids_of_which_jax_makes_nan_are_rejected(
    threshold: int, tmp_path: Path
) -> None:
    lines = with_examples(tmp_path, {"take": [0, ROWS]})
    with pytest.raises(ExportError, match=rf"id {ROWS} .*is not in .*rejects unknown ids"):
        jax_project(tmp_path, ["take"], threshold, lines).export()


@pytest.mark.parametrize(
    ("stated", "read"), [('{ rule = "row", row = 3 }', 3), ('{ rule = "zeros" }', None)]
)
def test_unknown_ids_of_which_jax_makes_nan_read_what_the_recipe_states(
    stated: str, read: int | None, tmp_path: Path
) -> None:
    lines = with_examples(tmp_path, {"take": IDS}) + f"\n[features.take]\nunknown = {stated}"
    project = jax_project(tmp_path, ["take"], INSIDE, lines)
    project.export()
    row = np.zeros(2, np.float32) if read is None else project.call({"take": [read]})[0]
    unknown = sorted(set(IDS) - set(KNOWN))
    assert (project.served({"take": unknown}) == row).all()
    np.testing.assert_array_equal(project.served({"take": KNOWN}), project.call({"take": KNOWN}))


@pytest.mark.parametrize(
    ("mode", "stated", "message"),
    [
        ("clip", 'unknown = { rule = "zeros" }', "reads the nearest row of table 'clip'"),
        ("zeros", 'unknown = { rule = "row", row = 1 }', "the model itself reads zeros"),
        (
            "index",
            'unknown = { rule = "zeros" }\nids = { kind = "hash" }',
            "reads a row of table 'index' for every id; state 'row'",
        ),
    ],
)
def test_statements_about_unknown_ids_that_the_model_contradicts_are_rejected(
    mode: str, stated: str, message: str, tmp_path: Path
) -> None:
    project = jax_project(tmp_path, [mode], INSIDE, f"[features.{mode}]\n{stated}")
    with pytest.raises(UsageError, match=message):
        project.export()


KERAS = """
import keras

Layer = keras.layers.Embedding


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.items = Layer({rows}, 2)
        self.seen = Layer({rows}, 2)

    def call(self, inputs):
        ids = inputs["seen"]
        mask = keras.ops.cast(ids >= 0, "float32")[:, :, None]
        history = keras.ops.sum(self.seen(ids) * mask, axis=1)
        return {{"vector": keras.ops.concatenate([self.items(inputs["item"]), history], axis=1)}}


def build():
    return Model()
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning")
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_ids_below_zero_and_beyond_are_taken_by_keras_3_whatever_the_size_of_the_table(
    threshold: int, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    keras = pytest.importorskip("keras")
    (tmp_path / "model.py").write_text(KERAS.format(rows=ROWS))
    names: dict[str, Any] = {}
    exec((tmp_path / "model.py").read_text(), names)
    keras.utils.set_random_seed(3)
    model = names["build"]()
    taken = [0, ROWS - 1, -1, -ROWS]
    seen = [[1, 2, 3], [4, -1, -1], [-1, -1, -1], [0, 0, -1]]
    batch = {"item": tf.constant(taken), "seen": tf.constant(seen)}
    expected = np.asarray(model(batch)["vector"])
    model.save_weights(tmp_path / "model.weights.h5")
    beyond = [ROWS, -ROWS - 1]
    examples: dict[str, list[Any]] = {
        "item": [*taken, *beyond],
        "seen": [*seen, [ROWS, -1, 2], [1, -ROWS - 1, 2]],
    }
    inputs = {"item": '{ dtype = "int32" }', "seen": '{ dtype = "int32", shape = [3] }'}
    more = with_examples(tmp_path, examples)
    write_recipe(tmp_path, inputs, threshold, more, checkpoint="model.weights.h5")
    project = Project(tmp_path, None)
    project.export()

    served = project.served(examples)
    np.testing.assert_array_equal(served[: len(taken)], expected)
    # Keras rejects them on a CPU: they are out of vocabulary, and read zeros.
    assert (served[len(taken) :, :2] == 0).all()
    weights = model.seen.get_weights()[0]
    np.testing.assert_allclose(
        served[len(taken) :, 2:], [weights[2], weights[1] + weights[2]], 1e-6
    )


PLAIN = """
import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        self.layer = tf.keras.layers.Embedding({rows}, 2)
        self.layer.build(None)
        self.items = self.layer.embeddings

    @tf.function
    def __call__(self, inputs):
        return {{"vector": {lookup}}}


def build():
    return Model()
"""


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize(
    "lookup",
    ['tf.gather(self.items, inputs["item"])', 'self.layer(inputs["item"])'],
    ids=["gather", "tf-keras"],
)
def test_ids_that_tensorflow_rejects_read_zeros_whatever_the_size_of_the_table(
    lookup: str, threshold: int, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    (tmp_path / "model.py").write_text(PLAIN.format(rows=ROWS, lookup=lookup))
    names: dict[str, Any] = {}
    exec((tmp_path / "model.py").read_text(), names)
    model = names["build"]()
    rows = np.random.default_rng(1).normal(0, 1, (ROWS, 2)).astype(np.float32)
    model.items.assign(rows)
    tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint" / "model"))
    more = with_examples(tmp_path, {"item": IDS})
    write_recipe(tmp_path, {"item": '{ dtype = "int64" }'}, threshold, more, "checkpoint/model")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('checkpoint.object_path = "model"\n' + recipe.read_text())
    project = Project(tmp_path, None)
    project.export()
    expected = [rows[i] if 0 <= i < ROWS else [0, 0] for i in IDS]
    np.testing.assert_array_equal(project.served({"item": IDS}), expected)


def test_bundle_that_reads_other_rows_than_the_model_is_noticed_by_an_example(
    tmp_path: Path,
) -> None:
    """Its manifest has lost what the model does with ids outside of its table."""
    lines = with_examples(tmp_path, {"clip": IDS})
    project = jax_project(tmp_path, ["clip"], EXTRACTED, lines)
    project.export()
    bundle = tmp_path / "bundles" / "random" / "1"
    job = read_recipe(tmp_path / "recipe.toml")
    verify_against_recipe(bundle, job, tmp_path)

    manifest = read_manifest(bundle)
    entry = manifest.features["clip"]
    lost = entry.model_copy(update={"ids": IDENTITY, "unknown": Unknown()})
    changed = manifest.model_copy(update={"features": {"clip": lost}})
    (bundle / "manifest.json").write_bytes(dump(changed))
    with pytest.raises(VerificationFailed) as failure:
        verify_against_recipe(bundle, job, tmp_path)
    assert "tower 'query'" in str(failure.value)
    # The other examples agree, which names the suspect.
    assert str(failure.value).endswith("compare features.NAME.ids and .unknown of clip")


MASKED = """
import jax
import jax.numpy as jnp


def score(parameters, inputs):
    ids = inputs["seen"]
    mask = ids > 0
    rows = parameters["items"][ids] * mask[:, :, None]
    weights = jax.nn.softmax(jnp.where(mask, ids * 0.1, -9.0), axis=1)
    return {{"vector": (rows * weights[:, :, None]).sum(1)}}


def build():
    return {{"items": jax.ShapeDtypeStruct(({rows}, 2), jnp.float32)}}, score
"""
WORDS = (50, 70, 90, 20)
"""Keys of a vocabulary, whose rows begin at 1; row 0 is that of padding and of unknown ids."""


def masked_project(folder: Path, feature: str, kind: str = "vocabulary") -> Project:
    """Writes a model that masks the rows which a recipe makes of ids."""
    jax = pytest.importorskip("jax")
    from tests.units.export.checkpoint.orbax_trees import write_item

    (folder / "model.py").write_text(MASKED.format(rows=ROWS))
    items = np.random.default_rng(5).normal(0, 1, (ROWS, 2)).astype(np.float32)
    write_item(folder / "checkpoint", {"params.items": items})
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    rules = {
        "vocabulary": 'ids = { kind = "vocabulary", vocabulary = "words", first_row = 1 }',
        "identity": "",
    }
    more = "\n".join(
        [
            '[vocabularies.words]\nfile = "words.txt"\ndtype = "int64"',
            f"[features.seen]\n{rules[kind]}\n{feature}",
        ]
    )
    inputs = {"seen": '{ dtype = "int32", shape = [4] }'}
    write_recipe(folder, inputs, INSIDE, more)
    names: dict[str, Any] = {}
    exec((folder / "model.py").read_text(), names)

    def call(ids: Mapping[str, Any]) -> NDArray[np.float32]:
        """Calls the model with the rows that its training pipeline made."""
        rows = [[1 + WORDS.index(i) if i in WORDS else 0 for i in seen] for seen in ids["seen"]]
        batch = {"seen": np.array(rows, np.int32)}
        return np.asarray(jax.jit(names["score"])({"items": items}, batch)["vector"])

    return Project(folder, call)


def test_rows_that_a_recipe_makes_are_also_what_the_model_masks(tmp_path: Path) -> None:
    """Unknown ids are above 0, and the row that they read is not."""
    project = masked_project(tmp_path, 'unknown = { rule = "row", row = 0 }')
    project.export()
    seen = {"seen": [[50, 20, 70, 90], [99, 50, 0, 0], [-4, 7, 8, 9], [90, 1 << 30, 20, 5]]}
    np.testing.assert_allclose(project.served(seen), project.call(seen), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("feature", "kind", "message"),
    [
        ('unknown = { rule = "zeros" }', "vocabulary", "reads a row of table 'items' for every id"),
        ('unknown = { rule = "row", row = 2 }', "identity", "it counts ids below 0 from the end"),
    ],
)
def test_masks_whose_numbers_the_recipe_leaves_open_are_rejected(
    feature: str, kind: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        masked_project(tmp_path, feature, kind).export()


ONE_HOT = """
import jax
import jax.numpy as jnp


def score(parameters, inputs):
    return {{"vector": jax.nn.one_hot(inputs["item"], {rows}) @ parameters["items"]}}


def build():
    return {{"items": jax.ShapeDtypeStruct(({rows}, 2), jnp.float32)}}, score
"""


@pytest.mark.parametrize("has_examples", [False, True])
def test_compiled_tower_that_fails_outside_of_a_one_hot_vector_is_left_out(
    has_examples: bool, tmp_path: Path
) -> None:
    """LiteRT's converter makes a lookup of the product."""
    pytest.importorskip("jax")
    from tests.units.export.checkpoint.orbax_trees import write_item

    (tmp_path / "model.py").write_text(ONE_HOT.format(rows=ROWS))
    items = np.random.default_rng(5).normal(0, 1, (ROWS, 2)).astype(np.float32)
    write_item(tmp_path / "checkpoint", {"params.items": items})
    more = with_examples(tmp_path, {"item": IDS}) if has_examples else ""
    write_recipe(tmp_path, {"item": '{ dtype = "int32" }'}, INSIDE, more)
    project = Project(tmp_path, None)
    note, remedy = project.export().notes
    assert "tower 'query' is not compiled for LiteRT (f32): it fails on " in note
    assert "needs the extra `savedmodel`" in remedy
    forms = read_manifest(tmp_path / "bundles" / "random" / "1").towers["query"].forms
    assert [form.kind for form in forms] == ["saved_model"]
    expected = [items[i] if 0 <= i < ROWS else [0, 0] for i in IDS]
    np.testing.assert_array_equal(project.served({"item": IDS}), expected)
