"""What is a table and what is not, by metadata alone: on object graphs built by hand,
odd ones too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)

TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)


def inventory(
    directory: Path,
    nodes: list[bytes],
    variables: dict[str, Any],
    named: dict[str, str] | None = None,
) -> Inventory:
    write_bundle(directory / "ckpt-3", {**variables, GRAPH: object_graph(*nodes)})
    return recognize(open_checkpoint(directory / "ckpt-3"), named)


def embedding_object(root: dict[str, int], extra: list[bytes] | None = None) -> list[bytes]:
    """Nodes 0..5: root, object, `_variables`, the table's pair, parameters, accumulators."""
    return [
        node(root),
        node({"_variables": 2}),
        node({"items": 3}),
        node({"parameters": 4, "accumulators": 5}),
        node(key="e/t" + SUFFIX),
        node(key="e/t.Saccumulators" + SUFFIX),
        *(extra or []),
    ]


PAIR = {"e/t" + SUFFIX: TABLE, "e/t.Saccumulators" + SUFFIX: TABLE}


def test_recognize_table_that_is_called_like_a_slot_stays_a_table(tmp_path: Path) -> None:
    """Table `a` has slot `accumulators`; another table is called `a/accumulators`: both keys read
    the same way.
    """
    nodes = [
        node({"e": 1}),
        node({"_variables": 2}),
        node({"a": 3, "a/accumulators": 4}),
        node({"parameters": 5, "accumulators": 6}),
        node({"parameters": 7}),
        node(key="e/a" + SUFFIX),
        node(key="e/a.S2accumulators" + SUFFIX),
        node(key="e/a.Saccumulators" + SUFFIX),
    ]
    variables = {f"e/a{tail}{SUFFIX}": TABLE for tail in ("", ".Saccumulators", ".S2accumulators")}
    checkpoint_inventory = inventory(tmp_path, nodes, variables)
    assert {table.name: table.key for table in checkpoint_inventory.tables} == {
        "a": "e/a" + SUFFIX,
        "a/accumulators": "e/a.Saccumulators" + SUFFIX,
    }
    assert [slot.key for slot in checkpoint_inventory.slots] == ["e/a.S2accumulators" + SUFFIX]


def test_recognize_keras_layers_of_one_name_by_their_paths(tmp_path: Path) -> None:
    nodes = [
        node({"a": 1, "b": 2}),
        node({"emb": 3}),
        node({"emb": 4}),
        node({"embeddings": 5}),
        node({"embeddings": 6}),
        node(key="a/emb/embeddings" + SUFFIX),
        node(key="b/emb/embeddings" + SUFFIX),
    ]
    checkpoint_inventory = inventory(
        tmp_path, nodes, {f"{side}/emb/embeddings{SUFFIX}": TABLE for side in "ab"}
    )
    assert [table.name for table in checkpoint_inventory.tables] == ["a.emb", "b.emb"]


@pytest.mark.parametrize(
    ("path", "full_name", "name"),
    [
        (["users", "embeddings"], "members/embeddings", "members"),
        # Keras 3 names a functional model's variables after the layers, a subclassed one's not.
        (["0", "_embeddings"], "members/embeddings", "members"),
        (["users", "_embeddings"], "my_model/embeddings", "users"),
        (["users", "embeddings"], "", "users"),
        (["embeddings"], "", "embeddings"),
    ],
)
def test_recognize_keras_layer_by_the_name_that_tells_it(
    tmp_path: Path, path: list[str], full_name: str, name: str
) -> None:
    key = "/".join(path) + SUFFIX
    nodes = [node({step: number}) for number, step in enumerate(path, 1)]
    checkpoint_inventory = inventory(
        tmp_path, [*nodes, node(key=key, full_name=full_name)], {key: TABLE}
    )
    assert [table.name for table in checkpoint_inventory.tables] == [name]


@pytest.mark.parametrize(
    "values", [{}, {"emb/embeddings" + SUFFIX: TABLE[0]}, {"emb/embeddings" + SUFFIX: b"text"}]
)
def test_recognize_keras_layer_without_a_matrix_is_no_table(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    nodes = [node({"emb": 1}), node({"embeddings": 2}), node(key="emb/embeddings" + SUFFIX)]
    assert inventory(tmp_path, nodes, values).tables == ()


@pytest.mark.parametrize(
    ("value", "step"),
    [(np.array(7), 7), (np.array([7, 8]), None), (np.float32(7), None)],
)
def test_recognize_step_is_a_single_integer(
    tmp_path: Path, value: np.ndarray[Any, Any], step: int | None
) -> None:
    checkpoint_inventory = inventory(
        tmp_path, [node({"step": 1}), node(key="s" + SUFFIX)], {"s" + SUFFIX: value}
    )
    assert checkpoint_inventory.step == step


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ({"step": np.array(3), "global_step": np.array(4), "count": np.array(5)}, 3),
        ({"step": np.float32(3), "global_step": np.array(4), "count": np.array(5)}, 4),
        ({"global_step": np.array(4, np.int32)}, 4),
        ({"count": np.array(5), "other": np.array(6)}, 6),
        ({"count": np.array(8), "other": np.array(6)}, 8),
        ({"count": np.array(8), "older": np.array(9)}, 9),
        ({"slotless": np.array(9)}, None),
        ({"count": np.array(True)}, None),
        ({}, None),
    ],
)
def test_recognize_step_of_the_program_or_else_the_largest_count_of_its_optimizers(
    tmp_path: Path, values: dict[str, Any], step: int | None
) -> None:
    names = ["step", "global_step", "count", "other", "older", "slotless", "state"]
    positions = {name: number for number, name in enumerate(names, 5)}
    nodes = [
        node({"step": 5, "global_step": 6, **{f"o{number}": number for number in range(1, 5)}}),
        node({"_iterations": positions["count"]}),
        node({"_iterations": positions["other"]}),
        node({"iter": positions["older"]}, slots=[(positions["state"], "m", positions["state"])]),
        node({"iter": positions["slotless"]}),
        *(node(key=name + SUFFIX) for name in names),
    ]
    contents = {name + SUFFIX: value for name, value in values.items()}
    assert inventory(tmp_path, nodes, {**contents, "state" + SUFFIX: TABLE}).step == step


def test_recognize_step_of_names_alone_is_the_global_step(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"step": np.array(3), "global_step": np.array(4)})
    assert recognize(open_checkpoint(tmp_path)).step == 4


@pytest.mark.parametrize(
    ("counts", "step"),
    [
        ({"optimizer/vars/0": 4, "optimizer/vars/1": 5}, 4),
        ({"optimizer/inner_optimizer/vars/0": 4, "optimizer/vars/0": 0}, 4),
        ({"optimizer_weights/iteration:0": 4}, 4),
        ({"optimizer_weights/Adam/iterations": 4}, 4),
        ({"layers/dense/vars/0": 4, "global_step": 5}, None),
    ],
)
def test_recognize_step_of_a_keras_file_is_what_its_optimizer_counted(
    tmp_path: Path, counts: dict[str, int], step: int | None
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for key, count in counts.items():
            file[key] = np.int64(count)
    assert recognize(open_checkpoint(tmp_path / "a.h5")).step == step


def test_unknown_table_is_rejected_with_the_variables_that_may_be_meant(tmp_path: Path) -> None:
    matrices = {f"m{number:02}": TABLE for number in range(21)} | {"long": np.zeros((9, 3))}
    write_bundle(tmp_path / "none/c", matrices)
    with pytest.raises(NotConvertible) as rejected:
        recognize(open_checkpoint(tmp_path / "none")).table("movies")
    listed = "; ".join(f"m{number:02} [8, 3] float32" for number in range(19))
    assert str(rejected.value) == (
        "checkpoint c has no table 'movies' (recognized: none); name a variable with "
        "--table NAME=KEY (in a recipe: tables.NAME.key); those with the shape of a table: "
        f"long [9, 3] float64; {listed}; and 2 more"
    )

    write_bundle(tmp_path / "two/c", {"movie/embeddings": TABLE, "user/embeddings": TABLE})
    inventory = recognize(open_checkpoint(tmp_path / "two"))
    for name, hint in (
        ("movies", "did you mean 'movie'?"),
        ("x", "no other variable has the shape of a table"),
    ):
        with pytest.raises(NotConvertible) as rejected:
            inventory.table(name)
        assert str(rejected.value) == (
            f"checkpoint c has no table {name!r} (recognized: movie, user); {hint}"
        )


def test_recognize_states_of_a_keras_3_optimizer_by_the_variables_that_it_trains(
    tmp_path: Path,
) -> None:
    """The list of all states begins with two that belong to no variable, and may come last."""
    keys = ["iterations", "rate", "a", "b", "c", "a_momentum", "b_momentum", "c_momentum"]
    contents = {name: number for number, name in enumerate(keys, 5)}
    states = ["iterations", "rate", "a_momentum", "b_momentum", "c_momentum"]
    nodes = [
        node({"optimizer": 1}),
        node(
            {
                "_iterations": contents["iterations"],
                "_trainable_variables": 2,
                "_momentums": 3,
                "_variables": 4,
            }
        ),
        node({str(number): contents[name] for number, name in enumerate("abc")}),
        node({str(number): contents[f"{name}_momentum"] for number, name in enumerate("abc")}),
        node({str(number): contents[name] for number, name in enumerate(states)}),
        *(node(key=name + SUFFIX) for name in keys),
    ]
    variables: dict[str, Any] = {name + SUFFIX: TABLE for name in keys[2:]}
    variables |= {name + SUFFIX: np.float32(0) for name in keys[:2]}
    checkpoint_inventory = inventory(tmp_path, nodes, variables)
    slots = [
        (slot.name, slot.key, slot.trained_key)
        for slot in checkpoint_inventory.slots
        if slot.trained_key
    ]
    assert slots == [("momentums", f"{name}_momentum{SUFFIX}", name + SUFFIX) for name in "abc"]


def test_recognize_small_tables_of_a_partial_tpu_embedding_by_their_features(
    tmp_path: Path,
) -> None:
    nodes = [
        node({"embedding": 1}),
        node({"_keras_embedding_layers": 2}),
        node({"genre": 3, "kind": 3, "never_called": 4, "of_one_axis": 5, "not_saved": 6}),
        node({"embeddings": 7}),
        node({}),
        node({"embeddings": 8}),
        node({"embeddings": 9}),
        node(key="genres" + SUFFIX),
        node(key="vector" + SUFFIX),
        node(key="gone" + SUFFIX),
    ]
    variables = {"genres" + SUFFIX: TABLE, "vector" + SUFFIX: TABLE[0]}
    (table,) = inventory(tmp_path, nodes, variables).tables
    assert (table.name, table.key) == ("genre", "genres" + SUFFIX)
    assert table.origin == "PartialTPUEmbedding"
    assert "its feature 'genre' (also read by 'kind')" in table.note
    (table,) = recognize(open_checkpoint(tmp_path), {"genres": "genre"}).tables
    assert (table.name, table.note) == ("genres", "")


@pytest.mark.parametrize(
    ("second", "names"), [(TABLE, ["movies"]), (TABLE + 1, ["variables", "_all_variables"])]
)
def test_recognize_exported_model_that_holds_its_variables_twice(
    tmp_path: Path, second: np.ndarray[Any, Any], names: list[str]
) -> None:
    """As Keras 3 exports a model. With other values it is another variable, whatever its name."""
    keys = ["variables/0" + SUFFIX, "_all_variables/0" + SUFFIX]
    nodes = [
        node({"variables": 1, "_all_variables": 2}),
        node({"0": 3}),
        node({"0": 4}),
        *(node(key=key, full_name="movies/embeddings") for key in keys),
    ]
    checkpoint_inventory = inventory(tmp_path, nodes, {keys[0]: TABLE, keys[1]: second})
    assert sorted(table.name for table in checkpoint_inventory.tables) == sorted(names)
    assert [
        (duplicate.key, duplicate.original_key) for duplicate in checkpoint_inventory.duplicates
    ] == ([(keys[1], keys[0])] if len(names) == 1 else [])
    assert checkpoint_inventory.dense == ()


def test_recognize_table_without_a_variable_of_two_axes_is_rejected(tmp_path: Path) -> None:
    slot = {"e/t.Saccumulators" + SUFFIX: TABLE}
    assert [
        rejected.name for rejected in inventory(tmp_path, embedding_object({"e": 1}), slot).rejected
    ] == ["items"]
    checkpoint_inventory = inventory(
        tmp_path, embedding_object({"e": 1}), slot | {"e/t" + SUFFIX: TABLE.ravel()}
    )
    assert "[24]" in checkpoint_inventory.rejected[0].reason


@pytest.mark.parametrize("variable", ["e/t" + SUFFIX, "e/t", "e.table"])
def test_recognize_named_table_is_found_by_key_short_key_or_path(
    tmp_path: Path, variable: str
) -> None:
    nodes = [node({"e": 1}), node({"table": 2}), node(key="e/t" + SUFFIX)]
    checkpoint_inventory = inventory(tmp_path, nodes, {"e/t" + SUFFIX: TABLE}, {"mine": variable})
    assert [(table.name, table.path) for table in checkpoint_inventory.tables] == [
        ("mine", "e.table")
    ]


def test_recognize_named_table_renames_or_replaces_a_recognized_one(tmp_path: Path) -> None:
    nodes = embedding_object({"e": 1, "k": 6}, extra=[node(key="k" + SUFFIX)])
    variables = {**PAIR, "k" + SUFFIX: TABLE}
    renamed = inventory(tmp_path, nodes, variables, {"other": "e/t"})
    assert [(table.name, table.origin, len(table.slots)) for table in renamed.tables] == [
        ("other", "TPUEmbedding", 1)
    ]
    replaced = inventory(tmp_path, nodes, variables, {"items": "k", "k": "items"})
    assert [(table.name, table.key) for table in replaced.tables] == [
        ("items", "k" + SUFFIX),
        ("k", "e/t" + SUFFIX),
    ]


@pytest.mark.parametrize(
    ("variable", "what"),
    [
        ("e/t.Saccumulators", r"slot variable \(accumulators of e/t"),
        ("bias", r"the shape \[8\]"),
        ("kernl", "did you mean 'kernel'"),
        ("zzzzzz", "those with the shape of a table: kernel"),
    ],
)
def test_recognize_of_an_invalid_named_variable_is_rejected(
    tmp_path: Path, variable: str, what: str
) -> None:
    extra = [node(key="kernel" + SUFFIX), node(key="bias" + SUFFIX)]
    variables = {**PAIR, "kernel" + SUFFIX: TABLE, "bias" + SUFFIX: TABLE[:, 0].copy()}
    with pytest.raises(NotConvertible, match=what):
        inventory(
            tmp_path,
            embedding_object({"e": 1, "k": 6, "b": 7}, extra=extra),
            variables,
            {"mine": variable},
        )
