"""The command line of pull: one line of error, its exit code, sizes that a person reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.pull_command import add_pull


def program() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    add_pull(app)
    return app


def test_pull_of_a_path_that_is_not_there_tells_the_path(tmp_path: Path) -> None:
    done = CliRunner().invoke(program(), ["pull", str(tmp_path / "none"), str(tmp_path / "root")])
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == f"rowcast-serve pull: {tmp_path}/none is empty, or is not there\n"


@pytest.mark.parametrize("arguments", [["--version", "x"], ["--keep", "0"], ["--nope"]])
def test_pull_options_that_cannot_be_meant_exit_2(tmp_path: Path, arguments: list[str]) -> None:
    assert CliRunner().invoke(program(), ["pull", str(tmp_path), str(tmp_path / "root"), *arguments]).exit_code == 2
