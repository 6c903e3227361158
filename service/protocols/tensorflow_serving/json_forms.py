"""The JSON bodies of TensorFlow Serving's REST API.

Source: https://www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

import json as standard_json
from collections.abc import Collection
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from service.codec import json
from service.config import ServiceSettings
from service.contract.columns import check_list, check_type, present_fields
from service.contract.messages import Target
from service.errors import FieldViolation, InvalidArgument
from service.protocols.binding import SentTensors
from service.protocols.exchange import ReturnedTensors
from service.protocols.tensorflow_serving.messages import classes_of, regressions_of
from tensors.examples import Examples
from tensors.json_tensors import json_value, read_columns, read_features, read_rows

_PREDICT = ("signature_name", "instances", "inputs")
_EXAMPLES = ("signature_name", "context", "examples")
"""The fields of the bodies."""
_NOT_FINITE = (b"NaN", b"Infinity")
"""The tokens of numbers that JSON does not have, and TensorFlow Serving does."""


def read_predict(body: bytes, url: Target | None, settings: ServiceSettings) -> SentTensors:
    """Reads the body of `:predict`.

    Raises:
      InvalidArgument: The body has another form; the message names the field.
      TensorError: A value is no tensor; names its input.
      TooMuch: There are more inputs than the limit.
    """
    assert url is not None  # noqa: S101 - the path names the model
    value = _parse(body, _PREDICT, settings)
    signature = check_type(value.get("signature_name", ""), str, "signature_name")
    # The row format has `instances`, the columnar format has `inputs`.
    has_rows = "instances" in value
    if has_rows == ("inputs" in value):
        forms = "neither of them"
        if has_rows:
            forms = "both of them"
        raise InvalidArgument(
            "the body must have either 'instances' or 'inputs'",
            FieldViolation("body", forms, "instances or inputs"),
        )
    # The response has the format of the request.
    if has_rows:
        arrays = read_rows(value["instances"], settings)
        form = "predictions"
    else:
        arrays = read_columns(value["inputs"], settings)
        form = "outputs"
    return SentTensors(url, signature, arrays, form=form)


def write_predict(returned: ReturnedTensors, form: str) -> bytes:
    """Writes the body of the response to `:predict`, under the key of its format."""
    values = {name: json_value(array) for name, array in returned.arrays.items()}
    # A single output has no name. In the row format, each row is an object of all outputs.
    if len(values) == 1:
        return json.dump({form: next(iter(values.values()))})
    if form == "outputs":
        return json.dump({form: values})
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return json.dump({form: rows})


def read_examples(body: bytes, url: Target | None, settings: ServiceSettings) -> SentTensors:
    """Reads the body of `:classify` or `:regress`.

    Raises:
      InvalidArgument: The body has another form; the message names the field.
      TensorError: There is no example, or one is none; names it.
      TooMuch: The body has more examples, features or values than the limits.
    """
    assert url is not None  # noqa: S101 - the path names the model
    value = _parse(body, _EXAMPLES, settings)
    signature = check_type(value.get("signature_name", ""), str, "signature_name")
    listed = check_list(value.get("examples"), "examples")
    context = read_features(value.get("context", {}), "context")
    features = (
        read_features(example, f"examples[{number}]") for number, example in enumerate(listed)
    )
    examples = Examples(len(listed), features, context, settings)
    return SentTensors(url, signature, examples)


def write_classification(returned: ReturnedTensors, _: object) -> bytes:
    """Writes the body of the response to `:classify`."""
    return json.dump({"results": classes_of(returned)})


def write_regression(returned: ReturnedTensors, _: object) -> bytes:
    """Writes the body of the response to `:regress`."""
    return json.dump({"results": regressions_of(returned)})


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
