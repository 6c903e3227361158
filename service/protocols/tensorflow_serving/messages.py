"""Messages of TensorFlow Serving: tensors, examples, results, and descriptions of models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.wrappers_pb2 import Int64Value
from numpy.typing import NDArray

from bundle.tables.offsets import chosen_bags, lengths_of, offsets_of
from service.codec import protobuf
from service.config import ServiceSettings
from service.engine.calls import Target
from service.engine.context import check_decoding
from service.engine.validation import SHOWN_CHARS, at_most
from service.errors import FieldViolation, InvalidArgument, NotFound
from service.protocols.columns import (
    Arrays,
    DeclaredShapes,
    Ragged,
    SentArrays,
    input_error,
)
from service.protocols.exchange import ReturnedTensors, SentTensors
from service.protocols.signatures import Tensor, find_signature, signature_names
from service.versions.lifecycle import VersionState
from service.versions.version import ModelVersion
from tensors.stubs import tensorflow_serving_pb2 as pb

Example = Mapping[str, Sequence[Any]]
"""The values of each feature."""
ENGINE_CALLS = {
    "predict": ("embed", "rank", "retrieve"),
    "classify": ("rank", "retrieve"),
    "regress": ("rank",),
}
"""The calls of the engine whose results a call of TensorFlow Serving can return."""
SIGNATURE_DEF = "signature_def"
"""The only value of `metadata_field`, and the key of the metadata in a response."""
_PREDICT = "tensorflow/serving/predict"
"""The method of every signature."""
_SIGNATURE_MAP_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


class _Values(NamedTuple):
    """The form of the values of a tensor: all of them in `tensor_content`, or in the field of their
    type, whose last value then stands for all that are missing.

    Source: tensorflow/core/framework/tensor.cc, Tensor::FromProto.

    Attributes:
      dtype: The dtype of the numbers in either form.
      field: The name of the field.
    """

    dtype: np.dtype[Any]
    field: str


_VALUES: Mapping[int, _Values] = {
    pb.DT_FLOAT: _Values(np.dtype("<f4"), "float_val"),
    pb.DT_DOUBLE: _Values(np.dtype("<f8"), "double_val"),
    pb.DT_INT32: _Values(np.dtype("<i4"), "int_val"),
    pb.DT_UINT8: _Values(np.dtype("u1"), "int_val"),
    pb.DT_INT16: _Values(np.dtype("<i2"), "int_val"),
    pb.DT_INT8: _Values(np.dtype("i1"), "int_val"),
    pb.DT_STRING: _Values(np.dtype(object), "string_val"),
    pb.DT_INT64: _Values(np.dtype("<i8"), "int64_val"),
    pb.DT_BOOL: _Values(np.dtype(bool), "bool_val"),
    # The bits of the numbers, which numpy does not have.
    pb.DT_BFLOAT16: _Values(np.dtype("<u2"), "half_val"),
    pb.DT_UINT16: _Values(np.dtype("<u2"), "int_val"),
    pb.DT_HALF: _Values(np.dtype("<f2"), "half_val"),
    pb.DT_UINT32: _Values(np.dtype("<u4"), "uint32_val"),
    pb.DT_UINT64: _Values(np.dtype("<u8"), "uint64_val"),
}
_VALUE_FIELDS = {"tensor_content", *[values.field for values in _VALUES.values()]}
"""The fields of a tensor that hold values."""
_DTYPES: Mapping[str, pb.DataType] = {
    "float32": pb.DT_FLOAT,
    "int32": pb.DT_INT32,
    "int64": pb.DT_INT64,
    "string": pb.DT_STRING,
}
"""The dtypes of the tensors of a signature."""
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


def read_predict(body: bytes, url: Target | None, settings: ServiceSettings) -> SentTensors:
    """Reads a PredictRequest.

    Raises:
      InvalidArgument: A tensor has an unknown dtype, or other values than its shape; the message
        names it.
      TooLarge: The tensors have more values than the limit; nothing was allocated.
    """
    # gRPC has no URL: the message names the model.
    del url
    message = _parse(pb.PredictRequest, body, settings)
    outputs = tuple(message.output_filter)
    arrays = _arrays(message.inputs, settings)
    signature = message.model_spec.signature_name
    return SentTensors(target_of(message.model_spec), signature, arrays, outputs)


def _arrays(tensors: Mapping[str, pb.TensorProto], settings: ServiceSettings) -> Arrays:
    """Returns the arrays of tensors; strings are bytes."""
    # The shapes of all tensors are checked first. One value in the field of its type stands for
    # any number of values, so that a small message can declare gigabytes.
    declared = DeclaredShapes(len(tensors), settings)
    shapes = {}
    for name, tensor in tensors.items():
        field = f"inputs.{name[:SHOWN_CHARS]}"
        if tensor.tensor_shape.unknown_rank:
            raise InvalidArgument.of_field(f"{field}.shape", "of unknown rank", "a known size")
        sizes = [dim.size for dim in tensor.tensor_shape.dim]
        shapes[name] = declared.checked(sizes, field)
    return {name: _array(tensor, shapes[name], name) for name, tensor in tensors.items()}


def _array(tensor: pb.TensorProto, shape: Sequence[int], name: str) -> NDArray[Any]:
    values = _VALUES.get(tensor.dtype)
    if values is None:
        names = ", ".join([pb.DataType.Name(dtype) for dtype in _VALUES])
        dtype = f"dtype {tensor.dtype}"
        raise input_error(name[:SHOWN_CHARS], dtype, f"one of {names}", "has")
    # TensorFlow would ignore values in the field of another type, and read zeros.
    accepted = [values.field]
    if not values.dtype.hasobject:
        accepted.append("tensor_content")
    value_fields = [field.name for field, _ in tensor.ListFields() if field.name in _VALUE_FIELDS]
    if len(value_fields) > 1 or not set(accepted).issuperset(value_fields):
        value = f"values in {' and '.join(value_fields)}"
        raise input_error(name[:SHOWN_CHARS], value, " or ".join(accepted), "has")
    count = math.prod(shape)
    if tensor.tensor_content:
        flat = _content(tensor, values.dtype, count, name[:SHOWN_CHARS])
    else:
        flat = _field_values(tensor, values, count, name[:SHOWN_CHARS])
    # A bfloat16 is the upper half of a float32.
    if tensor.dtype == pb.DT_BFLOAT16:
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(shape)


def _content(tensor: pb.TensorProto, dtype: np.dtype[Any], count: int, name: str) -> NDArray[Any]:
    size = len(tensor.tensor_content)
    if size != count * dtype.itemsize:
        value = f"{size} bytes in tensor_content"
        raise InvalidArgument(
            f"input {name!r} has {value}; {count * dtype.itemsize} were expected for {count} "
            "values",
            FieldViolation(f"inputs.{name}", value, f"{count * dtype.itemsize} bytes"),
        )
    return np.frombuffer(tensor.tensor_content, dtype)


def _field_values(tensor: pb.TensorProto, values: _Values, count: int, name: str) -> NDArray[Any]:
    """Returns the values of a tensor that are in the field of their type; see `_Values`."""
    field_values = getattr(tensor, values.field)
    if len(field_values) > count:
        value = f"{len(field_values)} values in {values.field}"
        raise InvalidArgument(
            f"input {name!r} has {value}; at most {count}, as in its shape, were expected",
            FieldViolation(f"inputs.{name}", value, f"at most {count}, as in its shape"),
        )
    if not field_values:
        # Without any value, all are zero or empty, as in TensorFlow.
        listed = np.zeros(1, values.dtype)
        if values.dtype.hasobject:
            listed[:] = b""
    else:
        listed = _sent_values(field_values, values, name)
    # One value takes the memory of one, however many it stands for.
    if len(listed) == 1:
        return np.broadcast_to(listed, count)
    array = np.empty(count, values.dtype)
    array[: len(listed)] = listed
    array[len(listed) :] = listed[-1]
    return array


def _sent_values(field_values: Sequence[Any], values: _Values, name: str) -> NDArray[Any]:
    sent_dtype = values.dtype
    # Halves travel as their bits.
    if values.field == "half_val":
        sent_dtype = np.dtype(np.uint16)
    try:
        # Of a list, numpy rejects an integer that does not fit. Of the field, it takes the lower
        # bits.
        return np.array(list(field_values), sent_dtype).view(values.dtype)
    except OverflowError:
        expected = f"integers that fit {sent_dtype.name}"
        raise input_error(name, "larger integers", expected, "has") from None


def write_predict(returned: ReturnedTensors) -> bytes:
    """Writes a PredictResponse."""
    response = pb.PredictResponse(model_spec=_spec_of(returned))
    for name, array in returned.arrays.items():
        _fill_tensor(response.outputs[name], array)
    return bytes(response.SerializeToString())


def _fill_tensor(tensor: pb.TensorProto, array: NDArray[Any]) -> None:
    tensor.dtype = pb.DT_STRING
    if not array.dtype.hasobject:
        tensor.dtype = _DTYPES[array.dtype.name]
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    flat = array.reshape(-1).tolist()
    if array.dtype.hasobject:
        flat = [text.encode() for text in flat]
    # Clients read these fields, rather than tensor_content, of the responses of TensorFlow Serving.
    getattr(tensor, _VALUES[tensor.dtype].field).extend(flat)


def read_examples(body: bytes, url: Target | None, settings: ServiceSettings) -> SentTensors:
    """Reads a ClassificationRequest or a RegressionRequest.

    Raises:
      InvalidArgument: The request has no examples, or a feature has values of two kinds.
      TooLarge: The request has more examples, features or values than the limits.
    """
    # gRPC has no URL: the message names the model.
    del url
    message = _parse(pb.ExamplesRequest, body, settings)
    context: Example = {}
    if message.input.WhichOneof("kind") == "example_list_with_context":
        examples = message.input.example_list_with_context.examples
        context = _example(message.input.example_list_with_context.context)
    else:
        examples = message.input.example_list.examples
    check_examples(len(examples), settings)
    arrays = arrays_of_examples([*map(_example, examples)], context, settings)
    signature = message.model_spec.signature_name
    return SentTensors(target_of(message.model_spec), signature, arrays, are_features=True)


def _example(message: pb.Example) -> Example:
    """Returns the features of an example."""
    example = {}
    for name, feature in message.features.feature.items():
        # A feature without a kind counts as absent: the context's is used.
        kind = feature.WhichOneof("kind")
        if kind is not None:
            example[name] = list(getattr(feature, kind).value)
    return example


def check_examples(count: int, settings: ServiceSettings) -> None:
    """Checks the number of examples, before any of them is read.

    Raises:
      InvalidArgument: There are none.
      TooLarge: There are more than the limit.
    """
    if not count:
        raise InvalidArgument(
            "the request has no examples",
            FieldViolation("examples", "empty", "at least one example"),
        )
    at_most(settings, "max_queries", count, "examples")


def arrays_of_examples(
    examples: Sequence[Example], context: Example, settings: ServiceSettings
) -> SentArrays:
    """Returns the features of examples. An example that lacks a feature has that of the context.

    Raises:
      InvalidArgument: A feature has values of two kinds.
      TooLarge: There are more features, or more values of all examples, than the limits; nothing
        was allocated.
    """
    # Features keep the order in which they occur, the context's first.
    lists_by_name: dict[str, dict[int, Sequence[Any]]] = {name: {} for name in context}
    for number, example in enumerate(examples):
        for name, values in example.items():
            lists_by_name.setdefault(name, {})[number] = values
    at_most(settings, "max_features", len(lists_by_name), "examples")

    value_count = 0
    for name, lists in lists_by_name.items():
        # An example takes memory for a feature that it lacks, too: at least as for one value.
        lacking = len(examples) - len(lists)
        value_count += lacking * max(1, len(context.get(name, ())))
        value_count += sum(map(len, lists.values()))
    at_most(settings, "max_values", value_count, "examples")
    arrays = {}
    for name, lists in lists_by_name.items():
        check_decoding()
        arrays[name] = _feature_array(lists, context.get(name, ()), len(examples), name)
    return arrays


def _feature_array(
    lists: Mapping[int, Sequence[Any]], default: Sequence[Any], count: int, name: str
) -> NDArray[Any] | Ragged:
    """Returns the values of a feature of n examples: [n, k] if all have k values.

    Args:
      lists: The values of each example that has the feature, by its number.
      default: The values of all other examples.
      count: The number of examples, n.
      name: The name of the feature.
    """
    distinct_lists = list(lists.values())
    if len(lists) < count:
        distinct_lists.append(default)
    scalars = list(chain.from_iterable(distinct_lists))
    values = typed_array(scalars, f"feature {name[:SHOWN_CHARS]!r}", f"examples.{name}")
    # One value stands for all examples, however many there are.
    if not lists:
        return np.broadcast_to(values, (count, values.size))

    offsets = offsets_of(list(map(len, distinct_lists)))
    if len(lists) < count:
        # The default is the last list.
        chosen = np.full(count, len(lists))
        chosen[list(lists)] = np.arange(len(lists))
        positions, offsets = chosen_bags(offsets, chosen)
        values = values[positions]
    lengths = lengths_of(offsets)
    if (lengths == lengths[0]).all():
        return values.reshape(count, int(lengths[0]))
    return Ragged(values, offsets)


def typed_array(values: list[Any], subject: str, field: str) -> NDArray[Any]:
    """Returns scalars of one kind as an array: int64, float64, or objects that are str or bytes.

    Args:
      values: The scalars.
      subject: The input or feature, as the subject of an error's sentence.
      field: The path of the field that has the scalars, for errors.

    Raises:
      InvalidArgument: The scalars are of several kinds, or of another kind, or an integer does not
        fit.
    """
    # numpy would convert mixed kinds to strings, and integers beyond int64 to floats.
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        dtype: type[Any] = np.int64
        if float in kinds:
            dtype = np.float64
        try:
            return np.array(values, dtype)
        except OverflowError:
            raise InvalidArgument(
                f"{subject} holds an integer that does not fit {dtype.__name__}",
                FieldViolation(field, "a larger integer", f"a value of {dtype.__name__}"),
            ) from None
    if kinds <= {str, bytes}:
        array = np.empty(len(values), object)
        array[:] = values
        return array
    if kinds == {bool}:
        return np.array(values)
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    value = f"values of {names}"
    raise InvalidArgument(
        f"{subject} holds {value}; integers, numbers or strings were expected",
        FieldViolation(field, value, "integers, numbers or strings"),
    )


def write_classification(returned: ReturnedTensors) -> bytes:
    """Writes a ClassificationResponse."""
    response = pb.ClassificationResponse(model_spec=_spec_of(returned))
    for classes in classes_of(returned):
        messages = [pb.Class(label=label, score=score) for label, score in classes]
        response.result.classifications.add(classes=messages)
    return bytes(response.SerializeToString())


def write_regression(returned: ReturnedTensors) -> bytes:
    """Writes a RegressionResponse."""
    response = pb.RegressionResponse(model_spec=_spec_of(returned))
    for value in regressions_of(returned):
        response.result.regressions.add(value=value)
    return bytes(response.SerializeToString())


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
    for name in signature_names(version):
        signature = find_signature(version, name)
        message = signatures.signature_def[name]
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
        info.dtype = _DTYPES[tensor.dtype]
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


def _parse(message_class: type[Any], body: bytes, settings: ServiceSettings) -> Any:
    # What a message would build is counted before the parser allocates it.
    protobuf.check_size(message_class, body, settings)
    return protobuf.parse(message_class, body)
