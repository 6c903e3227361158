"""What is a table and what is not, by metadata alone: on object graphs built by hand, odd ones too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.inventory.specs import Inventory, Statements
from export.checkpoint.layouts import Plain
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from tests.export.checkpoint.bundles import GRAPH, SUFFIX, node, object_graph, write_bundle

TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)


def inventory(
    directory: Path,
    nodes: list[bytes] | None,
    variables: dict[str, Any],
    named: dict[str, str] | Statements | None = None,
    **how: Any,
) -> Inventory:
    graph = {} if nodes is None else {GRAPH: object_graph(*nodes)}
    write_bundle(directory / "ckpt-3", {**variables, **graph}, **how)
    return recognise(open_checkpoint(directory / "ckpt-3"), named)


def embedding_object(
    root: dict[str, int], table: str = "items", *, layouts: str = "", extra: list[bytes] | None = None
) -> list[bytes]:
    """Nodes 0..5: root, object, `_variables`, the table's pair, parameters, accumulators; 6: layouts or nothing."""
    return [
        node(root),
        node({"_variables": 2, **({"_sparse_core_table_layouts": 6} if layouts else {})}),
        node({table: 3}),
        node({"parameters": 4, "accumulators": 5}),
        node(key="e/t" + SUFFIX),
        node(key="e/t.Saccumulators" + SUFFIX),
        node(key=layouts),
        *(extra or []),
    ]


PAIR = {"e/t" + SUFFIX: TABLE, "e/t.Saccumulators" + SUFFIX: TABLE}


def test_recognise_embedding_object_takes_its_table_and_leaves_its_slots(tmp_path: Path) -> None:
    found = inventory(tmp_path, embedding_object({"e": 1}, "x/y.z"), PAIR)
    table = found.tables[0]
    assert (table.name, table.key, table.rows, table.dim, table.dtype) == ("x/y.z", "e/t" + SUFFIX, 8, 3, "float32")
    assert (table.layout, table.origin) == (Plain(), "TPUEmbedding")
    assert [slot.name for slot in table.slots] == ["accumulators"]
    assert found.slot_bytes == TABLE.nbytes
    assert found.dense == ()


def test_recognise_tfrs_layer_is_told_by_its_attribute(tmp_path: Path) -> None:
    found = inventory(tmp_path, embedding_object({"_tpu_embedding": 1}), PAIR)
    assert found.tables[0].origin == "TFRS TPUEmbedding"


def test_recognise_table_that_is_called_like_a_slot_stays_a_table(tmp_path: Path) -> None:
    """Table `a` has slot `accumulators`; another table is called `a/accumulators`: both keys read the same way."""
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
    found = inventory(tmp_path, nodes, variables)
    assert {table.name: table.key for table in found.tables} == {
        "a": "e/a" + SUFFIX,
        "a/accumulators": "e/a.Saccumulators" + SUFFIX,
    }
    assert [slot.key for slot in found.slots] == ["e/a.S2accumulators" + SUFFIX]


def test_recognise_two_objects_with_tables_of_one_name_qualifies_both(tmp_path: Path) -> None:
    more = [node({"_variables": 8}), node({"items": 9}), node({"parameters": 10}), node(key="f/t" + SUFFIX)]
    found = inventory(tmp_path, embedding_object({"e": 1, "f": 7}, extra=more), {**PAIR, "f/t" + SUFFIX: TABLE})
    assert [table.name for table in found.tables] == ["e.items", "f.items"]


def test_recognise_older_keras_optimizer_slots_are_left_out_whatever_their_shape(tmp_path: Path) -> None:
    nodes = [
        node({"emb": 1, "optimizer": 3}),
        node({"embeddings": 2}),
        node(key="emb/embeddings" + SUFFIX),
        node({"iter": 6}, slots=[(2, "m", 4), (2, "v", 5)]),
        node(key="emb/embeddings/.OPTIMIZER_SLOT/optimizer/m" + SUFFIX),
        node(key="emb/embeddings/.OPTIMIZER_SLOT/optimizer/v" + SUFFIX),
        node(key="optimizer/iter" + SUFFIX),
    ]
    keys = [
        f"emb/embeddings{middle}{SUFFIX}"
        for middle in ("", "/.OPTIMIZER_SLOT/optimizer/m", "/.OPTIMIZER_SLOT/optimizer/v")
    ]
    found = inventory(tmp_path, nodes, {**dict.fromkeys(keys, TABLE), "optimizer/iter" + SUFFIX: np.array(41)})
    assert [(table.name, table.origin) for table in found.tables] == [("emb", "Keras Embedding")]
    assert [slot.name for slot in found.tables[0].slots] == ["m", "v"]
    assert found.step == 41


def test_recognise_newer_keras_optimizer_variables_are_left_out(tmp_path: Path) -> None:
    nodes = [
        node({"emb": 1, "optimizer": 3}),
        node({"embeddings": 2}),
        node(key="emb/embeddings" + SUFFIX, full_name="net/movies/embeddings"),
        node({"_iterations": 4, "_variables": 5}),
        node(key="optimizer/_iterations" + SUFFIX),
        node({"0": 4, "1": 6}),
        node(key="optimizer/_variables/1" + SUFFIX, full_name="Adam/m/net/movies/embeddings"),
    ]
    variables = {
        "emb/embeddings" + SUFFIX: TABLE,
        "optimizer/_iterations" + SUFFIX: np.array(17),
        "optimizer/_variables/1" + SUFFIX: TABLE,
    }
    found = inventory(tmp_path, nodes, variables)
    assert [table.name for table in found.tables] == ["movies"]
    assert [(slot.name, slot.of) for slot in found.slots] == [("m", "emb/embeddings" + SUFFIX)]
    assert found.step == 17


def test_recognise_state_of_keras_3_is_told_by_its_lists(tmp_path: Path) -> None:
    nodes = [
        node({"emb": 1, "optimizer": 2}),
        node({"_embeddings": 3}),
        node({"_iterations": 4, "_variables": 5, "_trainable_variables": 6, "_momentums": 7}),
        node(key="emb/_embeddings" + SUFFIX, full_name="movies/embeddings"),
        node(key="optimizer/_iterations" + SUFFIX, full_name="adam/iteration"),
        node({"0": 4, "1": 8, "2": 9}),
        node({"0": 3}),
        node({"0": 8, "1": 9}),
        *(node(key=f"optimizer/_variables/{n}{SUFFIX}", full_name=f"adam/x_{n}") for n in (1, 2)),
    ]
    variables = {
        "emb/_embeddings" + SUFFIX: TABLE,
        "optimizer/_iterations" + SUFFIX: np.array(17),
        "optimizer/_variables/1" + SUFFIX: TABLE,
        "optimizer/_variables/2" + SUFFIX: TABLE,
    }
    found = inventory(tmp_path, nodes, variables)
    assert [(slot.name, slot.of) for slot in found.slots] == [
        ("momentums", "emb/_embeddings" + SUFFIX),
        ("adam/x_2", ""),
    ]


def test_recognise_keras_layers_of_one_name_are_told_by_their_paths(tmp_path: Path) -> None:
    nodes = [
        node({"a": 1, "b": 2}),
        node({"emb": 3}),
        node({"emb": 4}),
        node({"embeddings": 5}),
        node({"embeddings": 6}),
        node(key="a/emb/embeddings" + SUFFIX),
        node(key="b/emb/embeddings" + SUFFIX),
    ]
    found = inventory(tmp_path, nodes, {f"{side}/emb/embeddings{SUFFIX}": TABLE for side in "ab"})
    assert [table.name for table in found.tables] == ["a.emb", "b.emb"]


def test_recognise_bare_matrix_is_only_a_candidate(tmp_path: Path) -> None:
    nodes = [node({"k": 1, "step": 2}), node(key="k" + SUFFIX), node(key="step" + SUFFIX)]
    found = inventory(tmp_path, nodes, {"k" + SUFFIX: TABLE, "step" + SUFFIX: np.array(9)})
    assert found.tables == ()
    assert [entry.key for entry in found.candidates] == ["k" + SUFFIX]
    assert found.step == 9


def test_recognise_empty_sparse_core_layouts_mean_plain_rows(tmp_path: Path) -> None:
    found = inventory(tmp_path, embedding_object({"e": 1}, layouts="e/layouts"), {**PAIR, "e/layouts": b""})
    assert [table.name for table in found.tables] == ["items"]


def test_recognise_small_tables_of_a_partial_layer_are_called_by_their_features(tmp_path: Path) -> None:
    nodes = [
        node({"layer": 1}),
        node({"_keras_embedding_layers": 2}),
        node({"genre": 3, "mood": 3, "age": 4}),
        node({"embeddings": 5}),
        node({"embeddings": 6}),
        *(node(key=f"layer/_keras_embedding_layers/{name}/embeddings{SUFFIX}") for name in ("genre", "age")),
    ]
    keys = [f"layer/_keras_embedding_layers/{name}/embeddings{SUFFIX}" for name in ("genre", "age")]
    found = inventory(tmp_path, nodes, dict.fromkeys(keys, TABLE), {"ages": "age"})
    assert {table.name: table.origin for table in found.tables} == dict.fromkeys(
        ("ages", "genre"), "PartialTPUEmbedding"
    )
    assert "also read by 'mood'" in found.table("genre").note
    assert found.table("ages").note == ""


@pytest.mark.parametrize(("second", "names"), [(TABLE, ["movies"]), (TABLE + 1, ["variables", "_all_variables"])])
def test_recognise_exported_model_that_holds_its_variables_twice(
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
    found = inventory(tmp_path, nodes, {keys[0]: TABLE, keys[1]: second})
    assert sorted(table.name for table in found.tables) == sorted(names)
    assert [(each.key, each.of) for each in found.duplicates] == ([(keys[1], keys[0])] if len(names) == 1 else [])
    assert found.dense == ()


def test_recognise_table_without_its_variable_is_refused(tmp_path: Path) -> None:
    found = inventory(tmp_path, embedding_object({"e": 1}), {"e/t.Saccumulators" + SUFFIX: TABLE})
    assert [refused.name for refused in found.refused] == ["items"]


def test_recognise_table_of_another_rank_is_refused(tmp_path: Path) -> None:
    found = inventory(tmp_path, embedding_object({"e": 1}), {"e/t" + SUFFIX: TABLE.ravel()})
    assert "[24]" in found.refused[0].reason


@pytest.mark.parametrize("said", ["e/t" + SUFFIX, "e/t", "e.table"])
def test_recognise_named_table_is_found_by_key_short_key_or_path(tmp_path: Path, said: str) -> None:
    nodes = [node({"e": 1}), node({"table": 2}), node(key="e/t" + SUFFIX)]
    found = inventory(tmp_path, nodes, {"e/t" + SUFFIX: TABLE}, {"mine": said})
    assert [(table.name, table.path) for table in found.tables] == [("mine", "e.table")]


def test_recognise_named_table_renames_or_replaces_a_recognised_one(tmp_path: Path) -> None:
    nodes = embedding_object({"e": 1, "k": 7}, extra=[node(key="k" + SUFFIX)])
    variables = {**PAIR, "k" + SUFFIX: TABLE}
    renamed = inventory(tmp_path, nodes, variables, {"other": "e/t"})
    assert [(table.name, table.origin, len(table.slots)) for table in renamed.tables] == [("other", "TPUEmbedding", 1)]
    replaced = inventory(tmp_path, nodes, variables, {"items": "k"})
    assert [(table.name, table.key) for table in replaced.tables] == [("items", "k" + SUFFIX)]


def test_recognise_two_tables_may_change_names(tmp_path: Path) -> None:
    nodes = [
        node({"e": 1}),
        node({"_variables": 2}),
        node({"a": 3, "b": 4}),
        *(node({"parameters": n}) for n in (5, 6)),
    ]
    nodes += [node(key=f"e/{name}{SUFFIX}") for name in "ab"]
    found = inventory(tmp_path, nodes, {f"e/{name}{SUFFIX}": TABLE for name in "ab"}, {"a": "b", "b": "e/a"})
    assert [(table.name, table.key) for table in found.tables] == [("a", "e/b" + SUFFIX), ("b", "e/a" + SUFFIX)]


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("e/t.Saccumulators", r"slot variable \(accumulators of e/t"),
        ("bias", r"the shape \[8\]"),
        ("kernl", "did you mean 'kernel'"),
        ("zzzzzz", "those with the shape of a table: kernel"),
    ],
)
def test_recognise_named_variable_that_cannot_be_meant_is_refused(tmp_path: Path, said: str, what: str) -> None:
    extra = [node(key="kernel" + SUFFIX), node(key="bias" + SUFFIX)]
    variables = {**PAIR, "kernel" + SUFFIX: TABLE, "bias" + SUFFIX: TABLE[:, 0].copy()}
    with pytest.raises(NotConvertible, match=what):
        inventory(tmp_path, embedding_object({"e": 1, "k": 7, "b": 8}, extra=extra), variables, {"mine": said})


def test_inventory_unknown_table_lists_what_there_is(tmp_path: Path) -> None:
    found = inventory(tmp_path, embedding_object({"e": 1}), PAIR)
    with pytest.raises(NotConvertible, match=r"no table 'users' \(recognised: items\)"):
        found.table("users")
