from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.features.reader import Column, open_features
from bundle.format import paths
from bundle.format.manifest import TableSource
from bundle.storage import staging
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible, VerificationFailed
from export.graph.specs import WrittenForm
from export.model.weights import find_table_keys
from export.recipe.schema import ExportJob, read_recipe
from export.towers.compiled import compile_tower
from export.towers.savedmodels import write_saved_model
from export.verify.examples import Examples, make_examples
from export.verify.parity import compare_forms, compare_page
from export.verify.reference_model import ReadRows, Replay, Results, checkpoint_rows, replay_finite, replay_original
from tests.export.cutting import HERE, IDS, RAGGED, Cut, cut, recipe
from tests.export.exporting import MOVIE_IDS, recipe_of, write_project


def replay_of(made: Cut, examples: Examples | None = None) -> Replay:
    examples = examples or make_examples(made.model.spec, made.pages, {}, 64)
    return Replay(made.job, HERE, made.model.spec, made.prefix, examples, made.reader)


def rows_of(made: Cut) -> ReadRows:
    checkpoint = open_checkpoint(made.prefix)
    keys = find_table_keys(made.model, checkpoint, "model")
    return checkpoint_rows(checkpoint, {name: TableSource(layout="plain", key=key) for name, key in keys.items()})


def write_forms(made: Cut, root: Path) -> list[WrittenForm]:
    forms = []
    for tower in made.model.towers:
        name = tower.spec.name
        saved = root / paths.saved_model(name)
        write_saved_model(tower, made.model.root, open_checkpoint(made.prefix), "model", saved)
        forms.append(WrittenForm(name, "saved_model", "f32", paths.saved_model(name)))
        for precision in made.job.towers[name].precisions:
            path = paths.compiled_tower(name, precision)
            assert compile_tower(saved, precision, root / path) == ""
            forms.append(WrittenForm(name, "litert", precision, path))
    return forms


@pytest.fixture(scope="module")
def movie_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("movie_forms")


@pytest.fixture(scope="module")
def movie_forms(movies: Cut, movie_root: Path) -> list[WrittenForm]:
    return write_forms(movies, movie_root)


@pytest.fixture(scope="module")
def ad_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ad_forms")


@pytest.fixture(scope="module")
def ad_forms(ads: Cut, ad_root: Path) -> list[WrittenForm]:
    return write_forms(ads, ad_root)


@pytest.fixture(scope="module")
def movie_results(movies: Cut) -> Results:
    return replay_original(replay_of(movies), rows_of(movies))


@pytest.mark.usefixtures("movie_forms")  # which restored the weights
def test_replay_original_equals_a_dense_computation_of_the_query_tower(movies: Cut, movie_results: Results) -> None:
    examples = replay_of(movies).examples
    weights = [variable.numpy().astype(np.float64) for variable in movies.model.towers[0].variables]
    history = examples.columns["history"]
    assert history.offsets is not None
    for example, (start, end) in enumerate(zip(history.offsets[:-1], history.offsets[1:], strict=True)):
        rows = movies.tables["movies"][history.values[start:end]].astype(np.float64)
        parts = [
            movies.tables["users"][examples.columns["user_id"].values[example]],
            rows.mean(axis=0) if len(rows) else np.zeros(8),
            movies.tables["hours"][examples.columns["hour"].values[example]],
        ]
        hidden = np.maximum(np.concatenate(parts) @ weights[0] + weights[1], 0)
        np.testing.assert_allclose(
            movie_results["query"]["vector"][example], hidden @ weights[2] + weights[3], rtol=1e-5, atol=1e-5
        )


def test_compare_forms_movies_every_form_agrees(
    movies: Cut, movie_root: Path, movie_forms: list[WrittenForm], movie_results: Results
) -> None:
    verified = compare_forms(replay_of(movies), movie_root, movie_forms, movie_results)
    assert {name: [(form.kind, form.precision) for form in forms] for name, forms in verified.items()} == {
        "query": [("saved_model", "f32"), ("litert", "f32")],
        "candidate": [("saved_model", "f32"), ("litert", "f32")],
        "ranking": [("saved_model", "f32"), ("litert", "f32"), ("litert", "int8")],
    }
    errors = {(name, form.precision): form.max_abs_error for name, forms in verified.items() for form in forms}
    assert errors["query", "f32"]["vector"] < 1e-4
    assert 1e-4 < errors["ranking", "int8"]["score"] < 1


def test_compare_forms_ads_weights_sequences_and_sparse_bags_agree(
    ads: Cut, ad_root: Path, ad_forms: list[WrittenForm]
) -> None:
    replay = replay_of(ads)
    verified = compare_forms(replay, ad_root, ad_forms, replay_original(replay, rows_of(ads)))
    assert len(verified["ranking"]) == 2
    assert set(verified["ranking"][1].max_abs_error) == {"click", "hidden"}


def test_compare_forms_functional_model_agrees(tmp_path: Path) -> None:
    inputs = {"item": IDS, "bag": RAGGED, "x": {"dtype": "float32", "shape": [1]}}
    functional = cut(recipe("build_functional", inputs, {"tower": {"role": "query"}}), tmp_path)
    assert len(functional.model.towers[0].variables) == 8
    replay = replay_of(functional)
    forms = write_forms(functional, tmp_path)
    verified = compare_forms(replay, tmp_path, forms, replay_original(replay, rows_of(functional)))
    assert [form.kind for form in verified["tower"]] == ["saved_model", "litert"]


def test_compare_forms_unknown_ids_follow_their_rules(ads: Cut, ad_root: Path, ad_forms: list[WrittenForm]) -> None:
    columns = dict(make_examples(ads.model.spec, ads.pages, {}, 4).columns)
    columns["ad"] = Column(np.array([3, 999, -1, 4]))
    columns["clicks"] = Column(
        np.array([1, 999, 2, -7]), np.array([0, 3, 4, 4, 4]), np.array([1.0, 5.0, 2.0, 1.0], np.float32)
    )
    columns["recent"] = Column(np.array([1, 500, 2, 9, 8]), np.array([0, 5, 5, 5, 5]))
    replay = replay_of(ads, Examples(4, columns))
    expected = replay_original(replay, rows_of(ads))
    assert len(compare_forms(replay, ad_root, ad_forms, expected)["context"]) == 2


def test_compare_forms_wrong_row_in_the_bundle_is_found(
    movies: Cut, movie_root: Path, movie_forms: list[WrittenForm]
) -> None:
    exact = rows_of(movies)

    def read(table: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        values = exact(table, rows)
        if table == "hours":
            values[rows == 7] += 0.01
        return values

    replay = replay_of(movies)
    with pytest.raises(
        VerificationFailed,
        match=r"tower 'query', SavedModel f32, output 'vector': example \d+, element \[\d\], is .*, the original model "
        r"gives .* break \|d\| <= 1e-05 \+ 1e-05",
    ):
        compare_forms(replay, movie_root, movie_forms, replay_original(replay, read))


def test_replay_original_rows_that_tensorflow_would_not_find_are_refused(movies: Cut) -> None:
    page = movies.job.model_dump()
    page["features"]["hour"] = {"ids": {"kind": "hash"}}  # while the bundle takes hours for rows
    with pytest.raises(
        VerificationFailed, match=r"feature 'hour': id \d+ is row \d+ in the bundle and row \d+ by the rec"
    ):
        replay_original(replace(replay_of(movies), job=ExportJob.model_validate(page)), rows_of(movies))


def test_compare_forms_int8_beyond_its_limit_is_refused(
    movies: Cut, movie_root: Path, movie_forms: list[WrittenForm], movie_results: Results
) -> None:
    page = movies.job.model_dump()
    page["towers"]["ranking"]["max_abs_error"] = {"int8": 1e-6}
    replay = replace(replay_of(movies), job=ExportJob.model_validate(page))
    with pytest.raises(
        VerificationFailed, match=r"LiteRT int8.*towers.ranking.max_abs_error.int8 = 1e-06: raise it, or leave"
    ):
        compare_forms(replay, movie_root, movie_forms, movie_results)


def test_compare_forms_tower_in_half_precision_is_told_the_cure_and_held_to_its_limit(tmp_path: Path) -> None:
    job = recipe("build_half", {"item": IDS}, {"tower": {"role": "query"}})
    made = cut(job, tmp_path)
    write_saved_model(made.model.towers[0], made.model.root, open_checkpoint(made.prefix), "model", tmp_path / "saved")
    forms = [WrittenForm("tower", "saved_model", "f32", "saved")]
    expected = replay_original(replay_of(made), rows_of(made))
    nearly = {"tower": {"result": expected["tower"]["result"] + np.float32(0.01)}}
    with pytest.raises(VerificationFailed, match=r"bfloat16.*policy 'float32'.*towers.tower.max_abs_error.f32"):
        compare_forms(replay_of(made), tmp_path, forms, nearly)
    page = job.model_dump()
    page["towers"]["tower"]["max_abs_error"] = {"f32": 0.1}
    limited = replace(replay_of(made), job=ExportJob.model_validate(page))
    assert compare_forms(limited, tmp_path, forms, nearly)["tower"][0].max_abs_error["result"] > 1e-3
    with pytest.raises(VerificationFailed, match=r"max_abs_error.f32 = 0.1"):
        compare_forms(limited, tmp_path, forms, {"tower": {"result": expected["tower"]["result"] + 1}})


def test_compare_page_that_feeds_a_tower_another_feature_is_refused(
    undisturbed: Path, movies: Cut, tmp_path: Path
) -> None:
    page, path = staging.read_manifest(undisturbed), write_project(tmp_path / "project", recipe_of(movies.prefix))
    examples = make_examples(movies.model.spec, page.features, {"movies": np.array(MOVIE_IDS)}, 8)
    features = open_features(undisturbed, page)
    replay = Replay(read_recipe(path), path.parent, movies.model.spec, movies.prefix, examples, features)
    expected = replay_original(replay, rows_of(movies))
    compare_page(replay, undisturbed, page, expected)
    query = page.towers["query"]
    other = {"user_id": "history", "history": "user_id"}
    inputs = [each.model_copy(update={"feature": other.get(each.feature, each.feature)}) for each in query.inputs]
    swapped = {**page.towers, "query": query.model_copy(update={"inputs": tuple(inputs)})}
    with pytest.raises(VerificationFailed, match="tower 'query', SavedModel f32, output 'vector'"):
        compare_page(replay, undisturbed, page.model_copy(update={"towers": swapped}), expected)


def test_compare_forms_not_a_number_is_never_equal(
    movies: Cut, movie_root: Path, movie_forms: list[WrittenForm], movie_results: Results
) -> None:
    broken = {name: {key: values.copy() for key, values in part.items()} for name, part in movie_results.items()}
    broken["candidate"]["vector"][3, 1] = np.nan
    with pytest.raises(VerificationFailed, match=r"tower 'candidate'.*example 3, element \[1\], is"):
        compare_forms(replay_of(movies), movie_root, movie_forms, broken)


def test_compare_forms_damaged_tower_is_named(movies: Cut, movie_root: Path, movie_results: Results) -> None:
    (movie_root / "bad.tflite").write_bytes(b"not a flatbuffer")
    with pytest.raises(VerificationFailed, match=r"tower 'query', LiteRT f32: .*no LiteRT flatbuffer"):
        compare_forms(
            replay_of(movies), movie_root, [WrittenForm("query", "litert", "f32", "bad.tflite")], movie_results
        )


def test_checkpoint_rows_table_without_a_key_is_told(movies: Cut) -> None:
    read = checkpoint_rows(open_checkpoint(movies.prefix), {})
    with pytest.raises(NotConvertible, match=r"table 'users' is not known in checkpoint"):
        read("users", np.array([1]))


def test_checkpoint_rows_scattered_rows_are_those_of_the_table(movies: Cut) -> None:
    rows = np.array([0, 1, 2, 9, 30, 31, 49])
    assert rows_of(movies)("users", rows).tolist() == movies.tables["users"][rows].tolist()


def test_replay_original_table_of_the_recipe_s_unknown_row(movies: Cut) -> None:
    page = movies.job.model_dump()
    page["features"]["hour"] = {"unknown": {"rule": "row", "row": 5}}
    job = ExportJob.model_validate(page)
    known = make_examples(movies.model.spec, movies.pages, {}, 3)
    beyond = Examples(3, {**known.columns, "hour": Column(np.array([24, 5, -1]))})
    fifth = Examples(3, {**known.columns, "hour": Column(np.array([5, 5, 5]))})
    results = [
        replay_original(replace(replay_of(movies, examples), job=job), rows_of(movies)) for examples in (beyond, fifth)
    ]
    assert results[0]["query"]["vector"].tolist() == results[1]["query"]["vector"].tolist()


@pytest.mark.parametrize(("function", "given"), [("build_rooted", "made"), ("build_never", "none")])
def test_replay_of_numbers_that_the_model_takes_no_root_of_is_of_others_or_refused(
    function: str, given: str, tmp_path: Path
) -> None:
    job = recipe(function, {"item": IDS, "age": {"dtype": "float32"}}, {"tower": {"role": "query"}})
    made = cut(job, tmp_path)
    replay = replay_of(made)
    assert (replay.examples.columns["age"].values < 0).any()
    if given == "none":
        with pytest.raises(
            VerificationFailed, match=r"output 'result': example \d+ is nan of the original .*verify.examples"
        ):
            replay_finite(replay, rows_of(made))
        return
    asked, expected = replay_finite(replay, rows_of(made))
    assert np.array_equal(asked.examples.columns["age"].values, np.abs(replay.examples.columns["age"].values))
    assert np.isfinite(expected["tower"]["result"]).all()
