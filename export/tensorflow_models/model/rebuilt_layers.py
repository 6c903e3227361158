"""Builds the layers that a file of Keras describes, to see what the installed Keras makes of them.

Releases of Keras write the same layer in other words: with arguments that others lack, or with a
default that its constructor has worked out. No layer is called, tables allocate nothing, and of the
file only the classes of Keras and of the factory's model are made, without vocabularies and code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from export.graphs.placeholders import tables_unallocated
from export.raised_errors import is_own
from export.tensorflow_models.frameworks.keras_saving import (
    all_layers,
    is_class_of_keras,
    parts_of,
    rebuilt,
)
from export.tensorflow_models.model.configuration_forms import (
    class_name_of,
    is_of_keras,
    is_vocabulary,
)

_CODE = ("Lambda", "__lambda__", "function")
"""Objects that are code of users: of its own functions, Keras writes the names alone."""


@dataclass(frozen=True)
class Rebuilding:
    """Builds layers of a model from configurations.

    Attributes:
      model: The model, whose classes may be built.
      written: Returns the arguments of a layer as the file of the model would hold them.
    """

    model: Any
    written: Callable[[Any], dict[str, Any]]

    def arguments_of(self, configuration: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the arguments of the object that the installed Keras makes of a configuration, as
        that Keras writes them; None if it makes none.
        """
        arguments = configuration.get("config")
        kind = self._classes.get(class_name_of(configuration))
        if kind is None or not isinstance(arguments, dict):
            return None

        shapes = configuration.get("build_config")
        used = {
            key: value
            for key, value in arguments.items()
            if not is_vocabulary(key, kind.__name__) and self._is_known(value)
        }
        try:
            with tables_unallocated():
                layer = rebuilt(kind, used, shapes, self._classes)
                result = self.written(layer)
        except Exception as problem:  # a class of the user's may raise anything
            if is_own(problem):
                raise
            return None

        kept = arguments.keys() - used.keys()
        if not is_class_of_keras(kind):
            # A class of the user's may ignore an argument that it does not know.
            kept |= arguments.keys() - result.keys()
        elif "axis" in result:
            result["axis"] = _axes(result["axis"], shapes or self._shapes_of(result))
        return result | {key: arguments[key] for key in kept}

    def _shapes_of(self, arguments: Mapping[str, Any]) -> Any:
        """Returns what the model's layer of a name was built for; None: there is no such layer."""
        for layer in all_layers(self.model):
            if layer.name == arguments.get("name"):
                return layer.get_build_config()
        return None

    def _is_known(self, value: Any) -> bool:
        """Returns whether a value has no objects but those of Keras and of the model's classes."""
        if isinstance(value, list):
            return all(map(self._is_known, value))
        if not isinstance(value, dict):
            return True
        if isinstance(value.get("vocabulary"), str):
            return False  # a file
        name = class_name_of(value)
        if name in _CODE or "function_type" in value:
            return False
        if not is_of_keras(value) and name not in self._classes:
            return False
        return all(map(self._is_known, value.values()))

    @cached_property
    def _classes(self) -> dict[str, type]:
        """The classes of the model's layers and operations by their names."""
        return {type(part).__name__: type(part) for part in parts_of(self.model)}


def _axes(axes: Any, shapes: Any) -> Any:
    """Returns the axes of a layer, all counted from the first one: once a layer is built, some
    releases of Keras write them so.
    """
    shape = (shapes or {}).get("input_shape")
    if isinstance(axes, int):
        axes = [axes]
    if not isinstance(axes, list) or not isinstance(shape, list | tuple):
        return axes
    return [axis % len(shape) for axis in axes]
