"""The admin API of a running service, as the commands of `rowcast-serve ctl` reach it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlsplit

import orjson

from command_line.program import INVALID_ARGUMENT, CommandError
from service.exit_codes import EXIT_USAGE

if TYPE_CHECKING:
    import ssl

EXIT_UNREACHABLE = 3
EXIT_REJECTED = 4
UNREACHABLE = "UNREACHABLE"
"""The code of a service that does not respond, as of the client's errors."""
_USAGE_CODES = {"INVALID_ARGUMENT", "NOT_FOUND", "TOO_LARGE"}
"""Codes of rejections for which the user's arguments are at fault."""
_DEADLINE_S = 60.0
"""Time for a request and its whole response: a service under load may respond late."""
_RESPONSE_BYTES_MAX = 256 << 20
"""Maximum size of a response, such as a status with the deny lists of many models."""

_NOT_ADMIN = "name the port of the admin API (--admin-port of the service, 8090 by default)"

Document = dict[str, Any]
"""A JSON object that is sent or received."""


class CtlError(CommandError):
    """An error of a command, with its exit code."""

    def __init__(
        self,
        message: str,
        exit_code: int,
        code: str = INVALID_ARGUMENT,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, exit_code, code, details, "rowcast-serve ctl")

    @property
    def fields(self) -> list[str]:
        """The paths of the fields of the command that are at fault, as the service names them."""
        return [violation["field"] for violation in self.details.get("violations", ())]


def scope(model: str) -> str:
    """Returns the beginning of the paths of a model's commands."""
    return f"/v1/models/{quote(model, safe='')}/"


@dataclass(frozen=True)
class Admin:
    """The admin API of a service, and how to connect to it.

    Attributes:
      url: The URL that the user names; "": the service is found by its root.
      root: The root that the user names; None: the only service on this machine is meant.
      ports_file: The file with the ports of the service; None: it is found by its root.
      token_file: The file with the token; None: the environment has it, or there is none.
      ca: The file of certificate authorities; None: those of the system.
      cert: The file of the client certificate and its key; None: there is none.
      wait_s: How long a command waits until it is in effect.
      as_json: Whether documents are printed as JSON.
    """

    url: str
    root: Path | None
    ports_file: Path | None
    token_file: Path | None
    ca: Path | None
    cert: Path | None
    wait_s: float
    as_json: bool

    def print(self, document: Document, text_of: Callable[[Document], str]) -> None:
        """Prints a document as JSON, or as the text that a function makes of it."""
        if self.as_json:
            text_of = json_text
        sys.stdout.write(text_of(document))

    def request(self, path: str, body: Document | None = None) -> Document:
        """Requests a path or, with a body, sends a command. Does not follow redirects.

        Returns:
          The response; the status of the service after a command.

        Raises:
          CtlError: The service cannot be reached, or rejects the command.
        """
        # For a fast start.
        from http.client import BadStatusLine

        from service.http_client import ExchangeFailed, exchange

        url, token, tls = self._read_files()
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        request_body = None
        if body is not None:
            request_body = orjson.dumps(body)
        try:
            response = exchange(
                url.geturl().rstrip("/") + path,
                headers,
                bytes_max=_RESPONSE_BYTES_MAX,
                deadline_s=_DEADLINE_S,
                body=request_body,
                tls=tls,
            )
        except ExchangeFailed as problem:
            # The text may repeat bytes that are no HTTP, such as escape sequences of a terminal.
            reason = str(problem).encode("unicode_escape").decode()[:300]
            if isinstance(problem.__cause__, BadStatusLine):
                reason = f"its response is not HTTP/1; {_NOT_ADMIN}"
            raise CtlError(
                f"{url.geturl()} cannot be reached: {reason}", EXIT_UNREACHABLE, UNREACHABLE
            ) from None
        # Whatever listens at the address may respond with anything.
        try:
            document: Document = orjson.loads(response.content)
            # 202: accepted, and not in effect in every worker yet.
            if response.status in {200, 202}:
                return document
            error = document["error"]
            code = error.pop("code")
            message = error.pop("message")
        except (orjson.JSONDecodeError, KeyError, TypeError):
            reason = f"{url.geturl()} is not an admin API of rowcast: status {response.status}"
            raise CtlError(reason, EXIT_UNREACHABLE, "INVALID_RESPONSE") from None
        # The other endpoints have none of the paths of commands.
        if code == "NOT_FOUND" and message.startswith("path "):
            reason = f"{url.geturl()} is not an admin API of rowcast; {_NOT_ADMIN}"
            raise CtlError(reason, EXIT_UNREACHABLE, "INVALID_RESPONSE")
        exit_code = EXIT_REJECTED
        if code in _USAGE_CODES:
            exit_code = EXIT_USAGE
        raise CtlError(f"{code}: {message}", exit_code, code, error)

    @cached_property
    def _local_url(self) -> str:
        """The URL of the service on this machine that the user means.

        Raises:
          CtlError: No such service runs on this machine, or several run.
        """
        from service.workers.announcement import find_services

        # A root names a service better than a port, which anything could have.
        services = find_services()
        if self.root is not None:
            # Resolved now, also that of the service: a link may have been changed since its start.
            root = self.root.resolve()
            matching = [service for service in services if Path(service.root).resolve() == root]
            meant = f"a service of {root}"
        else:
            matching = services
            meant = "a service"
        listed = ", ".join(f"{service.root} (process {service.pid})" for service in services)
        if not matching:
            raise CtlError(
                f"{meant} does not run on this machine, as far as user {os.geteuid()} may see; "
                f"services run of: {listed or 'none'}. --admin names one on another machine",
                EXIT_UNREACHABLE,
                UNREACHABLE,
            )
        if len(matching) > 1:
            raise CtlError(
                f"several services run on this machine, of: {listed}; name one by --root, or by "
                "--admin where they have one root",
                EXIT_USAGE,
            )
        (service,) = matching
        # Named on stderr: the user sees which service gets the command, and pipes get the output.
        if not service.admin:
            raise CtlError(
                f"the service of {service.root} has no admin API (--no-admin)",
                EXIT_UNREACHABLE,
                UNREACHABLE,
            )
        sys.stderr.write(
            f"rowcast-serve ctl: process {service.pid} at {service.admin} serves {service.root}\n"
        )
        return service.admin

    def _read_files(self) -> tuple[SplitResult, str, ssl.SSLContext]:
        """Returns the URL, the token and the context of TLS.

        Raises:
          CtlError: A file cannot be read, or the URL is invalid; see also `_local_url`.
        """
        import ssl

        url = self.url
        # Not an option, which other users of the machine could read in the list of processes.
        token = os.environ.get("ROWCAST_CTL_TOKEN", "")
        # `file` is the one that is read now, for the message.
        file = self.ports_file
        try:
            if file is not None:
                port = orjson.loads(file.read_bytes())["admin"]
                scheme = "http"
                if self.ca is not None:
                    scheme = "https"
                url = f"{scheme}://127.0.0.1:{port}"
            file = self.token_file
            if file is not None:
                token = file.read_text(encoding="utf-8-sig").strip()
            file = self.ca
            tls = ssl.create_default_context(cafile=file)
            file = self.cert
            if file is not None:
                tls.load_cert_chain(file)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            reason = (
                getattr(problem, "reason", None)
                or getattr(problem, "strerror", None)
                or repr(problem)
            )
            raise CtlError(f"{file} cannot be used: {reason}", EXIT_USAGE) from None
        parts = urlsplit(url or self._local_url)
        if parts.scheme not in {"http", "https"}:
            raise CtlError(f"--admin is {url!r}; http://HOST:PORT was expected", EXIT_USAGE)
        return parts, token, tls


def json_text(document: Document) -> str:
    """Returns a document as `--json` prints it."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"
