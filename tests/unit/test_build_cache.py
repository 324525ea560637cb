"""The binary cache: nothing damaged is used, nothing unusable is fatal, many processes share it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from maskc.build import cache as C
from maskc.build.cache import Cache, CacheWarning, cache_folder, content_key, open_cache


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_put_is_got_by_another_process(tmp_path):
    Cache(tmp_path / "c").put("key", b"payload")
    again = Cache(tmp_path / "c")
    assert again.get("key") == b"payload"
    assert again.get("other") is None
    assert again.usable


def test_what_is_made_is_private(tmp_path):
    folder = tmp_path / "deep" / "c"
    Cache(folder).put("key", b"x")
    assert [place.stat().st_mode & 0o777 for place in (folder.parent, folder)] == [0o700] * 2
    assert (folder / "files").stat().st_mode & 0o777 == 0o700
    assert (folder / "files" / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o1700])
def test_a_folder_that_others_only_read_is_used_and_left_as_it_is(tmp_path, mode):
    folder = tmp_path / "c"
    folder.mkdir()
    folder.chmod(mode)
    Cache(folder).put("key", b"x")
    assert Cache(folder).get("key") == b"x"
    assert folder.stat().st_mode & 0o7777 == mode


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda entry: entry.write_bytes(b""),
    "short": lambda entry: entry.write_bytes(b"short"),
    "zeros": lambda entry: entry.write_bytes(bytes(64)),
    "a flipped bit": lambda entry: entry.write_bytes(
        (whole := entry.read_bytes())[:-1] + bytes([whole[-1] ^ 1])
    ),
    # a file copied to another key would give another mask's kernel
    "another key's": lambda entry: shutil.copy(entry.with_name("other"), entry),
    "a key that ends later": lambda entry: shutil.copy(entry.with_name("ke"), entry),
    "larger than the cache": lambda entry: os.truncate(entry, 1 << 42),  # sparse
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_dropped_with_a_warning(tmp_path, damage):
    cache, files = Cache(tmp_path), tmp_path / "files"
    for key, payload in (("key", b"payload"), ("other", b"payload"), ("ke", b"ypayload")):
        cache.put(key, payload)
    DAMAGE[damage](files / "key")
    with pytest.warns(CacheWarning, match="a damaged entry of the cache .* is built again"):
        assert cache.get("key") is None
    assert sorted(os.listdir(files)) == ["ke", "other"]
    assert cache.get("key") is None  # dropped: no second warning
    cache.put("key", b"payload")
    assert [cache.get(key) for key in ("key", "other")] == [b"payload"] * 2


def test_an_unusable_folder_means_memory_and_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(CacheWarning, match="is unusable .*MASKC_CACHE_DIR") as caught:
        cache = Cache(tmp_path / "file")
    assert len(caught) == 1
    cache.put("key", b"payload")
    assert cache.get("key") == b"payload"
    assert not cache.usable


def test_a_disk_that_fills_up_keeps_what_it_has(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    cache.put("old", b"old")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(C.os, "rename", full)
        with pytest.warns(CacheWarning, match="No space left on device"):
            cache.put("new", b"new")
        cache.put("newer", b"newer")  # in memory, without another warning
    assert [cache.get(key) for key in ("old", "new", "newer")] == [b"old", b"new", b"newer"]
    assert os.listdir(tmp_path / "files") == ["old"]  # nothing half-written is left
    assert Cache(tmp_path).get("new") is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners here")
def test_a_folder_of_somebody_else_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="it belongs to another user"):
        cache = Cache(tmp_path)
    assert not cache.usable
    assert not entries(tmp_path)


def test_the_folder_is_opened_once(monkeypatch, tmp_path):
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "own"))
    first = open_cache()
    assert first.folder == cache_folder() == tmp_path / "own"
    assert open_cache() is first
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "other"))
    assert open_cache().folder == tmp_path / "other"


def test_keys_tell_parts_apart():
    keys = [content_key("ab", "c"), content_key("a", "bc"), content_key("abc"), content_key("a", 1)]
    assert len({*keys, content_key("a", "1")}) == 5
    assert content_key("ab", ("c",)) == content_key("ab", ("c",))


ROOT = Path(__file__).parents[2]
RACE = """
import sys
import time
from pathlib import Path
from maskc.build.cache import Cache
cache = Cache(Path(sys.argv[1]))
payload = bytes(range(256)) * 4000
for turn in range(30):
    cache.put("key", payload)
    found = cache.get("key")
    if found is not None and found != payload:
        sys.exit("torn")
"""


def test_processes_share_a_folder(tmp_path):
    """Writers and readers of one key: never half an entry, never a warning."""
    command = [sys.executable, "-W", "error", "-c", RACE, str(tmp_path / "c")]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) for _ in range(3)]
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()


def test_no_warning_where_all_is_well(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = Cache(tmp_path)
        cache.put("key", b"")
        assert cache.get("key") == b""


def test_files_used_least_recently_go_first(tmp_path):
    store = C.FileStore(tmp_path, limit=300)
    for number, key in enumerate("abc"):
        store[key] = bytes(100)
        os.utime(tmp_path / "files" / key, ns=(number, number))
    assert store["a"] == bytes(100)  # now it is the latest
    store["d"] = bytes(150)
    assert sorted(os.listdir(tmp_path / "files")) == ["a", "d"]
    store["large"] = bytes(1000)  # is kept: whoever wrote it will read it
    assert os.listdir(tmp_path / "files") == ["large"]


# ------------------------------------------------------------------ what is not ours


needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)
NOBODY = 65534


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """Modes, owners, sizes and times of changes, of everything, links not followed."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        about = path.lstat()
        found[str(path)] = (about.st_mode, about.st_uid, about.st_size, about.st_ctime_ns)
    return found


@contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """Every warning, each time."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def unused_and_unchanged(folder: Path, root: Path, reason: str) -> None:
    """The folder gives nothing, takes nothing, stays as it is, and costs one warning."""
    before = snapshot(root)
    with recorded() as caught:
        cache = Cache(folder)
        assert cache.get("key") is None
        cache.put("key", b"mine")
        cache.put("other", b"mine")
        assert cache.get("key") == b"mine"
    assert len(caught) == 1
    assert reason in str(caught[0].message)
    assert not cache.usable
    assert snapshot(root) == before


def filled(folder: Path) -> Path:
    Cache(folder).put("key", b"theirs")
    return folder / "files"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o775, 0o1777, 0o702])
@pytest.mark.parametrize("level", ["", "files", "files/key"])
def test_nothing_is_used_that_others_may_write(tmp_path, mode, level):
    folder = tmp_path / "c"
    filled(folder)
    (folder / level).chmod(mode)
    unused_and_unchanged(folder, tmp_path, "others may write to")


@needs_root
@pytest.mark.parametrize("level", ["", "files", "files/key"])
def test_nothing_is_used_that_others_own(tmp_path, level):
    folder = tmp_path / "c"
    filled(folder)
    os.chown(folder / level, NOBODY, NOBODY)
    unused_and_unchanged(folder, tmp_path, "belongs to another user")


@pytest.mark.parametrize("level", ["files", "files/key"])
@pytest.mark.parametrize("dangling", [False, True])
def test_no_link_below_the_folder_is_followed(tmp_path, level, dangling):
    folder = tmp_path / "c"
    filled(folder)
    target = tmp_path / "elsewhere"
    (folder / level).rename(target)
    if dangling:
        target.rename(tmp_path / "moved")
    (folder / level).symlink_to(target)
    unused_and_unchanged(folder, tmp_path, " is not a ")


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
def test_nobody_waits_for_what_is_no_file(tmp_path, kind):
    files = filled(tmp_path / "c")
    (files / "key").unlink()
    if kind == "pipe":
        os.mkfifo(files / "key", 0o600)
    elif kind == "folder":
        (files / "key").mkdir(0o700)
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(files / "key"))
        (files / "key").chmod(0o600)
    unused_and_unchanged(tmp_path / "c", tmp_path, "its entry key is not a regular file")


def test_a_pipe_in_place_of_the_folder(tmp_path):
    os.mkfifo(tmp_path / "c")
    unused_and_unchanged(tmp_path / "c", tmp_path, "it is not a folder")


def test_what_is_put_in_place_later_is_not_trusted_either(tmp_path):
    cache = Cache(tmp_path / "c")
    cache.put("key", b"mine")
    (tmp_path / "c" / "files" / "key").unlink()
    (tmp_path / "c" / "files" / "key").symlink_to("/etc/hostname")
    before = snapshot(tmp_path)
    with recorded() as caught:
        cache.put("key", b"mine")
        cache.put("more", b"mine")
    assert len(caught) == 1
    assert "its entry key is not a regular file" in str(caught[0].message)
    assert [cache.get(key) for key in ("key", "more")] == [b"mine", b"mine"]
    assert snapshot(tmp_path) == before


def test_a_folder_exchanged_for_a_link_is_not_seen(tmp_path):
    """The folder was opened once: what a path means later does not matter."""
    cache = Cache(tmp_path / "c")
    cache.put("key", b"mine")
    Cache(tmp_path / "evil").put("key", b"theirs")
    (tmp_path / "c" / "files").rename(tmp_path / "kept")
    (tmp_path / "c" / "files").symlink_to(tmp_path / "evil" / "files")
    assert cache.get("key") == b"mine"


def test_a_link_of_ones_own_may_lead_to_the_folder(tmp_path):
    """Folders may be links, as where ~/.cache is a link to a larger disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    Cache(tmp_path / "link" / "c").put("key", b"x")
    (tmp_path / "last").symlink_to(tmp_path / "disk" / "c")
    assert Cache(tmp_path / "last").get("key") == b"x"


@needs_root
def test_a_link_of_somebody_else_leads_nowhere(tmp_path):
    filled(tmp_path / "c")
    (tmp_path / "link").symlink_to(tmp_path / "c")
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    unused_and_unchanged(tmp_path / "link", tmp_path, "is a link of another user")


@pytest.mark.parametrize(("mode", "usable"), [
    (0o777, False), (0o1777, True), (0o775, True), (0o2775, True), (0o757, False),
])  # fmt: skip
def test_folders_above(tmp_path, mode, usable):
    """A group may write there, as in homes under umask 002; everybody only with the sticky bit."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    if not usable:
        unused_and_unchanged(above / "c", tmp_path, "everybody may write to")
        return
    Cache(above / "c").put("key", b"x")
    assert Cache(above / "c").usable
    assert above.stat().st_mode & 0o7777 == mode


# ------------------------------------------------------------------ keys and sizes


def test_a_cache_that_was_removed_is_made_again(tmp_path):
    cache = Cache(tmp_path / "c")
    cache.put("key", b"x")
    shutil.rmtree(tmp_path / "c")
    assert cache.get("key") is None
    cache.put("key", b"y")
    assert cache.usable
    assert Cache(tmp_path / "c").get("key") == b"y"


def test_one_warning_whatever_fails(tmp_path, monkeypatch):
    cache = Cache(tmp_path)

    def broken(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(C.FileStore, "__setitem__", broken)
    monkeypatch.setattr(C.FileStore, "__getitem__", broken)
    with recorded() as caught:
        cache.put("a", b"a")
        assert cache.get("b") is None
        cache.put("b", b"b")
        assert cache.get("b") == b"b"
    assert len(caught) == 1
    assert "Input/output error" in str(caught[0].message)


def test_what_killed_writers_leave_is_swept(tmp_path):
    cache = Cache(tmp_path)
    old, new = (tmp_path / "files" / f".aside-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
        path.chmod(0o600)
    os.utime(old, (1, 1))
    cache.put("key", b"x")
    assert sorted(os.listdir(tmp_path / "files")) == [".aside-new", "key"]


def test_what_is_not_ours_is_not_evicted(tmp_path):
    store = C.FileStore(tmp_path, limit=100)
    (tmp_path / "files" / "link").symlink_to("/etc/hostname")
    (tmp_path / "files" / "wide").write_bytes(bytes(200))
    (tmp_path / "files" / "wide").chmod(0o666)
    store["a"] = bytes(90)
    store["b"] = bytes(90)
    assert sorted(os.listdir(tmp_path / "files")) == ["b", "link", "wide"]


KILLED = """
import sys
import time
from pathlib import Path
from maskc.build.cache import Cache
cache = Cache(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    for key in "abc":
        cache.put(key, key.encode() * 3_000_000)
"""


def test_writers_that_are_killed_leave_whole_entries(tmp_path):
    folder = tmp_path / "c"
    for turn in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", KILLED, str(folder)], stdout=subprocess.PIPE,
            cwd=ROOT,
        )  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.02 + 0.007 * turn)
        writer.kill()
        writer.communicate(timeout=60)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for key in "abc":
                assert Cache(folder).get(key) in (None, key.encode() * 3_000_000)


def test_forked_processes_share_what_was_opened(tmp_path):
    cache = Cache(tmp_path)
    cache.put("before", b"before")
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            status = 1
            try:
                for turn in range(20):
                    cache.put("shared", b"same" * 1000)
                    cache.put(f"own{number}", bytes([number, turn]))
                right = cache.get("before") == b"before" and cache.usable
                status = 0 if right and cache.get("shared") == b"same" * 1000 else 2
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert [cache.get(f"own{number}") for number in range(4)] == [
        bytes([number, 19]) for number in range(4)
    ]


# ------------------------------------------------------------------ the environment


OF_USER = f"{{tmp}}/maskc-{os.geteuid()}"


@pytest.mark.parametrize(("home", "base", "expected"), [
    ("/home/me", "relative", "/home/me/.cache/maskc"), ("/home/me", "", "/home/me/.cache/maskc"),
    ("/home/me", "/xdg", "/xdg/maskc"), ("/", None, "/.cache/maskc"),
    ("", None, OF_USER), ("relative", None, OF_USER), (None, None, OF_USER),
    (None, None, "/of/the/database/.cache/maskc"),
])  # fmt: skip
def test_the_xdg_rules(monkeypatch, tmp_path, home, base, expected):
    """Without $HOME the database of users decides, and a temporary folder where it has no entry."""

    def user(_):
        if "{tmp}" in expected:
            raise KeyError
        return SimpleNamespace(pw_dir="/of/the/database")

    monkeypatch.setattr("pwd.getpwuid", user)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for name, content in (("MASKC_CACHE_DIR", None), ("HOME", home), ("XDG_CACHE_HOME", base)):
        monkeypatch.delenv(name, raising=False)
        if content is not None:
            monkeypatch.setenv(name, content)
    assert cache_folder() == Path(expected.format(tmp=tmp_path))


def test_a_home_of_nobody_is_a_name_like_any_other(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASKC_CACHE_DIR", "~no-such-user/c")
    assert cache_folder() == tmp_path / "~no-such-user" / "c"
