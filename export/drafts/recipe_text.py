"""Writes the draft of a recipe as TOML, with a comment at each line that is a guess."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.checkpoint.inventory.specs import Inventory
from export.drafts.drafted_inputs import DraftedInput
from export.drafts.drafted_towers import (
    DraftedTower,
    candidate_inputs,
    drafted_towers,
    is_of_candidates,
    output_name,
)
from export.drafts.observed_calls import ObservedCall
from export.recipe.json_schema import FILE_NAME
from export.recipe.schema import VocabularySection

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TABLES_LISTED_MAX = 20
"""The maximum number of tables that a comment lists."""
_COMPUTED_ROLE = (
    "query: the vector of a context. candidate: the vector of an item. ranking: scores of items"
)


@dataclass(frozen=True)
class DraftFacts:
    """What a draft says.

    Attributes:
      factory, checkpoint, object_path, examples: The names that the recipe has for these.
      statements: Further keys of `code` and `vocabularies`, as `KEY=VALUE`.
      calls: What was observed of the model's calls.
      inputs: Their inputs.
      vocabularies: The vocabularies that make rows of ids.
      inventory: The tables that the checkpoint holds.
      unread_columns: Columns of the examples whose values no input takes.
    """

    factory: str
    checkpoint: str
    object_path: str
    examples: str | None
    statements: Sequence[str]
    calls: Sequence[ObservedCall]
    inputs: Mapping[str, DraftedInput]
    vocabularies: Mapping[str, VocabularySection]
    inventory: Inventory
    unread_columns: Sequence[str]


def recipe_text(facts: DraftFacts) -> str:
    """Returns the draft of a recipe, as TOML."""
    towers = drafted_towers(facts.calls)
    lines = [
        f"#:schema ./{FILE_NAME}",
        f"# The line above is for editors: run `rowcast-export schema --out {FILE_NAME}`.",
        "# The first draft of a recipe. A comment says what nothing shows: read each line that has "
        "one.",
        'model = "model"  # name of the model, in URLs and requests',
        f"output.root = {_text('bundles')}  # the bundle is written to bundles/<model>/<version>",
        *_statements(facts.statements, "vocabularies."),
        "",
        "[checkpoint]",
        f"path = {_text(facts.checkpoint)}",
    ]
    if facts.object_path:
        lines.append(f"object_path = {_text(facts.object_path)}")
    lines += [
        *_tables(facts.inventory),
        "",
        "[code]",
        f"factory = {_text(facts.factory)}",
        *(line.removeprefix("code.") for line in _statements(facts.statements, "code.")),
        "",
        *_inputs(facts.inputs),
    ]
    if facts.unread_columns:
        names = ", ".join(facts.unread_columns)
        # Before the blank line that ends the inputs.
        lines.insert(-1, f"# columns of the examples that no input takes: {names}")
    all_inputs = list(facts.inputs)
    for name, vocabulary in facts.vocabularies.items():
        if any(statement.startswith(f"vocabularies.{name}.") for statement in facts.statements):
            continue
        section = vocabulary.model_dump()
        lines += [f"[vocabularies.{_key(name)}]", *_lines(section), ""]
    for tower in towers:
        lines += _tower(tower, all_inputs)
    lines += _features(facts.inputs, _candidates_by_name(towers))
    lines += _index(towers)
    if facts.examples is None:
        lines += [
            "# [verify]",
            '# examples = "examples.jsonl"  # real examples, on which towers are compared with the '
            "model",
        ]
    else:
        lines += ["[verify]", f"examples = {_text(facts.examples)}"]
    return "\n".join(lines) + "\n"


def _statements(statements: Sequence[str], section: str) -> Iterator[str]:
    for statement in statements:
        key, _, value = statement.partition("=")
        if key.startswith(section):
            yield f"{key.strip()} = {value.strip()}"


def _tables(inventory: Inventory) -> Iterator[str]:
    if inventory.tables:
        yield "# its tables:"
    for table in inventory.tables[:_TABLES_LISTED_MAX]:
        yield f"#   {table.name}: {table.rows:,} rows of {table.dim}"
    if len(inventory.tables) > _TABLES_LISTED_MAX:
        yield f"#   and {len(inventory.tables) - _TABLES_LISTED_MAX} more"


def _inputs(inputs: Mapping[str, DraftedInput]) -> Iterator[str]:
    yield "[inputs]"
    if not inputs:
        yield "# the model does not say what it takes: write a line for each input, such as"
        yield '# user_id = { dtype = "int64" }'
    for name, drafted in inputs.items():
        stated = drafted.section.model_dump(exclude_defaults=True)
        if drafted.question:
            stated["question"] = drafted.question
        values = ", ".join(_lines(stated))
        comment = ""
        if drafted.comment:
            comment = f"  # {drafted.comment}"
        yield f"{_key(name)} = {{ {values} }}{comment}"
    yield ""


def _tower(tower: DraftedTower, all_inputs: Sequence[str]) -> Iterator[str]:
    call = tower.call
    if call.problem:
        yield f"# The call could not be run with these inputs: {' '.join(call.problem.split())}"
    yield f"[towers.{_key(tower.name)}]"
    yield f"role = {_text(tower.role)}  # {_COMPUTED_ROLE}"
    if call.path:
        yield f"call = {_text(call.path)}"
    if call.arguments is not None:
        yield f"arguments = {json.dumps(list(call.arguments))}"
    elif call.inputs and list(call.inputs) != list(all_inputs):
        yield f"inputs = {json.dumps(list(call.inputs))}"
    # A single tensor needs no name, nor do the vectors that a retrieval layer compares.
    if tower.outputs:
        names = {output_name(key): key for key in tower.outputs}
        fields = ", ".join(f"{_key(name)} = {json.dumps(key)}" for name, key in names.items())
        shapes = ", ".join(f"{key}: {_shape(shape)}" for key, shape in tower.outputs.items())
        yield f"outputs = {{ {fields} }}  # {shapes}"
        if len(names) > 1:
            yield f"result = {_text(next(iter(names)))}  # the output that orders candidates"
    yield ""


def _candidates_by_name(towers: Sequence[DraftedTower]) -> Sequence[str]:
    """Returns the inputs that seem to describe a candidate, where no candidate tower says so."""
    rankings = [tower for tower in towers if tower.role == "ranking"]
    if not rankings or any(tower.role == "candidate" for tower in towers):
        return ()
    return candidate_inputs(rankings[0].call.inputs)


def _features(inputs: Mapping[str, DraftedInput], candidates: Sequence[str]) -> Iterator[str]:
    for name, drafted in inputs.items():
        if drafted.ids is None and name not in candidates:
            continue
        yield f"[features.{_key(name)}]"
        if name in candidates:
            yield (
                'role = "candidate"  # does it describe the item? All other inputs are of the '
                "context"
            )
        if drafted.ids is not None:
            rule = drafted.ids.model_dump(exclude_defaults=True)
            yield (
                f"ids = {{ {', '.join(_lines(rule))} }}  # a line of the file for each row: as in "
                "training?"
            )
        yield ""


def _index(towers: Sequence[DraftedTower]) -> Iterator[str]:
    """Yields the corpus and the index of a candidate tower, as comments: no file is known."""
    candidates = [tower for tower in towers if tower.role == "candidate"]
    if not candidates:
        return
    candidate = candidates[0]
    names = _read_by(candidate)
    decided = {name for tower in towers if tower.role != "ranking" for name in _read_by(tower)}
    ranked = [name for tower in towers if tower.role == "ranking" for name in _read_by(tower)]
    undecided = [name for name in dict.fromkeys(ranked) if name not in {*decided, *names}]
    of_items = [name for name in undecided if is_of_candidates(name)]
    columns = ", ".join(f"{_key(name)} = {_text(name)}" for name in [*names, *of_items])
    yield "# To search candidates, name a file with a row for each, and the columns of its inputs:"
    yield "# [corpora.items]"
    yield '# file = "items.parquet"'
    yield '# id = "id"'
    yield f"# features = {{ {columns} }}"
    if undecided:
        yield (
            f"# Only the ranking reads {', '.join(undecided)}. Those that describe the item belong "
            "among the features above; all others are of the context."
        )
    queries = [tower for tower in towers if tower.role == "query"]
    if queries:
        yield "# [indexes.items]"
        yield '# corpus = "items"'
        yield f"# query_tower = {_text(queries[0].name)}"
        yield f"# candidate_tower = {_text(candidate.name)}"
    yield ""


def _read_by(tower: DraftedTower) -> list[str]:
    """Returns the inputs that a tower reads; all, if its call could not be run."""
    call = tower.call
    read = {
        name for key in tower.outputs or call.results.outputs for name in call.results.reads[key]
    }
    return [name for name in call.inputs if name in read] or list(call.inputs)


def _lines(section: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line of TOML for each key of a section."""
    for key, value in section.items():
        yield f"{key} = {_text(value)}"


def _shape(shape: Sequence[int | None]) -> str:
    if shape in ((), (1,)):
        return "one number"
    return f"{list(shape)} numbers".replace("None", "?")


def _key(name: str) -> str:
    if _BARE.fullmatch(name):
        return name
    return json.dumps(name)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
