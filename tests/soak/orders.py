"""`python -m tests.soak.orders`: what callers feel of rollbacks, labels, and versions that are damaged or too large.

Each is done again and again under 70 % of the load that a service bears, and its latencies are told beside those of
blocks in which nothing happens; so are switches of a service that has three versions loaded.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.bench import cores
from tests.service.small_bundle import compiled_towers
from tests.soak.blocks import asked_and_failed, compared
from tests.soak.publishing import Publisher
from tests.soak.switches import SHOW, Seen, pressure_on, service_of

DEEDS: dict[str, tuple[Callable[[Publisher], None], int]] = {
    "rollbacks": (Publisher.go_back_and_forth, 1),
    "moves of a label": (Publisher.move_label, 1),
    "versions found damaged": (Publisher.publish_damaged, 1),
    "versions that do not fit": (Publisher.publish_too_large, 1),
    "switches of three": (Publisher.next, 3),
}
"""What is done, and how many versions are loaded without being asked for."""


def press(what: str, rounds: int, workers: int, block_s: float, towers: Path) -> list[str]:
    """Does one thing under load; returns what is wrong."""
    act, latest = DEEDS[what]
    seen = Seen()
    options = ("--versions-latest", str(latest))
    with service_of(towers, *options, workers=workers, kept=latest + 1) as (service, publisher):
        with pressure_on(service, publisher, seen, block_s) as pressure:
            publisher.next()
            found = [pressure.round(lambda: act(publisher), number) for number in range(rounds)]
        wrong = [] if service.stop(signal.SIGTERM) == 0 else ["the service did not drain"]
    asked, failed = asked_and_failed(found)
    SHOW.print(f"{what}: {asked} answers timed, {failed} failed; {sum(seen.counts.values())} answers compared")
    for line in compared(found, what):
        SHOW.print(" ", line)
    if publisher.order_s:
        half, most = np.percentile(publisher.order_s, (50, 99)) * 1e3
        SHOW.print(f"  {len(publisher.order_s)} orders were in effect after {half:.0f} ms, 99 of 100 after {most:.0f}")
    return wrong + seen.failures[:5] + ([f"{failed} calls failed"] if failed else [])


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=20, help="blocks of each")
    arguments.add_argument("--workers", type=int, default=1, help="processes of the service")
    arguments.add_argument("--block-s", type=float, default=2, help="seconds of each block of load")
    arguments.add_argument("--what", choices=DEEDS, action="append", help="what is done; left out: everything")
    options = arguments.parse_args()
    SHOW.print(cores.serve_on_few())
    towers = Path("build/soak/towers").resolve()
    towers.mkdir(parents=True, exist_ok=True)
    wrong = [
        f"{what}: {problem}"
        for what in options.what or DEEDS
        for problem in press(what, options.rounds, options.workers, options.block_s, compiled_towers(towers))
    ]
    for problem in wrong:
        SHOW.print("WRONG:", problem)
    SHOW.print("orders:", "failed" if wrong else "passed")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
