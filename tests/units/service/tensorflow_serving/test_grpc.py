"""TensorFlow Serving's gRPC services: tensors in all of their forms, examples, and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from google.rpc.error_details_pb2 import BadRequest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status
from numpy.typing import NDArray

from service.codec.stubs import tensorflow_serving_pb2 as pb
from service.engine.calls import EmbeddingRequest, Target
from service.tensorflow_serving.protocol import MODEL_SERVICE, PREDICTION_SERVICE
from tests.units.service import reflected
from tests.units.service.running import RunningService, WaitingTower, column
from tests.units.service.tensorflow_serving.conftest import PROTOCOLS

SPEC = pb.ModelSpec(name="movies", signature_name="query")
RESPONSES: dict[str, Any] = {
    "Predict": pb.PredictResponse,
    "Classify": pb.ClassificationResponse,
    "Regress": pb.RegressionResponse,
    "MultiInference": pb.PredictResponse,
    "GetModelMetadata": pb.GetModelMetadataResponse,
    "GetModelStatus": pb.GetModelStatusResponse,
    "HandleReloadConfigRequest": pb.GetModelStatusResponse,
}
Call = Callable[[str, Any], Any]


@pytest.fixture
def call(channel: grpc.Channel) -> Call:
    """Calls a method of either service with a message."""

    def call(method: str, message: Any) -> Any:
        service = PREDICTION_SERVICE
        if method in {"GetModelStatus", "HandleReloadConfigRequest"}:
            service = MODEL_SERVICE
        send = channel.unary_unary(f"/{service}/{method}", serialized, RESPONSES[method].FromString)
        return send(message, timeout=30)

    return call


def serialized(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    return bytes(message.SerializeToString())


def shape(*sizes: int) -> pb.TensorShapeProto:
    return pb.TensorShapeProto(dim=[pb.TensorShapeProto.Dim(size=size) for size in sizes])


def tensor(dtype: Any, *sizes: int, **values: Any) -> pb.TensorProto:
    return pb.TensorProto(dtype=dtype, tensor_shape=shape(*sizes), **values)


def array(tensor: pb.TensorProto) -> NDArray[Any]:
    """What `tf.make_ndarray` returns of float32."""
    return np.array(tensor.float_val, np.float32).reshape([d.size for d in tensor.tensor_shape.dim])


def predict(spec: pb.ModelSpec = SPEC, **inputs: pb.TensorProto) -> pb.PredictRequest:
    return pb.PredictRequest(model_spec=spec, inputs=inputs)


USERS = tensor(pb.DT_INT64, 3, int64_val=[5, 7, 9])
HOURS: dict[str, pb.TensorProto] = {
    "float": tensor(pb.DT_FLOAT, 3, float_val=[1, 2, 2]),
    "last value repeated": tensor(pb.DT_FLOAT, 3, float_val=[1, 2]),
    "double": tensor(pb.DT_DOUBLE, 3, double_val=[1, 2]),
    "half": tensor(pb.DT_HALF, 3, half_val=np.array([1, 2], np.float16).view(np.uint16).tolist()),
    "bfloat16": tensor(pb.DT_BFLOAT16, 3, half_val=[0x3F80, 0x4000]),
    "content": tensor(pb.DT_FLOAT, 3, tensor_content=np.array([1, 2, 2], np.float32).tobytes()),
    "bfloat16 content": tensor(
        pb.DT_BFLOAT16, 3, tensor_content=np.array([0x3F80, 0x4000, 0x4000], np.uint16).tobytes()
    ),
    "int32": tensor(pb.DT_INT32, 3, int_val=[1, 2]),
    "uint8": tensor(pb.DT_UINT8, 3, int_val=[1, 2]),
    "uint32": tensor(pb.DT_UINT32, 3, uint32_val=[1, 2]),
    "column": tensor(pb.DT_FLOAT, 3, 1, float_val=[1, 2, 2]),
}
USER_FORMS: dict[str, pb.TensorProto] = {
    "int64": USERS,
    "content": tensor(pb.DT_INT64, 3, tensor_content=np.array([5, 7, 9], np.int64).tobytes()),
    "int32": tensor(pb.DT_INT32, 3, int_val=[5, 7, 9]),
    "int16": tensor(pb.DT_INT16, 3, int_val=[5, 7, 9]),
    "int8 content": tensor(pb.DT_INT8, 3, tensor_content=bytes([5, 7, 9])),
    "uint16": tensor(pb.DT_UINT16, 3, int_val=[5, 7, 9]),
    "uint64": tensor(pb.DT_UINT64, 3, uint64_val=[5, 7, 9]),
}


def test_tensors_are_read_in_all_of_their_forms(service: RunningService, call: Call) -> None:
    columns = {"user": column(5, 7, 9), "hour": column(1.0, 2.0, 2.0)}
    expected = service.execute(
        EmbeddingRequest(Target("movies"), "query", columns), "embed"
    ).vectors
    for name, hour in HOURS.items():
        response = call("Predict", predict(user=USERS, hour=hour))
        assert np.array_equal(array(response.outputs["vector"]), expected), name
    for name, user in USER_FORMS.items():
        response = call("Predict", predict(user=user, hour=HOURS["float"]))
        assert np.array_equal(array(response.outputs["vector"]), expected), name
    assert response.model_spec == pb.ModelSpec(
        name="movies", version=Int64Value(value=1), signature_name="query"
    )
    assert response.outputs["vector"].dtype == pb.DT_FLOAT


def test_values_that_are_missing_are_zeros_and_empty_strings(
    service: RunningService, call: Call
) -> None:
    columns = {"user": column(0, 0), "city": column("", ""), "hour": column(0.0, 0.0)}
    expected = service.execute(
        EmbeddingRequest(Target("movies"), "query", columns), "embed"
    ).vectors
    request = predict(
        user=tensor(pb.DT_INT64, 2), city=tensor(pb.DT_STRING, 2), hour=tensor(pb.DT_FLOAT, 2)
    )
    assert np.array_equal(array(call("Predict", request).outputs["vector"]), expected)


def test_outputs_are_filtered(call: Call) -> None:
    request = predict(pb.ModelSpec(name="movies", signature_name="retrieve"), user=USERS)
    request.output_filter.append("ids")
    response = call("Predict", request)
    assert list(response.outputs) == ["ids"]
    assert response.outputs["ids"].dtype == pb.DT_INT64
    assert response.outputs["ids"].tensor_shape == shape(3, 10)
    assert len(response.outputs["ids"].int64_val) == 30
    request.output_filter.append("ids")
    assert_rejected(call, "Predict", request, "outputs has 'ids' twice")
    request.output_filter[1] = "idz"
    assert_rejected(call, "Predict", request, "did you mean 'ids'?")


def test_ids_that_are_strings_are_returned_as_strings(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write(id_kind="string")
    service = serve(protocols=PROTOCOLS)
    with grpc.insecure_channel(service.grpc) as channel:
        send = channel.unary_unary(f"/{PREDICTION_SERVICE}/Predict")
        spec = pb.ModelSpec(name="movies", signature_name="retrieve")
        request = predict(spec, user=tensor(pb.DT_INT64, 1, int64_val=[5]))
        response = pb.PredictResponse.FromString(send(request.SerializeToString(), timeout=30))
    ids = response.outputs["ids"]
    assert ids.dtype == pb.DT_STRING
    assert len(ids.string_val) == 10
    assert all(text.startswith(b"m-") for text in ids.string_val)


def feature(*values: Any) -> pb.Feature:
    if values and isinstance(values[0], bytes):
        return pb.Feature(bytes_list=pb.BytesList(value=values))
    if values and isinstance(values[0], float):
        return pb.Feature(float_list=pb.FloatList(value=values))
    return pb.Feature(int64_list=pb.Int64List(value=values))


def example(**features: pb.Feature) -> pb.Example:
    return pb.Example(features=pb.Features(feature=features))


EXAMPLES = [
    example(movie=feature(1000), genres=feature(b"comedy"), year=feature(0.5), other=feature(1)),
    example(
        user=feature(7), movie=feature(1007), genres=feature(b"drama", b"drama"), year=feature(1.0)
    ),
]
CONTEXT = example(user=feature(5), hour=pb.Feature())
EXAMPLES_REQUEST = pb.ExamplesRequest(
    model_spec=pb.ModelSpec(name="movies"),
    input=pb.Input(
        example_list_with_context=pb.ExampleListWithContext(examples=EXAMPLES, context=CONTEXT)
    ),
)
PAIRS = {
    "user": tensor(pb.DT_INT64, 2, int64_val=[5, 7]),
    "movie": tensor(pb.DT_INT64, 2, int64_val=[1000, 1007]),
    "genres": tensor(pb.DT_STRING, 3, string_val=[b"comedy", b"drama", b"drama"]),
    "genres_1": tensor(pb.DT_INT64, 3, int64_val=[0, 1, 3]),
    "year": tensor(pb.DT_FLOAT, 2, float_val=[0.5, 1]),
}


def test_examples_are_classified_and_regressed(call: Call) -> None:
    outputs = call("Predict", predict(pb.ModelSpec(name="movies"), **PAIRS)).outputs
    regressed = call("Regress", EXAMPLES_REQUEST)
    assert [row.value for row in regressed.result.regressions] == list(outputs["score"].float_val)
    assert regressed.model_spec.signature_name == "serving_default"
    classified = call("Classify", EXAMPLES_REQUEST).result.classifications
    for number, row in enumerate(classified):
        assert {label.label: label.score for label in row.classes} == {
            name: output.float_val[number] for name, output in outputs.items()
        }


def test_status_and_metadata_describe_the_versions(call: Call) -> None:
    spec = pb.ModelSpec(name="movies")
    (state,) = call(
        "GetModelStatus", pb.GetModelStatusRequest(model_spec=spec)
    ).model_version_status
    assert (state.version, state.state) == (1, pb.ModelVersionStatus.AVAILABLE)
    request = pb.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"])
    response = call("GetModelMetadata", request)
    packed = response.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    signatures = pb.SignatureDefMap.FromString(packed.value).signature_def
    assert signatures["query"].inputs["history_1"].dtype == pb.DT_INT64
    assert response.model_spec.version.value == 1


def test_failed_version_has_ended_with_its_problem(
    root: Path, service: RunningService, call: Call
) -> None:
    # Not a bundle that is damaged afterwards: a scan could load it before.
    directory = root / "movies" / "2"
    directory.mkdir()
    (directory / "manifest.json").write_text("{}")
    service.scan()
    request = pb.GetModelStatusRequest(
        model_spec=pb.ModelSpec(name="movies", version=Int64Value(value=2))
    )
    (state,) = call("GetModelStatus", request).model_version_status
    assert (state.version, state.state) == (2, pb.ModelVersionStatus.END)
    assert state.status.error_code == pb.UNKNOWN
    assert state.status.error_message


def test_health_and_reflection_list_the_services(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in (PREDICTION_SERVICE, MODEL_SERVICE):
        response = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    listed = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {PREDICTION_SERVICE, MODEL_SERVICE} <= set(listed)


def test_reflection_describes_the_methods_so_that_they_can_be_called(channel: grpc.Channel) -> None:
    assert reflected.method_names(channel, PREDICTION_SERVICE) == {
        "Predict",
        "Classify",
        "Regress",
        "GetModelMetadata",
    }
    status = {"model_spec": {"name": "movies"}}
    response = reflected.json_response(channel, MODEL_SERVICE, "GetModelStatus", status)
    (version,) = response["model_version_status"]
    assert (version["version"], version["state"]) == ("1", "AVAILABLE")
    shape = {"dim": [{"size": 2}]}
    users = {"dtype": "DT_INT64", "tensor_shape": shape, "int64_val": [5, 7]}
    model_spec = {"name": "movies", "signature_name": "retrieve"}
    request = {"model_spec": model_spec, "inputs": {"user": users}}
    response = reflected.json_response(channel, PREDICTION_SERVICE, "Predict", request)
    assert response["outputs"]["ids"]["tensor_shape"]["dim"][0]["size"] == "2"


def assert_rejected(
    call: Call,
    method: str,
    message: Any,
    text: str,
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call(method, message)
    assert raised.value.code() is code, raised.value.details()
    assert text in raised.value.details()
    if code is not UNIMPLEMENTED:
        details = rpc_status.from_call(raised.value).details
        requests = [detail for detail in details if detail.Is(BadRequest.DESCRIPTOR)]
        assert len(requests) == 1, raised.value.details()


NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
TOO_LARGE = grpc.StatusCode.RESOURCE_EXHAUSTED
BAD: dict[str, tuple[Any, ...]] = {
    "no message": ("Predict", b"\xff", "its bytes do not decode as protobuf"),
    "no model": ("Predict", predict(pb.ModelSpec()), "model_spec.name is empty"),
    "model": ("Predict", predict(pb.ModelSpec(name="books")), "no model 'books'", NOT_FOUND),
    "version": (
        "Predict",
        predict(pb.ModelSpec(name="movies", version=Int64Value(value=9))),
        "version 9 of model 'movies' is not served",
        NOT_FOUND,
    ),
    "negative": (
        "Predict",
        predict(pb.ModelSpec(name="movies", version=Int64Value(value=-1))),
        "model_spec.version is -1",
    ),
    "label": (
        "Predict",
        predict(pb.ModelSpec(name="movies", version_label="stable")),
        "no label 'stable'",
        NOT_FOUND,
    ),
    "signature": (
        "Predict",
        predict(pb.ModelSpec(name="movies", signature_name="querry")),
        "did you mean 'query'?",
    ),
    "missing": ("Predict", predict(), "input 'user' of signature 'query' is missing"),
    "unknown": ("Predict", predict(user=USERS, usr=USERS), "'usr' is unknown to signature"),
    "dtype": ("Predict", predict(user=HOURS["float"]), "'user' is float32; int64 was expected"),
    "no dtype": ("Predict", predict(user=tensor(0, 1)), "'user' has dtype 0; one of DT_FLOAT"),
    "complex": ("Predict", predict(user=tensor(8, 1)), "'user' has dtype 8; one of DT_FLOAT"),
    "rank": ("Predict", predict(user=tensor(pb.DT_INT64)), "'user' is int64 of shape []"),
    "many axes": ("Predict", predict(user=tensor(pb.DT_INT64, *[1] * 9)), "at most 8 was"),
    "size": ("Predict", predict(user=tensor(pb.DT_INT64, -1)), "inputs.user.shape holds -1"),
    "unknown rank": (
        "Predict",
        predict(
            user=pb.TensorProto(
                dtype=pb.DT_INT64, tensor_shape=pb.TensorShapeProto(unknown_rank=True)
            )
        ),
        "inputs.user.shape is of unknown rank",
    ),
    "empty": ("Predict", predict(user=tensor(pb.DT_INT64, 1 << 62, 0)), "max_values", TOO_LARGE),
    "values": (
        "Predict",
        predict(user=tensor(pb.DT_INT64, 1, int64_val=[1, 2])),
        "'user' has 2 values in int64_val; at most 1",
    ),
    "half a tensor": (
        "Predict",
        predict(user=tensor(pb.DT_INT64, 2, tensor_content=bytes(12))),
        "'user' has 12 bytes in tensor_content; 16 were expected for 2 values",
    ),
    "packed strings": (
        "Predict",
        predict(user=USERS, city=tensor(pb.DT_STRING, 3, tensor_content=bytes(9))),
        "'city' has values in tensor_content; string_val was expected",
    ),
    "field of another type": (
        "Predict",
        predict(user=tensor(pb.DT_INT64, 1, int_val=[5])),
        "'user' has values in int_val; int64_val or tensor_content was expected",
    ),
    "both forms": (
        "Predict",
        predict(user=tensor(pb.DT_INT64, 1, int64_val=[5], tensor_content=bytes(8))),
        "'user' has values in tensor_content and int64_val; int64_val or tensor_content",
    ),
    "large for its type": (
        "Predict",
        predict(user=tensor(pb.DT_INT8, 1, int_val=[300])),
        "'user' has larger integers; integers that fit int8",
    ),
    "bits of a half": (
        "Predict",
        predict(user=USERS, hour=tensor(pb.DT_HALF, 3, half_val=[1 << 16])),
        "'hour' has larger integers; integers that fit uint16",
    ),
    "allocation": (
        "Predict",
        predict(user=tensor(pb.DT_INT64, 1 << 40, int64_val=[1])),
        "max_values",
        TOO_LARGE,
    ),
    "rows": (
        "Predict",
        predict(user=USERS, hour=tensor(pb.DT_FLOAT, 2)),
        "'hour' has 2 rows and 'user' has 3",
    ),
    "no examples": ("Classify", pb.ExamplesRequest(model_spec=SPEC), "has no examples"),
    "vector": (
        "Regress",
        pb.ExamplesRequest(
            model_spec=SPEC,
            input=pb.Input(example_list=pb.ExampleList(examples=[example(user=feature(5))])),
        ),
        "regress cannot return what signature 'query' computes",
    ),
    "metadata": (
        "GetModelMetadata",
        pb.GetModelMetadataRequest(model_spec=SPEC, metadata_field=["graph"]),
        "metadata_field must be one value",
    ),
    "status": (
        "GetModelStatus",
        pb.GetModelStatusRequest(model_spec=pb.ModelSpec(name="books")),
        "no version of model 'books'",
        NOT_FOUND,
    ),
    "several": ("MultiInference", b"", "send its tasks as Classify and Regress", UNIMPLEMENTED),
    "reload": ("HandleReloadConfigRequest", b"", "rowcast-serve ctl", UNIMPLEMENTED),
}


def test_bad_messages_are_rejected_with_the_status_of_tensorflow_serving(call: Call) -> None:
    for case in BAD.values():
        assert_rejected(call, *case)


@pytest.fixture
def waiting(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> Iterator[tuple[RunningService, WaitingTower]]:
    """A service whose query tower waits; what arrives meanwhile is in the queue."""
    write()
    service = serve(protocols=PROTOCOLS, inline_max_us=0, threads=1)
    tower = WaitingTower(service.current().towers["query"].parts[0].network)
    service.with_network("query", tower)
    yield service, tower
    tower.release.set()


def genres_of(form: str, splits: list[int]) -> dict[str, pb.TensorProto]:
    """Returns the tensors of a ragged, or a sparse, feature of texts: row i has those from
    splits[i] to splits[i + 1].
    """
    count = splits[-1]
    texts = ([b"comedy", b"drama", b"action"] * count)[:count]
    values = tensor(pb.DT_STRING, count, string_val=texts)
    rows = len(splits) - 1
    if form == "ragged":
        return {"genres": values, "genres_1": tensor(pb.DT_INT64, rows + 1, int64_val=splits)}
    lengths = np.diff(splits)
    owners = np.arange(rows).repeat(lengths)
    indices = np.stack([owners, np.arange(count) - np.array(splits)[owners]], axis=1)
    shape = [rows, max(lengths)]
    return {
        "genres": tensor(pb.DT_INT64, count, 2, int64_val=indices.ravel().tolist()),
        "genres_1": values,
        "genres_2": tensor(pb.DT_INT64, 2, int64_val=shape),
    }


@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_rows_of_lists_of_several_requests_are_computed_as_a_batch(
    form: str, waiting: tuple[RunningService, WaitingTower]
) -> None:
    service, tower = waiting
    spec = pb.ModelSpec(name="movies", signature_name="ranking")
    requests = []
    for number in range(12):
        rows = 1 + number % 4
        splits = np.cumsum([0, *[(number + row) % 3 for row in range(rows)]]).tolist()
        requests.append(
            predict(
                spec,
                user=tensor(pb.DT_INT64, rows, int64_val=range(number, number + rows)),
                movie=tensor(pb.DT_INT64, rows, int64_val=[1000 + 7 * number] * rows),
                year=tensor(pb.DT_FLOAT, rows, float_val=[number / 10] * rows),
                **genres_of(form, splits),
            )
        )
    query = pb.ModelSpec(name="movies", signature_name="query")
    blocking = predict(query, user=tensor(pb.DT_INT64, 1, int64_val=[5]))
    with grpc.insecure_channel(service.grpc) as channel, ThreadPoolExecutor(13) as pool:
        send = channel.unary_unary(
            f"/{PREDICTION_SERVICE}/Predict",
            serialized,
            pb.PredictResponse.FromString,
        )
        before = service.value("rowcast_batch_requests_count", call="predict")
        first = pool.submit(send, blocking, timeout=30)
        assert tower.entered.wait(20)
        together = [pool.submit(send, request, timeout=30) for request in requests]
        queued = threading.Event()
        while not queued.wait(0.02):
            if service.worker.engine.inflight == len(requests) + 1:
                queued.set()
        tower.release.set()
        first.result()
        batched = [array(future.result().outputs["score"]).tolist() for future in together]
        batches = service.value("rowcast_batch_requests_count", call="predict") - before
        responses = [send(request, timeout=30) for request in requests]
    assert batched == [array(response.outputs["score"]).tolist() for response in responses]
    assert [len(scores) for scores in batched] == [1 + number % 4 for number in range(12)]
    assert batches == 2  # that of the first, and of all others
