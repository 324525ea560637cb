"""The arguments of `PagedAttention.append`: rows of new tokens, and where they go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskc.core.dtypes import dtype_name
from maskc.core.errors import BadPages
from maskc.core.tensors import torch_of
from maskc.runtime.paged_launch import FLOAT_CODES
from maskc.runtime.paged_rows import Rotary, is_e4m3

if TYPE_CHECKING:
    from maskc.paging.paged_plan import PagedPlan


def slots_of(plan: PagedPlan | None, slots: Any, k: Any, rotary: Any) -> tuple[Any, int]:
    """Return the slots of new rows, and their number.

    Raises:
        BadPages: neither a plan nor slots, or both; or slots that do not fit k.
    """
    if (plan is None) == (slots is None):
        wanted = "given where plan is not, and only there"
        raise BadPages("slots", wanted, type(slots).__name__, at="slots")
    if plan is not None:
        return plan.slots, plan.tokens
    if rotary is not None:
        wanted = "left out with slots, which have no positions"
        raise BadPages("rotary", wanted, type(rotary).__name__, at="rotary")
    place = getattr(slots, "device", None), getattr(k, "device", None)
    if not hasattr(slots, "shape"):
        kind = type(slots).__name__
        raise BadPages("slots", "an int64 array of one dimension", kind, at="slots")
    if dtype_name(slots) != "int64" or len(slots.shape) != 1 or place[0] != place[1]:
        wanted = f"int64 of one dimension on {place[1]}, as k"
        kind = f"{dtype_name(slots)} of shape {list(slots.shape)} on {place[0]}"
        raise BadPages("slots", wanted, kind, at="slots")
    if torch_of(slots) is not None:
        slots = slots.contiguous()
    return slots, int(slots.shape[0])


def check_rows(
    q: Any, k: Any, v: Any, k_pool: Any, v_pool: Any, tokens: int, heads: tuple[int, int],
    in_e4m3: bool,
) -> None:  # fmt: skip
    """Check that rows of new tokens fit each other and the pools.

    Raises:
        BadPages: they do not (MC464).
    """
    for name, x, count in (("k", k, heads[1]), ("v", v, heads[1]), ("q", q, heads[0])):
        if x is None:
            continue
        if len(x.shape) != 3 or tuple(x.shape[:2]) != (tokens, count):
            wanted = f"of shape [{tokens}, {count}, head_dim]"
            raise BadPages(name, wanted, list(x.shape), at=name)
        if dtype_name(x) != dtype_name(k) or dtype_name(x) not in FLOAT_CODES or is_e4m3(x):
            wanted = "of dtype float32, bfloat16 or float16, all alike"
            raise BadPages(name, wanted, dtype_name(x), at=name)
    for name, pool, x in (("k_pool", k_pool, k), ("v_pool", v_pool, v)):
        if pool.shape[3] != x.shape[2]:
            wanted = f"of rows of {x.shape[2]} elements, as those that go there"
            raise BadPages(name, wanted, pool.shape[3], at=name)
        if not in_e4m3 and dtype_name(pool) != dtype_name(x):
            raise BadPages(name, f"of dtype {dtype_name(x)}, as k", dtype_name(pool), at=name)
    for name, x in (("q", q), ("k", k), ("v", v), ("k_pool", k_pool), ("v_pool", v_pool)):
        if x is not None and torch_of(x) is not None and x.stride(-1) != 1 < x.shape[-1]:
            wanted = "with elements of a row next to each other"
            raise BadPages(name, wanted, f"a stride of {x.stride(-1)}", at=name)


def checked_rotary(rotary: tuple[Any, Any], interleaved: bool, k: Any) -> Rotary:
    """Check a rotary embedding.

    Raises:
        BadPages: cosines and sines do not fit each other or the rows.
    """
    pair = rotary if isinstance(rotary, (tuple, list)) and len(rotary) == 2 else (None, None)
    cosine, sine = pair
    shape: tuple[int, ...] = getattr(cosine, "shape", ())
    fits = len(shape) == 2 and shape[0] and shape == getattr(sine, "shape", ())
    if not fits or not 0 < 2 * shape[1] <= k.shape[2]:
        wanted = f"(cos, sin) of one shape [positions, R / 2], R at most {k.shape[2]}"
        shapes = [list(getattr(x, "shape", ())) for x in pair]
        raise BadPages("rotary", wanted, f"shapes {shapes}", at="rotary")
    for x in pair:
        device = getattr(x, "device", None), getattr(k, "device", None)
        if dtype_name(x) != dtype_name(cosine) or dtype_name(x) not in FLOAT_CODES or is_e4m3(x):
            wanted = "of dtype float32, bfloat16 or float16, both alike"
            raise BadPages("rotary", wanted, dtype_name(x), at="rotary")
        if device[0] != device[1]:
            raise BadPages("rotary", f"on {device[1]}, as k", device[0], at="rotary")
    if torch_of(cosine) is not None:
        cosine, sine = cosine.contiguous(), sine.contiguous()
    return Rotary(cosine, sine, interleaved)
