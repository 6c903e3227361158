"""Variables of small models of Keras 3, found in what Keras saved of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import pytest

from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import (
    Entry,
    Listing,
    Storage,
    StorageKind,
    is_wider_integer,
)
from export.errors import CheckpointError
from export.graphs.loading import tf
from export.graphs.walks import resource
from export.tensorflow_models.frameworks.placeholders import remember_line
from export.tensorflow_models.model.keras_variables import (
    find_keras_variables,
    saved_by_keras,
    variables_of,
)
from export.tensorflow_models.model.object_paths import VariableLocation

Shapes = Mapping[str, tuple[int, ...]]


def checkpoint(kind: StorageKind, shapes: Shapes) -> Checkpoint:
    """Returns a checkpoint of float32 variables by their keys."""
    entries = {key: Entry(key, "float32", shape, ()) for key, shape in shapes.items()}
    return Checkpoint(Path("saved"), Listing("", entries, Storage(kind=kind)), "saved")


def hdf5(*paths: str) -> Checkpoint:
    return checkpoint("Keras", dict.fromkeys(paths, (3, 2)))


def orbax(*paths: str) -> Checkpoint:
    """Returns what OrbaxCheckpoint saved of variables of layers, by their paths."""
    return checkpoint("Orbax", {f"trainable_variables.{path}": (3, 2) for path in paths})


@pytest.mark.parametrize(
    ("kind", "keys", "by_keras"),
    [
        ("Keras", [], True),
        ("TensorFlow", ["trainable_variables.a"], False),
        ("Orbax", ["other", "trainable_variables.a"], True),
        ("Orbax", ["pytree.non_trainable_variables.a"], True),
        ("Orbax", ["trainable_variables"], False),
        ("Orbax", ["optimizer_variables.a"], False),
        ("Orbax", ["params.trainable_variables.a"], False),
    ],
)
def test_saved_by_keras_tells_its_files_and_trees(
    kind: StorageKind, keys: list[str], by_keras: bool
) -> None:
    assert saved_by_keras(checkpoint(kind, dict.fromkeys(keys, ()))) == by_keras


@pytest.mark.parametrize(
    ("dtype", "stored", "wider"),
    [
        ("int64", "int32", True),
        ("int32", "int32", True),
        ("int64", "uint32", True),
        ("uint64", "uint8", True),
        ("int32", "int64", False),
        ("int32", "uint32", False),
        ("uint64", "int8", False),
        ("float64", "int32", False),
        ("int64", "bool", False),
        ("int64", "string", False),
        ("string", "int64", False),
    ],
)
def test_is_wider_integer_holds_every_integer(dtype: str, stored: str, wider: bool) -> None:
    assert is_wider_integer(dtype, stored) == wider


def test_variables_of_a_model_are_all_but_random_states() -> None:
    model = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(2)])
    model.build((None, 3))
    dense = model.layers[1]
    assert len(model.variables) == 3
    assert [id(variable) for variable in variables_of(model, hdf5())] == [
        id(dense.kernel.value),
        id(dense.bias.value),
    ]


class Two(keras.Model):  # type: ignore[misc]
    """Two layers without biases."""

    def __init__(self, name: str = "two", **names: str | None) -> None:
        super().__init__(name=name)
        for layer_name in ("first", "second"):
            layer = keras.layers.Dense(2, use_bias=False, name=names.get(layer_name, layer_name))
            setattr(self, layer_name, layer)

    def call(self, numbers: Any) -> Any:
        return self.second(self.first(numbers))


class Blocks(keras.Model):  # type: ignore[misc]
    """Layers in a list."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = [keras.layers.Dense(2, use_bias=False) for _ in range(count)]

    def call(self, numbers: Any) -> Any:
        for block in self.blocks:
            numbers = block(numbers)
        return numbers


def built(model: Any) -> Any:
    """Returns a model after its first call, which remembers the line that made its variables."""
    model(tf.ones([1, 3]))
    for variable in model.variables:
        remember_line(variable.value)
    return model


def locations_of(model: Any, saved: Checkpoint, object_path: str = "") -> list[VariableLocation]:
    """Returns the places of the variables of a model, in their order."""
    locations = find_keras_variables(model, saved, object_path)
    return [locations[resource(variable.value.handle)] for variable in model.variables]


def rejected(model: Any, saved: Checkpoint, object_path: str = "") -> str:
    """Returns why variables are not found, without the numbers of lines."""
    with pytest.raises(CheckpointError) as problem:
        find_keras_variables(model, saved, object_path)
    return re.sub(r"\.py:\d+", ".py", str(problem.value))


def test_variables_of_what_is_no_model_of_keras_are_rejected() -> None:
    assert rejected(tf.Module(), hdf5()) == (
        "checkpoint saved was saved by Keras; the factory returned a Module: return the "
        "keras.Model that was saved"
    )


def test_variables_in_hdf5_are_found_by_the_attributes_of_their_layers() -> None:
    # Keras walks attributes by their names, and finds the second layer among `layers`.
    model = built(Two())
    second = "layers/dense_1/vars/0"
    assert locations_of(model, hdf5("first/vars/0")) == [
        VariableLocation("first/vars/0", "first/vars/0"),
        VariableLocation(second, ""),
    ]
    assert locations_of(model, hdf5(f"towers/two/{second}"), "towers.two") == [
        VariableLocation("towers/two/first/vars/0", ""),
        VariableLocation(f"towers/two/{second}", f"towers/two/{second}"),
    ]


def test_values_that_a_layer_computes_to_save_them_are_no_variables() -> None:
    model = built(Two())
    model.first.enable_lora(1)
    locations = find_keras_variables(model, hdf5("first/vars/0"), "")
    assert [location.path for location in locations.values()] == ["layers/dense_1/vars/0"]


def test_whole_model_that_does_not_state_the_order_of_layers_is_rejected() -> None:
    message = rejected(built(Two()), hdf5("first/vars/0", "model_weights/first/kernel"))
    assert message == (
        "checkpoint saved is in Keras's older format, and lacks the attribute layer_names, which "
        "states the order of its layers: without it, it gives only tables. Save the model with "
        'model.save("model.keras") or model.save_weights("model.weights.h5")'
    )


@pytest.mark.parametrize("count", [1, 5, 6])
def test_longer_list_of_layers_in_the_file_is_rejected(count: int) -> None:
    more = [f"blocks/dense_{number}/vars/0" for number in range(2, 2 + count)]
    listed = ", ".join(f"{key} [3, 2]" for key in more[:5])
    ending = " and 1 more" if count > 5 else ""
    message = rejected(built(Blocks(2)), hdf5("blocks/dense_1/vars/0", *more))
    assert message == (
        f"checkpoint saved also holds {listed}{ending}, which the model lacks: it has fewer layers "
        "of that class than the model that was saved. The model code is not the one that was saved"
    )


@pytest.mark.parametrize(
    "other_key",
    [
        "blocks/dense_1/vars/7",
        "blocks/embedding_2/vars/0",
        "blocks/other/vars/0",
        "dense_2/vars/0",
        "blocks/dense_2",
    ],
)
def test_other_values_in_the_file_are_accepted(other_key: str) -> None:
    model = built(Blocks(2))
    assert locations_of(model, hdf5("blocks/dense/vars/0", other_key)) == [
        VariableLocation("blocks/dense/vars/0", "blocks/dense/vars/0"),
        VariableLocation("blocks/dense_1/vars/0", ""),
    ]


FIRST = "trainable_variables.{}first.kernel"
SECOND = "trainable_variables.{}second.kernel"


@pytest.mark.parametrize(
    "beginning", ["two.", "outer.two.", "outer.inner.two.", ""], ids=["same", "longer", "2", "end"]
)
def test_variables_in_orbax_are_found_by_their_paths_or_the_ends_of_those(beginning: str) -> None:
    saved = orbax(f"{beginning}first.kernel", f"{beginning}second.kernel", "other.bias")
    assert locations_of(built(Two()), saved) == [
        VariableLocation("two/first/kernel", FIRST.format(beginning)),
        VariableLocation("two/second/kernel", SECOND.format(beginning)),
    ]


def test_variable_in_orbax_is_found_where_the_whole_item_has_a_name() -> None:
    key = "pytree.non_trainable_variables.two.first.kernel"
    locations = locations_of(built(Two()), checkpoint("Orbax", {key: (3, 2)}))
    assert locations == [
        VariableLocation("two/first/kernel", key),
        VariableLocation("two/second/kernel", ""),
    ]


def test_variable_in_orbax_has_its_own_path_before_longer_or_shorter_ones() -> None:
    saved = orbax("two.first.kernel", "outer.two.first.kernel", "first.kernel")
    assert locations_of(built(Two()), saved)[0].key == FIRST.format("two.")
    saved = orbax("outer.two.first.kernel", "first.kernel")
    assert locations_of(built(Two()), saved)[0].key == FIRST.format("outer.two.")


def test_name_of_a_variable_alone_is_not_its_path_in_orbax() -> None:
    assert [location.key for location in locations_of(built(Two()), orbax("kernel"))] == ["", ""]


def test_variable_that_may_be_any_of_several_is_rejected() -> None:
    paths = [f"{outer}.two.first.kernel" for outer in "abcde"]
    message = rejected(built(Two()), orbax(*paths))
    assert message == (
        "variable two/first/kernel (test_find_keras_variables.py) may be any of "
        f"{', '.join(paths[:4])} in checkpoint saved: call the model in the factory as training "
        "does, so that its variables get the same paths, or write checkpoint.object_path"
    )


def test_object_path_selects_what_is_below_it_in_orbax() -> None:
    saved = orbax("left.two.first.kernel", "leftover.two.first.kernel", "left.two.second.kernel")
    assert [location.key for location in locations_of(built(Two()), saved, "left")] == [
        FIRST.format("left.two."),
        SECOND.format("left.two."),
    ]
    saved = orbax("a.left.two.first.kernel", "b.left.two.first.kernel")
    assert locations_of(built(Two()), saved, "a/left")[0].key == FIRST.format("a.left.two.")


def test_variables_that_fit_one_path_in_orbax_are_rejected() -> None:
    message = rejected(built(Two(first="same", second="same")), orbax("two.same.kernel"))
    where = "two/same/kernel (test_find_keras_variables.py)"
    assert message == (
        f"variables {where} and {where} of the model both fit two.same.kernel in checkpoint "
        "saved: call the model in the factory as training does, so that its variables get the "
        "same paths"
    )


def lists(*beginnings: str, shapes: tuple[tuple[int, ...], ...] = ((3, 2), (2, 2))) -> Checkpoint:
    """Returns what RecML's JaxTrainer saved of variables, in a list at each beginning."""
    keys = {
        f"{beginning}tvars.{number}": shape
        for beginning in beginnings
        for number, shape in enumerate(shapes)
    }
    return checkpoint("Orbax", {**keys, "step": (), "opt_state.0.count": ()})


def test_variables_in_lists_are_found_by_their_positions() -> None:
    assert saved_by_keras(lists(""))
    assert locations_of(built(Two()), lists("")) == [
        VariableLocation("two/first/kernel", "tvars.0"),
        VariableLocation("two/second/kernel", "tvars.1"),
    ]


def test_object_path_selects_one_of_several_lists() -> None:
    saved = lists("state.", "ema.state.")
    assert [location.key for location in locations_of(built(Two()), saved, "ema/state")] == [
        "ema.state.tvars.0",
        "ema.state.tvars.1",
    ]
    assert rejected(built(Two()), saved) == (
        "checkpoint saved has lists of variables in several places: write checkpoint.object_path, "
        "'ema.state' or 'state'"
    )
    message = "checkpoint saved has no lists of variables at 'other' (checkpoint.object_path): "
    assert rejected(built(Two()), saved, "other") == f"{message}write 'ema.state' or 'state'"
    assert rejected(built(Two()), lists(""), "other") == f"{message}leave it out"


OTHER_CODE = (
    ". The model code is not the one that was saved, or layers that the calls of the recipe do not "
    "use have made no variables: call the model once in the factory, as training does"
)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((3, 2),),
            "checkpoint saved has 1 variables in its list 'tvars', and trainable_variables of the "
            "model are 2",
        ),
        (
            ((3, 2), (2, 3)),
            "checkpoint saved has float32 [2, 3] at tvars.1, and variable two/second/kernel of the "
            "model (test_find_keras_variables.py) is float32 [2, 2]",
        ),
    ],
    ids=["number", "shape"],
)
def test_lists_of_another_model_are_rejected(
    shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    assert rejected(built(Two()), lists("", shapes=shapes)) == message + OTHER_CODE


def test_dtype_of_a_state_of_random_numbers_is_that_of_the_framework() -> None:
    model = keras.Sequential([keras.layers.Dense(2, use_bias=False), keras.layers.Dropout(0.5)])
    model.build((None, 3))
    entries = {
        "0.0": Entry("0.0", "float32", (3, 2), ()),
        "1.0": Entry("1.0", "uint32", (2,), ()),
    }
    saved = Checkpoint(Path("saved"), Listing("", entries, Storage(kind="Orbax")), "saved")
    assert [location.key for location in locations_of(model, saved)] == ["0.0", "1.0"]
    entries["0.0"] = Entry("0.0", "bfloat16", (3, 2), ())
    saved = Checkpoint(Path("saved"), Listing("", entries, Storage(kind="Orbax")), "saved")
    assert "has bfloat16 [3, 2] at 0.0" in rejected(model, saved)


@pytest.mark.parametrize(
    "saved", [orbax("0", "two.second.kernel"), orbax()], ids=["one number", "nothing"]
)
def test_orbax_that_is_no_list_is_accepted(saved: Checkpoint) -> None:
    assert locations_of(built(Two()), saved)[0] == VariableLocation("two/first/kernel", "")


def test_layer_that_keras_numbered_otherwise_is_rejected() -> None:
    keras.backend.clear_session()
    model = built(Two(first=None))
    assert model.first.name == "dense"
    assert rejected(model, orbax("two.dense_3.kernel", "two.second.kernel")) == (
        "checkpoint saved has two.dense_3.kernel, and no layer of the model is called 'dense_3': "
        "Keras numbered the layers otherwise when the model was trained, so a number may be that "
        "of another layer. Let the factory make all layers of the saved model with their names in "
        'the checkpoint, as in Dense(..., name="dense_3"); or save the trained model with '
        'model.save_weights("model.weights.h5"), which needs no names'
    )


@pytest.mark.parametrize(
    "path", ["two.dense.kernel", "two.embedding_3.kernel", "two.other.dense_3", "two.second.kernel"]
)
def test_layers_with_the_names_of_the_model_or_of_no_class_of_it_are_accepted(path: str) -> None:
    keras.backend.clear_session()
    assert len(locations_of(built(Two(first=None)), orbax(path))) == 2


def test_layers_with_names_of_their_own_are_not_numbered() -> None:
    assert [
        location.key for location in locations_of(built(Two()), orbax("two.first_3.kernel"))
    ] == [
        "",
        "",
    ]
