"""The layout file in each of its formats, and what it may not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory import layout_file
from export.checkpoint.inventory.layout_file import read_layouts
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import STATED_NOTE, Inventory, StatedTable, Statements
from export.checkpoint.layouts import Mod, Plain, SparseCore
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import StackedTable
from export.errors import NotConvertible, UsageError
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.checkpoint.tensor_bundles import GRAPH, field, write_bundle

PAGE = Path(__file__).parents[5].joinpath("docs/reference/checkpoints.md").read_text()
TOML = next(part for part in PAGE.split("```toml\n")[1:] if "sparse_core" in part).split("```")[0]
"""The example of the page."""
KEY = "params.embedding.users_items.table"
STACK = np.zeros((1920, 16), np.float32)
SPEC_TEXT = """
# as str() of the message writes it
stacked_table_specs {
  stack_name: "users_items"
  stack_vocab_size: 1920
  stack_embedding_dim: 16
  num_sparsecores: 8
  table_specs {
    table_name: "users" vocab_size: 1000 embedding_dim: 16
    feature_specs { feature_name: 'user' input_shape: 8 input_shape: 1 }
  }
  table_specs < table_name: "items"; vocab_size: 503, embedding_dim: 16
    row_offset_in_shard: 128 shard_rotation: 4 >
}
"""


def spec_bytes() -> bytes:
    users = field(1, "users") + field(2, 1000) + field(3, 16) + field(11, field(1, "user"))
    items = field(1, "items") + field(2, 503) + field(3, 16) + field(9, 128) + field(10, 4)
    stack = (
        field(1, "users_items")
        + field(2, 1920)
        + field(3, 16)
        + field(9, 8)
        + field(10, users)
        + field(10, items)
    )
    return field(1, stack)


def written(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def stated(
    directory: Path, content: str | bytes, name: str = "layout.toml", key: str = KEY
) -> Inventory:
    variables: dict[str, Any] = {
        key: STACK,
        "genres": STACK[:10],
        "ages": STACK[:128],
        "ages/Adam": STACK[:128],
        "words": np.zeros((2048, 16), np.float32),
        "words/Adam": np.zeros((2048, 16), np.float32),
    }
    write_bundle(directory / "ckpt-1", variables)
    layouts = read_layouts(written(directory, name, content))
    return recognize(open_checkpoint(directory), Statements(layouts=layouts))


def test_layout_file_of_the_docs_reads_as_documented(tmp_path: Path) -> None:
    tables = stated(tmp_path, TOML)
    assert {table.name: (table.rows, table.dim, table.layout) for table in tables.tables} == {
        "ages": (100, 16, Plain()),
        "genres": (10, 16, Mod((0, 3, 6, 8))),
        "items": (503, 16, SparseCore(8, 240, 128, 4)),
        "users": (1000, 16, SparseCore(8, 240, 0, 0)),
    }
    assert {table.origin for table in tables.tables} == {"layout file"}
    # Without the statement, the rows of a plain variable come out in the same order.
    assert [table.name for table in tables.tables if table.stated] == ["genres", "items", "users"]
    assert {table.note for table in tables.tables} == {"", STATED_NOTE}
    assert [slot.name for slot in tables.table("ages").slots] == ["Adam"]
    with pytest.raises(NotConvertible, match=r"'words'.*proved without ids that occur in training"):
        tables.table("words")
    assert tables.candidates == ()


@pytest.mark.parametrize(
    ("name", "content"), [("spec.textproto", SPEC_TEXT), ("spec.pb", spec_bytes())]
)
@pytest.mark.parametrize("key", ["params.users_items.table", "users_items", "emb/users_items/0"])
def test_embedding_spec_gives_the_same_layout_to_the_variable_named_like_the_stack(
    tmp_path: Path, name: str, content: str | bytes, key: str
) -> None:
    tables = stated(tmp_path, content, name, key)
    assert {
        table.name: (table.key, table.rows, table.dim, table.layout) for table in tables.tables
    } == {
        "items": (key, 503, 16, SparseCore(8, 240, 128, 4)),
        "users": (key, 1000, 16, SparseCore(8, 240, 0, 0)),
    }
    assert {(table.origin, table.stated, table.note) for table in tables.tables} == {
        ("embedding spec", False, "")
    }


def test_embedding_spec_whose_stack_is_not_one_variable_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match="has no variable 'users_items'"):
        stated(tmp_path, SPEC_TEXT, "spec.textproto", "other")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("l.toml", "[tables.a]\nkind = 'plain'", "key 'tables.a.key' is missing"),
        (
            "l.toml",
            "[tables.a]\nkey = 'k'\nkind = 'mud'",
            "tables.a.kind: Input should be 'plain', 'mod', 'sparse_core' or 'derive'",
        ),
        (
            "l.toml",
            "[tables.a]\nkey = 'k'\nkind = 'plain'\nrow = 3",
            "unknown key 'tables.a.row'; did you mean 'rows'",
        ),
        (
            "l.toml",
            "[tables.a]\nkey = 'k'\nkind = 'plain'\ncores = 3",
            "'cores' is no key of a table of kind 'plain'",
        ),
        (
            "l.toml",
            "[tables.a]\nkey = 'k'\nkind = 'sparse_core'\ncores = 3",
            "needs 'rows', 'dim' and 'cores'",
        ),
        ("l.toml", "[tables.a]\nkey = 'k'\nkind = 'mod'\npartitions = 0", "greater than 0"),
        ("l.toml", "tables = 3", "tables: "),
        ("l.toml", b"\xff", "docs/reference/checkpoints.md"),
        ("l.json", '{"tables": {"a": {}, "a": {}}}', "'a' stands there twice"),
        ("l.json", '{"tables": {"b": {}, "a": {}, "a": {}}}', "'a' stands there twice"),
        ("l.json", "[1]", "docs/reference/checkpoints.md"),
        (
            "l.toml",
            "[tables.a]\nkey = 'k'\nkind = 'sparse_core'\ncores = 3\nrows = 3",
            "needs 'rows', 'dim' and 'cores'",
        ),
        (
            "l.toml",
            "[tables.a]\nkey = 'k'\nkind = 'mod'\noffset = 3\ncores = 3",
            "'cores' is no key of a table of kind 'mod'",
        ),
        ("l.yaml", "tables: {}", "ends in '.yaml'; .toml, .json"),
        ("l.pb", b"\x0a\xff", "no EmbeddingSpecProto"),
        ("l.textproto", "stacked_table_specs {", "protobuf's text format"),
        ("l.textproto", SPEC_TEXT.replace("num_sparsecores: 8", ""), "1920 rows on 0 cores"),
        ("l.textproto", SPEC_TEXT.replace("1920", "0"), "of 0 rows on 8 cores"),
        ("l.textproto", SPEC_TEXT.replace("1920", "1921"), "of 1921 rows on 8 cores"),
        ("l.textproto", SPEC_TEXT.replace("1920", "-1920"), "of -1920 rows on 8 cores"),
        (
            "l.textproto",
            SPEC_TEXT.replace('stack_name: "users_items"', ""),
            "stack '' of 1920 rows on 8 cores",
        ),
        ("l.textproto", SPEC_TEXT.replace('"items"', '"users"'), "'users' twice"),
        ("l.textproto", SPEC_TEXT.replace('table_name: "items";', ""), "without table_name"),
        ("l.textproto", SPEC_TEXT.replace("503", "0"), r"'items' has the shape \[0, 16\]"),
        (
            "l.textproto",
            SPEC_TEXT.replace("embedding_dim: 16\n    f", "embedding_dim: -1\n    f"),
            r"'users' has the shape \[1000, -1\]",
        ),
        ("l.textproto", SPEC_TEXT.replace("shard: 128", "shard: -8"), "row_offset_in_shard -8"),
        ("l.textproto", SPEC_TEXT.replace("rotation: 4", "rotation: -1"), "shard_rotation -1; 0"),
    ],
)
def test_invalid_layout_file_is_rejected(
    tmp_path: Path, name: str, content: str | bytes, what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        read_layouts(written(tmp_path, name, content))


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("offset = 128", "offset = 120", "'users' and 'items' overlap"),
        ("cores = 8\noffset", "cores = 5\noffset", "5 and 8 cores|8 and 5 cores"),
        ("rows = 1000", "rows = 2000", "takes rows 0 to 250"),
        ("dim = 16", "dim = 17", r"shape \[1000, 17\]"),
        ('key = "genres"', f'key = "{KEY}"', "only the tables of a SparseCore stack share one"),
        ("rows = 100\n", "rows = 129\n", r"'ages' has the shape \[129, 16\]"),
        ('kind = "mod"', 'kind = "mod"\nrows = 5', r"'genres' has the shape \[5, 16\]"),
        ('key = "genres"', 'key = "genre"', "did you mean 'genres'"),
        ('key = "ages"', 'key = "ages/Adam"', "slot variable"),
        ("partitions = 4", "", "lies in 1 row range"),
    ],
)
def test_layout_that_contradicts_the_checkpoint_is_rejected(
    tmp_path: Path, before: str, after: str, what: str
) -> None:
    with pytest.raises(NotConvertible, match=what):
        stated(tmp_path, TOML.replace(before, after, 1))


def test_layout_file_may_state_that_a_stack_is_a_plain_table(tmp_path: Path) -> None:
    write_item(tmp_path / "item", {"sc_embedding_variables.users.table": STACK[:8]})
    plain = {"users": StatedTable(key="users", kind="plain", rows=5)}
    inventory = recognize(open_checkpoint(tmp_path / "item"), Statements(layouts=plain))
    assert [(table.name, table.stated) for table in inventory.tables] == [("users", True)]


def test_layout_file_replaces_what_was_recognized(tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"layer/embeddings": STACK})
    layouts = {
        "users": StatedTable(key="layer/embeddings", kind="sparse_core", rows=1000, dim=16, cores=8)
    }
    inventory = recognize(
        open_checkpoint(tmp_path), Statements({"people": "users"}, layouts=layouts)
    )
    assert [(table.name, table.layout.kind) for table in inventory.tables] == [
        ("people", "sparse_core")
    ]
    assert GRAPH not in [entry.key for entry in inventory.dense]


def test_mod_that_contradicts_the_checkpoint_is_rejected(tmp_path: Path) -> None:
    boxes: list[Any] = [[(first, 3), (0, -1)] for first in (0, 3, 6)]
    write_bundle(tmp_path / "c", {"emb": STACK[:9], "whole": STACK[:9]}, boxes={"emb": boxes})
    seven = {"items": StatedTable(key="emb", kind="mod", partitions=7)}
    for statements, what in (
        (Statements(layouts=seven), "7 partitions, and TF1 saved 'emb' in 3"),
        (Statements({"items": "whole"}, ("items",)), r"1 row range \(9 rows\)"),
        (Statements({"items": "emb"}, ("x",)), r"no table 'x'.*recognized: items"),
    ):
        with pytest.raises(NotConvertible, match=what):
            recognize(open_checkpoint(tmp_path), statements)


def test_table_that_is_cut_or_a_stack_was_not_spread_by_mod(tmp_path: Path) -> None:
    boxes: list[Any] = [[(first, 3), (0, -1)] for first in (0, 3, 6)]
    write_bundle(tmp_path / "c", {"emb": STACK[:9]}, boxes={"emb": boxes})
    cut = StatedTable(key="emb", kind="plain", rows=5)
    stack = StatedTable(key="emb", kind="sparse_core", rows=9, dim=16, cores=3)
    for table, kind in ((cut, "plain"), (stack, "sparse_core")):
        statements = Statements(layouts={"items": table}, mod=("items",))
        with pytest.raises(NotConvertible, match=f"--mod items: the table has the layout {kind}"):
            recognize(open_checkpoint(tmp_path), statements)


def test_table_of_slices_keeps_its_note_under_another_name(tmp_path: Path) -> None:
    boxes: list[Any] = [[(first, 3), (0, -1)] for first in (0, 3, 6)]
    write_bundle(tmp_path / "c", {"u/embeddings": STACK[:9]}, boxes={"u/embeddings": boxes})
    (table,) = recognize(open_checkpoint(tmp_path), {"users": "u"}).tables
    assert (table.name, "--mod NAME says so" in table.note) == ("users", True)


def test_layout_file_in_json_is_read(tmp_path: Path) -> None:
    text = '{"tables": {"a": {"key": "k", "kind": "mod", "partitions": 3}, "b": {"key": "k", '
    text += '"kind": "sparse_core", "rows": 1, "dim": 1, "cores": 1, "rotation": 2}}}'
    tables = read_layouts(written(tmp_path, "l.json", text))
    assert dict(tables) == {
        "a": StatedTable(key="k", kind="mod", partitions=3),
        "b": StatedTable(key="k", kind="sparse_core", rows=1, dim=1, cores=1, rotation=2),
    }


@pytest.mark.parametrize("name", ["s.textproto", "s.pbtxt", "s.txtpb", "s.pb", "s.binpb"])
def test_embedding_spec_is_read_by_its_suffix(tmp_path: Path, name: str) -> None:
    text = name in ("s.textproto", "s.pbtxt", "s.txtpb")
    tables = read_layouts(written(tmp_path, name, SPEC_TEXT if text else spec_bytes()))
    assert tables == {
        "users": StackedTable(
            "users", "users_items", 1000, 16, SparseCore(8, 240, 0, 0), (1920, 16)
        ),
        "items": StackedTable(
            "items", "users_items", 503, 16, SparseCore(8, 240, 128, 4), (1920, 16)
        ),
    }


def test_stack_may_have_one_row_on_one_core(tmp_path: Path) -> None:
    text = SPEC_TEXT.replace("1920", "1").replace("num_sparsecores: 8", "num_sparsecores: 1")
    tables = read_layouts(written(tmp_path, "s.pbtxt", text))
    layout = SparseCore(1, 1, 0, 0)
    assert tables["users"] == StackedTable("users", "users_items", 1000, 16, layout, (1, 16))


def test_layout_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "l.toml", TOML)
    size = path.stat().st_size
    monkeypatch.setattr(layout_file, "FILE_BYTES_MAX", size)
    assert len(read_layouts(path)) == 5
    monkeypatch.setattr(layout_file, "FILE_BYTES_MAX", size - 1)
    with pytest.raises(UsageError) as error:
        read_layouts(path)
    reason = f"it has more than {size - 1} bytes"
    assert str(error.value) == f"layout file {path} cannot be read: {reason}"
    with pytest.raises(UsageError) as error:
        read_layouts(tmp_path / "none.toml")
    assert str(error.value) == (
        f"layout file {tmp_path / 'none.toml'} cannot be read: No such file or directory"
    )
