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
from tests.units.service.changes.keyed import KEYS, MISSING, keyed_features

pytestmark = pytest.mark.nightly

ALL = ("--shard-min-bytes", "1")
QUERY = {"vectors": [[0.5] * 8], "k": 60, "exact": True, "attributes": ["year"]}
NEW_USERS = {7: [0.5] * 8, 2**40: [-0.25] * 8}
"""Vectors of users whose keys the table does not have."""
LOOKUP = {"feature": "user", "ids": [3, *NEW_USERS]}


def responses(service: Process) -> Any:
    """Returns the score, id and year of all candidates, and the rows of some users. Equal scores
    may come in any order.
    """
    with client_of(service) as client:
        retrieved = client.post("/v1/models/movies:retrieve", json=QUERY)
        rows = client.post("/v1/models/movies:lookup", json=LOOKUP)
    if (retrieved.status_code, rows.status_code) != (200, 200):
        return [retrieved.status_code, rows.status_code]
    response = retrieved.json()
    years = map(str, response["attributes"]["year"])
    candidates = sorted(zip(response["scores"], response["ids"], years, strict=True))
    return [candidates, rows.json()]


def settled(service: Process) -> Any:
    """Returns the responses once all workers of a service have the same."""
    until(lambda: len({json.dumps(responses(service)) for _ in range(8)}) == 1)
    return responses(service)


def test_routers_and_shards_that_are_killed_have_all_changes_before_they_are_ready(
    write: Write, launch: Launch, tmp_path: Path
) -> None:
    write(partitions=4, features=keyed_features(), keys=KEYS)
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
        vectors = [{"id": key, "vector": [2.0] * 8} for key in (1007, MISSING)]
        rows = client.post("/rows/upsert", json={"feature": "movie", "items": vectors})
        assert rows.status_code == 200, rows.text
    file = tmp_path / "users"
    users = [json.dumps({"id": key, "vector": vector}) for key, vector in NEW_USERS.items()]
    file.write_text("\n".join(users))
    ctl(writer, "rows", "upsert", "movies", "--feature", "user", "--file", str(file))
    until(lambda: settled(writer)[1]["found"] == [True] * 3)
    expected = settled(writer)
    candidates, looked_up = expected
    assert {5001, 5010} < {key for _, key, _ in candidates}
    assert looked_up["vectors"][1:] == [*NEW_USERS.values()]

    follower = router("follower", *follow)
    wait_for(follower, "1")
    assert responses(follower) == expected, "it was not ready before"
    status = json.loads(ctl(follower, "changes", "status", "movies").stdout)
    assert (status["sequence"], status["lag"], status["problem"]) == (12, 0, "")
    (version,) = status["versions"]
    assert version["changed"]["new rows of table users"] == len(NEW_USERS)
    assert version["changed"]["new rows of table movies"] == 1
    with admin_of(follower) as client:
        rejected = client.post("/candidates/delete", json={"items": [{"id": 1000}]})
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (501, "UNIMPLEMENTED")

    follower.kill()
    with admin_of(writer) as client:
        upsert(client, 6000, 12)
    expected = settled(writer)
    follower = router("follower", *follow)
    wait_for(follower, "1")
    assert responses(follower) == expected, "it caught up before it was ready"

    shards[1].kill()
    shards[1] = launch("--shard", "2/2", *ALL)
    wait_for(shards[1], "1")
    name_shards()
    for service in (writer, follower):
        until(lambda: responses(service) == expected)  # noqa: B023
    writer.kill()
    restarted = router("writer")
    wait_for(restarted, "1")
    assert responses(restarted) == expected
