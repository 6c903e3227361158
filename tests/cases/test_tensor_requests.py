"""Requests of named tensors that are refused: what does not fit a signature, by each protocol; what
Open Inference and TensorFlow Serving cannot read, in each of their forms. Each gets the status of
its code, the protocol's form of errors, and words that name what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status

from service.protocols.tensorflow_serving.protocol import MODEL_SERVICE, PREDICTION_SERVICE
from tensors.stubs import open_inference_pb2 as pb
from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.bundles.small import write_small_bundle
from tests.cases.ways import Ways, serving
from tests.differential import tensor_forms as forms
from tests.units.service.cases import LIMITS, MODEL

INFER = f"/v2/models/{MODEL}/infer"
REST = f"/v1/models/{MODEL}"
WAIT_S = 20
STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
}
USERS = {"user": np.array([5, 7, 9])}
HISTORY = {"history": np.array([1000, 1007, 1014, 1000]), "history_1": np.array([0, 2, 2, 4])}
QUERIES = USERS | HISTORY
SPARSE = {
    "history": np.array([[1, 0], [0, 0]]),
    "history_1": np.array([1000, 1000]),
    "history_2": np.array([3, 1]),
}
PAIRS = {
    "user": np.array([5, 7]),
    "liked": np.array([1000, 1007, 1014]),
    "liked_1": np.array([0, 2, 3]),
    "movie": np.array([1000, 1007]),
    "genres": np.array(["comedy", "drama", "drama"], object),
    "genres_1": np.array([0, 1, 3]),
    "year": np.array([0.5, 0.25], np.float32),
}
UNFIT: dict[str, tuple[str, Mapping[str, Any], int, str]] = {
    "a signature": ("querry", QUERIES, 400, "did you mean 'query'"),
    "a missing input": ("query", {"hour": np.zeros(1)}, 400, "inputs.user is missing"),
    "an unknown input": ("query", USERS | {"usr": np.ones(3)}, 400, "did you mean 'user'"),
    "numbers for ids": ("query", {"user": np.array([1.5])}, 400, "int64 was expected"),
    "texts for ids": ("query", {"user": np.array(["7"], object)}, 400, "int64 was expected"),
    "numbers for texts": ("query", USERS | {"city": np.zeros(3)}, 400, "int64_or_string"),
    "an id beyond int64": ("query", {"user": np.array([2**63], np.uint64)}, 400, "int64"),
    "a number beyond float32": ("query", USERS | {"hour": np.full(3, 1e300)}, 400, "float32"),
    "a scalar": ("query", {"user": np.array(7)}, 400, "shape []"),
    "other rows": ("query", USERS | {"hour": np.zeros(2)}, 400, "inputs.hour has 2 rows"),
    "no rows": ("query", {"user": np.empty(0, int)}, 400, "no query"),
    "many rows": ("query", {"user": np.arange(9)}, 413, "9 queries"),
    "a dense shape": ("ranking", PAIRS | {"mood": np.zeros((2, 3))}, 400, "[-1, 2]"),
    "splits beyond the end": (
        "query",
        QUERIES | {"history_1": np.array([0, 2, 2, 9])},
        400,
        "history_1",
    ),
    "splits that fall": (
        "query",
        QUERIES | {"history_1": np.array([0, 3, 2, 4])},
        400,
        "history_1",
    ),
    "values of a matrix": (
        "query",
        QUERIES | {"history": np.zeros((2, 2), int)},
        400,
        "flat array",
    ),
    "weights of others": ("ranking", PAIRS | {"liked_weights": np.ones(2)}, 400, "one weight"),
    "half a sparse tensor": (
        "query",
        USERS | {"history": np.zeros((1, 2), int), "history_2": np.array([3, 1])},
        400,
        "history_1",
    ),
    "a sparse row beyond the end": (
        "query",
        USERS | SPARSE | {"history": np.array([[4, 0], [5, 0]])},
        400,
        "its 3 rows",
    ),
    "sparse rows in disorder": ("query", USERS | SPARSE, 400, "order of the rows"),
    "enormous sparse rows": (
        "query",
        {"user": np.array([1]), "history": np.empty((0, 2), int), "history_1": np.empty(0, int)}
        | {"history_2": np.array([1 << 60, 1])},
        413,
        "max_queries",
    ),
    "several k": ("retrieve", QUERIES | {"k": np.array([3, 4])}, 400, "one integer"),
    "k elsewhere": ("query", QUERIES | {"k": np.array([3])}, 400, "'k' is unknown"),
}
"""Signature, tensors, status, and a word of the message."""

USER = {"name": "user", "datatype": "INT64", "shape": [1], "data": [5]}
MANY = 2**40


def query(*inputs: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), "parameters": {"signature_name": "query"}, **more}


def user(**changes: Any) -> dict[str, Any]:
    return query({**USER, **changes})


def parameters(**more: Any) -> dict[str, Any]:
    return {"inputs": [USER], "parameters": more}


def binary(name: str, datatype: str, shape: list[int], data: bytes, size: int | None = None) -> Any:
    """Returns a body in which a tensor follows the JSON, and its headers."""
    sizes = {"binary_data_size": len(data) if size is None else size}
    entry = {"name": name, "datatype": datatype, "shape": shape, "parameters": sizes}
    head = json.dumps(query(entry)).encode()
    return head + data, {forms.HEADER_LENGTH: str(len(head))}


TEXT = b"\4\0\0\0oslo"
JSON: dict[str, tuple[Any, ...]] = {
    "a tensor twice": (query(USER, USER), 400, "two tensors"),
    "no name": (query({"shape": [1]}), 400, "inputs[0].name"),
    "an unknown datatype": (user(datatype="INT128"), 400, "one of BOOL"),
    "fewer elements": (user(shape=[2]), 400, "1 elements"),
    "lists of another shape": (user(shape=[2, 2], data=[[1, 2], [3]]), 400, "nested lists"),
    "a negative size": (user(shape=[-1]), 400, "shape: -1"),
    "an enormous product": (user(shape=[MANY] * 4), 413, "max_values"),
    "an enormous empty shape": (user(shape=[MANY, 0, MANY], data=[]), 413, "max_values"),
    "many tensors": (query(*[USER] * 21), 413, "21 features"),
    "no data": (user(data=None), 400, "inputs.user.data"),
    "a fraction": (user(data=[0.5]), 400, "user: 0.5"),
    "a large integer": (user(datatype="INT8", data=[300]), 400, "fits INT8"),
    "an unknown output": (query(USER, outputs=[{"name": "vectr"}]), 400, "'vectr'"),
    "a signature of numbers": (parameters(signature_name=7), 400, "signature_name is 7"),
    "shared memory": (user(parameters={"shared_memory_region": "a"}), 501, "shared memory"),
    "a classification": (
        query(USER, outputs=[{"name": "vector", "parameters": {"classification": 3}}]),
        501,
        "classification",
    ),
    "a sequence": (parameters(sequence_id=7), 501, "sequence_id"),
    "an unknown parameter": (parameters(timeouts=7), 400, "'timeouts'"),
    "a negative timeout": (parameters(timeout=-1), 400, "timeout is -1"),
    "a timeout that has passed": (parameters(timeout=1, signature_name="query"), 504, "deadline"),
    "base64": (user(parameters={"content_type": "base64"}), 400, "np or str"),
    "another model": (query(USER, model_name="books"), 400, "model_name"),
    "an unserved version": (query(USER, model_version="7"), 404, "7"),
    "no JSON": (b"{", 400, "JSON"),
    "NaN": (b'{"inputs": [NaN]}', 400, "no such number"),
    "an unknown field": ({"input": [USER]}, 400, "'input'"),
    "a long id": (query(USER, id="x" * 1025), 400, "1025 characters"),
    "another type": (query(USER), 400, "content-type", {"content-type": "text/plain"}),
    "a JSON size that cuts": (query(USER), 400, "JSON", {forms.HEADER_LENGTH: "20"}),
    "half a binary tensor": (*binary("user", "INT64", [1], bytes(4), 8), 400, "0 to 4"),
    "a tensor of half the size": (*binary("user", "INT64", [1], bytes(4)), 400, "4 bytes"),
    "bytes after the tensors": (*binary("user", "INT64", [1], bytes(11), 8), 400, "3 bytes after"),
    "both forms": (user(parameters={"binary_data_size": 0}), 400, "data and binary_data_size"),
    "a byte of BOOL": (*binary("user", "BOOL", [1], b"\2"), 400, "other than 0 and 1"),
    "a long text": (*binary("city", "BYTES", [1], b"\xff" * 4 + b"oslo"), 400, "at most 4"),
    "no UTF-8": (*binary("city", "BYTES", [1], b"\1\0\0\0\xff"), 400, "UTF-8"),
}
"""A body of Open Inference (bytes have headers behind them), status, word, headers."""
PAGES: dict[str, tuple[str, str, Any, int, str]] = {
    "another version": (
        "POST",
        f"/v2/models/{MODEL}/versions/1/infer",
        query(USER, model_version="2"),
        400,
        "model_version",
    ),
    "an unknown model": ("POST", "/v2/models/books/infer", query(USER), 404, "books"),
    "no number": ("POST", f"/v2/models/{MODEL}/versions/x/infer", query(USER), 400, "'x'"),
    "a load": ("POST", f"/v2/repository/models/{MODEL}/load", {}, 501, "not provided"),
    "an unknown path": ("POST", "/v2/models", {}, 404, "does not exist"),
    "another method": ("GET", INFER, None, 405, "POST"),
    "a version of TensorFlow": ("POST", f"{REST}/versions/9:predict", {"instances": [1]}, 404, "9"),
    "a label of TensorFlow": ("POST", f"{REST}/labels/x:predict", {"instances": [1]}, 404, "'x'"),
    "no metadata": ("GET", f"{REST}/versions/9/metadata", None, 404, "9"),
}


def contents(datatype: str, shape: list[int], **values: Any) -> pb.ModelInferRequest:
    message = forms.message({"user": np.array([5])}, "query", MODEL)
    del message.raw_input_contents[:]
    message.inputs[0].datatype = datatype
    message.inputs[0].shape[:] = shape
    message.inputs[0].contents.CopyFrom(pb.InferTensorContents(**values))
    return message


def raw(*tensors: bytes, **fields: Any) -> pb.ModelInferRequest:
    message = forms.message({"user": np.array([5])}, "query", MODEL, **fields)
    message.raw_input_contents[:] = tensors
    return message


def with_parameter(name: str, of_tensor: bool = False, **value: Any) -> pb.ModelInferRequest:
    message = raw(bytes(8))
    parameters_of_it = message.inputs[0].parameters if of_tensor else message.parameters
    parameters_of_it[name].CopyFrom(pb.InferParameter(**value))
    return message


def named(name: str = MODEL, version: str = "") -> pb.ModelInferRequest:
    return forms.message({"user": np.array([5])}, "query", name, model_version=version)


def shape(*sizes: int) -> tf_pb.TensorShapeProto:
    return tf_pb.TensorShapeProto(dim=[tf_pb.TensorShapeProto.Dim(size=size) for size in sizes])


def tensor(dtype: Any, *sizes: int, **values: Any) -> tf_pb.TensorProto:
    return tf_pb.TensorProto(dtype=dtype, tensor_shape=shape(*sizes), **values)


def predict(spec: Mapping[str, Any] | None = None, **inputs: Any) -> tf_pb.PredictRequest:
    named = {"name": MODEL, "signature_name": "query"} if spec is None else spec
    return tf_pb.PredictRequest(model_spec=tf_pb.ModelSpec(**named), inputs=inputs)


def examples(signature: str, *listed: tf_pb.Example) -> tf_pb.ExamplesRequest:
    spec = tf_pb.ModelSpec(name=MODEL, signature_name=signature)
    example_list = tf_pb.ExampleList(examples=listed)
    return tf_pb.ExamplesRequest(model_spec=spec, input=tf_pb.Input(example_list=example_list))


OPEN = f"{forms.SERVICE}/ModelInfer"
PREDICT = f"{PREDICTION_SERVICE}/Predict"
INT64 = tf_pb.DT_INT64
_EXAMPLE = tf_pb.Example(
    features={"feature": {"user": tf_pb.Feature(int64_list=tf_pb.Int64List(value=[5]))}}
)
_UNKNOWN_RANK = tf_pb.TensorProto(
    dtype=INT64, tensor_shape=tf_pb.TensorShapeProto(unknown_rank=True)
)
MESSAGES: dict[str, tuple[str, Any, int, str]] = {
    "no message": (OPEN, b"\xff\xff", 400, "ModelInferRequest"),
    "nothing": (OPEN, pb.ModelInferRequest(), 400, "'serving_default'"),
    "a signature of truth": (OPEN, with_parameter("signature_name", bool_param=True), 400, "true"),
    "an unknown model": (OPEN, named("books"), 404, "books"),
    "an unknown version": (OPEN, named(version="7"), 404, "7"),
    "half a tensor": (OPEN, raw(bytes(4)), 400, "4 bytes"),
    "two tensors for one": (OPEN, raw(b"", b""), 400, "2 tensors"),
    "another field": (OPEN, contents("INT64", [1], int_contents=[5]), 400, "int64_contents"),
    "FP16 in a field": (OPEN, contents("FP16", [1]), 400, "raw_input_contents"),
    "an enormous product": (OPEN, contents("INT64", [2**62, 2**62]), 413, "max_values"),
    "a timeout of fractions": (OPEN, with_parameter("timeout", double_param=1.5), 400, "1.5"),
    "no bytes": (OPEN, with_parameter("binary_data_output", bool_param=False), 400, "true"),
    "a sequence": (OPEN, with_parameter("sequence_start", bool_param=True), 501, "sequence"),
    "another binary size": (
        OPEN,
        with_parameter("binary_data_size", of_tensor=True, int64_param=4),
        400,
        "is 4; 8",
    ),
    "shared memory": (
        OPEN,
        with_parameter("shared_memory_region", of_tensor=True, string_param="x"),
        501,
        "shared memory",
    ),
    "a method": (f"{forms.SERVICE}/RepositoryModelLoad", b"", 501, forms.SERVICE),
    "no TensorFlow": (PREDICT, b"\xff", 400, "protobuf"),
    "no model": (PREDICT, predict({}), 400, "model_spec.name"),
    "another model": (PREDICT, predict({"name": "books"}), 404, "'books'"),
    "a label": (PREDICT, predict({"name": MODEL, "version_label": "x"}), 404, "'x'"),
    "another signature": (PREDICT, predict({"name": MODEL, "signature_name": "x"}), 400, "'x'"),
    "no dtype": (PREDICT, predict(user=tensor(0, 1)), 400, "one of DT_FLOAT"),
    "an unknown rank": (PREDICT, predict(user=_UNKNOWN_RANK), 400, "unknown rank"),
    "an enormous empty tensor": (
        PREDICT,
        predict(user=tensor(INT64, 1 << 62, 0)),
        413,
        "max_values",
    ),
    "many values": (PREDICT, predict(user=tensor(INT64, 1, int64_val=[1, 2])), 400, "at most 1"),
    "one value for many": (
        PREDICT,
        predict(user=tensor(INT64, 1 << 40, int64_val=[1])),
        413,
        "max_values",
    ),
    "a large int8": (PREDICT, predict(user=tensor(tf_pb.DT_INT8, 1, int_val=[300])), 400, "int8"),
    "half of the content": (
        PREDICT,
        predict(user=tensor(INT64, 2, tensor_content=bytes(12))),
        400,
        "12 bytes",
    ),
    "a field of another type": (
        PREDICT,
        predict(user=tensor(INT64, 1, int_val=[5])),
        400,
        "int64_val",
    ),
    "both fields": (
        PREDICT,
        predict(user=tensor(INT64, 1, int64_val=[5], tensor_content=bytes(8))),
        400,
        "tensor_content and int64_val",
    ),
    "no examples": (f"{PREDICTION_SERVICE}/Classify", examples("query"), 400, "examples: empty"),
    "a vector to regress": (
        f"{PREDICTION_SERVICE}/Regress",
        examples("query", _EXAMPLE),
        400,
        "regress",
    ),
    "other metadata": (
        f"{PREDICTION_SERVICE}/GetModelMetadata",
        tf_pb.GetModelMetadataRequest(
            model_spec=tf_pb.ModelSpec(name=MODEL), metadata_field=["graph"]
        ),
        400,
        "metadata_field",
    ),
    "no status": (
        f"{MODEL_SERVICE}/GetModelStatus",
        tf_pb.GetModelStatusRequest(model_spec=tf_pb.ModelSpec(name="books")),
        404,
        "'books'",
    ),
    "several inferences": (f"{PREDICTION_SERVICE}/MultiInference", b"", 501, "Classify"),
    "a reload": (f"{MODEL_SERVICE}/HandleReloadConfigRequest", b"", 501, "rowcast-serve ctl"),
}

QUERY = {"signature_name": "query"}
BODIES: dict[str, tuple[str, Any, str]] = {
    "no JSON": ("predict", b"{", "JSON"),
    "no values": ("predict", {}, "'instances' or 'inputs'"),
    "both forms": ("predict", {"instances": [{"user": 1}], "inputs": {"user": [1]}}, "either"),
    "other rows": ("predict", QUERY | {"instances": [{"user": 1}, {"hour": 2}]}, "instances[1]"),
    "rows and values": ("predict", QUERY | {"instances": [1, {"user": 1}]}, "beside objects"),
    "values without a name": ("predict", QUERY | {"instances": [1, 2]}, "no name"),
    "texts": ("predict", QUERY | {"inputs": {"user": ["a"]}}, "int64 was"),
    "null": ("predict", QUERY | {"inputs": {"user": [None]}}, "null"),
    "no base64": ("predict", QUERY | {"inputs": {"user": [{"b64": "*"}]}}, "base64"),
    "a large integer": ("predict", QUERY | {"inputs": {"user": [2**63]}}, "int64"),
    "many digits": ("predict", b'{"inputs": {"user": [NaN, %s]}}' % (b"9" * 5_000), "digits"),
    "kinds": ("predict", QUERY | {"inputs": {"user": [1, "a"]}}, "int, str"),
    "a matrix": ("predict", QUERY | {"inputs": {"user": [[1, 2]]}}, "shape [1, 2]"),
    "infinity": (
        "predict",
        b'{"signature_name": "query", "instances": [{"user": 1, "hour": Infinity}]}',
        "not finite",
    ),
    "no examples": ("classify", {}, "examples is null"),
    "a context of numbers": ("classify", {"context": 1, "examples": [{}]}, "context: 1"),
    "a vector": ("classify", QUERY | {"examples": [{"user": 1}]}, "classify cannot"),
}
"""A call of TensorFlow Serving, its body, and a word of the message."""


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, parts=True)
    with serving(root, protocols=("open-inference", "tensorflow-serving")) as ways:
        yield ways


def refusal(ways: Ways, method: str, message: Any) -> tuple[grpc.StatusCode, str, Any]:
    """Returns the status, the message and the details of a call that fails."""
    body = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(grpc.RpcError) as problem:
        ways.clients.channel.unary_unary(f"/{method}")(body, timeout=WAIT_S)
    details = rpc_status.from_call(problem.value).details
    return problem.value.code(), problem.value.details(), details


@pytest.mark.parametrize(("signature", "arrays", "status", "word"), UNFIT.values(), ids=UNFIT)
def test_tensors_that_do_not_fit_a_signature_are_refused(
    signature: str, arrays: Mapping[str, Any], status: int, word: str, ways: Ways
) -> None:
    # A scalar is no list.
    if all(array.ndim for array in arrays.values()):
        response = ways.clients.http.post(INFER, json=forms.json_body(arrays, signature))
        error = response.json()["error"]
        assert (response.status_code, word in error) == (status, True), error
    # An empty list has no second axis.
    if all(array.size or array.ndim == 1 for array in arrays.values()):
        inputs = {name: array.tolist() for name, array in arrays.items()}
        body = {"signature_name": signature, "inputs": inputs}
        response = ways.clients.http.post(f"{REST}:predict", json=body)
        error = response.json()["error"]
        assert (response.status_code, word in error) == (status, True), error
    code, text, _ = refusal(ways, OPEN, forms.message(arrays, signature, MODEL))
    assert (code, word in text) == (STATUS[status], True), text


@pytest.mark.parametrize("case", JSON.values(), ids=JSON)
def test_body_of_open_inference_is_refused(case: tuple[Any, ...], ways: Ways) -> None:
    headers = {"content-type": "application/json"}
    body, *rest = case
    for part in [part for part in rest if isinstance(part, dict)]:
        headers |= part
    status, word = [part for part in rest if not isinstance(part, dict)]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = ways.clients.http.post(INFER, content=content, headers=headers)
    assert response.headers["content-type"] == "application/json"
    assert (response.status_code, [*response.json()]) == (status, ["error"]), response.text
    assert word in response.json()["error"]


@pytest.mark.parametrize(("method", "path", "body", "status", "word"), PAGES.values(), ids=PAGES)
def test_page_is_refused_in_the_form_of_its_protocol(
    method: str, path: str, body: Any, status: int, word: str, ways: Ways
) -> None:
    response = ways.clients.http.request(method, path, json=body)
    assert (response.status_code, [*response.json()]) == (status, ["error"]), response.text
    assert word in response.json()["error"] + response.headers.get("allow", "")


@pytest.mark.parametrize(("method", "message", "status", "word"), MESSAGES.values(), ids=MESSAGES)
def test_message_is_refused_with_the_status_of_its_code(
    method: str, message: Any, status: int, word: str, ways: Ways
) -> None:
    code, text, details = refusal(ways, method, message)
    assert (code, word in text) == (STATUS[status], True), text
    fields = [detail for detail in details if detail.Is(BadRequest.DESCRIPTOR)]
    # A method that is not provided has no field.
    assert len(fields) == (message != b""), text


@pytest.mark.parametrize(("call", "body", "word"), BODIES.values(), ids=BODIES)
def test_body_of_tensorflow_serving_is_refused(call: str, body: Any, word: str, ways: Ways) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = ways.clients.http.post(f"{REST}:{call}", content=content)
    assert (response.status_code, [*response.json()]) == (400, ["error"]), response.text
    assert word in response.json()["error"]


def test_limits_are_those_of_other_requests(ways: Ways) -> None:
    large = ways.clients.http.post(INFER, content=bytes(LIMITS["max_request_bytes"] + 1))
    assert large.status_code == 413
    labels = {"transport": "http", "call": "infer", "model": MODEL}
    assert ways.service.value("rowcast_requests_total", code="TOO_LARGE", **labels) > 1
