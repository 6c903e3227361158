from __future__ import annotations

from pathlib import Path

from export.towers.savedmodels import content_of_saved_model, save_function, write_saved_model
from tests.export.traced_models import TracedCheckpoint


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
