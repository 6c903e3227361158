"""Which forms of towers and of their parts are written into a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle.format import manifest
from bundle.storage.staging import Staging
from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.recipe.schema import ExportJob
from export.towers.division import split_tower
from export.towers.files import TowerFiles
from export.towers.parts import TracedPart
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_models import recipe

load_tensorflow()


class Trained:
    """Stands for an original model whose weights the variables already have."""

    def restore_weights(self, _variables: Any) -> None:
        """Leaves them as they are."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Staging]:
    with Staging(tmp_path, "ranker", 1) as staging:
        yield staging


def files_of(stage: Staging) -> TowerFiles:
    original: Any = Trained()
    return TowerFiles(stage, original)


def ranker(*, odd: bool = False) -> TracedTower:
    """Returns a tower with a layer of the user's own; an odd one has what LiteRT lacks."""
    kernel = tf.Variable(tf.random.normal([16, 16], seed=3))

    def call(inputs: Any) -> dict[str, Any]:
        hidden = tf.nn.relu(inputs["user"] @ kernel) * inputs["item"]
        if odd:
            hidden = tf.math.betainc(tf.abs(hidden) + 1.0, tf.abs(hidden) + 1.0, tf.sigmoid(hidden))
        return {"score": tf.reduce_sum(hidden, 1)}

    traced = tower_of(trace(call, user=numbers(16), item=numbers(16)))
    return replace(traced, lines={"Betainc": "model.py:5"})


def parts_of(tower: TracedTower) -> tuple[TracedPart, ...]:
    return split_tower(tower, {"user": "context", "item": "candidate"}).parts


def job_of(*precisions: str) -> ExportJob:
    narrow = {name: 1.0 for name in precisions if name != "f32"}
    part = {"role": "ranking", "precisions": precisions, "max_abs_error": narrow}
    return recipe("model.py:build", {"user": {"dtype": "int64"}}, {"tower": part})


def forms_of(entry: manifest.Tower | manifest.TowerPart) -> list[tuple[str, str, str]]:
    return [(form.kind, form.precision, form.path) for form in entry.forms]


def test_tower_and_its_parts_have_every_precision(stage: Staging) -> None:
    tower = ranker()
    files = files_of(stage)
    entry = files.write(tower, parts_of(tower), job_of("f32", "int8", "bf16"))
    assert files.notes == []
    kinds = [("saved_model", "f32"), ("litert", "f32"), ("litert", "int8"), ("saved_model", "bf16")]
    assert [form[:2] for form in forms_of(entry)] == kinds
    assert [part.name for part in entry.parts] == ["context", "candidate"]
    written: list[manifest.Tower | manifest.TowerPart] = [entry, *entry.parts]
    for form_entry in written:
        assert [form[:2] for form in forms_of(form_entry)] == kinds
        paths = [path for *_, path in forms_of(form_entry)]
        assert len(set(paths)) == 4
        assert all((stage.directory / path).exists() for path in paths)
    assert not any("parts" in path for *_, path in forms_of(entry))
    assert not list(stage.attempts.glob("saved_model*"))


def test_tower_that_litert_cannot_run_has_a_saved_model_alone(stage: Staging) -> None:
    tower = ranker(odd=True)
    half = replace(tower, spec=replace(tower.spec, half="float16"))
    files = files_of(stage)
    entry = files.write(half, (), job_of("f32"))
    assert [form[:2] for form in forms_of(entry)] == [("saved_model", "f32")]
    start = (
        "tower 'tower' is not compiled for LiteRT (f32): LiteRT has no operation Betainc "
        "(model.py:5); it computes in float16, "
    )
    (note,) = files.notes
    assert note.startswith(start)


def test_tower_whose_part_lacks_a_form_is_written_without_parts(stage: Staging) -> None:
    context, _ = parts_of(ranker())
    _, odd = parts_of(ranker(odd=True))
    files = files_of(stage)
    entry = files.write(ranker(), (context, odd), job_of("f32"))
    assert entry.parts == ()
    assert files.notes == [
        "tower 'tower' is not split: its part 'candidate' has no form litert f32, which the "
        "whole tower has"
    ]
    assert not (stage.directory / "towers/tower/parts").exists()
    assert (stage.directory / forms_of(entry)[0][2]).is_dir()


def test_parts_may_lack_what_the_whole_tower_lacks(stage: Staging) -> None:
    tower = ranker(odd=True)
    files = files_of(stage)
    entry = files.write(tower, parts_of(tower), job_of("f32"))
    assert [[form[:2] for form in forms_of(part)] for part in entry.parts] == [
        [("saved_model", "f32"), ("litert", "f32")],
        [("saved_model", "f32")],
    ]
    assert len(files.notes) == 1  # of the tower, not of its part


def changed_files(directory: Path, before: dict[Path, int]) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path, stamp in before.items()
        if path.stat().st_mtime_ns != stamp
    }


def test_resumed_run_writes_only_what_changed(tmp_path: Path) -> None:
    tower = ranker()
    with Staging(tmp_path, "ranker", 1) as stage:
        files_of(stage).write(tower, (), job_of("f32"))
        written = [path for path in stage.directory.rglob("*") if path.is_file()]
        before = {path: path.stat().st_mtime_ns for path in written}
    with Staging(tmp_path, "ranker", 1) as stage:
        files_of(stage).write(tower, (), job_of("f32"))
        assert changed_files(stage.directory, before) == set()
    (variable,) = tower.variables
    variable.assign(variable * 2.0)
    with Staging(tmp_path, "ranker", 1) as stage:
        files_of(stage).write(tower, (), job_of("f32"))
        changed = changed_files(stage.directory, before)
    assert any(path.endswith("saved_model.pb") for path in changed)
    assert any(path.endswith(".tflite") for path in changed)
