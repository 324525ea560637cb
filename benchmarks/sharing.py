"""Ways for ranks to share a sequence: maskc's plan, all-gather, a ring, Ulysses, torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

import maskc as mc
from benchmarks.fa4 import MISSING, installed
from maskc.api import _compiled
from maskc.distributed.local import LocalMask, localized
from maskc.distributed.planning import Plan
from maskc.distributed.token_ranges import Stretch
from maskc.distributed.work import _keys_of
from maskc.integrations.torch.gradients import rows as with_rows
from maskc.lab.rivals import Missing, Unavailable

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Piece:
    """Some of a rank's queries over some keys: one call of our kernels."""

    row: int
    rows: int
    key: int
    keys: int
    local: LocalMask


@dataclass(frozen=True)
class Method:
    """One way to compute a rank's share."""

    run: Run
    """A differentiable function from shards [1, H, tokens, D] to out."""
    own: Callable[[torch.Tensor], torch.Tensor]
    """The shard of a tensor [1, H, N, D] that all ranks have."""
    pieces: tuple[Piece, ...] = ()
    """Kernels of ours that it calls, to be built ahead."""


@dataclass(frozen=True, eq=False)
class Case:
    """A mask over a sequence that ranks share."""

    name: str
    tokens: int
    """The tokens of one rank."""
    mask: mc.Mask
    data: dict[str, Any]
    heads: tuple[int, int, int]
    dtype: torch.dtype
    rank: int
    ranks: int
    device: torch.device
    made: dict[str, Method] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Tokens of the whole sequence."""
        return self.tokens * self.ranks

    def _plan(self, layout: str) -> Plan:
        return mc.distributed.plan(
            self.mask, self.n, self.ranks, heads=self.heads, layout=layout, data=self.data,
            dtype=str(self.dtype).split(".")[1], network="nvlink",
        )  # fmt: skip

    @cached_property
    def plan(self) -> Plan:
        """What maskc chooses."""
        return self._plan("auto")

    @cached_property
    def straight(self) -> Plan:
        """The plan of the contiguous layout."""
        return self.plan if self.plan.layout.name == "contiguous" else self._plan("contiguous")

    def localized(self, start: int, rows: int, key: int, keys: int) -> LocalMask:
        """The mask over some rows and one stretch of keys."""
        stretch = [Stretch(key, 0, keys)]
        lengths = self.n, self.n
        return localized(self.mask, lengths, self.heads[0], start, rows, stretch, self.data)

    def method(self, name: str) -> Method:
        """A way by its name; made once.

        Raises:
            Unavailable: it cannot run this case.
        """
        if name not in self.made:
            self.made[name] = METHODS[name](self)
        return self.made[name]

    @property
    def whole(self) -> Piece:
        """All of it on one GPU."""
        return Piece(0, self.n, 0, self.n, LocalMask(self.mask, self.data))


def _shards(plan: Plan) -> Callable[[torch.Tensor], torch.Tensor]:
    def own(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = plan.shard(x, 2)
        return found

    return own


# ------------------------------------------------------------------ maskc's plan


def planned(case: Case) -> Method:
    """What maskc.distributed does."""
    plan = case.plan
    work = plan.work(case.rank)
    calls = [*work.calls, *(call for guest in work.guests for call in guest.calls)]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = mc.distributed.attention(q, k, v, plan)
        return found

    pieces = (Piece(call.row, call.rows, call.key, call.keys, call.local) for call in calls)
    return Method(run, _shards(plan), tuple(pieces))


# ------------------------------------------------------------------ all-gather


class Gather(torch.autograd.Function):
    """Keys or values of all ranks, [B, H, N, D], in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, n: int, order: torch.Tensor | None) -> torch.Tensor:
        ctx.made_of = n, order
        rows = x.permute(2, 0, 1, 3).contiguous()
        whole = rows.new_empty((n, *rows.shape[1:]))
        one_tensor(("all_gather_single", "all_gather_into_tensor"), whole, rows)
        if order is not None:
            ordered = torch.empty_like(whole)
            ordered[order] = whole
            whole = ordered
        return whole.permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        n, order = ctx.made_of
        rows = grad.permute(2, 0, 1, 3)
        rows = rows.contiguous() if order is None else rows[order]
        size = n // dist.get_world_size()
        own = rows.new_empty((size, *rows.shape[1:]))
        if dist.get_backend() == "gloo":
            dist.all_reduce(rows)
            own = rows[dist.get_rank() * size : (dist.get_rank() + 1) * size].clone()
        else:
            one_tensor(("reduce_scatter_single", "reduce_scatter_tensor"), own, rows)
        return own.permute(1, 2, 0, 3), None, None


def one_tensor(names: tuple[str, ...], made: torch.Tensor, rows: torch.Tensor) -> None:
    """Run a collective over whole tensors [tokens, width], by the first name that this PyTorch
    has."""
    next(getattr(dist, name) for name in names if hasattr(dist, name))(made, rows)


def _order(case: Case) -> torch.Tensor | None:
    """The tokens of all ranks as they come; None where that is their order."""
    if case.plan.layout.name == "contiguous":
        return None
    return torch.from_numpy(case.plan.layout.order).to(case.device)


def gathered(case: Case) -> Method:
    """All-gather of K and V, then our kernel on the rank's rows."""
    order, pieces, at = _order(case), list[Piece](), 0
    for start, stop in case.plan.layout.own.of(case.rank):
        local = case.localized(start, stop - start, 0, case.n)
        pieces.append(Piece(at, stop - start, 0, case.n, local))
        at += stop - start

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (Gather.apply(x, case.n, order) for x in (k, v))
        outs = [
            mc.attention(q[:, :, x.row : x.row + x.rows], k, v, x.local.mask, **x.local.data)
            for x in pieces
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)

    return Method(run, _shards(case.plan), tuple(pieces))


FA4_NAMES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window 1024": {"causal": True, "window_size": (1023, 0)},
    "window 4096": {"causal": True, "window_size": (4095, 0)},
}
"""What FlashAttention 4 is asked for."""


def gathered_fa4(case: Case) -> Method:
    """All-gather of K and V, then FlashAttention 4 on the rank's rows.

    Raises:
        Unavailable: it has no name for the mask, or is not installed.
    """
    asked = FA4_NAMES.get(case.name)
    if asked is None:
        raise Unavailable("FlashAttention 4 has no name for this mask")
    if not installed():
        raise Missing(MISSING)
    from flash_attn.cute.interface import flash_attn_func

    order = _order(case)
    stretches = case.plan.layout.own.of(case.rank)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = q.transpose(1, 2)
        k, v = (Gather.apply(x, case.n, order).transpose(1, 2) for x in (k, v))
        outs, at = [], 0
        for start, stop in stretches:  # its last row sees the last key
            part = q[:, at : at + stop - start]
            found = flash_attn_func(part, k[:, :stop], v[:, :stop], **asked)
            outs.append(found[0] if isinstance(found, tuple) else found)
            at += stop - start
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
        return out.transpose(1, 2)

    return Method(run, _shards(case.plan))


# ------------------------------------------------------------------ torch's own


def flex(case: Case) -> Method:
    """torch's context parallelism: all-gather of K and V, then FlexAttention on the rank's rows.

    Its own load balancers: chunks from the front and the back for causal masks, blocks by their
    work for documents, none for the others.

    Raises:
        Unavailable: this PyTorch has none, or the mask has no formula here.
    """
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import _attention as cp
        from torch.distributed.tensor.experimental._context_parallel import _attention as inner
        from torch.distributed.tensor.parallel import parallelize_module
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as error:
        raise Unavailable(str(error)) from None
    keep = _formula(case)
    if keep is None:
        raise Unavailable("its formula is not written down here")
    mesh = init_device_mesh(case.device.type, (case.ranks,))
    balancer = None
    if case.name == "causal":
        balancer = cp._HeadTailLoadBalancer(case.n, case.ranks, case.device)
    elif case.name == "documents":
        make = torch.compile(create_block_mask) if case.device.type == "cuda" else create_block_mask
        blocks = make(keep, 1, 1, case.n, case.n, device=case.device)
        balancer = cp._PTRRLoadBalancer(blocks, case.ranks)
    tokens = torch.arange(case.n, device=case.device)[None]
    (mine,) = cp._context_parallel_shard(mesh, [tokens], [1], balancer)
    blocks = inner._create_cp_block_mask(keep, 1, 1, case.n, case.n, mesh, balancer)
    call = (
        torch.compile(flex_attention, dynamic=False)
        if case.device.type == "cuda"
        else flex_attention
    )

    class Attend(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = call(q, k, v, block_mask=blocks, enable_gqa=True)
            return found

    style = inner._ContextParallel(2, inner._ContextParallel.AttentionType.FLEX)
    module = parallelize_module(Attend(), mesh, style)
    return Method(module, lambda x: x.index_select(2, mine[0]))


def _formula(case: Case) -> Callable[..., torch.Tensor] | None:
    """The mask as FlexAttention takes it; the sequence's q and k."""
    if case.name == "causal":
        return lambda b, h, q, k: k <= q
    if case.name.startswith("window"):
        width = int(case.name.split()[1])
        return lambda b, h, q, k: (k <= q) & (q - k < width)
    if case.name == "sinks 64 + window 4096":
        return lambda b, h, q, k: (k <= q) & ((q - k < 4096) | (k < 64))
    if case.name == "chunked 8192":
        return lambda b, h, q, k: (k <= q) & (q // 8192 == k // 8192)
    if case.name == "documents":
        ids = torch.from_numpy(case.data["doc"]).to(case.device)
        return lambda b, h, q, k: (k <= q) & (ids[q] == ids[k])
    return None


# ------------------------------------------------------------------ Ulysses


class Swap(torch.autograd.Function):
    """[B, H, n, D] with all heads of some tokens <-> [B, H / P, N, D] with all tokens."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, to_heads: bool) -> torch.Tensor:
        ctx.to_heads = to_heads
        return _swapped(x, to_heads)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _swapped(grad, not ctx.to_heads), None


def _swapped(x: torch.Tensor, to_heads: bool) -> torch.Tensor:
    """One all-to-all; tokens are contiguous on ranks."""
    size = dist.get_world_size()
    batch, heads, n, dim = x.shape
    if to_heads:
        rows = x.reshape(batch, size, heads // size, n, dim).permute(1, 3, 0, 2, 4).contiguous()
        came = torch.empty_like(rows)
        dist.all_to_all_single(came, rows)
        return came.flatten(0, 1).permute(1, 2, 0, 3)
    rows = x.reshape(batch, heads, size, n // size, dim).permute(2, 3, 0, 1, 4).contiguous()
    came = torch.empty_like(rows)
    dist.all_to_all_single(came, rows)  # [sender, tokens, batch, heads, dim]
    return came.permute(2, 0, 3, 1, 4).reshape(batch, size * heads, n // size, dim)


def ulysses(case: Case) -> Method:
    """All-to-all of heads, then our kernel on all tokens of some heads.

    Raises:
        Unavailable: heads do not divide by ranks.
    """
    if any(heads % case.ranks for heads in case.heads[:2]):
        raise Unavailable("heads do not divide by ranks")

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (Swap.apply(x, True) for x in (q, k, v))
        return Swap.apply(mc.attention(q, k, v, case.mask, **case.data), False)

    return Method(run, _shards(case.straight))


# ------------------------------------------------------------------ ring


def ring(case: Case) -> Method:
    """K and V go round, one rank's at a time, under our kernel on those that have come.

    Keys that no query sees are passed on, and not computed. Parts are merged by their lse; dK and
    dV go round behind their keys, in fp32.
    """
    plan = case.plan
    own = [plan.layout.own.of(rank) for rank in range(case.ranks)]
    steps = [
        _pieces_of(case, own[case.rank], own[(case.rank - step) % case.ranks])
        for step in range(case.ranks)
    ]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Ring.apply(q, k, v, steps)
        return found

    return Method(run, _shards(plan), tuple(piece for step in steps for piece in step))


def _pieces_of(
    case: Case, mine: Iterable[tuple[int, int]], theirs: list[tuple[int, int]]
) -> list[Piece]:
    """My rows over another rank's keys, where any are seen."""
    layer, found, row = case.plan.layer(), [], 0
    for first, last in mine:
        seen, key = _keys_of(layer, [(first, last)]), 0
        for start, stop in theirs:
            parts = [(max(a, start), min(b, stop)) for a, b in seen if a < stop and b > start]
            if parts:
                low, high = parts[0][0], parts[-1][1]
                low -= (low - start) % 128
                local = case.localized(first, last - first, low, high - low)
                found.append(Piece(row, last - first, key + low - start, high - low, local))
            key += stop - start
        row += last - first
    return found


class Ring(torch.autograd.Function):
    """Attention over keys that go round."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, steps: Any) -> Any:
        both = _both(k, v)
        out = torch.zeros(q.transpose(1, 2).shape, device=q.device).transpose(1, 2)
        lse = torch.full(q.shape[:3], -torch.inf, device=q.device)
        for number, pieces in enumerate(steps):
            last = number == len(steps) - 1
            coming = None if last else _pass_on(both)
            for each in pieces:
                _merge(each, out, lse, *_forward(each, q, both))
            if coming is not None:
                both = coming.wait()
        ctx.steps = steps
        found = torch.empty_like(q)
        found.copy_(out)
        ctx.save_for_backward(q, k, v, found, lse)
        return found

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        both, steps = _both(k, v), ctx.steps
        dq = torch.zeros(q.transpose(1, 2).shape, device=q.device).transpose(1, 2)
        sums: Coming | None = None
        for number, pieces in enumerate(steps):
            last = number == len(steps) - 1
            coming = None if last else _pass_on(both)
            more = [(each, _backward(each, q, both, out, lse, dout)) for each in pieces]
            total = torch.zeros(both.shape, device=q.device) if sums is None else sums.wait()
            for each, (of_q, *of_keys) in more:
                dq[:, :, each.row : each.row + each.rows] += of_q
                part = slice(each.key, each.key + each.keys)
                for of_all, of_some in zip(total, of_keys, strict=True):
                    of_all[part] += of_some.permute(2, 0, 1, 3)
            sums = _pass_on(total)
            if coming is not None:
                both = coming.wait()
        dk, dv = (x.permute(1, 2, 0, 3).to(q.dtype) for x in sums.wait())
        return dq.to(q.dtype), dk, dv, None


def _both(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[2, tokens, B, H, D]."""
    return torch.stack([x.permute(2, 0, 1, 3) for x in (k, v)])


@dataclass(frozen=True)
class Coming:
    """What the rank before sends."""

    rows: torch.Tensor
    sent: torch.Tensor
    work: list[Any]

    def wait(self) -> torch.Tensor:
        """Let the stream wait, and return the rows [tokens, width]."""
        for each in self.work:
            each.wait()
        return self.rows


def _pass_on(rows: torch.Tensor) -> Coming:
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = rows.contiguous()
    came = torch.empty_like(rows)
    if size == 1:
        return Coming(rows, rows, [])
    send = dist.P2POp(dist.isend, rows, (rank + 1) % size)
    receive = dist.P2POp(dist.irecv, came, (rank - 1) % size)
    return Coming(came, rows, dist.batch_isend_irecv([send, receive]))


def kernel(piece: Piece, q: torch.Tensor, v: torch.Tensor) -> Any:
    """Compile the mask of a piece for tensors like q and v [B, H, tokens, D or Dv]."""
    place = q.device.type, q.device.index or 0
    return _compiled(piece.local.mask, q.shape[3], v.shape[3], q.shape[1], q.dtype, place)


def _keys(piece: Piece, both: torch.Tensor) -> list[torch.Tensor]:
    part = slice(piece.key, piece.key + piece.keys)
    return [x[part].permute(1, 2, 0, 3) for x in both]


def _forward(piece: Piece, q: torch.Tensor, both: torch.Tensor) -> tuple[Any, Any]:
    k, v = _keys(piece, both)
    rows = q[:, :, piece.row : piece.row + piece.rows]
    found = kernel(piece, q, v).launch(rows, k, v, return_lse=True, data=piece.local.data)
    return found[0], found[1]


def _merge(
    piece: Piece, out: torch.Tensor, lse: torch.Tensor, more: torch.Tensor, of_more: torch.Tensor
) -> None:
    part = slice(piece.row, piece.row + piece.rows)
    before = lse[:, :, part]
    share = torch.sigmoid(of_more - before).nan_to_num_(0.0)  # of the new part; none sees nothing
    out[:, :, part].lerp_(more.float(), share[..., None])
    lse[:, :, part] = torch.logaddexp(before, of_more)


def _backward(
    piece: Piece, q: torch.Tensor, both: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    dout: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    k, v = _keys(piece, both)
    part = slice(piece.row, piece.row + piece.rows)
    found: tuple[torch.Tensor, ...] = kernel(piece, q, v).backward(
        q[:, :, part], k, v, out[:, :, part], lse[:, :, part].contiguous(),
        with_rows(dout[:, :, part]), **piece.local.data,
    )  # fmt: skip
    return found


METHODS: dict[str, Callable[[Case], Method]] = {
    "planned": planned,
    "all-gather": gathered,
    "ulysses": ulysses,
    "ring": ring,
    "all-gather, FA4": gathered_fa4,
    "flex": flex,
}
SLOW = ("flex",)
"""The methods that take long to compile."""
