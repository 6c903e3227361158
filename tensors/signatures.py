"""Signatures: the towers and indexes of a model as calls of named tensors, by the names and inputs
that clients send.

A tower has the signature that the self-contained SavedModel of the same model has
(docs/reference/saved-model.md), and an index has one that returns the nearest candidates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bundle.format.features import (
    DenseFeature,
    Feature,
    input_facts,
    readers_of,
    sent_dtype,
)
from bundle.format.identifiers import distinct_identifiers, identifier
from bundle.format.manifest import Role
from tensors.input_values import EITHER

DEFAULT = "serving_default"
"""The signature of requests that name none."""
RETRIEVE = "retrieve"
"""The signature of the only index; `retrieve:INDEX` is that of any index."""
K = "k"
"""The tensor of the number of neighbors."""
WEIGHTS = "_weights"
"""The tensor of the weights of input `NAME` is `NAME_weights`."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a signature.

    Attributes:
      name: The name of the tensor.
      dtype: The dtype: int32, int64, float32 or string.
      shape: The shape, in which -1 stands for any size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} of shape {list(self.shape)}"


@dataclass(frozen=True)
class TensorInput:
    """An input of a signature, and the tensors that carry it.

    Attributes:
      name: The name in the bundle, and as a feature of `tf.Example`.
      tensor: The name of its first tensor.
      role: Whose input it is: of a context or of a candidate.
      dtype: The dtype of its values, as in a Tensor, or EITHER.
      shape: The shape of one example; None: an example has any number of values.
      adjusted: Whether lists of another length are padded or cut.
      weighted: Whether weights may be sent beside the values.
      default: What stands for an input that is not sent; None: it must be sent.
    """

    name: str
    tensor: str
    role: Role
    dtype: str
    shape: tuple[int, ...] | None
    adjusted: bool
    weighted: bool
    default: Any

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Returns the tensors in the form that a SavedModel has: a list of any length is flat
        values and row splits.
        """
        dtype = self.dtype
        if dtype == EITHER:
            dtype = "string"
        if self.shape is not None:
            return (Tensor(self.tensor, dtype, (-1, *self.shape)),)
        values = Tensor(self.tensor, dtype, (-1,))
        return values, Tensor(f"{self.tensor}_1", "int64", (-1,))


def tensor_inputs(
    features: Mapping[str, Feature], names: Collection[str]
) -> tuple[TensorInput, ...]:
    """Returns inputs of a signature.

    Args:
      features: The features of the manifest.
      names: The inputs that the signature takes, in its order.
    """
    tensors = distinct_identifiers(names)
    readers = readers_of(features)
    return tuple(
        [
            _tensor_input(name, [features[reader] for reader in readers[name]], tensors)
            for name in names
        ]
    )


def _tensor_input(
    name: str, readers: Collection[Feature], tensors: Mapping[str, str]
) -> TensorInput:
    # All features that read an input agree on what clients send; the first one stands for them.
    feature = next(iter(readers))
    role, default, length = input_facts(name, feature)

    # By default an example has any number of values. Dense values have a shape, features with
    # places as many values, and single ids are one value.
    shape: tuple[int, ...] | None = None
    if isinstance(feature, DenseFeature):
        if feature.take == "values":
            shape = feature.shape
    elif feature.places is not None:
        shape = (feature.places,)
    elif feature.one_each:
        shape = ()
    # A length that the model states replaces it, unless it says the same in another shape.
    if length is not None and math.prod(shape or ()) != length.values:
        shape = (length.values,)
    # The name of the weights may belong to another input.
    weights = f"{tensors[name]}{WEIGHTS}"
    return TensorInput(
        name=name,
        tensor=tensors[name],
        role=role,
        dtype=sent_dtype(feature, name),
        shape=shape,
        adjusted=length is not None and (length.pad is not None or length.keep is not None),
        weighted=any(reader.weighted for reader in readers) and weights not in tensors.values(),
        default=default,
    )


def unread_tensors(inputs: Iterable[str]) -> set[str]:
    """Returns the tensors of inputs that no tower reads, which may be sent."""
    # "_1" and "_2" are the further tensors of a ragged or sparse input.
    return {f"{identifier(name)}{end}" for name in inputs for end in ("", "_1", "_2")}


def default_tower(roles: Mapping[str, str], stage_towers: Collection[str]) -> str:
    """Returns the tower of the default signature: the only ranking tower that is no stage before
    another, else the only query tower, else the first by name.

    Args:
      roles: The role of each tower.
      stage_towers: The towers that come before others.
    """
    for role in ("ranking", "query"):
        names = [name for name in roles if roles[name] == role and name not in stage_towers]
        if len(names) == 1:
            return names[0]
    return min(roles)


def signature_names(towers: Collection[str], indexes: Collection[str]) -> list[str]:
    """Returns the names of all signatures of a model."""
    names = [f"{RETRIEVE}:{index}" for index in indexes]
    if len(indexes) == 1 and RETRIEVE not in towers:
        names.insert(0, RETRIEVE)
    if towers:
        names[:0] = dict.fromkeys([DEFAULT, *towers])
    return names


def find_tower(
    name: str, roles: Mapping[str, str], stage_towers: Collection[str], indexes: Collection[str]
) -> tuple[str, str]:
    """Returns what a signature computes.

    Args:
      name: The signature; "": the default.
      roles: See `default_tower`.
      stage_towers: See `default_tower`.
      indexes: The indexes of the model.

    Returns:
      The tower, or "" and the index; "" twice: there is no such signature.
    """
    # A tower of the model may have the name of the default, or of a retrieval: it wins.
    name = name or DEFAULT
    if name in roles:
        return name, ""
    if name == DEFAULT and roles:
        return default_tower(roles, stage_towers), ""
    if name == RETRIEVE and len(indexes) == 1:
        return "", next(iter(indexes))
    index = name.removeprefix(f"{RETRIEVE}:")
    if index != name and index in indexes:
        return "", index
    return "", ""
