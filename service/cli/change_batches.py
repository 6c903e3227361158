"""Items of a file of JSON lines, in batches that the admin API takes as one request each."""

from __future__ import annotations

import io
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rows.errors import FileRejected
from rows.files import is_gzip
from rows.text_files import opened_text, skip_mark
from service.cli.admin_client import CtlError
from service.exit_codes import EXIT_USAGE

Item = dict[str, Any]

_BATCH_BYTES = 4 << 20
"""Size of the lines that are sent together, unless a single one is longer; the admin API takes
8 MiB.
"""


@dataclass
class ChangeBatch:
    """Items that are sent together: each id once, and all with the same fields.

    Attributes:
      items: The items.
      lines: The number of the line of each item, from 1.
    """

    items: list[Item] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _bytes: int = 0

    def add(self, item: Item, number: int, line: bytes) -> None:
        """Adds the item of a line."""
        self.items.append(item)
        self.lines.append(number)
        self._ids.add(str(item["id"]))
        self._bytes += len(line)

    def takes(self, item: Item, line: bytes) -> bool:
        """Returns whether the item of a line may be sent together with these items."""
        # A body has each id once, and the same fields in all items. Items of other fields, or a
        # later state of an id, begin a new batch.
        if not self.items:
            return True
        return (
            self._bytes + len(line) <= _BATCH_BYTES
            and str(item["id"]) not in self._ids
            and _fields(item) == _fields(self.items[0])
        )


def read_batches(file: Path, size_max: int, applied: int) -> Iterator[ChangeBatch]:
    """Yields the items of a file, in its order. Blank lines hold no item.

    Args:
      file: A file with one JSON object per line; -: standard input.
      size_max: The maximum number of items of a batch.
      applied: The number of the last line that was applied before: no batch has both items up
        to this line and items behind it.

    Raises:
      CtlError: The file cannot be read or holds no item, or a line holds no object with an id.
    """
    batch = ChangeBatch()
    is_empty = True
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        item = _parse(file, number, line)
        is_empty = False
        # The service repeats a batch as a whole: what it has applied must not be part of a new one.
        is_boundary = bool(batch.lines) and batch.lines[-1] <= applied < number
        if len(batch.items) == size_max or is_boundary or not batch.takes(item, line):
            yield batch
            batch = ChangeBatch()
        batch.add(item, number, line)
    if batch.items:
        yield batch
    # As the service rejects a change without items, which may be meant for what does not exist.
    if is_empty:
        raise CtlError(
            f"{file} has no items; a file with one JSON object per line was expected", EXIT_USAGE
        )


def read_lines(file: Path) -> Iterator[bytes]:
    """Yields the lines of the file of `--file`, which may be compressed; -: of standard input.

    Raises:
      CtlError: The file cannot be read.
    """
    try:
        if str(file) == "-":
            buffer: Any = sys.stdin.buffer
            stdin = io.BufferedReader(buffer)
            skip_mark(stdin, "standard input")
            yield from stdin
            return
        with opened_text(file, compressed=is_gzip(file)) as stream:
            yield from stream
    except FileRejected as problem:
        raise CtlError(f"--file {file}: {problem}", EXIT_USAGE) from None
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise CtlError(f"--file {file} cannot be read: {reason}", EXIT_USAGE) from None


def _parse(file: Path, number: int, line: bytes) -> Item:
    """Returns the item of a line.

    Raises:
      CtlError: The line is no JSON object with an id.
    """
    try:
        item = orjson.loads(line)
    except orjson.JSONDecodeError as problem:
        remedy = ""
        if re.search(rb"\b(NaN|Infinity)\b", line):
            remedy = "; JSON has no NaN and no infinity: leave the value out"
        raise CtlError(
            f"{file}:{number}: the line is no JSON: {problem}{remedy}", EXIT_USAGE
        ) from None
    if not isinstance(item, dict):
        beginning = line.strip().decode()[:80]
        raise CtlError(
            f"{file}:{number}: the line is {beginning}; a JSON object with an id was expected",
            EXIT_USAGE,
        )
    if "id" not in item:
        raise CtlError(f"{file}:{number}: the item has no id", EXIT_USAGE)
    return item


def _fields(item: Item) -> dict[str, frozenset[str]]:
    """Returns the names of an item's fields, and the names in each of them."""
    return {
        name: frozenset(value) if isinstance(value, dict) else frozenset()
        for name, value in item.items()
    }
