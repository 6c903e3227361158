"""Routers and shards in processes of their own respond as one process does, whatever fails while
one replica of each shard remains.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from bundle.format.manifest import dump
from bundle.format.paths import MANIFEST
from service.codec.stubs import embedding_service_pb2 as pb
from service.codec.stubs import shard_service_pb2 as shard_pb
from service.codec.stubs.shard_service_pb2_grpc import ShardServiceStub
from tests.bundles.small import write_small_bundle
from tests.cases.requests import CASES, REFUSALS
from tests.e2e.process import Process, until
from tests.e2e.services import (
    Launch,
    Write,
    client_of,
    count_of,
    ctl,
    is_ready,
    launching,
    versions_of,
)
from tests.units.service import reference
from tests.units.service.cases import LIMITS
from tests.units.service.grpc_api.requests import call
from tests.units.service.security.authorities import Authority

Cluster = tuple[Process, list[Process], Process]
ALL = ("--shard-min-bytes", "1")
OPTIONS = [
    text for name, value in LIMITS.items() for text in (f"--{name.replace('_', '-')}", str(value))
]


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


def post(client: httpx.Client, call: str, body: Any, path: str = "movies") -> tuple[int, Any]:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    actual = client.post(
        f"/v1/models/{path}:{call}", content=sent, headers={"content-type": "application/json"}
    )
    content = actual.json()
    content.get("error", {}).pop("request_id", None)
    return actual.status_code, content


def ready(service: Process) -> Process:
    with client_of(service) as client:
        until(lambda: is_ready(client))
    return service


def start_cluster(root: Path, towers: Path, launch: Launch) -> Cluster:
    """Starts a router, two replicas of each of two shards, and one process that has everything."""
    write_small_bundle(
        root,
        towers,
        "movies",
        1,
        users=True,
        parts=True,
        row_types={"movies": "int8", "users": "linked"},
        partitions=3,
    )
    shards = [shard(launch, number) for number in ("1/2", "1/2", "2/2", "2/2")]
    alone = launch(*OPTIONS)
    return ready(router(launch, shards, *OPTIONS)), shards, ready(alone)


@pytest.fixture(scope="module")
def cluster(small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose processes no test ends."""
    root = tmp_path_factory.mktemp("cluster") / "bundles"
    root.mkdir()
    with launching(root) as launch:
        yield start_cluster(root, small_towers, launch)


# An explanation reports how long the search took.
REQUESTS = [case for case in (*CASES, *REFUSALS) if "explain" not in case.json]


@pytest.mark.slow
def test_router_responds_as_one_process_does(cluster: Cluster) -> None:
    service, _, alone = cluster
    with client_of(service) as mine, client_of(alone) as theirs:
        for case in REQUESTS:
            if case.model == "movies" and not case.version:
                expected = post(theirs, case.call, case.json)
                assert post(mine, case.call, case.json) == expected, case.name


@pytest.mark.nightly
@pytest.mark.slow
def test_operators_see_which_replica_holds_which_shard(cluster: Cluster) -> None:
    service, shards, alone = cluster
    actual = json.loads(ctl(service, "topology").stdout)
    (process,) = actual["processes"]
    assert actual["role"] == "router"
    addresses = {shard["address"]: shard["shard"] for shard in process["shards"]}
    numbers = ("1/2", "1/2", "2/2", "2/2")
    assert addresses == {
        f"127.0.0.1:{shard.ports['grpc']}": of for shard, of in zip(shards, numbers, strict=True)
    }
    assert process["shards"][0]["holds"]["movies/1"]["tables.users"] == [0, 25]
    assert process["shards"][0]["holds"]["movies/1"]["indexes.movies"] == [0, 28]
    assert process["shards"][3]["holds"]["movies/1"]["tables.users"] == [25, 50]
    assert json.loads(ctl(shards[2], "topology").stdout)["shard"] == "2/2"
    assert json.loads(ctl(alone, "topology").stdout)["role"] == ""


@pytest.mark.slow
def test_lost_replica_fails_no_request_and_lost_shard_is_named(
    root: Path, small_towers: Path, launch: Launch
) -> None:
    service, shards, alone = start_cluster(root, small_towers, launch)
    body = {"context": {"user": 3, "recent": [1000, 1007]}, "candidate_ids": [1000, 1007, 1014]}
    done = threading.Event()
    responses = list[tuple[int, Any]]()

    def rank_repeatedly() -> None:
        with client_of(service) as client:
            while not done.is_set():
                responses.append(post(client, "rank", body))

    with ThreadPoolExecutor(2) as threads, client_of(alone) as client:
        expected = post(client, "rank", body)
        assert expected[0] == 200, expected
        calls = [threads.submit(rank_repeatedly) for _ in range(2)]
        until(lambda: len(responses) > 20)
        for each in (shards[0], shards[3]):
            each.kill()
        before = len(responses)
        until(lambda: len(responses) > before + 50)
        done.set()
        for call in calls:
            call.result()
    assert all(each == expected for each in responses), "killed replicas fail no request"
    shards[1].kill()
    with client_of(service) as client:
        code, content = post(client, "rank", body)
        assert (code, content["error"]["code"]) == (503, "NOT_READY")
        assert "shard 1/2" in content["error"]["message"]
        assert is_ready(client), "other requests may not need the shard"


@pytest.mark.nightly
@pytest.mark.slow
def test_stalled_replica_costs_at_most_half_of_the_deadline(cluster: Cluster) -> None:
    service, shards, _ = cluster
    body = {"feature": "user", "ids": [1, 49]}
    replicas = 'rowcast_shard_replicas{shard="1/2"}'
    with shards[0].paused(), client_of(service) as client:
        for _ in range(4):
            assert post(client, "lookup", body)[0] == 200
        until(lambda: count_of(service, replicas) == 1)
        assert [post(client, "lookup", body)[0] for _ in range(100)] == [200] * 100
    until(lambda: count_of(service, replicas) == 2)


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


@pytest.mark.nightly
@pytest.mark.slow
def test_lost_rows_count_as_unknown_if_the_table_allows_it(write: Write, launch: Launch) -> None:
    written = write()
    tables = {
        name: table.model_copy(update={"unavailable": "unknown"})
        for name, table in written.manifest.tables.items()
    }
    (written.directory / MANIFEST).write_bytes(
        dump(written.manifest.model_copy(update={"tables": tables}))
    )
    shards = [shard(launch, number) for number in ("1/2", "2/2")]
    service = ready(router(launch, shards))
    near = {"feature": "user", "ids": [1, 2]}
    far = {"feature": "user", "ids": [1, 2, 26, 27]}
    with (
        client_of(service) as client,
        grpc.insecure_channel(f"127.0.0.1:{service.ports['grpc']}") as channel,
    ):
        whole = post(client, "lookup", far)[1]
        assert "coverage" not in whole
        shards[1].kill()
        code, content = post(client, "lookup", far)
        assert (code, content["coverage"], content["vectors"][:2]) == (
            200,
            0.5,
            whole["vectors"][:2],
        )
        assert content["vectors"][2] == [0.0] * 8
        assert content["found"] == [True, True, False, False]
        assert "coverage" not in post(client, "lookup", near)[1]
        sent = pb.LookupRequest(model=pb.ModelSpec(name="movies"), feature="user")
        sent.ids.int64s = np.array([1, 26], "<i8").tobytes()
        assert pb.LookupResponse.FromString(call(channel, "Lookup", sent).response).coverage == 0.5
        lost_rows = 'rowcast_lost_rows_total{model="movies",table="users"}'
        until(lambda: count_of(service, lost_rows) == 3)
        rejected = {"context": {"user": 1}, "candidate_ids": [1000 + 7 * 39]}
        code, content = post(client, "rank", rejected)
        assert (code, content["error"]["code"]) == (503, "NOT_READY")
        assert "feature 'movie': the row of id" in content["error"]["message"]


@pytest.mark.slow
def test_new_version_is_served_once_every_shard_has_it(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    shards = [shard(launch, number) for number in ("1/2", "2/2")]
    service = ready(router(launch, shards))
    body = {"feature": "user", "ids": list(range(50))}
    responses = list[tuple[int, Any]]()
    with client_of(service) as client:
        first = post(client, "lookup", body)
        write(version=2)
        while not responses or responses[-1][1].get("version") != 2:
            responses.append(post(client, "lookup", body))
        second = post(client, "lookup", body)
    assert {code for code, _ in responses} == {200}
    assert all(each in (first, second) for each in responses), (
        "no response has rows of two versions"
    )
    assert first[1]["vectors"] != second[1]["vectors"]
    assert versions_of(service) == {2}


@pytest.mark.nightly
@pytest.mark.slow
def test_shards_of_no_complete_division_are_rejected_before_any_request(
    write: Write, launch: Launch
) -> None:
    write()
    halves = [shard(launch, number) for number in ("1/2", "2/2")]
    third = shard(launch, "3/3")
    for shards, problem in (
        ([halves[0]], "no address holds shard 2/2"),
        ([halves[0], third], "no address holds shard 1/3"),
    ):
        service = router(launch, shards)
        assert problem in service.event("version_failed")["problem"]
        with client_of(service) as client:
            assert not is_ready(client)
        service.kill()
    ready(router(launch, [*halves, third]))  # an address of another division is in nobody's way


@pytest.mark.nightly
@pytest.mark.slow
def test_router_waits_for_a_shard_that_starts_later(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    file = tmp_path / "addresses"
    first = shard(launch, "1/2")
    file.write_text(f"127.0.0.1:{first.ports['grpc']}\n")
    service = launch("--shard-addresses", f"file:{file}", *ALL)
    service.event("version_failed")
    second = shard(launch, "2/2")
    file.write_text(f"127.0.0.1:{first.ports['grpc']}\n127.0.0.1:{second.ports['grpc']}\n")
    ready(service)


@pytest.mark.nightly
@pytest.mark.slow
def test_address_that_becomes_another_shard_is_recognized(write: Write, launch: Launch) -> None:
    write()
    shards = [shard(launch, number) for number in ("1/2", "2/2")]
    service = ready(router(launch, shards))
    port = str(shards[0].ports["grpc"])
    body = {"feature": "user", "ids": [1, 30]}
    with client_of(service) as client:
        expected = post(client, "lookup", body)
        shards[0].kill()
        other = shard(launch, "2/2", "--grpc-port", port)
        other.event("ready")
        for _ in range(20):
            assert post(client, "lookup", body)[0] == 503
        other.kill()
        shard(launch, "1/2", "--grpc-port", port).event("ready")
        until(lambda: post(client, "lookup", body) == expected)


@pytest.mark.nightly
@pytest.mark.slow
def test_shards_accept_only_calls_with_the_token(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    tokens = tmp_path / "tokens"
    token = tmp_path / "token"
    tokens.write_text("router 0123456789abcdef0123\n")
    token.write_text("0123456789abcdef0123\n")
    shards = [shard(launch, number, "--tokens", str(tokens)) for number in ("1/2", "2/2")]
    rejected = router(launch, shards)
    assert "UNAUTHENTICATED" in rejected.event("version_failed")["problem"]
    ready(router(launch, shards, "--shard-token", str(token)))
    with client_of(shards[0], "0123456789abcdef0123") as client:
        code, content = post(client, "lookup", {"feature": "user", "ids": [1]})
    assert (code, content["error"]["code"]) == (501, "UNIMPLEMENTED")
    assert "shard 1/2" in content["error"]["message"]


@pytest.mark.slow
def test_routers_and_shards_authenticate_by_certificates(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    authority = Authority(tmp_path, "ours")
    other = Authority(tmp_path, "another")
    signed = authority.sign("shard")
    foreign = other.sign("router")
    tls = (
        "--tls-cert",
        str(signed.cert),
        "--tls-key",
        str(signed.key),
        "--tls-client-ca",
        str(authority.file),
    )
    shards = [shard(launch, number, *tls) for number in ("1/2", "2/2")]
    trusting = ("--shard-ca", str(authority.file))
    for cert, key in ((foreign.cert, foreign.key), (signed.cert, signed.key)):
        service = router(launch, shards, *trusting, "--tls-cert", str(cert), "--tls-key", str(key))
        if cert == foreign.cert:
            assert "no shard can be reached" in service.event("version_failed")["problem"]
        else:
            service.event("ready")


@pytest.mark.nightly
@pytest.mark.slow
def test_certificates_match_the_name_that_addresses_are_resolved_from(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    authority = Authority(tmp_path)
    signed = authority.sign("shard", by_address=False)
    port = shard(launch, "1/1", "--tls-cert", str(signed.cert), "--tls-key", str(signed.key)).ports[
        "grpc"
    ]
    trusting = (*ALL, "--shard-ca", str(authority.file), "--shard-addresses")
    rejected = launch(*trusting, f"127.0.0.1:{port}")
    assert "Hostname Verification" in rejected.event("version_failed")["problem"]
    ready(launch(*trusting, f"dns:localhost:{port}"))


@pytest.mark.nightly
@pytest.mark.slow
def test_shard_without_addresses_counts_as_lost(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    ports = [shard(launch, number).ports["grpc"] for number in ("1/2", "2/2")]
    file = tmp_path / "addresses"
    file.write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
    service = ready(launch("--shard-addresses", f"file:{file}", *ALL))
    until(lambda: count_of(service, 'rowcast_shard_replicas{shard="1/2"}') == 1)
    file.write_text(f"127.0.0.1:{ports[1]}\n")
    until(lambda: count_of(service, 'rowcast_shard_replicas{shard="1/2"}') == 0)
    assert count_of(service, 'rowcast_shard_replicas{shard="2/2"}') == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_calls_in_progress_at_a_removed_address_complete(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write()
    shards = [shard(launch, number) for number in ("1/2", "2/2")]
    file = tmp_path / "addresses"
    file.write_text("".join(f"127.0.0.1:{shard.ports['grpc']}\n" for shard in shards))
    service = ready(launch("--shard-addresses", f"file:{file}", *ALL, "--request-timeout-s", "60"))
    until(lambda: count_of(service, 'rowcast_shard_replicas{shard="1/2"}') == 1)
    with ThreadPoolExecutor(1) as threads, client_of(service) as client:
        with shards[0].paused():
            lookup = threads.submit(post, client, "lookup", {"feature": "user", "ids": [1]})
            until(lambda: count_of(service, "rowcast_inflight_requests") == 1)
            for other in ("127.0.0.1:1", "127.0.0.1:2"):  # one poll later each
                file.write_text(f"127.0.0.1:{shards[1].ports['grpc']}\n{other}\n")
                service.event("shard_unreachable", address=other)
        assert lookup.result()[0] == 200


def test_shard_names_the_problem_of_an_invalid_call(write: Write, launch: Launch) -> None:
    small = write(row_types={"movies": "int8"}, partitions=3)
    process = shard(launch, "1/1")
    with grpc.insecure_channel(f"127.0.0.1:{process.ports['grpc']}") as channel:
        stub = ShardServiceStub(channel)
        until(lambda: stub.Describe(shard_pb.DescribeRequest(), wait_for_ready=True).bundles)
        (bundle,) = stub.Describe(shard_pb.DescribeRequest()).bundles
        bundle.number = bundle.total = 1

        def rejected(**rows: Any) -> tuple[grpc.StatusCode, str]:
            numbers: Any = {
                name: np.array(rows.pop(name), "<u4").tobytes() for name in ("counts", "positions")
            }
            with pytest.raises(grpc.RpcError) as failed:
                stub.Rows(
                    shard_pb.RowsRequest(bundle=bundle, rows=[shard_pb.Rows(**rows, **numbers)])
                )
            return failed.value.code(), failed.value.details()

        invalid = grpc.StatusCode.INVALID_ARGUMENT
        code, message = rejected(tables=["users"], counts=[1], positions=[50])
        assert (code, message) == (
            invalid,
            "positions has 50 of 'users'; one below 50 was expected",
        )
        code, message = rejected(tables=["users"], counts=[3], positions=[1, 2])
        assert code == invalid
        assert "counts has 1 values with the sum 3" in message
        code, message = rejected(tables=["users", "movies"], counts=[1, 1], positions=[1, 2])
        assert code == invalid
        assert "a list of one row layout was expected" in message
        code, message = rejected(tables=["shades"], counts=[1], positions=[1])
        assert code == grpc.StatusCode.NOT_FOUND
        assert "no part of table 'shades' is held here" in message

        def search_rejected(k: int, vector: list[float]) -> tuple[grpc.StatusCode, str]:
            request = shard_pb.SearchRequest(
                bundle=bundle,
                index="movies",
                vectors=np.array(vector, "<f4").tobytes(),
                dim=len(vector),
                k=k,
            )
            with pytest.raises(grpc.RpcError) as failed:
                stub.Search(request)
            return failed.value.code(), failed.value.details()

        dim = len(reference.query_vector(small, 3))
        zeros = [0.0] * dim
        for k in (0, -1):
            assert search_rejected(k, zeros) == (invalid, f"k is {k}; at least 1 was expected")
        assert search_rejected(2, [0.0, *zeros]) == (
            invalid,
            f"vectors has dim {dim + 1}; {dim} was expected",
        )
        assert search_rejected(2, [float("nan"), *zeros[1:]]) == (
            invalid,
            "vectors holds NaN or an infinity in vector 0; a vector of finite numbers whose length "
            "is at most 2^60 (1.15e18) was expected",
        )
        bundle.fingerprint ^= 1
        code, message = rejected(tables=["users"], counts=[1], positions=[1])
        assert code == grpc.StatusCode.NOT_FOUND
        assert "another bundle here" in message
