"""The private APIs of Keras 3 that tell where it saves each variable: its walk along attributes, by
which HDF5 files are written, the layers of a model, and how it numbers their names.

Source: Keras 3.15, src/saving/saving_lib.py (`_save_state`, `H5IOStore`), src/layers/layer.py
(`_flatten_layers`), src/utils/naming.py.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from export.graphs.loading import moved


def _internal(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"keras.src.{module}"), name)
    except (ImportError, AttributeError) as problem:
        raise moved(f"keras.src.{module}.{name}", "keras") from problem


def reset_automatic_names() -> None:
    """Makes Keras number the layers of the next model as those of the first one in a process."""
    if "keras" in sys.modules:
        _internal("utils.naming", "reset_uids")()


def all_layers(model: Any) -> Iterator[Any]:
    """Yields a model and every layer in it, built or not, also those in lists and dicts."""
    if not hasattr(model, "_flatten_layers"):
        raise moved("Layer._flatten_layers", "keras")
    yield from model._flatten_layers()


@dataclass(frozen=True)
class SavedValues:
    """What Keras would write to an HDF5 file.

    Attributes:
      values: by the path of its dataset: the layer's own variable, unless the layer saves something
        that it computes.
      groups: every layer by its path, also those that have made no variable yet.
    """

    values: Mapping[str, Any]
    groups: Mapping[str, Any]


def saved_values(model: Any, path: str) -> SavedValues:
    """Walks a model as Keras does to save it; each layer says itself what it saves. Nothing is
    written or copied.

    Args:
      model: a model of Keras 3.
      path: where the model is in what is saved; "": it is saved itself.
    """
    save_state = _internal("saving.saving_lib", "_save_state")
    store_class = _internal("saving.saving_lib", "H5IOStore")
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
            # An object that saves no variables has no group: the last one is that of another.
            layers.setdefault(next(reversed(groups), ""), by_id.get(number))
            super().add(number)

    save_state(model, Recorder(), None, path, Visited())
    values = {
        f"{group}/vars/{name}".lstrip("/"): value
        for group, written in groups.items()
        for name, value in written.items()
    }
    return SavedValues(values, {group: layers.get(group) for group in groups})


def configuration_of(model: Any) -> dict[str, Any]:
    """Returns the configuration that Keras would write to an archive, after a way through JSON.

    Raises:
      Exception: a class of the model does not say its configuration; whatever it raises.
    """
    serialize = _internal("saving.saving_lib", "_serialize_model_as_json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lambdas, that reading them back may be unsafe
        text, _ = serialize(model)
    configuration: dict[str, Any] = json.loads(text)
    return configuration


def name_in_list(class_name: str) -> str:
    """Returns how Keras calls a layer of a class in a list of layers."""
    name: str = _internal("utils.naming", "to_snake_case")(class_name)
    return name
