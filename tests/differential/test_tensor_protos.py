"""Tensors of TensorFlow are read as it reads them, and it reads those that are written."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from export.graphs.loading import load_tensorflow
from tensors.input_values import texts
from tensors.stubs import tensorflow_serving_pb2 as pb
from tensors.tensor_protos import fill_tensor, read_tensors
from tests.differential import tensor_forms as forms

tf = load_tensorflow()
from tensorflow.core.framework import tensor_pb2  # noqa: E402 - TensorFlow is loaded first

FIELDS = {name: field for name, (_, field) in forms.VALUES.items() if name != "object"} | {
    "bfloat16": "half_val"
}
"""The field of the values of each type that TensorFlow sends."""
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
NUMBERS = st.sampled_from(list(FIELDS)).flatmap(
    lambda name: arrays_of.arrays(np.dtype(name.replace("bfloat", "float")), SHAPES).map(
        lambda array: tf.make_tensor_proto(array, tf.as_dtype(name))
    )
)
STRINGS = SHAPES.flatmap(
    lambda shape: arrays_of.arrays(object, shape, elements=st.binary(max_size=4))
).map(lambda array: tf.make_tensor_proto(array, tf.string, array.shape))


def in_its_field(proto: Any) -> Any:
    """Returns a tensor whose values are in the field of their type, without repetitions of the last
    one.
    """
    array = tf.make_ndarray(proto).reshape(-1)
    field = FIELDS[tf.as_dtype(proto.dtype).name]
    if field == "half_val":
        array = array.view(np.uint16)
    values = array.tolist()
    while values[1:] and values[-1] == values[-2]:
        del values[-1]
    message = tensor_pb2.TensorProto(dtype=proto.dtype, tensor_shape=proto.tensor_shape)
    getattr(message, field).extend(values)
    return message


def read(proto: Any) -> NDArray[Any]:
    message = pb.TensorProto.FromString(proto.SerializeToString())
    return read_tensors({"x": message}, forms.Limits())["x"]


@given(st.one_of(NUMBERS, STRINGS))
def test_tensors_are_read_as_tensorflow_reads_them(proto: Any) -> None:
    protos = [proto]
    if proto.dtype != pb.DT_STRING:
        protos.append(in_its_field(proto))
    for form in protos:
        expected = tf.make_ndarray(form)
        if proto.dtype == pb.DT_BFLOAT16:
            expected = expected.astype(np.float32)
        array = read(form)
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@given(
    SHAPES.flatmap(
        lambda shape: st.one_of(
            arrays_of.arrays(np.float32, shape),
            arrays_of.arrays(np.int64, shape),
            arrays_of.arrays(object, shape, elements=st.text(max_size=3)),
        )
    )
)
def test_tensors_are_written_as_tensorflow_reads_them(array: NDArray[Any]) -> None:
    message = pb.TensorProto()
    fill_tensor(message, array)
    written = tf.make_ndarray(tensor_pb2.TensorProto.FromString(message.SerializeToString()))
    if array.dtype == object:
        texts = [text.decode() for text in written.reshape(-1).tolist()]
        written = np.array(texts, object).reshape(written.shape)
    assert written.dtype == array.dtype
    np.testing.assert_array_equal(written, array)


def test_text_that_stands_for_many_is_decoded_once() -> None:
    text = b"x" * 10_000_000
    decoded = texts(np.broadcast_to(np.array([text], object), (100_000, 1)), "x")
    assert decoded.shape == (100_000,)
    assert decoded[0] is decoded[-1]
