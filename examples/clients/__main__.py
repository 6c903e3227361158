"""Builds the clients of this folder, runs each against the bundle of the quick start, and compares
their output with the results of the Python client. Run by `make test-clients`, or

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
from examples.clients.expected import add_movie, expected_outputs
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
    # A copy, since the clients change the catalogue.
    shutil.rmtree(BUILD / "served", ignore_errors=True)
    root = shutil.copytree(BUNDLES, BUILD / "served" / "bundles")
    token = secrets.token_hex(32)
    tokens = root.with_name("tokens")
    tokens.write_text(f"clients {token}\n")
    options = ("--tokens", str(tokens), "--changes-from", "clients")
    is_good = True
    with served.serving(root, MODEL, None, root.with_name("serve.log"), *options) as service:
        with Client(service.grpc, token=token) as client:
            add_movie(client)
            expected = expected_outputs(client)
        addresses = {"HTTP": service.http, "gRPC": service.grpc.removeprefix("grpc://")}
        for program in programs:
            outcome = "passed"
            try:
                build(program)
                output = run(program, addresses[program.transport], token)
                compare(expected[program.transport], output)
            except NotInstalled as reason:
                outcome = f"skipped: {reason}"
            except (BuildFailed, ClientFailed) as reason:
                outcome = f"failed: {reason}"
                is_good = False
            print(f"{program.name:<18} {outcome}", flush=True)
    return is_good


def build(program: Program) -> None:
    """Builds a client.

    Raises:
      NotInstalled: A package that it needs is not installed.
      BuildFailed: A command of the build failed.
    """
    check_installed(program)
    for step in program.steps:
        run_step(step)


def run(program: Program, address: str, token: str) -> str:
    """Runs a client; returns its output.

    Raises:
      ClientFailed: It ended with an error, or not in time.
    """
    # gRPC reads the proxies of the environment, even for addresses of this machine.
    environment = {**os.environ, "ROWCAST_TOKEN": token, "no_proxy": "127.0.0.1"}
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
