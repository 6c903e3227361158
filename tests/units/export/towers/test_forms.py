"""The forms in which a tower and its parts are written: SavedModel, LiteRT, narrow precisions; why
one is left out, and what a resumed run writes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle.format import manifest
from bundle.storage.staging import Staging
from export.errors import DestinationError, NotConvertible
from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.recipe.schema import ExportJob
from export.towers.compiled import compile_tower, reason_not_compiled
from export.towers.division import split_tower
from export.towers.files import TowerFiles
from export.towers.manifest_towers import describe_tower
from export.towers.parts import TracedPart
from export.towers.savedmodels import content_of_saved_model, save_function
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, texts, tower_of, trace
from tests.units.export.traced_models import recipe

load_tensorflow()
KEYS = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), 0.0)


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


def odd(values: Any) -> Any:
    """Computes what LiteRT has no operation for."""
    return tf.math.betainc(tf.abs(values) + 1.0, tf.abs(values) + 1.0, tf.sigmoid(values))


def ranker(*, is_odd: bool = False) -> TracedTower:
    """Returns a tower with a layer of the user's own."""
    kernel = tf.Variable(tf.random.normal([16, 16], seed=3))

    def call(inputs: Any) -> dict[str, Any]:
        hidden = tf.nn.relu(inputs["user"] @ kernel) * inputs["item"]
        return {"score": tf.reduce_sum(odd(hidden) if is_odd else hidden, 1)}

    traced = tower_of(trace(call, user=numbers(16), item=numbers(16)))
    return replace(traced, lines={"Betainc": "model.py:5"})


def parts_of(tower: TracedTower) -> tuple[TracedPart, ...]:
    return split_tower(tower, {"user": "context", "item": "candidate"}).parts


def job_of(*precisions: str, **more: Any) -> ExportJob:
    narrow = {name: 1.0 for name in precisions if name != "f32"}
    part = {"role": "ranking", "precisions": precisions, "max_abs_error": narrow, **more}
    return recipe("model.py:build", {"user": {"dtype": "int64"}}, {"tower": part})


Entry = manifest.Tower | manifest.TowerPart
SAVED = ("saved_model", "f32")
LITERT = ("litert", "f32")


def kinds_of(entry: Entry) -> list[tuple[str, str]]:
    return [(form.kind, form.precision) for form in entry.forms]


def test_tower_and_its_parts_have_every_precision(stage: Staging) -> None:
    tower = ranker()
    files = files_of(stage)
    entry = files.write(tower, parts_of(tower), job_of("f32", "int8", "bf16"))
    assert files.notes == []
    assert [part.name for part in entry.parts] == ["context", "candidate"]
    written: list[Entry] = [entry, *entry.parts]
    for entry_of_part in written:
        assert kinds_of(entry_of_part) == [
            SAVED,
            LITERT,
            ("litert", "int8"),
            ("saved_model", "bf16"),
        ]
    paths = [form.path for part in written for form in part.forms]
    assert len(set(paths)) == len(paths)
    assert all((stage.directory / path).exists() for path in paths)
    loaded = tf.saved_model.load(str(stage.directory / entry.forms[0].path))
    for rows in (1, 3):
        results = loaded.signatures["serving_default"](
            user=tf.ones([rows, 16]), item=tf.ones([rows, 16])
        )
        assert results["score"].shape == [rows]


def test_form_that_litert_cannot_run_is_left_out_of_the_tower_and_its_parts(
    stage: Staging,
) -> None:
    tower = ranker(is_odd=True)
    files = files_of(stage)
    entry = files.write(tower, parts_of(tower), job_of("f32"))
    assert kinds_of(entry) == [SAVED]
    assert [kinds_of(part) for part in entry.parts] == [[SAVED, LITERT], [SAVED]]
    (note,) = files.notes  # of the tower, not of its part
    assert "Betainc (model.py:5)" in note
    with pytest.raises(NotConvertible, match=r"towers\.tower\.serve"):
        describe_tower(tower.spec, job_of("f32", "int8", serve="int8"), entry.forms)


def test_tower_whose_part_lacks_a_form_is_written_without_parts(stage: Staging) -> None:
    context, _ = parts_of(ranker())
    _, part = parts_of(ranker(is_odd=True))
    files = files_of(stage)
    entry = files.write(ranker(), (context, part), job_of("f32"))
    assert entry.parts == ()
    (note,) = files.notes
    assert "'candidate'" in note
    assert not (stage.directory / "towers/tower/parts").exists()


def test_resumed_run_writes_only_what_changed(tmp_path: Path) -> None:
    tower = ranker()

    def written() -> dict[str, int]:
        with Staging(tmp_path, "ranker", 1) as stage:
            files_of(stage).write(tower, (), job_of("f32"))
            paths = [path for path in stage.directory.rglob("*") if path.is_file()]
            return {str(path): path.stat().st_mtime_ns for path in paths}

    before = written()
    assert written() == before
    (variable,) = tower.variables
    variable.assign(variable * 2.0)
    changed = {path for path, stamp in written().items() if before[path] != stamp}
    assert {Path(path).suffix for path in changed} >= {".pb", ".tflite"}


def small(score: Callable[[Any], Any], spec: Any = None, **lines: str) -> TracedTower:
    """Returns a tower of one input."""
    traced = trace(lambda inputs: {"score": score(inputs["user"])}, user=spec or numbers(2))
    return replace(tower_of(traced), lines=lines)


def of_integers(user: Any) -> Any:
    kernel = tf.constant([[1], [2]], tf.int8)
    product = tf.matmul(tf.cast(user, tf.int8), kernel, output_type=tf.int32)
    return tf.cast(product[:, 0], tf.float32)


def looped(user: Any) -> Any:
    """Collects steps of a loop in a list, as recurrent layers do."""
    empty = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None])
    (_, states) = tf.while_loop(
        lambda step, _: step < 2,
        lambda step, states: (step + 1, states.write(step, user[:, 0])),
        (0, empty),
    )
    return tf.reduce_sum(states.stack(), 0)


@pytest.mark.parametrize(
    ("tower", "words"),
    [
        (lambda: small(lambda user: tf.reduce_sum(user * 2.0, 1)), ()),
        (
            lambda: small(lambda user: odd(user)[:, 0], Betainc="model.py:7"),
            ("Betainc (model.py:7)",),
        ),
        (
            lambda: small(lambda x: odd(x)[:, 0] + tf.math.polygamma(x, x)[:, 0]),
            ("Betainc, Polygamma",),
        ),
        (lambda: small(looped), ("TensorList", "unroll")),
        (lambda: small(of_integers, BatchMatMulV3="model.py:5"), ("BatchMatMulV3 (model.py:5)",)),
        (lambda: small(KEYS.lookup, texts()), ("texts", "LookupTableFindV2")),
        (
            lambda: small(lambda x: tf.cast(tf.strings.length(x), "float32"), texts()),
            ("StringLen",),
        ),
        (lambda: small(lambda user: tf.ones([tf.shape(user)[0]]), texts()), ("strings",)),
        (lambda: small(tf.reduce_sum), ("batch of 1", "()")),
        (lambda: small(lambda x: tf.ensure_shape(x[:1, 0], [None])), ("batch of 3", "(1,)")),
    ],
)
def test_tower_is_compiled_or_the_reason_is_told(
    tower: Callable[[], TracedTower], words: tuple[str, ...]
) -> None:
    reason = reason_not_compiled(tower())
    assert bool(reason) == bool(words)
    assert all(part in reason for part in words), reason


def test_weights_of_int8_are_smaller_and_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    kernel = tf.Variable(tf.random.normal([256, 256], seed=1))
    tower = small(lambda user: tf.reduce_sum(tf.nn.relu(user @ kernel), 1), numbers(256))
    save_function(tower, tmp_path / "saved_model")
    for precision in ("f32", "int8"):
        assert compile_tower(tmp_path / "saved_model", precision, tmp_path / precision) == ""
    sizes = {name: (tmp_path / name).stat().st_size for name in ("f32", "int8")}
    assert sizes["f32"] > 4 * 256 * 256 > 2 * sizes["int8"]
    (tmp_path / "file").touch()
    with pytest.raises(DestinationError, match="file/tower cannot be written"):
        compile_tower(tmp_path / "saved_model", "f32", tmp_path / "file/tower")
    with pytest.raises(DestinationError, match=r"cannot be written to .*/file/sub"):
        save_function(tower, tmp_path / "file/sub")


def nested(user: Any) -> Any:
    """Calls functions inside of a tower, which TensorFlow numbers over the whole process."""
    inner = tf.function(lambda values: tf.nn.relu(values) + 1.0)
    outer = tf.function(lambda values: inner(values) * inner(values * 2.0))
    return outer(user)[:, 0]


def test_content_of_a_saved_model_is_that_of_its_graph_and_weights(tmp_path: Path) -> None:
    factor = tf.Variable(3.0)
    numbered = iter(range(99))

    def content(score: Callable[[Any], Any]) -> list[str]:
        directory = tmp_path / str(next(numbered))
        save_function(small(score), directory)
        return content_of_saved_model(directory)

    first = content(nested)
    nested(tf.ones([2, 2]))
    assert content(nested) == first
    weighted = content(lambda user: user[:, 0] * factor)
    factor.assign(4.0)
    assert content(lambda user: user[:, 0] * factor) != weighted
    scores = (lambda x: x[:, 0], lambda x: x[:, 1], lambda x: x[:, 0] + 1.0, lambda x: -x[:, 0])
    assert len({tuple(content(score)) for score in scores}) == 4
