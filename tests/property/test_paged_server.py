"""A server of random steps on pages: it admits prompts, decodes, forks and evicts sequences, and
every row of every step is what the definition says. Slots that nobody owns are NaN."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from tests.support.thorough import THOROUGH

PAGE, PAGES, HEADS, KV_HEADS, DIM, LONGEST, MOST = 4, 40, 4, 2, 16, 48, 6
LEFT, SINKS = 9, 2
MASK = mc.window(LEFT) | (mc.sinks(SINKS) & mc.causal())


class Server:
    """Sequences, and the pages that they own; pages may be shared until somebody writes to them."""

    def __init__(self, seed, **options):
        self.rng = np.random.default_rng(seed)
        self.owners = np.zeros(PAGES, int)
        self.pools = np.full((2, PAGES, PAGE, KV_HEADS, DIM), np.nan, np.float32)
        self.tables, self.tokens = [], []  # of each sequence: its pages, its keys and values
        self.attn = mc.paged(
            MASK, page_size=PAGE, head_dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS,
            dtype="float32", target="cpu", **options,
        )  # fmt: skip

    def drawn(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def take(self):
        """A free page."""
        page = int(self.rng.choice(np.flatnonzero(self.owners == 0)))
        self.owners[page] += 1
        return page

    def free(self):
        return int((self.owners == 0).sum())

    def grow(self, table, length, new):
        for _ in range(-(-(length + new) // PAGE) - len(table)):
            table.append(self.take())

    def evict(self):
        if self.tables:
            number = self.rng.integers(len(self.tables))
            for page in self.tables.pop(number):
                self.owners[page] -= 1
                if not self.owners[page]:
                    self.pools[:, page] = np.nan
            self.tokens.pop(number)

    def fork(self):
        """Another sequence with the same tokens: full pages are shared, the last one is copied."""
        if not self.tables or len(self.tables) == MOST or not self.free():
            return
        number = self.rng.integers(len(self.tables))
        k, v = self.tokens[number]
        table = list(self.tables[number])
        whole = len(k) // PAGE
        for page in table[:whole]:
            self.owners[page] += 1
        if len(table) > whole:
            last = self.take()
            self.pools[:, last] = self.pools[:, table[whole]]
            table[whole:] = [last]
        self.tables.append(table)
        self.tokens.append((k.copy(), v.copy()))

    def step(self):
        """Tokens of the step: prompts of new sequences, one or a few of the others."""
        rng = self.rng
        if rng.random() < 0.4 and len(self.tables) < MOST:
            empty = np.zeros((0, KV_HEADS, DIM), np.float32)
            self.tables.append([])
            self.tokens.append((empty, empty))
        counts = []
        for table, (k, _) in zip(self.tables, self.tokens, strict=True):
            new = int(rng.integers(1, 14) if not len(k) else rng.integers(0, 3))
            new = min(new, LONGEST - len(k), PAGE * (len(table) + self.free()) - len(k))
            self.grow(table, len(k), new)
            counts.append(new)
        if not counts:
            return
        total = sum(counts)
        q, k, v = self.drawn(total, HEADS, DIM), *self.drawn(2, total, KV_HEADS, DIM)
        ends = np.concatenate([[0], np.cumsum(counts)])
        for number, (old_k, old_v) in enumerate(self.tokens):
            own = slice(ends[number], ends[number + 1])
            self.tokens[number] = np.concatenate([old_k, k[own]]), np.concatenate([old_v, v[own]])
        lengths = [len(own) for own, _ in self.tokens]
        table = rng.integers(-9, 2 * PAGES, (len(counts), LONGEST // PAGE))  # behind the end: any
        for row, pages in zip(table, self.tables, strict=True):
            row[: len(pages)] = pages
        if rng.random() < 0.5:
            starts = np.concatenate([[0], np.cumsum([len(pages) for pages in self.tables])])
            table = starts, np.array([page for own in self.tables for page in own], int)
        plan = self.attn.plan(table, counts, lengths, max_seqlen_kv=LONGEST)
        plan.check(PAGES, np.flatnonzero(self.owners == 0))
        self.attn.append(k, v, *self.pools, plan)
        out, lse = self.attn.run(q, *self.pools, plan)
        want = [self.exact(q[ends[i] : ends[i + 1]], *own) for i, own in enumerate(self.tokens)]
        np.testing.assert_allclose(out, np.concatenate([x for x, _ in want]), atol=2e-5, rtol=2e-5)
        np.testing.assert_allclose(lse, np.concatenate([x for _, x in want]), atol=2e-5, rtol=2e-5)

    @staticmethod
    def exact(q, k, v):
        n, group = len(k), HEADS // KV_HEADS
        p, j = np.arange(n - len(q), n)[:, None], np.arange(n)
        keep = (j <= p) & ((p - j <= LEFT) | (j < SINKS))
        k, v = (np.repeat(x.astype(float), group, 1) for x in (k, v))
        s = np.einsum("qhd,khd->hqk", q.astype(float), k) / DIM**0.5
        s = np.where(keep, s, -np.inf)
        top = s.max(-1, keepdims=True, initial=-1e30)
        weights = np.exp(s - top)
        total = weights.sum(-1)
        out = np.einsum("hqk,khd->qhd", weights / total[..., None], v)
        return out, (top[..., 0] + np.log(total)).T


@pytest.mark.parametrize("seed", range(2))
def test_no_token_is_wrong(seed):
    server = Server(seed)
    for _ in range(1000 if THOROUGH else 60):
        choice = server.rng.random()
        if choice < 0.12 or server.free() < 4:
            server.evict()
        elif choice < 0.25:
            server.fork()
        server.step()
    used = {page for table in server.tables for page in table}
    assert used == set(np.flatnonzero(server.owners).tolist())  # nothing leaks


@pytest.mark.parametrize("seed", range(3))
def test_places_and_neighbours_decide_no_bit(seed):
    """A sequence has the same bits in other pages, as a part of another batch, and by rows of a
    table or by lists of entries."""
    rng = np.random.default_rng(seed)
    lengths, counts = rng.integers(1, LONGEST, 5).tolist(), []
    for length in lengths:
        counts.append(int(rng.integers(0, min(length, 9) + 1)))
    tokens = [rng.normal(size=(2, n, KV_HEADS, DIM)).astype(np.float32) for n in lengths]
    q = [rng.normal(size=(n, HEADS, DIM)).astype(np.float32) for n in counts]
    attn = Server(0).attn

    def ran(order):
        pools = np.full((2, PAGES + 40, PAGE, KV_HEADS, DIM), np.nan, np.float32)
        free, table = rng.permutation(PAGES + 40).tolist(), []
        for number in order:
            table.append([free.pop() for _ in range(LONGEST // PAGE)])
            for token in range(lengths[number]):
                place = table[-1][token // PAGE], token % PAGE
                pools[:, place[0], place[1]] = tokens[number][:, token]
        plan = attn.plan(np.array(table), [counts[i] for i in order], [lengths[i] for i in order])
        out, lse = attn.run(np.concatenate([q[i] for i in order]), *pools, plan)
        ends = np.cumsum([0, *(counts[i] for i in order)])
        return {i: (out[a:b], lse[a:b]) for i, a, b in zip(order, ends, ends[1:], strict=False)}

    first = ran(range(5))
    for order in (rng.permutation(5).tolist(), [3], [2, 2, 4]):
        for number, results in ran(order).items():
            for got, want in zip(results, first[number], strict=True):
                np.testing.assert_array_equal(got, want)
