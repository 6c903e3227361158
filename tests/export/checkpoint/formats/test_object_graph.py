"""Object graphs: names, keys, cycles, and nodes that are not there."""

from __future__ import annotations

import pytest

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.object_graph import PATH_CHARS_MAX, parse_object_graph
from tests.export.checkpoint.bundles import field, node, object_graph


def test_paths_cycle_and_several_ways_gives_the_shortest_once() -> None:
    graph = parse_object_graph(object_graph(node({"long": 1, "root": 0}), node({"way": 2, "up": 0}), node({"back": 1})))
    assert graph.paths == {0: "", 1: "long", 2: "long.way"}


def test_paths_chain_of_many_nodes_ends_where_paths_grow_too_long() -> None:
    """Neither recursion nor, in a chain of 100 000 nodes, 20 GB of paths."""
    nodes = [node({"n": number + 1}) for number in range(100_000)]
    paths = parse_object_graph(object_graph(*nodes, node())).paths
    assert paths[3] == "n.n.n"
    assert len(paths) == 1 + PATH_CHARS_MAX // 2


@pytest.mark.parametrize(
    "data", [b"", object_graph(node({"child": 1})), object_graph(node(slots=[(0, "m", 7)])), field(1, 3), b"\xff"]
)
def test_parse_object_graph_bytes_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse_object_graph(data)
