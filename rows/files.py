"""Where the files of a user lie, and in which format they are."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bundle.shown_values import similar_file
from rows.errors import FileRejected

Format = Literal["csv", "jsonl", "lines", "parquet", "tfrecord"]
"""Formats of files. tfrecord: records of `tf.train.Example`. lines: a text with a value in each
line, in a column without a name.
"""
_SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}


@dataclass(frozen=True)
class SourceFile:
    """A file of rows."""

    path: Path
    format: Format
    gzip: bool = False


def matching_files(folder: Path, named: str) -> list[Path]:
    """Returns the files that a path names: one file, those of a directory, or those that match a
    pattern, in the order of their names.

    Args:
      folder: The folder that the path is relative to.
      named: The path.

    Raises:
      FileRejected: There is none.
    """
    path = folder / named
    # Before patterns: the name of a file may have characters that a pattern has.
    if path.is_file():
        return [path]
    if path.is_dir():
        # Names such as _SUCCESS and .crc belong to the program that wrote the others.
        matches = [file for file in path.iterdir() if file.name[0] not in "._"]
    else:
        matches = [folder / match for match in glob.glob(named, root_dir=folder, recursive=True)]
    files = sorted(match for match in matches if match.is_file())
    if not files:
        raise FileRejected(
            f"{path} does not exist{similar_file(path)}, or is a directory or pattern without files"
        )
    return files


def is_gzip(path: Path) -> bool:
    """Returns whether the name of a file says that it is compressed with GZIP."""
    return path.suffix.lower() == ".gz"


def source_file(
    path: Path,
    stated: Format | None = None,
    *,
    gzip: bool | None = None,
    otherwise: Format | None = None,
) -> SourceFile:
    """Returns a file with its format and compression.

    Args:
      path: The path of the file.
      stated: Its format; None: by its name, such as `a.csv` or `a.csv.gz`.
      gzip: Whether it is compressed with GZIP; None: by its name.
      otherwise: The format of a file whose name does not say it; None: there is none.

    Raises:
      FileRejected: The format is unknown, or Parquet and compressed.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if is_gzip(path):
        suffixes.pop()
    kind = stated or _SUFFIXES.get("".join(suffixes[-1:]), otherwise)
    if kind is None:
        raise FileRejected(
            f"{path.name} is no .csv, .jsonl, .parquet or .tfrecord file; state its format"
        )
    if gzip is None:
        gzip = is_gzip(path)
    if gzip and kind == "parquet":
        raise FileRejected(f"{path.name} is Parquet, which compresses by itself")
    return SourceFile(path, kind, gzip)
