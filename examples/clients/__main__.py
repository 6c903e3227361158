"""Builds the clients of this folder, runs each against the quick start and against a service that
requires tokens and has an id beyond 2^53, and compares their output with the results of the Python
client. Run by `make test-clients`, or

python -m examples.clients [--only LANGUAGE], from the root of a clone

Clients whose tools or libraries are not installed are skipped.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence

from rowcast_client import Client, RowcastError

from examples import served
from examples.clients.expected import NEW_MOVIE, add_movie, expected_outputs
from examples.clients.output import Output, UnexpectedOutput, differences, read_output
from examples.clients.programs import (
    BUILD,
    PROGRAMS,
    BuildFailed,
    NotInstalled,
    Program,
    check_installed,
    run_step,
)
from examples.quickstart.__main__ import BUNDLES, MODEL

RUN_S = 60
"""Time in which a client must end."""


class ClientFailed(Exception):
    """A client ended with an error, or its output differs from the Python client's results."""


def main() -> int:
    """Runs the clients; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.clients")
    languages = sorted({program.language for program in PROGRAMS})
    parser.add_argument("--only", action="append", choices=languages, help="a language; repeatable")
    chosen = parser.parse_args().only or languages
    programs = [program for program in PROGRAMS if program.language in chosen]
    try:
        return int(not serve_and_try(programs))
    except (served.ServiceFailed, RowcastError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1


def serve_and_try(programs: Sequence[Program]) -> bool:
    """Serves the bundle, tries clients on it, and prints a line for each; returns whether none
    failed.
    """
    folder = BUILD / "served"
    shutil.rmtree(folder, ignore_errors=True)
    # Copies, since one catalogue is changed, and a service writes under its root.
    quick_start_root = shutil.copytree(BUNDLES, folder / "quick-start" / "bundles")
    changed_root = shutil.copytree(BUNDLES, folder / "changed" / "bundles")
    token = secrets.token_hex(32)
    tokens = folder / "tokens"
    tokens.write_text(f"clients {token}\n")
    options = ("--tokens", str(tokens), "--changes-from", "clients")
    is_good = True
    with (
        served.serving(
            quick_start_root, MODEL, None, quick_start_root.with_name("serve.log")
        ) as quick_start,
        served.serving(
            changed_root, MODEL, None, changed_root.with_name("serve.log"), *options
        ) as changed,
    ):
        with Client(quick_start.grpc) as client:
            expected_of_quick_start = expected_outputs(client)
        with Client(changed.grpc, token=token) as client:
            add_movie(client)
            expected_of_changed = expected_outputs(client)
        for transport, outputs in expected_of_changed.items():
            movies = [result.movie for result in outputs.results]
            assert NEW_MOVIE in movies, f"no id beyond 2^53 is compared over {transport}"
        for program in programs:
            outcome = "passed"
            try:
                build(program)
                for service, service_token, expected in (
                    (quick_start, None, expected_of_quick_start),
                    (changed, token, expected_of_changed),
                ):
                    output = run(program, address(service, program.transport), service_token)
                    compare(expected[program.transport], output)
            except NotInstalled as reason:
                outcome = f"skipped: {reason}"
            except (BuildFailed, ClientFailed) as reason:
                outcome = f"failed: {reason}"
                is_good = False
            print(f"{program.name:<18} {outcome}", flush=True)
    return is_good


def address(service: served.Service, transport: str) -> str:
    """Returns the argument of a client: a URL, or a host and a port."""
    if transport == "HTTP":
        return service.http
    return service.grpc.removeprefix("grpc://")


def build(program: Program) -> None:
    """Builds a client.

    Raises:
      NotInstalled: A package that it needs is not installed.
      BuildFailed: A command of the build failed.
    """
    check_installed(program)
    for step in program.steps:
        run_step(step)


def run(program: Program, address: str, token: str | None) -> str:
    """Runs a client, with a token or without one; returns its output.

    Raises:
      ClientFailed: It ended with an error, or not in time.
    """
    # gRPC reads the proxies of the environment, even for addresses of this machine.
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    environment.pop("ROWCAST_TOKEN", None)
    if token is not None:
        environment["ROWCAST_TOKEN"] = token
    try:
        done = subprocess.run(
            [*program.command, address],
            check=False,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise ClientFailed(f"it ran for {RUN_S} s") from error
    if done.returncode:
        raise ClientFailed(f"it ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def compare(expected: Output, output: str) -> None:
    """Compares the output of a client with the results of the Python client.

    Raises:
      ClientFailed: They differ.
    """
    try:
        problems = list(differences(expected, read_output(output)))
    except UnexpectedOutput as error:
        raise ClientFailed(str(error)) from error
    if problems:
        raise ClientFailed("\n  ".join(["its output is another", *problems]))


if __name__ == "__main__":
    sys.exit(main())
