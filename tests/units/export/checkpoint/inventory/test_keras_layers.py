from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint

TABLE = np.zeros((8, 3), np.float32)


def tables_of(directory: Path, weights: Mapping[str, str], layers: list[Any]) -> list[str]:
    """Returns the names of the tables in a file of weights.

    Args:
      directory: The directory of the file.
      weights: The name of each matrix's layer, by the path of the matrix; "": it has no name.
      layers: The layers in the model's configuration, which is left out if there are none.
    """
    with h5py.File(directory / "a.weights.h5", "w") as file:
        for path, name in weights.items():
            file[path] = TABLE
            if name:
                file[path].parent.attrs["name"] = name
        if layers:
            file.attrs["model_config"] = json.dumps({"config": {"layers": layers}})
    return [table.name for table in recognize(open_checkpoint(directory)).tables]


def layer(kind: str, name: str, *inner: Any) -> dict[str, Any]:
    return {"class_name": kind, "config": {"name": name, "layers": inner}}


@pytest.mark.parametrize(
    ("path", "name", "layers", "tables"),
    [
        # By the folder of its kind, unless the configuration knows better.
        ("layers/embedding/vars/0", "user", [], ["user"]),
        ("layers/embedding/vars/0", "user", [layer("Dense", "user")], []),
        ("layers/dense/vars/0", "user", [], []),
        ("layers/embedding/vars/1", "user", [], []),
        # By its class.
        ("layers/lookup/vars/0", "user", [layer("Embedding", "user")], ["user"]),
        ("layers/lookup/vars/0", "user", [layer("Dense", "user")], []),
        (
            "layers/lookup/vars/0",
            "user",
            [layer("Functional", "m", layer("Embedding", "user"))],
            ["user"],
        ),
        # By the name that Keras gives it.
        ("layers/lookup/vars/0", "embedding_3", [], ["embedding_3"]),
        ("layers/lookup/vars/0", "embedding_3", [layer("Dense", "x")], []),
        ("layers/lookup/vars/0", "embeddings_3", [], []),
        # As Keras 2 saved it.
        ("model_weights/user/user/embeddings:0", "", [], ["user"]),
        # What no model has is passed over.
        (
            "layers/lookup/vars/0",
            "user",
            [3, {"class_name": "Embedding"}, layer("Embedding", "user")],
            ["user"],
        ),
    ],
)
def test_matrix_is_a_table_by_its_path_its_name_or_the_class_of_its_layer(
    tmp_path: Path, path: str, name: str, layers: list[Any], tables: list[str]
) -> None:
    assert tables_of(tmp_path, {path: name}, layers) == tables


@pytest.mark.parametrize(
    ("paths", "tables"),
    [
        (["layers/embedding", "layers/embedding_1"], ["item", "user"]),
        (["layers/embedding"], ["embedding"]),
        (["layers/embedding", "layers/embedding_2"], ["embedding_2", "user"]),
        (["layers/embedding", "inner/layers/embedding_1"], ["embedding", "embedding_1"]),
    ],
)
def test_table_without_a_name_is_called_by_its_place_among_the_embeddings(
    tmp_path: Path, paths: list[str], tables: list[str]
) -> None:
    layers = [layer("Embedding", "user"), layer("Dense", "d"), layer("Embedding", "item")]
    assert tables_of(tmp_path, {f"{path}/vars/0": "" for path in paths}, layers) == tables


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("optimizer/vars/3", "3"),
        ("model/optimizer/vars/3", "3"),
        ("optimizer/user_momentum", "user_momentum"),
        ("optimizer_weights/Adam/user/embeddings:0", "Adam/user/embeddings"),
    ],
)
def test_variable_of_an_optimizer_is_a_slot(tmp_path: Path, key: str, slot: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[key] = TABLE
        file["layers/embedding/vars/0"] = TABLE
    inventory = recognize(open_checkpoint(tmp_path / "a.h5"))
    assert [(slot.name, slot.key, slot.trained_key) for slot in inventory.slots] == [
        (slot, key, "")
    ]
    assert [table.name for table in inventory.tables] == ["embedding"]
    assert inventory.dense == ()


@pytest.mark.parametrize("values", [TABLE[0], TABLE[:0], TABLE.astype(np.int32), TABLE[None]])
def test_values_that_no_table_has_are_none(tmp_path: Path, values: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["layers/embedding/vars/0"] = values
    assert recognize(open_checkpoint(tmp_path / "a.h5")).tables == ()


@pytest.mark.parametrize(("depth", "tables"), [(1, ["user"]), (31, ["user"]), (32, [])])
def test_layers_of_nested_models_are_followed_to_a_depth(
    tmp_path: Path, depth: int, tables: list[str]
) -> None:
    inner = layer("Embedding", "user")
    for number in range(depth):
        inner = layer("Functional", f"m{number}", inner)
    assert tables_of(tmp_path, {"layers/lookup/vars/0": "user"}, [inner]) == tables


@pytest.mark.parametrize(
    ("weights", "tables"),
    [
        ({"a/user/vars/0": "embedding", "b/user/vars/0": "embedding"}, ["a.user", "b.user"]),
        ({"a/user/embeddings": "", "b/user/embeddings:0": ""}, ["a.user", "b.user"]),
        ({"a/user/embeddings:0": ""}, ["user"]),
        ({"user/embeddings": ""}, ["user"]),
        ({"embeddings": ""}, []),
        ({"user/my_embeddings": ""}, []),
    ],
)
def test_tables_of_one_name_are_called_by_their_paths(
    tmp_path: Path, weights: dict[str, str], tables: list[str]
) -> None:
    assert tables_of(tmp_path, weights, []) == tables


@pytest.mark.parametrize("config", ['{"config": 3}', '{"config": {"layers": 3}}'])
def test_configuration_without_layers_names_no_class(tmp_path: Path, config: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["layers/embedding/vars/0"] = TABLE
        file.attrs["model_config"] = config
    assert [table.name for table in recognize(open_checkpoint(tmp_path / "a.h5")).tables] == [
        "embedding"
    ]
