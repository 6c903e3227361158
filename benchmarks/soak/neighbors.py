"""`python -m benchmarks.soak.neighbors`: honest clients of the quick start's bundle beside one
hostile client of each kind, in turn; ten minutes.

Honest clients call over HTTP and gRPC at a fixed rate. Each response must have the status and the
bits that it has alone. The latency beside each hostile client is printed as a multiple of the
latency alone. Exit code 1: a response differs, an honest request fails, a worker ends, or the log
has a line above its level for what clients did.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
from rich.console import Console

from examples.quickstart.__main__ import BUNDLES, MODEL
from service.codec.stubs import embedding_service_pb2 as pb
from service.grpc_api.servicer import SERVICE
from tests.e2e.process import WAIT_S, Process

SHOW = Console(highlight=False, soft_wrap=True)
RATE = 15.0
"""Requests per second of each honest client."""
REQUESTS = 40
"""Different requests of each honest client."""
PATIENCE_S = 10.0
"""Time after which a hostile client gives up a request."""
INDEX_DIM = 16
"""Numbers of a vector of the quick start's index."""
BULK_ITEMS = 60_000
BULK_BODIES = 6
LINGER_RESET = struct.pack("ii", 1, 0)
HONEST = {"authorization": "Bearer honest-honest-honest-01"}
WRITER = {"authorization": "Bearer writer-writer-writer-01"}
STRANGER = {"authorization": "Bearer stranger-stranger-0001"}
TOKENS = f"""honest {HONEST["authorization"][7:]} {MODEL}
writer {WRITER["authorization"][7:]} {MODEL}
stranger {STRANGER["authorization"][7:]} another
"""
"""The model of the stranger does not exist: its token may use nothing."""


class Address(NamedTuple):
    """Where the service listens."""

    http: int
    grpc: int


# What honest clients send


def honest_bodies(number: int) -> dict[str, Any]:
    """Returns the context of one of the honest requests."""
    return {"user_id": number % 30 + 1, "hour": number % 24, "history": [1, 5, 12 + number]}


def recommend_over_http(address: Address) -> Iterator[bytes]:
    """Sends recommendations in JSON, and yields the responses."""
    url = f"http://127.0.0.1:{address.http}/v1/models/{MODEL}:recommend"
    with httpx.Client(headers=HONEST, timeout=WAIT_S) as client:
        while True:
            for number in range(REQUESTS):
                response = client.post(url, json={"context": honest_bodies(number), "k": 20})
                yield b"%d " % response.status_code + response.content


def retrieve_vectors_over_http(address: Address) -> Iterator[bytes]:
    """Sends retrievals by vectors in JSON, and yields the responses."""
    url = f"http://127.0.0.1:{address.http}/v1/models/{MODEL}:retrieve"
    vectors = np.random.default_rng(7).normal(size=(REQUESTS, INDEX_DIM)).tolist()
    with httpx.Client(headers=HONEST, timeout=WAIT_S) as client:
        while True:
            for vector in vectors:
                response = client.post(url, json={"vectors": [vector], "k": 20})
                yield b"%d " % response.status_code + response.content


def retrieve_over_grpc(address: Address) -> Iterator[bytes]:
    """Sends retrievals over gRPC, and yields the responses."""
    metadata = [*HONEST.items()]
    with grpc.insecure_channel(f"127.0.0.1:{address.grpc}") as channel:
        method = channel.unary_unary(f"/{SERVICE}/Retrieve")
        while True:
            for number in range(REQUESTS):
                request = pb.RetrieveRequest(model=pb.ModelSpec(name=MODEL), k=20)
                request.ids.int64s = np.array([number % 200 + 1]).tobytes()
                try:
                    yield b"OK " + method(
                        request.SerializeToString(), timeout=WAIT_S, metadata=metadata
                    )
                except grpc.RpcError as problem:
                    yield f"{problem.code().name} {problem.details()}".encode()


HONEST_CLIENTS: Mapping[str, Callable[[Address], Iterator[bytes]]] = {
    "recommend, HTTP": recommend_over_http,
    "retrieve, HTTP": retrieve_vectors_over_http,
    "retrieve, gRPC": retrieve_over_grpc,
}


# What hostile clients send: one round each, which ends by itself.


def send(
    address: Address,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    sender: Mapping[str, str] = HONEST,
) -> str:
    """Sends one body over HTTP; returns its status, or what happened instead."""
    url = f"http://127.0.0.1:{address.http}/v1/models/{MODEL}{path}"
    try:
        all_headers = {"content-type": "application/json", **sender, **headers}
        response = httpx.post(url, content=body, headers=all_headers, timeout=PATIENCE_S)
    except httpx.HTTPError as problem:
        return type(problem).__name__
    return str(response.status_code)


def send_compressed(
    address: Address, path: str, body: bytes, sender: Mapping[str, str] = HONEST
) -> str:
    """Sends one body as gzip."""
    return send(address, path, gzip.compress(body, 6), {"content-encoding": "gzip"}, sender)


def call(
    address: Address,
    method: str,
    message: bytes,
    sender: Mapping[str, str],
    compression: grpc.Compression = grpc.Compression.NoCompression,
) -> str:
    """Sends one message over gRPC; returns its status."""
    target = f"127.0.0.1:{address.grpc}"
    with grpc.insecure_channel(target, compression=compression) as channel:
        unary = channel.unary_unary(method)
        try:
            unary(message, timeout=PATIENCE_S, metadata=[*sender.items()])
        except grpc.RpcError as problem:
            return str(problem.code().name)
    return "OK"


def side_by_side(count: int, *senders: Callable[[], str]) -> list[str]:
    """Sends each request several times, all at once; returns the statuses."""
    with ThreadPoolExecutor(count * len(senders)) as pool:
        running = [pool.submit(sender) for sender in senders for _ in range(count)]
        return [future.result() for future in running]


def overflowing_vectors(address: Address) -> list[str]:
    """Query vectors whose products are beyond float32, with and without signs that cancel."""
    vectors = ([3e38] * INDEX_DIM, [3e38, -3e38] * (INDEX_DIM // 2), [1e19] * INDEX_DIM)
    return [
        send(address, ":retrieve", json.dumps({"vectors": [vector], **options}).encode(), {})
        for vector in vectors
        for options in ({}, {"exact": True}, {"k": 100})
    ]


def examples_times_features(address: Address) -> list[str]:
    """Many empty examples beside a context of many features."""
    examples = b",".join([b"{}"] * 11_000)
    features = b",".join(b'"%x":1' % number for number in range(3_600))
    body = b'{"examples":[' + examples + b'],"context":{' + features + b"}}"
    return [send_compressed(address, path, body) for path in (":classify", ":regress", ":classify")]


def strangers_over_grpc(address: Address) -> list[str]:
    """A large message of a client that may not use the model."""
    request = pb.RetrieveRequest(model=pb.ModelSpec(name=MODEL))
    request.vectors = bytes(8 << 20)
    message = request.SerializeToString()
    return side_by_side(4, partial(call, address, f"/{SERVICE}/Retrieve", message, STRANGER))


def bulk_changes(address: Address) -> list[str]:
    """Bulk changes at once, 7 MB of JSON each, of candidates that do not exist."""
    items = [
        {"id": 10_000_000 + number, "attributes": {"title": f"title {number}", "year": number}}
        for number in range(BULK_ITEMS)
    ]
    body = json.dumps({"items": items}).encode()
    sending = partial(send_compressed, address, "/candidates/attributes", body, WRITER)
    return side_by_side(BULK_BODIES, sending)


def refused_changes(address: Address) -> list[str]:
    """Changes that must not be made: an overflowing vector, a name of a stream without an end."""
    vector = {"id": 900_001, "features": {}, "vectors": {"movies": [3e38] * INDEX_DIM}}
    stream = {"items": [{"id": 424_242}], "stream": "s" * 300, "offset": 5}
    bodies = (("/candidates/upsert", {"items": [vector]}), ("/candidates/delete", stream))
    return [send(address, path, json.dumps(body).encode(), {}, WRITER) for path, body in bodies]


def compressed_lists(address: Address) -> list[str]:
    """Compressed bodies that parse to many times their size."""
    body = b'{"requests": [' + b"[]," * 3_000_000 + b"[]]}"
    return side_by_side(8, partial(send_compressed, address, ":recommend", body))


def compressed_messages(address: Address) -> list[str]:
    """Compressed messages over gRPC that are many times larger than what was sent."""
    model = pb.RetrieveRequest(model=pb.ModelSpec(name=MODEL)).SerializeToString()
    message = model + b"\x22\x00" * (7 << 20)
    method = f"/{SERVICE}/Retrieve"
    sending = partial(call, address, method, message, HONEST, grpc.Compression.Gzip)
    return side_by_side(4, sending)


def callers_that_leave(address: Address) -> list[str]:
    """Clients that leave behind pipelined requests, reset, and cancel."""
    body = json.dumps({"context": honest_bodies(1), "k": 20}).encode()
    lines = [
        f"POST /v1/models/{MODEL}:recommend HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"authorization: {HONEST['authorization']}",
        f"content-length: {len(body)}",
    ]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    for number in range(20):
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", address.http), timeout=5) as client,
        ):
            client.sendall(request * 2)
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    retrieval = pb.RetrieveRequest(model=pb.ModelSpec(name=MODEL), k=500)
    retrieval.ids.int64s = np.arange(1, 21).tobytes()
    with grpc.insecure_channel(f"127.0.0.1:{address.grpc}") as channel:
        method = channel.unary_unary(f"/{SERVICE}/Retrieve")
        for number in range(20):
            running = method.future(retrieval.SerializeToString(), metadata=[*HONEST.items()])
            time.sleep(number / 5000)
            running.cancel()
    return ["left"] * 40


def huge_shapes(address: Address) -> list[str]:
    """Shapes and digits that no array can have, in other servers' protocols."""
    tensors = [
        {"name": "hour", "shape": shape, "datatype": "INT64", "data": []}
        for shape in ([2**62, 0], [0, 2**63], [2**32, 2**32])
    ]
    url = f"http://127.0.0.1:{address.http}/v2/models/{MODEL}/infer"
    statuses = [
        str(httpx.post(url, json={"inputs": [tensor]}, headers=HONEST).status_code)
        for tensor in tensors
    ]
    digits = b'{"inputs": {"hour": [' + b"9" * 400 + b', 1.5, NaN], "user_id": [1, 2, 3]}}'
    return [*statuses, send(address, ":predict", digits, {})]


HOSTILE_CLIENTS: tuple[Callable[[Address], list[str]], ...] = (
    overflowing_vectors,
    examples_times_features,
    strangers_over_grpc,
    bulk_changes,
    refused_changes,
    compressed_lists,
    compressed_messages,
    callers_that_leave,
    huge_shapes,
)


# The soak


@dataclass
class Seen:
    """What the honest clients saw in one phase.

    Attributes:
      latencies_s: The latency of each response.
      wrong: The responses that differ from those alone, with their number.
    """

    latencies_s: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)

    def quantile_ms(self, share: float) -> float:
        """Returns a quantile of the latencies."""
        return 1000 * float(np.quantile(self.latencies_s, share))


def call_at_rate(
    name: str, responses: Iterator[bytes], expected: list[bytes], seen: Seen, end: float
) -> None:
    """Sends the requests of an honest client at their rate, at least one, and compares the
    responses.

    Args:
      name: The name of the client.
      responses: Sends the next request and returns its response.
      expected: The responses alone, in the order of the requests.
      seen: Gets what differs.
      end: The time of the end, on the clock of `time.monotonic()`.
    """
    number = 0
    due = time.monotonic()
    while number == 0 or due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        response = next(responses)
        # From the time when it was due: a request that waited for the one before counts as slow.
        seen.latencies_s.append(time.monotonic() - due)
        if response != expected[number % REQUESTS]:
            seen.wrong[f"{name}: {response[:60]!r}"] += 1
        number += 1
        due += 1 / RATE


def repeat(hostile: Callable[[Address], list[str]], address: Address, end: float) -> Counter[str]:
    """Runs rounds of a hostile client until `end`, at least one, with pauses as long as the rounds;
    returns the statuses.
    """
    statuses: Counter[str] = Counter()
    while True:
        began = time.monotonic()
        statuses.update(hostile(address))
        time.sleep(max(0.2, time.monotonic() - began))
        if time.monotonic() >= end:
            return statuses


def phase(
    address: Address,
    expected: Mapping[str, list[bytes]],
    hostile: Callable[[Address], list[str]] | None,
    seconds: float,
    pool: Any,
) -> tuple[Seen, Counter[str]]:
    """Runs the honest clients for some time, beside a hostile one in a process of its own."""
    end = time.monotonic() + seconds
    running = None
    if hostile is not None:
        running = pool.apply_async(repeat, (hostile, address, end))
    seen = Seen()
    threads = []
    for name, client in HONEST_CLIENTS.items():
        arguments = (name, client(address), expected[name], seen, end)
        threads.append(threading.Thread(target=call_at_rate, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if running is None:
        return seen, Counter()
    return seen, running.get(WAIT_S)


@contextmanager
def serving(directory: Path, problems: list[str]) -> Iterator[Address]:
    """Serves a copy of the quick start's bundle with one worker, over all protocols; adds what its
    log says of faults of its own.
    """
    root = directory / "bundles"
    shutil.copytree(BUNDLES, root)
    tokens = directory / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    options = {
        "--tokens": tokens,
        "--changes-from": "writer",
        "--protocols": "tensorflow-serving,open-inference",
        "--changes-dir": directory / "changes",
    }
    service = Process(root, *[str(part) for pair in options.items() for part in pair])
    try:
        service.event("version_available")
        ports = service.ports
        yield Address(ports["http"], ports["grpc"])
        if service.stop() != 0:
            problems.append("the service did not drain")
    finally:
        service.kill()
    faults: Counter[str] = Counter()
    for line in service.last_lines():
        if line["level"] in {"error", "critical"} or line["event"].startswith("worker_"):
            reason = line.get("reason") or line.get("exception") or line.get("message", "")
            faults[f"{line['event']} at level {line['level']}: {str(reason)[-200:]}"] += 1
    problems += [f"the log has {fault}, {count} times" for fault, count in faults.most_common(20)]


def soak(seconds: float) -> list[str]:
    """Runs every phase; returns what is wrong."""
    problems: list[str] = []
    spawning = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving(Path(scratch), problems) as address,
        spawning.Pool(1) as pool,
    ):
        expected = {}
        for name, client in HONEST_CLIENTS.items():
            responses = client(address)
            expected[name] = [next(responses) for _ in range(REQUESTS)]
            failed = [body for body in expected[name] if not body.startswith((b"200 ", b"OK "))]
            if failed:
                raise SystemExit(f"{name} fails alone: {failed[0]!r}")

        alone, _ = phase(address, expected, None, seconds, pool)
        SHOW.print(f"{'alone':26} {len(alone.latencies_s):6} responses, {latencies(alone)}")
        for hostile in HOSTILE_CLIENTS:
            seen, statuses = phase(address, expected, hostile, seconds, pool)
            ratio = seen.quantile_ms(0.99) / alone.quantile_ms(0.99)
            SHOW.print(
                f"{hostile.__name__:26} {len(seen.latencies_s):6} responses, {latencies(seen)}, "
                f"p99 {ratio:.1f} x; hostile: {dict(statuses.most_common(6))}"
            )
            problems += [
                f"{hostile.__name__}: {text}, {count} times"
                for text, count in seen.wrong.most_common(5)
            ]
        alone_last, _ = phase(address, expected, None, seconds, pool)
        SHOW.print(
            f"{'alone again':26} {len(alone_last.latencies_s):6} responses, {latencies(alone_last)}"
        )
        problems += [f"alone again: {text}" for text in alone_last.wrong]
    return problems


def latencies(seen: Seen) -> str:
    """Returns the latencies of a phase as text."""
    return f"p50 {seen.quantile_ms(0.5):.1f} ms, p99 {seen.quantile_ms(0.99):.1f} ms"


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=50, help="seconds of each phase")
    options = arguments.parse_args()
    problems = soak(options.seconds)
    for problem in problems:
        SHOW.print("WRONG:", problem)
    if problems:
        raise SystemExit("soak: failed")
    SHOW.print("soak: passed")


if __name__ == "__main__":
    main()
