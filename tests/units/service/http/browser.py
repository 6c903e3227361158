"""A headless browser, driven by the Chrome DevTools Protocol over a pair of pipes."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.process import until

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""The browser that is installed; None: there is none."""
_COMMANDS = 3
_MESSAGES = 4
"""The descriptors on which the browser reads commands, and writes responses and events."""
_PIPE_FD_MIN = 10


class Page:
    """An open page.

    Attributes:
      problems: What the page reported since it was opened: exceptions of its script, and what the
        browser blocked.
    """

    def __init__(self, commands: int, messages: int) -> None:
        self._commands = commands
        self._messages = messages
        self._unread = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = session
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Sends a command; returns its result."""
        number = next(self._numbers)
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def open(self, url: str) -> None:
        self.problems.clear()
        self.send("Page.navigate", url=url)

    def resize(self, width: int, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript."""
        result = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Waits until an expression of JavaScript is true."""
        until(lambda: bool(self.evaluate(f"Boolean({condition})")))

    def text(self, selector: str) -> str:
        """Returns the text that a person sees in an element."""
        content: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return content

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, label: str, text: str) -> None:
        """Replaces the text of the field whose label begins with some words."""
        self.evaluate(
            f"""(() => {{
              const labels = [...document.querySelectorAll("label")];
              const {{ control }} = labels.find((label) =>
                label.firstChild.textContent === {json.dumps(label)});
              control.focus();
              control.select();
            }})()"""
        )
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Presses a key where the focus is."""
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39}[key]
        typed = {"Enter": "\r"}.get(key, "")
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=typed, **pressed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def _read(self) -> Any:
        while b"\0" not in self._unread:
            received = os.read(self._messages, 1 << 20)
            assert received, "the browser ended"
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        value = json.loads(message)
        details = value.get("params", {})
        if value.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(details["exceptionDetails"]))
        # Failed requests are those that a test causes.
        if value.get("method") == "Log.entryAdded" and details["entry"]["source"] != "network":
            self.problems.append(details["entry"]["text"])
        return value


@contextmanager
def open_browser(directory: Path) -> Iterator[Page]:
    """Starts the browser with a profile of its own in a directory, and ends it."""
    assert PROGRAM is not None
    commands_read, commands = os.pipe()
    messages, messages_write = os.pipe()
    # Apart from the descriptors that they become.
    theirs = [
        fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _PIPE_FD_MIN)
        for end in (commands_read, messages_write)
    ]
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    arguments += ["--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={directory}"]
    process = os.posix_spawn(
        PROGRAM,
        [PROGRAM, *arguments],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, theirs[0], _COMMANDS),
            (os.POSIX_SPAWN_DUP2, theirs[1], _MESSAGES),
        ],
    )
    for end in (commands_read, messages_write, *theirs):
        os.close(end)
    try:
        yield Page(commands, messages)
    finally:
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
        os.close(commands)
        os.close(messages)
