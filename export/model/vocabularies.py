"""Vocabularies of the training program -> the bundle's: from files with one key a line, or from the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FormatError
from bundle.tables import vocabularies
from export.errors import UsageError


def read_keys(path: Path, dtype: Literal["int64", "string"]) -> NDArray[Any]:
    """Reads the keys of a vocabulary file, UTF-8, one a line.

    Returns:
      [size] int64, or [size] object holding str.

    Raises:
      UsageError: the file is missing or empty, or a line is no key; names the line.
    """
    try:
        # Only "\n" ends a line: str.splitlines also cuts at characters that a key may hold.
        lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"vocabulary file {path} cannot be read: {problem}") from problem
    if lines == [""]:
        raise UsageError(f"vocabulary file {path} is empty; one key a line was expected")
    if dtype == "string":
        return np.array([line.removesuffix("\r") for line in lines], object)
    keys = np.empty(len(lines), np.int64)
    for number, line in enumerate(lines, 1):
        try:
            keys[number - 1] = int(line)
        except (ValueError, OverflowError) as problem:
            raise UsageError(f"vocabulary file {path}, line {number}: {line!r} is no int64") from problem
    return keys


def write_vocabulary(source: Path, dtype: Literal["int64", "string"], destination: Path) -> int:
    """Writes a bundle's vocabulary from the training program's file.

    Returns:
      How many keys it holds.

    Raises:
      UsageError: the file cannot be read, a line is no key, or a key comes twice.
    """
    return _write(read_keys(source, dtype), destination, f"vocabulary file {source}")


def write_model_vocabulary(name: str, keys: Sequence[int] | Sequence[str], destination: Path) -> int:
    """Writes a vocabulary that the model itself holds; returns how many keys it has.

    Raises:
      UsageError: a key comes twice.
    """
    return _write(as_array(keys), destination, f"vocabulary {name!r} of the model")


def as_array(keys: Sequence[int] | Sequence[str]) -> NDArray[Any]:
    """Returns keys as `read_keys` does."""
    return np.array(keys, object if any(isinstance(key, str) for key in keys) else np.int64)


def _write(keys: NDArray[Any], destination: Path, what: str) -> int:
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        vocabularies.write_vocabulary(destination, keys)
    except FormatError as problem:
        raise UsageError(f"{what}: {problem}") from problem
    return len(keys)
