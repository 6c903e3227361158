"""Graphs of ids as a manifest writes them: what they compute, and those that no bundle opens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from bundle.errors import FeatureError, FormatError, UnknownRejected
from bundle.features.ids.expressions import expression
from bundle.features.ids.rules import rule_of
from bundle.format.id_graphs import CONSTANT_MAX, OPERATIONS_MAX
from bundle.format.manifest import GraphIds
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary

Node = dict[str, Any]


def sent(dtype: str = "int64") -> Node:
    return {"op": "Input", "dtype": dtype}


def constant(*values: Any, dtype: str = "int64", is_list: bool = False) -> Node:
    return {"op": "Const", "dtype": dtype, "values": values, "is_list": is_list}


def node(op: str, *inputs: int, **attributes: Any) -> Node:
    return {"op": op, "inputs": inputs, "attributes": attributes}


def graph(*nodes: Node, **fields: Any) -> GraphIds:
    return GraphIds.model_validate({"nodes": nodes, **fields})


WORDS = {"vocabulary": "words", "first_value": 2}
HASHED = graph(
    sent(),
    node("AsString", 0, width=-1, fill="", precision=-1, scientific=False, shortest=False),
    node("StringToHashBucketFast", 1, num_buckets=1000),
)


def rows(entry: GraphIds, values: Any, **vocabularies: Vocabulary) -> list[int]:
    rows = rule_of(entry, vocabularies).resolve("city", np.asarray(values))
    return list(rows.tolist())


def texts(*values: str) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def test_graph_computes_rows_by_its_operations() -> None:
    entry = graph(
        sent(), constant(7), constant(-1), node("FloorMod", 0, 1), node("Mul", 3, 2), node("Abs", 4)
    )
    assert rows(entry, [0, 8, -1]) == [0, 1, 6]
    assert expression(entry, "x") == "abs((x mod 7) * -1)"
    assert expression(HASHED, "the id") == "fingerprint64(str(the id)) mod 1000"


def test_graph_looks_keys_up_in_vocabularies() -> None:
    words = Vocabulary(StringKeys(["red", "blue"]))
    lowered = (sent("string"), node("StringLower", 0), constant(1))
    entry = graph(*lowered, node("LookupTableFindV2", 1, 2, table=0), tables=[WORDS])
    assert rows(entry, texts("RED", "blue", "green", ""), words=words) == [2, 3, 1, 1]
    assert expression(entry, "x") == "position of lower(x) in words + 2, else 1"
    numbers = Vocabulary(IntegerKeys(np.array([5, -7])))
    entry = graph(
        sent("int32"),
        constant(-1),
        node("LookupTableFindV2", 0, 1, table=0),
        tables=[WORDS],
    )
    assert rows(entry, [-7, 6, 5], words=numbers) == [3, -1, 2]


def test_key_that_the_model_fails_on_is_rejected() -> None:
    complete = {**WORDS, "is_complete": True}
    nodes = (sent("string"), constant(-1), node("LookupTableFindV2", 0, 1, table=0))
    entry = graph(*nodes, tables=[complete])
    words = Vocabulary(StringKeys(["red", "blue"]))
    assert rows(entry, texts("blue", "red"), words=words) == [3, 2]
    assert expression(entry, "x") == "position of x in words + 2, else an error"
    with pytest.raises(UnknownRejected, match="'city': id green is not in vocabulary 'words'"):
        rows(entry, texts("red", "green", "black"), words=words)


def test_graph_takes_texts_of_integers_and_of_strings() -> None:
    entry = graph(sent("int64_or_string"), node("StringLength", 0, unit="BYTE"))
    assert rows(entry, [7, -10]) == [1, 3]
    assert rows(entry, texts("red", "")) == [3, 0]


def test_graph_takes_numbers_and_constants_that_are_not_finite() -> None:
    ends = constant("-Infinity", "NaN", "Infinity", 0.5, dtype="float32", is_list=True)
    entry = graph(sent("float32"), ends, node("UpperBound", 1, 0, out_type="int32"))
    assert rows(entry, [0.25]) == [1]


@pytest.mark.parametrize(
    ("entry", "values", "message"),
    [
        (HASHED, [0.5], "0.5 is no id; an integer or a string was expected"),
        (HASHED, texts("7x"), "'7x' is no integer id"),
        (
            graph(sent("int32"), node("Abs", 0)),
            [1 << 31],
            "id 2147483648 is beyond int32, in which the model computes rows",
        ),
        (
            graph(sent("float32"), node("Cast", 0, DstT="int64")),
            [np.nan],
            "nan is not finite in float32",
        ),
        (
            graph(sent("string"), node("StringLength", 0, unit="BYTE")),
            texts("\ud800"),
            "a string is no Unicode text",
        ),
        (
            graph(sent(), constant(9), node("FloorDiv", 1, 0)),
            [0],
            "the model's operation FloorDiv is divided by 0, which it fails on",
        ),
        (
            graph(sent(), constant(4, 5, is_list=True), node("GatherV2", 1, 0)),
            [1, 2],
            "the model's operation GatherV2 leads to position 2 of a list of 2",
        ),
        (
            graph(
                sent("string"),
                *(
                    node("StringJoin", node_position, node_position, separator="")
                    for node_position in range(40)
                ),
                node("StringLength", 40, unit="BYTE"),
            ),
            texts("ab"),
            "makes texts of 134217728 bytes; at most 67108864 are computed",
        ),
    ],
)
def test_value_that_a_graph_does_not_take_names_the_input(
    entry: GraphIds, values: Any, message: str
) -> None:
    with pytest.raises(FeatureError) as raised:
        rows(entry, values)
    assert raised.value.feature == "city"
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Abs", 0)], "node 0 (Abs) reads node 0; an operation reads nodes before it"),
        ([sent(), node("Abs", 2), node("Abs", 1)], "node 1 (Abs) reads node 2"),
        ([constant(1)], "a graph has one node for each of its inputs, not []"),
        ([sent(), sent()], "a graph has one node for each of its inputs, not [0, 0]"),
        ([constant(1, 2)], "a constant that is no list has one value, not 2"),
        ([sent("complex64")], "Input should be 'int32', 'int64', 'float32', 'string' or 'int"),
        ([sent(), {"op": "Abs", "inputs": [0], "device": "TPU"}], "Extra inputs are not permitted"),
        ([sent()] * (OPERATIONS_MAX + 1), "at most 1024 items"),
        ([sent(), constant(*range(CONSTANT_MAX + 1), is_list=True)], "at most 65536 items"),
    ],
)
def test_graph_that_is_none_is_rejected_by_the_manifest(nodes: list[Node], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        graph(*nodes)
    assert message in str(raised.value)


def as_strings(position: int, width: int = -1) -> Node:
    attributes = {"precision": -1, "scientific": False, "shortest": False}
    return node("AsString", position, width=width, fill="", **attributes)


def hashed(buckets: int) -> Node:
    return node("StringToHashBucketFast", 0, num_buckets=buckets)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([sent(), node("MatMul", 0)], "node 1 (MatMul) of a graph of ids is no operation that"),
        ([sent(), node("AddV2", 0)], "node 1 (AddV2) of a graph of ids takes 2 operands, not 1"),
        ([sent(), node("Abs", 0, axis=1)], "has the attributes ['axis']; [] were expected"),
        ([sent(), node("Cast", 0)], "has the attributes []; ['DstT'] were expected"),
        ([sent(), node("Cast", 0, DstT="int65")], "node 1 (Cast) of a graph of ids does not fit"),
        ([sent("string"), hashed(0)], "'num_buckets' is 0; a positive int64 was expected"),
        ([sent("string"), hashed(1 << 63)], "'num_buckets' is 9223372036854775808; a positive"),
        *(
            (
                [sent("float32"), node("Bucketize", 0, boundaries=wrong)],
                "node 1 (Bucketize) of a graph of ids: Value error, boundaries must be finite",
            )
            for wrong in ([1.0, 0.5], [1e39])
        ),
        ([sent(), as_strings(0, width=10**9)], "'width' and 'precision' are at most 1000"),
        ([sent("string"), node("StringToNumber", 0, out_type="complex64")], "'out_type' is 'comp"),
        ([sent(), node("StringLower", 0)], "node 1 (StringLower) of a graph of ids does not fit"),
        ([sent("string"), node("Abs", 0)], "node 1 (Abs) of a graph of ids does not fit"),
        ([sent(), node("Cast", 0, DstT="float32")], "computes float32 of shape (1,) for 1 values"),
        ([sent(), constant(3)], "computes int64 of shape () for 1 values"),
        ([sent(), as_strings(0)], "computes object of shape (1,) for 1 values"),
        ([sent(), {**sent(), "input": 1}], "a graph of one feature's ids has one input, not 2"),
        ([sent(), constant(3), node("GatherV2", 1, 0)], "operand 0 is no list of constants"),
        (
            [sent(), constant(3, is_list=True), node("AddV2", 1, 0)],
            "operand 0 is a list of constants",
        ),
        (
            [sent(), node("LookupTableFindV2", 0, 0, table=0)],
            "'table' is 0; the graph has 0 lookup tables",
        ),
        (
            [sent(), constant("3"), node("AddV2", 1, 0)],
            "a constant of a graph of ids are no int",
        ),
        ([sent(), constant(1 << 70), node("AddV2", 1, 0)], "of a constant of a graph of ids are"),
        (
            [sent(), constant(300, dtype="int8"), node("AddV2", 1, 0)],
            "values (300,) of a constant of a graph of ids are no int8",
        ),
        (
            [
                sent("string"),
                node("StaticRegexReplace", 0, pattern="(a+)+$", rewrite="", replace_global=True),
                node("StringLength", 1, unit="BYTE"),
            ],
            "pattern '(a+)+$' is neither a text nor a set",
        ),
    ],
)
def test_graph_that_cannot_be_computed_names_its_node(nodes: list[Node], message: str) -> None:
    with pytest.raises(FormatError) as raised:
        rule_of(graph(*nodes), {})
    assert message in str(raised.value)


def test_expression_leaves_out_what_is_long() -> None:
    nodes = [sent(), *(node("AddV2", position, position) for position in range(30))]
    assert len(expression(graph(*nodes), "x")) < 500


def test_key_of_another_kind_is_an_error_of_the_input() -> None:
    numbers = Vocabulary(IntegerKeys(np.array([5, 7])))
    entry = graph(
        sent("string"),
        constant(-1),
        node("LookupTableFindV2", 0, 1, table=0),
        tables=[{"vocabulary": "words"}],
    )
    with pytest.raises(FeatureError, match="feature 'city': 'red' is no integer id"):
        rows(entry, texts("red"), words=numbers)
