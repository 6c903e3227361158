"""Compares the configuration of a saved model of Keras with that of the model of a factory.

Both are objects as Keras serializes them: `class_name`, `config` (arguments of the constructor) and
where they come from. Models that are graphs of layers (Functional, Sequential) list the layers with
what each is called on. Layers are compared by their places in that list, as Keras matches their
variables: their names may be numbered otherwise. Everything else must be equal, except for:

    trainable; ..._initializer, ..._regularizer, ..._constraint of Keras' layers
                                    only training reads them: each variable has the saved value
    name                            a layer may be renamed, but not to the name of another one
    vocabulary, idf_weights         of lookups are compared by the values that the layers look up
    vocabulary_size, has_input_...  follows from the vocabulary
    build_config, compile_config    shapes that variables were built for; the optimizer and losses
    module, registered_name         where a class is defined, which may be another file
    shared_object_id                numbers that Keras draws
    shape, dtype of a tensor        between layers: follow from the layer that returns it
    the first size of batch_shape   how many examples training put in a batch
    code of lambdas                 Python's bytecode, which names the file that it is from

Source: Keras 3.15, src/saving/serialization_lib.py, src/models/functional.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LOOKUPS = ("StringLookup", "IntegerLookup", "TextVectorization")
"""Layers with vocabularies."""
MISSING = object()
"""In the place of a value that is not there."""

_OF_TRAINING = re.compile(r".*_(initializer|regularizer|constraint)")
_SKIPPED = ("name", "trainable")
_OF_VOCABULARIES = ("vocabulary", "idf_weights", "vocabulary_size", "has_input_vocabulary")
_WIRING = ("inbound_nodes", "input_layers", "output_layers")
_SHOWN_MAX = 80

DefaultOf = Callable[[str, str], Any]
"""(class, argument) -> the default value of the argument; MISSING if there is none."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
      differences: yields each with the layer that has it; the first is the one to name.
      vocabularies: of lookups by the name of the model's layer; None: it is an asset.
      lambdas: layers whose code was not compared.
      other_class: of the saved model and of the one that was built, if they are the user's own and
        unlike, so that their arguments cannot be compared; (): they are not.
    """

    differences: list[str] = field(default_factory=list)
    vocabularies: dict[str, list[Any] | None] = field(default_factory=dict)
    lambdas: list[str] = field(default_factory=list)
    other_class: tuple[str, ...] = ()


def compare_configurations(saved: Any, built: Any, default_of: DefaultOf) -> Comparison:
    """Compares a saved model with one that was built.

    Args:
      saved: the configuration in the file.
      built: the configuration of the model, after a way through JSON.
      default_of: tells what an argument is where a configuration does not have it, as one of
        another version of Keras.
    """
    comparison = Comparison()
    walk = _Walk(comparison, default_of)
    comparison.differences.extend(walk.objects(saved, built, _Place()))
    return comparison


def default_of(classes: Iterable[type], class_name: str, argument: str) -> Any:
    """Returns the default of an argument of a class, or of the base that the class hands it on to;
    MISSING if it has none.

    Args:
      classes: those of a model's layers.
      class_name: of one of them, or of a base.
      argument: of its constructor.
    """
    kinds = (kind for layer in classes for kind in layer.__mro__)
    kind = next((kind for kind in kinds if kind.__name__ == class_name), object)
    own = [vars(base).get("__init__") for base in kind.__mro__]
    for initializer in filter(None, own):
        parameter = inspect.signature(initializer).parameters.get(argument)
        if parameter is not None and parameter.default is not parameter.empty:
            default = parameter.default
            return list(default) if isinstance(default, tuple) else default
    return MISSING


def text_of(value: Any) -> str:
    """Returns a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


@dataclass(frozen=True)
class _Place:
    """Where in a model two values are.

    Attributes:
      layer: the innermost layer, for messages; "": none.
      path: arguments of it.
    """

    layer: str = ""
    path: str = ""

    def at(self, name: str | int) -> _Place:
        if isinstance(name, int):
            return _Place(self.layer, f"{self.path}[{name}]")
        return _Place(self.layer, f"{self.path}.{name}".lstrip("."))

    def unlike(self, saved: Any, built: Any) -> str:
        where = f"{self.layer or 'the model'}: {self.path or 'it'}"
        if saved is MISSING:
            return f"{where} is not in the file and {text_of(built)} in the model"
        if built is MISSING:
            return f"{where} is {text_of(saved)} in the file and not in the model"
        return f"{where} is {text_of(saved)} in the file and {text_of(built)} in the model"


Scope = Mapping[str, int]
"""The layers around a value: name -> place in their list."""


@dataclass(frozen=True)
class _Walk:
    """Walks two configurations side by side. Yields differences."""

    comparison: Comparison
    default_of: DefaultOf

    def values(
        self, saved: Any, built: Any, place: _Place, names: Scope, other_names: Scope
    ) -> Iterator[str]:
        saved = _normalized(saved)
        built = _normalized(built)
        if _is_object(saved) and _is_object(built):
            yield from self.objects(saved, built, place)
        elif isinstance(saved, dict) and isinstance(built, dict):
            for key in _keys(saved, built):
                if key != "shared_object_id":
                    pair = saved.get(key, MISSING), built.get(key, MISSING)
                    yield from self.values(*pair, place.at(key), names, other_names)
        elif isinstance(saved, list) and isinstance(built, list):
            for index in range(max(len(saved), len(built))):
                pair = _item(saved, index), _item(built, index)
                yield from self.values(*pair, place.at(index), names, other_names)
        elif isinstance(saved, str) and isinstance(built, str) and saved in names:
            if names[saved] != other_names.get(built):
                yield place.unlike(saved, built)
        elif not _equal(saved, built):
            yield place.unlike(saved, built)

    def objects(
        self, saved: Mapping[str, Any], built: Mapping[str, Any], place: _Place
    ) -> Iterator[str]:
        kind = str(saved.get("class_name"))
        if kind != built.get("class_name") or is_of_keras(saved) != is_of_keras(built):
            yield place.unlike(_class_of(saved), _class_of(built))
            return
        if kind == "__lambda__":
            yield from self._lambdas(saved, built, place)
            return
        config = saved.get("config")
        other = built.get("config")
        if not isinstance(config, dict) or not isinstance(other, dict):
            yield from self.values(config, other, place, {}, {})
            return
        if kind in LOOKUPS and "name" in other:
            vocabulary = _normalized(config.get("vocabulary"))
            self.comparison.vocabularies[str(other["name"])] = vocabulary
        if kind == "Lambda" and "function_type" in config:
            yield from self._lambdas_of_keras_2(config, other, place)
            return
        layers = config.get("layers")
        other_layers = other.get("layers")
        if _is_list_of_layers(layers) and _is_list_of_layers(other_layers):
            yield from self._graphs(config, other, place)
            return
        for key in _keys(config, other):
            if _is_skipped(key, kind, saved):
                continue
            pair = config.get(key, MISSING), other.get(key, MISSING)
            pair = self._with_defaults(kind, key, *pair)
            if key in ("batch_shape", "batch_input_shape"):
                pair = _sizes_of_example(pair[0]), _sizes_of_example(pair[1])
            yield from self.values(*pair, place.at(key), {}, {})

    def _with_defaults(self, kind: str, key: str, saved: Any, built: Any) -> tuple[Any, Any]:
        """Returns a pair, of which one that is missing is the default."""
        if saved is MISSING:
            return self.default_of(kind, key), built
        if built is MISSING:
            return saved, self.default_of(kind, key)
        return saved, built

    def _graphs(
        self, config: Mapping[str, Any], other: Mapping[str, Any], place: _Place
    ) -> Iterator[str]:
        """Compares two models that list their layers."""
        layers = config["layers"]
        other_layers = other["layers"]
        names = {_name_of(layer): index for index, layer in enumerate(layers)}
        other_names = {_name_of(layer): index for index, layer in enumerate(other_layers)}
        for index, (layer, built) in enumerate(zip(layers, other_layers, strict=False)):
            label = f"layer {_name_of(built)!r} ({built.get('class_name')})"
            inner = _Place(f"{place.layer}, {label}" if place.layer else label)
            name = _name_of(layer)
            if other_names.get(name, index) != index and not _is_automatic(layer):
                yield f"{inner.layer} is in the place of layer {name!r} of the file"
            yield from self.objects(layer, built, inner)
            pair = layer.get("inbound_nodes"), built.get("inbound_nodes")
            called = _Place(inner.layer, "what it is called on")
            yield from self.values(*pair, called, names, other_names)
        if len(layers) != len(other_layers):
            yield place.at("number of layers").unlike(len(layers), len(other_layers))
        for key in _keys(config, other):
            if key == "layers" or _is_skipped(key, "", {}):
                continue
            pair = config.get(key), other.get(key)
            scopes: tuple[Scope, Scope] = (names, other_names) if key in _WIRING else ({}, {})
            yield from self.values(*pair, place.at(key), *scopes)

    def _lambdas_of_keras_2(
        self, config: Mapping[str, Any], other: Mapping[str, Any], place: _Place
    ) -> Iterator[str]:
        """Compares two layers of functions: code, defaults and what it holds, or a name."""
        pair = _normalized(config.get("function")), _normalized(other.get("function"))
        if all(isinstance(function, list) for function in pair):
            if pair[0][:1] != pair[1][:1]:
                self.comparison.lambdas.append(place.layer or "the model")
            pair = pair[0][1:], pair[1][1:]
        yield from self.values(*pair, place.at("function"), {}, {})
        pair = config.get("arguments"), other.get("arguments")
        yield from self.values(*pair, place.at("arguments"), {}, {})

    def _lambdas(
        self, saved: Mapping[str, Any], built: Mapping[str, Any], place: _Place
    ) -> Iterator[str]:
        """Compares what two lambdas hold; their code is what the factory says."""
        config = saved.get("config")
        other = built.get("config")
        if not isinstance(config, dict) or not isinstance(other, dict) or config != other:
            self.comparison.lambdas.append(place.layer or "the model")
        for key in ("defaults", "closure"):
            if isinstance(config, dict) and isinstance(other, dict):
                yield from self.values(config.get(key), other.get(key), place.at(key), {}, {})


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and "class_name" in value and "config" in value


def _is_list_of_layers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_object, value))


def _is_skipped(key: str, kind: str, saved: Mapping[str, Any]) -> bool:
    """Returns whether an argument of an object cannot change values, or is compared elsewhere."""
    if key in _SKIPPED:
        return True
    if kind in LOOKUPS and key in _OF_VOCABULARIES:
        return True
    return is_of_keras(saved) and _OF_TRAINING.fullmatch(key) is not None


def is_of_keras(saved: Mapping[str, Any]) -> bool:
    """Returns whether a class or function is one of Keras, whose arguments are known."""
    module = str(saved.get("module", "keras"))
    return module.partition(".")[0] in ("keras", "builtins", "tf_keras")


def _class_of(saved: Mapping[str, Any]) -> str:
    module = saved.get("module")
    return f"{module}.{saved.get('class_name')}" if module else str(saved.get("class_name"))


def _name_of(layer: Mapping[str, Any]) -> str:
    config = layer.get("config")
    inner = config.get("name") if isinstance(config, dict) else None
    return str(layer.get("name") or inner)


def _is_automatic(layer: Mapping[str, Any]) -> bool:
    """Returns whether a layer has the name that Keras gives its class, perhaps with a number."""
    name = re.sub(r"_\d+$", "", _name_of(layer))
    return name.replace("_", "") == str(layer.get("class_name")).lower()


def _normalized(value: Any) -> Any:
    """Returns a value in the shorter of two forms in which Keras writes the same."""
    if isinstance(value, dict) and value.get("class_name") in ("__tuple__", "TensorShape"):
        return value.get("items")
    if not _is_object(value):
        return value
    config = value["config"]
    if value["class_name"] == "__keras_tensor__" and isinstance(config, dict):
        return config.get("keras_history")
    if str(value["class_name"]).endswith("Policy") and isinstance(config, dict):
        # One of a quantized layer has a mode and the dtype before.
        return config.get("name") or " of ".join(map(str, config.values()))
    if value["class_name"] == "function" and isinstance(config, str):
        return config
    return value


def _sizes_of_example(shape: Any) -> Any:
    shape = _normalized(shape)
    return shape[1:] if isinstance(shape, list) else shape


def _keys(saved: Mapping[str, Any], built: Mapping[str, Any]) -> list[str]:
    return [*saved, *(key for key in built if key not in saved)]


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else MISSING


def _equal(saved: Any, built: Any) -> bool:
    """Returns whether two values are the same; a truth value is no number, and NaN is NaN."""
    if isinstance(saved, bool) != isinstance(built, bool):
        return False
    both_nan = saved != saved and built != built  # noqa: PLR0124
    return bool(saved == built or both_nan)
