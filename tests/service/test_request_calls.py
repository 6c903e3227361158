"""How many Python and C calls a request passes on the event loop, from the ASGI application's
first call to its last.

The count of one request does not depend on the machine, but on the versions of Python and of the
libraries. `request_calls.json` holds the recorded figures. A change that lowers one records it
there; one that raises it says why.
"""

from __future__ import annotations

import asyncio
import functools
import json
import operator
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bundle.features.columns import Column
from service.codec.protobuf import column_message
from service.codec.stubs import embedding_service_pb2 as pb
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.service.running import RunningService, column

RECORDED: dict[str, dict[str, int]] = json.loads(
    Path(__file__).with_name("request_calls.json").read_text()
)
TOLERANCE = 1.05
ROOT = Path(__file__).parents[2]
PACKAGES = ("service/", "bundle/", "runtime/")
CANDIDATES = 200
HISTORY = 50
CONCURRENT = 16
ROUNDS = 20
WARM_UP_ROUNDS = 5
"""The first request of a kind runs in a compute thread, and creates series of metrics."""
TYPES = {"json": b"application/json", "protobuf": b"application/x-protobuf"}

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the figures are those of Python 3.11"
)


class Calls:
    """Counts the calls of the thread that profiles with it, by the file that they are in."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call"):
            self.files[frame.f_code.co_filename] += 1


class Request:
    """One POST to the ASGI application, whose body is there from the start."""

    def __init__(self, call: str, form: str, body: bytes) -> None:
        self._path = f"/v1/models/movies:{call}"
        self._body = body
        self._headers = [
            (b"host", b"127.0.0.1:8000"),
            (b"accept", b"*/*"),
            (b"content-type", TYPES[form]),
            (b"content-length", str(len(body)).encode()),
        ]

    async def send_to(self, app: Callable[..., Awaitable[None]]) -> None:
        """Sends the request, and checks that it succeeds."""
        messages = [{"type": "http.request", "body": self._body, "more_body": False}]
        messages_sent = list[Any]()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages_sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": list(self._headers),
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        await app(scope, receive, send)
        assert messages_sent[0]["status"] == 200, messages_sent


def bodies(small: SmallBundle) -> dict[tuple[str, str], bytes]:
    """A retrieval and a ranking as the benchmark sends them, in both forms."""
    history = small.ids[:HISTORY]
    candidates = small.ids[:CANDIDATES]
    query = {"user": column(5), "history": column(*history, offsets=(0, HISTORY))}
    context = {"user": column(5), "liked": query["history"], "hour": column(0.5)}
    retrieval = pb.RetrieveRequest(k=100, context=messages_of(query))
    ids = pb.Ids(int64s=candidates.astype("<i8").tobytes())
    ranking = pb.RankRequest(context=messages_of(context), candidate_ids=ids)
    retrieval_value = {"k": 100, "context": values_of(query)}
    ranking_value = {"context": values_of(context), "candidate_ids": candidates.tolist()}
    return {
        ("retrieve", "json"): json.dumps(retrieval_value).encode(),
        ("retrieve", "protobuf"): retrieval.SerializeToString(),
        ("rank", "json"): json.dumps(ranking_value).encode(),
        ("rank", "protobuf"): ranking.SerializeToString(),
    }


def messages_of(columns: Mapping[str, Column]) -> dict[str, pb.Column]:
    """Returns columns of one example as messages."""
    return {name: column_message(column) for name, column in columns.items()}


def values_of(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Returns columns of one example as JSON values."""
    return {
        name: column.values.item() if column.offsets is None else column.values.tolist()
        for name, column in columns.items()
    }


def calls_of(service: RunningService, request: Request, concurrent: int = 1) -> Counter[str]:
    """Returns the calls of one of several concurrent requests by file, the fewest of all rounds:
    now and then the loop does something else meanwhile.
    """

    async def count(calls: Calls) -> None:
        pending = [request.send_to(app) for _ in range(concurrent)]
        sys.setprofile(calls)
        if concurrent == 1:
            await pending[0]
        else:
            await asyncio.gather(*pending)
        sys.setprofile(None)

    app = service.worker.asgi_app()
    rounds = list[Counter[str]]()
    for _ in range(WARM_UP_ROUNDS):
        service.call(count(Calls()))
    for _ in range(ROUNDS):
        calls = Calls()
        service.call(count(calls))
        rounds.append(calls.files)
    fewest = functools.reduce(operator.and_, rounds)
    return Counter({file: round(n / concurrent) for file, n in fewest.items()})


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> dict[str, Counter[str]]:
    """The calls of each measured request, by file."""
    root = tmp_path_factory.mktemp("root")
    small = write_small_bundle(root, small_towers, size=2 * CANDIDATES)
    # On a busy machine, requests would take long enough for the compute threads. Which queries are
    # sampled is random.
    service = RunningService(root, inline_max_us=1_000_000, poll_interval_s=60, live_recall_share=0)
    counts_by_case = dict[str, Counter[str]]()
    try:
        requests = {key: Request(*key, body) for key, body in bodies(small).items()}
        for (call, form), request in requests.items():
            counts_by_case[f"{call} {form}"] = calls_of(service, request)
        concurrent = requests["retrieve", "protobuf"]
        counts_by_case["retrieve protobuf concurrent"] = calls_of(service, concurrent, CONCURRENT)
    finally:
        service.close()
    return counts_by_case


@pytest.mark.parametrize("name", RECORDED)
def test_request_passes_at_most_the_recorded_calls_and_modules(
    name: str, measured: dict[str, Counter[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A request passes at most five percent more calls than are recorded for it, and no more of
    our modules. The columns of a message come in any order, so that another module may see them.
    """
    calls = Counter({file.removeprefix(f"{ROOT}/"): n for file, n in measured[name].items()})
    modules = [file for file in calls if file.startswith(PACKAGES)]
    counted = {"calls": calls.total(), "modules": len(modules)}
    recorded = RECORDED[name]
    largest = ", ".join(f"{n} {file}" for file, n in calls.most_common(12))
    report = f"{name}: {counted}, recorded {recorded}; most calls: {largest}"
    with capsys.disabled():
        sys.stdout.write(f"\n{report}\n")
    assert counted["calls"] <= recorded["calls"] * TOLERANCE, report
    assert counted["modules"] <= recorded["modules"], report
