"""Shards and routers over what was pulled for each of them, in roots of their own or in one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.bundle_source import EXIT_DESTINATION
from tests.e2e.process import PROGRAM, WAIT_S, Process, until
from tests.e2e.services import Write, client_of, is_ready

pytestmark = pytest.mark.slow

ALL = ("--shard-min-bytes", "1")
RECOMMEND = "/v1/models/movies:recommend"
BODY = {"context": {"user": 3, "recent": [1000, 1007]}, "k": 5}
Start = Callable[..., Process]


def pull(source: Path, root: Path, *role: str) -> None:
    done = try_pull(source, root, *role)
    assert done.returncode == 0, done.stderr


def try_pull(source: Path, root: Path, *role: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "pull", str(source), str(root), *role, *ALL]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)


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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if (
        not shutil.which("mount")
        or subprocess.run(["mount", *options], check=False, capture_output=True).returncode
    ):
        pytest.skip("no tmpfs can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def recommendations_of(service: Process) -> Any:
    with client_of(service) as client:
        until(lambda: is_ready(client))
        response = client.post(RECOMMEND, content=json.dumps(BODY))
    assert response.status_code == 200, response.text
    return response.json()


def router(start: Start, root: Path, shards: list[Process]) -> Process:
    addresses = [
        text
        for shard in shards
        for text in ("--shard-addresses", f"127.0.0.1:{shard.ports['grpc']}")
    ]
    return start(root, *addresses, *ALL)


def test_shards_and_routers_serve_from_the_files_that_were_pulled_for_them(
    write: Write, root: Path, start: Start, tmp_path: Path
) -> None:
    write(partitions=3, users=True, parts=True)
    pull(root, tmp_path / "1", "--shard", "1/2")
    assert not list((tmp_path / "1").glob("movies/1/towers"))
    shards = [start(tmp_path / "1", "--shard", "1/2", *ALL)]
    # A version without the files of a shard is named, and served once they are pulled.
    pull(root, tmp_path / "2", "--router")
    assert not list((tmp_path / "2").glob("movies/1/tables/*/rows*"))
    shards.append(start(tmp_path / "2", "--shard", "2/2", *ALL))
    assert "of the bundle is missing" in shards[1].event("version_failed")["problem"]
    service = router(start, tmp_path / "2", shards)
    pull(root, tmp_path / "2", "--shard", "2/2")
    assert recommendations_of(service) == recommendations_of(start(root))


@pytest.mark.nightly
def test_shard_on_a_full_disk_serves_the_version_that_it_has_and_the_routers_wait_for_it(
    write: Write, root: Path, start: Start, tmp_path: Path, disk: Path
) -> None:
    full = (disk, "--shard", "1/2")
    other = (tmp_path / "2", "--shard", "2/2")
    routers = (tmp_path / "router", "--router")
    write(version=1, partitions=3)
    for each in (full, other, routers):
        pull(root, *each)
    service = router(
        start, routers[0], [start(place, *role, *ALL) for place, *role in (full, other)]
    )
    assert recommendations_of(service)["version"] == 1
    write(version=2, partitions=3)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
    for each in (other, routers):
        pull(root, *each)
    rejected = try_pull(root, *full)
    assert rejected.returncode == EXIT_DESTINATION
    assert re.fullmatch(
        rf"rowcast-serve pull: {disk}\S* has 0 MiB free, 1 MiB are needed; .*\n", rejected.stderr
    )
    assert (
        "no address holds shard 1/2 of it" in service.event("version_failed", version=2)["problem"]
    )
    assert recommendations_of(service)["version"] == 1
    filler.unlink()
    pull(root, *full)
    service.event("version_available", version=2)
    assert recommendations_of(service) == recommendations_of(start(root))


@pytest.mark.nightly
def test_restarted_shard_serves_the_previous_version_until_every_shard_has_the_newest(
    write: Write, root: Path, start: Start, tmp_path: Path
) -> None:
    late = (tmp_path / "1", "--shard", "1/2")
    early = (tmp_path / "2", "--shard", "2/2")
    write(version=1, partitions=3)
    for each in (late, early):
        pull(root, *each)
    shards = [start(place, *role, *ALL) for place, *role in (late, early)]
    service = router(start, root, shards)
    before = recommendations_of(service)
    write(version=2, partitions=3)
    pull(root, *early)
    service.event("version_failed", version=2)
    shards[1].kill()
    start(*early, *ALL, "--grpc-port", str(shards[1].ports["grpc"])).event(
        "version_available", version=1
    )
    with client_of(service) as client:
        until(lambda: client.post(RECOMMEND, content=json.dumps(BODY)).json() == before)
