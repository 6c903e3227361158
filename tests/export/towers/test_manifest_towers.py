from __future__ import annotations

import subprocess
import sys

import pytest

from bundle.format import manifest
from export.errors import NotConvertible
from export.graph.specs import TowerSpec
from export.towers.manifest_towers import describe_tower
from tests.export.traced_models import movies_recipe

TOWER = TowerSpec(
    name="query",
    role="query",
    call="",
    call_inputs=("user",),
    keys={"vector": "query"},
    inputs=(manifest.TowerInput(name="user", feature="user", dtype="float32", shape=(None, 2)),),
    outputs=(manifest.TowerOutput(name="vector", dtype="float32", shape=(None, 4)),),
    result="vector",
)


def test_describe_tower_missing_precision_cannot_be_served() -> None:
    form = manifest.TowerForm(kind="saved_model", precision="f32", path="towers/query/s", max_abs_error={})
    towers = {
        "query": {
            "role": "query",
            "outputs": {"vector": "query"},
            "precisions": ["f32", "int8"],
            "serve": "int8",
            "max_abs_error": {"int8": 1.0},
        }
    }
    with pytest.raises(NotConvertible, match=r"tower 'query' is to be served in int8, and LiteRT cannot run it; set"):
        describe_tower(TOWER, movies_recipe(towers=towers), (form,))


def test_descriptions_import_no_tensorflow() -> None:
    program = (
        "import sys, export.recipe.schema, export.verify.examples, export.verify.parity\n"
        "import export.model.tracing, export.graph.specs\n"
        "assert not {'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
