"""The finished steps of a version being written: a line for each, with a checksum; a torn tail
is cut off.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bundle.format.checksums import crc32c
from bundle.format.manifest import File
from bundle.storage import files


@dataclass(frozen=True)
class Finished:
    """The record of a finished step: a digest of all that decided its result, its payload as read
    from JSON, and its files.
    """

    key: str
    payload: Any
    files: tuple[File, ...]


def append(journal: Path, step: str, key: str, payload: Any, written: Sequence[File]) -> Finished:
    """Notes a step, safe from a loss of power.

    Args:
      journal: The file, which is created if it does not exist.
      step: The name of the step.
      key: A digest of all that decides its result.
      payload: What a later process needs of the result, as JSON can hold it.
      written: The files that the step has written.

    Returns:
      The record that a later `read` returns of it.

    Raises:
      OSError: The disk is full or broken; the journal is as it was.
    """
    content = {
        "step": step,
        "key": key,
        "payload": payload,
        "files": [file.model_dump() for file in written],
    }
    entry = orjson.dumps(content)
    line = b"%08x %s\n" % (crc32c(entry), entry)
    with journal.open("ab", buffering=0) as file:
        start = file.tell()
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(journal))
            os.fsync(file.fileno())
        except OSError:
            # Half a line would hide the entries that follow it.
            file.truncate(start)
            raise
    # The first line creates the file, whose name must survive, too.
    files.sync(journal.parent)
    return _parse(entry)[1]


def read(journal: Path) -> dict[str, Finished]:
    """Reads all steps that were noted, the last entry of each; cuts off what a crash left of a
    line.
    """
    steps: dict[str, Finished] = {}
    if not journal.exists():
        return steps
    intact_bytes = 0
    for line in journal.read_bytes().splitlines(keepends=True):
        checksum, _, entry = line.removesuffix(b"\n").partition(b" ")
        if not line.endswith(b"\n") or checksum != b"%08x" % crc32c(entry):
            break  # torn by a crash: nothing after it was ever acknowledged
        step, finished = _parse(entry)
        steps[step] = finished
        intact_bytes += len(line)
    os.truncate(journal, intact_bytes)
    return steps


def _parse(entry: bytes) -> tuple[str, Finished]:
    content = orjson.loads(entry)
    written = tuple(File.model_validate(file) for file in content["files"])
    return content["step"], Finished(content["key"], content["payload"], written)
