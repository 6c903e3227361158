"""Finds mistakes in a recipe and in the files that it names without model code, and so without
TensorFlow: names, layouts, vocabularies, examples, defaults, and the heads of corpora.

To build and trace a model can take minutes, so these mistakes are found before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bundle.errors import FormatError
from bundle.features.reader import FeatureReader
from bundle.format.id_graphs import InputDtype
from bundle.format.manifest import Feature
from bundle.shown_values import similar_file, similar_name
from export.checkpoint.reader import open_checkpoint
from export.corpora.files import locate_corpus
from export.corpora.lists import columns_of
from export.corpora.reading import CorpusReader
from export.corpora.size_estimates import forecast_index
from export.errors import ExportError, UsageError
from export.front_end.recipe_layouts import recipe_layouts
from export.front_end.stated_features import stated_dtype, stated_features
from export.locations import location_of
from export.model_code.factories import locate_factory
from export.model_code.values import named_vocabularies, values_of
from export.recipe.precisions import check_precisions
from export.recipe.references import check_references
from export.recipe.schema import CorpusSection, ExportJob, VocabularyRule
from export.row_errors import row_errors
from export.tables.vocabularies import read_keys
from export.verify.recipe_examples import example_files
from object_store.remote_path import RemotePath
from rows.batches import check_columns

_EXPECTED: Mapping[InputDtype, str] = {
    "int64": "an integer",
    "float32": "a number",
    "string": "a string",
    "int64_or_string": "an integer or a string",
}


def check_recipe(job: ExportJob, base: Path) -> None:
    """Checks a recipe.

    Args:
      job: The recipe.
      base: Its folder.

    Raises:
      ExportError: The recipe or a file that it names has a mistake; the first one.
    """
    for mistake in mistakes_of(job, base):
        raise mistake


def mistakes_of(job: ExportJob, base: Path) -> Iterator[ExportError]:
    """Yields the mistakes of a recipe and of the files that it names, each with its key."""
    yield from _raised(check_references, job)
    yield from _raised(check_precisions, job)
    # A SavedModel has neither candidates nor stored contexts.
    has_candidates = job.output.tables not in ("inline", "inline-link")
    if has_candidates:
        yield from _mistakes_of_names(job)
    yield from _mistakes_of_files(job, base)
    yield from _mistakes_of_features(job)
    if has_candidates:
        yield from mistakes_of_heads(job, base, stated_features(job))
        yield from _mistakes_of_parameters(job, base)
    yield from _raised(location_of, job.output.root, base)
    # Last: what a person wrote by hand is more often wrong.
    yield from _raised(locate_factory, job.code.factory, base)
    yield from _raised(_open_checkpoint, job, base)


def mistakes_of_heads(
    job: ExportJob, base: Path, features: Mapping[str, Feature]
) -> Iterator[ExportError]:
    """Yields the mistakes in the first rows of corpora, contexts and lists.

    Args:
      job: The recipe.
      base: Its folder.
      features: The features whose inputs the columns hold.
    """
    for group, sections in (("corpora", job.corpora), ("contexts", job.contexts)):
        for name, section in sections.items():
            key = f"{group}.{name}"
            wrong_names = list(_unknown_inputs(f"{key}.features", section.features, job))
            yield from wrong_names
            if not wrong_names:
                yield from _raised(_check_head, base, group, name, section, features)
    for name, list_section in job.lists.items():
        yield from _raised(_check_head, base, "lists", name, columns_of(list_section), {})


def _raised(check: Callable[..., object], *arguments: Any) -> Iterator[ExportError]:
    """Yields the error that a check raises."""
    try:
        check(*arguments)
    except ExportError as mistake:
        yield mistake


def _mistakes_of_names(job: ExportJob) -> Iterator[ExportError]:
    """Yields names in indexes, lists and contexts that the recipe does not have."""
    for name, index in job.indexes.items():
        key = f"indexes.{name}"
        limits = sorted({"value", "of_tables", "of_cold_users"} & index.recall.model_fields_set)
        if limits and job.verify.examples is None:
            yield UsageError(
                f"{key}.recall.{limits[0]} is a limit, which needs real queries: name a file of "
                "raw examples as verify.examples, or leave the limit out; recall on invented "
                "queries stops nothing"
            )
        yield from _unknown_corpus(f"{key}.corpus", index.corpus, job)
        for role, tower in (("query", index.query_tower), ("candidate", index.candidate_tower)):
            towers = sorted(name for name, part in job.towers.items() if part.role == role)
            if tower not in towers:
                yield UsageError(
                    f"{key}.{role}_tower names {tower!r}{similar_name(tower, towers)}; the "
                    f"recipe's towers with role = {role!r}: {', '.join(towers) or 'none'}"
                )
    for name, section in job.lists.items():
        yield from _unknown_corpus(f"lists.{name}.corpus", section.corpus, job)
        if section.by is not None and section.by not in job.inputs:
            yield UsageError(
                f"lists.{name}.by names {section.by!r}{similar_name(section.by, job.inputs)}; the "
                f"recipe has the inputs {', '.join(sorted(job.inputs))}"
            )
    for name, context in job.contexts.items():
        if context.filters:
            yield UsageError(f"contexts.{name}.filters: only a corpus has filters; leave it out")


def _mistakes_of_parameters(job: ExportJob, base: Path) -> Iterator[ExportError]:
    """Yields the mistakes in parameters of indexes."""
    for name, index in job.indexes.items():
        try:
            files = locate_corpus(base, index.corpus, job.corpora[index.corpus])
        except (KeyError, UsageError):
            # A mistake of the corpus, which is yielded with it.
            continue
        # The forecast is made for its errors: what it says depends on the model.
        yield from _raised(forecast_index, name, index, files, 1, 1)


def _unknown_corpus(key: str, corpus: str, job: ExportJob) -> Iterator[ExportError]:
    if corpus not in job.corpora:
        corpora = ", ".join(sorted(job.corpora)) or "no corpora"
        yield UsageError(
            f"{key} names {corpus!r}{similar_name(corpus, job.corpora)}; the recipe has {corpora}"
        )


def _mistakes_of_files(job: ExportJob, base: Path) -> Iterator[ExportError]:
    """Yields the mistakes of the files that the recipe names, but for those of candidates."""
    files = {
        f"vocabularies.{name}.file": section.file for name, section in job.vocabularies.items()
    }
    for name, trained in job.verify.trained_ids.items():
        if trained.file is not None:
            files[f"verify.trained_ids.{name}"] = trained.file
    if job.warm_up.requests is not None:
        files["warm_up.requests"] = job.warm_up.requests
    if job.warm_up.examples and job.verify.examples is None:
        yield UsageError(
            "warm_up.examples takes the first of verify.examples, which is missing: name a file of "
            "examples there"
        )
    missing = [key for key, file in files.items() if not (base / file).is_file()]
    for key in missing:
        path = base / files[key]
        yield UsageError(f"{key}: file {path} does not exist{similar_file(path)}")

    if not missing:
        yield from _raised(values_of, job.code.arguments, "code.arguments", job, base)
        yield from _raised(values_of, job.code.names, "code.names", job, base)
    # The vocabularies that model code gets were read with its arguments.
    for name in job.vocabularies.keys() - named_vocabularies(job):
        if f"vocabularies.{name}.file" not in missing:
            section = job.vocabularies[name]
            yield from _raised(read_keys, base / section.file, section.dtype)
    yield from _raised(recipe_layouts, job, base)
    yield from _raised(_check_examples, job, base)


def _open_checkpoint(job: ExportJob, base: Path) -> None:
    location = location_of(job.checkpoint.path, base)
    # A store may be slow, or out of reach where a recipe is only checked.
    if not isinstance(location, RemotePath):
        open_checkpoint(location)


def _check_examples(job: ExportJob, base: Path) -> None:
    verify = job.verify
    if verify.examples is None:
        return
    with row_errors("verify.examples"):
        files = example_files(verify, base)
        # Records may have any names, and some of them lack one.
        if verify.examples_format is not None:
            return
    for key, columns in (("labels", verify.labels), ("expected", verify.expected)):
        for output, column in columns.items():
            with row_errors(f"verify.{key}.{output}"):
                check_columns(files[:1], [column])


def _mistakes_of_features(job: ExportJob) -> Iterator[ExportError]:
    """Yields the mistakes in what the recipe states of inputs and of their features."""
    yield from _unknown_inputs("features", job.features, job)
    for name, section in job.features.items():
        if isinstance(section.ids, VocabularyRule):
            yield from _mistakes_of_vocabulary(f"features.{name}.ids", section.ids, job)
    weighted = {section.weights_for for section in job.inputs.values()}
    for name, part in job.inputs.items():
        if part.pad is not None and name in weighted:
            yield UsageError(
                f"inputs.{name}.pad: its values have weights, and nothing states the weight of "
                f"{part.pad!r}; send lists of full length"
            )
    for name, feature in stated_features(job).items():
        pad = job.inputs[name].pad
        expected = _EXPECTED[stated_dtype(name, job)]
        if pad is not None and not _is_of_kind(pad, expected):
            yield UsageError(
                f"inputs.{name}.pad is {pad!r}; {expected} was expected, as clients send it for "
                "this input"
            )
            continue
        try:
            FeatureReader({name: feature}, {}, {})
        except FormatError as problem:
            yield UsageError(str(problem))


def _is_of_kind(value: object, expected: str) -> bool:
    if isinstance(value, str):
        return "string" in expected
    return expected == "a number" or (isinstance(value, int) and "integer" in expected)


def _unknown_inputs(key: str, names: Iterable[str], job: ExportJob) -> Iterator[ExportError]:
    """Yields the names under a key that are no inputs of the recipe."""
    for name in names:
        if name not in job.inputs:
            yield UsageError(
                f"{key}.{name}: the recipe has no input of that name"
                f"{similar_name(name, job.inputs)}; it has {', '.join(job.inputs) or 'none'}"
            )


def _mistakes_of_vocabulary(
    key: str, rule: VocabularyRule, job: ExportJob
) -> Iterator[ExportError]:
    vocabulary = job.vocabularies.get(rule.vocabulary)
    if vocabulary is None:
        names = ", ".join(sorted(job.vocabularies)) or "none"
        yield UsageError(
            f"{key}.vocabulary is {rule.vocabulary!r}"
            f"{similar_name(rule.vocabulary, job.vocabularies)}; the recipe's vocabularies: {names}"
        )
    elif rule.mask is not None and isinstance(rule.mask, str) != (vocabulary.dtype == "string"):
        yield UsageError(
            f"{key}.mask is {rule.mask!r}; the vocabulary's keys are {vocabulary.dtype}"
        )


def _check_head(
    base: Path, group: str, name: str, section: CorpusSection, features: Mapping[str, Feature]
) -> None:
    files = locate_corpus(base, name, section, group)
    CorpusReader(files, f"{group}.{name}", section, features).check_head()
