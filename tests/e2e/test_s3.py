"""A bundle's way over S3, with real processes and sockets: exported from there to there, pulled, verified.

The store is moto's server. Between it and the programs is a valve that counts bytes and stops passing them at a mark,
where a program is killed; the next run of the same command may not send or fetch again what was whole.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.valve import Valve
from tests.export.checkpoint.bundles import write_bundle

pytestmark = pytest.mark.slow

boto3 = pytest.importorskip("boto3", reason="needs moto[server]")
PROGRAMS = Path(sys.executable).parent
TABLES, ROWS, DIM = 20, 512, 512
TABLE_BYTES = ROWS * DIM * 4
BYTES = TABLES * TABLE_BYTES
SECRET = "the-secret-of-this-test"
PATIENCE_S = 90


def values(table: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(table).standard_normal((ROWS, DIM)).astype(np.float32)


class Programs:
    """The programs as a user calls them, with the store behind a valve."""

    def __init__(self, valve: Valve, directory: Path) -> None:
        self.valve, self._directory = valve, directory
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("AWS_", "FSSPEC_", "ROWCAST_"))
            },
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "FSSPEC_S3_ENDPOINT_URL": valve.url,
        }

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [str(PROGRAMS / str(words[0])), *map(str, words[1:])]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self._environment, cwd=self._directory, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *words: object) -> tuple[int, str, str]:
        with self.start(*words) as program:
            try:
                out, err = program.communicate(timeout=PATIENCE_S)
            finally:
                program.kill()
        assert SECRET not in out + err
        return program.returncode, out, err

    def done(self, *words: object) -> dict[str, Any]:
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        page: dict[str, Any] = json.loads(out)
        return page

    def killed_at(self, marks: dict[str, int], *words: object) -> None:
        """Kills a program once so many bytes have passed."""
        self.valve.stop_at(**marks)
        with self.start(*words) as program:
            reached = self.valve.reached.wait(PATIENCE_S)
            program.kill()
        assert reached, program.returncode
        self.valve.open()


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """Port of an S3 server with a checkpoint in it."""
    server = subprocess.Popen(
        [PROGRAMS / "moto_server", "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    port = next(
        int(found[1])
        for line in server.stderr
        if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))
    )
    draining = threading.Thread(target=server.stderr.read, daemon=True)
    draining.start()
    yield port
    server.kill()
    server.wait()
    draining.join()
    server.stderr.close()


@pytest.fixture
def programs(store: int, tmp_path: Path) -> Iterator[Programs]:
    with Valve(store) as valve:
        valve.open()
        yield Programs(valve, tmp_path)


def put_checkpoint(port: int, directory: Path) -> None:
    write_bundle(
        directory / "ckpt-7", {f"t{number:02}": values(number) for number in range(TABLES)}, files=2
    )
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="testing",
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="models")
    for file in directory.iterdir():
        client.upload_file(str(file), "models", f"training/{file.name}")
    client.close()


def test_bundle_goes_from_s3_over_s3_to_a_host_whatever_is_killed(
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
    assert programs.run("rowcast-serve", "pull", "s3://models/none", tmp_path / "root")[0] == 3
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".journal", ".json")
    )
    assert SECRET.encode() not in written
