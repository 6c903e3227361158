"""Published recommenders from training to responses: make zoo DIR=..., or

python -m examples.zoo [--checkouts DIR] [--data DIR] [--only SOURCE/NAME ...]
python -m examples.zoo --document
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from httpx import HTTPError, HTTPStatusError
from rich.console import Console

from examples import replay, served, trained
from examples.demo_models import newest
from examples.zoo.checkouts import Checkouts, NotHere
from examples.zoo.entries import ENTRIES, FACTORIES, ZOO, Entry, entries_of
from examples.zoo.outcomes import (
    UNCHANGED,
    Outcome,
    print_table,
    read_outcome,
    today,
    versions_of,
    write_page,
)

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "zoo"
SHOWN = 300
"""The maximum number of characters of a message in the table."""


class StepFailed(Exception):
    """A step of a run failed; the message is that of the step, or names its log."""


@dataclass(frozen=True)
class Zoo:
    """The zoo on this machine.

    Attributes:
      checkouts: The checkouts of the repositories.
      data: The folder with MovieLens small; None: it is downloaded, or generated.
    """

    checkouts: Checkouts
    data: Path | None

    def outcome(self, entry: Entry) -> Outcome:
        """Trains, exports, serves and compares one entry; records the outcome."""
        start = time.monotonic()
        try:
            self.checkouts.require(entry)
        except NotHere as problem:
            return Outcome(entry, "", f"not here: {problem}", as_stated=True)
        revision = self.checkouts.revision(entry.source)
        result = UNCHANGED
        if entry.wrapper_lines:
            result = f"wrapper {entry.wrapper_lines}"
        largest = None
        as_stated = not entry.rejected
        try:
            folder = self._prepare(entry)
            self._train(entry, folder)
            message = self._export(entry, folder)
            if message:
                result = f"rejected: {shortened(message)}"
                as_stated = bool(entry.rejected) and entry.rejected in message
            else:
                difference = compare(folder)
                largest = difference.largest
                if difference.of_limit > 1:
                    result = "differs"
                    as_stated = False
        except HTTPStatusError as problem:
            result = f"rejected: {problem.response.text}"
            as_stated = False
        except (StepFailed, served.ServiceFailed, HTTPError, ValueError) as problem:
            result = f"failed: {problem}"
            as_stated = False
        seconds = time.monotonic() - start
        versions = versions_of(entry)
        outcome = Outcome(entry, revision, result, as_stated, largest, seconds, today(), versions)
        outcome.write(BUILD / entry.name)
        return outcome

    def _prepare(self, entry: Entry) -> Path:
        """Returns a new folder with the recipe of an entry, and a link to its source."""
        folder = BUILD / entry.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "recipe.toml").write_text(entry.recipe_text, encoding="utf-8")
        factories = ZOO / entry.name.partition("/")[0] / FACTORIES
        if factories.exists():
            shutil.copyfile(factories, folder / FACTORIES)
        if entry.source.folder:
            (folder / entry.source.folder).symlink_to(self.checkouts.path(entry.source))
        return folder

    def _train(self, entry: Entry, folder: Path) -> None:
        command = [sys.executable, "-m", "examples.zoo.train", entry.name, "--out", str(folder)]
        if self.data is not None:
            command += ["--data", str(self.data)]
        code = self._run(command, entry, folder / "train.log", entry.backend)
        if code != 0:
            raise StepFailed(
                f"training ended with {code}; read {(folder / 'train.log').relative_to(ROOT)}"
            )

    def _export(self, entry: Entry, folder: Path) -> str:
        """Exports what was trained; returns the message of a rejection, "" if it was published."""
        log = folder / "export.log"
        command = [served.program("rowcast-export"), "run", str(folder / "recipe.toml")]
        code = self._run(command, entry, log, "tensorflow")
        if code == 0:
            return ""
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        # The last line of the log is the message of the rejection.
        if not lines:
            return f"the export ended with {code}"
        return lines[-1]

    def _run(self, command: list[str], entry: Entry, log: Path, backend: str) -> int:
        """Runs a command in the environment of an entry; returns its exit code."""
        # Messages are not wrapped, so that each is one line of the log.
        environment = {**os.environ, "KERAS_BACKEND": backend, "COLUMNS": "10000"}
        environment["TF_USE_LEGACY_KERAS"] = "1" if entry.source.keras == 2 else "0"
        if entry.source.is_package:
            paths = [os.environ.get("PYTHONPATH", ""), str(self.checkouts.path(entry.source))]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with log.open("wb") as file:
            return subprocess.run(
                command, stdout=file, stderr=file, env=environment, cwd=ROOT, check=False
            ).returncode


def shortened(message: str) -> str:
    """Returns the beginning of a message; the log has the rest."""
    text = message.removeprefix("rowcast-export: ")
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}..."


def compare(folder: Path) -> replay.Difference:
    """Serves the bundle of a run, and compares the responses with the recorded outputs."""
    model, version, _ = newest(folder / "bundles")
    bodies, expected = trained.read_requests(folder)
    with served.serving(folder / "bundles", model, version, folder / "serve.log") as service:
        responses = replay.over_http(service.http, model, bodies)
    return replay.compare(bodies, responses, expected)


def main() -> int:
    """Runs the command line; returns the exit code: 1 if a result is not the one stated."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.zoo", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--checkouts", type=Path, help="directory with a folder for each repository"
    )
    parser.add_argument("--data", type=Path, help="folder with MovieLens small")
    parser.add_argument("--only", action="append", default=[], help="SOURCE/NAME, or SOURCE")
    parser.add_argument(
        "--packages", action="store_true", help="only what is published as a package"
    )
    parser.add_argument(
        "--document",
        action="store_true",
        help="run nothing: write what the last run of each model recorded to docs/reference/zoo.md",
    )
    arguments = parser.parse_args()
    if arguments.document:
        write_page([read_outcome(entry, BUILD / entry.name) for entry in ENTRIES])
        return 0
    try:
        entries = entries_of(arguments.only)
    except ValueError as problem:
        parser.error(str(problem))
    if arguments.packages:
        entries = [entry for entry in entries if not entry.source.folder]
    zoo = Zoo(Checkouts(arguments.checkouts), arguments.data)
    console = Console(width=max(160, Console().width))
    if arguments.only:
        try:
            for entry in entries:
                zoo.checkouts.require(entry)
        except NotHere as problem:
            parser.error(f"{entry.name}: {problem}")

    outcomes = []
    for entry in entries:
        outcome = zoo.outcome(entry)
        outcomes.append(outcome)
        console.print(f"{entry.name}: {outcome.result} {outcome.difference}", highlight=False)
    print_table(outcomes, console)
    return 0 if all(outcome.as_stated for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
