"""The number of a shard, as users write it."""

from __future__ import annotations

import re
from typing import NamedTuple

_SHARD_NUMBER = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", re.ASCII)


class ShardNumber(NamedTuple):
    """Shard `number` of `total`, from 1."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    @classmethod
    def parse(cls, text: str) -> ShardNumber:
        """Reads the text that `str` returns.

        Raises:
          ValueError: The text is no such number.
        """
        match = _SHARD_NUMBER.fullmatch(text)
        if match is not None:
            number = int(match[1])
            total = int(match[2])
            if number <= total:
                return cls(number, total)
        raise ValueError(
            f"{text!r} is no shard; a number and how many there are, such as 1/4, were expected"
        )
