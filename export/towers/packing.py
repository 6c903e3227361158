"""Packs the inputs of a tower with many features into one tensor with all of them side by side.

Passing a tensor to a tower costs about as much as a small layer, so 2 000 separate features cost
more than the network. The packed tensor has them in the order in which the graph concatenates them,
so that its widest concatenation becomes a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from bundle.format.identifiers import distinct_identifiers
from bundle.format.manifest import TowerInput
from export.graphs.loading import tf
from export.graphs.walks import keeps_values
from export.towers.rewriting import GraphRewriter, Traced

FEATURES_MAX = 8
"""The number of inputs of one dtype that stay separate; more are packed (measured:
docs/explanation/towers.md).
"""

Members = Mapping[str, tuple[TowerInput, Any]]
"""Inputs to pack, with their tensors, by the names of the tensors."""


class ConcatenatedRun(NamedTuple):
    """Inputs that a graph concatenates one beside the other.

    Attributes:
      operation: The concatenation; None: there is none.
      first: The position of the first of the inputs in the concatenation.
      names: The names of the inputs' tensors.
    """

    operation: Any = None
    first: int = 0
    names: Sequence[str] = ()


def pack(tower: Traced) -> Traced:
    """Packs the inputs of a tower, or of a part of one; sequences and results of other parts stay
    separate.
    """
    groups: dict[str, list[TowerInput]] = {}
    for spec in tower.spec.inputs:
        if spec.feature and len(spec.shape) in (1, 2) and None not in spec.shape[1:]:
            groups.setdefault(spec.dtype, []).append(spec)
    groups = {dtype: specs for dtype, specs in groups.items() if len(specs) > FEATURES_MAX}
    if not groups:
        return tower

    rewriting = GraphRewriter(tower)
    separate = dict(zip(tower.spec.inputs, rewriting.inputs, strict=True))
    existing_names = {spec.name for spec in tower.spec.inputs}
    packed = {}
    for dtype, specs in groups.items():
        members = {separate[spec].name: (spec, separate.pop(spec)) for spec in specs}
        order, tensor = _pack(rewriting, members)
        name = f"packed_{dtype}"
        while name in existing_names:
            name += "_"
        features = tuple(spec.feature for spec in order)
        width = tensor.shape[1]
        packed_spec = TowerInput(name=name, dtype=dtype, shape=(None, width), features=features)
        packed[packed_spec] = tensor

    tensors = packed | separate
    # A signature takes Python identifiers as names.
    names = distinct_identifiers(spec.name for spec in tensors)
    finished = rewriting.finished(list(tensors.values()))
    return finished.taking(
        tuple(spec.model_copy(update={"name": names[spec.name]}) for spec in tensors)
    )


def _pack(rewriting: GraphRewriter[Any], members: Members) -> tuple[list[TowerInput], Any]:
    """Replaces inputs by slices of one tensor; returns their order and that tensor."""
    run = _longest_run(rewriting.graph, members)
    order = [*run.names, *(name for name in members if name not in run.names)]
    ends = list(accumulate(_width(members[name][0]) for name in order))
    dtype = members[order[0]][1].dtype
    with rewriting.graph.as_default():
        packed = tf.compat.v1.placeholder(dtype, [None, ends[-1]], name=f"packed_{dtype.name}")
        if run.names:
            # The run lies at the beginning of the packed tensor, so one slice stands for it.
            run_end = ends[len(run.names) - 1]
            pieces = list(run.operation.inputs)[:-1]
            pieces[run.first : run.first + len(run.names)] = [packed[:, :run_end]]
            joined = pieces[0]
            if len(pieces) > 1:
                joined = tf.concat(pieces, 1)
            rewriting.put(run.operation.outputs[0], joined)
        for start, end, name in zip([0, *ends], ends, order, strict=False):
            spec, tensor = members[name]
            # The concatenation above was the only reader of this tensor, and is replaced.
            if tensor.consumers() == [run.operation]:
                continue
            columns = packed[:, start:end]
            if len(spec.shape) == 1:
                columns = tf.reshape(columns, [-1])
            rewriting.put(tensor, columns)
    return [members[name][0] for name in order], packed


def _longest_run(graph: Any, members: Members) -> ConcatenatedRun:
    """Returns the longest run of different inputs in a concatenation."""
    longest = ConcatenatedRun()
    for operation in graph.get_operations():
        if operation.type != "ConcatV2" or operation.outputs[0].shape.rank != 2:
            continue
        *pieces, axis = operation.inputs
        if tf.get_static_value(axis) not in (1, -1):
            continue
        inputs = [_packed_input(piece, members) for piece in pieces]
        first = 0
        for is_input, run in groupby(inputs, lambda name: name is not None):
            names = [str(name) for name in run]
            is_distinct = len(set(names)) == len(names)
            if is_input and is_distinct and len(names) > len(longest.names):
                longest = ConcatenatedRun(operation, first, names)
            first += len(names)
    return longest


def _packed_input(tensor: Any, members: Members) -> str | None:
    """Returns the name of the input whose values a tensor holds, row by row; None: of none."""
    shape = None
    if tensor.shape.rank:
        shape = tensor.shape.as_list()
    while tensor.name not in members:
        # The packed tensor has the values of the input, before a cast.
        keeps = keeps_values(tensor.op) and tensor.op.type != "Cast"
        if not keeps and not _adds_axis(tensor.op):
            return None
        tensor = tensor.op.inputs[0]
    if shape != [None, _width(members[tensor.name][0])]:
        return None
    return str(tensor.name)


def _adds_axis(operation: Any) -> bool:
    """Returns whether an operation is `x[:, None]`."""
    if operation.type != "StridedSlice" or operation.get_attr("new_axis_mask") != 2:
        return False
    strides = tf.get_static_value(operation.inputs[3])
    # Bit 0 of both masks: the first axis is taken from its beginning to its end.
    takes_all_rows = operation.get_attr("begin_mask") & operation.get_attr("end_mask") & 1
    return bool(takes_all_rows) and strides is not None and strides.tolist() == [1, 1]


def _width(spec: TowerInput) -> int:
    if len(spec.shape) < 2:
        return 1
    return int(spec.shape[1] or 1)
