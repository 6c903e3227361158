"""The examples and vocabularies of a recipe.

No value is made up for an input that an example lacks: it takes the default of the recipe, or is an
error that names file, row and input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.features.input_lengths import default_column
from bundle.format.features import input_facts
from bundle.format.manifest import Feature, readers_of
from export.errors import UsageError
from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob, VerifySection
from export.row_errors import row_errors
from export.tables.dumped import KeyFile, open_dumps
from export.tables.vocabularies import as_array, read_keys
from export.verify.examples import Examples, chosen, joined
from export.verify.synthetic_examples import Keys, make_examples
from rows.batches import read_batches
from rows.files import Format, SourceFile, matching_files, source_file
from rows.inputs import InputRows, TableReader
from rows.requests import RequestReader, numbered_records
from tensors.signatures import K, unread_tensors

KEY = "verify.examples"


def examples_of(
    job: ExportJob, base: Path, model: ModelSpec, entries: Mapping[str, Feature]
) -> Examples:
    """Returns the examples of a recipe's files; without files, synthetic ones, the same in every
    run.

    Raises:
      UsageError: A file does not exist or cannot be read, or an example does not fit the model;
        names the file, and the row and column.
    """
    section = job.verify
    if section.examples is not None:
        with row_errors(KEY):
            files = example_files(section, base)
            parts = _parts_of(job, files, model, entries)
        return _joined(section, model.inputs, entries, parts)

    dumped = {name: KeyFile(table).sample() for name, table in open_dumps(job, base).items()}
    keys = keys_of(job, base, model)
    # Some models reject unknown ids, which shows only when they are called: examples without them
    # are at hand then.
    examples = make_examples(model, entries, keys, section.count, dumped, unknown_ids=True)
    with_known_ids = make_examples(model, entries, keys, section.count, dumped)
    return replace(examples, with_known_ids=with_known_ids)


def example_files(section: VerifySection, base: Path) -> list[SourceFile]:
    """Returns the files of the examples of a recipe.

    Raises:
      FileRejected: There is none.
    """
    stated: Format | None = None
    if section.examples_format is not None:
        stated = "tfrecord"
    paths = matching_files(base, section.examples or "")
    return [source_file(path, stated, otherwise="jsonl") for path in paths]


def _parts_of(
    job: ExportJob,
    files: Sequence[SourceFile],
    model: ModelSpec,
    entries: Mapping[str, Feature],
) -> list[InputRows]:
    """Reads the first examples of files, until there are as many as the recipe counts.

    Raises:
      FileRejected, ValueRejected: A file or an example cannot be read, or does not fit.
    """
    section = job.verify
    # All weighted readers of an input have the same weights.
    weights = {
        name: spec.weights
        for name, readers in model.inputs.items()
        for spec in readers
        if spec.weights
    }
    # A column may be named twice, as the label and the recorded value of an output.
    more_columns = list(dict.fromkeys([*section.labels.values(), *section.expected.values()]))
    described = (entries, model.inputs, weights, more_columns)
    read: Iterator[InputRows]
    if section.examples_format in {None, "tf-example"}:
        table = TableReader(*described)
        read = (
            table.read(rows.slice(0, section.count))
            for file in files
            for rows in read_batches(file, batch_rows=section.count)
        )
    else:
        requests = RequestReader(*described)
        ignored = {K, *unread_tensors(job.inputs)}
        read = (
            requests.columns(requests.read(record, where, section.examples_format), ignored)
            for file in files
            for where, record in numbered_records(file)
        )
    parts: list[InputRows] = []
    # The files may be large logs: what is behind the last example is not read.
    for part in read:
        parts.append(part)
        if sum(part.size for part in parts) >= section.count:
            break
    return parts


def _joined(
    section: VerifySection,
    names: Iterable[str],
    entries: Mapping[str, Feature],
    parts: Sequence[InputRows],
) -> Examples:
    """Returns the first examples of parts of files."""
    sizes = [part.size for part in parts]
    n = min(sum(sizes), section.count)
    if not n:
        raise UsageError(f"{KEY}: {section.examples} holds no examples")
    readers = readers_of(entries)
    columns = {}
    for name in names:
        facts = input_facts(name, entries[readers[name][0]])
        default = default_column(name, facts.length, facts.default)
        # What no example has is left out, and takes its default where the examples are used.
        if default is None or any(name in part.columns for part in parts):
            whole = joined([part.column(name, default) for part in parts], sizes)
            columns[name] = chosen(whole, np.arange(n), sum(sizes))

    labels = {
        output: _labels(f"verify.labels: column {column!r} of {section.examples}", parts, column, n)
        for output, column in section.labels.items()
    }
    recorded = {
        output: _numbers(
            f"verify.expected: column {column!r} of {section.examples}", parts, column, n
        )
        for output, column in section.expected.items()
    }
    return Examples(n, columns, labels, recorded)


def _numbers(where: str, parts: Sequence[InputRows], column: str, n: int) -> NDArray[np.float64]:
    """Returns the first n values of a column of labels or recorded outputs."""
    values = [value for part in parts for value in part.more_columns[column]]
    try:
        numbers = np.asarray(values[:n], np.float64)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"{where} holds no numbers: {problem}") from problem
    not_finite = np.argwhere(~np.isfinite(numbers))
    if not_finite.size:
        first = tuple(not_finite[0])
        raise UsageError(
            f"{where} holds {numbers[first]} in row {first[0] + 1}; a service rejects such "
            "results: leave these examples out"
        )
    return numbers


def _labels(where: str, parts: Sequence[InputRows], column: str, n: int) -> NDArray[np.int64]:
    numbers = _numbers(where, parts, column, n)
    wrong = numbers[(numbers != 0) & (numbers != 1)]
    if wrong.size:
        raise UsageError(f"{where} holds {wrong[0]}; 0 or 1 was expected")
    return numbers.astype(np.int64)


def keys_of(job: ExportJob, base: Path, model: ModelSpec) -> Keys:
    """Returns the keys of the recipe's and the model's vocabularies."""
    keys = {
        name: read_keys(base / vocabulary.file, vocabulary.dtype)
        for name, vocabulary in job.vocabularies.items()
    }
    return keys | {name: as_array(words) for name, words in model.vocabularies.items()}
