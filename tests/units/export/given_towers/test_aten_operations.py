"""Each operation of PyTorch by hand: arguments in ATen's order, and what PyTorch returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.given_towers.aten_operations import OPERATIONS
from export.graphs.loading import load_tensorflow, tf

load_tensorflow()
NAN = math.nan


def floats(*values: Any) -> Any:
    return tf.constant(values, tf.float32)


def integers(*values: Any) -> Any:
    return tf.constant(values, tf.int64)


def computed(name: str, *arguments: Any, **options: Any) -> Any:
    return OPERATIONS[name](*arguments, **options)


COUNT = floats([0.0, 1.0, 2.0], [3.0, 4.0, 5.0])


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        # Elements
        (("gelu", floats(1.0)), [0.8413447]),
        (("gelu", floats(1.0), "tanh"), [0.8411920]),
        (("leaky_relu", floats(-2.0, 3.0)), [-0.02, 3]),
        (("leaky_relu", floats(-2.0, 3.0), 0.5), [-1, 3]),
        (("sin", floats(0.5, -1.0)), [0.4794255, -0.8414710]),
        (("expm1", floats(1e-3)), [0.00100050]),
        (("floor", floats(-0.5, 2.5)), [-1, 2]),
        (("sign", floats(-0.5, 0.0)), [-1, 0]),
        (("atan2", floats(1.0), floats(-1.0)), [2.3561945]),
        (("logical_not", tf.constant([True, False])), [False, True]),
        (("bitwise_not", tf.constant([True, False])), [False, True]),
        # Operands are taken to the wider dtype.
        (("add", integers(1, 2), 0.5), [1.5, 2.5]),
        (("add", integers(1, 2), tf.constant([3, 4])), [4, 6]),
        (("mul", tf.constant([True, False]), floats(2.0, 3.0)), [2, 0]),
        (("sub", 1, floats(0.25)), [0.75]),
        (("maximum", floats(1.0, 5.0), integers(2, 3)), [2, 5]),
        (("minimum", floats(1.0, 5.0), integers(2, 3)), [1, 3]),
        (("pow", floats(3.0), 2), [9]),
        (("div", integers(3), 2), [1.5]),
        (("div", floats(3.0), 2), [1.5]),
        (("clamp", floats(-1.0, 0.5, 9.0), 0), [0, 0.5, 9]),
        (("clamp", floats(-1.0, 0.5, 9.0), None, 1), [-1, 0.5, 1]),
        (("clamp", floats(-1.0, 0.5, 9.0), 0, 1), [0, 0.5, 1]),
        (("hardtanh", floats(-3.0, 0.5, 9.0), -1.0, 1.0), [-1, 0.5, 1]),
        (("where", tf.constant([True, False]), floats(1.5, 1.5), integers(7, 7)), [1.5, 7]),
        # Layers
        (("linear", floats([1.0, 2.0]), floats([3.0, 4.0], [5.0, 6.0])), [[11, 17]]),
        (
            ("linear", floats([1.0, 2.0]), floats([3.0, 4.0], [5.0, 6.0]), floats(1.0, 2.0)),
            [[12, 19]],
        ),
        (("einsum", "ij,j->i", [COUNT, floats(1.0, 2.0, 3.0)]), [8, 26]),
        (
            (
                "layer_norm",
                floats([1.0, 3.0], [2.0, 10.0]),
                [2],
                floats(2.0, 2.0),
                floats(1.0, 1.0),
                0.0,
            ),
            [[-1, 3], [-1, 3]],
        ),
        (
            ("layer_norm", floats([[1.0], [3.0]]), [2, 1], None, None, 3.0),
            [[[-0.5], [0.5]]],
        ),
        # Shapes
        (("expand", floats([1.0], [2.0]), [-1, 3]), [[1, 1, 1], [2, 2, 2]]),
        (("expand", floats(1.0, 2.0), [3, -1]), [[1, 2], [1, 2], [1, 2]]),
        (("select", COUNT, 1, 2), [2, 5]),
        (("select", COUNT, -1, 0), [0, 3]),
        (("select", COUNT, 0, -1), [3, 4, 5]),
        (("slice", COUNT, 1, 1), [[1, 2], [4, 5]]),
        (("slice", COUNT, -1, 0, 3, 2), [[0, 2], [3, 5]]),
        (("slice", COUNT, 0, None, 1), [[0, 1, 2]]),
        (("slice", COUNT), [[0, 1, 2], [3, 4, 5]]),
        (("cat", [COUNT, COUNT]), [[0, 1, 2], [3, 4, 5]] * 2),
        (("cat", [COUNT[:, :1], integers([7], [8])], 1), [[0, 7], [3, 8]]),
        (("view", COUNT, [3, 2]), [[0, 1], [2, 3], [4, 5]]),
        (("view", COUNT, [tf.constant(3), 2]), [[0, 1], [2, 3], [4, 5]]),
        (("view", COUNT, [tf.constant(3), tf.constant(2)]), [[0, 1], [2, 3], [4, 5]]),
        (("view", COUNT, [-1]), [0, 1, 2, 3, 4, 5]),
        (("full_like", COUNT[:1], 7), [[7, 7, 7]]),
        (("full_like", COUNT[:1], 1, tf.bool), [[True, True, True]]),
        (("sym_size", COUNT, 1), 3),
        # Gathers
        (("embedding", COUNT, integers(1, 0), -1, False), [[3, 4, 5], [0, 1, 2]]),
        (("gather", COUNT, 1, integers([2], [0])), [[2], [3]]),
        (("index", COUNT, [integers(1, -1)]), [[3, 4, 5], [3, 4, 5]]),
        (("index", COUNT, [integers(1, -2), None]), [[3, 4, 5], [0, 1, 2]]),
        (("index", COUNT, [None, integers(2, -3)]), [[2, 0], [5, 3]]),
        (("index", COUNT, [integers(0, 1), integers(2, -1)]), [2, 5]),
        (("index", COUNT[None], [None, integers(1, 0), integers(0, 2)]), [[3, 2]]),
        (("index", COUNT[..., None], [integers(1, 0), integers(0, 2)]), [[3], [2]]),
        # Reductions
        (("sum", COUNT), 15),
        (("sum", COUNT, [1]), [3, 12]),
        (("sum", COUNT, [1], True), [[3], [12]]),
        (("sum", tf.constant([[True, True, False]]), [1]), [2]),
        (("mean", COUNT, [0]), [1.5, 2.5, 3.5]),
        (("amax", COUNT, [0]), [3, 4, 5]),
        (("amin", COUNT, [0]), [0, 1, 2]),
        (("linalg_vector_norm", floats([3.0, 4.0]), 2, [1]), [5]),
        (("linalg_vector_norm", floats([3.0, 4.0]), 2, [1], True), [[5]]),
        (("linalg_vector_norm", floats([3.0, 4.0])), 5),
        # Sizes
        (("operator.getitem", [7, 8], 1), 8),
        (("operator.mul", 3, 4), 12),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_operation_returns_what_pytorch_does(operation: Sequence[Any], expected: Any) -> None:
    actual = np.asarray(computed(*operation))
    wanted = np.asarray(expected)
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        (("add", tf.constant([1]), integers(1)), "int64"),
        (("add", tf.constant([True]), tf.constant([1])), "int32"),
        (("div", integers(4), integers(2)), "float32"),
        (("sum", tf.constant([1])), "int64"),
        (("sum", floats(1.0)), "float32"),
        (("full_like", COUNT, 7), "float32"),
        (("full_like", COUNT, 7, tf.int64), "int64"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_result_has_the_dtype_of_pytorch(operation: Sequence[Any], dtype: str) -> None:
    assert computed(*operation).dtype.name == dtype


def test_normalization_by_statistics_of_training() -> None:
    values = floats([1.0, 10.0], [3.0, 30.0])
    scale = floats(2.0, 1.0)
    shift = floats(0.5, 0.0)
    mean = floats(1.0, 10.0)
    variance = floats(3.0, 99.0)
    name = "_native_batch_norm_legit_no_training"
    (actual,) = computed(name, values, scale, shift, mean, variance, 0.1, 1.0)
    np.testing.assert_allclose(actual, np.array([[0.5, 0], [2.5, 2]]), rtol=1e-6)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        computed(name, values[None], scale, shift, mean, variance, 0.1, 1.0)


class TestAttention:
    """Of two queries to two keys, whose scores without a scale are 0 and log 3."""

    QUERY = floats([[0.0], [math.log(3.0)]])
    KEY = floats([[0.0], [1.0]])
    VALUE = floats([[4.0], [8.0]])

    def attended(self, *arguments: Any) -> list[float]:
        name = "scaled_dot_product_attention"
        actual = computed(name, self.QUERY, self.KEY, self.VALUE, *arguments)
        return [round(float(number), 4) for number in np.asarray(actual).reshape(-1)]

    def test_keys_are_weighted_by_their_scores(self) -> None:
        assert self.attended() == [6, 7]

    def test_scores_are_scaled(self) -> None:
        assert self.attended(None, 0.0, False, 2.0) == [6, 7.6]
        actual = computed(
            "scaled_dot_product_attention",
            tf.repeat(self.QUERY, 4, -1),
            tf.repeat(self.KEY, 4, -1),
            self.VALUE,
        )
        # Four times the score by the root of four.
        np.testing.assert_allclose(actual, np.array([[[6], [7.6]]]), rtol=1e-6)

    def test_mask_of_booleans_excludes_keys(self) -> None:
        mask = tf.constant([[True, False], [False, False]])
        assert self.attended(mask) == [4, 0]

    def test_mask_of_numbers_is_added(self) -> None:
        mask = floats([0.0, math.log(3.0)], [-math.inf, -math.inf])
        assert self.attended(mask) == [7, 0]

    def test_later_keys_are_excluded_where_attention_is_causal(self) -> None:
        assert self.attended(None, 0.0, True) == [4, 7]


@pytest.mark.parametrize(
    "indices",
    [
        pytest.param([tf.constant([True, False])], id="a mask"),
        pytest.param([integers(0), None, integers(0)], id="dimensions apart"),
    ],
)
def test_indexing_without_a_counterpart_is_rejected(indices: list[Any]) -> None:
    with pytest.raises(NotConvertible, match=r"PyTorch's indexing by a mask, or of dimensions"):
        computed("index", COUNT[..., None], indices)


def test_norm_of_another_order_is_rejected() -> None:
    with pytest.raises(NotConvertible, match="a norm of order 1 has no counterpart; use the norm"):
        computed("linalg_vector_norm", COUNT, 1)


def test_sizes_of_an_open_batch_are_tensors_and_others_numbers() -> None:
    sizes: list[Any] = []

    def view(values: Any) -> Any:
        batch = computed("sym_size", values, 0)
        sizes.extend([batch, computed("sym_size", values, 1)])
        flat = computed("view", values, [batch * 3])
        repeated = computed("expand", values[:, None], [batch, 2, -1])
        return flat, repeated, computed("view", values, [batch, 3, 1])

    spec = tf.TensorSpec([None, 3], tf.float32)
    viewed = tf.function(view, input_signature=[spec], autograph=False)
    flat, repeated, apart = viewed(COUNT)
    assert tf.is_tensor(sizes[0])
    assert sizes[1] == 3
    assert flat.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert repeated.shape.as_list() == [2, 2, 3]
    assert apart.shape.as_list() == [2, 3, 1]
    shapes = [output.shape.as_list() for output in viewed.get_concrete_function().outputs]
    assert shapes == [[None], [None, 2, 3], [None, 3, 1]]
