"""Where the files of a bundle lie in an object store: docs/reference/format.md, In a store.

A store holds the files of a version as objects that are named by the SHA-256 of their content, and
`objects.json`, which says which object each file is. That file is what makes a version: it is
written last, and only if there is none.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import orjson
from pydantic import Field, ValidationError, model_validator

from bundle.errors import FormatError
from bundle.format import paths
from bundle.format.fields import Count, Name, Path, Positive, StrictModel

OBJECTS = "objects.json"
DIRECTORY = "objects"
OBJECTS_BYTES_MAX = 64 << 20
"""About 300,000 files."""


class StoredFile(StrictModel):
    """One file of a bundle in a store.

    Attributes:
      sha256: Of its content, in lower-case hexadecimal digits.
      bytes: Its size.
    """

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Count

    @property
    def path(self) -> str:
        """Where the object lies, relative to the directory of the version."""
        return f"{DIRECTORY}/{self.sha256}"


class ObjectMap(StrictModel):
    """The content of `objects.json`.

    Attributes:
      files: The bundle's files by their paths in a directory, the manifest among them.
    """

    format_version: Literal[1] = 1
    model: Name
    version: Positive
    files: dict[Path, StoredFile]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if paths.MANIFEST not in self.files:
            raise ValueError(f"files name no {paths.MANIFEST}")
        return self

    def dump(self) -> bytes:
        """Returns the content of the file, the same for equal maps."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        return orjson.dumps(self.model_dump(mode="json"), option=options) + b"\n"


def parse(data: bytes) -> ObjectMap:
    """Reads the content of an `objects.json`.

    Raises:
      FormatError: It breaks a rule of the format; names the field.
    """
    try:
        return ObjectMap.model_validate(orjson.loads(data))
    except orjson.JSONDecodeError as problem:
        raise FormatError(f"{OBJECTS} is no JSON: {problem}") from problem
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or OBJECTS
        raise FormatError(f"{OBJECTS}: {where}: {first['msg']}") from problem
