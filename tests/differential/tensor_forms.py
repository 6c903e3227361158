"""Named tensors in each form of the protocols of other servers, and the tensors of responses;
written apart from the service's readers and writers.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensors.stubs import open_inference_pb2 as pb
from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.cases.ways import RawRequest, RawResponse
from tests.units.service.cases import MODEL

HEADER_LENGTH = "inference-header-content-length"
SERVICE = "inference.GRPCInferenceService"
PREDICTION = "tensorflow.serving.PredictionService"
INFER = f"POST /v2/models/{MODEL}/infer"
REST = f"POST /v1/models/{MODEL}"
_DATATYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "object": "BYTES",
}
_CONTENTS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
}
VALUES: dict[str, tuple[str, str]] = {
    "float32": ("DT_FLOAT", "float_val"),
    "float64": ("DT_DOUBLE", "double_val"),
    "float16": ("DT_HALF", "half_val"),
    "int64": ("DT_INT64", "int64_val"),
    "uint32": ("DT_UINT32", "uint32_val"),
    "uint64": ("DT_UINT64", "uint64_val"),
    "bool": ("DT_BOOL", "bool_val"),
    "object": ("DT_STRING", "string_val"),
    **{
        name: (f"DT_{name.upper()}", "int_val")
        for name in ("int8", "int16", "int32", "uint8", "uint16")
    },
}
"""TensorFlow's name of each type, and the field of its values."""
_INTEGERS = {"ids": np.int64, "counts": np.int64}
"""The outputs that are no float32."""

Arrays = Mapping[str, NDArray[Any]]


class Form(NamedTuple):
    """A form of requests and responses.

    Attributes:
      request: Returns the request for named arrays and a signature.
      outputs: Returns the outputs of a response.
    """

    request: Callable[[Arrays, str], RawRequest]
    outputs: Callable[[RawResponse], Arrays]


class Limits(NamedTuple):
    """The limits of a request."""

    max_features: int = 20
    max_queries: int = 8
    max_values: int = 1_000


def datatype_of(array: NDArray[Any]) -> str:
    """Returns the name of an array's dtype in Open Inference."""
    name = array.dtype.name
    return _DATATYPES.get(name, name.upper())


def bytes_of(array: NDArray[Any]) -> bytes:
    """Returns the elements as the binary extension has them."""
    if array.dtype != object:
        return array.tobytes()
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    return b"".join([struct.pack("<I", len(text)) + text for text in texts])


def json_body(arrays: Arrays, signature: str = "", **more: Any) -> dict[str, Any]:
    """Returns a body whose tensors are JSON."""
    inputs = [{**_named(name, array), "data": array.tolist()} for name, array in arrays.items()]
    return {"inputs": inputs, "parameters": _parameters(signature), **more}


def binary_request(arrays: Arrays, signature: str = "", **more: Any) -> RawRequest:
    """Returns a request whose tensors follow the JSON."""
    inputs = []
    parts = []
    for name, array in arrays.items():
        parts.append(bytes_of(array))
        inputs.append({**_named(name, array), "parameters": {"binary_data_size": len(parts[-1])}})
    parameters = _parameters(signature, binary_data_output=True)
    value = {"inputs": inputs, "parameters": parameters, **more}
    headers = {
        "content-type": "application/octet-stream",
        HEADER_LENGTH: str(len(json.dumps(value))),
    }
    return RawRequest(INFER, value, b"".join(parts), headers)


def message(
    arrays: Arrays, signature: str = "", model: str = "", *, raw: bool = True, **more: Any
) -> pb.ModelInferRequest:
    """Returns a message of Open Inference, its elements as bytes or in typed fields."""
    request = pb.ModelInferRequest(model_name=model, **more)
    if signature:
        request.parameters["signature_name"].string_param = signature
    for name, array in arrays.items():
        # There is no field of halves.
        if array.dtype == np.float16 and not raw:
            array = array.astype(np.float32)  # noqa: PLW2901
        entry = request.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        if raw:
            request.raw_input_contents.append(bytes_of(array))
            continue
        values = array.reshape(-1).tolist()
        if entry.datatype == "BYTES":
            values = [text.encode() for text in values]
        field = f"{entry.datatype.lower()}_contents"
        getattr(entry.contents, _CONTENTS.get(entry.datatype, field)).extend(values)
    return request


def tensor_message(array: NDArray[Any]) -> tf_pb.TensorProto:
    """Returns TensorFlow's message of an array, its elements in the field of their type."""
    dtype, field = VALUES[array.dtype.name]
    dims = [tf_pb.TensorShapeProto.Dim(size=size) for size in array.shape]
    if array.dtype == np.float16:
        array = array.view(np.uint16)
    values = array.reshape(-1).tolist()
    if array.dtype == object:
        values = [text.encode() for text in values]
    fields: dict[str, Any] = {field: values}
    shape = tf_pb.TensorShapeProto(dim=dims)
    return tf_pb.TensorProto(dtype=dtype, tensor_shape=shape, **fields)


def predict_message(arrays: Arrays, signature: str, model: str = MODEL) -> tf_pb.PredictRequest:
    """Returns a request for a prediction of TensorFlow Serving."""
    spec = tf_pb.ModelSpec(name=model, signature_name=signature)
    inputs = {name: tensor_message(array) for name, array in arrays.items()}
    return tf_pb.PredictRequest(model_spec=spec, inputs=inputs)


def with_base64(value: Any) -> Any:
    """Returns JSON whose texts are base64 of their bytes."""
    if isinstance(value, str):
        return {"b64": base64.b64encode(value.encode()).decode()}
    if isinstance(value, list):
        return [with_base64(part) for part in value]
    return value


def _json(arrays: Arrays, signature: str) -> RawRequest:
    return RawRequest(INFER, json_body(arrays, signature))


def _flat_json(arrays: Arrays, signature: str) -> RawRequest:
    value = json_body(arrays, signature)
    for entry in value["inputs"]:
        entry["data"] = np.ravel(entry["data"]).tolist()
    return RawRequest(INFER, value)


def _bytes_over_grpc(arrays: Arrays, signature: str) -> RawRequest:
    content = message(arrays, signature, MODEL).SerializeToString()
    return RawRequest(f"/{SERVICE}/ModelInfer", None, content)


def _fields_over_grpc(arrays: Arrays, signature: str) -> RawRequest:
    content = message(arrays, signature, MODEL, raw=False).SerializeToString()
    return RawRequest(f"/{SERVICE}/ModelInfer", None, content)


def _columns(arrays: Arrays, signature: str) -> RawRequest:
    inputs = {name: with_base64(array.tolist()) for name, array in arrays.items()}
    return RawRequest(f"{REST}:predict", {"signature_name": signature, "inputs": inputs})


def _prediction_over_grpc(arrays: Arrays, signature: str) -> RawRequest:
    content = predict_message(arrays, signature).SerializeToString()
    return RawRequest(f"/{PREDICTION}/Predict", None, content)


def outputs_of_json(response: RawResponse) -> dict[str, NDArray[Any]]:
    """Returns the outputs of Open Inference as JSON."""
    return {
        output["name"]: np.array(output["data"], _dtype_of(output["datatype"])).reshape(
            output["shape"]
        )
        for output in json.loads(response.content)["outputs"]
    }


def outputs_of_bytes(response: RawResponse) -> dict[str, NDArray[Any]]:
    """Returns the outputs of Open Inference that follow the JSON."""
    end = int(response.headers[HEADER_LENGTH])
    arrays = {}
    for output in json.loads(response.content[:end])["outputs"]:
        start = end
        end += output["parameters"]["binary_data_size"]
        arrays[output["name"]] = _array(output, response.content[start:end])
    assert end == len(response.content)
    return arrays


def outputs_of_message(response: RawResponse) -> dict[str, NDArray[Any]]:
    """Returns the outputs of a message of Open Inference."""
    parsed = pb.ModelInferResponse.FromString(response.content)
    assert len(parsed.outputs) == len(parsed.raw_output_contents)
    return {
        output.name: _array({"datatype": output.datatype, "shape": output.shape}, raw)
        for output, raw in zip(parsed.outputs, parsed.raw_output_contents, strict=True)
    }


def _outputs_of_columns(response: RawResponse) -> Arrays:
    outputs = json.loads(response.content)["outputs"]
    if not isinstance(outputs, dict):
        outputs = {"vector": outputs}
    return typed(outputs)


def outputs_of_rows(response: RawResponse) -> Arrays:
    """Returns the outputs of TensorFlow Serving by row."""
    predictions = json.loads(response.content)["predictions"]
    if not isinstance(predictions[0], dict):
        predictions = [{"vector": prediction} for prediction in predictions]
    return typed({name: [row[name] for row in predictions] for name in predictions[0]})


def _outputs_of_prediction(response: RawResponse) -> Arrays:
    tensors = tf_pb.PredictResponse.FromString(response.content).outputs
    values = {}
    for name in tensors:
        flat = np.array([*tensors[name].float_val, *tensors[name].int64_val])
        values[name] = flat.reshape([dim.size for dim in tensors[name].tensor_shape.dim])
    return typed(values)


FORMS: dict[str, Form] = {
    "JSON": Form(_json, outputs_of_json),
    "flat JSON": Form(_flat_json, outputs_of_json),
    "bytes behind JSON": Form(binary_request, outputs_of_bytes),
    "bytes over gRPC": Form(_bytes_over_grpc, outputs_of_message),
    "fields over gRPC": Form(_fields_over_grpc, outputs_of_message),
    "columns of TensorFlow Serving": Form(_columns, _outputs_of_columns),
    "TensorFlow Serving over gRPC": Form(_prediction_over_grpc, _outputs_of_prediction),
}
"""The forms of named arrays."""


def typed(outputs: Mapping[str, Any]) -> Arrays:
    """Returns lists, or arrays, of outputs as arrays of their types."""
    return {
        name: np.array(values, _INTEGERS.get(name, np.float32)) for name, values in outputs.items()
    }


def _parameters(signature: str, **more: Any) -> dict[str, Any]:
    if signature:
        more["signature_name"] = signature
    return more


def _named(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}


def _array(output: Mapping[str, Any], raw: bytes) -> NDArray[Any]:
    if output["datatype"] != "BYTES":
        return np.frombuffer(raw, _dtype_of(output["datatype"])).reshape(output["shape"])
    texts = []
    start = 0
    while start < len(raw):
        (length,) = struct.unpack_from("<I", raw, start)
        start += 4 + length
        texts.append(raw[start - length : start].decode())
    return np.array(texts, object).reshape(output["shape"])


def _dtype_of(datatype: str) -> Any:
    names = {name: dtype for dtype, name in _DATATYPES.items()}
    return np.dtype(names.get(datatype, datatype.lower()))
