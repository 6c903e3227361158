"""Where the files of a bundle lie in an object store: docs/reference/format.md, In a store.

A store holds the content of files as objects that are named by the SHA-256 of their content, and
`objects.json`, which says which objects each file consists of. That file is what makes a version:
it is written last, and only if there is none.

The list of files that a signature covers has the same form: docs/reference/format.md, Signatures.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

import orjson
from pydantic import Field, ValidationError, model_validator

from bundle.arithmetic import ceil_div
from bundle.errors import FormatError
from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES
from bundle.format.fields import Count, Name, Path, Positive, StrictModel, read_json
from bundle.format.key_paths import key_path

OBJECTS = "objects.json"
FORMAT_VERSION = 1
POOL = ".objects"
"""The directory of a model that holds the objects of all its versions."""
OBJECT_BYTES = BLOCK_BYTES
"""The bytes of an object, which is a block of a file. Only the last block of a file is shorter."""
OBJECTS_BYTES_MAX = 512 << 20
OBJECTS_MAX = 7_500_000
"""The maximum number of objects of a version, 28 TiB: each needs 67 bytes in `objects.json`."""

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A SHA-256, in lower-case hexadecimal digits."""


class StoredBlock(NamedTuple):
    """A part of a file that is one object.

    Attributes:
      sha256: The SHA-256 of its content.
      offset: The position of its first byte in the file.
      bytes: Its size.
    """

    sha256: str
    offset: int
    bytes: int


class StoredFile(StrictModel):
    """One file of a bundle in a store.

    Attributes:
      bytes: The size in bytes.
      objects: The SHA-256 of each block of OBJECT_BYTES.
    """

    bytes: Count
    objects: tuple[Sha256, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = ceil_div(self.bytes, OBJECT_BYTES)
        if len(self.objects) != count:
            raise ValueError(f"{self.bytes} bytes are {count} objects, not {len(self.objects)}")
        return self

    @property
    def blocks(self) -> tuple[StoredBlock, ...]:
        """The objects, in the order of their bytes."""
        blocks = []
        for number, sha256 in enumerate(self.objects):
            offset = number * OBJECT_BYTES
            # The last block is the only shorter one.
            size = min(OBJECT_BYTES, self.bytes - offset)
            blocks.append(StoredBlock(sha256, offset, size))
        return tuple(blocks)


class ObjectMap(StrictModel):
    """The content of `objects.json`, and of the list that a signature covers.

    Attributes:
      format_version: 1.
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
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS) + b"\n"


def pool_path(sha256: str) -> str:
    """Returns where an object that versions share lies, relative to the directory of the model.

    A directory has a 256th of the objects, so that each can be listed.
    """
    return f"{POOL}/{sha256[:2]}/{sha256}"


def parse(data: bytes, name: str = OBJECTS) -> ObjectMap:
    """Reads the content of an `objects.json`, or of a file of the same form.

    Args:
      data: The content.
      name: The name of the file, for messages.

    Raises:
      UnknownFormat: It has a format version that this reader does not know.
      FormatError: It breaks a rule of the format; names the field.
    """
    content = read_json(data, name, FORMAT_VERSION)
    try:
        return ObjectMap.model_validate(content)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = str(key_path(ObjectMap, first["loc"])) or name
        raise FormatError(f"{name}: {where}: {first['msg']}") from problem
