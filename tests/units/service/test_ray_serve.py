"""What of the Ray Serve application needs no cluster: versions, settings, ports and the number of
replicas.
"""

from __future__ import annotations

import socket
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from service.config import SettingsError
from tests.e2e.ray_cluster import free_port

pytest.importorskip("ray.serve")

from service import ray_serve


@pytest.mark.parametrize("version", ["2.59.3", "1.99.0", "3.0.0.dev0"])
def test_other_ray_is_named_with_the_remedy(version: str) -> None:
    with pytest.raises(
        SettingsError,
        match=rf"Ray {version} is installed.*pip install",
    ):
        ray_serve.check_ray(version)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "'root'"),
        ({"root": "/bundles", "max_kk": 5}, "'max_kk', which is not"),
        (
            {"root": "/bundles", "workers": 4},
            "'workers', which has no meaning",
        ),
        (
            {"root": "/bundles", "http_port": 70000},
            "--http-port .*65535",
        ),
    ],
)
def test_application_with_a_wrong_setting_names_it(args: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ray_serve.replicas(args)


@pytest.mark.parametrize(
    ("user_config", "message"),
    [
        ({"bundle": []}, "bundle is"),
        ({"keep": 0}, "keep is '0'"),
        (
            {"models": {"movies": {"pinned": ["7"]}}},
            r"models\.movies\.pinned\.0",
        ),
    ],
)
def test_user_config_with_a_wrong_field_names_it(user_config: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ray_serve.UserConfig.of(user_config)


def test_port_is_shared_by_the_replicas_of_one_deployment_alone() -> None:
    port = free_port()
    claim = partial(ray_serve.claim_port, "127.0.0.1", port)
    rejected = pytest.raises(
        SettingsError,
        match=f"port {port} .*a/replicas",
    )
    with claim("a/replicas"), claim("a/replicas"), rejected, claim("b/replicas"):
        pass
    with claim("b/replicas"):
        pass


def test_port_of_another_program_is_not_shared_with_it() -> None:
    with closing(socket.create_server(("127.0.0.1", 0), reuse_port=True)) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(
                OSError,
                match=f"127.0.0.1:{port}.*another service",
            ),
            ray_serve.claim_port("127.0.0.1", port, "a/replicas"),
        ):
            pass
