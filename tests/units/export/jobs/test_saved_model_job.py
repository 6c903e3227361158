"""Jobs whose bundle is a self-contained SavedModel: what is published, planned and rejected.
tests/differential/test_tensorflow_serving.py compares the results of one with those of a service.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bundle.storage import catalog
from export.checkpoint.reader import open_checkpoint
from export.graphs.loading import load_tensorflow
from export.jobs import saved_model_job
from export.saved_model import proofs
from export.saved_model.files import VariablesPlan
from tests.units.export.commands import Command, rejected
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED
from tests.units.export.movies_job import (
    Recipe,
    changed,
    hidden,
    run_arguments,
    write_project,
)
from tests.units.export.traced_models import one_table_recipe, save_checkpoint

pytestmark = pytest.mark.slow

TABLE_BYTES = 40 * 256 * 4
"""Of the larger table of the small job; the other one is small enough for a weight."""


@pytest.fixture
def inline(small_recipe: Recipe) -> Recipe:
    """The small job, which publishes a self-contained SavedModel."""
    recipe = changed(small_recipe, "output.serving_default", "candidate")
    return changed(recipe, "output.tables", "inline")


def test_saved_model_is_found_by_tensorflow_serving_and_not_by_rowcast_serve(
    forked: ForkedRuns, inline: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path / "project", inline)
    root = project.parent / "bundles"
    output = tmp_path / "output"
    # The run resumes one that was killed, and left files of another graph.
    assert forked.run(run_arguments(project), output, noted=2) in KILLED
    assert hidden(root) == [".staging-1", ".staging-1.journal", ".staging-1.lock"]
    (root / "small/.staging-1/assets").mkdir(exist_ok=True)
    for file in ("assets/other.txt", "other.pb"):
        (root / "small/.staging-1" / file).write_text("other")
    assert forked.run([*run_arguments(project), "--json"], output) == 0, output.read_text()
    text = output.read_text()
    page = json.loads(text[text.index("{") :])

    directory = root / "small/1"
    assert page["saved_model"] == str(directory)
    assert {path.name for path in directory.glob("*.pb")} == {"fingerprint.pb", "saved_model.pb"}
    assert [path.name for path in (directory / "assets").iterdir()] == ["movie_ids.txt"]
    assert catalog.committed_versions(root, "small") == []
    assert catalog.next_version(root, "small") == 2
    assert hidden(root) == []
    report = json.loads((directory / "assets.extra" / "rowcast.json").read_text())
    assert report.items() <= page.items()
    assert len(report["verification"]["loaded_by"]) == 2
    assert report["data"] == "copied"
    signatures = report["signatures"]
    assert signatures["serving_default"] == signatures["candidate"]


def test_plan_lists_signatures_and_costs_and_writes_nothing(
    command: Command, small_recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, small_recipe)
    page = command("plan", project, "--tables", "inline", "--json").json
    assert set(page["tables"]) == {"movies"}
    inputs = {"movie_id": ["movie_id"], "year": ["year"]}
    assert page["signatures"]["candidate"]["inputs"] == inputs
    assert page["written_bytes"] == page["read_bytes"] == TABLE_BYTES
    assert page["peak_memory_bytes"] > 0
    assert any("corpora and indexes" in note for note in page["notes"])
    linked = command("plan", project, "--tables", "inline-link", "--json").json
    assert (linked["data"], linked["tasks"], linked["peak_memory_bytes"]) == ("linked", 0, 0)
    assert "to be written" in command("plan", project, "--tables", "inline").out
    assert not (tmp_path / "bundles").exists()


def test_inline_job_that_does_not_fit_is_rejected(
    command: Command, monkeypatch: pytest.MonkeyPatch, inline: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, inline)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=TABLE_BYTES - 1))
    rejected(command, project, 6, "40.0 KiB", 'output.tables = "inline-link"')


def test_model_too_large_to_compare_is_published_only_as_unproved(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    small_recipe: Recipe,
    inline: Recipe,
    tmp_path: Path,
) -> None:
    project = write_project(tmp_path / "project", inline)
    more_than_any_machine_has_free = 1 << 60
    with monkeypatch.context() as patch:
        patch.setattr(VariablesPlan, "load_bytes", more_than_any_machine_has_free)
        proof = command("run", project, "--json").json["verification"]
        # Rows are read from the written files.
        assert (proof["proved"], proof["loaded_by"]) == (True, [])
        assert "not loaded here" in proof["note"]
    shutil.rmtree(project.parent / "bundles")
    monkeypatch.setattr(proofs, "RESERVE_BYTES", more_than_any_machine_has_free)
    rejected(command, project, 5, "cannot be compared with the original model", "--unproved")
    proof = command("run", project, "--unproved", "--json").json["verification"]
    assert (proof["proved"], proof["examples"]) == (False, 0)
    bundle = write_project(tmp_path / "bundle", small_recipe)
    done = command("run", bundle, "--unproved")
    assert (done.code, "--unproved" in done.message) == (2, True)


def test_large_keras_embedding_is_linked_too(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = one_table_recipe("build_large_keras_table")
    prefix = save_checkpoint(job, tmp_path)
    checkpoint = open_checkpoint(prefix)
    table, kernel, bias = (
        checkpoint.read_all(next(key for key in checkpoint.entries if name in key))
        for name in ("embed", "kernel", "bias")
    )
    monkeypatch.setattr(saved_model_job, "SMALL_BYTES_MAX", kernel.nbytes)  # what is not yet large
    recipe = job.model_dump(mode="json", exclude_unset=True)
    recipe = changed(recipe, "checkpoint.path", str(prefix))
    project = write_project(tmp_path / "project", changed(recipe, "output.tables", "inline-link"))
    page = command("run", project, "--json").json
    assert page["table_bytes"] == 20_000 * 4 * 4
    tf = load_tensorflow()
    items = [0, 7, 19_999]
    loaded = tf.saved_model.load(page["saved_model"])
    results = loaded.signatures["tower"](item=tf.constant(items, tf.int64))
    expected = table[items] @ kernel + bias
    np.testing.assert_allclose(results["result"].numpy(), expected, 1e-5, 1e-5)
