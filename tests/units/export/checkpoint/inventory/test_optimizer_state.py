"""Slot variables that a name shows, in checkpoints of names alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)

TABLE = np.ones((8, 3), np.float32)


@pytest.mark.parametrize(
    "key", ["t/scope/emb/Adam_1", "training/Adam/scope/emb/m", "scope/emb/AdagradMomentum/Momentum"]
)
def test_named_slot_under_the_scope_of_its_optimizer_is_found(tmp_path: Path, key: str) -> None:
    write_bundle(tmp_path / "c", {"scope/emb": TABLE, key: TABLE})
    assert [slot.trained_key for slot in recognize(open_checkpoint(tmp_path)).slots] == [
        "scope/emb"
    ]


@pytest.mark.parametrize(
    "second",
    [
        "scope/other/Adam",
        "Adam",
        "scope/emb/adamant",
        "scope/emb/kernel",
        "/" * 99 + "Adam",
        "scope/emb/Adam",
    ],
)
def test_variable_that_only_looks_like_a_slot_is_not_taken(tmp_path: Path, second: str) -> None:
    write_bundle(
        tmp_path / "c",
        {"scope/emb": TABLE, second: TABLE[:4] if second == "scope/emb/Adam" else TABLE},
    )
    assert recognize(open_checkpoint(tmp_path)).slots == ()


def test_state_of_a_custom_optimizer_is_recognized_if_several_variables_or_a_table_have_it(
    tmp_path: Path,
) -> None:
    write_bundle(
        tmp_path / "c",
        {"a": TABLE, "a/mine": TABLE, "a/mine_1": TABLE, "b": TABLE, "b/mine": TABLE},
    )
    assert [
        (slot.name, slot.trained_key) for slot in recognize(open_checkpoint(tmp_path)).slots
    ] == [
        ("mine", "a"),
        ("mine_1", "a"),
        ("mine", "b"),
    ]
    write_bundle(
        tmp_path / "d",
        {"user/embeddings": TABLE, "user/embeddings/mine": TABLE, "a": TABLE, "a/b": TABLE},
    )
    assert [slot.key for slot in recognize(open_checkpoint(tmp_path / "d")).slots] == [
        "user/embeddings/mine"
    ]


@pytest.mark.parametrize(("full_name", "slot"), [("adam/odd", "adam/odd"), ("", "1")])
def test_listed_state_of_no_variable_is_named_by_its_name_or_else_its_number(
    tmp_path: Path, full_name: str, slot: str
) -> None:
    key = "optimizer/_variables/1" + SUFFIX
    iterations = "optimizer/_iterations" + SUFFIX
    graph = object_graph(
        node({"optimizer": 1}),
        node({"_iterations": 2, "_variables": 3}),
        node(key=iterations, full_name="iterations"),
        node({"0": 2, "1": 4}),
        node(key=key, full_name=full_name),
    )
    write_bundle(tmp_path / "c", {key: TABLE, iterations: np.array(7), GRAPH: graph})
    inventory = recognize(open_checkpoint(tmp_path)).slots
    assert [
        (entry.name, entry.key, entry.trained_key) for entry in inventory if entry.key == key
    ] == [(slot, key, "")]


def test_state_of_an_optimizer_that_lists_none_is_found_by_its_slots(tmp_path: Path) -> None:
    """An optimizer of a user's own may count its iterations, and keep no list of its states."""
    keys = [f"v{number}{SUFFIX}" for number in range(3)]
    graph = object_graph(
        node({"optimizer": 1, "user": 3}),
        node({"_iterations": 2}, slots=[(3, "m", 4)]),
        *(node(key=key) for key in keys),
    )
    variables: dict[str, Any] = {keys[0]: np.array(7), keys[1]: TABLE, keys[2]: TABLE}
    write_bundle(tmp_path / "c", variables | {GRAPH: graph})
    inventory = recognize(open_checkpoint(tmp_path))
    assert [(slot.name, slot.key, slot.trained_key) for slot in inventory.slots] == [
        ("m", keys[2], keys[1])
    ]


def test_powers_of_adam_are_its_own_and_other_scalars_are_not(tmp_path: Path) -> None:
    names = ["beta1_power", "t/beta2_power_1", "global_step", "temperature"]
    variables = dict.fromkeys(names, np.array(1.0))
    write_bundle(tmp_path / "c", variables | {"x/beta1_power": TABLE})
    inventory = recognize(open_checkpoint(tmp_path))
    assert [(slot.name, slot.trained_key) for slot in inventory.slots] == [
        ("beta1_power", ""),
        ("beta2_power_1", ""),
    ]


def test_listed_state_that_is_named_after_its_variable_is_of_it(tmp_path: Path) -> None:
    """As tf-keras names it: `<optimizer>/<slot>/<name of the variable>`; a name that two variables
    have shows nothing.
    """
    names = ["user/embeddings", "dense/kernel", "dense/kernel"]
    states = ["Adam/m/user/embeddings", "Adam/m/dense/kernel"]
    keys = [f"v{number}{SUFFIX}" for number in range(5)]
    graph = object_graph(
        node({"optimizer": 1, **{str(number): number + 4 for number in range(3)}}),
        node({"_iterations": 2, "_variables": 3}),
        node(key="n" + SUFFIX, full_name="iterations"),
        node({"0": 2, "1": 7, "2": 8}),
        *(node(key=key, full_name=name) for key, name in zip(keys, names + states, strict=True)),
    )
    variables: dict[str, Any] = dict.fromkeys(keys, TABLE)
    write_bundle(tmp_path / "c", variables | {"n" + SUFFIX: np.array(7), GRAPH: graph})
    inventory = recognize(open_checkpoint(tmp_path))
    assert [(slot.name, slot.key, slot.trained_key) for slot in inventory.slots] == [
        ("m", keys[3], keys[0]),
        ("Adam/m/dense/kernel", keys[4], ""),
    ]


@pytest.mark.parametrize(
    ("full_name", "values", "slot", "owner"),
    [
        ("adafactor/user_embeddings_v", TABLE, "v", 0),
        ("adafactor/user_embeddings_v_row", TABLE, "v_row", 0),
        ("user_embeddings_v", TABLE, "v", 0),
        ("adafactor/user_embeddings_v", TABLE[:4], "adafactor/user_embeddings_v", None),
        ("adafactor/user_embeddings", TABLE, "adafactor/user_embeddings", None),
        ("adafactor/dense_kernel_v", TABLE, "adafactor/dense_kernel_v", None),
        ("adafactor/item_embeddings_v", TABLE, "adafactor/item_embeddings_v", None),
        ("v" + "_" * 31, TABLE, "v" + "_" * 31, None),
        ("adafactor/user_embeddings" + "_" * 32, TABLE, "_" * 31, 0),
        (
            "adafactor/user_embeddings" + "_" * 33,
            TABLE,
            "adafactor/user_embeddings" + "_" * 33,
            None,
        ),
    ],
)
def test_state_that_keras_3_names_after_a_variable_that_it_trains_is_of_it(
    tmp_path: Path, full_name: str, values: np.ndarray[Any, Any], slot: str, owner: int | None
) -> None:
    """As Adafactor names it, which keeps its states in no list: `<optimizer>/<variable>_<slot>`; a
    name that two variables have shows nothing.
    """
    names = ["user/embeddings", "dense/kernel", "dense/kernel", "item/embeddings"]
    keys = [f"v{number}{SUFFIX}" for number in range(5)]
    graph = object_graph(
        node({"optimizer": 1, "item": 8}),
        node({"_iterations": 2, "_variables": 3, "_trainable_variables": 4}),
        node(key="n" + SUFFIX, full_name="iterations"),
        node({"0": 2, "1": 9}),
        node({"0": 5, "1": 6, "2": 7}),
        *(
            node(key=key, full_name=name)
            for key, name in zip(keys, [*names, full_name], strict=True)
        ),
    )
    variables: dict[str, Any] = dict.fromkeys(keys, TABLE)
    variables |= {keys[4]: values, "n" + SUFFIX: np.array(7), GRAPH: graph}
    write_bundle(tmp_path / "c", variables)
    inventory = recognize(open_checkpoint(tmp_path))
    assert [(slot.name, slot.key, slot.trained_key) for slot in inventory.slots] == [
        (slot, keys[4], "" if owner is None else keys[owner])
    ]


@pytest.mark.parametrize(
    ("scopes", "slot", "owner"),
    [(0, "m", True), (31, "m", True), (32, "", False)],
)
def test_state_is_named_after_its_variable_behind_some_scopes(
    tmp_path: Path, scopes: int, slot: str, owner: bool
) -> None:
    name = "s/" * scopes + "m/user/embeddings"
    keys = [f"v{number}{SUFFIX}" for number in range(2)]
    graph = object_graph(
        node({"optimizer": 1, "user": 4}),
        node({"_iterations": 2, "_variables": 3}),
        node(key="n" + SUFFIX),
        node({"0": 2, "1": 5}),
        node(key=keys[0], full_name="user/embeddings"),
        node(key=keys[1], full_name=name),
    )
    variables: dict[str, Any] = dict.fromkeys(keys, TABLE)
    write_bundle(tmp_path / "c", variables | {"n" + SUFFIX: np.array(7), GRAPH: graph})
    inventory = recognize(open_checkpoint(tmp_path))
    assert [(slot.name, slot.trained_key) for slot in inventory.slots] == [
        (slot or name, keys[0] if owner else "")
    ]


@pytest.mark.parametrize(
    ("key", "slot", "owner"),
    [
        ("scope/emb/Adam", "Adam", "scope/emb"),
        ("scope/emb/Adagrad_2", "Adagrad_2", "scope/emb"),
        ("scope/emb/adam_v", "adam_v", "scope/emb"),
        ("scope/emb/ExponentialMovingAverage", "ExponentialMovingAverage", "scope/emb"),
        ("scope/emb/AdagradMomentum/Accumulator", "AdagradMomentum/Accumulator", "scope/emb"),
        ("x/Adam_1/scope/emb/vhat", "vhat", "scope/emb"),
        ("Adam/scope/emb/m", "m", "scope/emb"),
        ("x/scope/emb/m", "", ""),
        ("Adam/scope/emb/kernel", "", ""),
        ("s/" * 31 + "scope/emb/Adam", "Adam", "scope/emb"),
        ("s/" * 32 + "scope/emb/Adam", "", ""),
    ],
)
def test_named_slot_is_of_the_variable_in_its_name(
    tmp_path: Path, key: str, slot: str, owner: str
) -> None:
    write_bundle(tmp_path / "c", {"scope/emb": TABLE, key: TABLE})
    inventory = recognize(open_checkpoint(tmp_path)).slots
    assert [(entry.name, entry.trained_key) for entry in inventory] == (
        [(slot, owner)] if slot else []
    )


def test_list_of_states_belongs_to_the_first_optimizer_that_has_it(tmp_path: Path) -> None:
    keys = [f"v{number}{SUFFIX}" for number in range(2)]
    graph = object_graph(
        node({"first": 1, "second": 2, "user": 7}),
        node({"_iterations": 3, "_variables": 4, "_trainable_variables": 5, "_momentums": 6}),
        node({"_iterations": 3, "_variables": 4}),
        node(key="n" + SUFFIX),
        node({"0": 3, "1": 8}),
        node({"0": 7}),
        node({"0": 8}),
        *(node(key=key) for key in keys),
    )
    variables: dict[str, Any] = dict.fromkeys(keys, TABLE)
    write_bundle(tmp_path / "c", variables | {"n" + SUFFIX: np.array(7), GRAPH: graph})
    inventory = recognize(open_checkpoint(tmp_path))
    assert [(slot.name, slot.key, slot.trained_key) for slot in inventory.slots] == [
        ("momentums", keys[1], keys[0])
    ]
