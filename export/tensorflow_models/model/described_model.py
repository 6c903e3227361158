"""Compares what Keras saved of a model beside its variables with the model of the factory.

    .keras, OrbaxCheckpoint     the configuration of the model, and files of layers: vocabularies
    .keras, .weights.h5         also values without a variable: the IDF weights of texts
    .h5, the older format       the configuration of a whole model
    SavedModel of tf-keras      the configuration of each layer

No code in it is executed, and none of it replaces what the factory says: where the two differ, the
export is rejected. Releases of Keras write the same layer in other words, so a layer that differs
is compared again as the installed Keras builds it from either description (`rebuilt_layers.py`). A
note says what cannot be compared. In the older format and in a SavedModel that is the vocabulary of
a layer that was adapted: HDF5 does not hold it, and in a SavedModel it is a constant of the graph,
which is neither run nor read.

Source: Keras 3.15, src/saving/saving_lib.py, src/layers/preprocessing/index_lookup.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import tf
from export.raised_errors import is_own
from export.tensorflow_models.frameworks.keras_saving import (
    SavedValues,
    Walk,
    configuration_of,
    is_keras_model,
    layer_configuration_of,
    saved_files,
    saved_values,
    walk_of,
)
from export.tensorflow_models.frameworks.layer_names import name_in_list
from export.tensorflow_models.frameworks.trackables import children_of, walk
from export.tensorflow_models.model.configuration_forms import is_of_keras
from export.tensorflow_models.model.configurations import (
    MISSING,
    Comparison,
    Described,
    compare_configurations,
    text_of,
)
from export.tensorflow_models.model.keras_variables import is_of_older_format
from export.tensorflow_models.model.rebuilt_layers import Rebuilding

_VOCABULARY = "vocabulary.txt"
_SHOWN_MAX = 3
"""How many values a message shows."""


def check_described_model(root: Any, checkpoint: Checkpoint, object_path: str) -> tuple[str, ...]:
    """Compares what a checkpoint says of a model with the one that the factory returned.

    Args:
      root: The model that was saved.
      checkpoint: Any checkpoint.
      object_path: The path of the model in what was saved; "": it was saved itself.

    Returns:
      Notes on what is not compared.

    Raises:
      CheckpointError: They differ; names the layer, and the first difference.
    """
    storage = checkpoint.storage
    if not storage.layers:
        is_described = storage.kind == "Keras" or storage.model or storage.assets
        is_model = is_keras_3_layer(root) or is_keras_model(root)
        if not is_described or not is_model or is_of_older_format(checkpoint):
            return ()

    described = _DescribedModel(root, checkpoint, object_path.replace(".", "/"))
    described.check_constants()
    comparison = described.compare_configurations()
    described.check_files()
    described.check_vocabularies(comparison.vocabularies)
    return tuple(described.notes)


@dataclass(frozen=True)
class _DescribedModel:
    """A model beside a checkpoint that describes one.

    Attributes:
      root: The model.
      checkpoint: The checkpoint.
      path: The path of the model in the checkpoint, with slashes.
      notes: What was not compared.
    """

    root: Any
    checkpoint: Checkpoint
    path: str
    notes: list[str] = field(default_factory=list)

    def check_constants(self) -> None:
        """Compares the values that layers save and have no variable for."""
        for path, value in self._saved.values.items():
            # Variables are compared when they are restored; arrays have no variable.
            if not isinstance(value, np.ndarray) or path not in self.checkpoint.entries:
                continue
            group, _, name = path.partition("/vars/")
            layer = self._layers.get(group)
            # What a factory that loads the file has of the optimizer computes no result.
            if layer is None:
                continue
            stored = self.checkpoint.read_all(path)
            if stored.shape != value.shape or not np.array_equal(stored, value):
                raise self._rejection(
                    f"{_label(layer)}: {name} is {_summary(stored)} in the file and "
                    f"{_summary(value)} in the model"
                )

    def compare_configurations(self) -> Comparison:
        """Compares the arguments of all layers."""
        pairs = self._model_pairs()
        if self.checkpoint.storage.layers:
            pairs = self._layer_pairs()
        rebuilding = Rebuilding(self.root, self._arguments_of)
        try:
            comparison = compare_configurations(pairs, rebuilding.arguments_of)
        except RecursionError as problem:
            raise self._rejection("its configuration is nested too deeply") from problem
        count = len(comparison.differences)
        if count:
            more = ""
            if count > 1:
                more = f" (the first of {count} differences)"
            raise self._rejection(f"{comparison.differences[0]}{more}")
        self.notes.extend(
            f"{label}: the code of a lambda is the factory's; that in checkpoint "
            f"{self.checkpoint.name} is neither executed nor compared"
            for label in comparison.lambdas
        )
        return comparison

    def _arguments_of(self, part: Any) -> dict[str, Any]:
        """Returns the arguments of a layer or operation as the kind of file holds them."""
        storage = self.checkpoint.storage
        if storage.layers:
            written = layer_configuration_of(part, in_hdf5=bool(storage.ordered_layers))
        else:
            written = configuration_of(part)
        arguments: dict[str, Any] = written["config"]
        return arguments

    def _model_pairs(self) -> Iterator[Described]:
        """Yields the configuration of the model in the file and in the factory, if there is one."""
        saved = self._configuration()
        if not saved:
            return
        try:
            built = configuration_of(self.root)
        except Exception as problem:  # the user's classes may raise anything
            if is_own(problem):
                raise
            raise self._rejection(
                "the model does not say its configuration, which could be compared with the file: "
                f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
            ) from problem
        yield from self._comparable("", self.root, saved, built)

    def _layer_pairs(self) -> Iterator[Described]:
        """Yields the configuration of each layer in the file and in the factory."""
        storage = self.checkpoint.storage
        steps = _steps(self.path)
        # The outermost first: a graph of layers describes its layers, too.
        for path, saved in sorted(storage.layers.items(), key=lambda pair: pair[0].count(".")):
            layer_steps = _steps(path.replace(".", "/"))
            if layer_steps[: len(steps)] != steps:
                continue
            inner_steps = layer_steps[len(steps) :]
            layer = _object_at(self.root, inner_steps)
            if not hasattr(layer, "get_config"):
                continue
            try:
                built = layer_configuration_of(layer, in_hdf5=bool(storage.ordered_layers))
            except Exception as problem:  # a class of the user's may raise anything
                if is_own(problem):
                    raise
                continue
            label = ""
            if inner_steps:
                label = _label(layer)
            yield from self._comparable(label, layer, saved, built)

    def _comparable(
        self, label: str, layer: Any, saved: Mapping[str, Any], built: dict[str, Any]
    ) -> Iterator[Described]:
        """Yields two configurations, unless they are of different classes of the user's, which may
        take different arguments for the same layers: then a note says so.
        """
        saved_class = str(saved["class_name"]).rpartition(">")[2]
        if saved_class in {kind.__name__ for kind in type(layer).__mro__}:
            # A class may add methods for the export to the one that was trained.
            built |= {key: saved[key] for key in ("module", "class_name") if key in saved}
        elif not _is_of_keras(saved) and not _is_of_keras(built):
            self.notes.append(
                f"{label or 'the model'} is of class {saved_class} in checkpoint "
                f"{self.checkpoint.name}, and of class {type(layer).__name__} in the factory: "
                "their arguments are not compared"
            )
            return
        yield label, saved, built

    def check_files(self) -> None:
        """Compares the files that layers saved, but for vocabularies, with those that they would
        save now.
        """
        vocabularies = {self._vocabulary_file(path) for path in self._layers_with_vocabularies}
        beginning = self._stored_path(f"{self.path}/".lstrip("/"))
        for path in self.checkpoint.storage.assets:
            if path in vocabularies or not path.startswith(beginning):
                continue
            expected = self._files.get(path)
            if expected is None:
                raise self._rejection(f"it holds {path!r}, which no layer of the model saves")
            if self._content(path, len(expected)) != expected:
                raise self._rejection(f"{path!r} is not what the model saves")

    def check_vocabularies(self, stated: Mapping[str, Any]) -> None:
        """Compares vocabularies.

        Args:
          stated: The vocabularies in the configurations of the file, by the name of the model's
            layer; None: the vocabulary is no argument there.
        """
        storage = self.checkpoint.storage
        for path, layer in self._layers_with_vocabularies.items():
            vocabulary = stated.get(layer.name, MISSING)
            file = self._vocabulary_file(path)
            if file in storage.assets:
                self._check_vocabulary(layer, self._stored_tokens(file, layer))
            elif isinstance(vocabulary, list):
                self._check_vocabulary(layer, [str(token) for token in vocabulary])
            elif storage.layers and vocabulary is not MISSING:
                self.notes.append(
                    f"{_label(layer)}: its vocabulary is not in checkpoint "
                    f"{self.checkpoint.name}, or is a part of the graph there, which is not read; "
                    "only recorded outputs (verify.expected) can show whether it is the factory's"
                )
            elif vocabulary is None or file in self._files:
                raise self._rejection(
                    f"{_label(layer)}: the file has no vocabulary of it, and the model has one"
                )

    def _check_vocabulary(self, layer: Any, stored: Sequence[str]) -> None:
        plain = _tokens(layer, include_special_tokens=False)
        whole = _tokens(layer)
        # An argument may hold the special tokens, or only what follows them.
        if stored in (plain, whole):
            return
        expected = plain
        if stored[:1] == whole[:1]:
            expected = whole
        for index, (saved, built) in enumerate(zip(stored, expected, strict=False)):
            if saved != built:
                raise self._rejection(
                    f"{_label(layer)}: vocabulary entry {index} is {text_of(saved)} in the file "
                    f"and {text_of(built)} in the model"
                )
        # One is the beginning of the other. No more was read than shows that it is longer.
        count = str(len(stored))
        if len(stored) > len(expected):
            count = f"more than {len(expected)}"
        raise self._rejection(
            f"{_label(layer)}: the vocabulary has {count} entries in the file and "
            f"{len(expected)} in the model"
        )

    def _stored_tokens(self, file: str, layer: Any) -> list[str]:
        tokens = _tokens(layer)
        text = "\n".join(tokens).encode()
        content = self._content(file, len(text))
        if content == text:
            return tokens  # one may have a line feed in it
        return content.decode(errors="backslashreplace").split("\n")

    def _content(self, path: str, size: int) -> bytes:
        """Returns an asset, of which no more is decompressed than shows that it is longer."""
        return self.checkpoint.read_asset(path, size + 1)

    @cached_property
    def _saved(self) -> SavedValues:
        """What Keras would save of the model. Files that describe single layers have no values."""
        if self.checkpoint.storage.layers:
            parts = walk(self.root)
            return SavedValues({}, {str(n): part.value for n, part in enumerate(parts)})
        return saved_values(self.root, self.path, self._walk)

    @cached_property
    def _walk(self) -> Walk:
        """How the release that saved the model walked it."""
        return walk_of(self.root, self.path, self.checkpoint.entries)

    @property
    def _layers(self) -> Mapping[str, Any]:
        return self._saved.groups

    @cached_property
    def _layers_with_vocabularies(self) -> dict[str, Any]:
        return {
            path: layer
            for path, layer in self._layers.items()
            if hasattr(type(layer), "get_vocabulary")
        }

    @cached_property
    def _files(self) -> Mapping[str, bytes]:
        """The files that the layers of the model save, by their paths in the checkpoint; {} if it
        is of those that hold no files.
        """
        storage = self.checkpoint.storage
        if storage.layers or not (storage.model or storage.assets):
            return {}
        files = saved_files(self.root, self.path, self._walk)
        for path, layer in self._layers.items():
            # The vocabulary of the lookup in a TextVectorization is that of the outer layer.
            if hasattr(layer, "_lookup_layer"):
                files.pop(f"{path}/_lookup_layer/{_VOCABULARY}".lstrip("/"), None)
        return {self._stored_path(path): content for path, content in files.items()}

    def _vocabulary_file(self, path: str) -> str:
        return self._stored_path(f"{path}/{_VOCABULARY}".lstrip("/"))

    def _stored_path(self, path: str) -> str:
        """Returns a path as the storage of the checkpoint writes it."""
        if self.checkpoint.storage.kind == "Orbax":
            return path.replace("/", ".")
        return path

    def _configuration(self) -> Mapping[str, Any]:
        """Returns the configuration of the object that the model is in the file; {}: none."""
        config: Any = self.checkpoint.storage.model
        steps = _steps(self.path)
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

    def _rejection(self, difference: str) -> CheckpointError:
        remedy = 'its weights alone with model.save_weights("model.weights.h5")'
        if self.checkpoint.storage.kind == "TensorFlow":
            remedy = "it with tf.train.Checkpoint(model=model).write(path)"
        return CheckpointError(
            f"checkpoint {self.checkpoint.prefix}: {difference}. Let the factory build the layer "
            f"as it was trained. If the factory is right, save {remedy}, which describes no layers"
        )


def _label(layer: Any) -> str:
    return f"layer {layer.name!r} ({type(layer).__name__})"


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step]


def _object_at(root: Any, path: Sequence[str]) -> Any:
    """Returns the object at a path of attributes; None if there is none."""
    current = root
    for step in path:
        current = children_of(current).get(step)
        if current is None:
            return None
    return current


def _is_of_keras(configuration: Mapping[str, Any]) -> bool:
    if "module" in configuration:
        return is_of_keras(configuration)
    # A SavedModel and the older format do not say where a class is defined.
    name = str(configuration["class_name"])
    return any(hasattr(module, name) for module in (tf.keras, tf.keras.layers))


def _tokens(layer: Any, **arguments: bool) -> list[str]:
    return [str(token) for token in layer.get_vocabulary(**arguments)]


def _summary(values: np.ndarray[Any, Any]) -> str:
    return f"{values.dtype} {list(values.shape)} {text_of(values.ravel()[:_SHOWN_MAX].tolist())}"
