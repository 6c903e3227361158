"""`python -m tests.soak.orders`: what callers feel of rollbacks, labels, and versions that are damaged or too large.

Each is done again and again under 70 % of the load that a service bears, and its latencies are told beside those of
blocks in which nothing happens; so are switches of a service that has three versions loaded.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from tests.soak.blocks import Round, asked_and_failed, compared
from tests.soak.publishing import Publisher
from tests.soak.switches import SHOW, Seen, command, pressure_on, service_of

EVERY_S = 1.0
"""From one thing that is done to the next, at least: an order takes 4 ms of CPU."""
Deed = Callable[[Publisher], None]
DEEDS: dict[str, Deed] = {
    "rollbacks": Publisher.go_back_and_forth,
    "labels": Publisher.move_label,
    "versions that do not fit": Publisher.publish_too_large,
    "damaged versions": Publisher.publish_damaged,
}
"""What is done in turns to one service, each time behind a version that has just come."""
THREE = {"switches of three": Publisher.next}
"""What is done to one that has three versions loaded."""


def press(deeds: Mapping[str, Deed], latest: int, rounds: int, workers: int, block_s: float, towers: Path) -> list[str]:
    """Does things in turns under load to a service of so many versions; returns what is wrong."""
    seen, found = Seen(), {what: list[Round]() for what in deeds}
    order_s: dict[str, list[float]] = {}
    options = ("--versions-latest", str(latest))
    with service_of(towers, *options, workers=workers, kept=latest + 1) as (service, publisher):
        with pressure_on(service, publisher, seen, block_s, EVERY_S) as pressure:
            for number in range(rounds):
                publisher.next()
                for what, act in deeds.items():
                    publisher.order_s = order_s.setdefault(what, [])
                    found[what].append(pressure.round(partial(act, publisher), number))
        wrong = [] if service.stop(signal.SIGTERM) == 0 else ["the service did not drain"]
    for what, blocks in found.items():
        asked, failed = asked_and_failed(blocks)
        SHOW.print(f"{what}: {asked} answers timed, {failed} failed")
        for line in compared(blocks, "them"):
            SHOW.print(" ", line)
        if order_s[what]:
            half, most = np.percentile(order_s[what], (50, 99)) * 1e3
            SHOW.print(f"  {len(order_s[what])} orders were in effect after {half:.0f} ms, 99 of 100 after {most:.0f}")
        wrong += [f"{what}: {failed} calls failed"] if failed else []
    SHOW.print(
        f"{sum(seen.counts.values())} answers compared, of {len({version for _, version in seen.answers})} versions"
    )
    return wrong + seen.failures[:5]


def run(rounds: int, workers: int, block_s: float, towers: Path) -> list[str]:
    """Gives each order in so many blocks; returns what is wrong."""
    how = (rounds, workers, block_s, towers)
    return press(DEEDS, 1, *how) + press(THREE, 3, *how)


if __name__ == "__main__":
    command("orders", __doc__, ("--rounds", 20, "blocks in which each is done"), run)
