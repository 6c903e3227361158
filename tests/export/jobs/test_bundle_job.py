from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.storage import staging
from bundle.stores.reader import CandidateStore
from export.errors import CheckpointError
from export.jobs import bundle_job
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.export.checkpoint.bundles import write_bundle
from tests.export.commands import Command
from tests.export.cutting import Cut, one_recipe, save_checkpoint
from tests.export.exporting import (
    MOVIE_IDS,
    MOVIES,
    Recipe,
    aside,
    asked,
    changed,
    facts,
    recipe_of,
    table_values,
    title_of,
    values_of,
    visible,
    write_examples,
    write_project,
    year_of,
)
from tests.export.forked_runs import ForkedRuns

Facts = tuple[dict[str, Any], dict[str, bytes]]
KILLED = -signal.SIGKILL
STEPS, TABLE_STEPS = 16, 7
"""created, a vocabulary, a store, four tables, three towers in seven forms, vectors, index."""


@pytest.fixture(scope="session")
def expected(undisturbed: Path) -> Facts:
    return facts(undisturbed)


def test_run_every_table_is_external_and_bit_equal(undisturbed: Path, movies: Cut) -> None:
    page = staging.read_manifest(undisturbed)
    assert set(page.tables) == set(movies.tables)
    for name, values in movies.tables.items():
        assert table_values(undisturbed, name).tobytes() == values.tobytes()
    largest = min(values.nbytes for values in movies.tables.values())
    for tower in page.towers.values():
        for form in tower.forms:
            held = [path for path in [undisturbed / form.path, *(undisturbed / form.path).rglob("*")] if path.is_file()]
            for values in movies.tables.values():
                assert all(values.tobytes()[:largest] not in path.read_bytes() for path in held)


def test_run_manifest_tells_what_was_verified(expected: Facts, undisturbed: Path) -> None:
    page, _ = expected
    assert aside(undisturbed.parents[1]) == []
    assert page["version"] == 1
    assert page["verification"]["examples"] == 24
    assert all(check["rows_compared"] == check["rows"] for check in page["verification"]["tables"].values())
    assert page["indexes"]["movies"]["recall"]["value"] == 1.0
    errors = {
        (name, form["kind"], form["precision"]): max(form["max_abs_error"].values())
        for name, tower in page["towers"].items()
        for form in tower["forms"]
    }
    assert len(errors) == 7
    assert 1e-5 < errors.pop(("ranking", "litert", "int8")) < 1.0
    assert max(errors.values()) < 1e-5


def test_run_store_has_the_corpus_in_index_order(undisturbed: Path) -> None:
    page = staging.read_manifest(undisturbed)
    store = CandidateStore(undisturbed / page.candidates["movies"].file, page.candidates["movies"])
    positions = np.arange(MOVIES)
    assert store.ids(positions).tolist() == MOVIE_IDS
    told = store.attributes(positions, ["title", "year"])
    assert list(told["title"]) == [title_of(row) for row in range(MOVIES)]
    assert list(told["year"]) == [year_of(row) for row in range(MOVIES)]


def test_prepare_weights_of_another_model_are_told_before_a_table_is_copied(movies: Cut, tmp_path: Path) -> None:
    other = changed(recipe_of(movies.prefix), "code.factory", "tower_models.py:build_movies_without_head")
    recipe = write_project(tmp_path, other)
    with pytest.raises(
        CheckpointError,
        match=r"head.kernel is float32 \[24, 3\] in the model \(tower_models.py:\d+\) and float32 \[24, 1\]",
    ):
        bundle_job.prepare(read_recipe(recipe), tmp_path, ExportSettings())


def resumed(forked: ForkedRuns, project: Path, deaths: list[dict[str, Any]]) -> int:
    """Kills run after run of one job; returns how many died before the bundle was there."""
    root, died = project.parent / "bundles", 0
    for dies in deaths:
        status = forked.run(["run", str(project), "--version", "1"], project.parent / "output", **dies)
        if status == 0:
            return died
        assert status in (KILLED, -signal.SIGALRM), (project.parent / "output").read_text()
        died += 1
        assert visible(root) == [], dies
        assert staging.committed_versions(root, "movies") == []
    return died


def test_run_killed_at_every_step_resumes_to_the_same_bundle(
    forked: ForkedRuns, project: Path, expected: Facts
) -> None:
    # Each run notes the step that the one before left unnoted, and is killed with the files of the next one written.
    deaths: list[dict[str, Any]] = [{"unnoted": 1}, *([{"unnoted": 2}] * (STEPS - 1)), {"renaming": True}]
    assert resumed(forked, project, [*deaths, {}]) == len(deaths)
    assert facts(project.parent / "bundles/movies/1") == expected
    assert aside(project.parent / "bundles") == []


def test_run_killed_after_its_rename_has_published(forked: ForkedRuns, project: Path, expected: Facts) -> None:
    run = ["run", str(project), "--version", "1"]
    assert forked.run(run, project.parent / "output", renamed=True) == KILLED
    assert facts(project.parent / "bundles/movies/1") == expected
    assert forked.run(run, project.parent / "output") == 6
    assert aside(project.parent / "bundles") == []


def swap_movies(base: Path) -> None:
    lines = (base / "movie_ids.txt").read_text().splitlines()
    (base / "movie_ids.txt").write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")


def rename_a_movie(base: Path) -> None:
    (base / "movies.csv").write_text((base / "movies.csv").read_text().replace('Movie "3"', 'Other "3"'))


def ask_more(base: Path) -> None:
    recipe = (base / "recipe.toml").read_text()
    assert '"count" = 24' in recipe
    (base / "recipe.toml").write_text(recipe.replace('"count" = 24', '"count" = 25'))


def search_more(base: Path) -> None:
    recipe = (base / "recipe.toml").read_text()
    assert '"candidate_tower" = "candidate"' in recipe
    told = '"candidate_tower" = "candidate", "recall" = {"k" = 3}'
    (base / "recipe.toml").write_text(recipe.replace('"candidate_tower" = "candidate"', told))


def change_the_code(base: Path) -> None:
    shutil.rmtree(base / "__pycache__", ignore_errors=True)  # Python goes by sizes and times
    code = (base / "tower_models.py").read_text()
    assert 'dense(16, "relu")' in code
    (base / "tower_models.py").write_text(code.replace('dense(16, "relu")', 'dense(16, "selu")'))


@pytest.mark.parametrize(
    ("edit", "noted"),
    [
        (swap_movies, TABLE_STEPS),
        (swap_movies, STEPS - 1),
        (rename_a_movie, STEPS - 1),
        (ask_more, STEPS - 1),
        (search_more, STEPS - 1),
        (change_the_code, STEPS - 1),
    ],
)
def test_run_after_an_edit_redoes_what_changed_and_keeps_the_tables(
    forked: ForkedRuns, recipe: Recipe, project: Path, tmp_path: Path, edit: Callable[[Path], None], noted: int
) -> None:
    base, run = project.parent, ["run", str(project), "--version", "1"]
    assert forked.run(run, base / "output", noted=noted) == KILLED
    shards = {path.name: path.stat().st_ino for path in (base / "bundles/movies/.staging-1/tables").rglob("*.bin")}
    times = {path: path.stat() for path in base.iterdir() if path.is_file()}
    edit(base)
    for path, before in times.items():  # sizes and times are as they were
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert forked.run(run, base / "output") == 0, (base / "output").read_text()

    bundle = base / "bundles/movies/1"
    assert {path.name: path.stat().st_ino for path in (bundle / "tables").rglob("*.bin")} == shards
    fresh = write_project(tmp_path / "fresh", recipe)
    edit(fresh.parent)
    assert forked.run(["run", str(fresh), "--version", "1"], tmp_path / "output") == 0
    assert facts(bundle) == facts(fresh.parent / "bundles/movies/1")


def test_check_that_fails_keeps_what_was_verified(forked: ForkedRuns, recipe: Recipe, tmp_path: Path) -> None:
    impossible = changed(recipe, "towers.ranking.max_abs_error.int8", 1e-12)
    project, run = write_project(tmp_path, impossible), ["run", str(tmp_path / "recipe.toml"), "--version", "1"]
    assert forked.run(run, tmp_path / "output") == 5
    staged = tmp_path / "bundles/movies/.staging-1"
    assert f"{staged} keeps what is finished" in (tmp_path / "output").read_text()
    files = [path for path in staged.rglob("*") if path.is_file() and ".attempts" not in str(path)]
    kept = {path.relative_to(staged): path.stat().st_ino for path in files}
    assert len(kept) > TABLE_STEPS
    write_project(tmp_path, recipe)
    assert forked.run(run, tmp_path / "output") == 0, (tmp_path / "output").read_text()
    bundle = project.parent / "bundles/movies/1"
    assert {path: (bundle / path).stat().st_ino for path in kept} == kept


def test_edited_check_of_a_failed_job_copies_no_table_again(forked: ForkedRuns, tmp_path: Path) -> None:
    key, rows = "model/embedding/_tpu_embedding/items/.ATTRIBUTES/VARIABLE_VALUE", 1 << 20
    small, _ = save_checkpoint(one_recipe("build_plain"), tmp_path)
    table = np.random.default_rng(1).standard_normal((rows, 4)).astype(np.float32)
    write_bundle(tmp_path / "ckpt-3", values_of(small) | {key: table})
    recipe = one_recipe("build_large").model_dump(mode="json", exclude_unset=True)
    recipe = changed(changed(recipe, "checkpoint.path", str(tmp_path / "ckpt-3")), "verify", {"count": 24})
    recipe = changed(recipe, "towers.tower.precisions", ["f32", "int8"])
    run = ["run", str(tmp_path / "project/recipe.toml"), "--version", "1"]
    counted = {}
    for limit, code in ((1e-12, 5), (10.0, 0)):
        project = write_project(tmp_path / "project", changed(recipe, "towers.tower.max_abs_error", {"int8": limit}))
        with (project.parent / "tower_models.py").open("a") as file:
            file.write(f"\n\ndef build_large():\n    return One('', {rows})\n")
        assert forked.run(run, tmp_path / "output", io=str(tmp_path / "io")) == code, (tmp_path / "output").read_text()
        lines = (tmp_path / "io").read_text().splitlines()
        counted[code] = {name: int(count) for name, count in (line.split(": ") for line in lines)}
    assert counted[5]["wchar"] > table.nbytes
    assert counted[0]["wchar"] < table.nbytes / 2
    # Its shard is read once, to see that it is whole; a copy would read the checkpoint as well.
    assert counted[5]["rchar"] - table.nbytes / 2 < counted[0]["rchar"] < counted[5]["rchar"] + table.nbytes / 2


def test_example_that_is_not_a_number_is_told_and_the_tables_are_kept(
    forked: ForkedRuns, recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, changed(recipe, "verify.examples", "examples.jsonl"))
    write_examples(tmp_path, [asked()[0] | {"year": float("nan")}, *asked()[1:]])
    run = ["run", str(project), "--version", "1"]
    assert forked.run(run, tmp_path / "output") == 5
    assert "verify.examples" in (tmp_path / "output").read_text()
    staged = tmp_path / "bundles/movies/.staging-1"
    kept = {path: path.stat().st_ino for path in staged.glob("tables/*/*.bin")}
    write_examples(tmp_path, asked())
    assert forked.run(run, tmp_path / "output") == 0, (tmp_path / "output").read_text()
    bundle = tmp_path / "bundles/movies/1"
    assert {
        staged / path.relative_to(bundle): path.stat().st_ino for path in (bundle / "tables").rglob("*.bin")
    } == kept


def test_run_while_another_writes_the_version_exits_6_and_the_other_publishes(
    forked: ForkedRuns, command: Command, project: Path, expected: Facts, tmp_path: Path
) -> None:
    run = ["run", str(project), "--version", "1"]
    pid = forked.start(run, tmp_path / "first", stops=1)
    assert forked.status() == -signal.SIGSTOP
    second = command(*run)
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 0
    assert second.code == 6
    assert "is being written by another run" in second.err
    assert facts(project.parent / "bundles/movies/1") == expected


def test_run_that_is_interrupted_exits_130_says_so_and_resumes(
    forked: ForkedRuns, project: Path, tmp_path: Path
) -> None:
    run = ["run", str(project), "--version", "1"]
    pid = forked.start(run, tmp_path / "output", stops=1)
    assert forked.status() == -signal.SIGSTOP
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGCONT)
    assert forked.status() == 130
    lines = [line for line in (tmp_path / "output").read_text().splitlines() if not line.startswith("  ")]
    assert lines == ["rowcast-export: interrupted; run the same command again to resume"]
    assert visible(project.parent / "bundles") == []
    assert aside(project.parent / "bundles") == [".staging-1", ".staging-1.journal"]


def test_run_whose_staged_files_were_damaged_while_it_lay_writes_them_again(
    forked: ForkedRuns, project: Path, expected: Facts
) -> None:
    assert resumed(forked, project, [{"noted": TABLE_STEPS}]) == 1
    staged = project.parent / "bundles/movies/.staging-1"
    for file in ("tables/users/rows-00000-of-00001.bin", "candidates/movies/store.arrow"):
        content = bytearray((staged / file).read_bytes())
        content[len(content) // 2] ^= 1
        (staged / file).write_bytes(content)
    (staged / "vocabularies/movies.arrow").unlink()
    assert resumed(forked, project, [{}]) == 0
    assert facts(project.parent / "bundles/movies/1") == expected
