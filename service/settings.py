"""How the service runs: one frozen model, read once in `service/main.py` and passed on as values.

Every field is an option of `rowcast-serve` and an environment variable, `ROWCAST_` + its name in capitals; an option
wins over the environment, the environment over the default. Unknown names are refused in both places.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from bundle.manifest import Precision
from bundle.paths import MANIFEST

PREFIX = "ROWCAST_"
_OTHERS = re.compile(r"(EXPORT|CLIENT|CTL)_.*|(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
"""Variables of other programs than this one, and those that Kubernetes sets for a service whose name begins so."""

Port = Annotated[int, Field(ge=0, le=65535)]


class SettingsError(Exception):
    """A setting that is missing, unknown, or out of its limits; names it."""


class ServiceSettings(BaseModel):
    """What `rowcast-serve` can be told. Durations in seconds, sizes in bytes; limits are refusals, never queues.

    Every field that is not given may come from the environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path
    """Directory of the bundles, `<root>/<model>/<version>/`; must exist, may be empty."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address that both doors listen on; 0.0.0.0 for every interface, :: for those of IPv6 too."""
    http_port: Port = 8080
    """Port of HTTP; 0: any free one."""
    grpc_port: Port = 9090
    """Port of gRPC; 0: any free one."""
    ports_file: Path | None = None
    """File that the bound ports are written to, as JSON `{"http": N, "grpc": N, "admin": N}`, once the doors listen."""
    require: tuple[str, ...] = ()
    """Model that must load at start, else exit 7; may be given several times (in the environment: comma between)."""
    precision: Precision | None = None
    """Precision of the towers; left out: what each bundle says. A tower without that form runs its own. bf16 needs
    rowcast[savedmodel]."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Where towers run; gpu: from their SavedModels, with rowcast[gpu] and a GPU. Tables stay in CPU memory."""
    verify: Literal["sizes", "full"] = "sizes"
    """Tables, and vectors of large indexes, before a version is served: by size (fast, whatever it is), or in full."""
    verify_bytes_per_s: int = Field(default=32 << 20, ge=0)
    """Rate of the background check of tables, bytes a second; of vectors four times as much; 0: neither is checked."""
    warm_bytes_max: int = Field(default=0, ge=0)
    """Most bytes of a version's tables that each process brings into memory in the background once it is served: whole
    tables, the smallest first; 0: none, rows come as they are asked for."""
    warm_bytes_per_s: int = Field(default=256 << 20, ge=1)
    """Rate of that, bytes a second."""
    load_bytes_max: int = Field(default=0, ge=0)
    """Most memory that loading one version may need, bytes (tables are mapped and do not count); 0: what is free."""
    versions_latest: int = Field(default=1, ge=1, le=100)
    """Newest versions of a model that are loaded; one that is not the newest answers requests that name it."""
    keep_previous: bool = True
    """Keeps the version that answered before loaded, so that going back to it takes no time; costs its memory again."""
    state_file: Path | None = None
    """File that holds what `rowcast-serve ctl` is told: pins, labels, a drain; left out: `.rowcast-state.json` under
    the root."""
    admin: bool = True
    """Listens for `rowcast-serve ctl`, at an address of its own."""
    admin_host: str = "127.0.0.1"
    """Address of the admin listener; one that other machines reach needs admin_tokens."""
    admin_port: Port | None = None
    """Port of the admin listener, 0: any free one; left out: 8090, or any free one where that is taken."""
    admin_tokens: Path | None = None
    """File of operators, as tokens is of callers; without it, whoever is on this machine may use the admin listener."""
    record_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of answered calls whose bodies are kept on disk, for a new version to answer before it is served."""
    record_bytes_max: int = Field(default=32 << 20, ge=64 << 10, le=1 << 32)
    """Size of a model's recordings, bytes; the older half makes room."""
    record_dir: Path | None = None
    """Directory of the recordings; left out: `.rowcast-recordings` under the root."""
    poll_s: float = Field(default=2.0, ge=0.05, le=3600)
    """Pause between two looks at the root for new versions, seconds."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that serve on the same ports, each with its own indexes; tables are in memory once for all."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Threads that compute in each process; 0: the usable cores (affinity and cgroup quota) shared among workers."""
    inline_us_max: int = Field(default=500, ge=0, le=100_000)
    """Calls measured to take no longer are computed on the event loop at once, microseconds; 0: all wait in line."""
    turn_us_max: int = Field(default=5_000, ge=0, le=1_000_000)
    """Calls measured to take no longer are computed on the event loop in their turn, unless that keeps others waiting
    beside an idle core, microseconds; 0: all calls in line are for the compute threads."""
    piece_us: int = Field(default=1_000, ge=0, le=1_000_000)
    """About how long a piece of a large ranking or embedding takes, which all idle cores compute, microseconds;
    what takes less than five is not divided; 0: nothing is, exact searches neither."""
    in_flight_max: int = Field(default=512, ge=1, le=100_000)
    """Calls admitted at once, short ones too; one more is refused at once rather than kept waiting."""
    in_line_max: int = Field(default=64, ge=1, le=100_000)
    """Calls that wait in line at once, which short ones do not; one more is refused at once, not answered late."""
    in_flight_candidates_max: int = Field(default=100_000, ge=1, le=1_000_000_000)
    """Candidates of the calls admitted at once; a call is refused that would be over it, unless it is the only one."""
    retry_after_s: float = Field(default=0.1, gt=0, le=3600)
    """Least time that a refused caller is told to wait, seconds; longer where what is in line will take longer."""
    timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest time for one call, seconds; a caller's own deadline may be shorter, never longer."""
    drain_s: float = Field(default=20.0, ge=0, le=3600)
    """After SIGTERM: time for the calls in flight to end, seconds."""
    candidates_max: int = Field(default=20_000, ge=1, le=10_000_000)
    """Candidates ranked in one request, over all of its contexts."""
    k_max: int = Field(default=1_000, ge=1, le=1_000_000)
    """Neighbors wanted per query."""
    queries_max: int = Field(default=1_024, ge=1, le=1_000_000)
    """Queries, contexts or examples in one request."""
    ids_max: int = Field(default=1_000_000, ge=1, le=1_000_000_000)
    """Values in one request, over all of its features, ids and exclusions."""
    body_bytes_max: int = Field(default=16 << 20, ge=1_024, le=1 << 30)
    """Size of one request's body, bytes."""
    intake_bytes_max: int = Field(default=1 << 30, ge=1_024, validate_default=True)
    """Bodies that are on their way, bytes of all together at each door of one process; at least body_bytes_max."""
    tls_cert: Path | None = None
    """Certificate and what is between it and its root, PEM; both doors then speak TLS (1.2 or newer) and nothing else.
    A file that changes is read again: new connections get the new certificate."""
    tls_key: Path | None = Field(default=None, validate_default=True)
    """Private key of tls_cert, PEM without a password."""
    tls_client_ca: Path | None = None
    """Authorities, PEM; callers then have to show a certificate that one of them signed, at both doors."""
    tokens: Path | None = None
    """File of callers, a line each: name, token (or sha256: and its digest), models; they then have to send
    `authorization: Bearer <token>`. Read again when it changes."""
    connections_max: int = Field(default=0, ge=0, le=1_000_000)
    """Connections at each door of one process; one more takes the place of one without a call; 0: what the limit on
    open files allows, at most 10000."""
    streams_max: int = Field(default=1_000, ge=1, le=1_000_000)
    """Calls at once on one gRPC connection; more wait at the caller."""
    idle_s: float = Field(default=75.0, ge=1, le=86_400)
    """Connections without a call are closed after this time, seconds; longer than a proxy keeps its own (60 s)."""
    connection_age_s: float = Field(default=0.0, ge=0, le=86_400)
    """Connections are closed after this time once their calls are answered, seconds, so that callers spread over new
    replicas; 0: never."""
    bytes_per_s_min: int = Field(default=16 << 10, ge=1, le=1 << 30)
    """Slowest rate that an HTTP body may come at and an answer may be read at, bytes a second; counts after 5 s."""
    unread_bytes_max: int = Field(default=256 << 20, ge=1 << 20)
    """Answers that callers have not read yet, bytes of all together at each door of one process; beyond it the reader
    that stalls longest (HTTP) or holds most (gRPC) is left."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    @model_validator(mode="before")
    @classmethod
    def _of_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Adds what the environment sets. By hand: pydantic-settings takes a tenth of a start to import."""
        told = {name.upper(): value for name, value in os.environ.items() if value}
        names = {name: f"{PREFIX}{name.upper()}" for name in cls.model_fields}
        return {name: told[variable] for name, variable in names.items() if variable in told} | given

    @field_validator("require", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("device")
    @classmethod
    def _runs_there(cls, value: str, others: ValidationInfo) -> str:
        if value == "gpu" and others.data.get("precision") == "int8":
            raise ValueError("precision int8 is LiteRT's, which runs on the CPU; take f32 or bf16, or leave it out")
        return value

    @field_validator("intake_bytes_max")
    @classmethod
    def _takes_a_body(cls, value: int, others: ValidationInfo) -> int:
        if value < (largest := others.data.get("body_bytes_max", 0)):
            raise ValueError(f"no body of body_bytes_max, {largest}, would ever arrive; give at least as many bytes")
        return value

    @field_validator("tls_key")
    @classmethod
    def _beside_its_certificate(cls, value: Path | None, others: ValidationInfo) -> Path | None:
        if (value is None) != (others.data.get("tls_cert") is None):
            raise ValueError("--tls-cert and --tls-key go together; one of them is missing")
        return value

    @field_validator("tls_client_ca")
    @classmethod
    def _over_tls(cls, value: Path | None, others: ValidationInfo) -> Path | None:
        if value is not None and others.data.get("tls_cert") is None:
            raise ValueError("callers show certificates over TLS alone; give --tls-cert and --tls-key too")
        return value

    @field_validator("workers")
    @classmethod
    def _share(cls, value: int, others: ValidationInfo) -> int:
        if value > 1 and others.data.get("device") == "gpu":
            raise ValueError("--device gpu runs in one process; leave one of both out")
        return value

    @field_validator("root")
    @classmethod
    def _directory(cls, value: Path) -> Path:
        if not value.is_dir():
            raise ValueError(f"{str(value)!r} is no directory; make it first, it may be empty")
        for manifests, what, root in ((MANIFEST, "a bundle", "../.."), (f"[1-9]*/{MANIFEST}", "one model's", "..")):
            if any(value.glob(manifests)):
                raise ValueError(f"that directory is {what}; give the root above it, {str((value / root).resolve())!r}")
        return value


def read_settings(options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> ServiceSettings:
    """Reads the settings from options, then the environment, then the defaults.

    Args:
      options: by field name; None: not given.
      environment: the variables whose names are checked; None: the process' own.
    Raises:
      SettingsError: names the setting, its value and what it takes.
    """
    fields = ServiceSettings.model_fields
    for variable, value in (os.environ if environment is None else environment).items():
        name = variable.upper().removeprefix(PREFIX)
        if name == variable.upper() or name.lower() in fields or _OTHERS.fullmatch(name):
            continue
        if name.endswith("PORT") and "://" in value:  # Kubernetes too: ROWCAST_PORT=tcp://10.0.0.1:80
            continue
        close = difflib.get_close_matches(name, [field.upper() for field in fields], n=1)
        cure = f"did you mean {PREFIX}{close[0]}?" if close else "`rowcast-serve --help` lists them"
        raise SettingsError(f"the environment sets {variable}, which is no setting; {cure}")
    try:
        return ServiceSettings(**{name: value for name, value in options.items() if value not in (None, ())})
    except ValidationError as problem:
        first = problem.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise SettingsError(f"--{name} (or {PREFIX}{name.upper()}) must be given") from problem
        told = first["msg"].removeprefix("Value error, ")
        given = "not given" if first["input"] is None else repr(str(first["input"]))
        raise SettingsError(f"--{name.replace('_', '-')} (or {PREFIX}{name.upper()}) is {given}: {told}") from problem
