from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bench import ceilings
from tests.bench.load import Answers, Door, Load, ServiceLost
from tests.bench.peers.contenders import free_ports
from tests.bench.services import NotStarted, Program

ANSWER = 3000
LARGE = bytes(200_000)
"""More than HTTP/2's first window, and more than one frame."""


@pytest.fixture(scope="module", params=["http", "grpc"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    (port,) = free_ports(1)
    log = tmp_path_factory.mktemp("echo") / "log"
    program = ceilings.start(request.param, port, ANSWER, log)
    yield Door(port, "/", "text/plain") if request.param == "http" else Door(port, ceilings.METHOD)
    program.close()


@pytest.mark.parametrize("bodies", [[b"", b"small"], [LARGE]])
def test_load_closed_has_every_request_answered(door: Door, bodies: list[bytes]) -> None:
    load = Load(door, bodies)
    answers = load.closed(3, 0.1)
    assert answers.failed == 0
    assert answers.answered == len(answers.latency_s) >= 3
    assert answers.elapsed_s >= 0.1
    assert (answers.latency_s > 0).all()
    load.close()


def test_load_open_sends_at_the_rate_whatever_comes_back(door: Door) -> None:
    load = Load(door, [b"x"])
    answers = load.open(300, 0.5, seed=1)
    assert answers.failed == 0
    assert 100 < answers.answered < 220  # Poisson, 150 wanted
    assert 0.3 < answers.begun_s.max() < 0.5
    load.close()


@pytest.mark.parametrize("door", ["grpc"], indirect=True)
def test_load_counts_calls_that_are_refused(door: Door) -> None:
    load = Load(Door(door.port, "/Echo/Nothing"), [b"x"])
    answers = load.closed(2, 0.05)
    assert answers.answered == 0
    assert answers.failed == len(answers.status) > 0
    assert set(answers.status) == {0.0}
    assert np.isnan(answers.percentile_ms(50))
    load.close()


def test_load_counts_calls_whose_connection_is_lost(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    program = ceilings.start("http", port, ANSWER, tmp_path / "log")
    load = Load(Door(port, "no-path", "text/plain"), [b"x"])
    answers = load.closed(2, 0.05)
    assert answers.answered == 0
    assert set(answers.status) <= {400.0, -1.0}
    load.close()
    program.close()


def test_load_on_a_port_without_service_says_so() -> None:
    (port,) = free_ports(1)
    load = Load(Door(port, "/", "text/plain"), [b"x"])
    with pytest.raises(ServiceLost, match=f"port {port}: connect: Connection refused"):
        load.closed(1, 0.05)
    load.close()


def test_program_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match=r"false does not answer; see .*log"):
        Program(["false"], lambda: False, tmp_path / "log")


def test_program_paused_uses_no_more_of_the_processor(tmp_path: Path) -> None:
    program = Program(["sh", "-c", "while :; do :; done"], lambda: True, tmp_path / "log")
    while program.cpu_s() == 0:
        pass
    program.pause()
    before = program.cpu_s()
    for _ in range(100):
        assert program.memory_bytes() <= program.resident_bytes()
    assert program.cpu_s() - before <= 0.02
    program.go_on()
    while program.cpu_s() < before + 0.05:
        pass
    assert program.processes() == 1
    program.close()
    assert program.processes() == 0


def test_answers_percentile_is_of_answered_requests_alone() -> None:
    latency = np.array([0.001, 0.002, 0.003, 9.0])
    answers = Answers(np.zeros(4), latency, np.array([200.0, 200.0, 200.0, 429.0]), 2.0, 0.0)
    assert (answers.answered, answers.failed, answers.requests_per_s) == (3, 1, 1.5)
    assert answers.percentile_ms(50) == pytest.approx(2.0)
