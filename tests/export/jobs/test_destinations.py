"""Bundles go to a store whole, once, and are gone on with after a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle.storage import staging
from export.jobs.leases import Lease
from runtime.object_store import RemotePath, located
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
from tests.export.checkpoint.bundles import write_bundle
from tests.export.commands import Command, CommandResult
from tests.export.forked_runs import ForkedRuns

VALUES = {f"t{number}": np.full((1000, 8), number, np.float32) for number in range(3)}
STORES = ["memory", "local"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemotePath:
    place = located(f"{request.param}://{tmp_path}/store/bundles")
    assert isinstance(place, RemotePath)
    return place


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "ckpt-1", VALUES)
    return tmp_path / "ckpt-1"


NAMED = [option for name in VALUES for option in ("--table", f"{name}={name}")]


@pytest.fixture
def export(
    command: Command, checkpoint: Path, store: RemotePath, tmp_path: Path
) -> Callable[..., CommandResult]:
    """Exports the checkpoint's tables to the store."""
    given = [
        "tables",
        checkpoint,
        store,
        "--model",
        "m",
        *NAMED,
        "--scratch",
        tmp_path / "scratch",
        "--json",
    ]
    return lambda *more: command(*given, *more)


def shard_of(store: RemotePath, name: str) -> RemotePath:
    return store / f"m/1/tables/{name}/rows-00000-of-00001.bin"


def assert_written(store: RemotePath) -> None:
    for name, values in VALUES.items():
        assert shard_of(store, name).read(0, 1 << 30) == values.tobytes()


def test_publish_to_a_store_sends_once_what_a_service_pulls(
    export: Callable[..., CommandResult], store: RemotePath, tmp_path: Path
) -> None:
    assert export().json["bundle"] == f"{store}/m/1"
    assert_written(store)
    assert set((store / "m").listing()) == {"1"}
    assert [path.name for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == ["owner"]
    assert pull(find_bundle(str(store)), tmp_path / "root", None).bundle == tmp_path / "root/m/1"
    again = export("--version", 1)
    assert (again.code, f"{store}/m/1 is there already" in again.message) == (6, True)
    (store / "m/9/tables/t0/rows-00000-of-00001.bin").write(b"unfinished")
    assert export().json["version"] == 2


@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_publish_to_a_store_that_stopped_sends_again_only_what_is_not_there(
    export: Callable[..., CommandResult], store: RemotePath
) -> None:
    obstacle = shard_of(store, "t2") / "in-the-way"
    obstacle.write(b"")
    assert export().code == 6
    obstacle.remove()
    os.rmdir(obstacle.parent.url.removeprefix("local://"))
    before = shard_of(store, "t1").modified()
    shard_of(store, "t0").write(b"of another")
    assert export().code == 0
    assert shard_of(store, "t1").modified() == before
    assert_written(store)


def test_publish_to_a_store_second_exporter_of_a_version_is_refused(
    export: Callable[..., CommandResult], store: RemotePath
) -> None:
    with Lease(store / "m", 1, "another").hold():
        done = export()
    assert (done.code, "m/1 is being written by another run" in done.message) == (6, True)
    assert export().code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("verify", "s3://models/bundles/m/1"), "rowcast-serve pull s3://models/bundles/m/1 ROOT"),
        (("tables", "c", "s3://key:secret@bucket/x"), "credentials"),
    ],
)
def test_url_that_cannot_be_used_so_exits_2(
    command: Command, arguments: tuple[str, ...], told: str
) -> None:
    done = command(*arguments)
    assert (done.code, told in done.message) == (2, True)


def test_tables_to_a_url_stages_in_the_scratch_directory(
    command: Command,
    checkpoint: Path,
    store: RemotePath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("tables", checkpoint, store, "--table", "a=t1", "--tables", "link")
    assert (done.code, f"cannot be linked into {store.url.partition(':')[0]}://" in done.err) == (
        2,
        True,
    )
    page = command("tables", checkpoint, store, "--table", "a=t1", "--json").json
    assert page["bundle"] == f"{store}/tables/1"
    assert len(list((tmp_path / ".rowcast-scratch").iterdir())) == 1


def files_of(directory: Path) -> dict[Path, tuple[int, int]]:
    files = {path: path.stat() for path in directory.rglob("*") if path.is_file()}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in files.items()}


@pytest.mark.slow
def test_exporter_that_was_frozen_past_its_lease_damages_nothing(
    forked: ForkedRuns, checkpoint: Path, tmp_path: Path
) -> None:
    store, versions = f"local://{tmp_path}/store", tmp_path / "store/m"
    run = ["tables", str(checkpoint), store, "--model", "m", "--version", "1", *NAMED, "--scratch"]
    assert (
        forked.run([*run, str(tmp_path / "first")], tmp_path / "output", noted=1) == -signal.SIGKILL
    )
    frozen = forked.start(
        [*run, str(tmp_path / "first")], tmp_path / "output", stops=len(VALUES)
    )  # its own lease again
    assert forked.status() == -signal.SIGSTOP
    lease = json.loads((versions / ".lease-1.json").read_text())
    (versions / ".lease-1.json").write_text(
        json.dumps(lease | {"time": "2026-01-01T00:00:00+00:00"})
    )
    second = [sys.executable, "-m", "export.cli.main", *run, str(tmp_path / "second")]
    subprocess.run(second, check=True, cwd=Path(__file__).parents[3], timeout=120)
    before = files_of(versions)
    os.kill(frozen, signal.SIGCONT)
    assert forked.status() == 6
    assert "was taken over by another run" in (tmp_path / "output").read_text()
    assert files_of(versions) == before
    staging.check_files(versions / "1", staging.read_manifest(versions / "1"), tables="full")
    assert list((tmp_path / "first").rglob("*.bin")) != []
