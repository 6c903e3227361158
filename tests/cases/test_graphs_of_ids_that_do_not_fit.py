"""Graphs of ids that no bundle opens, and values that a graph does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from bundle.errors import FeatureError, FormatError
from bundle.features.ids.rules import rule_of
from bundle.format.id_graphs import CONSTANT_MAX, OPERATIONS_MAX
from bundle.format.manifest import GraphIds
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from tests.units.bundle.features.readers import objects

Node = dict[str, Any]
VOCABULARIES = {
    "words": Vocabulary(StringKeys(["red", "blue"])),
    "numbers": Vocabulary(IntegerKeys(np.array([5, 7]))),
}


def sent(dtype: str = "int64") -> Node:
    return {"op": "Input", "dtype": dtype}


def constant(*values: Any, dtype: str = "int64", is_list: bool = False) -> Node:
    return {"op": "Const", "dtype": dtype, "values": values, "is_list": is_list}


def node(op: str, *inputs: int, **attributes: Any) -> Node:
    return {"op": op, "inputs": inputs, "attributes": attributes}


def graph(*nodes: Node, tables: tuple[Any, ...] = ()) -> GraphIds:
    return GraphIds.model_validate({"nodes": nodes, "tables": tables})


def texts(position: int, width: int = -1) -> Node:
    decimal = {"precision": -1, "scientific": False, "shortest": False}
    return node("AsString", position, width=width, fill="", **decimal)


def replaced(pattern: str) -> list[Node]:
    replace = node("StaticRegexReplace", 0, pattern=pattern, rewrite="", replace_global=True)
    return [sent("string"), replace, node("StringLength", 1, unit="BYTE")]


NO_GRAPHS: list[tuple[list[Node], str]] = [
    ([node("Abs", 0)], "node 0 .Abs."),
    ([sent(), node("Abs", 2), node("Abs", 1)], "node 1 .Abs. reads node 2"),
    ([constant(1)], "one node for each of its inputs"),
    ([sent(), sent()], "one node for each of its inputs"),
    ([constant(1, 2)], "one value, not 2"),
    ([sent("complex64")], "'int32', 'int64'"),
    ([sent(), {"op": "Abs", "inputs": [0], "device": "TPU"}], "Extra inputs"),
    ([sent()] * (OPERATIONS_MAX + 1), f"at most {OPERATIONS_MAX}"),
    ([sent(), constant(*range(CONSTANT_MAX + 1), is_list=True)], f"at most {CONSTANT_MAX}"),
    ([sent(), node("MatMul", 0)], "node 1 .MatMul.*no operation"),
    ([sent(), node("AddV2", 0)], "node 1 .AddV2.*2 operands, not 1"),
    ([sent(), node("Abs", 0, axis=1)], "'axis'"),
    ([sent(), node("Cast", 0)], "'DstT'"),
    ([sent(), node("Cast", 0, DstT="int65")], "node 1 .Cast."),
    *(
        ([sent("string"), node("StringToHashBucketFast", 0, num_buckets=buckets)], "'num_buckets'")
        for buckets in (0, 1 << 63)
    ),
    *(
        ([sent("float32"), node("Bucketize", 0, boundaries=wrong)], "boundaries must be finite")
        for wrong in ([1.0, 0.5], [1e39])
    ),
    ([sent(), texts(0, width=10**9)], "at most 1000"),
    ([sent("string"), node("StringToNumber", 0, out_type="complex64")], "'out_type'"),
    ([sent(), node("StringLower", 0)], "node 1 .StringLower."),
    ([sent("string"), node("Abs", 0)], "node 1 .Abs."),
    ([sent(), node("Cast", 0, DstT="float32")], "computes float32"),
    ([sent(), constant(3)], r"int64 of shape \(\)"),
    ([sent(), texts(0)], "computes object"),
    ([sent(), {**sent(), "input": 1}], "one input, not 2"),
    ([sent(), constant(3), node("GatherV2", 1, 0)], "operand 0 is no list"),
    ([sent(), constant(3, is_list=True), node("AddV2", 1, 0)], "operand 0 is a list"),
    ([sent(), node("LookupTableFindV2", 0, 0, table=0)], "0 lookup tables"),
    ([sent(), constant("3"), node("AddV2", 1, 0)], "no int"),
    ([sent(), constant(1 << 70), node("AddV2", 1, 0)], "of a constant"),
    ([sent(), constant(300, dtype="int8"), node("AddV2", 1, 0)], "no int8"),
    (replaced("(a+)+$"), "neither a text nor a set"),
]


@pytest.mark.parametrize(("nodes", "words"), NO_GRAPHS, ids=lambda value: str(value)[:40])
def test_a_graph_that_cannot_be_computed_is_rejected_by_its_node(
    nodes: list[Node], words: str
) -> None:
    with pytest.raises((ValidationError, FormatError), match=words):
        rule_of(graph(*nodes), {})


DOUBLED = [node("StringJoin", position, position, separator="") for position in range(40)]
WORD = {"vocabulary": "words"}
LOOKED_UP = (constant(-1), node("LookupTableFindV2", 0, 1, table=0))
VALUES: list[tuple[GraphIds, Any, str]] = [
    (graph(sent(), texts(0), node("StringLength", 1, unit="BYTE")), [0.5], r"0\.5 is no id"),
    (graph(sent(), node("Abs", 0)), ["7x"], "'7x' is no integer id"),
    (graph(sent("int32"), node("Abs", 0)), [1 << 31], "2147483648 is beyond int32"),
    (graph(sent("float32"), node("Cast", 0, DstT="int64")), [np.nan], "not finite"),
    (graph(sent("string"), node("StringLength", 0, unit="BYTE")), ["\ud800"], "Unicode"),
    (graph(sent(), constant(9), node("FloorDiv", 1, 0)), [0], "FloorDiv is divided by 0"),
    (
        graph(sent(), constant(4, 5, is_list=True), node("GatherV2", 1, 0)),
        [1, 2],
        "GatherV2 leads to position 2",
    ),
    (
        graph(sent("string"), *DOUBLED, node("StringLength", 40, unit="BYTE")),
        ["ab"],
        "at most 67108864",
    ),
    (
        graph(sent("string"), *LOOKED_UP, tables=({**WORD, "is_complete": True},)),
        ["red", "green"],
        "id green is not in vocabulary 'words'",
    ),
    (
        graph(sent("string"), *LOOKED_UP, tables=({"vocabulary": "numbers"},)),
        ["red"],
        "'red' is no integer id",
    ),
]


@pytest.mark.parametrize(("entry", "values", "words"), VALUES, ids=lambda value: str(value)[:40])
def test_a_value_that_a_graph_does_not_take_names_the_input(
    entry: GraphIds, values: list[Any], words: str
) -> None:
    array = objects(*values) if isinstance(values[0], str) else np.asarray(values)
    with pytest.raises(FeatureError, match=words) as rejected:
        rule_of(entry, VOCABULARIES).resolve("city", array)
    assert rejected.value.feature == "city"
