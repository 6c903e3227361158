"""The memory that a self-contained SavedModel of a terabyte takes to write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats.tensorbundle import data_file, write_index
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import Entry, Slice
from tests.units.export.movies_job import changed, write_project
from tests.units.export.traced_models import MODELS, one_table_recipe, save_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

HOLDS = """
import sys
from export.graphs.loading import load_tensorflow
load_tensorflow()
import tensorflow_recommenders
from export.jobs import saved_model_job
from export.cli.main import main
def peak():
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
try:
    main()
finally:
    sys.stderr.write(f"\\n{peak() - before}")
"""
"""The command line, then how many KiB it held beyond TensorFlow."""


def test_terabyte_is_linked_in_the_memory_that_tensorflow_takes_anyway(tmp_path: Path) -> None:
    rows = 1 << 36
    row_bytes = 16
    small = save_checkpoint(one_table_recipe("build_plain"), tmp_path)
    entries = dict(open_checkpoint(small).entries)
    prefix = tmp_path / "huge"
    key = "model/embedding/_tpu_embedding/items/.ATTRIBUTES/VARIABLE_VALUE"
    moved = {str(data_file(small, 0, 1)): str(data_file(prefix, 0, 2))}
    data_file(prefix, 0, 2).write_bytes(data_file(small, 0, 1).read_bytes())
    for name, entry in entries.items():
        slices = tuple(part._replace(file=moved[part.file]) for part in entry.slices)
        entries[name] = entry._replace(slices=slices)
    whole = Slice(str(data_file(prefix, 1, 2)), 8, rows * row_bytes, 0, (0, 0), (rows, 4))
    entries[key] = Entry(key, "float32", (rows, 4), (whole,))
    picked = [0, 12345678901, rows - 1]
    with data_file(prefix, 1, 2).open("wb") as file:  # sparse: a hole but for three rows
        for row in picked:
            file.seek(8 + row * row_bytes)
            file.write(np.full(4, row % 97, np.float32).tobytes())
    write_index(prefix, entries, 2)
    recipe = one_table_recipe("build_terabyte").model_dump(mode="json", exclude_unset=True)
    recipe = changed(
        changed(recipe, "checkpoint.path", str(prefix)), "output.tables", "inline-link"
    )
    project = write_project(
        tmp_path / "project", changed(recipe, "verify.examples", "examples.jsonl")
    )
    (project.parent / "examples.jsonl").write_text(
        "".join(f'{{"item": {row}}}\n' for row in picked)
    )
    command = [sys.executable, "-c", HOLDS, "run", str(project), "--json"]
    done = subprocess.run(
        command, cwd=MODELS.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["table_bytes"] == 1 << 40
    assert page["verification"]["loaded_by"] == []
    assert "not loaded here: that needs 11" in page["verification"]["note"]
    assert page["verification"]["max_abs_error"] == {"tower": {"result": 0.0}}
    variables = Path(page["saved_model"]) / "variables" / "variables"
    assert data_file(variables, 0, 2).samefile(data_file(prefix, 1, 2))
    assert int(done.stderr.splitlines()[-1]) < 150 << 10
