"""Tables of feature specifications in a checkpoint: found by a layout, never by a guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.storage.catalog import read_manifest
from bundle.tables.reader import TableReader
from export.errors import ExportError
from export.jobs import bundle_job
from export.jobs.progress import Progress
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.export.checkpoint.orbax_trees import write_item
from tests.models import sparsecore_ranker as ranker

pytest.importorskip("jax")

MORE = """

def changed(**settings):
    specs = feature_specs()
    users = specs["user"]["table_spec"]
    setting = {**users["setting_in_stack"], **settings}
    specs["user"]["table_spec"] = {**users, "setting_in_stack": setting}
    return shapes(), {"score": score}, specs


def build_turned():
    return changed(shard_rotation=3)


def build_in_another_stack():
    return changed(stack_name="elsewhere")


def build_for_more_cores():
    return changed(row_offset_in_shard=2)


def build_larger():
    specs = feature_specs()
    specs["genres"]["table_spec"] = {**specs["genres"]["table_spec"], "vocabulary_size": 25}
    return shapes(), {"score": score}, specs


def build_alone():
    only = {"tags": feature_specs()["tags"]}
    narrow = {"w": jax.ShapeDtypeStruct((2, 2), jnp.float32)}
    return narrow, {"score": lambda p, x: {"score": (x["tags"] @ p["w"])[:, 0]}}, only
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("specified")
    ranker.write(made, prepared=True, more=MORE)
    return made


def job_of(factory: str = "build", **changes: Any) -> ExportJob:
    page = ranker.recipe(code={"factory": f"model.py:{factory}"}, **changes)
    return ExportJob.model_validate(page)


def refused(folder: Path, job: ExportJob) -> str:
    with pytest.raises(ExportError) as caught:
        bundle_job.prepare(job, folder, ExportSettings())
    return str(caught.value)


def without_layout(factory: str = "build", **changes: Any) -> ExportJob:
    return job_of(factory, checkpoint={"path": "checkpoint"}, **changes)


def test_prepared_specifications_place_tables_but_are_no_record(folder: Path) -> None:
    prepared = bundle_job.prepare(without_layout(), folder, ExportSettings())
    with pytest.raises(ExportError, match="the layouts of the rows are stated"):
        bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))


def test_accepted_specifications_give_the_rows_of_the_stacks(folder: Path) -> None:
    job = without_layout(model="accepted", verify={"stated_layouts": "accept"})
    prepared = bundle_job.prepare(job, folder, ExportSettings())
    bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    directory = folder / "bundles" / "accepted" / "1"
    published = read_manifest(directory).tables
    for name, rows in ranker.tables().items():
        found = TableReader(directory, published[name]).gather(np.arange(len(rows)))
        np.testing.assert_array_equal(found, rows, name)


def test_layout_that_the_checkpoint_records_is_enough(tmp_path: Path) -> None:
    ranker.write(tmp_path, prepared=True)
    recorded = tmp_path / "checkpoint" / "embedding_spec" / "proto.pbtxt"
    recorded.parent.mkdir()
    recorded.write_text(ranker.layout())
    prepared = bundle_job.prepare(without_layout(), tmp_path, ExportSettings())
    assert {table.origin for table in prepared.inventory.tables} == {"embedding spec"}
    assert not any(table.stated for table in prepared.inventory.tables)


def test_layout_that_contradicts_prepared_specifications_is_refused(folder: Path) -> None:
    message = refused(folder, job_of("build_turned"))
    assert "table 'users'" in message
    assert "(256, 16, 3) by feature_specs, and (256, 16, 4) by the layout of" in message
    assert "prepare feature_specs for the devices of training" in message


def test_stack_that_the_checkpoint_lacks_is_refused(folder: Path) -> None:
    message = refused(folder, without_layout("build_in_another_stack"))
    assert "table 'users' in stack 'elsewhere', which is not in checkpoint" in message
    assert "'movies_users'" in message


def test_stack_for_other_devices_is_refused(folder: Path) -> None:
    message = refused(folder, without_layout("build_for_more_cores"))
    assert "pad table 'users' to 128 rows, no multiple of 8 on each of 64 SparseCores" in message


def test_stacks_of_one_table_do_not_tell_the_cores(folder: Path) -> None:
    inputs = {name: ranker.recipe()["inputs"][name] for name in ("tags", "tag_weights")}
    features = {"tags": {"role": "candidate"}}
    message = refused(folder, without_layout("build_alone", inputs=inputs, features=features))
    assert "table 'tags' in stack 'tags', and none of their stacks has two tables" in message
    assert "create_proto_from_feature_specs" in message


def test_stack_without_any_layout_is_refused(tmp_path: Path) -> None:
    ranker.write(tmp_path)
    message = refused(tmp_path, without_layout())
    assert "table 'users' of feature_specs is in one of the stacks" in message
    assert "embedding.movies_users.table" in message
    assert "name the file as checkpoint.layout" in message


def test_stack_in_chunks_of_more_devices_than_cores_is_refused(tmp_path: Path) -> None:
    ranker.write(tmp_path, prepared=True, chunk_rows=16)
    message = refused(tmp_path, without_layout())
    assert "spread over 8 SparseCores by feature_specs, and stored in 16 chunks" in message


def test_table_of_another_size_is_refused(folder: Path) -> None:
    message = refused(folder, job_of("build_larger"))
    assert "table 'genres' is [25, 3] in the model and [24, 3] in checkpoint" in message


def test_table_that_is_no_stack_is_found_by_its_stated_key(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ranker.model_file())
    leaves = {f"params.{name}": values for name, values in ranker.parameters().items()}
    leaves |= {f"{name}_rows": values for name, values in ranker.tables().items()}
    write_item(tmp_path / "checkpoint", leaves)
    assert "name its array as tables.users.key" in refused(tmp_path, without_layout())

    keys = {name: {"key": f"{name}_rows"} for name in ranker.TABLES}
    prepared = bundle_job.prepare(without_layout(tables=keys), tmp_path, ExportSettings())
    assert {table.key for table in prepared.inventory.tables} == {f"{name}_rows" for name in keys}
