"""Packs the inputs of a tower with many features into one tensor with all of them side by side.

Passing a tensor to a tower costs about as much as a small layer, so 2 000 separate features cost
more than the network. They are in the order in which the graph concatenates them, so that its
widest concatenation becomes a slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, groupby
from typing import Any

from bundle.format.identifiers import distinct_identifiers
from bundle.format.manifest import TowerInput
from export.graphs.loading import tf
from export.graphs.walks import keeps_values
from export.towers.rewriting import GraphRewriter, Traced

FEATURES_MAX = 8
"""Inputs of one dtype that stay separate; more are packed (measured: docs/explanation/towers.md).
"""


def pack(tower: Traced) -> Traced:
    """Packs the inputs of a tower, or of a part of one; sequences and results of other parts stay
    separate.
    """
    groups: dict[str, list[TowerInput]] = {}
    for each in tower.spec.inputs:
        if each.feature and len(each.shape) in (1, 2) and None not in each.shape[1:]:
            groups.setdefault(each.dtype, []).append(each)
    groups = {dtype: members for dtype, members in groups.items() if len(members) > FEATURES_MAX}
    if not groups:
        return tower
    rewriting = GraphRewriter(tower)
    alone = dict(zip(tower.spec.inputs, rewriting.inputs, strict=True))
    taken_names = {each.name for each in tower.spec.inputs}
    packed = {}
    for dtype, members in groups.items():
        order, tensor = _pack(
            rewriting, {alone[each].name: (each, alone.pop(each)) for each in members}
        )
        name = f"packed_{dtype}"
        while name in taken_names:
            name += "_"
        features = tuple(each.feature for each in order)
        packed[
            TowerInput(name=name, dtype=dtype, shape=(None, tensor.shape[1]), features=features)
        ] = tensor
    taken = packed | alone
    names = distinct_identifiers(each.name for each in taken)
    finished = rewriting.finished(list(taken.values()))
    return finished.taking(
        tuple(each.model_copy(update={"name": names[each.name]}) for each in taken)
    )


def _pack(
    rewriting: GraphRewriter[Any], members: Mapping[str, tuple[TowerInput, Any]]
) -> tuple[list[TowerInput], Any]:
    """Replaces inputs, given by their tensors' names, by slices of one tensor; returns their order
    and that tensor.
    """
    operation, first, run = _widest(rewriting.graph, members)
    order = [*run, *(name for name in members if name not in run)]
    ends = list(accumulate(_width(members[name][0]) for name in order))
    dtype = members[order[0]][1].dtype
    with rewriting.graph.as_default():
        packed = tf.compat.v1.placeholder(dtype, [None, ends[-1]], name=f"packed_{dtype.name}")
        if run:
            joined = list(operation.inputs)[:-1]
            joined[first : first + len(run)] = [packed[:, : ends[len(run) - 1]]]
            rewriting.put(
                operation.outputs[0], joined[0] if len(joined) == 1 else tf.concat(joined, 1)
            )
        for start, end, name in zip([0, *ends], ends, order, strict=False):
            spec, tensor = members[name]
            if tensor.consumers() == [operation]:
                continue  # replaced above
            columns = packed[:, start:end]
            rewriting.put(tensor, tf.reshape(columns, [-1]) if len(spec.shape) == 1 else columns)
    return [members[name][0] for name in order], packed


def _widest(
    graph: Any, members: Mapping[str, tuple[TowerInput, Any]]
) -> tuple[Any, int, list[str]]:
    """Returns the concatenation with the longest run of inputs, the start of the run, and their
    names.
    """
    widest: tuple[Any, int, list[str]] = (None, 0, [])
    for operation in graph.get_operations():
        if operation.type != "ConcatV2" or operation.outputs[0].shape.rank != 2:
            continue
        if tf.get_static_value(operation.inputs[-1]) not in (1, -1):
            continue
        parts = [_packed_input(tensor, members) for tensor in list(operation.inputs)[:-1]]
        first = 0
        for known, run in groupby(parts, lambda part: part is not None):
            names = [str(part) for part in run]
            if known and len(names) > len(widest[2]) and len(set(names)) == len(names):
                widest = operation, first, names
            first += len(names)
    return widest


def _packed_input(tensor: Any, members: Mapping[str, tuple[TowerInput, Any]]) -> str | None:
    """Returns the input whose values a tensor holds, row by row."""
    shape = tensor.shape.as_list() if tensor.shape.rank else None
    while tensor.name not in members:
        if not _adds_axis(tensor.op) and (not keeps_values(tensor.op) or tensor.op.type == "Cast"):
            return None
        tensor = tensor.op.inputs[0]
    return str(tensor.name) if shape == [None, _width(members[tensor.name][0])] else None


def _adds_axis(operation: Any) -> bool:
    """Returns whether an operation is `x[:, None]`."""
    if operation.type != "StridedSlice" or operation.get_attr("new_axis_mask") != 2:
        return False
    strides = tf.get_static_value(operation.inputs[3])
    whole = operation.get_attr("begin_mask") & operation.get_attr("end_mask") & 1
    return bool(whole) and strides is not None and strides.tolist() == [1, 1]


def _width(spec: TowerInput) -> int:
    return int(spec.shape[1] or 1) if len(spec.shape) == 2 else 1
