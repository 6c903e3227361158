"""Packs the inputs of a tower of many features: one tensor with all of them side by side, instead of one for each.

To hand a tensor to a tower costs about as much as a small layer, so 2 000 features one by one cost more than the
network. Where the graph joins activations anyway, in a row or above each other, they are packed in that order and the
join goes; what else reads a feature gets its columns back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from export.frameworks.loading import load_tensorflow
from export.graph.origins import distinct_identifiers, needed
from export.graph.pruning import TracedTower, narrowed
from export.graph.specs import TensorSpec
from export.towers.parts import TracedPart

FEATURES_MAX = 8
"""Inputs of one dtype that are handed over one by one; more are packed (measured: docs/towers.md)."""
_SPLIT_FROM = 16
"""Features that are cut out of a packed tensor one by one; more are split all at once."""
_SAME_NUMBERS = frozenset({"Identity", "Reshape", "ExpandDims", "EnsureShape", "StopGradient"})


def pack_tower(tower: TracedTower) -> TracedTower:
    """Packs the inputs of a tower."""
    function, inputs, variables = _pack(tower.spec.name, tower.function, tower.spec.inputs, tower.variables)
    return TracedTower(replace(tower.spec, inputs=inputs), function, variables)


def pack_part(part: TracedPart) -> TracedPart:
    """Packs the inputs of a part of a tower."""
    function, inputs, variables = _pack(part.spec.name, part.function, part.spec.inputs, part.variables)
    return replace(part, spec=replace(part.spec, inputs=inputs), function=function, variables=variables)


def _pack(
    name: str, function: Any, inputs: tuple[TensorSpec, ...], variables: tuple[Any, ...]
) -> tuple[Any, tuple[TensorSpec, ...], tuple[Any, ...]]:
    groups: dict[str, list[TensorSpec]] = {}
    for spec in inputs:
        if spec.feature and len(spec.shape) in (1, 2) and None not in spec.shape[1:]:
            groups.setdefault(spec.dtype, []).append(spec)
    groups = {dtype: specs for dtype, specs in groups.items() if len(specs) > FEATURES_MAX}
    if not groups:
        return function, inputs, variables
    # In a copy of its own, which is changed in place.
    function, _ = narrowed(name, function, function.graph.inputs[: len(inputs)], function.structured_outputs)
    placeholders = dict(zip(inputs, function.graph.inputs, strict=False))
    outputs = dict(function.structured_outputs)
    packed: dict[str, tuple[TensorSpec, Any]] = {}
    for dtype, specs in groups.items():
        pack = _Pack(function.graph, {placeholders[spec].name: (spec, placeholders[spec]) for spec in specs}, outputs)
        outputs = pack.rewired()
        packed[dtype] = TensorSpec(f"packed_{dtype}", dtype, (None, pack.width), features=pack.features), pack.tensor
    within = {spec.name for specs in groups.values() for spec in specs}
    alone = [(spec, placeholders[spec]) for spec in inputs if spec.name not in within]
    taken = [*packed.values(), *alone]
    names = distinct_identifiers(spec.name for spec, _ in taken)
    function, variables = narrowed(name, function, [tensor for _, tensor in taken], outputs)
    return function, tuple(replace(spec, name=names[spec.name]) for spec, _ in taken), variables


@dataclass(frozen=True)
class _Place:
    """Columns of the packed tensor."""

    start: int
    stop: int


class _Pack:
    """One packed tensor in a graph of its own, which is changed in place."""

    def __init__(self, graph: Any, members: Mapping[str, tuple[TensorSpec, Any]], outputs: Mapping[str, Any]) -> None:
        tf = load_tensorflow()
        self._graph, self._members, self._outputs = graph, members, dict(outputs)
        self._joins = self._found_joins()
        order = list(dict.fromkeys(name for _, parts in self._joins for name in parts if name is not None))
        order += [name for name in members if name not in order]
        widths = [_width(members[name][0]) for name in order]
        ends = list(accumulate(widths))
        self._widths, self._order, self.width = widths, order, ends[-1]
        self._places = {name: _Place(end - width, end) for name, width, end in zip(order, widths, ends, strict=True)}
        self.features = tuple(members[name][0].feature for name in order)
        dtype = members[order[0]][1].dtype
        with graph.as_default():
            self.tensor = tf.compat.v1.placeholder(dtype, [None, self.width], name=f"packed_{dtype.name}")

    def rewired(self) -> dict[str, Any]:
        """Lets the graph read the packed tensor; returns its outputs."""
        for join, parts in self._joins:
            self._shorten(join, parts)
        reached = needed(self._outputs.values(), [tensor for _, tensor in self._members.values()]).stops
        left = [name for name in self._order if name in reached]
        tf = load_tensorflow()
        with self._graph.as_default():
            pieces = (
                {name: self._columns(self._places[name]) for name in left}
                if len(left) <= _SPLIT_FROM
                else dict(zip(self._order, tf.split(self.tensor, self._widths, axis=1), strict=True))
            )
            for name in left:
                spec, tensor = self._members[name]
                self._replace(tensor, tf.reshape(pieces[name], [-1]) if len(spec.shape) == 1 else pieces[name])
        return self._outputs

    def _found_joins(self) -> list[tuple[Any, list[str | None]]]:
        """Returns the operations that join features, those of most features first, and the features of each."""
        joins = []
        for operation in self._graph.get_operations():
            joined = _joined(operation)
            parts = [self._behind(tensor) for tensor in joined]
            if sum(part is not None for part in parts) > 1:
                joins.append((operation, parts))
        return sorted(joins, key=lambda join: -sum(part is not None for part in join[1]))

    def _behind(self, tensor: Any) -> str | None:
        """Returns the feature whose numbers a tensor holds, row by row."""
        shape = tensor.shape.as_list() if tensor.shape.rank else None
        while tensor.name not in self._members:
            if tensor.op.type not in _SAME_NUMBERS and not _adds_axis(tensor.op):
                return None
            tensor = tensor.op.inputs[0]
        width = _width(self._members[tensor.name][0])
        return str(tensor.name) if shape in ([None, width], [None, 1, width]) else None

    def _shorten(self, join: Any, parts: Sequence[str | None]) -> None:
        tf = load_tensorflow()
        shorter: list[Any] = []
        for part, tensor in zip(parts, _joined(join), strict=True):
            place = self._places[part] if part is not None else None
            before = shorter[-1] if shorter else None
            if place is None:
                shorter.append(tensor)
            elif isinstance(before, _Place) and before.stop == place.start:
                shorter[-1] = _Place(before.start, place.stop)
            else:
                shorter.append(place)
        with self._graph.as_default():
            pieces = [self._piece(each, join) for each in shorter]
            joined = pieces[0] if len(pieces) == 1 else tf.concat(pieces, 1)
        self._replace(join.outputs[0], joined)

    def _piece(self, each: Any, join: Any) -> Any:
        """Returns columns of the packed tensor, or another tensor, in the shape in which a join takes it."""
        tf = load_tensorflow()
        shape = join.outputs[0].shape
        if not isinstance(each, _Place):
            return tf.expand_dims(each, 1) if join.type == "Pack" else each
        columns = self._columns(each)
        stacked = shape.rank == 3
        return tf.reshape(columns, [-1, (each.stop - each.start) // shape[2], shape[2]]) if stacked else columns

    def _columns(self, place: _Place) -> Any:
        whole = place == _Place(0, self.width)
        return self.tensor if whole else self.tensor[:, place.start : place.stop]

    def _replace(self, old: Any, new: Any) -> None:
        for operation in old.consumers():
            for position, tensor in enumerate(operation.inputs):
                if tensor.name == old.name and operation is not new.op:
                    operation._update_input(position, new)
        self._outputs = {name: new if tensor.name == old.name else tensor for name, tensor in self._outputs.items()}


def _joined(operation: Any) -> list[Any]:
    """Returns what an operation joins: side by side in the last axis, or as vectors above each other; [] if nothing."""
    tf = load_tensorflow()
    if operation.type not in ("ConcatV2", "Pack") or operation.outputs[0].shape.rank not in (2, 3):
        return []
    rank, taken = operation.outputs[0].shape.rank, list(operation.inputs)
    if operation.type == "Pack":
        return taken if rank == 3 and operation.get_attr("axis") in (1, -2) else []
    axis = tf.get_static_value(taken.pop())
    return taken if axis in (1, 1 - rank) else []


def _width(spec: TensorSpec) -> int:
    return int(spec.shape[1] or 1) if len(spec.shape) == 2 else 1


def _adds_axis(operation: Any) -> bool:
    """Tells `x[:, None]`."""
    if operation.type != "StridedSlice" or operation.get_attr("new_axis_mask") != 2:
        return False
    strides = load_tensorflow().get_static_value(operation.inputs[3])
    whole = operation.get_attr("begin_mask") & operation.get_attr("end_mask") & 1
    return bool(whole) and strides is not None and strides.tolist() == [1, 1]
