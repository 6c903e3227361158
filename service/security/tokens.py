"""Tokens of clients: a file of names and tokens, and the comparison with what a request carries.

# name  token (or sha256: and its digest in hex)  models, by commas; left out: all; -: none
ranker    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
ads       4mBq1Zk9cV2xW7yT8uE3rA5s                                                  ads,ads_next
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from service.config import SettingsError
from service.errors import Unauthenticated
from service.security.principal import Principal
from service.security.watched_files import WatchedFiles

TOKEN_CHARS_MIN = 16
"""A shorter token could be guessed."""
TOKEN_CHARS_MAX = 512

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})", re.ASCII)
_SCHEME = "bearer "


class TokenStore:
    """The tokens of a file, reloaded when it changes. Thread safe."""

    def __init__(self, file: Path) -> None:
        """Reads the file.

        Raises:
          OSError: it cannot be read.
          ValueError: a line is no name and token; the message names the line, never the token.
        """
        self._principals = WatchedFiles((file,), lambda: _read_tokens(file), "tokens")

    @classmethod
    def of(cls, file: Path | None, option: str = "tokens") -> TokenStore | None:
        """Returns the tokens of the file that a setting names; None: it names none.

        Raises:
          SettingsError: the file cannot be used.
        """
        try:
            return None if file is None else cls(file)
        except (OSError, ValueError) as problem:
            name = option.replace("_", "-")
            raise SettingsError(f"--{name} (or ROWCAST_{option.upper()}): {problem}") from problem

    def authenticate(self, authorization: str | None) -> Principal:
        """Returns the principal of the token that a request carries.

        Digests are looked up, never tokens: nobody can choose a digest close to another one, so the
        time of the search reveals nothing.

        Args:
          authorization: the header's value, `Bearer <token>`.
        Raises:
          Unauthenticated: it is missing or malformed, or the token is unknown.
        """
        if authorization is None:
            raise Unauthenticated("authorization is missing; expected `Bearer <token>`")
        token = authorization[len(_SCHEME) :].strip()
        if (
            authorization[: len(_SCHEME)].lower() != _SCHEME
            or not 0 < len(token) <= TOKEN_CHARS_MAX
        ):
            raise Unauthenticated("authorization is malformed; expected `Bearer <token>`")
        principal = self._principals.value().get(
            hashlib.sha256(token.encode(errors="replace")).digest()
        )
        if principal is None:
            raise Unauthenticated("the token of authorization is unknown")
        return principal


def _read_tokens(file: Path) -> Mapping[bytes, Principal]:
    """Returns the principals of a file by the sha256 of their tokens.

    Raises:
      OSError: it cannot be read.
      ValueError: a line is no name and token, or there is none; the message names the line, never
        the token.
    """
    principals: dict[bytes, Principal] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"line {number} of {file}"
        if len(words) not in {2, 3} or not _NAME.fullmatch(words[0]):
            raise ValueError(f"{where} is not `name token` or `name token model,model`")
        digest = _digest(words[1], where)
        if digest in principals:
            raise ValueError(f"{where} repeats the token of {principals[digest].name!r}")
        models = None
        if len(words) == 3:
            models = (
                frozenset() if words[2] == "-" else frozenset(filter(None, words[2].split(",")))
            )
        principals[digest] = Principal(words[0], models)
    if not principals:
        raise ValueError(f"{file} holds no token, so that every request would be rejected")
    return principals


def _digest(token: str, where: str) -> bytes:
    hashed = _DIGEST.fullmatch(token)
    if hashed:
        return bytes.fromhex(hashed[1])
    if token.startswith("sha256:"):
        raise ValueError(f"{where}: expected 64 hexadecimal digits after sha256:")
    if not _TOKEN.fullmatch(token) or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise ValueError(
            f"{where}: expected a token of {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} ASCII characters"
        )
    return hashlib.sha256(token.encode()).digest()
