"""Objects of small models beside object graphs."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from export.checkpoint.formats.object_graph import Node, ObjectGraph
from export.graphs.loading import tf
from export.graphs.walks import resource
from export.tensorflow_models.model.object_walk import UnmatchedObject, unmatched_objects, walk


def holder(**attributes: Any) -> Any:
    module = tf.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def variable() -> Any:
    return tf.Variable(tf.zeros([2]))


def graph(**objects: str) -> ObjectGraph:
    """Returns the graph of a checkpoint: names of the children of each node, which are nodes
    themselves or else keys.

    Args:
      objects: The children of each node, such as `a b=shared`, by its name; the root is `root`.
    """
    numbers = {name: number for number, name in enumerate(objects)}
    nodes = []
    leaves: list[Node] = []
    for children in objects.values():
        placed: dict[str, int] = {}
        for child in children.split():
            name, _, parent = child.partition("=")
            parent = parent or name
            if parent not in numbers:
                numbers[parent] = len(objects) + len(leaves)
                leaves.append(Node({}, f"key of {parent}", "", ()))
            placed[name] = numbers[parent]
        nodes.append(Node(placed, "", "", ()))
    return ObjectGraph((*nodes, *leaves))


def unmatched(model: Any, saved: ObjectGraph, lacking: tuple[str, ...] = ()) -> Any:
    """Returns what the checkpoint holds and the model lacks; some keys have no variable."""
    keys = {node.key for node in saved.nodes if node.key} - set(lacking)
    return unmatched_objects(walk(model, saved, 0), saved, keys)


def test_walk_gives_every_object_once_the_nearest_first() -> None:
    kernel = variable()
    model = holder(deep=holder(block=holder(kernel=kernel)), near=kernel)
    saved = graph(root="deep near=kernel", deep="block", block="kernel")
    objects = {walked.path: walked for walked in walk(model, saved, 0)}
    assert list(objects) == ["", "deep", "near", "deep.block"]
    assert {path: walked.node for path, walked in objects.items()} == {
        "": 0,
        "deep": 1,
        "near": 3,
        "deep.block": 2,
    }
    assert objects["near"].resource == resource(kernel.handle)
    assert objects["near"].owner is model
    assert (objects["deep"].resource, objects["deep"].children) == ("", ("block",))
    assert objects["deep.block"].children == ("kernel",)


def test_walk_follows_the_graph_as_far_as_it_goes() -> None:
    model = holder(deep=holder(block=holder()), other=holder())
    objects = {walked.path: walked.node for walked in walk(model, graph(root="deep", deep=""), 0)}
    assert objects == {"": 0, "deep": 1, "other": None, "deep.block": None}
    assert {walked.node for walked in walk(model, graph(root="deep", deep=""))} == {None}


class Listed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [[keras.layers.Dense(1, name="first")], [keras.layers.Dense(1, name="b")]]


def test_walk_without_a_graph_finds_layers_of_keras_3_in_lists() -> None:
    model = Listed()
    paths = {walked.path for walked in walk(model)}
    assert {"first", "b"} <= paths
    saved = graph(root="first")
    assert "b" not in {walked.path for walked in walk(model, saved, 0)}


class Connection(tf.Module):  # type: ignore[misc]
    """Has attributes that are called as those of layers and variables, and cannot be read."""

    @property
    def handle(self) -> Any:
        raise ValueError("it is not open")

    _layers = handle


def test_walk_reads_attributes_of_layers_and_variables_alone() -> None:
    model = Listed()
    model.compile("adam", loss="mse")  # which keeps a dict of layers
    model.connection = Connection()
    objects = {walked.path: walked for walked in walk(model)}
    assert {"first", "b", "connection"} <= objects.keys()
    assert objects["connection"].resource == ""


def test_walk_finds_what_checkpoints_of_tensorflow_cannot_hold() -> None:
    kernel = variable()
    model = holder(parts=holder(by_number={0: kernel, 1: 7}), listed=[variable()])
    replaced = variable()
    model.listed[0] = replaced
    objects = {walked.path: walked for walked in walk(model)}
    assert objects["parts.by_number.0"].resource == resource(kernel.handle)
    assert objects["listed.0"].resource == resource(replaced.handle)
    assert "parts.by_number.1" not in objects


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        pytest.param(graph(root="block", block="kernel"), [], id="the same"),
        pytest.param(
            graph(root="block more", block="kernel", more="deep a", deep="b"),
            [UnmatchedObject("", "more", False, {"more.a": "key of a", "more.deep.b": "key of b"})],
            id="another object",
        ),
        pytest.param(
            graph(root="block", block="kernel 7", **{"7": "a"}),
            [UnmatchedObject("block", "7", True, {"block.7.a": "key of a"})],
            id="another layer of a list",
        ),
        pytest.param(
            graph(root="block", block="kernel layer_with_weights-2=x"),
            [
                UnmatchedObject(
                    "block",
                    "layer_with_weights-2",
                    True,
                    {"block.layer_with_weights-2": "key of x"},
                )
            ],
            id="a counted variable",
        ),
        pytest.param(graph(root="block", block="kernel bias"), [], id="a variable"),
        pytest.param(
            graph(root="block more", block="kernel", more="kernel deep", deep="kernel"),
            [],
            id="known variables only",
        ),
        pytest.param(
            graph(root="block more again=more", block="kernel", more="a"),
            [UnmatchedObject("", "more", False, {"more.a": "key of a"})],
            id="twice",
        ),
        pytest.param(
            graph(root="block more", block="kernel", more="a again=a"),
            [UnmatchedObject("", "more", False, {"more.a": "key of a"})],
            id="a variable twice",
        ),
        pytest.param(graph(root="block more", block="kernel", more="lacking"), [], id="no value"),
    ],
)
def test_unmatched_objects_are_those_that_only_the_checkpoint_holds(
    saved: ObjectGraph, expected: list[UnmatchedObject]
) -> None:
    model = holder(block=holder(kernel=variable()))
    assert unmatched(model, saved, lacking=("key of lacking",)) == expected


def test_objects_that_the_model_holds_twice_are_matched_at_both_places() -> None:
    kernel = variable()
    model = holder(one=holder(kernel=kernel), two=holder(kernel=kernel))
    assert unmatched(model, graph(root="one two", one="kernel", two="kernel=other")) == []
    block = holder(kernel=kernel)
    model = holder(one=block, two=block)
    saved = graph(root="one two", one="kernel", two="kernel=other")
    assert unmatched(model, saved) == []
