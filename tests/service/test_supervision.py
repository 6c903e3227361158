"""What systemd hears of a service."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from service.supervision import ALIVE, READY, STOPPING, tell
from tests.service.process import PATIENCE_S, Process


@pytest.mark.parametrize("workers", ["1", "2"])
def test_service_tells_who_supervises_it_that_it_listens_lives_and_ends(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        (tmp_path / "root").mkdir()
        service = Process(tmp_path / "root", "--workers", workers)
        try:
            told = [heard.recv(100).decode()]
            while not {READY, ALIVE} <= set(told):
                told.append(heard.recv(100).decode())
            assert service.stop() == 0
            while STOPPING not in told:
                told.append(heard.recv(100).decode())
        finally:
            service.kill()
        assert set(told) == {READY, ALIVE, STOPPING}
        assert told.count(READY) == 1


def test_supervisor_that_does_not_listen_or_without_a_file_is_nothing_to_wait_for(tmp_path: Path) -> None:
    for address in ("", "nowhere", str(tmp_path / "nobody"), "@rowcast-nobody"):
        tell(READY, {"NOTIFY_SOCKET": address})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0rowcast-{tmp_path.name}")
        tell(STOPPING, {"NOTIFY_SOCKET": f"@rowcast-{tmp_path.name}"})
        assert heard.recv(100) == STOPPING.encode()
