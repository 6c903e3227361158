"""Command lines of `rowcast-export` that cannot be done: the exit code, one line of message, and
nothing published.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.commands import Command
from tests.units.export.movies_job import visible

GOLDEN = Path(__file__).parents[2] / "differential/bundle/root/movies/1"
ROWS = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
STORED: dict[str, NDArray[Any]] = {
    "user/embeddings": ROWS,
    "item/embeddings": ROWS,
    "city/embeddings": np.arange(30).reshape(10, 3),
}
INLINE = """
model = "movielens"
checkpoint = { path = "c" }
code = { factory = "model.py:build_model" }
output = { root = "out", tables = "inline" }
inputs.user_id = { dtype = "int64" }
towers.query = { role = "query" }
"""
DUMPED_KEYS = {
    "twice": np.array([5, 9, 5]),
    "negative": np.array([5, -9, 6]),
    "large": np.array([5, 9, 2**63], np.uint64),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command lines name: checkpoints, a bundle, recipes, and what is none of these."""
    directory = tmp_path_factory.mktemp("files")
    write_bundle(directory / "c/ckpt", STORED)
    for name, keys in DUMPED_KEYS.items():
        sok_dump(directory / name, "t", keys, ROWS[:3])
    shutil.copytree(GOLDEN, directory / "bundle")
    manifest = directory / "changed/manifest.json"
    shutil.copytree(GOLDEN, manifest.parent)
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows": 50', b'"rows": 51'))
    (directory / "inline.toml").write_text(INLINE)
    (directory / "link.toml").write_text(INLINE.replace("inline", "inline-link"))
    (directory / "model.py").touch()
    (directory / "copy.toml").write_text(INLINE.replace("inline", "copy"))
    (directory / "no.toml").write_text("a = = 1")
    (directory / "file").write_text("kept")
    return directory


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, which is the working directory."""
    shutil.copytree(files, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


LINES: list[tuple[str, int, tuple[str, ...]]] = [
    ("run", 2, ("RECIPE", "rowcast-export run --help")),
    ("inspect", 2, ("CHECKPOINT",)),
    ("inspect ''", 2, ("empty path",)),
    ("inspect nowhere", 3, ("nowhere",)),
    ("run copy.toml --shards 3", 2, ("--shards",)),
    ("plan no.toml", 2, ("no.toml", "line 1")),
    ("plan c", 2, ("c cannot be read",)),
    ("plan nowhere.toml", 2, ("nowhere.toml does not exist",)),
    ("run copy.toml --unproved", 2, ("--unproved",)),
    ("plan link.toml --shards 3", 2, ("--shards", "inline-link")),
    ("plan copy.toml --shard-min-bytes 9", 2, ("--shard-min-bytes", "--shards")),
    ("run copy.toml --executor cluster", 2, ("executor", "'cluster'")),
    ("run copy.toml --workers -1", 2, ("--workers",)),
    ("run copy.toml --budget-bytes 5", 2, ("--budget-bytes",)),
    ("run copy.toml --root file", 2, ("file is not a directory",)),
    ("verify /", 2, ("manifest.json",)),
    ("verify c", 2, ("manifest.json",)),
    ("verify bundle --with-changes log", 2, ("--with-changes", "--recipe")),
    ("verify bundle --full", 2, ("--full", "--checkpoint")),
    ("verify changed", 5, ("manifest", "digest")),
    ("verify s3://bucket/bundles/m/1", 2, ("URL", "rowcast-serve pull")),
    ("clean nowhere", 2, ("nowhere is not a directory",)),
    ("init m.py:f c --out c", 2, ("--out", "c is a directory")),
    ("init m.py:f c --out file", 2, ("--out", "exists")),
    ("init m.py:f c --out c/recipe.toml", 2, ("--out", "run the command there")),
    # Of explain.
    ("explain c", 2, ("manifest.json",)),
    ("explain nowhere.toml", 2, ("nowhere.toml",)),
    ("explain changed", 5, ("manifest", "digest")),
    ("explain bundle --checkpoint c", 2, ("--checkpoint", "bundle is the directory of a bundle")),
    ("explain bundle --tables copy", 2, ("--tables", "a recipe")),
    ("explain inline.toml", 2, ("inline", "--tables copy")),
    ("explain inline.toml --tables inline", 2, ("--tables",)),
    ("explain bundle --html c", 2, ("--html", "c is a directory")),
    ("explain bundle --html no/page.html", 6, ("--html", "no/page.html")),
    ("explain bundle --svg no/image.svg", 6, ("--svg", "no/image.svg")),
    # Of tables and what is stated of them.
    ("tables c out --only a,,b", 2, ("--only 'a,,b'",)),
    ("tables c out --only nothing", 4, ("'nothing'",)),
    ("tables c out --tables inline", 2, ("--tables",)),
    ("tables c out --version 0", 2, ("--version",)),
    ("tables c s3://key:secret@bucket/x", 2, ("credentials",)),
    ("tables c file", 2, ("file is not a directory",)),
    ("tables c out --table user", 2, ("--table 'user'", "NAME=KEY")),
    ("tables c out --table =x", 2, ("--table '=x'",)),
    ("tables c out --table user=", 2, ("--table 'user='",)),
    ("tables c out --table t=user/embedding", 4, ("'user/embedding'", "'user/embeddings'")),
    ("tables c out --table t=a --table t=b", 2, ("'t' twice", "'a' and 'b'")),
    (
        "tables c out --table t=user/embeddings --table u=user/embeddings",
        4,
        ("'t' and 'u'",),
    ),
    ("tables c out --trained-ids users.txt", 2, ("--trained-ids", "NAME=FILE")),
    ("tables c out --trained-ids users=users.txt", 2, ("--trained-ids users=",)),
    ("tables c out --layout nowhere.json", 2, ("nowhere.json",)),
    ("tables c out --dtype int4", 2, ("--dtype 'int4'", "int8")),
    ("tables c out --dtype users=", 2, ("--dtype 'users='",)),
    ("tables c out --dtype users=int8", 2, ("--dtype users=",)),
    ("tables c out --only city --table city=city/embeddings", 4, ("--dtype city=float32",)),
    ("tables twice out", 3, ("key 5 comes twice", "row 0 and row 2")),
    ("tables negative out", 3, ("row 1", "-9")),
    ("tables large out", 3, ("row 2", str(2**63))),
    *(
        (f"tables c out --only user --model {model}", 2, ("--model",))
        for model in ("../m", "/m", ".", "''", "a/b")
    ),
]


def words_of(line: str) -> list[str]:
    return [word.strip("'") if word == "''" else word for word in line.split()]


@pytest.mark.parametrize(("line", "code", "words"), LINES, ids=[line for line, *_ in LINES])
def test_command_line_is_rejected(
    command: Command, here: Path, line: str, code: int, words: Sequence[str]
) -> None:
    done = command(*words_of(line))
    assert (done.code, done.out) == (code, "")
    assert all(part in done.message for part in words), done.message
    assert visible(here / "out") == []
    assert (here / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("ROWCAST_EXPORT_BUDGET_BYTES", "5", ("budget_bytes", "'5'")),
        ("ROWCAST_EXPORT_WORKERS", "many", ("workers", "'many'")),
        ("ROWCAST_EXPORT_WORKRES", "5", ("ROWCAST_EXPORT_WORKRES", "ROWCAST_EXPORT_WORKERS")),
    ],
)
def test_setting_in_the_environment_is_rejected(
    command: Command,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv(variable, value)
    done = command("tables", "c", "out", "--only", "user")
    assert (done.code, done.out) == (2, "")
    assert all(part in done.message for part in words), done.message


def test_variables_of_other_programs_and_of_kubernetes_are_no_settings(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("rowcast_export_wrong", "3")
    monkeypatch.setenv("ROWCAST_SERVE_PORT", "3")
    monkeypatch.setenv("ROWCAST_EXPORT_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("ROWCAST_EXPORT_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("ROWCAST_EXPORT_WORKERS", "1")
    monkeypatch.setenv("ROWCAST_EXPORT_FULL", "true")
    done = command("tables", "c", "out", "--only", "user", "--json")
    assert done.json["verification"]["tables"]["user"]["rows_compared"] == 30
    assert command("tables", "c", "out", "--only", "user", "--version", 1).code == 6
    assert command("verify", "out/tables/1", "--checkpoint", "c").code == 0


def test_interrupted_command_tells_how_to_go_on(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("export.checkpoint.reader.open_checkpoint", interrupt)
    done = command("inspect", here / "c")
    assert (done.code, "run the same command again" in done.message) == (130, True)
