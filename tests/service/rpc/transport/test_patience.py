from __future__ import annotations

from service.rpc.transport.limits import Limits
from service.rpc.transport.patience import PARTING_S_MAX, Patience

LIMITS = Limits(preface_s=5, idle_s=10, age_s=100, silence_s=3, stall_s=4)


def test_peer_that_reads_is_never_cut_however_slow_it_is() -> None:
    patience = Patience(LIMITS, 0)
    assert not any(patience.over(now, True, unread=True, moved_bytes=now) for now in range(60))
    assert not patience.over(63, True, unread=True, moved_bytes=59)
    assert patience.over(63.1, True, unread=True, moved_bytes=59)


def test_peer_that_was_read_of_again_begins_anew() -> None:
    patience = Patience(LIMITS, 0)
    patience.over(0, True, unread=True, moved_bytes=0)
    patience.moved(3)
    assert not patience.over(6.9, True, unread=True, moved_bytes=0)
    assert patience.over(7.1, True, unread=True, moved_bytes=0)


def test_peer_that_never_speaks_http2_is_cut() -> None:
    patience = Patience(LIMITS, 0)
    assert not patience.over(5, False, unread=False, moved_bytes=0)
    assert patience.over(5.1, False, unread=False, moved_bytes=0)


def test_silent_peer_is_asked_once_and_cut_if_it_does_not_answer() -> None:
    patience = Patience(LIMITS, 0)
    assert not patience.wonders(3)
    assert patience.wonders(3.1)
    assert not patience.wonders(4)
    assert not patience.over(6.1, True, unread=False, moved_bytes=0)
    assert patience.over(6.2, True, unread=False, moved_bytes=0)
    patience.heard = 6.2
    assert not patience.over(7, True, unread=False, moved_bytes=0)
    assert patience.wonders(9.3)


def test_connection_is_spent_when_idle_or_old() -> None:
    patience = Patience(LIMITS, 0)
    assert not patience.spent(10, calls=False)
    assert patience.spent(10.1, calls=False)
    assert not patience.spent(89, calls=True)
    assert patience.spent(111, calls=True)
    assert not Patience(Limits(), 0).spent(1e9, calls=True)


def test_parting_peer_is_waited_for_shortly() -> None:
    patience = Patience(LIMITS, 0)
    patience.parting_since = 50
    assert not patience.over(50 + PARTING_S_MAX, True, unread=True, moved_bytes=0)
    assert patience.over(50.1 + PARTING_S_MAX, True, unread=False, moved_bytes=9)
