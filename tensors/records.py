"""Records of TensorFlow Serving and of training.

    Example         the features of one example
    ELWC            `ExampleListWithContext`: a context, and examples that are ranked for it
    PredictionLog   a request for one signature, and its response where it was recorded

Bytes of one message often decode as another, with what it lacks as unknown fields.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from tensors.errors import NoRequest
from tensors.stubs import tensorflow_serving_pb2 as pb

_CALLS = {"predict_log": "predict", "classify_log": "classify", "regress_log": "regress"}
"""The call of each log whose requests are read."""


class LoggedCall(NamedTuple):
    """The content of a PredictionLog.

    Attributes:
      call: predict, classify or regress.
      request: A PredictRequest with inputs, or an ExamplesRequest with examples.
      response: The response to it, empty where none was recorded.
    """

    call: str
    request: Any
    response: Any


def read_example(record: bytes) -> pb.Example:
    """Reads a `tf.train.Example`.

    Raises:
      NoRequest: The record is none.
    """
    example: pb.Example = _decoded(pb.Example, record, "tf.train.Example")
    if _has_unknown_fields(example):
        raise NoRequest("is no tf.train.Example: it has other fields")
    return example


def read_elwc(record: bytes) -> pb.ExampleListWithContext:
    """Reads an ExampleListWithContext.

    Raises:
      NoRequest: The record is none, or has no examples.
    """
    name = "ExampleListWithContext"
    elwc: pb.ExampleListWithContext = _decoded(pb.ExampleListWithContext, record, name)
    if not elwc.examples or _has_unknown_fields(elwc):
        raise NoRequest(f"is no {name}: it has no examples, or other fields")
    return elwc


def read_prediction_log(record: bytes) -> LoggedCall:
    """Reads a PredictionLog of Predict, Classify or Regress.

    Raises:
      NoRequest: The record is no PredictionLog, or of another call, or its request is empty.
    """
    log = _decoded(pb.PredictionLog, record, "PredictionLog")
    kind = log.WhichOneof("log_type")
    logs = ", ".join(_CALLS)
    if kind is None:
        raise NoRequest(f"holds no request; one of {logs} was expected")
    if kind not in _CALLS:
        raise NoRequest(f"holds a {kind}; {logs} are computed")
    logged = getattr(log, kind)
    if kind == "predict_log":
        is_empty = not logged.request.inputs
        missing = "inputs"
    else:
        # Bytes of an ELWC record, too, decode as a log of examples, without any.
        is_empty = logged.request.input.WhichOneof("kind") is None
        missing = "examples"
    if is_empty:
        raise NoRequest(f"holds a {kind} without {missing}")
    return LoggedCall(_CALLS[kind], logged.request, logged.response)


def ranking_request(elwc: pb.ExampleListWithContext, signature: str) -> pb.ExamplesRequest:
    """Returns the request to rank the examples of a record.

    Args:
      elwc: The record.
      signature: The signature of the ranking tower; "": the default.
    """
    return pb.ExamplesRequest(
        model_spec=pb.ModelSpec(signature_name=signature),
        input=pb.Input(example_list_with_context=elwc),
    )


def _decoded(message_class: type[Any], record: bytes, name: str) -> Any:
    try:
        return message_class.FromString(record)
    except DecodeError:
        raise NoRequest(f"is no {name}: its bytes do not decode as one") from None


def _has_unknown_fields(message: Any) -> bool:
    # The size of a message counts the unknown fields of all messages in it.
    known_and_unknown = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() != known_and_unknown)
