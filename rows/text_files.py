"""Text files of users, opened as bytes."""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rows.errors import FileRejected

_GZIP = b"\x1f\x8b"
_WIDE_MARKS = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE


@contextmanager
def opened_text(path: Path, *, compressed: bool) -> Iterator[Any]:
    """Opens a file of UTF-8 behind its byte order mark, if it has one.

    Args:
      path: The file.
      compressed: Whether it is compressed with GZIP.

    Raises:
      FileRejected: It is compressed after all, or in another encoding.
      OSError: It cannot be read.
    """
    open_file: Any = open
    if compressed:
        open_file = gzip.open
    with open_file(path, "rb") as stream:
        skip_mark(stream, path.name)
        yield stream


def skip_mark(stream: Any, name: str) -> None:
    """Reads the byte order mark at the beginning of a buffered stream, if it has one.

    Args:
      stream: The stream, of bytes.
      name: The name of the stream, for errors.

    Raises:
      FileRejected: The stream is compressed, or in another encoding than UTF-8.
    """
    beginning = stream.peek(len(codecs.BOM_UTF8))
    if beginning.startswith(_GZIP):
        raise FileRejected(f"{name} is compressed with GZIP; give it a name that ends in .gz")
    if beginning.startswith(_WIDE_MARKS) or beginning[1:2] == b"\0":
        raise FileRejected(
            f"{name} is not UTF-8; convert it, such as by iconv --from-code UTF-16 --to-code UTF-8"
        )
    if beginning.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
