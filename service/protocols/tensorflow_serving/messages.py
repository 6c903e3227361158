"""Messages of TensorFlow Serving: requests, responses, and descriptions of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.wrappers_pb2 import Int64Value
from numpy.typing import NDArray

from service.config import ServiceSettings
from service.contract.messages import Target
from service.engine.validation import SHOWN_CHARS
from service.errors import FieldViolation, InvalidArgument, NotFound
from service.protocols.binding import SentTensors
from service.protocols.exchange import ReturnedTensors
from service.protocols.signatures import all_signatures
from service.versions.lifecycle import VersionState
from service.versions.version import ModelVersion
from tensors.examples import read_examples
from tensors.signatures import Tensor
from tensors.stubs import tensorflow_serving_pb2 as pb
from tensors.tensor_protos import DTYPES, fill_tensor, read_tensors

SIGNATURE_DEF = "signature_def"
"""The only value of `metadata_field`, and the key of the metadata in a response."""
_PREDICT = "tensorflow/serving/predict"
"""The method of every signature."""
_SIGNATURE_MAP_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
_STATES: Mapping[str, int] = {
    "loading": pb.ModelVersionStatus.LOADING,
    "available": pb.ModelVersionStatus.AVAILABLE,
    "kept": pb.ModelVersionStatus.AVAILABLE,
    "retiring": pb.ModelVersionStatus.UNLOADING,
    "failed": pb.ModelVersionStatus.END,
}


def target_of(spec: pb.ModelSpec) -> Target:
    """Returns the model that a message names.

    Raises:
      InvalidArgument: The message names no model, or a negative version.
    """
    if not spec.name:
        raise InvalidArgument.of_field("model_spec.name", "empty", "the name of a model")
    # A message wraps the version, since 0 is a version. Without one, the label counts.
    if not spec.HasField("version"):
        return Target(spec.name, label=spec.version_label)
    if spec.version.value < 0:
        version = spec.version.value
        raise InvalidArgument.of_field("model_spec.version", version, "a positive integer")
    return Target(spec.name, spec.version.value)


def read_predict(message: pb.PredictRequest, settings: ServiceSettings) -> SentTensors:
    """Reads a PredictRequest.

    Raises:
      InvalidArgument: It names no model; see `target_of`.
      TensorError: A tensor has an unknown dtype, or other values than its shape; names it.
      TooMuch: The tensors have more values than the limit; nothing was allocated.
    """
    spec = message.model_spec
    arrays = read_tensors(message.inputs, settings)
    outputs = tuple(message.output_filter)
    return SentTensors(target_of(spec), spec.signature_name, arrays, outputs)


def read_example_request(message: pb.ExamplesRequest, settings: ServiceSettings) -> SentTensors:
    """Reads a ClassificationRequest or a RegressionRequest.

    Raises:
      InvalidArgument: It names no model; see `target_of`.
      TensorError: The request has no examples.
      TooMuch: The request has more examples, features or values than the limits.
    """
    spec = message.model_spec
    examples = read_examples(message.input, settings)
    return SentTensors(target_of(spec), spec.signature_name, examples)


def predict_message(returned: ReturnedTensors, _: object) -> pb.PredictResponse:
    """Returns the response to a PredictRequest."""
    response = pb.PredictResponse(model_spec=_spec_of(returned))
    for name, array in returned.arrays.items():
        fill_tensor(response.outputs[name], array)
    return response


def classification_message(returned: ReturnedTensors, _: object) -> pb.ClassificationResponse:
    """Returns the response to a ClassificationRequest."""
    response = pb.ClassificationResponse(model_spec=_spec_of(returned))
    for classes in classes_of(returned):
        messages = [pb.Class(label=label, score=score) for label, score in classes]
        response.result.classifications.add(classes=messages)
    return response


def regression_message(returned: ReturnedTensors, _: object) -> pb.RegressionResponse:
    """Returns the response to a RegressionRequest."""
    response = pb.RegressionResponse(model_spec=_spec_of(returned))
    for value in regressions_of(returned):
        response.result.regressions.add(value=value)
    return response


def classes_of(returned: ReturnedTensors) -> list[list[tuple[str, Any]]]:
    """Returns label and score of each class, by row: the outputs of a ranking tower with their
    names, or the neighbors of a query with their ids.
    """
    arrays = returned.arrays
    if returned.signature.call == "retrieve":
        ids, scores, counts = arrays.values()
        classes = []
        for row_ids, row_scores, count in zip(ids.tolist(), scores, counts.tolist(), strict=True):
            # Rows are filled up to k, since a tensor has one shape. A list of classes ends.
            labels = [str(candidate_id) for candidate_id in row_ids[:count]]
            classes.append(list(zip(labels, row_scores[:count], strict=True)))
        return classes
    names = list(arrays)
    rows = zip(*[array.reshape(-1) for array in arrays.values()], strict=True)
    return [list(zip(names, row, strict=True)) for row in rows]


def regressions_of(returned: ReturnedTensors) -> NDArray[np.float32]:
    """Returns the score of each row."""
    return returned.arrays[returned.signature.result].reshape(-1)


def status_message(
    model: str, states: Sequence[VersionState], target: Target
) -> pb.GetModelStatusResponse:
    """Returns the states of the versions of a model, or of the version that a target names.

    Raises:
      NotFound: There is no such version.
    """
    response = pb.GetModelStatusResponse()
    for state in states:
        if target.version not in {None, state.version}:
            continue
        if target.label and target.label not in state.labels:
            continue
        status = response.model_version_status.add(
            version=state.version, state=_STATES[state.state]
        )
        # TensorFlow Serving always sends the field, with the code OK where nothing failed.
        status.status.SetInParent()
        if state.state == "failed":
            status.status.error_code = pb.UNKNOWN
            status.status.error_message = state.problem
    if not response.model_version_status:
        raise NotFound(
            f"no version of model {model[:SHOWN_CHARS]!r} is as requested",
            FieldViolation("model_spec", model[:SHOWN_CHARS], "a version of the model"),
        )
    return response


def signature_map(version: ModelVersion) -> pb.SignatureDefMap:
    """Returns all signatures of a version."""
    signatures = pb.SignatureDefMap()
    for signature in all_signatures(version):
        message = signatures.signature_def[signature.name]
        message.method_name = _PREDICT
        _fill_tensors(message.inputs, signature.tensors)
        _fill_tensors(message.outputs, signature.outputs)
    return signatures


def metadata_message(version: ModelVersion) -> pb.GetModelMetadataResponse:
    """Returns the response of `GetModelMetadata`."""
    signatures = signature_map(version).SerializeToString()
    packed = AnyMessage(type_url=_SIGNATURE_MAP_URL, value=signatures)
    return pb.GetModelMetadataResponse(
        model_spec=pb.ModelSpec(name=version.model, version=Int64Value(value=version.version)),
        metadata={SIGNATURE_DEF: packed},
    )


def _fill_tensors(infos: Any, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        info = infos[tensor.name]
        info.name = tensor.name
        info.dtype = DTYPES[tensor.dtype]
        # A scalar has a shape without axes, which is not the same as no shape.
        info.tensor_shape.SetInParent()
        for size in tensor.shape:
            info.tensor_shape.dim.add(size=size)


def _spec_of(returned: ReturnedTensors) -> pb.ModelSpec:
    return pb.ModelSpec(
        name=returned.model,
        version=Int64Value(value=returned.version),
        signature_name=returned.signature.name,
    )
