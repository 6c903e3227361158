"""Encoded request bodies of the workloads, in each form that an endpoint accepts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson

from benchmarks.workloads import RankingWorkload, RetrievalWorkload
from service.codec.stubs import embedding_service_pb2 as pb

RANK = "/rowcast.embedding.v1.EmbeddingService/Rank"
RETRIEVE = "/rowcast.embedding.v1.EmbeddingService/Retrieve"


@dataclass(frozen=True)
class Kind:
    """Encoded messages to one endpoint.

    Attributes:
      name: Of the workload.
      call: As in metrics.
      path: Over HTTP.
      method: Over gRPC.
    """

    name: str
    call: str
    path: str
    method: str
    bodies: list[bytes]


def rankings(work: RankingWorkload) -> Kind:
    """Returns the requests of workload R."""
    return Kind("R", "rank", f"/v1/models/{work.model}:rank", RANK, rank_messages(work))


def retrievals(work: RetrievalWorkload) -> Kind:
    """Returns the requests of workload Q."""
    path = f"/v1/models/{work.model}:retrieve"
    return Kind("Q", "retrieve", path, RETRIEVE, retrieve_messages(work))


def rank_json(work: RankingWorkload) -> list[bytes]:
    """One JSON body per request: a context, and 200 candidates by their features."""
    bodies = []
    for number in range(len(work.numbers)):
        context = {name: int(ids[number]) for name, ids in work.context.items()}
        context["numbers"] = work.numbers[number].tolist()
        candidates = {name: ids[number].tolist() for name, ids in work.candidates.items()}
        bodies.append(orjson.dumps({"context": context, "candidate_features": candidates}))
    return bodies


def rank_messages(work: RankingWorkload) -> list[bytes]:
    """The same requests as encoded RankRequest messages."""
    bodies = []
    for number in range(len(work.numbers)):
        request = pb.RankRequest(model=pb.ModelSpec(name=work.model))
        for name, ids in work.context.items():
            request.context[name].int64s = ids[number : number + 1].tobytes()
        request.context["numbers"].float32s = work.numbers[number].tobytes()
        for name, ids in work.candidates.items():
            request.candidate_features[name].int64s = ids[number].tobytes()
        bodies.append(request.SerializeToString())
    return bodies


def retrieve_json(work: RetrievalWorkload) -> list[bytes]:
    """One JSON body per query: a user and 50 watched items."""
    return [
        orjson.dumps({"k": work.k, "context": {"user": int(user), "history": history.tolist()}})
        for user, history in zip(work.users, work.histories, strict=True)
    ]


def retrieve_messages(work: RetrievalWorkload, queries: int = 1) -> list[bytes]:
    """The same queries as encoded RetrieveRequest messages, `queries` in each."""
    bodies = []
    for first in range(0, len(work.users) - queries + 1, queries):
        users = work.users[first : first + queries]
        histories = work.histories[first : first + queries]
        request = pb.RetrieveRequest(model=pb.ModelSpec(name=work.model), k=work.k)
        request.context["user"].int64s = users.tobytes()
        request.context["history"].int64s = histories.tobytes()
        request.context["history"].offsets = (
            np.arange(queries + 1, dtype="<i4") * histories.shape[1]
        ).tobytes()
        bodies.append(request.SerializeToString())
    return bodies
