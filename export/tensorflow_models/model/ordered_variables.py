"""Finds the variables of a model in HDF5 of Keras' older format: by the order of its layers and of
their weights, as Keras itself loads them.

Keras compares numbers and shapes, and assigns what fits. The file also has the names of layers and
weights, which are compared here, but for the numbers of layers that the user did not name: where
the code makes two layers of one shape in another order than it did in training, only names show it.

Keras converts some weights while it loads a file: those of Keras 1, CuDNNLSTM and CuDNNGRU. Such
files are rejected, since Keras itself can write them anew in the shapes that it uses now.

Source: tf-keras 2.20, src/saving/legacy/hdf5_format.py (`load_weights_from_hdf5_group`,
`preprocess_weights_for_loading`); Keras 3.15, src/legacy/saving/legacy_h5_format.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import OrderedLayer
from export.errors import CheckpointError
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import how_to_prefer_keras
from export.graphs.placeholders import line_of_variable
from export.tensorflow_models.frameworks.keras_saving import (
    LayerWeights,
    all_layers,
    layers_in_order,
)
from export.tensorflow_models.frameworks.layer_names import (
    automatic_names,
    is_automatic,
    without_number,
)
from export.tensorflow_models.model.object_paths import VariableLocation
from export.user_lines import at_line

_OTHER_CODE = "The model code is not the one that was saved"
_CUDNN = (
    "Those of CuDNNLSTM and CuDNNGRU have other shapes: if training used these, load the file into "
    "the model of the factory with its load_weights, and save that with "
    'model.save_weights("converted.h5")'
)
_SHOWN_MAX = 5
"""How many names a message shows."""
_VALUES_PER_READ = 1 << 20
"""Values of a variable that are read and compared at a time: it may be a table, and larger than
memory.
"""


def find_ordered_variables(
    model: Any, checkpoint: Checkpoint
) -> list[tuple[Any, VariableLocation]]:
    """Returns each variable of a model, as TensorFlow's, and its location in a file that states the
    order of layers and weights.

    Raises:
      CheckpointError: The file is that of another model: names the layer, the weight, and what is
        there and what was expected.
    """
    return _OrderedModel(model, checkpoint).locations()


@dataclass(frozen=True)
class _OrderedModel:
    """A model beside a file that may be its own.

    Attributes:
      model: A model of Keras 2 or 3.
      checkpoint: The file.
    """

    model: Any
    checkpoint: Checkpoint

    def locations(self) -> list[tuple[Any, VariableLocation]]:
        """Returns every variable with its location.

        Raises:
          CheckpointError: The file is that of another model, or of a Keras whose weights are
            converted.
        """
        self._check_version()
        ordered = self.checkpoint.storage.ordered_layers
        saved_layers = [saved for saved in ordered if saved.name and saved.weights]
        built_layers = [built for built in self.layers if built.name and built.variables]
        self._check_layers(saved_layers, built_layers)
        pairs = list(zip(saved_layers, built_layers, strict=True))
        # A layer without a name holds the weights of the model itself.
        pairs += [(saved, self.layers[-1]) for saved in ordered if not saved.name]
        locations: list[tuple[Any, VariableLocation]] = []
        for saved, built in pairs:
            locations += self._matched(saved, built)
        self._check_shared(locations)
        return locations

    @cached_property
    def layers(self) -> list[LayerWeights]:
        """All layers, those without weights, too; the model itself is the last."""
        return layers_in_order(self.model)

    def _check_version(self) -> None:
        version = self.checkpoint.storage.keras_version
        written = version.partition(".")[0]
        if written in ("", "1"):
            raise self._rejection(
                "it was saved by Keras 1, whose weights Keras 2 converts, or does not say by which "
                "version (attribute keras_version): load the file with Keras 2, and save it anew"
            )
        built = "2"
        library = "keras"
        if is_keras_3_layer(self.model):
            built = "3"
            library = "tf_keras"
        if written != built:
            raise self._rejection(
                f"it was saved by Keras {version}, and the model is of Keras {built}, whose layers "
                f"may compute something else: {how_to_prefer_keras(written)}, or let the "
                f"model import {library}"
            )

    def _check_layers(
        self, saved_layers: Sequence[OrderedLayer], built_layers: Sequence[LayerWeights]
    ) -> None:
        """Checks that the layers that have weights are those of the file, one by one.

        Raises:
          CheckpointError: One is another; names the likeliest cause.
        """
        counts = (
            f"layers with weights: {len(saved_layers)} in the file, {len(built_layers)} in the "
            "model"
        )
        for number, (saved, built) in enumerate(zip_longest(saved_layers, built_layers)):
            if saved is None:
                raise self._rejection(
                    f"{counts}; the file lacks {_label(built)}{_line(built)}. {_OTHER_CODE}"
                )
            name = self._comparable(saved.name)
            if built is not None and name == self._comparable(built.name):
                continue
            unbuilt = [
                layer
                for layer in self.layers
                if not layer.variables and self._comparable(layer.name) == name
            ]
            if unbuilt and len(built_layers) < len(saved_layers):
                raise self._rejection(
                    f"it has weights of layer {saved.name!r}, and {_label(unbuilt[0])} of the "
                    "model has made none: call the model once in the factory, as training does"
                )
            if built is None:
                raise self._rejection(f"{counts}; the model lacks {saved.name!r}. {_OTHER_CODE}")
            raise self._rejection(
                f"layer {number} of those with weights is {saved.name!r} in the file and "
                f"{_label(built)} in the model{_line(built)}. Layers must be in the order of "
                "training; if it is the same layer, give it its name: "
                f'{type(built.layer).__name__}(..., name="{saved.name}")'
            )

    def _matched(
        self, saved: OrderedLayer, built: LayerWeights
    ) -> Iterator[tuple[Any, VariableLocation]]:
        """Yields the variables of a layer with their locations.

        Raises:
          CheckpointError: The layer has other weights in the file.
        """
        entries = self.checkpoint.entries
        if len(saved.weights) != len(built.variables):
            raise self._rejection(
                f"{_label(built)} has {len(saved.weights)} weights in the file "
                f"({_listed(saved.weights)}) and {len(built.variables)} in the model "
                f"({_listed(built.names)}){_line(built)}. {_OTHER_CODE}"
            )
        weights = zip(saved.weights.items(), built.variables, built.names, strict=True)
        for number, ((saved_name, key), variable, built_name) in enumerate(weights):
            shape = list(entries[key].shape)
            expected = variable.shape.as_list()
            # What an adapted Discretization of tf-keras counted has as many columns as it needed.
            is_compatible = variable.shape.is_compatible_with(shape)
            if not is_compatible or not self._is_same_weight(built, saved_name, built_name):
                raise self._rejection(
                    f"{_label(built)}, weight {number}: {_plain(saved_name)} {shape} in the "
                    f"file, and {_plain(built_name)} {expected} in the model"
                    f"{at_line(line_of_variable(variable))}. {_remedy(built, is_compatible)}"
                )
            yield variable, VariableLocation(_plain(built_name), key)

    def _check_shared(self, locations: Iterable[tuple[Any, VariableLocation]]) -> None:
        """Checks that a variable of several layers, which the file has once for each, has one value
        there: layers that shared it may have got variables of their own when a model was loaded.

        Raises:
          CheckpointError: It has several values.
        """
        first_locations: dict[int, VariableLocation] = {}
        for variable, location in locations:
            first = first_locations.setdefault(id(variable), location)
            if first is not location and not self._equal(first.key, location.key):
                raise self._rejection(
                    f"{first.key} and {location.key} have different values, and are one variable "
                    "of the model: two layers share it in the factory, which did not in training"
                )

    def _equal(self, first: str, second: str) -> bool:
        """Returns whether two variables of one shape have the same values."""
        checkpoint = self.checkpoint
        shape = checkpoint.entries[first].shape
        if not shape:
            return bool(checkpoint.read_all(first) == checkpoint.read_all(second))

        values_per_row = max(1, math.prod(shape[1:]))
        rows_per_read = max(1, _VALUES_PER_READ // values_per_row)
        for start in range(0, shape[0], rows_per_read):
            count = min(rows_per_read, shape[0] - start)
            first_values = checkpoint.read(first, start, count)
            second_values = checkpoint.read(second, start, count)
            if not np.array_equal(first_values, second_values, equal_nan=True):
                return False
        return True

    def _is_same_weight(self, layer: LayerWeights, saved_name: str, built_name: str) -> bool:
        """Returns whether two names are those of one weight of a layer.

        The part of a name in front of the layer is what called it first, which may differ.
        """
        *saved_scopes, saved_last = self._inside(layer, _plain(saved_name))
        *built_scopes, built_last = self._inside(layer, _plain(built_name))
        # TensorFlow numbers the variables of a model that is built while it is traced.
        same_end = saved_last in (built_last, without_number(built_last))
        shorter, longer = sorted((saved_scopes, built_scopes), key=len)
        return same_end and longer[len(longer) - len(shorter) :] == shorter

    def _inside(self, built: LayerWeights, name: str) -> list[str]:
        """Returns the steps of a name behind that of a layer."""
        *scopes, last = name.split("/")
        scopes = [self._comparable(scope) for scope in scopes]
        layer_name = self._comparable(built.name)
        if not built.name:
            scopes = []
        elif layer_name in scopes:
            scopes = scopes[scopes.index(layer_name) + 1 :]
        return [*scopes, last]

    def _comparable(self, name: str) -> str:
        """Returns the name of a layer, without its number if Keras chose it."""
        plain = without_number(name)
        if plain in self._automatic_names:
            return plain
        return name

    @cached_property
    def _automatic_names(self) -> set[str]:
        """The names that Keras gives the classes of the model's layers."""
        names: set[str] = set()
        for layer in all_layers(self.model):
            class_name = type(layer).__name__
            if is_automatic(layer.name, class_name):
                names |= automatic_names(class_name)
        return names

    def _rejection(self, difference: str) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.checkpoint.prefix}: {difference}")


def _label(built: LayerWeights) -> str:
    if not built.name:
        return "the model itself"
    return f"layer {built.name!r} ({type(built.layer).__name__})"


def _remedy(built: LayerWeights, same_shape: bool) -> str:
    """Returns what to do about a weight that is another one in the file."""
    if not same_shape and type(built.layer).__name__ in ("LSTM", "GRU"):
        return _CUDNN
    if not same_shape:
        return _OTHER_CODE
    return (
        "The weights of a layer must have the names and the order of training; in a model inside "
        "of another, `trainable` changes their order"
    )


def _line(built: LayerWeights) -> str:
    """Returns the user's line that created a layer's variables; "" if it has none."""
    if not built.variables:
        return ""
    return at_line(line_of_variable(built.variables[0]))


def _plain(name: str) -> str:
    return name.removesuffix(":0")


def _listed(names: Collection[str]) -> str:
    listed = ", ".join(map(_plain, islice(names, _SHOWN_MAX))) or "none"
    if len(names) > _SHOWN_MAX:
        return f"{listed}, ..."
    return listed
