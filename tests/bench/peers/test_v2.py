from __future__ import annotations

import numpy as np
import orjson
import pytest

from tests.bench.peers import v2

TENSORS: v2.Tensors = {
    "ids": np.array([[1, -2], [3, 1 << 40]], np.int64),
    "numbers": np.array([0.5, -1.25], np.float32),
}


def test_v2_json_body_has_shape_type_and_flat_data() -> None:
    (ids, numbers) = orjson.loads(v2.json_body(TENSORS))["inputs"]
    assert ids == {"name": "ids", "shape": [2, 2], "datatype": "INT64", "data": [1, -2, 3, 1 << 40]}
    assert numbers == {"name": "numbers", "shape": [2], "datatype": "FP32", "data": [0.5, -1.25]}


def test_v2_message_body_has_raw_contents_in_the_order_of_its_inputs() -> None:
    body = v2.message_body("model", TENSORS)
    # The wire format by hand: field 1, the model's name; field 7, the raw tensors.
    assert body.startswith(b"\x0a\x05model")
    raw = b"".join(b"\x3a" + bytes([each.nbytes]) + each.tobytes() for each in TENSORS.values())
    assert body.endswith(raw)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x32\x08" + np.array([0.5, -1.25], "<f4").tobytes(),  # raw_output_contents
        b"\x2a\x0c\x2a\x0a\x32\x08" + np.array([0.5, -1.25], "<f4").tobytes(),  # outputs.contents.fp32_contents
    ],
)
def test_v2_message_scores_are_read_raw_or_listed(answer: bytes) -> None:
    np.testing.assert_array_equal(v2.message_scores(answer), [0.5, -1.25])


def test_v2_json_scores_are_read_whatever_their_shape() -> None:
    body = b'{"outputs": [{"name": "score", "shape": [2, 1], "datatype": "FP32", "data": [0.5, -1.25]}]}'
    np.testing.assert_array_equal(v2.json_scores(body), [0.5, -1.25])
