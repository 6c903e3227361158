"""Options of `rowcast-serve` for settings, and commands of its `ctl` for changes.
Generated from service/config.py and service/contract/changes.py; see scripts/command_options.py.
"""

from __future__ import annotations

from typing import NamedTuple


class SettingOption(NamedTuple):
    """The option of a setting.

    Attributes:
      name: The name of the setting.
      metavar: The placeholder for the value; "": the option is a switch.
      is_repeatable: Whether the setting is a list.
      text: The help.
    """

    name: str
    metavar: str
    is_repeatable: bool
    text: str


class ChangeCommand(NamedTuple):
    """The command that makes a change.

    Attributes:
      kind: What is changed.
      action: What is done to it.
      options: The names of the fields of a request, beside its items.
      text: The help.
    """

    kind: str
    action: str
    options: tuple[str, ...]
    text: str


SETTINGS = (
    SettingOption(
        "root",
        "<path>",
        False,
        "Directory that holds the bundles, as `<root>/<model>/<version>/`. It must exist and can "
        "be empty. [env: ROWCAST_ROOT]",
    ),
    SettingOption(
        "host",
        "<text>",
        False,
        "Address on which the HTTP and gRPC endpoints listen. 0.0.0.0 listens on every IPv4 "
        "interface, :: also on IPv6. [default: 127.0.0.1] [env: ROWCAST_HOST]",
    ),
    SettingOption(
        "http_port",
        "<int>",
        False,
        "Port of the HTTP endpoint. 0 selects any free port. (at least 0, at most 65535) "
        "[default: 8080] [env: ROWCAST_HTTP_PORT]",
    ),
    SettingOption(
        "grpc_port",
        "<int>",
        False,
        "Port of the gRPC endpoint. 0 selects any free port. (at least 0, at most 65535) "
        "[default: 9090] [env: ROWCAST_GRPC_PORT]",
    ),
    SettingOption(
        "protocols",
        "<text>",
        True,
        "Protocol that clients of other servers speak, which the service speaks beside its own, "
        "on the same ports: tensorflow-serving (the REST and gRPC APIs of TensorFlow Serving) or "
        "open-inference (the Open Inference Protocol v2 of KServe and Triton). Repeatable; "
        "separate several with commas. [env: ROWCAST_PROTOCOLS]",
    ),
    SettingOption(
        "ports_file",
        "<path>",
        False,
        'File to which the service writes its ports once it listens, as JSON: `{"http": N, '
        '"grpc": N, "admin": N, "health": N}`. [env: ROWCAST_PORTS_FILE]',
    ),
    SettingOption(
        "web_pages",
        "",
        False,
        "Serve the pages for browsers, `/` and `/docs`, and `/openapi.json`, which `/docs` reads. "
        "[default: True] [env: ROWCAST_WEB_PAGES]",
    ),
    SettingOption(
        "health_host",
        "<text>",
        False,
        "Address of health checks and metrics, without token and TLS: only probes and Prometheus "
        "should reach it. Default: `host`. [env: ROWCAST_HEALTH_HOST]",
    ),
    SettingOption(
        "health_port",
        "<int>",
        False,
        "Port of `/livez`, `/readyz` and `/metrics` on an address of their own. 0 selects any "
        "free port. Default: 8081, or any free port if 8081 is in use. (at least 0, at most "
        "65535) [env: ROWCAST_HEALTH_PORT]",
    ),
    SettingOption(
        "health_grpc_port",
        "<int>",
        False,
        "Port of `grpc.health.v1.Health` at health_host. 0 selects any free port. Default: not "
        "served there. (at least 0, at most 65535) [env: ROWCAST_HEALTH_GRPC_PORT]",
    ),
    SettingOption(
        "changes_from",
        "<text>",
        True,
        "Name of a token or certificate whose client may change candidates and contexts at the "
        "HTTP endpoint, as operators may at the admin API. Repeatable; in the environment, "
        "separate the names with commas. [env: ROWCAST_CHANGES_FROM]",
    ),
    SettingOption(
        "changes_dir",
        "<path>",
        False,
        "Directory of the changes, as `<changes_dir>/<model>/changes.sqlite`, on a local disk. "
        "Default: `root`. [env: ROWCAST_CHANGES_DIR]",
    ),
    SettingOption(
        "follow_changes",
        "<text>",
        False,
        "URL of the service that takes the changes, such as `http://writer:8080` or its admin "
        "API. This service copies them, is ready once it has caught up, and rejects changes that "
        "are sent to it. Default: this service takes changes. [default: ] [env: "
        "ROWCAST_FOLLOW_CHANGES]",
    ),
    SettingOption(
        "follow_changes_token",
        "<path>",
        False,
        "File with the token that is sent to `follow_changes`, whose setting `changes_from` must "
        "name it. [env: ROWCAST_FOLLOW_CHANGES_TOKEN]",
    ),
    SettingOption(
        "follow_changes_ca",
        "<path>",
        False,
        "File of certificate authorities for the certificate of `follow_changes`, PEM. Default: "
        "those of the system. [env: ROWCAST_FOLLOW_CHANGES_CA]",
    ),
    SettingOption(
        "require",
        "<text>",
        True,
        "Model that must load at start; if it cannot, the service exits with code 7. Repeatable; "
        "in the environment, separate the names with commas. [env: ROWCAST_REQUIRE]",
    ),
    SettingOption(
        "precision",
        "<f32|int8|bf16>",
        False,
        "Precision at which towers run, if they were exported at it. Default: as each bundle "
        "specifies. bf16 requires the extra `savedmodel`. [env: ROWCAST_PRECISION]",
    ),
    SettingOption(
        "device",
        "<cpu|gpu>",
        False,
        "Device on which towers run. gpu runs their SavedModels, which requires the extra `gpu` "
        "and a GPU; tables stay in CPU memory. [default: cpu] [env: ROWCAST_DEVICE]",
    ),
    SettingOption(
        "verify",
        "<sizes|full>",
        False,
        "How tables, and the vectors of large indexes, are verified before a version is served: "
        "sizes compares file sizes, full reads and checksums every byte. [default: sizes] [env: "
        "ROWCAST_VERIFY]",
    ),
    SettingOption(
        "verify_signatures",
        "<text>",
        True,
        "File of a public key, or of certificate authorities, PEM. Only versions whose signature "
        "is by one of these keys, or by a certificate of one of these authorities, are served; "
        "every byte is read and compared with the signature first. The file is read again for "
        "each version. Repeatable; in the environment, separate the files with commas. Needs the "
        "extra `sign`. Default: signatures are not verified. [env: ROWCAST_VERIFY_SIGNATURES]",
    ),
    SettingOption(
        "scrub_bytes_per_s",
        "<int>",
        False,
        "Rate at which tables and vectors are compared with their checksums in the background, in "
        "bytes per second, over all workers. 0 disables it. (at least 0) [default: 33554432] "
        "[env: ROWCAST_SCRUB_BYTES_PER_S]",
    ),
    SettingOption(
        "prefetch_max_bytes",
        "<int>",
        False,
        "Maximum size of a version's tables that each process reads into memory in the "
        "background, in bytes: whole tables, the smallest first. 0 disables the prefetch. (at "
        "least 0) [default: 0] [env: ROWCAST_PREFETCH_MAX_BYTES]",
    ),
    SettingOption(
        "prefetch_bytes_per_s",
        "<int>",
        False,
        "Rate of the prefetch, in bytes per second. (at least 1) [default: 268435456] [env: "
        "ROWCAST_PREFETCH_BYTES_PER_S]",
    ),
    SettingOption(
        "context_states",
        "<path>",
        False,
        "Directory in which the workers of a host share what ranking towers have computed of the "
        "histories of contexts, so that a request whose history has a few more events than an "
        "earlier one computes these alone. It may be lost at any time. Absent: every request "
        "computes its history. [env: ROWCAST_CONTEXT_STATES]",
    ),
    SettingOption(
        "context_states_bytes",
        "<int>",
        False,
        "Size of the files in `context_states`, about, in bytes: the ones that were not read for "
        "the longest time are removed. (at least 268435456) [default: 4294967296] [env: "
        "ROWCAST_CONTEXT_STATES_BYTES]",
    ),
    SettingOption(
        "context_states_age_s",
        "<float>",
        False,
        "Age at which a history in `context_states` that no request reads is removed, in seconds. "
        "(above 0) [default: 86400.0] [env: ROWCAST_CONTEXT_STATES_AGE_S]",
    ),
    SettingOption(
        "max_load_bytes",
        "<int>",
        False,
        "Maximum memory that loading one version can use, in bytes, without its mapped tables. 0 "
        "allows the memory that is free. (at least 0) [default: 0] [env: ROWCAST_MAX_LOAD_BYTES]",
    ),
    SettingOption(
        "shard",
        "<text>",
        False,
        "Serve as one shard: hold one part of all large tables and indexes, and serve routers "
        "instead of clients. The value is the number of the shard and the number of shards, such "
        "as 1/4. [env: ROWCAST_SHARD]",
    ),
    SettingOption(
        "shard_addresses",
        "<text>",
        True,
        "Serve as a router of the shards at these addresses: `HOST:PORT` of a gRPC endpoint, "
        "`dns:NAME:PORT` for all addresses of a name, `file:PATH` for a file with one address per "
        "line, or `ray:HOST:PORT` for the shards that Ray's dashboard lists. Repeatable; in the "
        "environment, separate the addresses with commas. [env: ROWCAST_SHARD_ADDRESSES]",
    ),
    SettingOption(
        "shard_min_bytes",
        "<int>",
        False,
        "Minimum size of the tables that are divided among shards, in bytes. Routers hold the "
        "smaller ones. Set the same value for shards and routers. (at least 1) [default: "
        "1073741824] [env: ROWCAST_SHARD_MIN_BYTES]",
    ),
    SettingOption(
        "shard_min_coverage",
        "<float>",
        False,
        "Minimum share of the rows of a request that shards must return, of tables whose lost "
        "rows count as unknown (`unavailable` in the recipe); of other tables, all are required. "
        "A request below it fails with NOT_READY. (at least 0, at most 1) [default: 0.0] [env: "
        "ROWCAST_SHARD_MIN_COVERAGE]",
    ),
    SettingOption(
        "shard_min_searched",
        "<float>",
        False,
        "Minimum share of an index's candidates that shards must search. Below 1, the response "
        "has the share as `coverage`. (above 0, at most 1) [default: 1.0] [env: "
        "ROWCAST_SHARD_MIN_SEARCHED]",
    ),
    SettingOption(
        "ready_requires_shards",
        "",
        False,
        "Let a router be ready only while every shard of its versions responds. [default: False] "
        "[env: ROWCAST_READY_REQUIRES_SHARDS]",
    ),
    SettingOption(
        "shard_ca",
        "<path>",
        False,
        "File of certificate authorities for the certificates of shards, PEM. A router then "
        "connects with TLS, with tls_cert as its client certificate. Changed files are reloaded. "
        "[env: ROWCAST_SHARD_CA]",
    ),
    SettingOption(
        "shard_token",
        "<path>",
        False,
        "File with the token that a router sends to shards. [env: ROWCAST_SHARD_TOKEN]",
    ),
    SettingOption(
        "latest_versions",
        "<int>",
        False,
        "Number of newest versions of a model to keep loaded. Older ones serve only requests that "
        "name them. A shard keeps at least 2, because routers use the older version until every "
        "shard has the newest. (at least 1, at most 100) [default: 1] [env: "
        "ROWCAST_LATEST_VERSIONS]",
    ),
    SettingOption(
        "keep_previous",
        "",
        False,
        "Keep the previously current version loaded for a rollback, which needs the memory of a "
        "second version. [default: True] [env: ROWCAST_KEEP_PREVIOUS]",
    ),
    SettingOption(
        "state_file",
        "<path>",
        False,
        "File of the desired state, which `rowcast-serve ctl` edits. Default: "
        "`.rowcast-state.json` under the root. [env: ROWCAST_STATE_FILE]",
    ),
    SettingOption(
        "admin",
        "",
        False,
        "Serve the admin API, which `rowcast-serve ctl` calls, at an address of its own. "
        "[default: True] [env: ROWCAST_ADMIN]",
    ),
    SettingOption(
        "admin_host",
        "<text>",
        False,
        "Address on which the admin API listens. An address that other machines can reach "
        "requires admin_tokens. [default: 127.0.0.1] [env: ROWCAST_ADMIN_HOST]",
    ),
    SettingOption(
        "admin_port",
        "<int>",
        False,
        "Port of the admin API. 0 selects any free port. Default: 8090, or any free port if 8090 "
        "is in use. (at least 0, at most 65535) [env: ROWCAST_ADMIN_PORT]",
    ),
    SettingOption(
        "admin_tokens",
        "<path>",
        False,
        "File of operators' tokens, in the format of `tokens`. Without it, every user of this "
        "machine can use the admin API. [env: ROWCAST_ADMIN_TOKENS]",
    ),
    SettingOption(
        "record_rate",
        "<float>",
        False,
        "Fraction of successful requests to record on disk and to replay to a new version before "
        "it is served. (at least 0, at most 1) [default: 0.0] [env: ROWCAST_RECORD_RATE]",
    ),
    SettingOption(
        "record_max_bytes",
        "<int>",
        False,
        "Maximum size of the recorded requests of one model, in bytes. At the limit, the older "
        "half is deleted. (at least 65536, at most 4294967296) [default: 33554432] [env: "
        "ROWCAST_RECORD_MAX_BYTES]",
    ),
    SettingOption(
        "record_dir",
        "<path>",
        False,
        "Directory of the recorded requests. Default: `.rowcast-recordings` under the root. [env: "
        "ROWCAST_RECORD_DIR]",
    ),
    SettingOption(
        "poll_interval_s",
        "<float>",
        False,
        "Interval between two scans of the root for new versions, in seconds. (at least 0.05, at "
        "most 3600) [default: 2.0] [env: ROWCAST_POLL_INTERVAL_S]",
    ),
    SettingOption(
        "live_recall_share",
        "<float>",
        False,
        "Fraction of the searches of approximate indexes that are repeated exactly while no "
        "request is in progress, to measure the live recall. 0 disables it. Shards do not measure "
        "it. (at least 0, at most 1) [default: 0.01] [env: ROWCAST_LIVE_RECALL_SHARE]",
    ),
    SettingOption(
        "live_recall_cpu",
        "<float>",
        False,
        "Maximum share of one core that each process spends on these exact searches. Further "
        "queries are dropped and counted. (above 0, at most 1) [default: 0.01] [env: "
        "ROWCAST_LIVE_RECALL_CPU]",
    ),
    SettingOption(
        "workers",
        "<int>",
        False,
        "Number of processes that serve on the same ports. Each has its own towers and indexes; "
        "tables are in memory once. (at least 1, at most 256) [default: 1] [env: ROWCAST_WORKERS]",
    ),
    SettingOption(
        "worker_timeout_s",
        "<float>",
        False,
        "Time without a sign of life after which a worker process is killed and replaced, in "
        "seconds. (at least 5, at most 3600) [default: 20.0] [env: ROWCAST_WORKER_TIMEOUT_S]",
    ),
    SettingOption(
        "threads",
        "<int>",
        False,
        "Number of compute threads in each process. 0 divides the available cores (CPU affinity "
        "and cgroup quota) by the number of workers. (at least 0, at most 1024) [default: 0] "
        "[env: ROWCAST_THREADS]",
    ),
    SettingOption(
        "inline_max_us",
        "<int>",
        False,
        "Maximum estimated time of a request that is computed on the event loop instead of the "
        "compute threads, in microseconds. A batch of several may take as long, and at least "
        "2000. Default: 500, 2000 while requests come one after the other, or 10000 in a process "
        "with one compute thread. (at least 0, at most 1000000) [env: ROWCAST_INLINE_MAX_US]",
    ),
    SettingOption(
        "max_concurrent_requests",
        "<int>",
        False,
        "Maximum number of requests in progress in one process. Further requests are rejected at "
        "once. (at least 1, at most 100000) [default: 512] [env: ROWCAST_MAX_CONCURRENT_REQUESTS]",
    ),
    SettingOption(
        "max_queued_candidates",
        "<int>",
        False,
        "Maximum number of candidates in the requests that wait for computation in one process; a "
        "query or an example counts as one. A further request is rejected, unless the queue is "
        "empty. (at least 1, at most 1000000000) [default: 12800] [env: "
        "ROWCAST_MAX_QUEUED_CANDIDATES]",
    ),
    SettingOption(
        "max_inflight_bytes",
        "<int>",
        False,
        "Maximum size of all request bodies, compressed and decompressed, of what large requests "
        "take beyond that once they are decoded, and of all responses larger than 64 KiB in one "
        "process, in bytes; at least max_request_bytes and max_response_bytes. The default is "
        "lower where a quarter of the memory, or of the limit of the cgroup, is less for all "
        "processes. (at least 1024) [default: 1073741824] [env: ROWCAST_MAX_INFLIGHT_BYTES]",
    ),
    SettingOption(
        "retry_after_s",
        "<float>",
        False,
        "Minimum `retry-after` of a rejected request, in seconds. Clients receive it in whole "
        "seconds, at least 1. (above 0, at most 3600) [default: 1.0] [env: ROWCAST_RETRY_AFTER_S]",
    ),
    SettingOption(
        "request_timeout_s",
        "<float>",
        False,
        "Maximum time for one request, in seconds. A client's deadline can only be shorter. "
        "(above 0, at most 3600) [default: 10.0] [env: ROWCAST_REQUEST_TIMEOUT_S]",
    ),
    SettingOption(
        "body_timeout_s",
        "<float>",
        False,
        "Maximum time for the body of a request to arrive, and for a client to read each 64 KiB "
        "of a large HTTP response, in seconds. (above 0, at most 3600) [default: 10.0] [env: "
        "ROWCAST_BODY_TIMEOUT_S]",
    ),
    SettingOption(
        "drain_delay_s",
        "<float>",
        False,
        "Time after SIGTERM during which health checks fail while requests are still accepted, in "
        "seconds. (at least 0, at most 3600) [default: 1.0] [env: ROWCAST_DRAIN_DELAY_S]",
    ),
    SettingOption(
        "drain_timeout_s",
        "<float>",
        False,
        "Maximum time after drain_delay_s for the requests in progress to finish, in seconds. (at "
        "least 0, at most 3600) [default: 20.0] [env: ROWCAST_DRAIN_TIMEOUT_S]",
    ),
    SettingOption(
        "max_candidates",
        "<int>",
        False,
        "Maximum number of candidates to rank in one request, over all of its contexts. (at least "
        "1, at most 10000000) [default: 20000] [env: ROWCAST_MAX_CANDIDATES]",
    ),
    SettingOption(
        "max_k",
        "<int>",
        False,
        "Maximum number of neighbors per query. (at least 1, at most 1000000) [default: 1000] "
        "[env: ROWCAST_MAX_K]",
    ),
    SettingOption(
        "max_queries",
        "<int>",
        False,
        "Maximum number of queries, contexts or examples in one request. (at least 1, at most "
        "1000000) [default: 1024] [env: ROWCAST_MAX_QUERIES]",
    ),
    SettingOption(
        "max_changed_candidates",
        "<int>",
        False,
        "Maximum number of changes of candidates of one corpus, or of contexts of one context "
        "store, that are held beside those of the bundle. (at least 1, at most 100000000) "
        "[default: 100000] [env: ROWCAST_MAX_CHANGED_CANDIDATES]",
    ),
    SettingOption(
        "max_changes_bytes",
        "<int>",
        False,
        "Maximum size of the changes of one model, in bytes. Further changes are rejected. Each "
        "start reads all of them: 8 GiB hold some ten million candidates, and take minutes. (at "
        "least 1048576) [default: 8589934592] [env: ROWCAST_MAX_CHANGES_BYTES]",
    ),
    SettingOption(
        "deletions_kept_days",
        "<float>",
        False,
        "Time for which deletions and expired candidates that no loaded bundle has are kept, in "
        "days. Later, a change with a smaller number of its sender counts as the first one, and "
        "services that have not followed for as long have to begin anew. (at least 0, at most "
        "3650) [default: 7.0] [env: ROWCAST_DELETIONS_KEPT_DAYS]",
    ),
    SettingOption(
        "max_streams",
        "<int>",
        False,
        "Maximum number of streams of one model. A change of a further stream is rejected. (at "
        "least 1, at most 1000000) [default: 1000] [env: ROWCAST_MAX_STREAMS]",
    ),
    SettingOption(
        "max_values",
        "<int>",
        False,
        "Maximum number of values in one request, over all of its features, ids and exclusions. "
        "(at least 1, at most 1000000000) [default: 1000000] [env: ROWCAST_MAX_VALUES]",
    ),
    SettingOption(
        "filter_cache_bytes",
        "<int>",
        False,
        "Maximum memory of one process for compiled filters, in bytes, with the vectors or codes "
        "of the candidates that match. 0 disables the cache. (at least 0) [default: 268435456] "
        "[env: ROWCAST_FILTER_CACHE_BYTES]",
    ),
    SettingOption(
        "max_features",
        "<int>",
        False,
        "Maximum number of features in one request. (at least 1, at most 1000000) [default: "
        "10000] [env: ROWCAST_MAX_FEATURES]",
    ),
    SettingOption(
        "max_names",
        "<int>",
        False,
        "Maximum number of attributes, of heads, and of indexes whose vectors a change has, in "
        "one request. (at least 1, at most 1000000) [default: 1000] [env: ROWCAST_MAX_NAMES]",
    ),
    SettingOption(
        "max_filter_terms",
        "<int>",
        False,
        "Maximum number of conditions, circles and nested filters in the filter of one request. "
        "(at least 1, at most 10000) [default: 100] [env: ROWCAST_MAX_FILTER_TERMS]",
    ),
    SettingOption(
        "max_request_bytes",
        "<int>",
        False,
        "Maximum size of the body of one request after decompression, in bytes. (at least 1024, "
        "at most 1073741824) [default: 16777216] [env: ROWCAST_MAX_REQUEST_BYTES]",
    ),
    SettingOption(
        "max_response_bytes",
        "<int>",
        False,
        "Maximum size of one response, in bytes, estimated before anything is computed. Protobuf "
        "responses count as if they were JSON. It must be at most max_inflight_bytes. (at least "
        "65536, at most 1073741824) [default: 67108864] [env: ROWCAST_MAX_RESPONSE_BYTES]",
    ),
    SettingOption(
        "tls_cert",
        "<path>",
        False,
        "File of the certificate chain, PEM. HTTP and gRPC then require TLS 1.2 or newer. The "
        "file is reloaded when it changes. [env: ROWCAST_TLS_CERT]",
    ),
    SettingOption(
        "tls_key",
        "<path>",
        False,
        "File of the private key of tls_cert, PEM without a password. [env: ROWCAST_TLS_KEY]",
    ),
    SettingOption(
        "tls_client_ca",
        "<path>",
        False,
        "File of certificate authorities, PEM. Clients must then present a certificate that one "
        "of them signed. [env: ROWCAST_TLS_CLIENT_CA]",
    ),
    SettingOption(
        "tokens",
        "<path>",
        False,
        "File of client tokens. Each line has a name, a token (or sha256: and its digest), and "
        "models. Clients must then send `authorization: Bearer <token>`. The file is reloaded "
        "when it changes. A shard that other machines can reach requires tokens or tls_client_ca. "
        "[env: ROWCAST_TOKENS]",
    ),
    SettingOption(
        "allowed_hosts",
        "<text>",
        True,
        "Name that HTTP requests may have in `Host`, without a port. Default: any name, except on "
        "a loopback address without tokens and client certificates, where only loopback addresses "
        "are accepted. Loopback addresses stay accepted there, and any address at another "
        "health_host. Repeatable; in the environment, separate the names with commas. [env: "
        "ROWCAST_ALLOWED_HOSTS]",
    ),
    SettingOption(
        "max_concurrent_streams",
        "<int>",
        False,
        "Maximum number of concurrent calls on one gRPC connection. Further calls wait in the "
        "client. (at least 1, at most 1000000) [default: 1000] [env: "
        "ROWCAST_MAX_CONCURRENT_STREAMS]",
    ),
    SettingOption(
        "max_connections",
        "<int>",
        False,
        "Maximum number of HTTP connections of one process, and of gRPC connections. Further HTTP "
        "requests get the status 503, and their connections are closed; further gRPC connections "
        "are closed at once. The default is lower where the limit on open files is. (at least 1, "
        "at most 1000000) [default: 20000] [env: ROWCAST_MAX_CONNECTIONS]",
    ),
    SettingOption(
        "keep_alive_s",
        "<int>",
        False,
        "Time after which an idle connection is closed, in seconds; longer than proxies keep idle "
        "connections (usually 60 s). (at least 1, at most 86400) [default: 75] [env: "
        "ROWCAST_KEEP_ALIVE_S]",
    ),
    SettingOption(
        "max_connection_age_s",
        "<float>",
        False,
        "Time after which a gRPC connection is closed, in seconds, so that clients rebalance. 0 "
        "disables this. (at least 0, at most 86400) [default: 0.0] [env: "
        "ROWCAST_MAX_CONNECTION_AGE_S]",
    ),
    SettingOption(
        "log_level",
        "<debug|info|warning|error>",
        False,
        "Minimum severity of log lines. [default: info] [env: ROWCAST_LOG_LEVEL]",
    ),
    SettingOption(
        "access_log",
        "",
        False,
        "Log a line for each request. Lines that the reader of stderr does not take in time are "
        "dropped and counted. [default: False] [env: ROWCAST_ACCESS_LOG]",
    ),
    SettingOption(
        "tracing",
        "",
        False,
        "Send an OpenTelemetry span for each request to a collector, with the time of each phase. "
        "Needs the extra `otel`; the `OTEL_` variables of the OpenTelemetry SDK configure it. "
        "[default: False] [env: ROWCAST_TRACING]",
    ),
)
CHANGES = (
    ChangeCommand(
        "candidates",
        "upsert",
        ("stream", "offset", "from_offset", "corpus"),
        "Add candidates, or replace those with the same ids. An item has id, and optionally "
        "sequence, features, attributes, vectors, expires_s.",
    ),
    ChangeCommand(
        "candidates",
        "delete",
        ("stream", "offset", "from_offset", "corpus"),
        "Delete candidates. Ids that are not there are counted, and are no error.",
    ),
    ChangeCommand(
        "candidates",
        "attributes",
        ("stream", "offset", "from_offset", "corpus"),
        "Change some attributes of candidates. An item has id and attributes, and optionally "
        "sequence.",
    ),
    ChangeCommand(
        "contexts",
        "upsert",
        ("stream", "offset", "from_offset", "store"),
        "Add contexts, or replace those with the same ids. An item has id, and optionally "
        "sequence, features, attributes.",
    ),
    ChangeCommand(
        "contexts",
        "delete",
        ("stream", "offset", "from_offset", "store"),
        "Delete contexts. Ids that are not there are counted, and are no error.",
    ),
    ChangeCommand(
        "contexts",
        "attributes",
        ("stream", "offset", "from_offset", "store"),
        "Change some attributes of contexts. An item has id and attributes, and optionally "
        "sequence.",
    ),
)
