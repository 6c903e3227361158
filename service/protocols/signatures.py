"""The signatures of a version, for the protocols that know no other calls; see
`tensors.signatures`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal
from weakref import WeakKeyDictionary

from service.engine.validation import SHOWN_CHARS, name_hint, show_version
from service.errors import FieldViolation, InvalidArgument
from service.versions.version import LoadedTower, ModelVersion
from tensors.signatures import (
    DEFAULT,
    K,
    Tensor,
    TensorInput,
    find_tower,
    signature_names,
    tensor_inputs,
)


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
        that have a default, and `k`, may be left out.
        """
        tensors = list(chain.from_iterable([tensor_input.tensors for tensor_input in self.inputs]))
        if self.takes_k:
            tensors.append(Tensor(K, "int64", ()))
        return tuple(tensors)


def all_signatures(version: ModelVersion) -> list[Signature]:
    """Returns all signatures of a version."""
    names = signature_names(version.towers, version.manifest.indexes)
    return [find_signature(version, name) for name in names]


def find_signature(version: ModelVersion, name: str) -> Signature:
    """Returns a signature; an empty name is that of the default.

    Raises:
      InvalidArgument: There is none of this name.
    """
    requested = name or DEFAULT
    manifest = version.manifest
    roles = {tower_name: tower.entry.role for tower_name, tower in version.towers.items()}
    tower, index = find_tower(name, roles, manifest.towers_of_stages, manifest.indexes)
    if tower:
        return _of_tower(version.towers[tower], requested)
    if index:
        return _of_index(version, index, requested)
    hint = name_hint(requested, signature_names(roles, manifest.indexes), "has")
    shown_name = requested[:SHOWN_CHARS]
    raise InvalidArgument(
        f"{show_version(version)} has no signature {shown_name!r}; {hint}",
        FieldViolation("signature_name", shown_name, "a signature of the model"),
    )


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
        inputs = tensor_inputs(tower.manifest.features, tower.inputs)
        _INPUTS[tower] = inputs
    return inputs
