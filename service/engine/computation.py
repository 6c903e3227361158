"""Computations that may call other processes on their way.

What computes a request is a coroutine, so that it reads from top to bottom, but no task of asyncio:
it awaits nothing but a `RemoteCall`. Whoever runs it, in whichever thread, receives that call,
waits for it elsewhere, and resumes the computation with the result. No compute thread waits for a
network: a shard that hangs delays the requests that need it, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class RemoteCall(Generic[Result]):
    """A call of other processes, for a computation to await.

    Attributes:
      make: Makes the call; belongs to the event loop.
    """

    def __init__(
        self,
        submit: Callable[[Coroutine[Any, Any, Result]], Future[Result]],
        make: Callable[[], Coroutine[Any, Any, Result]],
    ) -> None:
        """Describes a call that is made on an event loop.

        Args:
          submit: Runs a coroutine on the event loop, for another thread.
          make: See RemoteCall.
        """
        self._submit = submit
        self.make = make

    def __await__(self) -> Generator[RemoteCall[Any], Any, Result]:
        result: Result = yield self
        return result

    def wait(self) -> Result:
        """Makes the call and waits for it, in a thread that is not the event loop's."""
        return self._submit(self.make()).result()


Computation = Coroutine[RemoteCall[Any], Any, Result]
Resume = Callable[[], RemoteCall[Any]]
"""Runs a computation to its next call; raises StopIteration with its result, or what it raises."""


def completed(computation: Computation[Result]) -> Result:
    """Returns the result of a computation; the calling thread waits for its calls.

    This is for what loads and checks versions; the scheduler runs the computations of requests.
    """
    resume: Resume = partial(computation.send, None)
    while True:
        try:
            call = resume()
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            resume = partial(computation.send, call.wait())
        except Exception as problem:  # noqa: BLE001 - the computation knows what it means
            resume = partial(computation.throw, problem)
