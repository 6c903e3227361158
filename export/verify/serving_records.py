"""Records of TensorFlow Serving and of training: `tf.train.Example`, `PredictionLog` and ELWC
(`ExampleListWithContext`), as the values of named inputs.

    PredictionLog   a request for one signature, and its response where it was recorded
    ELWC            a context, and examples that are ranked for it
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.shown_values import shown
from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.protos import decode
from export.checkpoint.variables import can_be
from export.corpora.tfrecords import LISTS
from export.errors import UsageError
from export.graphs.loading import load_tensorflow

Rows = list[list[Any]]
"""The values of each row: integers, floats or texts."""
_REQUEST_LOGS = ("predict_log", "classify_log", "regress_log")
_OTHER_LOGS = ("multi_inference_log", "session_run_log", "predict_streamed_log")
REGRESSION = "value"
"""The name of the output of a RegressionResponse, as of its field."""
_CLAIM_MAX = 1 << 16
"""The maximum number of values, or rows, that a tensor may claim beyond those that it holds: one
value may stand for all of a shape, and rows may be empty. A client chose the shape.
"""


@dataclass(frozen=True)
class ServedRequest:
    """The inputs of one record.

    Attributes:
      rows: The number of examples.
      columns: The values of each row, by the name of a feature or tensor.
      are_features: Whether the names are those of features in `tf.Example`, of which features that
        are no inputs are ignored.
      call: The kind of request: predict, classify or regress; "": the record is no PredictionLog.
      signature: The name of the signature; "": the default one.
      responses: The returned values of each row, by the name of the output; {}: none was recorded.
      needs_all: Whether each row needs all inputs without a default, as a request does.
    """

    rows: int
    columns: Mapping[str, Rows]
    are_features: bool
    call: str = ""
    signature: str = ""
    responses: Mapping[str, list[Any]] = field(default_factory=dict)
    needs_all: bool = False


def read_example(record: bytes, where: str) -> ServedRequest:
    """Reads a record that is a `tf.train.Example`.

    Args:
      record: The bytes of the record.
      where: The names of file and record, for messages.

    Raises:
      UsageError: The record is no `tf.train.Example`.
    """
    example = _decode_message("Example", record, where)
    # The bytes of another message often decode as an Example whose fields are all unknown.
    size_bytes = example.ByteSize()
    example.DiscardUnknownFields()
    if example.ByteSize() != size_bytes:
        raise UsageError(f"{where} is no tf.train.Example: it has other fields")
    return ServedRequest(1, _ExampleColumns([_features(example, where)], {}), are_features=True)


def read_elwc(record: bytes, where: str) -> ServedRequest:
    """Reads a record that is an `ExampleListWithContext`: each example is a row, with the features
    of the context.

    Args:
      record: The bytes of the record.
      where: The names of file and record, for messages.

    Raises:
      UsageError: The record is no such list, or the context and an example have the same feature.
    """
    elwc = _decode_message("ExampleListWithContext", record, where)
    if not elwc.examples:
        raise UsageError(f"{where} has no examples")
    examples = [_features(example, where) for example in elwc.examples]
    context = _features(elwc.context, where)
    for example in examples:
        for name in context:
            if name in example:
                raise UsageError(
                    f"{where}: the context and an example have feature {name!r}; one of them was "
                    "expected"
                )
    return ServedRequest(len(examples), _ExampleColumns(examples, context), are_features=True)


def read_prediction_log(record: bytes, where: str, inputs: Collection[str]) -> ServedRequest:
    """Reads a record that is a PredictionLog of Predict, Classify or Regress.

    Args:
      record: The bytes of the record.
      where: The names of file and record, for messages.
      inputs: The names of the tensors that are inputs. A tensor of strings that is no input, alone
        in a request, holds serialized Examples.

    Raises:
      UsageError: The record is no such log, or a tensor or feature cannot be read; the message
        names it.
    """
    log = _decode_message("PredictionLog", record, where)
    kind = next((name for name in _REQUEST_LOGS if log.HasField(name)), None)
    if kind is None:
        content = next((name for name in _OTHER_LOGS if log.HasField(name)), "no request")
        raise UsageError(f"{where} holds {content}; {', '.join(_REQUEST_LOGS)} are read")
    message = getattr(log, kind).request
    response = getattr(log, kind).response
    call = kind.removesuffix("_log")
    signature = message.model_spec.signature_name
    if call == "predict":
        request = _request_of_tensors(message.inputs, signature, where, inputs)
        return _with_responses(request, _tensor_outputs(response.outputs, where), where)
    request = _request_of_examples(message.input, call, signature, where)
    if call == "regress":
        outputs = {REGRESSION: [result.value for result in response.result.regressions]}
    else:
        outputs = _class_scores(response.result.classifications)
    return _with_responses(request, outputs, where)


def _decode_message(kind: str, data: bytes, where: str) -> Any:
    try:
        return decode(kind, data)
    except Malformed as problem:
        raise UsageError(f"{where} is no {kind}: {problem}") from problem


def _features(example: Any, where: str) -> dict[str, list[Any]]:
    """Returns the values of each feature of an Example."""
    features: dict[str, list[Any]] = {}
    for entry in example.features.feature:
        for kind in LISTS:
            if entry.value.HasField(f"{kind}_list"):
                values = list(getattr(entry.value, f"{kind}_list").value)
                features[entry.key] = _texts(values, entry.key, where)
    return features


def _texts(values: list[Any], name: str, where: str) -> list[Any]:
    """Returns values with bytes as texts."""
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as problem:
        raise UsageError(f"{where}, {name!r}: {problem.object[:40]!r} is no UTF-8") from problem


class _ExampleColumns(Mapping[str, Rows]):
    """The features of examples; an example without a feature has that of the context.

    A column is made when it is read: if each example has a name of its own, the columns of all
    names would be as large as the square of the record.
    """

    def __init__(
        self, examples: Sequence[Mapping[str, list[Any]]], context: Mapping[str, list[Any]]
    ) -> None:
        self._examples = examples
        self._context = context
        self._names = dict.fromkeys(context)
        for example in examples:
            self._names.update(dict.fromkeys(example))

    def __getitem__(self, name: str) -> Rows:
        if name not in self._names:
            raise KeyError(name)
        missing = self._context.get(name, [])
        return [example.get(name, missing) for example in self._examples]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _request_of_examples(source: Any, call: str, signature: str, where: str) -> ServedRequest:
    """Returns the examples of a ClassificationRequest or RegressionRequest."""
    context: dict[str, list[Any]] = {}
    examples = source.example_list.examples
    if source.HasField("example_list_with_context"):
        examples = source.example_list_with_context.examples
        context = _features(source.example_list_with_context.context, where)
    if not examples:
        raise UsageError(f"{where} holds a {call} request without examples")
    columns = _ExampleColumns([_features(example, where) for example in examples], context)
    return ServedRequest(len(examples), columns, True, call, signature, needs_all=True)


def _request_of_tensors(
    tensors: Sequence[Any], signature: str, where: str, inputs: Collection[str]
) -> ServedRequest:
    """Returns the tensors of a PredictRequest."""
    # A map has no order in a message, and errors name the same input each time.
    entries = sorted(tensors, key=lambda entry: str(entry.key))
    arrays = {entry.key: _array(entry, where) for entry in entries}
    if not arrays:
        raise UsageError(f"{where} holds a predict request without inputs")
    first = next(iter(arrays))
    # Signatures that parse Examples themselves take them as strings.
    if len(arrays) == 1 and first not in inputs and arrays[first].dtype == object:
        examples = []
        for data in arrays[first].reshape(-1):
            example = _decode_message("Example", data, f"{where}, a string of {first!r}")
            examples.append(_features(example, where))
        if examples:
            features = _ExampleColumns(examples, {})
            return ServedRequest(
                len(examples), features, True, "predict", signature, needs_all=True
            )
    columns = {}
    row_counts = {}
    parts = set[str]()
    for name in arrays:
        if name in inputs and name not in parts:
            columns[name] = _tensor_rows(name, arrays, inputs, where, parts)
            row_counts[name] = len(columns[name])
    # Other tensors may be labels, or names that the caller rejects.
    for name, array in arrays.items():
        if name not in columns and name not in parts:
            columns[name] = [_texts(row, name, where) for row in _dense_rows(array)]
    distinct_counts = set(row_counts.values())
    if len(distinct_counts) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in row_counts.items())
        raise UsageError(f"{where}: inputs have different numbers of rows: {listed}")
    rows = next(iter(distinct_counts), 1)
    return ServedRequest(rows, columns, False, "predict", signature, needs_all=True)


def _array(entry: Any, where: str) -> NDArray[Any]:
    """Returns a tensor; strings are bytes, and bfloat16 is float32."""
    tf = load_tensorflow()
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework import tensor_pb2

    try:
        proto = tensor_pb2.TensorProto.FromString(entry.value)
        _check_claim(proto, len(entry.value))
        array: NDArray[Any] = tf.make_ndarray(proto)
    except (DecodeError, TypeError, ValueError) as problem:
        raise UsageError(f"{where}, input {entry.key!r} is no tensor: {problem}") from problem
    # NumPy has no bfloat16 of its own: its kind is that of a user's type.
    if array.dtype.kind == "V":
        return array.astype(np.float32)
    return array


def _check_claim(proto: Any, size_bytes: int) -> None:
    """Checks the shape of a tensor before an array is made of it.

    Args:
      proto: The tensor.
      size_bytes: The size of the message, which has a byte for each value at least.

    Raises:
      ValueError: No array has the shape, or the tensor holds far fewer values.
    """
    shape = [axis.size for axis in proto.tensor_shape.dim]
    values_max = max(size_bytes, _CLAIM_MAX)
    # Each repeated text would be decoded anew.
    if proto.string_val:
        values_max = len(proto.string_val)
    # An empty axis counts as 1: the rows before it are lists, too.
    if not can_be(shape) or math.prod(size or 1 for size in shape) > values_max:
        raise ValueError(
            f"it claims the shape {shown(shape)}; at most {values_max} values were expected of "
            f"its {size_bytes} bytes"
        )


def _tensor_rows(
    name: str,
    arrays: Mapping[str, NDArray[Any]],
    inputs: Collection[str],
    where: str,
    parts: set[str],
) -> Rows:
    """Returns the rows of an input in one of the three forms in which it may be sent, and adds the
    further tensors of the form to `parts`.

    The forms are those that the service takes (service/protocols/columns.py).
    """
    values_name = f"{name}_1"
    shape_name = f"{name}_2"
    has_second = values_name in arrays and values_name not in inputs
    if shape_name in arrays and shape_name not in inputs and has_second:
        parts |= {values_name, shape_name}
        rows = _sparse_rows(name, arrays[name], arrays[values_name], arrays[shape_name], where)
    elif has_second:
        parts.add(values_name)
        rows = _ragged_rows(name, arrays[name], arrays[values_name], where)
    else:
        if arrays[name].ndim == 0:
            raise UsageError(
                f"{where}, input {name!r} is a scalar; a tensor whose first axis counts the rows "
                "was expected"
            )
        rows = _dense_rows(arrays[name])
    return [_texts(row, name, where) for row in rows]


def _dense_rows(array: NDArray[Any]) -> Rows:
    if array.ndim == 0:
        return [[array.item()]]
    rows: Rows = array.reshape(len(array), math.prod(array.shape[1:])).tolist()
    return rows


def _ragged_rows(name: str, values: NDArray[Any], splits: NDArray[Any], where: str) -> Rows:
    are_flat = values.ndim == 1 and splits.ndim == 1
    are_splits = are_flat and splits.dtype.kind in "iu" and splits.size > 0
    if are_splits:
        is_ascending = bool((np.diff(splits.astype(np.int64)) >= 0).all())
        are_splits = is_ascending and splits[0] == 0 and splits[-1] == values.size
    if not are_splits:
        raise UsageError(
            f"{where}, input {name!r}: flat values and row splits from 0 to their number were "
            f"expected; it has {list(values.shape)} values and {list(splits.shape)} splits"
        )
    return [values[first:end].tolist() for first, end in pairwise(splits)]


def _sparse_rows(
    name: str,
    indices: NDArray[Any],
    values: NDArray[Any],
    shape: NDArray[Any],
    where: str,
) -> Rows:
    fits = values.ndim == 1 and indices.shape == (values.size, 2) and shape.shape == (2,)
    if not fits or indices.dtype.kind not in "iu" or shape.dtype.kind not in "iu":
        raise UsageError(
            f"{where}, input {name!r}: indices [m, 2], values [m] and a dense shape [2] were "
            f"expected; it has {list(indices.shape)}, {list(values.shape)} and {list(shape.shape)}"
        )
    row_of_value = indices[:, 0].astype(np.int64)
    is_sorted = not (np.diff(row_of_value) < 0).any()
    is_within = row_of_value.size == 0 or 0 <= row_of_value[0] <= row_of_value[-1] < shape[0]
    if not is_sorted or not is_within:
        raise UsageError(
            f"{where}, input {name!r}: indices of its {shape[0]} rows in their order were expected"
        )
    row_count = int(shape[0])
    rows_max = max(values.size, _CLAIM_MAX)
    if not 0 <= row_count <= rows_max:
        raise UsageError(
            f"{where}, input {name!r} claims {row_count} rows; 0 to {rows_max} were expected of "
            f"its {values.size} values"
        )
    # Columns of the indices are left out: a row has its values in order, without gaps.
    ends = row_of_value.searchsorted(np.arange(row_count + 1))
    return [values[first:end].tolist() for first, end in pairwise(ends)]


def _tensor_outputs(outputs: Sequence[Any], where: str) -> dict[str, list[Any]]:
    """Returns the outputs of a PredictResponse, one value of each row."""
    arrays = {entry.key: _array(entry, where) for entry in outputs}
    # A scalar belongs to no row.
    return {name: array.tolist() for name, array in arrays.items() if array.ndim}


def _class_scores(classifications: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns the score of each class, by its label."""
    outputs: dict[str, list[Any]] = {}
    for row in classifications:
        for result in row.classes:
            outputs.setdefault(result.label, []).append(result.score)
    return outputs


def _with_responses(
    request: ServedRequest, outputs: Mapping[str, list[Any]], where: str
) -> ServedRequest:
    """Returns a request with its response."""
    # An output without values was not recorded.
    recorded = {name: values for name, values in outputs.items() if values}
    for name, values in recorded.items():
        if len(values) != request.rows:
            raise UsageError(
                f"{where}: the response has {len(values)} values of {name!r} for {request.rows} "
                "rows"
            )
    return ServedRequest(**{**vars(request), "responses": recorded})
