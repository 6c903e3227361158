from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bundle.features.reader import Column
from bundle.format.manifest import TableSource
from export.checkpoint.reader import open_checkpoint
from export.errors import VerificationFailed
from export.front_end.interface import ReadRows
from export.recipe.schema import ExportJob
from export.tensorflow_models.model.weights import TrainedModel
from export.verify.examples import Examples
from export.verify.parity import check_towers, with_empty_bags
from export.verify.reference_inputs import Reference
from export.verify.reference_model import checkpoint_rows, finite_results, reference_results
from export.verify.synthetic_examples import make_examples
from tests.units.export.traced_models import (
    MODELS,
    TracedCheckpoint,
    one_table_recipe,
    save_and_trace,
)
from tests.units.export.verify.small_reference import reference_of as small_reference
from tests.units.export.written_towers import Written, write_towers


def reference_of(traced: TracedCheckpoint, examples: Examples | None = None) -> Reference:
    examples = examples or make_examples(traced.model.spec, traced.features, {}, 64)
    return Reference(
        traced.job,
        MODELS,
        traced.model.spec,
        traced.reference_model,
        rows_of(traced),
        examples,
        traced.reader,
    )


def rows_of(traced: TracedCheckpoint) -> ReadRows:
    checkpoint = open_checkpoint(traced.prefix)
    keys = TrainedModel(traced.model.root, checkpoint, "model").table_keys(traced.model.tables)
    return checkpoint_rows(
        checkpoint, {name: TableSource(layout="plain", key=key) for name, key in keys.items()}
    )


@pytest.fixture(scope="module")
def written(ads: TracedCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_towers(ads.model, ads.job, ads.prefix, tmp_path_factory.mktemp("written"))


def test_reference_equals_a_dense_computation_of_the_query_tower(movies: TracedCheckpoint) -> None:
    reference = reference_of(movies)
    checkpoint = open_checkpoint(movies.prefix)
    layer = "model/query_tower/layer_with_weights-{}/{}/.ATTRIBUTES/VARIABLE_VALUE"
    weights = [
        checkpoint.read_all(layer.format(number, name)).astype(np.float64)
        for number in range(2)
        for name in ("kernel", "bias")
    ]
    columns = reference.examples.columns
    vectors = reference_results(reference)["query"]["vector"]
    history = columns["history"]
    assert history.offsets is not None
    for example, (start, end) in enumerate(
        zip(history.offsets[:-1], history.offsets[1:], strict=True)
    ):
        rows = movies.tables["movies"][history.values[start:end]].astype(np.float64)
        parts = [
            movies.tables["users"][columns["user_id"].values[example]],
            rows.mean(axis=0) if len(rows) else np.zeros(8),
            movies.tables["hours"][columns["hour"].values[example]],
        ]
        hidden = np.maximum(np.concatenate(parts) @ weights[0] + weights[1], 0)
        np.testing.assert_allclose(
            vectors[example], hidden @ weights[2] + weights[3], rtol=1e-5, atol=1e-5
        )


def test_check_towers_with_weights_sequences_and_bags_pass_and_nan_fails(
    ads: TracedCheckpoint, written: Written
) -> None:
    reference = reference_of(ads)
    expected = reference_results(reference)
    verified = check_towers(reference, *written, expected)
    assert len(verified["ranking"].forms) == 2
    assert set(verified["ranking"].forms[1].max_abs_error) == {"click", "hidden"}
    expected["context"]["result"][3, 1] = np.nan
    with pytest.raises(VerificationFailed, match=r"tower 'context'.*example 3, element \[1\], is"):
        check_towers(reference, *written, expected)


def test_check_tower_unknown_ids_follow_their_rules(
    ads: TracedCheckpoint, written: Written
) -> None:
    columns = dict(make_examples(ads.model.spec, ads.features, {}, 4).columns)
    columns["ad"] = Column(np.array([3, 999, -1, 4]))
    columns["clicks"] = Column(
        np.array([1, 999, 2, -7]),
        np.array([0, 3, 4, 4, 4]),
        np.array([1.0, 5.0, 2.0, 1.0], np.float32),
    )
    columns["recent"] = Column(np.array([1, 500, 2, 9, 8]), np.array([0, 5, 5, 5, 5]))
    reference = reference_of(ads, Examples(4, columns))
    expected = reference_results(reference)
    assert len(check_towers(reference, *written, expected)["context"].forms) == 2


def test_reference_with_rows_other_than_tensorflows_is_rejected(
    movies: TracedCheckpoint,
) -> None:
    page = movies.job.model_dump()
    page["features"]["hour"] = {"ids": {"kind": "hash"}}  # while the bundle takes hours for rows
    with pytest.raises(
        VerificationFailed,
        match=r"feature 'hour': id \d+ is row \d+ in the bundle and row \d+ by the rec",
    ):
        reference_results(replace(reference_of(movies), job=ExportJob.model_validate(page)))


def test_check_towers_in_half_precision_suggests_the_remedy_and_applies_the_limit(
    tmp_path: Path,
) -> None:
    job = one_table_recipe("build_half")
    traced = save_and_trace(job, tmp_path)
    written = write_towers(traced.model, job, traced.prefix, tmp_path)
    expected = reference_results(reference_of(traced))
    nearly = {"tower": {"result": expected["tower"]["result"] + np.float32(0.01)}}
    with pytest.raises(
        VerificationFailed, match=r"bfloat16.*policy 'float32'.*towers.tower.max_abs_error.f32"
    ):
        check_towers(reference_of(traced), *written, nearly)
    page = job.model_dump()
    page["towers"]["tower"]["max_abs_error"] = {"f32": 0.1}
    limited = replace(reference_of(traced), job=ExportJob.model_validate(page))
    assert check_towers(limited, *written, nearly)["tower"].forms[0].max_abs_error["result"] > 1e-3
    with pytest.raises(VerificationFailed, match=r"max_abs_error.f32 = 0.1"):
        check_towers(limited, *written, {"tower": {"result": expected["tower"]["result"] + 1}})


@pytest.mark.parametrize(
    ("function", "cause", "made_by", "operation"),
    [
        ("build_coupled_to_earlier", "in another order", "self.couple(self.look", "Cumsum"),
        ("build_coupled_to_later", "in another order", "self.couple(self.look", "Cumsum"),
        ("build_coupled_to_all", "in another order", "tf.reduce_mean(vector)", "Mean"),
        ("build_coupled_by_product", "in another order", "transpose_b=True", "MatMul"),
    ],
)
def test_model_that_computes_an_example_otherwise_among_others_is_named_as_the_cause(
    function: str, cause: str, made_by: str, operation: str, tmp_path: Path
) -> None:
    traced = save_and_trace(one_table_recipe(function), tmp_path)
    written = write_towers(traced.model, traced.job, traced.prefix, tmp_path)
    reference = reference_of(traced)
    with pytest.raises(VerificationFailed, match="original model itself gives another") as problem:
        check_towers(reference, *written, reference_results(reference))
    code = (MODELS / "one_table.py").read_text()
    line = code[: code.index(made_by)].count("\n") + 1
    where = f"{cause} (the model's call, one_table.py:{line}, {operation}): "
    assert where in str(problem.value)


def test_model_whose_python_code_draws_numbers_is_named_as_the_cause(tmp_path: Path) -> None:
    traced = save_and_trace(one_table_recipe("build_random"), tmp_path)
    written = write_towers(traced.model, traced.job, traced.prefix, tmp_path)
    reference = reference_of(traced)
    message = r"called again \(the model's call\): something random is in its Python code"
    with pytest.raises(VerificationFailed, match=message):
        check_towers(reference, *written, reference_results(reference))


def test_reference_reads_the_unknown_row_of_the_recipe(movies: TracedCheckpoint) -> None:
    page = movies.job.model_dump()
    page["features"]["hour"] = {"unknown": {"rule": "row", "row": 5}}
    job = ExportJob.model_validate(page)
    known_examples = make_examples(movies.model.spec, movies.features, {}, 3)
    beyond = Examples(3, {**known_examples.columns, "hour": Column(np.array([24, 5, -1]))})
    fifth = Examples(3, {**known_examples.columns, "hour": Column(np.array([5, 5, 5]))})
    with_hours = Examples(3, {**known_examples.columns, "hour": Column(np.array([0, 1, 23]))})
    vectors = [
        reference_results(replace(reference_of(movies, examples), job=job))["query"]["vector"]
        for examples in (beyond, fifth, with_hours)
    ]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert (vectors[2] != vectors[1]).any(axis=1).all()


def test_reference_reads_zeros_for_ids_right_outside_the_table(tmp_path: Path) -> None:
    traced = save_and_trace(one_table_recipe("build_shifted"), tmp_path)
    (table,) = traced.tables.values()
    ids = np.array([-1, len(table) - 2, len(table) - 1, -2])  # each reads the next row
    reference = reference_of(traced, Examples(4, {"item": Column(ids)}))

    result = reference_results(reference)["tower"]["result"]

    checkpoint = open_checkpoint(traced.prefix)
    kernel, bias = (
        checkpoint.read_all(f"model/out/{name}/.ATTRIBUTES/VARIABLE_VALUE")
        for name in ("kernel", "bias")
    )
    rows = np.zeros((4, 4), np.float32)
    rows[:2] = table[[0, -1]]
    np.testing.assert_allclose(result, rows @ kernel + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "input_text"),
    [("build_root_of_positive", "made"), ("build_root_of_negative", "none")],
)
def test_finite_results_of_a_model_with_a_square_root_use_nonnegative_numbers_or_fail(
    function: str, input_text: str, tmp_path: Path
) -> None:
    job = one_table_recipe(function, age={"dtype": "float32"})
    traced = save_and_trace(job, tmp_path)
    reference = reference_of(traced)
    assert (reference.examples.columns["age"].values < 0).any()
    if input_text == "none":
        with pytest.raises(
            VerificationFailed,
            match=r"output 'result': example \d+ is nan of the original .*verify.examples",
        ):
            finite_results(reference)
        return
    called, expected = finite_results(reference)
    assert np.array_equal(
        called.examples.columns["age"].values, np.abs(reference.examples.columns["age"].values)
    )
    assert np.isfinite(expected["tower"]["result"]).all()


def test_cold_users_are_the_examples_with_empty_bags_of_their_tower(tmp_path: Path) -> None:
    bags = Column(np.array([1, 2, 4]), np.array([0, 1, 3]), np.array([1, 2, 3], np.float32))
    examples = {"user": Column(np.array([3, 1])), "seen": bags, "age": Column(np.ones(2))}
    reference = small_reference(tmp_path, examples, 2)
    assert with_empty_bags(reference, "first") is None
    cold = with_empty_bags(reference, "second")
    assert cold is not None
    columns = cold.examples.columns
    assert (columns["user"], columns["age"]) == (examples["user"], examples["age"])
    seen = columns["seen"]
    assert seen.offsets is not None
    assert seen.weights is not None
    assert (seen.values.size, seen.offsets.tolist(), seen.weights.size) == (0, [0, 0, 0], 0)
    assert cold.examples.n == 2

    plain = dict(examples, seen=Column(bags.values, bags.offsets))
    cold = with_empty_bags(replace(reference, examples=Examples(2, plain)), "second")
    assert cold is not None
    assert cold.examples.columns["seen"].weights is None
    left_out = {name: examples[name] for name in ("user", "age")}
    assert with_empty_bags(replace(reference, examples=Examples(2, left_out)), "second") is None
