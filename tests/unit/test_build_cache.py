"""The binary cache: nothing damaged is used, nothing unusable is fatal, many processes share it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

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


def test_the_folder_is_private(tmp_path):
    folder = tmp_path / "deep" / "c"
    folder.mkdir(parents=True, mode=0o755)
    folder.chmod(0o755)
    Cache(folder).put("key", b"x")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [b"", b"short", bytes(64)])
def test_a_damaged_entry_is_dropped_with_a_warning(tmp_path, damage):
    cache = Cache(tmp_path)
    cache.put("key", b"payload")
    (entry,) = entries(tmp_path)
    entry.write_bytes(damage)
    with pytest.warns(CacheWarning, match="a damaged entry of the cache .* is built again"):
        assert cache.get("key") is None
    assert cache.get("key") is None  # dropped: no second warning
    cache.put("key", b"payload")
    assert cache.get("key") == b"payload"


def test_a_single_flipped_bit_is_noticed(tmp_path):
    cache = Cache(tmp_path)
    cache.put("key", b"payload")
    (entry,) = entries(tmp_path)
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    with pytest.warns(CacheWarning):
        assert cache.get("key") is None


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
        patch.setattr("tempfile.mkstemp", full)
        with pytest.warns(CacheWarning, match="No space left on device"):
            cache.put("new", b"new")
        cache.put("newer", b"newer")  # in memory, without another warning
    assert [cache.get(key) for key in ("old", "new", "newer")] == [b"old", b"new", b"newer"]
    assert Cache(tmp_path).get("new") is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners here")
def test_a_folder_of_somebody_else_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="it belongs to another user"):
        cache = Cache(tmp_path)
    assert not cache.usable
    assert not entries(tmp_path)


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MASKC_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / "home" / ".cache" / "maskc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "maskc"
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    first = open_cache()
    assert first.folder == tmp_path / "own"
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
