"""Writes a bundle's vocabularies from files with one key per line, or from the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.format import paths
from bundle.shown_values import similar_file
from bundle.storage.regular_files import read_regular
from bundle.tables import vocabularies
from export.errors import UsageError


def read_keys(path: Path, dtype: Literal["int64", "string"]) -> NDArray[Any]:
    """Reads the keys of a UTF-8 vocabulary file, one per line.

    Returns:
      [size] int64, or [size] object holding str.

    Raises:
      UsageError: The file is missing or empty, or a line is not a key; the error names the line.
    """
    try:
        # Only "\n" ends a line: str.splitlines also splits at characters that a key may contain.
        lines = read_regular(path).decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"vocabulary file {path} cannot be read: {problem}{similar_file(path)}"
        ) from problem
    if lines == [""]:
        raise UsageError(f"vocabulary file {path} is empty; one key per line was expected")
    # int() ignores a carriage return at the end of a line, but a text would contain it.
    if dtype == "string":
        return np.array([line.removesuffix("\r") for line in lines], object)
    keys = np.empty(len(lines), np.int64)
    for number, line in enumerate(lines, 1):
        try:
            keys[number - 1] = int(line)
        except (ValueError, OverflowError) as problem:
            raise UsageError(
                f"vocabulary file {path}, line {number}: {line!r} is not an int64"
            ) from problem
    return keys


def write_vocabulary(base: Path, name: str, source: Path, dtype: Literal["int64", "string"]) -> int:
    """Writes a vocabulary from a file of the training program.

    Args:
      base: The directory of the bundle that is being written.
      name: The name of the vocabulary.
      source: The file.
      dtype: The type of its keys.

    Returns:
      The number of keys.

    Raises:
      UsageError: The file cannot be read, a line is not a key, or a key occurs twice.
    """
    return _write(base, name, read_keys(source, dtype), f"vocabulary file {source}")


def write_model_vocabulary(base: Path, name: str, keys: Sequence[int] | Sequence[str]) -> int:
    """Writes a vocabulary of the model; returns the number of keys.

    Raises:
      UsageError: A key occurs twice.
    """
    return _write(base, name, as_array(keys), f"vocabulary {name!r} of the model")


def as_array(keys: Sequence[int] | Sequence[str]) -> NDArray[Any]:
    """Returns keys as an array, in the form of `read_keys`."""
    dtype: type = np.int64
    if any(isinstance(key, str) for key in keys):
        dtype = object
    return np.array(keys, dtype)


def _write(base: Path, name: str, keys: NDArray[Any], subject: str) -> int:
    destination = base / paths.vocabulary(name)
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        vocabularies.write_vocabulary(destination, keys)
    except FormatError as problem:
        raise UsageError(f"{subject}: {problem}") from problem
    return len(keys)
