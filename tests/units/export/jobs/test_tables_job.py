"""`tables` and `inspect` with what the user says of a checkpoint, and of one that cannot be
exported in full.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from bundle.storage import catalog
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.specs import Statements
from export.errors import ExportError, NotConvertible, UsageError
from export.jobs.destinations import Destination
from export.jobs.tables_job import PreparedTables, TablesJob, prepare_tables
from export.recipe.settings import ExportSettings
from export.tables.plan import WriteOptions
from tests.laws.trained_stacks import Stack, packed, train
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    Box,
    node,
    object_graph,
    write_bundle,
)
from tests.units.export.commands import Command
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.movies_job import visible

TABLE = np.arange(70, dtype=np.float32).reshape(10, 7)
ROWS: list[Box] = [[(0, 4), (0, -1)], [(4, 3), (0, -1)], [(7, 3), (0, -1)]]
BY_MOD = np.concatenate([np.arange(0, 10, 3), np.arange(1, 10, 3), np.arange(2, 10, 3)])
"""The table's row in each stored row, where three partitions were dealt the rows."""


def bundle(root: Path) -> dict[str, Any]:
    """What a service would read: rows of every table, features."""
    directory = root / "tables/1"
    page = catalog.read_manifest(directory)
    rows = {
        name: TableReader(directory, table).gather(np.arange(table.rows))
        for name, table in page.tables.items()
    }
    return {"rows": rows, "features": set(page.features)}


def test_tables_of_a_stated_stack_say_which_padding_was_compared(
    command: Command, tmp_path: Path
) -> None:
    stack = np.zeros((16, 7), np.float32)
    stack[[0, 1, 2, 8, 9]] = TABLE[[0, 2, 4, 1, 3]]
    slot = np.full(stack.shape, 0.1, np.float32)
    write_bundle(tmp_path / "c", {"stack": stack, "stack/Adagrad": slot})
    layout = tmp_path / "layout.toml"
    layout.write_text(
        '[tables.user]\nkey = "stack"\nkind = "sparse_core"\nrows = 5\ndim = 7\ncores = 2\n'
    )
    run = ["tables", tmp_path / "c", tmp_path / "out", "--layout", layout]
    page = command(*run, "--accept-stated-layouts", "--json").json
    check = page["verification"]["tables"]["user"]
    assert check["padding"] == {"rows": 11, "slots": ["Adagrad"]}
    output = " ".join(command(*run, "--accept-stated-layouts").out.split())
    assert "not verified; compared with 11 padding rows and their Adagrad" in output


def test_tables_of_a_stack_are_derived_from_ids_that_occur_in_training(
    command: Command, tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    tables = [train(random, "adam", random.integers(0, 2, rows)) for rows in (90, 130)]
    stack = Stack("adam", tables, packed([90, 130], 4, [0, 2]))
    write_bundle(tmp_path / "c", stack.variables())
    run: list[object] = ["tables", tmp_path / "c", tmp_path / "out"]
    layout = tmp_path / "layout.toml"
    layout_text = ""
    for name, table in zip("ab", tables, strict=True):
        rows = len(table.values)
        layout_text += f'[tables.{name}]\nkey = "stack"\nkind = "derive"\nrows = {rows}\ndim = 8\n'
        (tmp_path / f"{name}.txt").write_text("\n".join(map(str, table.trained)))
        run += ["--trained-ids", f"{name}={tmp_path}/{name}.txt"]
    layout.write_text(layout_text)
    run += ["--layout", layout]

    planned = command(*run, "--plan", "--json").json["tables"]["b"]
    assert planned["trained_ids"]["agree"] == planned["trained_ids"]["ids"]
    assert "its layout (4 cores, offset 24, rotation 2) is derived: " in planned["note"]
    page = command(*run, "--full", "--json").json
    read = bundle(tmp_path / "out")["rows"]
    for name, table in zip("ab", tables, strict=True):
        np.testing.assert_array_equal(read[name], table.values)
        check = page["verification"]["tables"][name]
        assert check["stated_layout"] == "derived"
        assert check["trained_ids"]["decisive"] is True
    output = " ".join(command(*run).out.split())
    assert "by the layout that was derived from ids of training; 1" in output
    verified = command("verify", page["bundle"], "--checkpoint", tmp_path / "c")
    assert "trained ids agree; the best other layout (" in " ".join(verified.out.split())

    wrong = layout.with_name("wrong.toml")
    wrong.write_text(
        layout_text.replace('"derive"', '"sparse_core"\ncores = 4').replace(
            "[tables.b]", "offset = 40\n[tables.b]"
        )
    )
    rejected = command(*run[:-1], wrong, "--accept-stated-layouts")
    assert rejected.code == 4
    assert "table 'a': its layout (4 cores, offset 40) contradicts the ids" in rejected.message
    rejected = command(*run, "--trained-ids", f"c={tmp_path}/a.txt")
    assert rejected.code == 2
    assert "--trained-ids c=" in rejected.message
    assert "there is no table of this name; the tables are a, b" in rejected.message


@pytest.mark.parametrize("mode", ["--mod", "--layout"])
def test_tables_of_partitions_with_mod_are_in_the_order_of_ids(
    command: Command, tmp_path: Path, mode: str
) -> None:
    write_bundle(
        tmp_path / "c", {"user/embeddings": TABLE[BY_MOD]}, boxes={"user/embeddings": ROWS}
    )
    layout = tmp_path / "layout.toml"
    layout.write_text('[tables.user]\nkey = "user/embeddings"\nkind = "mod"\n')
    value = {"--mod": "user", "--layout": layout}[mode]
    run = ["tables", tmp_path / "c", tmp_path / "out", mode, value]
    done = command(*run)
    assert (done.code, visible(tmp_path / "out")) == (5, [])
    assert "'user': the layout of the rows is stated" in done.message
    assert "--accept-stated-layouts" in done.message

    page = command(*run, "--accept-stated-layouts", "--json").json
    np.testing.assert_array_equal(bundle(tmp_path / "out")["rows"]["user"], TABLE)
    assert page["verification"]["tables"]["user"]["stated_layout"] == "accepted"
    assert "table user: its layout is stated" in page["notes"][0]
    assert catalog.read_manifest(tmp_path / "out/tables/1").tables["user"].source.stated is True
    planned = command(*run, "--plan", "--json").json["tables"]["user"]
    assert planned["stated"] is True
    assert "its layout is stated" in planned["note"]
    output = command(*run, "--accept-stated-layouts").out
    assert "if its stated layout is right: not verified" in " ".join(output.split())
    verified = command("verify", page["bundle"], "--checkpoint", tmp_path / "c")
    assert "by its stated layout (accepted)" in " ".join(verified.out.split())
    drawn = command("explain", page["bundle"], "--json").json
    assert drawn["tables"][0]["source"] == "user/embeddings, mod, stated layout"

    page = command("inspect", tmp_path / "c", mode, value, "--json").json
    assert page["tables"]["user"]["layout"] == {"kind": "mod", "starts": [0, 4, 7]}
    assert page["tables"]["user"]["stated"] is True


@pytest.mark.parametrize(("part", "shape"), [("rows = 9", (9, 7)), ("dim = 5", (10, 5))])
def test_tables_padding_of_a_plain_variable_is_cut_off(
    command: Command, tmp_path: Path, part: str, shape: tuple[int, int]
) -> None:
    write_bundle(tmp_path / "c", {"emb": TABLE}, boxes={"emb": ROWS})
    layout = tmp_path / "layout.toml"
    layout.write_text(f'[tables.user]\nkey = "emb"\nkind = "plain"\n{part}\n')
    done = command("tables", tmp_path / "c", tmp_path / "out", "--layout", layout)
    assert done.code == 0, done.err
    np.testing.assert_array_equal(
        bundle(tmp_path / "out")["rows"]["user"], TABLE[: shape[0], : shape[1]]
    )


def test_tables_exports_the_convertible_tables_and_lists_the_others(
    command: Command, tmp_path: Path
) -> None:
    nodes = [
        node({"e": 1}),
        node({"_variables": 2}),
        node({"items": 3, "lost": 4, "a/b": 5}),
        *(node({"parameters": number}) for number in (6, 7, 8)),
        *(node(key=f"e/{name}{SUFFIX}") for name in ("items", "lost", "a.Sb")),
    ]
    variables: dict[str, Any] = {f"e/{name}{SUFFIX}": TABLE for name in ("items", "a.Sb")}
    write_bundle(tmp_path / "c", {**variables, "n/embeddings": TABLE, GRAPH: object_graph(*nodes)})
    notes = command("tables", tmp_path / "c", tmp_path / "out", "--json").json["notes"]
    assert set(bundle(tmp_path / "out")["rows"]) == {"items"}
    assert any("'lost' is not exported: its variable was not saved" in note for note in notes)
    assert any("'a/b' cannot be called so" in note and "--table NAME=a/b" in note for note in notes)
    command("tables", tmp_path / "c", tmp_path / "other", "--table", "ab=a/b", "--json").json  # noqa: B018
    assert set(bundle(tmp_path / "other")["rows"]) == {"items", "ab"}


def test_tables_lists_the_large_variables_that_it_leaves_out(
    command: Command, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file.create_dataset("layers/embedding/vars/0", data=np.ones((50, 4), "f4"))
        file.create_dataset("items/vars/0", data=np.ones((900, 4), "f4"))
        file.create_dataset("deep/vars/0", data=np.ones((8, 1), "f4"))
    message = "whether it is a table: items/vars/0 [900, 4]; --table NAME=KEY exports one"
    page = command("tables", tmp_path / "m.weights.h5", tmp_path / "a", "--json").json
    assert any(message in note for note in page["notes"])
    named = ("--table", "items=items/vars/0", "--json")
    page = command("tables", tmp_path / "m.weights.h5", tmp_path / "b", *named).json
    assert page["notes"] == []
    assert set(bundle(tmp_path / "b")["rows"]) == {"embedding", "items"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no table is identified; "),
        ([], "k [10, 7] float32"),
        (["--table", "n=n"], "'n' holds int64 values"),
    ],
)
def test_tables_that_cannot_be_exported_exit_4_with_the_reason(
    command: Command, tmp_path: Path, options: list[str], message: str
) -> None:
    write_bundle(tmp_path / "c", {"k": TABLE, "n": TABLE.astype(np.int64)})
    done = command("tables", tmp_path / "c", tmp_path / "out", *options)
    assert (done.code, visible(tmp_path / "out")) == (4, [])
    assert message in done.message


def test_tables_whose_names_are_ways_to_write_tables_are_selected(
    command: Command, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "c", dict.fromkeys(("copy", "link", "other"), TABLE))
    named = [f"--table={name}={name}" for name in ("copy", "link", "other")]
    done = command(
        "tables", tmp_path / "c", tmp_path / "out", *named, "--only", "copy, link", "--json"
    )
    assert set(done.json["verification"]["tables"]) == {"copy", "link"}


@pytest.mark.parametrize("failures", [2, 1000])
def test_tables_whose_reads_fail_are_read_again_and_then_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Reads fail as they do on a network filesystem that is out of order."""
    write_bundle(tmp_path / "c", {"user/embeddings": TABLE})
    monkeypatch.setenv("ROWCAST_EXPORT_WORKERS", "1")
    read = os.preadv
    left = failures

    def flaky(handle: int, buffers: Any, offset: int) -> int:
        nonlocal left
        left -= 1
        return 0 if left >= 0 else read(handle, buffers, offset)

    monkeypatch.setattr(os, "preadv", flaky)
    done = command("tables", tmp_path / "c", tmp_path / "out")
    if failures == 2:
        np.testing.assert_array_equal(bundle(tmp_path / "out")["rows"]["user"], TABLE)
    else:
        assert (done.code, visible(tmp_path / "out")) == (3, [])
        assert "cannot be read at byte 1: no bytes were read" in done.message
        assert "run again: it resumes" in done.message


def test_tables_that_are_linked_are_verified_in_full_or_not_at_all(
    command: Command, tmp_path: Path
) -> None:
    """Their rows lie in the checkpoint's own file: to compare some of them would prove nothing."""
    large = np.arange(5000 * 4, dtype=np.float32).reshape(5000, 4)
    write_bundle(tmp_path / "c", {"user/embeddings": large})
    done = command("tables", tmp_path / "c", tmp_path / "out", "--tables", "link")
    assert (done.code, "linked, not verified" in done.out) == (0, True), done.err
    full = command(
        "tables", tmp_path / "c", tmp_path / "out", "--tables", "link", "--full", "--json"
    )
    assert full.code == 0, full.err
    checks = [
        catalog.read_manifest(tmp_path / f"out/tables/{version}").verification.tables
        for version in (1, 2)
    ]
    assert [check["user"].rows_compared for check in checks] == [0, 5000]


def test_tables_with_full_set_in_the_environment_compare_every_row(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = np.arange(5000 * 4, dtype=np.float32).reshape(5000, 4)
    write_bundle(tmp_path / "c", {"user/embeddings": large})
    monkeypatch.setenv("ROWCAST_EXPORT_FULL", "true")
    done = command("tables", tmp_path / "c", tmp_path / "out", "--tables", "link")
    assert done.code == 0, done.err
    manifest = catalog.read_manifest(tmp_path / "out/tables/1")
    assert manifest.verification.tables["user"].rows_compared == 5000


def test_tables_of_a_checkpoint_that_was_saved_anew_after_a_kill_are_copied_again(
    forked: ForkedRuns, tmp_path: Path
) -> None:
    run = ["tables", str(tmp_path / "c"), str(tmp_path / "out"), "--version", "1"]
    for values, dies, status in ((TABLE, {"noted": 2}, -signal.SIGKILL), (TABLE + 1, {}, 0)):
        write_bundle(tmp_path / "c", {"user/embeddings": values})
        assert forked.run(run, tmp_path / "output", **dies) == status
    np.testing.assert_array_equal(bundle(tmp_path / "out")["rows"]["user"], TABLE + 1)


def prepared(directory: Path, variables: dict[str, Any], **job: Any) -> PreparedTables:
    """Prepares the tables of a checkpoint."""
    write_bundle(directory / "ckpt-1", variables)
    destination = Destination(directory / "out", None)
    return prepare_tables(
        directory / "ckpt-1", destination, TablesJob(**job), ExportSettings(workers=1)
    )


def zeros(rows: int, dim: int = 2) -> np.ndarray[Any, Any]:
    return np.zeros((rows, dim), np.float32)


USER: dict[str, Any] = {"user/embeddings": zeros(5)}


def test_prepare_tables_notes_variables_that_may_be_tables_from_the_size_of_the_least_on(
    tmp_path: Path,
) -> None:
    variables = {"b": zeros(5), "a": zeros(5), "large": zeros(9, 3), "small": zeros(3, 3)}
    actual = prepared(tmp_path, USER | variables)
    assert actual.names == ("user",)
    assert actual.notes == (
        "not exported, since the checkpoint does not say whether it is a table: large [9, 3], "
        "a [5, 2], b [5, 2]; --table NAME=KEY exports one",
    )
    assert (actual.version, actual.plan.bytes) == (1, 40)
    assert prepared(tmp_path, USER | variables, names=("user",)).notes == ()
    assert prepared(tmp_path, USER | {"small": zeros(4)}).notes == ()


@pytest.mark.parametrize(
    ("count", "message"), [(8, "v7 [9, 2]; --"), (9, "v7 [9, 2] and 1 more; --")]
)
def test_prepare_tables_notes_some_of_many_variables(
    tmp_path: Path, count: int, message: str
) -> None:
    variables = {f"v{number}": zeros(9) for number in range(count)}
    (note,) = prepared(tmp_path, USER | variables).notes
    assert "v0 [9, 2], v1 [9, 2], v2 [9, 2]" in note
    assert f"{message}table NAME=KEY exports one" in note


def test_prepare_tables_leaves_out_what_cannot_be_exported_unless_it_is_named(
    tmp_path: Path,
) -> None:
    variables = USER | {"ids/embeddings": np.zeros((3, 2), np.int64)}
    named = Statements({"ids": "ids/embeddings"})
    with pytest.raises(NotConvertible, match="'ids' holds int64 values"):
        prepared(tmp_path, variables, statements=named)
    actual = prepared(tmp_path, variables, statements=named, dtypes=(("ids", "float32"),))
    assert actual.names == ("ids", "user")
    assert [table.dtype for table in actual.plan.tables] == ["float32", "float32"]
    half = prepared(tmp_path, USER, writing=WriteOptions(dtype="bfloat16"))
    assert [table.dtype for table in half.plan.tables] == ["bfloat16"]


@pytest.mark.parametrize(
    ("job", "kind", "problem"),
    [
        ({"model": "a b"}, UsageError, "--model 'a b' is no name: letters, digits"),
        (
            {"dtypes": (("users", "int8"),)},
            UsageError,
            "--dtype users=...: no table of that name is exported; these are: user",
        ),
        ({"names": ("users",)}, NotConvertible, "has no table 'users'"),
    ],
)
def test_prepare_tables_of_what_is_not_there_is_rejected(
    tmp_path: Path, job: dict[str, Any], kind: type[ExportError], problem: str
) -> None:
    with pytest.raises(kind, match=problem):
        prepared(tmp_path, USER, **job)


def test_prepare_tables_of_a_checkpoint_without_any_lists_what_may_be_meant(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        NotConvertible, match=r"checkpoint ckpt-1: no table is identified; name a variable .* a \[5"
    ):
        prepared(tmp_path, {"a": zeros(5)})
    assert prepared(tmp_path, USER, version=7).version == 7


LOST = TABLE.copy()
LOST[[6, 8], [1, 2]] = np.nan, np.inf


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (
            (),
            4,
            "table 'user': 2 rows hold NaN or an infinity, first row 6; repair them or take an "
            "older checkpoint; if no request reads them, allow them "
            "(tables.user.allow_non_finite = true in a recipe, --allow-non-finite for tables)",
        ),
        # Of a conversion, no consent makes a row.
        (
            ("--dtype", "int8", "--allow-non-finite"),
            4,
            "table 'user': 2 rows hold NaN or an infinity, first row 6; converted rows cannot hold "
            "them: repair them, or copy the table as it is stored",
        ),
        (
            ("--tables", "link"),
            5,
            "table 'user': row 6 holds NaN or an infinity, and so do 2 of the 10 rows that were "
            "compared with it; repair them",
        ),
    ],
)
def test_tables_with_rows_that_are_not_finite_are_rejected(
    command: Command, tmp_path: Path, options: tuple[str, ...], code: int, expected: str
) -> None:
    write_bundle(tmp_path / "c", {"user/embeddings": LOST})
    run = ["tables", tmp_path / "c", tmp_path / "out", "--table", "user=user/embeddings"]
    done = command(*run, *options)
    assert (done.code, visible(tmp_path / "out")) == (code, [])
    assert expected in done.message


@pytest.mark.parametrize(
    ("options", "recorded"),
    [((), {"rows": 2, "first_row": 6}), (("--tables", "link"), {"rows": None, "first_row": None})],
)
def test_tables_with_such_rows_that_the_user_allows_are_published_and_say_so(
    command: Command, tmp_path: Path, options: tuple[str, ...], recorded: dict[str, Any]
) -> None:
    write_bundle(tmp_path / "c", {"user/embeddings": LOST})
    run = ["tables", tmp_path / "c", tmp_path / "out", "--table", "user=user/embeddings"]
    page = command(*run, "--allow-non-finite", *options, "--json").json
    np.testing.assert_array_equal(bundle(tmp_path / "out")["rows"]["user"], LOST)
    table = catalog.read_manifest(tmp_path / "out/tables/1").tables["user"]
    assert table.non_finite is not None
    assert table.non_finite.model_dump() == recorded
    assert command("verify", page["bundle"], "--checkpoint", tmp_path / "c").code == 0
