"""Partitions a ranking tower by data flow: once per context, shared by outputs, and separate for
each output.

Each part is a function. `context` computes, once per context, the tensors that depend on context
features only; `trunk` computes, per candidate, the tensors that two or more outputs need; tensors
that only one output needs are a part named after it. A part that would save almost nothing is
merged into the parts that read its results. Before that, computations on the context take their
sizes from it (export/towers/batch_sizes.py), sequences that end with a candidate are divided by
positions (export/towers/positions/), and layers over both sides by columns
(export/towers/divided_layers.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bundle.format import manifest
from bundle.format.towers import Per
from export.front_end.interface import TracedTower
from export.graphs.functions import narrowed, type_of
from export.raised_errors import failure
from export.towers.batch_sizes import take_sizes_from_context
from export.towers.data_flow import CANDIDATE, CONTEXT, DataFlow, operation_text
from export.towers.divided_layers import divide_layers
from export.towers.parts import TracedPart
from export.towers.positions.division import DividedTower, divide_positions
from export.towers.positions.extending import TracedExtension
from export.towers.positions.sharing import share_context

MULTIPLY_ADDS_MIN = 256
"""The multiply-adds per example below which a part is not worth its own call."""
_REPEATED_MAX = 1.1
"""The largest ratio of the multiply-adds of all parts per candidate to those of the whole tower;
beyond it, the parts stay together.
"""


@dataclass(frozen=True)
class Split:
    """The parts of a tower; none if they would save too little."""

    parts: tuple[TracedPart, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes on the tensors that stay together, with the reasons."""
    extension: TracedExtension | None = None
    """How the state of a context is extended by further events; None: it is computed anew."""


def split_tower(tower: TracedTower, roles: Mapping[str, manifest.Role]) -> Split:
    """Partitions one ranking tower.

    Args:
      tower: The traced tower, with one input for each feature.
      roles: The role of each feature.
    """
    name = tower.spec.name
    outputs = dict(tower.function.structured_outputs)
    # Parts name the tensors that they pass on by outputs, so each output needs a tensor of its own.
    if len({tensor.name for tensor in outputs.values()}) < len(outputs):
        return Split(notes=(f"tower {name!r} is not split: two of its outputs are the same",))
    per = {}
    for tensor in tower.spec.inputs:
        is_context = roles[tensor.feature] == "context"
        per[tensor.name] = CONTEXT if is_context else CANDIDATE
    if DataFlow(tower, per).loops:
        return Split(notes=(f"tower {name!r} is not split: a loop of TF1 goes through it",))
    notes = []
    try:
        sized = take_sizes_from_context(tower, per)
        try:
            divided = divide_positions(sized, per)
        except Exception as problem:  # noqa: BLE001 - as below; other divisions may be possible
            reason = failure(problem, "it could not run on synthetic examples")
            notes.append(f"tower {name!r} is not divided by positions: {reason}")
            divided = DividedTower(sized)
        if divided.problem:
            notes.append(f"tower {name!r} is not divided by positions: {divided.problem}")
        flow = DataFlow(divide_layers(divided.tower, per), per)
        rows = flow.rows
    except Exception as problem:  # noqa: BLE001 - operations raise many types of errors
        reason = failure(problem, "it could not run on synthetic examples")
        return Split(notes=(f"tower {name!r} is not split: {reason}",))
    split = _Partition(flow, rows).split()
    split = Split(split.parts, (*notes, *split.notes))
    if not divided.is_divided:
        return split
    return _with_shared_contexts(split, divided, roles, name)


def _with_shared_contexts(
    split: Split, divided: DividedTower, roles: Mapping[str, manifest.Role], name: str
) -> Split:
    """Returns parts of candidates that take the keys and values of a context as one row for all of
    them, where they can.
    """
    notes = list(split.notes)
    if divided.joined and split.parts:
        notes.append(
            f"tower {name!r}: the positions of candidates and contexts are computed together from "
            f"operation {divided.joined[0]} on"
        )
    of_context = {
        output.name
        for part in split.parts
        for output in part.spec.outputs
        if part.spec.per == "context"
    }
    parts = []
    for part in split.parts:
        inputs = {
            spec.name
            for spec in part.spec.inputs
            if spec.tensor in of_context or (spec.feature and roles[spec.feature] == "context")
        }
        if part.spec.per == "context" or not inputs:
            parts.append(part)
            continue
        shared, problem = share_context(part, inputs)
        if problem:
            notes.append(
                f"part {part.spec.name!r} of tower {name!r} takes a copy of its context for each "
                f"candidate: {problem}"
            )
        parts.append(shared)
    return Split(tuple(parts), tuple(notes))


class _Partition:
    """Chooses the tensors between the parts of one tower."""

    def __init__(self, flow: DataFlow, rows: set[str]) -> None:
        self._flow = flow
        self._rows = rows
        self._name = flow.tower.spec.name
        self._names: dict[str, str] = {}
        self._notes: list[str] = []
        for output, tensor in flow.outputs.items():
            self._names.setdefault(tensor.name, output)

    def split(self) -> Split:
        """Returns the parts, and notes on the tensors that stay together."""
        parts = []
        context_tensors = self._context_boundary()
        if context_tensors:
            parts.append(self._part("context", "context", context_tensors, {}))
        parts += self._candidate_parts(context_tensors)
        # A single part is the tower itself.
        if len(parts) < 2:
            parts = []
        return Split(tuple(parts), tuple(self._notes))

    def _candidate_parts(self, context_tensors: Mapping[str, Any]) -> list[TracedPart]:
        """Returns the parts that run per candidate: the one that outputs share, and the heads."""
        flow = self._flow
        outputs = {
            name: tensor
            for name, tensor in flow.outputs.items()
            if tensor.name not in context_tensors
        }
        shared, heads = self._shared_and_heads(outputs, context_tensors)
        parts = []
        stops = dict(context_tensors)
        if shared:
            name = "trunk" if heads else "candidate"
            parts.append(self._part(name, "candidate", shared, stops))
            stops |= shared
        for name, tensor in heads.items():
            parts.append(self._part(f"head-{name}", "candidate", {tensor.name: tensor}, stops))
            # Another head may be computed from this one, as a product is.
            stops[tensor.name] = tensor

        operations, _ = flow.upstream(outputs.values(), context_tensors)
        cost = sum(part.cost for part in parts)
        if heads and cost > _REPEATED_MAX * flow.cost(operations):
            self._notes.append(
                f"the outputs of tower {self._name!r} stay together: apart they would repeat the "
                "operations that they share, since no tensor between them holds a row for each "
                "candidate"
            )
            fetches = {tensor.name: tensor for tensor in outputs.values()}
            return [self._part("candidate", "candidate", fetches, context_tensors)]
        return parts

    def _context_boundary(self) -> dict[str, Any]:
        """Returns the tensors that depend on context features only and are read per candidate, or
        are outputs.
        """
        flow = self._flow
        operations, _ = flow.upstream(flow.outputs.values(), ())
        needed = [tensor for tensor in flow.outputs.values() if flow.per(tensor) == CONTEXT]
        for operation in operations:
            if flow.per(operation.outputs[0]) != CONTEXT:
                needed += [tensor for tensor in operation.inputs if flow.per(tensor) == CONTEXT]
        boundary = self._boundary(needed, {})
        if not boundary:
            self._note_no_context(operations)
        return boundary

    def _note_no_context(self, operations: Sequence[Any]) -> None:
        """Adds a note on why a tower with context features has no context part."""
        flow = self._flow
        inputs = flow.graph.inputs[: len(flow.inputs)]
        if not any(flow.per(tensor) == CONTEXT for tensor in inputs):
            return
        context_operations = [
            operation for operation in operations if flow.per(operation.outputs[0]) == CONTEXT
        ]
        cost = flow.cost(context_operations)
        if cost < MULTIPLY_ADDS_MIN:
            self._notes.append(
                f"tower {self._name!r} has no context part: only {cost} multiply-adds depend on "
                "context features alone"
            )
            return
        reason = "none is large"
        mixing = next(filter(self._mixes_examples, context_operations), None)
        if mixing is not None:
            reason = (
                f"operation {operation_text(mixing)} does not compute a separate row for each "
                "context"
            )
        self._notes.append(f"tower {self._name!r} has no context part: {reason}")

    def _mixes_examples(self, operation: Any) -> bool:
        """Returns whether an operation reads rows and computes no rows."""
        if operation.type in ("Shape", "Placeholder"):
            return False
        # Parts pass on no truth values, even if they are rows.
        if operation.outputs[0].dtype.name == "bool":
            return False
        if any(tensor.name in self._rows for tensor in operation.outputs):
            return False
        return all(
            tensor.name in self._rows or not self._flow.per(tensor) for tensor in operation.inputs
        )

    def _shared_and_heads(
        self, outputs: Mapping[str, Any], stops: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the tensors of the shared part, and the outputs with parts of their own, in
        order.
        """
        flow = self._flow
        derived = self._derived(outputs, stops)
        primary = {name: tensor for name, tensor in outputs.items() if name not in derived}
        needs = {name: flow.upstream([tensor], stops)[0] for name, tensor in primary.items()}
        uses = Counter(operation.name for operations in needs.values() for operation in operations)

        # An output is a head if enough operations compute it alone.
        heads = {}
        if len(primary) > 1:
            for name, tensor in primary.items():
                unshared = [operation for operation in needs[name] if uses[operation.name] == 1]
                if flow.cost(unshared) >= MULTIPLY_ADDS_MIN and tensor.name in self._rows:
                    heads[name] = tensor

        # The shared part computes the tensors that operations of heads read of shared operations.
        read_by_heads = []
        for name in heads:
            unshared = [operation for operation in needs[name] if uses[operation.name] == 1]
            read_by_heads += [tensor for operation in unshared for tensor in operation.inputs]
        shared = self._boundary(
            [tensor for tensor in read_by_heads if flow.per(tensor) and uses[tensor.op.name] > 1],
            stops,
        )

        # An output that is derived from a head comes after it, as a head of its own.
        head_tensors = {tensor.name for tensor in heads.values()}
        for name, sources in derived.items():
            if sources & head_tensors:
                heads[name] = outputs[name]
        for name, tensor in outputs.items():
            if name not in heads:
                shared[tensor.name] = tensor
        return shared, heads

    def _derived(self, outputs: Mapping[str, Any], stops: Mapping[str, Any]) -> dict[str, set[str]]:
        """Returns the outputs that cost almost nothing once other outputs are computed, such as a
        product, with the names of the tensors that they are computed from.
        """
        derived: dict[str, set[str]] = {}
        for name, tensor in outputs.items():
            # Of two outputs that follow from each other, one must be computed first.
            sources = {
                source.name
                for source_name, source in outputs.items()
                if source_name != name and source_name not in derived
            }
            operations, reached = self._flow.upstream([tensor], sources | set(stops))
            if reached & sources and self._flow.cost(operations) < MULTIPLY_ADDS_MIN:
                derived[name] = reached & sources
        return derived

    def _boundary(self, tensors: Iterable[Any], stops: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tensors to pass on, by name: the nearest that hold rows and save work."""
        flow = self._flow
        boundary: dict[str, Any] = {}
        seen = set(stops) | set(flow.inputs)
        queue = list(tensors)
        # The list grows while the loop goes through it.
        for tensor in queue:
            if tensor.name in seen or not flow.per(tensor):
                continue
            seen.add(tensor.name)
            # Of an operation such as tf.unstack, what it divides is passed on, not the pieces:
            # prune() cannot take some of them where others lead to what is passed on, too.
            is_whole = len(tensor.op.outputs) == 1
            if is_whole and tensor.name in self._rows and self._saves_enough(tensor, stops):
                boundary[tensor.name] = tensor
            else:
                queue.extend(tensor.op.inputs)
        return boundary

    def _saves_enough(self, tensor: Any, stops: Mapping[str, Any]) -> bool:
        operations, _ = self._flow.upstream([tensor], stops, values=True)
        return self._flow.cost(operations) >= MULTIPLY_ADDS_MIN

    def _part(
        self, name: str, per: Per, fetches: Mapping[str, Any], stops: Mapping[str, Any]
    ) -> TracedPart:
        """Returns a part of the tower.

        Args:
          name: The name of the part.
          per: The unit for which it runs once.
          fetches: The tensors that it returns.
          stops: The tensors that earlier parts return.
        """
        flow = self._flow
        operations, reached = flow.upstream(fetches.values(), set(stops))
        feeds = [
            tensor for tensor in flow.graph.inputs[: len(flow.inputs)] if tensor.name in reached
        ]
        feeds += [tensor for tensor in stops.values() if tensor.name in reached]
        results = {self._output_name(tensor, name): tensor for tensor in fetches.values()}
        function, variables = narrowed(flow.tower.spec.name, flow.tower.function, feeds, results)
        inputs = tuple(
            flow.inputs.get(tensor.name) or self._boundary_input(tensor) for tensor in feeds
        )
        outputs = tuple(
            manifest.TowerOutput(name=output_name, **type_of(tensor))
            for output_name, tensor in results.items()
        )
        spec = manifest.TowerPart(name=name, per=per, inputs=inputs, outputs=outputs, forms=())
        return TracedPart(spec, function, variables, flow.cost(operations))

    def _output_name(self, tensor: Any, part: str) -> str:
        """Returns the name of a part's output in the manifest: the name of the tower's output, or a
        generated one.
        """
        if tensor.name not in self._names:
            inputs = {spec.name for spec in self._flow.inputs.values()}
            existing = inputs.union(self._names.values(), self._flow.outputs)
            number = 0
            while f"{part}_{number}" in existing:
                number += 1
            self._names[tensor.name] = f"{part}_{number}"
        return self._names[tensor.name]

    def _boundary_input(self, tensor: Any) -> manifest.TowerInput:
        name = self._names[tensor.name]
        return manifest.TowerInput(name=name, tensor=name, **type_of(tensor))
