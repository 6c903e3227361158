"""Where operators are listened to, and when tokens are asked for."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from service.control import listener
from service.control.listener import admin_listener, admin_tokens, port_of
from service.settings import ServiceSettings, SettingsError


def test_port_that_nobody_asked_for_gives_way_to_another_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = port_of(other)
        monkeypatch.setattr(listener, "PORT", taken)
        first = admin_listener(ServiceSettings(root=tmp_path))
        assert first is not None
        with first:
            assert port_of(first) not in {None, taken, 0}
        with pytest.raises(OSError, match=f"admin cannot listen on 127.0.0.1:{taken}"):
            admin_listener(ServiceSettings(root=tmp_path, admin_port=taken))


def test_service_without_an_admin_listener_has_none(tmp_path: Path) -> None:
    settings = ServiceSettings(root=tmp_path, admin=False, admin_host="0.0.0.0")
    assert (admin_listener(settings), admin_tokens(settings), port_of(None)) == (None, None, None)


def test_address_that_others_reach_needs_tokens(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--admin-tokens must be given"):
        admin_tokens(ServiceSettings(root=tmp_path, admin_host="0.0.0.0"))
    file = tmp_path / "operators"
    with pytest.raises(SettingsError, match="--admin-tokens"):
        admin_tokens(ServiceSettings(root=tmp_path, admin_host="0.0.0.0", admin_tokens=file))
    file.write_text("me 0123456789abcdef\n")
    assert admin_tokens(ServiceSettings(root=tmp_path, admin_host="0.0.0.0", admin_tokens=file)) is not None
    assert admin_tokens(ServiceSettings(root=tmp_path)) is None
