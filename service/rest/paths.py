"""Which of the five calls a URL asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import unquote

import httptools

from service.engine.requests import Target
from service.errors import NotFound
from service.rest import schemas
from service.wire.operations import OPERATIONS, Operation

_HOT_PATH = re.compile(r"/v1/models/([^/:]*)(?:/versions/([^/:]*)|/labels/([^/:]*))?:([^/:]*)")
_KEPT_BYTES_MAX = 256
_KEPT_MAX = 1024


@dataclass(frozen=True)
class Asked:
    """A call as its URL tells it; its name may be of no call."""

    model: str
    version: str | None
    label: str | None
    name: str

    @property
    def counted_as(self) -> str:
        """One of `metrics.CALLS`."""
        return self.name if self.name in OPERATIONS else "other"

    @cached_property
    def operation(self) -> Operation:
        """The call of that name.

        Raises:
          NotFound: there is none.
        """
        if self.name not in OPERATIONS:
            raise NotFound(f"call {self.name[:40]!r} is not there; calls are {', '.join(OPERATIONS)}")
        return OPERATIONS[self.name]

    @cached_property
    def target(self) -> Target:
        """The model, and the version or label, that is asked.

        Raises:
          InvalidArgument: a name is empty, or the version no positive integer.
        """
        return schemas.target_of(self.model, self.version, self.label)


def asked_of(url: bytes) -> Asked | None:
    """Returns the call that a URL asks for; None: none of the five, nor what looks like one.

    Raises:
      HttpParserError, UnicodeDecodeError: it is no URL.
    """
    return _kept(url) if len(url) <= _KEPT_BYTES_MAX else _asked_of(url)


def _asked_of(url: bytes) -> Asked | None:
    path = httptools.parse_url(url).path.decode("ascii")
    found = _HOT_PATH.fullmatch(unquote(path) if "%" in path else path)
    return None if found is None else Asked(*found.groups())


_kept = lru_cache(_KEPT_MAX)(_asked_of)
