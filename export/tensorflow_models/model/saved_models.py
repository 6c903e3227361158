"""Finds the model that was saved in what a factory returned.

Retrieval packages build a model whose loss is inside, and models of its parts, which share its
layers: what is served are the parts, and what is saved is the model. A factory returns all of them,
as attributes of an object, as a dict, or as attributes of the model itself.
"""

from __future__ import annotations

from typing import Any

from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError
from export.tensorflow_models.frameworks.keras_saving import is_keras_model, tensorflow_variable
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.frameworks.trackables import children_of, handle_of
from export.tensorflow_models.model.keras_variables import saved_by_keras
from export.tensorflow_models.model.weights import TrainedModel


def trained_model(root: Any, checkpoint: Checkpoint, object_path: str) -> TrainedModel:
    """Returns the model that was saved beside its checkpoint.

    Args:
      root: What the factory returned: the model, or an object with it among its attributes.
      checkpoint: The checkpoint.
      object_path: The path of the model in what was saved.

    Raises:
      CheckpointError: Several models fit the checkpoint; or none does, and the one with the most
        variables shows why.
    """
    candidates = [
        TrainedModel(model, checkpoint, object_path) for model in _candidates(root, checkpoint)
    ]
    if len(candidates) == 1:
        return candidates[0]

    fitting: dict[frozenset[tuple[int, str]], TrainedModel] = {}
    problems: list[tuple[int, CheckpointError]] = []
    for candidate in candidates:
        weights = _weights(candidate.root)
        try:
            keys = candidate.find_weights(weights)
        except CheckpointError as problem:
            problems.append((len(weights), problem))
        else:
            # Models that share all variables are one.
            identity = frozenset((id(variable), key) for variable, key in keys)
            fitting.setdefault(identity, candidate)
    if not fitting:
        # The model that was trained has the layers of all that was derived from it.
        _, likeliest = max(problems, key=lambda pair: pair[0])
        if saved_by_keras(checkpoint) and not is_keras_model(root):
            raise likeliest
        # What no tower reads may be missing.
        return max(candidates, key=lambda candidate: len(_weights(candidate.root)))
    largest = max(map(len, fitting))
    models = [candidate for weights, candidate in fitting.items() if len(weights) == largest]
    if len(models) > 1:
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} fits several models of the {type(root).__name__} that "
            "the factory returned: let it hold one of them"
        )
    return models[0]


def _candidates(root: Any, checkpoint: Checkpoint) -> list[Any]:
    """Returns what a factory returned, or the models in it that may have been saved instead."""
    attributes = children_of(root) or getattr(root, "__dict__", {})
    # TensorFlow saves any object that tracks others as it is.
    is_saved_itself = checkpoint.graph is not None and children_of(root)
    if isinstance(root, NamedGraph) or is_saved_itself:
        return [root]
    models = [value for value in attributes.values() if is_keras_model(value)]
    if not models or not is_keras_model(root):
        return models or [root]
    graphs = [kind for kind in type(root).__mro__ if kind.__name__ == "Functional"]
    if not graphs:
        return [root]
    # The model that was saved may have had no other models as attributes.
    return [root, graphs[0](root.input, root.output, name=root.name)]


def _weights(model: Any) -> list[Any]:
    """Returns the weights of a model, as TensorFlow's variables; [] if it has made none yet."""
    try:
        weights = model.weights
    except ValueError:
        # A model of tf-keras that was not called.
        return []
    # Of a lookup that was adapted, tf-keras also lists the vocabulary.
    return [tensorflow_variable(weight) for weight in weights if handle_of(weight) is not None]
