"""jax-tpu-embedding's EmbeddingSpecProto, which says how a trainer stacked its tables: binary or text, decoded by hand.

Source: jax-tpu-embedding 0.1.0, jax_tpu_embedding/sparsecore/lib/proto/embedding_spec.proto.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from export.checkpoint.formats.wire import WireError, as_bytes, as_int, as_text, read_fields
from export.checkpoint.inventory.specs import StatedTable

_DEPTH_MAX = 16
_TOKEN = re.compile(r"""\s+|\#[^\n]*|(?P<token>[A-Za-z_]\w*|-?\d+|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}<>:;,])""")

_SPEC = {1: "stacked_table_specs"}
_STACK = {1: "stack_name", 2: "stack_vocab_size", 9: "num_sparsecores", 10: "table_specs"}
_TABLE = {1: "table_name", 2: "vocab_size", 3: "embedding_dim", 9: "row_offset_in_shard", 10: "shard_rotation"}
_REPEATED = {"stacked_table_specs": _STACK, "table_specs": _TABLE}
_TEXTS = ("stack_name", "table_name")

Message = Mapping[str, Any]
"""Fields by name: numbers, texts, lists of messages."""


def parse_embedding_spec(data: bytes, *, text: bool) -> tuple[StatedTable, ...]:
    """Returns the tables that an EmbeddingSpecProto tells; the key of each is the name of its stack.

    Args:
      data: the message.
      text: whether it is in protobuf's text format.
    Raises:
      WireError: it is no such message.
    """
    spec = _from_text(data) if text else _from_wire(data, _SPEC)
    stacks = _held(spec, "stacked_table_specs")
    return tuple(_stated(stack, table) for stack in stacks for table in _held(stack, "table_specs"))


def _stated(stack: Message, table: Message) -> StatedTable:
    cores, rows = _number(stack, "num_sparsecores"), _number(stack, "stack_vocab_size")
    if cores < 1 or rows < 1 or rows % cores:
        raise WireError(f"stack {_name(stack, 'stack_name')!r} of {rows} rows on {cores} cores")
    return StatedTable(
        name=_name(table, "table_name"),
        key=_name(stack, "stack_name"),
        kind="sparse_core",
        rows=_number(table, "vocab_size"),
        dim=_number(table, "embedding_dim"),
        cores=cores,
        core_rows=rows // cores,
        offset=_number(table, "row_offset_in_shard"),
        rotation=_number(table, "shard_rotation"),
        stack=True,
    )


def _name(message: Message, field: str) -> str:
    value = message.get(field)
    if not isinstance(value, str) or not value:
        raise WireError(f"a message without {field}")
    return value


def _number(message: Message, field: str) -> int:
    value = message.get(field, 0)
    if not isinstance(value, int):
        raise WireError(f"{field} is {value!r}, no integer")
    return value


def _held(message: Message, field: str) -> list[Message]:
    held = message.get(field, [])
    if not isinstance(held, list):
        raise WireError(f"{field} is {held!r}, no message")
    return held


def _from_wire(data: bytes, names: Mapping[int, str]) -> Message:
    message: dict[str, Any] = {}
    for number, value in read_fields(data):
        name = names.get(number, "")
        if name in _REPEATED:
            message.setdefault(name, []).append(_from_wire(as_bytes(value), _REPEATED[name]))
        elif name:
            message[name] = as_text(value) if name in _TEXTS else as_int(value)
    return message


def _from_text(data: bytes) -> Message:
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        raise WireError("text that is no UTF-8") from problem
    return _message(_tokens(text), "", _DEPTH_MAX)


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise WireError(f"{text[at : at + 20]!r} where a field of protobuf's text format belongs")
        at = found.end()
        if found["token"]:
            yield found["token"]


def _message(tokens: Iterator[str], end: str, depth: int) -> Message:
    if depth == 0:
        raise WireError("messages in one another, deeper than any layout has")
    message: dict[str, Any] = {}
    for name in tokens:
        if name == end:
            return message
        if name in ";,":
            continue
        value = next(tokens, "")
        value = next(tokens, "") if value == ":" else value
        if value not in ("{", "<"):
            message[name] = _scalar(name, value)
            continue
        inner = _message(tokens, "}" if value == "{" else ">", depth - 1)
        if name in _REPEATED:
            message.setdefault(name, []).append(inner)
    if end:
        raise WireError("the text ends within a message")
    return message


def _scalar(name: str, value: str) -> int | str:
    if not re.match(r"[\w'\"-]", value):
        raise WireError(f"{value!r} where the value of {name} belongs")
    try:
        if value[0] in "'\"":
            return str(ast.literal_eval(value))
        return int(value) if value[0] in "-0123456789" else value
    except (ValueError, SyntaxError) as problem:
        raise WireError(f"{value[:20]!r} where the value of {name} belongs") from problem
