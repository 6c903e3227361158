"""Changes of a cluster in processes of their own: a router writes, another one copies its log, and
all of them are killed and started again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import Process, until
from tests.e2e.services import Launch, Write, client_of, ctl, wait_for
from tests.e2e.test_changes import admin_of, upsert

pytestmark = pytest.mark.slow

ALL = ("--shard-min-bytes", "1")
QUERY = {"vectors": [[0.5] * 8], "k": 60, "exact": True, "attributes": ["year"]}


def neighbors(service: Process) -> Any:
    """Returns the score, id and year of all candidates; equal scores may come in any order."""
    with client_of(service) as client:
        response = client.post("/v1/models/movies:retrieve", json=QUERY)
    if response.status_code != 200:
        return [response.status_code]
    answer = response.json()
    years = map(str, answer["attributes"]["year"])
    return sorted(zip(answer["scores"], answer["ids"], years, strict=True))


def settled(service: Process) -> Any:
    """Returns the neighbors once all workers of a service have the same."""
    until(lambda: len({json.dumps(neighbors(service)) for _ in range(8)}) == 1)
    return neighbors(service)


def test_routers_and_shards_that_are_killed_have_all_changes_before_they_are_ready(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write(partitions=4)
    shards = [launch("--shard", number, *ALL) for number in ("1/2", "2/2")]
    for shard in shards:
        wait_for(shard, "1")
    addresses = tmp_path / "addresses"

    def name_shards() -> None:
        addresses.write_text("".join(f"127.0.0.1:{shard.ports['grpc']}\n" for shard in shards))

    def router(host: str, *options: str) -> Process:
        directory = str(tmp_path / host)
        sources = ("--shard-addresses", f"file:{addresses}", "--changes-dir", directory, *ALL)
        return launch(*sources, *options)

    name_shards()
    writer = router("writer", "--workers", "2")
    wait_for(writer, "2")
    follow = ("--follow-changes", f"http://127.0.0.1:{writer.ports['admin']}")
    with admin_of(writer) as client:
        for sequence in range(1, 11):
            upsert(client, 5000 + sequence, sequence)
        vector = {"id": 1007, "vector": [2.0] * 8}
        rows = client.post("/rows/upsert", json={"feature": "movie", "items": [vector]})
        assert rows.status_code == 200, rows.text
    expected = settled(writer)
    assert {5001, 5010} < {key for _, key, _ in expected}

    follower = router("follower", *follow)
    wait_for(follower, "1")
    assert neighbors(follower) == expected, "it was not ready before"
    status = json.loads(ctl(follower, "changes", "status", "movies").stdout)
    assert (status["sequence"], status["lag"], status["problem"]) == (11, 0, "")
    with admin_of(follower) as client:
        rejected = client.post("/candidates/delete", json={"items": [{"id": 1000}]})
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (501, "UNIMPLEMENTED")

    follower.kill()
    with admin_of(writer) as client:
        upsert(client, 6000, 12)
    expected = settled(writer)
    follower = router("follower", *follow)
    wait_for(follower, "1")
    assert neighbors(follower) == expected, "it caught up before it was ready"

    shards[1].kill()
    shards[1] = launch("--shard", "2/2", *ALL)
    wait_for(shards[1], "1")
    name_shards()
    for service in (writer, follower):
        until(lambda: neighbors(service) == expected)  # noqa: B023
    writer.kill()
    restarted = router("writer")
    wait_for(restarted, "1")
    assert neighbors(restarted) == expected
