"""Examples in TFRecord files, as a table that `export.verify.examples` takes.

No value is made up for an input that a record lacks: it takes the default of the recipe, or is an
error that names file, record and input. A list that training reads as a VarLen feature is empty
where a `tf.train.Example` lacks it, as it was in training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bundle.format.features import DenseFeature, Feature
from bundle.shown_values import shown, shown_names
from export.errors import UsageError
from export.front_end.specs import ModelSpec
from export.recipe.schema import RecordFormat
from export.row_errors import row_errors
from export.verify.serving_records import (
    Rows,
    ServedRequest,
    read_elwc,
    read_example,
    read_prediction_log,
)
from rows.files import source_file
from rows.tfrecords import read_file
from tensors.signatures import WEIGHTS, tensor_inputs

RESPONSE = "response."
"""The prefix of the name of a recorded output, as a column of the examples."""
_TYPE_TEXTS = {int: "an integer", bool: "a boolean", float: "a float", str: "a string"}
_ACCEPTED_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "float32": (float, int),
    "int32": (int,),
    "int64": (int,),
    "string": (str,),
    "int64_or_string": (int, str),
}
"""The types of the values that an input takes, by the input's own type, as in the service:
booleans are sent as 0 or 1.
"""


class Default(NamedTuple):
    """The values of an example whose input is not sent."""

    values: list[Any]
    weights: list[float]


@dataclass(frozen=True)
class SentInput:
    """An input as a request sends it.

    Attributes:
      name: The name in the recipe, and as a feature of `tf.Example`.
      tensor: The name as a tensor.
      dtype: The type of the values.
      size: The number of values of each example; None: any number.
      is_single: Whether an example has one value, not a list of one.
      default: The values of an example that lacks the input; None: it must be sent.
      weights: The input of the weights; "": it has none.
    """

    name: str
    tensor: str
    dtype: str
    size: int | None
    is_single: bool
    default: Default | None
    weights: str = ""

    @property
    def weight_names(self) -> tuple[str, ...]:
        """The names under which weights may be sent."""
        if not self.weights:
            return ()
        # The model's own name of the input, and the name in the protocols of the service.
        return self.weights, f"{self.tensor}{WEIGHTS}"


def sent_inputs(
    model: ModelSpec, entries: Mapping[str, Feature], names: Collection[str]
) -> dict[str, SentInput]:
    """Returns the inputs of a model, or of a tower.

    Args:
      model: The traced features.
      entries: The features of the manifest.
      names: The inputs to describe, in the order of the tower or model.
    """
    inputs = {}
    for source in tensor_inputs(entries, names):
        specs = model.inputs[source.name]
        # Padding and cutting are part of the comparison, as they are in the service.
        size = None
        if source.shape is not None and not source.adjusted:
            size = math.prod(source.shape)
        is_dense = all(isinstance(entries[spec.name], DenseFeature) for spec in specs)
        inputs[source.name] = SentInput(
            source.name,
            source.tensor,
            source.dtype,
            size,
            size == 1 and (source.shape == () or not is_dense),
            _default_of(source.default),
            next((spec.weights for spec in specs if spec.weights), ""),
        )
    return inputs


def _default_of(default: Any) -> Default | None:
    if default is None:
        return None
    weights = []
    if isinstance(default, dict):
        weights = list(default.get("weights", []))
        default = default["ids"]
    values = _flat(default)
    return Default(values, weights or [1.0] * len(values))


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value]
    return [number for element in value for number in _flat(element)]


class RecordTable:
    """Gathers the examples of records by input."""

    def __init__(
        self,
        record_format: RecordFormat,
        inputs: Mapping[str, SentInput],
        more_columns: Sequence[str],
    ) -> None:
        """Begins without examples.

        Args:
          record_format: The format of the records.
          inputs: The inputs of the model.
          more_columns: Columns beside the inputs: labels, and `response.NAME` of recorded outputs.
        """
        self.rows = 0
        self._format = record_format
        self._inputs = inputs
        self._more_columns = more_columns
        self._tensors = {source.tensor for source in inputs.values()}
        for source in inputs.values():
            self._tensors.update(source.weight_names)
        self._requests: list[ServedRequest] = []

    def append(self, record: bytes, where: str, ignored: Collection[str] = ()) -> ServedRequest:
        """Adds the examples of a record.

        Args:
          record: The bytes of the record.
          where: The names of file and record, for messages.
          ignored: Tensors that no input takes and that may be sent.

        Raises:
          UsageError: It holds no examples, or a tensor is no input; names it.
        """
        request = self._read(record, where)
        # Features of training data may have any names, but a request with an unknown tensor would
        # be rejected by a service.
        if not request.are_features:
            allowed = self._tensors | {*ignored, *self._more_columns}
            for name in request.columns:
                if name not in allowed:
                    raise UsageError(
                        f"{where}: no input of the model is called {shown(name)}; it takes "
                        f"{', '.join(sorted(self._tensors))}"
                    )
        self._requests.append(request)
        self.rows += request.rows
        return request

    def columns(self) -> dict[str, list[Any]]:
        """Returns the values of each example by input, and the other columns.

        An input that no record has, and that has a default, is left out.

        Raises:
          UsageError: A record lacks an input that has no default, or has values that it does not
            take, or not as many of them; names file, record and input.
        """
        columns: dict[str, list[Any]] = {}
        for source in self._inputs.values():
            if any(_name_in(source, request) in request.columns for request in self._requests):
                self._add_input(source, columns)
            elif source.default is None:
                raise _missing_input(source, self._requests[0])
        for name in self._more_columns:
            columns[name] = []
            for request in self._requests:
                columns[name] += self._more_values(name, request)
        return columns

    def _read(self, record: bytes, where: str) -> ServedRequest:
        if self._format == "tf-example":
            return read_example(record, where)
        if self._format == "elwc":
            return read_elwc(record, where)
        return read_prediction_log(record, where, self._tensors)

    def _add_input(self, source: SentInput, columns: dict[str, list[Any]]) -> None:
        """Adds the column of an input, and of its weights if it has some."""
        values: list[Any] = []
        weights: list[list[float]] = []
        for request in self._requests:
            for row, row_weights in self._weighted_rows(source, request):
                if source.is_single:
                    values.append(row[0])
                else:
                    values.append(row)
                weights.append(row_weights)
        columns[source.name] = values
        if source.weights:
            columns[source.weights] = weights

    def _weighted_rows(
        self, source: SentInput, request: ServedRequest
    ) -> Iterator[tuple[list[Any], list[float]]]:
        """Yields the values of each example of a record, and their weights: 1 if none were sent."""
        where = request.where
        name = _name_in(source, request)
        weights_name = next((name for name in source.weight_names if name in request.columns), "")
        weights_of_rows: Rows = []
        if weights_name:
            weights_of_rows = request.column(weights_name)
        if name in request.columns:
            rows = request.column(name)
        elif weights_name:
            raise UsageError(
                f"{where} has {weights_name!r}, and no {source.name!r} that it weights"
            )
        else:
            rows = self._missing(source, request)
        for position, row in enumerate(rows):
            if self._takes_default(source, row):
                assert source.default is not None  # noqa: S101 - else it is no default
                yield source.default
                continue
            self._check_row(source, row, where)
            weights = [1.0] * len(row)
            if weights_name:
                weights = weights_of_rows[position]
                _check_weights(source, row, weights, where)
            yield row, weights

    def _missing(self, source: SentInput, request: ServedRequest) -> Rows:
        """Returns the rows of an input that a record does not have."""
        # In training data, a list that an example lacks is empty. A request needs all inputs.
        if source.size is None and not request.call:
            return [[]] * request.rows
        if source.default is None:
            raise _missing_input(source, request)
        return [source.default.values] * request.rows

    def _takes_default(self, source: SentInput, row: list[Any]) -> bool:
        """Returns whether an example takes the default: the whole input, or its values, are
        missing.
        """
        if source.default is None:
            return False
        is_missing = row is source.default.values
        return is_missing or (source.size is not None and not row)

    def _check_row(self, source: SentInput, row: list[Any], where: str) -> None:
        """Checks the number and the types of the values of an example."""
        if source.size is not None and len(row) != source.size:
            raise UsageError(
                f"{where}, {source.name!r} has {len(row)} values in an example; {source.size} were "
                "expected"
            )
        for value in row:
            # By the exact type, because a bool is an int.
            if type(value) not in _ACCEPTED_TYPES[source.dtype]:
                kind = _TYPE_TEXTS[type(value)]
                raise UsageError(f"{where}, {source.name!r} is {kind}; {source.dtype} was expected")

    def _more_values(self, name: str, request: ServedRequest) -> list[Any]:
        """Returns the values of a column beside the inputs: a label, or a recorded output."""
        if name.startswith(RESPONSE):
            output = name.removeprefix(RESPONSE)
            if output not in request.responses:
                recorded = shown_names(request.responses) or "none"
                raise UsageError(
                    f"{request.where} has no response with output {output!r}; its outputs: "
                    f"{recorded}"
                )
            return request.responses[output]
        if name not in request.columns:
            raise UsageError(
                f"{request.where} has no {name!r}, which the recipe names under verify; it has "
                f"{shown_names(sorted(request.columns))}"
            )
        rows: list[Any] = request.column(name)
        if all(len(row) == 1 for row in rows):
            rows = [row[0] for row in rows]
        return rows


def _name_in(source: SentInput, request: ServedRequest) -> str:
    """Returns the name of an input in a record."""
    if request.are_features:
        return source.name
    return source.tensor


def _missing_input(source: SentInput, request: ServedRequest) -> UsageError:
    return UsageError(
        f"{request.where} has no {source.name!r}, which has no default; it has "
        f"{shown_names(sorted(request.columns))}"
    )


def _check_weights(source: SentInput, values: list[Any], weights: list[Any], where: str) -> None:
    if len(weights) != len(values):
        raise UsageError(
            f"{where}, {source.name!r} has {len(values)} values and {len(weights)} weights in an "
            "example; one weight for each value was expected"
        )


def numbered_records(files: Sequence[Path], key: str) -> Iterator[tuple[str, bytes]]:
    """Yields the records of files, each behind its name in messages.

    Args:
      files: The paths; a file whose name ends in `.gz` is compressed.
      key: The key of the recipe that names them.

    Raises:
      UsageError: A file cannot be read, or a record is damaged; names it.
    """
    for path in files:
        with row_errors(key):
            for number, record in enumerate(read_file(source_file(path, "tfrecord")), 1):
                yield f"{key}: {path.name}, record {number}", record


def read_record_table(
    files: Sequence[Path],
    record_format: RecordFormat,
    inputs: Mapping[str, SentInput],
    more_columns: Sequence[str],
    count: int,
    ignored: Collection[str],
) -> dict[str, list[Any]]:
    """Reads the first examples of TFRecord files.

    Args:
      files: The paths.
      record_format: The format of the records.
      inputs: The inputs of the model.
      more_columns: Columns beside the inputs: labels, and `response.NAME` of recorded outputs.
      count: The number of examples.
      ignored: Tensors that no input takes and that may be sent.

    Returns:
      The values of each example, by column.

    Raises:
      UsageError: A file or a record cannot be read, or does not fit; names both.
    """
    table = RecordTable(record_format, inputs, more_columns)
    # The files may be large logs: records behind the last example are not read.
    for where, record in numbered_records(files, "verify.examples"):
        table.append(record, where, ignored)
        if table.rows >= count:
            break
    if not table.rows:
        raise UsageError(f"verify.examples: {', '.join(path.name for path in files)}: no records")
    return {name: values[:count] for name, values in table.columns().items()}
