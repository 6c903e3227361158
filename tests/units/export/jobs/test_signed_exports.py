"""Exports that are signed: to a directory and to a store, with what they share with older versions;
a key that cannot sign is reported before anything is read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bundle.format import paths
from bundle.storage import catalog
from bundle.storage.signatures import read_signature, signed_files
from bundle.storage.signed_content import check_content
from service.cli.bundle_download import pull
from service.cli.bundle_source import PullError, find_bundle
from tests.bundles.signing_keys import (
    KeyPair,
    write_certified_keys,
    write_keys,
    write_private_key,
)
from tests.units.export.commands import Command
from tests.units.export.jobs.test_destinations import CHANGED, ROOTS, VALUES, Exports

pytest.importorskip("model_signing")


@pytest.fixture
def exports(request: pytest.FixtureRequest, command: Command, tmp_path: Path) -> Exports:
    kind = getattr(request, "param", "directory")
    return Exports(command, ROOTS[kind].format(tmp_path), tmp_path)


@pytest.fixture
def keys(tmp_path: Path) -> KeyPair:
    return write_keys(tmp_path, "exporter")


def signing(keys: KeyPair) -> list[object]:
    options: list[object] = ["--sign-key", keys.private]
    if keys.certificates is not None:
        options += ["--sign-certificates", keys.certificates]
    return options


def assert_signed(exports: Exports, keys: KeyPair, version: int) -> None:
    """Asserts that a version is what was signed, where a service would read it."""
    directory = exports.on_disk / "m" / str(version)
    if "://" in exports.root:
        source = find_bundle(exports.root, version=version)
        pulled = pull(source, exports.directory / "pulled", None, signing_keys=(keys.public,))
        directory = pulled.bundle
    signed = signed_files(read_signature(directory), [keys.public])
    check_content(directory, catalog.read_manifest(directory), signed)
    in_directory = {
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    }
    assert in_directory == {*signed.files, *paths.SIGNATURE_FILES}


@pytest.mark.parametrize("exports", ["directory", "store"], indirect=True)
def test_versions_that_share_files_are_signed(exports: Exports, keys: KeyPair) -> None:
    assert exports.run(*signing(keys)).code == 0
    assert_signed(exports, keys, 1)
    exports.save(CHANGED)
    assert exports.run(*signing(keys)).json["reused"]["segments"] == 2
    assert_signed(exports, keys, 2)
    # A version that is not signed takes nothing of a signature over.
    assert exports.run().code == 0
    if "://" in exports.root:
        assert find_bundle(exports.root, version=3).signature is None
        with pytest.raises(PullError, match="no signature"):
            assert_signed(exports, keys, 3)
    else:
        assert read_signature(exports.on_disk / "m/3") is None


@pytest.mark.parametrize("exports", ["directory", "store"], indirect=True)
def test_certificates_sign(exports: Exports, tmp_path: Path) -> None:
    certified = write_certified_keys(tmp_path, "exporter")
    assert exports.run(*signing(certified)).code == 0
    assert_signed(exports, certified, 1)


def test_bundle_is_signed_later_and_verified(
    exports: Exports, command: Command, keys: KeyPair
) -> None:
    assert exports.run().code == 0
    bundle = exports.on_disk / "m/1"
    verify = ["verify", str(bundle), "--verify-signatures", str(keys.public)]
    failed = command(*verify)
    assert (failed.code, "no signature" in failed.message) == (5, True)
    assert command("sign", str(bundle), *map(str, signing(keys)), "--json").json["files"] == 4
    assert command(*verify, "--json").json["signature_verified"]
    assert "one of the keys has signed every byte" in " ".join(command(*verify).out.split())
    # Without a key, the files of the signature are no part of the bundle that is unknown.
    assert command("verify", str(bundle), "--json").json["unlisted"] == []


def test_key_that_cannot_sign_is_rejected_first(
    exports: Exports, keys: KeyPair, tmp_path: Path
) -> None:
    locked = write_private_key(
        tmp_path / "locked.pem",
        ec.generate_private_key(ec.SECP256R1()),
        serialization.BestAvailableEncryption(b"secret"),
    )
    curve = write_private_key(tmp_path / "curve.pem", ec.generate_private_key(ec.SECP256K1()))
    stranger = write_certified_keys(tmp_path, "stranger")
    assert stranger.certificates is not None
    mistakes: list[tuple[list[object], str]] = [
        (["--sign-key", locked], "without a password"),
        (["--sign-key", curve], "P-256"),
        (["--sign-key", keys.public], "a private key"),
        (["--sign-key", tmp_path / "none.pem"], "No such file"),
        (
            ["--sign-key", keys.private, "--sign-certificates", stranger.certificates],
            "does not match",
        ),
        (["--sign-certificates", stranger.certificates], "sign_key"),
    ]
    for options, words in mistakes:
        done = exports.run(*options)
        assert (done.code, words in done.message) == (2, True), done.message
    assert not exports.on_disk.exists()


def test_linked_tables_cannot_be_signed(exports: Exports, command: Command, keys: KeyPair) -> None:
    done = exports.run("--tables", "link", *signing(keys))
    assert (done.code, 'tables = "copy"' in done.message) == (2, True)
    assert exports.run("--tables", "link").code == 0
    assert set(VALUES) == set(catalog.read_manifest(exports.on_disk / "m/1").tables)
    done = command("sign", str(exports.on_disk / "m/1"), "--sign-key", str(keys.private))
    assert (done.code, 'tables = "copy"' in done.message) == (2, True)


def test_rows_that_an_older_version_holds_otherwise_are_not_signed(
    exports: Exports, keys: KeyPair
) -> None:
    """Bytes decide what is shared: what somebody changed in an older version is not."""
    assert exports.run().code == 0
    older = exports.on_disk / "m/1" / paths.table_segment("t0", 0, 1)
    changed = np.fromfile(older, np.float32)
    changed[17] = 9
    changed.tofile(older)
    assert exports.run(*signing(keys)).code == 0
    exports.assert_whole()
    assert_signed(exports, keys, 2)
