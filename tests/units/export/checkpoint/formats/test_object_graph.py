"""Object graphs: their paths, and what is rejected."""

from __future__ import annotations

import pytest

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.object_graph import (
    PATH_CHARS_MAX,
    ObjectGraph,
    SlotVariable,
    parse_object_graph,
)
from tests.units.export.checkpoint.tensor_bundles import field, node, object_graph


def parsed(*nodes: bytes) -> ObjectGraph:
    return parse_object_graph(object_graph(*nodes))


def attribute(name: str, key: str) -> bytes:
    return field(2, field(1, name) + field(2, f"name of {key}") + field(3, key))


def test_paths_are_the_shortest_from_the_root_and_end_in_cycles() -> None:
    graph = parsed(
        node({"a": 1, "long": 3}),
        node({"b": 2, "root": 0}),
        node({"c": 3, "parent": 1}),
        node({"d": 4}),
        node(key="k"),
        node({"lost": 4}),
    )
    assert dict(graph.paths) == {0: "", 1: "a", 2: "a.b", 3: "long", 4: "long.d"}
    child = graph.child(3, "d")
    assert child is not None
    assert child.key == "k"
    assert graph.child(3, "e") is None


def test_paths_are_at_most_1000_characters_long() -> None:
    longest = "x" * (PATH_CHARS_MAX - 1)
    graph = parsed(
        node({longest: 1, f"{longest}y": 2, "a": 3}),
        node(),
        node(),
        node({longest[1:]: 4, longest: 5}),
        node(),
        node(),
    )
    assert dict(graph.paths) == {0: "", 1: longest, 3: "a", 4: f"a.{longest[1:]}"}
    assert PATH_CHARS_MAX == 1000


def test_holders_are_the_nodes_with_children_or_slot_variables() -> None:
    graph = parsed(
        node({"a": 1, "b": 2}), node(key="k"), node(slots=[(1, "m", 3)]), node(key="k/m")
    )
    assert [index for index, _ in graph.holders] == [0, 2]
    assert graph.nodes[2].slots == (SlotVariable(1, "m", 3),)
    assert graph.nodes[3].slots == ()


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["VARIABLE_VALUE"], "VARIABLE_VALUE"),
        (["OTHER"], "OTHER"),
        (["OTHER", "VARIABLE_VALUE"], "VARIABLE_VALUE"),
        (["VARIABLE_VALUE", "OTHER"], "VARIABLE_VALUE"),
        (["FIRST", "SECOND"], "FIRST"),
        ([], ""),
    ],
)
def test_key_of_a_node_is_that_of_its_variable(names: list[str], key: str) -> None:
    (actual,) = parsed(b"".join(attribute(name, f"key of {name}") for name in names)).nodes
    expected = (f"key of {key}", f"name of key of {key}") if key else ("", "")
    assert (actual.key, actual.full_name) == expected


@pytest.mark.parametrize(
    "graph",
    [
        (node({"a": 1}),),
        (node({"a": 0, "b": 2}), node()),
        (node({"a": (1 << 64) - 1}), node()),
        (node(slots=[(2, "m", 1)]), node()),
        (node(slots=[(1, "m", 2)]), node()),
    ],
)
def test_graph_that_names_a_node_outside_it_is_malformed(graph: tuple[bytes, ...]) -> None:
    with pytest.raises(Malformed) as error:
        parsed(*graph)
    message = f"an object graph of {len(graph)} nodes that names a node outside it"
    assert str(error.value) == message


def test_graph_without_nodes_is_malformed() -> None:
    with pytest.raises(Malformed, match="an object graph without nodes"):
        parsed()
