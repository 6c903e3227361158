"""Tokens of clients: a file of names and tokens, and the comparison with a request's token.

# name  token (or sha256: and its digest in hex)  models, by commas; left out: all; -: none
ranker    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
ads       4mBq1Zk9cV2xW7yT8uE3rA5s                                                  ads,ads_next
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from bundle.format import paths
from service.config import SettingsError
from service.errors import Unauthenticated
from service.observability.logging import fields, logger
from service.security.principal import Principal
from service.security.watched_files import WatchedFiles

TOKEN_CHARS_MIN = 16
"""A shorter token could be guessed."""
TOKEN_CHARS_MAX = 512
"""Longer tokens are rejected before they are hashed."""

_LOG = logger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_TOKEN = re.compile(r"[\x21-\x7e]+", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})", re.ASCII)
_SCHEME = "bearer "


class TokenStore:
    """The tokens of a file, reloaded when it changes. Thread safe."""

    def __init__(self, file: Path, root: Path | None = None) -> None:
        """Reads the file.

        Args:
          file: The file.
          root: The directory of the models; a name of a model that is not there is logged. None:
            none is.

        Raises:
          OSError: The file cannot be read.
          ValueError: A line is no name and token; the message names the line, never the token.
        """

        def read() -> Mapping[bytes, Principal]:
            principals = _read_tokens(file)
            if root is not None:
                _warn_of_unknown_models(file, principals, root)
            return principals

        self._principals = WatchedFiles((file,), read, "tokens")

    @classmethod
    def of(
        cls, file: Path | None, option: str = "tokens", root: Path | None = None
    ) -> TokenStore | None:
        """Returns the tokens of the file that a setting names; None: it names none.

        Args:
          file: The value of the setting.
          option: The name of the setting.
          root: See `TokenStore`.

        Raises:
          SettingsError: The file cannot be used.
        """
        if file is None:
            return None
        try:
            return cls(file, root)
        except (OSError, ValueError) as problem:
            name = option.replace("_", "-")
            raise SettingsError(f"--{name} (or ROWCAST_{option.upper()}): {problem}") from problem

    def authenticate(self, authorization: str | None) -> Principal:
        """Returns the principal of the token that a request carries.

        Digests are looked up, never tokens: nobody can choose a digest close to another one, so the
        time of the search reveals nothing.

        Args:
          authorization: The value of the header, `Bearer <token>`.

        Raises:
          Unauthenticated: The header is missing or malformed, or the token is unknown.
        """
        if authorization is None:
            raise Unauthenticated("authorization is missing; expected `Bearer <token>`")
        scheme = authorization[: len(_SCHEME)].lower()
        token = authorization[len(_SCHEME) :].strip()
        if scheme != _SCHEME or not 0 < len(token) <= TOKEN_CHARS_MAX:
            raise Unauthenticated("authorization is malformed; expected `Bearer <token>`")
        # A header may hold characters that UTF-8 cannot encode; no valid token does.
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        principal = self._principals.value().get(digest)
        if principal is None:
            raise Unauthenticated("the token of authorization is unknown")
        return principal


def _read_tokens(file: Path) -> Mapping[bytes, Principal]:
    """Returns the principals of a file by the sha256 of their tokens.

    Raises:
      OSError: The file cannot be read.
      ValueError: A line is no name and token, or there is no line. The message names the line,
        never the token.
    """
    principals: dict[bytes, Principal] = {}
    try:
        # Editors on Windows begin a file with a byte order mark.
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        line_name = f"line {number} of {file}"
        if len(words) not in {2, 3} or not _NAME.fullmatch(words[0]):
            raise ValueError(f"{line_name} is not `name token` or `name token model,model`")
        digest = _digest(words[1], line_name)
        # Two names for one token: the log and the permissions would depend on the order of lines.
        if digest in principals:
            raise ValueError(f"{line_name} repeats the token of {principals[digest].name!r}")

        # Without a third word, the client may use every model.
        models = None
        if len(words) == 3:
            models = _models(words[2], line_name)
        principals[digest] = Principal(words[0], models)
    if not principals:
        raise ValueError(f"{file} holds no token, so that every request would be rejected")
    return principals


def _models(text: str, line_name: str) -> frozenset[str]:
    """Returns the names of models in a line."""
    if text == "-":
        return frozenset()
    models = frozenset(text.split(","))
    for model in sorted(models):
        # A pattern, or a model with a call, would permit nothing.
        if not paths.is_name(model):
            expected = "names of models, separated by commas, or - for none"
            raise ValueError(f"{line_name}: {model[:80]!r} is no name; expected {expected}")
    return models


def _warn_of_unknown_models(file: Path, principals: Mapping[bytes, Principal], root: Path) -> None:
    models = frozenset[str]().union(*[principal.models or () for principal in principals.values()])
    unknown = sorted(model for model in models if not (root / model).is_dir())
    if unknown:
        _LOG.warning("tokens_for_no_model", extra=fields(file=str(file), models=unknown))


def _digest(token: str, line_name: str) -> bytes:
    """Returns the sha256 of a token, which the file may state instead of the token."""
    match = _DIGEST.fullmatch(token)
    if match:
        return bytes.fromhex(match[1])
    # A mistyped digest would otherwise become a token that nobody knows.
    if token.startswith("sha256:"):
        raise ValueError(f"{line_name}: expected 64 hexadecimal digits after sha256:")
    if not _TOKEN.fullmatch(token) or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        expected = f"a token of {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} ASCII characters"
        raise ValueError(f"{line_name}: expected {expected}")
    return hashlib.sha256(token.encode()).digest()
