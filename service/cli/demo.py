"""`rowcast-serve --demo`: serves a copy of the quick start's bundle, and prints a request to it."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.config import SettingsError, read_settings

BUNDLES = Path(__file__).parents[2] / "examples" / "quickstart" / "bundles"
"""The package of a wheel has the folders of the tree."""
_OWN = ("root", "ports_file")
"""Settings that the demo chooses."""
_POLL_S = 0.05
"""Time between two looks at whether the service is ready."""
_TIMEOUT_S = 5
"""Time in which the service must respond that it is ready."""
_READY = """\

A small model recommends movies until you press Ctrl+C. In another terminal, request three of them:

curl -fsS localhost:{port}/v1/models/movielens:recommend -H 'content-type: application/json' \\
  -d '{{"k": 3, "context": {{"user_id": 7, "history": [1, 5, 12, 31], "hour": 20}},
       "exclude_ids": [1, 5, 12, 31], "attributes": ["title"]}}'
"""
_PAGE = """
http://localhost:{port}/ sends requests from the browser.
"""


def run_demo(options: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Serves until the service ends; returns its exit code.

    A service writes locks and changes into its root. So it gets a copy of the bundle, which this
    process removes once the service has ended.

    Args:
      options: The options by the name of their setting; None: the option is not set.
      arguments: The command line without `--demo`.

    Raises:
      SettingsError: An option names what the demo chooses.
    """
    for name in _OWN:
        if options[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{option} has no meaning for --demo; omit one of them")

    # The terminal sends it to the service, too, which drains.
    signal.signal(signal.SIGINT, lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="rowcast-demo-") as directory:
        root = Path(directory) / "bundles"
        ports = Path(directory) / "ports.json"
        shutil.copytree(BUNDLES, root)
        message = _READY
        if read_settings({**options, "root": root}).web_pages:
            message += _PAGE
        program = [sys.executable, "-P", "-m", f"{__package__}.main", *arguments]
        process = subprocess.Popen([*program, "--root", str(root), "--ports-file", str(ports)])
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while process.poll() is None:
            if _is_ready(ports):
                sys.stdout.write(message.format(port=json.loads(ports.read_text())["http"]))
                sys.stdout.flush()
                break
            time.sleep(_POLL_S)
        return process.wait()


def _is_ready(ports: Path) -> bool:
    """Returns whether a service that has written its ports responds that it is ready."""
    if not ports.exists():
        return False
    port = json.loads(ports.read_text())["http"]
    connection = http.client.HTTPConnection("localhost", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
