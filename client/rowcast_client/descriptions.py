"""Messages that describe models, as records of `model_details` and as the service's JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from rowcast_client import model_details
from rowcast_client.stubs import embedding_service_pb2 as pb

_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MODEL_SPEC = pb.ModelSpec.DESCRIPTOR.full_name


def text_of(enum: EnumDescriptor, number: int) -> str:
    """Returns an enumerated value in lower case, without its prefix; "" for unspecified, and the
    number of a value that only newer services have.
    """
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    # The contract prefixes each value with the enumeration's name: ROLE_CONTEXT of Role.
    prefix = _WORD_STARTS.sub("_", enum.name).upper()
    name: str = value.name.removeprefix(f"{prefix}_").lower()
    if name == "unspecified":
        return ""
    return name


def record_of(message: Any) -> Any:
    """Returns a message as its record of `model_details`, or as JSON if it has none."""
    name = message.DESCRIPTOR.full_name
    special = _JSON_BY_MESSAGE.get(name)
    if special is not None:
        return special(message)
    fields = _fields(message)
    if name in RECORDS:
        return RECORDS[name](**fields)
    return fields


def plain_message(message: Any) -> Any:
    """Returns a message as JSON has it."""
    value = record_of(message)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _fields(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        # Records and JSON have the model's name and version side by side, not as an object.
        if field.message_type is not None and field.message_type.full_name == _MODEL_SPEC:
            fields |= {"model": value.name, "version": value.version}
        elif field.has_presence and not message.HasField(field.name):
            fields[field.name] = None
        elif field.enum_type is not None and field.is_repeated:
            fields[field.name] = [text_of(field.enum_type, number) for number in value]
        elif field.enum_type is not None:
            fields[field.name] = text_of(field.enum_type, value)
        # Maps, before repeated fields: protobuf has maps as repeated entries, too.
        elif hasattr(value, "items"):
            fields[field.name] = {key: _plain(element) for key, element in value.items()}
        elif field.is_repeated:
            fields[field.name] = [_plain(element) for element in value]
        else:
            fields[field.name] = _plain(value)
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return record_of(value)
    return value


def _id(message: Any) -> int | str:
    value: int | str = getattr(message, message.WhichOneof("kind"))
    return value


def _id_rule(message: Any) -> dict[str, Any]:
    """Returns a rule with its kind, without what does not apply."""
    kind = message.WhichOneof("kind")
    return {"kind": kind, **_without_absent(_fields(getattr(message, kind)))}


def _without_absent(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_absent(field) for name, field in value.items() if field is not None}
    if isinstance(value, list):
        return [_without_absent(element) for element in value]
    return value


def _unknown(message: Any) -> str:
    rule = text_of(pb.UnknownRule.DESCRIPTOR, message.rule)
    if rule == "row":
        return f"{rule} {message.row}"
    return rule


def _column(message: Any) -> Any:
    """Returns the value of the one example of a column, as a request writes it."""
    kind = message.WhichOneof("values")
    if kind == "strings":
        values = list(message.strings.values)
    else:
        dtype = {"int64s": "<i8", "int32s": "<i4", "float32s": "<f4"}[kind]
        values = np.frombuffer(getattr(message, kind), dtype).tolist()
    if message.weights:
        return {"ids": values, "weights": np.frombuffer(message.weights, "<f4").tolist()}
    if message.offsets:
        return values
    return values[0]


def _timestamp(message: Any) -> str:
    text: str = message.ToJsonString()
    return text


# Messages whose JSON is not an object of their fields.
_JSON_BY_MESSAGE: dict[str, Callable[[Any], Any]] = {
    pb.Id.DESCRIPTOR.full_name: _id,
    pb.IdRule.DESCRIPTOR.full_name: _id_rule,
    pb.Unknown.DESCRIPTOR.full_name: _unknown,
    pb.Column.DESCRIPTOR.full_name: _column,
    "google.protobuf.Timestamp": _timestamp,
}
RECORDS: dict[str, Callable[..., Any]] = {
    pb.CallSignature.DESCRIPTOR.full_name: model_details.CallSignature,
    pb.CorpusDetails.DESCRIPTOR.full_name: model_details.CorpusDetails,
    pb.ListDetails.DESCRIPTOR.full_name: model_details.ListDetails,
    pb.EffectDetails.DESCRIPTOR.full_name: model_details.EffectDetails,
    pb.FeatureDetails.DESCRIPTOR.full_name: model_details.FeatureDetails,
    pb.FormDetails.DESCRIPTOR.full_name: model_details.FormDetails,
    pb.GetModelResponse.DESCRIPTOR.full_name: model_details.ModelDetails,
    pb.IndexDetails.DESCRIPTOR.full_name: model_details.IndexDetails,
    pb.InputLength.DESCRIPTOR.full_name: model_details.InputLength,
    pb.ModelState.DESCRIPTOR.full_name: model_details.ModelState,
    pb.PartDetails.DESCRIPTOR.full_name: model_details.PartDetails,
    pb.ReaderDetails.DESCRIPTOR.full_name: model_details.ReaderDetails,
    pb.StageDetails.DESCRIPTOR.full_name: model_details.StageDetails,
    pb.TableDetails.DESCRIPTOR.full_name: model_details.TableDetails,
    pb.TensorDetails.DESCRIPTOR.full_name: model_details.TensorDetails,
    pb.TowerDetails.DESCRIPTOR.full_name: model_details.TowerDetails,
    pb.VersionState.DESCRIPTOR.full_name: model_details.VersionState,
}
"""The record of each message, by the name of the message."""
