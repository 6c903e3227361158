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
from tests.models import sparsecore_ranker as ranker
from tests.units.export.checkpoint.orbax_trees import write_item

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
    root = tmp_path_factory.mktemp("specified")
    ranker.write(root, prepared=True, more=MORE)
    return root


def job_of(factory: str = "build", **changes: Any) -> ExportJob:
    page = ranker.recipe(code={"factory": f"model.py:{factory}"}, **changes)
    return ExportJob.model_validate(page)


def rejected(folder: Path, job: ExportJob) -> str:
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
        actual = TableReader(directory, published[name]).gather(np.arange(len(rows)))
        np.testing.assert_array_equal(actual, rows, name)


def test_layout_that_the_checkpoint_records_is_enough(tmp_path: Path) -> None:
    ranker.write(tmp_path, prepared=True)
    recorded = tmp_path / "checkpoint" / "embedding_spec" / "proto.pbtxt"
    recorded.parent.mkdir()
    recorded.write_text(ranker.layout())
    prepared = bundle_job.prepare(without_layout(), tmp_path, ExportSettings())
    assert {table.origin for table in prepared.inventory.tables} == {"embedding spec"}
    assert not any(table.stated for table in prepared.inventory.tables)


def test_layout_of_another_combiner_is_rejected(tmp_path: Path) -> None:
    ranker.write(tmp_path)
    layout = tmp_path / "layout.textproto"
    table = 'table_name: "tags"'
    before, after = layout.read_text().split(table)
    assert 'combiner: "sum"' in after
    layout.write_text(before + table + after.replace('combiner: "sum"', 'combiner: "mean"', 1))
    assert rejected(tmp_path, job_of()) == (
        "feature 'tags' combines rows of table 'tags' by 'sum', and the checkpoint records that "
        "training combined them by 'mean': write 'mean' in the model"
    )


def test_layout_that_contradicts_prepared_specifications_is_rejected(folder: Path) -> None:
    message = rejected(folder, job_of("build_turned"))
    assert "table 'users'" in message
    assert "(256, 16, 3) by feature_specs, and (256, 16, 4) by the layout of" in message
    assert "prepare feature_specs for the devices of training" in message


def test_stack_that_the_checkpoint_lacks_is_rejected(folder: Path) -> None:
    message = rejected(folder, without_layout("build_in_another_stack"))
    assert "table 'users' in stack 'elsewhere', which is not in checkpoint" in message
    assert "'movies_users'" in message


def test_stack_for_other_devices_is_rejected(folder: Path) -> None:
    message = rejected(folder, without_layout("build_for_more_cores"))
    assert "pad table 'users' to 128 rows, no multiple of 8 on each of 64 SparseCores" in message


def test_stacks_of_one_table_do_not_tell_the_cores(folder: Path) -> None:
    inputs = {name: ranker.recipe()["inputs"][name] for name in ("tags", "tag_weights")}
    features = {"tags": {"role": "candidate"}}
    message = rejected(folder, without_layout("build_alone", inputs=inputs, features=features))
    assert "table 'tags' in stack 'tags', and none of their stacks has two tables" in message
    assert "create_proto_from_feature_specs" in message


def trained_rows() -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    random = np.random.default_rng(2)
    return {
        name: np.flatnonzero(random.random(table.rows) < 0.5)
        for name, table in ranker.TABLES.items()
    }


def write_ids(folder: Path) -> dict[str, str]:
    """Writes the ids that occur in training; returns their files by feature or table."""
    trained = trained_rows()
    files = {}
    for name in ("user", "movie", "genres", "tags"):
        table = ranker.FEATURES[name]
        (folder / f"{table}.txt").write_text("\n".join(map(str, trained[table])))
        files["users" if name == "user" else name] = f"{table}.txt"
    return files


@pytest.mark.parametrize("prepared", [False, True])
def test_layouts_are_derived_from_ids_that_occur_in_training(
    prepared: bool, tmp_path: Path
) -> None:
    ranker.write(tmp_path, prepared, trained=trained_rows())
    checkpoint = {"path": "checkpoint", "layout": "derive"}
    job = job_of(checkpoint=checkpoint, verify={"trained_ids": write_ids(tmp_path)})

    prepared_job = bundle_job.prepare(job, tmp_path, ExportSettings())
    planned = prepared_job.plan.to_json()["tables"]["users"]
    assert "its layout (8 cores, offset 16, rotation 4) is derived: " in planned["note"]
    ids = planned["trained_ids"]["ids"]
    assert planned["trained_ids"]["agree"] == ids
    bundle_job.run(prepared_job, ExportSettings(), Progress(Console(quiet=True)))

    directory = tmp_path / "bundles" / "ranker" / "1"
    published = read_manifest(directory)
    for name, rows in ranker.tables().items():
        actual = TableReader(directory, published.tables[name]).gather(np.arange(len(rows)))
        np.testing.assert_array_equal(actual, rows, name)
        check = published.verification.tables[name]
        assert (check.stated_layout, published.tables[name].source.stated) == ("derived", False)
        assert check.trained_ids is not None
        assert check.trained_ids.agree == check.trained_ids.ids


def test_prepared_specifications_are_proved_by_ids_that_occur_in_training(tmp_path: Path) -> None:
    ranker.write(tmp_path, prepared=True, trained=trained_rows())
    job = without_layout(verify={"trained_ids": write_ids(tmp_path)})
    prepared = bundle_job.prepare(job, tmp_path, ExportSettings())
    published = bundle_job.run(prepared, ExportSettings(), Progress(Console(quiet=True)))
    checks = published.manifest.verification.tables.values()
    assert {check.stated_layout for check in checks} == {"trained_ids"}


def test_specifications_that_ids_of_training_contradict_are_rejected_whatever_the_consent(
    tmp_path: Path,
) -> None:
    ranker.write(tmp_path, prepared=True, more=MORE, trained=trained_rows())
    verify = {"trained_ids": write_ids(tmp_path), "stated_layouts": "accept"}
    message = rejected(tmp_path, without_layout("build_turned", verify=verify))
    assert "table 'users': its layout (8 cores, offset 16, rotation 3) contradicts" in message
    assert "by another layout (8 cores, offset 16, rotation 4)" in message


def test_layout_without_ids_that_occur_in_training_is_not_derived(tmp_path: Path) -> None:
    ranker.write(tmp_path, trained=trained_rows())
    message = rejected(tmp_path, job_of(checkpoint={"path": "checkpoint", "layout": "derive"}))
    assert "cannot be proved without ids that occur in training; give them" in message


def test_stack_without_any_layout_is_rejected(tmp_path: Path) -> None:
    ranker.write(tmp_path)
    message = rejected(tmp_path, without_layout())
    assert "table 'users' of feature_specs is in one of the stacks" in message
    assert "embedding.movies_users.table" in message
    assert "name the file as checkpoint.layout" in message


def test_stack_in_chunks_of_more_devices_than_cores_is_rejected(tmp_path: Path) -> None:
    ranker.write(tmp_path, prepared=True, chunk_rows=16)
    message = rejected(tmp_path, without_layout())
    assert "spread over 8 SparseCores by feature_specs, and stored in 16 chunks" in message


def test_table_of_another_size_is_rejected(folder: Path) -> None:
    message = rejected(folder, job_of("build_larger"))
    assert "table 'genres' is [25, 3] in the model and [24, 3] in checkpoint" in message


def test_table_that_is_no_stack_is_found_by_its_stated_key(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ranker.model_file())
    leaves = {f"params.{name}": values for name, values in ranker.parameters().items()}
    leaves |= {f"{name}_rows": values for name, values in ranker.tables().items()}
    write_item(tmp_path / "checkpoint", leaves)
    assert "name its array as tables.users.key" in rejected(tmp_path, without_layout())

    keys = {name: {"key": f"{name}_rows"} for name in ranker.TABLES}
    prepared = bundle_job.prepare(without_layout(tables=keys), tmp_path, ExportSettings())
    assert {table.key for table in prepared.inventory.tables} == {f"{name}_rows" for name in keys}
