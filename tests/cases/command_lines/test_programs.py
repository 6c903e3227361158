"""What the three programs have in common: examples, suggestions, errors as JSON, completion, and a
help that is quick to print.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from rowcast_client import commands
from typer.main import get_command
from typer.testing import CliRunner, Result

from export.cli.commands import app
from service.cli.serve import command

PROGRAMS: Mapping[str, tuple[Callable[[], typer.Typer], str]] = {
    "rowcast": (commands.app, commands.__name__),
    "rowcast-export": (lambda: app, "export.cli.main"),
    "rowcast-serve": (command, "service.cli.main"),
}
"""The command line of each program, and the module that runs it."""
HEAVY = (
    "google.cloud",
    "google.protobuf",
    "grpc",
    "numpy",
    "pyarrow",
    "pydantic",
    "rich",
    "tensorflow",
)
"""Packages that take longer to import than all that `--help` needs."""


def run(program: str, *arguments: str) -> Result:
    return CliRunner().invoke(PROGRAMS[program][0](), arguments, prog_name=program)


def commands_of(group: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Yields a group and all commands in it, with their names."""
    yield path, group
    context = typer.Context(group)
    for name in group.list_commands(context):
        member = group.get_command(context, name)
        if hasattr(member, "list_commands"):
            yield from commands_of(member, [*path, name])
        else:
            yield [*path, name], member


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_of_every_command_ends_with_an_example_that_parses(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root: Any = get_command(PROGRAMS[program][0]())
    parsed: list[list[str]] = []
    every = list(commands_of(root, [program]))
    for path, member in every:
        member.callback = None
        if not hasattr(member, "list_commands"):
            member.callback = lambda path=path, **_: parsed.append(path)
    for path, member in every:
        label, _, example = member.epilog.partition(": ")
        arguments = shlex.split(example)
        assert (label, arguments[: len(path)]) == ("Example", path)
        parsed.clear()
        with pytest.raises(SystemExit) as done:
            root.main(arguments[1:], program)
        assert (done.value.code, capsys.readouterr().err) == (0, ""), example
        if not hasattr(member, "list_commands"):
            assert parsed == [path], example


@pytest.mark.parametrize(
    ("program", "line", "words"),
    [
        ("rowcast", "recomend movielens", "'recommend'"),
        ("rowcast", "recommend movielens --atribute title", "'--attribute'"),
        ("rowcast", "models --ulr grpc://a:9090", "'--url'"),
        ("rowcast", "--url http://a recomend --help", "'recommend'"),
        ("rowcast-export", "rum recipe.toml", "'run'"),
        ("rowcast-export", "rum --help", "'run'"),
        ("rowcast-export", "run recipe.toml --worker 3", "'--workers'"),
        ("rowcast-serve", "--http-prot 80", "'--http-port'"),
        ("rowcast-serve", "pul s3://b/c bundles", "'pull'"),
        ("rowcast-serve", "pul --help", "'pull'"),
        ("rowcast-serve", "ctl stats", "'status'"),
        ("rowcast-serve", "ctl stats --help", "'status'"),
        ("rowcast-serve", "ctl candidates delte --help", "'delete'"),
        ("rowcast-serve", "ctl status --amin http://a", "'--admin'"),
        ("rowcast-serve", "ctl candidates delte movielens 5", "'delete'"),
        ("rowcast-serve", "ctl candidates upsert movielens --corpsu movies", "'--corpus'"),
    ],
)
def test_mistyped_command_or_option_is_rejected_with_the_nearest_one(
    program: str, line: str, words: str
) -> None:
    done = run(program, *line.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Did you mean {words}" in done.stderr
    assert done.stderr.startswith(f"{program}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "line", "words"),
    [
        (
            "rowcast",
            "bench --duration 5",
            "No such option: --duration (see `rowcast bench --help`)",
        ),
        ("rowcast", "bench --contexts 5", "No such option: --contexts (see"),
        ("rowcast-serve", "ctl deny add movies -5", "write -- before an argument that begins"),
        ("rowcast-export", "watch --help", "No such command 'watch' (see `rowcast-export --help`)"),
    ],
)
def test_name_like_no_other_one_is_rejected_without_a_suggestion(
    program: str, line: str, words: str
) -> None:
    done = run(program, *line.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "--root bundles --http-port 80 --help",
        "ctl --admin pull --help",
        "--root=a ctl status --help",
    ],
)
def test_value_of_an_option_before_help_is_no_command(line: str) -> None:
    done = run("rowcast-serve", *line.split())
    assert (done.exit_code, done.stderr) == (0, "")
    assert "Usage: rowcast-serve" in done.stdout


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("rowcast", "recommend movielens --json -k many"),
        ("rowcast", "--json ready --url nowhere"),
        ("rowcast-export", "run nowhere.toml --json --workers many"),
        ("rowcast-serve", "pull s3://b/c --json"),
        ("rowcast-serve", "ctl --json --admin ftp://127.0.0.1 status"),
        ("rowcast-serve", "ctl pin movielens --json"),
    ],
)
def test_error_is_json_if_results_are(program: str, line: str) -> None:
    done = run(program, *line.split())
    assert done.stdout == ""
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["exit_code"]) == ("INVALID_ARGUMENT", done.exit_code)
    assert error["message"]


def output(program: str, *arguments: str, **variables: str) -> str:
    """Returns what a program prints that runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", PROGRAMS[program][1], *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STREAMS: Mapping[str, tuple[str, int, str]] = {
    "full": ("exec > /dev/full", 6, "standard output cannot be written: No space left"),
    "closed": ("exec >&-", 0, ""),
    "without a reader": ("exec > >(exec true); wait $!", 0, ""),
    "full errors": ("exec 2> /dev/full", 0, ""),
    "closed errors": ("exec 2>&-", 0, ""),
    "all closed": ("exec <&- >&- 2>&-", 0, ""),
}
"""How a shell prepares the standard streams, the exit code of a command that succeeds, and the one
line that it prints to stderr, if any.
"""
SUCCEEDING = {"rowcast": "--version", "rowcast-export": "--help", "rowcast-serve": "--help"}


def run_with(prepared: str, program: str, argument: str) -> subprocess.CompletedProcess[str]:
    """Runs a program whose standard streams a shell has prepared."""
    line = shlex.join([sys.executable, "-m", PROGRAMS[program][1], argument])
    shell = ["bash", "-c", f"{prepared}; exec {line}"]
    return subprocess.run(shell, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("stream", STREAMS)
def test_output_that_cannot_be_written_is_one_line_and_no_traceback(
    program: str, stream: str
) -> None:
    prepared, code, words = STREAMS[stream]
    done = run_with(prepared, program, SUCCEEDING[program])
    assert done.returncode == code, done.stderr
    assert (done.stderr.count("\n"), words in done.stderr) == (bool(words), True)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("stream", "lines"), [("full", 1), ("full errors", 0), ("all closed", 0)])
def test_error_that_cannot_be_written_keeps_its_exit_code(
    program: str, stream: str, lines: int
) -> None:
    done = run_with(STREAMS[stream][0], program, "--no-such-option")
    assert (done.returncode, done.stderr.count("\n")) == (2, lines), done.stderr


@pytest.mark.parametrize(
    ("program", "words", "completed"),
    [
        ("rowcast", "rowcast reco", ["recommend"]),
        ("rowcast-export", "rowcast-export run --wor", ["--workers"]),
        ("rowcast-serve", "rowcast-serve ctl un", ["unload", "unpin"]),
    ],
)
def test_shell_completes_commands_and_options(
    program: str, words: str, completed: list[str], tmp_path: Path
) -> None:
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    environment = {
        variable: "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = CliRunner().invoke(PROGRAMS[program][0](), [], prog_name=program, env=environment)
    assert set(completed) <= set(done.stdout.split()), done.stdout
    options = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "bash completion installed" in output(program, "--install-completion", "bash", **options)
    assert variable in (tmp_path / f".bash_completions/{program}.sh").read_text()


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("rowcast", ""),
        ("rowcast", "recommend"),
        ("rowcast", "bench"),
        ("rowcast-export", ""),
        ("rowcast-export", "run"),
        ("rowcast-serve", ""),
        ("rowcast-serve", "pull"),
        ("rowcast-serve", "ctl load"),
        ("rowcast-serve", "ctl candidates"),
        ("rowcast-serve", "ctl candidates upsert"),
    ],
)
def test_help_imports_nothing_that_takes_long(program: str, line: str) -> None:
    module = PROGRAMS[program][1]
    arguments = [program, *line.split(), "--help"]
    code = (
        f"import os, sys; from {module} import main\n"
        "os._exit = sys.exit\n"
        f"sys.argv = {arguments!r}\n"
        "try: main()\n"
        f"finally: sys.stderr.write(repr([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stderr, f"Usage: {program}" in done.stdout) == ("[]", True)
