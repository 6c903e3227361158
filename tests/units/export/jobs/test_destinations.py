"""Bundles go to a store as objects that are named by their content, and are gone on with after a
stop.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bundle.format.objects import OBJECT_BYTES, pool_path
from bundle.storage import catalog, integrity
from export.errors import DestinationError, UsageError
from export.jobs.destinations import Destination, open_destination
from export.tables.plan import UPLOADS
from object_store.locations import location_of
from object_store.remote_path import RemotePath
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.commands import Command, CommandResult
from tests.units.export.forked_runs import ForkedRuns
from tests.units.object_store.memory_stores import SleepingClock, TroubledStore

VALUES = {f"t{number}": np.full((1000, 8), number, np.float32) for number in range(3)}
OTHER_VALUES = {name: values + 10 for name, values in VALUES.items()}
STORES = ["memory", "local"]
DAY_S = 86_400


def test_root_that_is_not_a_directory_is_rejected_before_anything_is_computed(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "pipe"):
        with pytest.raises(UsageError, match=f"{name} is not a directory"):
            open_destination(name, tmp_path, tmp_path)
    with pytest.raises(UsageError, match=r"scratch .*file is not a directory"):
        open_destination("memory://bundles", tmp_path, tmp_path / "file")
    assert open_destination("new", tmp_path, tmp_path).root == tmp_path / "new"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemotePath:
    root = location_of(f"{request.param}://{tmp_path}/store/bundles")
    assert isinstance(root, RemotePath)
    return root


on_disk = pytest.mark.parametrize("store", ["local"], indirect=True)
in_trouble = pytest.mark.parametrize("store", ["troubled"], indirect=True)


@pytest.fixture(autouse=True)
def _untroubled() -> Iterator[None]:
    yield
    TroubledStore.reset()


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
    arguments = [
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
    return lambda *more: command(*arguments, *more)


def object_of(directory: RemotePath, content: bytes) -> RemotePath:
    return directory.parent / pool_path(hashlib.sha256(content).hexdigest())


def assert_whole(store: RemotePath, root: Path, values: dict[str, np.ndarray] = VALUES) -> None:
    """What a service downloads is what the checkpoint holds."""
    bundle = pull(find_bundle(str(store)), root, None).bundle
    manifest = catalog.read_manifest(bundle)
    integrity.check_files(bundle, manifest, tables="full")
    for name, trained in values.items():
        rows = b"".join(
            (bundle / segment.file).read_bytes() for segment in manifest.tables[name].segments
        )
        assert rows == trained.tobytes()


def local(path: RemotePath) -> Path:
    return Path(path.url.removeprefix("local://"))


def test_publish_to_a_store_sends_once_what_a_service_pulls(
    export: Callable[..., CommandResult], store: RemotePath, tmp_path: Path
) -> None:
    assert export().json["bundle"] == f"{store}/m/1"
    assert_whole(store, tmp_path / "root")
    assert set((store / "m/1").listing()) == {"objects.json"}
    assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == []
    second = export("--version", 1)
    assert (second.code, f"{store}/m/1 is there already" in second.message) == (6, True)
    (store / "m/9/started").write(b"unfinished")
    assert export().json["version"] == 2


@pytest.mark.parametrize("scratch_is_lost", [False, True])
@on_disk
def test_publish_to_a_store_that_stopped_sends_again_only_what_is_not_there(
    export: Callable[..., CommandResult], store: RemotePath, tmp_path: Path, scratch_is_lost: bool
) -> None:
    objects = {name: object_of(store / "m/1", VALUES[name].tobytes()) for name in VALUES}
    obstacle = objects["t2"].parent
    obstacle.write(b"")
    assert export().code == 6
    before = {name: os.stat(local(objects[name])) for name in ("t0", "t1")}
    obstacle.remove()
    if scratch_is_lost:
        shutil.rmtree(tmp_path / "scratch")

    assert export().code == 0
    for name, status in before.items():
        assert os.stat(local(objects[name])) == status
    assert_whole(store, tmp_path / "root")


@on_disk
def test_publish_to_a_store_that_lost_an_object_sends_it_again(
    export: Callable[..., CommandResult],
    checkpoint: Path,
    store: RemotePath,
    forked: ForkedRuns,
    tmp_path: Path,
) -> None:
    run = ["tables", str(checkpoint), str(store), "--model", "m", "--scratch"]
    arguments = [*run, str(tmp_path / "scratch"), *NAMED]
    # The journal notes each segment twice: when it is written, and when it is sent.
    assert forked.run(arguments, tmp_path / "output", noted=6) == -signal.SIGKILL
    lost, *_ = (file for file in local(store / "m/.objects").rglob("*") if file.is_file())
    lost.unlink()
    assert export().code == 0
    assert_whole(store, tmp_path / "root")


def contents_of(directory: Path) -> dict[Path, str]:
    """Returns the digest of each file that is whole.

    Not its inode: stores other than S3 and Google Cloud Storage do not create atomically, so an
    upload that was under way may replace an object by the same bytes.
    """
    actual = directory.rglob("*")
    files = [path for path in actual if path.is_file() and ".part-" not in path.name]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run_elsewhere(arguments: list[str]) -> None:
    second = [sys.executable, "-m", "export.cli.main", *arguments]
    subprocess.run(second, check=True, cwd=Path(__file__).parents[4], timeout=120)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("winner", [VALUES, OTHER_VALUES], ids=["same", "other"])
@on_disk
def test_exporter_that_was_frozen_while_another_published_changes_nothing(
    forked: ForkedRuns,
    checkpoint: Path,
    store: RemotePath,
    tmp_path: Path,
    winner: dict[str, np.ndarray],
) -> None:
    (tmp_path / "winner").mkdir()
    write_bundle(tmp_path / "winner/ckpt-1", winner)
    options = [str(store), "--model", "m", "--version", "1", *NAMED, "--scratch"]
    first = ["tables", str(checkpoint), *options, str(tmp_path / "first")]
    frozen = forked.start(first, tmp_path / "output", stops=3)
    assert forked.status() == -signal.SIGSTOP
    # Manifests name the second in which their run began: these must differ.
    time.sleep(1)
    run_elsewhere(["tables", str(tmp_path / "winner/ckpt-1"), *options, str(tmp_path / "second")])
    published = contents_of(local(store))

    os.kill(frozen, signal.SIGCONT)
    assert forked.status() == 6
    assert "another run has published" in (tmp_path / "output").read_text()
    assert published.items() <= contents_of(local(store)).items()
    assert_whole(store, tmp_path / "root", winner)


@pytest.mark.nightly
@pytest.mark.slow
@on_disk
def test_exporters_from_a_copied_scratch_directory_publish_one_version(
    forked: ForkedRuns, checkpoint: Path, store: RemotePath, tmp_path: Path
) -> None:
    run = ["tables", str(checkpoint), str(store), "--model", "m", "--version", "1", *NAMED]
    first = [*run, "--scratch", str(tmp_path / "first")]
    second = [*run, "--scratch", str(tmp_path / "second")]
    assert forked.run(first, tmp_path / "output", noted=3) == -signal.SIGKILL
    shutil.copytree(tmp_path / "first", tmp_path / "second")

    frozen = forked.start(first, tmp_path / "output", stops=2)
    assert forked.status() == -signal.SIGSTOP
    run_elsewhere(second)
    published = contents_of(local(store))
    os.kill(frozen, signal.SIGCONT)
    assert forked.status() == 0  # the journal has the same start time: the same bundle
    assert contents_of(local(store)) == published
    assert_whole(store, tmp_path / "root")


@in_trouble
def test_publish_to_a_store_that_throttles_waits_and_goes_on(
    export: Callable[..., CommandResult],
    store: RemotePath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    slow_down = OSError(16, "Please reduce your request rate.")
    TroubledStore.failures.extend(
        [*[slow_down] * 5, ConnectionResetError(104, "reset by peer"), TimeoutError("timed out")]
    )
    assert export("--workers", 1).code == 0
    assert len(pauses) == 7
    assert pauses[0] < 1 < pauses[4] < 30
    assert_whole(store, tmp_path / "root")


@in_trouble
def test_publish_to_a_store_that_does_not_recover_exits_6_with_its_url_and_resumes(
    export: Callable[..., CommandResult],
    store: RemotePath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SleepingClock(monkeypatch)
    assert not (store / "m/1/objects.json").is_file()
    TroubledStore.failures.extend([OSError(16, "Please reduce your request rate.")] * 100)
    done = export("--workers", 1)
    assert done.code == 6
    assert str(store) in done.err.splitlines()[-1]
    assert "reduce your request rate" in done.err.splitlines()[-1]
    assert 200 < clock.passed_s < 300
    TroubledStore.failures.clear()
    assert export().code == 0


@in_trouble
def test_publish_to_a_store_that_lists_late_overwrites_nothing(
    export: Callable[..., CommandResult], store: RemotePath, tmp_path: Path
) -> None:
    assert export().json["version"] == 1
    TroubledStore.lists = False
    assert export().json["version"] == 2
    assert export("--version", 2).code == 6
    TroubledStore.lists = True
    assert_whole(store, tmp_path / "root")


@in_trouble
def test_publish_to_a_store_holds_a_few_segments_on_the_local_disk(
    command: Command, store: RemotePath, tmp_path: Path
) -> None:
    many = {f"t{number:02}": np.full((1000, 8), number, np.float32) for number in range(20)}
    write_bundle(tmp_path / "ckpt-1", many)
    named = [option for name in many for option in ("--table", f"{name}={name}")]
    arguments = ["tables", tmp_path / "ckpt-1", store, "--model", "m", *named, "--workers", 1]
    arguments += ["--scratch", tmp_path / "scratch"]
    plan = command(*arguments, "--plan", "--json").json
    segments = 1 + 1 + UPLOADS
    assert plan["local_bytes"] == segments * 1000 * 8 * 4 < plan["written_bytes"]

    TroubledStore.watched = tmp_path / "scratch"
    assert command(*arguments, "--full").code == 0
    assert 0 < max(TroubledStore.seen) <= segments
    assert_whole(store, tmp_path / "root", many)


@in_trouble
def test_publish_to_a_store_compares_rows_that_it_reads_from_there(
    command: Command, store: RemotePath, tmp_path: Path
) -> None:
    rows = np.arange(20_000 * 64, dtype=np.float32).reshape(20_000, 64)
    write_bundle(tmp_path / "ckpt-1", {"t": rows})
    arguments = ["tables", tmp_path / "ckpt-1", store, "--model", "m", "--table", "t=t"]
    arguments += ["--scratch", tmp_path / "scratch", "--json"]
    TroubledStore.flips = True
    done = command(*arguments)
    assert (done.code, "table 't': row" in done.err) == (5, True)
    assert not (store / "m/1/objects.json").is_file()
    TroubledStore.flips = False

    # Groups of neighbors take a request each, so that a table takes a few hundred of them.
    TroubledStore.reads = 0
    verified = command(*arguments).json["verification"]["tables"]["t"]["rows_compared"]
    assert 3000 < verified <= 4096
    assert 100 < TroubledStore.reads < 400
    assert_whole(store, tmp_path / "root", {"t": rows})


@on_disk
def test_publish_to_a_store_with_a_full_scratch_disk_exits_6_and_resumes(
    export: Callable[..., CommandResult],
    checkpoint: Path,
    store: RemotePath,
    forked: ForkedRuns,
    tmp_path: Path,
) -> None:
    run = ["tables", str(checkpoint), str(store), "--model", "m", *NAMED]
    run += ["--scratch", str(tmp_path / "scratch")]
    assert forked.run(run, tmp_path / "output", file_bytes=10_000) == 6
    assert "File too large" in (tmp_path / "output").read_text()
    assert not (store / "m/1/objects.json").is_file()
    assert export().code == 0
    assert_whole(store, tmp_path / "root")


@on_disk
def test_publish_to_a_store_of_a_segment_that_was_damaged_sends_nothing_of_it(
    checkpoint: Path, store: RemotePath, forked: ForkedRuns, tmp_path: Path
) -> None:
    segment = "tables/t1/rows-00000-of-00001.bin"
    run = ["tables", str(checkpoint), str(store), "--model", "m", *NAMED]
    run += ["--scratch", str(tmp_path / "scratch")]
    damages = {"after": segment, "file": segment}
    assert forked.run(run, tmp_path / "output", damages=damages) == 6
    assert f"{segment} has changed since it was written" in (tmp_path / "output").read_text()
    assert not (store / "m/1/objects.json").is_file()
    assert not object_of(store / "m/1", VALUES["t1"].tobytes()).is_file()


def aged(path: RemotePath, days: float) -> RemotePath:
    """Makes a file older by the store's clock."""
    written = local(path).stat().st_mtime - days * DAY_S
    os.utime(local(path), (written, written))
    return path


@on_disk
def test_clean_of_a_store_removes_old_objects_that_no_version_names(
    export: Callable[..., CommandResult], command: Command, store: RemotePath, tmp_path: Path
) -> None:
    assert export().json["version"] == 1
    for path in local(store / "m/.objects").rglob("*"):
        os.utime(path, (1, 1))
    lost = store / "m/.objects/00/lost"
    fresh = store / "m/.objects/00/fresh"
    resumed = store / "other/3/started"
    old = store / "other/.objects/00/old"
    for file in (lost, fresh, resumed, old):
        file.write(b"x")
    for file in (lost, old):
        aged(file, 8)

    assert command("clean", store, "--older-than", 9, "--json").json["removed"] == []
    cleaned = command("clean", store, "--json").json
    assert cleaned["removed"] == [str(lost)]
    assert cleaned["busy"] == [f"{store}/other/3"]
    assert all(file.is_file() for file in (fresh, resumed, old))
    assert_whole(store / "m", tmp_path / "root")
    assert command("clean", store, "--json").json["removed"] == []


def pool_of(store: RemotePath) -> dict[str, int]:
    """Returns when each object of the model was written."""
    files = [file for file in local(store / "m/.objects").rglob("*") if file.is_file()]
    return {file.name: file.stat().st_mtime_ns for file in files}


@on_disk
def test_versions_in_a_store_share_objects_until_the_last_of_them_is_removed(
    export: Callable[..., CommandResult],
    command: Command,
    checkpoint: Path,
    store: RemotePath,
    tmp_path: Path,
) -> None:
    assert export().json["reused"] == {"segments": 0, "bytes": 0}
    first = pool_of(store)
    write_bundle(checkpoint, VALUES | {"t1": OTHER_VALUES["t1"]})
    size = VALUES["t0"].nbytes
    assert export().json["reused"] == {"segments": 2, "bytes": 2 * size}
    objects = pool_of(store)
    assert first.items() <= objects.items()
    # The other table, and the manifest.
    assert len(objects) == len(first) + 2

    (store / "m/1/objects.json").remove()
    for file in local(store).rglob("*"):
        os.utime(file, (1, 1))
    removed = command("clean", store, "--json").json["removed"]
    assert str(object_of(store / "m/1", VALUES["t1"].tobytes())) in removed
    assert len(removed) == 2
    assert_whole(store, tmp_path / "root", VALUES | {"t1": OTHER_VALUES["t1"]})


@on_disk
def test_version_in_a_store_sends_the_changed_blocks_of_a_segment_alone(
    command: Command, store: RemotePath, tmp_path: Path
) -> None:
    row_bytes = 64 * 4
    rows = 3 * OBJECT_BYTES // row_bytes
    table = np.random.default_rng(1).random((rows, 64), np.float32)
    arguments = ["tables", tmp_path / "ckpt-1", store, "--model", "m", "--table", "t=t"]
    arguments += ["--scratch", tmp_path / "scratch", "--json"]
    write_bundle(tmp_path / "ckpt-1", {"t": table})
    assert command(*arguments).code == 0
    first = pool_of(store)
    table[rows // 2] += 1
    write_bundle(tmp_path / "ckpt-1", {"t": table})
    assert command(*arguments).json["reused"] == {"segments": 0, "bytes": 2 * OBJECT_BYTES}
    sent_objects = pool_of(store).keys() - first.keys()
    block = table.tobytes()[OBJECT_BYTES : 2 * OBJECT_BYTES]
    assert hashlib.sha256(block).hexdigest() in sent_objects
    assert len(sent_objects) == 2  # and the manifest
    assert_whole(store, tmp_path / "root", {"t": table})


@on_disk
def test_clean_of_a_store_counts_by_the_clock_of_the_store(
    command: Command, store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "m/2/objects/new").write(b"x")
    later = time.time() + 30 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert command("clean", store, "--json").json["removed"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "s3://models/bundles/m/1"), "rowcast-serve pull s3://models/bundles/m/1 ROOT"),
        (("tables", "c", "s3://key:secret@bucket/x"), "credentials"),
    ],
)
def test_url_that_cannot_be_used_so_exits_2(
    command: Command, arguments: tuple[str, ...], message: str
) -> None:
    done = command(*arguments)
    assert (done.code, message in done.message) == (2, True)


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


def test_destination_names_where_versions_lie_and_are_staged(
    tmp_path: Path, store: RemotePath
) -> None:
    here = Destination(tmp_path, None)
    assert here.location("m", 3) == tmp_path / "m" / "3"
    assert here.staging("m", 3) == tmp_path / "m" / ".staging-3"
    in_store = Destination(tmp_path, store)
    assert in_store.location("m", 3) == store / "m" / "3"
    assert in_store.staging("m", 3) == tmp_path / "m" / ".staging-3"


def test_open_destination_stages_each_store_in_a_directory_of_its_own(tmp_path: Path) -> None:
    opened = open_destination("a/../b", tmp_path, tmp_path / "scratch")
    assert opened == Destination(tmp_path / "b", None)
    url = "memory://bucket/some/" + "long" * 10
    opened = open_destination(url, tmp_path, tmp_path / "scratch")
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    readable = "memory-bucket-some-longlonglonglonglongl"
    assert opened.root == tmp_path / "scratch" / f"{readable}-{digest}"
    assert opened.store == location_of(url)


def test_next_version_of_a_store_follows_the_newest_that_is_committed(store: RemotePath) -> None:
    destination = Destination(Path("scratch"), store)
    assert destination.next_version("m") == 1
    for path in ("m/2/objects.json", "m/10/manifest.json", "m/12/started", "m/x/objects.json"):
        (store / path).write(b"{}")
    assert destination.next_version("m") == 11
    (store / "m/11/objects.json").write(b"{}")
    assert destination.next_version("m") == 12  # which a run that did not end began
    assert destination.next_version("other") == 1


def test_next_version_of_a_store_that_cannot_be_listed_is_an_error(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: RemotePath) -> dict[str, object]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RemotePath, "listing", fail)
    with pytest.raises(DestinationError) as failure:
        Destination(Path("scratch"), store).next_version("m")
    assert str(failure.value) == f"destination {store} cannot be listed: Input/output error"
