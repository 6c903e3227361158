"""Calls of small models, traced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.graphs.loading import tf
from export.recipe.schema import InputSection
from export.tensorflow_models.frameworks.placeholders import tables_unallocated
from export.tensorflow_models.graph.pruning import TracedCall
from export.tensorflow_models.lookups.records import of_table
from export.tensorflow_models.model.call_tracing import resolve_call, trace_call, zeros

ITEM = InputSection(dtype="int64")
AGE = InputSection(dtype="float32")
TITLE = InputSection(dtype="string")
BAG = InputSection(dtype="int64", kind="ragged")
BAG_WEIGHTS = InputSection(dtype="float32", kind="ragged", weights_for="bag")
TAGS = InputSection(dtype="int64", kind="sparse")
TAG_WEIGHTS = InputSection(dtype="float32", kind="sparse", weights_for="tags")

Score = Callable[[Mapping[str, Any]], Any]


def traced(score: Score, **parts: InputSection) -> TracedCall:
    """Returns the call of a model, traced with these inputs."""
    return trace_call(
        SimpleNamespace(score=score), Call("score", tuple(parts)), parts, lambda table: None
    )


class Layer:
    """Takes one dict, as `call`, like a layer of Keras."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.call(*args, **options)

    def call(self, inputs: Any, training: bool = True) -> tuple[Any, bool]:
        return inputs, training


class Model:
    """Attributes that a recipe may name as calls."""

    def __init__(self) -> None:
        self.direction = "up"
        self.layer = Layer()
        self.compiled = tf.function(lambda inputs: inputs["a"] + 1)
        self.largest = max  # has no signature

    def __call__(self, inputs: Any) -> Any:
        return "the whole", inputs

    def pair(self, user: Any, item: Any, *, training: bool = False) -> Any:
        return user, item, training

    def optional(self, inputs: Any, scale: int = 3, *, training: Any) -> Any:
        return inputs, scale, training

    def several(self, *inputs: Any, **options: Any) -> Any:
        return inputs, options


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("", ("the whole", {"a": 1})),
        ("layer", ({"a": 1}, False)),
        ("layer.call", ({"a": 1}, False)),
        ("compiled", 2),
        ("largest", "a"),
        ("optional", ({"a": 1}, 3, False)),
        ("several", (({"a": 1},), {})),
    ],
)
def test_resolve_call_returns_what_takes_a_dict_in_inference_mode(path: str, result: Any) -> None:
    assert resolve_call(Model(), Call(path))({"a": 1}) == result


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("score", "call 'score': Model has no attribute 'score'"),
        ("layer.score", "call 'layer.score': Layer has no attribute 'score'"),
        ("direction", "call 'direction' is a str, which cannot be called"),
        (
            "pair",
            "call 'pair' takes user, item, training, and is given one dict of inputs: missing a "
            "required argument: 'item'. Write as the tower's 'arguments' what it is given, as in "
            'arguments = ["user_id", "movie_id"] or arguments = { x = "user_id" }',
        ),
    ],
)
def test_resolve_call_of_what_cannot_be_called_says_why(path: str, message: str) -> None:
    with pytest.raises(UsageError) as rejected:
        resolve_call(Model(), Call(path))
    assert str(rejected.value) == message


def test_resolve_call_of_a_model_that_cannot_be_called_names_the_model() -> None:
    with pytest.raises(UsageError, match=r"\Athe model's call is a list, which cannot be called"):
        resolve_call([], Call())


def run(call: TracedCall, **values: Any) -> Any:
    """Returns the result of a traced call for values of its inputs, or of the parts of an input."""
    graph = call.function.graph
    feeds = []
    for name in values:
        input_name, _, part = name.partition("__")
        feed = call.lengths[input_name] if part == "lengths" else call.inputs[input_name]
        feeds.append(feed if part in ("", "lengths") else getattr(feed, part))
    parts = tf.nest.flatten(call.returned.value, expand_composites=True)
    named = {
        f"part_{position}": graph.as_graph_element(part) for position, part in enumerate(parts)
    }
    function = call.function.prune(feeds, named)
    results = function(*map(tf.constant, values.values(), [feed.dtype for feed in feeds]))
    return [results[name].numpy().tolist() for name in named]


def test_trace_call_runs_the_call_once_on_tensors_of_its_inputs() -> None:
    calls = []

    def score(inputs: Mapping[str, Any]) -> Any:
        calls.append(inputs)
        return inputs["age"] * 2.0

    traced_call = traced(score, age=AGE, item=ITEM)

    (arguments,) = calls
    assert set(arguments) == {"age", "item"}
    assert {
        name: (tensor.dtype, tensor.shape.as_list()) for name, tensor in traced_call.inputs.items()
    } == {
        "age": (tf.float32, [None]),
        "item": (tf.int64, [None]),
    }
    assert traced_call.sections == {"age": AGE, "item": ITEM}
    assert (traced_call.lengths, traced_call.lookups) == ({}, [])
    assert run(traced_call, age=[1.0, 2.5]) == [[2.0, 5.0]]


def test_trace_call_converts_python_conditions_on_tensors() -> None:
    def score(inputs: Mapping[str, Any]) -> Any:
        if tf.reduce_sum(inputs["age"]) > 10.0:
            result = inputs["age"]
        else:
            result = -inputs["age"]
        return result

    traced_call = traced(score, age=AGE)
    assert run(traced_call, age=[4.0, 7.0]) == [[4.0, 7.0]]
    assert run(traced_call, age=[4.0, 5.0]) == [[-4.0, -5.0]]


def test_trace_call_makes_inner_functions_part_of_the_graph() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def inner(age: Any) -> Any:
        return age + 1.0

    traced_call = traced(lambda inputs: inner(inputs["age"]), age=AGE)
    operations = {operation.type for operation in traced_call.function.graph.get_operations()}
    assert "AddV2" in operations
    assert not operations & {"PartitionedCall", "StatefulPartitionedCall"}


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_trace_call_leaves_how_functions_run_as_it_was(eagerly: bool, fails: bool) -> None:
    def score(inputs: Mapping[str, Any]) -> Any:
        assert tf.config.functions_run_eagerly()
        return inputs["age" if not fails else "other"]

    tf.config.run_functions_eagerly(eagerly)
    try:
        if fails:
            with pytest.raises(NotConvertible):
                traced(score, age=AGE)
        else:
            traced(score, age=AGE)
        assert tf.config.functions_run_eagerly() == eagerly
    finally:
        tf.config.run_functions_eagerly(False)


def test_trace_call_gives_variables_of_one_name_distinct_ones() -> None:
    variables: list[Any] = []

    def score(inputs: Mapping[str, Any]) -> Any:
        variables.extend(tf.Variable([1.0], name="kernel") for _ in range(3))
        variables.append(tf.Variable([1.0]))
        return inputs["age"] * variables[0]

    traced(score, age=AGE)
    assert [variable.name for variable in variables] == [
        "kernel:0",
        "kernel_2:0",
        "kernel_3:0",
        "Variable:0",
    ]


def test_trace_call_rebuilds_ragged_inputs_from_their_lengths() -> None:
    def score(inputs: Mapping[str, Any]) -> Any:
        weighted = tf.cast(inputs["bag"], tf.float32) * inputs["bag_weights"]
        return tf.reduce_sum(weighted, 1), inputs["another"].row_splits

    another = InputSection(dtype="float32", kind="ragged")
    # Weights come first: the order of a recipe is free.
    traced_call = traced(score, bag_weights=BAG_WEIGHTS, bag=BAG, another=another)

    assert list(traced_call.lengths) == ["bag", "another"]
    result = run(
        traced_call,
        bag__values=[1, 2, 3],
        bag_weights__values=[0.5, 1.0, 2.0],
        bag__lengths=[2, 0, 1],
        another__lengths=[0, 4, 1],
    )
    assert result == [[2.5, 0.0, 6.0], [0, 0, 4, 5]]


def test_trace_call_rebuilds_sparse_inputs_from_their_lengths() -> None:
    def score(inputs: Mapping[str, Any]) -> Any:
        weights = inputs["tag_weights"]
        tags = inputs["tags"]
        assert weights.indices is tags.indices
        return tags.indices, tags.dense_shape, tf.cast(tags.values, tf.float32) * weights.values

    traced_call = traced(score, tags=TAGS, tag_weights=TAG_WEIGHTS)

    assert list(traced_call.lengths) == ["tags"]
    result = run(
        traced_call,
        tags__values=[7, 8, 9],
        tag_weights__values=[1.0, 2.0, 3.0],
        tags__lengths=[2, 0, 1],
    )
    assert result == [[[0, 0], [0, 1], [2, 0]], [3, 2], [7.0, 16.0, 27.0]]


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [(TAGS, ["bag", "bag_weights"]), (ITEM, ["bag_weights"])],
    ids=["sparse", "dense"],
)
def test_trace_call_gives_weights_of_ids_of_another_kind_their_own_lengths(
    ids: InputSection, lengths: list[str]
) -> None:
    traced_call = traced(
        lambda inputs: tf.reduce_sum(inputs["bag_weights"], 1), bag=ids, bag_weights=BAG_WEIGHTS
    )
    assert list(traced_call.lengths) == lengths
    values = {"bag_weights__values": [1.0, 2.0, 3.0], "bag_weights__lengths": [1, 2]}
    assert run(traced_call, **values) == [[1.0, 5.0]]


def table(rows: int = 50) -> Any:
    """Returns a variable that may be a table, as the exporter makes it while a model is built."""
    with tables_unallocated():
        return tf.Variable(tf.zeros([rows, 4]), name="items")


@pytest.mark.parametrize(("length", "shape"), [(None, [4]), (2, [2, 4])])
@pytest.mark.parametrize(
    "ids",
    [tf.constant([[1, 2], [3, 4], [5, 6]]), tf.ragged.constant([[1], [], [2, 3]])],
    ids=["dense", "ragged"],
)
def test_zeros_have_the_shape_of_a_lookup(ids: Any, length: int | None, shape: list[int]) -> None:
    rows = zeros(of_table(table(), ids, length=length))
    assert rows.shape.as_list() == [3, *shape]
    assert not np.any(rows)


@pytest.mark.parametrize(("length", "shape"), [(None, [4]), (2, [2, 4])])
@pytest.mark.parametrize("ids", [ITEM, BAG], ids=["dense", "ragged"])
def test_zeros_in_a_graph_have_any_batch(
    ids: InputSection, length: int | None, shape: list[int]
) -> None:
    looked_up = table()

    def score(inputs: Mapping[str, Any]) -> Any:
        return zeros(of_table(looked_up, inputs["ids"], length=length))

    assert traced(score, ids=ids).returned.value.shape.as_list() == [None, *shape]


def test_trace_call_records_a_gather_with_its_line() -> None:
    items = table()

    def score(inputs: Mapping[str, Any]) -> Any:
        return tf.gather(items, inputs["item"])

    traced_call = traced(score, item=ITEM)
    (lookup,) = traced_call.lookups
    assert (lookup.gather, lookup.kind, lookup.length) == (True, "single", None)
    assert lookup.variable is items
    assert lookup.ids[0] is traced_call.inputs["item"]
    assert lookup.line.endswith(f"test_call_tracing.py:{score.__code__.co_firstlineno + 1}")
    assert lookup.activation is traced_call.returned.value.op.inputs[0]
    assert traced_call.returned.value.shape.as_list() == [None, 4]


def test_trace_call_records_a_gather_of_one_id_with_a_dimension_as_single() -> None:
    items = table()
    single_id = InputSection(dtype="int64", shape=(1,))
    traced_call = traced(lambda inputs: tf.gather(items, inputs["one"]), one=single_id)
    (lookup,) = traced_call.lookups
    assert (lookup.kind, lookup.length) == ("single", 1)
    assert lookup.activation.shape.as_list() == [None, 4]
    assert traced_call.returned.value.shape.as_list() == [None, 1, 4]


def test_trace_call_records_a_bag_that_cannot_stay_in_the_graph() -> None:
    items = table()

    def score(inputs: Mapping[str, Any]) -> Any:
        return tf.nn.safe_embedding_lookup_sparse(items, inputs["tags"], combiner="sum")

    (lookup,) = traced(score, tags=TAGS).lookups
    assert (lookup.gather, lookup.kind, lookup.combiner) == (False, "bag", "sum")


def test_trace_call_gives_zeros_where_only_shapes_are_asked_for() -> None:
    items = table()
    shapes = []

    def looked_up(ids: Any) -> Any:
        return tf.nn.safe_embedding_lookup_sparse(items, ids, combiner="sum")

    def score(inputs: Mapping[str, Any]) -> Any:
        with tf.init_scope():
            rows = looked_up(tf.sparse.from_dense([[1, 2], [3, 0]]))
            shapes.append(rows.shape.as_list())
        with tf.__internal__.FuncGraph("keras_scratch_graph").as_default():
            rows = looked_up(tf.compat.v1.sparse_placeholder(tf.int64, [None, None]))
            shapes.append(rows.shape.as_list())
        return inputs["age"]

    assert traced(score, age=AGE).lookups == []
    assert shapes == [[2, 4], [None, 4]]


IDS = InputSection(dtype="int64", shape=(3,))
SEQUENCE = tf.feature_column.sequence_categorical_column_with_identity("ids", 9)


def sequence_of(ids: Any) -> Any:
    """Returns the rows of ids by a sequence column, and the number of ids of each example."""
    column = tf.feature_column.embedding_column(SEQUENCE, 4)
    return tf.keras.experimental.SequenceFeatures([column])({"ids": ids})


def test_trace_call_takes_the_lengths_of_a_sequence_column_as_an_input() -> None:
    def score(inputs: Mapping[str, Any]) -> Any:
        rows, lengths = sequence_of(inputs["ids"])
        same_rows, _ = sequence_of(inputs["ids"])
        return rows + same_rows, lengths

    traced_call = traced(score, ids=IDS)
    assert list(traced_call.lengths) == ["ids"]
    _, lengths = traced_call.returned.value
    fetches = {"lengths": lengths}
    function = traced_call.function.prune(
        [traced_call.lengths["ids"], traced_call.inputs["ids"]], fetches
    )
    result = function(tf.constant([2, 0, 5], tf.int64), tf.zeros([3, 3], tf.int64))
    assert result["lengths"].numpy().tolist() == [2, 0, 3]


def test_trace_call_of_a_sequence_column_of_computed_ids_is_rejected() -> None:
    def score(inputs: Mapping[str, Any]) -> Any:
        return sequence_of(inputs["ids"] + 1)[0]

    message = (
        r"\Aa sequence column reads ids that the model computes \(test_call_tracing\.py:\d+\); "
        r"give it an unchanged input\Z"
    )
    with pytest.raises(NotConvertible, match=message):
        traced(score, ids=IDS)


def test_trace_call_leaves_a_gather_inside_a_condition_to_the_model() -> None:
    items = table()

    def score(inputs: Mapping[str, Any]) -> Any:
        return tf.cond(
            tf.reduce_sum(inputs["item"]) > 0,
            lambda: tf.gather(items, inputs["item"]),
            lambda: tf.zeros([tf.size(inputs["item"]), 4]),
        )

    assert traced(score, item=ITEM).lookups == []


def test_trace_call_of_a_bag_inside_a_condition_is_rejected_with_its_line() -> None:
    items = table()

    def score(inputs: Mapping[str, Any]) -> Any:
        def combined() -> Any:
            return tf.nn.safe_embedding_lookup_sparse(items, inputs["tags"], combiner="sum")

        zeros = tf.zeros([2, 4])
        return tf.cond(tf.size(inputs["tags"].values) > 0, combined, lambda: zeros)

    line = score.__code__.co_firstlineno + 2
    with pytest.raises(NotConvertible) as rejected:
        traced(score, tags=TAGS)
    assert str(rejected.value) == (
        "feature 'items' is looked up inside a tf.function, tf.cond or tf.while_loop of the model "
        f"(test_call_tracing.py:{line}); call the embedding layer outside it"
    )


def cast(value: Any, dtype: Any) -> Any:
    """Adds a cast that `tf.cast` rejects, and Keras does not."""
    return tf.raw_ops.Cast(x=value, DstT=dtype)


@pytest.mark.parametrize(
    ("score", "error", "message"),
    [
        pytest.param(
            lambda inputs: cast(inputs["title"], tf.int64),
            UsageError,
            "input 'title' is string in the recipe, and the model takes int64 LINE; write the "
            "dtype of training as inputs.title.dtype",
            id="input of strings",
        ),
        pytest.param(
            lambda inputs: cast(tf.identity(inputs["item"]), tf.string),
            UsageError,
            "input 'item' is int64 in the recipe, and the model takes string LINE; write the "
            "dtype of training as inputs.item.dtype",
            id="input of numbers",
        ),
        pytest.param(
            lambda inputs: cast(tf.strings.lower(inputs["title"]), tf.int64),
            NotConvertible,
            "the model casts string to int64 LINE, which TensorFlow cannot do; use "
            "tf.strings.as_string or tf.strings.to_number",
            id="computed strings",
        ),
    ],
)
def test_trace_call_rejects_casts_between_strings_and_numbers(
    score: Score, error: type[Exception], message: str
) -> None:
    expected = re.escape(message).replace("LINE", r"\(test_call_tracing\.py:\d+\)")
    with pytest.raises(error, match=rf"\A{expected}\Z"):
        traced(score, title=TITLE, item=ITEM)


def test_trace_call_keeps_casts_among_numbers() -> None:
    traced_call = traced(lambda inputs: tf.cast(inputs["item"], tf.float32), item=ITEM)
    assert run(traced_call, item=[3]) == [[3.0]]


DECLARED = (
    "; the recipe declares item as int64 [batch], other as int64 [batch], title as string [batch]"
)
NUMPY = "; a call is traced without values: use TensorFlow operations instead of NumPy's and of "
STATEMENTS = (
    "; a call is traced without values: use tf.where, tf.cond or tf.unstack instead of Python "
    "statements"
)
MISSING = (
    "; it was given one dict of the inputs that the recipe declares: declare every input that the "
    "model reads. A dot in the name of an input is a level of the dict; where the model's own name "
    "has the dot, write the dict as the tower's 'arguments', as in "
    'arguments = [{ "a.b" = "a.b" }]'
)
IN_KERAS = (
    "Exception encountered when calling layer 'dense' (type Dense).\n\n{message}\n\n"
    "Call arguments received by layer 'dense':\n  inputs=[]"
)
OTHER_DTYPE = "Value passed to 'input' has type {0} that does not match expected type of string"


def failing(problem: Exception) -> Score:
    def score(inputs: Mapping[str, Any]) -> Any:
        raise problem

    return score


@pytest.mark.parametrize(
    ("problem", "raised", "cure"),
    [
        pytest.param(ValueError("no  such\nway"), "ValueError: no such way", "", id="plain"),
        pytest.param(
            ValueError(IN_KERAS.format(message="wrong\n  rank")),
            "ValueError: wrong rank",
            DECLARED,
            id="layer",
        ),
        pytest.param(
            ValueError(IN_KERAS.format(message="\x1b[1mwrong rank\x1b[0m")),
            "ValueError: wrong rank",
            DECLARED,
            id="layer in bold",
        ),
        pytest.param(
            ValueError(IN_KERAS.format(message="in user code:\n\n    TypeError: wrong type")),
            "TypeError: wrong type",
            DECLARED,
            id="code inside a layer",
        ),
        pytest.param(
            ValueError("NotFoundError: first\n    TypeError: second"),
            "TypeError: second",
            "",
            id="the last of several",
        ),
        pytest.param(KeyError("hour"), "KeyError: 'hour'", MISSING, id="missing input"),
        pytest.param(
            TypeError("no numpy here"), "TypeError: no numpy here", f"{NUMPY}.numpy()", id="numpy"
        ),
        pytest.param(
            tf.errors.OperatorNotAllowedInGraphError("Iterating"),
            "OperatorNotAllowedInGraphError: Iterating",
            STATEMENTS,
            id="statement",
        ),
        pytest.param(
            TypeError(OTHER_DTYPE.format("int64")),
            f"TypeError: {OTHER_DTYPE.format('int64')}",
            "; the recipe declares item, other as int64, and the model takes string: write the "
            "dtype of training as inputs.item.dtype or inputs.other.dtype",
            id="dtype",
        ),
        pytest.param(
            TypeError(OTHER_DTYPE.format("float64")),
            f"TypeError: {OTHER_DTYPE.format('float64')}",
            DECLARED,
            id="dtype of no input",
        ),
    ],
)
def test_trace_call_that_raises_says_what_and_where_and_the_cure(
    problem: Exception, raised: str, cure: str
) -> None:
    score = failing(problem)
    line = score.__code__.co_firstlineno + 1
    with pytest.raises(NotConvertible) as rejected:
        traced(score, item=ITEM, other=ITEM, title=TITLE)
    assert str(rejected.value) == (
        f"call 'score' with inputs item, other, title raised {raised} "
        f"(test_call_tracing.py:{line}){cure}"
    )


def test_trace_call_that_raises_after_python_code_ran_names_that_too() -> None:
    def score(inputs: Mapping[str, Any]) -> Any:
        negative = tf.numpy_function(np.negative, [inputs["age"]], tf.float32)
        raise ValueError(f"unknown rank of {negative.dtype.name}")

    line = score.__code__.co_firstlineno + 1
    with pytest.raises(NotConvertible) as rejected:
        traced(score, age=AGE)
    assert str(rejected.value) == (
        "call 'score' with inputs age raised ValueError: unknown rank of float32 "
        f"(test_call_tracing.py:{line + 1}); the recipe declares age as float32 [batch]; and what "
        f"tf.py_function or tf.numpy_function (test_call_tracing.py:{line}) returned has no known "
        "shape and cannot be part of a bundle: compute it with TensorFlow's operations, or before "
        "the model and pass the result as an input"
    )


def test_trace_call_passes_errors_of_the_exporter_on() -> None:
    problem = UsageError("as it is")
    with pytest.raises(UsageError) as rejected:
        traced(failing(problem), item=ITEM)
    assert rejected.value is problem
