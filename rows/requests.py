"""Requests that TensorFlow Serving recorded, and lists of examples (ELWC), as columns of inputs.

They are read as a service reads a request. In lists that are training data, an example without a
list has an empty one, as it had in training; a request needs all inputs without defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.features import Feature
from bundle.shown_values import shown, shown_names
from rows.errors import ValueRejected
from rows.files import SourceFile
from rows.inputs import InputRows, input_readers
from rows.tfrecords import read_file
from tensors import records
from tensors.arrays import Ragged, SentArrays
from tensors.errors import NoRequest, TensorError
from tensors.examples import Examples, features_of, read_examples
from tensors.input_columns import feature_names, input_column
from tensors.input_values import InputTensors
from tensors.signatures import WEIGHTS, tensor_inputs
from tensors.tensor_protos import read_tensors

RESPONSE = "response."
"""The prefix of the name of a recorded output."""
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
class RecordedRequest:
    """The tensors of one record, or its examples.

    Attributes:
      where: The names of file and record, for messages.
      arrays: The tensors by name; or features, of which those that are no inputs are ignored.
      limits: How much the record may hold.
      call: The kind of request: predict, classify or regress; "": the record is no request.
      signature: The name of the signature; "": the default one.
      responses: The returned values by the name of the output; {}: none was recorded.
    """

    where: str
    arrays: SentArrays | Examples
    limits: _RecordLimits
    call: str = ""
    signature: str = ""
    responses: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def are_features(self) -> bool:
        """Whether the names are those of features in `tf.Example`."""
        return isinstance(self.arrays, Examples)


def read_elwc(record: bytes, where: str) -> RecordedRequest:
    """Reads a record that is an `ExampleListWithContext`: each example is a row, with the features
    of the context.

    Args:
      record: The bytes of the record.
      where: The names of file and record, for messages.

    Raises:
      ValueRejected: The record is no such list, or the context and an example have the same
        feature.
    """
    with _errors_of(where):
        elwc = records.read_elwc(record)
    context = features_of(elwc.context)
    examples = [features_of(example) for example in elwc.examples]
    for example in examples:
        for name in context:
            if name in example:
                raise ValueRejected(
                    f"{where}: the context and an example have feature {name!r}; one of them was "
                    "expected"
                )
    return RecordedRequest(where, Examples(len(examples), examples, context), _limits(record, 0))


def read_prediction_log(record: bytes, where: str, inputs: Collection[str]) -> RecordedRequest:
    """Reads a record that is a PredictionLog of Predict, Classify or Regress.

    Args:
      record: The bytes of the record.
      where: The names of file and record, for messages.
      inputs: The names of the tensors that are inputs. A tensor of strings that is no input, alone
        in a request, holds serialized Examples.

    Raises:
      ValueRejected: The record is no such log, or a tensor or feature cannot be read; the message
        names it.
    """
    with _errors_of(where):
        call, message, response = records.read_prediction_log(record)
        arrays: SentArrays | Examples
        if call == "predict":
            limits = _limits(record, len(message.inputs) + len(response.outputs))
            # A map has no order in a message, and errors name the same input each time.
            tensors = read_tensors(dict(sorted(message.inputs.items())), limits)
            arrays = tensors
            first, *further = tensors
            # Signatures that parse Examples themselves take them as strings.
            if not further and first not in inputs and tensors[first].dtype == object:
                messages = map(records.read_example, tensors[first].reshape(-1))
                arrays = Examples(tensors[first].size, map(features_of, messages), {})
            returned = read_tensors(response.outputs, limits)
            # A scalar belongs to no row.
            outputs = {name: array.tolist() for name, array in returned.items() if array.ndim}
        else:
            limits = _limits(record, 0)
            arrays = read_examples(message.input)
            if call == "regress":
                outputs = {REGRESSION: [result.value for result in response.result.regressions]}
            else:
                outputs = _class_scores(response.result.classifications)
    # An output without values was not recorded.
    responses = {name: values for name, values in outputs.items() if values}
    signature = message.model_spec.signature_name
    return RecordedRequest(where, arrays, limits, call, signature, responses)


def numbered_records(file: SourceFile) -> Iterator[tuple[str, bytes]]:
    """Yields the records of a TFRecord file, each behind its name in messages.

    Raises:
      FileRejected: The file cannot be read, or a record is damaged.
    """
    for number, record in enumerate(read_file(file), 1):
        yield f"{file.path.name}, record {number}", record


class RequestReader:
    """Reads the inputs of records as columns.

    Attributes:
      inputs: The inputs as a signature takes them, by name.
    """

    def __init__(
        self,
        features: Mapping[str, Feature],
        names: Collection[str],
        weights: Mapping[str, str] = MappingProxyType({}),
        more_columns: Collection[str] = (),
    ) -> None:
        """Describes what records have.

        Args:
          features: The features of the manifest.
          names: The inputs, in the order of the tower or model.
          weights: The name that weights have besides NAME_weights, by the name of their input.
          more_columns: The names of further tensors or features, such as labels; `response.NAME`
            is a recorded output.
        """
        self.inputs = {source.name: source for source in tensor_inputs(features, names)}
        self._readers = input_readers(features, names, fills=True)
        self._weights = weights
        self._more_columns = more_columns

    def key_parts(self) -> Any:
        """Returns all that decides what is read."""
        return [self.inputs, self._readers, dict(self._weights), list(self._more_columns)]

    def read(self, record: bytes, where: str, record_format: str) -> RecordedRequest:
        """Reads a record, of format elwc or prediction-log; see the functions above."""
        if record_format == "elwc":
            return read_elwc(record, where)
        names = {source.tensor for source in self.inputs.values()}
        return read_prediction_log(record, where, {*names, *self._weights.values()})

    def columns(self, request: RecordedRequest, ignored: Collection[str]) -> InputRows:
        """Returns the rows of a record.

        Args:
          request: The record.
          ignored: Tensors that no input takes and that may be sent.

        Raises:
          ValueRejected: A tensor is no input, or an input is missing or does not fit; names it.
        """
        columns: dict[str, Column] = {}
        row_counts: dict[str, int] = {}
        with _errors_of(request.where):
            arrays = self._by_tensor(request)
            tensor_names = [source.tensor for source in self.inputs.values()]
            tensors = InputTensors(arrays, tensor_names, request.limits)
            for name, source in self.inputs.items():
                if source.tensor not in arrays:
                    continue
                values = tensors.values(source.tensor)
                # A feature of training data without values is a missing one.
                if values.values.size or request.call:
                    row_counts[name] = values.rows
                    columns[name] = input_column(source, values, tensors)
            more_columns = {
                name: self._values_of(name, request, tensors) for name in self._more_columns
            }
        size = _size(request, row_counts)
        empty = []
        for name, reader in self._readers.items():
            if name in columns:
                fitted = reader.fit(columns[name], size, f"{request.where}, {name!r}")
                columns[name] = fitted.column
            elif not request.call and reader.takes_any_length:
                empty.append(name)
            elif reader.default is None:
                raise _missing(name, "has no default", request)
        # Features of training data may have any names, but a request with an unknown tensor would
        # be rejected by a service.
        for tensor in arrays:
            if not request.are_features and tensor not in {*tensors.read, *ignored}:
                raise ValueRejected(
                    f"{request.where}: no input of the model is called {shown(tensor)}; it takes "
                    f"{', '.join(sorted(tensor_names))}"
                )
        return InputRows(size, columns, more_columns, empty)

    def _by_tensor(self, request: RecordedRequest) -> dict[str, NDArray[Any] | Ragged]:
        """Returns the arrays of a record by the names of tensors."""
        renamed = {}
        for name, weights_name in self._weights.items():
            # Weights may be ragged or sparse, as their values.
            for end in ("", "_1", "_2"):
                renamed[f"{weights_name}{end}"] = f"{self.inputs[name].tensor}{WEIGHTS}{end}"
        if not isinstance(request.arrays, Examples):
            return {renamed.get(name, name): array for name, array in request.arrays.items()}
        features = {name: name for name in self._more_columns} | feature_names(self.inputs.values())
        arrays = {
            tensor: request.arrays[feature]
            for tensor, feature in features.items()
            if feature in request.arrays
        }
        for feature, tensor in renamed.items():
            if feature in request.arrays:
                arrays[tensor] = request.arrays[feature]
        return arrays

    def _values_of(self, name: str, request: RecordedRequest, tensors: InputTensors) -> list[Any]:
        """Returns the values of a label or a recorded output, those of one value alone."""
        if name.startswith(RESPONSE):
            output = name.removeprefix(RESPONSE)
            if output not in request.responses:
                raise ValueRejected(
                    f"{request.where} has no response with output {output!r}; its outputs: "
                    f"{shown_names(request.responses) or 'none'}"
                )
            return list(request.responses[output])
        if name not in tensors.arrays:
            raise _missing(name, "the recipe names under verify", request)
        array = np.atleast_1d(tensors.take(name))
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        values: list[Any] = array.tolist()
        return values


def _size(request: RecordedRequest, row_counts: Mapping[str, int]) -> int:
    """Returns the number of rows of a record, which all of its inputs and outputs have."""
    if len({*row_counts.values()}) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in row_counts.items())
        raise ValueRejected(f"{request.where}: inputs have different numbers of rows: {listed}")
    size = next(iter(row_counts.values()), 1)
    if isinstance(request.arrays, Examples):
        size = request.arrays.count
    for name, returned in request.responses.items():
        if len(returned) != size:
            raise ValueRejected(
                f"{request.where}: the response has {len(returned)} values of {name!r} for {size} "
                "rows"
            )
    return size


def _missing(name: str, reason: str, request: RecordedRequest) -> ValueRejected:
    return ValueRejected(
        f"{request.where} has no {name!r}, which {reason}; it has "
        f"{shown_names(sorted(request.arrays))}"
    )


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """Raises the errors of a record with its name."""
    try:
        yield
    except NoRequest as problem:
        raise ValueRejected(f"{where} {problem}") from problem
    except TensorError as problem:
        raise ValueRejected(f"{where}, {problem}") from problem


def _limits(record: bytes, tensor_count: int) -> _RecordLimits:
    claims = _CLAIM_MAX * tensor_count
    return _RecordLimits(len(record), len(record) + _CLAIM_MAX, len(record) + claims)


def _class_scores(classifications: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns the score of each class, by its label."""
    outputs: dict[str, list[Any]] = {}
    for row in classifications:
        for result in row.classes:
            outputs.setdefault(result.label, []).append(result.score)
    return outputs
