"""Records of TensorFlow Serving and of training, which `tensors.records` reads, as the values of
named inputs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.errors import UsageError
from tensors import records
from tensors.errors import NoRequest, TensorError, input_field
from tensors.examples import Examples, features_of, read_examples
from tensors.input_values import InputTensors, InputValues, texts
from tensors.tensor_protos import read_tensors

Rows = list[list[Any]]
"""The values of each row: integers, floats or texts."""
REGRESSION = "value"
"""The name of the output of a RegressionResponse, as of its field."""
_CLAIM_MAX = 1 << 16
"""The maximum number of values, or rows, that a tensor may claim beyond those that it holds: one
value may stand for all of a shape, and rows may be empty. A client chose the shape.
"""


class _RecordLimits(NamedTuple):
    """How much a record may hold; see `tensors.arrays.Limits`."""

    max_features: int
    max_queries: int
    max_values: int


@dataclass(frozen=True)
class ServedRequest:
    """The inputs of one record.

    Attributes:
      where: The names of file and record, for messages.
      rows: The number of examples.
      columns: The values of each row by the name of a tensor; or features, of which those that are
        no inputs are ignored.
      call: The kind of request: predict, classify or regress; "": the record is no PredictionLog.
      signature: The name of the signature; "": the default one.
      responses: The returned values of each row, by the name of the output; {}: none was recorded.
    """

    where: str
    rows: int
    columns: Mapping[str, Rows] | Examples
    call: str = ""
    signature: str = ""
    responses: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def are_features(self) -> bool:
        """Whether the names are those of features in `tf.Example`."""
        return isinstance(self.columns, Examples)

    def column(self, name: str) -> Rows:
        """Returns the values of each row of a tensor or feature that the record has.

        Raises:
          UsageError: A text is not UTF-8; names the record.
        """
        if not isinstance(self.columns, Examples):
            return self.columns[name]
        with _errors_of(self.where):
            return self.columns.rows(name)


def read_example(record: bytes, where: str) -> ServedRequest:
    """Reads a record that is a `tf.train.Example`.

    Args:
      record: The bytes of the record.
      where: The names of file and record, for messages.

    Raises:
      UsageError: The record is no `tf.train.Example`.
    """
    with _errors_of(where):
        features = features_of(records.read_example(record))
    return ServedRequest(where, 1, Examples(1, [features], {}))


def read_elwc(record: bytes, where: str) -> ServedRequest:
    """Reads a record that is an `ExampleListWithContext`: each example is a row, with the features
    of the context.

    Args:
      record: The bytes of the record.
      where: The names of file and record, for messages.

    Raises:
      UsageError: The record is no such list, or the context and an example have the same feature.
    """
    with _errors_of(where):
        elwc = records.read_elwc(record)
    context = features_of(elwc.context)
    examples = [features_of(example) for example in elwc.examples]
    for example in examples:
        for name in context:
            if name in example:
                raise UsageError(
                    f"{where}: the context and an example have feature {name!r}; one of them was "
                    "expected"
                )
    return ServedRequest(where, len(examples), Examples(len(examples), examples, context))


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
    with _errors_of(where):
        call, message, response = records.read_prediction_log(record)
        if call == "predict":
            claims = _CLAIM_MAX * (len(message.inputs) + len(response.outputs))
            limits = _RecordLimits(len(record), len(record) + _CLAIM_MAX, len(record) + claims)
            # A map has no order in a message, and errors name the same input each time.
            arrays = read_tensors(dict(sorted(message.inputs.items())), limits)
            request = _request_of_tensors(arrays, where, inputs, limits)
            returned = read_tensors(response.outputs, limits)
            # A scalar belongs to no row.
            outputs = {name: array.tolist() for name, array in returned.items() if array.ndim}
        else:
            examples = read_examples(message.input)
            request = ServedRequest(where, examples.count, examples)
            if call == "regress":
                outputs = {REGRESSION: [result.value for result in response.result.regressions]}
            else:
                outputs = _class_scores(response.result.classifications)
    # An output without values was not recorded.
    responses = {name: values for name, values in outputs.items() if values}
    for name, values in responses.items():
        if len(values) != request.rows:
            raise UsageError(
                f"{where}: the response has {len(values)} values of {name!r} for {request.rows} "
                "rows"
            )
    signature = message.model_spec.signature_name
    return replace(request, call=call, signature=signature, responses=responses)


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Raises the errors of a record with its name."""
    try:
        yield
    except NoRequest as problem:
        raise UsageError(f"{where} {problem}") from problem
    except TensorError as problem:
        raise UsageError(f"{where}, {problem}") from problem


def _request_of_tensors(
    arrays: Mapping[str, NDArray[Any]],
    where: str,
    inputs: Collection[str],
    limits: _RecordLimits,
) -> ServedRequest:
    """Returns the tensors of a PredictRequest."""
    first = next(iter(arrays))
    # Signatures that parse Examples themselves take them as strings.
    if len(arrays) == 1 and first not in inputs and arrays[first].dtype == object:
        messages = map(records.read_example, arrays[first].reshape(-1))
        count = arrays[first].size
        return ServedRequest(where, count, Examples(count, map(features_of, messages), {}))
    tensors = InputTensors(arrays, inputs, limits)
    columns = {}
    row_counts = {}
    for name in arrays:
        if name in inputs:
            values = tensors.values(name)
            columns[name] = _rows(values, name)
            row_counts[name] = values.rows
    # Other tensors may be labels, or names that the caller rejects.
    for name, array in arrays.items():
        if name not in tensors.read:
            flat = np.atleast_1d(array)
            columns[name] = _rows(InputValues(flat, None, len(flat)), name)
    distinct_counts = set(row_counts.values())
    if len(distinct_counts) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in row_counts.items())
        raise UsageError(f"{where}: inputs have different numbers of rows: {listed}")
    return ServedRequest(where, next(iter(distinct_counts), 1), columns)


def _rows(values: InputValues, name: str) -> Rows:
    """Returns the values of each row of an input."""
    array = values.values
    if array.dtype == object:
        array = texts(array, input_field(name)).reshape(array.shape)
    if values.offsets is not None:
        return [array[first:end].tolist() for first, end in pairwise(values.offsets)]
    rows: Rows = array.reshape(values.rows, math.prod(array.shape[1:])).tolist()
    return rows


def _class_scores(classifications: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns the score of each class, by its label."""
    outputs: dict[str, list[Any]] = {}
    for row in classifications:
        for result in row.classes:
            outputs.setdefault(result.label, []).append(result.score)
    return outputs
