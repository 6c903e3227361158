"""Files that programs publish: what a name may be, and what a rename must not replace."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.errors import OutputRejected
from bundle.storage.output_file import OutputFile


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("before", [None, b"yesterday"])
def test_write_replaces_a_file_and_leaves_nothing_else(
    tmp_path: Path, before: bytes | None
) -> None:
    if before is not None:
        (tmp_path / "out").write_bytes(before)
    OutputFile(tmp_path / "out").write(b"today")
    assert (tmp_path / "out").read_bytes() == b"today"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("before", [None, b"yesterday"])
@pytest.mark.parametrize("links", [1, 2])
def test_link_stays_and_its_target_is_replaced(
    tmp_path: Path, before: bytes | None, links: int
) -> None:
    (tmp_path / "data").mkdir()
    target = tmp_path / "data" / "dated"
    if before is not None:
        target.write_bytes(before)
    (tmp_path / "link0").symlink_to("data/dated")
    for number in range(1, links):
        (tmp_path / f"link{number}").symlink_to(f"link{number - 1}")
    last = tmp_path / f"link{links - 1}"
    output = OutputFile(last)
    assert output.path == target
    output.write(b"today")
    assert last.is_symlink()
    assert target.read_bytes() == b"today"
    assert names(tmp_path / "data") == ["dated"], "written beside the target"


def test_link_that_is_flipped_meanwhile_leaves_its_first_target_the_output(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("first")
    output = OutputFile(tmp_path / "link")
    (tmp_path / "link").unlink()
    (tmp_path / "second").write_bytes(b"other")
    (tmp_path / "link").symlink_to("second")
    output.write(b"new")
    assert (tmp_path / "first").read_bytes() == b"new"
    assert (tmp_path / "second").read_bytes() == b"other"


def _directory(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # a path of a socket has at most 107 bytes
    try:
        listener.bind(path.name)
    finally:
        os.chdir(here)
    listener.close()


def _device(path: Path) -> None:
    path.symlink_to("/dev/null")


MAKERS = [_directory, _pipe, _socket, _device]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_not_a_file_is_rejected_by_its_name(
    tmp_path: Path, make: Callable[[Path], None], linked: bool
) -> None:
    make(tmp_path / "it")
    name = "it"
    if linked:
        (tmp_path / "link").symlink_to("it")
        name = "link"
    kind = make.__name__.removeprefix("_")
    with pytest.raises(OutputRejected, match=f"{name} is a {kind}, .*name a file"):
        OutputFile(tmp_path / name)


@pytest.mark.parametrize("make", MAKERS)
def test_what_appears_while_a_program_computes_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    output = OutputFile(tmp_path / "it")
    make(tmp_path / "it")
    mode = (tmp_path / "it").lstat().st_mode
    with pytest.raises(OutputRejected):
        output.write(b"new")
    assert (tmp_path / "it").lstat().st_mode == mode
    assert names(tmp_path) == ["it"]


def test_pipe_behind_a_descriptor_is_rejected() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(OutputRejected, match="is a pipe"):
            OutputFile(Path(f"/dev/fd/{writer}"))
    finally:
        os.close(reader)
        os.close(writer)


def test_file_that_was_removed_is_rejected(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("wb") as file:
        (tmp_path / "gone").unlink()
        with pytest.raises(OutputRejected, match="was removed"):
            OutputFile(Path(f"/dev/fd/{file.fileno()}"))
    assert names(tmp_path) == []


def test_dash_is_rejected() -> None:
    with pytest.raises(OutputRejected, match="nothing is written to standard output"):
        OutputFile(Path("-"))


def test_links_in_a_circle_are_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        OutputFile(tmp_path / "a")


def test_write_survives_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is on the disk before the name leads to it, and the name before the end."""
    out = tmp_path / "out"
    out.write_bytes(b"yesterday")
    steps = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(("directory" if path == tmp_path else "file", out.read_bytes()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    OutputFile(out).write(b"today")
    assert steps == [("file", b"yesterday"), ("directory", b"today")]


def test_write_that_fails_keeps_the_previous_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"yesterday")
    output = OutputFile(tmp_path / "out")
    with pytest.raises(TypeError):
        output.write("text")  # type: ignore[arg-type]
    assert (tmp_path / "out").read_bytes() == b"yesterday"
    assert names(tmp_path) == ["out"]
