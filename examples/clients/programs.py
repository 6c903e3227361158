"""The clients: the packages that each needs, its build, and the command that starts it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.rpc import status_pb2

BUILD = Path("build/clients").absolute()
SOURCES = Path("examples/clients").absolute()
PROTO = Path("proto").absolute()
GOOGLEAPIS = Path(status_pb2.__file__).parents[2]
"""The folder with google/rpc/*.proto, which the Python package of these messages has, too."""

CONTRACT = "rowcast/embedding/v1/embedding_service.proto"
ERROR_DETAILS = ("google/rpc/error_details.proto", "google/rpc/status.proto")
STEP_S = 900
"""Time in which a command of a build must end."""
REASON_LINES = 4
"""Number of first lines in which npm says why it installs nothing."""
PROBLEM_LINES = 20
"""Number of last lines of a failed build that are shown."""


class NotInstalled(Exception):
    """A client cannot be built here; the message names the missing packages."""


class BuildFailed(Exception):
    """A command of a build failed; the message has the end of its output."""


@dataclass(frozen=True)
class Step:
    """A command of a build.

    Attributes:
      command: The program and its arguments.
      folder: The folder in which it runs.
      variables: Variables of its environment, beside those of this process.
      installs: Whether it installs packages: if it fails, the client is skipped.
    """

    command: Sequence[str]
    folder: Path = SOURCES
    variables: Mapping[str, str] = field(default_factory=dict)
    installs: bool = False


@dataclass(frozen=True)
class Program:
    """A client in another language.

    Attributes:
      language: The language, in lower case.
      transport: `HTTP` or `gRPC`.
      needs: Debian's packages that must be installed, and the commands and files of each by which
        it is found.
      steps: The commands of its build.
      command: The command that starts it; the address of the service follows.
    """

    language: str
    transport: str
    needs: Mapping[str, Sequence[str]]
    steps: Sequence[Step]
    command: Sequence[str]

    @property
    def name(self) -> str:
        """The name of the client in the report."""
        return f"{self.language}, {self.transport}"


def check_installed(program: Program) -> None:
    """Checks that the packages that a client needs are installed.

    Raises:
      NotInstalled: A package is missing.
    """
    missing = []
    for package, names in program.needs.items():
        if not all(map(_is_installed, names)):
            missing.append(package)
    if missing:
        raise NotInstalled(f"not installed: Debian's packages {' '.join(missing)}")


def _is_installed(name: str) -> bool:
    # A path, or the name of a command.
    if "/" in name:
        return Path(name).exists()
    return shutil.which(name) is not None


def run_step(step: Step) -> None:
    """Runs a command of a build.

    Raises:
      NotInstalled: A command that installs packages failed.
      BuildFailed: Another command failed.
    """
    step.folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            step.command,
            check=False,
            cwd=step.folder,
            env={**os.environ, **step.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_S,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{' '.join(step.command)} ran for {STEP_S} s") from error
    if done.returncode == 0:
        return
    lines = done.stdout.splitlines()
    problem = f"{' '.join(step.command)} ended with {done.returncode}"
    if step.installs:
        raise NotInstalled("\n".join([problem, *lines[:REASON_LINES]]))
    raise BuildFailed("\n".join([problem, *lines[-PROBLEM_LINES:]]))


def _jars(*names: str) -> list[str]:
    return [f"/usr/share/java/{name}.jar" for name in names]


_PROTOC = {"protobuf-compiler": ["protoc"]}
_JAVA = {"default-jdk-headless": ["java", "javac"], "libprotobuf-java": _jars("protobuf")}
_JAVA_GENERATOR = "/usr/bin/grpc_java_plugin"
_JAVA_GRPC = {
    "libgeronimo-annotation-1.3-spec-java": _jars("geronimo-annotation-1.3-spec"),
    "libgrpc-java": _jars(
        *("grpc-api", "grpc-context", "grpc-core", "grpc-netty"),
        *("grpc-protobuf", "grpc-protobuf-lite", "grpc-stub"),
    ),
    "libguava-java": _jars("guava"),
    "libnetty-java": _jars(
        *("netty-buffer", "netty-codec", "netty-codec-http", "netty-codec-http2"),
        *("netty-common", "netty-handler", "netty-resolver", "netty-transport"),
    ),
    "libperfmark-java": _jars("perfmark-api"),
    "protobuf-compiler-grpc-java-plugin": [_JAVA_GENERATOR],
}
_GOPATH = Path("/usr/share/gocode")
_GO_GRPC = {
    "golang-github-golang-protobuf-1-5-dev": [f"{_GOPATH}/src/github.com/golang/protobuf/ptypes"],
    "golang-google-genproto-dev": [f"{_GOPATH}/src/google.golang.org/genproto"],
    "golang-google-grpc-dev": [f"{_GOPATH}/src/google.golang.org/grpc"],
    "golang-google-protobuf-dev": [f"{_GOPATH}/src/google.golang.org/protobuf"],
    "protoc-gen-go": ["protoc-gen-go"],
    "protoc-gen-go-grpc": ["protoc-gen-go-grpc"],
}
_CPP = {
    "cmake": ["cmake"],
    "g++": ["g++"],
    "libgrpc++-dev": ["/usr/include/grpcpp/grpcpp.h"],
    "libprotobuf-dev": ["/usr/include/google/protobuf/message.h"],
    "pkgconf": ["pkg-config"],
    "protobuf-compiler-grpc": ["grpc_cpp_plugin"],
}


def _java(
    transport: str,
    source: str,
    libraries: Mapping[str, Sequence[str]],
    protoc: Sequence[str] = (),
) -> Program:
    """Returns a client in Java.

    Args:
      transport: `HTTP` or `gRPC`.
      source: The name of its class, and of its file.
      libraries: What it needs beside protobuf.
      protoc: Further arguments of protoc.
    """
    folder = BUILD / "java" / source
    needs = {**_PROTOC, **_JAVA, **libraries}
    jars = [name for names in needs.values() for name in names if name.endswith(".jar")]
    javac = ["javac", "-d", "classes", "-cp", ":".join(jars), "-sourcepath", "generated"]
    return Program(
        "java",
        transport,
        needs,
        [
            Step(["mkdir", "-p", "generated", "classes"], folder),
            Step(["protoc", f"-I{PROTO}", "--java_out=generated", *protoc, CONTRACT], folder),
            Step([*javac, str(SOURCES / f"java/{source}.java")], folder),
        ],
        ["java", "-cp", ":".join([*jars, str(folder / "classes")]), source],
    )


def _go(
    transport: str, source: str, libraries: Mapping[str, Sequence[str]], *steps: Step
) -> Program:
    """Returns a client in Go, compiled with Debian's packages of libraries instead of modules.

    Args:
      transport: `HTTP` or `gRPC`.
      source: The name of its folder.
      libraries: What it needs beside the compiler.
      steps: What comes before it is compiled.
    """
    folder = BUILD / "go"
    program = str(folder / source)
    variables = {"GO111MODULE": "off", "GOPATH": f"{folder}:{_GOPATH}"}
    build = ["go", "build", "-o", program, str(SOURCES / "go" / source / "main.go")]
    return Program(
        "go",
        transport,
        {"golang-go": ["go"], **libraries},
        [*steps, Step(build, folder, variables)],
        [program],
    )


def _typescript(transport: str, source: str) -> Program:
    """Returns a client in TypeScript; all of them are built together."""
    folder = BUILD / "typescript"
    variables = {"ROWCAST": str(PROTO), "GOOGLEAPIS": str(GOOGLEAPIS)}
    files = [str(path) for path in (SOURCES / "typescript").iterdir() if path.is_file()]
    return Program(
        "typescript",
        transport,
        {"nodejs": ["node"], "npm": ["npm"], **_PROTOC},
        [
            Step(["cp", *files, "."], folder),
            Step(["npm", "install", "--no-package-lock"], folder, installs=True),
            Step(["npm", "run", "generate"], folder, variables),
            Step(["npm", "run", "build"], folder),
        ],
        ["node", str(folder / "dist" / f"{source}.js")],
    )


def _cpp() -> Program:
    """Returns the client in C++."""
    folder = BUILD / "cpp"
    configure = ["cmake", "-S", str(SOURCES / "cpp"), "-B", ".", f"-DGOOGLEAPIS={GOOGLEAPIS}"]
    return Program(
        "cpp",
        "gRPC",
        {**_PROTOC, **_CPP},
        [
            Step(configure, folder),
            Step(["cmake", "--build", ".", "--parallel", "2"], folder),
        ],
        [str(folder / "retrieve_over_grpc")],
    )


PROGRAMS = (
    _java("HTTP", "RankOverHttp", {}),
    _java(
        "gRPC",
        "RetrieveOverGrpc",
        _JAVA_GRPC,
        [
            f"-I{GOOGLEAPIS}",
            f"--plugin=protoc-gen-grpc-java={_JAVA_GENERATOR}",
            "--grpc-java_out=generated",
            *ERROR_DETAILS,
        ],
    ),
    _go("HTTP", "rank_over_http", {}),
    _go(
        "gRPC",
        "retrieve_over_grpc",
        {**_PROTOC, **_GO_GRPC},
        Step(["mkdir", "-p", "src"], BUILD / "go"),
        Step(["protoc", f"-I{PROTO}", "--go_out=src", "--go-grpc_out=src", CONTRACT], BUILD / "go"),
    ),
    _typescript("HTTP", "rank-over-http"),
    _typescript("gRPC", "retrieve-over-grpc"),
    _cpp(),
)
