"""What of the Ray Serve application needs no cluster: versions, settings, ports and the number of
replicas.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from service.config import SettingsError
from tests.e2e.ray_cluster import free_port

pytest.importorskip("ray.serve")

from service import ray_serve


def test_other_ray_is_named_with_the_remedy() -> None:
    for supported in ("2.60.0", "2.99.1rc1"):
        ray_serve.check_ray(supported)
    for other in ("2.59.3", "1.99.0", "3.0.0.dev0"):
        with pytest.raises(SettingsError, match=rf"Ray {other} is installed.*pip install"):
            ray_serve.check_ray(other)


BUNDLES = {"root": "/bundles"}


@pytest.mark.parametrize(
    ("read", "given", "words"),
    [
        (ray_serve.replicas, {}, "'root'"),
        (ray_serve.replicas, {**BUNDLES, "max_kk": 5}, "'max_kk', which is not"),
        (ray_serve.replicas, {**BUNDLES, "workers": 4}, "'workers', which has no meaning"),
        (ray_serve.replicas, {**BUNDLES, "http_port": 70000}, "--http-port .*65535"),
        (ray_serve.UserConfig.of, {"bundle": []}, "bundle is"),
        (ray_serve.UserConfig.of, {"keep": 0}, "keep is '0'"),
        (ray_serve.UserConfig.of, {"models": {"movies": {"pinned": ["7.0"]}}}, r"pinned\.0"),
    ],
)
def test_wrong_field_of_a_configuration_is_named(
    read: Callable[[dict[str, Any]], Any], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        read(given)


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
