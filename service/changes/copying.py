"""Copies the changes of a model from the service that takes them."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Protocol, Self
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import orjson
from pydantic import BaseModel, Field, ValidationError, model_validator

from bundle.changes.file import SEQUENCE_END
from bundle.changes.states import State
from bundle.errors import BundleError
from bundle.format.changes_position import ChangesPosition
from service.config import ServiceSettings, SettingsError
from service.errors import ServiceError
from service.http_client import exchange
from service.observability.logging import logger

log = logger(__name__)

STATES = "/changes/states"
"""The path of the states of a changes file, below that of the model."""
_DEADLINE_S = 60.0
"""Time for a request and its whole response."""
_RESPONSE_BYTES_MAX = 256 << 20
"""Maximum size of a response: states of 8 MiB together, or one of any size, as JSON in JSON."""
_POLL_S = 0.1
"""Time between two requests while nothing changes: a copy is behind by that much."""
_RETRY_S = 0.5
"""Time between a failed request and the next one."""
_SILENCE_S = 5.0
"""Time without an answered request after which a copy may be more than a moment behind."""
_INT64 = np.iinfo(np.int64)
_SHOWN_MAX = 300
"""Maximum number of characters of a response that a problem quotes."""


class Copied(BaseModel):
    """A response of the service that takes the changes.

    Attributes:
      sequence: The sequence of the last state that the service has.
      forgotten: The largest sequence that it has forgotten; 0: none.
      states: The next states behind those of the copy.
    """

    sequence: Annotated[int, Field(ge=0, lt=SEQUENCE_END)]
    forgotten: Annotated[int, Field(ge=0, lt=SEQUENCE_END)]
    states: list[State]

    @model_validator(mode="after")
    def _check(self) -> Self:
        sequences = [state.sequence for state in self.states]
        if sequences != sorted(set(sequences)) or not all(
            0 < sequence <= self.sequence for sequence in sequences
        ):
            raise ValueError(f"sequences up to {self.sequence} were expected, each above the last")
        for state in self.states:
            integers = [state.number or 0, state.version]
            if isinstance(state.id, int):
                integers.append(state.id)
            if not all(_INT64.min <= value <= _INT64.max for value in integers):
                raise ValueError(f"state {state.sequence} has an integer beyond 64 bits")
            # What SQLite stores and nothing can apply would fail for ever.
            try:
                orjson.loads(state.content or "null")
            except orjson.JSONDecodeError as problem:
                raise ValueError(
                    f"state {state.sequence} has a content that is no JSON"
                ) from problem
        return self


class CopyFailed(Exception):
    """The changes cannot be copied now; the message says why."""


class Busy(Exception):
    """The service that takes the changes has too many requests now."""


class FileCopy(Protocol):
    """The changes file of a model, which is a copy."""

    def position(self) -> ChangesPosition | None:
        """Returns the last state; None: there are none."""

    def copy(self, states: Sequence[State], forgotten: int) -> int:
        """Writes states and applies them; returns the sequence of the last one."""


class Leader:
    """The service that takes the changes, as a follower reaches it."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Checks the settings.

        Raises:
          SettingsError: The URL, or the file of authorities, cannot be used.
        """
        self.url = settings.follow_changes.rstrip("/")
        self._token = settings.follow_changes_token
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise SettingsError(
                f"--follow-changes is {self.url!r}; a URL such as http://writer:8080 was expected"
            )
        self._tls = None
        authorities = settings.follow_changes_ca
        if authorities is not None:
            try:
                self._tls = ssl.create_default_context(cafile=str(authorities))
            except (OSError, ssl.SSLError) as problem:
                raise SettingsError(f"--follow-changes-ca: {authorities}: {problem}") from problem

    def fetch(self, model: str, position: ChangesPosition | None) -> Copied:
        """Returns the states behind the last one of a copy.

        Args:
          model: The name of the model.
          position: The last state of the copy; None: it has none. The changes of two services are
            never mixed.

        Raises:
          Busy: The service has too many requests now.
          CopyFailed: The service cannot be reached, or rejects the request.
        """
        facts = {"mark": "", "sequence": 0}
        if position is not None:
            facts = position.model_dump()
        query = urlencode(facts)
        path = f"/v1/models/{quote(model, safe='')}{STATES}"
        headers = {}
        try:
            # Read for each request: the file may be replaced while the service runs.
            if self._token is not None:
                token = self._token.read_text(encoding="utf-8-sig").strip()
                headers["authorization"] = f"Bearer {token}"
            response = exchange(
                f"{self.url}{path}?{query}",
                headers,
                bytes_max=_RESPONSE_BYTES_MAX,
                deadline_s=_DEADLINE_S,
                tls=self._tls,
            )
        # ValueError: the file of the token is no text.
        except (OSError, ValueError) as problem:
            raise CopyFailed(f"{self.url}: {problem}") from problem

        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Busy
        if response.status != HTTPStatus.OK:
            body_text = response.content[:_SHOWN_MAX].decode(errors="replace")
            raise CopyFailed(f"{self.url} responds {response.status}: {body_text}")
        try:
            return Copied.model_validate_json(response.content)
        except ValidationError as problem:
            raise CopyFailed(f"{self.url} sends no states: {problem}") from problem


class Copier:
    """Copies the changes of one model, in a thread.

    Attributes:
      has_caught_up: Whether the copy had all changes at some moment since the start.
    """

    def __init__(
        self,
        model: str,
        leader: Leader,
        copy: FileCopy,
        report: Callable[[], object],
    ) -> None:
        """Prepares; `start` begins.

        Args:
          model: The name of the model.
          leader: The service that takes the changes.
          copy: The file.
          report: Called when the copy has caught up for the first time.
        """
        self.has_caught_up = False
        self._behind = 0
        """How many sequences the copy was behind after the last answered request."""
        self._failure = ""
        self._answered_s = time.monotonic()
        self._model = model
        self._leader = leader
        self._copy = copy
        self._report = report
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def problem(self) -> str:
        """Why the changes cannot be copied now; "": they can."""
        if self._failure:
            return self._failure
        if time.monotonic() - self._answered_s < _SILENCE_S:
            return ""
        return (
            f"{self._leader.url} has answered no request for {_SILENCE_S:g} s: it has too many, "
            "or does not respond"
        )

    @property
    def lag(self) -> int | None:
        """How many sequences the copy is behind; None: there is a problem, so nobody knows."""
        return None if self.problem else self._behind

    def start(self) -> None:
        """Begins to copy, unless it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="rowcast-copy-changes", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its request."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                has_more = self._step()
                self._failure = ""
                self._answered_s = time.monotonic()
                if not has_more:
                    self._stopping.wait(_POLL_S)
            except Busy:
                # No failure: the other service protects itself, as a rule for a moment.
                self._stopping.wait(_POLL_S)
            except (CopyFailed, BundleError, ServiceError, OSError) as problem:
                self._failure = str(problem)
                self._stopping.wait(_RETRY_S)
            except Exception as problem:
                # The same request fails again until the other service changes: once is enough.
                if str(problem) != self._failure:
                    log.exception("changes_failed")
                self._failure = str(problem)
                self._stopping.wait(_RETRY_S)

    def _step(self) -> bool:
        """Copies new states; returns whether there are more."""
        position = self._copy.position()
        copied = self._leader.fetch(self._model, position)
        last = position.sequence if position is not None else 0
        self._behind = max(0, copied.sequence - last)
        sequence = self._copy.copy(copied.states, copied.forgotten)
        self._behind = max(0, copied.sequence - sequence)
        if not self._behind and not self.has_caught_up:
            self.has_caught_up = True
            self._report()
        return self._behind > 0 and sequence > last
