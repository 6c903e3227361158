"""What an operator asks of a service, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from service.control.control import Control
from service.engine.descriptions import ModelState
from service.errors import InvalidArgument, NotFound, NotReady, ServiceError, Unimplemented
from service.generations.policy import Policy
from tests.service.running import Running, flip, version_of
from tests.service.small_bundle import SmallBundle

Write = Callable[..., SmallBundle]
Run = Callable[..., Running]


class Operated:
    """A service without doors, and an operator."""

    def __init__(self, service: Running) -> None:
        self.service = service
        policy = Policy(service.settings.versions_latest, service.settings.keep_previous)
        self.control = Control(service.settings, policy, service.switch, service.watcher, service.state, self._models)

    async def _models(self) -> tuple[ModelState, ...]:
        return self.service.engine.models()

    def do(self, ask: Callable[[Control], Awaitable[Any]]) -> dict[str, Any]:
        async def both() -> dict[str, Any]:
            await ask(self.control)
            return await self.control.status()

        return asyncio.run(both())

    def model(self) -> dict[str, Any]:
        found: dict[str, Any] = asyncio.run(self.control.status())["models"][0]
        return found


@pytest.fixture
def operated(write: Write, run: Run) -> Operated:
    """Version 2 answers, 1 is kept."""
    write()
    service = run()
    write(version=2)
    service.scan()
    return Operated(service)


def test_rollback_is_one_call_and_in_effect_when_it_returns(operated: Operated) -> None:
    page = operated.do(lambda to: to.roll_back("movies", None))
    assert version_of(operated.service) == 1
    assert page["models"][0]["current"] == 1
    assert page["models"][0]["wanted"] == {"rolled_back": {"to": 1, "above": 2}}
    assert page["models"][0]["unmet"] == []
    with pytest.raises(NotFound, match="no version before 1"):
        operated.do(lambda to: to.roll_back("movies", None))
    operated.do(lambda to: to.unpin("movies"))
    assert version_of(operated.service) == 2


def test_rollback_of_a_version_that_is_not_kept_waits_for_its_load(write: Write, run: Run) -> None:
    write()
    write(version=2)
    operated = Operated(run())
    page = operated.do(lambda to: to.roll_back("movies", None))
    assert version_of(operated.service) == 2
    assert page["models"][0]["unmet"] == [{"version": 1, "wanted": "loaded", "state": "missing", "problem": ""}]
    operated.service.scan()
    assert version_of(operated.service) == 1
    assert operated.model()["unmet"] == []


def test_rollback_to_what_is_no_older_version_is_refused(operated: Operated) -> None:
    with pytest.raises(InvalidArgument, match="one before 2"):
        operated.do(lambda to: to.roll_back("movies", 2))
    with pytest.raises(NotFound, match="version 7"):
        operated.do(lambda to: to.roll_back("movies", 7))


def test_unload_and_load_undo_each_other(operated: Operated) -> None:
    operated.do(lambda to: to.unload("movies", 2))
    assert version_of(operated.service) == 1
    assert operated.model()["wanted"] == {"unloaded": [2]}
    operated.do(lambda to: to.load("movies", 2))
    operated.service.scan()
    assert version_of(operated.service) == 2
    assert operated.model()["wanted"] == {}


def test_older_version_that_is_loaded_by_hand_is_taken_out_without_being_forbidden(
    operated: Operated, write: Write
) -> None:
    write(version=3)
    operated.service.scan()
    operated.do(lambda to: to.load("movies", 1))
    operated.service.scan()
    assert operated.service.states() == {3: "available", 2: "kept", 1: "available"}
    operated.do(lambda to: to.unload("movies", 1))
    assert operated.service.states() == {3: "available", 2: "kept"}
    assert operated.model()["wanted"] == {}


def test_model_is_unloaded_and_loaded_as_a_whole(operated: Operated) -> None:
    operated.do(lambda to: to.unload("movies", None))
    with pytest.raises(NotReady):
        version_of(operated.service)
    page = operated.do(lambda to: to.load("movies", None))
    assert [(one["version"], one["wanted"]) for one in page["models"][0]["unmet"]] == [(2, "loaded")]
    operated.service.scan()
    assert version_of(operated.service) == 2
    assert operated.model()["unmet"] == []


def test_newest_version_is_unmet_until_it_answers_or_is_refused(operated: Operated, write: Write) -> None:
    operated.do(lambda to: to.pin("movies", (1,)))
    flip(write(version=4).directory / "indexes/movies/vectors.bin")
    write(version=3)
    operated.service.scan()
    page = operated.do(lambda to: to.unpin("movies"))
    assert [one["version"] for one in page["models"][0]["unmet"]] == [4]
    operated.service.scan()
    assert (version_of(operated.service), operated.model()["unmet"]) == (3, [])


def test_label_is_told_with_its_version(operated: Operated) -> None:
    operated.do(lambda to: to.label("movies", "stable", 1))
    assert operated.service.switch.lease("movies", None, "stable").generation.version == 1
    assert operated.model()["versions"][1]["labels"] == ("stable",)
    with pytest.raises(InvalidArgument, match="take them off first"):
        operated.do(lambda to: to.unload("movies", 1))
    operated.do(lambda to: to.unlabel("movies", "stable"))
    assert operated.model()["wanted"] == {}


def test_pin_that_cannot_be_loaded_is_told_with_its_problem(operated: Operated, write: Write) -> None:
    flip(write(version=3).directory / "indexes/movies/vectors.bin")
    operated.do(lambda to: to.pin("movies", (3,)))
    operated.service.scan()
    (unmet,) = operated.model()["unmet"]
    assert (unmet["version"], unmet["state"]) == (3, "refused")
    assert "vectors.bin" in unmet["problem"]
    assert version_of(operated.service) == 2


def test_drain_and_log_level_are_of_the_whole_service(operated: Operated) -> None:
    page = operated.do(lambda to: to.drain(draining=True))
    assert page["draining"]
    assert "drained" in operated.service.engine.problem
    operated.do(lambda to: to.drain(draining=False))
    assert operated.service.engine.ready
    assert operated.do(lambda to: to.log_level("debug"))["log_level"] == "debug"
    assert operated.do(lambda to: to.log_level(None))["log_level"] == "info"


def test_status_tells_what_each_version_costs(operated: Operated) -> None:
    page = asyncio.run(operated.control.status())
    assert [(each["version"], each["state"]) for each in page["models"][0]["versions"]] == [
        (2, "available"),
        (1, "kept"),
    ]
    assert all(each["memory_bytes"] > 0 for each in page["models"][0]["versions"])
    assert page["memory"]["free_bytes"] > 0


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda to: to.pin("films", (1,)), NotFound, "no model 'films'"),
        (lambda to: to.unpin("../movies"), NotFound, "no model"),
        (lambda to: to.pin("movies", (9,)), NotFound, "version 9 of model 'movies' is not in the root; there are 2, 1"),
        (lambda to: to.pin("movies", ()), InvalidArgument, "at least one"),
        (lambda to: to.label("movies", "a b", 1), InvalidArgument, "labels"),
        (lambda to: to.unlabel("movies", "x"), InvalidArgument, "label is 'x'"),
    ],
)
def test_order_that_cannot_be_meant_changes_nothing(
    operated: Operated, ask: Callable[[Control], Awaitable[None]], kind: type[ServiceError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        operated.do(ask)
    assert operated.service.state.stamp() is None


def test_root_that_cannot_be_written_is_told_with_its_cure(
    write: Write, run: Run, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    write()
    operated = Operated(run(state_file=Path("/proc/rowcast-state.json")))
    with pytest.raises(ServiceError, match=r"/proc/rowcast-state\.json cannot be written") as refused:
        operated.do(lambda to: to.drain(draining=True))
    assert isinstance(refused.value, Unimplemented | NotReady)
