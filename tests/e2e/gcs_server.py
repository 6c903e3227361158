"""gcp-storage-emulator, a server of Google Cloud Storage, in a process of its own."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("gcp-storage-emulator")


class GcsServer:
    """A running server.

    Attributes:
      port: Its port.
      log: Its lines, all of them once it has stopped; a request is
        `"POST /upload/...?name=... HTTP/1.1" 200`.
    """

    def __init__(self, port: int, lines: Sequence[str]) -> None:
        self.port = port
        self.log = lines

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a program finds the server."""
        return {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}",
            "FSSPEC_GCS_TOKEN": "anon",
            # gcsfs calls a second service, over gRPC, for the kind of the bucket.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def uploads(self) -> list[str]:
        """Returns the queries of the requests that wrote objects."""
        actual = (re.search(r'"POST /upload/\S*\?(\S*) HTTP', line) for line in self.log)
        return [match[1] for match in actual if match is not None]


@contextlib.contextmanager
def gcs_server(bucket: str) -> Iterator[GcsServer]:
    """Runs the server, with an empty bucket, inside the `with` block."""
    with contextlib.ExitStack() as stopped_at_end:
        server = None
        while server is None:
            server = _started(bucket, stopped_at_end)
        yield server


def _started(bucket: str, stopped_at_end: contextlib.ExitStack) -> GcsServer | None:
    """Starts the server on a free port; returns nothing if another program took the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [PROGRAM, "start", f"--port={port}", "--in-memory", f"--default-bucket={bucket}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    stopped_at_end.callback(server.wait)
    stopped_at_end.callback(server.kill)
    assert server.stdout is not None
    lines: list[str] = []
    for line in server.stdout:
        lines.append(line)
        if "All services started" in line:
            break
        if "Address already in use" in line:
            return None
    else:
        raise AssertionError(lines)
    collecting = threading.Thread(target=lines.extend, args=[server.stdout], daemon=True)
    collecting.start()
    stopped_at_end.callback(server.stdout.close)
    stopped_at_end.callback(collecting.join)
    stopped_at_end.callback(server.kill)
    return GcsServer(port, lines)
