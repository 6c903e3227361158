from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.movies_job import Recipe, write_project

PROGRAM = Path(sys.executable).with_name("rowcast-export")


@pytest.mark.slow
def test_run_as_a_program_prints_json_alone_and_no_native_chatter(
    recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, recipe)
    model = project.parent / "two_towers.py"
    model.write_text(model.read_text() + '\nprint("model code says")\n')
    done = subprocess.run(
        [PROGRAM, "run", project, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["bundle"] == str(tmp_path / "bundles/movies/1")
    assert page["recall"]["movies"]["value"] == 1.0
    assert page["recall_of_cold_users"]["movies"]["value"] == 1.0
    assert page["max_abs_error"]["ranking"]["litert f32"]["score"] < 1e-4
    assert [note for note in page["notes"] if "recall on invented queries" not in note] == []
    lines = done.stderr.splitlines()
    steps = [line for line in lines if re.search(r"^  \w.* [0-9.]+ s( |$)", line)]
    assert {line for line in lines if line not in steps} == {"model code says"}
    assert [line.split("  ")[1] for line in steps] == list(page["seconds"])


def test_run_prints_what_was_verified(undisturbed: Path) -> None:
    output = (undisturbed.parents[2] / "output").read_text()
    for shown in (
        "50 of 50 rows equal",
        "original model, 24",
        "largest difference",
        "recall@10 1.0000",
        "queries with empty bags",
        "published",
    ):
        assert shown in " ".join(output.replace("│", " ").split()), shown
