"""The settings of `rowcast-serve`: one frozen model, read once at start and passed on as a value.

Every field is an option of `rowcast-serve` and an environment variable, `ROWCAST_` + its name in capitals. An option
overrides the environment, the environment overrides the default. Unknown names are rejected in both places.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from bundle.format.manifest import Precision
from bundle.format.paths import MANIFEST
from bundle.tables.sharding import ShardNumber

PREFIX = "ROWCAST_"
_OTHER_PROGRAMS = re.compile(
    r"(EXPORT|CLIENT|CTL)_.*|(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)"
)
"""Variables of rowcast's other programs, and those that Kubernetes sets for a Service named like this program."""

Port = Annotated[int, Field(ge=0, le=65535)]
MIB = 1 << 20


class SettingsError(Exception):
    """A setting is missing, unknown or out of range; the message names it."""


class ServiceSettings(BaseSettings):
    """The settings of the service. Durations in seconds, sizes in bytes. What exceeds a limit is rejected."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_ignore_empty=True,
        use_attribute_docstrings=True,
    )

    root: Path
    """Directory of the bundles, `<root>/<model>/<version>/`; must exist, may be empty."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address of the HTTP and gRPC endpoints; 0.0.0.0 for every interface, :: for IPv6 as well."""
    http_port: Port = 8080
    """Port of HTTP; 0 for any free one."""
    grpc_port: Port = 9090
    """Port of gRPC; 0 for any free one."""
    ports_file: Path | None = None
    """File that the bound ports are written to once the service listens: JSON `{"http": N, "grpc": N, "admin": N}`."""
    require: Annotated[tuple[str, ...], NoDecode] = ()
    """Model that must load at start, else exit 7; repeatable (in the environment: separated by commas)."""
    precision: Precision | None = None
    """Precision of the towers; default: what each bundle says. A tower without that form runs its own. bf16 needs
    rowcast[savedmodel]."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Where towers run; gpu: from their SavedModels, with rowcast[gpu] and a GPU. Tables stay in CPU memory."""
    verify: Literal["sizes", "full"] = "sizes"
    """Verification of tables, and of vectors of large indexes, before a version is served: by size, or in full."""
    scrub_bytes_per_s: int = Field(default=32 * MIB, ge=0)
    """Rate at which vectors and tables are verified in the background, bytes a second, by all workers together; 0:
    never."""
    prefetch_max_bytes: int = Field(default=0, ge=0)
    """Bytes of a version's tables that each process reads into memory in the background: whole tables, smallest first;
    0: none."""
    prefetch_bytes_per_s: int = Field(default=256 * MIB, ge=1)
    """Rate of the prefetch, bytes a second."""
    max_load_bytes: int = Field(default=0, ge=0)
    """Memory that loading one version may need, bytes, without its mapped tables; 0: what is free."""
    shard: ShardNumber | None = None
    """Serves one part of all large tables and indexes to fronts, and no clients: a number and how many there are, such
    as 1/4."""
    shard_addresses: Annotated[tuple[str, ...], NoDecode] = ()
    """Serves as a front of shards: `HOST:PORT` of their gRPC, `dns:NAME:PORT` for all addresses of a name, `file:PATH`
    for a line each, or `ray:HOST:PORT` for what Ray's dashboard lists; repeatable (in the environment: separated by
    commas)."""
    shard_least_bytes: int = Field(default=1 << 30, ge=1)
    """Tables of at least so many bytes are held by shards; the same for shards and fronts."""
    shard_hedge_percentile: float = Field(default=0.0, ge=0, lt=100)
    """A front asks a second replica when the first takes longer than this percentile of recent calls; 0: never."""
    shard_ca: Path | None = None
    """Certificate authorities of the shards' certificates, PEM; a front then connects with TLS, and presents tls_cert
    as its own."""
    shard_token: Path | None = None
    """File with the token that a front sends to shards."""
    latest_versions: int = Field(default=1, ge=1, le=100, validate_default=True)
    """Newest versions of a model that stay loaded; all but the newest serve requests that name them. A shard loads two
    at least: fronts want the older one until every shard has the newest."""
    keep_previous: bool = True
    """Keeps the previously current version loaded, so that a rollback is immediate; costs its memory again."""
    state_file: Path | None = None
    """File of the desired state that `rowcast-serve ctl` edits; default: `.rowcast-state.json` under the root."""
    admin: bool = True
    """Serves the admin API for `rowcast-serve ctl`, on its own address."""
    admin_host: str = "127.0.0.1"
    """Address of the admin API; one that other machines reach requires admin_tokens."""
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the admin API, 0 for any free one; default: 8090, or any free one if that is taken."""
    admin_tokens: Path | None = None
    """File of operators' tokens, in the format of tokens; without it every user of this machine has access."""
    record_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of answered requests that is recorded on disk, to be replayed against a new version before it is served."""
    record_max_bytes: int = Field(default=32 * MIB, ge=64 << 10, le=1 << 32)
    """Size of the recorded requests of a model, bytes; beyond it the older half is dropped."""
    record_dir: Path | None = None
    """Directory of the recorded requests; default: `.rowcast-recordings` under the root."""
    poll_interval_s: float = Field(default=2.0, ge=0.05, le=3600)
    """Interval at which the root is scanned for new versions, seconds."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that serve on the same ports, each with its own towers and indexes; tables are in memory once."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Compute threads of each process; 0: the usable cores (affinity and cgroup quota) divided by the workers, and at
    least 2 in a front."""
    inline_max_us: int | None = Field(default=None, ge=0, le=1_000_000)
    """Longest batch that is computed on the event loop, microseconds; longer ones run in the compute threads; default:
    500, or 10000 where a process has one compute thread and a handover gains nothing."""
    max_concurrent_requests: int = Field(default=512, ge=1, le=100_000)
    """Requests in progress in one process; one more is rejected at once."""
    max_queued_candidates: int = Field(default=12_800, ge=1, le=1_000_000_000)
    """Candidates of the requests that wait to be computed in one process, a query or example counting as one; a request
    that would exceed it is rejected, unless nothing waits."""
    max_inflight_bytes: int = Field(default=1 << 30, ge=1_024)
    """Bytes of request bodies held by one process, compressed and decompressed alike; at least max_request_bytes."""
    retry_after_s: float = Field(default=0.1, gt=0, le=3600)
    """Least retry-after of a rejected request, seconds; longer while the queue is longer."""
    request_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest time for one request, seconds; a client's deadline may be shorter, never longer."""
    body_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest time in which the body of a request must arrive, seconds."""
    drain_delay_s: float = Field(default=1.0, ge=0, le=3600)
    """After SIGTERM: time in which requests are still accepted while health checks already fail, seconds."""
    drain_timeout_s: float = Field(default=20.0, ge=0, le=3600)
    """After drain_delay_s: time for the requests in progress to finish, seconds."""
    max_candidates: int = Field(default=20_000, ge=1, le=10_000_000)
    """Candidates ranked in one request, over all of its contexts."""
    max_k: int = Field(default=1_000, ge=1, le=1_000_000)
    """Neighbors per query."""
    max_queries: int = Field(default=1_024, ge=1, le=1_000_000)
    """Queries, contexts or examples in one request."""
    max_values: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    """Values in one request, over all of its features, ids and exclusions."""
    filter_cache_bytes: int = Field(default=256 * MIB, ge=0)
    """Memory of one process for filters of requests that it may see again, with the vectors of the candidates that
    match, bytes; 0: none is kept."""
    max_features: int = Field(default=10_000, ge=1, le=1_000_000)
    """Features in one request."""
    max_names: int = Field(default=1_000, ge=1, le=1_000_000)
    """Attributes, or heads, in one request."""
    max_request_bytes: int = Field(default=16 * MIB, ge=1_024, le=1 << 30, validate_default=True)
    """Size of one request's body, decompressed, bytes."""
    tls_cert: Path | None = None
    """Certificate chain, PEM; HTTP and gRPC then require TLS 1.2 or newer. A changed file is reloaded."""
    tls_key: Path | None = Field(default=None, validate_default=True)
    """Private key of tls_cert, PEM without a password."""
    tls_client_ca: Path | None = None
    """Certificate authorities, PEM; clients must then present a certificate that one of them signed."""
    tokens: Path | None = None
    """File of client tokens, a line each: name, token (or sha256: and its digest), models; clients must then send
    `authorization: Bearer <token>`. A changed file is reloaded."""
    max_concurrent_streams: int = Field(default=1_000, ge=1, le=1_000_000)
    """Concurrent calls on one gRPC connection; further ones wait in the client."""
    keep_alive_s: int = Field(default=75, ge=1, le=86_400)
    """Idle connections are closed after this time, seconds; longer than a proxy keeps its own (60 s)."""
    max_connection_age_s: float = Field(default=0.0, ge=0, le=86_400)
    """gRPC connections are closed gracefully after this time, seconds, so that clients rebalance; 0: never."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    @field_validator("shard", mode="before")
    @classmethod
    def _parse_shard(cls, value: Any) -> Any:
        return ShardNumber.parse(value) if isinstance(value, str) else value

    @field_validator("latest_versions")
    @classmethod
    def _raise_for_shard(cls, value: int, info: ValidationInfo) -> int:
        return value if info.data.get("shard") is None else max(2, value)

    @field_validator("require", "shard_addresses", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return (
            tuple(name.strip() for name in value.split(",") if name.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator(
        "device", "max_request_bytes", "shard_addresses", "tls_key", "tls_client_ca", "workers"
    )
    @classmethod
    def _check_combination(cls, value: Any, info: ValidationInfo) -> Any:
        """Checks a setting against those above it."""
        others, problem = info.data, ""
        match info.field_name:
            case "device" if value == "gpu" and others.get("precision") == "int8":
                problem = "int8 towers run on the CPU; use f32 or bf16, or leave --precision out"
            case "max_request_bytes" if value > (total := others.get("max_inflight_bytes", value)):
                problem = (
                    f"no body of that size fits into max_inflight_bytes, {total}; raise that too"
                )
            case "shard_addresses" if value and others.get("shard") is not None:
                problem = "a process is a shard or a front of shards; leave --shard or --shard-addresses out"
            case "tls_key" if (value is None) != (others.get("tls_cert") is None):
                problem = "--tls-cert and --tls-key must be given together"
            case "tls_client_ca" if value is not None and others.get("tls_cert") is None:
                problem = "client certificates require TLS; give --tls-cert and --tls-key too"
            case "workers" if value > 1 and others.get("device") == "gpu":
                problem = "--device gpu runs in one process; leave one of both out"
        if problem:
            raise ValueError(problem)
        return value

    @field_validator("root")
    @classmethod
    def _check_root(cls, value: Path) -> Path:
        if not value.is_dir():
            raise ValueError(f"{str(value)!r} is no directory; create it first, it may be empty")
        for manifests, what, root in (
            (MANIFEST, "a bundle", "../.."),
            (f"[1-9]*/{MANIFEST}", "one model's", ".."),
        ):
            if any(value.glob(manifests)):
                raise ValueError(
                    f"that directory is {what}; give the root above it, {str((value / root).resolve())!r}"
                )
        return value


def read_settings(options: Mapping[str, Any]) -> ServiceSettings:
    """Reads the settings from options, then the environment, then the defaults.

    Args:
      options: by field name; None or (): not given.
    Raises:
      SettingsError: names the setting, its value and what was expected.
    """
    fields = ServiceSettings.model_fields
    for variable, value in os.environ.items():
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or name.lower() in fields or _OTHER_PROGRAMS.fullmatch(name):
            continue
        if (
            name.endswith("PORT") and "://" in value
        ):  # Kubernetes again: ROWCAST_PORT=tcp://10.0.0.1:80
            continue
        close = difflib.get_close_matches(name, [field.upper() for field in fields], n=1)
        remedy = (
            f"did you mean {PREFIX}{close[0]}?" if close else "`rowcast-serve --help` lists them"
        )
        raise SettingsError(f"the environment sets {variable}, which is no setting; {remedy}")
    try:
        return ServiceSettings(
            **{name: value for name, value in options.items() if value not in (None, ())}
        )
    except ValidationError as problem:
        first = problem.errors()[0]
        name = str(first["loc"][0])
        if first["type"] == "missing":
            raise SettingsError(f"--{name} (or {PREFIX}{name.upper()}) must be given") from problem
        reason = first["msg"].removeprefix("Value error, ")
        given = "not given" if first["input"] is None else repr(str(first["input"]))
        raise SettingsError(
            f"--{name.replace('_', '-')} (or {PREFIX}{name.upper()}) is {given}: {reason}"
        ) from problem
