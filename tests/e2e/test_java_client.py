"""Java's own HTTP client calls the service as it is, without any setting."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Standing
from tests.e2e.process import WAIT_S
from tests.e2e.services import BODY, RETRIEVE, assert_found, nearest

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parent / "java" / "RetrieveClient.java"
needs_jdk = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK 11 or later (Debian: default-jdk-headless)"
)


@needs_jdk
@pytest.mark.nightly
def test_default_client_of_java_gets_responses_to_its_bodies(standing: Standing) -> None:
    url = f"http://127.0.0.1:{standing.service.ports['http']}{RETRIEVE}"

    command = ["java", str(CLIENT), url, json.dumps(BODY)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)

    responses = [line.partition(" ") for line in done.stdout.splitlines()]
    assert [status for status, _, _ in responses] == ["200"] * 3
    for _, _, body in responses:
        assert_found(json.loads(body), nearest(standing.small))
