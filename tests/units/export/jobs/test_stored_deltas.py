"""Nightly exports to a store: a version sends the rows that changed since the newest one there,
wherever they are, and reads like the table that was trained.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bundle.format import objects
from bundle.format.objects import ObjectMap
from bundle.storage import catalog, integrity
from export.jobs.store_versions import read_stored_manifest
from export.tables.tasks import delta_bytes_max
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
from tests.bundles.next_versions import stored_rows
from tests.units.export.commands import Command
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.jobs.test_destinations import ROOTS, Exports
from tests.units.export.killed_jobs import KILLED
from tests.units.object_store.memory_stores import TroubledStore

ROWS = 100_000
DIM = 32
ROW_BYTES = DIM * 4
CHANGED_ROWS = ROWS // 50
NAME = "t"
FILES_BYTES_MAX = 10_000
"""The maximum size of a manifest and its list of objects."""
KILLED_NIGHTS = 25
PULL = """
import sys
from pathlib import Path
from service.cli.bundle_download import pull
from service.cli.bundle_source import find_bundle
pull(find_bundle(sys.argv[1]), Path(sys.argv[2]), None)
"""


@pytest.fixture
def exports(command: Command, tmp_path: Path) -> Iterator[Exports]:
    yield Exports(command, ROOTS["store"].format(tmp_path), tmp_path)
    TroubledStore.reset()


class Nights:
    """A table of which 2 % of the rows change every day, anywhere."""

    def __init__(self, exports: Exports) -> None:
        self.exports = exports
        self._random = np.random.default_rng(1)
        self.rows = self._random.standard_normal((ROWS, DIM)).astype(np.float32)
        self.save()

    def train(self, count: int = CHANGED_ROWS) -> None:
        changed = self._random.choice(ROWS, count, replace=False)
        self.rows[changed] = self._random.standard_normal((count, DIM)).astype(np.float32)
        self.save()

    def save(self) -> None:
        self.exports.save({NAME: self.rows})

    def pool_bytes(self) -> int:
        pool = self.exports.on_disk / "m/.objects"
        return sum(file.stat().st_size for file in pool.rglob("*") if file.is_file())

    def objects(self, version: int) -> ObjectMap:
        content = (self.exports.on_disk / f"m/{version}/objects.json").read_bytes()
        return objects.parse(content)

    def deltas(self, version: int) -> list[str]:
        """Returns the files of the deltas of the only segment of a version."""
        stored = read_stored_manifest(self.exports.store / "m", self.objects(version))
        (segment,) = stored.tables[NAME].segments
        return [delta.file for delta in segment.deltas]

    def assert_whole(self) -> None:
        self.exports.assert_whole({NAME: self.rows})


@pytest.fixture
def nights(exports: Exports) -> Nights:
    nights = Nights(exports)
    assert exports.run().code == 0
    return nights


def test_each_night_sends_the_rows_that_changed(nights: Nights) -> None:
    for version in (2, 3, 4):
        nights.train()
        before = nights.pool_bytes()
        result = nights.exports.run("--full").json
        sent_bytes = nights.pool_bytes() - before
        assert sent_bytes <= 1.3 * CHANGED_ROWS * ROW_BYTES + FILES_BYTES_MAX
        assert len(nights.deltas(version)) == version - 1
        assert result["reused"]["changed_rows"] == CHANGED_ROWS
        assert result["reused"]["written_bytes"] <= 1.3 * CHANGED_ROWS * ROW_BYTES
        checked = result["verification"]["tables"][NAME]
        assert checked["rows_compared"] == ROWS
        # Nothing of what was fetched stays.
        scratch = nights.exports.directory / "scratch"
        assert [path for path in scratch.rglob("*") if path.is_file()] == []
        nights.assert_whole()


def test_night_without_changes_sends_no_row_and_others_send_whole_segments(nights: Nights) -> None:
    nights.train()
    assert nights.exports.run().code == 0
    before = nights.pool_bytes()
    reused = nights.exports.run().json["reused"]
    assert reused["segments"] == 1
    assert reused["written_bytes"] == 0
    assert nights.pool_bytes() - before <= FILES_BYTES_MAX
    assert nights.deltas(3) == nights.deltas(2) != []
    nights.assert_whole()
    # Where no older version is to be reused, and where most of it has changed.
    assert nights.exports.run("--no-reuse").json["reused"]["bytes"] == 0
    nights.train(ROWS // 3)
    assert nights.exports.run().code == 0
    assert nights.deltas(4) == nights.deltas(5) == []
    nights.assert_whole()


def test_chain_ends_with_one_delta_over_its_base(nights: Nights) -> None:
    for _ in range(11):
        nights.train(100)
        assert nights.exports.run().code == 0
    assert [len(nights.deltas(version)) for version in (10, 11, 12)] == [9, 10, 1]
    nights.assert_whole()


def test_int8_rows_and_their_scales_are_compared_each_on_its_own(exports: Exports) -> None:
    nights = Nights(exports)
    converted = ("--dtype", "int8")
    assert exports.run(*converted).code == 0
    nights.train()
    result = exports.run(*converted, "--full").json
    assert result["reused"]["changed_rows"] == 2 * CHANGED_ROWS
    manifest = read_stored_manifest(exports.store / "m", nights.objects(2))
    table = manifest.tables[NAME]
    assert [len(part[0].deltas) for part in (table.segments, table.scales)] == [1, 1]


def lose_base(nights: Nights) -> None:
    base = nights.objects(2).files["tables/t/rows-00000-of-00001.bin"]
    (nights.exports.store / "m" / objects.pool_path(base.objects[1])).remove()


def damage_delta(nights: Nights) -> None:
    (delta,) = nights.deltas(2)
    stored = nights.objects(2).files[delta]
    path = nights.exports.on_disk / "m" / objects.pool_path(stored.objects[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_manifest(nights: Nights) -> None:
    stored = nights.objects(2).files["manifest.json"]
    (nights.exports.store / "m" / objects.pool_path(stored.objects[0])).remove()


@pytest.mark.parametrize(
    ("damage", "note"),
    [
        (lose_base, "written whole"),
        (damage_delta, "written whole"),
        (lose_manifest, "no segment of an older version"),
    ],
)
def test_segment_whose_older_files_cannot_be_read_is_sent_whole_and_noted(
    nights: Nights, damage: Callable[[Nights], None], note: str
) -> None:
    nights.train()
    assert nights.exports.run().code == 0
    damage(nights)
    nights.train()
    result = nights.exports.run().json
    assert any(note in line for line in result["notes"])
    assert nights.deltas(3) == []
    nights.assert_whole()


def test_run_that_was_killed_sends_the_rest_of_the_changed_rows(
    nights: Nights, forked: ForkedRuns
) -> None:
    nights.train()
    arguments = nights.exports.arguments()
    for noted in (1, 2):
        status = forked.run(arguments, nights.exports.directory / "output", noted=noted)
        assert status in KILLED
        assert not (nights.exports.on_disk / "m/2/objects.json").exists()
    before = nights.pool_bytes()
    assert nights.exports.run().code == 0
    assert nights.pool_bytes() - before <= 1.3 * CHANGED_ROWS * ROW_BYTES + FILES_BYTES_MAX
    assert len(nights.deltas(2)) == 1
    nights.assert_whole()


@pytest.mark.nightly
def test_nights_of_which_each_command_is_killed_at_random_moments_lose_nothing(
    nights: Nights, forked: ForkedRuns
) -> None:
    exports = nights.exports
    random = np.random.default_rng(2)
    root = exports.directory / "pulled"
    killed = {"export": 0, "pull": 0}
    for version in range(2, 2 + KILLED_NIGHTS):
        nights.train()
        arguments = exports.arguments("--version", version)
        status = forked.run(arguments, exports.directory / "output", seconds=random.uniform(0, 0.6))
        killed["export"] += status in KILLED
        # It may have been killed when the version was published already.
        if status and not (exports.on_disk / f"m/{version}/objects.json").exists():
            assert exports.run("--version", version).code == 0

        source = f"{exports.root}/m/{version}"
        killed["pull"] += kill_at_a_moment(PULL, [source, str(root)], random.uniform(0, 1.5))
        if (root / f"m/{version}").exists():
            integrity.check_files(
                root / f"m/{version}", catalog.read_manifest(root / f"m/{version}"), tables="full"
            )
        bundle = pull(find_bundle(source), root, None).bundle
        manifest = catalog.read_manifest(bundle)
        integrity.check_files(bundle, manifest, tables="full")

        table = manifest.tables[NAME]
        np.testing.assert_array_equal(
            stored_rows(bundle, table).view(np.float32).reshape(nights.rows.shape), nights.rows
        )
    assert min(killed.values()) > 0, killed


def kill_at_a_moment(program: str, arguments: list[str], seconds: float) -> bool:
    """Runs a program for some seconds; returns whether it had not ended by itself."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command) as process:
        try:
            assert process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return True
    return False


def test_versions_that_vanish_take_nothing_from_those_that_stay(
    nights: Nights, tmp_path: Path
) -> None:
    for _ in range(2):
        nights.train()
        assert nights.exports.run().code == 0
    for version in (1, 2):
        shutil.rmtree(nights.exports.on_disk / f"m/{version}")
    nights.exports.age(30)
    # Its manifest alone: version 3 has the rows of both.
    assert len(nights.exports.clean()["removed"]) == 2
    nights.assert_whole()
    nights.train()
    assert nights.exports.run().code == 0
    assert len(nights.deltas(4)) == 3
    nights.assert_whole()
    # Back to the version before, on a machine that has the newest one.
    back = pull(
        find_bundle(f"{nights.exports.root}/m/3"), nights.exports.directory / "pulled", None
    )
    assert back.downloaded_bytes == 0
    catalog.read_manifest(back.bundle)


def test_plan_counts_what_is_fetched(nights: Nights) -> None:
    nights.train()
    plan = nights.exports.run("--plan", "--workers", 1).json
    assert plan["older_version"] == 1
    base_bytes = nights.rows.nbytes
    # What is fetched, and the same file in the new version with the largest delta.
    assert plan["local_bytes"] == 2 * base_bytes + delta_bytes_max(ROWS, ROW_BYTES)
