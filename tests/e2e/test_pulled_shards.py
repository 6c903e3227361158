"""Shards and fronts over what was pulled for each of them, in roots of their own or in one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import PROGRAM, WAIT_S, Process, until
from tests.e2e.services import Write, client_of, is_ready

ALL = ("--shard-least-bytes", "1")
BODY = {"features": {"user": 3, "recent": [1000, 1007]}, "k": 5}
Start = Callable[..., Process]


def pull(source: Path, root: Path, *role: str) -> None:
    command = [*PROGRAM, "pull", str(source), str(root), *role, *ALL]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a service over a root; kills it after the test."""
    started: list[Process] = []

    def start(root: Path, *options: str) -> Process:
        started.append(Process(root, *options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def ask(service: Process) -> Any:
    with client_of(service) as client:
        until(lambda: is_ready(client))
        answer = client.post("/v1/models/movies:recommend", content=json.dumps(BODY))
    assert answer.status_code == 200, answer.text
    return answer.json()


def front(start: Start, root: Path, shards: list[Process]) -> Process:
    addresses = [text for each in shards for text in ("--shard-addresses", f"127.0.0.1:{each.ports['grpc']}")]
    return start(root, *addresses, *ALL)


def test_shards_and_fronts_answer_from_the_files_that_were_pulled_for_them(
    write: Write, root: Path, start: Start, tmp_path: Path
) -> None:
    write(partitions=3, users=True, parts=True)
    shards = []
    for number in ("1/2", "2/2"):
        place = tmp_path / f"shard-{number[0]}"
        pull(root, place, "--shard", number)
        assert not list(place.glob("movies/1/towers"))
        shards.append(start(place, "--shard", number, *ALL))
    pull(root, tmp_path / "front", "--front")
    assert not list((tmp_path / "front").glob("movies/1/tables/*/rows*"))
    assert ask(front(start, tmp_path / "front", shards)) == ask(start(root))


def test_a_version_without_the_files_of_a_shard_is_named_and_served_once_they_are_pulled(
    write: Write, root: Path, start: Start, tmp_path: Path
) -> None:
    write()
    pull(root, tmp_path / "one", "--front")
    shard = start(tmp_path / "one", "--shard", "1/1", *ALL)
    assert "of the bundle is missing" in shard.event("version_failed")["problem"]
    service = front(start, tmp_path / "one", [shard])
    pull(root, tmp_path / "one", "--shard", "1/1")
    assert ask(service) == ask(start(root))
