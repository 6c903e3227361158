"""Requests in records of TensorFlow Serving: `PredictionLog`, and ELWC (`ExampleListWithContext`).

The request of a record is read and computed as the same request of a client is. The model and
version in it are those of the server that recorded it, and are ignored, as TensorFlow Serving
ignores them in a warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.config import ServiceSettings
from service.engine.computation import completed
from service.engine.engine import COMPUTE
from service.engine.execution import Execution
from service.errors import TooLarge
from service.protocols.binding import BoundRequest, bind, tensor_errors, tensors_of
from service.protocols.exchange import COMPUTED
from service.protocols.tensorflow_serving import messages
from service.protocols.tensorflow_serving.protocol import CLASSIFIED, REGRESSED
from service.versions.version import ModelVersion
from tensors import records

_CALLS = {
    "predict": (messages.read_predict, COMPUTED),
    "classify": (messages.read_example_request, CLASSIFIED),
    "regress": (messages.read_example_request, REGRESSED),
}
"""For each call, what reads its message, and the calls of the engine that compute it."""


@dataclass(frozen=True)
class LoggedRequest:
    """A request that TensorFlow Serving recorded.

    Attributes:
      call: predict, classify or regress.
      message: The message of the request.
    """

    call: str
    message: Any

    def bind(self, version: ModelVersion, settings: ServiceSettings) -> BoundRequest:
        """Returns the request in the form that a version computes.

        Raises:
          ServiceError: The version has no signature for it, or it exceeds a limit.
        """
        # The limits are those of clients: a request that passes is one that a client can send.
        size_bytes = self.message.ByteSize()
        if size_bytes > settings.max_request_bytes:
            raise TooLarge.of_limit("request", f"{size_bytes} bytes", settings.max_request_bytes)
        read, computed = _CALLS[self.call]
        with tensor_errors():
            return bind(version, read(self.message, settings), self.call, computed, settings)

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
    tensors_of(bound, result)


def read_prediction_log(record: bytes, model: str) -> LoggedRequest:
    """Reads the request of a PredictionLog, which a model is to compute.

    Raises:
      NoRequest: The record is no PredictionLog, or of a call that the service does not have.
    """
    logged = records.read_prediction_log(record)
    # Without a version, the new version computes it.
    logged.request.model_spec.name = model
    logged.request.model_spec.ClearField("version_choice")
    return LoggedRequest(logged.call, logged.request)


def read_elwc(record: bytes, model: str, signature: str) -> LoggedRequest:
    """Reads an ExampleListWithContext, as the request to rank its examples.

    Args:
      record: The bytes of the record.
      model: The model that ranks them.
      signature: The signature of the ranking tower; "": the default.

    Raises:
      NoRequest: The record is no ExampleListWithContext.
    """
    request = records.ranking_request(records.read_elwc(record), signature)
    request.model_spec.name = model
    return LoggedRequest("classify", request)
