"""Drafts a recipe of a model and its checkpoint."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.drafts.drafted_inputs import DraftedInput, drafted_inputs, padded_as_in_training
from export.drafts.example_columns import columns_of, csv_lists
from export.drafts.example_keys import with_vocabularies
from export.drafts.list_readings import results_on_examples, with_open_questions, with_questions
from export.drafts.observed_calls import observe_calls
from export.drafts.recipe_text import DraftFacts, recipe_text
from export.drafts.training_padding import paddings_of_training
from export.errors import CheckpointError, ExportError, UsageError
from export.jobs.preparation import prepare
from export.locations import location_of
from export.model_code.factories import locate_factory
from export.recipe.schema import ExportJob, explain
from export.recipe.settings import ExportSettings
from export.row_errors import row_errors
from rows.batches import read_batches
from rows.cells import plain_values
from rows.files import source_file

EXAMPLES_READ = 256
"""The number of examples that show the types and shapes of inputs."""
_OBJECT_PATHS_MAX = 3
"""The maximum number of objects of a checkpoint that are tried as the model."""
_NO_MODELS = {"optimizer", "save_counter", "step", "epoch"}
"""Names of objects that programs save beside the model."""


@dataclass(frozen=True)
class Draft:
    """A draft of a recipe.

    Attributes:
      text: The recipe, as TOML.
      problem: Why a call could not be run, or what `plan` says of the draft; "": nothing is known
        to be wrong.
      questions: The inputs with a question.
    """

    text: str
    problem: str
    questions: tuple[str, ...]


def draft_recipe(
    factory: str,
    checkpoint: str,
    examples: Path | None,
    base: Path,
    statements: Sequence[str] = (),
) -> Draft:
    """Returns the draft of a recipe.

    Args:
      factory: The recipe's `code.factory`.
      checkpoint: The path or URL of the checkpoint.
      examples: A file of raw examples; None: there is none.
      base: The folder of the recipe.
      statements: Keys of `code` and `vocabularies` that building the model needs, as `KEY=VALUE`
        with a value of TOML.

    Raises:
      UsageError: There is no such factory or file, or a statement is wrong.
      CheckpointError: The checkpoint cannot be read.
      NotConvertible: The model cannot be built.
    """
    job = _initial_job(factory, checkpoint, statements)
    opened = open_checkpoint(location_of(checkpoint, base))
    table = _first_values(examples, base)
    columns = columns_of(table)
    calls = observe_calls(job, base, opened, columns)
    inputs_shown = drafted_inputs(calls, columns)
    inputs_shown, vocabularies = with_vocabularies(inputs_shown, columns, calls, base)
    facts = DraftFacts(
        factory,
        checkpoint,
        object_path="",
        examples=None if examples is None else str(examples),
        statements=statements,
        calls=calls,
        inputs=inputs_shown,
        vocabularies=vocabularies,
        inventory=recognize(opened, Statements()),
        unread_columns=[name for name in table if name not in columns],
    )
    asking = replace(facts, inputs=with_open_questions(inputs_shown, columns))
    for call in calls:
        if call.problem:
            return _draft(asking, call.problem)
    if not calls:
        return _draft(asking, "no call of the model takes these inputs: write its towers")

    path = locate_factory(factory, base).path
    if path is not None:
        paddings = paddings_of_training(path, inputs_shown)
        facts = replace(facts, inputs=padded_as_in_training(inputs_shown, columns, paddings))
    facts, problem = _plannable(facts, base, opened)
    # The model itself may fill up lists as the code says, and take them as they are.
    if problem and facts.inputs != inputs_shown:
        facts_as_shown = replace(facts, inputs=inputs_shown)
        if _problem_of(facts_as_shown, base) is None:
            facts, problem = facts_as_shown, ""
    if problem:
        inputs = with_open_questions(facts.inputs, columns)
    else:
        inputs = with_questions(
            facts.inputs,
            columns,
            lambda inputs: results_on_examples(_job_of(facts, inputs), base),
        )
    return _draft(replace(facts, inputs=inputs), problem)


def _initial_job(factory: str, checkpoint: str, statements: Sequence[str]) -> ExportJob:
    """Returns a recipe without inputs and towers, of which the model's code can be run."""
    recipe: dict[str, Any] = {
        "model": "model",
        "checkpoint": {"path": checkpoint},
        "inputs": {},
        "towers": {},
        "output": {"root": "bundles"},
        **_stated_sections(statements),
    }
    recipe["code"] = {**recipe.get("code", {}), "factory": factory}
    try:
        return ExportJob.model_validate(recipe)
    except ValidationError as problem:
        raise UsageError(f"--set: {explain(problem)}") from problem


def _first_values(examples: Path | None, base: Path) -> Mapping[str, Sequence[object]]:
    """Returns the first values of each column of a file of examples."""
    if examples is None:
        return {}
    with row_errors("--examples"):
        file = source_file(base / examples, otherwise="jsonl")
        rows = next(read_batches(file, batch_rows=EXAMPLES_READ), None)
    if rows is None:
        return {}
    values = plain_values(rows, EXAMPLES_READ)
    if file.format == "csv":
        return {name: csv_lists(column) for name, column in values.items()}
    return values


def _plannable(facts: DraftFacts, base: Path, opened: Checkpoint) -> tuple[DraftFacts, str]:
    """Returns the facts with the object of the checkpoint that is the model, and what `plan` says
    of their draft.
    """
    problem = _problem_of(facts, base)
    # A checkpoint often holds the model below its top, beside an optimizer and a step.
    if isinstance(problem, CheckpointError):
        for object_path in _object_paths(opened):
            other_facts = replace(facts, object_path=object_path)
            other_problem = _problem_of(other_facts, base)
            if not isinstance(other_problem, CheckpointError):
                return other_facts, str(other_problem or "")
    return facts, str(problem or "")


def _draft(facts: DraftFacts, problem: str) -> Draft:
    questions = [name for name, part in facts.inputs.items() if part.question]
    return Draft(recipe_text(facts), problem, tuple(questions))


def _stated_sections(statements: Sequence[str]) -> dict[str, Any]:
    """Returns the sections that statements set.

    Raises:
      UsageError: A statement is no TOML, or sets something else.
    """
    try:
        sections = tomllib.loads("\n".join(statements))
    except tomllib.TOMLDecodeError as problem:
        raise UsageError(
            f"--set {' '.join(statements)}: {problem}; KEY=VALUE was expected, with a value of "
            "TOML, such as code.arguments.units=32; texts need quotes"
        ) from problem
    for name, section in sections.items():
        is_table = isinstance(section, dict) and "factory" not in section
        if name not in {"code", "vocabularies"} or not is_table:
            raise UsageError(
                f"--set {name}: a key of code or vocabularies was expected, such as "
                "code.arguments.units; write all others into the draft"
            )
    return sections


def _object_paths(checkpoint: Checkpoint) -> list[str]:
    """Returns the objects at the top of a checkpoint that may be the model, the largest first."""
    sizes = Counter[str]()
    for key, entry in checkpoint.entries.items():
        name, separator, _ = key.partition("/")
        if separator and name not in _NO_MODELS:
            sizes[name] += entry.bytes
    return [name for name, _ in sizes.most_common(_OBJECT_PATHS_MAX)]


def _problem_of(facts: DraftFacts, base: Path) -> ExportError | None:
    """Returns what `plan` says of a draft; None if it can be planned."""
    try:
        prepare(_job_of(facts, facts.inputs), base, ExportSettings())
    except ExportError as problem:
        return problem
    return None


def _job_of(facts: DraftFacts, inputs: Mapping[str, DraftedInput]) -> ExportJob:
    """Returns the recipe of a draft with some inputs."""
    return ExportJob.model_validate(tomllib.loads(recipe_text(replace(facts, inputs=inputs))))
