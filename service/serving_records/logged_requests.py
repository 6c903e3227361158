"""Requests in records of TensorFlow Serving: `PredictionLog`, and ELWC (`ExampleListWithContext`).

The request of a record is read and computed as the same request of a client is. The model and
version in it are those of the server that recorded it, and are ignored, as TensorFlow Serving
ignores them in a warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from service.config import ServiceSettings
from service.engine.calls import Target
from service.engine.computation import completed
from service.engine.engine import COMPUTE
from service.engine.execution import Execution
from service.errors import TooLarge
from service.protocols.exchange import BoundRequest, SentTensors, bind, tensors_of
from service.protocols.tensorflow_serving import messages
from service.versions.version import ModelVersion
from tensors.stubs import tensorflow_serving_pb2 as pb

_CALLS = {"predict_log": "predict", "classify_log": "classify", "regress_log": "regress"}
"""The call of each log whose requests the service computes."""
_READ: Mapping[str, Callable[[bytes, Target | None, ServiceSettings], SentTensors]] = {
    "predict": messages.read_predict,
    "classify": messages.read_examples,
    "regress": messages.read_examples,
}


class NoRequest(Exception):
    """A record holds no request that the service computes; the message says why, as a clause."""


@dataclass(frozen=True)
class LoggedRequest:
    """A request that TensorFlow Serving recorded.

    Attributes:
      call: predict, classify or regress.
      body: The message of the request.
    """

    call: str
    body: bytes

    def bind(self, version: ModelVersion, settings: ServiceSettings) -> BoundRequest:
        """Returns the request in the form that a version computes.

        Raises:
          ServiceError: The version has no signature for it, or it exceeds a limit.
        """
        # The limits are those of clients: a request that passes is one that a client can send.
        if len(self.body) > settings.max_request_bytes:
            raise TooLarge.of_limit(
                "request", f"{len(self.body)} bytes", settings.max_request_bytes
            )
        tensors = _READ[self.call](self.body, None, settings)
        return bind(version, tensors, self.call, messages.ENGINE_CALLS[self.call], settings)

    def compute(self, version: ModelVersion, settings: ServiceSettings) -> None:
        """Computes the request with a version, and drops the response.

        Raises:
          Exception: Whatever a client would receive as an error.
        """
        compute_bound(self.call, self.bind(version, settings), version, settings)


def compute_bound(
    call: str, bound: BoundRequest, version: ModelVersion, settings: ServiceSettings
) -> None:
    """Computes a request, and drops the response.

    Args:
      call: The name of the call of TensorFlow Serving.
      bound: The request in the form that the version computes.
      version: The version that computes it.
      settings: The limits.

    Raises:
      Exception: Whatever a client would receive as an error.
    """
    compute = COMPUTE[type(bound.request)]
    result = completed(compute(version, bound.request, settings, Execution(call)))
    # The tensors of the response can fail, too, such as by their size.
    tensors_of(bound.signature, bound.request, result)


def read_prediction_log(record: bytes, model: str) -> LoggedRequest:
    """Reads the request of a PredictionLog.

    Args:
      record: The bytes of the record.
      model: The model that computes the request.

    Raises:
      NoRequest: The record is no PredictionLog, or of a call that the service does not have.
    """
    logged = _decoded(pb.PredictionLog, record, "PredictionLog")
    kind = logged.WhichOneof("log_type")
    if kind is None:
        raise NoRequest(f"holds no request; one of {_shown_logs()} was expected")
    if kind not in _CALLS:
        raise NoRequest(f"holds a {kind}; {_shown_logs()} are computed")
    request = getattr(logged, kind).request
    if kind == "predict_log":
        is_empty = not request.inputs
        missing = "inputs"
    else:
        # Bytes of an ELWC record, too, decode as a log of examples, without any.
        is_empty = request.input.WhichOneof("kind") is None
        missing = "examples"
    if is_empty:
        raise NoRequest(f"holds a {kind} without {missing}")
    # Without a version, the new version computes it.
    request.model_spec.name = model
    request.model_spec.ClearField("version_choice")
    return LoggedRequest(_CALLS[kind], request.SerializeToString())


def read_elwc(record: bytes, model: str, signature: str) -> LoggedRequest:
    """Reads an ExampleListWithContext, as the request to rank its examples.

    Args:
      record: The bytes of the record.
      model: The model that ranks them.
      signature: The signature of the ranking tower; "": the default.

    Raises:
      NoRequest: The record is no ExampleListWithContext.
    """
    elwc = _decoded(pb.ExampleListWithContext, record, "ExampleListWithContext")
    # Bytes of one message often decode as another, with what it lacks as unknown fields.
    size_with_unknown_fields = elwc.ByteSize()
    elwc.DiscardUnknownFields()
    if not elwc.examples or elwc.ByteSize() != size_with_unknown_fields:
        raise NoRequest("is no ExampleListWithContext: it has no examples, or other fields")
    request = pb.ExamplesRequest(
        model_spec=pb.ModelSpec(name=model, signature_name=signature),
        input=pb.Input(example_list_with_context=elwc),
    )
    return LoggedRequest("classify", request.SerializeToString())


def _decoded(message_class: type[Any], record: bytes, name: str) -> Any:
    try:
        message: Message = message_class.FromString(record)
    except DecodeError:
        raise NoRequest(f"is no {name}: its bytes do not decode as one") from None
    return message


def _shown_logs() -> str:
    return ", ".join(_CALLS)
