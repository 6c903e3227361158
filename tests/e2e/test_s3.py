"""A bundle's way over S3, with real processes and sockets: exported from there to there, pulled,
verified.

The store is moto's server. Between it and the programs is a valve that counts bytes, stops passing
them at a mark, where a program is killed, cuts connections and throttles; the next run of the same
command may not send or fetch again what was whole.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.forked_programs import run_forked
from tests.e2e.process import WAIT_S
from tests.e2e.valve import Valve
from tests.units.export.checkpoint.orbax_trees import write_step
from tests.units.export.checkpoint.tensor_bundles import write_bundle

pytestmark = pytest.mark.slow

pytest.importorskip("boto3", reason="needs moto[server]")
from tests.e2e.s3_server import PROGRAMS, SECRET, environment, s3_client, s3_server  # noqa: E402

TABLES = 20
ROWS = 512
DIM = 512
TABLE_BYTES = ROWS * DIM * 4
BYTES = TABLES * TABLE_BYTES


def values(table: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(table).standard_normal((ROWS, DIM)).astype(np.float32)


class Programs:
    """The programs as a user calls them, with the store behind a valve."""

    def __init__(self, valve: Valve, directory: Path) -> None:
        self.valve = valve
        self._directory = directory
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("AWS_", "FSSPEC_", "ROWCAST_"))
            },
            **environment(valve.url),
        }

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [str(PROGRAMS / str(words[0])), *map(str, words[1:])]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self._environment, cwd=self._directory, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: object) -> tuple[int | None, str, str]:
        code, out, err = run_forked(words, self._directory, environment(self.valve.url))
        assert SECRET not in out + err
        return code, out, err

    def done(self, *words: object) -> dict[str, Any]:
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        page: dict[str, Any] = json.loads(out)
        return page

    def killed_at(self, marks: dict[str, int], *words: object) -> None:
        """Kills a program once as many bytes have passed as `marks` states."""
        self.valve.stop_at(**marks)
        with self.start(*words) as program:
            reached = self.valve.reached.wait(WAIT_S)
            program.kill()
        assert reached, program.returncode
        self.valve.open()


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """Port of an S3 server with a checkpoint in it."""
    with s3_server() as port:
        yield port


@pytest.fixture
def programs(store: int, tmp_path: Path) -> Iterator[Programs]:
    with Valve(store) as valve:
        valve.open()
        yield Programs(valve, tmp_path)


def put(port: int, directory: Path, bucket: str, prefix: str) -> None:
    """Copies the files of a directory into a new bucket."""
    with s3_client(port) as client:
        client.create_bucket(Bucket=bucket)
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                client.upload_file(str(file), bucket, f"{prefix}/{file.relative_to(directory)}")


def put_checkpoint(port: int, directory: Path) -> None:
    write_bundle(
        directory / "ckpt-7", {f"t{number:02}": values(number) for number in range(TABLES)}, files=2
    )
    put(port, directory, "models", "training")


@pytest.mark.nightly
def test_bundle_is_exported_from_s3_to_s3_and_pulled_despite_kills(
    store: int, programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "made").mkdir()
    put_checkpoint(store, tmp_path / "made")
    page = programs.done("rowcast-export", "inspect", "s3://models/training")
    assert page["checkpoint"] == "ckpt-7"

    named = [word for number in range(TABLES) for word in ("--table", f"t{number:02}=t{number:02}")]
    export = (
        "rowcast-export",
        "tables",
        "s3://models/training",
        "s3://models/bundles",
        "--workers",
        1,
        *named,
    )
    programs.killed_at({"sent": 14 * TABLE_BYTES}, *export)
    resumed = programs.done(*export)
    assert resumed["bundle"] == "s3://models/bundles/tables/1"
    assert programs.valve.sent < BYTES - 4 * TABLE_BYTES

    pull = ("rowcast-serve", "pull", "s3://models/bundles", tmp_path / "root")
    programs.killed_at({"returned": 14 * TABLE_BYTES}, *pull)
    assert not (tmp_path / "root/tables/1").exists()
    pulled = programs.done(*pull)
    assert pulled["kept_bytes"] >= 4 * TABLE_BYTES
    assert pulled["downloaded_bytes"] + pulled["kept_bytes"] == pulled["bytes"] == BYTES
    assert programs.valve.returned < pulled["downloaded_bytes"] + 1_000_000
    for number in range(TABLES):
        file = tmp_path / f"root/tables/1/tables/t{number:02}/rows-00000-of-00001.bin"
        np.testing.assert_array_equal(np.fromfile(file, "<f4").reshape(ROWS, DIM), values(number))
    # The next night, nothing has changed.
    sent = programs.valve.sent
    second = programs.done(*export)
    assert second["bundle"] == "s3://models/bundles/tables/2"
    shared = {"segments": TABLES, "bytes": BYTES, "changed_rows": 0, "written_bytes": 0}
    assert second["reused"] == shared
    assert programs.valve.sent - sent < TABLE_BYTES
    pulled = programs.done(*pull)
    assert (pulled["downloaded_bytes"], pulled["reused_bytes"]) == (0, BYTES)
    assert programs.done("rowcast-export", "clean", "s3://models/bundles")["removed"] == []

    assert programs.run("rowcast-serve", "pull", "s3://models/none", tmp_path / "root")[0] == 3
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".journal", ".json")
    )
    assert SECRET.encode() not in written


@pytest.mark.nightly  # test_gcs.py exports from a store, test_orbax.py from Orbax
def test_orbax_checkpoint_is_exported_from_s3(
    store: int, programs: Programs, tmp_path: Path
) -> None:
    leaves = {"params.movies.embedding": values(0), "step": np.array(7)}
    for step in ("6", "7"):
        write_step(tmp_path / "run", step, leaves)
    put(store, tmp_path / "run", "orbax", "run")
    page = programs.done("rowcast-export", "inspect", "s3://orbax/run")
    assert (page["checkpoint"], page["step"], page["storage"]) == ("run/7", 7, "Orbax")

    export = ("rowcast-export", "tables", "s3://orbax/run", tmp_path / "root", "--full")
    page = programs.done(*export)
    file = tmp_path / "root/tables/1/tables/movies/rows-00000-of-00001.bin"
    np.testing.assert_array_equal(np.fromfile(file, "<f4").reshape(ROWS, DIM), values(0))

    item = tmp_path / "run/7/default"
    for data in (item / "d").iterdir():
        data.unlink()
    put(store, tmp_path / "run", "lost", "run")
    code, _, err = programs.run(*export[:2], "s3://lost/run", *export[3:])
    assert code == 3
    assert re.search(r"Orbax checkpoint s3://lost/run/7/default .* NOT_FOUND: .*/d/\w+", err)


LARGE = np.arange(48 << 18, dtype=np.float32).reshape(48, -1)
"""A table of 48 MiB, which is sent as twelve objects."""


@pytest.fixture(scope="module")
def bucket(store: int) -> str:
    with s3_client(store) as client:
        client.create_bucket(Bucket="large")
    return "s3://large"


def pulled_rows(programs: Programs, url: str, root: Path) -> np.ndarray[Any, Any]:
    bundle = Path(programs.done("rowcast-serve", "pull", url, root)["bundle"])
    segments = sorted(bundle.glob("tables/large/*.bin"))
    return np.concatenate([np.fromfile(file, "<f4") for file in segments]).reshape(LARGE.shape)


@pytest.mark.nightly
def test_export_to_a_store_that_throttles_and_drops_connections_succeeds(
    programs: Programs, bucket: str, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "ckpt-1", {"large": LARGE})
    url = f"{bucket}/disturbed"
    programs.valve.cut_at(20 << 20, 44 << 20)
    programs.valve.throttle(9)
    page = programs.done(
        "rowcast-export", "tables", tmp_path / "ckpt-1", url, "--table", "large=large"
    )
    assert page["bundle"] == f"{url}/tables/1"
    assert programs.valve.undone == 0
    assert programs.valve.sent < 3 * LARGE.nbytes
    np.testing.assert_array_equal(pulled_rows(programs, url, tmp_path / "root"), LARGE)


@pytest.mark.nightly
def test_exporters_of_one_version_in_s3_publish_one_of_them(
    store: int, programs: Programs, bucket: str, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "ckpt-1", {"large": LARGE})
    (tmp_path / "other").mkdir()
    write_bundle(tmp_path / "other/ckpt-1", {"large": LARGE + 1})
    url = f"{bucket}/contended"
    options = ("--table", "large=large", "--version", 1, "--scratch")
    first = ("rowcast-export", "tables", tmp_path / "ckpt-1", url, *options, tmp_path / "first")
    second = ("rowcast-export", "tables", tmp_path / "other/ckpt-1", url, *options)

    programs.valve.stop_at(sent=10 << 20)
    with programs.start(*first) as frozen:
        assert programs.valve.reached.wait(WAIT_S)
        with Valve(store) as passage:
            passage.open()
            Programs(passage, tmp_path).done(*second, tmp_path / "second")
        programs.valve.open()
        _, message = frozen.communicate(timeout=WAIT_S)
    assert (frozen.returncode, "another run has published" in message) == (6, True)
    np.testing.assert_array_equal(pulled_rows(programs, url, tmp_path / "root"), LARGE + 1)
