"""Every field of every request that repeats, nests or has names, repeated as often as fits: to
decode the body, or to reject it, takes time in proportion to its size, and ends soon after the
deadline.

The fields are found where they are declared: in the classes of the contract, in the commands of
operators, and in the messages of all protocols.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from service.admin.commands import COMMANDS, read_command
from service.codec.changes import read_change, read_change_message
from service.codec.json import parse
from service.codec.operations import OPERATIONS
from service.codec.protobuf import check_size
from service.codec.protobuf import parse as parse_message
from service.codec.stubs import embedding_service_pb2 as pb
from service.config import ServiceSettings
from service.contract.changes import CHANGES
from service.contract.forms import Struct
from service.contract.layouts import layout_of
from service.contract.messages import REQUESTS, Target
from service.decoding import DECODING
from service.errors import DeadlineExceeded, ServiceError
from service.protocols.binding import tensor_errors
from service.protocols.open_inference.messages import read_body as read_inference_body
from service.protocols.open_inference.messages import read_message as read_inference
from service.protocols.tensorflow_serving import json_forms
from service.protocols.tensorflow_serving.messages import read_example_request, read_predict
from service.shards.servicer import OPERATIONS as SHARD_OPERATIONS
from tensors.stubs import open_inference_pb2 as inference_pb
from tensors.stubs import tensorflow_serving_pb2 as serving_pb

pytestmark = pytest.mark.slow

SIZE = 512 << 10
"""The size of a body in bytes; what grows faster than it already shows."""
TIMES_PARSED = 16
"""Maximum time to decode a body, as a multiple of the time to parse small lists of that size and
of what is always accepted. The costliest bodies that are accepted take half of it.
"""
LIMITED_BYTES = 128 << 10
"""What the limits admit of elements that take longer: features, conditions, names."""
FIELDS_BYTES = 3 << 19
"""What they admit of the fields of a message, which are counted before they are parsed."""
STEP_TIMES_PARSED = 6
"""Maximum time of a step of decoding: the parser cannot be interrupted."""
LIMITS = ServiceSettings(root=Path.cwd())
MODEL = Target("movies")

NUMBERS = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_ENUM}
Read = Callable[[bytes], Any]
Bodies = Iterator[tuple[str, bytes]]


class Node(NamedTuple):
    """A field of JSON: whether it is a list of objects, and the fields of these."""

    is_list: bool = True
    fields: Callable[[], Mapping[str, Node]] = dict


def declared(cls: Any) -> Mapping[str, Node]:
    """Returns the fields of a class of the contract, with a list of requests or items."""
    layout = layout_of(cls)
    nodes = {}
    for name, field in {**layout.options, **layout.parts}.items():
        nodes[name] = Node()
        if isinstance(field.form, Struct):
            nodes[name] = Node(field.form.is_list, partial(declared, field.form.part_class))
    if layout.by_name:
        nodes["year"] = Node(False, partial(declared, layout.of_others))
    if layout.list_name:
        parts = {name: nodes[name] for name in layout.parts}
        nodes[layout.list_name] = Node(True, lambda: parts | {"id": Node()})
    return nodes


def described(message: Descriptor) -> Mapping[str, Node]:
    """Returns the fields of the JSON of a protocol whose message has the same ones."""
    return {
        field.name: Node(
            field.is_repeated,
            partial(described, field.message_type) if field.message_type else dict,
        )
        for field in message.fields
    } | {"data": Node()}


def json_bodies(fields: Mapping[str, Node], depth: int = 3) -> Bodies:
    """Yields what repeats the elements of each field, alone in its objects, and unknown names."""
    if fields:
        yield "by name", named("1").encode()
    for name, node in fields.items():
        elements = ["1", '"a"', "[1]", "{}"]
        elements += [f'{{"{field}":1}}' for field in node.fields()]
        for element in elements:
            yield f"{name} of {element}", f'{{"{name}":{listed(element)}}}'.encode()
            yield f"{name} by name of {element}", f'{{"{name}":{named(element)}}}'.encode()
        if depth == 1:
            continue
        for path, body in json_bodies(node.fields(), depth - 1):
            inner = b"[%b]" % body if node.is_list else body
            yield f"{name}.{path}", b'{"%b":%b}' % (name.encode(), inner)


@cache
def listed(element: str) -> str:
    return f"[{','.join([element] * (SIZE // (len(element) + 1)))}]"


@cache
def named(element: str) -> str:
    count = SIZE // (len(element) + 9)
    members = ['"%05x":%s' % (number, element) for number in range(count)]  # noqa: UP031
    return f"{{{','.join(members)}}}"


def field(number: int, content: bytes) -> bytes:
    """Returns a field of a message that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    low = number & 0x7F
    if low == number:
        return bytes([low])
    return bytes([low | 0x80]) + varint(number >> 7)


def message_bodies(message: Descriptor, seen: tuple[Descriptor, ...] = ()) -> Bodies:
    """Yields what repeats each field of a message, with nothing in it and with a field."""
    for declared_field in message.fields:
        number = declared_field.number
        inner = declared_field.message_type
        if inner is None and not declared_field.is_repeated:
            continue
        element = field(number, b"")
        yield f"{message.name}.{declared_field.name}", element * (SIZE // len(element))
        # As many as are parsed, each with a field.
        if inner is not None:
            part = inner.fields[0]
            content = field(part.number, b"")
            if part.type in NUMBERS:
                content = varint(part.number << 3) + b"\1"
            yield f"{message.name}.{declared_field.name}, fewer", field(number, content) * 80_000
        if inner is None:
            yield f"{message.name}.{declared_field.name}, packed", field(number, b"\1" * SIZE)
            continue
        if inner.GetOptions().map_entry:
            value = inner.fields_by_name["value"]
            keys = [field(1, b"%05x" % key) for key in range(40_000)]
            content = b""
            if value.message_type is not None or value.type == FieldDescriptor.TYPE_BYTES:
                content = field(2, b"")
            body = b"".join([field(number, key + content) for key in keys])
            yield f"{message.name}.{declared_field.name} by name", body
        if inner not in {*seen, message}:
            for name, body in message_bodies(inner, (*seen, message)):
                yield f"{declared_field.name}.{name}", field(number, body)


def read_sent(read: Callable[..., Any], *args: Any) -> None:
    with tensor_errors():
        read(*args, LIMITS)


def read_sent_message(message: type[Any], read: Callable[..., Any], body: bytes) -> None:
    check_size(message, body, LIMITS)
    read_sent(read, parse_message(message, body))


CHANGE = pb.ChangeRequest(
    kind="CHANGE_KIND_CANDIDATES",
    action="CHANGE_ACTION_UPSERT",
    ids=pb.Ids(int64s=bytes(8)),
).SerializeToString()


def read_call(call: str, body: bytes) -> Any:
    return OPERATIONS[call].read(body, False, MODEL, LIMITS)


def read_call_message(operation: Any, body: bytes) -> Any:
    return operation.read(body, True, None, LIMITS)


def read_json_change(change: Any, body: bytes) -> Any:
    return read_change(change, parse(body, LIMITS), LIMITS)


def read_json_command(name: str, body: bytes) -> Any:
    return read_command(name, body, LIMITS)


JSON: Mapping[str, tuple[Mapping[str, Node], Read]] = {
    **{
        call: (
            declared(request),
            partial(read_call, call),
        )
        for call, request in REQUESTS.items()
    },
    **{
        change.body.call: (
            declared(change),
            partial(read_json_change, change),
        )
        for change in CHANGES.values()
    },
    **{
        name: (
            dict.fromkeys(command.model_fields, Node()),
            partial(read_json_command, name),
        )
        for name, command in COMMANDS.items()
    },
    "predict": (
        {"instances": Node(), "inputs": Node(False, lambda: {"a": Node()})},
        lambda body: read_sent(json_forms.read_predict, body, MODEL),
    ),
    "classify": (
        {"examples": Node(), "context": Node(False)},
        lambda body: read_sent(json_forms.read_examples, body, MODEL),
    ),
    "infer": (
        described(inference_pb.ModelInferRequest.DESCRIPTOR),
        lambda body: read_sent(read_inference_body, body, None, MODEL),
    ),
}
MESSAGES: Mapping[str, tuple[Any, Read]] = {
    **{
        call: (
            operation.request_class,
            partial(read_call_message, operation),
        )
        for call, operation in {**OPERATIONS, **SHARD_OPERATIONS}.items()
    },
    "change": (pb.ChangeRequest, lambda body: read_change_message(CHANGE + body, LIMITS)),
    "predict": (
        serving_pb.PredictRequest,
        partial(read_sent_message, serving_pb.PredictRequest, read_predict),
    ),
    "classify": (
        serving_pb.ExamplesRequest,
        partial(read_sent_message, serving_pb.ExamplesRequest, read_example_request),
    ),
    "infer": (
        inference_pb.ModelInferRequest,
        partial(read_sent_message, inference_pb.ModelInferRequest, read_inference),
    ),
}


def seconds(read: Read, body: bytes, deadline_s: float = math.inf) -> float:
    """Returns the CPU time of a thread that reads a body, whose request has a deadline in it."""
    # Garbage collection costs what else the process holds.
    gc.disable()
    began = time.thread_time()

    def check() -> None:
        if time.thread_time() > began + deadline_s:
            raise DeadlineExceeded("the deadline of the request has passed")

    token = DECODING.set(check)
    try:
        read(body)
    except (ServiceError, ValueError):
        pass
    finally:
        spent_s = time.thread_time() - began
        DECODING.reset(token)
        gc.enable()
    return spent_s


def times_parsed(
    read: Read, body: bytes, limited_bytes: int, allowed: float, deadline_s: float | None = None
) -> float:
    """Returns how much later than its deadline a body is read, in times of parsing it."""
    lists = listed("[1]").encode()
    # Whatever else the machine does may cost a reading its cache, never five of five.
    for _ in range(5):
        byte_s = min(seconds(orjson.loads, lists) for _ in range(3)) / len(lists)
        if deadline_s is None:
            late_s = seconds(read, body)
        else:
            late_s = seconds(read, body, deadline_s) - deadline_s
        times = late_s / (byte_s * (len(body) + limited_bytes))
        if times < allowed:
            break
    return times


def check_times(read: Read, bodies: Bodies, limited_bytes: int) -> None:
    for name, body in bodies:
        times = times_parsed(read, body, limited_bytes, TIMES_PARSED)
        assert times < TIMES_PARSED, name
        if times > STEP_TIMES_PARSED:
            for deadline_s in (0, seconds(read, body) / 3):
                times = times_parsed(read, body, limited_bytes, STEP_TIMES_PARSED, deadline_s)
                assert times < STEP_TIMES_PARSED, f"{name}, {deadline_s:.3f} s to the deadline"


@pytest.mark.parametrize("call", JSON)
def test_json_takes_time_in_proportion_to_its_size(call: str) -> None:
    fields, read = JSON[call]
    check_times(read, json_bodies(fields), LIMITED_BYTES)


@pytest.mark.parametrize(
    "call",
    [
        call if call in {"retrieve", "change"} else pytest.param(call, marks=pytest.mark.nightly)
        for call in MESSAGES
    ],
)
def test_message_takes_time_in_proportion_to_its_size(call: str) -> None:
    message, read = MESSAGES[call]
    check_times(read, message_bodies(message.DESCRIPTOR), FIELDS_BYTES)
