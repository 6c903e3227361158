"""Long runs in an object graph, decoded at once, are what they are field by field, or refused alike."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.object_graph import parse_object_graph
from export.checkpoint.formats.wire import WireError, as_bytes, as_int, as_text, read_fields
from tests.export.checkpoint.bundles import SUFFIX, field, node, object_graph

Plain = list[tuple[dict[str, int], str, str, list[tuple[int, str, int]]]]

NAMES = st.text(st.sampled_from(["a", "*", "/", "\x01", "\x12", "\x1a", "é", "\x00"]), max_size=6) | st.sampled_from(
    ["layer", "k" * 130, "k" * 20]
)
VALUES = st.sampled_from([b"", field(5, field(1, 1)), field(5, b""), field(4, b"x")])


@st.composite
def graphs(draw: st.DrawFn) -> bytes:
    """Draws a graph whose root has many children and slot variables, with and without what TensorFlow adds."""
    count = draw(st.integers(1, 300))
    names = draw(st.lists(NAMES, min_size=1, max_size=3))
    values = draw(VALUES)
    children = {f"{names[number % len(names)]}{number}": number for number in range(count)}
    slots = [(number, names[-1], count - 1 - number) for number in range(draw(st.sampled_from([0, count])))]
    nodes = [node(children, slots=slots) + values]
    nodes += [node(key=name + SUFFIX, full_name=name) + values for name in children]
    return object_graph(*nodes)


def plain(data: bytes) -> Plain | None:
    """A graph field by field; None: it is none."""
    nodes: Plain = []
    try:
        for number, value in read_fields(data):
            if number == 1:
                nodes.append(_plain_node(read_fields(as_bytes(value))))
    except WireError:
        return None
    named = [
        index for children, _, _, slots in nodes for index in (*children.values(), *(n for s in slots for n in s[::2]))
    ]
    return nodes if nodes and all(0 <= index < len(nodes) for index in named) else None


def _plain_node(fields: list[tuple[int, Any]]) -> tuple[dict[str, int], str, str, list[tuple[int, str, int]]]:
    children, key, full_name, slots = {}, "", "", []
    for number, value in fields:
        told = dict(read_fields(as_bytes(value))) if number in (1, 2, 3) else {}
        if number == 1:
            children[as_text(told.get(2, b""))] = as_int(told.get(1, 0))
        elif number == 2 and (told.get(1) == b"VARIABLE_VALUE" or not key):
            full_name, key = as_text(told.get(2, b"")), as_text(told.get(3, b""))
        elif number == 3:
            slots.append((as_int(told.get(1, 0)), as_text(told.get(2, b"")), as_int(told.get(3, 0))))
    return children, key, full_name, slots


def read(data: bytes) -> Plain | None:
    try:
        nodes = parse_object_graph(data).nodes
    except WireError:
        return None
    return [
        (dict(each.children), each.key, each.full_name, [(slot.of, slot.name, slot.node) for slot in each.slots])
        for each in nodes
    ]


@given(graphs())
def test_graph_of_long_runs_is_what_it_is_field_by_field(data: bytes) -> None:
    assert read(data) == plain(data)
    assert read(data) is not None


@given(graphs(), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=3))
def test_graph_with_any_change_is_what_it_is_field_by_field(data: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(data)
    for place, byte in changes:
        changed[place % len(changed)] = byte
    assert read(bytes(changed)) == plain(bytes(changed))
