"""`python -m benchmarks.soak.commands`: rollbacks, labels, and versions that are damaged or too
large, under load.

Each is done again and again at 70 % of the load that a service bears, and its latencies are
compared with those of blocks in which nothing happens; so are switches of a service that has three
versions loaded.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.soak.blocks import Round, compared, sent_and_failed
from benchmarks.soak.publishing import Publisher
from benchmarks.soak.switches import SHOW, Pace, Seen, command, pressure_on, service_of

INTERVAL_S = 1.0
Action = Callable[[Publisher], None]
ACTIONS: dict[str, Action] = {
    "rollbacks": Publisher.roll_back_and_forth,
    "labels": Publisher.move_label,
    "versions that do not fit": Publisher.publish_too_large,
    "damaged versions": Publisher.publish_damaged,
}
THREE = {"switches of three": Publisher.next}


def press(
    actions: Mapping[str, Action],
    latest: int,
    rounds: int,
    workers: int,
    pace: Pace,
    towers: Path,
) -> list[str]:
    """Does each in turn, under load, to a service of `latest` versions; returns what is wrong."""
    seen = Seen()
    rounds_by_action = {what: list[Round]() for what in actions}
    command_s: dict[str, list[float]] = {}
    options = ("--latest-versions", str(latest))
    with service_of(towers, *options, workers=workers, kept_versions=latest + 1) as (
        service,
        publisher,
    ):
        with pressure_on(service, publisher, seen, pace, INTERVAL_S) as pressure:
            for number in range(rounds):
                publisher.next()
                for what, act in actions.items():
                    publisher.command_s = command_s.setdefault(what, [])
                    rounds_by_action[what].append(pressure.round(partial(act, publisher), number))
        wrong = [] if service.stop(signal.SIGTERM) == 0 else ["the service did not drain"]
    for what, blocks in rounds_by_action.items():
        sent_count, failed = sent_and_failed(blocks)
        SHOW.print(f"{what}: {sent_count} requests timed, {failed} failed")
        for line in compared(blocks, what):
            SHOW.print(" ", line)
        if command_s[what]:
            half, most = np.percentile(command_s[what], (50, 99)) * 1e3
            SHOW.print(
                f"  {len(command_s[what])} commands were in effect after {half:.0f} ms, p99 "
                f"{most:.0f} ms"
            )
        wrong += [f"{what}: {failed} requests failed"] if failed else []
    versions = {version for _, version in seen.responses}
    SHOW.print(f"{sum(seen.counts.values())} responses of {len(versions)} versions compared")
    return wrong + seen.failures[:5]


def run(rounds: int, workers: int, pace: Pace, towers: Path) -> list[str]:
    """Does each in `rounds` blocks; returns what is wrong."""
    options = (rounds, workers, pace, towers)
    return press(ACTIONS, 1, *options) + press(THREE, 3, *options)


if __name__ == "__main__":
    command("commands", __doc__, ("--rounds", 20, "blocks in which each is done"), run)
