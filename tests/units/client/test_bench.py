"""`rowcast bench`: what it sends, what it counts, and what it says of itself."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rowcast_client import AsyncClient, InvalidArgument, Retries, calls
from rowcast_client.bench import bench
from rowcast_client.load import Load, LoadSettings, apply_load
from rowcast_client.load_report import load_report
from rowcast_client.load_requests import recorded_requests

from service.request_log.record import RecordedRequest, RequestWriter
from tests.cases.random_requests import random_request, written
from tests.cases.ways import Ways, serving
from tests.units.client.servers import EMBED, EMBEDDED, OK, OVERLOADED, grpc_server

SLOW_S = 0.04


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = written(tmp_path_factory.mktemp("bundles"), small_towers).directory.parents[1]
    with serving(root, max_k=1000, max_candidates=10_000) as ways:
        yield ways


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache directory, which each test has for itself."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory


def run_bench(url: str, **options: Any) -> dict[str, Any]:
    """Returns the report of a short run."""
    options = {"seconds": 0.1, "timeout_s": 60.0} | options
    report, show = bench({"url": url}, note=lambda _: None, **options)
    assert list(show(report))
    return report


@pytest.mark.parametrize(
    ("transport", "call"),
    [
        ("http", ""),
        ("grpc", "retrieve"),
        ("http", "rank"),
        ("grpc", "recommend"),
        ("grpc", "embed"),
    ],
)
def test_examples_of_every_call_succeed(ways: Ways, transport: str, call: str) -> None:
    url = ways.service.http
    if transport == "grpc":
        url = f"grpc://{ways.service.grpc}"
    report = run_bench(url, call=call, concurrency=2)
    assert (report["model"], report["version"], report["failed"]) == ("movies", 1, 0)
    assert report["errors"] == {}
    assert report["succeeded"] > 0
    assert (call or "recommend") in report["source"]
    latencies = list(report["latency_ms"].values())
    assert len(latencies) == 5
    assert 0 < latencies[0] <= latencies[-1] == max(latencies)


def test_open_loop_sends_as_many_requests_as_the_rate_promises(ways: Ways) -> None:
    report = run_bench(ways.service.http, rate=50, seconds=0.4, call="embed")
    assert (report["succeeded"], report["failed"]) == (20, 0)


@contextmanager
def one_at_a_time(interrupted_at: int = 0) -> Iterator[str]:
    """A service that works on one request at a time; yields its URL.

    Args:
      interrupted_at: The number of the request at which this process is interrupted.
    """
    numbers = itertools.count(1)

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if next(numbers) == interrupted_at:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(SLOW_S)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(EMBEDDED.SerializeToString())

        def log_message(self, *_: object) -> None:
            pass

    class Patient(HTTPServer):
        request_queue_size = 64

    with Patient(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_open_loop_counts_latency_from_the_instant_at_which_a_request_was_due() -> None:
    """Ten requests that are due within 0.1 s wait for each other."""
    settings = LoadSettings(rate_per_s=100, concurrency=0, seconds=0.1, timeout_s=30)
    with one_at_a_time() as url:
        client = partial(AsyncClient, url, retries=Retries(attempts_max=1))
        load = apply_load(client, [EMBED], settings)
    assert len(load.latencies_s) == 10
    assert max(load.latencies_s) > 9 * SLOW_S - settings.seconds
    assert load.elapsed_s > 9 * SLOW_S


def test_open_loop_ends_when_a_service_no_longer_responds() -> None:
    settings = LoadSettings(rate_per_s=40, concurrency=0, seconds=0.2, timeout_s=0.3)
    with grpc_server([None]) as server:
        client = partial(AsyncClient, server.url, timeout_s=0.3, retries=Retries(attempts_max=1))
        load = apply_load(client, [EMBED], settings)
    assert load.errors == {"DEADLINE": 8}
    assert not load.latencies_s


def test_errors_are_counted_by_code_and_not_tried_again() -> None:
    count = 0
    seconds = 0.05
    while count < 4:  # a busy machine needs longer
        seconds *= 2
        settings = LoadSettings(rate_per_s=0, concurrency=1, seconds=seconds, timeout_s=30)
        with grpc_server([OVERLOADED, OVERLOADED, OK, OVERLOADED]) as server:
            client = partial(AsyncClient, server.url, retries=Retries(attempts_max=1))
            load = apply_load(client, [EMBED], settings)
            count = len(server.requests)
    # One request opened the connection before the clock started.
    assert load.errors["OVERLOADED"] == count - 2
    assert len(load.latencies_s) == 1
    assert "a sentence" in load.messages["OVERLOADED"]


def test_interrupt_ends_a_run_with_what_was_measured() -> None:
    with one_at_a_time(interrupted_at=3) as url:
        client = partial(AsyncClient, url, retries=Retries(attempts_max=1))
        settings = LoadSettings(rate_per_s=0, concurrency=1, seconds=60, timeout_s=30)
        load = apply_load(client, [EMBED], settings)
    assert load.interrupted
    assert load.latencies_s
    assert (load.unfinished, load.errors.total()) == (1, 0)
    report = load_report(load, settings, {})
    assert not [warning for warning in report["warnings"] if "succeeded" in warning]


def test_recordings_of_a_service_become_the_requests_that_were_recorded(tmp_path: Path) -> None:
    writer = RequestWriter(tmp_path / "movies", 1 << 20, 2)
    expected: list[Any] = []
    for seed in range(120):
        case = random_request(seed)
        try:
            request = case.sent().request
        except (InvalidArgument, TypeError):  # the service rejects it, and records none of these
            continue
        is_message = seed % 2 == 0
        body = json.dumps(case.json).encode()
        if is_message:
            body = request.SerializeToString()
        # Files may hold them in any order.
        recorded_s = -float(len(expected))
        writer.append(RecordedRequest(case.call, is_message, body, recorded_s))
        request.model.Clear()
        request.model.name = "movies"
        expected.insert(0, request)
    writer.close()
    assert len(expected) > 60
    for path in (tmp_path, tmp_path / "movies"):
        recorded = recorded_requests(path, model="movies")
        assert [call.request for call in recorded.calls] == expected
        assert recorded.unreadable == 0
        assert 0 < recorded.from_json < len(expected)


def test_recorded_requests_are_sent_and_damaged_lines_reported(ways: Ways, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    body = {"k": 3, "context": {"user": 7}}
    message = calls.embed({"user": 7}, tower="query").request.SerializeToString()
    lines = [
        {"call": "retrieve", "body": body, "at": None, "protobuf": None},
        {"call": "embed", "protobuf": True, "body": base64.b64encode(message).decode()},
        {"call": "retrieve", "body": {"no_such_option": 1}},
        {"call": "drop"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"call": "retr')
    report = run_bench(ways.service.http, requests=file, concurrency=1)
    assert report["failed"] == 0
    assert report["succeeded"] > 0
    assert (report["requests"], report["source"]) == (2, f"recorded requests of {file}")
    assert any("3 recorded requests cannot be read" in warning for warning in report["warnings"])
    assert any("1 requests were recorded as JSON" in warning for warning in report["warnings"])


UNREADABLE = {
    "no file": ("missing.jsonl", None, "", "cannot be read: No such file"),
    "no recordings": ("empty", None, "", "empty has no file *.jsonl"),
    "no request": (
        "a.jsonl",
        '{"call": "embed", "body": 5}',
        "",
        "a JSON object with call and body",
    ),
    "no such call": ("a.jsonl", '{"call": "embed", "body": {}}', "rank", "has no rank request"),
}


@pytest.mark.parametrize(
    ("name", "content", "call", "message"), UNREADABLE.values(), ids=UNREADABLE
)
def test_recordings_without_a_request_are_an_error(
    tmp_path: Path, name: str, content: str | None, call: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        recorded_requests(tmp_path / name, call)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "two loops": ({"rate": 5, "concurrency": 5}, "exactly one of them"),
    "a negative rate": ({"rate": -5}, "expected positive numbers"),
    "no time": ({"seconds": 0}, "expected positive numbers"),
    "too many requests": ({"rate": 1e6, "seconds": 60}, "lower the rate or the time"),
    "too many callers": ({"concurrency": 1000}, "expected at most 512"),
    "an unknown feature": ({"context": {"usr": 5}}, "no feature 'usr': expected"),
    "a feature beside recordings": (
        {"context": {"user": 5}, "requests": Path("r")},
        "leave --feature or --requests out",
    ),
    "a call without examples": ({"call": "lookup"}, "or recorded requests"),
    "a value that the model rejects": ({"context": {"user": "x"}}, "--requests"),
    "an unknown model": ({"model": "novels"}, "novels"),
    "no report to compare with": ({"compare_file": Path("none.json")}, "none.json cannot be read"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_do_not_fit_are_an_error_before_the_load(
    ways: Ways, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        run_bench(ways.service.http, **options)
    assert caught.value.code in ("INVALID_ARGUMENT", "NOT_FOUND")  # type: ignore[attr-defined]


def test_report_is_compared_with_the_last_one_of_the_same_load(
    ways: Ways, tmp_path: Path, cache: Path
) -> None:
    url = ways.service.http
    first = run_bench(url, call="embed", concurrency=1)
    assert "comparison" not in first
    saved = tmp_path / "first.json"
    saved.write_text(json.dumps(first))
    # Another load has no last one.
    assert "comparison" not in run_bench(url, call="embed", concurrency=2)
    second = run_bench(url, call="embed", concurrency=1)
    comparison = second["comparison"]
    assert comparison["at"] == first["at"]
    assert comparison["ratios"]["p50"] == pytest.approx(
        second["latency_ms"]["p50"] / first["latency_ms"]["p50"]
    )
    assert "p99 ms" in comparison["text"]
    assert "loads differ" not in comparison["text"]
    named = run_bench(url, call="embed", concurrency=3, compare_file=saved)
    assert "concurrency 1 -> 3" in named["comparison"]["text"]

    # A damaged file costs the comparison, not the figures.
    for file in cache.rglob("*.json"):
        file.write_text("{")
    report = run_bench(url, call="embed", concurrency=1)
    assert report["succeeded"] > 0
    assert any("is not a report" in warning for warning in report["warnings"])


def test_generator_that_is_the_limit_is_a_warning() -> None:
    settings = LoadSettings(rate_per_s=100, concurrency=0, seconds=1, timeout_s=1)
    load = Load(elapsed_s=1.0, cpu_s=0.2)
    load.latencies_s.extend([0.010] * 100)
    load.late_s.extend([0.0002] * 100)
    assert load_report(load, settings, {})["warnings"] == []
    load.late_s.extend([0.008] * 10)
    load.cpu_s = 0.95
    busy, late = load_report(load, settings, {})["warnings"]
    assert "95% of a core" in busy
    assert "ran late, by 8.0 ms" in late
