"""The settings of `rowcast-serve`: one frozen model, read once at start and passed on as a value.

Every field is an option of `rowcast-serve` and an environment variable, `ROWCAST_` + its name in
capitals. An option overrides the environment, the environment overrides the default. Unknown names
are rejected in both places.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from bundle.format.paths import MANIFEST
from bundle.format.precision import Precision
from bundle.service_links import is_service_link
from bundle.tables.shard_number import ShardNumber
from service.loopback import host_name, is_address, on_loopback

PREFIX = "ROWCAST_"
_OTHER_PROGRAMS = re.compile(r"(EXPORT|CLIENT|CTL)_.*|URL|TOKEN(_FILE)?|(CA|CERT|KEY)_FILE")
"""The names, without the prefix, of the variables of rowcast's other programs, and what users write
for them.
"""

_OWNERS = {
    "context_states_age_s": "context_states",
    "context_states_bytes": "context_states",
    "follow_changes_token": "follow_changes",
    "follow_changes_ca": "follow_changes",
}
"""For each setting that has no effect alone, the one that it belongs to."""

Protocol = Literal["tensorflow-serving", "open-inference"]
_SPOKEN_BY: Mapping[str, Protocol] = {
    "kserve": "open-inference",
    "tf-serving": "tensorflow-serving",
    "triton": "open-inference",
}
"""The protocol that clients of other servers speak."""
Port = Annotated[int, Field(ge=0, le=65535)]
MIB = 1 << 20


class SettingsError(Exception):
    """A setting is missing, unknown or out of range; the message names it."""


class ServiceSettings(BaseModel):
    """The settings of the service. Durations in seconds, sizes in bytes. What exceeds a limit is
    rejected.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
    )

    root: Path
    """Directory that holds the bundles, as `<root>/<model>/<version>/`. It must exist and can be
    empty.
    """
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address on which the HTTP and gRPC endpoints listen. 0.0.0.0 listens on every IPv4 interface,
    :: also on IPv6.
    """
    http_port: Port = 8080
    """Port of the HTTP endpoint. 0 selects any free port."""
    grpc_port: Port = 9090
    """Port of the gRPC endpoint. 0 selects any free port."""
    protocols: tuple[Protocol, ...] = ()
    """Protocol that clients of other servers speak, which the service speaks beside its own, on the
    same ports: tensorflow-serving (the REST and gRPC APIs of TensorFlow Serving) or open-inference
    (the Open Inference Protocol v2 of KServe and Triton). Repeatable; separate several with commas.
    """
    ports_file: Path | None = None
    """File to which the service writes its ports once it listens, as JSON: `{"http": N, "grpc": N,
    "admin": N, "health": N}`.
    """
    web_pages: bool = True
    """Serve the pages for browsers, `/` and `/docs`, and `/openapi.json`, which `/docs` reads."""
    health_host: str | None = None
    """Address of health checks and metrics, without token and TLS: only probes and Prometheus
    should reach it. Default: `host`.
    """
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of `/livez`, `/readyz` and `/metrics` on an address of their own. 0 selects any free
    port. Default: 8081, or any free port if 8081 is in use.
    """
    health_grpc_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of `grpc.health.v1.Health` at health_host. 0 selects any free port. Default: not served
    there.
    """
    changes_from: tuple[str, ...] = ()
    """Name of a token or certificate whose client may change candidates and contexts at the
    HTTP endpoint, as operators may at the admin API. Repeatable; in the environment, separate the
    names with commas.
    """
    changes_dir: Path | None = None
    """Directory of the changes, as `<changes_dir>/<model>/changes.sqlite`, on a local disk.
    Default: `root`.
    """
    follow_changes: str = ""
    """URL of the service that takes the changes, such as `http://writer:8080` or its admin API.
    This service copies them, is ready once it has caught up, and rejects changes that
    are sent to it. Default: this service takes changes.
    """
    follow_changes_token: Path | None = None
    """File with the token that is sent to `follow_changes`, whose setting `changes_from` must name
    it.
    """
    follow_changes_ca: Path | None = None
    """File of certificate authorities for the certificate of `follow_changes`, PEM. Default: those
    of the system.
    """
    require: tuple[str, ...] = ()
    """Model that must load at start; if it cannot, the service exits with code 7. Repeatable; in
    the environment, separate the names with commas.
    """
    precision: Precision | None = None
    """Precision at which towers run, if they were exported at it. Default: as each bundle
    specifies. bf16 requires the extra `savedmodel`.
    """
    device: Literal["cpu", "gpu"] = "cpu"
    """Device on which towers run. gpu runs their SavedModels, which requires the extra `gpu` and a
    GPU; tables stay in CPU memory.
    """
    verify: Literal["sizes", "full"] = "sizes"
    """How tables, and the vectors of large indexes, are verified before a version is served: sizes
    compares file sizes, full reads and checksums every byte.
    """
    verify_signatures: tuple[Path, ...] = ()
    """File of a public key, or of certificate authorities, PEM. Only versions whose signature is by
    one of these keys, or by a certificate of one of these authorities, are served; every byte is
    read and compared with the signature first. The file is read again for each version. Repeatable;
    in the environment, separate the files with commas. Needs the extra `sign`. Default: signatures
    are not verified.
    """
    scrub_bytes_per_s: int = Field(default=32 * MIB, ge=0)
    """Rate at which tables and vectors are compared with their checksums in the background, in
    bytes per second, over all workers. 0 disables it.
    """
    prefetch_max_bytes: int = Field(default=0, ge=0)
    """Maximum size of a version's tables that each process reads into memory in the background, in
    bytes: whole tables, the smallest first. 0 disables the prefetch.
    """
    prefetch_bytes_per_s: int = Field(default=256 * MIB, ge=1)
    """Rate of the prefetch, in bytes per second."""
    context_states: Path | None = None
    """Directory in which the workers of a host share what ranking towers have computed of the
    histories of contexts, so that a request whose history has a few more events than an earlier one
    computes these alone. It may be lost at any time. Absent: every request computes its history.
    """
    context_states_bytes: int = Field(default=4 << 30, ge=256 * MIB)
    """Size of the files in `context_states`, about, in bytes: the ones that were not read for the
    longest time are removed.
    """
    context_states_age_s: float = Field(default=86_400.0, gt=0)
    """Age at which a history in `context_states` that no request reads is removed, in seconds."""
    max_load_bytes: int = Field(default=0, ge=0)
    """Maximum memory that loading one version can use, in bytes, without its mapped tables. 0
    allows the memory that is free.
    """
    shard: ShardNumber | None = None
    """Serve as one shard: hold one part of all large tables and indexes, and serve routers instead
    of clients. The value is the number of the shard and the number of shards, such as 1/4.
    """
    shard_addresses: tuple[str, ...] = ()
    """Serve as a router of the shards at these addresses: `HOST:PORT` of a gRPC endpoint,
    `dns:NAME:PORT` for all addresses of a name, `file:PATH` for a file with one address per line,
    or `ray:HOST:PORT` for the shards that Ray's dashboard lists. Repeatable; in the environment,
    separate the addresses with commas.
    """
    shard_min_bytes: int = Field(default=1 << 30, ge=1)
    """Minimum size of the tables that are divided among shards, in bytes. Routers hold the smaller
    ones. Set the same value for shards and routers.
    """
    shard_min_coverage: float = Field(default=0.0, ge=0, le=1)
    """Minimum share of the rows of a request that shards must return, of tables whose lost rows
    count as unknown (`unavailable` in the recipe); of other tables, all are required. A request
    below it fails with NOT_READY.
    """
    shard_min_searched: float = Field(default=1.0, gt=0, le=1)
    """Minimum share of an index's candidates that shards must search. Below 1, the response has the
    share as `coverage`.
    """
    ready_requires_shards: bool = False
    """Let a router be ready only while every shard of its versions responds."""
    shard_ca: Path | None = None
    """File of certificate authorities for the certificates of shards, PEM. A router then connects
    with TLS, with tls_cert as its client certificate. Changed files are reloaded.
    """
    shard_token: Path | None = None
    """File with the token that a router sends to shards."""
    latest_versions: int = Field(default=1, ge=1, le=100)
    """Number of newest versions of a model to keep loaded. Older ones serve only requests that name
    them. A shard keeps at least 2, because routers use the older version until every shard has the
    newest.
    """
    keep_previous: bool = True
    """Keep the previously current version loaded for a rollback, which needs the memory of a second
    version.
    """
    state_file: Path | None = None
    """File of the desired state, which `rowcast-serve ctl` edits. Default: `.rowcast-state.json`
    under the root.
    """
    admin: bool = True
    """Serve the admin API, which `rowcast-serve ctl` calls, at an address of its own."""
    admin_host: str = "127.0.0.1"
    """Address on which the admin API listens. An address that other machines can reach requires
    admin_tokens.
    """
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the admin API. 0 selects any free port. Default: 8090, or any free port if 8090 is in
    use.
    """
    admin_tokens: Path | None = None
    """File of operators' tokens, in the format of `tokens`. Without it, every user of this machine
    can use the admin API.
    """
    record_rate: float = Field(default=0.0, ge=0, le=1)
    """Fraction of successful requests to record on disk and to replay to a new version before it is
    served.
    """
    record_max_bytes: int = Field(default=32 * MIB, ge=64 << 10, le=1 << 32)
    """Maximum size of the recorded requests of one model, in bytes. At the limit, the older half is
    deleted.
    """
    record_dir: Path | None = None
    """Directory of the recorded requests. Default: `.rowcast-recordings` under the root."""
    poll_interval_s: float = Field(default=2.0, ge=0.05, le=3600)
    """Interval between two scans of the root for new versions, in seconds."""
    live_recall_share: float = Field(default=0.01, ge=0, le=1)
    """Fraction of the searches of approximate indexes that are repeated exactly while no request is
    in progress, to measure the live recall. 0 disables it. Shards do not measure it.
    """
    live_recall_cpu: float = Field(default=0.01, gt=0, le=1)
    """Maximum share of one core that each process spends on these exact searches. Further queries
    are dropped and counted.
    """
    workers: int = Field(default=1, ge=1, le=256)
    """Number of processes that serve on the same ports. Each has its own towers and indexes; tables
    are in memory once.
    """
    worker_timeout_s: float = Field(default=20.0, ge=5, le=3600)
    """Time without a sign of life after which a worker process is killed and replaced, in seconds.
    """
    threads: int = Field(default=0, ge=0, le=1024)
    """Number of compute threads in each process. 0 divides the available cores (CPU affinity and
    cgroup quota) by the number of workers.
    """
    inline_max_us: int | None = Field(default=None, ge=0, le=1_000_000)
    """Maximum estimated time of a request that is computed on the event loop instead of the compute
    threads, in microseconds. A batch of several may take as long, and at least 2000. Default: 500,
    2000 while requests come one after the other, or 10000 in a process with one compute thread.
    """
    max_concurrent_requests: int = Field(default=512, ge=1, le=100_000)
    """Maximum number of requests in progress in one process. Further requests are rejected at once.
    """
    max_queued_candidates: int = Field(default=12_800, ge=1, le=1_000_000_000)
    """Maximum number of candidates in the requests that wait for computation in one process; a
    query or an example counts as one. A further request is rejected, unless the queue is empty.
    """
    max_inflight_bytes: int = Field(default=1 << 30, ge=1_024)
    """Maximum size of all request bodies, compressed and decompressed, of what large requests take
    beyond that once they are decoded, and of all responses larger than 64 KiB in one process, in
    bytes; at least max_request_bytes and max_response_bytes. The default is lower where a quarter
    of the memory, or of the limit of the cgroup, is less for all processes.
    """
    retry_after_s: float = Field(default=1.0, gt=0, le=3600)
    """Minimum `retry-after` of a rejected request, in seconds. Clients receive it in whole seconds,
    at least 1.
    """
    request_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Maximum time for one request, in seconds. A client's deadline can only be shorter."""
    body_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Maximum time for the body of a request to arrive, and for a client to read each 64 KiB of a
    large HTTP response, in seconds.
    """
    drain_delay_s: float = Field(default=1.0, ge=0, le=3600)
    """Time after SIGTERM during which health checks fail while requests are still accepted, in
    seconds.
    """
    drain_timeout_s: float = Field(default=20.0, ge=0, le=3600)
    """Maximum time after drain_delay_s for the requests in progress to finish, in seconds."""
    max_candidates: int = Field(default=20_000, ge=1, le=10_000_000)
    """Maximum number of candidates to rank in one request, over all of its contexts."""
    max_k: int = Field(default=1_000, ge=1, le=1_000_000)
    """Maximum number of neighbors per query."""
    max_queries: int = Field(default=1_024, ge=1, le=1_000_000)
    """Maximum number of queries, contexts or examples in one request."""
    max_changed_candidates: int = Field(default=100_000, ge=1, le=100_000_000)
    """Maximum number of changes of candidates of one corpus, or of contexts of one context store,
    that are held beside those of the bundle.
    """
    max_changes_bytes: int = Field(default=8 << 30, ge=MIB)
    """Maximum size of the changes of one model, in bytes. Further changes are rejected. Each start
    reads all of them: 8 GiB hold some ten million candidates, and take minutes.
    """
    deletions_kept_days: float = Field(default=7.0, ge=0, le=3650)
    """Time for which deletions and expired candidates that no loaded bundle has are kept, in days.
    Later, a change with a smaller number of its sender counts as the first one, and services that
    have not followed for as long have to begin anew.
    """
    max_streams: int = Field(default=1_000, ge=1, le=1_000_000)
    """Maximum number of streams of one model. A change of a further stream is rejected."""
    max_values: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    """Maximum number of values in one request, over all of its features, ids and exclusions."""
    filter_cache_bytes: int = Field(default=256 * MIB, ge=0)
    """Maximum memory of one process for compiled filters, in bytes, with the vectors or codes of
    the candidates that match. 0 disables the cache.
    """
    max_features: int = Field(default=10_000, ge=1, le=1_000_000)
    """Maximum number of features in one request."""
    max_names: int = Field(default=1_000, ge=1, le=1_000_000)
    """Maximum number of attributes, of heads, and of indexes whose vectors a change has, in one
    request.
    """
    max_filter_terms: int = Field(default=100, ge=1, le=10_000)
    """Maximum number of conditions, circles and nested filters in the filter of one request."""
    max_request_bytes: int = Field(default=16 * MIB, ge=1_024, le=1 << 30)
    """Maximum size of the body of one request after decompression, in bytes."""
    max_response_bytes: int = Field(default=64 * MIB, ge=64 << 10, le=1 << 30)
    """Maximum size of one response, in bytes, estimated before anything is computed. Protobuf
    responses count as if they were JSON. It must be at most max_inflight_bytes.
    """
    tls_cert: Path | None = None
    """File of the certificate chain, PEM. HTTP and gRPC then require TLS 1.2 or newer. The file is
    reloaded when it changes.
    """
    tls_key: Path | None = None
    """File of the private key of tls_cert, PEM without a password."""
    tls_client_ca: Path | None = None
    """File of certificate authorities, PEM. Clients must then present a certificate that one of
    them signed.
    """
    tokens: Path | None = None
    """File of client tokens. Each line has a name, a token (or sha256: and its digest), and models.
    Clients must then send `authorization: Bearer <token>`. The file is reloaded when it changes. A
    shard that other machines can reach requires tokens or tls_client_ca.
    """
    allowed_hosts: tuple[str, ...] = ()
    """Name that HTTP requests may have in `Host`, without a port. Default: any name, except on a
    loopback address without tokens and client certificates, where only loopback addresses are
    accepted. Loopback addresses stay accepted there, and any address at another health_host.
    Repeatable; in the environment, separate the names with commas.
    """
    max_concurrent_streams: int = Field(default=1_000, ge=1, le=1_000_000)
    """Maximum number of concurrent calls on one gRPC connection. Further calls wait in the client.
    """
    max_connections: int = Field(default=20_000, ge=1, le=1_000_000)
    """Maximum number of HTTP connections of one process, and of gRPC connections. Further HTTP
    requests get the status 503, and their connections are closed; further gRPC connections are
    closed at once. The default is lower where the limit on open files is.
    """
    keep_alive_s: int = Field(default=75, ge=1, le=86_400)
    """Time after which an idle connection is closed, in seconds; longer than proxies keep idle
    connections (usually 60 s).
    """
    max_connection_age_s: float = Field(default=0.0, ge=0, le=86_400)
    """Time after which a gRPC connection is closed, in seconds, so that clients rebalance. 0
    disables this.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity of log lines."""
    access_log: bool = False
    """Log a line for each request. Lines that the reader of stderr does not take in time are
    dropped and counted.
    """
    tracing: bool = False
    """Send an OpenTelemetry span for each request to a collector, with the time of each phase.
    Needs the extra `otel`; the `OTEL_` variables of the OpenTelemetry SDK configure it.
    """

    @field_validator("shard", mode="before")
    @classmethod
    def _parse_shard(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return ShardNumber.parse(value)

    @field_validator("shard")
    @classmethod
    def _check_protocols(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("protocols"):
            raise ValueError("a shard serves routers alone; give --protocols to routers instead")
        return value

    @field_validator("grpc_port")
    @classmethod
    def _check_ports(cls, value: int, info: ValidationInfo) -> int:
        if value and value == info.data.get("http_port"):
            raise ValueError("HTTP has that port; give each endpoint a port of its own")
        return value

    @field_validator("latest_versions")
    @classmethod
    def _increase_for_shard(cls, value: int, info: ValidationInfo) -> int:
        if info.data.get("shard") is None:
            return value
        # Routers use the older version until every shard has the newest.
        return max(2, value)

    @field_validator(
        "allowed_hosts",
        "changes_from",
        "require",
        "shard_addresses",
        "verify_signatures",
        mode="before",
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return _split_names(value)

    @field_validator("allowed_hosts")
    @classmethod
    def _check_allowed_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if host_name(name) != name.lower() and not is_address(name):
                raise ValueError(
                    "a name or address without scheme and port was expected, such as "
                    "'rowcast.example.com'"
                )
        return value

    @field_validator("protocols", mode="before")
    @classmethod
    def _split_protocols(cls, value: Any) -> Any:
        # Each option may name several protocols, too, and some of them twice.
        text = value
        if not isinstance(value, str):
            text = ",".join(value)
        names = tuple(dict.fromkeys(_split_names(text)))
        for name in names:
            if name.lower() in _SPOKEN_BY:
                protocol = _SPOKEN_BY[name.lower()]
                raise ValueError(f"{name!r} is no protocol: its clients speak {protocol!r}")
        return names

    @field_validator(
        "device",
        "max_request_bytes",
        "max_response_bytes",
        "shard_addresses",
        "tls_key",
        "tls_client_ca",
        "tokens",
        "workers",
    )
    @classmethod
    def _check_combination(cls, value: Any, info: ValidationInfo) -> Any:
        """Checks a setting against the settings above it."""
        # Settings that are invalid themselves are missing here; each is reported alone.
        settings = info.data
        problem = ""
        match info.field_name:
            case "device" if value == "gpu" and settings.get("precision") == "int8":
                problem = "int8 towers run on the CPU; use f32 or bf16, or omit --precision"
            case "max_request_bytes" | "max_response_bytes" if value > (
                total := settings.get("max_inflight_bytes", value)
            ):
                problem = (
                    f"no body of that size fits into max_inflight_bytes, {total}; raise that too"
                )
            case "shard_addresses" if value and settings.get("shard") is not None:
                problem = (
                    "a process is either a shard or a router; omit --shard or --shard-addresses"
                )
            case "tls_key" if (value is None) != (settings.get("tls_cert") is None):
                problem = "--tls-cert and --tls-key must be given together"
            case "tls_client_ca" if value is not None and settings.get("tls_cert") is None:
                problem = "client certificates require TLS; give --tls-cert and --tls-key too"
            # A shard responds with any row or vector, whatever models a client may use.
            case "tokens" if (
                value is None
                and settings.get("tls_client_ca") is None
                and settings.get("shard") is not None
                and not on_loopback(host := settings.get("host", ""))
            ):
                problem = (
                    f"whoever reaches {host} can read all rows and vectors of this shard; give "
                    "--tokens or --tls-client-ca, or listen on 127.0.0.1"
                )
            case "tokens" if (
                value is None
                and settings.get("tls_client_ca") is None
                and settings.get("changes_from")
            ):
                problem = (
                    "--changes-from names tokens or certificates; give --tokens or --tls-client-ca"
                )
            case "workers" if value > 1 and settings.get("device") == "gpu":
                problem = "--device gpu runs in one process; omit --device or --workers"
        if problem:
            raise ValueError(problem)
        return value

    @field_validator(*_OWNERS)
    @classmethod
    def _check_owner(cls, value: Any, info: ValidationInfo) -> Any:
        """Rejects a setting that has no effect without another one."""
        name = str(info.field_name)
        owner = _OWNERS[name]
        # An invalid owner is missing here, and is reported alone.
        is_set = value != cls.model_fields[name].default
        if is_set and not info.data.get(owner, True):
            raise ValueError(f"it has no effect without --{owner.replace('_', '-')}")
        return value

    @field_validator("root")
    @classmethod
    def _check_root(cls, value: Path) -> Path:
        if not value.is_dir():
            remedy = "create it first (it can be empty)"
            if value.exists():
                remedy = "name the directory that holds the models"
            raise ValueError(f"{str(value)!r} is not a directory; {remedy}")
        # The directory below the root is named by mistake: the service would start without models.
        for pattern, content, root in (
            (MANIFEST, "one bundle", "../.."),
            (f"[1-9]*/{MANIFEST}", "one model", ".."),
        ):
            if any(value.glob(pattern)):
                raise ValueError(
                    f"that is the directory of {content}; set the root above it, "
                    f"{str((value / root).resolve())!r}"
                )
        return value


def _split_names(text: str) -> tuple[str, ...]:
    """Returns the names in a text, which separates them by commas."""
    names = [name.strip() for name in text.split(",")]
    return tuple(filter(None, names))


class Environment(NamedTuple):
    """The variables of the environment that begin with the prefix of the settings.

    Attributes:
      settings: The values of settings by field name.
      service_links: The variables that look like settings, but that Kubernetes has set for a
        Service; in capitals, sorted.
      of_other_programs: The variables that are meant for other programs of rowcast; in capitals,
        sorted.
    """

    settings: dict[str, str]
    service_links: list[str]
    of_other_programs: list[str]


def read_environment() -> Environment:
    """Reads the environment. A variable without a value sets nothing.

    Raises:
      SettingsError: A variable is neither a setting nor meant for another program.
    """
    fields = ServiceSettings.model_fields
    settings = {}
    service_links = []
    of_other_programs = []
    for variable, value in os.environ.items():
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper():
            continue
        is_setting = name.lower() in fields
        # Of a Service named "rowcast-http", Kubernetes sets ROWCAST_HTTP_PORT to a URL.
        if is_service_link(variable.upper(), value):
            if is_setting:
                service_links.append(variable.upper())
        elif is_setting:
            if value:
                settings[name.lower()] = value
        elif _OTHER_PROGRAMS.fullmatch(name):
            of_other_programs.append(variable.upper())
        else:
            raise SettingsError(
                f"the environment sets {variable}, which is not a setting; {_nearest(name)}"
            )
    return Environment(settings, sorted(service_links), sorted(of_other_programs))


def _nearest(name: str) -> str:
    """Returns the remedy for a variable that is not a setting, by its name without the prefix."""
    names = [field.upper() for field in ServiceSettings.model_fields]
    similar = difflib.get_close_matches(name, names, n=1)
    if similar:
        return f"did you mean {PREFIX}{similar[0]}?"
    return "`rowcast-serve --help` lists them"


def read_settings(options: Mapping[str, Any]) -> ServiceSettings:
    """Reads the settings from options, then the environment, then the defaults.

    Args:
      options: The options by field name; None or (): the option is not set.

    Raises:
      SettingsError: A setting is wrong; the message names it, its value and what was expected.
    """
    # An option that is not set must not hide the variable of the environment.
    set_options = {name: value for name, value in options.items() if value not in (None, ())}
    try:
        return ServiceSettings(**{**read_environment().settings, **set_options})
    except ValidationError as problem:
        first = problem.errors()[0]
        name = str(first["loc"][0])
        if first["type"] == "missing":
            raise SettingsError(f"--{name} (or {PREFIX}{name.upper()}) must be given") from problem
        reason = first["msg"].removeprefix("Value error, ")
        shown_value = "not given"
        value = first["input"]
        # Of an option that is repeatable.
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        if value is not None:
            shown_value = repr(str(value))
        raise SettingsError(
            f"--{name.replace('_', '-')} (or {PREFIX}{name.upper()}) is {shown_value}: {reason}"
        ) from problem
