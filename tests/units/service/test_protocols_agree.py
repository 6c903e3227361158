"""The same random request over every protocol and transport that can express it: one response, bit
for bit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from service.codec.operations import OPERATIONS
from service.codec.stubs import tensorflow_serving_pb2 as tensorflow_pb
from service.grpc_api.servicer import SERVICE as EMBEDDING_SERVICE
from service.tensorflow_serving.protocol import PREDICTION_SERVICE
from tests.bundles.small import write_small_bundle
from tests.units.service.cases import MODEL
from tests.units.service.open_inference import forms
from tests.units.service.running import RunningService
from tests.units.service.tensor_requests import (
    SIGNATURES,
    Arrays,
    TensorRequest,
    assert_same,
    random_request,
    tensor_message,
)

CASES = 200
CASES_THOROUGH = 10_000
WAIT_S = 20
INFER = f"/v2/models/{MODEL}/infer"
PREDICT = f"/v1/models/{MODEL}:predict"
INTEGERS = {"ids": np.int64, "counts": np.int64}
"""The outputs that are no float32."""


class Clients:
    """A service that speaks all protocols, and one client of each transport. Each method sends a
    request in one form, and returns the outputs of its signature.
    """

    def __init__(self, root: Path) -> None:
        self._service = RunningService(root, protocols=("tensorflow-serving", "open-inference"))
        self._http = httpx.Client(base_url=self._service.http, timeout=WAIT_S)
        self._channel = grpc.insecure_channel(self._service.grpc)

    def close(self) -> None:
        self._http.close()
        self._channel.close()
        self._service.close()

    def native_json(self, request: TensorRequest) -> Arrays:
        response = self._post(f"/v1/models/{MODEL}:{request.call}", json=request.json())
        return request.arrays_of_json(response.json())

    def native_message_over_http(self, request: TensorRequest) -> Arrays:
        response = self._post(
            f"/v1/models/{MODEL}:{request.call}",
            content=request.message(MODEL).SerializeToString(),
            headers={"content-type": "application/x-protobuf"},
        )
        return request.arrays_of_message(response.content)

    def native_message_over_grpc(self, request: TensorRequest) -> Arrays:
        method = f"/{EMBEDDING_SERVICE}/{OPERATIONS[request.call].method}"
        return request.arrays_of_message(self._call(method, request.message(MODEL)))

    def open_inference_json(self, request: TensorRequest) -> Arrays:
        body = forms.json_body(request.arrays(), request.signature)
        return forms.arrays_of_json(self._post(INFER, json=body).json())

    def open_inference_bytes(self, request: TensorRequest) -> Arrays:
        body, headers = forms.binary_body(request.arrays(), request.signature)
        return forms.arrays_of_binary(self._post(INFER, content=body, headers=headers))

    def open_inference_bytes_over_grpc(self, request: TensorRequest) -> Arrays:
        return self._infer(request, raw=True)

    def open_inference_fields_over_grpc(self, request: TensorRequest) -> Arrays:
        return self._infer(request, raw=False)

    def tensorflow_serving_columns(self, request: TensorRequest) -> Arrays:
        inputs = {name: array.tolist() for name, array in request.arrays().items()}
        body = {"signature_name": request.signature, "inputs": inputs}
        outputs = self._post(PREDICT, json=body).json()["outputs"]
        if not isinstance(outputs, dict):
            outputs = {"vector": outputs}
        return _typed(outputs)

    def tensorflow_serving_rows(self, request: TensorRequest) -> Arrays:
        rows = [dict(row) for row in request.rows]
        if request.call == "retrieve":
            rows = [row | {"k": request.k} for row in rows]
        body = {"signature_name": request.signature, "instances": rows}
        predictions = self._post(PREDICT, json=body).json()["predictions"]
        if not isinstance(predictions[0], dict):
            predictions = [{"vector": prediction} for prediction in predictions]
        return _typed(
            {name: [prediction[name] for prediction in predictions] for name in predictions[0]}
        )

    def tensorflow_serving_over_grpc(self, request: TensorRequest) -> Arrays:
        spec = tensorflow_pb.ModelSpec(name=MODEL, signature_name=request.signature)
        inputs = {name: tensor_message(array) for name, array in request.arrays().items()}
        message = tensorflow_pb.PredictRequest(model_spec=spec, inputs=inputs)
        response = self._call(f"/{PREDICTION_SERVICE}/Predict", message)
        outputs = tensorflow_pb.PredictResponse.FromString(response).outputs
        values = {name: _values(outputs[name]) for name in outputs}
        return _typed(values)

    def _infer(self, request: TensorRequest, *, raw: bool) -> Arrays:
        message = forms.message(request.arrays(), request.signature, MODEL, raw=raw)
        return forms.arrays_of_message(self._call(f"/{forms.SERVICE}/ModelInfer", message))

    def _post(self, path: str, **options: object) -> httpx.Response:
        response = self._http.post(path, **options)  # type: ignore[arg-type]
        assert response.status_code == 200, response.text
        return response

    def _call(self, method: str, message: object) -> bytes:
        call = self._channel.unary_unary(method)
        return bytes(call(message.SerializeToString(), timeout=WAIT_S))  # type: ignore[attr-defined]


def _typed(outputs: Mapping[str, Any]) -> Arrays:
    """Returns lists, or arrays, of outputs as arrays of their types."""
    return {
        name: np.array(values, INTEGERS.get(name, np.float32)) for name, values in outputs.items()
    }


def _values(tensor: tensorflow_pb.TensorProto) -> NDArray[Any]:
    """Returns the elements of an output in its shape."""
    values = np.array([*tensor.float_val, *tensor.int64_val])
    return values.reshape([dim.size for dim in tensor.tensor_shape.dim])


FORMS: tuple[Callable[[Clients, TensorRequest], Arrays], ...] = (
    Clients.native_message_over_http,
    Clients.native_message_over_grpc,
    Clients.open_inference_json,
    Clients.open_inference_bytes,
    Clients.open_inference_bytes_over_grpc,
    Clients.open_inference_fields_over_grpc,
    Clients.tensorflow_serving_columns,
    Clients.tensorflow_serving_rows,
    Clients.tensorflow_serving_over_grpc,
)
"""What is compared with the native call in JSON."""


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Clients]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL)
    clients = Clients(root)
    yield clients
    clients.close()


def test_protocols_given_the_same_random_requests_respond_alike(
    clients: Clients, request: pytest.FixtureRequest
) -> None:
    first = 1
    cases = CASES
    if request.config.getoption("--thorough"):
        first = secrets.randbits(32)
        cases = CASES_THOROUGH
    signatures = set[str]()
    for seed in range(first, first + cases):
        random = random_request(seed)
        signatures.add(random.signature)
        expected = clients.native_json(random)
        for form in FORMS:
            try:
                assert_same(expected, form(clients, random))
            except AssertionError as problem:
                problem.add_note(f"seed {seed}, {form.__name__}: {random}")
                raise
    assert signatures == set(SIGNATURES)
