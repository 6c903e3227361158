"""The examples and vocabularies of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bundle.format.manifest import Feature
from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob
from export.row_errors import row_errors
from export.tables.dumped import KeyFile, open_dumps
from export.tables.vocabularies import as_array, read_keys
from export.verify.examples import Examples, examples_of_table, read_examples
from export.verify.recorded_examples import (
    read_record_table,
    sent_inputs,
)
from export.verify.synthetic_examples import Keys, make_examples
from rows.files import matching_files
from tensors.signatures import K, unread_tensors


def examples_of(
    job: ExportJob, base: Path, model: ModelSpec, entries: Mapping[str, Feature]
) -> Examples:
    """Returns the examples of a recipe's file; without a file, synthetic ones, the same in every
    run.
    """
    section = job.verify
    if section.examples is not None and section.examples_format is not None:
        path = base / section.examples
        with row_errors("verify.examples"):
            files = matching_files(base, section.examples)
        # A column may be named twice, as the label and the recorded value of an output.
        more_columns = list(dict.fromkeys([*section.labels.values(), *section.expected.values()]))
        table = read_record_table(
            files,
            section.examples_format,
            sent_inputs(model, entries, model.inputs),
            more_columns,
            section.count,
            {K, *unread_tensors(job.inputs)},
        )
        return examples_of_table(table, path, model, entries, section.labels, section.expected)
    if section.examples is not None:
        return read_examples(
            base / section.examples,
            model,
            entries,
            section.count,
            section.labels,
            section.expected,
        )

    dumped = {name: KeyFile(table).sample() for name, table in open_dumps(job, base).items()}
    keys = keys_of(job, base, model)
    # Some models reject unknown ids, which shows only when they are called: examples without them
    # are at hand then.
    examples = make_examples(model, entries, keys, section.count, dumped, unknown_ids=True)
    with_known_ids = make_examples(model, entries, keys, section.count, dumped)
    return replace(examples, with_known_ids=with_known_ids)


def keys_of(job: ExportJob, base: Path, model: ModelSpec) -> Keys:
    """Returns the keys of the recipe's and the model's vocabularies."""
    keys = {
        name: read_keys(base / vocabulary.file, vocabulary.dtype)
        for name, vocabulary in job.vocabularies.items()
    }
    return keys | {name: as_array(words) for name, words in model.vocabularies.items()}
