"""Ids that no table has a row for: the service gives what the framework gives, whether the table is
extracted or stays inside the tower, and the parity check notices where it would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import IDENTITY, Unknown, dump
from bundle.storage.catalog import read_manifest
from export.errors import ExportError, UsageError, VerificationFailed
from export.graphs.loading import load_tensorflow
from export.recipe.schema import read_recipe
from export.verify.published import verify_against_recipe
from service.errors import InvalidArgument
from tests.differential.written_models import OF_TENSORFLOW, WrittenModel, write_model
from tests.units.export.checkpoint.orbax_trees import write_item

pytestmark = pytest.mark.slow

INSIDE = 7
EXTRACTED = 12
SIZES = (INSIDE, EXTRACTED)
"""The rows of a table that stays inside the tower, and of one that is extracted."""
CODE = {"table_threshold": 10}
QUERY = {"query": {"role": "query", "outputs": {"vector": "vector"}}}
INT32 = {"dtype": "int32"}
Ids = Mapping[str, Sequence[Any]]


def ids_around(rows: int) -> list[int]:
    """Returns the first and the last row, and ids around and far outside of them."""
    return [0, rows - 1, rows, rows + 90, -1, -rows, -rows - 1, -500]


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
TABLES = {tables}


def score(parameters, inputs):
    rows = [MODES[name.rpartition("_")[0]](parameters[name], inputs[name]) for name in TABLES]
    return {{"vector": jnp.concatenate(rows, axis=1)}}


def build():
    shapes = {{name: jax.ShapeDtypeStruct((rows, 2), jnp.float32) for name, rows in TABLES.items()}}
    return shapes, score
"""
DEFINED = ("clip", "index", "get_clip", "promise", "wrap", "zeros")
"""Modes in which every id has a vector of numbers."""


class JaxModel:
    """A model that looks tables up in some modes.

    Attributes:
      written: Its file and its recipe.
      tables: The rows of each table, by the name of its input.
    """

    def __init__(
        self,
        folder: Path,
        modes: Sequence[str],
        sizes: Sequence[int] = SIZES,
        examples: Ids | None = None,
        **sections: Any,
    ) -> None:
        """Writes the model, its checkpoint and its recipe."""
        self._jax = pytest.importorskip("jax")
        self.tables = {f"{mode}_{rows}": rows for mode in modes for rows in sizes}
        self.written = write_model(folder, JAX.format(tables=self.tables))
        random = np.random.default_rng(5)
        self._parameters = {
            name: random.normal(0, 1, (rows, 2)).astype(np.float32)
            for name, rows in self.tables.items()
        }
        leaves = {f"params.{name}": values for name, values in self._parameters.items()}
        write_item(folder / "checkpoint", leaves)
        if examples is not None:
            sections["verify"] = self.written.write_examples(examples)
        inputs = dict.fromkeys(self.tables, INT32)
        self.written.write_recipe(inputs=inputs, towers=QUERY, code=CODE, **sections)

    def call(self, ids: Ids) -> NDArray[np.float32]:
        """Returns the vectors that JAX computes."""
        batch = {name: np.asarray(values, np.int32) for name, values in ids.items()}
        score = self._jax.jit(self.written.names["score"])
        return np.asarray(score(self._parameters, batch)["vector"])


def test_every_mode_of_jax_is_served_for_every_id(tmp_path: Path) -> None:
    ids = {f"{mode}_{rows}": ids_around(rows) for mode in DEFINED for rows in SIZES}
    model = JaxModel(tmp_path, DEFINED, examples=ids)
    tables = model.written.export().manifest.tables
    # A rule of the model extracts small tables, too.
    assert INSIDE in {rows for name, rows in model.tables.items() if name not in tables}
    assert tables.keys() >= {f"{mode}_{EXTRACTED}" for mode in DEFINED}
    np.testing.assert_array_equal(model.written.served(ids), model.call(ids))


def known_ids(rows: int) -> list[int]:
    """Returns ids that `jnp.take` has a row for; it reads NaN for all others."""
    return [0, rows - 1, -1, -rows]


def test_ids_of_which_jax_makes_nan_are_rejected(tmp_path: Path) -> None:
    model = JaxModel(tmp_path, ["take"])
    model.written.export()
    known = {name: known_ids(rows) for name, rows in model.tables.items()}
    np.testing.assert_array_equal(model.written.served(known), model.call(known))
    for name, rows in model.tables.items():
        for unknown in set(ids_around(rows)) - set(known_ids(rows)):
            with pytest.raises(InvalidArgument, match=rf"id {unknown} is not in .*rejects unknown"):
                model.written.served({**{key: [0] for key in model.tables}, name: [unknown]})


@pytest.mark.parametrize("rows", SIZES)
def test_examples_with_ids_of_which_jax_makes_nan_are_rejected(rows: int, tmp_path: Path) -> None:
    model = JaxModel(tmp_path, ["take"], [rows], {f"take_{rows}": [0, rows]})
    with pytest.raises(ExportError, match=rf"id {rows} .*is not in .*rejects unknown ids"):
        model.written.export()


def test_unknown_ids_of_which_jax_makes_nan_read_what_the_recipe_states(tmp_path: Path) -> None:
    first = ids_around(6)
    second = ids_around(INSIDE)
    unknown = {"take_6": {"rule": "row", "row": 3}, "take_7": {"rule": "zeros"}}
    features = {name: {"unknown": rule} for name, rule in unknown.items()}
    ids = {"take_6": first, "take_7": second}
    model = JaxModel(tmp_path, ["take"], (6, INSIDE), ids, features=features)
    model.written.export()
    expected = model.call({**ids, "take_6": [i if i in known_ids(6) else 3 for i in first]})
    is_known = np.isin(second, known_ids(INSIDE))[:, np.newaxis]
    expected = np.concatenate([expected[:, :2], np.where(is_known, expected[:, 2:], 0)], 1)
    np.testing.assert_array_equal(model.written.served(ids), expected)


@pytest.mark.parametrize(
    ("mode", "stated", "message"),
    [
        ("clip", {"unknown": {"rule": "zeros"}}, "reads the nearest row of table 'clip_7'"),
        ("zeros", {"unknown": {"rule": "row", "row": 1}}, "the model itself reads zeros"),
        (
            "index",
            {"unknown": {"rule": "zeros"}, "ids": {"kind": "hash"}},
            "reads a row of table 'index_7' for every id; state 'row'",
        ),
    ],
)
def test_statements_about_unknown_ids_that_the_model_contradicts_are_rejected(
    mode: str, stated: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = JaxModel(tmp_path, [mode], [INSIDE], features={f"{mode}_7": stated})
    with pytest.raises(UsageError, match=message):
        model.written.export()


def test_bundle_that_reads_other_rows_than_the_model_is_noticed_by_an_example(
    tmp_path: Path,
) -> None:
    """Its manifest has lost what the model does with ids outside of its table."""
    model = JaxModel(tmp_path, ["clip"], [EXTRACTED], {"clip_12": ids_around(EXTRACTED)})
    model.written.export()
    bundle = tmp_path / "bundles" / "random" / "1"
    job = read_recipe(tmp_path / "recipe.toml")
    verify_against_recipe(bundle, job, tmp_path)

    manifest = read_manifest(bundle)
    entry = manifest.features["clip_12"]
    lost = entry.model_copy(update={"ids": IDENTITY, "unknown": Unknown()})
    changed = manifest.model_copy(update={"features": {"clip_12": lost}})
    (bundle / "manifest.json").write_bytes(dump(changed))
    with pytest.raises(VerificationFailed) as failure:
        verify_against_recipe(bundle, job, tmp_path)
    assert "tower 'query'" in str(failure.value)
    # The other examples agree, which names the suspect.
    assert str(failure.value).endswith("compare features.NAME.ids and .unknown of clip_12")


KERAS = f"""
import keras

SIZES = {SIZES}


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        for rows in SIZES:
            setattr(self, f"items_{{rows}}", keras.layers.Embedding(rows, 2))
            setattr(self, f"seen_{{rows}}", keras.layers.Embedding(rows, 2))

    def call(self, inputs):
        parts = []
        for rows in SIZES:
            ids = inputs[f"seen_{{rows}}"]
            mask = keras.ops.cast(ids >= 0, "float32")[:, :, None]
            parts.append(getattr(self, f"items_{{rows}}")(inputs[f"item_{{rows}}"]))
            parts.append(keras.ops.sum(getattr(self, f"seen_{{rows}}")(ids) * mask, axis=1))
        return {{"vector": keras.ops.concatenate(parts, axis=1)}}


def build():
    return Model()
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning")
def test_ids_below_zero_and_beyond_are_taken_by_keras_3_whatever_the_size_of_the_table(
    tmp_path: Path,
) -> None:
    tf = load_tensorflow()
    keras = pytest.importorskip("keras")
    model = write_model(tmp_path, KERAS)
    keras.utils.set_random_seed(3)
    network = model.names["build"]()
    seen = [[1, 2, 3], [4, -1, -1], [-1, -1, -1], [0, 0, -1]]
    examples: dict[str, list[Any]] = {}
    batch = {}
    inputs: dict[str, Any] = {}
    for rows in SIZES:
        taken = [0, rows - 1, -1, -rows]
        batch[f"item_{rows}"] = tf.constant(taken)
        batch[f"seen_{rows}"] = tf.constant(seen)
        examples[f"item_{rows}"] = [*taken, rows, -rows - 1]
        examples[f"seen_{rows}"] = [*seen, [rows, -1, 2], [1, -rows - 1, 2]]
        inputs |= {f"item_{rows}": INT32, f"seen_{rows}": {**INT32, "shape": [3]}}
    expected = np.asarray(network(batch)["vector"])
    network.save_weights(tmp_path / "model.weights.h5")
    model.write_recipe(
        checkpoint={"path": "model.weights.h5"},
        code=CODE,
        inputs=inputs,
        towers=QUERY,
        verify=model.write_examples(examples),
    )
    model.export()

    served = model.served(examples)
    np.testing.assert_array_equal(served[: len(seen)], expected)
    for place, rows in enumerate(SIZES):
        items, histories = np.split(served[len(seen) :, 4 * place : 4 * place + 4], 2, axis=1)
        # Keras rejects them on a CPU: they are out of vocabulary, and read zeros.
        assert (items == 0).all()
        weights = getattr(network, f"seen_{rows}").get_weights()[0]
        np.testing.assert_allclose(histories, [weights[2], weights[1] + weights[2]], 1e-6)


PLAIN = f"""
import tensorflow as tf

SIZES = {SIZES}


class Model(tf.Module):
    def __init__(self):
        for rows in SIZES:
            setattr(self, f"items_{{rows}}", tf.Variable(tf.zeros([rows, 2])))
            layer = tf.keras.layers.Embedding(rows, 2)
            layer.build(None)
            setattr(self, f"layer_{{rows}}", layer)

    @tf.function
    def __call__(self, inputs):
        parts = []
        for rows in SIZES:
            ids = inputs[f"item_{{rows}}"]
            parts.append(tf.gather(getattr(self, f"items_{{rows}}"), ids))
            parts.append(getattr(self, f"layer_{{rows}}")(ids))
        return {{"vector": tf.concat(parts, 1)}}


def build():
    return Model()
"""


def test_ids_that_tensorflow_rejects_read_zeros_whatever_the_size_of_the_table(
    tmp_path: Path,
) -> None:
    """By `tf.gather` and by a layer of tf-keras."""
    tf = load_tensorflow()
    model = write_model(tmp_path, PLAIN)
    network = model.names["build"]()
    ids = {f"item_{rows}": ids_around(rows) for rows in SIZES}
    random = np.random.default_rng(1)
    expected = []
    for rows in SIZES:
        for table in (
            getattr(network, f"items_{rows}"),
            getattr(network, f"layer_{rows}").embeddings,
        ):
            table.assign(random.normal(0, 1, (rows, 2)).astype(np.float32))
            expected.append([table[i] if 0 <= i < rows else [0, 0] for i in ids_around(rows)])
    tf.train.Checkpoint(model=network).write(str(tmp_path / "checkpoint" / "model"))
    model.write_recipe(
        checkpoint=OF_TENSORFLOW,
        code=CODE,
        inputs={name: {"dtype": "int64"} for name in ids},
        towers=QUERY,
        verify=model.write_examples(ids),
    )
    model.export()
    np.testing.assert_array_equal(model.served(ids), np.concatenate(expected, axis=1))


MASKED = f"""
import jax
import jax.numpy as jnp


def score(parameters, inputs):
    ids = inputs["seen"]
    mask = ids > 0
    rows = parameters["items"][ids] * mask[:, :, None]
    weights = jax.nn.softmax(jnp.where(mask, ids * 0.1, -9.0), axis=1)
    return {{"vector": (rows * weights[:, :, None]).sum(1)}}


def build():
    return {{"items": jax.ShapeDtypeStruct(({INSIDE}, 2), jnp.float32)}}, score
"""
WORDS = (50, 70, 90, 20)
"""Keys of a vocabulary, whose rows begin at 1; row 0 is that of padding and of unknown ids."""
BY_WORDS = {"kind": "vocabulary", "vocabulary": "words", "first_row": 1}


def items_of(model: WrittenModel) -> NDArray[np.float32]:
    """Writes a checkpoint of one table, whose rows are returned."""
    items = np.random.default_rng(5).normal(0, 1, (INSIDE, 2)).astype(np.float32)
    write_item(model.folder / "checkpoint", {"params.items": items})
    return items


def masked_model(folder: Path, **feature: Any) -> WrittenModel:
    """Writes a model that masks the rows which a recipe makes of ids."""
    pytest.importorskip("jax")
    model = write_model(folder, MASKED)
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    model.write_recipe(
        code=CODE,
        inputs={"seen": {**INT32, "shape": [4]}},
        towers=QUERY,
        vocabularies={"words": {"file": "words.txt", "dtype": "int64"}},
        features={"seen": feature},
    )
    return model


def test_rows_that_a_recipe_makes_are_also_what_the_model_masks(tmp_path: Path) -> None:
    """Unknown ids are above 0, and the row that they read is not."""
    model = masked_model(tmp_path, ids=BY_WORDS, unknown={"rule": "row", "row": 0})
    items = items_of(model)
    model.export()
    seen = [[50, 20, 70, 90], [99, 50, 0, 0], [-4, 7, 8, 9], [90, 1 << 30, 20, 5]]
    # The rows that its training pipeline made.
    rows = [[1 + WORDS.index(i) if i in WORDS else 0 for i in part] for part in seen]
    expected = model.names["score"]({"items": items}, {"seen": np.array(rows, np.int32)})["vector"]
    np.testing.assert_allclose(model.served({"seen": seen}), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (
            {"ids": BY_WORDS, "unknown": {"rule": "zeros"}},
            "reads a row of table 'items' for every id",
        ),
        ({"unknown": {"rule": "row", "row": 2}}, "it counts ids below 0 from the end"),
    ],
)
def test_masks_whose_numbers_the_recipe_leaves_open_are_rejected(
    feature: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = masked_model(tmp_path, **feature)
    items_of(model)
    with pytest.raises(UsageError, match=message):
        model.export()


ONE_HOT = f"""
import jax
import jax.numpy as jnp


def score(parameters, inputs):
    return {{"vector": jax.nn.one_hot(inputs["item"], {INSIDE}) @ parameters["items"]}}


def build():
    return {{"items": jax.ShapeDtypeStruct(({INSIDE}, 2), jnp.float32)}}, score
"""


@pytest.mark.parametrize("has_examples", [False, True])
def test_compiled_tower_that_fails_outside_of_a_one_hot_vector_is_left_out(
    has_examples: bool, tmp_path: Path
) -> None:
    """LiteRT's converter makes a lookup of the product."""
    pytest.importorskip("jax")
    model = write_model(tmp_path, ONE_HOT)
    items = items_of(model)
    ids = {"item": ids_around(INSIDE)}
    verify = model.write_examples(ids) if has_examples else {}
    model.write_recipe(code=CODE, inputs={"item": INT32}, towers=QUERY, verify=verify)
    note, remedy = model.export().notes
    assert "tower 'query' is not compiled for LiteRT (f32): it fails on " in note
    assert "needs the extra `savedmodel`" in remedy
    forms = read_manifest(tmp_path / "bundles" / "random" / "1").towers["query"].forms
    assert [form.kind for form in forms] == ["saved_model"]
    expected = [items[i] if 0 <= i < INSIDE else [0, 0] for i in ids["item"]]
    np.testing.assert_array_equal(model.served(ids), expected)
