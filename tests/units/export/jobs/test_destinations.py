"""One small job of three tables in each destination: a directory, and stores, where a bundle is
objects that are named by their content and the file that makes them a version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bundle.format.objects import ObjectMap, StoredFile, pool_path
from bundle.storage import catalog, integrity
from bundle.tables.reader import TableReader
from export.tables.plan import UPLOADS
from object_store.locations import location_of
from object_store.remote_path import RemotePath
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.commands import Command, CommandResult
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import hidden
from tests.units.object_store.memory_stores import TroubledStore

Values = dict[str, np.ndarray[Any, Any]]
VALUES: Values = {f"t{number}": np.full((1000, 8), number, np.float32) for number in range(3)}
CHANGED = VALUES | {"t1": VALUES["t1"] + 10}
DAY_S = 86_400


class Exports:
    """Exports of one checkpoint to one destination.

    Attributes:
      root: The destination.
      directory: Where the checkpoint, the scratch directory and pulled bundles are.
    """

    def __init__(self, command: Command, root: str, directory: Path) -> None:
        self._command = command
        self.root = root
        self.directory = directory
        self.save(VALUES)

    @property
    def store(self) -> RemotePath:
        root = location_of(self.root)
        assert isinstance(root, RemotePath)
        return root

    @property
    def on_disk(self) -> Path:
        """The directory of a destination on a disk."""
        return Path(self.root.removeprefix("local://"))

    def save(self, values: Values) -> None:
        write_bundle(self.directory / "ckpt-1", dict(values))
        self._names = list(values)

    def arguments(self, *more: object, scratch: str = "scratch") -> list[str]:
        named = [option for name in self._names for option in ("--table", f"{name}={name}")]
        run = ["tables", self.directory / "ckpt-1", self.root, "--model", "m", *named]
        return [str(part) for part in (*run, "--scratch", self.directory / scratch, *more)]

    def run(self, *more: object) -> CommandResult:
        return self._command(*self.arguments("--json", *more))

    def clean(self, *more: object) -> dict[str, Any]:
        return self._command("clean", self.root, "--json", *more).json

    def assert_whole(self, values: Values = VALUES) -> None:
        """Asserts that what a service reads is what the checkpoint holds."""
        bundle = self.directory / "pulled" / "m" / "0"
        if "://" in self.root:
            bundle = pull(find_bundle(self.root), self.directory / "pulled", None).bundle
        else:
            (newest, *_) = sorted((self.on_disk / "m").iterdir(), reverse=True)
            bundle = newest
        manifest = catalog.read_manifest(bundle)
        integrity.check_files(bundle, manifest, tables="full")
        for name, trained in values.items():
            rows = TableReader(bundle, manifest.tables[name]).read(0, len(trained))
            assert rows.tobytes() == trained.tobytes()

    def object_of(self, content: bytes) -> RemotePath:
        return self.store / "m" / pool_path(hashlib.sha256(content).hexdigest())

    def pool(self) -> dict[str, int]:
        """Returns when each object of the model was written."""
        files = [file for file in (self.on_disk / "m/.objects").rglob("*") if file.is_file()]
        return {file.name: file.stat().st_mtime_ns for file in files}

    def age(self, days: float) -> None:
        """Makes everything in the store older."""
        for file in self.on_disk.rglob("*"):
            if file.is_file():
                then = time.time() - days * DAY_S
                os.utime(file, (then, then))


ROOTS = {
    "directory": "{}/bundles",
    "store": "local://{}/store",
    "troubled": "troubled://{}/bundles",
}


@pytest.fixture
def exports(request: pytest.FixtureRequest, command: Command, tmp_path: Path) -> Iterator[Exports]:
    kind = getattr(request, "param", "store")
    yield Exports(command, ROOTS[kind].format(tmp_path), tmp_path)
    TroubledStore.reset()


@pytest.mark.parametrize("exports", ["directory", "store"], indirect=True)
def test_job_publishes_in_each_destination_what_the_checkpoint_holds(exports: Exports) -> None:
    assert exports.run().json["bundle"] == f"{exports.root}/m/1"
    exports.assert_whole()
    scratch = exports.directory / "scratch"
    assert [path for path in scratch.rglob("*") if path.is_file()] == []
    again = exports.run("--version", 1)
    assert (again.code, "is there already" in again.message) == (6, True)
    if "://" in exports.root:
        assert set((exports.store / "m/1").listing()) == {"objects.json"}
        for path in ("m/9/started", "m/x/objects.json", "m/12/started"):
            (exports.store / path).write(b"{}")
    else:
        assert hidden(exports.on_disk) == []
    assert exports.run().json["version"] == 2
    exports.save(CHANGED)
    assert exports.run().json["version"] == 3
    exports.assert_whole(CHANGED)


def die(exports: Exports, forked: ForkedRuns, **dies: Any) -> int:
    return forked.run(exports.arguments(), exports.directory / "output", **dies)


def test_publishing_that_stopped_sends_again_only_what_is_not_there(exports: Exports) -> None:
    obstacle = exports.object_of(VALUES["t2"].tobytes()).parent
    for lost in (False, True):
        obstacle.write(b"")
        assert exports.run().code == 6
        obstacle.remove()
        sent = exports.pool()
        if lost:
            shutil.rmtree(exports.directory / "scratch")
        assert exports.run().code == 0
        assert sent.items() <= exports.pool().items()
        exports.assert_whole()
        shutil.rmtree(exports.on_disk)
        shutil.rmtree(exports.directory / "pulled")


def test_segment_that_does_not_fit_on_the_scratch_disk_or_is_damaged_is_not_sent(
    exports: Exports, forked: ForkedRuns
) -> None:
    output = exports.directory / "output"
    assert die(exports, forked, file_bytes=10_000) == 6
    assert "File too large" in output.read_text()
    segment = "tables/t1/rows-00000-of-00001.bin"
    assert die(exports, forked, damages={"after": segment, "file": segment}) == 6
    assert f"{segment} has changed since it was written" in output.read_text()
    assert not (exports.store / "m/1/objects.json").is_file()
    assert not exports.object_of(VALUES["t1"].tobytes()).is_file()
    assert exports.run().code == 0
    exports.assert_whole()


def test_object_that_is_not_what_was_sent_is_an_error(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RemotePath.write
    for content in (lambda data: data[:-1], lambda data: data[:-1] + b"E"):
        with monkeypatch.context() as patch:
            patch.setattr(RemotePath, "write", lambda to, data, c=content: write(to, c(data)))
            done = exports.run()
        assert (done.code, "does not hold what was sent" in done.message) == (6, True)
        shutil.rmtree(exports.on_disk)


troubled = pytest.mark.parametrize("exports", ["troubled"], indirect=True)


@troubled
def test_store_that_lists_late_loses_no_version(exports: Exports) -> None:
    assert exports.run().json["version"] == 1
    TroubledStore.lists = False
    assert exports.run().json["version"] == 2
    assert exports.run("--version", 2).code == 6
    TroubledStore.lists = True
    exports.assert_whole()


@troubled
def test_local_disk_holds_a_few_segments_at_a_time(exports: Exports) -> None:
    many: Values = {f"t{n:02}": np.full((1000, 8), n, np.float32) for n in range(20)}
    exports.save(many)
    plan = exports.run("--workers", 1, "--plan").json
    segments = 1 + 1 + UPLOADS
    assert plan["local_bytes"] == segments * 1000 * 8 * 4 < plan["written_bytes"]
    TroubledStore.watched = exports.directory / "scratch"
    assert exports.run("--workers", 1, "--full").code == 0
    assert 0 < max(TroubledStore.seen) <= segments
    exports.assert_whole(many)


@troubled
def test_rows_are_compared_where_a_store_holds_them_by_a_few_hundred_requests(
    exports: Exports,
) -> None:
    rows: Values = {"t": np.arange(20_000 * 64, dtype=np.float32).reshape(20_000, 64)}
    exports.save(rows | {"u": rows["t"][:5000] - 160_000})
    converted = ("--dtype", "u=int8")
    TroubledStore.flips = True
    done = exports.run(*converted)
    assert (done.code, "table 't': row" in done.err) == (5, True)
    assert not (exports.store / "m/1/objects.json").is_file()
    TroubledStore.flips = False
    TroubledStore.reads = 0
    checks = exports.run(*converted).json["verification"]["tables"]
    assert all(3000 < check["rows_compared"] <= 4096 for check in checks.values())
    assert TroubledStore.reads < 1000
    exports.assert_whole(rows)


def check_reused(published: dict[str, Any], segments: int, reused_bytes: int) -> None:
    sent_bytes = published["table_bytes"] - reused_bytes
    expected = {"segments": segments, "bytes": reused_bytes}
    assert published["reused"] == expected | {"changed_rows": 0, "written_bytes": sent_bytes}


def test_versions_share_objects_until_the_last_of_them_is_removed(exports: Exports) -> None:
    assert exports.run().json["reused"]["bytes"] == 0
    first = exports.pool()
    exports.save(CHANGED)
    size = VALUES["t0"].nbytes
    check_reused(exports.run().json, 2, 2 * size)
    assert first.items() <= exports.pool().items()
    assert len(exports.pool()) == len(first) + 2  # the other table, and the manifest

    (exports.store / "m/1/objects.json").remove()
    exports.age(30)
    removed = exports.clean()["removed"]
    assert str(exports.object_of(VALUES["t1"].tobytes())) in removed
    assert len(removed) == 2
    exports.assert_whole(CHANGED)


def test_objects_are_sent_again_if_they_are_lost_or_may_be_removed_or_nothing_is_reused(
    exports: Exports,
) -> None:
    assert exports.run().code == 0
    shared = exports.object_of(VALUES["t1"].tobytes())
    # A lifecycle rule of the store may remove what a version names.
    shared.remove()
    (exports.store / "m/5/objects.json").write(b"torn")
    assert exports.run().code == 0
    exports.assert_whole()
    shared.write(b"damaged")
    check_reused(exports.run("--no-reuse").json, 0, 0)
    exports.assert_whole()
    # No version names the objects now. Half of the time after which `clean` removes them is left.
    shutil.rmtree(exports.on_disk / "m/5")
    for days, is_sent in ((3, False), (4, True)):
        for version in (exports.on_disk / "m").glob("[0-9]*"):
            shutil.rmtree(version)
        exports.age(days)
        before = exports.pool()
        assert exports.run().code == 0
        assert (before[shared.name] != exports.pool()[shared.name]) is is_sent


NAMED = "0" * 64
LOST = "1" * 64


VERSION = (
    "m/1/objects.json",
    30,
    ObjectMap(
        model="m",
        version=1,
        files={"manifest.json": StoredFile(bytes=1, objects=(NAMED,))},
    ).dump(),
)
OLD = (f"m/{pool_path(LOST)}", 8, b"x")
Stored = tuple[str, float, bytes]
CLEANED: dict[str, tuple[list[Stored], list[str], list[str]]] = {
    # files with their ages in days; what is removed, and the versions that are being written
    "a lost object": ([VERSION, (f"m/{pool_path(NAMED)}", 30, b"x"), OLD], [OLD[0]], []),
    "a version that is being written": ([VERSION, OLD, ("m/10/started", 6, b"")], [], ["m/10"]),
    "a version that was given up": ([VERSION, OLD, ("m/10/started", 8, b"")], [OLD[0]], []),
    "another model that is being written": (
        [VERSION, OLD, ("n/1/started", 1, b""), (f"n/{pool_path(LOST)}", 8, b"x")],
        [OLD[0]],
        ["n/1"],
    ),
    "what is no version": (
        [
            (f".hidden/{pool_path(LOST)}", 30, b"x"),
            ("m/latest/started", 1, b""),
            ("m/01/started", 1, b""),
            # A bundle that was copied as it lies on a disk.
            ("m/3/manifest.json", 30, b"{}"),
            ("m/3/tables/a", 30, b"x"),
        ],
        [],
        [],
    ),
}


def fill(exports: Exports, files: list[Stored]) -> None:
    for path, days, content in files:
        (exports.store / path).write(content)
        then = time.time() - days * DAY_S
        os.utime(exports.on_disk / path, (then, then))


def stored_files(exports: Exports) -> set[str]:
    files = [path for path in exports.on_disk.rglob("*") if path.is_file()]
    return {path.relative_to(exports.on_disk).as_posix() for path in files}


@pytest.mark.parametrize("name", CLEANED)
def test_clean_removes_old_objects_that_no_version_names(exports: Exports, name: str) -> None:
    files, removed, busy = CLEANED[name]
    fill(exports, files)
    before = stored_files(exports)
    page = exports.clean()
    assert page["removed"] == [f"{exports.root}/{path}" for path in removed]
    assert page["busy"] == [f"{exports.root}/{path}" for path in busy]
    assert stored_files(exports) == before - set(removed)
    assert exports.clean()["removed"] == []


def test_clean_goes_by_the_clock_of_the_store_and_by_the_given_age(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(exports, [VERSION, OLD])
    assert exports.clean("--older-than", 9)["removed"] == []
    fill(exports, [(OLD[0], 1, b"x")])
    later = time.time() + 30 * DAY_S
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: later)
        assert exports.clean()["removed"] == []
    assert exports.clean("--older-than", 0.5)["removed"] == [f"{exports.root}/{OLD[0]}"]


@pytest.mark.parametrize("during", ["listing", "removal"])
def test_clean_stops_where_a_run_begins_meanwhile(
    exports: Exports, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    monkeypatch.setattr("export.jobs.store_cleaning._REMOVED_AT_A_TIME", 1)
    old = [(f"m/{pool_path(f'{number}' * 64)}", 8, b"x") for number in (1, 2, 3)]
    fill(exports, [VERSION, *old])
    times = RemotePath.times
    remove = RemotePath.remove

    def list_and_begin(directory: RemotePath) -> dict[str, float | None]:
        listed = times(directory)
        if directory.name == "ff":  # the last part of the pool
            (exports.store / "m/2/started").write(b"")
        return listed

    def remove_and_begin(file: RemotePath) -> None:
        remove(file)
        if ".objects" in file.url:
            (exports.store / "m/2/started").write(b"")

    if during == "listing":
        monkeypatch.setattr(RemotePath, "times", list_and_begin)
    else:
        monkeypatch.setattr(RemotePath, "remove", remove_and_begin)
    page = exports.clean()
    assert len(page["removed"]) == (0 if during == "listing" else 1)
    assert page["busy"] == [f"{exports.root}/m/2"]


@pytest.mark.parametrize(
    ("kind", "options", "code", "words"),
    [
        ("file", (), 2, ("is not a directory",)),
        ("scratch", (), 2, ("scratch", "is not a directory")),
        ("store", ("--tables", "link"), 2, ("cannot be linked", "local://")),
        ("unknown", ("--clean",), 6, ("objects.json", "nothing of this model was removed")),
        ("timeless", ("--clean",), 6, ("does not report when",)),
        ("full", (), 6, ("1 B more",)),
    ],
)
def test_destination_that_cannot_take_the_job_is_rejected(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: tuple[str, ...],
    code: int,
    words: tuple[str, ...],
) -> None:
    root = ROOTS["directory" if kind in ("file", "full") else "store"].format(tmp_path)
    exports = Exports(command, root, tmp_path)
    if kind == "file":
        exports.on_disk.write_text("a file")
    elif kind == "scratch":
        (tmp_path / "scratch").write_text("a file")
    elif kind == "unknown":
        fill(exports, [("m/1/objects.json", 30, b"{}"), OLD])
    elif kind == "timeless":
        fill(exports, [VERSION, OLD])
        monkeypatch.setattr(RemotePath, "modified_s", lambda _: None)
    elif kind == "full":
        needed = sum(values.nbytes for values in VALUES.values())
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    if options == ("--clean",):
        done = command("clean", exports.root)
    else:
        done = exports.run(*options)
    assert done.code == code, done.err
    assert all(part in done.message for part in words), done.message
