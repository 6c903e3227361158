"""Compares what a file of Keras 3 says beside its variables with the model that the factory builds.

A file has a configuration (`.keras`, OrbaxCheckpoint), vocabularies and other files of layers, and
values that a layer saves without a variable, such as the IDF weights of a TextVectorization. None
of it is executed, and none of it replaces what the factory says: where the two differ, the export
is rejected.

Source: Keras 3.15, src/saving/saving_lib.py, src/layers/preprocessing/index_lookup.py.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.graphs.internals import is_keras_3_layer
from export.tensorflow_models.frameworks.keras_saving import (
    SavedValues,
    all_layers,
    configuration_of,
    is_keras_model,
    saved_values,
)
from export.tensorflow_models.frameworks.layer_names import name_in_list
from export.tensorflow_models.model.configurations import (
    MISSING,
    Comparison,
    compare_configurations,
    default_of,
    is_of_keras,
    text_of,
)
from export.tensorflow_models.model.keras_variables import is_of_older_format

VOCABULARY = "vocabulary.txt"
_SHOWN_MAX = 3
"""How many labels or values a message shows."""
_REMEDY = (
    "Let the factory build the layer as it was trained; its configuration and its vocabulary are "
    'in the file. If the factory is right, save with model.save_weights("model.weights.h5"), which '
    "says nothing of either"
)


def check_archived_model(root: Any, checkpoint: Checkpoint, object_path: str) -> tuple[str, ...]:
    """Compares a file of Keras with the model that the factory returned.

    Args:
      root: The model.
      checkpoint: Any checkpoint.
      object_path: The path of the model in what was saved; "": it was saved itself.

    Returns:
      Notes on what is not compared.

    Raises:
      CheckpointError: They differ; names the layer, and the first difference.
    """
    if not is_keras_3_layer(root) and not is_keras_model(root):
        return ()
    storage = checkpoint.storage
    if storage.kind != "Keras" and not (storage.model or storage.assets):
        return ()
    if is_of_older_format(checkpoint):
        # Its configuration is compared by `check_saved_layers`.
        return ()

    path = object_path.replace(".", "/")
    archived = _ArchivedModel(root, checkpoint, saved_values(root, path), path)
    archived.check_constants()
    comparison = archived.compare_configurations()
    archived.check_assets()
    archived.check_vocabularies(comparison.vocabularies)
    return _notes(comparison, checkpoint)


def _notes(comparison: Comparison, checkpoint: Checkpoint) -> tuple[str, ...]:
    notes = []
    if comparison.other_class:
        saved, built = comparison.other_class
        notes.append(
            f"checkpoint {checkpoint.name} holds a model of class {saved}, and the factory "
            f"returned one of class {built}: their arguments were not compared"
        )
    lambdas = comparison.lambdas
    if lambdas:
        more = ""
        if len(lambdas) > _SHOWN_MAX:
            more = f" and {len(lambdas) - _SHOWN_MAX} more"
        notes.append(
            f"{', '.join(lambdas[:_SHOWN_MAX])}{more}: the code of a lambda is the factory's; that "
            f"in checkpoint {checkpoint.name} is neither executed nor compared"
        )
    return tuple(notes)


@dataclass(frozen=True)
class _ArchivedModel:
    """A model beside the file that it was saved in.

    Attributes:
      root: The model.
      checkpoint: The file.
      saved: What Keras would save of the model.
      path: The path of the model in the file, with slashes.
    """

    root: Any
    checkpoint: Checkpoint
    saved: SavedValues
    path: str

    def check_constants(self) -> None:
        """Compares the values that layers save and have no variable for."""
        optimizer = f"{self.path}/optimizer/".lstrip("/")
        for path, value in self.saved.values.items():
            # Variables are compared when they are restored; arrays have no variable.
            if not isinstance(value, np.ndarray) or path not in self.checkpoint.entries:
                continue
            # What a factory that loads the file has of the optimizer computes no result.
            if path.startswith(optimizer):
                continue
            stored = self.checkpoint.read_all(path)
            if stored.shape != value.shape or not np.array_equal(stored, value):
                layer, _, name = path.partition("/vars/")
                raise self._rejection(
                    f"{self._label(layer)}: {name} is {_summary(stored)} in the file and "
                    f"{_summary(value)} in the model"
                )

    def compare_configurations(self) -> Comparison:
        """Compares the arguments of all layers."""
        config = self._configuration()
        if not config:
            return Comparison()
        try:
            built = configuration_of(self.root)
        except Exception as problem:  # the user's classes may raise anything
            raise self._rejection(
                "the model does not say its configuration, which could be compared with the file: "
                f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
            ) from problem

        names = {kind.__name__ for kind in type(self.root).__mro__}
        if config["class_name"] in names:
            # A class may add methods for the export to the one that was trained.
            built |= {key: config.get(key) for key in ("module", "class_name")}
        elif not is_of_keras(config) and not is_of_keras(built):
            # Two classes of the user's may take different arguments for the same layers.
            return Comparison(other_class=(str(config["class_name"]), str(built["class_name"])))

        try:
            comparison = compare_configurations(config, built, self._default_of)
        except RecursionError as problem:
            raise self._rejection("its configuration is nested too deeply") from problem
        if comparison.differences:
            count = len(comparison.differences)
            more = ""
            if count > 1:
                more = f" (the first of {count} differences)"
            raise self._rejection(f"{comparison.differences[0]}{more}")
        return comparison

    def check_assets(self) -> None:
        """Compares the files that layers saved with what the model's layers are made of."""
        groups = {_asset_path(self.checkpoint, group): group for group in self.saved.groups}
        separator = _asset_path(self.checkpoint, "/")
        beginning = ""
        if self.path:
            beginning = _asset_path(self.checkpoint, f"{self.path}/")

        # A TextVectorization first, then the lookup in it, which saves the same.
        for path in sorted(self.checkpoint.storage.assets, key=len):
            if not path.startswith(beginning):
                continue
            # The model itself is the group "", which every path begins with.
            owners = [
                group for group in groups if not group or path.startswith(f"{group}{separator}")
            ]
            if not owners:
                raise self._rejection(f"it holds {path!r}, of a layer that the model lacks")
            # Groups are nested: the layer that saved the file is the innermost one.
            owner = max(owners, key=len)
            self._check_asset(path, groups[owner], path[len(owner) :].lstrip(separator))

    def _check_asset(self, path: str, group: str, name: str) -> None:
        layer = self.saved.groups[group]
        if name == VOCABULARY and hasattr(layer, "get_vocabulary"):
            self._check_vocabulary_file(path, group)
            return
        expected = _assets_of(layer).get(name)
        if expected is None:
            raise self._rejection(
                f"it holds {path!r}, and {self._label(group)} of the model saves no {name!r}"
            )
        if self._content(path, len(expected)) != expected:
            raise self._rejection(f"{path!r} is not what {self._label(group)} of the model saves")

    def _check_vocabulary_file(self, path: str, group: str) -> None:
        tokens = [str(token) for token in self.saved.groups[group].get_vocabulary()]
        expected = "\n".join(tokens).encode()
        content = self._content(path, len(expected))
        if content == expected:
            return
        stored = content.decode(errors="backslashreplace").split("\n")
        raise self._unlike_vocabulary(group, stored, tokens)

    def _content(self, path: str, size: int) -> bytes:
        """Returns an asset, of which no more is decompressed than shows that it is longer."""
        return self.checkpoint.read_asset(path, size + 1)

    def check_vocabularies(self, stated: Mapping[str, list[Any] | None]) -> None:
        """Compares the vocabularies that are not in files of their own.

        Args:
          stated: The vocabularies in the configuration of the file, by the name of the model's
            layer; None: the vocabulary is an asset.
        """
        layers = self.saved.groups
        # The lookup inside a TextVectorization, whose vocabulary is that of the outer layer.
        inner_ids = {id(getattr(layer, "_lookup_layer", None)) for layer in layers.values()}
        for group, layer in layers.items():
            if not hasattr(layer, "save_assets") or not hasattr(layer, "get_vocabulary"):
                continue
            file = f"{group}/{VOCABULARY}".lstrip("/")
            if _asset_path(self.checkpoint, file) in self.checkpoint.storage.assets:
                # `check_assets` compared it.
                continue

            vocabulary = stated.get(layer.name, MISSING)
            if isinstance(vocabulary, list):
                self._check_stated(group, vocabulary)
                continue
            if not self._says_vocabularies:
                continue
            saves_vocabulary = VOCABULARY in _assets_of(layer) and id(layer) not in inner_ids
            if vocabulary is None or saves_vocabulary:
                raise self._rejection(
                    f"{self._label(group)}: the file has no vocabulary of it, and the model has one"
                )

    @property
    def _says_vocabularies(self) -> bool:
        """Whether the file is of those that hold vocabularies at all."""
        return bool(self.checkpoint.storage.model or self.checkpoint.storage.assets)

    def _check_stated(self, group: str, vocabulary: list[Any]) -> None:
        layer = self.saved.groups[group]
        stated = [str(token) for token in vocabulary]
        plain = [str(token) for token in layer.get_vocabulary(include_special_tokens=False)]
        whole = [str(token) for token in layer.get_vocabulary()]
        if stated not in (plain, whole):
            raise self._unlike_vocabulary(group, stated, plain)

    def _unlike_vocabulary(
        self, group: str, stored: list[str], expected: list[str]
    ) -> CheckpointError:
        label = self._label(group)
        for index, (saved, built) in enumerate(zip(stored, expected, strict=False)):
            if saved != built:
                return self._rejection(
                    f"{label}: vocabulary entry {index} is {text_of(saved)} in the file and "
                    f"{text_of(built)} in the model"
                )
        # One vocabulary is the beginning of the other.
        return self._rejection(
            f"{label}: the vocabulary has {_count(stored, expected)} entries in the file and "
            f"{len(expected)} in the model"
        )

    def _configuration(self) -> Mapping[str, Any]:
        """Returns the configuration of the object that the model is in the file; {}: none."""
        config: Any = self.checkpoint.storage.model
        steps = [step for step in self.path.split("/") if step]
        while steps and isinstance(config, dict):
            inner = config.get("config")
            step = steps.pop(0)
            if not isinstance(inner, dict):
                return {}
            if step == "layers" and isinstance(inner.get("layers"), list) and steps:
                # A path names a layer of a list, which has only positions in the configuration.
                config = self._listed(inner["layers"]).get(steps.pop(0))
            else:
                config = inner.get(step)
        if isinstance(config, dict) and "class_name" in config:
            return config
        return {}

    def _listed(self, layers: list[Any]) -> dict[str, Any]:
        """Returns the configurations of layers by the names that Keras gives them in a list."""
        of_keras_3 = is_keras_3_layer(self.root)
        listed: dict[str, Any] = {}
        counts: Counter[str] = Counter()
        for layer in layers:
            if not isinstance(layer, dict):
                continue
            class_name = name_in_list(str(layer.get("class_name")), of_keras_3=of_keras_3)
            name = class_name
            # Keras numbers all layers of a class but the first: dense, dense_1, dense_2.
            if counts[class_name]:
                name = f"{class_name}_{counts[class_name]}"
            counts[class_name] += 1
            listed[name] = layer
        return listed

    def _default_of(self, class_name: str, argument: str) -> Any:
        return default_of(map(type, all_layers(self.root)), class_name, argument)

    def _label(self, group: str) -> str:
        layer = self.saved.groups.get(group)
        if layer is None:
            return f"layer {group!r}"
        return f"layer {layer.name!r} ({type(layer).__name__})"

    def _rejection(self, difference: str) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.checkpoint.prefix}: {difference}. {_REMEDY}")


def _assets_of(layer: Any) -> dict[str, bytes]:
    """Returns the files that a layer saves, by their paths."""
    if not hasattr(layer, "save_assets"):
        return {}
    # A layer writes its files itself; Keras has no call that returns their contents.
    with tempfile.TemporaryDirectory() as name:
        layer.save_assets(name)
        folder = Path(name)
        files = [file for file in folder.rglob("*") if file.is_file()]
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def _asset_path(checkpoint: Checkpoint, path: str) -> str:
    """Returns the path of an asset as the storage of a checkpoint writes it."""
    if checkpoint.storage.kind == "Orbax":
        return path.replace("/", ".")
    return path


def _count(stored: Collection[str], expected: Collection[str]) -> str:
    """Returns how many entries are stored, of which no more are read than show that."""
    if len(stored) > len(expected):
        return f"more than {len(expected)}"
    return str(len(stored))


def _summary(values: np.ndarray[Any, Any]) -> str:
    return f"{values.dtype} {list(values.shape)} {text_of(values.ravel()[:_SHOWN_MAX].tolist())}"
