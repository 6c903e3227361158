"""The same random request over every protocol and transport that can express it: one response, bit
for bit. What the native calls return is compared with the reference in `tests/cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.protocols.tensorflow_serving.protocol import PREDICTION_SERVICE
from tensors.stubs import tensorflow_serving_pb2 as tensorflow_pb
from tests.bundles.small import write_small_bundle
from tests.cases.ways import Ways, serving
from tests.differential import tensor_forms as forms
from tests.differential.tensor_requests import (
    SIGNATURES,
    Arrays,
    TensorRequest,
    random_tensors,
    tensor_message,
)
from tests.random_cases import seeds
from tests.units.service.cases import MODEL

REQUESTS = 200
WAIT_S = 20
INFER = f"/v2/models/{MODEL}/infer"
PREDICT = f"/v1/models/{MODEL}:predict"
INTEGERS = {"ids": np.int64, "counts": np.int64}
"""The outputs that are no float32."""


def _post(ways: Ways, path: str, **options: Any) -> httpx.Response:
    response = ways.clients.http.post(path, **options)
    assert response.status_code == 200, response.text
    return response


def _call(ways: Ways, method: str, message: Any) -> bytes:
    return bytes(
        ways.clients.channel.unary_unary(method)(message.SerializeToString(), timeout=WAIT_S)
    )


def open_inference_json(ways: Ways, request: TensorRequest) -> Arrays:
    body = forms.json_body(request.arrays(), request.signature)
    return forms.arrays_of_json(_post(ways, INFER, json=body).json())


def open_inference_bytes(ways: Ways, request: TensorRequest) -> Arrays:
    body, headers = forms.binary_body(request.arrays(), request.signature)
    return forms.arrays_of_binary(_post(ways, INFER, content=body, headers=headers))


def open_inference_bytes_over_grpc(ways: Ways, request: TensorRequest) -> Arrays:
    return _infer(ways, request, raw=True)


def open_inference_fields_over_grpc(ways: Ways, request: TensorRequest) -> Arrays:
    return _infer(ways, request, raw=False)


def _infer(ways: Ways, request: TensorRequest, *, raw: bool) -> Arrays:
    message = forms.message(request.arrays(), request.signature, MODEL, raw=raw)
    return forms.arrays_of_message(_call(ways, f"/{forms.SERVICE}/ModelInfer", message))


def tensorflow_serving_columns(ways: Ways, request: TensorRequest) -> Arrays:
    inputs = {name: array.tolist() for name, array in request.arrays().items()}
    body = {"signature_name": request.signature, "inputs": inputs}
    outputs = _post(ways, PREDICT, json=body).json()["outputs"]
    if not isinstance(outputs, dict):
        outputs = {"vector": outputs}
    return _typed(outputs)


def tensorflow_serving_rows(ways: Ways, request: TensorRequest) -> Arrays:
    rows = [dict(row) for row in request.rows]
    if request.call == "retrieve":
        rows = [row | {"k": request.k} for row in rows]
    body = {"signature_name": request.signature, "instances": rows}
    predictions = _post(ways, PREDICT, json=body).json()["predictions"]
    if not isinstance(predictions[0], dict):
        predictions = [{"vector": prediction} for prediction in predictions]
    return _typed({name: [row[name] for row in predictions] for name in predictions[0]})


def tensorflow_serving_over_grpc(ways: Ways, request: TensorRequest) -> Arrays:
    spec = tensorflow_pb.ModelSpec(name=MODEL, signature_name=request.signature)
    inputs = {name: tensor_message(array) for name, array in request.arrays().items()}
    message = tensorflow_pb.PredictRequest(model_spec=spec, inputs=inputs)
    response = _call(ways, f"/{PREDICTION_SERVICE}/Predict", message)
    tensors = tensorflow_pb.PredictResponse.FromString(response).outputs
    values = {}
    for name in tensors:
        flat = np.array([*tensors[name].float_val, *tensors[name].int64_val])
        values[name] = flat.reshape([dim.size for dim in tensors[name].tensor_shape.dim])
    return _typed(values)


def _typed(outputs: Mapping[str, Any]) -> Arrays:
    """Returns lists, or arrays, of outputs as arrays of their types."""
    return {
        name: np.array(values, INTEGERS.get(name, np.float32)) for name, values in outputs.items()
    }


FORMS: tuple[Callable[[Ways, TensorRequest], Arrays], ...] = (
    open_inference_json,
    open_inference_bytes,
    open_inference_bytes_over_grpc,
    open_inference_fields_over_grpc,
    tensorflow_serving_columns,
    tensorflow_serving_rows,
    tensorflow_serving_over_grpc,
)
"""What is compared with the native call in JSON."""


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, parts=True)
    with serving(root, protocols=("tensorflow-serving", "open-inference")) as ways:
        yield ways


def test_protocols_given_the_same_random_requests_respond_alike(
    ways: Ways, request: pytest.FixtureRequest
) -> None:
    signatures = set[str]()
    for seed in seeds(request, REQUESTS, 1):
        drawn = random_tensors(seed)
        signatures.add(drawn.signature)
        native = ways.by_json(drawn.case())
        assert native.code == "OK", native
        expected = drawn.outputs(native.value["results"])
        for form in FORMS:
            arrays = form(ways, drawn)
            assert set(arrays) == set(expected)
            for name, array in expected.items():
                message = f"seed {seed}, {form.__name__}, {name}: {drawn}"
                assert arrays[name].shape == array.shape, message
                assert arrays[name].tolist() == array.tolist(), message
    assert signatures == set(SIGNATURES)
