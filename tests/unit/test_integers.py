"""Integers have a width: proofs by bounds, the 64-bit form, numbers and ids as arguments."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core import widths
from maskc.core.bundle import IdList
from maskc.core.errors import DataRange, IntegerTooWide
from maskc.core.evaluator import evaluate
from maskc.core.problem import Direction, Feature
from maskc.core.target import Target
from maskc.dispatch.constants import arguments_of, constants, extremes_of
from maskc.emit.c_printer import CPrinter
from maskc.ir.lift import lift
from maskc.runtime.launch import kernels as built
from tests.support.thorough import each, examples

SLOW = settings(max_examples=examples(300))
SIDE = 7
TABLE = np.array([-9, 4, 0, 2, 7, -3, 1])

# ------------------------------------------------------------------ bounds


class Int:
    """An integer of C that notes how large anything computed with it becomes."""

    seen: list[int] = []

    def __init__(self, value, computed=True):
        self.value = int(value)
        if computed:
            self.seen.append(abs(self.value))

    def _of(self, other):
        return other.value if isinstance(other, Int) else other

    def __add__(self, other):
        return Int(self.value + self._of(other))

    def __radd__(self, other):
        return Int(other + self.value)

    def __sub__(self, other):
        return Int(self.value - self._of(other))

    def __rsub__(self, other):
        return Int(other - self.value)

    def __mul__(self, other):
        return Int(self.value * self._of(other))

    __rmul__ = __mul__

    def __neg__(self):
        return Int(-self.value)

    def __floordiv__(self, other):
        return Int(self.value // self._of(other))

    def __mod__(self, other):
        return Int(self.value % self._of(other))

    def __index__(self):
        return self.value

    def __eq__(self, other):
        return self.value == self._of(other)

    def __ge__(self, other):
        return self.value >= self._of(other)

    def __gt__(self, other):
        return self.value > self._of(other)

    def __le__(self, other):
        return self.value <= self._of(other)

    def __lt__(self, other):
        return self.value < self._of(other)

    __hash__ = None


def integers(arguments: int) -> st.SearchStrategy[E.Expr]:
    """Formulas over q, k, constants and an array."""
    big = st.integers(-60, 60) | st.sampled_from([-(10**9), 65537, 2**31 - 1, 2**33])
    names = [E.Q, E.K, *(E.Sym(f"c{i}") for i in range(arguments))]
    leaves = st.sampled_from(names) | big.map(E.const)
    leaves |= st.sampled_from([E.Q, E.K]).map(lambda x: E.Load("t", (x,)))

    def more(inner):
        return st.one_of(
            st.builds(E.add, inner, inner), st.builds(E.sub, inner, inner),
            st.builds(E.scale, big, inner),
            st.builds(E.floordiv, inner, st.integers(1, 70)),
            st.builds(E.mod, inner, st.integers(1, 70)),
            st.builds(E.minimum, inner, inner), st.builds(E.maximum, inner, inner),
        )  # fmt: skip

    return st.recursive(leaves, more, max_leaves=8)


def computed(text: str, q: int, k: int, args: list[int]) -> tuple[bool, int]:
    """(value, largest magnitude of anything on the way) of a C condition."""
    python = re.sub(r"\(Integer\)", "", text).replace("&&", "and").replace("||", "or")
    python = re.sub(r"(?<=[^/]) / (?=\d)", " // ", python)
    names = {
        "q": Int(q, False), "k": Int(k, False),
        "floor_div": lambda a, b: a // b if isinstance(a, Int) else Int(a // b),
        "floor_mod": lambda a, b: a % b if isinstance(a, Int) else Int(a % b),
        "min_int": lambda a, b: a if a <= b else b,
        "max_int": lambda a, b: a if a >= b else b,
        "m": SimpleNamespace(
            **{f"c{i}": Int(x, False) for i, x in enumerate(args)},
            a0=[Int(x, False) for x in TABLE],
        ),
    }  # fmt: skip
    Int.seen = []
    value = bool(eval(python, {"__builtins__": {}}, names))
    return value, max(Int.seen, default=0)


@SLOW
@given(st.sampled_from([E.ge, E.eq, E.ne]), integers(2), integers(2),
       st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=2))  # fmt: skip
def test_bounds_hold_for_everything_that_the_printed_formula_computes(build, left, right, args):
    condition = build(left, right)
    if isinstance(condition, E.Truth):
        return
    bound = widths.largest(widths.reach(condition))
    env = {"q": SIDE - 1, "k": SIDE - 1, "t": 9, "c0": abs(args[0]), "c1": abs(args[1])}
    most = max(widths.number(bound, env), *env.values())  # what is given fits anyway
    text = CPrinter(("t",))(condition)
    values = {"c0": args[0], "c1": args[1], "t": TABLE.astype(object)}
    for q in range(SIDE):
        for k in range(SIDE):
            live, found = computed(text, q, k, args)
            assert found <= most, (text, found, most)
            exact = {**values, "q": np.array([q], object), "k": np.array([k], object)}
            sides = [widths_value(side, exact) for side in (left, right)]
            assert live == COMPARE[build](*sides)


COMPARE = {E.ge: int.__ge__, E.eq: int.__eq__, E.ne: int.__ne__}


def widths_value(expr: E.Expr, env: dict[str, object]) -> int:
    """The value in Python's integers, by rules of its own."""
    match expr:
        case E.Sum(constant, terms):
            return constant + sum(c * widths_value(t, env) for c, t in terms)
        case E.Sym(name):
            return int(np.ravel(env[name])[0])
        case E.FloorDiv(num, den):
            return widths_value(num, env) // den
        case E.Mod(num, den):
            return widths_value(num, env) % den
        case E.Min(args):
            return min(widths_value(arg, env) for arg in args)
        case E.Max(args):
            return max(widths_value(arg, env) for arg in args)
    return int(env[expr.array][widths_value(expr.index[0], env)])


@SLOW
@given(integers(0), st.integers(2, 97))
def test_residues_keep_their_values(num, den):
    for q in range(SIDE):
        env = {"q": q, "k": 3, "t": TABLE.astype(object)}
        assert widths_value(E.mod(num, den), env) == widths_value(num, env) % den


def test_residues_have_small_coefficients():
    wide = E.mod(E.add(E.scale(1000003, E.Q), E.scale(-999983, E.K)), 97)
    assert all(2 * abs(c) <= 97 for c, _ in wide.num.terms)
    assert E.mod(E.scale(98, E.Q), 97) == E.mod(E.Q, 97)


# ------------------------------------------------------------------ calls

TIMES = np.array([-2_000_000_000, 5, 1_900_000_000, 2_000_000_000] * 16)
SMALL = {
    "limit": lambda q, k: q + 2_147_483_647 >= k,
    "both limits": lambda q, k: (q + 2**40 >= k) & (k + 2**50 >= q) & (k <= q + 3),
    "residues": lambda q, k: (q * 1_000_003 - k * 999_983) % 97 < 50,
    "a common factor": lambda q, k: (k - q) * (2**40 + 1) <= 2**42,
    "compared as they are": lambda q, k: TIMES[q] >= TIMES[k],
}
LARGE = {
    "differences": lambda q, k: TIMES[q] - TIMES[k] <= 10**9,
    "products": lambda q, k: q * 100_000_000 >= k * 99_999_999,
    "sums": lambda q, k: (q * 65_537_001 + k * 40_503_001) // 1000 % 7 < 4,
    "extremes": lambda q, k: k * 90_000_000 <= max(q * 80_000_000, 2**33 - q),
}


def exact(formula, n_q: int, n_kv: int) -> np.ndarray:
    """The formula at every pair, in Python's integers."""
    return np.array([[bool(formula(q, k)) for k in range(n_kv)] for q in range(n_q)])


def features_of(attn: mc.CompiledMask) -> set[bool]:
    return {Feature.wide in features for _, _, features in attn.all_reports}


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_every_answer_is_exact(name):
    formula = SMALL.get(name) or LARGE[name]
    mask, live = mc.where(formula), exact(formula, 64, 61)
    assert (mask.dense(64, 61) == live).all()
    assert mask.count(64, 61) == live.sum()
    kinds = mask.layout(64, 61, block=(8, 8)).to_dense()
    padded = np.zeros((64, 64), bool)
    padded[:, :61] = live
    tiles = padded.reshape(8, 8, 8, 8)
    assert ((kinds > 0) == tiles.any((1, 3))).all()
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    make = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, n, 16, generator=make, requires_grad=True) for n in (64, 61))
    dout = torch.randn(1, 1, 64, 16, generator=make)
    rows = torch.tensor(live.any(1))[:, None]
    bias = torch.where(torch.tensor(live) | ~rows, 0.0, -torch.inf)
    wanted = torch.softmax(q @ k.mT / 4 + bias, -1) @ k * rows
    out, lse = attn(q.detach(), k.detach(), k.detach(), return_lse=True)
    assert torch.allclose(out, wanted, atol=1e-5)
    grads = attn.backward(*(x.detach() for x in (q, k, k)), out, lse, dout)
    dq, dk = torch.autograd.grad(wanted, (q, k), dout)
    assert torch.allclose(grads[0], dq, atol=1e-4)
    assert torch.allclose(grads[1] + grads[2], dk, atol=1e-4)
    assert features_of(attn) == {name in LARGE}


def test_heads_of_which_one_is_wide():
    masks = [mc.causal(), mc.where(LARGE["products"]), mc.where(LARGE["extremes"])]
    mask = mc.per_head(masks)
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu", n_heads=3)
    x = torch.randn(1, 3, 64, 16, generator=torch.Generator().manual_seed(0))
    live = torch.tensor(mask.dense(64, n_heads=3))
    wanted = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=live)
    assert torch.allclose(attn(x, x, x), wanted, atol=1e-5)


def test_the_width_follows_the_lengths():
    attn = mc.where(lambda q, k: q * 65_537 + k * 40_503 >= 2**20).compile(
        head_dim=16, dtype="float32", target="cpu"
    )
    for n, wide in ((64, {False}), (60_000, {False, True})):
        x = torch.zeros(1, 1, n, 16)
        attn(x[:, :, -1:], x, x)
        attn(x[:, :, :1], x, x)
        assert features_of(attn) == ({False} if n == 64 else wide)


def test_far_windows_are_no_windows():
    x = torch.randn(1, 1, 40, 16, generator=torch.Generator().manual_seed(0))
    wanted = mc.attention(x, x, x, mc.causal())
    for left in (2**31 - 1, 2**40, 2**62, 2**63 - 1):
        assert left < 2**41 or mc.window(left).equals(mc.causal())
        assert (mc.window(left).dense(9) == mc.causal().dense(9)).all()
        assert torch.equal(mc.attention(x, x, x, mc.window(left)), wanted)


def test_large_parameters():
    mask = mc.window(mc.param("near", 5) * 3 + mc.param("far", 2))
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    x = torch.randn(1, 1, 40, 16, generator=torch.Generator().manual_seed(0))
    far = attn(x, x, x, near=2**30, far=2**30)
    assert torch.equal(far, mc.attention(x, x, x, mc.causal()))
    assert features_of(attn) == {False}
    with pytest.raises(DataRange, match="MC305 near"):
        attn(x, x, x, near=2**63)
    with pytest.raises(DataRange, match="MC305 near"):
        mask.dense(8, near=2**70)


def test_beyond_64_bits_is_refused():
    mask = mc.where(lambda q, k: max(q * (2**61 + 1), k * 2**60) % 5 == 0)
    x = torch.zeros(1, 1, 64, 16)
    with pytest.raises(DataRange, match="MC305"):
        mc.attention(x, x, x, mask)
    assert (
        mask.dense(9) == exact(lambda q, k: max(q * (2**61 + 1), k * 2**60) % 5 == 0, 9, 9)
    ).all()


WRONG = {
    "a width": lambda: mc.window(2**63),
    "a parameter": lambda: mc.param("w", -(2**63)),
    "a literal": lambda: mc.where(lambda q, k: q + 2**63 >= k),
    "a coefficient": lambda: mc.where(lambda q, k: (q * 2**40) * 2**40 >= k),
    "a divisor": lambda: mc.where(lambda q, k: q // 2**63 == k),
    "ids": lambda: mc.offsets([1, 2**64]),
    "global ids": lambda: mc.global_tokens([2**63]),
    "a stride": lambda: mc.strided(2**63),
    "keys apart": lambda: mc.dilated(2**40, stride=2**40),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_64_bits_is_refused_where_it_stands(name):
    with pytest.raises(IntegerTooWide, match=r"MC120 .*test_integers.py:\d+"):
        WRONG[name]()


def test_an_expression_is_refused_too():
    from maskc.dsl.parser import parse

    for text in (f"where(lambda q, k: q * {2**63} >= k)", f"window({2**63})"):
        with pytest.raises(IntegerTooWide, match="MC120 --expr:1"):
            parse(text)


# ------------------------------------------------------------------ numbers do not rebuild

FLAGS = np.arange(64)
NUMBERS = {
    "a limit beside a table": lambda s: lambda q, k: FLAGS[k] <= s,
    "an equality": lambda s: lambda q, k: (k == s) | (q >= k),
    "a diagonal": lambda s: lambda q, k: (q - k == s) | (q == k),
    "an inequality": lambda s: lambda q, k: (k != s) & (q >= k),
    "a maximum": lambda s: lambda q, k: k <= max(q, s),
    "a minimum": lambda s: lambda q, k: k <= min(q, s) + 7,
    "a distance": lambda s: lambda q, k: abs(q - k + s) <= 4,
    "a division": lambda s: lambda q, k: (q - s) // 16 == (k - s) // 16,
    "a remainder": lambda s: lambda q, k: (q + s) % 64 <= (k + s) % 64,
    "a phase": lambda s: lambda q, k: (k % 64 == s) | (k + 3 >= q),
    "an element of a table": lambda s: lambda q, k: FLAGS[max(q - s, 0)] >= k,
}
IDS = {
    "a few ids": lambda s: mc.causal() & mc.global_tokens([3, 9, 20 + s]),
    "many ids": lambda s: mc.causal() & mc.global_tokens(range(s, 400, 3 + s % 2)),
    "more ids than before": lambda s: mc.window(3) | mc.global_tokens(range(0, 20 * s + 40, 2)),
    "a few slashes": lambda s: mc.offsets([s, 2 * s + 3, 80]),
    "many slashes": lambda s: mc.offsets(range(0, 300, s + 2)) | mc.causal(),
}
TARGETS = ("cpu", "sm_80", "sm_90a")


def digests(mask: mc.Mask, target: str) -> list[str]:
    plan = driver.plan_kernel(
        mask, driver.problem(64, None, None, "bfloat16"), Target.named(target)
    )
    return [unit.digest for unit in driver.emit_bundle(plan).units]


@pytest.mark.parametrize(("name", "target"), each([*NUMBERS, *IDS], TARGETS))
def test_another_number_builds_nothing(name, target):
    def mask(s):
        return IDS[name](s) if name in IDS else mc.where(NUMBERS[name](s))

    first = digests(mask(5), target)
    assert digests(mask(6), target) == first
    assert digests(mask(13), target) == first


@pytest.mark.parametrize("name", IDS)
def test_ids_are_exact(name, monkeypatch):
    x = torch.randn(1, 1, 150, 16, generator=torch.Generator().manual_seed(0))
    y = torch.randn(1, 1, 170, 16, generator=torch.Generator().manual_seed(1))
    count = []
    build = built.build
    monkeypatch.setattr(built, "build", lambda *args: count.append(args) or build(*args))
    for s in (5, 6, 13):
        mask = IDS[name](s)
        live = torch.tensor(mask.dense(150, 170))
        rows = live.any(1)[:, None]
        wanted = torch.nn.functional.scaled_dot_product_attention(x, y, y, attn_mask=live | ~rows)
        out = mc.attention(x, y, y, mask)
        assert torch.allclose(out, wanted * rows, atol=1e-5)
    assert len({args[0].digest for args in count}) == 1


@settings(SLOW, max_examples=examples(60))
@given(st.sets(st.integers(-30, 60), min_size=18, max_size=60), st.integers(1, 24),
       st.integers(1, 24), st.sampled_from(["end", "start"]), st.booleans())  # fmt: skip
def test_many_ids_are_bits(ids, n_q, n_kv, align, inside):
    mask = mc.offsets(ids, align=align)
    mask = mask if inside else ~mask
    keep = driver.lowered(mask).keep
    lifted, values = lift(keep), {"n_q": n_q, "n_kv": n_kv}
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None]
    env = {"q": q, "k": k, **values}
    args = arguments_of(lifted.args, lifted.rests, values, extremes_of({}))
    env |= {f"c{i}": value for i, value in enumerate(args)}
    for i, own in enumerate(lifted.lists):
        low, high = (widths.number(end, values) for end in (own.low, own.high))
        value = np.arange(low, high + 1)
        env[f"ids:{i}"] = np.isin(value, sorted(ids)).astype(np.int32)
    assert (
        np.broadcast_to(evaluate(lifted.shape, env), (n_q, n_kv)) == mask.dense(n_q, n_kv)
    ).all()


def test_a_kernel_reads_ids_behind_the_constants():
    mask = mc.causal() & mc.global_tokens(range(0, 90, 2)).columns
    plan = driver.plan_kernel(mask, driver.problem(16, None, None, "float32"), Target.named("cpu"))
    bundle = driver.emit_bundle(plan)
    (variant,) = bundle.variants
    assert variant.lists == (IdList(E.ZERO, E.sub(E.N_KV, E.const(1)), variant.lists[0].ranges),)
    values = {"n_q": 40, "n_kv": 70}
    unit = bundle.unit("cpu", Direction.forward)
    made = constants(bundle, unit, [variant], values, extremes_of({}))
    start = made.words[1]
    bits = np.unpackbits(made.words[start:].view(np.uint8), bitorder="little")[:70]
    assert (bits == (np.arange(70) % 2 == 0)).all()


def test_arguments_beyond_everything_are_brought_near():
    lifted = lift(driver.lowered(mc.where(lambda q, k: (k + 5 * 10**8 >= q) & (k != 10**9))).keep)
    found = arguments_of(lifted.args, lifted.rests, {"n_q": 10, "n_kv": 20}, extremes_of({}))
    assert found
    assert all(abs(value) <= 30 for value in found)


# ------------------------------------------------------------------ sources for GPUs


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["products", "sums"])
def test_wide_sources_compile(name, target):
    pytest.importorskip("cupy", reason="NVRTC comes with the cuda13 extra")
    from tests.support.ledger import build

    problem = driver.problem(128, None, None, "bfloat16")
    bundle = driver.emit_bundle(
        driver.plan_kernel(mc.where(LARGE[name]), problem, Target.named(target))
    )
    for unit in bundle.units:
        mode = "default" if "default" in dict(unit.modes) else next(iter(dict(unit.modes)))
        made = build(unit, frozenset({Feature.wide}), unit.directions, unit.target, mode)
        if (unit.target, unit.directions) == ("sm_80", (Direction.backward,)):
            # What it sums up leaves it few registers: four words or so wait in local memory.
            assert all(kernel.spill_stores <= 32 for kernel in made.report.kernels)
            continue
        assert all(kernel.spill_stores == 0 for kernel in made.report.kernels)
