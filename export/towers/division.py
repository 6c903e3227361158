"""Partitions a ranking tower by data flow: once per context, shared by outputs, and separate for
each output.

Each part is a function. `context` computes, once per context, what depends on context features
only; `trunk` computes, per candidate, what two or more outputs need; what only one output needs is
a part named after it. A part that would save almost nothing is merged into those that read its
results. Before that, computations on the context take their sizes from it
(export/towers/batch_sizes.py), and layers over both sides are divided
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
from export.towers.batch_sizes import take_sizes_from_context
from export.towers.data_flow import CANDIDATE, CONTEXT, DataFlow, named
from export.towers.divided_layers import divide_layers
from export.towers.parts import TracedPart

MULTIPLY_ADDS_MIN = 256
"""Per example: a part that would save less is not worth its own call."""
_REPEATED_MAX = 1.1
"""Largest ratio of the parts' work per candidate to that of the whole; beyond it they stay
together.
"""


@dataclass(frozen=True)
class Split:
    """The parts of a tower; none if they would save too little."""

    parts: tuple[TracedPart, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes about what stays together, and why."""


def split_tower(tower: TracedTower, roles: Mapping[str, manifest.Role]) -> Split:
    """Partitions one ranking tower.

    Args:
      tower: as traced, with one input for each feature.
      roles: the role of each feature.
    """
    name = tower.spec.name
    outputs = dict(tower.function.structured_outputs)
    if len({tensor.name for tensor in outputs.values()}) < len(outputs):
        return Split(notes=(f"tower {name!r} is not split: two of its outputs are the same",))
    per = {
        each.name: CONTEXT if roles[each.feature] == "context" else CANDIDATE
        for each in tower.spec.inputs
    }
    if DataFlow(tower, per).loops:
        return Split(notes=(f"tower {name!r} is not split: a loop of TF1 goes through it",))
    try:
        flow = DataFlow(divide_layers(take_sizes_from_context(tower, per), per), per)
        rows = flow.rows
    # operations raise many types of errors on unsuitable examples
    except Exception as problem:  # noqa: BLE001
        # TensorFlow gives the reason last, after the frames of its graph.
        reason = str(problem).rpartition("\n\n")[2].partition("\n\t [[")[0]
        raised = " ".join(reason.split())[:200]
        return Split(
            notes=(
                f"tower {name!r} is not split: it could not run on synthetic examples: {raised}",
            )
        )
    return _Partition(flow, rows).split()


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
        """Returns the parts, and notes on what stays together."""
        flow = self._flow
        once = self._of_context()
        parts = [self._part("context", "context", once, {})] if once else []
        each = {name: tensor for name, tensor in flow.outputs.items() if tensor.name not in once}
        whole = flow.cost(flow.upstream(each.values(), once)[0])
        shared, heads = self._of_candidates(each, once)
        made = []
        stops = dict(once)
        if shared:
            made.append(self._part("trunk" if heads else "candidate", "candidate", shared, stops))
            stops |= shared
        for name, tensor in heads.items():
            made.append(self._part(f"head-{name}", "candidate", {tensor.name: tensor}, stops))
            stops[tensor.name] = tensor
        if heads and sum(part.cost for part in made) > _REPEATED_MAX * whole:
            self._notes.append(
                f"the outputs of tower {self._name!r} stay together: apart they would repeat what "
                "they share, since no tensor between them holds a row for each candidate"
            )
            made = [self._part("candidate", "candidate", {t.name: t for t in each.values()}, once)]
        parts += made
        return Split(tuple(parts) if len(parts) > 1 else (), tuple(self._notes))

    def _of_context(self) -> dict[str, Any]:
        """Returns the tensors that depend on context features only and are read per candidate, or
        are outputs.
        """
        flow = self._flow
        operations, _ = flow.upstream(flow.outputs.values(), ())
        wanted = [tensor for tensor in flow.outputs.values() if flow.per(tensor) == CONTEXT]
        for operation in operations:
            if flow.per(operation.outputs[0]) != CONTEXT:
                wanted += [tensor for tensor in operation.inputs if flow.per(tensor) == CONTEXT]
        handed = self._boundary(wanted, {})
        if not handed:
            self._note_no_context(operations)
        return handed

    def _note_no_context(self, operations: Sequence[Any]) -> None:
        flow = self._flow
        own = [operation for operation in operations if flow.per(operation.outputs[0]) == CONTEXT]
        if not any(flow.per(tensor) == CONTEXT for tensor in flow.graph.inputs[: len(flow.inputs)]):
            return
        if (cost := flow.cost(own)) < MULTIPLY_ADDS_MIN:
            self._notes.append(
                f"tower {self._name!r} has no context part: only {cost} multiply-adds depend on "
                "context features alone"
            )
            return
        mixing = [
            operation
            for operation in own
            if not any(tensor.name in self._rows for tensor in operation.outputs)
            and all(
                tensor.name in self._rows or not flow.per(tensor) for tensor in operation.inputs
            )
            and operation.type not in ("Shape", "Placeholder")
            # A part hands on no truth values, whether or not they are rows.
            and operation.outputs[0].dtype.name != "bool"
        ]
        why = (
            f"operation {named(mixing[0])} does not compute a separate row for each context"
            if mixing
            else "none is large"
        )
        self._notes.append(f"tower {self._name!r} has no context part: {why}")

    def _of_candidates(
        self, outputs: Mapping[str, Any], stops: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the tensors of the shared part, and the outputs with their own parts,
        in order.
        """
        flow = self._flow
        derived = self._derived(outputs, stops)
        primary = {name: tensor for name, tensor in outputs.items() if name not in derived}
        needs = {name: flow.upstream([tensor], stops)[0] for name, tensor in primary.items()}
        uses = Counter(operation.name for operations in needs.values() for operation in operations)
        heads = {}
        if len(primary) > 1:
            for name, tensor in primary.items():
                alone = [operation for operation in needs[name] if uses[operation.name] == 1]
                if flow.cost(alone) >= MULTIPLY_ADDS_MIN and tensor.name in self._rows:
                    heads[name] = tensor
        wanted = [
            taken
            for name in heads
            for operation in needs[name]
            if uses[operation.name] == 1
            for taken in operation.inputs
            if flow.per(taken) and uses[taken.op.name] > 1
        ]
        heads |= {
            name: outputs[name]
            for name, of in derived.items()
            if of & {t.name for t in heads.values()}
        }
        shared = self._boundary(wanted, stops)
        return shared | {
            tensor.name: tensor for name, tensor in outputs.items() if name not in heads
        }, heads

    def _derived(self, outputs: Mapping[str, Any], stops: Mapping[str, Any]) -> dict[str, set[str]]:
        """Returns the outputs that cost almost nothing once others are known, such as a product,
        with those others.
        """
        derived: dict[str, set[str]] = {}
        for name, tensor in outputs.items():
            others = {
                each.name
                for other, each in outputs.items()
                if other != name and other not in derived
            }
            operations, reached = self._flow.upstream([tensor], others | set(stops))
            if reached & others and self._flow.cost(operations) < MULTIPLY_ADDS_MIN:
                derived[name] = reached & others
        return derived

    def _boundary(self, wanted: Iterable[Any], stops: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tensors to pass on, by name: the nearest that hold rows and save work."""
        flow = self._flow
        handed: dict[str, Any] = {}
        seen = set(stops) | set(flow.inputs)
        queue = list(wanted)
        for tensor in queue:  # grows while it is walked
            if tensor.name in seen or not flow.per(tensor):
                continue
            seen.add(tensor.name)
            if tensor.name in self._rows and self._saves_enough(tensor, stops):
                handed[tensor.name] = tensor
            else:
                queue.extend(tensor.op.inputs)
        return handed

    def _saves_enough(self, tensor: Any, stops: Mapping[str, Any]) -> bool:
        operations, _ = self._flow.upstream([tensor], stops, values=True)
        return self._flow.cost(operations) >= MULTIPLY_ADDS_MIN

    def _part(
        self, name: str, per: Per, fetches: Mapping[str, Any], stops: Mapping[str, Any]
    ) -> TracedPart:
        flow = self._flow
        operations, reached = flow.upstream(fetches.values(), set(stops))
        feeds = [
            tensor for tensor in flow.graph.inputs[: len(flow.inputs)] if tensor.name in reached
        ]
        feeds += [tensor for tensor in stops.values() if tensor.name in reached]
        names = [self._named(tensor, name) for tensor in fetches.values()]
        function, variables = narrowed(
            flow.tower.spec.name,
            flow.tower.function,
            feeds,
            dict(zip(names, fetches.values(), strict=True)),
        )
        inputs = tuple(
            flow.inputs.get(tensor.name) or self._boundary_input(tensor) for tensor in feeds
        )
        outputs = tuple(
            manifest.TowerOutput(name=which, **type_of(tensor))
            for which, tensor in zip(names, fetches.values(), strict=True)
        )
        spec = manifest.TowerPart(name=name, per=per, inputs=inputs, outputs=outputs, forms=())
        return TracedPart(spec, function, variables, flow.cost(operations))

    def _named(self, tensor: Any, part: str) -> str:
        """Returns the name of a part's output in the manifest: that of the tower's output, or a
        generated one.
        """
        if tensor.name not in self._names:
            taken = set(self._names.values()) | set(self._flow.outputs)
            number = 0
            while (name := f"{part}_{number}") in taken:
                number += 1
            self._names[tensor.name] = name
        return self._names[tensor.name]

    def _boundary_input(self, tensor: Any) -> manifest.TowerInput:
        name = self._names[tensor.name]
        return manifest.TowerInput(name=name, tensor=name, **type_of(tensor))
