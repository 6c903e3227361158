"""The forms in which a tower and its parts are written: SavedModel, LiteRT, narrow precisions; and
why one is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle.format import manifest
from bundle.storage.staging import Staging
from export.errors import NotConvertible
from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.recipe.schema import ExportJob
from export.towers.compiled import reason_not_compiled
from export.towers.division import Split, split_tower
from export.towers.files import TowerFiles
from export.towers.manifest_towers import describe_tower
from export.towers.parts import TracedPart
from tests.units.export.partition.graph.traced_calls import numbers, texts, tower_of, trace
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
    kernel = tf.Variable(tf.random.normal([64, 64], seed=3))

    def call(inputs: Any) -> dict[str, Any]:
        hidden = tf.nn.relu(inputs["user"] @ kernel) * inputs["item"]
        return {"score": tf.reduce_sum(odd(hidden) if is_odd else hidden, 1)}

    traced = tower_of(trace(call, user=numbers(64), item=numbers(64)))
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
    entry = files.write(tower, Split(parts_of(tower)), job_of("f32", "int8", "bf16"))
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
    sizes = {
        form.precision: (stage.directory / form.path).stat().st_size for form in entry.forms[1:3]
    }
    assert sizes["int8"] < sizes["f32"] / 2
    loaded = tf.saved_model.load(str(stage.directory / entry.forms[0].path))
    for rows in (1, 3):
        results = loaded.signatures["serving_default"](
            user=tf.ones([rows, 64]), item=tf.ones([rows, 64])
        )
        assert results["score"].shape == [rows]


def test_form_that_litert_cannot_run_is_left_out_of_the_tower_and_its_parts(
    stage: Staging,
) -> None:
    tower = ranker(is_odd=True)
    files = files_of(stage)
    entry = files.write(tower, Split(parts_of(tower)), job_of("f32"))
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
    entry = files.write(ranker(), Split((context, part)), job_of("f32"))
    assert entry.parts == ()
    (note,) = files.notes
    assert "'candidate'" in note
    assert not (stage.directory / "towers/tower/parts").exists()


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
        (lambda: small(looped), ("TensorList", "unroll")),
        (lambda: small(of_integers, BatchMatMulV3="model.py:5"), ("BatchMatMulV3 (model.py:5)",)),
        (lambda: small(KEYS.lookup, texts()), ("texts", "LookupTableFindV2")),
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
