"""Routers and shards in processes of their own: what fails costs no request while one replica of
each shard remains, and addresses, versions and credentials change while they serve.
"""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundle.format.manifest import dump
from bundle.format.paths import MANIFEST
from tests.bundles.small import write_small_bundle
from tests.e2e.process import Process, until
from tests.e2e.services import (
    Launch,
    Write,
    client_of,
    count_of,
    ctl,
    is_ready,
    versions_of,
)
from tests.units.service.security.authorities import Authority

ALL = ("--shard-min-bytes", "1")
TOKEN = "0123456789abcdef0123"
REPLICAS = 'rowcast_shard_replicas{shard="1/2"}'


def shard(launch: Launch, number: str, *options: str) -> Process:
    started: Process = launch("--shard", number, *ALL, *options)
    return started


def router(launch: Launch, shards: list[Process], *options: str) -> Process:
    addresses = [
        text
        for shard in shards
        for text in ("--shard-addresses", f"127.0.0.1:{shard.ports['grpc']}")
    ]
    started: Process = launch(*addresses, *ALL, *options)
    return started


def post(client: httpx.Client, call: str, body: dict[str, Any]) -> tuple[int, Any]:
    actual = client.post(f"/v1/models/movies:{call}", json=body)
    content = actual.json()
    content.get("error", {}).pop("request_id", None)
    return actual.status_code, content


def ready(service: Process) -> Process:
    with client_of(service) as client:
        until(lambda: is_ready(client))
    return service


def wait_for_problem(service: Process, words: str) -> None:
    """Waits until a version cannot be loaded for this reason."""
    while words not in service.event("version_failed")["problem"]:
        continue


def write_with_unknown_users(root: Path, towers: Path, version: int) -> None:
    """Writes a bundle whose lost rows of users count as unknown, and publishes it complete."""
    small = write_small_bundle(
        root.with_name("made"),
        towers,
        version=version,
        row_types={"movies": "int8", "users": "linked"},
        partitions=3,
    )
    tables = dict(small.manifest.tables)
    tables["users"] = tables["users"].model_copy(update={"unavailable": "unknown"})
    manifest = small.manifest.model_copy(update={"tables": tables})
    (small.directory / MANIFEST).write_bytes(dump(manifest))
    (root / "movies").mkdir(exist_ok=True)
    small.directory.rename(root / "movies" / str(version))


def check_topology(service: Process, shards: list[Process], numbers: list[str]) -> None:
    actual = json.loads(ctl(service, "topology").stdout)
    (process,) = actual["processes"]
    assert actual["role"] == "router"
    assert {entry["address"]: entry["shard"] for entry in process["shards"]} == {
        f"127.0.0.1:{shard.ports['grpc']}": of for shard, of in zip(shards, numbers, strict=True)
    }
    first, *_, last = process["shards"]
    assert first["holds"]["movies/1"]["tables.users"] == [0, 25]
    assert first["holds"]["movies/1"]["indexes.movies"] == [0, 28]
    assert last["holds"]["movies/1"]["tables.users"] == [25, 50]
    assert json.loads(ctl(shards[2], "topology").stdout)["shard"] == "2/2"


@pytest.mark.slow
def test_replicas_that_stall_end_or_load_cost_no_request_and_a_lost_shard_is_named(
    root: Path, small_towers: Path, launch: Launch
) -> None:
    write_with_unknown_users(root, small_towers, 1)
    numbers = ["1/2", "1/2", "2/2", "2/2"]
    shards = [shard(launch, number) for number in numbers]
    service = ready(router(launch, shards))
    check_topology(service, shards, numbers)
    rank = {"context": {"user": 3, "recent": [1000, 1007]}, "candidate_ids": [1000, 1007, 1014]}
    lookup = {"feature": "user", "ids": [1, 2, 26, 27]}
    done = threading.Event()
    responses = list[tuple[int, Any]]()

    def rank_repeatedly() -> None:
        with client_of(service) as client:
            while not done.is_set():
                responses.append(post(client, "rank", rank))

    with ThreadPoolExecutor(2) as threads, client_of(service) as client:
        with shards[0].paused():  # costs at most half of the deadline
            for _ in range(4):
                assert post(client, "lookup", lookup)[0] == 200
            until(lambda: count_of(service, REPLICAS) == 1)
            assert [post(client, "lookup", lookup)[0] for _ in range(100)] == [200] * 100
        until(lambda: count_of(service, REPLICAS) == 2)
        first = post(client, "rank", rank)
        calls = [threads.submit(rank_repeatedly) for _ in range(2)]
        write_with_unknown_users(root, small_towers, 2)
        until(lambda: bool(responses) and responses[-1][1].get("version") == 2)
        for each in (shards[0], shards[3]):
            each.kill()
        before = len(responses)
        until(lambda: len(responses) > before + 50)
        done.set()
        for call in calls:
            call.result()
        second = post(client, "rank", rank)
        assert (first[1]["version"], second[1]["version"]) == (1, 2)
        assert all(each in (first, second) for each in responses), "rows of two versions, or none"
        assert versions_of(service) == {2}

        whole = post(client, "lookup", lookup)[1]
        shards[2].kill()
        code, content = post(client, "lookup", lookup)
        assert (code, content["coverage"], content["found"]) == (
            200,
            0.5,
            [True, True] + [False] * 2,
        )
        assert content["vectors"] == [*whole["vectors"][:2], [0.0] * 8, [0.0] * 8]
        assert "coverage" not in {**whole, **post(client, "lookup", {**lookup, "ids": [1, 2]})[1]}
        until(lambda: count_of(service, "rowcast_lost_rows_total") == 2)
        code, content = post(client, "rank", {**rank, "candidate_ids": [1000 + 7 * 39]})
        assert (code, content["error"]["code"]) == (503, "NOT_READY")
        assert "shard 2/2" in content["error"]["message"]
        assert is_ready(client), "other requests may not need the shard"
    with client_of(shards[1]) as client:
        code, content = post(client, "lookup", lookup)
    assert (code, content["error"]["code"]) == (501, "UNIMPLEMENTED")
    assert "shard 1/2" in content["error"]["message"]


@pytest.mark.nightly
@pytest.mark.slow
def test_hung_shard_delays_only_requests_that_need_it(write: Write, launch: Launch) -> None:
    tables = write(users=True).manifest.tables
    size = {name: 4 * tables[name].rows * tables[name].dim for name in ("users", "cities")}
    assert size["users"] > size["cities"]
    only = ("--shard-min-bytes", str(size["users"]))
    one = launch("--shard", "1/1", *only)
    address = f"127.0.0.1:{one.ports['grpc']}"
    service = ready(launch("--shard-addresses", address, *only))
    on_shard = {"feature": "user", "ids": [1, 49]}
    here = {"feature": "city", "ids": [1, 2]}

    def look_up_on_shard(_: int) -> int:
        with client_of(service) as client:
            return post(client, "lookup", on_shard)[0]

    hanging = 16
    with client_of(service) as client, ThreadPoolExecutor(hanging) as threads:
        assert post(client, "lookup", on_shard)[0] == 200
        expected = post(client, "lookup", here)
        assert expected[0] == 200, expected
        with one.paused():
            waiting = threads.map(look_up_on_shard, range(hanging))
            until(lambda: count_of(service, "rowcast_inflight_requests") == hanging)
            client.headers["x-request-timeout-ms"] = "2000"
            actual = [post(client, "lookup", here) for _ in range(8)]
            still_waiting = count_of(service, "rowcast_inflight_requests")
        assert actual == [expected] * 8
        assert still_waiting == hanging
        assert list(waiting) == [200] * hanging


@pytest.mark.nightly
@pytest.mark.slow
def test_slow_call_is_sent_to_a_second_replica(write: Write, launch: Launch) -> None:
    write()
    shards = [shard(launch, "1/1") for _ in range(2)]
    service = ready(
        router(launch, shards, "--shard-hedge-percentile", "99", "--request-timeout-s", "3600")
    )
    body = {"feature": "user", "ids": [1, 49]}
    with client_of(service) as client:
        expected = post(client, "lookup", body)
        for _ in range(200):  # until it is known of both how long calls take
            assert post(client, "lookup", body) == expected
        with shards[0].paused():
            assert [post(client, "lookup", body) for _ in range(8)] == [expected] * 8
        until(lambda: count_of(service, 'rowcast_shard_hedges_total{shard="1/1"}') > 0)


@pytest.mark.slow
def test_routers_and_shards_authenticate_by_certificates_names_and_tokens(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    authority = Authority(tmp_path, "ours")
    signed = authority.sign("shard", by_address=False)
    foreign = Authority(tmp_path, "another").sign("router")
    tokens = tmp_path / "tokens"
    token = tmp_path / "token"
    tokens.write_text(f"router {TOKEN}\n")
    token.write_text(f"{TOKEN}\n")
    sent = tmp_path / "sent"
    sent.write_text(f"{TOKEN[::-1]}\n")

    def with_tls(pair: Any) -> tuple[str, ...]:
        return ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))

    expecting = ("--tls-client-ca", str(authority.file), "--tokens", str(tokens))
    port = shard(launch, "1/1", *with_tls(signed), *expecting).ports["grpc"]
    named = f"dns:localhost:{port}"
    trusting = (*ALL, "--shard-ca", str(authority.file), "--shard-token")
    rejected = launch(
        *trusting, str(token), "--shard-addresses", f"127.0.0.1:{port}", *with_tls(signed)
    )
    wait_for_problem(rejected, "Hostname Verification")
    service = launch(*trusting, str(sent), "--shard-addresses", named, *with_tls(foreign))
    wait_for_problem(service, "no shard can be reached")
    # Secrets that are replaced while the router runs are those of its next connection and call.
    for file, by in ((foreign.cert, signed.cert), (foreign.key, signed.key)):
        aside = file.with_suffix(".new")
        shutil.copy(by, aside)
        aside.replace(file)
    wait_for_problem(service, "UNAUTHENTICATED")
    sent.write_text(f"{TOKEN}\n")
    service.event("ready")
