"""Reads the dense weights of towers from a checkpoint: by its object graph, by variable names, or
as Keras saved them.

The user's model and the checkpoint's object graph are walked together by attribute names, as
TensorFlow's own restore does, but only the variables that a tower reads are read and checked:
tables cost nothing, and variables that no tower needs may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bundle.shown_values import shown_first
from export.checkpoint.formats.object_graph import ObjectGraph
from export.checkpoint.inventory.name_tables import is_partitioned
from export.checkpoint.left_out import left_out_siblings, listed_shapes, reject_left_out
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import is_wider_integer
from export.errors import CheckpointError
from export.graphs.internals import is_keras_3_layer
from export.graphs.placeholders import line_of_variable
from export.graphs.walks import resource
from export.tensorflow_models.frameworks.keras_saving import tensorflow_variable
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.frameworks.normalizations import (
    adapted_normalizations,
    give_normalization,
)
from export.tensorflow_models.frameworks.trackables import ModelObject, handle_of, walk
from export.tensorflow_models.model.keras_generation import why_unlike
from export.tensorflow_models.model.keras_variables import (
    KerasVariables,
    find_keras_variables,
    has_lora_weights,
    layer_of_key,
    saved_by_keras,
)
from export.tensorflow_models.model.listed_variables import holds_lists
from export.tensorflow_models.model.object_paths import VariableLocation
from export.tensorflow_models.model.unmatched_objects import (
    UnmatchedObject,
    left_out_variables,
    unmatched_objects,
)
from export.user_lines import at_line

_SHOWN_MAX = 5
"""The maximum number of variables or problems that a message names."""
_UNSEEN = (
    "tf.train.Checkpoint saves only what a model holds as attributes, not layers in lists and "
    "dicts of Keras 3. Add an attribute that holds them, both in training and in the factory: "
    "`model.saved = tf.train.Checkpoint(layers=model.layers)`, or `block.saved` of the layer that "
    "owns the list; then write the checkpoint again"
)
_UNSEEN_OBJECT = (
    "tf.train.Checkpoint saves only what a model holds as attributes, and looks into no plain "
    "Python object: let the class of the object that holds the variable derive from tf.Module, "
    "both in training and in the factory; then write the checkpoint again"
)
_QUANTIZED = (
    "Keras quantized the layers that were saved: let the factory quantize the model, too "
    '(model.quantize("int8")), or save the model before it is quantized'
)
_UNTRACKED = (
    "Keras does not track it: a layer must be an attribute of the model or of one of its layers, "
    "also in a list or dict, when the model is trained and in the factory"
)
_NAMES_IN_LAYERS = {
    *("kernel", "bias", "weights", "biases"),
    *("gamma", "beta", "moving_mean", "moving_variance"),
}
"""The names that `tf.layers` and TF-Slim give the variables of a layer."""
_MERGED = (
    "Keras saves a layer with its LoRA matrices merged into its own: let the factory create the "
    "layer without enable_lora"
)


@dataclass(frozen=True)
class TrainedModel:
    """The user's model beside its checkpoint.

    Attributes:
      root: The model.
      checkpoint: The model's checkpoint.
      object_path: The attribute path of the model in the checkpoint, the recipe's
        `checkpoint.object_path`.
    """

    root: Any
    checkpoint: Checkpoint
    object_path: str

    def restore_model(self) -> None:
        """Assigns all variables of a model that Keras saved but the tables that are not to be
        restored.

        Raises:
          CheckpointError: See `find_weights`.
        """
        # `weights` leaves out the states of metrics and of random numbers. Of a lookup that was
        # adapted, tf-keras also lists the vocabulary.
        weights = [weight for weight in self.root.weights if handle_of(weight) is not None]
        variables = map(tensorflow_variable, weights)
        self.restore_weights(
            variable for variable in variables if getattr(variable, "restored", True) is not False
        )

    def restore_weights(self, variables: Iterable[Any]) -> None:
        """Assigns each variable its value in the checkpoint; raises what `find_weights` does."""
        for variable, key in self.find_weights(variables):
            value = self.checkpoint.read_all(key)
            # Keras on JAX has saved integers of 32 bits where TensorFlow has 64.
            value = value.astype(variable.dtype.as_numpy_dtype, copy=False)
            variable.assign(value)
            if hasattr(variable, "restored"):
                # Not a table, whatever its size: TensorFlow saves it.
                variable.restored = True

    def restore_normalizations(self) -> None:
        """Gives Normalization layers that the factory adapted the mean and variance of training.

        A layer whose variables the checkpoint lacks, or has with another shape, stays as it is.
        """
        for layer in adapted_normalizations(self.root):
            variables = [
                tensorflow_variable(layer.adapt_mean),
                tensorflow_variable(layer.adapt_variance),
            ]
            locations = [self.locations.get(resource(variable.handle)) for variable in variables]
            keys = [location.key for location in locations if location is not None and location.key]
            shapes = [tuple(self.checkpoint.entries[key].shape) for key in keys]
            # Both are restored, or none: a missing one makes the lists unequal, too.
            if shapes == [tuple(variable.shape) for variable in variables]:
                give_normalization(layer, *map(self.checkpoint.read_all, keys))

    def find_weights(self, variables: Iterable[Any]) -> list[tuple[Any, str]]:
        """Returns each variable that a tower reads with its key in the checkpoint; reads no value.

        Raises:
          CheckpointError: The checkpoint has no object graph or no such object; variables are
            missing or of another shape or dtype; or a list that the tower reads has more layers
            there. The message names them.
        """
        # Problems are reported together, so that a user mends them in one go.
        locations = self.locations
        problems = []
        weights = []
        lines = {}
        for variable in variables:
            location = locations.get(resource(variable.handle))
            if location is None:
                location = VariableLocation(variable.name, "")
            line = at_line(line_of_variable(variable))
            lines[location.path] = line
            weights.append((variable, location.key))
            problem = _problem(variable, location, line, self.checkpoint)
            if problem:
                problems.append(problem)
        problems += self._longer_lists(lines)
        if problems:
            listed = shown_first(problems, _SHOWN_MAX, "; ")
            raise CheckpointError(
                f"checkpoint {self.checkpoint.prefix}: {listed}. {self._cause(weights)}"
            )
        return weights

    def _longer_lists(self, lines: Mapping[str, str]) -> list[str]:
        """Returns problems with lists of layers that are longer in the checkpoint.

        Args:
          lines: The user's lines that create the variables which towers read, by their paths.
        """
        problems = []
        for unmatched in self.unmatched_objects:
            prefix = f"{unmatched.owner}." if unmatched.owner else ""
            lines_of_owner = [line for path, line in lines.items() if path.startswith(prefix)]
            # What no tower reads may be missing.
            if not unmatched.counted or not lines_of_owner:
                continue
            problems.append(
                f"{unmatched.owner or 'the model'}{lines_of_owner[0]} has no {unmatched.name}, but "
                f"there is {listed_shapes(self.checkpoint, unmatched.keys)}"
            )
        return problems

    def _cause(self, weights: Sequence[tuple[Any, str]]) -> str:
        """Returns the likeliest cause of problems with weights: a known one, or other code."""
        cause = "The model code is not the one that was saved"
        if isinstance(self.root, NamedGraph):
            return cause
        if self.why_unlike:
            return self.why_unlike
        quantized = self.why_quantized(weights)
        if quantized:
            return quantized
        for variable, _ in weights:
            missing = self.why_missing(variable)
            if missing:
                return missing
        return (
            f"{cause}, or checkpoint.object_path ({self.object_path!r}) is not the path of the "
            "model"
        )

    @cached_property
    def why_unlike(self) -> str:
        """The reason why the objects of the checkpoint are not those of the model, with the
        remedy; "" if it is not known.
        """
        return why_unlike(self.root, self._object_graph)

    def why_missing(self, variable: Any) -> str:
        """Returns why TensorFlow or Keras could not save a variable, and the remedy; "" if it
        could.
        """
        if isinstance(self.root, NamedGraph) or resource(variable.handle) in self.locations:
            return ""
        if saved_by_keras(self.checkpoint) and has_lora_weights(self.root, variable):
            return _MERGED
        if self.checkpoint.graph is None:
            return _UNTRACKED
        if is_keras_3_layer(self.root):
            return _UNSEEN
        return _UNSEEN_OBJECT

    def why_quantized(self, weights: Iterable[tuple[Any, str]]) -> str:
        """Returns the remedy for layers that were saved as integers and are floats in the model; ""
        if there are none.

        Args:
          weights: Variables, each with its key in the checkpoint; "": the checkpoint lacks it.
        """
        if not saved_by_keras(self.checkpoint):
            return ""
        for variable, key in weights:
            if not key or not variable.dtype.is_floating:
                continue
            if self.checkpoint.entries[key].dtype in ("int8", "uint8"):
                return _QUANTIZED
        return ""

    @cached_property
    def locations(self) -> dict[str, VariableLocation]:
        """Every variable of the model in the checkpoint, tables included, by the name of its
        resource.

        Raises:
          CheckpointError: The checkpoint has no object graph, or no object at `object_path`.
        """
        locations: dict[str, VariableLocation] = {}
        for name, location in self._all_locations:
            first = locations.get(name)
            # A variable that is held twice may be in the checkpoint along the second path only.
            if first is None or not first.key:
                locations[name] = location
        return locations

    @cached_property
    def _all_locations(self) -> list[tuple[str, VariableLocation]]:
        """The resource and the location of every variable, also of those that the model holds, or
        the checkpoint has, several times.
        """
        checkpoint = self.checkpoint
        entries = checkpoint.entries
        if isinstance(self.root, NamedGraph):
            return [
                (resource(variable.handle), VariableLocation(name, key))
                for name, variable in self.root.variables.items()
                # Averages are stored beside their variables.
                for key in (self.root.key(name, entries), name if name in entries else "")
            ]
        if self._of_keras is not None:
            return [
                (resource(variable.handle), location)
                for variable, location in self._of_keras.locations
            ]
        graph = self._object_graph
        if graph is None:
            method = f"by {checkpoint.storage.kind}"
            if checkpoint.storage.kind == "TensorFlow":
                method = "by variable names"
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} was saved {method}, without an object graph, "
                "which is needed to find a model's weights; load it into the model and save that "
                "with tf.train.Checkpoint, or export tables (rowcast-export tables); for TF1 code, "
                "let the factory return a function that builds the graph"
            )
        locations = []
        for model_object in self._objects:
            if not model_object.resource:
                continue
            key = ""
            if model_object.node is not None:
                key = graph.nodes[model_object.node].key
            key = checkpoint.storage.averages.get(key, key)
            if key not in entries:
                key = ""
            locations.append((model_object.resource, VariableLocation(model_object.path, key)))
        return locations

    @cached_property
    def _of_keras(self) -> KerasVariables | None:
        """The variables in what Keras saved; None if they are found by objects or by names."""
        if self.checkpoint.graph is not None or isinstance(self.root, NamedGraph):
            return None
        if not saved_by_keras(self.checkpoint):
            return None
        return find_keras_variables(self.root, self.checkpoint, self.object_path)

    @cached_property
    def _objects(self) -> list[ModelObject]:
        """The model's objects with their nodes in the checkpoint's graph; [] if there is none."""
        graph = self._object_graph
        if graph is None:
            return []
        node = 0
        for step in path_steps(self.object_path):
            children = graph.nodes[node].children
            if step not in children:
                raise CheckpointError(
                    f"checkpoint {self.checkpoint.prefix} has no object {self.object_path!r} "
                    f"(checkpoint.object_path): there is no {step!r} among "
                    f"{', '.join(sorted(children)) or 'no attributes'}"
                )
            node = children[step]
        return walk(self.root, graph, node)

    @property
    def _object_graph(self) -> ObjectGraph | None:
        """The objects of the checkpoint; None where variables are found by their names."""
        if isinstance(self.root, NamedGraph):
            return None
        return self.checkpoint.graph

    def holder_of(self, variable: Any) -> str:
        """Returns the top-level object of the checkpoint under which a variable of the model is
        found; "" if none.
        """
        graph = self._object_graph
        if graph is None:
            return ""
        # As in tf.train.Checkpoint(model=model), which holds the model one level deeper.
        for child in sorted(graph.nodes[0].children):
            below = replace(self, object_path=child)
            location = below.locations.get(resource(variable.handle))
            if location is not None and location.key:
                return child
        return ""

    @cached_property
    def unmatched_objects(self) -> list[UnmatchedObject]:
        """Objects that the checkpoint holds and the model lacks; none for a checkpoint by names."""
        graph = self._object_graph
        if graph is None:
            return []
        return unmatched_objects(self._objects, graph, self.checkpoint.entries)

    def note_unmatched_weights(self, dense: Collection[str]) -> tuple[str, ...]:
        """See OriginalModel.note_unmatched_weights."""
        checkpoint = self.checkpoint
        if holds_lists(checkpoint):
            # Each position was compared; what lies beside the lists is the optimizer's.
            return ()
        reject_left_out(checkpoint, self._left_out(dense))

        matrices = {key for key in dense if len(checkpoint.entries[key].shape) > 1}
        unmatched: dict[str, str] = {}
        if self._object_graph is None:
            unmatched = {key: key for key in sorted(matrices - self._keys_of_model)}
        else:
            for unmatched_object in self.unmatched_objects:
                if not matrices.isdisjoint(unmatched_object.keys.values()):
                    unmatched |= unmatched_object.keys
        uncalled = {path: key for path, key in unmatched.items() if self._is_uncalled(key)}
        lacking = {path: key for path, key in unmatched.items() if path not in uncalled}

        notes = []
        if lacking:
            notes.append(
                f"checkpoint {checkpoint.name} also holds {listed_shapes(checkpoint, lacking)}, "
                "which the model code lacks; if they are needed for these outputs, the code is not "
                "the one that was trained"
            )
        if uncalled:
            notes.append(
                f"checkpoint {checkpoint.name} also holds {listed_shapes(checkpoint, uncalled)}, "
                "of layers of the model that no tower calls"
            )
        return tuple(notes)

    def _is_uncalled(self, key: str) -> bool:
        """Returns whether a variable in a file of Keras belongs to a layer of the model that has
        made no variable yet: the layer was not called.
        """
        if self._of_keras is None:
            return False
        layer = self._of_keras.layers.get(layer_of_key(key))
        return layer is not None and not layer.variables

    def _left_out(self, dense: Collection[str]) -> dict[str, str]:
        """Returns what the code of the model's objects lacks: keys in `dense` by their paths."""
        graph = self._object_graph
        if graph is not None:
            left_out = left_out_variables(self._objects, graph)
            weights = {*dense} - self._counters(graph)
            return {path: key for path, key in left_out.items() if key in weights}
        keys = self._keys_of_model
        layer_of = _layer if isinstance(self.root, NamedGraph) else layer_of_key
        return left_out_siblings(keys, {*dense} - keys, layer_of)

    @cached_property
    def _keys_of_model(self) -> set[str]:
        """The keys of all variables that the code of the model has."""
        return {location.key for _, location in self._all_locations}

    def _counters(self, graph: ObjectGraph) -> set[str]:
        """Returns the keys of what training counts beside the model, such as `save_counter`."""
        entries = self.checkpoint.entries
        top_keys = {graph.nodes[node].key for node in graph.nodes[0].children.values()}
        return {key for key in top_keys & entries.keys() if "int" in entries[key].dtype}

    def table_keys(self, tables: Mapping[str, Any]) -> dict[str, str]:
        """Returns the checkpoint's key of each of the model's tables, by its name.

        Tables that are not variables of their own there (those in a SparseCore stack) are left out:
        they are found by name.
        """
        keys = {}
        for name, variable in tables.items():
            location = self.locations.get(resource(variable.handle))
            if location is not None and location.key:
                keys[name] = location.key
        return keys


def _problem(variable: Any, location: VariableLocation, line: str, checkpoint: Checkpoint) -> str:
    """Returns why a variable cannot be restored from the checkpoint; "" if it can.

    Args:
      variable: A variable of the model, as TensorFlow's.
      location: The location of the variable.
      line: The user's line that creates it, for the message.
      checkpoint: The checkpoint.
    """
    path = location.path
    shape = tuple(variable.shape.as_list())
    dtype = variable.dtype.name
    if not location.key:
        return f"{path} {list(shape)}{line} is not in the checkpoint"
    entry = checkpoint.entries[location.key]
    # Keras on JAX has integers of 32 bits where TensorFlow has 64.
    same_dtype = entry.dtype == dtype or (
        saved_by_keras(checkpoint) and is_wider_integer(dtype, entry.dtype)
    )
    if tuple(entry.shape) != shape or not same_dtype:
        return (
            f"{path} is {dtype} {list(shape)} in the model{line} and {entry.dtype} "
            f"{list(entry.shape)} there"
        )
    if getattr(variable, "mod", False) and is_partitioned(entry):
        return (
            f"{path} was saved in partitions that the `mod` strategy looks up, and stays inside a "
            "tower as a whole, where it would read other rows"
        )
    return ""


def _layer(name: str) -> str:
    """Returns the layer of a variable of TF1, which is its scope; "" unless its name is one that
    layers give: other scopes hold what belongs to different layers.
    """
    scope, _, last = name.rpartition("/")
    if last in _NAMES_IN_LAYERS:
        return scope
    return ""


def path_steps(object_path: str) -> list[str]:
    """Returns the attributes of an object path: `a.b` or `a/b`."""
    return [step for step in re.split(r"[./]", object_path) if step]
