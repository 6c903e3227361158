"""The private APIs of Keras that show what it saves of a model, and where: variables and files of
layers by its walk along attributes, the order of layers and weights in its older HDF5 format, and
configurations; also the layers of a model, and how Keras numbers their names.

Source: Keras 3.15, src/saving/saving_lib.py (`_save_state`, `H5IOStore`, `DiskIOStore`),
src/layers/layer.py (`_flatten_layers`), src/utils/naming.py, src/legacy/saving/legacy_h5_format.py;
tf-keras 2.20, src/saving/legacy/hdf5_format.py, src/saving/legacy/saved_model/json_utils.py.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from export.graphs.hooks import Hooks
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import moved, tf
from export.raised_errors import call_model
from export.tensorflow_models.frameworks.layer_names import name_in_list
from export.tensorflow_models.frameworks.trackables import handle_of

_LIBRARIES = ("keras.src", "tf_keras.src", "tensorflow.python.keras")
"""Where Keras 3, tf-keras, and the Keras that TensorFlow still contains define their classes."""
_MODELS = ("Model", "Functional", "Sequential")
_LAYERS = "_layer_checkpoint_dependencies"
"""The attribute of a graph of tf-keras that lists its layers twice: with and without weights."""


def _internal(module: str, name: str, library: str = "keras") -> Any:
    try:
        return getattr(importlib.import_module(f"{library}.src.{module}"), name)
    except (ImportError, AttributeError) as problem:
        package = library.replace("_", "-")
        raise moved(f"{library}.src.{module}.{name}", package) from problem


def _library_of(layer: Any) -> str:
    return _library_of_class(type(layer))


def _library_of_class(kind: type) -> str:
    if any(base.__module__.startswith("keras.src.") for base in kind.__mro__):
        return "keras"
    return "tf_keras"


def reset_automatic_names() -> None:
    """Makes Keras number the layers of the next model as those of the first one in a process."""
    if "keras" in sys.modules:
        _internal("utils.naming", "reset_uids")()


def all_layers(model: Any) -> Iterator[Any]:
    """Yields a model and every layer in it, built or not, also those in lists and dicts."""
    if not hasattr(model, "_flatten_layers"):
        raise moved("Layer._flatten_layers", "keras")
    yield from model._flatten_layers()


def is_keras_model(value: Any) -> bool:
    """Returns whether an object is a model of Keras 3 or of Keras 2."""
    return any(
        kind.__name__ in _MODELS and kind.__module__.startswith(_LIBRARIES)
        for kind in type(value).__mro__
    )


def parts_of(model: Any) -> Iterator[Any]:
    """Yields a model, every layer in it, and every operation of a graph of layers of Keras 3."""
    for layer in all_layers(model):
        yield layer
        yield from getattr(layer, "operations", ())


def is_class_of_keras(kind: type) -> bool:
    """Returns whether Keras itself defines a class."""
    return kind.__module__.startswith(_LIBRARIES)


def rebuilt(kind: type, arguments: dict[str, Any], shapes: Any, classes: Mapping[str, type]) -> Any:
    """Returns the layer or operation that Keras builds of arguments in a file, without calling it.

    Args:
      kind: The class of the layer.
      arguments: The arguments, as Keras wrote them.
      shapes: What Keras wrote beside them to build variables; None: they are not built.
      classes: Classes of users by their names, which layers inside of it may have.

    Raises:
      Exception: The class does not take the arguments, or code would be run; whatever it raises.
    """
    library = _library_of_class(kind)
    custom_objects = {name: each for name, each in classes.items() if not is_class_of_keras(each)}
    scope = _internal("saving.serialization_lib", "SafeModeScope", library)
    with (
        scope(safe_mode=True),
        _internal("saving.object_registration", "CustomObjectScope", library)(custom_objects),
    ):
        from_config = kind.from_config  # type: ignore[attr-defined]
        layer = call_model(from_config, copy.deepcopy(arguments))
        if shapes:
            call_model(layer.build_from_config, shapes)
    return layer


@dataclass(frozen=True)
class LayerWeights:
    """The weights of a layer in the order in which Keras' older HDF5 format has them.

    Attributes:
      layer: The layer; or the model itself, which may have weights beside its layers.
      name: The name of the layer; "" for the model itself.
      variables: The variables, as TensorFlow's, first those that are trained; (): the layer has
        made none.
      names: The names of the variables, with slashes.
    """

    layer: Any
    name: str
    variables: tuple[Any, ...]
    names: tuple[str, ...]


def layers_in_order(model: Any) -> list[LayerWeights]:
    """Returns the layers of a model in the order in which Keras' older HDF5 format has them;
    the last one is what the model has beside them.
    """
    weights: list[Any]
    if is_keras_3_layer(model):
        # `weights` leaves out the states of metrics and of random numbers.
        variables = model._trainable_variables + model._non_trainable_variables
        weight_ids = {id(weight) for weight in model.weights}
        weights = [variable for variable in variables if id(variable) in weight_ids]
    else:
        weights = model._trainable_weights + model._non_trainable_weights
    layers = [_layer_weights(layer, layer.name, _weights_in_order(layer)) for layer in model.layers]
    return [*layers, _layer_weights(model, "", weights)]


def _weights_in_order(layer: Any) -> list[Any]:
    """Returns the weights of a layer, first those that are trained."""
    try:
        weights = [*layer.trainable_weights, *layer.non_trainable_weights]
    except ValueError:
        # A model of tf-keras inside of another one that was not called yet.
        return []
    # Of a lookup that was adapted, tf-keras also lists the vocabulary, and saves no HDF5.
    return [weight for weight in weights if handle_of(weight) is not None]


def _layer_weights(layer: Any, name: str, weights: list[Any]) -> LayerWeights:
    names = [str(getattr(weight, "path", weight.name)) for weight in weights]
    return LayerWeights(layer, name, tuple(map(tensorflow_variable, weights)), tuple(names))


def tensorflow_variable(variable: Any) -> Any:
    """Returns a variable of either Keras as TensorFlow's."""
    if isinstance(variable, tf.Variable):
        return variable
    return variable.value


@dataclass(frozen=True)
class SavedValues:
    """The values and groups that Keras would write to an HDF5 file.

    Attributes:
      values: The value of each dataset, by its path: the layer's own variable, unless the layer
        saves something that it computes.
      groups: Every layer by its path, also those that have made no variable yet.
    """

    values: Mapping[str, Any]
    groups: Mapping[str, Any]


@dataclass(frozen=True)
class Walk:
    """How a release of tf-keras walks the attributes of a model: a layer is saved below the first
    one that leads to it.

    Attributes:
      is_ascending: Whether attributes are walked from `_` to `z`, as up to 2.14: the layers of a
        graph are `_layer_checkpoint_dependencies` then, not `layers`.
      counts_again: Whether a layer that was saved before takes a number of a list once more, as up
        to 2.13.
    """

    is_ascending: bool = False
    counts_again: bool = False


_WALKS = (Walk(), Walk(is_ascending=True), Walk(is_ascending=True, counts_again=True))


@contextlib.contextmanager
def _walking(walk: Walk, library: str) -> Iterator[None]:
    """Makes tf-keras walk models as another release did."""
    module = importlib.import_module(f"{library}.src.saving.saving_lib")
    with Hooks() as hooks:
        if walk.is_ascending:
            skipped = _internal("saving.saving_lib", "ATTR_SKIPLIST", library) - {_LAYERS}
            hooks.set_attribute(module, "_walk_trackable", partial(_ascending_attributes, skipped))
        if walk.counts_again:
            hooks.set_attribute(module, "_save_container_state", partial(_save_list, module))
        yield


def _ascending_attributes(skipped: Collection[str], layer: Any) -> Iterator[tuple[str, Any]]:
    for name in dir(layer):
        if not name.startswith("__") and name not in skipped:
            # Properties may raise anything.
            with contextlib.suppress(Exception):
                yield name, getattr(layer, name)


def _save_list(module: Any, layers: Any, variables: Any, files: Any, **options: Any) -> None:
    """Saves the layers of a list or dict as tf-keras 2.13 did; see its `_save_container_state`."""
    if isinstance(layers, dict):
        layers = layers.values()
    folder = options["inner_path"]
    counts: Counter[str] = Counter()
    for layer in layers:
        if module._is_keras_trackable(layer):
            name = name_in_list(type(layer).__name__, of_keras_3=False)
            numbered = f"{name}_{counts[name]}" if counts[name] else name
            counts[name] += 1
            inner_options = options | {"inner_path": f"{folder}/{numbered}"}
            module._save_state(layer, variables, files, **inner_options)


def walk_of(model: Any, path: str, stored: Collection[str]) -> Walk:
    """Returns the walk of the release that saved a model: the first one that finds all variables.

    Args:
      model: A model of Keras 3 or tf-keras.
      path: The path of the model in the object that is saved; "": the model itself is saved.
      stored: The paths of the variables in the file.
    """
    if _library_of(model) == "tf_keras":
        for walk in _WALKS:
            if saved_values(model, path, walk).values.keys() <= set(stored):
                return walk
    return Walk()


def saved_values(model: Any, path: str, walk: Walk) -> SavedValues:
    """Walks a model as Keras does to save it; each layer says itself what it saves. Nothing is
    written or copied.

    Args:
      model: A model of Keras 3 or tf-keras.
      path: The path of the model in the object that is saved; "": the model itself is saved.
      walk: See `walk_of`.
    """
    library = _library_of(model)
    save_state = _internal("saving.saving_lib", "_save_state", library)
    store_class = _internal("saving.saving_lib", "H5IOStore", library)
    groups: dict[str, dict[str, Any]] = {}
    by_id = {id(layer): layer for layer in all_layers(model)}
    layers: dict[str, Any] = {}

    class Recorder(store_class):  # type: ignore[misc, valid-type]
        """Takes what would be written, and opens no file."""

        def __init__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return True

        def make(self, path: str, metadata: Any = None) -> dict[str, Any]:  # noqa: ARG002
            return groups.setdefault(path.lstrip("/"), {})

    class Visited(set[int]):
        """Takes the id of each object that Keras has written, after its group was made."""

        def add(self, number: int) -> None:
            # An object that saves no variables has no group: the last group is another object's,
            # which has registered it already.
            layers.setdefault(next(reversed(groups), ""), by_id.get(number))
            super().add(number)

    with _walking(walk, library), Hooks() as hooks:
        if library == "tf_keras":
            # The layer's own method would read the values of variables, also those of tables.
            layer_class = _internal("engine.base_layer", "Layer", library)
            hooks.set_attribute(layer_class, "save_own_variables", _store_variables)
        save_state(model, Recorder(), None, path, Visited())
    values = {
        f"{group}/vars/{name}".lstrip("/"): value
        for group, datasets in groups.items()
        for name, value in datasets.items()
    }
    return SavedValues(values, {group: layers.get(group) for group in groups})


def saved_files(model: Any, path: str, walk: Walk) -> dict[str, bytes]:
    """Returns the files that the layers of a model save beside their variables, by their paths.

    Args:
      model: A model of Keras 3 or tf-keras.
      path: The path of the model in the object that is saved; "": the model itself is saved.
      walk: See `walk_of`.
    """
    library = _library_of(model)
    # Layers write their files themselves; Keras has no call that returns their contents.
    store = _internal("saving.saving_lib", "DiskIOStore", library)("assets", mode="w")
    try:
        with _walking(walk, library):
            _internal("saving.saving_lib", "_save_state", library)(model, None, store, path, set())
        folder = Path(store.working_dir)
        files = [file for file in folder.rglob("*") if file.is_file()]
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
    finally:
        store.close()


def _store_variables(layer: Any, store: dict[str, Any]) -> None:
    """Stores the variables of a layer of tf-keras by their numbers."""
    variables = layer._trainable_weights + layer._non_trainable_weights
    store.update((str(number), variable) for number, variable in enumerate(variables))


def configuration_of(model: Any) -> dict[str, Any]:
    """Returns the configuration that Keras would write to an archive, as read back from JSON.

    Raises:
      Exception: A class of the model does not say its configuration; whatever it raises.
    """
    with warnings.catch_warnings():
        # Keras warns that reading lambdas back may be unsafe; nothing does so here.
        warnings.simplefilter("ignore")
        if _library_of(model) == "keras":
            text, _ = call_model(_internal("saving.saving_lib", "_serialize_model_as_json"), model)
        else:
            serialize = _internal("saving.serialization_lib", "serialize_keras_object", "tf_keras")
            with _internal("saving.serialization_lib", "ObjectSharingScope", "tf_keras")():
                text = call_model(json.dumps, call_model(serialize, model))
    configuration: dict[str, Any] = json.loads(text)
    return configuration


def layer_configuration_of(layer: Any, *, in_hdf5: bool) -> dict[str, Any]:
    """Returns the class and the arguments of a layer that Keras would write to a SavedModel or to a
    file of its older format, as read back from JSON.

    Args:
      layer: A layer or model of Keras 3 or tf-keras.
      in_hdf5: Whether it is written to a file.

    Raises:
      Exception: A class of the model does not say its configuration; whatever it raises.
    """
    if _library_of(layer) == "keras":
        encode_json = _internal("legacy.saving.json_utils", "get_json_type")
        scope = _internal("legacy.saving.saving_options", "keras_option_scope")
        with scope(use_legacy_config=in_hdf5):
            arguments = call_model(layer.get_config)
    else:
        encode_json = _internal("saving.legacy.saved_model.json_utils", "get_json_type", "tf_keras")
        layer.use_legacy_config = in_hdf5
        try:
            arguments = call_model(layer.get_config)
        finally:
            del layer.use_legacy_config
    text = call_model(json.dumps, arguments, default=encode_json)
    return {"class_name": type(layer).__name__, "config": json.loads(text)}
