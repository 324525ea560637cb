"""Sequences whose keys lie in the pages of one pool, compared with caches of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.layout.work import work_list
from maskc.runtime.device_lists.lists_launch import ListsPlan
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.hopper import with_rules

HEADS, KV_HEADS, DIM, PAGE, PAGES = 4, 2, 64, 64, 12
LENGTHS = [200, 1, 130]
AT = mc.positions(q="at", k="position")
MASKS = {
    "all keys": (mc.documents("owner") & mc.causal(at=AT), lambda k, p: k <= p),
    "a window": (
        mc.documents("owner") & mc.window(70, at=AT),
        lambda k, p: (k <= p) & (p - k <= 70),
    ),
}


class Pool:
    """Slots in shuffled pages; `owner` is -1 where a slot is nobody's."""

    def __init__(self, dim: int = DIM) -> None:
        draw = torch.manual_seed(0)
        slots = PAGE * PAGES
        self.k, self.v = (
            torch.randn(1, KV_HEADS, slots, dim, generator=draw).bfloat16() for _ in range(2)
        )
        self.owner = torch.full((slots,), -1, dtype=torch.int32)
        self.position = torch.zeros(slots, dtype=torch.int32)
        self.free = torch.randperm(PAGES, generator=draw).tolist()
        self.slots: list[list[int]] = [[] for _ in LENGTHS]
        for owner, length in enumerate(LENGTHS):
            for _ in range(length):
                self.append(owner)

    def append(self, owner: int) -> None:
        own = self.slots[owner]
        if len(own) % PAGE:
            own.append(own[-1] + 1)
        else:
            own.append(self.free.pop() * PAGE)
        self.owner[own[-1]], self.position[own[-1]] = owner, len(own) - 1

    def exact(self, q: torch.Tensor, sees) -> torch.Tensor:
        """fp64 of the queries [B, Hq, 1, D] of the newest tokens."""
        found = []
        for one, slots in zip(q.double(), self.slots, strict=True):
            k, v = (x[0, :, slots].double() for x in (self.k, self.v))
            k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
            scores = one @ k.transpose(-1, -2) * k.shape[-1] ** -0.5
            live = sees(torch.arange(len(slots)), len(slots) - 1)
            found.append(torch.softmax(scores.masked_fill(~live, -torch.inf), -1) @ v)
        return torch.stack(found)

    def newest(self) -> torch.Tensor:
        """The positions of the queries."""
        return torch.tensor([len(slot) - 1 for slot in self.slots], dtype=torch.int32)


def side_by_side(attn, q, pool, owners):
    """The sequences' queries as the rows of one."""
    out = attn(
        q.permute(2, 1, 0, 3), pool.k, pool.v, owner=(owners, pool.owner), at=pool.newest(),
        position=pool.position,
    )  # fmt: skip
    return out.permute(2, 1, 0, 3)


def a_batch(attn, q, pool, owners):
    """A sequence each, that share keys, values and what is known of them."""
    k, v = (x.expand(len(owners), -1, -1, -1) for x in (pool.k, pool.v))
    position = pool.position.expand(len(owners), -1)
    return attn(
        q, k, v, owner=(owners[:, None], pool.owner), at=pool.newest()[:, None], position=position
    )


@pytest.mark.parametrize(
    ("form", "name", "target"),
    [(a_batch, "all keys", "sm_90a"), (a_batch, "a window", "sm_90a"),
     (side_by_side, "all keys", "sm_90a"), (a_batch, "a window", "sm_80"),
     (side_by_side, "all keys", "simt")],
)  # fmt: skip
def test_decoding(hopper, form, name, target):
    """The device finds whose tiles are whose, at every step from the same arrays."""
    mask, sees = MASKS[name]
    attn, pool = mask.compile(head_dim=DIM, target=target), Pool()
    owners = torch.arange(len(LENGTHS), dtype=torch.int32)
    for step in range(3):
        q = torch.randn(len(LENGTHS), HEADS, 1, DIM, generator=torch.manual_seed(step)).bfloat16()
        out = form(attn, q, pool, owners)
        assert isinstance(attn._last[1], ListsPlan), attn.last_sources
        torch.testing.assert_close(out.double(), pool.exact(q, sees), atol=2e-2, rtol=2e-2)
        for owner in range(len(LENGTHS)):
            pool.append(owner)


def test_free_pages_are_not_read(hopper):
    """Nor is what is left of those that are in use, but for its values, which must be finite."""
    attn, pool = MASKS["all keys"][0].compile(head_dim=DIM, target="sm_90a"), Pool()
    q = torch.randn(len(LENGTHS), HEADS, 1, DIM).bfloat16()
    pool.k[:, :, pool.owner < 0] = torch.nan
    for page in pool.free:
        pool.v[:, :, page * PAGE : (page + 1) * PAGE] = torch.nan
    # The tiles of this kernel are two pages long.
    alone = [page for page in pool.free if page ^ 1 not in pool.free]
    for page in alone:
        pool.v[:, :, page * PAGE : (page + 1) * PAGE] = 0
    out = a_batch(attn, q, pool, torch.arange(len(LENGTHS), dtype=torch.int32))
    torch.testing.assert_close(
        out.double(), pool.exact(q, MASKS["all keys"][1]), atol=2e-2, rtol=2e-2
    )


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_tiles_between_whose_owners_a_sequence_is(hopper, target):
    """With few queries a tile is read only where a pair of it is live, whatever its bounds say."""
    tile = 128
    owner = torch.tensor([0, 2]).repeat_interleave(tile // 2).repeat(2).int()
    owner[tile:] = 1
    k, v = (torch.randn(1, 1, 2 * tile, DIM).bfloat16() for _ in range(2))
    v[:, :, :tile] = torch.nan  # of sequences 0 and 2
    q = torch.randn(3, 1, 1, DIM).bfloat16()
    attn = MASKS["all keys"][0].compile(head_dim=DIM, target=target)
    k_all, v_all = (x.expand(3, -1, -1, -1) for x in (k, v))
    owners = torch.arange(3, dtype=torch.int32)
    last, position = torch.full((1,), tile), torch.arange(tile).repeat(2)
    out = attn(q, k_all, v_all, owner=(owners[:, None], owner), at=last, position=position)
    assert isinstance(attn._last[1], ListsPlan)
    weights = torch.softmax(q[1].double() @ k[0, :, tile:].double().mT * DIM**-0.5, -1)
    torch.testing.assert_close(
        out[1].double(), weights @ v[0, :, tile:].double(), atol=2e-2, rtol=2e-2
    )


@pytest.mark.parametrize(("n_q", "dim"), [(40, 128), (5, 128)])
@pytest.mark.parametrize(
    ("deterministic", "blocks", "part_cost"),
    [(False, 132, 0), (False, 11, 0), (False, 4, 3), (True, 132, 0)],
)
def test_cut_rows_of_sequences_of_any_length(
    hopper, n_q, dim, deterministic, blocks, part_cost, monkeypatch
):
    """Two warpgroups that take turns, or one; rows in parts, and one without keys. The device cuts
    rows as the host does, so bits are the same. On 11 multiprocessors the time of an incomplete
    wave decides."""
    monkeypatch.setattr(work_list, "_ITEM_COST", 0)
    monkeypatch.setattr(work_list, "_PART_COST", part_cost)
    monkeypatch.setattr(work_list, "_ROWS_OF_TILE", 1 << 20)
    monkeypatch.setattr(work_list, "_MULTIPROCESSORS", blocks)
    n, batch = 700, 4
    draw = torch.manual_seed(0)
    q = torch.randn(batch, HEADS, n_q, dim, generator=draw).bfloat16()
    k, v = (torch.randn(batch, KV_HEADS, n, dim, generator=draw).bfloat16() for _ in range(2))
    flags = np.arange(n) < np.array([[n], [0], [130], [600]])
    attn = with_rules(
        mc.flags("x").compile(head_dim=dim, target="sm_90a"),
        {"few_tiles": 1, "uneven_tiles": 2},
        {},
    )
    out, on_host = (
        attn(q, k, v, x=x, deterministic=deterministic) for x in (torch.tensor(flags), flags)
    )
    assert attn.last_sources[-1].endswith("pack_gqa")
    assert (hopper.launches[-1][1] > batch * KV_HEADS) == (blocks > 4)
    assert torch.equal(out, on_host)
    groups = HEADS // KV_HEADS
    k, v = (x.double().repeat_interleave(groups, 1) for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * dim**-0.5
    scores = scores.masked_fill(~torch.tensor(flags)[:, None, None], -torch.inf)
    want = torch.nan_to_num(torch.softmax(scores, -1), 0) @ v
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("target", "dim", "n"), [("sm_90a", 64, 3000), ("sm_80", 320, 700)])
def test_the_batch_decides_no_bit_of_a_deterministic_call(hopper, target, dim, n, monkeypatch):
    """One sequence alone, and in a batch that fills a small card."""
    monkeypatch.setattr(work_list, "_MULTIPROCESSORS", 2)
    monkeypatch.setattr("maskc.dispatch.launch_plan._PART_BLOCKS", 8)
    draw = torch.manual_seed(0)
    q = torch.randn(6, HEADS, 1, dim, generator=draw).bfloat16()
    k, v = (torch.randn(6, KV_HEADS, n, dim, generator=draw).bfloat16() for _ in range(2))
    attn = mc.full().compile(head_dim=dim, target=target)
    batch = attn(q, k, v, deterministic=True)
    alone = attn(q[3:4], k[3:4], v[3:4], deterministic=True)
    assert torch.equal(batch[3:4], alone)
    weights = torch.softmax(q.double() @ k.double().repeat_interleave(2, 1).mT * dim**-0.5, -1)
    want = weights @ v.double().repeat_interleave(2, 1)
    default = attn(q, k, v)
    assert attn.last_sources[-1].endswith("pack_gqa")
    for out in (batch, default):
        torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)
