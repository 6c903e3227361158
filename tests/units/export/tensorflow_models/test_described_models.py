"""What a file of Keras says of layers beside their variables is what the factory builds, or is
rejected.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.model.described_model import check_described_model
from tests.units.export.tensorflow_models.planning import assert_says

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy"),
]
"""What Keras warns of when it saves a model."""

tf = load_tensorflow()
keras = pytest.importorskip("keras")
tf_keras = pytest.importorskip("tf_keras")
layers = keras.layers

GENRES = ("Action", "Comedy", "Drama")


def adapted(words: tuple[str, ...], **arguments: Any) -> Any:
    """Returns a lookup whose vocabulary comes from data, the first word most often."""
    lookup = layers.StringLookup(**{"name": "words", **arguments})
    count = len(words)
    lookup.adapt(np.concatenate([[word] * (count - n) for n, word in enumerate(words)]))
    return lookup


def given(words: Any, **arguments: Any) -> Any:
    """Returns a lookup whose vocabulary is an argument."""
    return layers.StringLookup(vocabulary=words, **{"name": "genres", **arguments})


def text_layer(*, adapt: tuple[str, ...], **arguments: Any) -> Any:
    text = layers.TextVectorization(name="text", output_sequence_length=3, **arguments)
    text.adapt(np.array(adapt))
    return text


def custom_activation(values: Any) -> Any:
    return values * 2


def build(
    *,
    words: Callable[[], Any] = lambda: adapted(("red", "green", "blue")),
    genres: Callable[[], Any] = lambda: given(GENRES),
    salt: int | None = 7,
    boundaries: tuple[float, ...] = (2.0, 4.0),
    activation: Any = "relu",
    out: dict[str, Any] | None = None,
    mask_zero: bool = False,
    exchanged: bool = False,
    power: float = 2.0,
    text: Callable[[], Any] = lambda: text_layer(adapt=("a b", "b c", "b")),
    first: str = "first",
) -> Any:
    """Builds a model of layers whose values are not in variables alone."""
    keras.utils.clear_session()
    word = keras.Input((), dtype="string", name="word")
    genre = keras.Input((), dtype="string", name="genre")
    price = keras.Input((1,), name="price")
    embedded = layers.Embedding(8, 4, mask_zero=mask_zero, name="word_table")(words()(word))
    genre_table = layers.Embedding(8, 4, name="genre_table")(genres()(genre))
    bucket = layers.Discretization(bin_boundaries=boundaries, name="buckets")(price)
    hashed = layers.Hashing(8, salt=salt, name="hashed")(word)
    tokens = text()(word)
    normal = layers.Normalization(mean=1.5, variance=1.0, name="normal")(price)
    pair = (genre_table, embedded) if exchanged else (embedded, genre_table)
    difference = layers.Dense(4, activation=activation, name=first)(
        layers.Subtract(name="minus")(pair)
    )
    right = layers.Dense(4, activation=custom_activation, name="second")(normal**power)
    numbers = [
        layers.Reshape((-1,), name=f"flat_{n}")(keras.ops.cast(ids, "float32"))
        for n, ids in enumerate((bucket, hashed, tokens))
    ]
    joined = layers.Concatenate(name="joined")([difference, right, *numbers])
    result = layers.Dense(1, name="out", **(out or {}))(joined)
    return keras.Model({"word": word, "genre": genre, "price": price}, {"score": result})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "model.keras"
    build().save(path)
    return path


def notes_on(path: Path, model: Any, object_path: str = "") -> tuple[str, ...]:
    """Compares a model with what Keras saved, and returns notes on what cannot be compared."""
    return check_described_model(model, open_checkpoint(path), object_path)


def rejection(path: Path, model: Any, object_path: str = "") -> str:
    with pytest.raises(CheckpointError) as caught:
        notes_on(path, model, object_path)
    return str(caught.value)


DIFFERENCES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"words": lambda: adapted(("red", "blue", "green"))},
        ("'words' (StringLookup)", "entry 2 is 'green' in the file and 'blue'"),
    ),
    ({"salt": 8}, ("'hashed' (Hashing)", "salt[0] is 7 in the file and 8")),
    ({"boundaries": (2.0, 4.5)}, ("'buckets'", "bin_boundaries[1] is 4.0 in the file and 4.5")),
    ({"activation": "gelu"}, ("'first' (Dense)", "'relu' in the file and 'gelu'")),
    ({"exchanged": True}, ("'genre'", "in the place of layer 'word'")),
    ({"power": 3.0}, ("'power' (Power)", "2.0 in the file and 3.0")),
    (
        {"text": lambda: text_layer(adapt=("a b", "a c", "a"))},
        ("'text'", "entry 2 is 'b' in the file and 'a'"),
    ),
    ({"out": {"use_bias": False}}, ("'out'", "use_bias is True in the file and False")),
]


@pytest.mark.parametrize(("changes", "words"), DIFFERENCES)
def test_model_that_differs_from_its_archive_is_rejected_with_layer_and_difference(
    archive: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert_says(rejection(archive, build(**changes)), *words)


HARMLESS: list[dict[str, Any]] = [
    {"first": "renamed", "out": {"kernel_initializer": "zeros", "kernel_constraint": "non_neg"}},
    {"out": {"bias_regularizer": "l2", "trainable": False, "dtype": "float32"}},
    {"genres": lambda: given(("[UNK]", *GENRES))},
    {"genres": lambda: adapted(GENRES, name="genres")},
]


@pytest.mark.parametrize("changes", HARMLESS)
def test_differences_that_change_no_value_are_no_reason_to_reject(
    archive: Path, changes: dict[str, Any]
) -> None:
    assert notes_on(archive, build(**changes)) == ()


def rewritten(archive: Path, path: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """Writes a copy of an archive, with each file as `change` returns it, None: without it."""
    with zipfile.ZipFile(archive) as opened, zipfile.ZipFile(path, "w") as copy:
        for name in opened.namelist():
            content = change(name, opened.read(name))
            if content is not None:
                copy.writestr(name, content)
    return path


def test_archive_whose_vocabulary_is_gone_is_rejected(archive: Path, tmp_path: Path) -> None:
    def without(name: str, content: bytes) -> bytes | None:
        return None if name == "assets/layers/string_lookup/vocabulary.txt" else content

    message = rejection(rewritten(archive, tmp_path / "a.keras", without), build())
    assert "layer 'words' (StringLookup): the file has no vocabulary of it" in message


def test_large_vocabulary_is_decompressed_no_further_than_it_can_be_equal(
    archive: Path, tmp_path: Path
) -> None:
    path = rewritten(
        archive,
        tmp_path / "a.keras",
        lambda name, content: None if name.startswith("assets/layers/string_l") else content,
    )
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as opened,
        opened.open("assets/layers/string_lookup/vocabulary.txt", "w") as file,
    ):
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    assert "vocabulary entry 0 is " in rejection(path, build())


def without_arguments(name: str, content: bytes) -> bytes:
    """Leaves out arguments, as a version of Keras does that has none of that name."""
    if name == "config.json":
        for argument in (b'"oov_method": "floormod", ', b', "mask_zero": false'):
            assert argument in content
            content = content.replace(argument, b"")
    return content


def test_argument_that_the_archive_lacks_has_the_default_of_its_class(
    archive: Path, tmp_path: Path
) -> None:
    path = rewritten(archive, tmp_path / "a.keras", without_arguments)
    assert notes_on(path, build()) == ()
    assert "(Embedding): mask_zero is False in the file" in rejection(path, build(mask_zero=True))


def lambda_model(factor: float = 2.0, library: Any = keras) -> Any:
    number = library.Input((2,), name="number")
    scaled = library.layers.Lambda(lambda values: values * factor, name="scaled")(number)
    return library.Model(number, library.layers.Dense(1)(scaled))


def weighted_text(*more: str) -> Any:
    text = layers.TextVectorization(output_mode="tf_idf", name="text")
    text.adapt(np.array(["a b", "a c", "a", *more]))
    word = keras.Input((), dtype="string", name="word")
    return keras.Model(word, layers.Dense(1)(text(word)))


class Holder(keras.Model):  # type: ignore[misc, name-defined]
    """Holds a lookup as an attribute: no configuration lists it."""

    def __init__(self, words: tuple[str, ...] = ("b", "a"), dim: int = 2, **named: Any) -> None:
        super().__init__(**named)
        self.dim = dim
        self.words = adapted(words)
        self.table = layers.Embedding(8, dim)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dim": self.dim}

    def call(self, inputs: Any) -> Any:
        return self.table(self.words(inputs))


class Other(keras.Model):  # type: ignore[misc, name-defined]
    """Has the layers of a Holder, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.words = adapted(("b", "a"))
        self.table = layers.Embedding(8, 2)


def called(model: Any) -> Any:
    model(tf.constant(["a"]))
    return model


def part(salt: int = 3) -> Any:
    word = keras.Input((), dtype="string", name="inner_word")
    return keras.Model(word, layers.Hashing(5, salt=salt, name="hashed")(word))


def whole_of_part() -> Any:
    word = keras.Input((), dtype="string", name="word")
    return keras.Model(word, part()(word))


def of_tf_keras(
    words: tuple[str, ...] = GENRES, activation: str = "relu", *, adapt: bool = False
) -> Any:
    """Returns a model of tf-keras with a vocabulary."""
    word = tf_keras.Input((), dtype="string", name="word")
    lookup = tf_keras.layers.StringLookup(vocabulary=None if adapt else words, name="words")
    if adapt:
        lookup.adapt(np.array(words))
    table = tf_keras.layers.Embedding(8, 4, name="word_table")(lookup(word))
    return tf_keras.Model(word, tf_keras.layers.Dense(2, activation, name="out")(table))


def numbers(library: Any, activation: str = "relu") -> Any:
    number = library.Input((4,), name="number")
    inside = library.Sequential([library.layers.Dense(2, activation)], name="inside")
    return library.Model(number, inside(number))


RELU = ("(Dense)", "activation is 'relu' in the file and 'gelu'")
SALT = ("(Hashing)", "salt[0] is 3 in the file and 4")
Make = Callable[[], Any]
FORMS: dict[str, tuple[str, Make, Make, tuple[str, ...]]] = {
    "what a lambda holds": (
        "a.keras",
        lambda_model,
        lambda: lambda_model(3.0),
        ("'scaled' (Lambda)", "closure[0]"),
    ),
    "what a lambda of tf-keras holds": (
        "model.h5",
        lambda: lambda_model(library=tf_keras),
        lambda: lambda_model(3.0, tf_keras),
        ("'scaled' (Lambda)", "closure[0]"),
    ),
    "weights of words in HDF5": (
        "a.weights.h5",
        weighted_text,
        lambda: weighted_text("a"),
        ("'text'", "idf_weights"),
    ),
    "vocabulary of a class": (
        "a.keras",
        lambda: called(Holder()),
        lambda: Holder(("a", "b")),
        ("'words' (StringLookup)", "entry 1 is 'b' in the file"),
    ),
    "tf-keras": ("a.keras", of_tf_keras, lambda: of_tf_keras(activation="gelu"), RELU),
    "SavedModel": ("saved", of_tf_keras, lambda: of_tf_keras(activation="gelu"), RELU),
    "whole model in HDF5": (
        "model.h5",
        lambda: numbers(keras),
        lambda: numbers(keras, "gelu"),
        (*RELU, "model.save_weights"),
    ),
}
"""What is saved in which file, what another factory makes, and words."""


@pytest.mark.parametrize(("name", "save", "other", "words"), FORMS.values(), ids=FORMS)
def test_every_form_in_which_keras_saves_a_model_is_compared(
    name: str, save: Make, other: Make, words: tuple[str, ...], tmp_path: Path
) -> None:
    keras.utils.clear_session()
    model = save()
    (model.save_weights if "weights" in name else model.save)(tmp_path / name)
    assert notes_on(tmp_path / name, save()) == ()
    assert_says(rejection(tmp_path / name, other()), *words)


def test_part_of_a_saved_model_is_compared_with_its_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.keras"
    whole_of_part().save(path)
    assert notes_on(path, part(), "layers.functional") == ()
    assert_says(rejection(path, part(4), "layers.functional"), *SALT)


def test_what_cannot_be_compared_is_noted(tmp_path: Path) -> None:
    lambda_model().save(tmp_path / "a.keras")
    path = rewritten(
        tmp_path / "a.keras",
        tmp_path / "b.keras",
        lambda _, content: re.sub(b'"code": "[^"]*"', b'"code": "AAAA"', content),
    )
    (note,) = notes_on(path, lambda_model())
    assert_says(note, "'scaled' (Lambda)", "the factory's")
    called(Holder()).save(tmp_path / "c.keras")
    (note,) = notes_on(tmp_path / "c.keras", Other())
    assert_says(note, "of class Holder in checkpoint c.keras", "of class Other")
    of_tf_keras(adapt=True).save(tmp_path / "saved")
    (note,) = notes_on(tmp_path / "saved", of_tf_keras(adapt=True))
    assert_says(note, "'words' (StringLookup)", "verify.expected")
