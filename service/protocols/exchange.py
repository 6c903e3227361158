"""Named tensors to requests of the engine, and its results to named tensors. The readers and
writers of a protocol's messages add nothing but its own form of tensors.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.offsets import lengths_of
from service.codec.request_messages import request_message
from service.config import ServiceSettings
from service.engine import calls
from service.engine.context import RequestContext
from service.engine.engine import Engine
from service.engine.validation import SHOWN_CHARS, at_most, name_hint
from service.errors import FieldViolation, InvalidArgument, ServiceError
from service.protocols.columns import (
    Arrays,
    ColumnReader,
    SentArrays,
    shown_tensor,
)
from service.protocols.signatures import (
    K,
    Signature,
    Tensor,
    find_signature,
)
from service.security.principal import authorize
from service.versions.version import ModelVersion

_NO_ID: Mapping[str, int | str] = {"int64": -1, "string": ""}
"""The value that fills up the ids of a query that has fewer than k neighbors."""
_NO_SCORE = np.finfo(np.float32).min
"""The score that fills up the scores beside it. JSON has no infinity."""


class SentTensors(NamedTuple):
    """The request of a client.

    Attributes:
      target: The model and version that the request names.
      signature: The name of the signature; "": the default.
      arrays: The arrays by the names of tensors; "" is the name of the only input.
      outputs: The outputs that are returned, in this order; (): all.
      are_features: Whether the arrays have the names of features in `tf.Example`, where features
        that are no inputs are ignored.
      timeout_s: The time that the request may take from now on; infinity: its deadline stays.
    """

    target: calls.Target
    signature: str
    arrays: SentArrays
    outputs: tuple[str, ...] = ()
    are_features: bool = False
    timeout_s: float = math.inf


class ReturnedTensors(NamedTuple):
    """The response to a client.

    Attributes:
      model: The name of the model.
      version: The version that has computed it.
      signature: The signature that was called.
      arrays: The outputs that the client requested, in the order of the request, or all of the
        signature in its order.
    """

    model: str
    version: int
    signature: Signature
    arrays: Arrays


class BoundRequest(NamedTuple):
    """The tensors of a client as the request of a version.

    Attributes:
      signature: The signature that the client named.
      request: The request that computes the signature.
      outputs: The outputs that are returned, in this order.
    """

    signature: Signature
    request: calls.Request
    outputs: tuple[str, ...]


class TensorExchange:
    """One request of a protocol and the response to it: the Exchange that `Dataplane.call` reads
    and writes.

    Attributes:
      name: The name of the call, as in metrics.
      model_of: See Exchange.
    """

    def __init__(
        self,
        context: RequestContext,
        engine: Engine,
        read_message: Callable[[bytes, calls.Target | None, ServiceSettings], SentTensors],
        write_message: Callable[[ReturnedTensors], bytes],
        model_of: Callable[[bytes], str],
        computed: Collection[str] = ("embed", "rank", "retrieve"),
    ) -> None:
        """Creates the exchange of one request.

        Args:
          context: The context of the request.
          engine: Has the versions whose signatures requests name.
          read_message: Reads the body of a request; the target is that of its URL, if there is one.
          write_message: Writes the body of a response.
          model_of: Returns the model that a body without a URL names, as far as it can be found
            before the body is parsed; else "".
          computed: The calls of the engine whose results the call can return.
        """
        self.name = context.call
        self.model_of = model_of
        self._context = context
        self._engine = engine
        self._read_message = read_message
        self._write_message = write_message
        self._computed = computed
        self._bound: BoundRequest

    def read(
        self, body: bytes, is_protobuf: bool, url: calls.Target | None, settings: ServiceSettings
    ) -> tuple[calls.Request, bool]:
        """Returns the request that a body holds; see `Operation.read`."""
        # The protocol's own reader knows the form.
        del is_protobuf
        tensors = self._read_message(body, url, settings)
        # Its model may not have been known before it was parsed. An error about its signature would
        # describe a model that the client may not use.
        authorize(self._context.principal, tensors.target.model)
        self._context.deadline = min(self._context.deadline, time.monotonic() + tensors.timeout_s)
        with self._engine.lease(tensors.target) as version:
            self._bound = bind(version, tensors, self.name, self._computed, settings)
        return self._bound.request, False

    def write(self, result: calls.Result) -> bytes:
        """Returns the body of the response.

        Raises:
          ServiceError: A row of the request has no result.
        """
        signature = self._bound.signature
        computed = tensors_of(signature, self._bound.request, result)
        arrays = {name: computed[name] for name in self._bound.outputs}
        return self._write_message(ReturnedTensors(result.model, result.version, signature, arrays))

    def recorded(
        self, request: calls.Request, is_protobuf: bool, body: bytes
    ) -> tuple[str, bool, bytes]:
        """Returns what the request log stores; see `Operation.recorded`."""
        # As a request of the contract: the replay needs no other protocol.
        del is_protobuf, body
        return self._bound.signature.call, True, request_message(request).SerializeToString()


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
      InvalidArgument: The version has no such signature, or another call computes it, or a tensor
        does not fit it.
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
    outputs = _requested_outputs(signature, tensors.outputs)
    return BoundRequest(signature, request_of(version, signature, tensors, settings), outputs)


def _requested_outputs(signature: Signature, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the outputs that are returned.

    Raises:
      InvalidArgument: The signature does not have one of them, or one is named twice.
    """
    returned = tuple([output.name for output in signature.outputs])
    for name in names:
        if name not in returned:
            shown_name = name[:SHOWN_CHARS]
            raise InvalidArgument(
                f"output {shown_name!r} is unknown to signature {signature.name!r}; "
                f"{name_hint(name, returned, 'returns')}",
                FieldViolation("outputs", shown_name, "an output of the signature"),
            )
    # Outputs are returned by name, so that none can be returned twice.
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        value = f"{repeated[0]!r} twice"
        raise InvalidArgument.of_field("outputs", value, "each output once", "has")
    return names or returned


def request_of(
    version: ModelVersion, signature: Signature, tensors: SentTensors, settings: ServiceSettings
) -> calls.Request:
    """Returns the request of the engine that computes a signature.

    Raises:
      InvalidArgument: A tensor is missing or unknown, or has another dtype or shape; the message
        names it.
      TooLarge: There are more tensors or rows than the limits.
    """
    arrays = _by_tensor(signature, tensors)
    at_most(settings, "max_features", len(arrays), "request")
    reader = ColumnReader(signature, arrays, settings)
    columns = {}
    for tensor_input in signature.inputs:
        if tensor_input.tensor in arrays:
            columns[tensor_input.name] = reader.column(tensor_input)
        elif tensor_input.required:
            expected = shown_tensor(tensor_input.tensors[0])
            raise InvalidArgument(
                f"input {tensor_input.tensor!r} of signature {signature.name!r} is missing; "
                f"{expected} was expected",
                FieldViolation(f"inputs.{tensor_input.tensor}", "missing", expected),
            )
    k = calls.K_DEFAULT
    if signature.takes_k and K in arrays:
        k = reader.k()
    if not tensors.are_features:
        reader.check_unread(version.manifest.unread_inputs)

    if signature.call == "retrieve":
        return calls.RetrievalRequest(
            tensors.target, context=columns, index=signature.computed_by, k=k
        )
    if signature.call == "embed":
        return calls.EmbeddingRequest(tensors.target, tower=signature.computed_by, features=columns)
    return _ranking(signature, tensors.target, columns, reader.rows or 1)


def _by_tensor(signature: Signature, request: SentTensors) -> SentArrays:
    """Returns the arrays of a request by the names of tensors."""
    if request.are_features:
        tensors = {tensor_input.name: tensor_input.tensor for tensor_input in signature.inputs}
        return {tensors.get(name, name): array for name, array in request.arrays.items()}
    if "" not in request.arrays:
        return request.arrays
    names = [tensor_input.tensor for tensor_input in signature.inputs]
    if len(names) > 1:
        raise InvalidArgument(
            f"the values have no name; signature {signature.name!r} takes {', '.join(names)}",
            FieldViolation("inputs", "values without a name", "a value for each input"),
        )
    return {names[0]: request.arrays[""]}


def _ranking(
    signature: Signature, target: calls.Target, columns: Mapping[str, Column], rows: int
) -> calls.RankingRequest:
    """Returns the ranking of rows that are a context and a candidate at once."""
    roles = {tensor_input.name: tensor_input.role for tensor_input in signature.inputs}
    context = {name: column for name, column in columns.items() if roles[name] == "context"}
    candidates = {name: column for name, column in columns.items() if roles[name] != "context"}
    # One context owns all rows if no context is sent, as it owns the only row.
    offsets = None
    if rows > 1 and context:
        offsets = np.arange(rows + 1, dtype=np.int64)
    return calls.RankingRequest(
        target,
        context=context,
        candidate_features=candidates,
        offsets=offsets,
        heads=tuple([output.name for output in signature.outputs]),
        tower=signature.computed_by,
    )


def tensors_of(
    signature: Signature, request: calls.Request, result: Any
) -> dict[str, NDArray[Any]]:
    """Returns the outputs of a signature.

    Args:
      signature: The signature that `request_of` was called with.
      request: The request that it returned.
      result: The result of the request.

    Raises:
      ServiceError: A row of the request cannot be ranked.
    """
    if isinstance(request, calls.RetrievalRequest):
        return _neighbors(signature, request.k, result)
    if isinstance(result, calls.EmbeddingResult):
        (output,) = signature.outputs
        return {output.name: _shaped(result.vectors, output)}
    # These protocols have no way to say that one row of several failed.
    if result.failed:
        raise ServiceError(result.failed[0].message)
    return {output.name: _shaped(result.heads[output.name], output) for output in signature.outputs}


def _shaped(array: NDArray[Any], output: Tensor) -> NDArray[Any]:
    """Returns an output of n rows in the shape that the tower returns."""
    return array.reshape(len(array), *output.shape[1:])


def _neighbors(
    signature: Signature, k: int, result: calls.RetrievalResult
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
