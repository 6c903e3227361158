"""Calls of the Python client beside bare ones, each in a process of its own: the CPU of the caller.

`python -m benchmarks.client_calls CALL PORT MODEL FILE` sends small retrievals, one after another,
and responds to lines as `benchmarks.bare` does. The file holds a list of contexts, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
from rowcast_client import Client
from rowcast_client.stubs import embedding_service_pb2 as pb
from rowcast_client.stubs import embedding_service_pb2_grpc as pb_grpc

from benchmarks.bare import RepeatedCall, Step, respond
from benchmarks.report import Sheet
from benchmarks.rounds import Rounds
from benchmarks.services import Service
from benchmarks.workloads import RetrievalWorkload

K = 10
TIMEOUT_S = 10.0
GIVEN = "gRPC, bare stub, message given"
STUB = "gRPC, bare stub"
GRPC = "gRPC, rowcast-client"
HTTPX = "HTTP, bare httpx, JSON"
HTTP = "HTTP, rowcast-client"
BESIDE = ((GRPC, GIVEN), (GRPC, STUB), (HTTP, HTTPX))
"""Calls of the client, each with the bare call that it is compared with."""

Contexts = Sequence[Mapping[str, Any]]


def started(running: ExitStack, service: Service, work: RetrievalWorkload) -> list[RepeatedCall]:
    """Starts a process for each call of a service, which ends with `running`."""
    contexts = [
        {"user": int(user), "history": history.tolist()}
        for user, history in zip(work.users, work.histories, strict=True)
    ]
    file = work.directory.parent / "contexts.json"
    file.write_text(json.dumps(contexts))
    calls = []
    for name in CALLS:
        port = service.http
        if name.startswith("gRPC"):
            port = service.grpc
        call = RepeatedCall(name, __name__, name, port, work.model, file)
        calls.append(running.enter_context(closing(call)))
    return calls


def sheet(measured: Rounds) -> Sheet:
    """Returns the CPU of the caller, and its ratio to that of the bare call."""
    rows = []
    for name in CALLS:
        ratios = {bare: "" for _, bare in BESIDE}
        for client, bare in BESIDE:
            if client == name:
                ratios[bare] = f"{measured.ratio(name, bare, 1, 'cpu_ms'):.2f}"
        rows.append((name, f"{measured.block(name, 1).cpu_ms:.3f}", *ratios.values()))
    columns = ("call", "CPU ms", *(f"by {bare}" for _, bare in BESIDE))
    return Sheet("Client beside bare calls, CPU of the caller", columns, rows)


def _message(model: str, context: Mapping[str, Any]) -> pb.RetrieveRequest:
    """Returns the message of a request, as a caller without the client writes it."""
    history = np.array(context["history"], "<i8")
    return pb.RetrieveRequest(
        model=pb.ModelSpec(name=model),
        k=K,
        context={
            "user": pb.Column(int64s=np.array([context["user"]], "<i8").tobytes()),
            "history": pb.Column(
                int64s=history.tobytes(), offsets=np.array([0, len(history)], "<i4").tobytes()
            ),
        },
    )


def _stub(port: int) -> Any:
    return pb_grpc.EmbeddingServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))


def _given(port: int, model: str, contexts: Contexts) -> Step:
    stub = _stub(port)
    messages = [_message(model, context) for context in contexts]
    return lambda number: stub.Retrieve(messages[number % len(messages)], timeout=TIMEOUT_S)


def _built(port: int, model: str, contexts: Contexts) -> Step:
    stub = _stub(port)

    def step(number: int) -> Any:
        message = _message(model, contexts[number % len(contexts)])
        response = stub.Retrieve(message, timeout=TIMEOUT_S)
        return np.frombuffer(response.ids.int64s, "<i8"), np.frombuffer(response.scores, "<f4")

    return step


def _httpx(port: int, model: str, contexts: Contexts) -> Step:
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S)

    def step(number: int) -> Any:
        body = {"k": K, "context": contexts[number % len(contexts)]}
        response = client.post(f"/v1/models/{model}:retrieve", json=body)
        return response.raise_for_status().json()

    return step


def _client(scheme: str) -> Callable[[int, str, Contexts], Step]:
    def start(port: int, model: str, contexts: Contexts) -> Step:
        client = Client(f"{scheme}://127.0.0.1:{port}", timeout_s=TIMEOUT_S)
        return lambda number: client.retrieve(contexts[number % len(contexts)], k=K, model=model)

    return start


CALLS: dict[str, Callable[[int, str, Contexts], Step]] = {
    GIVEN: _given,
    STUB: _built,
    GRPC: _client("grpc"),
    HTTPX: _httpx,
    HTTP: _client("http"),
}
"""What makes the step of each call, by its name."""


def main() -> None:
    """Calls a service as the arguments name it."""
    name, port, model, file = sys.argv[1:]
    respond(CALLS[name](int(port), model, json.loads(Path(file).read_text())))


if __name__ == "__main__":
    main()
