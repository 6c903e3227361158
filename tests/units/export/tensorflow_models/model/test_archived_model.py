"""What a file of Keras 3 says beside its variables is what the factory builds, or is rejected."""

from __future__ import annotations

import importlib
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.model.archived_model import check_archived_model
from export.tensorflow_models.model.tracing import trace_towers
from export.tensorflow_models.model.weights import TrainedModel
from tests.units.export.traced_models import recipe

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"  # Keras saves so
)

tf = load_tensorflow()
keras = pytest.importorskip("keras")
layers = keras.layers

GENRES = ("Action", "Comedy", "Drama")
PRICES = np.array([1.0, 2.0, 3.0, 5.0, 8.0], np.float32)


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


def other_activation(values: Any) -> Any:
    return values * 3


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
    mean: float = 1.5,
    power: float = 2.0,
    text: Callable[[], Any] = lambda: text_layer(adapt=("a b", "b c", "b")),
    first: str = "first",
    second: str = "second",
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
    normal = layers.Normalization(mean=mean, variance=1.0, name="normal")(price)
    pair = (genre_table, embedded) if exchanged else (embedded, genre_table)
    difference = layers.Dense(4, activation=activation, name=first)(
        layers.Subtract(name="minus")(pair)
    )
    right = layers.Dense(4, activation=custom_activation, name=second)(normal**power)
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


def rejection(path: Path, model: Any, object_path: str = "") -> str:
    with pytest.raises(CheckpointError) as caught:
        check_archived_model(model, open_checkpoint(path), object_path)
    return str(caught.value)


FILE = "is {} in the file and {} in the model"
DIFFERENCES: list[tuple[dict[str, Any], str]] = [
    (
        {"words": lambda: adapted(("red", "blue", "green"))},
        "layer 'words' (StringLookup): vocabulary entry 2 " + FILE.format("'green'", "'blue'"),
    ),
    (
        {"words": lambda: adapted(("red", "green"))},
        "layer 'words' (StringLookup): the vocabulary has more than 3 entries in the file and 3 in "
        "the model",
    ),
    (
        {"words": lambda: given(["red", "x", "blue"], name="words")},
        "layer 'words' (StringLookup): vocabulary entry 2 " + FILE.format("'green'", "'x'"),
    ),
    (
        {"words": lambda: adapted(("red", "green", "blue"), num_oov_indices=2)},
        "layer 'words' (StringLookup): num_oov_indices " + FILE.format(1, 2),
    ),
    (
        {"genres": lambda: given(("Action", "Drama", "Comedy"))},
        "layer 'genres' (StringLookup): vocabulary entry 1 " + FILE.format("'Comedy'", "'Drama'"),
    ),
    (
        {"genres": lambda: given((*GENRES, "Horror"))},
        "layer 'genres' (StringLookup): the vocabulary has 3 entries in the file and 4 in the "
        "model",
    ),
    ({"salt": 8}, "layer 'hashed' (Hashing): salt[0] " + FILE.format(7, 8)),
    (
        {"boundaries": (2.0, 4.5)},
        "layer 'buckets' (Discretization): bin_boundaries[1] " + FILE.format(4.0, 4.5),
    ),
    (
        {"activation": "gelu"},
        "layer 'first' (Dense): activation " + FILE.format("'relu'", "'gelu'"),
    ),
    (
        {"activation": other_activation},
        "layer 'first' (Dense): activation " + FILE.format("'relu'", "'other_activation'"),
    ),
    (
        {"mask_zero": True},
        "layer 'word_table' (Embedding): mask_zero " + FILE.format(False, True),
    ),
    (
        {"exchanged": True},
        "layer 'genre' (InputLayer) is in the place of layer 'word' of the file",
    ),
    ({"mean": 1.0}, "layer 'normal' (Normalization): mean " + FILE.format(1.5, 1.0)),
    (
        {"power": 3.0},
        "layer 'power' (Power): what it is called on[0].args[1] " + FILE.format(2.0, 3.0),
    ),
    (
        {"text": lambda: text_layer(adapt=("a b", "a c", "a"))},
        "layer 'text' (TextVectorization): vocabulary entry 2 " + FILE.format("'b'", "'a'"),
    ),
    (
        {"text": lambda: text_layer(adapt=("a b", "b c", "b"), ngrams=2)},
        "layer 'text' (TextVectorization): ngrams " + FILE.format(None, 2),
    ),
    (
        {"first": "second", "second": "first"},
        "layer 'second' (Dense) is in the place of layer 'first' of the file",
    ),
    (
        {"out": {"use_bias": False}},
        "layer 'out' (Dense): use_bias " + FILE.format(True, False),
    ),
]


@pytest.mark.parametrize(("changes", "message"), DIFFERENCES)
def test_model_that_differs_from_its_archive_is_rejected_with_layer_and_difference(
    archive: Path, changes: dict[str, Any], message: str
) -> None:
    assert message in rejection(archive, build(**changes))


def test_vocabulary_of_the_archive_is_the_remedy(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        lines = opened.read("assets/layers/string_lookup/vocabulary.txt").decode().split("\n")
    model = build(words=lambda: given(lines, name="words"))
    assert check_archived_model(model, open_checkpoint(archive), "") == ()


HARMLESS: list[dict[str, Any]] = [
    {},
    {"first": "renamed"},
    {"out": {"kernel_initializer": "zeros", "bias_regularizer": "l2", "trainable": False}},
    {"out": {"kernel_constraint": "non_neg", "dtype": "float32"}},
    {"genres": lambda: given(("[UNK]", *GENRES))},
    {"genres": lambda: given(np.array(GENRES))},
]


@pytest.mark.parametrize("changes", HARMLESS)
def test_differences_that_change_no_value_are_no_reason_to_reject(
    archive: Path, changes: dict[str, Any]
) -> None:
    assert check_archived_model(build(**changes), open_checkpoint(archive), "") == ()


def test_vocabulary_that_the_factory_adapts_is_that_of_the_configuration(archive: Path) -> None:
    genres = ("Comedy", "Action", "Drama")
    message = rejection(archive, build(genres=lambda: adapted(genres, name="genres")))
    assert "layer 'genres' (StringLookup): vocabulary entry 0 is 'Action' in the file" in message
    model = build(genres=lambda: adapted(GENRES, name="genres"))
    assert check_archived_model(model, open_checkpoint(archive), "") == ()


def rewritten(archive: Path, path: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """Writes a copy of an archive, with each file as `change` returns it, None: without it."""
    with zipfile.ZipFile(archive) as opened, zipfile.ZipFile(path, "w") as copy:
        for name in opened.namelist():
            content = change(name, opened.read(name))
            if content is not None:
                copy.writestr(name, content)
    return path


def test_archive_that_was_unzipped_says_the_same(archive: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(archive, tmp_path, "zip")
    assert "salt[0] is 7 in the file" in rejection(tmp_path, build(salt=8))
    words = build(words=lambda: adapted(("red", "blue", "green")))
    assert "vocabulary entry 2 is 'green'" in rejection(tmp_path / "model.weights.h5", words)


def test_settings_of_another_program_beside_weights_say_nothing(tmp_path: Path) -> None:
    build().save_weights(tmp_path / "model.weights.h5")
    (tmp_path / "config.json").write_text('{"learning_rate": 0.1}')
    assert check_archived_model(build(salt=8), open_checkpoint(tmp_path), "") == ()


def test_archive_whose_vocabulary_is_gone_is_rejected(archive: Path, tmp_path: Path) -> None:
    def without(name: str, content: bytes) -> bytes | None:
        return None if name == "assets/layers/string_lookup/vocabulary.txt" else content

    message = rejection(rewritten(archive, tmp_path / "a.keras", without), build())
    assert "layer 'words' (StringLookup): the file has no vocabulary of it" in message


def test_vocabulary_of_a_layer_that_the_model_lacks_is_rejected(
    archive: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.keras"
    shutil.copyfile(archive, path)
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr("assets/other/vocabulary.txt", "a")
    assert "it holds 'other/vocabulary.txt'" in rejection(path, build())


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


def test_file_that_keras_does_not_write_is_rejected(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.keras"
    shutil.copyfile(archive, path)
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr("row_order.json", "{}")
    with pytest.raises(CheckpointError, match=r"these fields are unknown: 'row_order\.json'"):
        open_checkpoint(path)


def test_configuration_that_is_nested_too_deeply_is_rejected(archive: Path, tmp_path: Path) -> None:
    deep = b'{"class_name":' * 100_000
    path = rewritten(
        archive,
        tmp_path / "a.keras",
        lambda name, content: deep if name == "config.json" else content,
    )
    with pytest.raises(CheckpointError, match=r"nested too deeply|cannot be read"):
        open_checkpoint(path)


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
    assert check_archived_model(build(), open_checkpoint(path), "") == ()
    assert "(Embedding): mask_zero is False in the file" in rejection(path, build(mask_zero=True))


def lambda_model(factor: float) -> Any:
    keras.utils.clear_session()
    number = keras.Input((2,), name="number")
    scaled = layers.Lambda(lambda values: values * factor, name="scaled")(number)
    return keras.Model(number, layers.Dense(1)(scaled))


def test_code_of_a_lambda_is_the_factorys_with_a_note_and_what_it_holds_is_compared(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.keras"
    lambda_model(2.0).save(path)
    assert check_archived_model(lambda_model(2.0), open_checkpoint(path), "") == ()
    assert "layer 'scaled' (Lambda): function.closure[0]" in rejection(path, lambda_model(3.0))

    def code_of_another_file(name: str, content: bytes) -> bytes:
        return re.sub(b'"code": "[^"]*"', b'"code": "AAAA"', content)

    rewritten_file = rewritten(path, tmp_path / "b.keras", code_of_another_file)
    (note,) = check_archived_model(lambda_model(2.0), open_checkpoint(rewritten_file), "")
    assert note.startswith("layer 'scaled' (Lambda): the code of a lambda is the factory's")


def weighted_text(documents: tuple[str, ...]) -> Any:
    keras.utils.clear_session()
    text = layers.TextVectorization(output_mode="tf_idf", name="text")
    text.adapt(np.array(documents))
    word = keras.Input((), dtype="string", name="word")
    return keras.Model(word, layers.Dense(1)(text(word)))


@pytest.mark.parametrize("form", ["a.keras", "a.weights.h5"])
def test_idf_weights_of_a_file_are_those_of_the_model(form: str, tmp_path: Path) -> None:
    model = weighted_text(("a b", "a c", "a"))
    save = model.save if form.endswith(".keras") else model.save_weights
    save(tmp_path / form)
    same = weighted_text(("a b", "a c", "a"))
    assert check_archived_model(same, open_checkpoint(tmp_path / form), "") == ()
    message = rejection(tmp_path / form, weighted_text(("a b", "a c", "a", "a")))
    assert "layer 'text' (TextVectorization): idf_weights is float32 [4]" in message


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


class ServedHolder(Holder):
    """Adds a method for the export."""


def test_model_of_a_class_is_compared_by_its_arguments_and_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "a.keras"
    model = Holder()
    model(tf.constant(["a"]))
    model.save(path)
    assert check_archived_model(ServedHolder(), open_checkpoint(path), "") == ()
    assert "the model: dim is 2 in the file and 3 in the model" in rejection(path, Holder(dim=3))
    message = rejection(path, Holder(("a", "b")))
    assert "layer 'words' (StringLookup): vocabulary entry 1 is 'b' in the file" in message


def test_part_of_a_saved_model_is_compared_with_its_part_of_the_file(tmp_path: Path) -> None:
    def outer(inner: Any) -> Any:
        word = keras.Input((), dtype="string", name="word")
        return keras.Model(word, inner(word))

    def part(salt: int) -> Any:
        word = keras.Input((), dtype="string", name="inner_word")
        return keras.Model(word, layers.Hashing(5, salt=salt, name="hashed")(word))

    path = tmp_path / "a.keras"
    outer(part(3)).save(path)
    assert check_archived_model(part(3), open_checkpoint(path), "layers.functional") == ()
    message = rejection(path, part(4), "layers.functional")
    assert "layer 'hashed' (Hashing): salt[0] is 3 in the file and 4 in the model" in message


def test_orbax_checkpoint_says_the_same_as_an_archive(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    model = build()
    model.compile("sgd", "mse")
    inputs = {
        "word": tf.constant(["red", "blue"]),
        "genre": tf.constant(["Drama", "x"]),
        "price": tf.constant([[1.0], [2.0]]),
    }
    saved = keras.callbacks.OrbaxCheckpoint(str(tmp_path / "saved"), save_on_background=False)
    model.fit(inputs, {"score": np.zeros((2, 1))}, callbacks=[saved], verbose=0)
    path = tmp_path / "saved"
    assert check_archived_model(build(), open_checkpoint(path), "") == ()
    assert "salt[0] is 7 in the file and 8 in the model" in rejection(path, build(salt=8))
    words = build(words=lambda: adapted(("red", "blue", "green")))
    assert "vocabulary entry 2 is 'green' in the file" in rejection(path, words)


def of_tf_keras(words: tuple[str, ...] = GENRES, activation: str = "relu") -> Any:
    """Returns a model of tf-keras with a vocabulary that comes from data."""
    library = pytest.importorskip("tf_keras")
    word = library.Input((), dtype="string", name="word")
    lookup = library.layers.StringLookup(name="words")
    lookup.adapt(np.array(words))
    table = library.layers.Embedding(8, 4, name="word_table")(lookup(word))
    return library.Model(word, library.layers.Dense(2, activation, name="out")(table))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"activation": "gelu"},
            "layer 'out' (Dense): activation is 'relu' in the file and 'gelu'",
        ),
        (
            {"words": ("Action", "Comedy", "Horror")},
            "layer 'words' (StringLookup): vocabulary entry 1 is 'Drama' in the file and 'Horror'",
        ),
    ],
)
def test_archive_of_tf_keras_is_compared_too(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.keras"
    of_tf_keras().save(path)
    assert check_archived_model(of_tf_keras(), open_checkpoint(path), "") == ()
    assert message in rejection(path, of_tf_keras(**changes))


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_factory_that_loads_the_archive_has_the_constants_of_its_layers(
    library: str, tmp_path: Path
) -> None:
    """Positions that a model of layers looks up while it is made are in its configuration alone."""
    of_library = importlib.import_module(library)
    item = of_library.Input((4,), dtype="int32", name="item")
    rows = of_library.layers.Embedding(9, 2)(item)
    positions = of_library.layers.Embedding(4, 2)(tf.range(4))
    trained = of_library.Model({"item": item}, of_library.layers.Flatten()(rows + positions))
    trained.compile("adam", "mse")
    items = {"item": np.array([[1, 2, 3, 4]])}
    trained.fit(items, np.ones((1, 8)), verbose=0)
    path = tmp_path / "model.keras"
    trained.save(path)
    (tmp_path / "factory.py").write_text(
        f"import {library}\n\ndef build():\n    return {library}.models.load_model({str(path)!r})\n"
    )

    inputs = {"item": {"dtype": "int32", "shape": [4]}}
    job = recipe("factory.py:build", inputs, {"tower": {"role": "query"}})
    model = trace_towers(job, tmp_path).root

    checkpoint = open_checkpoint(path)
    assert check_archived_model(model, checkpoint, "") == ()
    TrainedModel(model, checkpoint, "").restore_model()
    np.testing.assert_allclose(model(items), trained(items), rtol=1e-6)
