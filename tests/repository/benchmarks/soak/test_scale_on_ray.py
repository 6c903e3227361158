"""Nodes of Ray that are lost, once."""

from __future__ import annotations

import re

import pytest

from tests.repository.benchmarks.conftest import printed_by

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
for needed in ("ray.serve", "aiohttp_cors"):  # the second comes with ray[serve] alone
    pytest.importorskip(needed)


def test_lost_replicas_and_a_lost_head_cause_no_wrong_response() -> None:
    options = ("--moments", "1", "--seed", "0", "--headless-s", "2")
    output = printed_by("benchmarks.soak.scale_on_ray", *options)
    assert re.search(r"^[1-9]\d* responses in 2 s without the head node$", output, re.MULTILINE)
    assert output.splitlines()[-1] == "passed"
