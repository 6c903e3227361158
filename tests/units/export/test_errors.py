"""What the exporter's errors say."""

from __future__ import annotations

from export.errors import VerificationFailed


def test_verification_failed_says_its_message_and_keeps_the_steps_to_repeat() -> None:
    problem = VerificationFailed("table 't' differs", ["tables/t"])
    assert (str(problem), problem.steps) == ("table 't' differs", ("tables/t",))
