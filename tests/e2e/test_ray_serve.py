"""Replicas on Ray Serve: the same response through every entry, and no failed request while they
are replaced and updated.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rowcast_client import Client
from rowcast_client.errors import RowcastError

from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S, until
from tests.e2e.ray_cluster import ServeCluster
from tests.e2e.services import BODY, RETRIEVE, assert_found, nearest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

for needed in ("ray.serve", "aiohttp_cors"):  # the second comes with ray[serve] alone
    pytest.importorskip(needed)
WAYS = ("http", "grpc", "ingress")


class Site:
    """Bundles in a store, and the cluster whose replicas pull them to the root of their node."""

    def __init__(self, directory: Path, towers: Path) -> None:
        self.root = directory / "root"
        store = directory / "store"
        self.root.mkdir()
        self.bundles = {
            version: write_small_bundle(store, towers, "movies", version) for version in (1, 2)
        }
        self.cluster = ServeCluster()

    def deploy(self, version: int, args: dict[str, Any] | None = None, **options: Any) -> None:
        """Deploys two replicas of a version; does not wait."""
        pulled = {"bundles": [str(self.bundles[version].directory)]}
        quick = {
            "health_check_period_s": 1,
            "graceful_shutdown_wait_loop_s": 0.1,
            "num_replicas": 2,
        }
        self.cluster.deploy(self.root, args or {}, **quick | {"user_config": pulled} | options)

    @contextmanager
    def callers(self) -> Iterator[dict[str, Callable[[], int]]]:
        """Yields a caller for each entry, which returns the version in the response. Through the
        ingress it does not retry.
        """
        url = {
            entry: f"{'grpc' if entry == 'grpc' else 'http'}://127.0.0.1:{self.cluster.ports[entry]}"
            for entry in WAYS
        }
        with (
            Client(url["http"], timeout_s=WAIT_S) as http,
            Client(url["grpc"], timeout_s=WAIT_S) as grpc,
            httpx.Client(base_url=url["ingress"], timeout=WAIT_S, verify=False) as ingress,
        ):
            yield {
                "http": lambda: http.retrieve({"user": 3}, k=2).version,
                "grpc": lambda: grpc.retrieve({"user": 3}, k=2).version,
                "ingress": lambda: int(
                    ingress.post(RETRIEVE, json=BODY).raise_for_status().json()["version"]
                ),
            }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Site]:
    opened = Site(tmp_path_factory.mktemp("site"), small_towers)
    yield opened
    opened.cluster.close()


@contextmanager
def load(site: Site) -> Iterator[dict[str, list[int]]]:
    """Calls through every entry in the background, one call after the other; yields the versions in
    the responses by entry. No call may fail.
    """
    ended = threading.Event()
    answered: dict[str, list[int]] = {entry: [] for entry in WAYS}
    failures: list[str] = []

    def call(entry: str, caller: Callable[[], int]) -> None:
        while not ended.is_set():
            try:
                answered[entry].append(caller())
            except (RowcastError, httpx.HTTPError) as problem:
                failures.append(f"{entry} after {len(answered[entry])}: {problem!r}")

    with site.callers() as callers:
        threads = [threading.Thread(target=call, args=each) for each in callers.items()]
        for thread in threads:
            thread.start()
        try:
            until(lambda: all(answered.values()) or bool(failures))
            yield answered
        finally:
            ended.set()
            for thread in threads:
                thread.join(WAIT_S)
    assert failures == []


def test_replicas_respond_alike_over_http_grpc_and_the_ingress(site: Site) -> None:
    site.deploy(1)
    assert len(site.cluster.wait(2)) == 2
    for entry in ("http", "ingress"):
        with httpx.Client(
            base_url=f"http://127.0.0.1:{site.cluster.ports[entry]}", timeout=WAIT_S, verify=False
        ) as client:
            assert client.get("/readyz").status_code == 200
            assert_found(client.post(RETRIEVE, json=BODY).json(), nearest(site.bundles[1]))
    with Client(f"grpc://127.0.0.1:{site.cluster.ports['grpc']}", timeout_s=WAIT_S) as client:
        neighbors = client.retrieve({"user": 3}, k=2)[0]
        actual = {"ids": neighbors.ids.tolist(), "scores": neighbors.scores.tolist()}
    assert_found(actual, nearest(site.bundles[1]))


def test_version_switches_in_place_without_a_failed_request(site: Site) -> None:
    site.deploy(1)
    before = site.cluster.wait(2)
    with load(site) as answered:
        site.deploy(2)
        until(lambda: all(versions[-1] == 2 for versions in answered.values()))
        assert site.cluster.wait(2) == before


def test_bundle_is_pulled_once_for_all_replicas_of_a_node(site: Site) -> None:
    site.deploy(2)
    site.cluster.wait(2)
    pulled = [event for event in site.cluster.events("bundle_pulled") if event["version"] == 2]
    assert len({each["pid"] for each in pulled}) >= 2
    assert [bool(each["downloaded_bytes"]) for each in pulled].count(True) == 1


def test_pin_of_an_older_version_is_followed(site: Site) -> None:
    site.deploy(2, user_config={"models": {"movies": {"pinned": [1], "labels": {"next": 2}}}})
    site.cluster.wait(2)
    with site.callers() as callers:
        until(lambda: {callers[entry]() for entry in WAYS for _ in range(4)} == {1})
    with Client(f"http://127.0.0.1:{site.cluster.ports['http']}", timeout_s=WAIT_S) as client:
        assert client.retrieve({"user": 3}, k=2, label="next").version == 2


def test_killed_replica_is_replaced_while_the_other_serves(site: Site) -> None:
    site.deploy(2)
    before = site.cluster.wait(2)
    killed = min(before)
    # What was on its way to the killed one is lost; the client tries again, Serve's ingress does
    # not.
    with Client(f"grpc://127.0.0.1:{site.cluster.ports['grpc']}", timeout_s=WAIT_S) as client:
        os.kill(killed, signal.SIGKILL)
        assert {client.retrieve({"user": 3}, k=2).version for _ in range(100)} == {2}
        until(lambda: len(site.cluster.processes() - {killed}) == 2)
    assert site.cluster.wait(2) > before - {killed}


def test_rolling_update_fails_no_request(site: Site) -> None:
    site.deploy(2)
    before = site.cluster.wait(2)
    with load(site):
        site.deploy(2, {"max_k": 5})
        until(lambda: not site.cluster.processes() & before)
        site.cluster.wait(2)
    with httpx.Client(
        base_url=f"http://127.0.0.1:{site.cluster.ports['http']}", verify=False
    ) as client:
        rejected = client.post(RETRIEVE, json={**BODY, "k": 6})
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (400, "INVALID_ARGUMENT")


def test_replica_is_added_for_requests_that_serve_does_not_route(site: Site) -> None:
    scaling = {
        "min_replicas": 1,
        "initial_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 0.001,
        "upscale_delay_s": 0,
        "policy": {"policy_function": "rowcast.ray_serve:scale_by_inflight"},
    }
    site.deploy(2, num_replicas=None, autoscaling_config=scaling)
    site.cluster.wait(1)
    ended = threading.Event()

    def call() -> None:
        with Client(f"grpc://127.0.0.1:{site.cluster.ports['grpc']}", timeout_s=WAIT_S) as client:
            while not ended.is_set():
                client.retrieve([{"user": 3}] * 500, k=2)

    # Serve samples what is in progress, and rarely sees requests of one query.
    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(site.cluster.processes()) == 2)
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT_S)


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"user_config": {"models": {"movies": {"pined": [1]}}}},
        "user_config: models.movies.pined is '[1]'",
    ),
    (
        {"user_config": {"bundles": ["/nowhere/movies"]}},
        "/nowhere/movies is empty or does not exist",
    ),
    ({"args": {"root": "/nowhere"}}, "'/nowhere' is not a directory; create it first"),
    ({"args": {"max_kk": 1}}, "args has 'max_kk', which is not a setting"),
]


def test_wrong_configuration_is_named_and_the_earlier_replicas_stay(site: Site) -> None:
    site.deploy(2)
    site.cluster.wait(2)
    for wrong, message in WRONG:
        site.deploy(2, **wrong)
        until(lambda message=message: message in site.cluster.wait_failed())  # type: ignore[misc]
        with site.callers() as callers:
            assert callers["grpc"]() == 2
