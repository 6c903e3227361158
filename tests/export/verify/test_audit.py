"""What `verify` finds in a bundle that is not as it was committed: any bit, any byte, any file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundle.format.manifest import Manifest
from bundle.storage import staging
from export.errors import UsageError, VerificationFailed
from export.verify.audit import audit, check_unlisted, told_as_failures

FLIPS = 1000
GOLDEN = Path(__file__).parents[2] / "golden/bundle/root/movies/1"
"""A bundle with everything that a page can list: linked shards, scales, towers in two forms, candidates, an index."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "movies/1"))


def check(bundle: Path) -> Manifest:
    """What an audit does before it opens anything."""
    with told_as_failures():
        page = staging.read_manifest(bundle)
        staging.check_files(bundle, page, "full")
        check_unlisted(bundle, page)
    return page


def listed(page: Manifest) -> Iterator[tuple[str, int]]:
    """Every byte that is listed, by file and place; those of the page itself too."""
    for file in page.files:
        yield from ((str(file.path), at) for at in range(file.bytes))
    for table in page.tables.values():
        for shard, size in table.extents():
            yield from ((str(shard.file), at) for at in range(shard.offset, shard.offset + size))
    yield from (("manifest.json", at) for at in range((GOLDEN / "manifest.json").stat().st_size))


def flip(file: Path, at: int, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << bit]))


def test_audit_flipped_bit_of_any_listed_byte_is_found(bundle: Path) -> None:
    places = sorted(set(listed(check(bundle))))
    rng = random.Random(3)
    by_file = {file: [place for place in places if place[0] == file] for file in {file for file, _ in places}}
    chosen = rng.sample(places, FLIPS // 2)  # by bytes, then by files, of which most are small
    chosen += [rng.choice(by_file[rng.choice(sorted(by_file))]) for _ in range(FLIPS - len(chosen))]
    missed = []
    for file, at in chosen:
        bit = rng.randrange(8)
        flip(bundle / file, at, bit)
        try:
            check(bundle)
        except VerificationFailed as found:
            assert file.split("/")[0] in str(found) or file == "manifest.json"  # noqa: PT017
        else:
            missed.append((file, at, bit))
        flip(bundle / file, at, bit)
    assert missed == []
    check(bundle)


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)  # the last bytes of a linked file belong to others


def grown(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"\n")


def linked_out(file: Path) -> None:
    model = next(parent for parent in file.parents if parent.parent.name.startswith("test_"))
    file.symlink_to(file.rename(model / "outside"))


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


FILES = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*.*") if path.is_file())


@pytest.mark.parametrize("damage", [truncated, grown, Path.unlink, linked_out, a_directory])
def test_audit_file_that_is_not_whole_is_found(bundle: Path, damage: Callable[[Path], None]) -> None:
    for file in [each for each in FILES if damage is not grown or not each.startswith("tables/")]:
        shutil.rmtree(bundle)
        shutil.copytree(GOLDEN, bundle)
        damage(bundle / file)
        gone = file == "manifest.json" and not (bundle / file).is_file()
        with pytest.raises(UsageError if gone else VerificationFailed):  # without its page it is no bundle
            check(bundle)


def test_audit_file_beside_the_listed_ones_is_told(bundle: Path) -> None:
    (bundle / "tables/cities/.DS_Store").write_bytes(b"x")
    (bundle / "_SUCCESS").touch()
    assert check_unlisted(bundle, check(bundle)) == ("_SUCCESS", "tables/cities/.DS_Store")


@pytest.mark.parametrize("file", ["towers/query/saved_model/saved_model.pbtxt", "indexes/movies/scann/tokens.npy"])
def test_audit_file_in_a_directory_that_is_opened_whole_is_refused(bundle: Path, file: str) -> None:
    (bundle / file).write_bytes(b"x")
    with pytest.raises(VerificationFailed, match="is not in the manifest, yet"):
        check(bundle)


def test_audit_of_a_self_contained_saved_model_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(UsageError, match="is a SavedModel, no bundle"):
        audit(tmp_path)


def test_audit_of_what_the_system_does_not_let_be_read_says_so(tmp_path: Path) -> None:
    place = tmp_path / ("n" * 300)  # of any user: rights do not hold back root
    with pytest.raises(VerificationFailed, match=r"nnn.*: File name too long"):
        audit(place)
