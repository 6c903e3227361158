"""What of the Ray Serve application needs no cluster: versions, settings, ports and the number of
replicas.
"""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from service.config import SettingsError
from tests.e2e.ray_cluster import free_port

pytest.importorskip("ray.serve")

from service import ray_serve


@pytest.mark.parametrize("version", ["2.60.0", "2.99.1rc1"])
def test_supported_ray_is_accepted(version: str) -> None:
    ray_serve.check_ray(version)


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


@pytest.fixture
def context() -> Callable[..., Any]:
    """What Serve passes to an autoscaling policy."""
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    def made(metrics: dict[str, dict[Any, float]]) -> Any:
        args = {
            "current_num_replicas": 2,
            "target_num_replicas": 2,
            "aggregated_metrics": metrics,
            "config": AutoscalingConfig(max_replicas=9, target_ongoing_requests=4),
        }
        return AutoscalingContext(**dict.fromkeys(signature(AutoscalingContext).parameters) | args)

    return made


def test_number_of_replicas_follows_the_requests_in_progress(context: Callable[..., Any]) -> None:
    assert ray_serve.scale_by_inflight(context({ray_serve.INFLIGHT: {"one": 8.0, "two": 6.0}})) == (
        3.5,
        {},
    )


def test_number_of_replicas_stays_until_one_has_reported(context: Callable[..., Any]) -> None:
    assert ray_serve.scale_by_inflight(context({})) == (2, {})


def test_supported_ray_is_that_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (extra,) = map(Requirement, project["optional-dependencies"]["ray"])
    assert extra.extras == {"serve"}
    assert set(map(str, extra.specifier)) == {">=2.60", "<3"}
