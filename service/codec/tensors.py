"""Named tensors to requests of the engine, and its responses to named tensors. What reads and
writes the messages of a protocol adds nothing but its own form of tensors.

An input is sent in one of three forms, whatever the model took in training:

  dense    NAME [n, ...]
  ragged   NAME [m] (values), NAME_1 [n + 1] (row splits)
  sparse   NAME [m, 2] (indices), NAME_1 [m] (values), NAME_2 [2] (dense shape)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format.identifiers import identifier
from bundle.tables.offsets import lengths_of
from service.codec.request_messages import request_message
from service.codec.tensor_signatures import (
    EITHER,
    WEIGHTS,
    K,
    Signature,
    Tensor,
    TensorInput,
    find_signature,
)
from service.config import ServiceSettings
from service.engine import calls
from service.engine.calls import check_offsets
from service.engine.engine import Engine
from service.engine.limits import at_most, check_queries
from service.engine.names import SHOWN_CHARS, name_hint
from service.errors import InvalidArgument, ServiceError
from service.security.principal import Principal, authorize
from service.versions.version import ModelVersion

Arrays = Mapping[str, NDArray[Any]]
"""Arrays of numbers, and of objects that are str or bytes, by the names of their tensors."""

_NO_ID: Mapping[str, int | str] = {"int64": -1, "string": ""}
"""What fills up the ids of a query that has fewer than k neighbors."""
_NO_SCORE = np.finfo(np.float32).min
"""The score beside it. An infinity would have no place in JSON."""


class SentTensors(NamedTuple):
    """The request of a client.

    Attributes:
      signature: Its name; "": the default.
    """

    target: calls.Target
    signature: str
    arrays: Arrays


class ReturnedTensors(NamedTuple):
    """The response to a client: all outputs of the signature, in its order."""

    model: str
    version: int
    signature: Signature
    arrays: Arrays


class TensorExchange:
    """One request of a protocol and the response to it: what `Dataplane.call` reads and writes.

    Attributes:
      name: The name of the call, as in metrics.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        principal: Principal | None,
        read_message: Callable[[bytes, calls.Target | None, ServiceSettings], SentTensors],
        write_message: Callable[[ReturnedTensors], bytes],
        model_of: Callable[[bytes], str],
    ) -> None:
        """Creates the exchange of one request.

        Args:
          name: See above.
          engine: Has the versions whose signatures requests name.
          principal: The client.
          read_message: Reads the body of a request; the target is that of its URL, if there is one.
          write_message: Writes the body of a response.
          model_of: Returns the model that a body without a URL names, as far as it can be found
            before the body is parsed; else "".
        """
        self.name = name
        self.model_of = model_of
        self._engine = engine
        self._principal = principal
        self._read_message = read_message
        self._write_message = write_message
        self._signature: Signature
        self._request: calls.Request

    def read(
        self, body: bytes, is_protobuf: bool, url: calls.Target | None, settings: ServiceSettings
    ) -> tuple[calls.Request, bool]:
        """Returns the request that a body holds; see `Operation.read`."""
        del is_protobuf  # there is one form
        sent = self._read_message(body, url, settings)
        # Its model may not have been known before it was parsed.
        authorize(self._principal, sent.target.model)
        with self._engine.lease(sent.target) as version:
            self._signature = find_signature(version, sent.signature)
            self._request = request_of(version, self._signature, sent, settings)
        return self._request, False

    def write(self, answer: calls.Answer) -> bytes:
        """Returns the body of the response.

        Raises:
          ServiceError: A row of the request has no result.
        """
        arrays = tensors_of(self._signature, self._request, answer)
        return self._write_message(
            ReturnedTensors(answer.model, answer.version, self._signature, arrays)
        )

    def recorded(
        self, request: calls.Request, is_protobuf: bool, body: bytes
    ) -> tuple[str, bool, bytes]:
        """Returns what the request log keeps; see `Operation.recorded`."""
        del is_protobuf, body
        return self._signature.call, True, request_message(request).SerializeToString()


def request_of(
    version: ModelVersion, signature: Signature, sent: SentTensors, settings: ServiceSettings
) -> calls.Request:
    """Returns the request of the engine that computes a signature.

    Raises:
      InvalidArgument: A tensor is missing or unknown, or has another dtype or shape; names it.
      TooLarge: There are more tensors or rows than the limits.
    """
    arrays = sent.arrays
    at_most(settings, "max_features", len(arrays), "the request")
    reader = _ColumnReader(signature, arrays, settings)
    columns = {one.name: reader.column(one) for one in signature.inputs if one.tensor in arrays}
    for one in signature.inputs:
        if one.required and one.tensor not in arrays:
            raise InvalidArgument(
                f"input {one.tensor!r} of signature {signature.name!r} is missing; "
                f"{_shown(one.tensors[0])} was expected"
            )
    k = reader.k() if signature.takes_k and K in arrays else 0
    reader.check_unread(version.manifest.unread_inputs)

    if signature.call == "retrieve":
        return calls.Retrieval(
            sent.target, context=columns, index=signature.computed_by, k=k or calls.K_DEFAULT
        )
    if signature.call == "embed":
        return calls.Embedding(sent.target, tower=signature.computed_by, features=columns)
    return _ranking(signature, sent.target, columns, reader.rows or 1)


def _ranking(
    signature: Signature, target: calls.Target, columns: Mapping[str, Column], rows: int
) -> calls.Ranking:
    """Returns the ranking of rows that are a context and a candidate at once."""
    roles = {one.name: one.role for one in signature.inputs}
    context = {name: column for name, column in columns.items() if roles[name] == "context"}
    candidates = {name: column for name, column in columns.items() if roles[name] != "context"}
    # One context owns all rows if no context is sent, as it owns the only row.
    one_context = rows == 1 or not context
    return calls.Ranking(
        target,
        context=context,
        candidate_features=candidates,
        offsets=None if one_context else np.arange(rows + 1, dtype=np.int64),
        heads=tuple([output.name for output in signature.outputs]),
        tower=signature.computed_by,
    )


def tensors_of(
    signature: Signature, request: calls.Request, answer: Any
) -> dict[str, NDArray[Any]]:
    """Returns the outputs of a signature.

    Args:
      signature: What `request_of` was called with.
      request: What it returned.
      answer: The engine's.

    Raises:
      ServiceError: A row of the request cannot be ranked.
    """
    if isinstance(request, calls.Retrieval):
        return _neighbors(signature, request.k, answer)
    if isinstance(answer, calls.Embedded):
        (output,) = signature.outputs
        return {output.name: _shaped(answer.vectors, output)}
    if answer.failed:
        raise ServiceError(answer.failed[0].message)
    return {output.name: _shaped(answer.heads[output.name], output) for output in signature.outputs}


def _shaped(array: NDArray[Any], output: Tensor) -> NDArray[Any]:
    """Returns an output of n rows in the shape that the tower returns."""
    return array.reshape(len(array), *output.shape[1:])


def _neighbors(signature: Signature, k: int, answer: calls.Retrieved) -> dict[str, NDArray[Any]]:
    """Returns the neighbors of n queries, filled up to k, and how many each query has."""
    ids_output, scores_output, counts_output = signature.outputs
    counts = lengths_of(answer.offsets)
    is_neighbor = np.arange(k) < counts[:, np.newaxis]
    ids = np.full(is_neighbor.shape, _NO_ID[ids_output.dtype], answer.ids.dtype)
    scores = np.full(is_neighbor.shape, _NO_SCORE, np.float32)
    ids[is_neighbor] = answer.ids
    scores[is_neighbor] = answer.scores
    return {ids_output.name: ids, scores_output.name: scores, counts_output.name: counts}


class _ColumnReader:
    """Reads the columns of one request.

    Attributes:
      rows: The number of rows of the inputs so far; None: none was read.
    """

    def __init__(self, signature: Signature, arrays: Arrays, settings: ServiceSettings) -> None:
        self.rows: int | None = None
        self._first = ""
        self._arrays = arrays
        self._settings = settings
        self._signature = signature
        self._tensors = {one.tensor for one in signature.inputs}
        self._read = set[str]()

    def column(self, one: TensorInput) -> Column:
        """Returns the column of an input whose first tensor was sent.

        Raises:
          InvalidArgument: Its tensors do not fit the input, or each other, or other inputs.
        """
        values, offsets, rows = self._values(one.tensor)
        if self.rows is None:
            self._first = one.tensor
            check_queries(rows, self._settings)
            self.rows = rows
        elif rows != self.rows:
            raise InvalidArgument(
                f"input {one.tensor!r} has {rows} rows and {self._first!r} has {self.rows}; all "
                "inputs must have the same number of rows"
            )
        if offsets is None:
            offsets = self._dense_offsets(one, values, rows)
        weights = None
        name = f"{one.tensor}{WEIGHTS}"
        if one.weighted and name in self._arrays:
            sent, _, _ = self._values(name)
            weights = _converted(sent.reshape(-1), "float32", name)
            if weights.size != values.size:
                raise InvalidArgument(
                    f"input {name!r} has {weights.size} weights for the {values.size} values of "
                    f"{one.tensor!r}; one weight for each value was expected"
                )
        return Column(_converted(values.reshape(-1), one.dtype, one.tensor), offsets, weights)

    def k(self) -> int:
        """Returns the number of neighbors: a number, or the same for each row."""
        array = self._take(K)
        if array.dtype.kind not in "iu" or not array.size or (array != array.flat[0]).any():
            raise InvalidArgument(
                f"input {K!r} is {_described(array)}; one integer, or the same for each row, was "
                "expected"
            )
        k = int(array.flat[0])
        if k < 1:
            raise InvalidArgument(f"input {K!r} is {k}; 1 or more was expected")
        return k

    def check_unread(self, unread_inputs: tuple[str, ...]) -> None:
        """Rejects tensors that no input takes.

        Args:
          unread_inputs: Inputs of the model that no tower reads, which may be sent.
        """
        ignored = {f"{identifier(name)}{end}" for name in unread_inputs for end in ("", "_1", "_2")}
        for name in self._arrays:
            if name not in self._read and name not in ignored:
                known = [tensor.name for tensor in self._signature.tensors]
                raise InvalidArgument(
                    f"input {name[:SHOWN_CHARS]!r} is unknown to signature "
                    f"{self._signature.name!r}; {name_hint(name, known, 'takes')}"
                )

    def _take(self, name: str) -> NDArray[Any]:
        self._read.add(name)
        return self._arrays[name]

    def _has(self, name: str) -> bool:
        """Returns whether a further tensor of an input was sent, and is no input of its own."""
        return name in self._arrays and name not in self._tensors

    def _values(self, name: str) -> tuple[NDArray[Any], NDArray[np.int64] | None, int]:
        """Returns the values in the tensors of an input, their offsets, and the number of rows;
        offsets None: each row of a dense tensor has the same number of values.
        """
        if self._has(f"{name}_2"):
            if not self._has(f"{name}_1"):
                raise InvalidArgument(
                    f"input {name!r} is sparse, and its values {name + '_1'!r} are missing"
                )
            values = self._take(f"{name}_1")
            offsets = self._sparse_offsets(name, values)
            return values, offsets, offsets.size - 1
        values = self._take(name)
        if self._has(f"{name}_1"):
            splits = self._take(f"{name}_1")
            offsets = _whole_numbers(splits, f"{name}_1", 1)
            if values.ndim != 1:
                raise InvalidArgument(
                    f"input {name!r} is {_described(values)}; flat values were expected beside the "
                    f"row splits {name + '_1'!r}"
                )
            check_offsets(offsets, max(0, offsets.size - 1), values.size, f"input {name + '_1'!r}")
            return values, offsets, offsets.size - 1
        if values.ndim == 0:
            raise InvalidArgument(
                f"input {name!r} is {_described(values)}; a tensor whose first axis counts the "
                "rows was expected"
            )
        return values, None, len(values)

    def _sparse_offsets(self, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
        indices = _whole_numbers(self._take(name), name, 2)
        shape = _whole_numbers(self._take(f"{name}_2"), f"{name}_2", 1)
        if values.ndim != 1 or indices.shape != (values.size, 2) or shape.size != 2:
            raise InvalidArgument(
                f"input {name!r}: indices are {_described(indices)}, values {_described(values)} "
                f"and the dense shape {_described(shape)}; [m, 2], [m] and [2] were expected"
            )
        rows = int(shape[0])
        check_queries(rows, self._settings)
        owners = indices[:, 0]
        if owners.size and (owners.min() < 0 or owners.max() >= rows):
            raise InvalidArgument(f"input {name!r} has an index outside of its {rows} rows")
        if (owners[1:] < owners[:-1]).any():
            raise InvalidArgument(f"input {name!r}: the indices must be in the order of the rows")
        return owners.searchsorted(np.arange(rows + 1)).astype(np.int64)

    def _dense_offsets(
        self, one: TensorInput, values: NDArray[Any], rows: int
    ) -> NDArray[np.int64] | None:
        """Returns the offsets of a dense tensor; None: the input has one value for each row.

        Raises:
          InvalidArgument: The tensor has another shape than the input.
        """
        width = math.prod(values.shape[1:])
        expected = None if one.shape is None else math.prod(one.shape)
        if expected not in (None, width) and not one.adjusted:
            raise InvalidArgument(
                f"input {one.tensor!r} is {_described(values)}; {_shown(one.tensors[0])} was "
                "expected"
            )
        if one.shape == ():
            return None
        # Of a list, the offsets tell how many rows there are.
        return np.arange(rows + 1, dtype=np.int64) * width


def _whole_numbers(array: NDArray[Any], name: str, axes: int) -> NDArray[np.int64]:
    """Returns the integers of a tensor with so many axes."""
    if array.dtype.kind not in "iu" or array.ndim != axes:
        raise InvalidArgument(
            f"input {name!r} is {_described(array)}; integers with {axes} axes were expected"
        )
    return array.astype(np.int64, copy=False)


def _converted(values: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    """Returns flat values as columns have them: int64, float32 or objects that are str.

    Raises:
      InvalidArgument: They are of another kind, or do not fit.
    """
    kind = values.dtype.kind
    if dtype in ("string", EITHER) and kind in "OSU":
        return _texts(values, name)
    if dtype in ("int32", "int64", EITHER) and kind in "iu":
        if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise InvalidArgument(f"input {name!r} holds {values.max()}, which does not fit int64")
        return values.astype(np.int64, copy=False)
    if dtype == "float32" and kind in "fiu":
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32, copy=False)
        if kind == "f" and values.itemsize > numbers.itemsize:
            lost = np.isinf(numbers) & np.isfinite(values)
            if lost.any():
                raise InvalidArgument(
                    f"input {name!r} holds {values[lost][0]}, which exceeds float32"
                )
        return numbers
    raise InvalidArgument(f"input {name!r} is {_dtype_name(values)}; {dtype} was expected")


def _texts(values: NDArray[Any], name: str) -> NDArray[Any]:
    try:
        texts = [text.decode() if isinstance(text, bytes) else text for text in values.tolist()]
    except UnicodeDecodeError:
        raise InvalidArgument(f"input {name!r} holds bytes that are not UTF-8") from None
    return np.array(texts, dtype=object)


def _dtype_name(array: NDArray[Any]) -> str:
    return "string" if array.dtype.kind in "OSU" else array.dtype.name


def _described(array: NDArray[Any]) -> str:
    return f"{_dtype_name(array)} of shape {list(array.shape)}"


def _shown(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {list(tensor.shape)}"
