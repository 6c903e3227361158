"""Rankers in parts: which parts a tower has, and that together they compute what it computes, as
they are, packed, and nearly so in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from export.front_end.interface import TracedTower
from export.graphs.internals import variable_class
from export.graphs.loading import load_tensorflow, tf
from export.towers.bfloat16 import in_bfloat16
from export.towers.division import Split, split_tower
from export.towers.packing import pack
from tests.units.export.ranking_parts import (
    AGE,
    CONTEXT,
    FEATURES,
    TASKS,
    random_inputs,
    run,
    run_parts,
    traced,
)
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_models import IDS, RAGGED

load_tensorflow()
Inputs = Mapping[str, Any]
Call = Callable[[Inputs], dict[str, Any]]
Part = tuple[str, list[str], list[str]]
"""The name of a part, what it takes, and what it gives."""
COLUMNS = [f"c{number}" for number in range(40)]
OF_CONTEXT = {*CONTEXT, *(f"c{number}" for number in (*range(20), 30, 31))}
CANDIDATES = 4


def matrix(rows: int, columns: int) -> Any:
    values = np.random.default_rng(rows).standard_normal((rows, columns))
    return tf.Variable(values, dtype="float32")


def layer(inputs: Inputs, *names: str) -> Any:
    joined = tf.concat([inputs[name] for name in names], 1)
    return joined @ matrix(joined.shape[1], 16)


def head(hidden: Any) -> dict[str, Any]:
    return {"score": (tf.nn.relu(hidden) @ matrix(hidden.shape[1], 1))[:, 0]}


def two_sided(inputs: Inputs, width: int = 16) -> dict[str, Any]:
    """A layer of the user, one of the item, and their sum."""
    user = inputs["user"] @ matrix(inputs["user"].shape[1], width)
    return head(user + inputs["item"] @ matrix(inputs["item"].shape[1], width))


def turned(inputs: Inputs) -> dict[str, Any]:
    """The same upside down, so that a column belongs to each example."""
    sides = [inputs["user"] @ matrix(32, 16), inputs["item"] @ matrix(8, 16)]
    return head(tf.transpose(tf.transpose(sides[0]) + tf.transpose(sides[1])))


def recurrent(inputs: Inputs, state: Any) -> dict[str, Any]:
    for _ in range(2):
        state = tf.tanh(inputs["user"] @ matrix(16, 16) + state @ matrix(16, 16))
    return {"score": tf.reduce_sum(state, 1) + tf.reduce_sum(inputs["item"] @ matrix(8, 16), 1)}


def of_batch(size: Callable[[Inputs], Any]) -> Call:
    """Returns a call whose state for the user has as many rows as the items say."""
    return lambda inputs: recurrent(inputs, tf.fill(tf.stack([size(inputs), 16]), 0.5))


def checked(inputs: Inputs) -> dict[str, Any]:
    is_large = tf.debugging.Assert(tf.reduce_all(inputs["user"] > 100.0), ["too small"])
    with tf.control_dependencies([is_large]):
        return {"score": inputs["user"][:, 0] + inputs["item"][:, 0]}


def loop_of_tf1(inputs: Inputs) -> dict[str, Any]:
    frame = tf.raw_ops.Enter(data=inputs["user"], frame_name="loop")
    return {"score": tf.ensure_shape(tf.raw_ops.Exit(data=frame), [None, 16])[:, 0]}


def cheap_outputs(inputs: Inputs) -> dict[str, Any]:
    cheap = tf.reduce_sum(inputs["item"], 1)
    large = tf.nn.relu(inputs["item"] @ matrix(8, 64)) @ matrix(64, 1)
    return {"click": large[:, 0], "cheap": cheap, "twice": cheap * 2.0}


def shared_by_heads(inputs: Inputs) -> dict[str, Any]:
    user = tf.nn.relu(tf.nn.relu(inputs["user"] @ matrix(16, 24)) @ matrix(24, 32))
    hidden = tf.nn.relu(user + inputs["item"] @ matrix(8, 32))
    heads = {"a": matrix(32, 32), "b": tf.transpose(matrix(32, 32))}
    return {name: tf.reduce_max(hidden @ kernel + user, 1) for name, kernel in heads.items()}


def heads(first: int, second: int) -> Call:
    """Returns two outputs over a large layer, of `first` and `second` multiply-adds."""

    def call(inputs: Inputs) -> dict[str, Any]:
        shared = inputs["item"] @ matrix(8, 64)
        sizes = {"click": first // 4, "like": second // 4}
        return {
            name: tf.reduce_max(shared[:, :size] @ matrix(size, 4), 1)
            for name, size in sizes.items()
        }

    return call


def of_the_others(columns: int) -> Call:
    """Returns an output that needs the separate alone, and a layer of 16 by `columns`."""

    def call(inputs: Inputs) -> dict[str, Any]:
        sides = [inputs["item"] @ matrix(8, width) for width in (64, 48)]
        pair = tf.concat(sides, 1)[:, :16]
        return {"a": sides[0], "b": sides[1], "c": pair @ matrix(16, columns)}

    return call


def outputs_of_the_context(inputs: Inputs) -> dict[str, Any]:
    user = tf.nn.relu(inputs["user"] @ matrix(16, 8))
    wide = tf.nn.relu(inputs["user"] @ matrix(16, 32))
    similarity = tf.reduce_sum(user * inputs["item"] * wide[:, :8], 1)
    return {"context_0": similarity, "loyal": tf.reduce_sum(user, 1) + tf.reduce_sum(wide, 1)}


def sideways(inputs: Inputs) -> dict[str, Any]:
    """What the outputs share lies sideways, so that none of it holds a row for each candidate."""
    shared = tf.nn.relu(matrix(64, 8) @ tf.transpose(inputs["item"]))
    sums = [tf.reduce_sum(tf.transpose(matrix(rows, 64) @ shared), 1) for rows in (8, 7)]
    user = tf.reduce_sum(inputs["user"] @ matrix(16, 16), 1)
    return {"click": sums[0] + user, "like": sums[1] + user}


def small_layers(inputs: Inputs) -> dict[str, Any]:
    sides = [tf.nn.relu(inputs[name] @ matrix(12, 13)) for name in ("user", "age")]
    item = tf.reduce_sum(inputs["item"], 1, keepdims=True)
    return {"score": tf.reduce_sum(sides[0] * item + sides[1] * item, 1)}


def twice(inputs: Inputs) -> dict[str, Any]:
    score = tf.reduce_sum(inputs["user"] @ matrix(16, 16), 1) + inputs["item"][:, 0]
    return {"click": score, "like": score}


def loop(inputs: Inputs) -> dict[str, Any]:
    user = tf.while_loop(
        lambda number, _: number < 3,
        lambda number, values: (number + 1, tf.tanh(values * 2)),
        (0, inputs["user"]),
    )[1]
    return {"score": tf.reduce_sum(user, 1) + inputs["item"][:, 0]}


def attention(inputs: Inputs) -> dict[str, Any]:
    steps = tf.reshape(inputs["user"], [-1, 4, 4])
    scores = tf.einsum("bij,bkj->bik", steps, tf.einsum("bij,jk->bik", steps, matrix(4, 32)[:, :4]))
    user = tf.reshape(tf.nn.softmax(scores) @ steps, [-1, 16]) @ matrix(16, 16)
    return {"score": tf.reduce_sum(user, 1) + inputs["item"][:, 0]}


def convolution(inputs: Inputs) -> dict[str, Any]:
    steps = tf.reshape(inputs["user"], [-1, 4, 2, 2])
    user = tf.nn.conv2d(steps, tf.ones([2, 1, 2, 16]), 1, "VALID")
    return {"score": tf.reduce_sum(user, [1, 2, 3]) + inputs["item"][:, 0]}


class Ranker(NamedTuple):
    """A ranker, the parts that it has, and a word of the note on why it has not more."""

    call: Call
    widths: Mapping[str, int]
    parts: Sequence[Part] = ()
    note: str = ""


def sides(first: str = "context_0", *more: str, takes: list[str] | None = None) -> list[Part]:
    handed = [first, *more]
    return [
        ("context", takes or ["user"], handed),
        ("candidate", ["item", *handed], ["score"]),
    ]


BOTH = {"item": 8, "user": 16}
WIDE = {"item": 8, "user": 64}
ITEM = {"item": 8}
DIVIDED = sides()
RANKERS = {
    "as large as pays": Ranker(two_sided, BOTH, DIVIDED),
    "less": Ranker(lambda x: two_sided(x, 17), {"item": 8, "user": 15}, [], "only 255"),
    "turned": Ranker(turned, {"item": 8, "user": 32}, DIVIDED),
    "size of an input": Ranker(of_batch(lambda x: tf.shape(x["item"])[0]), BOTH, DIVIDED),
    "inner size": Ranker(of_batch(lambda x: tf.shape(x["item"][:, 0] * 2)[0]), BOTH, DIVIDED),
    "another size": Ranker(
        of_batch(lambda x: tf.shape(tf.reshape(x["item"], [-1]))[0] // 8),
        BOTH,
        sides("context_0", "context_1"),
    ),
    "loop": Ranker(loop, BOTH, DIVIDED),
    "attention": Ranker(attention, BOTH, DIVIDED),
    "convolution": Ranker(convolution, BOTH, DIVIDED),
    "joined": Ranker(lambda x: head(layer(x, "user", "item")), WIDE, DIVIDED),
    "joined, several": Ranker(lambda x: head(layer(x, "item", "user", "item")), WIDE, DIVIDED),
    "joined, too small": Ranker(
        lambda x: head(layer(x, "user", "item")), {"item": 8, "user": 63}, [], "only"
    ),
    "joined, transposed": Ranker(
        lambda x: head(
            tf.matmul(tf.concat([x["user"], x["item"]], 1), matrix(16, 72), transpose_b=True)
        ),
        WIDE,
        DIVIDED,
    ),
    "joined, of float64": Ranker(
        lambda x: head(
            tf.cast(
                tf.cast(tf.concat([x["user"], x["item"]], 1), "float64")
                @ tf.cast(matrix(72, 16), "float64"),
                "float32",
            )
        ),
        WIDE,
        [],
        "only",
    ),
    "joined, weights of an input": Ranker(
        lambda x: head(tf.concat([x["user"], x["item"]], 1) @ (matrix(72, 16) * x["item"][0, 0])),
        WIDE,
        [],
        "only",
    ),
    "joined, something between": Ranker(
        lambda x: head(tf.nn.relu(tf.concat([x["user"], x["item"]], 1)) @ matrix(72, 16)),
        WIDE,
        [],
        "only",
    ),
    "one output twice": Ranker(twice, BOTH, [], "two of its outputs are the same"),
    "loop of TF1": Ranker(loop_of_tf1, BOTH, [], "a loop of TF1"),
    "cannot run": Ranker(checked, BOTH, [], "assertion failed: [too small]"),
    "no context": Ranker(lambda x: head(x["item"] @ matrix(8, 64)), ITEM),
    "small layers": Ranker(small_layers, {"item": 8, "user": 12, "age": 12}, [], "none is large"),
    "cheap outputs": Ranker(
        cheap_outputs,
        ITEM,
        [("trunk", ["item"], ["cheap", "twice"]), ("head-click", ["item"], ["click"])],
    ),
    "shared by heads": Ranker(
        shared_by_heads,
        BOTH,
        [
            ("context", ["user"], ["context_0"]),
            ("trunk", ["item", "context_0"], ["trunk_0"]),
            ("head-a", ["context_0", "trunk_0"], ["a"]),
            ("head-b", ["context_0", "trunk_0"], ["b"]),
        ],
    ),
    # The maximum of four numbers costs four.
    "large heads": Ranker(
        heads(252, 252),
        ITEM,
        [
            ("trunk", ["item"], ["trunk_0"]),
            ("head-click", ["trunk_0"], ["click"]),
            ("head-like", ["trunk_0"], ["like"]),
        ],
    ),
    "one large head": Ranker(
        heads(252, 248),
        ITEM,
        [("trunk", ["item"], ["trunk_0", "like"]), ("head-click", ["trunk_0"], ["click"])],
    ),
    "small heads": Ranker(heads(248, 248), ITEM),
    "of the separate": Ranker(
        of_the_others(16),
        ITEM,
        [("trunk", ["item"], ["a", "b"]), ("head-c", ["a", "b"], ["c"])],
    ),
    "outputs of the context": Ranker(
        outputs_of_the_context,
        BOTH,
        [
            ("context", ["user"], ["loyal", "context_1"]),
            ("candidate", ["item", "user", "context_1"], ["context_0"]),
        ],
    ),
    "sideways": Ranker(
        sideways,
        BOTH,
        [
            ("context", ["user"], ["context_0"]),
            ("candidate", ["item", "context_0"], ["click", "like"]),
        ],
        "stay together",
    ),
}


def split(tower: TracedTower) -> Split:
    sides = {tensor.feature: tensor.feature in OF_CONTEXT for tensor in tower.spec.inputs}
    roles: Any = {
        name: "context" if is_context else "candidate" for name, is_context in sides.items()
    }
    return split_tower(tower, roles)


def assert_parts_compute_the_tower(tower: TracedTower, result: Split) -> None:
    """Compares the parts, as they are and packed, for contexts of four candidates each."""
    n = 12
    values = random_inputs(tower, n)
    for name in set(values) & OF_CONTEXT:
        values[name] = values[name][::CANDIDATES].repeat(CANDIDATES, axis=0)
    whole = run(tower, values, n)
    parts = list(result.parts)
    results = [run(pack(tower), values, n)]
    if parts:
        packed = [pack(part) for part in parts]
        results += [run_parts(several, values, n, CANDIDATES) for several in (parts, packed)]
    for composed in results:
        for name, expected in whole.items():
            np.testing.assert_allclose(composed[name], expected, rtol=1e-4, atol=1e-4)
    near = run(in_bfloat16(tower), values, n)
    for name, expected in whole.items():
        assert near[name].dtype == expected.dtype
        assert np.abs(near[name] - expected).max() <= 0.06 * np.abs(expected).max() + 1e-6


@pytest.mark.parametrize("name", RANKERS)
def test_ranker_has_the_parts_that_pay_and_they_compute_it(name: str) -> None:
    ranker = RANKERS[name]
    inputs = {name: numbers(width) for name, width in ranker.widths.items()}
    tower = tower_of(trace(ranker.call, **inputs))
    result = split(tower)
    parts = [
        (
            part.spec.name,
            [tensor.feature or tensor.tensor for tensor in part.spec.inputs],
            [output.name for output in part.spec.outputs],
        )
        for part in result.parts
    ]
    assert parts == list(ranker.parts), result.notes
    for part in result.parts:
        assert part.spec.per == ("context" if part.spec.name == "context" else "candidate")
    assert bool(result.notes) == bool(ranker.note)
    assert ranker.note in " ".join(result.notes)
    if "Enter" in str(tower.function.graph.get_operations()) or name == "cannot run":
        return
    assert_parts_compute_the_tower(tower, result)


FUNCTIONS = {
    "build_experts": (
        TASKS,
        {**FEATURES, "age": AGE},
        ["context", "trunk", "head-click", "head-like", "head-share", "head-both"],
    ),
    "build_recurrent": (("score",), {"history": RAGGED, "item": IDS}, ["context", "candidate"]),
    "build_joined": (
        ("score",),
        {**dict.fromkeys(COLUMNS, IDS), "item": IDS},
        ["context", "candidate"],
    ),
    "build_mixed": (("click", "like"), FEATURES, []),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_models_of_keras_have_parts_that_compute_them(function: str) -> None:
    outputs, inputs, names = FUNCTIONS[function]
    tower = traced(function, outputs, inputs)
    result = split(tower)
    assert [part.spec.name for part in result.parts] == names
    read = [variable.name for part in result.parts for variable in part.variables]
    assert len(set(read)) == len(read) or function == "build_joined"
    if function == "build_joined":
        # Layers over both sides are divided, and hand over outputs as wide as the layers.
        assert [output.shape for output in result.parts[0].spec.outputs] == [(None, 8), (None, 16)]
    if names:
        assert_parts_compute_the_tower(tower, result)
    else:
        assert result.notes


SEPARATE = {
    "numbers of each example": lambda x: tf.sqrt(x) / 0.0,
    "another layer": tf.nn.softmax,
    "almost the same": lambda x: x * 1e6 + tf.reduce_mean(x),
}
MIXED = {
    "sums of those before": lambda x: tf.cumsum(x, 0),
    "another order": lambda x: x[::-1],
    "the largest of all": lambda x: x / tf.reduce_max(x),
    "how many": lambda x: x + tf.cast(tf.shape(x)[0], "float32"),
    "numbers of places": lambda x: x + tf.range(tf.cast(tf.shape(x)[0], "float32"))[:, None],
}


@pytest.mark.parametrize("name", [*SEPARATE, *MIXED])
def test_context_part_computes_a_separate_row_for_each_context(name: str) -> None:
    operation = {**SEPARATE, **MIXED}[name]

    def call(inputs: Inputs) -> dict[str, Any]:
        user = operation(inputs["user"] @ matrix(16, 16)) @ matrix(16, 16)
        return {"score": tf.reduce_sum(user * tf.concat([inputs["item"]] * 2, 1), 1)}

    tower = tower_of(trace(call, user=numbers(16), item=numbers(8)))
    result = split(tower)
    if name in SEPARATE:
        assert [part.spec.name for part in result.parts] == ["context", "candidate"]
        return
    handed = [part for part in result.parts if part.spec.per == "context"]
    # The first layer may be computed for each context, but nothing that mixes them.
    types = {
        operation.type for part in handed for operation in part.function.graph.get_operations()
    }
    assert not types & {"Cumsum", "Mean", "Max", "Range", "StridedSlice"}


def test_rows_are_told_before_the_weights_are_read() -> None:
    kernel = variable_class()(shape=[16, 16], dtype=tf.float32, name="kernel")

    def call(inputs: Inputs) -> dict[str, Any]:
        return {"score": tf.reduce_sum((inputs["user"] @ kernel)[:, :8] * inputs["item"], 1)}

    result = split(tower_of(trace(call, user=numbers(16), item=numbers(8))))
    assert [part.spec.name for part in result.parts] == ["context", "candidate"]


MANY = {f"c{number}": 1 + number % 3 for number in range(9)}
"""Nine features of one to three columns, 18 together."""
TURNED = [*MANY][::-1]


def joined(names: list[str], **changed: Callable[[Any], Any]) -> Callable[[Inputs], Any]:
    return lambda x: tf.concat([changed.get(name, tf.identity)(x[name]) for name in names], 1)


def summed(joined: Callable[[Inputs], Any]) -> Callable[[Inputs], Any]:
    return lambda x: joined(x) + tf.add_n([x[name][:, :1] for name in MANY])


def two_joins(inputs: Inputs) -> Any:
    parts = [joined([*MANY][:2])(inputs), joined(TURNED[:5])(inputs)]
    return tf.concat([*parts, inputs["c2"], inputs["c3"]], 1)


@pytest.mark.parametrize(
    ("call", "features"),
    [
        (joined([*MANY]), [*MANY]),
        (joined(TURNED, c0=tf.negative), TURNED),
        (joined(TURNED, c6=tf.negative), [*TURNED[3:], "c6", "c7", "c8"]),
        (two_joins, [*TURNED[:5], *[*MANY][:4]]),
        (summed(lambda x: tf.concat([x["c1"], x["c0"], x["c1"]], 1)), [*MANY]),
        (summed(lambda x: tf.concat([x["c4"], x["c1"]], 0)[: tf.shape(x["c1"])[0]]), [*MANY]),
        (lambda x: joined([*MANY])(x) + x["packed_float32"][:, 0, :1], [*MANY]),
    ],
)
def test_nine_features_become_one_tensor_in_the_order_that_joins_most_of_them(
    call: Callable[[Inputs], Any], features: list[str]
) -> None:
    inputs = {name: numbers(width) for name, width in MANY.items()}
    # It stays apart, since it is no row, and its name is taken.
    inputs["packed_float32"] = numbers(2, 3)
    more = lambda x: {"score": call(x) + x["packed_float32"][:, 0, :1] * 0.5}  # noqa: E731
    tower = tower_of(trace(more, **inputs))
    packed = pack(tower)
    first, *separate = packed.spec.inputs
    assert [tensor.name for tensor in separate] == ["packed_float32"]
    assert first.name == "packed_float32_"
    assert list(first.features)[: len(features)] == features
    values = random_inputs(tower, 7)
    expected = run(tower, values, 7)["score"]
    np.testing.assert_allclose(run(packed, values, 7)["score"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("column", "is_slice"),
    [
        (lambda age: age[:, tf.newaxis], True),
        (lambda age: tf.expand_dims(age, 1), True),
        (lambda age: tf.reshape(age, [-1, 1]), True),
        (lambda age: tf.expand_dims(age, 1) * 2.0, False),
        (lambda age: age[::-1, tf.newaxis], False),
        (lambda age: tf.expand_dims(age[::2], 1), False),
        (lambda age: tf.cast(tf.cast(age, "float16"), "float32")[:, None], False),
    ],
)
def test_numbers_are_columns_of_a_packed_tensor_where_they_only_got_an_axis(
    column: Callable[[Any], Any], is_slice: bool
) -> None:
    names = [f"n{number}" for number in range(9)]

    def call(inputs: Inputs) -> dict[str, Any]:
        columns = tf.concat([column(inputs[name]) for name in names[::-1]], 1)
        return {"score": tf.reduce_sum(columns * tf.range(9.0), 1)}

    tower = tower_of(trace(call, **dict.fromkeys(names, numbers())))
    packed = pack(tower)
    (only,) = packed.spec.inputs
    assert list(only.features) == (names[::-1] if is_slice else names)
    values = random_inputs(tower, 8)
    expected = run(tower, values, 8)["score"]
    np.testing.assert_allclose(run(packed, values, 8)["score"], expected, rtol=1e-6, atol=1e-6)


def test_eight_features_of_a_dtype_stay_apart() -> None:
    names = [f"n{number}" for number in range(8)]
    call = lambda x: {"score": tf.add_n([x[name] for name in names])}  # noqa: E731
    eight = tower_of(trace(call, **dict.fromkeys(names, numbers())))
    assert pack(eight).spec == eight.spec
