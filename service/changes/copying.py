"""Copies the change log of a model from the service that takes the changes."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol
from urllib.parse import quote, urlencode, urlsplit

from bundle.errors import BundleError
from bundle.format.log_position import LogPosition
from bundle.storage.frames import RECORD_BYTES_MAX, Record, read_framed
from service.config import ServiceSettings, SettingsError
from service.errors import ServiceError
from service.http_client import exchange
from service.observability.logging import logger

log = logger(__name__)

RECORDS = "/changes/records"
"""The path of the records of a change log, below that of the model."""
SEQUENCE_HEADER = "rowcast-change-sequence"
"""The header of a response with records: the sequence of the last change that the service has."""
_DEADLINE_S = 60.0
"""Time for a request and its whole response, of which the largest is a record of 64 MiB."""
_RECORDS_BYTES_MAX = RECORD_BYTES_MAX + (2 << 20)
"""Maximum size of a response with records: one of the largest size, or several smaller ones, behind
the first one of a log.
"""
_POLL_S = 0.1
"""Time between two requests while nothing changes: a copy is behind by that much."""
_OK = 200
_TOO_MANY = 429
_RETRY_S = 0.5
"""Time between a failed request and the next one."""
_SILENCE_S = 10.0
"""Time without an accepted request after which a copy may be more than a moment behind."""
_SHOWN_MAX = 300
"""Maximum number of characters of a response that a problem quotes."""


class Copied(NamedTuple):
    """A response of the service that takes the changes.

    Attributes:
      records: The next records behind those of the copy.
      sequence: The sequence of the last change that the service has.
    """

    records: list[Record]
    sequence: int


class CopyFailed(Exception):
    """The log cannot be copied now; the message says why."""


class Busy(Exception):
    """The service that takes the changes has too many requests now."""


class LogCopy(Protocol):
    """The log of a model, which is a copy."""

    def end(self) -> LogPosition | None:
        """Returns the last record; None: there are none."""

    def copy(self, records: list[Record]) -> int:
        """Appends records and applies them; returns the sequence of the last one."""


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

    def fetch(self, model: str, position: LogPosition | None) -> Copied:
        """Returns the records behind the last one of a copy.

        Args:
          model: The name of the model.
          position: The last record of the copy; None: it has none. The logs of two writers are
            never mixed.

        Raises:
          Busy: The service has too many requests now.
          CopyFailed: The service cannot be reached, or rejects the request.
        """
        facts = {"log": "", "sequence": 0, "checksum": 0}
        if position is not None:
            facts = position.model_dump()
        query = urlencode(facts)
        path = f"/v1/models/{quote(model, safe='')}{RECORDS}"
        headers = {}
        try:
            # Read for each request: the file may be replaced while the service runs.
            if self._token is not None:
                token = self._token.read_text(encoding="utf-8-sig").strip()
                headers["authorization"] = f"Bearer {token}"
            response = exchange(
                f"{self.url}{path}?{query}",
                headers,
                bytes_max=_RECORDS_BYTES_MAX,
                deadline_s=_DEADLINE_S,
                tls=self._tls,
            )
        # ValueError: the file of the token is no text.
        except (OSError, ValueError) as problem:
            raise CopyFailed(f"{self.url}: {problem}") from problem

        if response.status == _TOO_MANY:
            raise Busy
        if response.status != _OK:
            body_text = response.content[:_SHOWN_MAX].decode(errors="replace")
            raise CopyFailed(f"{self.url} responds {response.status}: {body_text}")
        try:
            last = int(response.headers[SEQUENCE_HEADER])
            return Copied(read_framed(response.content), last)
        except (TypeError, ValueError, BundleError) as problem:
            raise CopyFailed(f"{self.url}: {problem}") from problem


class LogCopier:
    """Copies the log of one model, in a thread.

    Attributes:
      lag: How many sequences the copy was behind after the last request.
      has_caught_up: Whether the copy had all changes at some moment since the start.
    """

    def __init__(
        self,
        model: str,
        leader: Leader,
        copy: LogCopy,
        report: Callable[[], object],
    ) -> None:
        """Prepares; `start` begins.

        Args:
          model: The name of the model.
          leader: The service that takes the changes.
          copy: The log.
          report: Called when the copy has caught up for the first time.
        """
        self.lag = 0
        self.has_caught_up = False
        self._failure = ""
        self._accepted_s = time.monotonic()
        self._model = model
        self._leader = leader
        self._copy = copy
        self._report = report
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def problem(self) -> str:
        """Why the log cannot be copied now; "": it can."""
        if self._failure:
            return self._failure
        if time.monotonic() - self._accepted_s < _SILENCE_S:
            return ""
        return (
            f"{self._leader.url} has accepted no request for {_SILENCE_S:g} s: it has too many, "
            "or does not respond"
        )

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
                self._accepted_s = time.monotonic()
                if not has_more:
                    self._stopping.wait(_POLL_S)
            except Busy:
                # No failure: the other service protects itself, as a rule for a moment.
                self._stopping.wait(_POLL_S)
            except (CopyFailed, BundleError, ServiceError, OSError) as problem:
                self._failure = str(problem)
                self._stopping.wait(_RETRY_S)
            except Exception as problem:
                self._failure = str(problem)
                log.exception("changes_failed")
                self._stopping.wait(_RETRY_S)

    def _step(self) -> bool:
        """Copies new records; returns whether there were any."""
        position = self._copy.end()
        copied = self._leader.fetch(self._model, position)
        last = 0
        if position is not None:
            last = position.sequence
        self.lag = max(0, copied.sequence - last)
        sequence = self._copy.copy(copied.records)
        self.lag = max(0, copied.sequence - sequence)
        if not self.lag and not self.has_caught_up:
            self.has_caught_up = True
            self._report()
        return bool(copied.records)
