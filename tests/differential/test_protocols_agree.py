"""The same random request over every protocol and transport that can express it: one response, bit
for bit. What the native calls return is compared with the reference in `tests/cases`, the messages
of tensors with TensorFlow's in `test_tensor_protos.py`, and `tests/cases/raw_requests.py` has what
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.bundles.small import write_small_bundle
from tests.cases.ways import RawResponse, Ways, serving
from tests.differential import tensor_forms as forms
from tests.differential.tensor_requests import SIGNATURES, TensorRequest, random_tensors
from tests.random_cases import seeds
from tests.units.service.cases import MODEL

REQUESTS = 150


def classes(ways: Ways, request: TensorRequest) -> Iterator[tuple[str, forms.Arrays]]:
    """Yields the outputs of a ranking by the calls that take Examples."""
    by_rest, by_grpc = [ways.by_bytes(form) for form in request.examples("classify")]
    rows = [dict(row) for row in json.loads(by_rest.content)["results"]]
    yield "classify", forms.typed({name: [row[name] for row in rows] for name in rows[0]})
    classified = tf_pb.ClassificationResponse.FromString(by_grpc.content).result.classifications
    rows = [{label.label: label.score for label in row.classes} for row in classified]
    yield "Classify", forms.typed({name: [row[name] for row in rows] for name in rows[0]})
    by_rest, by_grpc = [ways.by_bytes(form) for form in request.examples("regress")]
    for name, values in (
        ("regress", json.loads(by_rest.content)["results"]),
        (
            "Regress",
            [
                row.value
                for row in tf_pb.RegressionResponse.FromString(by_grpc.content).result.regressions
            ],
        ),
    ):
        yield name, forms.typed({"score": values})


def responses(ways: Ways, request: TensorRequest) -> Iterator[tuple[str, forms.Arrays]]:
    """Yields the outputs of a request by each form that can express it."""
    for name, form in forms.FORMS.items():
        response = ways.by_bytes(form.request(request.arrays(), request.signature))
        assert is_ok(response), f"{name}: {response}"
        yield name, form.outputs(response)
    yield "instances", forms.outputs_of_rows(ways.by_bytes(request.instances()))
    if request.call == "rank":
        yield from classes(ways, request)


def is_ok(response: RawResponse) -> bool:
    return response.status in {200, "OK"}


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, parts=True)
    with serving(root, protocols=("tensorflow-serving", "open-inference")) as ways:
        yield ways


def test_protocols_given_the_same_random_requests_respond_alike(
    ways: Ways, request: pytest.FixtureRequest
) -> None:
    drawn = [random_tensors(seed) for seed in seeds(request, REQUESTS, 1)]
    assert {request.signature for request in drawn} == set(SIGNATURES)
    for request_of_seed in drawn:
        native = ways.by_json(request_of_seed.case())
        assert native.code == "OK", native
        expected = request_of_seed.outputs(native.value["results"])
        for form, arrays in responses(ways, request_of_seed):
            for name, array in arrays.items():
                problem = f"{form}, {name}: {request_of_seed}"
                assert array.shape == expected[name].shape, problem
                assert array.tolist() == expected[name].tolist(), problem
            assert set(arrays) == ({"score"} if form.lower() == "regress" else set(expected)), form
