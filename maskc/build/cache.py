"""Built binaries on disk, by content: many processes, one directory, nothing trusted unread.

An entry is sha256(payload) + payload, checked on every read; a wrong one is dropped, with a
warning, and built again. A directory that cannot be used, or that others may write to, is left
alone, and the process works in memory. Nothing is ever unpickled.
"""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

_LIMIT = 1 << 30
"""Bytes kept on disk; the least recently used entries go first."""
_DIGEST = 32


class CacheWarning(UserWarning):
    """The binary cache is unusable or held a damaged entry; results are not affected."""


class FileStore:
    """Bytes by key: one file each, written aside and renamed, so a reader sees all of an entry or
    none. Reading a missing key raises KeyError; trouble with the disk, OSError.

    cuda.core's FileStreamProgramCache does the same, but to import it takes as long as all the
    rest of a start from the cache.
    """

    def __init__(self, folder: Path, limit: int = _LIMIT) -> None:
        self._folder, self._limit = folder / "files", limit
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def __getitem__(self, key: str) -> bytes:
        file = self._folder / key
        try:
            entry = file.read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None
        with suppress(OSError):  # gone since, or not ours to touch
            os.utime(file)
        return entry

    def __setitem__(self, key: str, value: bytes) -> None:
        handle, aside = tempfile.mkstemp(prefix=".aside-", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
            os.replace(aside, self._folder / key)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        self._evict(keep=key)

    def __delitem__(self, key: str) -> None:
        (self._folder / key).unlink(missing_ok=True)

    def _evict(self, keep: str) -> None:
        """Drop what was used least recently, until the rest is within the limit."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another process drops entries too
                    about = entry.stat()
                    found.append((about.st_mtime_ns, about.st_size, entry.name))
        total = sum(size for _, size, _ in found)
        for _, size, name in sorted(found):
            if total <= self._limit:
                return
            if name != keep:
                del self[name]
                total -= size


class Cache:
    """Payloads by key in a folder, in memory as well where the folder fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memory: dict[str, bytes] = {}
        self._writable = True
        self._store: FileStore | None = None
        try:
            _private_folder(folder)
            self._store = FileStore(folder)
        except OSError as error:
            self._give_up(error)

    @property
    def usable(self) -> bool:
        """Whether the folder is read and written."""
        return self._store is not None and self._writable

    def get(self, key: str) -> bytes | None:
        """The payload stored under a key, or None; never a damaged one."""
        if key in self._memory:
            return self._memory[key]
        if self._store is None:
            return None
        try:
            entry = self._store[key]
        except KeyError:
            return None
        except OSError as error:
            self._store = None
            return self._give_up(error)
        payload = entry[_DIGEST:]
        if sha256(payload).digest() == entry[:_DIGEST]:
            return payload
        warnings.warn(
            f"a damaged entry of the cache {self.folder} is built again", CacheWarning, stacklevel=2
        )
        with suppress(KeyError, OSError):  # another process was faster, or writing will say so
            del self._store[key]
        return None

    def put(self, key: str, payload: bytes) -> None:
        """Remember a payload; a disk that refuses costs a warning, not the result."""
        if self._store is not None and self._writable:
            try:
                self._store[key] = sha256(payload).digest() + payload
                return
            except OSError as error:
                self._give_up(error)
        self._memory[key] = payload

    def _give_up(self, error: OSError) -> None:
        """Warn, once: what can still be read is read, what is built stays in memory."""
        self._writable = False
        reason = error.strerror or error
        warnings.warn(
            f"the cache {self.folder} is unusable ({reason}): kernels built now are kept in "
            "memory only; set MASKC_CACHE_DIR to a directory of your own",
            CacheWarning,
            stacklevel=4,
        )


def _private_folder(folder: Path) -> None:
    """Make the folder, mode 0700; refuse one that somebody else could plant code in."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise PermissionError(0, "it belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def cache_folder() -> Path:
    """`MASKC_CACHE_DIR`, else `$XDG_CACHE_HOME/maskc`, else `~/.cache/maskc`."""
    own, base = os.environ.get("MASKC_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    if base:
        return Path(base).absolute() / "maskc"
    try:
        return Path.home() / ".cache" / "maskc"
    except RuntimeError:  # a user without a home directory
        return Path(tempfile.gettempdir()) / f"maskc-{os.geteuid()}"


def open_cache() -> Cache:
    """The cache of this process; following the environment variables when they change."""
    return _cache_at(cache_folder())


@cache
def _cache_at(folder: Path) -> Cache:
    return Cache(folder)


def content_key(*parts: object) -> str:
    """sha256 over the parts, hexadecimal; the boundaries between parts count."""
    digest = sha256()
    for part in parts:
        data = repr(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
