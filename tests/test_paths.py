"""The cache: in whose folder it lies, and that its files are whole."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from opbench import paths


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a home that cannot be written and an empty folder for temporary files."""
    monkeypatch.delenv("OPBENCH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    paths._temporary_cache.cache_clear()
    return tmp_path / "temporary" / f"opbench-{os.getuid()}"


def test_the_folder_named_counts_then_the_users_then_a_temporary_one(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert paths.cache_folder("cubin") == home / "cubin"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700, "nobody else has business there"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert paths.cache_folder("cubin") == tmp_path / "xdg" / "opbench" / "cubin"
    monkeypatch.setenv("OPBENCH_CACHE", str(tmp_path / "mine"))
    assert paths.cache_folder("cpu") == tmp_path / "mine" / "cpu"


def test_a_folder_of_someone_else_is_passed_by(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a name that can be guessed it would let them choose the code that runs here."""
    home.mkdir()
    me = os.getuid()
    monkeypatch.setattr(paths, "_is_owned", lambda folder: folder.lstat().st_uid not in (me, 0))
    other = paths.cache_folder("cpu")
    assert not other.is_relative_to(home) and other.is_dir()
    assert paths.cache_folder("cpu") == other, "one such folder a process"


@pytest.mark.parametrize("how", ["group may write", "everyone may write", "points elsewhere"])
def test_a_folder_that_others_can_change_is_passed_by(home: Path, how: str, tmp_path: Path) -> None:
    if how == "points elsewhere":
        (tmp_path / "trap").mkdir(mode=0o700)
        home.symlink_to(tmp_path / "trap")
    else:
        home.mkdir()
        home.chmod(0o770 if how == "group may write" else 0o777)
    assert not paths.cache_folder("cpu").resolve().is_relative_to(home.resolve())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_owned_by_another_user_is_passed_by(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 12345, 12345)
    assert not paths.cache_folder("cpu").is_relative_to(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "xdg" / "opbench").mkdir(parents=True)
    os.chown(tmp_path / "xdg" / "opbench", 12345, 12345)
    assert not paths.cache_folder("cpu").is_relative_to(tmp_path / "xdg")


def test_a_file_is_synced_before_and_its_folder_after_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def seen(handle: int) -> None:
        synced.append((Path(f"/proc/self/fd/{handle}").readlink().name, (tmp_path / "page").exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", seen)
    paths.write_atomically(tmp_path / "page", b"whole")
    assert [(name.startswith(".page."), named) for name, named in synced] == [(True, False), (False, True)]
    assert synced[1][0] == tmp_path.name and (tmp_path / "page").read_bytes() == b"whole"
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        paths.write_atomically(tmp_path / "page", b"torn")
    assert [p.name for p in tmp_path.iterdir()] == ["page"] and (tmp_path / "page").read_bytes() == b"whole"
