"""Writes the draft of a recipe as TOML, with a comment at each line that is a guess."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from export.checkpoint.inventory.specs import Inventory
from export.drafts.observed_calls import ObservedCall
from export.recipe.schema import InputSection

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TABLES_LISTED_MAX = 20
"""The maximum number of tables that a comment lists."""
# The narrowest first: Python's bools are integers, and integers may stand among floats.
_KINDS: dict[Any, Any] = {"bool": bool, "string": str, "int64": int, "float32": (int, float)}
"""Python's types of the values of a dtype."""
_COMPUTED_ROLE = (
    "query: the vector of a context. candidate: the vector of an item. ranking: scores of items"
)


def recipe_text(
    factory: str,
    checkpoint: str,
    examples: str | None,
    calls: Sequence[ObservedCall],
    inventory: Inventory,
    unread_columns: Sequence[str] = (),
) -> str:
    """Returns the draft of a recipe.

    Args:
      factory, checkpoint, examples: The names that the recipe has for these.
      calls: What was observed of the model's calls.
      inventory: The tables that the checkpoint holds.
      unread_columns: Columns of the examples whose values no input takes.
    """
    lines = [
        "# The first draft of a recipe. A comment says what nothing shows: read each line that has "
        "one.",
        'model = "model"  # name of the model, in URLs and requests',
        f"output.root = {_text('bundles')}  # the bundle is written to bundles/<model>/<version>",
        "",
        "[checkpoint]",
        f"path = {_text(checkpoint)}",
        *_tables(inventory),
        "",
        "[code]",
        f"factory = {_text(factory)}",
        "",
        *_inputs(calls),
    ]
    if unread_columns:
        names = ", ".join(unread_columns)
        # Before the blank line that ends the inputs.
        lines.insert(-1, f"# columns of the examples that no input takes: {names}")
    for call in calls:
        lines += _tower(call)
    if examples is None:
        lines += [
            "# [verify]",
            '# examples = "examples.jsonl"  # real examples, on which towers are compared with the '
            "model",
        ]
    else:
        lines += ["[verify]", f"examples = {_text(examples)}"]
    return "\n".join(lines) + "\n"


def _tables(inventory: Inventory) -> Iterator[str]:
    if inventory.tables:
        yield "# its tables:"
    for table in inventory.tables[:_TABLES_LISTED_MAX]:
        yield f"#   {table.name}: {table.rows:,} rows of {table.dim}"
    if len(inventory.tables) > _TABLES_LISTED_MAX:
        yield f"#   and {len(inventory.tables) - _TABLES_LISTED_MAX} more"


def _inputs(calls: Sequence[ObservedCall]) -> Iterator[str]:
    inputs: dict[str, InputSection] = {}
    assumed: set[str] = set()
    for call in calls:
        inputs |= call.inputs
        assumed |= call.assumed
    yield "[inputs]"
    if not inputs:
        yield ("# the model does not say what it takes: write a line for each input, such as")
        yield '# user_id = { dtype = "int64" }'
    for name, part in inputs.items():
        fields = {"dtype": part.dtype}
        line = ", ".join(f"{key} = {_text(value)}" for key, value in fields.items())
        if part.shape:
            line += f", shape = {list(part.shape)}"
        if part.kind != "dense":
            line += f', kind = "{part.kind}"'
        comment = ""
        if name in assumed:
            comment = "  # dtype and shape of training? Nothing states them"
        yield f"{_key(name)} = {{ {line} }}{comment}"
    yield ""


def _tower(call: ObservedCall) -> Iterator[str]:
    name = call.path or "tower"
    role = _role(call)
    if call.problem:
        yield f"# The call could not be run with these inputs: {call.problem}"
    yield f"[towers.{_key(name)}]"
    yield f"role = {_text(role)}  # {_COMPUTED_ROLE}"
    if call.path:
        yield f"call = {_text(call.path)}"
    if call.arguments is not None:
        yield f"arguments = {json.dumps(list(call.arguments))}"
    # A single tensor needs no name, nor do the vectors that a retrieval layer compares.
    if not call.queries and None not in call.outputs and call.outputs:
        names = {_output_name(key): key for key in call.outputs}
        fields = ", ".join(f"{_key(name)} = {json.dumps(key)}" for name, key in names.items())
        shapes = ", ".join(f"{key}: {_shape(shape)}" for key, shape in call.outputs.items())
        yield f"outputs = {{ {fields} }}  # {shapes}"
        if len(names) > 1:
            yield f"result = {_text(next(iter(names)))}  # the output that orders candidates"
    if role == "ranking":
        yield ""
        yield "# Inputs of a candidate, not of the context: a table for each, such as"
        yield f"# [features.{_key(next(reversed(call.inputs), 'item'))}]"
        yield '# role = "candidate"'
    yield ""


def _role(call: ObservedCall) -> str:
    """Guesses the role of a tower: what returns nothing but numbers ranks."""
    shapes = list(call.outputs.values())
    is_score = bool(shapes) and all(shape in ((), (1,)) for shape in shapes)
    if is_score and not call.queries:
        return "ranking"
    return "query"


def _output_name(key: str | int | None) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", str(key)).lstrip("_.-")
    if not name or name.isdigit():
        return f"output_{name}"
    return name


def _shape(shape: Sequence[int | None]) -> str:
    if shape in ((), (1,)):
        return "one number"
    return f"{list(shape)} numbers".replace("None", "?")


def _key(name: str) -> str:
    if _BARE.fullmatch(name):
        return name
    return json.dumps(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def columns_of(examples: Mapping[str, Sequence[object]]) -> dict[str, InputSection]:
    """Returns the inputs that columns of examples show: their types, and the lengths of lists."""
    inputs = {}
    for name, values in examples.items():
        lists = [value for value in values if isinstance(value, list)]
        lengths = {len(value) for value in lists}
        items = list(values)
        if lists:
            items = [item for value in lists for item in value]
        dtype = _dtype(items)
        if dtype is None:
            continue
        if len(lengths) > 1:
            inputs[name] = InputSection(dtype=dtype, kind="ragged")
        else:
            # Lists of one length have that shape; values that are no lists have none.
            inputs[name] = InputSection(dtype=dtype, shape=tuple(lengths))
    return inputs


def _dtype(items: Sequence[object]) -> Any:
    """Returns the dtype of some values; None: they are of several types."""
    for dtype, kinds in _KINDS.items():
        if items and all(isinstance(item, kinds) for item in items):
            return dtype
    return None
