"""Requests and responses of the protocol's inference, as JSON with binary tensors and as messages.

A model has several signatures, and the protocol knows none: the parameter `signature_name` of a
request chooses one.

Sources: the pages that `tensors.open_inference` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from service.codec import json
from service.codec.metadata import JSON_LENGTH
from service.config import ServiceSettings
from service.contract.columns import check_list, check_type, present_fields, shown
from service.contract.limits import at_most
from service.contract.messages import Target
from service.errors import InvalidArgument
from service.http.calls import target_of
from service.protocols.binding import SentTensors
from service.protocols.exchange import ReturnedTensors
from service.protocols.open_inference.parameters import (
    INPUT,
    OUTPUT,
    REQUEST,
    Parameters,
    parameter_values,
    read_parameters,
)
from tensors.arrays import Arrays, DeclaredShapes
from tensors.errors import input_field
from tensors.json_tensors import json_value
from tensors.open_inference import (
    BYTES,
    NAMES,
    InputTensor,
    bytes_of,
    input_tensor,
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

ReadElements = Callable[[int, InputTensor, Parameters], NDArray[Any]]
"""Returns an input by its number, its declaration and its parameters."""


class ResponseForm(NamedTuple):
    """What a response repeats of its request.

    Attributes:
      id: The id; "" if the request has none.
      binary: Whether each output is sent as bytes over HTTP, by its name.
      all_binary: Whether outputs that the request does not name are.
    """

    id: str
    binary: Mapping[str, bool]
    all_binary: bool


def read_body(
    body: bytes, header_length: str | None, url: Target, settings: ServiceSettings
) -> SentTensors:
    """Reads a request that was sent over HTTP.

    Args:
      body: JSON, and after it the elements of the tensors that have the parameter
        `binary_data_size`.
      header_length: The header with the size of the JSON; None if the JSON is the whole body.
      url: The model that the URL names.
      settings: The limits.

    Raises:
      InvalidArgument: A field or parameter is not as the protocol says; the message names it.
      Unimplemented: A parameter is of an extension that the service does not provide.
      TooLarge: There are more outputs than the limit.
      TensorError: A tensor is not as the protocol says; names it.
      TooMuch: There are more tensors or values than the limits.
    """
    # Bytes may follow the JSON; the header says where it ends.
    end = len(body)
    if header_length is not None:
        end = _json_size(header_length, end)
    value = present_fields(json.parse(body[:end], settings), _REQUEST, "body")

    # The body may repeat the model of the URL, and may name a version.
    model = check_type(value.get("model_name", url.model), str, "model_name")
    if model != url.model:
        raise InvalidArgument.of_field("model_name", shown(model), "the model of the URL")
    target = url
    if version := check_type(value.get("model_version", ""), str, "model_version"):
        target = target_of(url.model, version)
        if url.version not in (None, target.version):
            expected = "the version of the URL"
            raise InvalidArgument.of_field("model_version", shown(version), expected)

    inputs = check_list(value.get("inputs"), "inputs")
    unread = memoryview(body)[end:]

    def read(number: int, tensor: InputTensor, parameters: Parameters) -> NDArray[Any]:
        nonlocal unread
        data = inputs[number].get("data")
        size = parameters.get("binary_data_size")
        if size is None:
            return read_json(tensor, data)
        if data is not None:
            forms = "data and binary_data_size"
            raise InvalidArgument.of_field(tensor.field, forms, "one of them", "has")
        if size > len(unread):
            field = f"{tensor.field}.parameters.binary_data_size"
            expected = f"0 to {len(unread)}, the bytes that follow,"
            hint = f"{JSON_LENGTH} is the size of the JSON in front of them"
            raise InvalidArgument.of_field(field, size, expected, hint=hint)
        # The elements of the tensors follow each other in the order of the inputs.
        array = read_bytes(tensor, unread[:size])
        unread = unread[size:]
        return array

    tensors = _read_request(value, target, read, settings)
    # Bytes that no input declares show a client that counts otherwise.
    if unread:
        excess = f"{len(unread)} bytes after those of its inputs"
        raise InvalidArgument.of_field("body", excess, "none", "has")
    return tensors


def _json_size(header: str, body_size: int) -> int:
    """Returns the position in a body at which the JSON ends."""
    if not (header.isascii() and header.isdecimal() and len(header) <= _DIGITS_MAX):
        raise InvalidArgument.of_field(JSON_LENGTH, shown(header), "a number of bytes")
    size = int(header)
    if size > body_size:
        expected = f"at most {body_size}, the size of the body,"
        raise InvalidArgument.of_field(JSON_LENGTH, size, expected)
    return size


def read_message(message: pb.ModelInferRequest, settings: ServiceSettings) -> SentTensors:
    """Reads a request that was sent as a message; see `read_body`."""
    # Before anything is read of them.
    at_most(settings, "max_features", len(message.inputs), "inputs")
    at_most(settings, "max_names", len(message.outputs), "outputs")
    # A request sends the elements of all inputs as bytes, or of each input in its `contents`.
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        expected = f"{len(message.inputs)}, one for each input,"
        raise InvalidArgument.of_field("raw_input_contents", f"{len(raw)} tensors", expected, "has")

    def read(number: int, tensor: InputTensor, parameters: Parameters) -> NDArray[Any]:
        entry = message.inputs[number]
        size = parameters.get("binary_data_size")
        if not raw:
            if size is not None:
                field = f"{tensor.field}.parameters.binary_data_size"
                raise InvalidArgument.of_field(field, size, "raw_input_contents beside it")
            return read_contents(tensor, entry.contents)
        if entry.HasField("contents"):
            expected = "raw_input_contents alone"
            raise InvalidArgument.of_field(tensor.field, "both forms", expected, "has")
        # Clients that speak both transports state the size over this one, too.
        if size not in (None, len(raw[number])):
            field = f"{tensor.field}.parameters.binary_data_size"
            expected = f"{len(raw[number])}, the size of its raw_input_contents,"
            raise InvalidArgument.of_field(field, size, expected)
        return read_bytes(tensor, raw[number])

    # As JSON has them.
    value = {
        "id": message.id,
        "parameters": parameter_values(message.parameters),
        "inputs": [
            {
                "name": entry.name,
                "datatype": entry.datatype,
                "shape": list(entry.shape),
                "parameters": parameter_values(entry.parameters),
            }
            for entry in message.inputs
        ],
        "outputs": [
            {"name": entry.name, "parameters": parameter_values(entry.parameters)}
            for entry in message.outputs
        ],
    }
    target = target_of(message.model_name, message.model_version or None)
    tensors = _read_request(value, target, read, settings, all_binary=True)
    if not all([tensors.form.all_binary, *tensors.form.binary.values()]):
        hint = "over gRPC, outputs are sent as raw_output_contents"
        raise InvalidArgument.of_field("parameters", "binary_data false", "true", "has", hint)
    return tensors


def _read_request(
    value: Mapping[str, Any],
    target: Target,
    read: ReadElements,
    settings: ServiceSettings,
    *,
    all_binary: bool = False,
) -> SentTensors:
    """Reads what both transports have.

    Args:
      value: The request as JSON has it.
      target: The model that it names.
      read: Reads the elements of an input.
      settings: The limits.
      all_binary: Whether outputs are sent as bytes unless the request says otherwise.
    """
    parameters = read_parameters(value.get("parameters", {}), REQUEST, "parameters")
    all_binary = parameters.get("binary_data_output", all_binary)
    binary = {}
    outputs = []
    output_entries = check_list(value.get("outputs", []), "outputs")
    at_most(settings, "max_names", len(output_entries), "outputs")
    for number, entry in enumerate(output_entries):
        field = f"outputs[{number}]"
        output = present_fields(entry, _OUTPUT, field)
        name = check_type(output.get("name"), str, f"{field}.name")
        outputs.append(name)
        output_parameters = read_parameters(
            output.get("parameters", {}), OUTPUT, f"{field}.parameters"
        )
        # The parameter of an output wins over that of the request.
        binary[name] = output_parameters.get("binary_data", all_binary)

    arrays: dict[str, NDArray[Any]] = {}
    entries = check_list(value.get("inputs"), "inputs")
    shapes = DeclaredShapes(len(entries), settings)
    for number, entry in enumerate(entries):
        # Errors name a tensor by its position until its name was read.
        field = f"inputs[{number}]"
        declaration = present_fields(entry, _INPUT, field)
        name = check_type(declaration.get("name"), str, f"{field}.name")
        datatype = check_type(declaration.get("datatype"), str, f"{field}.datatype")
        shape = check_list(declaration.get("shape"), f"{field}.shape")
        # By the declared shape: a tensor beyond the limit is rejected before it is read.
        tensor = input_tensor(name, datatype, shapes.checked(shape, input_field(name)))
        if name in arrays:
            raise InvalidArgument.of_field(tensor.field, "two tensors", "one", "has")
        field = f"{tensor.field}.parameters"
        input_parameters = read_parameters(declaration.get("parameters", {}), INPUT, field)
        # All other content types say that the elements are as the datatype says.
        content_type = input_parameters.get("content_type", parameters.get("content_type"))
        if content_type == "str" and datatype != BYTES:
            raise InvalidArgument.of_field(f"{field}.content_type", "'str'", f"np for {datatype}")
        arrays[name] = read(number, tensor, input_parameters)

    request_id = check_type(value.get("id", ""), str, "id")
    if len(request_id) > ID_CHARS_MAX:
        length = f"{len(request_id)} characters"
        raise InvalidArgument.of_field("id", length, f"at most {ID_CHARS_MAX}", "has")
    return SentTensors(
        target,
        parameters.get("signature_name", ""),
        arrays,
        tuple(outputs),
        # As in Triton, 0 stands for no timeout.
        timeout_s=parameters.get("timeout", 0) / _US_PER_S or math.inf,
        form=ResponseForm(request_id, binary, all_binary),
    )


def response_body(returned: ReturnedTensors, form: ResponseForm) -> tuple[bytes, list[bytes]]:
    """Returns the response to a request that was sent over HTTP.

    Args:
      returned: The outputs, in the order in which they are sent.
      form: The form that the request chose.

    Returns:
      The JSON, and the elements of the outputs that follow it as bytes.
    """
    parts = {
        name: bytes_of(array)
        for name, array in returned.arrays.items()
        if form.binary.get(name, form.all_binary)
    }
    value: dict[str, Any] = {
        "model_name": returned.model,
        "model_version": str(returned.version),
    }
    if form.id:
        value["id"] = form.id
    value["outputs"] = _output_values(returned.arrays, parts)
    # In pieces, so that other threads run between them if the response is large.
    return b"".join(json.dump_in_pieces(value)), list(parts.values())


def response_message(returned: ReturnedTensors, form: ResponseForm) -> pb.ModelInferResponse:
    """Returns the response to a request that was sent as a message; see `response_body`."""
    message = pb.ModelInferResponse(
        model_name=returned.model, model_version=str(returned.version), id=form.id
    )
    for name, array in returned.arrays.items():
        message.outputs.add(name=name, datatype=NAMES[array.dtype], shape=array.shape)
        # Clients read either form. Bytes are copied at once, elements one by one.
        message.raw_output_contents.append(bytes_of(array))
    return message


def _output_values(tensors: Arrays, parts: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    for name, array in tensors.items():
        output: dict[str, Any] = {
            "name": name,
            "datatype": NAMES[array.dtype],
            "shape": list(array.shape),
        }
        if name in parts:
            output["parameters"] = {"binary_data_size": len(parts[name])}
        else:
            output["data"] = json_value(array.reshape(-1))
        yield output
