"""The report of a load: percentiles, errors by code, what limited it, and the change since an
earlier report.

A report is a dict that JSON can hold, so that a saved one is what `rowcast bench --json` prints.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from rowcast_client.errors import InvalidArgument
from rowcast_client.load import Load, LoadSettings
from rowcast_client.output_file import OutputFile, OutputStream

PERCENTILES = (50, 90, 99, 99.9)
CPU_SHARE_MAX = 0.9
"""Share of a core above which the generator may be the limit."""
LATE_SHARE_MAX = 0.1
"""Share of the 99th percentile of the latency above which the generator's own delay distorts it."""
LATE_MIN_MS = 1.0
"""Delays of the generator below this are no reason for a warning."""
RATE_SHARE_MIN = 0.95
"""Share of the requested rate below which the report says that it was not reached."""

COMPARED = {"requests_per_s": "requests/s", "p50": "p50 ms", "p99": "p99 ms"}
"""The figures that are compared with those of an earlier report, by name, with their titles."""
READ = (
    "at",
    "url",
    "model",
    "version",
    "source",
    "settings",
    "failed",
    "requests_per_s",
    "latency_ms",
)
"""What a comparison reads of an earlier report."""

Report = dict[str, Any]


def load_report(load: Load, settings: LoadSettings, subject: Mapping[str, Any]) -> Report:
    """Returns the report of a run.

    Args:
      load: What was measured.
      settings: How much was sent.
      subject: What it was sent to, and what was sent: the values that precede the figures.
    """
    succeeded = len(load.latencies_s)
    failed = sum(load.errors.values())
    elapsed_s = max(load.elapsed_s, 1e-9)
    latency_ms = _percentiles_ms(load.latencies_s)
    generator: Report = {
        "late_p99_ms": _percentiles_ms(load.late_s).get("p99", 0.0),
        "cpu_share": load.cpu_s / elapsed_s,
    }
    report: Report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        **subject,
        "settings": {
            "rate_per_s": settings.rate_per_s,
            "concurrency": settings.concurrency,
            "seconds": settings.seconds,
            "timeout_s": settings.timeout_s,
        },
        "interrupted": load.interrupted,
        "elapsed_s": load.elapsed_s,
        "succeeded": succeeded,
        "failed": failed,
        "unfinished": load.unfinished,
        "errors": {
            code: {"count": count, "message": load.messages[code]}
            for code, count in load.errors.most_common()
        },
        "requests_per_s": succeeded / elapsed_s,
        "latency_ms": latency_ms,
        "generator": generator,
    }
    report["warnings"] = [*_warnings(report)]
    return report


def _percentiles_ms(seconds: Any) -> dict[str, float]:
    """Returns percentiles and the maximum, in milliseconds; nothing of no values."""
    if not seconds:
        return {}
    values_ms = np.frombuffer(seconds) * 1e3
    percentiles = {
        f"p{percent:g}": float(value)
        for percent, value in zip(PERCENTILES, np.percentile(values_ms, PERCENTILES), strict=True)
    }
    return {**percentiles, "max": float(values_ms.max())}


def _warnings(report: Report) -> Iterable[str]:
    """Yields what limits the value of the figures."""
    generator = report["generator"]
    if generator["cpu_share"] > CPU_SHARE_MAX:
        yield (
            f"the load generator used {generator['cpu_share']:.0%} of a core: it may be the limit, "
            "not the service; lower the load, or run the command several times at once"
        )
    p99_ms = report["latency_ms"].get("p99", 0.0)
    late_ms = generator["late_p99_ms"]
    if late_ms > max(LATE_MIN_MS, p99_ms * LATE_SHARE_MAX):
        yield (
            f"the load generator itself ran late, by {late_ms:.1f} ms at the 99th percentile: "
            "latencies include that; run it on a machine with a free core"
        )
    rate_per_s = report["settings"]["rate_per_s"]
    if not report["interrupted"] and report["requests_per_s"] < RATE_SHARE_MIN * rate_per_s:
        yield f"{report['requests_per_s']:.1f} of {rate_per_s:g} requests per second succeeded"


def report_lines(report: Report) -> Iterable[Table | str]:
    """Shows a report."""
    yield (
        f"{report['model']} version {report['version']} at {report['url']}: "
        f"{report['requests']} {report['source']}"
    )
    settings = report["settings"]
    load = f"{settings['concurrency']} callers"
    if settings["rate_per_s"]:
        load = f"{settings['rate_per_s']:g} requests per second"
    ended = ""
    if report["interrupted"]:
        ended = f"; interrupted, {report['unfinished']} requests had no response yet"
    yield f"{load} for {report['elapsed_s']:.1f} s{ended}"

    yield (
        f"{report['succeeded']} succeeded, {report['failed']} failed; "
        f"{report['requests_per_s']:.1f} successful requests per second"
    )
    latencies: Mapping[str, float] = report["latency_ms"]
    if latencies:
        table = Table("latency, ms", *latencies)
        table.add_row("", *map(_number, latencies.values()))
        yield table

    for code, error in report["errors"].items():
        yield f"{code}: {error['count']}; the first: {error['message']}"
    for warning in report["warnings"]:
        yield f"warning: {warning}"
    if "comparison" in report:
        yield report["comparison"]["text"]


def _number(value: float) -> str:
    digits = 2
    if value >= 100:
        digits = 0
    return f"{value:.{digits}f}"


def compare(report: Report, earlier: Report) -> Report:
    """Returns what changed since an earlier report: ratios by figure, and a line of text."""
    parts = []
    ratios = {}
    for name, title in COMPARED.items():
        before = _figures(earlier).get(name)
        now = _figures(report).get(name)
        if before and now:
            ratios[name] = now / before
            parts.append(f"{title} {_number(before)} -> {_number(now)} ({ratios[name] - 1:+.0%})")
    parts.append(f"failed {earlier['failed']} -> {report['failed']}")
    text = f"since {earlier['at']}, version {earlier['version']}: {', '.join(parts)}"
    differences = [f"{name} {before} -> {now}" for name, before, now in _differing(earlier, report)]
    if differences:
        text += f". The loads differ: {', '.join(differences)}"
    return {"at": earlier["at"], "version": earlier["version"], "ratios": ratios, "text": text}


def _figures(report: Report) -> dict[str, float]:
    return {**report["latency_ms"], "requests_per_s": report["requests_per_s"]}


def _differing(earlier: Report, report: Report) -> Iterable[tuple[str, Any, Any]]:
    """Yields what was measured otherwise, with both values."""
    described = [
        {name: side[name] for name in ("url", "model", "source")} | side["settings"]
        for side in (earlier, report)
    ]
    before, now = described
    for name, value in now.items():
        if before.get(name) != value:
            yield name, before.get(name), value


def last_report_file(report: Report) -> Path:
    """Returns the file of the user's cache directory that holds the last report of the same
    service, model, requests and settings.
    """
    identity = [report[name] for name in ("url", "model", "options", "source", "settings")]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rowcast" / "bench" / f"{name}.json"


def read_report(file: Path) -> Report:
    """Reads a saved report.

    Raises:
      InvalidArgument: There is no file, or it is no report.
    """
    try:
        report: Report = json.loads(file.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidArgument(f"{file} is not a report of rowcast bench: {error}") from error
    if not isinstance(report, dict) or not report.keys() >= set(READ):
        raise InvalidArgument(
            f"{file} is not a report of rowcast bench: expected an object with {', '.join(READ)}"
        )
    return report


def save_report(report: Report, file: OutputFile | OutputStream) -> None:
    """Saves a report.

    Raises:
      OutputRejected: Meanwhile something else than a regular file has the name.
      OSError: The file or stream cannot be written.
    """
    content = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    file.write(content.encode())
