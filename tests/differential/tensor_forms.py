"""Named tensors in the forms of the protocol, and the tensors of its responses; written apart from
the service's readers and writers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx
import numpy as np
from numpy.typing import NDArray

from tensors.stubs import open_inference_pb2 as pb

HEADER_LENGTH = "inference-header-content-length"
SERVICE = "inference.GRPCInferenceService"
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

Arrays = Mapping[str, NDArray[Any]]


class Limits(NamedTuple):
    """The limits of a request."""

    max_features: int = 20
    max_queries: int = 8
    max_values: int = 1_000


def datatype_of(array: NDArray[Any]) -> str:
    """Returns the protocol's name of an array's dtype."""
    name = array.dtype.name
    return _DATATYPES.get(name, name.upper())


def bytes_of(array: NDArray[Any]) -> bytes:
    """Returns the elements as the binary extension has them."""
    if array.dtype != object:
        return array.tobytes()
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    return b"".join([struct.pack("<I", len(text)) + text for text in texts])


def parameters_of(signature: str, **more: Any) -> dict[str, Any]:
    """Returns the parameters of a request."""
    if signature:
        more["signature_name"] = signature
    return more


def json_body(arrays: Arrays, signature: str = "", **more: Any) -> dict[str, Any]:
    """Returns a request whose tensors are JSON."""
    inputs = [{**_named(name, array), "data": array.tolist()} for name, array in arrays.items()]
    return {"inputs": inputs, "parameters": parameters_of(signature), **more}


def binary_body(arrays: Arrays, signature: str = "", **more: Any) -> tuple[bytes, dict[str, str]]:
    """Returns a request whose tensors follow the JSON, and its headers."""
    inputs = []
    parts = []
    for name, array in arrays.items():
        parts.append(bytes_of(array))
        inputs.append({**_named(name, array), "parameters": {"binary_data_size": len(parts[-1])}})
    parameters = parameters_of(signature, binary_data_output=True)
    head = json.dumps({"inputs": inputs, "parameters": parameters, **more}).encode()
    return b"".join([head, *parts]), headers_of(head)


def headers_of(head: bytes) -> dict[str, str]:
    """Returns the headers of a request whose JSON ends before its body does."""
    return {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))}


def message(
    arrays: Arrays, signature: str = "", model: str = "", *, raw: bool = True, **more: Any
) -> pb.ModelInferRequest:
    """Returns a request as a message, its elements as bytes or in typed fields."""
    request = pb.ModelInferRequest(model_name=model, **more)
    if signature:
        request.parameters["signature_name"].string_param = signature
    for name, array in arrays.items():
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


def arrays_of_json(value: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns the outputs of a response whose tensors are JSON."""
    return {
        output["name"]: np.array(output["data"], _dtype_of(output["datatype"])).reshape(
            output["shape"]
        )
        for output in value["outputs"]
    }


def arrays_of_binary(response: httpx.Response) -> dict[str, NDArray[Any]]:
    """Returns the outputs of a response whose tensors follow the JSON."""
    end = int(response.headers[HEADER_LENGTH])
    arrays = {}
    for output in json.loads(response.content[:end])["outputs"]:
        start = end
        end += output["parameters"]["binary_data_size"]
        arrays[output["name"]] = _array(output, response.content[start:end])
    assert end == len(response.content)
    return arrays


def arrays_of_message(response: bytes) -> dict[str, NDArray[Any]]:
    """Returns the outputs of a response that is a message."""
    parsed = pb.ModelInferResponse.FromString(response)
    assert len(parsed.outputs) == len(parsed.raw_output_contents)
    return {
        output.name: _array({"datatype": output.datatype, "shape": output.shape}, raw)
        for output, raw in zip(parsed.outputs, parsed.raw_output_contents, strict=True)
    }


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
