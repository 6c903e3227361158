"""`make soak-export`: exports killed at random moments and begun again, hundreds of times; ends by
itself.

Each point is a kill, the same command again, and a comparison: the bundle is that of an undisturbed
run, byte for byte but for what two undisturbed runs differ in, and no file that the killed run had
finished was written again.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.soak.export.jobs import Expected, Job, resume, tables_job, undisturbed
from tests.units.export.forked_runs import ForkedRuns
from tests.units.export.killed_jobs import KILLED, journaled
from tests.units.export.movies_job import recipe_of, write_project

ALL_S_MAX = 600
BEGIN_NO_MORE_S = 510
KILLED_SHARE_MIN = 5 / 6
"""Of the kills that are wanted: a slow machine may not come to all of them in time."""
LONG_SHARE = 6
"""One kill of this number is of a job that takes seconds: a whole run, worker processes, Ray."""
ROWS = 15_000
LAYOUTS = ("mid_level_hosts", "tfrs_adagrad", "partial", "stacks_2x4", "stacks_4x2_adam")
RAY_NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}
SHOW = Console(highlight=False, soft_wrap=True)

Kill = Callable[[ForkedRuns, Job, Path, float, random.Random], int]
"""Begins a job and kills it; takes about how long it would run, returns its status, 0 if the kill
came too late.
"""


@dataclass
class Seen:
    """What happened to one job."""

    seconds: float
    """About how long it runs undisturbed: shortened by each kill that comes too late."""
    points: int = 0
    killed: int = 0
    after_steps: Counter[int] = field(default_factory=Counter)
    published: int = 0
    failures: list[str] = field(default_factory=list)


def at_a_moment(
    forked: ForkedRuns, job: Job, directory: Path, seconds: float, lot: random.Random
) -> int:
    """Kills the exporter at any moment."""
    return forked.run(
        job.arguments(directory / "bundles"),
        directory / "output",
        seconds=lot.uniform(0.01, 1.0) * seconds,
    )


def at_a_change(
    forked: ForkedRuns, job: Job, directory: Path, seconds: float, lot: random.Random
) -> int:
    """Kills the exporter right before it makes, renames or removes a file."""
    return forked.run(
        job.arguments(directory / "bundles"), directory / "output", operation=lot.randint(1, 32)
    )


def a_worker(
    forked: ForkedRuns, job: Job, directory: Path, seconds: float, lot: random.Random
) -> int:
    """Kills one table worker: the run ends, and can be resumed."""
    died: list[int] = []
    pid = forked.start(job.arguments(directory / "bundles"), directory / "output")
    began = time.monotonic()
    moment = lot.uniform(0.1, 0.9) * seconds

    def kill() -> None:
        while time.monotonic() - began < 3 * seconds and not died:
            time.sleep(0.005)
            with suppress(psutil.NoSuchProcess):
                workers = [
                    child
                    for child in psutil.Process(pid).children()
                    if "spawn_main" in " ".join(child.cmdline())
                ]
                if workers and time.monotonic() - began > moment:
                    lot.choice(workers).kill()
                    died.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    status = forked.status()
    killer.join()
    return -signal.SIGKILL if died else status


class Soak:
    """Jobs, what each should write, and what was seen; stops when its time is up."""

    def __init__(self, base: Path, seed: int, kills: int) -> None:
        self.base = base
        self.seed = seed
        self.kills = kills
        self.began = time.monotonic()
        self.seen: dict[tuple[str, str], Seen] = {}

    @property
    def killed(self) -> int:
        return sum(seen.killed for seen in list(self.seen.values()))

    def lane(self, forked: ForkedRuns, plan: Sequence[tuple[Job, Kill]], kills: int) -> None:
        """Takes jobs in turn until `kills` of them were killed, or the time is up."""
        lot = random.Random(f"{self.seed} {plan[0][0].name}")
        expected: dict[Job, Expected] = {}
        pairs = {(job.name, kill.__name__) for job, kill in plan}

        def done() -> bool:
            killed = sum(self.seen[pair].killed for pair in pairs if pair in self.seen)
            return killed >= kills or time.monotonic() - self.began > BEGIN_NO_MORE_S

        while not done():
            for job, kill in plan:
                if job not in expected:
                    expected[job] = undisturbed(
                        forked, job, Path(tempfile.mkdtemp(dir=self.base)) / "expected"
                    )
                seen = self.seen.setdefault((job.name, kill.__name__), Seen(expected[job].seconds))
                self.point(forked, job, kill, expected[job], lot, seen)
                if done():
                    break

    def point(
        self,
        forked: ForkedRuns,
        job: Job,
        kill: Kill,
        expected: Expected,
        lot: random.Random,
        seen: Seen,
    ) -> None:
        """One kill, one resume, one comparison."""
        directory = Path(tempfile.mkdtemp(dir=self.base))
        seen.points += 1
        status = kill(forked, job, directory, seen.seconds, lot)
        try:
            assert status in (0, *KILLED), (directory / "output").read_text()
            if (directory / "bundles" / job.model / "1").is_dir():
                seen.published += 1
            elif status != 0:
                seen.after_steps[len(journaled(directory / "bundles" / job.model))] += 1
            resume(forked, job, directory, expected)
        except (AssertionError, OSError) as problem:
            seen.failures.append(f"point {seen.points}: {problem!r}")
        shutil.rmtree(directory)
        seen.killed += status != 0
        seen.seconds *= 1.03 if status else 0.85

    def summarize(self) -> int:
        """Prints the summary; returns the exit code."""
        table = Table(
            "job", "killed", "points", "kills", "files finished then", "published then", "wrong"
        )
        for (job, kill), seen in self.seen.items():
            steps = sorted(seen.after_steps.elements())
            spread = f"{steps[0]} to {steps[-1]}" if steps else ""
            counts = (str(count) for count in (seen.published, len(seen.failures)))
            table.add_row(
                job, kill.replace("_", " "), str(seen.points), str(seen.killed), spread, *counts
            )
        SHOW.print(table)
        failures = [
            f"{' '.join(pair)}: {failure}"
            for pair, seen in self.seen.items()
            for failure in seen.failures
        ]
        for each in failures[:10]:
            SHOW.print(each, markup=False)
        wanted = math.ceil(KILLED_SHARE_MIN * self.kills)
        enough = self.killed >= wanted
        SHOW.print(
            f"{self.killed} kills in {time.monotonic() - self.began:.0f} s, {len(failures)} wrong"
            + ("" if enough else f"; at least {wanted} were wanted: run it on a quieter machine")
        )
        return int(bool(failures) or not enough)


def write_by_tensorflow(*arguments: str) -> None:
    """Runs Python in a process of its own."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TF_USE_LEGACY_KERAS": "1"},
    )
    assert done.returncode == 0, done.stderr


def write_layouts(base: Path) -> list[Job]:
    """Has TensorFlow write a checkpoint of each layout."""
    write_by_tensorflow("-m", "tests.differential.write_checkpoints", str(base), *LAYOUTS)
    return [Job(name, ("tables", str(base / name))) for name in LAYOUTS]


def write_run(base: Path) -> Job:
    """Has TensorFlow write the movies' checkpoint, and a whole recipe beside it."""
    code = (
        "import sys; from pathlib import Path; from tests.units.export.traced_models import "
        "movies_recipe, save_and_trace\n"
        "save_and_trace(movies_recipe(), Path(sys.argv[1]))"
    )
    write_by_tensorflow("-c", code, str(base))
    prefix = next(base.rglob("*.index")).with_suffix("")
    return Job("run", ("run", str(write_project(base / "project", recipe_of(prefix)))), "movies")


def soak(kills: int, seed: int) -> int:
    """Runs all lanes; returns the exit code."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    base = Path(tempfile.mkdtemp(prefix="rowcast-soak-"))
    all_of_it = Soak(base, seed, kills)
    cluster: Any = Cluster(
        initialize_head=True, head_node_args=RAY_NODE | {"include_dashboard": False}
    )
    try:
        here = tables_job(base / "here", ROWS)
        pool = tables_job(base / "pool", ROWS, "--workers", "2")
        on_ray = tables_job(base / "ray", ROWS, "--workers", "4", "--executor", cluster.address)
        layouts = write_layouts(base / "layouts")
        light = [(job, kill) for job in (here, *layouts) for kill in (at_a_moment, at_a_change)]
        whole = write_run(base / "run"), at_a_moment
        long = [whole, (pool, at_a_moment), whole, (pool, a_worker), (on_ray, at_a_moment)]
        of_long = kills // LONG_SHARE
        lanes = [
            threading.Thread(target=all_of_it.lane, args=(ForkedRuns(), light, kills - of_long)),
            threading.Thread(target=all_of_it.lane, args=(ForkedRuns(), long, of_long)),
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        return all_of_it.summarize()
    finally:
        cluster.shutdown()
        shutil.rmtree(base, ignore_errors=True)


def main() -> None:
    """Reads the arguments and runs."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=240, help="how many")
    arguments.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of the moments"
    )
    options = arguments.parse_args()
    SHOW.print(f"seed {options.seed}")
    signal.alarm(ALL_S_MAX)  # whatever hangs ends here
    raise SystemExit(soak(options.kills, options.seed))


if __name__ == "__main__":
    main()
