"""What inspect tells: to people on a terminal, to programs as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from export.checkpoint.inventory.specs import STATED_NOTE
from tests.export.checkpoint.tensor_bundles import GRAPH, SUFFIX, node, object_graph, write_bundle
from tests.export.commands import Command
from tests.export.traced_models import TracedCheckpoint

TABLE = np.zeros((8, 3), np.float32)


def test_inspect_lists_every_variable_once_and_what_is_left_out(
    command: Command, tmp_path: Path
) -> None:
    graph = object_graph(
        node({"e": 1, "w": 6}),
        node({"_variables": 2}),
        node({"items[1]": 3}),
        node({"parameters": 4, "accumulators": 5}),
        *(node(key=name + SUFFIX) for name in ("e/t", "e/t.Sa", "w")),
    )
    variables: dict[str, Any] = {name + SUFFIX: TABLE for name in ("e/t", "e/t.Sa", "w")}
    write_bundle(tmp_path / "ckpt-7", variables | {GRAPH: graph})
    page = command("inspect", tmp_path, "--json").json
    keys = [
        each["key"]
        for part in (page["tables"].values(), page["slots"], page["dense"])
        for each in part
    ]
    assert sorted(keys) == sorted(variables)
    assert (
        page["tables"]["items[1]"] | {"slots": ["accumulators"], "bytes": 96}
        == page["tables"]["items[1]"]
    )
    assert (page["candidates"], page["slot_bytes"]) == (["w" + SUFFIX], 96)
    text = command("inspect", tmp_path).out
    for part in (
        "ckpt-7",
        "items[1]",
        "TPUEmbedding",
        "plain",
        "left out: 1 optimizer variable, which saves 96 B",
    ):
        assert part in text
    assert "might be tables (1); --table NAME=KEY names one" in text
    assert "w/.ATTR" in text


def test_inspect_tells_how_a_table_is_stored(command: Command, tmp_path: Path) -> None:
    write_bundle(
        tmp_path / "c",
        {"stack": np.zeros((4 * 40, 8), np.float32), "plain/embeddings": TABLE},
        boxes={"stack": [[(0, 80), (0, 8)], [(80, 80), (0, 8)]]},
        files=2,
    )
    items = {"key": "stack", "kind": "sparse_core", "rows": 100, "dim": 6, "cores": 4}
    layout = tmp_path / "layout.json"
    layout.write_text(json.dumps({"tables": {"items": items | {"offset": 8, "rotation": 2}}}))

    page = command("inspect", tmp_path / "c", "--layout", layout, "--json").json

    stacked = {"kind": "sparse_core", "cores": 4, "core_rows": 40, "offset": 8, "rotation": 2}
    items_page = page["tables"]["items"]
    assert items_page["layout"] == stacked
    assert (items_page["rows"], items_page["dim"], items_page["slices"]) == (100, 6, 2)
    assert items_page["note"] == STATED_NOTE
    plain = page["tables"]["plain"]
    assert (plain["layout"], plain["slots"]) == ({"kind": "plain"}, [])
    assert (plain["note"], plain["keys"]) == (None, None)
    told = " ".join(command("inspect", tmp_path / "c", "--layout", layout).out.split())
    assert "sparse core 4 x 40, offset 8, rotation 2" in told
    assert f"note: table items: {STATED_NOTE}" in told


def test_inspect_of_a_checkpoint_without_a_data_file_lists_its_tables_and_exits_3(
    command: Command, tmp_path: Path
) -> None:
    variables: dict[str, Any] = {
        "user/embeddings": TABLE,
        "item/embeddings": TABLE,
        "global_step": np.array(5),
    }
    write_bundle(tmp_path / "c", variables, files=3)
    whole = command("inspect", tmp_path / "c", "--json").json
    assert (whole["complete"], whole["problems"], whole["step"]) == (True, [], 5)
    (tmp_path / "c.data-00000-of-00003").unlink()
    done = command("inspect", tmp_path / "c", "--json")
    page = json.loads(done.out)
    assert (done.code, page["complete"], set(page["tables"])) == (3, False, {"user", "item"})
    assert "c.data-00000-of-00003 cannot be read: No such file" in done.message
    assert "incomplete: data file" in command("inspect", tmp_path / "c").out


def test_inspect_lists_tables_and_imports_no_tensorflow(movies: TracedCheckpoint) -> None:
    program = (
        "import sys, export.cli.main\n"
        f"sys.argv = ['rowcast-export', 'inspect', {str(movies.prefix)!r}, '--json']\n"
        "try: export.cli.main.main()\n"
        "finally: assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    page = json.loads(done.stdout)
    assert {name: (table["rows"], table["dim"]) for name, table in page["tables"].items()} == {
        "users": (50, 8),
        "movies": (40, 8),
        "hours": (24, 4),
        "genres/all": (9, 4),
    }
    assert done.stderr == ""
