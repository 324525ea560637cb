"""Whether two masks are the same set: proofs by isl, and a fingerprint to find candidates."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from itertools import product

import islpy as isl
import numpy as np

from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.ir.sets import TooHard, Universe, budget, domain, isl_names

_FREE_ATOMS = 5


def equals(left: Expr, right: Expr) -> bool | None:
    """Whether both hold for the same pairs at all lengths; None when undecided."""
    return True if left == right else _decide(left, right, False)


def subset(left: Expr, right: Expr) -> bool | None:
    """Whether every pair of `left` is one of `right`; None when undecided."""
    return True if left == right else _decide(left, right, True)


@lru_cache(maxsize=1 << 10)  # objects of islpy leave memory behind: ask once for each pair
def _decide(left: Expr, right: Expr, one_way: bool) -> bool | None:
    """Decide a comparison in which conditions that read data are free booleans.

    If it is true under every assignment, that is a proof. If it fails under one, that refutes only
    masks without data, because data may never take that assignment.
    """
    test = isl.Set.is_subset if one_way else isl.Set.is_equal
    atoms = sorted({a for side in (left, right) for a in _data_atoms(side)}, key=lambda a: a.key)
    if len(atoms) > _FREE_ATOMS:
        return None
    try:
        with budget():
            for values in product((False, True), repeat=len(atoms)):
                sides = left, right
                for atom, value in zip(atoms, values, strict=True):
                    sides = E.assume(sides[0], atom, value), E.assume(sides[1], atom, value)
                if not test(*_sets(*sides)):
                    return None if atoms else False
            return True
    except TooHard:
        return None


def _sets(left: Expr, right: Expr) -> tuple[isl.Set, isl.Set]:
    names = tuple(sorted({**E.params(left), **E.params(right)}))
    universe = Universe(("q", "k"), ("n_q", "n_kv", *isl_names(names)), names)
    inside = domain(universe)
    return universe.set(left).intersect(inside), universe.set(right).intersect(inside)


def _data_atoms(keep: Expr) -> set[Expr]:
    """The comparisons that read arrays, each in one of its two polarities."""
    atoms: set[Expr] = set()
    for node in E.walk(keep):
        if isinstance(node, (E.Cmp, E.Member)) and E.arrays(node) and E.negate(node) not in atoms:
            atoms.add(node)
    return atoms


_SAMPLE_LENGTHS = ((1, 1), (7, 7), (96, 96), (64, 160), (160, 64), (1 << 20, 1 << 20), (3001, 9001))


def fingerprint(keep: Expr) -> str:
    """A hash that equal masks share, however they are written; unequal ones almost never do.

    It is made of the mask's own bits at fixed points of fixed lengths: every pair of small masks,
    and pseudo-random pairs and diagonals of large ones. Data arrays read as a fixed scramble.
    """
    digest = sha256()
    for n_q, n_kv in _SAMPLE_LENGTHS:
        q, k = _points(n_q, n_kv)
        env = {"q": q, "k": k, "n_q": n_q, "n_kv": n_kv}
        env |= {name: _Scramble(name) for name in E.arrays(keep)}
        bits = np.broadcast_to(evaluate(keep, env), np.broadcast_shapes(q.shape, k.shape))
        digest.update(np.packbits(bits).tobytes())
    digest.update(repr(sorted(E.params(keep))).encode())
    return digest.hexdigest()


class _Scramble:
    """A fixed function of name and index, which stands for a data array."""

    def __init__(self, name: str) -> None:
        self.salt = int.from_bytes(sha256(name.encode()).digest()[:4], "little")

    def __getitem__(self, index: tuple[np.ndarray, ...]) -> np.ndarray:
        mixed = np.asarray(self.salt, dtype=np.int64)
        for part, factor in zip(index, (31, 17), strict=False):
            mixed = mixed + np.asarray(part, np.int64) * factor
        values: np.ndarray = (mixed % 1000003 * 7919 >> 4) % 3
        return values


def _points(n_q: int, n_kv: int) -> tuple[np.ndarray, np.ndarray]:
    if n_q * n_kv <= 1 << 14:
        return np.arange(n_q)[:, None], np.arange(n_kv)[None, :]
    step = np.arange(1, 4097, dtype=np.int64)
    q = step * 2654435761 % n_q
    near = np.concatenate([step % 600 - 300, step * step % 9001 - 4500])
    k = np.concatenate([step * 40503 % n_kv, step % min(n_kv, 300)])
    q = np.concatenate([q, q, q, q])
    k = np.concatenate([k, np.clip(q[: 2 * len(step)] + n_kv - n_q + near, 0, n_kv - 1)])
    return q, k
