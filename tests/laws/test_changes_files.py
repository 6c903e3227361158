"""A changes file has the last states that were written, whatever happens to it or its writers."""

from __future__ import annotations

import math
import os
import random
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from bundle.changes import file as changes_file
from bundle.changes.file import ChangesFile
from bundle.changes.states import WHOLE, Key, State
from bundle.errors import (
    BundleError,
    ChangesDamaged,
    ChangesLocked,
    ChangesReplaced,
    ChangesUnavailable,
    CopyDiffers,
    FormatError,
)
from tests.e2e.process import WAIT_S
from tests.random_cases import seeds

States = dict[tuple[str, str, Key], dict[str, State]]
"""The states of items, by kind, store and id, and by attribute."""


def state(
    key: Key, content: str | None, attribute: str = WHOLE, number: int | None = None
) -> State:
    return State(0, "candidates", "movies", key, attribute, number, 1, False, None, 5.0, content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "movies" / changes_file.FILE_NAME


def opened(path: Path) -> ChangesFile:
    return ChangesFile(path, "movies")


def write(file: ChangesFile, *states: State) -> int:
    with file.writing(time.monotonic() + WAIT_S) as writer:
        return writer.put(states)


def contents(file: ChangesFile) -> dict[tuple[Key, str], str | None]:
    return {(state.id, state.attribute): state.content for state in file.everything()[1]}


def by_item(states: Iterable[State]) -> States:
    items: States = {}
    for state in states:
        items.setdefault((state.kind, state.store, state.id), {})[state.attribute] = state
    return items


class Fails(Exception):
    """A part of a test fails."""


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]


class History:
    """Random writes, copies and forgetting of one file, and what it must have then."""

    def __init__(self, directory: Path, random: random.Random) -> None:
        self._random = random
        self.path = directory / "movies" / changes_file.FILE_NAME
        self._directory = directory
        self._states: States = {}
        self._forgotten: States = {}
        """The last states of what was forgotten, which does not come again."""
        self._offsets: dict[str, dict[int, int]] = {}
        self._files = [opened(self.path) for _ in range(3)]
        self._read: States = {}
        self._read_to = 0
        self._copies = [opened(directory / f"copy {number}") for number in range(2)]

    def write(self) -> None:
        """Writes a group, of which parts fail, or all of it."""
        states = {item: {**by_attribute} for item, by_attribute in self._states.items()}
        offsets = {**self._offsets}
        fails = self._random.random() < 0.2
        with suppress(Fails), self._any_file().writing(time.monotonic() + WAIT_S) as writer:
            for _ in range(self._random.randint(1, 4)):
                with suppress(Fails), writer.attempt():
                    writer.put(self._drawn(states) for _ in range(self._random.randint(0, 2)))
                    raise Fails
                if self._random.random() < 0.3:
                    stream = self._random.choice("ab")
                    offsets[stream] = dict.fromkeys([0, 2], self._random.randint(0, 99))
                    writer.put_offset(stream, [0, 2], offsets[stream][0])
                drawn = self._drawn(states)
                by_attribute = states.setdefault((drawn.kind, drawn.store, drawn.id), {})
                if drawn.attribute == WHOLE:
                    last = math.inf if drawn.number is None else drawn.number
                    for name, other in [*by_attribute.items()]:
                        if (other.number or 0) <= last:
                            del by_attribute[name]
                by_attribute[drawn.attribute] = drawn._replace(sequence=writer.put([drawn]))
            if fails:
                raise Fails
        if not fails:
            self._states = states
            self._offsets = offsets

    def _drawn(self, states: States) -> State:
        """Returns a state that counts, by its number: of an item as a whole, none is smaller."""
        keys: list[Key] = [*range(40), -(1 << 63), "1", "é"]
        kind = self._random.choice(["candidates", "contexts"])
        items = [(kind, "movies", key) for key in keys]
        item = self._random.choice([item for item in items if item not in self._forgotten])
        there = states.get(item, {})
        attribute = self._random.choice([WHOLE, "year", "title"])
        number = None
        if any(state.number is not None for state in there.values()) or self._random.random() < 0.5:
            before = [there[name].number or 0 for name in (WHOLE, attribute) if name in there]
            number = max(before, default=0) + self._random.randint(0, 3)
        version = self._random.randint(1, 3)
        expires_s = self._random.choice([None, 7.5])
        content = self._random.choice([None, "{}", '"é"', '{"a":[1,null]}' * 9])
        return State(
            0, *item, attribute, number, version, bool(version % 2), expires_s, 5.0, content
        )

    def forget(self) -> None:
        count = min(len(self._states), self._random.randint(1, 2))
        items = self._random.sample(sorted(self._states, key=str), count)
        if items:
            with self._any_file().writing(time.monotonic() + WAIT_S) as writer:
                writer.forget(items)
        self._forgotten |= {item: self._states.pop(item) for item in items}

    def close(self) -> None:
        self._any_file().close()

    def read(self) -> None:
        """Reads some new states, of each item all that it has."""
        file = self._any_file()
        file.has_news()
        states, self._read_to = file.new_states(self._read_to)
        self._read |= by_item(states)

    def copy(self) -> None:
        """Copies a part; a copy that lacks what was forgotten begins anew."""
        number = self._random.randrange(len(self._copies))
        copy = self._copies[number]
        states, _, forgotten = self._any_file().after(copy.position(), self._random.randint(1, 99))
        if copy.lacks(forgotten):
            copy.close()
            self._copies[number] = opened(self._directory / f"copy at {time.monotonic_ns()}")
        elif states:
            with copy.writing(time.monotonic() + WAIT_S) as writer:
                writer.copy(states, forgotten)

    def check(self) -> None:
        """Checks the file, what was read of it by parts, and its copies."""
        file = self._any_file()
        position, states = file.everything()
        assert by_item(states) == self._states
        assert file.offsets() == self._offsets
        end = file.sequence
        while self._read_to < end:
            self.read()
        assert {item: self._read[item] for item in self._states} == self._states
        while any(copy.position() != position for copy in self._copies):
            self.copy()
        for copy in self._copies:
            copied = by_item(copy.everything()[1])
            assert {**self._forgotten, **copied}.items() >= self._states.items()
            assert {**self._forgotten, **self._states}.items() >= copied.items()
            assert copy.offsets() == self._offsets

    def _any_file(self) -> ChangesFile:
        return self._random.choice(self._files)


def test_files_have_the_last_states_and_so_have_those_that_read_or_copy_them_by_parts(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds(request, 30, 0):
        draws = random.Random(seed)
        monkeypatch.setattr(changes_file, "_PAGE_STATES", draws.randint(1, 4))
        history = History(tmp_path / str(seed), draws)
        steps = [history.write] * 6 + [history.read, history.copy] * 2
        for step in draws.choices([*steps, history.forget, history.close], k=20):
            step()
        history.check()


def restored(file: ChangesFile, copy: Path) -> None:
    """Puts an older copy in the place of a file that nobody has open."""
    file.close()
    copy.replace(file.path)


def test_a_file_that_was_restored_from_an_older_copy_is_told_from_the_one_that_went_on(
    path: Path, tmp_path: Path
) -> None:
    running = opened(path)
    write(running, state(1, "{}"))
    included = running.position()
    running.back_up(tmp_path / "older")
    write(running, state(2, "{}"), state(3, "{}"))
    lost = running.position()
    copied, _, _ = running.after(None, 1 << 20)
    assert included is not None
    assert lost is not None
    restored(running, tmp_path / "older")

    with pytest.raises(ChangesReplaced):
        running.has_news()
    later = opened(path)
    with later.writing(time.monotonic() + WAIT_S) as writer:
        # What fails with the first states of a process does not count as its mark.
        with suppress(Fails), writer.attempt():
            writer.put([state(7, "{}")])
            raise Fails
        writer.put([state(4, "{}")] * 9)
    # A bundle has the states that both files have, and none of those that were lost.
    assert later.has(included)
    assert not later.has(lost)
    with pytest.raises(CopyDiffers):
        later.after(lost, 1 << 20)
    # So do those that have copied all of it, and become the file themselves.
    copy = opened(tmp_path / "copy")
    with copy.writing(time.monotonic() + WAIT_S) as writer:
        writer.copy(copied)
    assert copy.position() == lost
    with pytest.raises(CopyDiffers):
        later.after(copy.position(), 1 << 20)
    assert copy.has(included)
    assert copy.has(lost)


def cut(path: Path, random: random.Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def empty(path: Path, _: random.Random) -> None:
    os.truncate(path, 0)


def garble(path: Path, random: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(random.randrange(path.stat().st_size))
        file.write(random.randbytes(random.choice([1, 4, 100, 4096])))


def flip_in_content(path: Path, _: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"a title", b"a bitle"))


def hold_another_model(path: Path, _: random.Random) -> None:
    other = ChangesFile(path.with_name("other"), "books")
    write(other, state(1, "{}"))
    other.close()
    other.path.replace(path)
    lose_the_log(path, _)


def hold_another_release(path: Path, _: random.Random) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma user_version = 99")


def hold_text(path: Path, _: random.Random) -> None:
    path.write_text("no database" * 1000)


def lose_the_log(path: Path, _: random.Random) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def empty_the_log(path: Path, _: random.Random) -> None:
    os.truncate(path.with_name(f"{path.name}-wal"), 0)


def lose_the_file_alone(path: Path, _: random.Random) -> None:
    path.unlink()


def become_a_pipe(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_directory(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[tuple[Callable[[Path, random.Random], None], type[BundleError]]] = [
    (empty, ChangesDamaged),
    (flip_in_content, ChangesDamaged),
    (hold_text, ChangesDamaged),
    (lose_the_log, ChangesDamaged),
    (empty_the_log, ChangesDamaged),
    (lose_the_file_alone, ChangesDamaged),
    (hold_another_model, FormatError),
    (hold_another_release, FormatError),
    (become_a_pipe, FormatError),
    (become_a_directory, FormatError),
    *[(damage, BundleError) for damage in (cut, garble)],
]
"""What happens to a file, and the error that whoever opens it gets then."""


@pytest.mark.parametrize(("damage", "error"), DAMAGES)
def test_a_damaged_file_is_an_error_and_never_other_states(
    damage: Callable[[Path, random.Random], None],
    error: type[BundleError],
    path: Path,
    request: pytest.FixtureRequest,
) -> None:
    file = opened(path)
    write(file, *[state(key, f'{{"attribute:title":"a title {key}"}}') for key in range(300)])
    expected = contents(file) | {(300, WHOLE): "{}"}
    file.close()
    whole = path.read_bytes()
    cases = seeds(request, 50, 0) if error is BundleError else range(1)
    for seed in cases:
        path.write_bytes(whole)
        running = opened(path)
        write(running, state(300, "{}"))
        damage(path, random.Random(seed))
        fresh = opened(path)
        for damaged, errors in ((fresh, error), (running, BundleError)):
            try:
                # What is not read, or was read before, is not damaged to its reader.
                assert contents(damaged) == expected, seed
                assert errors is BundleError
            except errors:
                pass
        fresh.close()
        running.close()


def test_nothing_of_what_a_disk_or_a_program_fails_to_write_is_in_the_file(path: Path) -> None:
    file = opened(path)
    write(file, state(1, "{}"))
    before = (contents(file), file.sequence)
    large = state(2, f'"{"x" * 200_000}"')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ChangesUnavailable):
            write(file, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with suppress(Fails), file.writing(time.monotonic() + WAIT_S) as writer:
        writer.put([large])
        raise Fails
    late = opened(path).writing(time.monotonic())
    with file.writing(time.monotonic() + WAIT_S), pytest.raises(ChangesLocked), late:
        pass
    for reader in (file, opened(path)):
        assert (contents(reader), reader.sequence) == before
    assert write(file, large) == file.sequence == before[1] + 1


def test_a_file_that_may_not_be_written_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(path)
    write(file, state(1, "{}"))
    # Root may write all files.
    monkeypatch.setattr(os, "access", lambda *_: False)
    reader = opened(path)
    with pytest.raises(ChangesUnavailable):
        write(reader, state(2, "{}"))
    assert contents(reader) == contents(file) == {(1, WHOLE): "{}"}


WRITER = """
import itertools, math, sys, time
from pathlib import Path
from bundle.changes.file import ChangesFile
from bundle.changes.states import State
file = ChangesFile(Path(sys.argv[1]), "movies")
first = int(sys.argv[2])
fields = ("", None, 1, False, None, 5.0)
for number in itertools.count(int(sys.argv[3])):
    with file.writing(time.monotonic() + 600) as writer:
        for key in range(first, first + 3):
            writer.put([State(0, "candidates", "movies", key, *fields, str(number))])
        writer.put_offset(sys.argv[2], [0], number)
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [15, pytest.param(500, marks=pytest.mark.nightly)])
def test_killed_writers_lose_nothing_that_they_have_acknowledged(
    path: Path, tmp_path: Path, rounds: int
) -> None:
    acknowledged = [0, 0]
    reader = opened(path)
    for number in range(rounds):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), str(3 * writer), str(last + 1)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for writer, last in enumerate(acknowledged)
        ]
        for process in writers:
            assert process.stdout is not None
            assert process.stdout.readline()
        backup = tmp_path / f"backup {number}"
        reader.back_up(backup)
        for process in writers:
            time.sleep(random.uniform(0, 0.01))
            process.kill()
        for writer, process in enumerate(writers):
            lines = process.communicate()[0].split("\n")[:-1]
            acknowledged[writer] = int(lines[-1]) if lines else acknowledged[writer] + 1
        for file in (opened(backup), reader, opened(path)):
            written = contents(file)
            for writer in range(2):
                (content,) = {written[key, WHOLE] for key in range(3 * writer, 3 * writer + 3)}
                assert file.offsets(str(3 * writer)) == {str(3 * writer): {0: int(content or 0)}}
                assert file.path == backup or int(content or 0) >= acknowledged[writer]
            file.close()
            check_integrity(file.path)
