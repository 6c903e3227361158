"""The signatures of a version: its towers and indexes as calls of named tensors, for the protocols
that know no other calls.

A tower has the signature that the self-contained SavedModel of the same model has
(docs/reference/saved-model.md), and an index has one that returns the nearest candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal
from weakref import WeakKeyDictionary

from bundle.format.features import sent_dtype
from bundle.format.identifiers import distinct_identifiers
from bundle.format.manifest import DenseFeature, Manifest, Role
from service.engine.validation import SHOWN_CHARS, name_hint, show_version
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import LoadedTower, ModelVersion
from tensors.input_values import EITHER

DEFAULT = "serving_default"
RETRIEVE = "retrieve"
"""The signature of the only index; `retrieve:INDEX` is that of any index."""
K = "k"
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


@dataclass(frozen=True)
class TensorInput:
    """An input of a signature, and the tensors that carry it.

    Attributes:
      name: The name in the bundle.
      tensor: The name of its first tensor.
      role: Whose input it is: of a context or of a candidate.
      dtype: The dtype of its values, as in a Tensor, or EITHER.
      shape: The shape of one example; None: an example has any number of values.
      adjusted: Whether lists of another length are padded or cut.
      weighted: Whether weights may be sent beside the values.
      required: Whether it must be sent.
    """

    name: str
    tensor: str
    role: Role
    dtype: str
    shape: tuple[int, ...] | None
    adjusted: bool
    weighted: bool
    required: bool

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


@dataclass(frozen=True)
class Signature:
    """A call of named tensors.

    Attributes:
      name: The name of the signature.
      call: The call of the engine that computes it.
      computed_by: The tower, or the index of a retrieval.
      result: The output that is the vector or the score, or the ids of a retrieval.
      inputs: The inputs that clients send.
      outputs: The outputs that it returns.
      takes_k: Whether the number of neighbors may be sent as `k`.
    """

    name: str
    call: Literal["embed", "rank", "retrieve"]
    computed_by: str
    result: str
    inputs: tuple[TensorInput, ...]
    outputs: tuple[Tensor, ...]
    takes_k: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Returns all input tensors, each in the form of `TensorInput.tensors`. Tensors of inputs
        that are not required, and `k`, may be left out.
        """
        tensors = list(chain.from_iterable([tensor_input.tensors for tensor_input in self.inputs]))
        if self.takes_k:
            tensors.append(Tensor(K, "int64", ()))
        return tuple(tensors)


def signature_names(version: ModelVersion) -> Iterator[str]:
    """Yields the names of all signatures."""
    if version.towers:
        yield DEFAULT
    yield from version.towers
    if _only_index(version):
        yield RETRIEVE
    for index in version.manifest.indexes:
        yield f"{RETRIEVE}:{index}"


def find_signature(version: ModelVersion, name: str) -> Signature:
    """Returns a signature; an empty name is that of the default.

    Raises:
      InvalidArgument: There is none of this name.
    """
    requested = name or DEFAULT
    # A tower of the model may have the name of the default, or of a retrieval: it wins.
    if requested == DEFAULT and version.towers and DEFAULT not in version.towers:
        requested = _default_tower(version)
    if requested in version.towers:
        return _of_tower(version.towers[requested], name or DEFAULT)

    index = requested.removeprefix(f"{RETRIEVE}:")
    if requested == RETRIEVE:
        index = _only_index(version)
    if requested.startswith(RETRIEVE) and index in version.manifest.indexes:
        return _of_index(version, index, requested)
    hint = name_hint(requested, signature_names(version), "has")
    shown_name = requested[:SHOWN_CHARS]
    raise InvalidArgument(
        f"{show_version(version)} has no signature {shown_name!r}; {hint}",
        FieldViolation("signature_name", shown_name, "a signature of the model"),
    )


def _default_tower(version: ModelVersion) -> str:
    """Returns the only ranking tower that is no stage before another, else the only query tower,
    else the first by name.
    """
    of_stages = version.manifest.towers_of_stages
    towers = {name: tower for name, tower in version.towers.items() if name not in of_stages}
    for role in ("ranking", "query"):
        names = [name for name, tower in towers.items() if tower.entry.role == role]
        if len(names) == 1:
            return names[0]
    return min(version.towers)


def _only_index(version: ModelVersion) -> str:
    """Returns the index that `retrieve` searches; "": there is none, or several."""
    indexes = version.manifest.indexes
    if len(indexes) != 1 or RETRIEVE in version.towers:
        return ""
    return next(iter(indexes))


def _of_tower(tower: LoadedTower, name: str) -> Signature:
    """Returns the signature of a tower. A ranking returns all scores, an embedding its vector."""
    inputs = _inputs_of(tower)
    roles = [tensor_input.role for tensor_input in inputs]
    call: Literal["embed", "rank"] = "embed"
    returned = frozenset([tower.entry.result])
    if tower.entry.role == "ranking" and "candidate" in roles:
        call = "rank"
        returned = tower.heads
    outputs = []
    for output in tower.entry.outputs:
        if output.name in returned:
            sizes = [size or -1 for size in output.shape[1:]]
            outputs.append(Tensor(output.name, "float32", (-1, *sizes)))
    return Signature(name, call, tower.name, tower.entry.result, inputs, tuple(outputs))


def _of_index(version: ModelVersion, index: str, name: str) -> Signature:
    """Returns the signature of an index: the inputs of its query tower, and the neighbors."""
    entry = version.manifest.indexes[index]
    inputs = _inputs_of(version.towers[entry.query_tower])
    outputs = (
        Tensor("ids", version.manifest.corpora[entry.corpus].id_dtype, (-1, -1)),
        Tensor("scores", "float32", (-1, -1)),
        Tensor("counts", "int64", (-1,)),
    )
    # The name belongs to an input of the model if there is one: then k has its default.
    takes_k = K not in [tensor_input.tensor for tensor_input in inputs]
    return Signature(name, "retrieve", index, outputs[0].name, inputs, outputs, takes_k)


_INPUTS: WeakKeyDictionary[LoadedTower, tuple[TensorInput, ...]] = WeakKeyDictionary()
"""The inputs of the loaded towers, which are forgotten with the tower."""


def _inputs_of(tower: LoadedTower) -> tuple[TensorInput, ...]:
    """Returns the inputs of a tower, which are described for the first request: that takes a while
    for thousands of them.
    """
    inputs = _INPUTS.get(tower)
    if inputs is None:
        tensors = distinct_identifiers(tower.inputs)
        inputs = tuple(
            [_input(tower.manifest, name, tensors, role) for name, role in tower.inputs.items()]
        )
        _INPUTS[tower] = inputs
    return inputs


def _input(manifest: Manifest, name: str, tensors: Mapping[str, str], role: Role) -> TensorInput:
    """Returns an input of a signature.

    Args:
      manifest: The manifest of the version.
      name: The name of the input in the bundle.
      tensors: The names of tensors, by those of the inputs of the tower.
      role: Whose input it is.
    """
    # All features that read an input agree on what clients send; the first one stands for them.
    readers = [manifest.features[feature_name] for feature_name in manifest.inputs[name]]
    feature = readers[0]
    length = manifest.length_of(name)

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
        required=manifest.default_of(name) is None,
    )
