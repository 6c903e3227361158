"""Where the files of a bundle lie."""

from __future__ import annotations

from pathlib import Path

from bundle.storage import files


def test_plain_files_finds_what_no_link_leads_to_and_leaves_the_rest_to_locate(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"12")
    root = tmp_path / "bundle"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(b"123")
    (root / "linked").symlink_to(outside)
    (root / "a" / "link").symlink_to(root / "a" / "b" / "file")
    plain = files.PlainFiles(root)
    for _ in range(2):  # the second time directories are known
        assert plain.find("a/b/file") == (str(files.locate(root, "a/b/file")), 3)
        for path in (
            "linked/file",
            "a/link",
            "a/b",
            "a/b/none",
            "none/file",
            "a/b/file/inner",
            "a/../a/b/file",
            "",
            "/",
        ):
            assert plain.find(path) is None, path


def test_plain_files_follows_a_link_to_the_root_itself(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "file").write_bytes(b"1")
    (tmp_path / "root").symlink_to(tmp_path / "bundle")
    assert files.PlainFiles(tmp_path / "root").find("file") == (str(tmp_path / "root" / "file"), 1)
