"""Where shards listen: the sources of addresses.

HOST:PORT         one address
dns:NAME:PORT     every address of a name, such as the name of a headless service
file:PATH         every line of a file
ray:HOST:PORT     every replica of the applications of Ray Serve that have `shard` in their `args`;
                  HOST:PORT is Ray's dashboard, whose REST API lists them
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from pathlib import Path

import orjson

from service.config import ServiceSettings, SettingsError
from service.http_client import exchange

_DASHBOARD_S = 5.0
"""Time that Ray's dashboard has for a response. It takes a thread and delays no other source."""
_DASHBOARD_BYTES_MAX = 64 << 20
"""Maximum size of that response, which has some kilobytes per replica of the cluster."""
_OK = 200
_GRPC_PORT = ServiceSettings.model_fields["grpc_port"].default
_SERVING = {"RUNNING", "UPDATING", "RECOVERING", "PENDING_MIGRATION"}
"""States of a replica that responds. A restarted controller of Serve lists every replica as
RECOVERING for a moment.
"""
_HOST_PORT = re.compile(r"(.+):([0-9]{1,5})")


def check(source: str) -> None:
    """Raises SettingsError if a source of addresses is spelled wrongly."""
    kind, _, location = source.partition(":")
    if kind == "file" and location:
        return

    # An address has no kind: what stands before its first colon is a host.
    host_port = location if kind in {"dns", "ray"} else source
    match = _HOST_PORT.fullmatch(host_port)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        expected = "HOST:PORT, dns:NAME:PORT, file:PATH or ray:HOST:PORT"
        raise SettingsError(
            f"--shard-addresses (or ROWCAST_SHARD_ADDRESSES) holds {source!r}; {expected} was "
            "expected"
        )


def name_of(source: str) -> str:
    """Returns the name that the certificates at a source's addresses must have; empty: each
    certificate has the host of its address.
    """
    kind, _, location = source.partition(":")
    if kind != "dns":
        return ""
    # The addresses behind a name are those of pods, which no certificate can list.
    name, _, _ = location.rpartition(":")
    return name


async def resolve(source: str) -> list[str]:
    """Returns the addresses of a source as they are now.

    Raises:
      OSError: The name does not resolve, or the file or the dashboard cannot be read.
    """
    kind, _, location = source.partition(":")
    # Files and the dashboard may hang, such as on a network file system: only a thread waits.
    if kind == "file":
        content = await asyncio.to_thread(Path(location).read_text, encoding="utf-8-sig")
        lines = [line.strip() for line in content.splitlines()]
        return [line for line in lines if line]
    if kind == "ray":
        return await asyncio.to_thread(_replicas_of_ray, location)
    if kind != "dns":
        return [source]

    name, _, port = location.rpartition(":")
    entries = await asyncio.get_running_loop().getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    hosts = sorted({str(address[0]) for *_, address in entries})
    return [_host_port(host, port) for host in hosts]


def _host_port(host: str, port: str) -> str:
    """Returns an address; IPv6 addresses stand in brackets."""
    if ":" in host:
        return f"[{host}]:{port}"
    return f"{host}:{port}"


def _replicas_of_ray(dashboard: str) -> list[str]:
    """Returns the addresses of the replicas of all shards.

    Source: docs.ray.io, Serve REST API, GET /api/serve/applications/.
    """
    headers = {}
    if token := _ray_token():
        headers["authorization"] = f"Bearer {token}"
    response = exchange(
        f"http://{dashboard}/api/serve/applications/",
        headers,
        bytes_max=_DASHBOARD_BYTES_MAX,
        deadline_s=_DASHBOARD_S,
    )
    if response.status != _OK:
        raise OSError(f"{dashboard} responds with status {response.status}")

    addresses = set[str]()
    try:
        for application in orjson.loads(response.content)["applications"].values():
            args = (application["deployed_app_config"] or {}).get("args", {})
            if "shard" not in args:
                continue
            port = args.get("grpc_port", _GRPC_PORT)
            for deployment in application["deployments"].values():
                for replica in deployment["replicas"]:
                    if replica["state"] in _SERVING:
                        addresses.add(f"{replica['node_ip']}:{port}")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as problem:
        raise OSError(f"{dashboard} is not a dashboard of Ray: {problem!r}") from problem
    if not addresses:
        # A restarted head node lists none. As an error, it leaves the router's addresses as they
        # are, whereas an empty list would drop all shards.
        raise OSError(f"{dashboard} lists no replica of a shard")
    return sorted(addresses)


def _ray_token() -> str:
    """Returns the token of the Ray cluster; empty: there is none.

    Source: docs.ray.io, Ray token authentication.
    """
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if not path.is_file():
        return ""
    return path.read_text().strip()
