"""Encoded request bodies of the workloads, in each form that a door takes."""

from __future__ import annotations

import orjson

from service.wire.stubs import embedding_service_pb2 as messages
from tests.bench.workloads import RankingWorkload, RetrievalWorkload

RANK, RETRIEVE = "/rowcast.embedding.v1.EmbeddingService/Rank", "/rowcast.embedding.v1.EmbeddingService/Retrieve"


def rank_json(work: RankingWorkload) -> list[bytes]:
    """One JSON body per request: a context, and 200 candidates by their features."""
    bodies = []
    for at in range(len(work.numbers)):
        context = {name: int(ids[at]) for name, ids in work.context.items()}
        context["numbers"] = work.numbers[at].tolist()
        candidates = {name: ids[at].tolist() for name, ids in work.candidates.items()}
        bodies.append(orjson.dumps({"context": context, "features": candidates}))
    return bodies


def rank_messages(work: RankingWorkload) -> list[bytes]:
    """The same requests as encoded RankRequest messages."""
    bodies = []
    for at in range(len(work.numbers)):
        request = messages.RankRequest(model=messages.ModelSpec(name=work.model))
        for name, ids in work.context.items():
            request.context[name].int64s = ids[at : at + 1].tobytes()
        request.context["numbers"].float32s = work.numbers[at].tobytes()
        for name, ids in work.candidates.items():
            request.candidates[name].int64s = ids[at].tobytes()
        bodies.append(request.SerializeToString())
    return bodies


def retrieve_json(work: RetrievalWorkload) -> list[bytes]:
    """One JSON body per query: a user and 50 watched items."""
    return [
        orjson.dumps({"k": work.k, "features": {"user": int(user), "history": history.tolist()}})
        for user, history in zip(work.users, work.histories, strict=True)
    ]


def retrieve_messages(work: RetrievalWorkload) -> list[bytes]:
    """The same queries as encoded RetrieveRequest messages."""
    bodies = []
    for at, history in enumerate(work.histories):
        request = messages.RetrieveRequest(model=messages.ModelSpec(name=work.model), k=work.k)
        request.features["user"].int64s = work.users[at : at + 1].tobytes()
        request.features["history"].int64s = history.tobytes()
        request.features["history"].offsets = (0).to_bytes(4, "little") + len(history).to_bytes(4, "little")
        bodies.append(request.SerializeToString())
    return bodies
