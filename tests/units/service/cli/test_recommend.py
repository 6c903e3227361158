"""Lists for all users of a file: what they hold, errors of users and of the command, and a run that
is killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from service.cli.batch_recommendation import BLOCK_USERS, Task, run
from service.cli.serve import command
from tensors.stubs import tensorflow_serving_pb2 as pb
from tests.bundles.small import SmallBundle, write_small_bundle
from tests.bundles.tfrecords import example, write_records
from tests.cases.ways import serving
from tests.e2e.process import PROGRAM, until
from tests.units.service.cases import Case
from tests.units.service.running import flip

pytestmark = pytest.mark.slow

Write = Callable[..., SmallBundle]


def users_file(path: Path, count: int, **columns: Any) -> Path:
    users = {
        "key": [f"u{number}" for number in range(count)],
        "user": [number % 50 for number in range(count)],
    }
    parquet.write_table(pa.table(users | columns), path)
    return path


def recommend(
    root: Path, users: Path, out: Path, *options: object, model: str = "movies"
) -> Result:
    command_line = [
        "recommend",
        model,
        users,
        out,
        "--root",
        root,
        "--id",
        "key",
        "--workers",
        1,
        *options,
    ]
    return CliRunner().invoke(command(), list(map(str, command_line)))


def test_lists_equal_those_of_the_service_and_an_invalid_user_has_an_error(
    root: Path, small_towers: Path, tmp_path: Path
) -> None:
    write_small_bundle(root, small_towers, users=True, unread_inputs=("note",))
    rows: dict[str, Any] = {
        "key": [10, 11, 12, 13, 14],
        "user": [2, None, 3, 4, None],
        "context_id": [None, 7, None, None, None],
        "history": pa.array([[1000, 1007], None, [], [1000], None], pa.list_(pa.int64())),
        "hour": [1.0, 2.0, None, float("inf"), 1.0],
        "note": ["a", None, "b", "c", "d"],
        "seen": [[1000, 1007], None, [], None, None],
    }
    parquet.write_table(pa.table(rows), tmp_path / "users")
    options = {"k": 4, "attributes": ["title"], "crowding": {"studio": 1}, "diversity": 0.25}
    options["filter"] = {"year": {"ge": 1992}}
    arguments = "--exclude", "seen", "--options", json.dumps(options)
    done = recommend(root, tmp_path / "users", tmp_path / "out", *arguments)
    assert done.exit_code == 0, done.stderr
    assert "5 users by movies version 1" in done.stdout
    assert "2 have an error" in done.stdout
    written = parquet.read_table(tmp_path / "out").to_pylist()
    assert [row["key"] for row in written] == rows["key"]
    contexts: list[dict[str, Any]] = [
        {"context": {"user": 2, "history": [1000, 1007], "hour": 1.0}, "exclude_ids": [1000, 1007]},
        {"context_id": 7, "context": {"hour": 2.0}},
        {"context": {"user": 3, "history": []}},
    ]
    with serving(root) as ways:
        for row, context in zip(written, contexts, strict=False):
            outcome = ways.by_json(Case("recommend", "", options | context))
            (expected,) = outcome.value["results"]
            assert (row["ids"], row["error"]) == (expected["ids"], None)
            assert np.float32(row["scores"]).tolist() == expected["scores"]
            assert row["attribute:title"] == expected["attributes"]["title"]
    for row, at_fault in zip(written[3:], ("hour", "user"), strict=True):
        assert (row["ids"], row["scores"], row["attribute:title"]) == (None, None, None)
        assert at_fault in row["error"]


@pytest.mark.parametrize("name", ["users.csv", "users.jsonl", "users.tfrecord"])
def test_users_of_other_formats_have_the_same_lists(
    root: Path, small_towers: Path, tmp_path: Path, name: str
) -> None:
    write_small_bundle(root, small_towers)
    users: list[dict[str, Any]] = [
        {"key": "a", "user": 2, "history": [1000, 1007], "hour": 1.0, "seen": [1000]},
        {"key": "b", "user": 3, "history": [], "hour": 2.5, "seen": []},
    ]
    path = tmp_path / name
    if name == "users.csv":
        cells = [["|".join(map(str, np.ravel(value))) for value in row.values()] for row in users]
        path.write_text("\n".join(map(",".join, [[*users[0]], *cells])) + "\n")
    elif name == "users.jsonl":
        # Without what is empty, as many programs write it.
        rows = [{key: value for key, value in row.items() if value != []} for row in users]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8-sig")
    else:
        write_records(path, [example(row, pb).SerializeToString() for row in users])
    done = recommend(root, path, tmp_path / "out", "--exclude", "seen", "--options", '{"k": 4}')
    assert done.exit_code == 0, done.stderr
    written = parquet.read_table(tmp_path / "out")
    assert written["key"].to_pylist() == ["a", "b"]
    with serving(root) as ways:
        for lists, row in zip(written["ids"].to_pylist(), users, strict=True):
            context = {column: row[column] for column in ("user", "history", "hour")}
            options = {"k": 4, "exclude_ids": row["seen"]}
            outcome = ways.by_json(Case("recommend", "", {**options, "context": context}))
            assert lists == outcome.value["results"][0]["ids"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "key,user\n"), ("a.csv", ""), ("a.jsonl", ""), ("a.ndjson", "\n")],
)
def test_file_without_users_has_an_empty_output(
    write: Write, root: Path, tmp_path: Path, name: str, content: str
) -> None:
    write()
    (tmp_path / name).write_text(content)
    done = recommend(root, tmp_path / name, tmp_path / "out")
    assert (done.exit_code, "0 users" in done.stdout) == (0, True), done.stderr
    table = parquet.read_table(tmp_path / "out")
    assert (table.num_rows, table.column_names) == (0, ["key", "ids", "scores", "error"])


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--id", "name"], 2, "'name'"),
        (["--options", "{"], 2, "JSON"),
        (["--options", '{"kk": 3}'], 2, "'kk'"),
        (["--options", '{"attributes": ["titel"]}'], 2, "'title'"),
        (["--options", '{"k": 5, "pool_size": 2}'], 2, "pool_size is 2"),
        (["--version", "9"], 3, "it has [1]"),
        (["--model", "books"], 3, "it has movies"),
        (["--users", "text"], 3, "Parquet"),
        (["--out", "none/out"], 6, "create it first"),
        (["--out", "lists.csv"], 2, "as Parquet"),
        (["--out", "lists.parquet.gz"], 2, "compresses by itself"),
        (["--out", "pipe"], 2, "pipe"),
        (["--out", "directory"], 2, "directory"),
        (["--out", "link"], 2, "directory"),
    ],
)
def test_command_that_cannot_be_run_writes_nothing(
    write: Write, root: Path, tmp_path: Path, options: list[str], code: int, words: str
) -> None:
    write()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    (tmp_path / "text").write_text("no Parquet")
    users = users_file(tmp_path / "users", 3)
    out = tmp_path / "out"
    more: dict[str, str] = {}
    match options:
        case ["--users", name]:
            users = tmp_path / name
        case ["--out", name]:
            out = tmp_path / name
        case ["--model", name]:
            more = {"model": name}
    given = [] if options[0] in {"--users", "--out", "--model"} else options
    before = sorted(tmp_path.iterdir())
    done = recommend(root, users, out, *given, **more)
    assert (done.exit_code, words in " ".join(done.stderr.replace("│", " ").split())) == (
        code,
        True,
    )
    assert sorted(tmp_path.iterdir()) == before


def test_output_behind_a_link_is_replaced_and_progress_is_printed(
    write: Write, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.recommend._LINE_S", 0.0)
    write(id_kind="string")
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "dated[1].parquet"
    target.write_text("yesterday")
    target.with_name(f".{target.name}.parts-of-another-run").mkdir()
    link = tmp_path / "latest.parquet"
    link.symlink_to(target)
    for count in (3, 0):
        users = users_file(tmp_path / "users.parquet", count)
        done = recommend(root, users, link, "--exclude", "")
        assert done.exit_code == 0, done.stderr
        lines = done.stderr.splitlines()
        assert all(re.fullmatch(r"\d of \d users after \d+ s", line) for line in lines)
        assert link.is_symlink()
        table = parquet.read_table(target)
        assert (table.num_rows, table.schema.field("ids").type) == (count, pa.list_(pa.string()))
        assert [*target.parent.iterdir()] == [target]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("by", "code"),
    [pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow), (signal.SIGINT, 130)],
)
def test_run_that_is_stopped_is_resumed_with_the_blocks_that_are_whole(
    write: Write, root: Path, tmp_path: Path, by: signal.Signals, code: int
) -> None:
    write()
    count = 12 * BLOCK_USERS + 7
    users = users_file(tmp_path / "users.parquet", count)
    out = tmp_path / "out.parquet"
    arguments = ["recommend", "movies", users, out, "--root", root, "--id", "key", "--workers", "2"]
    arguments += ["--options", '{"k": 3}']
    process = subprocess.Popen([*PROGRAM, *map(str, arguments)])
    until(lambda: len(list(tmp_path.glob(".out.parquet.parts-*/*.parquet"))) >= 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(by)
    assert process.wait() == code
    until(lambda: not any(_runs(int(child)) for child in children))
    blocks = sorted(tmp_path.glob(".out.parquet.parts-*/*.parquet"))
    assert not out.exists()
    flip(blocks[0])
    task = Task(root, "movies", '{"k": 3}', "key")
    steps: list[int] = []
    summary = run(task, users, out, 1, lambda done, total: steps.append(done))
    assert (summary.users, summary.failed, summary.done_before) == (
        count,
        0,
        (len(blocks) - 1) * BLOCK_USERS,
    )
    assert steps == sorted(steps)
    assert steps[-1] == count
    assert not list(tmp_path.glob(".out*"))
    table = parquet.read_table(out)
    assert table["key"].to_pylist() == [f"u{number}" for number in range(count)]
    lists = table["ids"].to_pylist()
    assert lists == [lists[number % 50] for number in range(count)]
    assert all(len(candidates) == 3 for candidates in lists[:50])


def test_blocks_of_another_run_that_is_under_way_or_had_other_inputs_are_left_alone(
    write: Write, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.batch_recommendation.BLOCK_USERS", 64)
    write()
    out = tmp_path / "out.parquet"
    count = 64 + 1
    many = users_file(tmp_path / "many.parquet", count)
    single = users_file(tmp_path / "single.parquet", 1)
    task = Task(root, "movies", '{"k": 3}', "key")

    def run_another_and_stop(done: int, _: int) -> None:
        if done:
            run(task, single, out, 1, lambda *_: None)
            assert parquet.read_metadata(out).num_rows == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(task, many, out, 1, run_another_and_stop)
    assert len(list(tmp_path.glob(".out.parquet.parts-*/*.parquet"))) == 1
    users_file(many, count, hour=[1.0] * count)
    assert run(task, many, out, 1, lambda *_: None).done_before == 0
    assert parquet.read_metadata(out).num_rows == count


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
