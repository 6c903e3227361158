"""Requests and responses of the protocol's inference, as JSON with binary tensors and as messages.

A model has several signatures, and the protocol knows none: the parameter `signature_name` of a
request chooses one. Other parameters that the service does not know are ignored, as the protocol
allows clients to send any.

Sources: the pages that `tensors` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from service.codec import json
from service.codec.columns import check_list, fields, shown
from service.codec.stubs import open_inference_pb2 as pb
from service.codec.tensor_columns import Arrays
from service.codec.tensors import ReturnedTensors
from service.config import ServiceSettings
from service.engine.validation import at_most
from service.errors import InvalidArgument, Unimplemented
from service.open_inference.tensors import (
    InputTensor,
    bytes_of,
    datatype_of,
    input_tensor,
    json_of,
    read_bytes,
    read_contents,
    read_json,
)

HEADER_LENGTH = "inference-header-content-length"
"""HTTP header: the size of the JSON in front of binary tensors."""
OCTET_STREAM = "application/octet-stream"
ID_CHARS_MAX = 1_024
"""Maximum length of the id of a request, which its response repeats."""
_DIGITS_MAX = 10
"""Maximum number of digits in the size of the JSON."""
_REQUEST = ("id", "model_name", "model_version", "parameters", "inputs", "outputs")
_INPUT = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT = ("name", "parameters")
_NOT_PROVIDED = {
    "shared_memory_region": "shared memory is not provided; send the elements with the request",
    "classification": "classification is not provided; request the output as it is",
}
"""Parameters of tensors by which Triton does more than inference. To ignore them would return wrong
outputs without a word.
"""

_EXPECTED: dict[type, str] = {bool: "true or false", int: "an integer", str: "a string"}

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class RequestedOutput:
    """An output that a request names.

    Attributes:
      name: The name of the output.
      binary: Whether its elements are sent as bytes over HTTP.
    """

    name: str
    binary: bool = False


@dataclass(frozen=True)
class Inference:
    """A request.

    Attributes:
      id: The id, which the response repeats; "" if the request has none.
      signature_name: The signature that is computed; "" for the default one.
      tensors: The inputs by name.
      outputs: The outputs that are returned, in this order; (): all.
      binary: Whether outputs are sent as bytes over HTTP where the request names no outputs.
    """

    id: str
    signature_name: str
    tensors: Arrays
    outputs: tuple[RequestedOutput, ...] = ()
    binary: bool = False


def read_body(body: bytes, header_length: str | None, settings: ServiceSettings) -> Inference:
    """Reads a request that was sent over HTTP.

    Args:
      body: JSON, and after it the elements of the tensors that have the parameter
        `binary_data_size`.
      header_length: The header with the size of the JSON; None if the JSON is the whole body.
      settings: The limits.

    Raises:
      InvalidArgument: A field or tensor is not as the protocol says; the message names it.
      TooLarge: There are more values or names than the limits allow.
    """
    # Bytes may follow the JSON; the header says where it ends.
    end = len(body)
    if header_length is not None:
        end = _header_length(header_length, end)
    value = fields(json.parse(body[:end], settings), _REQUEST, "body")
    parameters = _parameters(value, "parameters")
    binary = typed_parameter(parameters, "binary_data_output", False, "parameters")

    outputs = []
    for number, output in enumerate(check_list(value.get("outputs", []), "outputs")):
        fields(output, _OUTPUT, f"outputs[{number}]")
        name = _text(output.get("name"), f"outputs[{number}].name")
        # The parameter of an output wins over that of the request.
        field = f"outputs[{number}].parameters"
        output_parameters = _parameters(output, field)
        output_binary = typed_parameter(output_parameters, "binary_data", binary, field)
        outputs.append(RequestedOutput(name, output_binary))

    inputs = check_list(value.get("inputs"), "inputs")
    tensors = _tensors(inputs, _Unread(memoryview(body)[end:]), settings)
    request_id = _text(value.get("id", ""), "id")
    return _inference(request_id, parameters, tensors, outputs, settings, binary)


def read_message(message: pb.ModelInferRequest, settings: ServiceSettings) -> Inference:
    """Reads a request that was sent as a message.

    Raises:
      InvalidArgument: A field or tensor is not as the protocol says; the message names it.
      TooLarge: There are more values or names than the limits allow.
    """
    # A request sends the elements of all inputs as bytes, or of each input in its `contents`.
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        expected = f"{len(message.inputs)}, one for each input,"
        raise InvalidArgument.of_field("raw_input_contents", f"{len(raw)} tensors", expected, "has")
    inputs = _Inputs(len(message.inputs), settings)
    for number, entry in enumerate(message.inputs):
        tensor = inputs.declare(entry.name, entry.datatype, entry.shape)
        _check_provided(_parameter_values(entry.parameters))
        if not raw:
            array = read_contents(tensor, entry.contents)
        elif entry.HasField("contents"):
            expected = "raw_input_contents alone"
            raise InvalidArgument.of_field(tensor.field, "both forms", expected, "has")
        else:
            array = read_bytes(tensor, raw[number])
        inputs.tensors[entry.name] = array
    outputs = []
    for requested in message.outputs:
        _check_provided(_parameter_values(requested.parameters))
        outputs.append(RequestedOutput(requested.name))
    return _inference(
        message.id, _parameter_values(message.parameters), inputs.tensors, outputs, settings
    )


def response_body(inference: Inference, returned: ReturnedTensors) -> tuple[bytes, list[bytes]]:
    """Returns the response to a request that was sent over HTTP.

    Args:
      inference: The request.
      returned: The outputs, in the order in which they are sent.

    Returns:
      The JSON, and the elements of the outputs that follow it as bytes.
    """
    # A request that names no outputs gets all of them, in the form that it states for all.
    binary = {output.name for output in inference.outputs if output.binary}
    if not inference.outputs and inference.binary:
        binary = set(returned.arrays)
    parts = {name: bytes_of(array) for name, array in returned.arrays.items() if name in binary}
    value: dict[str, Any] = {
        "model_name": returned.model,
        "model_version": str(returned.version),
    }
    if inference.id:
        value["id"] = inference.id
    value["outputs"] = _output_values(returned.arrays, parts)
    # In pieces, so that other threads run between them if the response is large.
    return b"".join(json.dump_in_pieces(value)), list(parts.values())


def response_message(inference: Inference, returned: ReturnedTensors) -> pb.ModelInferResponse:
    """Returns the response to a request that was sent as a message; see `response_body`."""
    message = pb.ModelInferResponse(
        model_name=returned.model, model_version=str(returned.version), id=inference.id
    )
    for name, array in returned.arrays.items():
        message.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        # Clients read either form. Bytes are copied at once, elements one by one.
        message.raw_output_contents.append(bytes_of(array))
    return message


def typed_parameter(parameters: Parameters, name: str, default: Any, field: str) -> Any:
    """Returns a parameter of the same type as its default.

    Args:
      parameters: All parameters.
      name: The name of the parameter.
      default: The value that is returned if there is none.
      field: The field of the parameters, as errors name it.

    Raises:
      InvalidArgument: The parameter has another type.
    """
    value = parameters.get(name, default)
    # Not `isinstance`: true is an integer in Python.
    if type(value) is not type(default):
        expected = _EXPECTED[type(default)]
        raise InvalidArgument.of_field(f"{field}.{name}", shown(value), expected)
    return value


class _Inputs:
    """The tensors of a request by name, which have at most as many values together as the limit.

    Attributes:
      tensors: The tensors that were read.
    """

    def __init__(self, count: int, settings: ServiceSettings) -> None:
        """Checks the number of inputs."""
        at_most(settings, "max_features", count, "inputs")
        self.tensors = dict[str, NDArray[Any]]()
        self._settings = settings
        self._size = 0

    def declare(self, name: str, datatype: str, shape: Sequence[Any]) -> InputTensor:
        """Checks the declaration of the next tensor."""
        tensor = input_tensor(name, datatype, shape)
        if name in self.tensors:
            raise InvalidArgument.of_field(tensor.field, "two tensors", "one", "has")
        # By the declared shape: a tensor beyond the limit is rejected before it is read.
        self._size += tensor.size
        at_most(self._settings, "max_values", self._size, "inputs")
        return tensor


@dataclass
class _Unread:
    """The elements of tensors that follow the JSON of a body, in the order of the inputs.

    Attributes:
      data: The elements of all tensors.
      start: The position in `data` at which the unread elements begin.
    """

    data: memoryview
    start: int = 0

    @property
    def size(self) -> int:
        """The number of bytes that are unread."""
        return len(self.data) - self.start

    def take(self, tensor: InputTensor, size: int) -> NDArray[Any]:
        """Returns the next tensor, which has `size` bytes."""
        if not 0 <= size <= self.size:
            field = f"{tensor.field}.parameters.binary_data_size"
            expected = f"0 to {self.size}, the bytes that follow,"
            hint = f"{HEADER_LENGTH} is the size of the JSON in front of them"
            raise InvalidArgument.of_field(field, size, expected, hint=hint)
        end = self.start + size
        array = read_bytes(tensor, self.data[self.start : end])
        self.start = end
        return array


def _tensors(entries: Sequence[Any], unread: _Unread, settings: ServiceSettings) -> Arrays:
    """Returns the tensors of a request that was sent over HTTP."""
    inputs = _Inputs(len(entries), settings)
    for number, entry in enumerate(entries):
        # Errors name a tensor by its position until its name was read.
        field = f"inputs[{number}]"
        fields(entry, _INPUT, field)
        name = _text(entry.get("name"), f"{field}.name")
        datatype = _text(entry.get("datatype"), f"{field}.datatype")
        shape = check_list(entry.get("shape"), f"{field}.shape")
        tensor = inputs.declare(name, datatype, shape)

        parameters_field = f"{tensor.field}.parameters"
        parameters = _parameters(entry, parameters_field)
        if "binary_data_size" not in parameters:
            array = read_json(tensor, entry.get("data"))
        elif "data" in entry:
            forms = "data and binary_data_size"
            raise InvalidArgument.of_field(tensor.field, forms, "one of them", "has")
        else:
            size = typed_parameter(parameters, "binary_data_size", 0, parameters_field)
            array = unread.take(tensor, size)
        inputs.tensors[name] = array

    # Bytes that no input declares show a client that counts otherwise.
    if unread.size:
        value = f"{unread.size} bytes after those of its inputs"
        raise InvalidArgument.of_field("body", value, "none", "has")
    return inputs.tensors


def _header_length(text: str, size: int) -> int:
    """Returns the position in a body at which the JSON ends."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise InvalidArgument.of_field(HEADER_LENGTH, shown(text), "a number of bytes")
    if int(text) > size:
        expected = f"at most {size}, the size of the body,"
        raise InvalidArgument.of_field(HEADER_LENGTH, text, expected)
    return int(text)


def _inference(
    request_id: str,
    parameters: Parameters,
    tensors: Arrays,
    outputs: Sequence[RequestedOutput],
    settings: ServiceSettings,
    binary: bool = False,
) -> Inference:
    """Checks the values that requests of both transports have."""
    if len(request_id) > ID_CHARS_MAX:
        length = f"{len(request_id)} characters"
        raise InvalidArgument.of_field("id", length, f"at most {ID_CHARS_MAX}", "has")
    at_most(settings, "max_names", len(outputs), "outputs")
    # Outputs are returned by name, so each can be named once.
    names = set[str]()
    for output in outputs:
        if output.name in names:
            value = f"{shown(output.name)} twice"
            raise InvalidArgument.of_field("outputs", value, "each output once", "has")
        names.add(output.name)
    signature_name = typed_parameter(parameters, "signature_name", "", "parameters")
    return Inference(request_id, signature_name, tensors, tuple(outputs), binary)


def _output_values(tensors: Arrays, parts: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    for name, array in tensors.items():
        output: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(array.dtype),
            "shape": list(array.shape),
        }
        if name in parts:
            output["parameters"] = {"binary_data_size": len(parts[name])}
        else:
            output["data"] = json_of(array)
        yield output


def _parameters(entry: Mapping[str, Any], field: str) -> Parameters:
    """Returns the parameters of a JSON object. Errors call them by a field."""
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidArgument.of_field(field, shown(parameters), "a JSON object")
    _check_provided(parameters)
    return parameters


def _parameter_values(parameters: Mapping[str, pb.InferParameter]) -> Parameters:
    """Returns the parameters of a message."""
    return {
        name: getattr(parameter, kind)
        for name, parameter in parameters.items()
        if (kind := parameter.WhichOneof("parameter_choice"))
    }


def _check_provided(parameters: Parameters) -> None:
    for name, problem in _NOT_PROVIDED.items():
        if name in parameters:
            raise Unimplemented(problem)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument.of_field(field, shown(value), "a string")
    return value
