"""Signed bundles that somebody has changed: every program that verifies signatures refuses them and
names what differs, although all checksums fit.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bundle.errors import BundleError, SignatureMissing, SignatureRejected
from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.manifest import EmbeddedFeature
from bundle.storage import catalog
from bundle.storage.signatures import KeyRejected, check_keys
from bundle.tables.row_deltas import RANGE_ROWS
from export.cli.commands import app
from export.errors import ExportError, UsageError, VerificationFailed
from export.jobs.signing import sign_bundle
from object_store.remote_path import RemotePath
from service.cli.serve import command
from service.config import ServiceSettings
from service.coordinator import Coordinator
from service.versions.loader import Loader
from service.versions.rejections import LoadRejected
from tests.bundles.next_versions import write_next_version
from tests.bundles.signing_keys import SERVER, KeyPair, write_certified_keys, write_keys
from tests.bundles.small import write_small_bundle
from tests.bundles.tables import write_floats
from tests.bundles.writer import BundleWriter
from tests.hostile.manifest_edits import rewrite, setting
from tests.units.object_store.memory_stores import published_as_objects
from tests.units.service.versions.driven import Driven

pytest.importorskip("model_signing")

ROWS = paths.table_segment("users", 0, 2)
TOWER = "towers/query/compiled-f32.tflite"
CASTAGNOLI = 0x11EDC6F41
"""The polynomial of crc32c, whose multiples can be added to a file without changing its checksum.
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return write_keys(tmp_path_factory.mktemp("keys"), "exporter")


@pytest.fixture(scope="module")
def signed(keys: KeyPair, small_towers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with versions 1 and 2 of a model, both signed."""
    root = tmp_path_factory.mktemp("signed")
    for version in (1, 2):
        sign_bundle(write_small_bundle(root, small_towers, version=version).directory, keys.signer)
    return root


@pytest.fixture
def bundle(signed: Path, tmp_path: Path) -> Path:
    """A copy of version 1, which a test may change."""
    return Path(shutil.copytree(signed / "movies/1", tmp_path / "published/movies/1"))


def serve(bundle: Path, key: Path) -> None:
    """Loads a version as a service does."""
    settings = ServiceSettings(root=bundle.parents[1], verify_signatures=(key,))
    loader = Loader(settings, 1, lambda version, throttle: None)
    loader.load(bundle.parent.name, int(bundle.name)).close()


def verify(bundle: Path, key: Path) -> None:
    try:
        with pytest.raises(SystemExit) as ended:
            app(["verify", str(bundle), "--verify-signatures", str(key)])
    except VerificationFailed as problem:
        raise SignatureRejected(str(problem)) from problem
    assert ended.value.code == 0


def pull_from(url: object, root: Path, key: Path) -> None:
    """Pulls a version, which is published only if it is what was signed."""
    arguments = ["pull", str(url), str(root), "--verify-signatures", str(key)]
    done = CliRunner().invoke(command(), arguments)
    if done.exit_code:
        # A store without the file cannot be read.
        assert done.exit_code in {3, 5}, done.stderr
        assert not list(root.glob("*/[0-9]*"))
        raise SignatureRejected(done.stderr)
    # What was pulled has its signature.
    (pulled,) = root.glob("*/[0-9]*")
    serve(pulled, key)


def pull_files(bundle: Path, key: Path) -> None:
    pull_from(bundle, bundle.parents[2] / "pulled", key)


def pull_objects(bundle: Path, key: Path) -> None:
    store = RemotePath(f"local://{bundle.parents[2]}/store")
    published_as_objects(bundle, store / bundle.parent.name / bundle.name)
    pull_from(store, bundle.parents[2] / "pulled", key)


Take = Callable[[Path, Path], None]
TAKES: list[Take] = [serve, verify, pull_files, pull_objects]


@pytest.mark.parametrize("take", TAKES)
def test_signed_bundle_is_taken(bundle: Path, keys: KeyPair, take: Take) -> None:
    take(bundle, keys.public)


def forge(path: str) -> Callable[[Path, Path], None]:
    """Returns what changes a few bits of a file, and not its checksum."""

    def change(bundle: Path, _version_2: Path) -> None:
        data = bytearray((bundle / path).read_bytes())
        checksum = crc32c(bytes(data))
        middle = len(data) // 2
        # The bits of each byte count from the lowest.
        for bit in range(33):
            data[middle + bit // 8] ^= (CASTAGNOLI >> (32 - bit) & 1) << (bit % 8)
        assert crc32c(bytes(data)) == checksum
        (bundle / path).write_bytes(data)

    return change


def edit_manifest(bundle: Path, _version_2: Path) -> None:
    rewrite(bundle, setting("created", "2026-01-02T00:00:00Z"))


def add_file(bundle: Path, _version_2: Path) -> None:
    (bundle / "towers/query/more.bin").write_bytes(b"more")


def add_hidden_folder(bundle: Path, _version_2: Path) -> None:
    (bundle / "towers/.git").mkdir()
    (bundle / "towers/.git/config").write_bytes(b"more")


def remove_file(bundle: Path, _version_2: Path) -> None:
    (bundle / ROWS).unlink()


def take_file_of_other_version(bundle: Path, version_2: Path) -> None:
    shutil.copyfile(version_2 / TOWER, bundle / TOWER)
    (entry,) = [file for file in catalog.read_manifest(version_2).files if file.path == TOWER]
    files = catalog.read_manifest(bundle).files
    number = [file.path for file in files].index(TOWER)
    rewrite(bundle, setting(f"files.{number}", entry.model_dump()))


def take_signature_of_other_version(bundle: Path, version_2: Path) -> None:
    for path in paths.SIGNATURE_FILES:
        shutil.copyfile(version_2 / path, bundle / path)


def list_what_was_forged(bundle: Path, version_2: Path) -> None:
    """Changes a table, and the list of what was signed."""
    forge(ROWS)(bundle, version_2)
    listed = json.loads((bundle / paths.SIGNED_FILES).read_bytes())
    listed["files"][ROWS]["objects"] = ["0" * 64]
    (bundle / paths.SIGNED_FILES).write_text(json.dumps(listed))


def replace_signature(bundle: Path, _version_2: Path) -> None:
    (bundle / paths.SIGNATURE).write_bytes(b"\xff{")


def drop_certificates_and_keys(bundle: Path, _version_2: Path) -> None:
    """Removes what says by which key the signature is."""
    signature = json.loads((bundle / paths.SIGNATURE).read_bytes())
    signature["verificationMaterial"] = {}
    (bundle / paths.SIGNATURE).write_text(json.dumps(signature))


def edit_statement(bundle: Path, _version_2: Path) -> None:
    """Changes the signature itself."""
    signature = json.loads((bundle / paths.SIGNATURE).read_bytes())
    (entry,) = signature["dsseEnvelope"]["signatures"]
    entry["sig"] = entry["sig"][:20] + "AAAA" + entry["sig"][24:]
    (bundle / paths.SIGNATURE).write_text(json.dumps(signature))


def remove_signature(bundle: Path, _version_2: Path) -> None:
    shutil.rmtree(bundle / "signature")


TAMPERING: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a byte of a table": (forge(ROWS), ROWS),
    "a byte of a tower": (forge(TOWER), TOWER),
    "an edited manifest": (edit_manifest, paths.MANIFEST),
    "an added file": (add_file, "towers/query/more.bin"),
    "an added file that is hidden": (add_hidden_folder, "towers/.git/config"),
    "a removed file": (remove_file, ROWS),
    "a file of another version": (take_file_of_other_version, ""),
    "the signature of another version": (take_signature_of_other_version, ""),
    "an edited list": (list_what_was_forged, paths.SIGNED_FILES),
    "an edited signature": (edit_statement, paths.SIGNATURE),
    "a signature of no key": (drop_certificates_and_keys, paths.SIGNATURE),
    "a signature that is no JSON": (replace_signature, paths.SIGNATURE),
    "no signature": (remove_signature, "no signature"),
}
"""What is done to a bundle, given another version of its model; and what the message names."""
ABSENT_FROM_DOWNLOADS = {"an added file", "an added file that is hidden"}
"""What a store of plain files has in addition, and `pull` does not fetch."""


@pytest.mark.parametrize("tampering", TAMPERING)
@pytest.mark.parametrize("take", TAKES)
def test_changed_bundle_is_refused(
    bundle: Path, signed: Path, keys: KeyPair, take: Take, tampering: str
) -> None:
    change, name = TAMPERING[tampering]
    change(bundle, signed / "movies/2")
    if take is pull_files and tampering in ABSENT_FROM_DOWNLOADS:
        take(bundle, keys.public)
        return
    with pytest.raises(BundleError) as caught:
        take(bundle, keys.public)
    assert name in str(caught.value)


def test_missing_signature_is_an_error_of_its_own(bundle: Path, keys: KeyPair) -> None:
    remove_signature(bundle, bundle)
    with pytest.raises(SignatureMissing, match="rowcast-export sign"):
        serve(bundle, keys.public)


@pytest.mark.parametrize("take", TAKES)
def test_signature_of_another_key_is_refused(bundle: Path, tmp_path: Path, take: Take) -> None:
    stranger = write_keys(tmp_path, "stranger")
    with pytest.raises(SignatureRejected, match=stranger.public.name):
        take(bundle, stranger.public)


def test_one_of_several_keys_suffices(bundle: Path, keys: KeyPair, tmp_path: Path) -> None:
    new = write_keys(tmp_path, "new")
    chosen = ServiceSettings(root=bundle.parents[1], verify_signatures=(new.public, keys.public))
    loader = Loader(chosen, 1, lambda version, throttle: None)
    loader.load("movies", 1).close()
    # The key is replaced: the bundle is signed again, and the old key is given up.
    sign_bundle(bundle, new.signer)
    serve(bundle, new.public)
    with pytest.raises(SignatureRejected):
        serve(bundle, keys.public)


@pytest.mark.parametrize("take", TAKES)
def test_certificate_of_a_trusted_authority_is_taken(
    bundle: Path, tmp_path: Path, take: Take
) -> None:
    certified = write_certified_keys(tmp_path, "ours")
    sign_bundle(bundle, certified.signer)
    take(bundle, certified.public)
    theirs = write_certified_keys(tmp_path, "theirs")
    shutil.rmtree(tmp_path / "pulled", ignore_errors=True)
    with pytest.raises(SignatureRejected, match=r"theirs-authority\.crt"):
        take(bundle, theirs.public)


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ({"days": (-30.0, -1.0)}, "is valid from"),
        ({"days": (1.0, 30.0)}, "is valid from"),
        ({"usage": SERVER}, "is not for signing code"),
    ],
    ids=["expired", "not valid yet", "of a web server"],
)
def test_certificate_that_does_not_count_is_refused(
    bundle: Path, tmp_path: Path, certificate: dict[str, object], words: str
) -> None:
    certified = write_certified_keys(tmp_path, "ours", **certificate)  # type: ignore[arg-type]
    sign_bundle(bundle, certified.signer)
    with pytest.raises(SignatureRejected, match=words):
        serve(bundle, certified.public)


def test_service_goes_on_with_the_version_before(
    signed: Path, keys: KeyPair, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(signed / "movies/1", root / "movies/1")
    driven = Driven(root, verify_signatures=(keys.public,))
    assert driven.serving() == 1
    shutil.copytree(signed / "movies/2", root / "movies/2")
    forge(ROWS)(root / "movies/2", root)
    driven.scan()
    assert driven.serving() == 1
    assert driven.states()[2] == "failed"
    assert ROWS in driven.problem(2)
    assert "was expected" in driven.problem(2)

    # A sound copy is served as soon as it is there.
    shutil.rmtree(root / "movies/2")
    shutil.copytree(signed / "movies/2", root / "movies/2")
    driven.scan()
    driven.scan()
    driven.scan()
    assert driven.serving() == 2


def test_version_is_served_once_its_key_is_there(
    signed: Path, keys: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.versions.failures.RETRY_S", 0.0)
    root = tmp_path / "root"
    shutil.copytree(signed / "movies/1", root / "movies/1")
    key = tmp_path / "key.pub"
    driven = Driven(root, verify_signatures=(key,))
    assert "No such file" in driven.problem(1)
    shutil.copyfile(write_keys(tmp_path, "stranger").public, key)
    driven.scan()
    assert "key.pub" in driven.problem(1)
    shutil.copyfile(keys.public, key)
    driven.scan()
    assert driven.serving() == 1


def test_worker_relies_on_another_as_long_as_no_file_has_changed(
    signed: Path, keys: KeyPair, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(signed / "movies/1", root / "movies/1")
    coordinator = Coordinator()
    for worker in (1, 2):
        driven = Driven(
            root, coordinator=coordinator, worker=worker, verify_signatures=(keys.public,)
        )
        assert driven.serving() == 1
    status = (root / "movies/1" / ROWS).stat()
    forge(ROWS)(root / "movies/1", root)
    # The time of the change itself cannot be set back.
    os.utime(root / "movies/1" / ROWS, ns=(status.st_atime_ns, status.st_mtime_ns))
    late = Driven(root, coordinator=coordinator, worker=3, verify_signatures=(keys.public,))
    assert late.states()[1] == "failed"
    assert ROWS in late.problem(1)


def test_pull_fetches_again_what_was_forged(bundle: Path, keys: KeyPair, signed: Path) -> None:
    forge(ROWS)(bundle, bundle)
    with pytest.raises(SignatureRejected, match=ROWS):
        pull_files(bundle, keys.public)
    shutil.copyfile(signed / "movies/1" / ROWS, bundle / ROWS)
    pull_files(bundle, keys.public)


def test_pull_fetches_a_signature_that_came_later(
    bundle: Path, keys: KeyPair, tmp_path: Path
) -> None:
    pull_files(bundle, keys.public)
    new = write_keys(tmp_path, "new")
    sign_bundle(bundle, new.signer)
    pull_files(bundle, new.public)


@pytest.fixture(scope="module")
def with_deltas(keys: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed version of two segments, each of which has a delta."""
    root = tmp_path_factory.mktemp("deltas")
    rows = np.random.default_rng(1).standard_normal((RANGE_ROWS + 9_000, 6)).astype(np.float32)
    with BundleWriter(root, "m", 1) as writer:
        writer.tables["t"] = write_floats(writer.directory, "t", rows, "float32", [9_000])
        first, _ = writer.commit({"t": EmbeddedFeature(kind="single", table="t", role="context")})
    bundle = write_next_version(first, 0.02, 1)
    sign_bundle(bundle, keys.signer)
    return bundle


def test_delta_is_signed(with_deltas: Path, keys: KeyPair, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(with_deltas, tmp_path / "published/m/2"))
    delta = catalog.read_manifest(bundle).tables["t"].segments[1].deltas[0].file
    serve(bundle, keys.public)
    forge(delta)(bundle, bundle)
    with pytest.raises(SignatureRejected, match=delta):
        serve(bundle, keys.public)


def test_shard_verifies_the_files_that_it_has(
    with_deltas: Path, keys: KeyPair, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(with_deltas, tmp_path / "published/m/2"))
    first = paths.table_segment("t", 0, 2)
    second = paths.table_segment("t", 1, 2)
    (bundle / first).unlink()
    settings = ServiceSettings(
        root=bundle.parents[1], verify_signatures=(keys.public,), shard="2/2", shard_min_bytes=1
    )
    loader = Loader(settings, 1, lambda version, throttle: None)
    loader.load("m", 2).close()
    forge(second)(bundle, bundle)
    with pytest.raises(SignatureRejected, match=second):
        loader.load("m", 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "cannot verify"),
    ],
)
def test_file_without_a_key_is_rejected(tmp_path: Path, content: bytes, words: str) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    with pytest.raises(KeyRejected, match=words):
        check_keys([key])


def test_private_key_is_rejected_where_a_public_one_is_expected(keys: KeyPair) -> None:
    with pytest.raises(KeyRejected, match="holds a private key"):
        check_keys([keys.private])


def test_library_that_is_absent_is_named(
    bundle: Path, keys: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(LoadRejected, match="extra `sign`"):
        serve(bundle, keys.public)
    with pytest.raises(UsageError, match="extra `sign`"):
        verify(bundle, keys.public)
    with pytest.raises(UsageError, match="extra `sign`"):
        sign_bundle(bundle, keys.signer)


def test_bundle_that_is_damaged_is_not_signed(bundle: Path, keys: KeyPair) -> None:
    add_file(bundle, bundle)
    with pytest.raises(ExportError, match=r"more\.bin"):
        sign_bundle(bundle, keys.signer)
    (bundle / ROWS).write_bytes(bytes((bundle / ROWS).stat().st_size))
    with pytest.raises(VerificationFailed, match=ROWS):
        sign_bundle(bundle, keys.signer)
