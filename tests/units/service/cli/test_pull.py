"""The command line of pull: its output, one line for an error, its exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from service.cli.pull import pull_command


def pull(*arguments: object) -> Result:
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("pull")(pull_command)
    return CliRunner().invoke(app, ["pull", *map(str, arguments)])


def test_pull_prints_what_it_fetched(published: Path, tmp_path: Path) -> None:
    done = pull(published, tmp_path, "--version", 1)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/m/1: 23.1 MiB, 23.1 MiB downloaded, 0.0 MiB already there\n"
    done = pull(published, tmp_path, "--json", "--keep", 1)
    result = json.loads(done.stdout)
    assert result.pop("seconds") > 0
    assert result.pop("downloaded_bytes") == result.pop("bytes") > 0
    assert result == {
        "bundle": f"{tmp_path}/m/2",
        "model": "m",
        "version": 2,
        "kept_bytes": 0,
        "reused_bytes": 0,
        "removed": [1],
        "in_use": [],
    }


def test_pull_of_a_path_that_does_not_exist_names_the_path(tmp_path: Path) -> None:
    done = pull(tmp_path / "none", tmp_path / "root")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == f"rowcast-serve pull: {tmp_path}/none is empty or does not exist\n"


def test_pull_to_a_root_that_is_not_a_directory_is_rejected(
    published: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "pipe"):
        done = pull(published, tmp_path / name)
        assert done.exit_code == 2
        assert f"ROOT '{tmp_path / name}' is not a directory" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["root", "--version", "x"],
        ["root", "--keep", "0"],
        ["s3://bucket/root"],
        ["root", "--shard", "3/2"],
        ["root", "--shard", "1/2", "--router"],
    ],
)
def test_pull_with_invalid_arguments_exits_2(published: Path, arguments: list[str]) -> None:
    assert pull(published, *arguments).exit_code == 2


def test_pull_of_a_shard_fetches_its_files(published: Path, tmp_path: Path) -> None:
    assert pull(published, tmp_path, "--shard", "2/2", "--shard-min-bytes", 1).exit_code == 0
    assert {path.name for path in (tmp_path / "m/2").rglob("*.bin")} == {
        "rows-00000-of-00002.bin",
        "rows-00001-of-00002.bin",
    }
    done = pull(published, tmp_path, "--router")
    assert done.stdout.endswith(" 9.0 MiB downloaded, 14.1 MiB already there\n"), (
        "no table has 1 GiB"
    )
