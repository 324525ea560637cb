"""The full text of every refusal of a call (MC4xx) and of targets and builds (MC5xx).

Each text comes from the code that raises it, not from the class.
"""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from string import Formatter
from types import SimpleNamespace

import numpy as np
import pytest

import maskc as mc
from maskc import portable
from maskc.build import build, nvrtc
from maskc.core import errors
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.bundle import SourceUnit, TensorMap
from maskc.core.dtypes import DType
from maskc.core.errors import MaskcError, SharedMemoryExceeded, not_imported
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.sizes import Sizes
from maskc.core.source import SourceLoc
from maskc.core.target import TARGETS, Target
from maskc.core.tensors import Array, contiguous
from maskc.dispatch import checks
from maskc.dispatch.tensor_maps import tensor
from maskc.dsl.checked import placed
from maskc.dsl.nodes import Causal
from maskc.integrations import serving
from maskc.runtime import CompiledMask, merge
from maskc.runtime.arrays.known import LIBRARIES
from maskc.runtime.launch import cuda as launch_cuda
from maskc.runtime.launch.prepared import PreparedLaunch
from maskc.runtime.launch.recording import Blank
from maskc.runtime.torch_calls import through_torch
from tests.support.bundles import bundle

HALF = DType.bfloat16
HALVES = Problem(64, 64, HALF)


def narrowed(name, x):
    """A table of integers as a call on a GPU takes it."""
    score = mc.score(lambda s, q, k: s + mc.table("bias")[mc.table("ids", integer=True)[k]])
    attn = mc.causal().compile(16, dtype="float32", target="cpu", score=score)
    return attn._score._narrowed(name, x)


def in_jax(name=""):
    """The door for arrays of JAX, or a part of it."""
    pytest.importorskip("jax")
    return import_module(f"maskc.integrations.jax{name and '.'}{name}")


def selected(mask, target="cpu", **asked):
    """A call that asks about what the mask selects."""
    given = [np.zeros((1, 1, 5, 64), np.float16)] * 3
    return mask.compile(64, dtype="float16", target=target)(*given, **asked)


def selected_by(alpha, mask, target, module=False):
    """A call with an alpha for each head, perhaps of what nothing compiles anew."""
    given = [torch().zeros(1, 1, 5, 64, dtype=torch().float16)] * 3
    attn = mask.compile(64, dtype="float16", target=target)
    attn = CompiledMask(attn.bundle, target) if module else attn
    return attn(*given, normalizer="entmax", alpha=alpha)


def call(**change):
    """A call that would be fine without the change."""
    shapes = {"q": (2, 4, 5, 32), "k": (2, 2, 7, 32), "v": (2, 2, 7, 48)}
    given = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | change
    tensors = [given.pop(name) for name in "qkv"]
    CompiledMask(bundle("band"), "cpu")(*tensors, **given)


def on_gpu(**change):
    """Checks of a call on a GPU."""
    shape = (2, 4, 5, 64)
    good = Array(4096, shape, contiguous(shape), "bfloat16", ("cuda", 0))
    given = [good._replace(**change), good, good]
    checks.check_inputs(*given, Problem(64, 64, HALF), TARGETS["sm_80"])


def compile_c(text, origins=()):
    build(SourceUnit("cpu", text, TileShape(64, 64), False, origins=origins))


def transformed():
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 1, 2, 8, 16)
    torch.func.vmap(lambda q: mc.attention(q, q, q, mc.causal()))(x)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def on_stream(usable):
    """The first call of a plan whose columns wait for each other both ways."""
    kernel = SimpleNamespace(usable=lambda stream: usable)
    tables = SimpleNamespace(multiprocessors=128)
    plan = SimpleNamespace(kernel=kernel, device=("cuda", 0), sent={}, tables=tables)
    plan._first = partial(PreparedLaunch._first, plan)
    PreparedLaunch.place(plan, SimpleNamespace(stream=lambda device: 7), None)


def torch():
    return pytest.importorskip("torch")


def pages(table, keys=16):
    """A plan over a page table, of sequences with so many keys in pages of 8."""
    attn = mc.paged(mc.causal(), page_size=8, head_dim=16, n_heads=2, target="cpu")
    return attn.plan(np.array(table), 1, [keys] * len(table))


def learned():
    return torch().zeros(2, 2, requires_grad=True)


def nested():
    rows = [torch().zeros(n, 4) for n in (2, 3)]
    return torch().nested.nested_tensor(rows, layout=torch().jagged)


def sharded():
    """A stand-in that a call takes for a DTensor."""

    class DTensor(torch().Tensor):
        __torch_dispatch__ = classmethod(lambda cls, *call: None)
        to_local = None

    return torch().zeros(4).as_subclass(DTensor)


def scored(**options: object) -> None:
    """A call of a mask with a score formula."""
    score = mc.score(lambda s, q, k, h: s + mc.table("table")[h, q])
    attn = mc.causal().compile(16, dtype="float32", target="cpu", score=score)
    x = np.zeros((1, 2, 5, 16), np.float32)
    attn(x, x, x, **{"table": np.zeros((2, 5), np.float32), **options})


def dropping(**options: object) -> None:
    """A call with dropout."""
    x = np.zeros((1, 2, 5, 16), np.float32)
    mc.causal().compile(16, dtype="float32", target="cpu")(x, x, x, **options)


TEXTS = {
    "MC401": (
        lambda: call(k=zeros(2, 2, 7, 16)),
        "MC401 k  k has shape (2, 2, 7, 16), expected (2, 2, 7, 32) (batch of q or 1, head_dim of q)\n"
        "    hint: q is [B, Hq, Nq, D], k is [B, Hkv, Nkv, D], v is [B, Hkv, Nkv, Dv]",
    ),
    "MC402": (
        lambda: call(k=zeros(2, 3, 7, 32), v=zeros(2, 3, 7, 48)),
        "MC402 k  q has 4 heads and k has 3: the first must be a multiple of the second\n"
        "    hint: grouped-query attention shares each key/value head among Hq / Hkv query heads; tensors [B, N, H, D] need layout='bshd'",
    ),
    "MC403": (
        lambda: call(q=np.zeros((2, 4, 5, 32))),
        "MC403 q  q is float64, but this kernel was compiled for float32\n"
        "    hint: convert it to float32: kernels store bfloat16, float16, float32, float8_e4m3fn, and compute in fp32",
    ),
    "MC404": (
        lambda: on_gpu(device=("cpu", 0)),
        "MC404 q  q is on cpu, but sm_80 runs on cuda\n"
        "    hint: move the tensor, or compile for the other target",
    ),
    "MC405": (
        lambda: call(q=zeros(2, 4, 5, 64)[..., ::2]),
        "MC405 q  the last dimension of q has stride 2, it must be 1\n"
        "    hint: call .contiguous() or np.ascontiguousarray; other strides are free",
    ),
    "MC406": (
        lambda: call(q=[[1.0, 2.0]]),
        "MC406 q  q is a list, not an array\n"
        "    hint: pass a torch, CuPy or NumPy array, or anything with __dlpack__",
    ),
    "MC407": (
        lambda: call(softcap=-1),
        "MC407 softcap  softcap must be a number in 1e-30 .. 1e+30, found -1\n"
        "    hint: leave softcap out for its default",
    ),
    "MC652": (
        transformed,
        "MC652 q  q must be an untransformed tensor, found one under torch.func (vmap, grad, jvp)\n"
        "    hint: call attention outside of vmap, with the mapped dimension as the batch dimension; take gradients with loss.backward() or torch.autograd.grad",
    ),
    "MC408": (
        lambda: on_gpu(pointer=4104),
        "MC408 q  the address or strides of q are not multiples of 16 bytes\n"
        "    hint: call .contiguous() on it, slice at multiples of 8 elements, or use target='simt'",
    ),
    "MC409": (
        lambda: tensor(TensorMap("k", 64), (512, 0, 68), Sizes(1, 2, 2, 5, 5), HALVES, "sm_90a"),
        "MC409 k  k: target sm_90a cannot copy tiles of it, because its tokens are 136 bytes apart, not a positive multiple of 16 below 2^40\n"
        "    hint: call .contiguous() on it, or use target='sm_80'",
    ),
    "MC410": (
        lambda: on_stream(16),
        "MC410 deterministic  deterministic=True needs 128 multiprocessors at a time for this mask, and the stream may use 16\n"
        "    hint: use a stream of the whole device instead of a green context, or pass deterministic=False",
    ),
    "MC411": (
        lambda: merge([zeros(1, 1, 2, 8)], [torch().zeros(1, 1, 2)]),
        "MC411 lses[0]  outs[0] is a numpy.ndarray, and lses[0] is a torch.Tensor\n"
        "    hint: convert one of them to the other library",
    ),
    "MC412": (
        lambda: through_torch(
            None, None, AttentionCall(*[torch().zeros(1)] * 3, data={"scores": learned()})
        ),
        "MC412 scores  scores requires grad, but which pairs a mask keeps has no gradient with respect to it\n"
        "    hint: pass scores.detach(); scores that topk ranks by can be trained with indexer_loss=True",
    ),
    "MC424": (
        lambda: through_torch(
            None, None, AttentionCall(*[torch().zeros(1)] * 3, CallOptions(sink_logits=sharded()))
        ),
        "MC424 sink_logits  sink_logits is a DTensor\n"
        "    hint: pass sink_logits.full_tensor(), or sink_logits.to_local() where this rank needs its own part alone; mc.distributed.attention takes q, k and v that are sharded along their tokens",
    ),
    "MC425": (
        lambda: merge([zeros(1, 4, 6, 8)], [zeros(1, 4, 5)]),
        "MC425 lses  lses has shape (1, 4, 5), expected (1, 4, 6) or (1, 6, 4) or (4, 6, 1)\n"
        "    hint: pieces are results of mc.attention: out [B, H, N, Dv], or tokens first ([B, N, H, Dv], [N, B, H, Dv] or [tokens, H, Dv]), and lse [B, H, N] or [H, tokens]",
    ),
    "MC416": (
        lambda: scored(table=np.zeros((2, 3, 4), np.float32)),
        "MC416 table  'table' is of shape (2, 3, 4), expected at most 2 dimensions\n"
        "    hint: the formula is s + table[h, q]",
    ),
    "MC417": (
        lambda: scored(table=np.zeros((2, 3), np.float32)),
        "MC417 table  'table' has 3 entries along dimension 1, and q runs over 0 to 4\n"
        "    hint: pass a larger table, or one with a single entry there, which then broadcasts",
    ),
    "MC460": (
        lambda: selected(mc.causal(), return_selection=True),
        "MC460 return_selection  return_selection=True needs a mask with a run-time selection, and this one has none\n"
        "    hint: leave it out, or select keys with mc.topk",
    ),
    "MC461": (
        lambda: selected(mc.topk(3, mc.causal()), "sm_90a", return_selection=True),
        "MC461 return_selection  the kernels of target sm_90a select these keys on the fly and store no list of them\n"
        "    hint: compile the mask for target='simt', or for 'cpu' with tensors on the CPU",
    ),
    "MC462": (
        lambda: selected(mc.topk(3, mc.causal()), indexer_loss=True),
        "MC462 indexer_loss  indexer_loss trains a ranking by tensors of the call, and the keys are ranked by qk, not by tensors of the call\n"
        "    hint: rank single keys with mc.topk(..., score='indexer') or score='given'",
    ),
    "MC463": (
        lambda: selected_by(learned() + 1, mc.topk(3, mc.causal()), "sm_90a", module=True),
        "MC463 alpha  the gradient of alpha needs a list of the selected keys, and the kernels of target sm_90a store none\n"
        "    hint: call mask.compile(...) instead of a generated module, or pass alpha.detach()",
    ),
    "MC464": (
        lambda: mc.paged(mc.causal(), page_size=0, head_dim=16, n_heads=4),
        "MC464 page_size  page_size must be a positive integer, found 0\n"
        "    hint: see help(maskc.paged)",
    ),
    "MC465": (
        lambda: pages([[0, 1]], 17),
        "MC465 seq_lens_kv  sequence 0: 17 keys, and max_seqlen_kv is 16\n"
        "    hint: give it more pages, raise max_seqlen_kv, or correct its lengths",
    ),
    "MC660": (
        lambda: pages([[0, 3]]).check(3),
        "MC660 page_table  sequence 0: entry 1 of its page table is 3, and the pool has pages 0 to 2\n"
        "    hint: kernels read zeros for entries outside of the pool; unset MASKC_CHECK to run without this check",
    ),
    "MC661": (
        lambda: pages([[2, 2]]).check(3),
        "MC661 page_table  sequence 0: entries 0 and 1 of its page table are both page 2\n"
        "    hint: give every run of page_size tokens a page of its own",
    ),
    "MC662": (
        lambda: pages([[0, 2]]).check(3, freed=[2]),
        "MC662 page_table  sequence 0: entry 1 of its page table is page 2, which is free\n"
        "    hint: take the page from the free list before a plan names it",
    ),
    "MC663": (
        lambda: pages([[0, 2], [1, 2]]).check_slots(),
        "MC663 page_table  rows 0 and 1 of k go to one slot: page 2, token 7 of the page\n"
        "    hint: copy a page that sequences share before one of them writes into it",
    ),
    "MC667": (
        lambda: (
            mc.paged(
                mc.causal(), page_size=8, head_dim=16, n_heads=4, dtype="float32", target="cpu"
            )
            .plan(np.array([[0, 2], [1, 3]]), 1, [9, 9], shared_keys=8)
            .check(4)
        ),
        "MC667 page_table  sequence 1: entry 0 of its page table is page 1, and shared keys are in page 0\n"
        "    hint: count as shared_keys only keys whose pages all sequences have",
    ),
    "MC664": (
        lambda: mc.slices([[0, 4]], [[3, 2]]),
        "MC664 k_ranges  k_ranges must be ranges from 0 on that do not end before they begin, found [3, 2) in slice 0\n"
        "    hint: see help(maskc.from_flashmask) and help(maskc.slices)",
    ),
    "MC665": (
        lambda: serving.refuse("vLLM", {"attention that is not causal": True}),
        "MC665  vLLM: maskc does not run attention that is not causal\n"
        "    hint: choose another attention backend for this model or option",
    ),
    "MC666": (
        lambda: serving._compiled(
            serving.ServedLayer(4, 2, 16, 16, 16, "HND", None, False, True), "documents('d')"
        ),
        "MC666 MASKC_SERVING_MASK  the mask \"documents('d')\" reads d, which engines do not have\n"
        "    hint: write a mask without data, such as 'sinks(4) | window(1023)', or unset the variable",
    ),
    "MC466": (
        lambda: mc.paged(
            mc.causal(),
            page_size=8,
            head_dim=16,
            n_heads=4,
            score=mc.score(lambda s, q, k: s * mc.n_kv),
        ),
        "MC466 score  mc.paged has no kernel for this mask or score: it has a score formula that reads n_kv\n"
        "    hint: documents, flags, intervals, positions and trees have an entry per token; gather the keys and call mc.attention for other data",
    ),
    "MC418": (
        lambda: scored(softcap=2.0),
        "MC418 softcap  softcap= cannot be combined with score=: their order would be ambiguous\n"
        "    hint: write it in the formula: cap * tanh(s / cap)",
    ),
    "MC419": (
        scored,
        "MC419 score  no kernel runs this score formula: no working C compiler: tried CC=no-such-cc (not found)\n"
        "    hint: install gcc or clang, or set CC",
    ),
    "MC430": (
        lambda: dropping(dropout_p=1.5),
        "MC430 dropout_p  dropout_p must be a number in 0 .. 1, found 1.5\n"
        "    hint: 0.1 drops a tenth of the weights and multiplies the others by 1 / 0.9",
    ),
    "MC431": (
        lambda: dropping(dropout_p=0.5),
        "MC431 dropout_seed  the dropout seed is missing\n"
        "    hint: pass dropout_seed=; only torch tensors have a generator that gives one",
    ),
    "MC432": (
        lambda: CompiledMask(bundle("band"), "cpu")(
            *[zeros(1, 1, 5, 32)] * 3, dropout_p=0.5, dropout_seed=1
        ),
        "MC432 dropout_p  no kernel runs dropout here: a generated module holds the kernels that it was written with\n"
        "    hint: compile the mask with mask.compile",
    ),
    "MC437": (
        lambda: mc.scaled_dot_product_attention(*3 * [zeros(2, 2, 5, 16)], np.ones((5, 5), int)),
        "MC437 attn_mask  attn_mask must hold booleans or floating-point numbers, found ndarray of int64\n"
        "    hint: compare first: attn_mask=attn_mask != 0 keeps the pairs of ones",
    ),
    "MC438": (
        lambda: call(v=np.zeros((2, 2, 7, 48))),
        "MC438 v  q is float32, and v is float64\n"
        "    hint: convert one to the dtype of the other; torch.autocast converts all three",
    ),
    "MC439": (
        lambda: mc.attention(*3 * [zeros(1, 2, 5, 16)], mc.causal(), 0.0, True),
        "MC439 mask  mc.attention takes q, k, v and mask by position, but got 2 more\n"
        "    hint: pass them by name, for example scale=0.1; mc.scaled_dot_product_attention takes PyTorch's arguments in PyTorch's order",
    ),
    "MC440": (
        lambda: mc.documents("doc").dense(32, doc=np.array([0, 16, 32])),
        "MC440 doc  'doc' has shape (3,), expected [32]; its values rise from 0 as cumulative lengths do\n"
        "    hint: mark cumulative lengths: doc=mc.cu_seqlens(...)",
    ),
    "MC441": (
        lambda: mc.attention(*3 * [zeros(2, 5, 16)], mc.causal()),
        "MC441 q  q has shape (2, 5, 16), expected four dimensions\n"
        "    hint: q is [B, Hq, Nq, D]: q[None] adds a dimension; mc.scaled_dot_product_attention also takes [H, N, D] and [N, D], and mc.attention(cu_seqlens_q=) packed tokens [tokens, H, D]",
    ),
    "MC442": (
        lambda: mc.causal()(zeros(1, 2, 5, 16)),
        "MC442 mask  a mask is a set of pairs, not a function\n"
        "    hint: mc.attention(q, k, v, mask) is a call; mask.compile(head_dim=64) gives a function",
    ),
    "MC444": (
        lambda: mc.flags("kept").dense(3, kept=np.ma.masked_array([1, 1, 0], [0, 0, 1])),
        "MC444 kept  kept is a masked array; masked entries: 1\n"
        '    hint: x.filled(value) is an array; tokens that do not count belong to the mask: mc.flags("kept") keeps keys, called with kept=~x.mask',
    ),
    "MC443": (
        lambda: narrowed("ids", np.zeros(3, np.int64)),
        "MC443 ids  'ids' is int64 on a GPU, and the host cannot check here that it fits 32 bits\n"
        "    hint: pass it as int32: x.int() of a torch tensor, x.astype('int32') of a CuPy array",
    ),
    "MC433": (
        lambda: mc.window(3).cache().given([9, 4]),
        "MC433 n  the sequences have lengths from 4 to 9, and this cache has one length for all of them\n"
        "    hint: create it with mask.cache(ragged=True), which tracks the slots of each sequence",
    ),
    "MC413": (
        lambda: through_torch(None, None, AttentionCall(*[nested()] * 3)),
        "MC413 q  q is a nested tensor\n"
        "    hint: pack the sequences into one, [1, heads, tokens, dim], and compile mask & mc.documents('doc'), called with doc=mc.cu_seqlens(q.offsets())",
    ),
    "MC420": (
        lambda: portable.to_graph(CompiledMask(bundle("band"), "cpu"), "an exported program"),
        "MC420 mask  attention cannot be a part of an exported program: a generated module cannot be serialized\n"
        "    hint: compile the mask with mask.compile, or call mc.attention",
    ),
    "MC421": (
        lambda: portable.from_graph("[]"),
        "MC421 mask  the mask of this program was written by another version of maskc, or was changed\n"
        "    hint: export the model again",
    ),
    "MC480": (
        lambda: LIBRARIES[Blank].clear(None),
        "MC480  this call cannot run inside a program that JAX compiles: an array without memory outside of a recording\n"
        "    hint: pass data as integer or boolean arrays on the device; if the host must select keys, call the compiled mask with torch or CuPy arrays, outside jax.jit",
    ),
    "MC481": (
        lambda: in_jax().attention(
            *[np.zeros((1, 4, 1, 8), "f4")] * 3, mc.documents("doc"), doc="all"
        ),
        "MC481 doc  doc is a str\n    hint: pass an array of JAX or NumPy",
    ),
    "MC482": (
        lambda: in_jax().lowered.ad.primitive_jvps[in_jax().lowered.BACKWARD]((), ()),
        "MC482 q  the gradients of attention have no derivative\n"
        "    hint: jax.grad and jax.vjp work once; jax.hessian and jax.jacfwd do not",
    ),
    "MC483": (
        lambda: in_jax().native.opened("libnothing.so"),
        "MC483  JAX cannot run maskc's kernels: the CUDA driver lacks libnothing.so\n"
        "    hint: install jaxlib with its headers and, for GPUs, an NVIDIA driver for CUDA 12 or later",
    ),
    "MC484": (
        lambda: in_jax("splash").from_splash("causal"),
        "MC484 mask  cannot read a str as a Splash attention mask\n"
        "    hint: use CausalMask, LocalMask, ChunkedCausalMask, FullMask, NumpyMask, MultiHeadMask, & and | of these, or boolean arrays; write others with mc.where(lambda q, k: ...)",
    ),
    "MC501": (
        lambda: DType.parse("float8"),
        "MC501 dtype  unknown dtype 'float8'; known: bfloat16, float16, float32, float8_e4m3fn\n"
        "    hint: pass one of these, as text or as a dtype of torch or NumPy; convert other tensors first, for example with q.float() or q.astype('float32'), as kernels compute in fp32",
    ),
    "MC502": (
        lambda: CompiledMask(bundle("band"), "sm_80"),
        "MC502 target  unknown target 'sm_80'; known: cpu\n"
        "    hint: target=None picks what this machine has",
    ),
    "MC490": (
        lambda: mc.causal().compile(128, target="sm_90a", tile=(192, 128), stages=2),
        "MC490 tile  sm_90a has no forward kernel with tile=(192, 128), stages=2: at head_dim 128 a thread needs about 192 registers and has 160\n"
        "    hint: sm_90a takes tile=(q, k) with q 128 or 192 and k 64, 96 or 128, and stages 2 to 8, as far as they fit",
    ),
    "MC491": (
        lambda: mc.causal().compile(128, target="sm_90a", tile=(128, 0)),
        "MC491 tile  tile must be a pair of positive integers, found (128, 0)\n"
        "    hint: tile=(128, 64) is 128 queries by 64 keys; None leaves the choice to the planner",
    ),
    "MC492": (
        lambda: placed("causal", Causal(), "q_idx", SourceLoc("mask.py", 2, 8)),
        "MC492 mask.py:2:8  causal: at must be mc.positions(q=..., k=...), found 'q_idx'\n"
        '    hint: mc.causal(at=mc.positions(q="q_idx", k="k_idx")); calls give q_idx=... and k_idx=...',
    ),
    "MC503": (
        lambda: replace(
            Target.named("sm_80"), directions=(Direction.forward,), missing="of a family to come"
        ).check(Problem(64, 64, HALF), Direction.backward),
        "MC503 target  target sm_80 has no backward kernels yet: of a family to come\n"
        "    hint: use target='simt', on any card, or 'sm_90a' on Hopper; tensors on the CPU have 'cpu'",
    ),
    "MC504": (
        lambda: Target.named("sm_80").check(Problem(44, 44, HALF)),
        "MC504 head_dim  target sm_80 has no kernel for head_dim=44, head_dim_v=44; it has: multiples of 8 up to 512, and 576 with 512 for v\n"
        "    hint: pad or split the head dimension; target 'simt' takes any up to 512, and 'cpu' up to 576",
    ),
    "MC505": (
        lambda: Target.named("sm_80").check(Problem(64, 64, DType.float32)),
        "MC505 dtype  target sm_80 has no float32 kernel; it has: bfloat16, float16\n"
        "    hint: choose one of these dtypes, or another target; 'simt' and 'cpu' also have fp32",
    ),
    "MC506": (
        lambda: compile_c("int x;"),
        "MC506  no working C compiler: tried CC=no-such-cc (not found)\n"
        "    hint: install gcc or clang, or set CC; until then the CPU path runs in NumPy, slower",
    ),
    "MC507": (
        lambda: build(SourceUnit("sm_80", "", TileShape(64, 64), False)),
        "MC507  target sm_80 needs CuPy, which is not installed\n"
        "    hint: pip install 'maskc[cuda13]'",
    ),
    "MC509": (
        lambda: launch_cuda.device_arch("sm_80", 0),
        "MC509 target  target sm_80 needs an NVIDIA GPU, and device 0 is only an sm_75\n"
        "    hint: compile(target='cpu') runs anywhere; `maskc doctor` says what is missing",
    ),
}


@pytest.fixture(autouse=True)
def surroundings(request, monkeypatch, tmp_path):
    """A cache of its own, and a machine that lacks things."""
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch_cuda, "gpus", lambda: [SimpleNamespace(capability=75)])
    if request.node.name.endswith(("[MC506]", "[MC419]")):
        monkeypatch.setenv("CC", "no-such-cc")
    if request.node.name.endswith("[MC507]"):
        for package in ("cuda.bindings", "cupy.cuda"):
            monkeypatch.setitem(sys.modules, package, None)
        nvrtc.library.cache_clear()


def test_a_package_that_cannot_be_imported():
    """The error names its cause and keeps it; a missing cause is MC507."""
    broken = ImportError("operator torchvision::nms does not exist\nsecond line")
    assert str(not_imported(broken, "mc.x", "transformers", "hf")) == (
        "MC644  mc.x needs transformers, which is installed and cannot be imported: "
        "operator torchvision::nms does not exist\n"
        "    hint: its dependencies may have incompatible versions: pip install --upgrade "
        "'maskc[hf]', or see what `import transformers` prints"
    )
    missing = ModuleNotFoundError("No module named 'transformers'", name="transformers")
    assert str(not_imported(missing, "mc.x", "transformers", "hf")) == (
        "MC507  mc.x needs transformers, which is not installed\n    hint: pip install 'maskc[hf]'"
    )
    dependency = ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")
    assert str(not_imported(dependency, "mc.x", "numpy", "hf")).startswith(
        "MC644  mc.x needs numpy, which is installed and cannot be imported: No module named 'tok"
    )
    assert str(not_imported(dependency, "mc.x", "no_such_package", "hf")).startswith("MC507")


@pytest.mark.parametrize("code", TEXTS)
def test_text(code):
    trigger, text = TEXTS[code]
    with pytest.raises(MaskcError) as caught:
        trigger()
    assert str(caught.value) == text


def test_mc508_quotes_the_source_and_the_pattern(tmp_path, monkeypatch):
    pattern = tmp_path / "mask.py"
    pattern.write_text("import maskc as mc\nmask = mc.window(3)\n")
    place = SourceLoc(str(pattern), 2, 8, 20)
    with pytest.raises(errors.BuildFailed) as caught:
        compile_c("int a;\nint b = oops;\n", ((1, place, "window(3, 0)"),))
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"MC508 {pattern}:2:8  ")
    assert " refused the generated source: line 2: " in first
    assert "oops" in first
    assert rest == [
        "        int b = oops;",
        "    mask = mc.window(3)",
        "           ^^^^^^^^^^^^",
        "    hint: this is a defect of maskc, not of your mask: please report it with this text",
    ]


def test_mc510():
    text = str(SharedMemoryExceeded(120000, "sm_80", 101376, at="target"))
    assert text == (
        "MC510 target  the plan needs 120000 bytes of shared memory, target sm_80 has 101376\n"
        "    hint: choose a smaller tile"
    )


def test_every_class_of_a_call_has_its_text_here():
    """MC511 and above belong to planning, whose tests have them."""
    codes = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, MaskcError)
    }
    wanted = {code for code in codes if "MC400" < code <= "MC510" or "MC660" <= code <= "MC679"}
    wanted.add("MC652")
    assert wanted == {*TEXTS, "MC508", "MC510", "MC414", "MC415"}  # pickles: see test_objects


def test_the_place_of_a_build_error_may_be_unknown():
    with pytest.raises(errors.BuildFailed) as caught:
        compile_c("int a = ;\n")
    assert caught.value.at is None
    unit = replace(bundle("band").units[0], text="int a = ;\n")
    with pytest.raises(errors.BuildFailed, match="MC508  "):
        CompiledMask(bundle("band", units=(unit,)), "cpu").warmup()


def test_errors_are_raised_with_what_their_texts_show():
    """Raising one with too few arguments ends in an IndexError where its text is read."""
    classes = {
        name: kind for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, MaskcError) and kind is not MaskcError
        and kind.__init__ is MaskcError.__init__
    }  # fmt: skip
    wrong, seen = [], 0
    for file in (Path(mc.__file__).parent).rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or any(isinstance(x, ast.Starred) for x in call.args):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", None))
            if name in classes:
                seen += 1
                if len(call.args) != _shown(classes[name]):
                    wrong.append(f"{file.name}:{call.lineno} {name}")
    assert seen > 300
    assert wrong == []


def _shown(kind: type[MaskcError]) -> int:
    """The number of arguments that the message and the hint of an error show."""
    fields = [f for text in (kind.message, kind.hint) for _, f, _, _ in Formatter().parse(text)]
    return 1 + max((int(f[0]) for f in fields if f), default=-1)
