"""A plan as text, one fact a line, for people who review what changes in it.

    table items: rows and columns = "float32 [20, 4]"
    feature item: table = "items"
    tower query: input item = float32 [?, 4] of item
    note: table 'items' ...

What is as by default is left out, but for the kind of a feature and of its rule.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bundle.features.ids.expressions import expression
from bundle.format.manifest import EmbeddedFeature, GraphIds, TowerInput, TowerOutput
from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.layouts import Plain
from export.errors import ExportError
from export.front_end.interface import TracedTower
from export.front_end.specs import DenseSpec, FeatureSpec
from export.graphs.loading import tf
from export.jobs.preparation import Prepared, prepare
from export.recipe.settings import ExportSettings
from export.tables.plan import TablePlan
from export.tensorflow_models.frameworks.keras_saving import reset_automatic_names
from export.towers.parts import TracedPart
from tests.plans.planned_models import PlannedModel

VALUES_MAX = 12
"""Of a list; longer ones are shortened."""
READERS_MAX = 20
"""Features of one table; where there are more, each is one line."""
ALWAYS_SHOWN = {"kind", "ids"}
"""Fields of the manifest that are shown where they are as by default, too."""
_HARNESS_LINE = re.compile(rf" \({Path(__file__).name}:\d+\)")
_LINE = re.compile(r"\b(\w+\.py):(\d+)")


def plan_text(model: PlannedModel, folder: Path) -> str:
    """Returns the plan of an export, or why it is rejected.

    Args:
      model: The model that is exported.
      folder: An empty folder for the model's files.
    """
    _forget_names()  # a checkpoint may hold them
    project = model.write(folder)
    _forget_names()
    try:
        lines = _plan_lines(prepare(project.job, project.base, ExportSettings()))
        text = "".join(f"{line}\n" for line in lines)
    except ExportError as problem:
        text = f"rejected, {type(problem).__name__}: {problem}\n"
    text = text.replace(str(folder), "FOLDER")
    # To the exporter, the lines of whatever program calls it are the user's.
    return _LINE.sub(lambda match: _with_code(match, project.base), _HARNESS_LINE.sub("", text))


def _forget_names() -> None:
    """Lets Keras number layers from 1, and draw the same weights, whatever was planned before."""
    tf.keras.backend.reset_uids()
    reset_automatic_names()
    tf.keras.utils.set_random_seed(3)


def _with_code(match: re.Match[str], folder: Path) -> str:
    """Returns a place in the model's code without the number of its line, which changes with every
    line that is added above it.
    """
    name, number = match.groups()
    lines = (folder / name).read_text().splitlines()
    return f"{name}: {lines[int(number) - 1].strip()}"


def _plan_lines(prepared: Prepared) -> Iterator[str]:
    yield from _checkpoint_lines(prepared.inventory, {*prepared.traced.spec.tables})
    for table in prepared.plan.tables:
        yield from _fact_lines(f"table {table.spec.name}", _filled(_table_facts(prepared, table)))
    for name, keys in sorted(prepared.traced.spec.vocabularies.items()):
        yield f"vocabulary {name}: keys = {_value_text(keys)}"
    yield from _feature_lines(prepared)
    for tower in prepared.traced.towers:
        yield from _tower_lines(prepared, tower)
        if tower.spec.name in prepared.splits:
            for part in prepared.splits[tower.spec.name].parts:
                yield from _part_lines(tower, part)
    yield from _note_lines(prepared)


def _checkpoint_lines(inventory: Inventory, read: set[str]) -> Iterator[str]:
    by_objects = "objects" if inventory.objects else "names"
    yield f"checkpoint: of {inventory.storage}, saved by {by_objects}"
    for table in inventory.tables:
        if table.name not in read:
            yield f"checkpoint: no tower reads table {table.name}"
    for rejected in inventory.rejected:
        yield f"checkpoint: table {rejected.name} cannot be exported: {rejected.reason}"
    for duplicate in inventory.duplicates:
        yield f"checkpoint: {duplicate.key} holds the same as {duplicate.original_key}"


def _table_facts(prepared: Prepared, table: TablePlan) -> dict[str, Any]:
    spec = table.spec
    config_name = prepared.traced.spec.tables[spec.name].config_name
    padded = spec.stored if spec.stored != (spec.rows, spec.dim) else ()
    in_order = isinstance(spec.layout, Plain)
    layout = {} if in_order else {"kind": spec.layout.kind, **asdict(spec.layout)}
    return {
        "rows and columns": _type_text(spec.dtype, (spec.rows, spec.dim)),
        "written dtype": table.dtype if table.dtype != spec.dtype else "",
        "name in the model": config_name if config_name != spec.name else "",
        "key": spec.key,
        "key of the ids": spec.keys,
        "origin": spec.origin,
        "rows and columns of the variable": padded,
        "layout": layout,
        "layout is stated": spec.stated,
        "linked": bool(table.linked),
        "slot variables": [slot.key for slot in spec.slots],
    }


def _feature_lines(prepared: Prepared) -> Iterator[str]:
    entries = sorted(prepared.entries.items())
    readers = Counter(entry.table for _, entry in entries if isinstance(entry, EmbeddedFeature))
    for name, entry in entries:
        subject = f"feature {name}"
        of_model = _model_facts(prepared.traced.spec.features[name])
        facts = _without_defaults(entry) | _filled(of_model)
        lines = list(_fact_lines(subject, facts))
        if isinstance(entry, EmbeddedFeature) and readers[entry.table] > READERS_MAX:
            yield f"{subject}: " + "; ".join(line.removeprefix(f"{subject}: ") for line in lines)
        else:
            yield from lines


def _model_facts(spec: FeatureSpec | DenseSpec) -> dict[str, Any]:
    """Returns what the exporter knows of a feature beside its entry in the manifest."""
    if isinstance(spec, DenseSpec):
        return {"input of the weights": spec.weights}
    return {
        "input of the ids": f"{spec.encoding} {spec.ids_dtype}",
        "input of the weights": spec.weights,
        "most ids": spec.ids_max,
        "rule of the model": spec.has_rule,
        "unknown ids as in the model": spec.has_unknown,
    }


def _tower_lines(prepared: Prepared, tower: TracedTower) -> Iterator[str]:
    spec = tower.spec
    subject = f"tower {spec.name}"
    facts = {
        "role": spec.role,
        "call": spec.call.path,
        "inputs of the call": spec.call.inputs,
        "result": spec.result,
        "half precision": spec.half,
    }
    yield from _fact_lines(subject, _filled(facts))
    yield from _tensor_lines(subject, spec.inputs, spec.outputs, spec.paths)
    for variable, key in prepared.traced.original.find_weights(tower.variables):
        yield f"{subject}: variable {key or 'of its own'} = {_tensor_text(variable)}"


def _part_lines(tower: TracedTower, part: TracedPart) -> Iterator[str]:
    subject = f"tower {tower.spec.name}, part {part.spec.name}"
    yield f"{subject}: once for each {part.spec.per}"
    yield from _tensor_lines(subject, part.spec.inputs, part.spec.outputs, {})


def _note_lines(prepared: Prepared) -> Iterator[str]:
    """Yields what `plan`, `explain` or both show to the user."""
    for note in prepared.notes:
        yield f"{'note, and stays' if note in prepared.stays else 'note'}: {note}"
    for note in prepared.stays:
        if note not in prepared.notes:
            yield f"stays: {note}"


def _tensor_lines(
    subject: str,
    inputs: Iterable[TowerInput],
    outputs: Iterable[TowerOutput],
    paths: Mapping[str, tuple[str | int, ...]],
) -> Iterator[str]:
    for tensor in inputs:
        sources = ", ".join(tensor.sources) or f"an earlier part's {tensor.tensor}"
        kind = _type_text(tensor.dtype, tensor.shape)
        yield f"{subject}: input {tensor.name} = {kind} of {sources}"
    for output in outputs:
        path = paths.get(output.name, ())
        path_text = f" at {', '.join(map(str, path))}" if path else ""
        kind = _type_text(output.dtype, output.shape)
        yield f"{subject}: output {output.name} = {kind}{path_text}"


def _tensor_text(variable: Any) -> str:
    return _type_text(variable.dtype.name, variable.shape.as_list())


def _type_text(dtype: str, shape: Sequence[int | None]) -> str:
    sizes = ("?" if size is None else str(size) for size in shape)
    return f"{dtype} [{', '.join(sizes)}]"


def _filled(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value}


def _without_defaults(part: BaseModel) -> dict[str, Any]:
    fields = type(part).model_fields
    return {
        name: value
        for name, value in part
        if name in ALWAYS_SHOWN or value != fields[name].get_default()
    }


def _fact_lines(subject: str, facts: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yields a line for each value; those of a part have its name before their own."""
    for name, value in facts.items():
        if isinstance(value, GraphIds):
            yield from _fact_lines(subject, _graph_facts(value), f"{above}{name}.")
        elif isinstance(value, BaseModel):
            yield from _fact_lines(subject, _without_defaults(value), f"{above}{name}.")
        elif isinstance(value, Mapping):
            yield from _fact_lines(subject, value, f"{above}{name}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            numbered = {f"{name}[{number}]": part for number, part in enumerate(value)}
            yield from _fact_lines(subject, numbered, above)
        else:
            yield f"{subject}: {above}{name} = {_value_text(value)}"


def _graph_facts(graph: GraphIds) -> dict[str, Any]:
    """Returns what a graph computes of its inputs, which are called x, y and z."""
    dtypes = [node.dtype for node in graph.inputs]
    names = "xyz"[: len(dtypes)]
    return {"dtype": ", ".join(dtypes), "computed": expression(graph, *names)}


def _value_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (list, tuple)) or len(value) <= VALUES_MAX:
        return text
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    ends = json.dumps([*value[:2], "...", value[-1]], ensure_ascii=False)
    return f"{ends}, {len(value)} values with digest {digest}"
