"""The names of layers, beside those that both generations of Keras give."""

from __future__ import annotations

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.graphs.loading import load_tensorflow
from export.tensorflow_models.frameworks.layer_names import is_automatic, name_in_list

load_tensorflow()

import tf_keras  # noqa: E402

CLASS_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(
    lambda name: name.strip("_")
)
PUBLISHED = ["New_FM", "FM_Layer", "_Tower", "__Private", "GRU4Rec", "DCNv2", "Dense_1", "MMoE_2_1"]


def check(class_name: str) -> None:
    """Compares with the names of the first layers of a class that is new to Keras."""
    for library in (tf_keras, keras):
        library.backend.clear_session()
        layers = [type(class_name, (library.layers.Layer,), {})() for _ in range(3)]
        assert name_in_list(class_name, of_keras_3=library is keras) == layers[0].name
        assert all(is_automatic(layer.name, class_name) for layer in layers)
        assert not is_automatic(f"my_{layers[0].name}", class_name)


@pytest.mark.parametrize("class_name", PUBLISHED)
def test_name_of_a_published_layer_is_that_of_its_class(class_name: str) -> None:
    check(class_name)


@given(CLASS_NAMES)
def test_name_of_any_layer_is_that_of_its_class(class_name: str) -> None:
    check(class_name)


def test_layers_that_keras_makes_itself_have_automatic_names() -> None:
    user = tf_keras.Input(4)
    model = tf_keras.Model(user, tf_keras.layers.Dense(2)(user * user + user))
    for layer in (model, *model.layers):
        assert is_automatic(layer.name, type(layer).__name__), layer.name
