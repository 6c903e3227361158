"""The same random request over every protocol and transport that can express it: one response, bit
for bit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from service.codec.operations import OPERATIONS
from service.grpc_api.servicer import SERVICE as EMBEDDING_SERVICE
from tests.bundles.small import write_small_bundle
from tests.service.cases import MODEL
from tests.service.open_inference import forms
from tests.service.running import RunningService
from tests.service.tensor_requests import (
    SIGNATURES,
    Arrays,
    TensorRequest,
    assert_same,
    random_request,
)

CASES = 250
CASES_THOROUGH = 10_000
WAIT_S = 20
INFER = f"/v2/models/{MODEL}/infer"


class Clients:
    """A service that speaks all protocols, and one client of each transport. Each method sends a
    request in one form, and returns the outputs of its signature.
    """

    def __init__(self, root: Path) -> None:
        self._service = RunningService(root, protocols=("open-inference",))
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


FORMS: tuple[Callable[[Clients, TensorRequest], Arrays], ...] = (
    Clients.native_message_over_http,
    Clients.native_message_over_grpc,
    Clients.open_inference_json,
    Clients.open_inference_bytes,
    Clients.open_inference_bytes_over_grpc,
    Clients.open_inference_fields_over_grpc,
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
