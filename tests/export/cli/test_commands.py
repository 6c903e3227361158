from __future__ import annotations

from pathlib import Path

from tests.export.commands import Command
from tests.export.traced_models import TracedCheckpoint

NAMED = "genres=model/embedding/_tpu_embedding/genres.Sall"


def test_verify_of_a_bundle_with_its_checkpoint_passes(
    command: Command, undisturbed: Path, movies: TracedCheckpoint
) -> None:
    page = command("verify", undisturbed, "--checkpoint", movies.prefix, "--full", "--json").json
    assert {"corpus movies, filter genres", "corpus movies, filter year"} <= set(page["opened"])
    assert page["tables"]["users"] == {"rows_compared": 50, "rows": 50}
    assert "tower ranking, litert int8" in page["opened"]
    assert "index movies" in page["opened"]
    shown = command("verify", undisturbed, "--checkpoint", movies.prefix).out
    assert "rows of table users" in shown
    assert "is whole" in shown


def test_tables_needs_no_model_code_and_verifies(
    command: Command, movies: TracedCheckpoint, tmp_path: Path
) -> None:
    page = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").json
    assert page["bundle"] == str(tmp_path / "tables/1")
    assert set(page["verification"]["tables"]) == {"users", "movies", "hours", "genres"}
    raw = (tmp_path / "tables/1/tables/genres/rows-00000-of-00001.bin").read_bytes()
    assert raw == movies.tables["genres_all"].tobytes()
    assert command("verify", page["bundle"], "--checkpoint", movies.prefix).code == 0
    again = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--version", 1)
    assert again.code == 6
    assert "is there already" in again.message
    assert (
        command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").json["version"] == 2
    )
