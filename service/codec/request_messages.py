"""Requests of the engine to protobuf messages: what the request log keeps of a request that came in
another protocol.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from service.codec.protobuf import column_message
from service.codec.stubs import embedding_service_pb2 as pb
from service.engine import calls


def request_message(request: calls.Request) -> Any:
    """Returns a request of named tensors as its message, without the model: the replay sends it to
    the version that it checks.

    Args:
      request: A Retrieval, a Ranking or an Embedding that `request_of` of `tensors.py` returned.
    """
    if isinstance(request, calls.RetrievalRequest):
        return pb.RetrieveRequest(
            context=_columns(request.context or {}), index=request.index, k=request.k
        )
    if isinstance(request, calls.EmbeddingRequest):
        return pb.EmbedRequest(features=_columns(request.features), tower=request.tower)
    if not isinstance(request, calls.RankingRequest):
        raise TypeError(request)
    message = pb.RankRequest(
        context=_columns(request.context),
        candidate_features=_columns(request.candidate_features),
        heads=request.heads,
        tower=request.tower,
    )
    if request.offsets is not None:
        message.offsets = request.offsets.astype(np.int32).tobytes()
    return message


def _columns(columns: calls.Columns) -> dict[str, pb.Column]:
    return {name: column_message(column) for name, column in columns.items()}
