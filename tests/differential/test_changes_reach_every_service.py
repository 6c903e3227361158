"""A random history of changes, sent to several processes of a host in every way, is served alike by
all that share its file, copy it, read rows and search by shards, or start later: as by one process
that received each change as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rowcast_client import Client, errors

from tests.bundles.small import write_small_bundle
from tests.differential.random_changes import (
    CONTEXTS,
    KEYS,
    NAMES,
    NEW,
    REJECTED,
    STORED,
    Change,
    RandomChanges,
    names_of,
    send,
)
from tests.differential.random_requests import LIMITS, Call, RandomRequests, differences, responses
from tests.e2e.process import WAIT_S, until
from tests.random_cases import seeds
from tests.units.service.changes import keyed
from tests.units.service.changes.making import (
    Rejected,
    change,
    until_applied,
)
from tests.units.service.running import RunningService

CHANGES = 120
REQUESTS = 40
TOKEN = "0123456789abcdef-of-the-writer"
HEADERS = {"authorization": f"Bearer {TOKEN}"}


class Hosts:
    """Services over one root, whose hosts have changes files of their own."""

    def __init__(self, directory: Path, towers: Path) -> None:
        self.root = directory / "root"
        self._directory = directory
        self._towers = towers
        self._started = ExitStack()
        self._tokens = directory / "tokens"
        self._tokens.write_text(f"writer {TOKEN}\n")
        (directory / "token").write_text(TOKEN)
        self.root.mkdir()

    def write(self, version: int) -> None:
        write_small_bundle(
            self.root,
            self._towers,
            version=version,
            features=keyed.keyed_features(),
            keys=keyed.KEYS,
            partitions=4,
            users=True,
            lists=True,
            keep=30,
        )

    def start(self, host: str, **options: Any) -> RunningService:
        settings = {
            "changes_dir": self._directory / host,
            "tokens": self._tokens,
            "changes_from": ("writer",),
            "live_recall_share": 0,
            "poll_interval_s": 60.0,
        }
        service = RunningService(self.root, **{**LIMITS, **settings, **options})
        self._started.callback(service.close)
        return service

    def follow(self, host: str, writer: RunningService, **options: Any) -> RunningService:
        token = self._directory / "token"
        return self.start(host, follow_changes=writer.http, follow_changes_token=token, **options)

    def start_shards(self) -> dict[str, Any]:
        """Starts two shards; returns the settings of their routers."""
        shards = [
            RunningService(self.root, **LIMITS, shard=f"{number}/2", shard_min_bytes=1)
            for number in (1, 2)
        ]
        for shard in shards:
            self._started.callback(shard.close)
        return {"shard_addresses": tuple([shard.grpc for shard in shards]), "shard_min_bytes": 1}

    def close(self) -> None:
        self._started.close()


@pytest.fixture
def hosts(tmp_path: Path, small_towers: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, small_towers)
    yield hosts
    hosts.close()


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has positions be compacted, and states be read in parts, from a few changes on."""
    monkeypatch.setattr("service.changes.store_changes._COMPACTED_MIN", 40)
    monkeypatch.setattr("bundle.changes.file._PAGE_STATES", 7)
    monkeypatch.setattr("service.changes.applied_file._COPIED_CHARACTERS", 2_000)


def has_version_2(service: RunningService) -> bool:
    """Looks for new versions. A router has one once its shards have it."""
    service.scan()
    return service.current().version == 2


def result_of(way: RunningService | Client, drawn: Change) -> list[Any]:
    """Makes a change by the admin API of a service, or by a client; returns what is equal in all
    ways.
    """
    path, body = drawn
    try:
        if isinstance(way, Client):
            result: Mapping[str, Any] = vars(send(way, drawn))
        else:
            options = {name: value for name, value in body.items() if name != "items"}
            result = change(way, path, *body["items"], **options)
    except (Rejected, errors.RowcastError) as problem:
        return [problem.code]
    numbers = ("changed", "outdated_count", "unknown_count", "is_repeated", "stream_offset")
    lists = [[*result.get(name, ())] for name in ("outdated", "unknown")]
    return [result["version"], *[int(result.get(name, 0)) for name in numbers], *lists]


def whole_state() -> list[Call]:
    """Returns requests for all candidates, rows and contexts."""
    vectors = [[0.5] * 8, [-1.0, 1.0] * 4, [0.0] * 8]
    attributes = ["title", "year", "genres", "rating", "classic"]
    candidates = {"candidate_ids": STORED + NEW, "not_found": "skip"}
    return [
        ("retrieve", {"k": 60, "vectors": vectors, "attributes": attributes}),
        *[("lookup", {"feature": feature, "ids": keys}) for feature, keys in KEYS.items()],
        *[("rank", {"context_id": key, **candidates}) for key in CONTEXTS],
    ]


@pytest.mark.slow
def test_every_service_responds_as_one_that_received_each_change(
    hosts: Hosts, request: pytest.FixtureRequest
) -> None:
    hosts.write(1)
    shards = hosts.start_shards()
    expected = hosts.start("twin")
    writer = hosts.start("writer")
    router = hosts.start("writer", **shards)
    follower = hosts.follow("follower", writer)
    services = {
        "writer": writer,
        "router that shares its file": router,
        "follower": follower,
        "follower of a follower": hosts.follow("next", follower),
        "router that follows": hosts.follow("router", writer, **shards),
    }

    (seed,) = seeds(request, 1, 47)[:1]
    changes = RandomChanges(seed)
    drawn_names = set[str]()
    with (
        Client(writer.http, headers=HEADERS, timeout_s=WAIT_S) as by_http,
        Client(f"grpc://{router.grpc}", headers=HEADERS, timeout_s=WAIT_S) as by_grpc,
    ):
        ways: list[RunningService | Client] = [writer, by_http, by_grpc]
        for number in range(CHANGES):
            if number == CHANGES // 2:
                # Vectors that were sent belong to the first version.
                hosts.write(2)
                for service in (expected, *services.values()):
                    until(lambda: has_version_2(service))  # noqa: B023
            drawn = changes.draw()
            result = result_of(expected, drawn)
            until_applied(writer, router)  # Both write the same file.
            assert result_of(ways[number % len(ways)], drawn) == result, drawn
            if len(result) > 1 and result[1]:
                drawn_names |= names_of(drawn)
    assert drawn_names == NAMES - REJECTED, "never made"

    services["worker that starts later"] = hosts.start("writer")
    services["router that starts later"] = hosts.start("writer", **shards)
    requests = RandomRequests(seed, STORED + NEW, CONTEXTS)
    calls = [*whole_state(), *[requests.draw() for _ in range(REQUESTS)]]
    wanted = responses(expected, calls, **HEADERS)
    for name, service in services.items():
        until_applied(writer, service)
        differing = differences(calls, responses(service, calls, **HEADERS), wanted)
        assert not differing, f"{name}: {len(differing)} of {len(calls)} differ: {differing[0]}"
