from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from service.config import SettingsError
from service.errors import Unauthenticated
from service.security import watched_files
from service.security.principal import Principal
from service.security.tokens import TokenStore

RANKER = "ranker-0123456789"
ADS = "ads-0123456789abcdef"
PROBE = "probe-0123456789abc"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(watched_files, "INTERVAL_S", 0)
    path = tmp_path / "tokens"
    path.write_text(
        f"# clients\n\nranker sha256:{hashlib.sha256(RANKER.encode()).hexdigest()}\n"
        f"ads {ADS} ads,ads_next\nprometheus {PROBE} -\n"
    )
    return path


def sent(token: str) -> str:
    return f"Bearer {token}"


def test_authenticate_with_a_token_of_the_file_plain_or_digest_returns_its_principal(
    file: Path,
) -> None:
    tokens = TokenStore(file)
    assert tokens.authenticate(sent(RANKER)) == Principal("ranker", None)
    assert tokens.authenticate(f"bearer  {ADS}") == Principal("ads", frozenset({"ads", "ads_next"}))
    assert tokens.authenticate(sent(PROBE)) == Principal("prometheus", frozenset())


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        (None, "missing"),
        ("", "malformed"),
        ("Bearer", "malformed"),
        ("Bearer ", "malformed"),
        (f"Basic {RANKER}", "malformed"),
        (sent("x" * 513), "malformed"),
        (sent(RANKER[:-1]), "unknown"),
        (sent(RANKER.upper()), "unknown"),
        (sent(RANKER) + "," + sent(ADS), "unknown"),
        ("Bearer \xff\x00\ud800", "unknown"),
        (sent("sha256:" + hashlib.sha256(RANKER.encode()).hexdigest()), "unknown"),
    ],
)
def test_authenticate_without_a_known_token_is_unauthenticated_and_repeats_nothing(
    authorization: str | None, reason: str, file: Path
) -> None:
    with pytest.raises(Unauthenticated, match=reason) as rejected:
        TokenStore(file).authenticate(authorization)
    assert RANKER[:8].lower() not in str(rejected.value).lower()


def test_tokens_for_models_that_are_not_under_the_root_are_logged(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ads").mkdir()
    tokens = TokenStore(file, tmp_path)
    file.write_text(f"ads {ADS} ads,asd\n")
    tokens.authenticate(sent(ADS))
    unknown = [
        record.__dict__["rowcast_fields"]["models"]
        for record in caplog.records
        if record.message == "tokens_for_no_model"
    ]
    assert unknown == [["ads_next"], ["asd"]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no token"),
        ("# none\n", "holds no token"),
        ("ranker\n", "line 1 of .* is not `name token`"),
        (f"\nbad/name {RANKER}\n", "line 2"),
        (f"a {RANKER} x y\n", "line 1"),
        ("a short\n", "16 to 512"),
        ("a sha256:12\n", "64 hexadecimal"),
        (f"a {RANKER}\nb {RANKER}\n", "repeats the token of 'a'"),
        (f"a {16 * chr(0x130)}\n", "ASCII"),
        (f"a {RANKER} movies*\n", r"'movies\*' is no name; expected names of models"),
        (f"a {RANKER} movies:retrieve\n", "is no name"),
        (f"a {RANKER} movies,\n", "is no name"),
    ],
)
def test_tokens_of_a_malformed_file_are_rejected_by_line(
    text: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ValueError, match=reason) as rejected:
        TokenStore(tmp_path / "tokens")
    assert RANKER not in str(rejected.value)


def test_tokens_of_a_file_that_is_absent_or_no_text_are_rejected(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    with pytest.raises(OSError, match="No such file"):
        TokenStore(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        TokenStore(file)
    with pytest.raises(
        SettingsError, match=r"^--admin-tokens \(or ROWCAST_ADMIN_TOKENS\): .*not UTF-8"
    ):
        TokenStore.of(file, "admin_tokens")
    assert TokenStore.of(None) is None


def test_tokens_of_a_changed_file_are_reloaded_and_the_last_usable_ones_stay(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rowcast")
    tokens = TokenStore(file)
    file.write_text("newcomer another-token-0123456789\n")
    assert tokens.authenticate(sent("another-token-0123456789")).name == "newcomer"
    with pytest.raises(Unauthenticated):
        tokens.authenticate(sent(RANKER))
    file.write_text("broken\n")
    for _ in range(3):
        assert tokens.authenticate(sent("another-token-0123456789")).name == "newcomer"
    file.unlink()
    for _ in range(3):
        assert tokens.authenticate(sent("another-token-0123456789")).name == "newcomer"
    file.write_text(f"ranker {RANKER}\n")
    assert tokens.authenticate(sent(RANKER)).name == "ranker"
    assert [record.message for record in caplog.records] == [
        "secrets_reloaded",
        "secrets_unreadable",
        "secrets_unreadable",
        "secrets_reloaded",
    ]
    assert RANKER not in caplog.text
