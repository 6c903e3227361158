"""Clients of several addresses: turns, failover, and what is reported if no address can be used."""

from __future__ import annotations

import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rowcast_client import (
    Call,
    Client,
    DeadlineExceeded,
    InvalidArgument,
    InvalidResponse,
    NotReady,
    Retries,
    TlsFailed,
    Unauthenticated,
    Unreachable,
    calls,
    change_calls,
    changes,
    rotation,
)

from tests.e2e.process import Process, kill_all, until
from tests.units.client.conftest import Service
from tests.units.client.servers import (
    EMBED,
    NOT_READY,
    OK,
    WAYS,
    Reply,
    Server,
    Way,
    http_page,
    http_server,
)
from tests.units.client.test_transports import tls_of

ONCE = Retries(attempts_max=1)
LOOKUP = calls.lookup("user", [3], model="movies")


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


def servers(running: ExitStack, way: Way, *replies: Reply) -> list[Server]:
    """Servers that run until the end, each with one reply to everything."""
    return [running.enter_context(way.server([reply])) for reply in replies]


def urls_of(started: Sequence[Server]) -> list[str]:
    return [server.url for server in started]


def closed_url(way: Way) -> str:
    """An address at which nothing listens."""
    with way.server([OK]) as server:
        return server.url


def test_calls_take_several_addresses_in_turns(way: Way) -> None:
    with ExitStack() as running:
        started = servers(running, way, OK, OK, OK)
        way.send(urls_of(started), *[EMBED] * 6)
        assert [len(server.requests) for server in started] == [2, 2, 2]


def test_addresses_are_a_list_or_a_text_with_commas() -> None:
    urls = ("grpc://a:1", "grpc://b:2")
    for url in (list(urls), "grpc://a:1,b:2", "grpc://a:1, grpc://b:2", [*urls, urls[0]]):
        assert tuple(address.url for address in Client(url).addresses) == urls


def test_call_goes_to_the_next_address_at_once_and_later_ones_avoid_the_first(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "AVOIDED_S", 3600.0)
    with ExitStack() as running:
        away, usable = servers(running, way, NOT_READY, OK)
        urls = [closed_url(way), away.url, usable.url]
        assert way.send(urls, *[EMBED] * 9, retries=ONCE).version == 7
        assert len(away.requests) <= 1
        assert len(usable.requests) == 9


def test_address_that_works_again_gets_calls_again(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "AVOIDED_S", 0.0)
    with ExitStack() as running:
        returning = running.enter_context(way.server([NOT_READY, OK]))
        (steady,) = servers(running, way, OK)
        way.send([returning.url, steady.url], *[EMBED] * 8, retries=ONCE)
        assert len(returning.requests) == 4
        assert len(steady.requests) == 5


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_address_that_does_not_respond_is_avoided(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "AVOIDED_S", 3600.0)
    way = Way(transport, asynchronous=False)
    with ExitStack() as running:
        silent = running.enter_context(way.server([None]))
        (usable,) = servers(running, way, OK)
        failures = Counter[str]()
        client = Client([silent.url, usable.url], timeout_s=5)
        for _ in range(6):
            try:
                client.send(EMBED)
            except DeadlineExceeded as late:
                failures[late.code] += 1
        client.close()
        assert failures["DEADLINE"] <= 1
        assert len(usable.requests) >= 5


def test_call_without_any_usable_address_lists_all_of_them(way: Way) -> None:
    urls = [closed_url(way), closed_url(way)]
    with pytest.raises(Unreachable) as caught:
        way.send(urls, EMBED, retries=Retries(attempts_max=2, backoff_s=0.01))
    assert type(caught.value) is Unreachable
    assert caught.value.message.startswith("none of 2 addresses can be used: ")
    assert all(url in caught.value.message for url in urls)
    assert sorted(caught.value.address.split(", ")) == sorted(urls)
    with way.server([NOT_READY]) as away, pytest.raises(NotReady) as unready:
        way.send([*urls, away.url], EMBED, retries=ONCE)
    assert f"{away.url}: a sentence" in unready.value.message
    assert unready.value.request_id == away.requests[0][1]["x-request-id"]


def test_call_without_any_secure_connection_is_not_retried(way: Way) -> None:
    with (
        way.server([OK], tls_of(way, mutual=False)) as first,
        way.server([OK], tls_of(way, mutual=False)) as second,
        pytest.raises(TlsFailed) as caught,
    ):
        way.send([first.url, second.url], EMBED)
    assert first.url in caught.value.message
    assert second.url in caught.value.message


@pytest.mark.parametrize(
    "call", [changes.changes(), change_calls.delete_candidates([5])], ids=lambda call: call.method
)
def test_changes_are_not_sent_to_several_addresses(way: Way, call: Call[Any]) -> None:
    with pytest.raises(InvalidArgument, match="changes belong to one service"):
        way.send([closed_url(way), closed_url(way)], call)


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Process]:
    """Another service, over an empty root, which goes on serving after SIGTERM."""
    root = tmp_path / "bundles"
    root.mkdir()
    process = Process(root, "--drain-delay-s", "3600")
    try:
        process.event("listening")
        yield process
    finally:
        if process.process.poll() is None:
            kill_all(process)
        process.kill()


def add_movies(service: Service, root: Path) -> None:
    """Gives a service the bundle of another one."""
    copied = shutil.copytree(service.movies.directory, root.parent / "copied")
    (root / "movies").mkdir()
    copied.rename(root / "movies" / "2")


def url_of(process: Process, way: Way) -> str:
    return f"{way.transport}://127.0.0.1:{process.ports[way.transport]}"


def test_ready_follows_the_states_of_a_service(
    service: Service, second: Process, tmp_path: Path
) -> None:
    urls = {way: url_of(second, way) for way in WAYS}
    for way, url in urls.items():
        assert not way.ready(url)
        assert way.ready([url, service.url(way)])
        assert way.send([url, service.url(way)], LOOKUP, LOOKUP, retries=ONCE).found.all()
    add_movies(service, tmp_path / "bundles")
    second.event("ready")
    for way, url in urls.items():
        until(lambda way=way, url=url: way.ready(url))  # type: ignore[misc]
    second.process.send_signal(signal.SIGTERM)
    second.event("draining")
    for way, url in urls.items():
        assert not way.ready(url)
        assert way.send(url, LOOKUP, retries=ONCE).found.all()
    kill_all(second)
    for way, url in urls.items():
        assert not way.ready(url)


@pytest.mark.parametrize(
    "end",
    [pytest.param(Process.stop, id="stop"), pytest.param(kill_all, marks=pytest.mark.nightly)],
)
def test_end_of_a_service_fails_no_call(
    service: Service, tmp_path: Path, end: Callable[[Process], object]
) -> None:
    root = tmp_path / "bundles"
    root.mkdir()
    add_movies(service, root)
    ending = Process(root)
    finished = threading.Event()
    counts: dict[str, int] = {}

    def call_on(way: Way) -> None:
        with Client([url_of(ending, way), service.url(way)], retries=ONCE) as client:
            while not finished.wait(0.02):
                client.send(LOOKUP)
                counts[way.transport] = counts.get(way.transport, 0) + 1

    try:
        ending.event("ready")
        with ThreadPoolExecutor() as pool:
            callers = [pool.submit(call_on, way) for way in WAYS if not way.asynchronous]
            try:
                until(lambda: min(counts.values(), default=0) > 10 and len(counts) == 2)
                end(ending)
                before = dict(counts)
                until(
                    lambda: (
                        all(counts[name] > before[name] + 10 for name in before)
                        or any(caller.done() for caller in callers)
                    )
                )
            finally:
                finished.set()
        for caller in callers:
            caller.result()
    finally:
        ending.kill()


def test_ready_raises_what_does_not_pass(way: Way) -> None:
    denied = Reply("UNAUTHENTICATED", 401, "UNAUTHENTICATED")
    with way.server([denied]) as server, pytest.raises(Unauthenticated):
        way.ready(server.url)
    with way.server([OK], tls_of(way, mutual=False)) as server, pytest.raises(TlsFailed):
        way.ready(server.url)


def test_ready_of_a_service_that_does_not_respond_is_false_within_its_time(way: Way) -> None:
    with way.server([None]) as first, way.server([None]) as second:
        assert not way.ready([first.url, second.url], timeout_s=2)
        assert first.requests
        assert second.requests


def test_ready_of_another_http_server_is_an_error() -> None:
    page = http_page(b"welcome", "text/html")
    with http_server([page]) as server, pytest.raises(InvalidResponse, match="/readyz"):
        Way("http", asynchronous=False).ready(server.url)
