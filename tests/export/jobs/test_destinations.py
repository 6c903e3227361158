"""Bundles go to a store whole, once, and are gone on with after a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bundle.format.manifest import parse
from bundle.storage import staging
from export.checkpoint.inventory.specs import Statements
from export.errors import DestinationError, ExportError
from export.jobs import tables_job
from export.jobs.destinations import open_destination, published_bytes
from export.jobs.leases import Lease
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.recipe.settings import ExportSettings
from runtime.object_store import RemotePath, located
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
from tests.export.checkpoint.bundles import write_bundle
from tests.export.commands import Command
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


def export(checkpoint: Path, store: RemotePath, scratch: Path, version: int | None = None) -> Published:
    settings, said = ExportSettings(), Statements({name: name for name in VALUES})
    destination = open_destination(str(store), Path(), scratch)
    progress = Progress(Console(quiet=True))
    job = tables_job.TablesJob("m", version, said)
    return tables_job.export_tables(
        tables_job.prepare_tables(checkpoint, destination, job, settings), settings, progress
    )


def shard_of(store: RemotePath, name: str) -> RemotePath:
    return store / f"m/1/tables/{name}/rows-00000-of-00001.bin"


def written(store: RemotePath, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.frombuffer(shard_of(store, name).read(0, 1 << 30), np.float32).reshape(-1, 8)


def test_publish_to_a_store_sends_once_what_a_service_pulls(
    checkpoint: Path, store: RemotePath, tmp_path: Path
) -> None:
    published = export(checkpoint, store, tmp_path / "scratch")
    assert str(published.directory) == f"{store}/m/1"
    assert parse((store / "m/1/manifest.json").read(0, 1 << 20)) == published.page
    for name, values in VALUES.items():
        np.testing.assert_array_equal(written(store, name), values)
    assert published_bytes(published.page) == sum(values.nbytes for values in VALUES.values())
    assert set((store / "m").listing()) == {"1"}
    assert [path.name for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == ["owner"]
    assert pull(find_bundle(str(store)), tmp_path / "root", None).bundle == tmp_path / "root/m/1"
    with pytest.raises(DestinationError, match=f"{store}/m/1 is there already"):
        export(checkpoint, store, tmp_path / "other", version=1)
    (store / "m/9/tables/t0/rows-00000-of-00001.bin").write(b"unfinished")
    assert open_destination(str(store), Path(), tmp_path).next_version("m") == 2


@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_publish_to_a_store_that_stopped_sends_again_only_what_is_not_there(
    checkpoint: Path, store: RemotePath, tmp_path: Path
) -> None:
    obstacle = shard_of(store, "t2") / "in-the-way"
    obstacle.write(b"")
    with pytest.raises(ExportError):
        export(checkpoint, store, tmp_path / "scratch")
    obstacle.remove()
    os.rmdir(obstacle.parent.url.removeprefix("local://"))
    before = shard_of(store, "t1").modified()
    shard_of(store, "t0").write(b"of another")
    export(checkpoint, store, tmp_path / "scratch")
    assert shard_of(store, "t1").modified() == before
    for name, values in VALUES.items():
        np.testing.assert_array_equal(written(store, name), values)


def test_publish_to_a_store_second_exporter_of_a_version_is_refused(
    checkpoint: Path, store: RemotePath, tmp_path: Path
) -> None:
    with (
        Lease(store / "m", 1, "another").hold(),
        pytest.raises(DestinationError, match="m/1 is being written by another run"),
    ):
        export(checkpoint, store, tmp_path / "scratch")
    export(checkpoint, store, tmp_path / "scratch")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("verify", "s3://models/bundles/m/1"), "rowcast-serve pull s3://models/bundles/m/1 ROOT"),
        (("tables", "c", "s3://key:secret@bucket/x"), "credentials"),
    ],
)
def test_url_that_cannot_be_used_so_exits_2(command: Command, arguments: tuple[str, ...], told: str) -> None:
    done = command(*arguments)
    assert (done.code, told in done.told) == (2, True)


def test_tables_to_a_url_stages_in_the_scratch_directory(
    command: Command, checkpoint: Path, store: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("tables", checkpoint, store, "--table", "a=t1", "--tables", "link")
    assert (done.code, f"cannot be linked into {store.url.partition(':')[0]}://" in done.err) == (2, True)
    page = command("tables", checkpoint, store, "--table", "a=t1", "--json").page
    assert page["bundle"] == f"{store}/tables/1"
    assert len(list((tmp_path / ".rowcast-scratch").iterdir())) == 1


def files_of(directory: Path) -> dict[Path, tuple[int, int]]:
    files = {path: path.stat() for path in directory.rglob("*") if path.is_file()}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in files.items()}


def test_exporter_that_was_frozen_past_its_lease_damages_nothing(
    forked: ForkedRuns, checkpoint: Path, tmp_path: Path
) -> None:
    store, versions = f"local://{tmp_path}/store", tmp_path / "store/m"
    named = [option for name in VALUES for option in ("--table", f"{name}={name}")]
    run = ["tables", str(checkpoint), store, "--model", "m", "--version", "1", *named, "--scratch"]
    assert forked.run([*run, str(tmp_path / "first")], tmp_path / "output", noted=1) == -signal.SIGKILL
    frozen = forked.start(
        [*run, str(tmp_path / "first")], tmp_path / "output", stops=len(VALUES)
    )  # its own lease again
    assert forked.status() == -signal.SIGSTOP
    lease = json.loads((versions / ".lease-1.json").read_text())
    (versions / ".lease-1.json").write_text(json.dumps(lease | {"time": "2026-01-01T00:00:00+00:00"}))
    second = [sys.executable, "-m", "export.cli.main", *run, str(tmp_path / "second")]
    subprocess.run(second, check=True, cwd=Path(__file__).parents[3], timeout=120)
    before = files_of(versions)
    os.kill(frozen, signal.SIGCONT)
    assert forked.status() == 6
    assert "was taken over by another run" in (tmp_path / "output").read_text()
    assert files_of(versions) == before
    staging.check_files(versions / "1", staging.read_manifest(versions / "1"), tables="full")
    assert list((tmp_path / "first").rglob("*.bin")) != []
