"""A job whose model computes all towers in one call, and whose checkpoint is in a store.

The reference model runs the whole call for one tower too, so it needs the tables of the others.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bundle.storage import catalog
from object_store.remote_path import RemotePath
from tests.units.export.commands import Command
from tests.units.export.movies_job import toml
from tests.units.export.traced_models import IDS, MODELS, recipe, save_checkpoint
from tests.units.object_store.memory_stores import uploaded

ROWS = 300
"""Of every table except that of the hours."""
INPUTS = {"user": IDS, "item": IDS, "hour": IDS}
TOWERS = {
    "query": {"role": "query", "outputs": {"vector": "query"}},
    "candidate": {"role": "candidate", "outputs": {"vector": "candidate"}},
    "ranking": {"role": "ranking", "outputs": {"score": "score"}},
}


def write_project(directory: Path, checkpoint: object) -> Path:
    directory.mkdir()
    shutil.copy(MODELS / "shared_call.py", directory)
    corpus = ["id,title", *(f"{row},item {row}" for row in range(40))]
    (directory / "items.csv").write_text("\n".join(corpus) + "\n")
    page: dict[str, Any] = {
        "model": "shared",
        "checkpoint": {"path": str(checkpoint), "object_path": "model"},
        # No table may be restored whole, except the one of 24 rows inside a tower.
        "code": {
            "factory": "shared_call.py:build",
            "table_threshold": 100,
            "inline_bytes_max": 384,
        },
        "output": {"root": "bundles"},
        "inputs": INPUTS,
        "towers": TOWERS,
        "corpora": {"items": {"file": "items.csv", "id": "id", "features": {"item": "id"}}},
        "indexes": {
            "items": {"corpus": "items", "query_tower": "query", "candidate_tower": "candidate"}
        },
        "verify": {"count": 16},
    }
    path = directory / "recipe.toml"
    path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in page.items()))
    return path


def test_one_call_for_all_towers_is_compared_over_the_tables_of_a_store(
    tmp_path: Path, command: Command
) -> None:
    job = recipe("shared_call.py:build_called", INPUTS, TOWERS)
    checkpoint = save_checkpoint(job, tmp_path / "shared").parent
    source = uploaded(checkpoint, RemotePath(f"counted://{tmp_path.name}/training"))
    project = write_project(tmp_path / "project", source)
    published = Path(command("run", project, "--json").json["bundle"])
    tables = catalog.read_manifest(published).tables
    rows = {name: table.rows for name, table in tables.items()}
    assert rows == dict.fromkeys(("users", "items", "biases"), ROWS)
