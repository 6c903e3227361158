"""The private APIs of Keras 3 that tell where it saves each variable: its walk along attributes, by
which HDF5 files are written, the layers of a model, and how it numbers their names.

Source: Keras 3.15, src/saving/saving_lib.py (`_save_state`, `H5IOStore`), src/layers/layer.py
(`_flatten_layers`), src/utils/naming.py.
"""

from __future__ import annotations

import importlib
import sys
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
      groups: the path of every layer, also of those that have made no variable yet.
    """

    values: Mapping[str, Any]
    groups: frozenset[str]


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

    class Recorder(store_class):  # type: ignore[misc, valid-type]
        """Takes what would be written, and opens no file."""

        def __init__(self) -> None:
            pass

        def __bool__(self) -> bool:
            return True

        def make(self, path: str, metadata: Any = None) -> dict[str, Any]:  # noqa: ARG002
            return groups.setdefault(path.lstrip("/"), {})

    save_state(model, Recorder(), None, path, set())
    values = {
        f"{group}/vars/{name}".lstrip("/"): value
        for group, written in groups.items()
        for name, value in written.items()
    }
    return SavedValues(values, frozenset(groups))
