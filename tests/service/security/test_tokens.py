from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import PermissionDenied, Unauthenticated
from service.security import followed_files
from service.security.callers import CALLER, Caller, require_all_models, require_permission
from service.security.tokens import Tokens, read_tokens

RANKER, ADS, PROBE = "ranker-0123456789", "ads-0123456789abcdef", "probe-0123456789abc"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(followed_files, "LOOK_S", 0)
    path = tmp_path / "tokens"
    path.write_text(
        f"# callers\n\nranker sha256:{hashlib.sha256(RANKER.encode()).hexdigest()}\n"
        f"ads {ADS} ads,ads_next\nprometheus {PROBE} -\n"
    )
    return path


def sent(token: str) -> bytes:
    return f"Bearer {token}".encode()


def test_tokens_of_a_file_plain_or_digests_tell_who_calls(file: Path) -> None:
    tokens = Tokens(file)
    assert tokens.caller(sent(RANKER)) == Caller("ranker", None)
    assert tokens.caller(b"bearer  " + ADS.encode()) == Caller("ads", frozenset({"ads", "ads_next"}))
    assert tokens.caller(sent(PROBE)) == Caller("prometheus", frozenset())


@pytest.mark.parametrize(
    ("authorization", "told"),
    [
        (None, "missing"),
        (b"", "another form"),
        (b"Bearer", "another form"),
        (b"Bearer ", "another form"),
        (b"Basic " + RANKER.encode(), "another form"),
        (sent("x" * 513), "another form"),
        (sent(RANKER[:-1]), "not known"),
        (sent(RANKER.upper()), "not known"),
        (b"Bearer \xff\x00", "not known"),
        (sent("sha256:" + hashlib.sha256(RANKER.encode()).hexdigest()), "not known"),
    ],
)
def test_tokens_asked_for_what_is_no_known_token_refuse_and_repeat_nothing(
    authorization: bytes | None, told: str, file: Path
) -> None:
    with pytest.raises(Unauthenticated, match=told) as refused:
        Tokens(file).caller(authorization)
    assert RANKER[:8].lower() not in str(refused.value).lower()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no token"),
        ("# none\n", "holds no token"),
        ("ranker\n", "line 1 of .* is no `name token`"),
        (f"\nbad/name {RANKER}\n", "line 2"),
        (f"a {RANKER} x y\n", "line 1"),
        ("a short\n", "16 to 512"),
        ("a sha256:12\n", "64 hexadecimal"),
        (f"a {RANKER}\nb {RANKER}\n", "the token of 'a' once more"),
        (f"a {16 * chr(0x130)}\n", "ASCII"),
    ],
)
def test_tokens_of_a_file_that_is_none_are_refused_by_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ValueError, match=told) as refused:
        Tokens(tmp_path / "tokens")
    assert RANKER not in str(refused.value)


def test_tokens_of_a_file_that_is_too_large_or_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    with pytest.raises(OSError, match="No such file"):
        Tokens(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="no text"):
        Tokens(file)
    file.write_bytes(b"#" * (followed_files.BYTES_MAX + 1))
    with pytest.raises(ValueError, match="more than"):
        Tokens(file)


def test_tokens_follow_their_file_and_keep_the_last_good_one(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rowcast")
    tokens = Tokens(file)
    file.write_text("newcomer another-token-0123456789\n")
    assert tokens.caller(sent("another-token-0123456789")).name == "newcomer"
    with pytest.raises(Unauthenticated):
        tokens.caller(sent(RANKER))
    file.write_text("broken\n")
    for _ in range(3):
        assert tokens.caller(sent("another-token-0123456789")).name == "newcomer"
    file.unlink()
    for _ in range(3):
        assert tokens.caller(sent("another-token-0123456789")).name == "newcomer"
    file.write_text(f"ranker {RANKER}\n")
    assert tokens.caller(sent(RANKER)).name == "ranker"
    assert [record.message for record in caplog.records] == [
        "secrets_read",
        "secrets_unreadable",
        "secrets_unreadable",
        "secrets_read",
    ]
    assert RANKER not in caplog.text


def test_tokens_told_to_read_again_do_so_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"old {RANKER}\n")
    tokens = Tokens(file)  # looks once a second by itself
    file.write_text(f"new {RANKER}\n")
    tokens.follow()
    assert tokens.caller(sent(RANKER)).name == "new"


def test_caller_of_some_models_is_held_to_them() -> None:
    require_permission("any")
    require_all_models()
    token = CALLER.set(Caller("ads", frozenset({"ads"})))
    try:
        require_permission("ads")
        with pytest.raises(PermissionDenied, match=r"model is 'other'; this token is for ads"):
            require_permission("other")
        with pytest.raises(PermissionDenied, match=r"model is ''"):
            require_permission("")
        with pytest.raises(PermissionDenied, match="every model"):
            require_all_models()
    finally:
        CALLER.reset(token)


@given(authorization=st.binary(max_size=600) | st.builds(lambda rest: b"Bearer " + rest, st.binary(max_size=600)))
def test_tokens_take_or_refuse_any_header(authorization: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any-tokens"
    if not file.exists():
        file.write_text(f"ranker {RANKER}\n")
    try:
        assert Tokens(file).caller(authorization).name == "ranker"
        assert RANKER.encode() in authorization
    except Unauthenticated:
        pass


@given(text=st.binary(max_size=80) | st.text("ab- \n#:sha256,\t\x00", max_size=80).map(str.encode))
def test_tokens_read_or_refuse_any_file(text: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "any-file"
    file.write_bytes(text)
    try:
        callers = read_tokens(file)
    except ValueError as problem:
        assert str(file) in str(problem)  # noqa: PT017
    else:
        assert all(len(digest) == 32 for digest in callers)
