from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import CrossedIds, CrossKey
from export.errors import NotConvertible
from export.front_end.calls import Call
from export.front_end.interface import TracedTower
from export.front_end.specs import FeatureSpec
from export.graphs.functions import narrowed
from export.graphs.loading import tf
from export.graphs.tensors import input_spec
from export.graphs.walks import resource
from export.recipe.schema import InputSection, TowerSection
from export.tensorflow_models.frameworks.placeholders import early_rows
from export.tensorflow_models.graph.pruning import TracedCall, prune
from export.tensorflow_models.graph.tower_results import Returned
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, trace
from tests.units.export.traced_features import embedded

INPUTS = {
    "item": InputSection(dtype="int64"),
    "short": InputSection(dtype="int32"),
    "word": InputSection(dtype="string"),
    "pair": InputSection(dtype="int64", shape=(2,)),
    "age": InputSection(dtype="float32"),
    "bag": InputSection(dtype="int64", kind="ragged", length_max=5),
    "bag_weights": InputSection(dtype="float32", kind="ragged", weights_for="bag", length_max=3),
    "loads": InputSection(dtype="float32", kind="ragged", length_max=4),
}


def part(**keys: Any) -> TowerSection:
    return TowerSection.model_validate({"role": "query", **keys})


class Lookups:
    """Lookups of a traced call, and the lengths of its ragged inputs."""

    def __init__(self) -> None:
        self.features: dict[str, FeatureSpec] = {}
        self.activations: dict[str, Any] = {}
        self.lengths: dict[str, Any] = {}

    def look_up(self, *inputs: str, shape: tuple[int, ...] = (4,), **options: Any) -> Any:
        """Returns the activation of a feature that is named after its inputs."""
        name = "_".join(inputs)
        self.features[name] = embedded(name, "items", inputs=inputs, **options)
        self.activations[name] = tf.compat.v1.placeholder(tf.float32, [None, *shape], name=name)
        return self.activations[name]

    def lengths_of(self, name: str) -> Any:
        """Returns how many values of a ragged input each example has."""
        if name not in self.lengths:
            self.lengths[name] = tf.compat.v1.placeholder(tf.int64, [None], name=f"{name}_lengths")
        return self.lengths[name]


CALL = Call("", tuple(INPUTS))
Compute = Callable[[Any, Lookups], Any]
"""Computes the result of a call from its inputs and lookups."""


def pruned(
    call: Compute,
    tower: TowerSection | None = None,
    layer_tables: Mapping[str, str] = MappingProxyType({}),
    inputs: Mapping[str, Any] = MappingProxyType({}),
) -> TracedTower:
    """Returns the one tower of a call of `INPUTS`, some of which may be of another type."""
    lookups = Lookups()
    types = {name: input_spec(part) for name, part in INPUTS.items()} | dict(inputs)
    traced = trace(lambda features: {"made": call(features, lookups)}, **types)
    whole = TracedCall(
        CALL,
        traced.function,
        traced.inputs,
        lookups.lengths,
        Returned(traced.results["made"]),
        INPUTS,
        [],
        features=lookups.features,
        activations=lookups.activations,
    )
    return prune("query", tower or part(), whole, layer_tables)


def run(tower: TracedTower, **values: Any) -> list[Any]:
    """Returns the result of a tower for values of its inputs."""
    arguments = [tf.constant(values[tensor.name], tensor.dtype) for tensor in tower.spec.inputs]
    (result,) = tower.function(*arguments).values()
    listed: list[Any] = result.numpy().tolist()
    return listed


def reads(tower: TracedTower) -> list[str]:
    """Returns the features that a tower takes, in order."""
    return [tensor.feature for tensor in tower.spec.inputs]


def test_narrowed_function_reads_only_the_variables_of_its_fetches() -> None:
    kernel = tf.Variable([[2.0], [3.0]], name="kernel")
    other_variable = tf.Variable([5.0], name="other")

    def call(features: Any) -> dict[str, Any]:
        return {"score": (features["x"] @ kernel)[:, 0], "rest": features["y"] * other_variable}

    traced = trace(call, x=numbers(2), y=numbers())
    everything = list(traced.function.graph.captures)
    fetches = {"score": traced.results["score"]}
    function, variables = narrowed("tower", traced.function, [traced.inputs["x"]], fetches)
    assert variables == (kernel,)
    np.testing.assert_array_equal(function(tf.constant([[1.0, 1.0]]))["score"], [5.0])
    assert list(traced.function.graph.captures) == everything


def test_narrowed_function_takes_a_tensor_inside_the_graph() -> None:
    def call(features: Any) -> dict[str, Any]:
        hidden = features["x"] + 1.0
        return {"hidden": hidden, "score": hidden * 2.0}

    traced = trace(call, x=numbers())
    fetches = {"score": traced.results["score"]}
    function, _ = narrowed("tower", traced.function, [traced.results["hidden"]], fetches)
    np.testing.assert_array_equal(function(tf.constant([4.0]))["score"], [8.0])


def test_prune_bypasses_reshapes_that_change_nothing_and_keeps_all_others() -> None:
    def call(features: Any) -> Any:
        batch = tf.shape(features["x"])[0]
        halves = tf.reshape(features["x"], [-1, 2, 3])
        same = tf.reshape(halves, [-1, 2, 3])
        # TensorFlow knows neither size of these two, which differ.
        wide = tf.reshape(same, tf.stack([batch, batch * 0 + 6]))
        narrow = tf.reshape(wide, tf.stack([batch * 2, batch * 0 + 3]))
        return tf.reshape(tf.reduce_sum(narrow, axis=1), [-1, 2])

    traced = trace(lambda features: {"sums": call(features)}, x=numbers(6))
    parts = {"x": InputSection(dtype="float32", shape=(6,))}
    whole = TracedCall(
        CALL, traced.function, traced.inputs, {}, Returned(traced.results["sums"]), parts, []
    )

    function = prune("query", part(), whole, {}).function

    reshapes = [tensor for tensor in function.graph.get_operations() if tensor.type == "Reshape"]
    sizes = [reshape.outputs[0].shape.as_list() for reshape in reshapes]
    assert sizes == [[None, 2, 3], [None, None], [None, None], [None, 2]]
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    (result,) = function(tf.constant(x)).values()
    np.testing.assert_array_equal(result, x.reshape(2, 2, 3).sum(axis=2))


@pytest.mark.parametrize(("columns", "largest_bytes"), [(None, 0), (2, 24), (5, 60)])
def test_prune_measures_the_largest_variable_of_a_tower(
    columns: int | None, largest_bytes: int
) -> None:
    kernels = [tf.Variable(tf.ones([3, size])) for size in (1, columns) if columns is not None]

    def call(features: Any) -> Any:
        sides = [features["x"] @ kernel for kernel in kernels]
        return tf.concat([features["x"], *sides], axis=1)

    traced = trace(lambda features: {"made": call(features)}, x=numbers(3))
    parts = {"x": InputSection(dtype="float32", shape=(3,))}
    whole = TracedCall(
        CALL, traced.function, traced.inputs, {}, Returned(traced.results["made"]), parts, []
    )
    assert prune("query", part(), whole, {}).spec.largest_bytes == largest_bytes


def test_prune_takes_the_activations_and_inputs_that_its_results_need() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        lookups.look_up("item")
        rows = lookups.look_up("pair", shape=(2, 4))
        ages = tf.reshape(inputs["age"], [-1, 1])
        shorts = tf.cast(inputs["short"], tf.float32)[:, tf.newaxis]
        return tf.reduce_sum(rows, 1) * ages + shorts

    tower = pruned(call, part(role="ranking"))

    tower_inputs = [
        (tensor.name, tensor.feature, tensor.dtype, tensor.shape) for tensor in tower.spec.inputs
    ]
    assert tower_inputs == [
        ("pair", "pair", "float32", (None, 2, 4)),
        ("short_values", "short@values", "int32", (None,)),
        ("age_values", "age@values", "float32", (None,)),
    ]
    (output,) = tower.spec.outputs
    assert (output.name, output.dtype, output.shape) == ("result", "float32", (None, 4))
    assert (tower.spec.name, tower.spec.role, tower.spec.call) == ("query", "ranking", CALL)
    assert (tower.spec.paths, tower.spec.result) == ({"result": ()}, "result")
    assert (tower.spec.half, tower.spec.largest_bytes, tower.spec.variables) == ("", 0, ())
    assert run(tower, pair=[[[1.0] * 4, [2.0] * 4]], short_values=[5], age_values=[10.0]) == [
        [35.0] * 4
    ]


def test_prune_casts_results_to_float32_and_names_the_half_precision_dtype() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        return tf.cast(lookups.look_up("item"), tf.float16) * 2

    tower = pruned(call)
    assert (tower.spec.half, tower.spec.outputs[0].dtype) == ("float16", "float32")
    assert run(tower, item=[[1.0, 2.0, 3.0, 4.0]]) == [[2.0, 4.0, 6.0, 8.0]]


def test_prune_names_the_line_of_the_first_operation_of_each_type() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        rows = lookups.look_up("item")
        return tf.tanh(rows)

    line = call.__code__.co_firstlineno + 2
    assert pruned(call).lines["Tanh"].endswith(f"test_pruning.py:{line}")


@pytest.mark.parametrize(
    ("shaped", "lookup", "expected"),
    [
        pytest.param("item", {}, [[1], [1]], id="single"),
        pytest.param("short", {}, [[1], [1]], id="single of 32 bits"),
        pytest.param("item", {"shape": (1,)}, [[1], [1]], id="single with one number"),
        pytest.param("word", {}, [[1], [1]], id="single text"),
        pytest.param("pair", {"shape": (2, 4)}, [[1, 1], [1, 1]], id="sequence"),
        pytest.param("pair", {"kind": "bag", "combiner": "sum"}, [[1, 1], [1, 1]], id="dense bag"),
    ],
)
def test_prune_takes_the_shape_of_ids_from_their_activation(
    shaped: str, lookup: dict[str, Any], expected: list[list[int]]
) -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        rows = lookups.look_up(shaped, **lookup)
        ones = tf.ones(tf.shape(inputs[shaped]))
        return tf.reshape(ones, [tf.shape(rows)[0], len(expected[0])])

    tower = pruned(call)
    assert reads(tower) == [shaped]
    shape = lookup.get("shape", (4,))
    assert run(tower, **{shaped: np.zeros([2, *shape])}) == expected


def test_prune_takes_the_batch_of_a_bag_from_its_activation() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        rows = lookups.look_up("bag", kind="bag", combiner="sum", encoding="ragged")
        return rows + tf.ones([tf.shape(lookups.lengths_of("bag"))[0], 4])

    tower = pruned(call)
    assert reads(tower) == ["bag"]
    assert run(tower, bag=np.zeros([2, 4])) == [[1.0] * 4] * 2


def test_prune_reads_the_shape_of_an_input_that_is_only_crossed() -> None:
    cross = CrossedIds(buckets=9, keys=(CrossKey(dtype="int64"), CrossKey(dtype="int64")))

    def call(inputs: Any, lookups: Lookups) -> Any:
        rows = lookups.look_up("item", "short", ids=cross)
        return rows + tf.ones([tf.shape(inputs["item"])[0], 4])

    tower = pruned(call)
    assert reads(tower) == ["item_short", "item@values"]
    assert run(tower, item_short=np.zeros([2, 4]), item_values=[7, 8]) == [[1.0] * 4] * 2


def test_prune_reads_the_values_of_ids_that_are_needed_beside_their_shape() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        rows = lookups.look_up("item")
        same = tf.ones(tf.shape(inputs["item"]))
        return rows * (same * tf.cast(inputs["item"], tf.float32))[:, tf.newaxis]

    tower = pruned(call)
    assert reads(tower) == ["item", "item@values"]
    assert run(tower, item=np.ones([2, 4]), item_values=[7, 8]) == [[7.0] * 4, [8.0] * 4]


def test_prune_pads_the_values_of_ragged_inputs_and_takes_their_lengths() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        batch = tf.shape(lookups.lengths_of("bag"), tf.int64)[0]
        rows = tf.RaggedTensor.from_row_lengths(
            inputs["bag"].values, lookups.lengths_of("bag"), validate=False
        )
        weights = rows.with_values(inputs["bag_weights"].values)
        loads = tf.RaggedTensor.from_row_lengths(
            inputs["loads"].values, lookups.lengths_of("loads"), validate=False
        )
        result = tf.cast(rows, tf.float32) * weights
        return tf.reshape(tf.reduce_sum(result, 1) + tf.reduce_sum(loads, 1), [batch])

    tower = pruned(call)

    tower_inputs = {tensor.feature: (tensor.dtype, tensor.shape) for tensor in tower.spec.inputs}
    assert tower_inputs == {
        "bag@padded": ("int64", (None, 5)),
        "bag@weights": ("float32", (None, 5)),
        "bag@lengths": ("int64", (None,)),
        "loads@padded": ("float32", (None, 4)),
        "loads@lengths": ("int64", (None,)),
    }
    values = {
        "bag_padded": [[1, 2, 9, 9, 9], [3, 9, 9, 9, 9]],
        "bag_weights": [[0.5, 1.0, 9, 9, 9], [2.0, 9, 9, 9, 9]],
        "bag_lengths": [2, 1],
        "loads_padded": [[9.0] * 4, [100.0, 200.0, 300.0, 9.0]],
        "loads_lengths": [0, 3],
    }
    assert run(tower, **values) == [2.5, 606.0]


def test_prune_pads_weights_with_lengths_of_their_own_as_an_input() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        lookups.lengths_of("bag")
        rows = tf.RaggedTensor.from_row_lengths(
            inputs["bag_weights"].values, lookups.lengths_of("bag_weights"), validate=False
        )
        return tf.reduce_sum(rows, 1)

    tower = pruned(call)
    assert {tensor.feature: tensor.shape for tensor in tower.spec.inputs} == {
        "bag_weights@padded": (None, 3),
        "bag_weights@lengths": (None,),
    }
    values = {"bag_weights_padded": [[1.0, 2.0, 9.0]], "bag_weights_lengths": [2]}
    assert run(tower, **values) == [3.0]


@pytest.mark.parametrize(
    ("compute", "inputs", "what"),
    [
        pytest.param(
            lambda inputs: tf.cast(inputs["bag"].row_splits[1:], tf.float32),
            {},
            "'bag' of dtype int64",
            id="splits",
        ),
        pytest.param(
            lambda inputs: inputs["age"] * 2.0,
            {"age": tf.TensorSpec([None], tf.float64)},
            "'age' of dtype float64",
            id="dtype",
        ),
    ],
)
def test_prune_of_a_tower_that_reads_what_it_cannot_take_names_input_and_line(
    compute: Callable[[Any], Any], inputs: dict[str, Any], what: str
) -> None:
    message = re.escape(
        f"tower 'query' reads input {what} itself (test_pruning.py:LINE), beside its lookup; only "
        "dense numbers, and how many ids an example has, go into a tower: give the model a dense "
        "input with what it reads"
    ).replace("LINE", r"\d+")
    with pytest.raises(NotConvertible, match=rf"\A{message}\Z"):
        pruned(lambda features, lookups: compute(features), inputs=inputs)


def test_prune_of_a_tower_without_inputs_is_rejected() -> None:
    table = tf.Variable(tf.ones([3]))
    batch = tf.TensorSpec([None], tf.float32)
    with pytest.raises(NotConvertible, match=r"\Atower 'query': its outputs depend on no input\Z"):
        pruned(
            lambda inputs, lookups: tf.ensure_shape(
                tf.compat.v1.placeholder_with_default(table * 2.0, [None]), batch.shape
            )
        )


def test_prune_of_a_tower_that_runs_python_names_operation_and_line() -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        return tf.ensure_shape(tf.numpy_function(np.tanh, [inputs["age"]], tf.float32), [None])

    line = call.__code__.co_firstlineno + 1
    message = re.escape(
        "tower 'query' runs Python code by operation 'PyFunc' (tf.py_function or "
        f"tf.numpy_function) (test_pruning.py:{line}), which no bundle can hold; compute it with "
        "TensorFlow's own operations, or before the model and pass the result as an input"
    )
    with pytest.raises(NotConvertible, match=rf"\A{message}\Z"):
        pruned(call)


def test_prune_of_a_tower_that_reads_the_table_of_a_layer_is_rejected() -> None:
    table = tf.Variable(tf.ones([3, 4]))
    kernel = tf.Variable(tf.ones([1, 4]))

    def call(inputs: Any, lookups: Lookups) -> Any:
        return inputs["age"][:, tf.newaxis] * kernel + tf.reduce_sum(table, 0)

    line = call.__code__.co_firstlineno + 1
    message = re.escape(
        "tower 'query' reads table 'items' directly "
        f"(test_pruning.py:{line}). A table of an embedding layer cannot become part of a tower. "
        "Read its rows through the layer"
    )
    with pytest.raises(NotConvertible, match=rf"\A{message}\Z"):
        pruned(call, layer_tables={resource(table.handle): "items"})
    assert pruned(call, layer_tables={}).spec.largest_bytes == 48


@cache
def generator() -> Any:
    with tf.init_scope():
        return tf.random.Generator.from_seed(1)


@cache
def seed_variable() -> Any:
    with tf.init_scope():
        return tf.Variable([1, 2])


def seed_that_changes() -> Any:
    """Returns another seed in each call, as the generators of Keras 3 do."""
    seed = seed_variable().read_value()
    seed_variable().assign_add([0, 1])
    return seed


def dropout_of_tf1(vector: Any, *, training: bool) -> Any:
    """Drops out as `tf.compat.v1.layers.dropout` does, whose switch is a tensor."""
    switch = tf.compat.v1.placeholder_with_default(training, [])
    return tf.compat.v1.cond(switch, lambda: tf.nn.dropout(vector, 0.5), lambda: vector)


@pytest.mark.parametrize(
    ("draw", "operation"),
    [
        (lambda x: x + tf.random.normal([4]), "RandomStandardNormal"),
        (lambda x: x + tf.random.normal([4], seed=1), "RandomStandardNormal"),
        (lambda x: x + tf.random.truncated_normal([4]), "TruncatedNormal"),
        (lambda x: x + tf.random.gamma([4], 1.0), "RandomGamma"),
        (lambda x: x + tf.random.shuffle(x), "RandomShuffle"),
        (lambda x: x + tf.cast(tf.random.categorical(x, 4), tf.float32), "Multinomial"),
        (lambda x: x + generator().normal([4]), "RngReadAndSkip"),
        (
            lambda x: x + tf.random.stateless_uniform([4], seed_that_changes()),
            "StatelessRandomGetKeyCounter",
        ),
        (tf.function(lambda x: x + tf.random.uniform([4])), "RandomUniform"),
        (
            lambda x: tf.while_loop(
                lambda i, y: i < 3, lambda i, y: (i + 1, y + tf.random.uniform([4])), (0, x)
            )[1],
            "RandomUniform",
        ),
        (
            lambda x: tf.cond(tf.size(x) > 4, lambda: x, lambda: x + tf.random.uniform([4])),
            "RandomUniform",
        ),
        (lambda x: dropout_of_tf1(x, training=True), "RandomUniform"),
    ],
)
def test_prune_of_a_tower_that_draws_random_numbers_is_rejected(
    draw: Callable[[Any], Any], operation: str
) -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        return draw(lookups.look_up("item"))

    message = (
        rf"\Atower 'query' draws random numbers in each call by operation {operation} "
        r"\(test_pruning\.py:\d+\), so .* tf\.random\.stateless_\* and a constant seed"
    )
    with pytest.raises(NotConvertible, match=message):
        pruned(call)


@pytest.mark.parametrize(
    "same_each_time",
    [
        lambda x: x + tf.random.stateless_normal([4], seed=(1, 2)),
        lambda x: tf.nn.dropout(x, 0.0),
        lambda x: dropout_of_tf1(x, training=False),
        lambda x: tf.cond(tf.constant(False), lambda: tf.nn.dropout(x, 0.5), lambda: x),
    ],
)
def test_prune_keeps_what_draws_the_same_numbers_in_each_call_or_none(
    same_each_time: Callable[[Any], Any],
) -> None:
    def call(inputs: Any, lookups: Lookups) -> Any:
        vector = lookups.look_up("item")
        # What another tower draws.
        generator().normal([4])
        return same_each_time(vector)

    tower = pruned(call)
    rows = tf.ones([1, 4])
    assert run(tower, item=rows) == run(tower, item=rows)


@pytest.mark.parametrize("rows", [1, 50], ids=["in the graph", "captured"])
def test_prune_of_a_tower_with_rows_that_were_read_early_is_rejected(rows: int) -> None:
    early = early_rows([rows, 4], tf.float32)

    def call(inputs: Any, lookups: Lookups) -> Any:
        return inputs["age"] * tf.reduce_sum(early)

    message = (
        r"\Atower 'query' takes rows of a table that were read while the model was made "
        r"\(.*test_pruning\.py:\d+\), as of a layer that is given numbers in place of inputs, .* "
        r"keras\.models\.load_model\(.* look the rows up in the call of a layer or of a model of "
        r"your own, and train that\Z"
    )
    with pytest.raises(NotConvertible, match=message):
        pruned(call)


def test_prune_keeps_constants_that_were_not_read_early() -> None:
    large = tf.fill([50, 4], 0.5)
    counts = tf.fill([200], 3)

    def call(inputs: Any, lookups: Lookups) -> Any:
        times = tf.cast(tf.reduce_sum(counts), tf.float32)
        return inputs["age"] * tf.reduce_sum(large) * times

    assert run(pruned(call), age_values=[2.0]) == [2.0 * 100.0 * 600.0]
