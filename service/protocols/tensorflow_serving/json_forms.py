"""The JSON bodies of TensorFlow Serving's REST API.

Source: tensorflow_serving/util/json_tensor.cc and
https://www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

import base64
import binascii
import json as standard_json
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import numpy as np
import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from numpy.typing import NDArray

from bundle.tables.offsets import offsets_of
from service.codec import json
from service.codec.columns import NESTING_MAX, check_list, check_type, present_fields, shown
from service.codec.failures import Failure
from service.codec.metadata import JSON
from service.config import ServiceSettings
from service.engine.calls import Target
from service.engine.validation import SHOWN_CHARS, at_most
from service.errors import TRANSPORT_STATUS, FieldViolation, InvalidArgument
from service.http.other_protocols import ErrorResponse
from service.protocols.columns import Ragged
from service.protocols.exchange import ReturnedTensors, SentTensors
from service.protocols.tensorflow_serving.messages import (
    Example,
    arrays_of_examples,
    check_examples,
    classes_of,
    regressions_of,
    typed_array,
)

_PREDICT = ("signature_name", "instances", "inputs")
_EXAMPLES = ("signature_name", "context", "examples")
"""The fields of the bodies."""
_BASE64 = "b64"
"""The only key of an object that stands for bytes."""
_NOT_FINITE = (b"NaN", b"Infinity")
"""The tokens of numbers that JSON does not have, and TensorFlow Serving does."""


class PredictBody:
    """The body of one `:predict`, whose response has the form of the request: rows, or columns."""

    def __init__(self) -> None:
        self._has_rows = False

    def read(self, body: bytes, url: Target | None, settings: ServiceSettings) -> SentTensors:
        """Reads the body of a request.

        Raises:
          InvalidArgument: The body has another form; the message names the field.
        """
        assert url is not None  # noqa: S101 - the path names the model
        value = _parse(body, _PREDICT, settings)
        signature = check_type(value.get("signature_name", ""), str, "signature_name")
        # The row format has `instances`, the columnar format has `inputs`.
        self._has_rows = "instances" in value
        if self._has_rows == ("inputs" in value):
            forms = "neither of them"
            if self._has_rows:
                forms = "both of them"
            raise InvalidArgument(
                "the body must have either 'instances' or 'inputs'",
                FieldViolation("body", forms, "instances or inputs"),
            )
        columns: Mapping[str, Any]
        if self._has_rows:
            columns = _columns_of_rows(value["instances"])
        else:
            columns = _columns_of_inputs(value["inputs"])
        at_most(settings, "max_features", len(columns), "body")
        arrays = {name: _tensor(column, name) for name, column in columns.items()}
        return SentTensors(url, signature, arrays)

    def write(self, returned: ReturnedTensors) -> bytes:
        """Writes the body of the response. A single output has no name."""
        arrays = {name: _output_value(array) for name, array in returned.arrays.items()}
        # The response has the format of the request.
        key = "outputs"
        if self._has_rows:
            key = "predictions"
        if len(arrays) == 1:
            (values,) = arrays.values()
            return json.dump({key: values})
        if not self._has_rows:
            return json.dump({key: arrays})
        # In the row format, each row is an object of all outputs.
        value_rows = zip(*arrays.values(), strict=True)
        rows = [dict(zip(arrays, row, strict=True)) for row in value_rows]
        return json.dump({key: rows})


def _output_value(array: NDArray[Any]) -> Any:
    """Returns an output as a value that `codec.json` writes."""
    if array.dtype.hasobject:
        return array.tolist()
    return np.ascontiguousarray(array)


def read_examples(body: bytes, url: Target | None, settings: ServiceSettings) -> SentTensors:
    """Reads the body of `:classify` or `:regress`.

    Raises:
      InvalidArgument: The body has another form; the message names the field.
      TooLarge: The body has more examples, features or values than the limits.
    """
    assert url is not None  # noqa: S101 - the path names the model
    value = _parse(body, _EXAMPLES, settings)
    signature = check_type(value.get("signature_name", ""), str, "signature_name")
    listed = check_list(value.get("examples"), "examples")
    check_examples(len(listed), settings)
    examples = []
    for number, example in enumerate(listed):
        examples.append(_example(example, f"examples[{number}]"))
    context = _example(value.get("context", {}), "context")
    arrays = arrays_of_examples(examples, context, settings)
    return SentTensors(url, signature, arrays, are_features=True)


def write_classification(returned: ReturnedTensors) -> bytes:
    """Writes the body of the response to `:classify`."""
    return json.dump({"results": classes_of(returned)})


def write_regression(returned: ReturnedTensors) -> bytes:
    """Writes the body of the response to `:regress`."""
    return json.dump({"results": regressions_of(returned)})


def error_response(failure: Failure) -> ErrorResponse:
    """Returns a failure in TensorFlow Serving's form."""
    body = orjson.dumps({"error": failure.message})
    return ErrorResponse(TRANSPORT_STATUS[failure.code].http, JSON, body)


def message_value(message: Message) -> dict[str, Any]:
    """Returns a message as a JSON value with all of its fields, under the names of the proto."""
    value: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return value


def _parse(body: bytes, names: Collection[str], settings: ServiceSettings) -> dict[str, Any]:
    """Returns the fields of a body that are not null, which have some of these names."""
    # Python's parser accepts these tokens, unlike orjson, which is faster.
    if any(token in body for token in _NOT_FINITE):
        json.check_separators(body, settings)
        try:
            value = standard_json.loads(body)
        except (ValueError, RecursionError) as problem:
            reason = str(problem)
            # Python's parser has no error of its own for an integer that is too long for it.
            if type(problem) is ValueError:
                reason = "an integer has too many digits"
            raise InvalidArgument(
                f"the body is not valid JSON: {reason}", FieldViolation("body", "text", "JSON")
            ) from None
    else:
        value = json.parse(body, settings)
    return present_fields(value, names, "body")


def _columns_of_rows(rows: Any) -> dict[str, list[Any]]:
    """Returns the values of each input, one for each row. An only input without a name is ""."""
    if not isinstance(rows, list) or not rows:
        raise InvalidArgument.of_field("instances", shown(rows), "a list of rows")
    are_named = _is_object(rows[0])
    if not are_named:
        # A row that is no object is the value of the only input.
        if any(map(_is_object, rows)):
            raise InvalidArgument(
                "'instances' mixes values with objects",
                FieldViolation("instances", "values and objects", "one of them"),
            )
        return {"": rows}
    # Columns of different lengths would pair values of different rows.
    names = rows[0].keys()
    for number, row in enumerate(rows):
        if not _is_object(row) or row.keys() != names:
            shown_names = ", ".join(names)[:SHOWN_CHARS]
            raise InvalidArgument(
                f"instances[{number}] has other inputs than instances[0], which has {shown_names}",
                FieldViolation(f"instances[{number}]", "other inputs", "those of instances[0]"),
            )
    return {name: [row[name] for row in rows] for name in names}


def _columns_of_inputs(inputs: Any) -> Mapping[str, Any]:
    """Returns the value of each input. An only input without a name is ""."""
    if _is_object(inputs):
        return dict(inputs)
    return {"": inputs}


def _is_object(value: Any) -> bool:
    """Returns whether a value is an object, and does not stand for bytes."""
    return isinstance(value, dict) and not _is_bytes(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {_BASE64}


def _tensor(value: Any, name: str) -> NDArray[Any] | Ragged:
    """Returns the array of a scalar or of lists of equal lengths, or lists of scalars of different
    lengths.
    """
    subject = f"input {name[:SHOWN_CHARS]!r}"
    field = f"inputs.{name}"
    # One level of the lists after the other, until they hold no lists.
    shape: list[int] = []
    values = [value]
    while values and isinstance(values[0], list):
        if len(shape) == NESTING_MAX or not all(map(_is_list, values)):
            raise InvalidArgument(
                f"{subject} mixes lists with values, or nests lists too deep",
                FieldViolation(field, "lists and values", "lists of lists, or of values"),
            )
        lengths = list(map(len, values))
        values = list(chain.from_iterable(values))
        if len(set(lengths)) > 1:
            # The lists of a ragged input have different lengths at its second axis alone.
            if len(shape) != 1 or any(map(_is_list, values)):
                raise InvalidArgument(
                    f"{subject} has lists of different lengths; a tensor has one shape",
                    FieldViolation(field, "lists of different lengths", "lists of one length"),
                )
            return Ragged(_scalars(values, subject, field), offsets_of(lengths))
        shape.append(lengths[0])
    return _scalars(values, subject, field).reshape(shape)


def _scalars(values: list[Any], subject: str, field: str) -> NDArray[Any]:
    scalars = [_scalar(value, subject, field) for value in values]
    return typed_array(scalars, subject, field)


def _scalar(value: Any, subject: str, field: str) -> Any:
    """Returns the scalar that a JSON value stands for. Errors call it `subject`."""
    if isinstance(value, str | int | float):
        return value
    if not isinstance(value, dict) or not _is_bytes(value):
        raise InvalidArgument(
            f"{subject} holds {shown(value)}; a value was expected",
            FieldViolation(field, shown(value), "a value"),
        )
    try:
        return base64.b64decode(value[_BASE64], validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise InvalidArgument(
            f"{subject} holds {shown(value)}, which is not base64",
            FieldViolation(field, shown(value), "base64"),
        ) from None


def _example(value: Any, field: str) -> Example:
    """Returns the features of an example, as TensorFlow Serving writes them in `tf.Example`."""
    example = {}
    for name, feature in check_type(value, dict, field).items():
        # A scalar stands for a list of one value.
        values: list[Any] = [feature]
        if isinstance(feature, list):
            values = feature
        feature_field = f"{field}.{name[:SHOWN_CHARS]}"
        example[name] = [_feature_value(value, feature_field) for value in values]
    return example


def _feature_value(value: Any, field: str) -> Any:
    scalar = _scalar(value, field, field)
    # `tf.Example` has no booleans.
    if isinstance(scalar, bool):
        return int(scalar)
    return scalar
