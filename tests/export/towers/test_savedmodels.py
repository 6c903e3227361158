from __future__ import annotations

from pathlib import Path

import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, DestinationError
from export.frameworks.loading import tf
from export.model.tracing import TracedModel, trace_towers
from export.model.weights import TrainedModel
from export.towers.savedmodels import content_of_saved_model, save_function, write_saved_model
from tests.export.traced_models import HERE, TracedCheckpoint, movies_recipe


def written(movies: TracedCheckpoint, number: int, directory: Path) -> Path:
    tower = movies.model.towers[number]
    trained = TrainedModel(movies.model.root, open_checkpoint(movies.prefix), "model")
    write_saved_model(tower, trained, directory / tower.spec.name)
    return directory / tower.spec.name


def test_write_saved_model_stores_the_checkpoint_s_weights_and_no_table(
    movies: TracedCheckpoint, tmp_path: Path
) -> None:
    for variable in movies.model.towers[0].variables:
        variable.assign(tf.zeros(variable.shape))
    written_to = tf.train.load_checkpoint(str(written(movies, 0, tmp_path) / "variables" / "variables"))
    shapes = written_to.get_variable_to_shape_map()
    stored = [written_to.get_tensor(key) for key in shapes if not key.startswith("_CHECKPOINTABLE")]
    trained = tf.train.load_checkpoint(str(movies.prefix))
    layer = "model/query_tower/layer_with_weights-{}/{}/.ATTRIBUTES/VARIABLE_VALUE"
    weights = [trained.get_tensor(layer.format(at, name)) for at in (0, 1) for name in ("kernel", "bias")]
    assert sorted(each.tobytes() for each in stored) == sorted(each.tobytes() for each in weights)


def test_write_saved_model_over_a_file_is_refused(movies: TracedCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "query").write_text("in the way")
    with pytest.raises(DestinationError, match=r"tower 'query' cannot be written to"):
        written(movies, 0, tmp_path)


def test_restore_weights_that_differ_names_the_variables_of_the_tower(
    movies: TracedCheckpoint, ads: TracedCheckpoint
) -> None:
    def restore(model: TracedModel, tower: int, prefix: Path, path: str = "model") -> None:
        TrainedModel(model.root, open_checkpoint(prefix), path).restore_weights(model.towers[tower].variables)

    other = trace_towers(movies_recipe("build_movies_without_head"), HERE)
    restore(other, 0, movies.prefix)
    wide = r"head.kernel is float32 \[24, 3\] in the model \(tower_models.py:\d+\) and .*; head.bias.*not the one"
    with pytest.raises(CheckpointError, match=wide):
        restore(other, 2, movies.prefix)
    with pytest.raises(CheckpointError, match=r"-0.kernel \[20, 64\] \(tower_models.py:\d+\) is not in the checkpoint"):
        restore(movies.model, 0, ads.prefix)
    with pytest.raises(CheckpointError, match=r"no object 'modle' \(checkpoint.object_path\).*'modle' among model, "):
        restore(movies.model, 0, movies.prefix, "modle")


def test_write_saved_model_again_has_the_same_content_unless_weights_differ(
    movies: TracedCheckpoint, tmp_path: Path
) -> None:
    """TensorFlow counts functions up over the process, and a resumed run has traced fewer of them."""
    contents = [content_of_saved_model(written(movies, 2, tmp_path / name)) for name in "ab"]
    assert contents[0] == contents[1]
    (variable, *_) = movies.model.towers[2].variables
    variable.assign(variable * 2)
    save_function(movies.model.towers[2], tmp_path / "c")
    assert content_of_saved_model(tmp_path / "c") != contents[0]
    assert content_of_saved_model(written(movies, 0, tmp_path)) != contents[0]
