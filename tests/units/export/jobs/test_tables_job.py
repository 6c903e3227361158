"""`tables` and `inspect`: which variables of a checkpoint become tables, by what the checkpoint and
the user say of them, and what each export reports.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from bundle.format.manifest import Manifest
from bundle.storage import catalog
from bundle.tables.reader import TableReader
from export.jobs import attempts
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    Box,
    node,
    object_graph,
    write_bundle,
)
from tests.units.export.commands import Command, CommandResult
from tests.units.export.movies_job import visible

pytestmark = pytest.mark.slow

TABLE = np.arange(70, dtype=np.float32).reshape(10, 7)
ROWS: list[Box] = [[(0, 4), (0, -1)], [(4, 3), (0, -1)], [(7, 3), (0, -1)]]
BY_MOD = np.concatenate([np.arange(0, 10, 3), np.arange(1, 10, 3), np.arange(2, 10, 3)])
"""The table's row in each stored row, where three partitions were dealt the rows."""
LOST = TABLE.copy()
LOST[[6, 8], [1, 2]] = np.nan, np.inf
LARGE = np.arange(5000 * 4, dtype=np.float32).reshape(5000, 4)


class Tables:
    """Exports of a checkpoint in a directory."""

    def __init__(self, command: Command, directory: Path) -> None:
        self._command = command
        self.directory = directory
        self.root = directory / "out"

    def save(self, variables: dict[str, Any], boxes: dict[str, list[Box]] | None = None) -> None:
        write_bundle(self.directory / "c", variables, boxes=boxes or {})

    def run(self, *options: object) -> CommandResult:
        return self._command("tables", self.directory / "c", self.root, *options)

    def page(self, *options: object) -> dict[str, Any]:
        return self.run(*options, "--json").json

    def verified(self, version: int = 1) -> str:
        bundle = self.root / "tables" / str(version)
        done = self._command("verify", bundle, "--checkpoint", self.directory / "c")
        assert done.code == 0, done.err
        return " ".join(done.out.split())

    def manifest(self, version: int = 1) -> Manifest:
        return catalog.read_manifest(self.root / "tables" / str(version))

    def rows(self, version: int = 1) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the rows of every table, as a service reads them."""
        directory = self.root / "tables" / str(version)
        return {
            name: TableReader(directory, table).gather(np.arange(table.rows))
            for name, table in self.manifest(version).tables.items()
        }

    def layout(self, text: str) -> Path:
        (self.directory / "layout.toml").write_text(text)
        return self.directory / "layout.toml"


@pytest.fixture
def tables(command: Command, tmp_path: Path) -> Tables:
    return Tables(command, tmp_path)


@pytest.mark.parametrize("mode", ["--mod", "--layout"])
def test_stated_layout_is_published_if_it_is_accepted_and_says_so(
    tables: Tables, command: Command, mode: str
) -> None:
    tables.save({"user/embeddings": TABLE[BY_MOD]}, {"user/embeddings": ROWS})
    layout = tables.layout('[tables.user]\nkey = "user/embeddings"\nkind = "mod"\n')
    options = (mode, {"--mod": "user", "--layout": layout}[mode])
    done = tables.run(*options)
    assert (done.code, visible(tables.root)) == (5, [])
    assert "'user'" in done.message
    assert "--accept-stated-layouts" in done.message

    page = tables.page(*options, "--accept-stated-layouts")
    np.testing.assert_array_equal(tables.rows()["user"], TABLE)
    assert page["verification"]["tables"]["user"]["stated_layout"] == "accepted"
    assert "stated" in page["notes"][0]
    assert tables.manifest().tables["user"].source.stated is True
    (unverified,) = tables.manifest().verification.unverified
    assert "rows of user" in unverified
    assert "accepted" in unverified
    assert "accepted" in tables.verified()
    assert tables.page(*options, "--plan")["tables"]["user"]["stated"] is True
    drawn = command("explain", page["bundle"], "--json").json
    assert "stated layout" in drawn["tables"][0]["source"]
    page = command("inspect", tables.directory / "c", *options, "--json").json
    assert page["tables"]["user"]["layout"] == {"kind": "mod", "starts": [0, 4, 7]}


def test_stated_stack_says_which_padding_was_compared(tables: Tables) -> None:
    stack = np.zeros((16, 7), np.float32)
    stack[[0, 1, 2, 8, 9]] = TABLE[[0, 2, 4, 1, 3]]
    tables.save({"stack": stack, "stack/Adagrad": np.full(stack.shape, 0.1, np.float32)})
    layout = tables.layout(
        '[tables.user]\nkey = "stack"\nkind = "sparse_core"\nrows = 5\ndim = 7\ncores = 2\n'
    )
    check = tables.page("--layout", layout, "--accept-stated-layouts")["verification"]
    assert check["tables"]["user"]["padding"] == {"rows": 11, "slots": ["Adagrad"]}


def test_tables_that_can_be_exported_are_and_the_others_are_noted(tables: Tables) -> None:
    nodes = [
        node({"e": 1}),
        node({"_variables": 2}),
        node({"items": 3, "lost": 4, "a/b": 5}),
        *(node({"parameters": number}) for number in (6, 7, 8)),
        *(node(key=f"e/{name}{SUFFIX}") for name in ("items", "lost", "a.Sb")),
    ]
    variables: dict[str, Any] = {f"e/{name}{SUFFIX}": TABLE for name in ("items", "a.Sb")}
    tables.save({**variables, "n/embeddings": TABLE, GRAPH: object_graph(*nodes)})
    notes = tables.page()["notes"]
    assert set(tables.rows()) == {"items"}
    for words in (("'lost'", "not saved"), ("'a/b'", "--table NAME=a/b")):
        assert any(all(word in note for word in words) for note in notes)
    tables.page("--table", "ab=a/b")
    assert set(tables.rows(2)) == {"items", "ab"}


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"b": (5, 2), "a": (5, 2), "large": (9, 3), "small": (3, 3)}, "large [9, 3], a [5, 2], b"),
        ({"small": (4, 2)}, None),
        ({f"v{number}": (9, 2) for number in range(9)}, "v7 [9, 2] and 1 more; "),
    ],
)
def test_variables_as_large_as_the_smallest_table_are_noted_since_they_may_be_tables(
    tables: Tables, variables: dict[str, tuple[int, int]], named: str | None
) -> None:
    others = {name: np.zeros(shape, np.float32) for name, shape in variables.items()}
    tables.save({"user/embeddings": np.zeros((5, 2), np.float32)} | others)
    notes = tables.page("--plan")["notes"]
    assert [named in note and "--table NAME=KEY" in note for note in notes if named] == (
        [True] if named else []
    )
    assert tables.page("--plan", "--only", "user")["notes"] == []


def test_variables_of_keras_without_a_class_are_noted(command: Command, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file.create_dataset("layers/embedding/vars/0", data=np.ones((50, 4), "f4"))
        file.create_dataset("items/vars/0", data=np.ones((900, 4), "f4"), compression="lzf")
        file.create_dataset("deep/vars/0", data=np.ones((8, 1), "f4"))
    run = ("tables", tmp_path / "m.weights.h5", tmp_path / "a", "--json")
    (note,) = command(*run).json["notes"]
    assert "items/vars/0 [900, 4]" in note
    assert "deep" not in note
    assert command(*run, "--table", "items=items/vars/0").json["notes"] == []
    (unverified,) = catalog.read_manifest(tmp_path / "a/tables/2").verification.unverified
    assert "h5py 3" in unverified


NAMED = ("--table", "user=user/embeddings")
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], int, tuple[str, ...]]] = {
    # the variables, the options, the exit code, words of the message
    "no table": ({"k": TABLE}, (), 4, ("no table is identified", "k [10, 7]")),
    "rows that are not finite": (
        {"user/embeddings": LOST},
        NAMED,
        4,
        ("'user'", "2 rows", "row 6", "--allow-non-finite"),
    ),
    # Of a conversion, no consent makes a row.
    "converted rows that are not finite": (
        {"user/embeddings": LOST},
        (*NAMED, "--dtype", "int8", "--allow-non-finite"),
        4,
        ("'user'", "2 rows", "row 6", "converted"),
    ),
    "linked rows that are not finite": (
        {"user/embeddings": LOST},
        (*NAMED, "--tables", "link"),
        5,
        ("'user'", "row 6", "2 of the 10 rows"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_cannot_be_exported_as_requested_are_rejected(
    tables: Tables, name: str
) -> None:
    variables, options, code, words = REFUSED[name]
    tables.save(variables)
    done = tables.run(*options)
    assert (done.code, visible(tables.root)) == (code, []), done.err
    assert all(expected in done.message for expected in words), done.message


@pytest.mark.parametrize(("options", "rows"), [((), 2), (("--tables", "link"), None)])
def test_rows_that_are_not_finite_are_published_if_the_user_allows_them(
    tables: Tables, options: tuple[str, ...], rows: int | None
) -> None:
    tables.save({"user/embeddings": LOST})
    tables.page(*NAMED, "--allow-non-finite", *options)
    np.testing.assert_array_equal(tables.rows()["user"], LOST)
    recorded = tables.manifest().tables["user"].non_finite
    assert recorded is not None
    assert (recorded.rows, recorded.first_row) == (rows, 6 if rows else None)
    tables.verified()


def test_tables_whose_names_are_ways_to_write_tables_are_selected(tables: Tables) -> None:
    tables.save(dict.fromkeys(("copy", "link", "other"), TABLE))
    named = [f"--table={name}={name}" for name in ("copy", "link", "other")]
    page = tables.page(*named, "--only", "copy, link")
    assert set(page["verification"]["tables"]) == {"copy", "link"}


COLUMNS: list[Box] = [[(0, -1), (0, 2)], [(0, -1), (2, 5)]]


@pytest.mark.parametrize(
    ("boxes", "stated", "reason"),
    [
        (COLUMNS, "", "cut by columns"),
        ([], 'kind = "sparse_core"\nrows = 8\ndim = 7\ncores = 2', "in order"),
        ([], 'kind = "plain"\ndim = 5', "padding is cut off"),
    ],
)
def test_table_that_cannot_be_linked_is_copied_with_the_reason(
    tables: Tables, boxes: list[Box], stated: str, reason: str
) -> None:
    tables.save({"t": TABLE}, {"t": boxes} if boxes else {})
    options: tuple[object, ...] = ("--table", "t=t")
    if stated:
        options = ("--layout", tables.layout(f'[tables.t]\nkey = "t"\n{stated}\n'))
    page = tables.page(*options, "--tables", "link", "--plan")
    assert page["linked_bytes"] == 0
    assert reason in page["tables"]["t"]["note"]


def test_links_lead_to_the_file_behind_a_symbolic_link(tables: Tables) -> None:
    tables.save({"user/embeddings": TABLE})
    (data,) = tables.directory.glob("*.data-*")
    real = data.rename(data.with_name("real"))
    data.symlink_to(real)
    tables.page(*NAMED, "--tables", "link")
    (segment,) = tables.manifest().tables["user"].segments
    link = tables.root / "tables/1" / segment.file
    assert (link.is_symlink(), link.samefile(real)) == (False, True)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EXDEV, "different filesystems"),
        (errno.EMLINK, "as many links as the filesystem allows"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_link_that_cannot_be_made_is_told_with_the_reason(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    tables.save({"user/embeddings": TABLE})
    monkeypatch.setattr(os, "link", fail)
    done = tables.run(*NAMED, "--tables", "link")
    assert (done.code, reason in done.message) == (6, True)


def test_linked_tables_are_compared_in_full_or_not_at_all(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows lie in the checkpoint's own file: to compare some of them would prove nothing."""
    tables.save({"user/embeddings": LARGE})
    link = ("--tables", "link")
    assert "linked, not verified" in tables.run(*link).out
    tables.page(*link, "--full")
    monkeypatch.setenv("ROWCAST_EXPORT_FULL", "true")
    tables.page(*link)
    checks = [tables.manifest(version).verification for version in (1, 2, 3)]
    assert [check.tables["user"].rows_compared for check in checks] == [0, 5000, 5000]
    assert ["--full" in " ".join(check.unverified) for check in checks] == [True, False, False]


@pytest.mark.parametrize("failures", [2, 1000])
def test_reads_that_fail_are_made_again_and_then_named(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Reads fail as they do on a network filesystem that is out of order."""
    tables.save({"user/embeddings": TABLE})
    monkeypatch.setenv("ROWCAST_EXPORT_WORKERS", "1")
    monkeypatch.setattr(attempts, "PAUSES_S", [0.0] * len(attempts.PAUSES_S))
    read = os.preadv
    left = failures

    def flaky(handle: int, buffers: Any, offset: int) -> int:
        nonlocal left
        left -= 1
        return 0 if left >= 0 else read(handle, buffers, offset)

    monkeypatch.setattr(os, "preadv", flaky)
    done = tables.run()
    if failures == 2:
        np.testing.assert_array_equal(tables.rows()["user"], TABLE)
    else:
        assert (done.code, visible(tables.root)) == (3, [])
        assert "cannot be read" in done.message
        assert "it resumes" in done.message
