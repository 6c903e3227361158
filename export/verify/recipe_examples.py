"""The examples and vocabularies of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bundle.format.manifest import Feature
from export.corpora.files import matching_files
from export.front_end.specs import ModelSpec
from export.recipe.schema import ExportJob
from export.tables.dumped import KeyFile, open_dumps
from export.tables.vocabularies import as_array, read_keys
from export.verify.examples import Examples, examples_of_table, read_examples
from export.verify.made_examples import Keys, make_examples
from export.verify.recorded_examples import (
    NEIGHBORS,
    read_record_table,
    sent_inputs,
    unread_tensors,
)


def examples_of(
    job: ExportJob, base: Path, model: ModelSpec, entries: Mapping[str, Feature]
) -> Examples:
    """Returns the examples of a recipe: those of its file, else made ones, the same in
    every run.
    """
    part = job.verify
    if part.examples is not None and part.examples_format is not None:
        path = base / part.examples
        files = matching_files(base, part.examples, "verify.examples")
        table = read_record_table(
            files,
            part.examples_format,
            sent_inputs(model, entries, model.inputs),
            list(dict.fromkeys([*part.labels.values(), *part.expected.values()])),
            part.count,
            [NEIGHBORS, *unread_tensors(job.inputs)],
        )
        return examples_of_table(table, path, model, entries, part.labels, part.expected)
    if part.examples is not None:
        return read_examples(
            base / part.examples, model, entries, part.count, part.labels, part.expected
        )
    dumped = {name: KeyFile(table).sample() for name, table in open_dumps(job, base).items()}
    keys = keys_of(job, base, model)
    known = make_examples(model, entries, keys, part.count, dumped)
    examples = make_examples(model, entries, keys, part.count, dumped, unknown_ids=True)
    return replace(examples, known=known)


def keys_of(job: ExportJob, base: Path, model: ModelSpec) -> Keys:
    """Returns the keys of the recipe's and the model's vocabularies."""
    keys = {
        name: read_keys(base / part.file, part.dtype) for name, part in job.vocabularies.items()
    }
    return keys | {name: as_array(held) for name, held in model.vocabularies.items()}
