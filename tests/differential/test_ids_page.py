"""docs/how-to/ids.md: the recipe of each way to make rows gives the rows that the code beside it
gives, for ids that the code knows and others.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.format.manifest import EmbeddedFeature
from bundle.storage.catalog import read_manifest
from export.graphs.loading import load_tensorflow, prefer_keras
from tests.repository.docs.blocks import ROOT, Block, blocks_of
from tests.units.export.movies_job import export

prefer_keras(2)
load_tensorflow()

import tensorflow as tf  # noqa: E402 after the generation of Keras is chosen

BLOCKS = blocks_of(ROOT / "docs/how-to/ids.md")
CODE = [
    block
    for block in BLOCKS
    if block.language == "python" and block.marker == "run by tests/differential/test_ids_page.py"
]
TABLE_ROWS = 1_000
NUMBERS = np.array([318, 47, 1196, 0, -7, 5, 10**12])
TEXTS: dict[str, list[str]] = {
    "genre": ["Action", "Drama", "Western", "", "action"],
    "brand": ["Acme", "Corp", "", "Zeta", "bolt", "Bolt "],
}
AGES = np.array([-1.0, 17.9, 18.0, 24.5, 65.0, 1e6], np.float32)
VOCABULARIES = {
    "movies.txt": ["318", "47", "1196"],
    "items.txt": ["318", "47", "1196"],
    "genres.txt": ["Action", "Comedy", "Drama"],
    "brands.txt": ["Acme", "Bolt", "Corp"],
}
MODEL = """
import tensorflow as tf


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.tables = {{name: tf.keras.layers.Embedding({rows}, 4) for name in {names}}}

    def call(self, rows):
        return tf.concat([self.tables[name](rows[name]) for name in {names}], axis=1)


def build_model():
    return {model}
"""
RECIPE = """
model = "rows"
output = { root = "bundles" }
towers.query = { role = "query" }
code = { factory = "model.py:build_model", table_threshold = 1 }
"""


def recipe_after(code: Block) -> str:
    """Returns the recipe that follows a block of code."""
    recipe = BLOCKS[BLOCKS.index(code) + 1]
    assert (recipe.language, recipe.marker) == ("toml", code.marker)
    return recipe.text


def ids_of(name: str) -> NDArray[Any]:
    """Returns ids that clients could send of an input."""
    if name == "age":
        return AGES
    return np.array(TEXTS[name], object) if name in TEXTS else NUMBERS


def write_model(folder: Path, names: list[str], model: str, wrapper: str = "") -> None:
    """Writes a model with a table for each name, and its checkpoint."""
    text = MODEL.format(rows=TABLE_ROWS, names=names, model=model)
    (folder / "model.py").write_text(f"{text}\n\n{wrapper}")
    scope: dict[str, Any] = {}
    exec(compile(text, "model.py", "exec"), scope)
    trained = scope["Model"]()
    trained({name: tf.zeros(1, tf.int64) for name in names})
    tf.train.Checkpoint(model=trained).write(str(folder / "checkpoint/saved"))


def exported(recipe: Path) -> Path:
    """Runs a recipe; returns the directory of the bundle."""
    directory = export(recipe).directory
    assert isinstance(directory, Path)
    return directory


def rows_of(bundle: Path, name: str, ids: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the rows that a bundle reads for ids."""
    manifest = read_manifest(bundle)
    feature = manifest.features[name]
    assert isinstance(feature, EmbeddedFeature)
    rows, _ = open_features(bundle, manifest).rows(name, {name: Column(ids)}, ids.size)
    return np.where(rows < 0, -1 if feature.unknown.row is None else feature.unknown.row, rows)


def test_recipes_of_a_pipeline_give_its_rows(tmp_path: Path) -> None:
    expected: dict[str, NDArray[np.int64]] = {}
    recipes = []
    for code in CODE[:-1]:
        recipes.append(recipe_after(code))
        (name,) = tomllib.loads(recipes[-1])["inputs"]
        ids = ids_of(name)
        scope: dict[str, Any] = {"tf": tf, "ids": ids if name == "genre" else tf.constant(ids)}
        exec(compile(code.text, str(code), "exec"), scope)
        expected[name] = np.asarray(scope["rows"])
    for file, keys in VOCABULARIES.items():
        (tmp_path / file).write_text("\n".join(keys) + "\n")
    write_model(tmp_path, list(expected), "Model()")
    checkpoint = '[checkpoint]\npath = "checkpoint/saved"\nobject_path = "model"\n'
    (tmp_path / "recipe.toml").write_text("\n".join([RECIPE, checkpoint, *recipes]))

    bundle = exported(tmp_path / "recipe.toml")

    for name, rows in expected.items():
        np.testing.assert_array_equal(rows_of(bundle, name, ids_of(name)), rows, err_msg=name)


def test_rule_before_the_model_gives_its_rows(tmp_path: Path) -> None:
    wrapper = CODE[-1]
    write_model(tmp_path, ["device", "video"], "FromIds(Model())", wrapper.text)
    recipe = recipe_after(wrapper).replace('"checkpoint"', '"checkpoint/saved"')
    (tmp_path / "recipe.toml").write_text(RECIPE + recipe)

    bundle = exported(tmp_path / "recipe.toml")

    devices = np.array(["phone", "", "TV"], object)
    hashed = tf.keras.layers.Hashing(1_000, salt=7)(devices.tolist())
    features = {
        feature.inputs[0] if feature.inputs else name: name
        for name, feature in read_manifest(bundle).features.items()
    }
    assert rows_of(bundle, features["device"], devices).tolist() == hashed.numpy().tolist()
    videos = np.array([5, 999, 1_000, 10**12 + 1, -1])
    assert rows_of(bundle, features["video"], videos).tolist() == (videos % 1_000).tolist()


def test_page_has_a_recipe_for_each_rule() -> None:
    kinds = {
        feature["ids"]["kind"]
        for code in CODE[:-1]
        for feature in tomllib.loads(recipe_after(code))["features"].values()
    }
    assert kinds == {"hash", "vocabulary", "buckets"}


@pytest.mark.parametrize("keys", VOCABULARIES)
def test_vocabulary_of_the_page_is_written_here(keys: str) -> None:
    assert any(f'"{keys}"' in block.text for block in BLOCKS)
