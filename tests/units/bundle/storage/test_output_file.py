"""Files that programs publish: what a name may be, and what a rename must not replace. And streams
that commands write.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bundle.storage.output_file import OutputFile, OutputRejected, OutputStream, output_named


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("before", [None, b"yesterday"])
@pytest.mark.parametrize("links", [0, 1, 2])
def test_a_file_is_replaced_where_it_is_whatever_links_lead_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes | None, links: int
) -> None:
    (tmp_path / "data").mkdir()
    target = tmp_path / "data" / "dated"
    if before is not None:
        target.write_bytes(before)
    path = target
    for number in range(links):
        link = tmp_path / f"link{number}"
        link.symlink_to(os.path.relpath(path, tmp_path))
        path = link
    output = OutputFile(path)
    assert output.path == target
    if links:  # a link that is flipped meanwhile leaves its first target the output
        path.unlink()
        path.symlink_to("elsewhere")

    # The content is on the disk before the name leads to it, and the name before the end.
    steps = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append((synced.is_dir(), target.exists() and target.read_bytes()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    with pytest.raises(TypeError):
        output.write("text")  # type: ignore[arg-type]
    assert (target.exists() and target.read_bytes()) == (before or False)
    output.write(b"today")
    assert steps[-2:] == [(False, before or False), (True, b"today")]
    assert target.read_bytes() == b"today"
    assert names(tmp_path / "data") == ["dated"]


def _socket(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # a path of a socket has at most 107 bytes
    try:
        listener.bind(path.name)
    finally:
        os.chdir(here)
    listener.close()


MAKERS: dict[str, Callable[[Path], None]] = {
    "directory": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_file_is_rejected_and_not_replaced(tmp_path: Path, kind: str) -> None:
    output = OutputFile(tmp_path / "it")
    MAKERS[kind](tmp_path / "it")  # while a program computes
    mode = (tmp_path / "it").lstat().st_mode
    (tmp_path / "link").symlink_to("it")
    with pytest.raises(OutputRejected):
        output.write(b"new")
    for name in ("it", "link"):
        with pytest.raises(OutputRejected, match=f"{name} is a {kind}"):
            OutputFile(tmp_path / name)
    assert (tmp_path / "it").lstat().st_mode == mode
    assert names(tmp_path) == ["it", "link"]


def test_names_that_lead_to_no_file_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(OutputRejected, match="standard output"):
        OutputFile(Path("-"))
    reader, writer = os.pipe()
    try:
        with pytest.raises(OutputRejected, match="is a pipe"):
            OutputFile(Path(f"/dev/fd/{writer}"))
    finally:
        os.close(reader)
        os.close(writer)
    with (tmp_path / "gone").open("wb") as file:
        (tmp_path / "gone").unlink()
        with pytest.raises(OutputRejected, match="was removed"):
            OutputFile(Path(f"/dev/fd/{file.fileno()}"))
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        OutputFile(tmp_path / "a")


@pytest.mark.parametrize("is_linked", [False, True])
def test_commands_write_through_a_pipe(tmp_path: Path, is_linked: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    name = pipe
    if is_linked:
        name = tmp_path / "link"
        name.symlink_to(pipe)
    output = output_named(name)
    content = bytes(range(256)) * 1000  # more than a pipe holds
    with ThreadPoolExecutor(1) as readers:
        received = readers.submit(pipe.read_bytes)
        output.write(content)
        assert received.result() == content
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/proc/self/fd/1"])
def test_commands_write_to_standard_output_after_what_was_printed(
    capfd: pytest.CaptureFixture[str], name: str
) -> None:
    print("first", end=" ")  # noqa: T201
    output = output_named(Path(name))
    assert isinstance(output, OutputStream)
    assert output.is_standard_output
    output.write("zw\u00f6lf".encode())
    assert capfd.readouterr().out == "first zw\u00f6lf"


@pytest.mark.parametrize("kind", ["directory", "socket"])
def test_commands_write_neither_directories_nor_sockets(tmp_path: Path, kind: str) -> None:
    MAKERS[kind](tmp_path / "it")
    with pytest.raises(OutputRejected, match=f"it is a {kind}"):
        output_named(tmp_path / "it")
