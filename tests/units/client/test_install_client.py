"""The client as its users install it: from its wheel, alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.units.client.servers import OK, grpc_server, http_server

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parents[3] / "client"


def run(*command: str | Path, directory: Path) -> str:
    """Output of a command that has to succeed, run where none of this repository's packages lie."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.nightly
def test_install_of_the_client_alone_calls_over_both_transports(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", "own", directory=tmp_path)
    python = tmp_path / "own" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, CLIENT, directory=tmp_path)
    (wheel,) = tmp_path.glob("rowcast_client-*.whl")
    run(*pip, "install", "--no-compile", wheel, directory=tmp_path)
    names = {
        line.split()[0].lower() for line in run(*pip, "list", directory=tmp_path).splitlines()[2:]
    }
    assert "rowcast-client" in names
    assert not {
        name for name in names if name == "rowcast" or "tensorflow" in name or "scann" in name
    }
    package = run(
        python, "-c", "import rowcast_client; print(rowcast_client.__file__)", directory=tmp_path
    )
    assert (Path(package.strip()).parent / "py.typed").is_file()
    for serving in (http_server, grpc_server):
        with serving([OK]) as server:
            embed = ("embed", "m", "-f", "user=5", "--url", server.url)
            assert "0.5000 2.0000" in run(
                tmp_path / "own" / "bin" / "rowcast", *embed, directory=tmp_path
            )
