from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.errors import DestinationError
from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.towers.savedmodels import content_of_saved_model, save_function, write_saved_model
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_models import TracedCheckpoint

load_tensorflow()


def written(movies: TracedCheckpoint, number: int, directory: Path) -> Path:
    tower = movies.model.towers[number]
    write_saved_model(tower, movies.original, directory / tower.spec.name)
    return directory / tower.spec.name


def test_write_saved_model_again_has_the_same_content_unless_weights_differ(
    movies: TracedCheckpoint, tmp_path: Path
) -> None:
    """TensorFlow counts functions up over the process, and a resumed run has traced
    fewer of them.
    """
    contents = [content_of_saved_model(written(movies, 2, tmp_path / name)) for name in "ab"]
    assert contents[0] == contents[1]
    (variable, *_) = movies.model.towers[2].variables
    variable.assign(variable * 2)
    save_function(movies.model.towers[2], tmp_path / "c")
    assert content_of_saved_model(tmp_path / "c") != contents[0]
    assert content_of_saved_model(written(movies, 0, tmp_path)) != contents[0]


def small(score: Callable[[Any], Any], *variables: Any) -> TracedTower:
    tower = tower_of(trace(lambda inputs: {"score": score(inputs["user"])}, user=numbers(2)))
    assert len(tower.variables) == len(variables)
    return tower


def test_signature_has_the_names_of_the_tower_and_takes_any_batch(tmp_path: Path) -> None:
    factor = tf.Variable(3.0)
    save_function(small(lambda user: user[:, 0] * factor, factor), tmp_path / "a/b")
    loaded = tf.saved_model.load(str(tmp_path / "a/b"))
    assert list(loaded.signatures) == ["serving_default"]
    for values in ([[1.0, 2.0]], [[1.0, 2.0], [4.0, 5.0], [6.0, 7.0]]):
        results = loaded.signatures["serving_default"](user=tf.constant(values))
        assert results["score"].numpy().tolist() == [3 * first for first, _ in values]


def test_directory_that_cannot_be_written_is_an_error_of_the_destination(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DestinationError, match=r"tower 'tower' cannot be written to .*/file/sub"):
        save_function(small(lambda user: user[:, 0]), tmp_path / "file/sub")


def content_of(tower: TracedTower, directory: Path) -> list[str]:
    save_function(tower, directory)
    return content_of_saved_model(directory)


def called(user: Any) -> Any:
    """Calls functions inside of a tower, which TensorFlow numbers over the whole process."""
    inner = tf.function(lambda values: tf.nn.relu(values) + 1.0)
    outer = tf.function(lambda values: inner(values) * inner(values * 2.0))
    return outer(user)[:, 0]


def test_content_does_not_depend_on_what_was_traced_before(tmp_path: Path) -> None:
    first = content_of(small(called), tmp_path / "first")
    for _ in range(3):
        called(tf.ones([2, 2]))
    assert content_of(small(called), tmp_path / "second") == first


@pytest.mark.parametrize(
    "score",
    [
        pytest.param(lambda user: user[:, 1], id="another place"),
        pytest.param(lambda user: user[:, 0] + 1.0, id="another constant"),
        pytest.param(lambda user: tf.nn.relu(user[:, 0]), id="another operation"),
    ],
)
def test_content_of_another_tower_is_another(score: Any, tmp_path: Path) -> None:
    first = content_of(small(lambda user: user[:, 0]), tmp_path / "first")
    assert content_of(small(score), tmp_path / "second") != first


def test_content_is_that_of_the_weights_too(tmp_path: Path) -> None:
    factor = tf.Variable(3.0)
    tower = small(lambda user: user[:, 0] * factor, factor)
    first = content_of(tower, tmp_path / "first")
    factor.assign(4.0)
    assert content_of(tower, tmp_path / "second") != first
    assert [path.name for path in (tmp_path / "first").rglob("*.pb")]
    # A digest of the graph, and those of the files beside it.
    files = [path for path in (tmp_path / "first").rglob("*") if path.is_file()]
    assert len(first) == 1 + sum(path.suffix != ".pb" for path in files)
