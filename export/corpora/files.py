"""The files of a corpus, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from export.errors import NotConvertible, UsageError
from export.recipe.schema import CorpusSection
from export.row_errors import row_errors
from rows.batches import Rows, read_batches
from rows.files import SourceFile, matching_files, source_file


def locate_corpus(
    folder: Path, name: str, section: CorpusSection, group: str = "corpora"
) -> list[SourceFile]:
    """Finds the files of a corpus, in the order of their candidates: that of their names.

    Args:
      folder: The folder of the recipe.
      name: The name of the corpus.
      section: The section of the corpus: a file, a directory of part files, a pattern, or several
        of these.
      group: The key of the recipe that holds the section: `corpora`, `contexts` or `lists`.

    Raises:
      UsageError: There is no file, or the format of a file is unknown.
    """
    key = f"{group}.{name}"
    patterns = section.file
    if isinstance(patterns, str):
        patterns = (patterns,)
    is_gzip = None
    if section.compression is not None:
        is_gzip = section.compression == "gzip"
    files: list[SourceFile] = []
    for pattern in patterns:
        with row_errors(f"{key}.file"):
            paths = matching_files(folder, pattern)
        for path in paths:
            # Its candidates would stand in the corpus twice.
            if any(file.path == path for file in files):
                raise UsageError(f"{key}.file names {path} twice")
            with row_errors(f"{key}.format"):
                file = source_file(path, section.format, gzip=is_gzip)
            if section.prebatched and file.format != "tfrecord":
                raise UsageError(
                    f"{key}.prebatched is of TFRecord files; {path.name} is {file.format}"
                )
            files.append(file)
    return files


def read_corpus_file(
    file: SourceFile, key: str, section: CorpusSection, columns: Mapping[str, str]
) -> Iterator[Rows]:
    """Reads columns of one file of a corpus; one batch is in memory at a time.

    Args:
      file: The file.
      key: The key of the corpus in the recipe, such as `corpora.movies`.
      section: The section of the corpus.
      columns: The key of the recipe that names each column.

    Raises:
      UsageError: The file is missing, unreadable or damaged, or lacks a column.
      NotConvertible: A row or a record does not fit the others.
    """
    batched_by = section.id if section.prebatched else None
    with row_errors(key, columns, NotConvertible):
        yield from read_batches(file, list(columns), batched_by=batched_by)
