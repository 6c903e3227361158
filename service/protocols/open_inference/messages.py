"""Requests and responses of the protocol's inference, as JSON with binary tensors and as messages.

A model has several signatures, and the protocol knows none: the parameter `signature_name` of a
request chooses one.

Sources: the pages that `tensors` names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from service.codec import json
from service.codec.columns import check_list, check_type, present_fields, shown
from service.codec.metadata import JSON_LENGTH
from service.config import ServiceSettings
from service.engine.calls import Target
from service.engine.validation import at_most
from service.errors import InvalidArgument
from service.http.calls import target_of
from service.protocols.columns import Arrays, DeclaredShapes
from service.protocols.exchange import ReturnedTensors, SentTensors
from service.protocols.open_inference.parameters import (
    INPUT,
    OUTPUT,
    REQUEST,
    Parameters,
    parameter_values,
    read_parameters,
)
from service.protocols.open_inference.tensors import (
    BYTES,
    InputTensor,
    bytes_of,
    datatype_of,
    field_of,
    input_tensor,
    json_of,
    read_bytes,
    read_contents,
    read_json,
)
from tensors.stubs import open_inference_pb2 as pb

OCTET_STREAM = "application/octet-stream"
ID_CHARS_MAX = 1_024
"""Maximum length of the id of a request, which its response repeats."""
_DIGITS_MAX = 10
"""Maximum number of digits in the size of the JSON."""
_REQUEST = ("id", "model_name", "model_version", "parameters", "inputs", "outputs")
_INPUT = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT = ("name", "parameters")
_US_PER_S = 1_000_000


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
      tensors: The inputs, and what is computed of them.
      outputs: The outputs that are returned, in this order; (): all.
      binary: Whether outputs are sent as bytes over HTTP where the request names no outputs.
    """

    id: str
    tensors: SentTensors
    outputs: tuple[RequestedOutput, ...] = ()
    binary: bool = False


def read_body(
    body: bytes, header_length: str | None, url: Target, settings: ServiceSettings
) -> Inference:
    """Reads a request that was sent over HTTP.

    Args:
      body: JSON, and after it the elements of the tensors that have the parameter
        `binary_data_size`.
      header_length: The header with the size of the JSON; None if the JSON is the whole body.
      url: The model that the URL names.
      settings: The limits.

    Raises:
      InvalidArgument: A field, parameter or tensor is not as the protocol says; the message names
        it.
      Unimplemented: A parameter is of an extension that the service does not provide.
      TooLarge: There are more values or names than the limits allow.
    """
    # Bytes may follow the JSON; the header says where it ends.
    end = len(body)
    if header_length is not None:
        end = _header_length(header_length, end)
    value = present_fields(json.parse(body[:end], settings), _REQUEST, "body")
    parameters = read_parameters(value.get("parameters", {}), REQUEST, "parameters")

    outputs = []
    for number, entry in enumerate(check_list(value.get("outputs", []), "outputs")):
        field = f"outputs[{number}]"
        output = present_fields(entry, _OUTPUT, field)
        name = check_type(output.get("name"), str, f"{field}.name")
        output_parameters = read_parameters(
            output.get("parameters", {}), OUTPUT, f"{field}.parameters"
        )
        # The parameter of an output wins over that of the request.
        binary = parameters.get("binary_data_output", False)
        outputs.append(RequestedOutput(name, output_parameters.get("binary_data", binary)))

    inputs = check_list(value.get("inputs"), "inputs")
    tensors = _tensors(inputs, _Unread(memoryview(body)[end:]), parameters, settings)
    request_id = check_type(value.get("id", ""), str, "id")
    target = _target_of_body(value, url)
    return _inference(request_id, target, parameters, tensors, outputs, settings)


def read_message(message: pb.ModelInferRequest, settings: ServiceSettings) -> Inference:
    """Reads a request that was sent as a message; see `read_body`."""
    # A request sends the elements of all inputs as bytes, or of each input in its `contents`.
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        expected = f"{len(message.inputs)}, one for each input,"
        raise InvalidArgument.of_field("raw_input_contents", f"{len(raw)} tensors", expected, "has")
    parameters = read_parameters(parameter_values(message.parameters), REQUEST, "parameters")
    _check_binary(parameters, "binary_data_output", "parameters")

    inputs = _Inputs(len(message.inputs), settings)
    for number, entry in enumerate(message.inputs):
        tensor = inputs.declare(entry.name, entry.datatype, entry.shape)
        field = f"{tensor.field}.parameters"
        input_parameters = read_parameters(parameter_values(entry.parameters), INPUT, field)
        _check_content_type(tensor, {**parameters, **input_parameters})
        size = input_parameters.get("binary_data_size")
        if not raw:
            if size is not None:
                expected = "raw_input_contents beside it"
                raise InvalidArgument.of_field(f"{field}.binary_data_size", size, expected)
            array = read_contents(tensor, entry.contents)
        elif entry.HasField("contents"):
            expected = "raw_input_contents alone"
            raise InvalidArgument.of_field(tensor.field, "both forms", expected, "has")
        else:
            # Clients that speak both transports state the size over this one, too.
            if size not in (None, len(raw[number])):
                expected = f"{len(raw[number])}, the size of its raw_input_contents,"
                raise InvalidArgument.of_field(f"{field}.binary_data_size", size, expected)
            array = read_bytes(tensor, raw[number])
        inputs.tensors[entry.name] = array

    outputs = []
    for number, requested in enumerate(message.outputs):
        field = f"outputs[{number}].parameters"
        output_parameters = read_parameters(parameter_values(requested.parameters), OUTPUT, field)
        _check_binary(output_parameters, "binary_data", field)
        outputs.append(RequestedOutput(requested.name))
    target = target_of(message.model_name, message.model_version or None)
    return _inference(message.id, target, parameters, inputs.tensors, outputs, settings)


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


class _Inputs:
    """The tensors of a request by name, which have at most as many values together as the limit.

    Attributes:
      tensors: The tensors that were read.
    """

    def __init__(self, count: int, settings: ServiceSettings) -> None:
        """Checks the number of inputs."""
        self.tensors = dict[str, NDArray[Any]]()
        self._shapes = DeclaredShapes(count, settings)

    def declare(self, name: str, datatype: str, shape: Sequence[Any]) -> InputTensor:
        """Checks the declaration of the next tensor."""
        # By the declared shape: a tensor beyond the limit is rejected before it is read.
        tensor = input_tensor(name, datatype, self._shapes.checked(shape, field_of(name)))
        if name in self.tensors:
            raise InvalidArgument.of_field(tensor.field, "two tensors", "one", "has")
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
            hint = f"{JSON_LENGTH} is the size of the JSON in front of them"
            raise InvalidArgument.of_field(field, size, expected, hint=hint)
        end = self.start + size
        array = read_bytes(tensor, self.data[self.start : end])
        self.start = end
        return array


def _tensors(
    entries: Sequence[Any], unread: _Unread, parameters: Parameters, settings: ServiceSettings
) -> Arrays:
    """Returns the tensors of a request that was sent over HTTP."""
    inputs = _Inputs(len(entries), settings)
    for number, value in enumerate(entries):
        # Errors name a tensor by its position until its name was read.
        field = f"inputs[{number}]"
        entry = present_fields(value, _INPUT, field)
        name = check_type(entry.get("name"), str, f"{field}.name")
        datatype = check_type(entry.get("datatype"), str, f"{field}.datatype")
        shape = check_list(entry.get("shape"), f"{field}.shape")
        tensor = inputs.declare(name, datatype, shape)

        parameters_field = f"{tensor.field}.parameters"
        input_parameters = read_parameters(entry.get("parameters", {}), INPUT, parameters_field)
        _check_content_type(tensor, {**parameters, **input_parameters})
        if "binary_data_size" not in input_parameters:
            array = read_json(tensor, entry.get("data"))
        elif "data" in entry:
            forms = "data and binary_data_size"
            raise InvalidArgument.of_field(tensor.field, forms, "one of them", "has")
        else:
            array = unread.take(tensor, input_parameters["binary_data_size"])
        inputs.tensors[name] = array

    # Bytes that no input declares show a client that counts otherwise.
    if unread.size:
        value = f"{unread.size} bytes after those of its inputs"
        raise InvalidArgument.of_field("body", value, "none", "has")
    return inputs.tensors


def _header_length(text: str, size: int) -> int:
    """Returns the position in a body at which the JSON ends."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise InvalidArgument.of_field(JSON_LENGTH, shown(text), "a number of bytes")
    if int(text) > size:
        expected = f"at most {size}, the size of the body,"
        raise InvalidArgument.of_field(JSON_LENGTH, text, expected)
    return int(text)


def _target_of_body(value: Mapping[str, Any], url: Target) -> Target:
    """Returns the model that a URL names, of the version that the body names.

    Raises:
      InvalidArgument: The body names another model or version than the URL.
    """
    model = check_type(value.get("model_name", url.model), str, "model_name")
    if model != url.model:
        raise InvalidArgument.of_field("model_name", shown(model), "the model of the URL")
    version = check_type(value.get("model_version", ""), str, "model_version")
    if not version:
        return url
    target = target_of(url.model, version)
    if url.version not in (None, target.version):
        raise InvalidArgument.of_field("model_version", shown(version), "the version of the URL")
    return target


def _check_content_type(tensor: InputTensor, parameters: Parameters) -> None:
    """Rejects a content type by which the elements would be read as another datatype."""
    # All others say that the elements are as the datatype says.
    if parameters.get("content_type") == "str" and tensor.datatype != BYTES:
        field = f"{tensor.field}.parameters.content_type"
        raise InvalidArgument.of_field(field, "'str'", f"np for {tensor.datatype}")


def _check_binary(parameters: Parameters, name: str, field: str) -> None:
    """Rejects to return the outputs of a message in another form than as bytes."""
    if not parameters.get(name, True):
        hint = "over gRPC, outputs are sent as raw_output_contents"
        raise InvalidArgument.of_field(f"{field}.{name}", "false", "true", hint=hint)


def _inference(
    request_id: str,
    target: Target,
    parameters: Parameters,
    arrays: Arrays,
    outputs: Sequence[RequestedOutput],
    settings: ServiceSettings,
) -> Inference:
    """Checks the values that requests of both transports have."""
    if len(request_id) > ID_CHARS_MAX:
        length = f"{len(request_id)} characters"
        raise InvalidArgument.of_field("id", length, f"at most {ID_CHARS_MAX}", "has")
    at_most(settings, "max_names", len(outputs), "outputs")
    # As in Triton, 0 stands for no timeout.
    timeout_s = parameters.get("timeout", 0) / _US_PER_S or math.inf
    signature_name = parameters.get("signature_name", "")
    names = tuple([output.name for output in outputs])
    tensors = SentTensors(target, signature_name, arrays, names, timeout_s=timeout_s)
    binary = parameters.get("binary_data_output", False)
    return Inference(request_id, tensors, tuple(outputs), binary)


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
