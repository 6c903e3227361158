"""Small models beside their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import Entry, Listing, Storage
from export.errors import CheckpointError
from export.graphs.loading import tf
from export.graphs.walks import resource
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.frameworks.placeholders import remember_line, tables_unallocated
from export.tensorflow_models.model.object_paths import VariableLocation
from export.tensorflow_models.model.weights import TrainedModel, path_steps
from tests.units.export.checkpoint.tensor_bundles import write_bundle


class Block(tf.Module):  # type: ignore[misc]
    """Variables by their names, of given shapes."""

    def __init__(self, **shapes: Any) -> None:
        super().__init__()
        for name, shape in shapes.items():
            dtype = tf.int32 if name == "count" else tf.float32
            variable = tf.Variable(tf.zeros(shape, dtype), name=name)
            remember_line(variable)
            setattr(self, name, variable)


def saved(folder: Path, **objects: Any) -> Checkpoint:
    """Writes objects as a training script does; variables hold 0, 1, 2 and so on."""
    for block in objects.values():
        for variable in getattr(block, "variables", ()):
            size = variable.shape.num_elements()
            variable.assign(tf.reshape(tf.cast(tf.range(size), variable.dtype), variable.shape))
    prefix = tf.train.Checkpoint(**objects).write(str(folder / "ckpt"))
    return open_checkpoint(Path(prefix))


def key(*steps: str) -> str:
    return "/".join((*steps, ".ATTRIBUTES", "VARIABLE_VALUE"))


def rejected(trained: TrainedModel, *variables: Any) -> str:
    """Returns why weights are not found, without the checkpoint's path and numbers of lines."""
    with pytest.raises(CheckpointError) as problem:
        trained.find_weights(variables)
    message = str(problem.value).replace(str(trained.checkpoint.prefix), "PREFIX")
    return re.sub(r" \(\w+\.py:\d+\)", " LINE", message)


OTHER_CODE = (
    "The model code is not the one that was saved, or checkpoint.object_path ('model') is not the "
    "path of the model"
)


@pytest.mark.parametrize(
    ("path", "steps"),
    [("", []), ("a", ["a"]), ("a.b/c", ["a", "b", "c"]), ("/a//b.", ["a", "b"])],
)
def test_path_steps_are_separated_by_dots_or_slashes(path: str, steps: list[str]) -> None:
    assert path_steps(path) == steps


def test_find_weights_gives_the_keys_of_the_variables_that_are_asked_for(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=Block(kernel=[2, 3], bias=[3]))
    model = Block(kernel=[2, 3], bias=[3], more=[4])
    trained = TrainedModel(model, checkpoint, "model")
    assert [(id(variable), key) for variable, key in trained.find_weights([model.bias])] == [
        (id(model.bias), key("model", "bias"))
    ]
    trained.restore_weights([model.kernel, model.bias])
    assert model.kernel.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert model.bias.numpy().tolist() == [0, 1, 2]


def test_restored_matrices_are_no_tables(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=Block(kernel=[2, 3]))
    with tables_unallocated():
        model = Block(kernel=[2, 3])
    assert model.kernel.restored is None
    TrainedModel(model, checkpoint, "model").restore_weights([model.kernel])
    assert model.kernel.restored is True


def test_find_weights_of_other_variables_names_each(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=Block(kernel=[2, 3], bias=[3], count=[]))
    model = Block(kernel=[3, 2], more=[4])
    model.bias = tf.Variable([0, 0, 0])
    trained = TrainedModel(model, checkpoint, "model")
    assert rejected(trained, model.kernel, model.bias, model.more) == (
        "checkpoint PREFIX: kernel is float32 [3, 2] in the model LINE and float32 [2, 3] there; "
        "bias is int32 [3] in the model and float32 [3] there; more [4] LINE is not in the "
        f"checkpoint. {OTHER_CODE}"
    )


@pytest.mark.parametrize(("count", "more"), [(5, ""), (6, " and 1 more"), (8, " and 3 more")])
def test_find_weights_lists_five_problems(count: int, more: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=Block(kernel=[2, 3]))
    model = Block(**{f"v{number}": [number] for number in range(count)})
    variables = [getattr(model, f"v{number}") for number in range(count)]
    listed = "; ".join(f"v{number} [{number}] LINE is not in the checkpoint" for number in range(5))
    message = rejected(TrainedModel(model, checkpoint, "model"), *variables)
    assert message == f"checkpoint PREFIX: {listed}{more}. {OTHER_CODE}"


@pytest.mark.parametrize(
    ("build", "remedy"),
    [
        (lambda: Block(kernel=[2, 3]), "looks into no plain Python object: let the class"),
        (
            lambda: keras.Sequential([]),
            "not layers in lists and dicts of Keras 3. Add an attribute",
        ),
    ],
)
def test_find_weights_of_a_variable_that_no_object_holds_says_so(
    build: Callable[[], Any], remedy: str, tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path, model=Block(kernel=[2, 3]))
    hidden = tf.Variable(tf.zeros([4]), name="hidden")
    message = rejected(TrainedModel(build(), checkpoint, "model"), hidden)
    assert message.startswith("checkpoint PREFIX: hidden:0 [4] is not in the checkpoint. ")
    assert remedy in message


def test_find_weights_takes_partitions_of_what_is_no_table(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32)
    write_bundle(tmp_path / "names", {"bias": values}, boxes={"bias": [[(0, 2)], [(2, 2)]]})
    bias = tf.Variable(tf.zeros([4]))
    root = NamedGraph(None, "model.py:build", {"bias": bias})
    trained = TrainedModel(root, open_checkpoint(tmp_path / "names"), "")
    trained.restore_weights([bias])
    assert bias.numpy().tolist() == [0, 1, 2, 3]


def test_find_weights_in_a_file_of_keras_of_a_variable_that_keras_does_not_track() -> None:
    model = keras.Sequential([keras.layers.Dense(2, use_bias=False)])
    model.build((None, 3))
    path = "layers/dense/vars/0"
    entries = {path: Entry(path, "float32", (3, 2), ())}
    checkpoint = Checkpoint(
        Path("model.keras"), Listing("", entries, Storage(kind="Keras")), "saved"
    )
    trained = TrainedModel(model, checkpoint, "")
    kernel = model.layers[0].kernel.value
    assert trained.find_weights([kernel]) == [(kernel, path)]
    message = rejected(trained, tf.Variable(tf.zeros([4]), name="hidden"))
    assert message == (
        "checkpoint PREFIX: hidden:0 [4] is not in the checkpoint. Keras does not track it: a "
        "layer must be an attribute of the model or of one of its layers, also in a list or dict, "
        "when the model is trained and in the factory"
    )


@pytest.mark.parametrize(("stored", "fits"), [("int32", True), ("int64", True), ("float32", False)])
def test_find_weights_takes_narrower_integers_of_keras(stored: str, fits: bool) -> None:
    layer = keras.layers.Layer(name="counting")
    count = layer.add_weight(shape=(), dtype="int64", name="count", initializer="zeros").value
    model = keras.Sequential([layer])
    path = "layers/layer/vars/0"
    entries = {path: Entry(path, stored, (), ())}
    checkpoint = Checkpoint(
        Path("model.keras"), Listing("", entries, Storage(kind="Keras")), "saved"
    )
    trained = TrainedModel(model, checkpoint, "")
    if fits:
        assert trained.find_weights([count]) == [(count, path)]
    else:
        assert f"{path} is int64 [] in the model and float32 [] there" in rejected(trained, count)


def test_find_weights_takes_no_narrower_integers_of_tensorflow(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=Block(count=[]))
    model = Block()
    model.count = tf.Variable(tf.constant(0, tf.int64))
    trained = TrainedModel(model, checkpoint, "model")
    assert "count is int64 [] in the model and int32 [] there" in rejected(trained, model.count)


@pytest.mark.parametrize("path", ["model", "saved.model", "saved/model"])
def test_places_are_those_below_the_object_path(path: str, tmp_path: Path) -> None:
    block = Block(kernel=[2, 3])
    holder = tf.Module()
    holder.model = block
    objects = {"model": block} if path == "model" else {"saved": holder}
    model = Block(kernel=[2, 3])
    trained = TrainedModel(model, saved(tmp_path, **objects), path)
    steps = path_steps(path)
    assert trained.locations == {
        resource(model.kernel.handle): VariableLocation("kernel", key(*steps, "kernel"))
    }


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("other", "there is no 'other' among model, step"),
        ("model.block", "there is no 'block' among bias, kernel"),
        ("model.kernel.value", "there is no 'value' among no attributes"),
    ],
)
def test_object_path_that_is_not_there_is_rejected(path: str, message: str, tmp_path: Path) -> None:
    block = Block(kernel=[2, 3], bias=[3])
    checkpoint = saved(tmp_path, step=tf.Variable(1), model=block)
    assert rejected(TrainedModel(block, checkpoint, path)) == (
        f"checkpoint PREFIX has no object {path!r} (checkpoint.object_path): {message}"
    )


@pytest.mark.parametrize(
    ("kind", "method"), [("TensorFlow", "by variable names"), ("Orbax", "by Orbax")]
)
def test_checkpoint_without_objects_is_rejected(kind: Any, method: str) -> None:
    checkpoint = Checkpoint(Path("model.keras"), Listing("", {}, Storage(kind=kind)), "saved")
    assert rejected(TrainedModel(Block(), checkpoint, "")) == (
        f"checkpoint PREFIX was saved {method}, without an object graph, which is needed to find a "
        "model's weights; load it into the model and save that with tf.train.Checkpoint, or export "
        "tables (rowcast-export tables); for TF1 code, let the factory return a function that "
        "builds the graph"
    )


def test_places_are_those_of_moving_averages(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=Block(kernel=[2], average=[2], bias=[2]))
    averages = {key("model", "kernel"): key("model", "average"), key("model", "bias"): "absent"}
    storage = replace(checkpoint.storage, averages=averages)
    entries = checkpoint.entries
    averaged = Checkpoint(checkpoint.prefix, Listing("", entries, storage), "saved")
    model = Block(kernel=[2], bias=[2])
    assert list(TrainedModel(model, averaged, "model").locations.values()) == [
        VariableLocation("kernel", key("model", "average")),
        VariableLocation("bias", ""),
    ]


class Wrapper(tf.Module):  # type: ignore[misc]
    """Another object of a variable, as distribution strategies have them."""

    def __init__(self, variable: Any) -> None:
        super().__init__()
        self._handle = variable.handle

    @property
    def handle(self) -> Any:
        return self._handle


@pytest.mark.parametrize("names", [("earlier", "later"), ("later", "earlier")])
def test_place_of_a_variable_with_several_objects_is_the_one_that_was_saved(
    names: tuple[str, str], tmp_path: Path
) -> None:
    checkpoint = saved(tmp_path, model=Block(**{names[0]: [2]}))
    model = Block(**{names[0]: [2]})
    variable = getattr(model, names[0])
    setattr(model, names[1], Wrapper(variable))
    locations = TrainedModel(model, checkpoint, "model").locations
    assert locations == {
        resource(variable.handle): VariableLocation(names[0], key("model", names[0]))
    }


def test_holder_of_a_variable_is_the_first_object_that_was_saved_with_it(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, net=Block(kernel=[2]), other=Block(bias=[2]))
    model = Block(kernel=[2], bias=[2], more=[2])
    trained = TrainedModel(model, checkpoint, "")
    holders = [trained.holder_of(variable) for variable in (model.kernel, model.bias, model.more)]
    assert holders == ["net", "other", ""]


def test_table_keys_are_those_of_tables_that_were_saved(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, model=Block(users=[4, 2]))
    model = Block(users=[4, 2], movies=[5, 2])
    tables = {"users": model.users, "movies": model.movies, "hidden": tf.Variable([[1.0]])}
    trained = TrainedModel(model, checkpoint, "model")
    assert trained.table_keys(tables) == {"users": key("model", "users")}


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, ""), (6, " and 1 more")])
def test_note_names_the_matrices_that_the_model_lacks(
    count: int, more: str, tmp_path: Path
) -> None:
    whole = tf.Module()
    whole.known = Block(kernel=[2, 3])
    whole.block = Block(**{f"v{number}": [2, number] for number in range(count)})
    checkpoint = saved(tmp_path, model=whole)
    model = tf.Module()
    model.known = Block(kernel=[2, 3])
    trained = TrainedModel(model, checkpoint, "model")
    listed = ", ".join(f"block.v{number} [2, {number}]" for number in range(min(count, 5)))
    assert trained.note_unmatched_weights(set(checkpoint.entries) - {"_CHECKPOINTABLE"}) == (
        f"checkpoint {checkpoint.name} also holds {listed}{more}, which the model code lacks; if "
        "they are needed for these outputs, the code is not the one that was trained",
    )
    assert trained.note_unmatched_weights([key("model", "known", "kernel")]) == ()


@pytest.mark.parametrize(
    ("object_path", "path"), [("model", "hidden.bias"), ("model.hidden", "bias")]
)
def test_object_with_fewer_variables_than_were_saved_is_rejected(
    object_path: str, path: str, tmp_path: Path
) -> None:
    whole = tf.Module()
    whole.hidden = Block(kernel=[2, 3], bias=[3])
    checkpoint = saved(tmp_path, model=whole)
    model = tf.Module()
    model.hidden = Block(kernel=[2, 3])
    root = model if object_path == "model" else model.hidden
    with pytest.raises(CheckpointError, match=rf"also holds {path} \[3\], which the model code"):
        TrainedModel(root, checkpoint, object_path).note_unmatched_weights(checkpoint.entries)


def test_what_training_counts_beside_the_model_may_be_left_out(tmp_path: Path) -> None:
    model = Block(kernel=[2, 3])
    checkpoint = saved(tmp_path, kernel=model.kernel, step=tf.Variable(3))
    assert TrainedModel(model, checkpoint, "").note_unmatched_weights(checkpoint.entries) == ()


def test_object_that_has_made_no_variable_yet_may_have_them_in_the_checkpoint(
    tmp_path: Path,
) -> None:
    whole = tf.Module()
    whole.hidden = Block(kernel=[3], bias=[3])
    checkpoint = saved(tmp_path, model=whole)
    model = tf.Module()
    model.hidden = Block()
    trained = TrainedModel(model, checkpoint, "model")
    assert trained.note_unmatched_weights(checkpoint.entries) == ()


def test_layer_with_fewer_variables_than_a_file_of_keras_is_rejected() -> None:
    model = keras.Sequential([keras.layers.Dense(2, use_bias=False)])
    model.build((None, 3))
    paths = {"layers/dense/vars/0": (3, 2), "layers/dense/vars/1": (2,)}
    entries = {path: Entry(path, "float32", shape, ()) for path, shape in paths.items()}
    listing = Listing("", entries, Storage(kind="Keras"))
    trained = TrainedModel(model, Checkpoint(Path("model.keras"), listing, "saved"), "")
    with pytest.raises(CheckpointError, match=r"also holds layers/dense/vars/1 \[2\], which"):
        trained.note_unmatched_weights(entries)


def test_vectors_that_the_model_lacks_are_not_noted(tmp_path: Path) -> None:
    whole = tf.Module()
    whole.block = Block(bias=[3])
    checkpoint = saved(tmp_path, model=whole)
    trained = TrainedModel(tf.Module(), checkpoint, "model")
    assert trained.note_unmatched_weights([key("model", "block", "bias")]) == ()


def test_note_of_a_file_of_keras_names_matrices_that_no_layer_reads() -> None:
    model = keras.Sequential([keras.layers.Dense(2, use_bias=False)])
    model.build((None, 3))
    paths = {"layers/dense/vars/0": (3, 2), "other/vars/0": (4, 2), "other/vars/1": (2,)}
    entries = {path: Entry(path, "float32", shape, ()) for path, shape in paths.items()}
    checkpoint = Checkpoint(
        Path("model.keras"), Listing("", entries, Storage(kind="Keras")), "saved"
    )
    (note,) = TrainedModel(model, checkpoint, "").note_unmatched_weights(entries)
    assert note.startswith("checkpoint saved also holds other/vars/0 [4, 2], which the model code")


def test_restore_model_assigns_all_but_the_tables_that_stay_where_they_are(tmp_path: Path) -> None:
    kernel = np.arange(4, dtype=np.float32).reshape(2, 2)
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        file.create_dataset("layers/embedding/vars/0", data=np.ones((4, 2), np.float32))
        file.create_dataset("layers/dense/vars/0", data=kernel)
    with tables_unallocated() as placeholders:
        dense = keras.layers.Dense(2, use_bias=False)
        model = keras.Sequential([keras.layers.Embedding(4, 2), dense])
        model.build((None, 1))
    table, restored = placeholders
    table.restored = False

    TrainedModel(model, open_checkpoint(tmp_path / "model.weights.h5"), "").restore_model()

    np.testing.assert_array_equal(dense.kernel.numpy(), kernel)
    assert restored.restored is True
    assert not tf.raw_ops.VarIsInitializedOp(resource=table.handle)
