"""Id rules, columns and combined lookups inside a self-contained SavedModel, which its proof holds to the original."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from export.errors import NotConvertible
from export.frameworks.loading import load_tensorflow
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.export.cutting import HERE as TOWERS
from tests.export.cutting import one_recipe, save_checkpoint
from tests.export.id_rules.test_recognition import RULES, dtype_of
from tests.export.id_rules.test_several import FOUND, JOINED, SENT, one_example, told
from tests.export.lookups.gathering import HERE, Beside, recipe, train
from tests.export.lookups.test_embedding_layers import MID_LEVEL, mid_level_inputs

LOADERS = ["tf.saved_model.load", "tf.compat.v1.saved_model.load"]
RAGGED = {"dtype": "int64", "kind": "ragged"}


def report_of(
    job: ExportJob,
    given: Mapping[str, Any],
    folder: Path,
    examples: list[dict[str, Any]] | None = None,
    beside: Beside = lambda _: {},
) -> dict[str, Any]:
    """Trains, exports and proves: two loaders are asked examples, and compared with the original model."""
    prefix = train(job, given, folder, beside)
    told: dict[str, Any] = {
        "checkpoint": job.checkpoint.model_copy(update={"path": str(prefix)}),
        "output": job.output.model_copy(update={"root": str(folder / "out"), "tables": "inline"}),
    }
    if examples is not None:
        (folder / "examples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in examples))
        told["verify"] = job.verify.model_copy(update={"examples": str(folder / "examples.jsonl")})
    prepared = prepare_inline(job.model_copy(update=told), HERE, ExportSettings())
    report = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True))).report
    assert report["verification"]["loaded_by"] == LOADERS
    return report


def test_every_rule_that_becomes_data_is_done_by_tensorflow_inside(tmp_path: Path) -> None:
    tf = load_tensorflow()
    inputs = {name: {"dtype": dtype_of(values)} for name, (values, *_) in RULES.items()}
    given = {name: tf.constant(values[:1], dtype_of(values)) for name, (values, *_) in RULES.items()}
    examples = [{name: values.tolist()[place] for name, (values, *_) in RULES.items()} for place in range(7)]
    report = report_of(recipe("build_rules", inputs), given, tmp_path, examples)
    assert (set(report["tables"]), report["verification"]["examples"]) == ({"table"}, 7)


@pytest.mark.parametrize(("function", "found"), [("build", FOUND), ("build_3", FOUND), ("build_joins", JOINED)])
def test_crosses_of_one_value_of_each_input_are_made_inside(
    function: str, found: Mapping[str, Any], tmp_path: Path
) -> None:
    examples = [{name: values.tolist()[place] for name, values in SENT.items()} for place in range(7)]
    report = report_of(told(function), one_example(), tmp_path, examples)
    assert report["verification"]["examples"] == 7
    assert set(report["tables"]) == {f"tables.{name}" for name in found}


def test_ids_that_no_rule_tells_stay_with_their_table(tmp_path: Path) -> None:
    tf = load_tensorflow()
    job = recipe("build_squared", {"squared": {"dtype": "int64"}})
    assert report_of(job, {"squared": tf.constant([1], tf.int64)}, tmp_path)["tables"] == {}


def test_ragged_ids_of_plain_tables_become_bags_and_sequences(tmp_path: Path) -> None:
    tf = load_tensorflow()
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    report = report_of(recipe("build_ragged", {"bag": RAGGED, "recent": RAGGED}), {"bag": bag, "recent": bag}, tmp_path)
    assert report["signatures"]["tower"]["inputs"] == {"bag": ("bag", "bag_1"), "recent": ("recent", "recent_1")}


def test_hashed_strings_of_a_ragged_input_are_counted_too(tmp_path: Path) -> None:
    tf = load_tensorflow()
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    hashed = {"bag": {"ids": {"kind": "hash", "dtype": "string"}}}
    job = recipe("build_ragged", {"bag": RAGGED, "recent": RAGGED}, features=hashed)
    report_of(job, {"bag": bag, "recent": bag}, tmp_path)


def test_distributed_embedding_of_keras_rs_is_looked_up_inside(tmp_path: Path) -> None:
    tf = load_tensorflow()
    bag = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    given = {"item": tf.constant([[1], [2]], tf.int64), "recent": tf.ones([2, 3], tf.int64), "tags": bag}
    inputs = {
        "item": {"dtype": "int64", "shape": [1]},
        "recent": {"dtype": "int64", "shape": [3]},
        "tags": RAGGED,
        "words": {"dtype": "int64", "kind": "sparse"},
    }
    keys = {f"embedding.{name}": {"key": f"{name}/.ATTRIBUTES/VARIABLE_VALUE"} for name in ("items", "tags")}
    job = recipe("build_keras_rs", inputs, tables=keys)

    def tables(model: Any) -> dict[str, Any]:
        return {layer.name: layer.embeddings.value for layer in model.embedding._layers}

    report = report_of(job, {**given, "words": bag.to_sparse()}, tmp_path, beside=tables)
    assert set(report["tables"]) == {"embedding.items", "embedding.tags"}


@pytest.mark.parametrize("call", ["placed", "twice"])
def test_inputs_with_several_places_or_readers_are_read_as_they_are(call: str, tmp_path: Path) -> None:
    inputs: dict[str, Any] = dict(MID_LEVEL)
    if call == "placed":
        inputs["item"] = {"dtype": "int64", "shape": [2]}
    job = recipe("build_serving", inputs, towers={"tower": {"role": "query", "call": call}})
    report = report_of(job, mid_level_inputs(), tmp_path)
    assert set(report["tables"]) == {"items"}
    assert ("recent" in report["signatures"]["tower"]["inputs"]) == (call == "placed")


def test_input_that_would_be_sent_in_two_dtypes_is_refused(tmp_path: Path) -> None:
    page = one_recipe("build_reads_the_ids").model_dump(mode="json", exclude_unset=True)
    page["features"] = {"item": {"ids": {"kind": "hash", "dtype": "string"}}}
    page["output"] = {"root": str(tmp_path), "tables": "inline"}
    prefix, _ = save_checkpoint(one_recipe("build_reads_the_ids"), tmp_path)
    page["checkpoint"]["path"] = str(prefix)
    with pytest.raises(NotConvertible, match="input 'item' would be sent as int64 and as string"):
        prepare_inline(ExportJob.model_validate(page), TOWERS, ExportSettings())
