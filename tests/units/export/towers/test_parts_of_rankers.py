"""Rankers in parts: these compute together what the ranker computes, as they are, packed, and
nearly so in bfloat16; one that stays whole says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.towers.bfloat16 import in_bfloat16
from export.towers.division import split_tower
from export.towers.packing import pack
from tests.units.export.partition.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.ranking_parts import (
    CONTEXT,
    FEATURES,
    random_inputs,
    run,
    run_parts,
    traced,
)
from tests.units.export.traced_models import IDS, RAGGED

load_tensorflow()
Inputs = Mapping[str, Any]
Call = Callable[[Inputs], dict[str, Any]]
COLUMNS = [f"c{number}" for number in range(40)]
OF_CONTEXT = {*CONTEXT, *(f"c{number}" for number in (*range(20), 30, 31))}
CANDIDATES = 4


def matrix(rows: int, columns: int) -> Any:
    values = np.random.default_rng(rows).standard_normal((rows, columns))
    return tf.Variable(values, dtype="float32")


def head(hidden: Any) -> dict[str, Any]:
    return {"score": (tf.nn.relu(hidden) @ matrix(hidden.shape[1], 1))[:, 0]}


def summed(user: Any, inputs: Inputs) -> dict[str, Any]:
    return {"score": tf.reduce_sum(user, 1) + inputs["item"][:, 0]}


def joined(inputs: Inputs, *names: str) -> Any:
    return tf.concat([inputs[name] for name in names], 1)


def layer(*names: str) -> Call:
    """Returns a call whose first layer is over several inputs."""
    return lambda x: head(joined(x, *names) @ matrix(joined(x, *names).shape[1], 16))


def turned(inputs: Inputs) -> dict[str, Any]:
    """A layer of the user and one of the item upside down: a column belongs to each example."""
    sides = [inputs["user"] @ matrix(32, 16), inputs["item"] @ matrix(8, 16)]
    return head(tf.transpose(tf.transpose(sides[0]) + tf.transpose(sides[1])))


def of_batch(size: Callable[[Inputs], Any]) -> Call:
    """Returns a call whose state for the user has as many rows as the items say."""

    def call(inputs: Inputs) -> dict[str, Any]:
        state = tf.fill(tf.stack([size(inputs), 16]), 0.5)
        for _ in range(2):
            state = tf.tanh(inputs["user"] @ matrix(16, 16) + state @ matrix(16, 16))
        return summed(state, inputs)

    return call


def checked(inputs: Inputs) -> dict[str, Any]:
    is_large = tf.debugging.Assert(tf.reduce_all(inputs["user"] > 100.0), ["too small"])
    with tf.control_dependencies([is_large]):
        return {"score": inputs["user"][:, 0] + inputs["item"][:, 0]}


def loop_of_tf1(inputs: Inputs) -> dict[str, Any]:
    frame = tf.raw_ops.Enter(data=inputs["user"], frame_name="loop")
    return {"score": tf.ensure_shape(tf.raw_ops.Exit(data=frame), [None, 16])[:, 0]}


def shared_by_heads(inputs: Inputs) -> dict[str, Any]:
    user = tf.nn.relu(tf.nn.relu(inputs["user"] @ matrix(16, 24)) @ matrix(24, 32))
    hidden = tf.nn.relu(user + inputs["item"] @ matrix(8, 32))
    heads = {"a": matrix(32, 32), "b": tf.transpose(matrix(32, 32))}
    return {name: tf.reduce_max(hidden @ kernel + user, 1) for name, kernel in heads.items()}


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


def twice(inputs: Inputs) -> dict[str, Any]:
    (score,) = summed(inputs["user"] @ matrix(16, 16), inputs).values()
    return {"click": score, "like": score}


def loop(inputs: Inputs) -> dict[str, Any]:
    user = tf.while_loop(
        lambda number, _: number < 3,
        lambda number, values: (number + 1, tf.tanh(values * 2)),
        (0, inputs["user"]),
    )[1]
    return summed(user, inputs)


def attention(inputs: Inputs) -> dict[str, Any]:
    steps = tf.reshape(inputs["user"], [-1, 4, 4])
    scores = tf.einsum("bij,bkj->bik", steps, tf.einsum("bij,jk->bik", steps, matrix(4, 32)[:, :4]))
    user = tf.reshape(tf.nn.softmax(scores) @ steps, [-1, 16]) @ matrix(16, 16)
    return summed(user, inputs)


def pieces(inputs: Inputs) -> dict[str, Any]:
    """A state after the first of two steps, and the second step, as a loop that is unrolled."""
    steps = tf.reshape(inputs["user"] @ matrix(16, 32), [-1, 2, 16])
    first, second = tf.unstack(steps, axis=1)
    gate = tf.sigmoid(inputs["item"] @ matrix(8, 16))
    state = tf.tanh(first @ matrix(16, 16))
    return {"score": tf.reduce_sum(gate * state + (1 - gate) * tf.tanh(second * gate), 1)}


def mixed(operation: Callable[[Any], Any]) -> Call:
    """Returns a call in which examples of a batch meet; an export rejects it as a whole."""
    return lambda x: summed(operation(x["user"] @ matrix(16, 16)) @ matrix(16, 16), x)


def of_many(column: Callable[[Any], Any], names: list[str]) -> Call:
    """Returns a call that joins small inputs, of which each is first changed."""
    return lambda x: {
        "score": tf.reduce_sum(tf.concat([column(x[name]) for name in names], 1) ** 3, 1)
    }


class Ranker(NamedTuple):
    """A ranker, the parts that it has, and a word of the note on why it has not more."""

    call: Call
    widths: Mapping[str, int]
    parts: str | None = "context candidate"
    note: str = ""


BOTH = {"item": 8, "user": 16}
WIDE = {"item": 8, "user": 64}
MANY = {f"c{number}": 1 + number % 3 for number in range(9)}
RANKERS = {
    "turned": Ranker(turned, {"item": 8, "user": 32}),
    "size of an input": Ranker(of_batch(lambda x: tf.shape(x["item"][:, 0] * 2)[0]), BOTH),
    "another size": Ranker(of_batch(lambda x: tf.shape(tf.reshape(x["item"], [-1]))[0] // 8), BOTH),
    "loop": Ranker(loop, BOTH),
    "attention": Ranker(attention, BOTH),
    "pieces": Ranker(pieces, BOTH),
    "joined": Ranker(layer("item", "user", "item"), WIDE),
    "joined, transposed": Ranker(
        lambda x: head(tf.matmul(joined(x, "user", "item"), matrix(16, 72), transpose_b=True)), WIDE
    ),
    "joined, too small": Ranker(layer("user", "item"), {"item": 8, "user": 63}, "", "only"),
    "joined, weights of an input": Ranker(
        lambda x: head(joined(x, "user", "item") @ (matrix(72, 16) * x["item"][0, 0])),
        WIDE,
        "",
        "only",
    ),
    "joined, something between": Ranker(
        lambda x: head(tf.nn.relu(joined(x, "user", "item")) @ matrix(72, 16)), WIDE, "", "only"
    ),
    "one output twice": Ranker(twice, BOTH, "", "two of its outputs are the same"),
    "loop of TF1": Ranker(loop_of_tf1, BOTH, "", "a loop of TF1"),
    "cannot run": Ranker(checked, BOTH, "", "assertion failed: [too small]"),
    "shared by heads": Ranker(shared_by_heads, BOTH, "context trunk head-a head-b"),
    "outputs of the context": Ranker(outputs_of_the_context, BOTH),
    "sideways": Ranker(sideways, BOTH, note="stay together"),
    "sums of those before": Ranker(mixed(lambda x: tf.cumsum(x, 0)), BOTH, None),
    "another order": Ranker(mixed(lambda x: x[::-1]), BOTH, None),
    "the largest of all": Ranker(mixed(lambda x: x / tf.reduce_max(x)), BOTH, None),
    "how many": Ranker(mixed(lambda x: x + tf.cast(tf.shape(x)[0], "float32")), BOTH, None),
    "many inputs": Ranker(of_many(tf.identity, [*MANY]), MANY, None),
    "many inputs, turned": Ranker(of_many(tf.negative, [*MANY][::-1]), MANY, None),
    "many numbers": Ranker(
        of_many(lambda x: x[:, None] * 2, [*MANY]), dict.fromkeys(MANY, 0), None
    ),
}


def assert_parts_compute_the_tower(
    tower: TracedTower, names: str | None, note: str | None = None
) -> None:
    """Compares the parts, as they are and packed, for contexts of four candidates each."""
    roles: Any = {
        tensor.feature: "context" if tensor.feature in OF_CONTEXT else "candidate"
        for tensor in tower.spec.inputs
    }
    result = split_tower(tower, roles)
    parts = list(result.parts)
    if names is not None:
        assert [part.spec.name for part in parts] == names.split(), result.notes
    if note is not None:
        assert bool(note) == bool(result.notes)
        assert note in " ".join(result.notes)
    n = 12
    values = random_inputs(tower, n)
    for name in set(values) & OF_CONTEXT:
        values[name] = values[name][::CANDIDATES].repeat(CANDIDATES, axis=0)
    whole = run(tower, values, n)
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
    inputs = {name: numbers(*[width] * (width > 0)) for name, width in ranker.widths.items()}
    tower = tower_of(trace(ranker.call, **inputs))
    if len(inputs) > 8:
        assert len(pack(tower).spec.inputs) == 1
    if name in ("loop of TF1", "cannot run"):
        result = split_tower(tower, {"user": "context", "item": "candidate"})
        assert result.parts == ()
        assert ranker.note in " ".join(result.notes)
        return
    note = None if ranker.parts is None else ranker.note
    assert_parts_compute_the_tower(tower, ranker.parts, note)


@pytest.mark.parametrize(
    ("function", "outputs", "inputs", "names"),
    [
        ("build_recurrent", ("score",), {"history": RAGGED, "item": IDS}, "context candidate"),
        ("build_joined", ("score",), {**dict.fromkeys([*COLUMNS, "item"], IDS)}, None),
        ("build_mixed", ("click", "like"), FEATURES, ""),
    ],
)
def test_models_of_keras_have_parts_that_compute_them(
    function: str, outputs: tuple[str, ...], inputs: Inputs, names: str | None
) -> None:
    assert_parts_compute_the_tower(traced(function, outputs, inputs), names)
