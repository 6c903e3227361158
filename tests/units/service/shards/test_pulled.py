"""Shards and routers over what was pulled for each of them, in roots of their own or in one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from service.cli.bundle_source import EXIT_DESTINATION
from service.cli.serve import command
from tests.bundles.small import SmallBundle
from tests.e2e.process import WAIT_S, until
from tests.units.service.running import RunningService
from tests.units.service.shards.cluster import response

BODY = {"context": {"user": 3, "recent": [1000, 1007]}, "k": 5}
Start = Callable[..., RunningService]
Write = Callable[..., SmallBundle]


def pull(source: Path, root: Path, *role: str) -> None:
    done = try_pull(source, root, *role)
    assert done.exit_code == 0, done.stderr


def try_pull(source: Path, root: Path, *role: str) -> Result:
    line = ["pull", str(source), str(root), *role, "--shard-min-bytes", "1"]
    return CliRunner().invoke(command(), line)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a service over a root; ends it after the test."""
    started: list[RunningService] = []

    def start(root: Path, **settings: Any) -> RunningService:
        started.append(RunningService(root, shard_min_bytes=1, **settings))
        return started[-1]

    yield start
    for service in reversed(started):  # a router before its shards
        service.close()


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


def recommendations_of(service: RunningService) -> Any:
    """The first that are not an error."""
    with httpx.Client(base_url=service.http, timeout=WAIT_S, verify=False) as client:
        while (recommended := response(client, "recommend", BODY))[0] != 200:
            assert recommended[0] == 503, recommended
    return recommended[1]


def addresses_of(*shards: RunningService) -> tuple[str, ...]:
    return tuple(shard.grpc for shard in shards)


def test_shards_and_routers_serve_from_the_files_that_were_pulled_for_them(
    write: Write, root: Path, start: Start, tmp_path: Path
) -> None:
    write(partitions=3, users=True, parts=True)
    pull(root, tmp_path / "1", "--shard", "1/2")
    assert not list((tmp_path / "1").glob("movies/1/towers"))
    first = start(tmp_path / "1", shard="1/2")
    # A version without the files of a shard is named, and served once they are pulled.
    pull(root, tmp_path / "2", "--router")
    assert not list((tmp_path / "2").glob("movies/1/tables/*/rows*"))
    second = start(tmp_path / "2", shard="2/2")
    assert "of the bundle is missing" in second.problem(1)
    router = start(tmp_path / "2", shard_addresses=addresses_of(first, second))
    pull(root, tmp_path / "2", "--shard", "2/2")
    assert recommendations_of(router) == recommendations_of(start(root))


def test_shard_on_a_full_disk_serves_the_version_that_it_has_and_the_routers_wait_for_it(
    write: Write, root: Path, start: Start, tmp_path: Path, disk: Path
) -> None:
    full = (disk, "--shard", "1/2")
    other = (tmp_path / "2", "--shard", "2/2")
    routers = (tmp_path / "router", "--router")
    write(version=1, partitions=3)
    for each in (full, other, routers):
        pull(root, *each)
    shards = [start(place, shard=number) for place, _, number in (full, other)]
    router = start(routers[0], shard_addresses=addresses_of(*shards))
    assert recommendations_of(router)["version"] == 1
    write(version=2, partitions=3)
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free)
    for each in (other, routers):
        pull(root, *each)
    rejected = try_pull(root, *full)
    assert rejected.exit_code == EXIT_DESTINATION
    assert re.fullmatch(
        rf"rowcast-serve pull: {disk}\S* has 0 MiB free, 1 MiB are needed; .*\n", rejected.stderr
    )
    until(lambda: router.states().get(2) == "failed")
    assert "no address holds shard 1/2 of it" in router.problem(2)
    assert recommendations_of(router)["version"] == 1
    filler.unlink()
    pull(root, *full)
    until(lambda: router.states()[2] == "available")
    assert recommendations_of(router) == recommendations_of(start(root))


def test_restarted_shard_serves_the_previous_version_until_every_shard_has_the_newest(
    write: Write, root: Path, start: Start, tmp_path: Path
) -> None:
    late = (tmp_path / "1", "--shard", "1/2")
    early = (tmp_path / "2", "--shard", "2/2")
    write(version=1, partitions=3)
    for each in (late, early):
        pull(root, *each)
    first, second = [start(place, shard=number) for place, _, number in (late, early)]
    addresses = tmp_path / "addresses"
    addresses.write_text(f"{first.grpc}\n{second.grpc}\n")
    router = start(root, shard_addresses=(f"file:{addresses}",))
    before = recommendations_of(router)
    write(version=2, partitions=3)
    pull(root, *early)
    until(lambda: router.states().get(2) == "failed")
    second.close()
    restarted = start(early[0], shard="2/2")
    assert restarted.states()[1] == "available"
    addresses.write_text(f"{first.grpc}\n{restarted.grpc}\n")
    assert recommendations_of(router) == before
