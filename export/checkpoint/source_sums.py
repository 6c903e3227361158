"""What a task read of a variable's storage, which shows whether it still holds the same."""

from __future__ import annotations

from pydantic import NonNegativeInt

from bundle.format.fields import Crc32c, StrictModel


class SourceSum(StrictModel):
    """What was read of one slice, or of the chunks of an array.

    Attributes:
      file: Base name of the data file; of an array its name.
      slice_offset: First byte of the slice in the file; of an array the first row that was read.
      bytes: Number of bytes that were read.
      crc32c: What those bytes add to the crc32c of the slice; of an array their crc32c, as they
        are stored. In an object store, the generation that the store reports of a chunk stands for
        its bytes, so that a resumed run reads no values again.
    """

    file: str
    slice_offset: NonNegativeInt
    bytes: NonNegativeInt
    crc32c: Crc32c
