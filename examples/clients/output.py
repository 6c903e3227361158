"""What a client prints: its results, and the error that its second request returns.

7 9007199254740993 2.187106                the viewer, the id of a movie, its score
error INVALID_ARGUMENT: hour is 24: …      the code and the message of the error
  context.hour: …                          a field of the request, and what is wrong with it
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

SCORE_TOLERANCE = 1e-5
"""The maximum difference of a score that was printed with six digits."""

_RESULT = re.compile(r"(\d+) (\d+) (-?\d+\.\d{6})")
_ERROR = re.compile(r"error ([A-Z_]+): (.+)")
_VIOLATION = re.compile(r"  (\S+): (.+)")


class UnexpectedOutput(Exception):
    """A line has none of the three forms; the message has the line."""


@dataclass(frozen=True)
class Result:
    """A movie for a viewer.

    Attributes:
      viewer: The id of the viewer.
      movie: The id of the movie.
      score: Larger is better.
    """

    viewer: int
    movie: int
    score: float

    def __str__(self) -> str:
        return f"{self.viewer} {self.movie} {self.score:.6f}"


@dataclass(frozen=True)
class Output:
    """What a client prints.

    Attributes:
      results: In the order of the lines.
      code: The code of the error; empty: there was none.
      message: The message of the error.
      fields: The fields of the request that the error names.
    """

    results: Sequence[Result]
    code: str
    message: str
    fields: Sequence[str]


def read_output(text: str) -> Output:
    """Reads what a client printed.

    Raises:
      UnexpectedOutput: A line has another form, or there are two errors.
    """
    results = []
    fields = []
    code = ""
    message = ""
    for line in text.splitlines():
        if match := _RESULT.fullmatch(line):
            results.append(Result(int(match[1]), int(match[2]), float(match[3])))
        elif (match := _ERROR.fullmatch(line)) and not code:
            code = match[1]
            message = match[2]
        elif match := _VIOLATION.fullmatch(line):
            fields.append(match[1])
        else:
            raise UnexpectedOutput(f"the client printed {line!r}")
    return Output(results, code, message, fields)


def differences(expected: Output, printed: Output) -> Iterator[str]:
    """Yields a sentence for each difference: ids, codes, messages and fields are equal, scores
    nearly.
    """
    for line, pair in enumerate(zip_longest(expected.results, printed.results), 1):
        if not _agree(*pair):
            yield f"result {line} is {pair[1]}: expected {pair[0]}"
    for name in ("code", "message", "fields"):
        expected_value = getattr(expected, name)
        printed_value = getattr(printed, name)
        if expected_value != printed_value:
            yield f"the {name} of the error is {printed_value!r}: expected {expected_value!r}"


def _agree(expected: Result | None, printed: Result | None) -> bool:
    if expected is None or printed is None:
        return False
    if (expected.viewer, expected.movie) != (printed.viewer, printed.movie):
        return False
    return abs(expected.score - printed.score) <= SCORE_TOLERANCE
