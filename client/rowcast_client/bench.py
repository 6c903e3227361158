"""`rowcast bench`: load on a running service, from recorded requests or from examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from rowcast_client.client import AsyncClient, Client
from rowcast_client.errors import InvalidArgument
from rowcast_client.load import LoadSettings, apply_load
from rowcast_client.load_report import (
    Report,
    compare,
    last_report_file,
    load_report,
    read_report,
    report_lines,
    save_report,
)
from rowcast_client.load_requests import example_requests, recorded_requests
from rowcast_client.output_file import OutputFile, OutputRejected
from rowcast_client.retries import Retries

CONCURRENCY = 8
"""The number of callers, unless a rate or another number is given."""
SECONDS = 10.0


def bench(
    connection: Mapping[str, Any],
    model: str = "",
    *,
    rate: float = 0,
    concurrency: int = 0,
    seconds: float = SECONDS,
    timeout_s: float,
    call: str = "",
    requests: Path | None = None,
    context: Mapping[str, Any] | None = None,
    compare_file: Path | None = None,
    note: Callable[[str], object],
    **version: Any,
) -> tuple[Report, Callable[[Any], Iterable[Table | str]]]:
    """Sends load to a service and measures latencies, errors and throughput.

    Args:
      connection: The arguments of `Client`, without its rules of retries.
      model: The model; "": the only one.
      rate: Requests per second, whether or not earlier ones have a response (open loop).
      concurrency: The number of callers that each wait for their response (closed loop).
      seconds: The time in which requests are sent.
      timeout_s: The timeout of each request.
      call: The call to send.
      requests: Recorded requests; None: examples by the description of the model.
      context: Features that all examples have.
      compare_file: The report to compare with; None: the last one of the same load.
      note: Receives a line for people before the load starts.
      version: `version` or `label`, if it is not the current one.

    Returns:
      The report, and the function that shows it.

    Raises:
      RowcastError: The arguments do not fit, or the service cannot be reached. Requests of the load
        that fail are counted in the report.
    """
    if not rate and not concurrency:
        concurrency = CONCURRENCY
    settings = LoadSettings(rate, concurrency, seconds, timeout_s)
    if requests is not None and context:
        raise InvalidArgument("features belong to examples: leave --feature or --requests out")
    earlier = None
    if compare_file is not None:
        earlier = read_report(compare_file)
    with Client(**connection, timeout_s=timeout_s, retries=Retries(attempts_max=4)) as client:
        details = client.model(model, **version)
        url = ",".join(address.url for address in client.addresses)
        if requests is None:
            load_requests = example_requests(
                client, details, call, context, model=details.model, **version
            )
        else:
            load_requests = recorded_requests(requests, call, model=details.model, **version)
    note(f"sending to {details.model} version {details.version} for {seconds:g} s")

    open_client = partial(AsyncClient, **connection, retries=Retries(attempts_max=1))
    load = apply_load(open_client, load_requests.calls, settings)

    subject = {
        "url": url,
        "model": details.model,
        "version": details.version,
        "options": {**version, "call": call, "features": dict(context or {})},
        "source": load_requests.source,
        "requests": len(load_requests.calls),
    }
    report = load_report(load, settings, subject)
    if load_requests.unreadable:
        report["warnings"].append(
            f"{load_requests.unreadable} recorded requests cannot be read, and are not sent"
        )
    if load_requests.from_json:
        report["warnings"].append(
            f"{load_requests.from_json} requests were recorded as JSON, and are sent as protobuf, "
            "which costs the service less"
        )
    _compare_and_keep(report, earlier)
    return report, report_lines


def _compare_and_keep(report: Report, earlier: Report | None) -> None:
    """Adds the comparison with an earlier report, by default the last one of the same load, and
    keeps the report for the next run. The figures are worth more than a file that is damaged: its
    error is a warning.
    """
    last_file = last_report_file(report)
    if earlier is None and last_file.exists():
        with _as_warning(report):
            earlier = read_report(last_file)
    if earlier is not None:
        report["comparison"] = compare(report, earlier)
    # What was interrupted is no measure for the next run.
    if not report["interrupted"]:
        with _as_warning(report):
            last_file.parent.mkdir(parents=True, exist_ok=True)
            save_report(report, OutputFile(last_file))


@contextmanager
def _as_warning(report: Report) -> Iterator[None]:
    """Makes an error about a file a warning of the report."""
    try:
        yield
    except (InvalidArgument, OutputRejected, OSError) as error:
        report["warnings"].append(str(error))
