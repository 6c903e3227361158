"""Slot variables that a name tells, in checkpoints of names alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from tests.export.checkpoint.tensor_bundles import GRAPH, SUFFIX, node, object_graph, write_bundle

TABLE = np.ones((8, 3), np.float32)


@pytest.mark.parametrize(
    "key", ["t/scope/emb/Adam_1", "training/Adam/scope/emb/m", "scope/emb/AdagradMomentum/Momentum"]
)
def test_named_slot_under_the_scope_of_its_optimizer_is_found(tmp_path: Path, key: str) -> None:
    write_bundle(tmp_path / "c", {"scope/emb": TABLE, key: TABLE})
    assert [slot.of for slot in recognise(open_checkpoint(tmp_path)).slots] == ["scope/emb"]


@pytest.mark.parametrize(
    "other",
    [
        "scope/other/Adam",
        "Adam",
        "scope/emb/adamant",
        "scope/emb/kernel",
        "/" * 99 + "Adam",
        "scope/emb/Adam",
    ],
)
def test_variable_that_only_looks_like_a_slot_is_not_taken(tmp_path: Path, other: str) -> None:
    write_bundle(
        tmp_path / "c",
        {"scope/emb": TABLE, other: TABLE[:4] if other == "scope/emb/Adam" else TABLE},
    )
    assert recognise(open_checkpoint(tmp_path)).slots == ()


def test_state_of_a_custom_optimizer_is_recognized_if_several_variables_or_a_table_have_it(
    tmp_path: Path,
) -> None:
    write_bundle(
        tmp_path / "c",
        {"a": TABLE, "a/mine": TABLE, "a/mine_1": TABLE, "b": TABLE, "b/mine": TABLE},
    )
    assert [(slot.name, slot.of) for slot in recognise(open_checkpoint(tmp_path)).slots] == [
        ("mine", "a"),
        ("mine_1", "a"),
        ("mine", "b"),
    ]
    write_bundle(
        tmp_path / "d",
        {"user/embeddings": TABLE, "user/embeddings/mine": TABLE, "a": TABLE, "a/b": TABLE},
    )
    assert [slot.key for slot in recognise(open_checkpoint(tmp_path / "d")).slots] == [
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
    found = recognise(open_checkpoint(tmp_path)).slots
    assert [(each.name, each.key, each.of) for each in found if each.key == key] == [
        (slot, key, "")
    ]


def test_powers_of_adam_are_its_own_and_other_scalars_are_not(tmp_path: Path) -> None:
    names = ["beta1_power", "t/beta2_power_1", "global_step", "temperature"]
    variables = dict.fromkeys(names, np.array(1.0))
    write_bundle(tmp_path / "c", variables | {"x/beta1_power": TABLE})
    found = recognise(open_checkpoint(tmp_path))
    assert [(slot.name, slot.of) for slot in found.slots] == [
        ("beta1_power", ""),
        ("beta2_power_1", ""),
    ]


def test_listed_state_that_is_named_after_its_variable_is_of_it(tmp_path: Path) -> None:
    """As tf-keras names it: `<optimizer>/<slot>/<name of the variable>`; a name that two variables
    have tells nothing.
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
    found = recognise(open_checkpoint(tmp_path))
    assert [(slot.name, slot.key, slot.of) for slot in found.slots] == [
        ("m", keys[3], keys[0]),
        ("Adam/m/dense/kernel", keys[4], ""),
    ]
