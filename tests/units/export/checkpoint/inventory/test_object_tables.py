"""Tables that an object graph shows, on graphs built by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.layouts import Plain
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.checkpoint.inventory.test_sparsecore import table_layout
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)

TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)
A, B, C = (f"{name}{SUFFIX}" for name in "abc")


def inventory(directory: Path, nodes: list[bytes], variables: dict[str, Any]) -> Inventory:
    write_bundle(directory / "c", {**variables, GRAPH: object_graph(*nodes)})
    return recognize(open_checkpoint(directory / "c"))


def layouts_of(inventory: Inventory) -> list[tuple[str, str, str, str]]:
    return [(table.name, table.key, table.origin, table.path) for table in inventory.tables]


@pytest.mark.parametrize(
    ("layer", "origin"),
    [({"_tpu_embedding": 2}, "TFRS TPUEmbedding"), ({"embedding": 2}, "TPUEmbedding")],
)
def test_embedding_object_holds_parameters_and_slot_variables_by_table(
    tmp_path: Path, layer: dict[str, int], origin: str
) -> None:
    nodes = [
        node({"model": 1}),
        node(layer),
        node({"_variables": 3}),
        node({"users": 4, "items": 5}),
        node({"parameters": 6, "m": 8}),
        node({"parameters": 7}),
        node(key=A),
        node(key=B),
        node(key=C),
    ]
    checkpoint_inventory = inventory(tmp_path, nodes, dict.fromkeys((A, B, C), TABLE))
    path = f"model.{next(iter(layer))}._variables"
    assert layouts_of(checkpoint_inventory) == [
        ("items", B, origin, f"{path}.items.parameters"),
        ("users", A, origin, f"{path}.users.parameters"),
    ]
    assert [(slot.name, slot.key, slot.trained_key) for slot in checkpoint_inventory.slots] == [
        ("m", C, A)
    ]
    assert {table.layout for table in checkpoint_inventory.tables} == {Plain()}
    assert (checkpoint_inventory.rejected, checkpoint_inventory.dense) == ((), ())


@pytest.mark.parametrize(
    "variables",
    [{}, {"0": 4, "1": 5}, {"users": 3, "other": 4}],
    ids=["none", "of an optimizer", "one of another kind"],
)
def test_object_whose_variables_have_no_parameters_is_none(
    tmp_path: Path, variables: dict[str, int]
) -> None:
    nodes = [
        node({"optimizer": 1}),
        node({"_variables": 2}),
        node(variables),
        node({"parameters": 4}),
        node(key=A),
        node(key=B),
    ]
    checkpoint_inventory = inventory(tmp_path, nodes, {A: TABLE, B: TABLE})
    assert (checkpoint_inventory.tables, checkpoint_inventory.rejected) == ((), ())
    assert [entry.key for entry in checkpoint_inventory.dense] == [A, B]


def test_tables_of_one_name_are_called_by_their_objects(tmp_path: Path) -> None:
    nodes = [
        node({"query": 1, "candidate": 2}),
        node({"_variables": 3}),
        node({"_variables": 4}),
        node({"ids": 5}),
        node({"ids": 6}),
        node({"parameters": 7}),
        node({"parameters": 8}),
        node(key=A),
        node(key=B),
    ]
    checkpoint_inventory = inventory(tmp_path, nodes, {A: TABLE, B: TABLE})
    assert {table.name: table.key for table in checkpoint_inventory.tables} == {
        "query.ids": A,
        "candidate.ids": B,
    }


def test_variable_of_two_embedding_objects_is_that_of_the_first(tmp_path: Path) -> None:
    nodes = [
        node({"first": 1, "second": 2, "third": 9}),
        node({"_variables": 3}),
        node({"_variables": 4}),
        node({"users": 5}),
        node({"people": 6}),
        node({"parameters": 7}),
        node({"parameters": 7, "m": 8}),
        node(key=A),
        node(key=B),
        node({"_variables": 3}),  # the list of the first
    ]
    checkpoint_inventory = inventory(tmp_path, nodes, {A: TABLE, B: TABLE})
    assert [table.name for table in checkpoint_inventory.tables] == ["users"]
    assert [
        (rejected_table.name, rejected_table.key, rejected_table.reason)
        for rejected_table in checkpoint_inventory.rejected
    ] == [("people", A, "another embedding object has the same variable; save the checkpoint anew")]
    assert checkpoint_inventory.slots == ()


def stacked(directory: Path, variables: dict[str, Any], *layouts: bytes) -> Inventory:
    """An embedding object of the stacks `a` and `b`, with layouts if there are any."""
    nodes = [
        node({"e": 1}),
        node({"_variables": 2, "_sparse_core_table_layouts": 3}),
        node({"a": 4, "b": 5}),
        node(key="layouts"),
        node({"parameters": 6}),
        node({"parameters": 7}),
        node(key=A),
        node(key=B),
    ]
    layout_variables = {"layouts": b"".join(layouts)} if layouts else {}
    return inventory(directory, nodes, variables | layout_variables)


def users(stack: str, name: str = "users") -> bytes:
    """The layout of a table of seven rows on four cores."""
    return table_layout(
        name=name, stack=stack, core_rows=2, shape=(7, 3), padded=(8, 3), offset=0, rotation=1
    )


def test_stack_whose_variable_was_not_saved_is_rejected_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    layouts = (users("a"), users("b", "items"))
    inventory = stacked(tmp_path, {A: TABLE, B: TABLE}, *layouts)
    assert [(table.name, table.key, table.rows) for table in inventory.tables] == [
        ("items", B, 7),
        ("users", A, 7),
    ]
    assert {table.origin for table in inventory.tables} == {"TPUEmbedding"}
    assert {table.path for table in inventory.tables} == {
        "e._variables.a.parameters",
        "e._variables.b.parameters",
    }
    inventory = stacked(tmp_path, {A: TABLE}, *layouts)
    assert [(table.name, table.key) for table in inventory.tables] == [("users", A)]
    assert [
        (rejected_table.name, rejected_table.reason) for rejected_table in inventory.rejected
    ] == [("b", "its variable was not saved; save the checkpoint anew")]
    inventory = stacked(tmp_path, {A: TABLE, B: TABLE[0]}, *layouts)
    assert [
        (rejected_table.name, rejected_table.reason) for rejected_table in inventory.rejected
    ] == [("b", "it has the shape [3], not [rows, dim]")]
    inventory = stacked(tmp_path, {}, *layouts)
    assert (inventory.tables, [rejected_table.name for rejected_table in inventory.rejected]) == (
        (),
        ["a", "b"],
    )


def test_rows_of_a_stack_without_saved_layouts_are_plain(tmp_path: Path) -> None:
    inventory = stacked(tmp_path, {A: TABLE, B: TABLE})
    assert [(table.name, table.layout) for table in inventory.tables] == [
        ("a", Plain()),
        ("b", Plain()),
    ]
    inventory = stacked(tmp_path, {A: TABLE, B: TABLE}, b"")
    assert [table.name for table in inventory.tables] == ["a", "b"]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            b"\xff",
            "the SparseCore layouts ('layouts') in checkpoint c cannot be read: 1 bytes that are "
            "no SparseCoreTableLayouts",
        ),
        (
            users("z"),
            "the SparseCore layouts in checkpoint c put table 'users' into stack 'z', which it "
            "does not hold (stacks: a, b): the checkpoint contradicts itself; take another one or "
            "save it anew",
        ),
        (
            table_layout(
                name="t", stack="a", core_rows=3, shape=(7, 3), padded=(8, 3), offset=0, rotation=1
            ),
            f"stack 'a' ('{A}') in checkpoint c: table 't' lies on 4 cores of 3 rows each, which "
            "makes 12 rows; its variable has 8: the checkpoint contradicts itself; take another "
            "one or save it anew",
        ),
    ],
)
def test_saved_layouts_that_contradict_the_checkpoint_are_an_error(
    tmp_path: Path, layout: bytes, message: str
) -> None:
    with pytest.raises(CheckpointError) as error:
        stacked(tmp_path, {A: TABLE, B: TABLE}, layout)
    assert str(error.value) == message


@pytest.mark.parametrize("attribute", ["embeddings", "_embeddings"])
@pytest.mark.parametrize(
    ("features", "other_names"),
    [(["genre"], ""), (["genre", "kind", "tag"], " (also read by 'kind', 'tag')")],
)
def test_small_table_is_called_by_its_features(
    tmp_path: Path, attribute: str, features: list[str], other_names: str
) -> None:
    nodes = [
        node({"embedding": 1}),
        node({"_keras_embedding_layers": 2}),
        node(dict.fromkeys(features, 3)),
        node({attribute: 4}),
        node(key=A),
    ]
    (table,) = inventory(tmp_path, nodes, {A: TABLE}).tables
    assert table.note == (
        f"called by its feature 'genre'{other_names}, as the checkpoint does not hold the name of "
        "a small table; --table NAME=genre gives it"
    )
    path = f"embedding._keras_embedding_layers.genre.{attribute}"
    assert (table.name, table.origin, table.path) == ("genre", "PartialTPUEmbedding", path)


def layers(
    directory: Path, path: list[str], key: str, full_name: str = "", **siblings: str
) -> Inventory:
    """A variable at a path of attributes; siblings are other variables of its layer, by key."""
    nodes = [node({name: number}) for number, name in enumerate(path[:-1], 1)]
    contents = {path[-1]: len(path)}
    contents |= {name: len(path) + number for number, name in enumerate(siblings, 1)}
    nodes += [node(contents), node(key=key, full_name=full_name)]
    nodes += [node(key=second) for second in siblings.values()]
    return inventory(directory, nodes, dict.fromkeys((key, *siblings.values()), TABLE))


@pytest.mark.parametrize(
    ("key", "full_name", "origin", "name"),
    [
        ("x/embeddings" + SUFFIX, "", "Keras Embedding", "layer"),
        ("x/_embeddings" + SUFFIX, "", "Keras Embedding", "layer"),
        (A, "scope/user/embeddings", "Keras Embedding", "user"),
        (A, "scope/user/embedding_weights", "feature column", "user"),
        ("my_embeddings" + SUFFIX, "", "", ""),
        (A, "user/embeddings_2", "", ""),
        (A, "embeddings", "", ""),
    ],
)
def test_keras_layer_names_its_variable(
    tmp_path: Path, key: str, full_name: str, origin: str, name: str
) -> None:
    actual = layers(tmp_path, ["model", "layer", "var"], key, full_name)
    expected = [(name, key, origin, "model.layer.var")] if name else []
    assert layouts_of(actual) == expected


def test_keras_layer_with_lora_weights_is_rejected(tmp_path: Path) -> None:
    key = "x/_embeddings" + SUFFIX
    actual = layers(tmp_path, ["user", "_embeddings"], key, lora_embeddings_a=A)
    assert [
        (rejected_table.name, rejected_table.key, rejected_table.reason)
        for rejected_table in actual.rejected
    ] == [
        (
            "user",
            key,
            "its Keras layer adds LoRA weights, variables of their own, to its rows; save the "
            "model by `save_weights`, which joins them",
        )
    ]
    assert actual.tables == ()
    actual = layers(tmp_path, ["user", "embeddings"], key, lora_embeddings_a=A)
    assert [table.name for table in actual.tables] == ["user"]
    actual = layers(tmp_path, ["user", "_embeddings"], key, lora_kernel_a=A)
    assert [table.name for table in actual.tables] == ["user"]


def test_variable_that_two_objects_hold_is_one_table(tmp_path: Path) -> None:
    key = f"layer/embeddings{SUFFIX}"
    nodes = [node({"layer": 1, "again": 2}), node({"embeddings": 3}), node({"embeddings": 4})]
    nodes += [node(key=key), node(key=key)]
    checkpoint_inventory = inventory(tmp_path, nodes, {key: TABLE})
    assert [table.key for table in checkpoint_inventory.tables] == [key]
