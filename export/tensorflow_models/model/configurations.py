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

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from export.tensorflow_models.frameworks.layer_names import is_automatic
from export.tensorflow_models.model.casts import without_casts
from export.tensorflow_models.model.configuration_forms import (
    LOOKUPS,
    alone,
    calls_of,
    is_object,
    is_of_keras,
    is_vocabulary,
    lambda_arguments,
    layer_with_masks,
    lists_layers,
    name_of,
    normalized,
    qualified_class_of,
    sizes_of_example,
)

MISSING = object()
"""Stands for a value that is not there."""

_OF_TRAINING = re.compile(r".*_(initializer|regularizer|constraint)")
"""Arguments that only training reads."""
_SKIPPED = ("name", "trainable")
_UNREAD = (("Discretization", "dtype"),)
"""Arguments that change no value: Keras had another default up to 3.11."""
_WIRING = ("inbound_nodes", "input_layers", "output_layers")
"""Arguments of a graph of layers that name its layers."""
_TEXT_MAX = 80
"""How many characters of a value a message shows."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
      differences: The differences, each with the layer that has it; the first is the one to name.
      vocabularies: The saved vocabularies of lookups by the name of the model's layer; None: the
        vocabulary is an asset.
      lambdas: The layers whose code was not compared.
    """

    differences: list[str] = field(default_factory=list)
    vocabularies: dict[str, list[Any] | None] = field(default_factory=dict)
    lambdas: dict[str, None] = field(default_factory=dict)


Described = tuple[str, Any, Any]
"""(label of a layer for messages, "" for the model itself; its configuration in the file; that of
the model, after a way through JSON)
"""


Rebuild = Callable[[Mapping[str, Any]], dict[str, Any] | None]
"""(configuration of an object) -> the arguments of the object that the installed Keras makes of it,
as that Keras writes them; None if it makes none.
"""


def compare_configurations(pairs: Iterable[Described], rebuild: Rebuild) -> Comparison:
    """Compares what was saved with what was built, up to the first of them that differs.

    Args:
      pairs: The configurations of a model, or of its layers, the outermost first.
      rebuild: Rebuilds a layer that another release of Keras may have written in other words.
    """
    comparison = Comparison()
    walk = _Walk(comparison, rebuild)
    for label, saved, built in pairs:
        comparison.differences.extend(walk.objects(saved, built, _ValuePath(label)))
        if comparison.differences:
            break
    return comparison


def text_of(value: Any) -> str:
    """Returns a value as a message shows it."""
    text = repr(value)
    if len(text) > _TEXT_MAX:
        return f"{text[:_TEXT_MAX]}..."
    return text


@dataclass(frozen=True)
class _ValuePath:
    """The path of two values that are compared, in both configurations.

    Attributes:
      layer: The innermost layer, for messages; "": none.
      argument: The argument of the layer, with keys and positions in it; "": the layer itself.
      saved_scope, built_scope: The layers that the values may name: name -> position in their list.
    """

    layer: str = ""
    argument: str = ""
    saved_scope: Mapping[str, int] = field(default_factory=dict)
    built_scope: Mapping[str, int] = field(default_factory=dict)

    def step(self, name: str | int) -> _ValuePath:
        """Returns the path of an argument, a key, or a position below this one."""
        if isinstance(name, int):
            return replace(self, argument=f"{self.argument}[{name}]")
        return replace(self, argument=f"{self.argument}.{name}".lstrip("."))

    def difference(self, saved: Any, built: Any) -> str:
        """Returns how two values at this path differ, in words."""
        subject = f"{self.layer or 'the model'}: {self.argument or 'it'}"
        saved_text, built_text = (
            "not" if value is MISSING else text_of(value) for value in (saved, built)
        )
        return f"{subject} is {saved_text} in the file and {built_text} in the model"


@dataclass(frozen=True)
class _Walk:
    """Walks two configurations side by side. Yields differences."""

    comparison: Comparison
    rebuild: Rebuild

    def values(self, saved: Any, built: Any, path: _ValuePath) -> Iterator[str]:
        """Compares two values, whose layers may be called otherwise."""
        saved = normalized(saved)
        built = normalized(built)
        if is_object(saved) and is_object(built):
            yield from self.objects(saved, built, _ValuePath(path.layer, path.argument))
        elif isinstance(saved, dict) and isinstance(built, dict):
            for key in _keys(saved, built):
                if key != "shared_object_id":
                    pair = saved.get(key, MISSING), built.get(key, MISSING)
                    yield from self.values(*pair, path.step(key))
        elif isinstance(saved, list) and isinstance(built, list):
            for index, pair in enumerate(zip_longest(saved, built, fillvalue=MISSING)):
                yield from self.values(*pair, path.step(index))
        elif isinstance(saved, str) and isinstance(built, str) and saved in path.saved_scope:
            # Names of layers may be numbered otherwise: only their positions must be the same.
            if path.saved_scope[saved] != path.built_scope.get(built):
                yield path.difference(saved, built)
        elif not _equal(saved, built):
            yield path.difference(saved, built)

    def objects(
        self, saved: Mapping[str, Any], built: Mapping[str, Any], path: _ValuePath
    ) -> Iterator[str]:
        """Compares two objects: as they are written, then as the installed Keras writes what it
        makes of each.
        """
        differences = list(self._written_objects(saved, built, path))
        if differences:
            saved_arguments = self.rebuild(saved)
            built_arguments = self.rebuild(built)
            if saved_arguments is not None and built_arguments is not None:
                # What is inside of them was rebuilt with them.
                walk = replace(self, rebuild=lambda _: None)
                saved = {**saved, "config": saved_arguments}
                built = {**built, "config": built_arguments}
                rebuilt = list(walk._written_objects(saved, built, path))
                # The layers of a graph were rebuilt one by one before, which names a difference.
                if not rebuilt or not lists_layers(saved_arguments):
                    differences = rebuilt
        yield from differences

    def _written_objects(
        self, saved: Mapping[str, Any], built: Mapping[str, Any], path: _ValuePath
    ) -> Iterator[str]:
        """Compares two objects: their classes, and the arguments of their constructors."""
        kind = str(saved.get("class_name"))
        if kind != built.get("class_name") or is_of_keras(saved) != is_of_keras(built):
            yield path.difference(qualified_class_of(saved), qualified_class_of(built))
            return
        if kind == "__lambda__":
            yield from self._lambdas(saved, built, path)
            return

        saved_config = saved.get("config")
        built_config = built.get("config")
        if not isinstance(saved_config, dict) or not isinstance(built_config, dict):
            yield from self.values(saved_config, built_config, path)
            return
        self._note_vocabulary(kind, saved_config, built_config)
        if kind == "Lambda" and "function_type" in saved_config:
            saved_config = lambda_arguments(saved_config)
            built_config = lambda_arguments(built_config)
        if lists_layers(saved_config) and lists_layers(built_config):
            yield from self._graphs(saved_config, built_config, path)
            return

        for key in _keys(saved_config, built_config):
            if _is_skipped(key, kind, saved):
                continue
            pair = saved_config.get(key, MISSING), built_config.get(key, MISSING)
            if key in ("batch_shape", "batch_input_shape"):
                pair = sizes_of_example(pair[0]), sizes_of_example(pair[1])
            # An operation that states no dtype has the one of what it is called on.
            if key != "dtype" or None not in pair:
                yield from self.values(*pair, path.step(key))

    def _note_vocabulary(
        self, kind: str, saved_config: Mapping[str, Any], built_config: Mapping[str, Any]
    ) -> None:
        """Notes the vocabulary of a lookup, which is compared by the values that it looks up."""
        if kind in LOOKUPS and "name" in built_config:
            vocabulary = normalized(saved_config.get("vocabulary"))
            # A model that is a graph has vocabularies that were arguments, its layers have none.
            self.comparison.vocabularies.setdefault(str(built_config["name"]), vocabulary)

    def _graphs(
        self,
        saved_config: Mapping[str, Any],
        built_config: Mapping[str, Any],
        path: _ValuePath,
    ) -> Iterator[str]:
        """Compares two models that list their layers."""
        saved_config = without_casts(saved_config)
        built_config = without_casts(built_config)
        saved_layers = saved_config["layers"]
        built_layers = built_config["layers"]
        saved_scope = {name_of(layer): index for index, layer in enumerate(saved_layers)}
        built_scope = {name_of(layer): index for index, layer in enumerate(built_layers)}
        masked_layer = layer_with_masks(saved_layers)
        if masked_layer and not layer_with_masks(built_layers):
            yield (
                f"{path.layer or 'the model'}: layer {masked_layer!r} has masks as arguments in "
                "the file, as Keras 3.0 to 3.3 wrote them, which handed no mask on behind layers "
                "that merge; in the model it takes the masks that reach it now, perhaps others. "
                "Of an archive, keras.models.load_model builds what is described"
            )
        for index, (saved, built) in enumerate(zip(saved_layers, built_layers, strict=False)):
            label = f"layer {name_of(built)!r} ({built.get('class_name')})"
            if path.layer:
                label = f"{path.layer}, {label}"
            name = name_of(saved)
            # A layer that the user named may be renamed, but not to the name of another one.
            is_named = not is_automatic(name, str(saved.get("class_name")))
            if is_named and built_scope.get(name, index) != index:
                yield f"{label} is in the place of layer {name!r} of the file"
            yield from self.objects(saved, built, _ValuePath(label))
            pair = calls_of(saved.get("inbound_nodes")), calls_of(built.get("inbound_nodes"))
            call_path = _ValuePath(label, "what it is called on", saved_scope, built_scope)
            yield from self.values(*pair, call_path)

        # Behind the layers: the first one that differs shows more than the numbers do.
        if len(saved_layers) != len(built_layers):
            count_path = path.step("number of layers")
            yield count_path.difference(len(saved_layers), len(built_layers))
        for key in _keys(saved_config, built_config):
            if key == "layers" or _is_skipped(key, "", {}):
                continue
            key_path = path.step(key)
            pair = saved_config.get(key), built_config.get(key)
            if key in _WIRING:
                key_path = replace(key_path, saved_scope=saved_scope, built_scope=built_scope)
                pair = alone(pair[0]), alone(pair[1])
            yield from self.values(*pair, key_path)

    def _lambdas(
        self, saved: Mapping[str, Any], built: Mapping[str, Any], path: _ValuePath
    ) -> Iterator[str]:
        """Compares what two lambdas hold; their code is what the factory says."""
        saved_config = saved.get("config")
        built_config = built.get("config")
        # Without a configuration, nothing says that the code is the same.
        if not saved_config or saved_config != built_config:
            self.comparison.lambdas[path.layer or "the model"] = None
        if isinstance(saved_config, dict) and isinstance(built_config, dict):
            for key in ("defaults", "closure"):
                pair = saved_config.get(key), built_config.get(key)
                yield from self.values(*pair, path.step(key))


def _is_skipped(key: str, kind: str, saved: Mapping[str, Any]) -> bool:
    """Returns whether an argument of an object cannot change values, or is compared elsewhere."""
    if key in _SKIPPED:
        return True
    if is_vocabulary(key, kind) or (kind, key) in _UNREAD:
        return True
    return is_of_keras(saved) and _OF_TRAINING.fullmatch(key) is not None


def _keys(saved: Mapping[str, Any], built: Mapping[str, Any]) -> list[str]:
    return [*saved, *(key for key in built if key not in saved)]


def _equal(saved: Any, built: Any) -> bool:
    """Returns whether two values are the same; a truth value is no number, and NaN is NaN."""
    if isinstance(saved, bool) != isinstance(built, bool):
        return False
    both_nan = saved != saved and built != built  # noqa: PLR0124
    return bool(saved == built or both_nan)
