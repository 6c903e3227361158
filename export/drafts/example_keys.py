"""Ids of examples that are keys, of which training made rows: finds the file of a vocabulary that
has them, or asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from export.drafts.drafted_inputs import DraftedInput
from export.drafts.drafted_towers import output_name
from export.drafts.example_columns import ColumnInput
from export.drafts.observed_calls import ObservedCall
from export.errors import UsageError
from export.recipe.schema import VocabularyRule, VocabularySection
from export.tables.vocabularies import read_keys

_FILES_MAX = 64
"""The maximum number of files that are read."""
_FILE_BYTES_MAX = 256 << 20
"""The maximum size of a file that is read, in bytes."""
_ROWS_BESIDE_KEYS_MAX = 8
"""The maximum number of rows of a table, such as those of padding and of unknown ids, beside a
vocabulary whose keys could themselves be rows.
"""


@dataclass(frozen=True)
class _Vocabulary:
    """A file with one key per line.

    Attributes:
      name: Its name in a recipe: that of the file without its suffix.
      section: Its section of a recipe.
      positions: The position of each key.
    """

    name: str
    section: VocabularySection
    positions: Mapping[Any, int]


def with_vocabularies(
    inputs: Mapping[str, DraftedInput],
    columns: Mapping[str, ColumnInput],
    calls: Sequence[ObservedCall],
    base: Path,
) -> tuple[dict[str, DraftedInput], dict[str, VocabularySection]]:
    """Returns the inputs of a draft with the vocabularies that make rows of the examples' ids, and
    these vocabularies.

    Args:
      inputs: The inputs of a draft.
      columns: The inputs that examples show.
      calls: What was observed of the model's calls.
      base: The folder of the recipe, with files of keys.
    """
    rows: dict[str, int] = {}
    for call in calls:
        for name, count in call.results.rows.items():
            rows[name] = min(count, rows.get(name, count))
    files: dict[str, list[_Vocabulary]] = {}
    sections = {}
    keyed = dict(inputs)
    for name in inputs:
        column = columns.get(name)
        if column is None or name not in rows or not column.values:
            continue
        if column.dtype not in ("int64", "string"):
            continue
        if column.dtype not in files:
            files[column.dtype] = list(_vocabularies(base, column.dtype))
        reading, question = _read(name, column, rows[name], files[column.dtype])
        if reading is not None:
            rule = VocabularyRule(
                kind="vocabulary",
                vocabulary=reading.name,
                first_row=rows[name] - len(reading.positions),
            )
            sections[reading.name] = reading.section
            keyed[name] = replace(keyed[name], ids=rule)
        elif isinstance(inputs[name].section.pad, str):
            # Until a vocabulary is named, the input has integers.
            keyed[name] = keyed[name].changed(pad=0)
        keyed[name] = replace(keyed[name], key_question=question)
    return keyed, sections


def _vocabularies(base: Path, dtype: Literal["int64", "string"]) -> Iterator[_Vocabulary]:
    for path in sorted(base.glob("*.txt"))[:_FILES_MAX]:
        # A file of anything else holds no keys of this type.
        with suppress(UsageError, OSError):
            if path.stat().st_size <= _FILE_BYTES_MAX:
                keys = read_keys(path, dtype).tolist()
                section = VocabularySection(file=path.name, dtype=dtype)
                positions = {key: position for position, key in enumerate(keys)}
                # A key that occurs twice has no row of its own.
                if len(positions) == len(keys):
                    yield _Vocabulary(output_name(path.stem), section, positions)


def _read(
    name: str, column: ColumnInput, rows: int, vocabularies: Sequence[_Vocabulary]
) -> tuple[_Vocabulary | None, str]:
    """Returns the vocabulary of a column, and what nothing shows of it; None: the values are rows,
    or no file has them as keys.
    """
    # The one with the most keys leaves the fewest rows without one.
    fitting = [
        vocabulary
        for vocabulary in vocabularies
        if column.values <= vocabulary.positions.keys() and len(vocabulary.positions) <= rows
    ]
    best = max(fitting, key=lambda vocabulary: len(vocabulary.positions), default=None)
    first_row = 0
    if best is not None:
        first_row = rows - len(best.positions)
    question = ""
    if column.dtype == "int64" and max(column.values) < rows:
        is_near = best is not None and first_row <= _ROWS_BESIDE_KEYS_MAX
        if best is not None and is_near:
            is_same = all(first_row + best.positions[row] == row for row in column.values)
            if not is_same:
                question = f"are these rows of the table, or keys of {best.section.file}?"
        best = None
    elif best is None:
        example = max(column.values)
        question = (
            f"which file has the keys of rows, as training made them of {example!r}? The model "
            f"takes rows of a table of {rows:,}: name the file as vocabularies.NAME.file, and "
            f'write features.{name}.ids = {{ kind = "vocabulary", vocabulary = "NAME" }}'
        )
    elif first_row:
        question = (
            f"which row has the first key of {best.section.file}? The table has {rows:,} rows, and "
            f"the file {len(best.positions):,} keys: write it as features.{name}.ids.first_row"
        )
    elif sum(len(vocabulary.positions) == rows for vocabulary in fitting) > 1:
        names = " or ".join(vocabulary.section.file for vocabulary in fitting)
        question = f"which file has the keys of rows: {names}?"
    return best, question
