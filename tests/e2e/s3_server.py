"""moto's S3 server in a process of its own, and a client to fill it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3

PROGRAMS = Path(sys.executable).parent
SECRET = "the-secret-of-this-test"


def environment(url: str) -> dict[str, str]:
    """Returns the variables by which a program finds the server."""
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "FSSPEC_S3_ENDPOINT_URL": url,
    }


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Runs the server inside the `with` block; yields its port."""
    server = subprocess.Popen(
        [PROGRAMS / "moto_server", "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    port = next(
        int(actual[1])
        for line in server.stderr
        if (actual := re.search(r"http://127\.0\.0\.1:(\d+)", line))
    )
    draining = threading.Thread(target=server.stderr.read, daemon=True)
    draining.start()
    try:
        yield port
    finally:
        server.kill()
        server.wait()
        draining.join()
        server.stderr.close()


@contextlib.contextmanager
def s3_client(port: int) -> Iterator[Any]:
    """Yields a client of the server."""
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="testing",
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    yield client
    client.close()
