"""Tokens of callers: a file of names and tokens, and the one comparison of what was sent with it.

# name  token (or sha256: and its digest in hex)  models, with commas between; left out: every one; -: none
ranker    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
ads       4mBq1Zk9cV2xW7yT8uE3rA5s                                                  ads,ads_next
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path

from service.errors import Unauthenticated
from service.security.callers import Caller
from service.security.followed_files import FollowedFiles, read_bounded

TOKEN_CHARS_MIN = 16
"""Of a token in plain: what is shorter is guessed."""
TOKEN_CHARS_MAX = 512

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})", re.ASCII)
_SCHEME = b"bearer "


class Tokens:
    """The tokens of a file, which is followed. Threads may share one."""

    def __init__(self, file: Path) -> None:
        """Reads the file.

        Raises:
          OSError: it cannot be read.
          ValueError: a line is no name and token; names the line, never the token.
        """
        self._followed = FollowedFiles((file,), lambda: read_tokens(file), "tokens")

    def follow(self) -> None:
        """Reads the file again now."""
        self._followed.follow(even_unchanged=True)

    def caller(self, authorization: bytes | None) -> Caller:
        """Returns whose token was sent.

        What is compared are digests, found by their value: nobody can choose one close to another's, so how long
        the search takes tells nothing of any token; the last comparison takes equally long for all.

        Args:
          authorization: the header as sent, `Bearer <token>`.

        Raises:
          Unauthenticated: there is none, or none that is known.
        """
        if authorization is None:
            raise Unauthenticated("authorization is missing; `Bearer <token>` was expected")
        token = authorization[len(_SCHEME) :].strip()
        if authorization[: len(_SCHEME)].lower() != _SCHEME or not 0 < len(token) <= TOKEN_CHARS_MAX:
            raise Unauthenticated("authorization is of another form; `Bearer <token>` was expected")
        digest = hashlib.sha256(token).digest()
        found = self._followed.now().get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise Unauthenticated("the token of authorization is not known here")
        return found[1]


def read_tokens(file: Path) -> Mapping[bytes, tuple[bytes, Caller]]:
    """Returns the callers of a file by the sha256 of their tokens, beside that digest.

    Raises:
      OSError: it cannot be read.
      ValueError: a line is no name and token, or there is none; names the line, never the token.
    """
    callers: dict[bytes, tuple[bytes, Caller]] = {}
    try:
        lines = read_bounded(file).decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is no text in UTF-8") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"line {number} of {file}"
        if len(words) not in {2, 3} or not _NAME.fullmatch(words[0]):
            raise ValueError(f"{where} is no `name token` or `name token model,model`")
        digest = _digest_of(words[1], where)
        if digest in callers:
            raise ValueError(f"{where} has the token of {callers[digest][1].name!r} once more")
        models = None
        if len(words) == 3:
            models = frozenset() if words[2] == "-" else frozenset(filter(None, words[2].split(",")))
        callers[digest] = digest, Caller(words[0], models)
    if not callers:
        raise ValueError(f"{file} holds no token, so that nobody could call")
    return callers


def _digest_of(token: str, where: str) -> bytes:
    hashed = _DIGEST.fullmatch(token)
    if hashed:
        return bytes.fromhex(hashed[1])
    if token.startswith("sha256:"):
        raise ValueError(f"{where}: behind sha256: 64 hexadecimal digits were expected")
    if not _TOKEN.fullmatch(token) or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise ValueError(f"{where}: a token of {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} ASCII characters was expected")
    return hashlib.sha256(token.encode()).digest()
