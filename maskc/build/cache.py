"""Built binaries on disk, by content: many processes, one directory, nothing trusted unread.

An entry is sha256(key, payload) + payload, checked on every read: a damaged one, or one that
belongs to another key, is dropped with a warning and built again.

Code is loaded from here, so the folder must be one that only this user can write to. Everything
is opened relative to the folder's own handle and without following links: what was checked is
what is read, even if a path above is exchanged meanwhile. A folder, or anything in it, that others
own or may write to, a link or a pipe is neither used nor changed, and the process works in memory.
Nothing is ever unpickled.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
import time
import warnings
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

_LIMIT = 1 << 30
"""Bytes kept on disk; the least recently used entries go first."""
_DIGEST = 32
_ASIDE = ".aside-"
"""Prefix of an entry's file name until the file is complete."""
_ABANDONED = 3600
"""Seconds after which an unfinished file is one that its writer was killed over."""
_FORMAT = "2"
"""Part of every key: raised when the form of entries changes."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SAFE = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags of every open: no link is followed, and no pipe waited for."""
_HAS_HANDLES = hasattr(os, "geteuid") and {os.open, os.mkdir, os.unlink, os.rename, os.stat} <= (
    os.supports_dir_fd
)
"""Whether this system opens files relative to a folder's handle, and says who owns them."""


class CacheWarning(UserWarning):
    """The binary cache is unusable or held a damaged entry; results are not affected."""


class NotTrusted(OSError):
    """Somebody else could have put it there."""

    def __init__(self, what: str) -> None:
        super().__init__(0, what)


# ------------------------------------------------------------------ what is ours


def _refuse_foreign(name: str, status: os.stat_result, is_kind: bool, kind: str) -> None:
    """Raise NotTrusted for anything but a folder or regular file of this user that others cannot
    write.

    Raises:
        NotTrusted: with the reason.
    """
    if not is_kind:
        raise NotTrusted(f"{name} is not a {kind}")
    if status.st_uid != os.geteuid():
        raise NotTrusted(f"{name} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise NotTrusted(f"others may write to {name}: mode {mode:04o}, chmod go-w forbids it")


def _opened(name: str | Path, shown: str, parent: int | None = None) -> int:
    """The handle of a folder of our own.

    Raises:
        NotTrusted: it is a link, no folder, or not this user's alone. OSError: it is missing.
    """
    about = os.stat(name, dir_fd=parent, follow_symlinks=False)
    _refuse_foreign(shown, about, stat.S_ISDIR(about.st_mode), "folder")
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=parent)
    try:
        about = os.fstat(handle)  # of the opened file, whatever was there before
        _refuse_foreign(shown, about, stat.S_ISDIR(about.st_mode), "folder")
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_path(folder: Path) -> Path:
    """The folder with the links of its path resolved.

    A link is followed if the user or root made it. A folder above may be written to by a group
    (users whose umask is 002 have such homes) but not by everybody, except with the sticky bit,
    as /tmp has. Its owner does not matter: who can rename what lies in it can hide the cache, and
    cannot plant anything, as all that is read is opened from the folder's handle and must be ours.

    Raises:
        NotTrusted: with the place.
    """
    for place in (*reversed(folder.parents), folder):
        with suppress(FileNotFoundError):
            about = os.lstat(place)
            if stat.S_ISLNK(about.st_mode) and about.st_uid not in (0, os.geteuid()):
                raise NotTrusted(f"{place} is a link of another user")
    real = Path(os.path.realpath(folder))
    for place in real.parents:
        with suppress(FileNotFoundError):
            mode = os.stat(place).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise NotTrusted(f"everybody may write to {place}, which is above it")
    return real


def _make(folder: Path) -> None:
    """Make a folder and those above it that are missing, each with mode 0700."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            place.mkdir(mode=0o700)


def private_folder(folder: Path) -> Path:
    """The folder, from which code may be loaded: this user's alone, and made where it is missing.

    Raises:
        NotTrusted: it is not. OSError: it cannot be made.
    """
    real = _check_path(folder)
    _make(real)
    os.close(_opened(real, "it"))
    return real


# ------------------------------------------------------------------ files


class FileStore:
    """Bytes by key: one file each, written aside and renamed, so a reader sees all of an entry or
    none. Reading a missing key raises KeyError; trouble with the disk, or an entry that is not
    this user's own regular file, OSError.

    cuda.core's FileStreamProgramCache does the same, but to import it takes as long as all the
    rest of a start from the cache.
    """

    def __init__(self, folder: Path, limit: int = _LIMIT) -> None:
        if not _HAS_HANDLES:
            raise OSError(0, "this system does not open files relative to a folder")
        self._limit = limit
        real = _check_path(folder)
        _make(real)
        outer = _opened(real, "it")
        try:
            with suppress(FileExistsError):
                os.mkdir("files", 0o700, dir_fd=outer)
            self._handle = _opened("files", "files", outer)
        finally:
            os.close(outer)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it was never opened, or Python is at its end
            os.close(self._handle)

    def __getitem__(self, key: str) -> bytes:
        try:
            handle = os.open(key, os.O_RDONLY | _SAFE, dir_fd=self._handle)
        except FileNotFoundError:
            raise KeyError(key) from None
        except OSError:
            self._refuse_entry(key)  # a link says why it was not opened
            raise
        try:
            about = os.fstat(handle)
            _refuse_foreign(f"its entry {key}", about, stat.S_ISREG(about.st_mode), "regular file")
            if about.st_size > self._limit:
                return b""  # no entry of ours is so large: damaged
            with suppress(OSError):  # a disk that is only read
                os.utime(handle)
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read(self._limit)
        finally:
            os.close(handle)

    def __setitem__(self, key: str, value: bytes) -> None:
        self._refuse_entry(key)
        aside = f"{_ASIDE}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
        handle = os.open(aside, flags, 0o600, dir_fd=self._handle)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
            os.rename(aside, key, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=self._handle)
            raise
        self._evict(keep=key)

    def __delitem__(self, key: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(key, dir_fd=self._handle)

    def _refuse_entry(self, key: str) -> None:
        """Raise NotTrusted if the entry of a key is not a file of this user."""
        with suppress(FileNotFoundError):
            about = os.stat(key, dir_fd=self._handle, follow_symlinks=False)
            _refuse_foreign(f"its entry {key}", about, stat.S_ISREG(about.st_mode), "regular file")

    def _evict(self, keep: str) -> None:
        """Drop what was used least recently until the rest is within the limit, and what killed
        writers left; what is not ours stays."""
        entries = []
        for name in os.listdir(self._handle):
            with suppress(FileNotFoundError, NotTrusted):  # another process drops entries too
                about = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
                _refuse_foreign(name, about, stat.S_ISREG(about.st_mode), "regular file")
                if name.startswith(_ASIDE):
                    if about.st_mtime < time.time() - _ABANDONED:
                        del self[name]
                else:
                    entries.append((about.st_mtime_ns, about.st_size, name))
        total = sum(size for _, size, _ in entries)
        for _, size, name in sorted(entries):
            if total <= self._limit:
                return
            if name != keep:
                del self[name]
                total -= size


# ------------------------------------------------------------------ entries


class Cache:
    """Payloads by key in a folder, in memory as well where the folder fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memory: dict[str, bytes] = {}
        self._writable = True
        self._store: FileStore | None = None
        try:
            self._store = FileStore(folder)
        except OSError as error:
            self._give_up(error)

    @property
    def usable(self) -> bool:
        """Whether the folder is read and written."""
        return self._store is not None and self._writable

    def get(self, key: str) -> bytes | None:
        """The payload stored under a key, or None; never a damaged one or one of another key."""
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
            self._give_up(error)
            return None
        payload = entry[_DIGEST:]
        if _digest(key, payload) == entry[:_DIGEST]:
            return payload
        warnings.warn(
            f"a damaged entry of the cache {self.folder} is built again", CacheWarning, stacklevel=2
        )
        with suppress(KeyError, OSError):  # another process was faster, or writing will say so
            del self._store[key]
        return None

    def put(self, key: str, payload: bytes) -> None:
        """Remember a payload; a disk that refuses costs a warning, not the result."""
        entry = _digest(key, payload) + payload
        if self._store is not None and self._writable:
            try:
                self._write(self._store, key, entry)
                return
            except OSError as error:
                if isinstance(error, NotTrusted):
                    self._store = None
                self._give_up(error)
        self._memory[key] = payload

    def _write(self, store: FileStore, key: str, entry: bytes) -> None:
        """Store an entry; in a new folder where the user has removed the one that was opened."""
        try:
            store[key] = entry
        except FileNotFoundError:
            self._store = FileStore(self.folder)
            self._store[key] = entry

    def _give_up(self, error: OSError) -> None:
        """Warn, once: what can still be read is read, what is built stays in memory."""
        warned, self._writable = not self._writable, False
        if warned:
            return
        reason = error.strerror or error
        warnings.warn(
            f"the cache {self.folder} is unusable ({reason}): kernels built now are kept in "
            "memory only; set MASKC_CACHE_DIR to a directory of your own",
            CacheWarning,
            stacklevel=4,
        )


def _digest(key: str, payload: bytes) -> bytes:
    """The digest of key and value: a file under another key's name is not an entry of that key."""
    name = key.encode()
    return sha256(len(name).to_bytes(8, "little") + name + payload).digest()


# ------------------------------------------------------------------ this process


def cache_folder() -> Path:
    """`MASKC_CACHE_DIR`, else `$XDG_CACHE_HOME/maskc`, else `~/.cache/maskc`.

    A relative XDG_CACHE_HOME is ignored, as the XDG specification demands; a user without a home
    directory has a folder of this user's own in the temporary directory.
    """
    folder, base = os.environ.get("MASKC_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if folder:
        return Path(os.path.abspath(os.path.expanduser(folder)))  # ~nobody stays as it is
    if base and os.path.isabs(base):
        return Path(base) / "maskc"
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""
    if os.path.isabs(home):
        return Path(home) / ".cache" / "maskc"
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    return Path(tempfile.gettempdir()) / f"maskc-{user}"


def open_cache() -> Cache:
    """The cache of this process; following the environment variables when they change."""
    return _cache_at(cache_folder())


@lru_cache(maxsize=8)
def _cache_at(folder: Path) -> Cache:
    return Cache(folder)


def content_key(*parts: object) -> str:
    """sha256 over the parts, hexadecimal; the boundaries between parts count."""
    digest = sha256()
    for part in (_FORMAT, *parts):
        data = repr(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
