"""Named tensors to requests of the engine, and its results to named tensors, by a signature."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.offsets import lengths_of
from service.config import ServiceSettings
from service.contract import messages
from service.contract.limits import at_most
from service.contract.names import LISTED_MAX, name_list
from service.decoding import check_decoding
from service.engine.validation import SHOWN_CHARS, check_names, check_queries, name_hint
from service.errors import FieldViolation, InvalidArgument, ServiceError, TooLarge
from service.protocols.signatures import Signature, find_signature
from service.versions.version import ModelVersion
from tensors.arrays import Arrays, SentArrays
from tensors.errors import TensorError, TooMuch, input_field
from tensors.examples import Examples
from tensors.input_columns import feature_names, input_column
from tensors.input_values import InputTensors
from tensors.signatures import K, unread_tensors

_NO_ID: Mapping[str, int | str] = {"int64": -1, "string": ""}
"""The value that fills up the ids of a query that has fewer than k neighbors."""
_NO_SCORE = np.finfo(np.float32).min
"""The score that fills up the scores beside it. JSON has no infinity."""


class SentTensors(NamedTuple):
    """The request of a client.

    Attributes:
      target: The model and version that the request names.
      signature: The name of the signature; "": the default.
      arrays: The arrays by the names of tensors, "" is the name of the only input; or features by
        their names, where features that are no inputs are ignored.
      outputs: The outputs that are returned, in this order; (): all.
      timeout_s: The time that the request may take from now on; infinity: its deadline stays.
      form: What the writer of the response knows of the request.
    """

    target: messages.Target
    signature: str
    arrays: SentArrays | Examples
    outputs: tuple[str, ...] = ()
    timeout_s: float = math.inf
    form: Any = None


class BoundRequest(NamedTuple):
    """The tensors of a client as the request of a version.

    Attributes:
      signature: The signature that the client named.
      request: The request that computes the signature.
      outputs: The outputs that are returned, in this order.
    """

    signature: Signature
    request: messages.Request
    outputs: tuple[str, ...]


@contextmanager
def tensor_errors() -> Iterator[None]:
    """Raises the errors of tensors as those of a request."""
    try:
        yield
    except TooMuch as problem:
        limit = (problem.maximum, problem.limit)
        raise TooLarge.of_limit(problem.field, problem.value, *limit) from None
    except TensorError as problem:
        raise InvalidArgument.of_misfit(problem.field, problem) from None


def bind(
    version: ModelVersion,
    tensors: SentTensors,
    call: str,
    computed: Collection[str],
    settings: ServiceSettings,
) -> BoundRequest:
    """Returns the tensors of a client as the request of a version.

    Args:
      version: The version that has the signature.
      tensors: The tensors that were sent.
      call: The name of the call of the protocol.
      computed: The calls of the engine whose results that call can return.
      settings: The limits.

    Raises:
      InvalidArgument: The version has no such signature or output, or another call computes it, or
        a tensor is missing or unknown.
      TensorError: A tensor does not fit the signature; names it.
      TooLarge: There are more tensors or rows than the limits.
    """
    signature = find_signature(version, tensors.signature)
    if signature.call not in computed:
        expected = f"a signature that computes {' or '.join(computed)}"
        raise InvalidArgument(
            f"{call} cannot return what signature {signature.name!r} computes; {expected} was "
            "expected",
            FieldViolation("signature_name", signature.name, expected),
        )
    returned = [output.name for output in signature.outputs]
    owner = f"signature {signature.name!r}"
    check_names(tensors.outputs, returned, "outputs", "an output", owner)
    # Outputs are returned by name, so that none can be returned twice.
    for name, times in Counter(tensors.outputs).items():
        if times > 1:
            value = f"{name!r} twice"
            raise InvalidArgument.of_field("outputs", value, "each output once", "has")
    unread_inputs = version.manifest.unread_inputs
    request = _request_of(signature, tensors, unread_inputs, settings)
    return BoundRequest(signature, request, tensors.outputs or tuple(returned))


def _request_of(
    signature: Signature,
    tensors: SentTensors,
    unread_inputs: Collection[str],
    settings: ServiceSettings,
) -> messages.Request:
    """Returns the request of the engine that computes a signature."""
    arrays = _by_tensor(signature, tensors.arrays)
    at_most(settings, "max_features", len(arrays), "request")
    reader = InputTensors(arrays, [source.tensor for source in signature.inputs], settings)
    columns, rows = _columns(signature, reader, settings)
    k = messages.K_DEFAULT
    if signature.takes_k and K in arrays:
        k = _k(reader.take(K))
    if not isinstance(tensors.arrays, Examples):
        _check_unread(signature, reader, unread_inputs)

    if signature.call == "retrieve":
        return messages.RetrievalRequest(
            tensors.target, context=columns, index=signature.computed_by, k=k
        )
    if signature.call == "embed":
        return messages.EmbeddingRequest(
            tensors.target, tower=signature.computed_by, features=columns
        )
    # Rows of a ranking are a context and a candidate at once.
    roles = {source.name: source.role for source in signature.inputs}
    context = {name: column for name, column in columns.items() if roles[name] == "context"}
    candidates = {name: column for name, column in columns.items() if roles[name] != "context"}
    # One context owns all rows if no context is sent, as it owns the only row.
    offsets = None
    if rows > 1 and context:
        offsets = np.arange(rows + 1, dtype=np.int64)
    return messages.RankingRequest(
        tensors.target,
        context=context,
        candidate_features=candidates,
        offsets=offsets,
        heads=tuple([output.name for output in signature.outputs]),
        tower=signature.computed_by,
    )


def _by_tensor(signature: Signature, arrays: SentArrays | Examples) -> SentArrays:
    """Returns the arrays of a request by the names of tensors."""
    if isinstance(arrays, Examples):
        by_tensor = {}
        for tensor, feature in {K: K, **feature_names(signature.inputs)}.items():
            if feature in arrays:
                check_decoding()
                by_tensor[tensor] = arrays[feature]
        return by_tensor
    if "" not in arrays:
        return arrays
    names = [tensor_input.tensor for tensor_input in signature.inputs]
    if len(names) > 1:
        raise InvalidArgument(
            f"the values have no name; signature {signature.name!r} takes {', '.join(names)}",
            FieldViolation("inputs", "values without a name", "a value for each input"),
        )
    return {names[0]: arrays[""]}


def _columns(
    signature: Signature, reader: InputTensors, settings: ServiceSettings
) -> tuple[dict[str, Column], int]:
    """Returns the columns of the inputs that were sent, and the number of rows."""
    missing = [
        tensor_input
        for tensor_input in signature.inputs
        if tensor_input.tensor not in reader.arrays and tensor_input.default is None
    ]
    if missing:
        expected = f"a tensor for each required input of signature {signature.name!r}"
        violations = [
            FieldViolation(input_field(tensor_input.tensor), "missing", expected)
            for tensor_input in missing[:LISTED_MAX]
        ]
        fields = name_list([input_field(tensor_input.tensor) for tensor_input in missing])
        verb = "is" if len(missing) == 1 else "are"
        raise InvalidArgument(f"{fields} {verb} missing; {expected} was expected", *violations)

    columns: dict[str, Column] = {}
    first = ""
    rows = 1
    for tensor_input in signature.inputs:
        name = tensor_input.tensor
        if name not in reader.arrays:
            continue
        values = reader.values(name)
        # The first input says how many rows there are. All later ones must have as many.
        if not columns:
            first = name
            rows = values.rows
            check_queries(rows, settings)
        elif values.rows != rows:
            expected = f"{rows}, as {first!r} has,"
            raise InvalidArgument.of_field(
                input_field(name), f"{values.rows} rows", expected, "has"
            )
        columns[tensor_input.name] = input_column(tensor_input, values, reader)
    return columns, rows


def _k(array: NDArray[Any]) -> int:
    """Returns the number of neighbors: a number, or the same for each row."""
    # Clients of protocols that batch rows repeat it for each of them.
    is_integer = array.dtype.kind in "iu" and array.size > 0
    if not is_integer or (array != array.flat[0]).any() or array.flat[0] < 1:
        expected = "one integer of at least 1, or the same for each row"
        raise TensorError(input_field(K), np.array2string(array, threshold=8), expected)
    return int(array.flat[0])


def _check_unread(
    signature: Signature, reader: InputTensors, unread_inputs: Collection[str]
) -> None:
    """Rejects tensors that no input takes, except those of inputs that no tower reads."""
    ignored = unread_tensors(unread_inputs)
    for name in reader.arrays:
        if name not in reader.read and name not in ignored:
            names = [tensor.name for tensor in signature.tensors]
            shown_name = name[:SHOWN_CHARS]
            raise InvalidArgument(
                f"input {shown_name!r} is unknown to signature {signature.name!r}; "
                f"{name_hint(name, names, 'takes')}",
                FieldViolation("inputs", shown_name, "an input of the signature"),
            )


def tensors_of(bound: BoundRequest, result: Any) -> Arrays:
    """Returns the outputs that the client requested.

    Args:
      bound: The request.
      result: The result of the request.

    Raises:
      ServiceError: A row of the request cannot be ranked.
    """
    signature, request, _ = bound
    if isinstance(request, messages.RetrievalRequest):
        arrays = _neighbors(signature, request.k, result)
    else:
        if isinstance(result, messages.EmbeddingResult):
            computed = {signature.result: result.vectors}
        # These protocols have no way to say that one row of several failed.
        elif result.failed:
            raise ServiceError(result.failed[0].message)
        else:
            computed = result.heads
        arrays = {}
        for output in signature.outputs:
            array = computed[output.name]
            # In the shape that the tower returns for n rows.
            arrays[output.name] = array.reshape(len(array), *output.shape[1:])
    return {name: arrays[name] for name in bound.outputs}


def _neighbors(
    signature: Signature, k: int, result: messages.RetrievalResult
) -> dict[str, NDArray[Any]]:
    """Returns the neighbors of n queries, filled up to k, and how many each query has."""
    ids_output, scores_output, counts_output = signature.outputs
    # [n, k]: a tensor has rows of one length.
    counts = lengths_of(result.offsets)
    is_neighbor = np.arange(k) < counts[:, np.newaxis]
    ids = np.full(is_neighbor.shape, _NO_ID[ids_output.dtype], result.ids.dtype)
    scores = np.full(is_neighbor.shape, _NO_SCORE, np.float32)
    ids[is_neighbor] = result.ids
    scores[is_neighbor] = result.scores
    return {ids_output.name: ids, scores_output.name: scores, counts_output.name: counts}
