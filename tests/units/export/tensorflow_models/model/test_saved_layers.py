"""What a SavedModel of tf-keras, or a whole model in HDF5, says of its layers is what the factory
builds, or is rejected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.model.ordered_variables import find_ordered_variables
from export.tensorflow_models.model.saved_layers import check_saved_layers

tf = load_tensorflow()
keras = pytest.importorskip("tf_keras")
keras_3 = pytest.importorskip("keras")
layers = keras.layers

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
"""What Keras warns of when it saves a whole model in HDF5."""

WORDS = ("red", "green", "blue")


class Tower(keras.Model):  # type: ignore[misc, name-defined]
    """Layers as attributes, which no configuration of the model mentions."""

    def __init__(self, salt: int = 3, activation: str = "relu", factor: float = 2.0) -> None:
        super().__init__()
        self.hashed = layers.Hashing(8, salt=salt)
        self.scaled = layers.Lambda(lambda values: values * factor)
        self.out = layers.Dense(2, activation=activation)

    def get_config(self) -> dict[str, Any]:
        return {}

    def call(self, word: Any) -> Any:
        return self.out(self.scaled(tf.cast(self.hashed(word)[:, None], tf.float32)))


def functional(
    words: tuple[str, ...] = WORDS,
    adapt: bool = False,
    activation: str = "relu",
    swap: bool = False,
) -> Any:
    word = keras.Input((), dtype="string", name="word")
    number = keras.Input((4,), name="number")
    look = layers.StringLookup(vocabulary=None if adapt else words, name="look")
    if adapt:
        look.adapt(np.array(words))
    table = layers.Embedding(4, 4, name="table")(look(word))
    pair = (number, table) if swap else (table, number)
    joined = layers.Subtract(name="minus")(pair)
    return keras.Model([word, number], layers.Dense(2, activation, name="out")(joined))


def numbers(library: Any, activation: str = "relu") -> Any:
    number = library.Input((4,), name="number")
    inside = library.Sequential([library.layers.Dense(2, activation)], name="inside")
    return library.Model(number, inside(number))


class ServedTower(Tower):
    """Adds methods for the export."""


def saved(model: Any, directory: Path) -> Any:
    model.save(directory)
    return open_checkpoint(directory)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved(functional(), tmp_path_factory.mktemp("graph") / "saved")


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = Tower()
    model(tf.constant(["a"]))
    return saved(model, tmp_path_factory.mktemp("tower") / "saved")


def test_same_model_is_taken(graph: Any, tower: Any) -> None:
    assert check_saved_layers(functional(), graph, "") == ()
    assert check_saved_layers(ServedTower(), tower, "") == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"words": ("red", "blue", "green")},
            "vocabulary entry 1 is 'green' in the file and ",
        ),
        ({"words": WORDS[:2]}, "vocabulary entry 2 is 'blue' in the file and nothing in the model"),
        (
            {"activation": "gelu"},
            "layer 'out' (Dense): activation is 'relu' in the file and ",
        ),
        ({"swap": True}, "in the place of layer "),
    ],
)
def test_graph_of_layers_that_differs_is_rejected(
    graph: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError) as rejected:
        check_saved_layers(functional(**changes), graph, "")
    assert message in str(rejected.value)


@pytest.mark.parametrize(
    ("library", "changes"),
    [
        (keras, {}),
        (keras, {"activation": "gelu"}),
        (keras_3, {}),
        (keras_3, {"activation": "gelu"}),
    ],
)
def test_whole_model_in_hdf5_is_compared(
    library: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = saved(numbers(library), tmp_path / "model.h5")
    model = numbers(library, **changes)
    if not changes:
        assert check_saved_layers(model, checkpoint, "") == ()
        return
    with pytest.raises(CheckpointError) as rejected:
        check_saved_layers(model, checkpoint, "")
    assert "(Dense): activation is 'relu' in the file and 'gelu' in the model" in str(
        rejected.value
    )
    remedy = 'save its weights alone with model.save_weights("model.weights.h5")'
    assert remedy in str(rejected.value)
    model.save_weights(tmp_path / "model.weights.h5")
    assert check_saved_layers(model, open_checkpoint(tmp_path / "model.weights.h5"), "") == ()


def test_vocabulary_that_the_factory_adapts_is_no_weight(tmp_path: Path) -> None:
    functional().save_weights(tmp_path / "weights.h5")
    checkpoint = open_checkpoint(tmp_path / "weights.h5")
    ordered = find_ordered_variables(functional(adapt=True), checkpoint)
    assert {location.key for _, location in ordered.locations} == {*checkpoint.entries}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"salt": 4}, "(Hashing): salt[0] is 3 in the file and 4 in the model"),
        ({"activation": "gelu"}, "(Dense): activation is 'relu' in the file and 'gelu'"),
        ({"factor": 3.0}, "(Lambda): function[1][0] is 2.0 in the file and 3.0"),
    ],
)
def test_layer_that_is_an_attribute_and_differs_is_rejected(
    tower: Any, changes: dict[str, Any], message: str
) -> None:
    model = Tower(**changes)
    model(tf.constant(["a"]))
    with pytest.raises(CheckpointError) as rejected:
        check_saved_layers(model, tower, "")
    assert message in str(rejected.value)


def test_vocabulary_in_the_graph_is_noted_as_not_compared(tmp_path: Path) -> None:
    checkpoint = saved(functional(adapt=True), tmp_path / "saved")
    (note,) = check_saved_layers(functional(adapt=True), checkpoint, "")
    assert note.startswith("layer 'look' (StringLookup): its vocabulary in SavedModel ")
    assert note.endswith("(verify.expected) can show whether it is the factory's")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x0a\xff", "does not describe a model of tf-keras"),
        (b"\x0a\x04\x7a\x02no", r"these fields are unknown: SavedLayer\.15"),
        (b"\x0a\x02\x1a\x00\x7a\x01a", r"these fields are unknown: SavedMetadata\.15"),
    ],
)
def test_description_that_is_damaged_or_has_unknown_fields_is_rejected(
    graph: Any, tmp_path: Path, content: bytes, words: str
) -> None:
    directory = graph.prefix.parent.parent
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"")
    for file in (directory / "variables").iterdir():
        (tmp_path / "variables" / file.name).write_bytes(file.read_bytes())
    assert open_checkpoint(tmp_path).storage.layers == {}
    (tmp_path / "keras_metadata.pb").write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path)
