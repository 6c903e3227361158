"""Where shards listen.

HOST:PORT         one address
dns:NAME:PORT     every address of a name, such as that of a headless service
file:PATH         a line each
ray:HOST:PORT     every replica of the applications of Ray Serve that have `shard` in their `args`;
                  HOST:PORT is Ray's dashboard, whose REST API lists them
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import urllib.request
from pathlib import Path

import orjson

from service.config import ServiceSettings, SettingsError

_TIMEOUT_S = 5.0
_GRPC_PORT = ServiceSettings.model_fields["grpc_port"].default
_SERVING = {"RUNNING", "UPDATING", "RECOVERING", "PENDING_MIGRATION"}
"""States of a replica that answers. A controller of Serve that begins again has all RECOVERING for
a moment.
"""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Uses no proxy, whatever the environment names: the cluster is near."""
_HOST_PORT = re.compile(r"(.+):([0-9]{1,5})")


def check(source: str) -> None:
    """Raises SettingsError if a source of addresses is spelled wrongly."""
    kind, _, rest = source.partition(":")
    if kind == "file" and rest:
        return
    spelled = _HOST_PORT.fullmatch(rest if kind in {"dns", "ray"} else source)
    if spelled is None or not 0 < int(spelled[2]) < 1 << 16:
        expected = "HOST:PORT, dns:NAME:PORT, file:PATH or ray:HOST:PORT"
        raise SettingsError(
            f"--shard-addresses (or ROWCAST_SHARD_ADDRESSES) holds {source!r}; {expected} was "
            "expected"
        )


def name_of(source: str) -> str:
    """Returns the name that the certificates at a source's addresses are for; empty: each is for
    its own host.
    """
    kind, _, rest = source.partition(":")
    return rest.rpartition(":")[0] if kind == "dns" else ""


async def resolve(source: str) -> list[str]:
    """Returns the addresses of a source as they are now.

    Raises:
      OSError: the name does not resolve, or the file or the dashboard cannot be read.
    """
    kind, _, rest = source.partition(":")
    if kind == "file":
        lines = await asyncio.to_thread(Path(rest).read_text)
        return [line.strip() for line in lines.splitlines() if line.strip()]
    if kind == "ray":
        return await asyncio.to_thread(_replicas_of_ray, rest)
    if kind != "dns":
        return [source]
    name, _, port = rest.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    hosts = sorted({str(address[0]) for *_, address in found})
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]


def _replicas_of_ray(dashboard: str) -> list[str]:
    """Returns the addresses of replicas. Source: docs.ray.io, Serve REST API, GET
    /api/serve/applications/.
    """
    request = urllib.request.Request(f"http://{dashboard}/api/serve/applications/")
    if token := _ray_token():
        request.add_header("authorization", f"Bearer {token}")
    with _DIRECT.open(request, timeout=_TIMEOUT_S) as answer:
        content = answer.read()
    found = set[str]()
    try:
        for application in orjson.loads(content)["applications"].values():
            args = (application["deployed_app_config"] or {}).get("args", {})
            for deployment in application["deployments"].values() if "shard" in args else ():
                serving = (each for each in deployment["replicas"] if each["state"] in _SERVING)
                found.update(
                    f"{each['node_ip']}:{args.get('grpc_port', _GRPC_PORT)}" for each in serving
                )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as problem:
        raise OSError(f"{dashboard} is not a dashboard of Ray: {problem!r}") from problem
    if not found:  # a head node that begins again knows of none
        raise OSError(f"{dashboard} lists no replica of a shard")
    return sorted(found)


def _ray_token() -> str:
    """Returns the token of the Ray cluster; empty: there is none. Source: docs.ray.io, Ray token
    authentication.
    """
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return path.read_text().strip() if path.is_file() else ""
