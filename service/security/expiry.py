"""When certificates expire, read from their DER encoding: Python's ssl reports it for authorities only."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END ", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17
_PIVOT = 50
"""Years of two digits are those from 1950 to 2049."""


def first_expiry(pem: bytes) -> float | None:
    """Returns when the first of a file's certificates expires, seconds since 1970; None: unknown.

    Args:
      pem: a file that OpenSSL accepted as certificates; other text may stand between them.
    """
    ends = [_not_after(base64.b64decode(block)) for block in _PEM.findall(pem)]
    return min((end for end in ends if end is not None), default=None)


def _not_after(der: bytes) -> float | None:
    """Source: RFC 5280 section 4.1, Certificate and Validity."""
    try:
        _, at, _ = _element(der, 0)
        _, at, _ = _element(der, at)  # the signed part
        tag, _, end = _element(der, at)
        at = end if tag == _VERSION else at
        for _ in range(3):  # serial number, algorithm, issuer
            at = _element(der, at)[2]
        at = _element(der, at)[1]  # validity
        at = _element(der, at)[2]  # not before
        tag, at, end = _element(der, at)
        text = der[at:end].decode("ascii")
        if tag == _UTC_TIME:
            text = ("20" if int(text[:2]) < _PIVOT else "19") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError):
        return None


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Returns the tag of the element at an offset, and where its content begins and ends."""
    tag, length, at = der[at], der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, at = int.from_bytes(der[at : at + size], "big"), at + size
    return tag, at, at + length
