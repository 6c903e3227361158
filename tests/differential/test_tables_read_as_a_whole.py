"""Tables that a model reads by rows of ids that it computes, and also as a whole: scores of all
rows, one-hot products, norms. A service gives what the framework gives, or the exporter says which
line reads the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible, UsageError
from export.graphs.loading import load_tensorflow
from tests.differential.written_models import OF_TENSORFLOW, WrittenModel, write_model
from tests.units.export.checkpoint.orbax_trees import write_item

pytestmark = pytest.mark.slow

ROWS = 40
IDS = [0, 1, ROWS - 1, ROWS, 500, -1, -ROWS - 1, 2**31 - 1, -(2**31)]
LISTS = [[n, 3 * n % ROWS, n + 30] for n in range(len(IDS))]
NUMBERS = [0.5, -2.0, 1.25, 3.0, 0.0, 7.5, -0.25, 30.0, 9.0]
COLUMNS: Mapping[str, Sequence[Any]] = {"i": IDS, "j": LISTS, "x": NUMBERS}
INPUTS: Mapping[str, dict[str, Any]] = {
    "i": {"dtype": "int32"},
    "j": {"dtype": "int32", "shape": [3]},
    "x": {"dtype": "float32"},
}
QUERY = {"query": {"role": "query", "outputs": {"vector": "vector"}}}
VOCABULARY = [f"w{number}" for number in range(ROWS - 1)]

JAX = {
    "tied": "rows @ t.T",
    "softmax": "jax.nn.softmax(rows @ t.T)",
    "one_hot": "rows + jax.nn.one_hot(i, ROWS) @ t",
    "einsum": "jnp.einsum('bd,vd->bv', rows, t)",
    "norm": "rows / jnp.linalg.norm(t)",
    "normalized": "rows @ (t / jnp.linalg.norm(t, axis=1, keepdims=True)).T",
    "mean": "rows - t.mean(0)",
    "column": "rows + t[:, 1][jnp.clip(i, 0, ROWS - 1)][:, None]",
    "columns": "rows @ jnp.take(t, jnp.array([2, 0, 1]), axis=1).T",
    "row": "rows + t[3]",
    "slice": "rows + jax.lax.dynamic_slice(t, (1, 0), (2, 3)).sum(0)",
    "slices": "jax.vmap(lambda n: jax.lax.dynamic_slice(t, (n % 5, 0), (1, 3))[0])(i) + t.sum(0)",
    "with_padding": "jnp.concatenate([jnp.zeros((1, 3)), t])[jnp.clip(i, 0, ROWS)] + rows",
    "loop": "jax.lax.scan(lambda sums, row: (sums + row, None), jnp.zeros(3), t)[0] + rows",
    "plain": "jnp.take(t, i, axis=0, mode='clip') + rows @ (t.T @ t)",
    "zeros": "jnp.take(t, i, axis=0, mode='fill', fill_value=0) + rows @ (t.T @ t)",
    "best": "t[jnp.argmax(rows @ t.T, 1)]",
    "list": "t[jnp.clip(inputs['j'], 0, ROWS - 1)].mean(1) @ t.T",
    "part_of_list": "t[jnp.clip(inputs['j'][:, 1:], 0, ROWS - 1)].sum(1) @ t.T",
    "two_inputs": "t[(i % 3) * 5 + inputs['j'][:, 0] % 5] @ t.T",
}
"""What is computed of a table `t`, its `rows` by clipped ids, and the ids `i`."""
JAX_MODEL = """
import jax
import jax.numpy as jnp

ROWS = {rows}


def call(parameters, inputs):
    i = inputs["i"]
    vectors = []
{cases}
    table = parameters["by_number"]
    number = table[jnp.clip((inputs["x"] * 1.7).astype(jnp.int32), 0, ROWS - 1)]
    # Only training needs these.
    losses = {{"logits": number @ table.T, "table": table}}
    return {{"vector": jnp.concatenate([number, *vectors], axis=1), **losses}}


def build():
    shape = jax.ShapeDtypeStruct((ROWS, 3), jnp.float32)
    return dict.fromkeys({names}, shape), call
"""


def jax_case(name: str, code: str) -> str:
    return (
        f"    t = parameters['{name}']\n"
        "    rows = t[jnp.clip(i, 0, ROWS - 1)]\n"
        f"    vectors.append({code})\n"
    )


def jax_model(folder: Path, cases: Mapping[str, str]) -> tuple[WrittenModel, dict[str, Any]]:
    """Writes a model of JAX and its checkpoint; returns it and its parameters."""
    pytest.importorskip("jax")
    names = ["by_number", *cases]
    text = "".join(jax_case(name, code) for name, code in cases.items())
    model = write_model(folder, JAX_MODEL.format(rows=ROWS, cases=text, names=names))
    random = np.random.default_rng(2)
    parameters = {name: random.normal(size=(ROWS, 3)).astype(np.float32) for name in names}
    leaves = {f"params.{name}": values for name, values in parameters.items()}
    write_item(folder / "checkpoint", leaves)
    return model, parameters


def test_jax_model_is_served_whatever_else_it_reads_of_its_tables(tmp_path: Path) -> None:
    model, parameters = jax_model(tmp_path, JAX)
    verify = model.write_examples(COLUMNS)
    model.write_recipe(inputs=INPUTS, towers=QUERY, verify=verify)
    tables = model.export().manifest.tables
    # It is read by its rows alone where towers need it.
    assert set(tables) == {"by_number"}
    batch = {name: np.array(values, INPUTS[name]["dtype"]) for name, values in COLUMNS.items()}
    expected = model.names["call"](parameters, batch)["vector"]
    np.testing.assert_allclose(model.served(COLUMNS), expected, rtol=1e-4, atol=1e-4)


TENSORFLOW = {
    "tied": "tf.matmul(rows, t, transpose_b=True)",
    "transposed": "rows @ tf.transpose(t)",
    "softmax": "tf.nn.softmax(tf.einsum('bd,vd->bv', rows, t))",
    "one_hot": "rows + tf.one_hot(i, ROWS) @ t",
    "norm": "rows / tf.linalg.norm(t)",
    "normalized": "tf.matmul(rows, tf.nn.l2_normalize(t, 1), transpose_b=True)",
    "row": "rows + t[3] - tf.reduce_mean(t, 0)",
    "condition": "tf.cond(i[0] < -99, lambda: rows, lambda: rows @ tf.matmul(t, t, True))",
    "best": "layer(tf.argmax(tf.matmul(rows, t, transpose_b=True), 1))",
    "list": "tf.reduce_mean(layer(inputs['j'] % ROWS), 1) @ tf.transpose(t)",
    "part_of_list": "tf.reduce_sum(layer(inputs['j'][:, 1:] % ROWS), 1) @ tf.transpose(t)",
    "bag": (
        "tf.nn.embedding_lookup_sparse(tf.convert_to_tensor(t), "
        "tf.sparse.from_dense(inputs['j'] % ROWS + 1 - 1), None, combiner='sum') + "
        "tf.reduce_sum(t, 0)"
    ),
}
"""What is computed of a table `t`, its `layer`, its `rows` by clipped ids, and the ids `i`."""
TENSORFLOW_MODEL = """
import keras
import tensorflow as tf

ROWS = {rows}


class Gather(tf.Module):
    def __init__(self):
        self.embeddings = tf.Variable(tf.zeros([ROWS, 3]))

    def __call__(self, ids):
        return tf.gather(self.embeddings, ids)


class Model({base}):
    def __init__(self):
        super().__init__()
        for name in {names}:
            setattr(self, name, {layer})

    def {method}(self, inputs):
        i = inputs["i"]
        vectors = []
{cases}
        return {{"vector": tf.concat(vectors, axis=1), "logits": tf.reduce_sum(t)}}


def build():
    return Model()
"""
KINDS = {
    "module": ("tf.Module", "Gather()", "__call__"),
    "tf-keras": ("tf.keras.Model", "tf.keras.layers.Embedding(ROWS, 3)", "call"),
    "keras": ("keras.Model", "keras.layers.Embedding(ROWS, 3)", "call"),
}


def tensorflow_case(name: str, code: str) -> str:
    return (
        f"        layer = self.{name}\n"
        "        rows = layer(tf.clip_by_value(i, 0, ROWS - 1))\n"
        "        t = tf.convert_to_tensor(layer.embeddings)\n"
        f"        vectors.append({code})\n"
    )


def trained(model: WrittenModel, batch: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Gives a model weights and saves it; returns its vectors, and the recipe's checkpoint."""
    tf = load_tensorflow()
    network = model.names["build"]()
    network(batch)
    random = np.random.default_rng(2)
    for variable in network.variables:
        variable.assign(random.normal(size=variable.shape).astype(np.float32))
    vectors = np.asarray(network(batch)["vector"])
    if isinstance(network, tf.Module):
        tf.train.Checkpoint(model=network).write(str(model.folder / "checkpoint" / "model"))
        return vectors, OF_TENSORFLOW
    network.save_weights(model.folder / "model.weights.h5")
    return vectors, {"path": "model.weights.h5"}


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_tensorflow_model_is_served_whatever_else_it_reads_of_its_tables(
    kind: str, tmp_path: Path
) -> None:
    tf = load_tensorflow()
    base, layer, method = KINDS[kind]
    text = "".join(tensorflow_case(name, code) for name, code in TENSORFLOW.items())
    names = list(TENSORFLOW)
    model = write_model(
        tmp_path,
        TENSORFLOW_MODEL.format(
            rows=ROWS, base=base, layer=layer, method=method, names=names, cases=text
        ),
    )
    batch = {name: tf.constant(values, INPUTS[name]["dtype"]) for name, values in COLUMNS.items()}
    expected, checkpoint = trained(model, batch)
    inputs = {name: INPUTS[name] for name in ("i", "j")}
    columns = {name: COLUMNS[name] for name in inputs}
    model.write_recipe(
        inputs=inputs, towers=QUERY, checkpoint=checkpoint, verify=model.write_examples(columns)
    )
    assert not model.export().manifest.tables
    np.testing.assert_allclose(model.served(columns), expected, rtol=1e-4, atol=1e-4)


BY_WORDS = """
import tensorflow as tf

VOCABULARY = {vocabulary}


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.rows_of = tf.keras.layers.StringLookup(vocabulary=VOCABULARY)
        self.items = tf.keras.layers.Embedding(len(VOCABULARY) + 1, 3)

    def call(self, inputs):
        vectors = self.items(self.rows_of(inputs["word"]))
        scores = tf.matmul(tf.reduce_mean(vectors, 1), self.items.embeddings, transpose_b=True)
        return {{"vector": scores}}


def build():
    return Model()
"""


def test_table_of_words_that_is_also_read_as_a_whole_is_read_by_the_rows_of_a_bundle(
    tmp_path: Path,
) -> None:
    tf = load_tensorflow()
    model = write_model(tmp_path, BY_WORDS.format(vocabulary=VOCABULARY))
    words = [["w1", "w38"], ["no such word", "w0"], ["", "w7"]]
    expected, checkpoint = trained(model, {"word": tf.constant(words)})
    inputs = {"word": {"dtype": "string", "shape": [2]}}
    model.write_recipe(inputs=inputs, towers=QUERY, checkpoint=checkpoint)
    published = model.export()
    # A tower that took the words could not be compiled.
    assert not [note for note in published.notes if "LiteRT" in note]
    np.testing.assert_allclose(model.served({"word": words}), expected, rtol=1e-4, atol=1e-4)


TIED = {"tied": "jnp.take(t, i, axis=0, mode='clip') @ t.T"}


def test_rows_that_a_recipe_makes_of_words_are_read_inside_of_a_tower(tmp_path: Path) -> None:
    model, parameters = jax_model(tmp_path, TIED)
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    rule = {"kind": "vocabulary", "vocabulary": "words", "first_row": 1}
    model.write_recipe(
        inputs=INPUTS,
        towers=QUERY,
        vocabularies={"words": {"file": "words.txt"}},
        features={"i": {"ids": rule, "unknown": {"rule": "row", "row": 0}}},
    )
    model.export()
    columns: dict[str, Sequence[Any]] = {
        "i": ["w0", "w38", "no such word"],
        "j": LISTS[:3],
        "x": NUMBERS[:3],
    }
    batch = {"i": np.array([1, 39, 0]), "x": np.array(NUMBERS[:3], np.float32)}
    expected = model.names["call"](parameters, batch)["vector"]
    np.testing.assert_allclose(model.served(columns), expected, rtol=1e-4, atol=1e-4)


TWO_TOWERS = """
import tensorflow as tf


class Model(tf.Module):
    def __init__(self):
        self.items = tf.Variable(tf.zeros([40, 3]))

    def vectors(self, inputs):
        return tf.gather(self.items, inputs["i"] % 40)

    def scores(self, inputs):
        return tf.matmul(self.vectors(inputs), self.items, transpose_b=True)

    def __call__(self, inputs):
        return {"vector": self.vectors(inputs), "scores": self.scores(inputs)}


def build():
    return Model()
"""


def test_table_that_one_tower_reads_as_a_whole_stays_inside_of_all(tmp_path: Path) -> None:
    tf = load_tensorflow()
    model = write_model(tmp_path, TWO_TOWERS)
    batch = {"i": tf.constant(IDS)}
    expected, checkpoint = trained(model, batch)
    towers = {
        "item": {"role": "candidate", "call": "vectors"},
        "query": {"role": "query", "call": "scores"},
    }
    model.write_recipe(inputs={"i": INPUTS["i"]}, towers=towers, checkpoint=checkpoint)
    assert not model.export().manifest.tables
    columns = {"i": IDS}
    np.testing.assert_allclose(model.served(columns, "item"), expected, rtol=1e-4, atol=1e-4)
    random = np.random.default_rng(2).normal(size=(ROWS, 3)).astype(np.float32)
    np.testing.assert_allclose(model.served(columns), expected @ random.T, rtol=1e-4, atol=1e-4)


def test_table_that_is_too_large_to_stay_is_refused_with_the_line_that_reads_it(
    tmp_path: Path,
) -> None:
    model, _ = jax_model(tmp_path, TIED)
    model.write_recipe(inputs=INPUTS, towers=QUERY, code={"inline_bytes_max": 400})
    words = (
        r"table 'tied' of 40 rows \(480 B\) would stay inside the towers, since tower 'query' "
        r"reads it as a whole by operation '.*' \(.*\) \(model.py:13\), and is larger than "
        r"code.inline_bytes_max \(400 B\) allows; read it by lookups only: .*index.*"
    )
    with pytest.raises(NotConvertible, match=words):
        model.export()


def test_section_of_a_table_that_stays_says_why_it_does(tmp_path: Path) -> None:
    model, _ = jax_model(tmp_path, TIED)
    tables = {"tied": {"dtype": "float16"}}
    model.write_recipe(inputs=INPUTS, towers=QUERY, tables=tables)
    with pytest.raises(UsageError, match=r"tables.tied: no table .* leaves .*model.py:13"):
        model.export()


LOGITS = """
import keras
import tensorflow as tf


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.items = keras.layers.Embedding(1 << 24, 2)

    def call(self, inputs):
        vectors = self.items(inputs["i"])
        return {"vector": vectors, "logits": vectors @ tf.transpose(self.items.embeddings)}


def build():
    model = Model()
    model({"i": tf.constant([1])})
    return model
"""


def test_factory_that_reads_a_large_table_as_a_whole_is_refused_with_the_line(
    tmp_path: Path,
) -> None:
    pytest.importorskip("keras")
    (tmp_path / "model.py").write_text(LOGITS)
    model = WrittenModel(tmp_path, {})
    tf = load_tensorflow()
    tf.train.Checkpoint(step=tf.Variable(1)).write(str(tmp_path / "checkpoint" / "model"))
    model.write_recipe(inputs={"i": INPUTS["i"]}, towers=QUERY, checkpoint=OF_TENSORFLOW)
    words = (
        r"reads table .* \[16777216, 2\] \(128.0 MiB\) as a whole \(model.py:13\), .* lookups only"
    )
    with pytest.raises(NotConvertible, match=words):
        model.export()
