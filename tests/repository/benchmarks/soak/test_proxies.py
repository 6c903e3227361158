"""Services behind a proxy that is installed, while one of them leaves and returns."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.soak.proxies import PROXIES
from tests.repository.benchmarks.conftest import printed_by

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize("program", PROXIES)
def test_requests_behind_a_proxy_are_repeated_on_another_service(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    options = ("--proxy", program, "--hostile", "slow_headers")
    output = printed_by("benchmarks.soak.proxies", *options)
    assert output.startswith(f"behind {program}\n")
    for event in ("worker_leaves", "restarts"):
        for transport in ("http", "grpc"):
            assert f"{program}, {event}, {transport}: 0 of " in output
    for transport in ("http", "grpc"):
        assert f"{program}, slow_headers, {transport}: Report(opened=200, closed=200" in output
