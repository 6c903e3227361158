from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.format.manifest import Tower, TowerForm, TowerInput, TowerOutput
from runtime.errors import TowerUnreadable
from runtime.litert import CompiledTower
from runtime.towers import open_tower

F32 = "compiled-f32.tflite"
INT8 = "compiled-int8.tflite"


def _query_spec(**changes: str) -> Tower:
    forms = [
        TowerForm(kind="saved_model", precision="f32", path="query/saved_model", max_abs_error={}),
        TowerForm(kind="litert", precision="f32", path=f"query/{F32}", max_abs_error={}),
        TowerForm(kind="litert", precision="int8", path=f"query/{INT8}", max_abs_error={}),
    ]
    return Tower(
        role="query",
        inputs=(
            TowerInput(name="user", feature="user", dtype="float32", shape=(None, 32)),
            TowerInput(
                name=changes.get("second", "history"),
                feature="history",
                dtype="float32",
                shape=(None, 64),
            ),
        ),
        outputs=(
            TowerOutput(name="norm", dtype="float32", shape=(None,)),
            TowerOutput(name="vector", dtype=changes.get("dtype", "float32"), shape=(None, 64)),
        ),
        result="vector",
        forms=tuple(form for form in forms if form.kind == changes.get("only", form.kind)),
        serve="int8" if changes.get("serve") == "int8" else "f32",
    )


def test_open_tower_takes_the_wanted_precision_else_the_served_one(towers: Path) -> None:
    random = np.random.default_rng(4)
    inputs = {
        "user": random.normal(size=(4, 32)).astype("<f4"),
        "history": random.normal(size=(4, 64)).astype("<f4"),
    }
    f32 = CompiledTower(towers / "query" / F32).run(inputs)["vector"]
    int8 = CompiledTower(towers / "query" / INT8).run(inputs)["vector"]

    assert np.array_equal(open_tower(towers, _query_spec()).run(inputs)["vector"], f32)
    assert np.array_equal(open_tower(towers, _query_spec(serve="int8")).run(inputs)["vector"], int8)
    assert np.array_equal(open_tower(towers, _query_spec(), "int8").run(inputs)["vector"], int8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"second": "watched"},
            "inputs ['history', 'user'], the manifest says ['user', 'watched']",
        ),
        (
            {"dtype": "int32"},
            "output 'vector' is float32 [any, 64], the manifest says int32 [any, 64]",
        ),
    ],
)
def test_open_tower_other_than_the_manifest_is_unreadable(
    towers: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(TowerUnreadable) as rejection:
        open_tower(towers, _query_spec(**changes))

    assert message in str(rejection.value).replace("sorted", "")


def test_open_tower_without_the_precision_names_the_forms(towers: Path) -> None:
    with pytest.raises(TowerUnreadable, match=r"'int8'.*forms: saved_model f32"):
        open_tower(towers, _query_spec(only="saved_model"), "int8")
