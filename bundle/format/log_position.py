"""How far a change log goes that a bundle contains, or of which there is a copy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bundle.format.fields import Count, Crc32c, StrictModel


class LogPosition(StrictModel):
    """Names a record of a change log, up to which something has its records."""

    log: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    """The identity of the log: a random number, which its copies have, too."""
    sequence: Count
    """The sequence of the record; 0: it is before all of them."""
    checksum: Crc32c
    """The crc32c of the payload of the record: a log that was restored from an older copy can have
    another record with the same sequence."""

    def __str__(self) -> str:
        return f"{self.sequence} of log {self.log}"
