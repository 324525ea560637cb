"""FlexAttention for the same mask, and the mask as a formula on tensors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.contender import Contender, Missing, Unavailable
from benchmarks.fa4 import MISSING, installed
from maskc.verify.bench import gradient_of
from maskc.verify.case import Case
from maskc.verify.mask_mod import formula_of
from maskc.verify.pairs import Pairs
from maskc.verify.tensors import Tensors

Env = Mapping[str, Any]
"""Index tensors b, h, q, k; lengths and parameters as integers; arrays as tensors."""


_DENSE_MASK = 1 << 28
"""Pairs up to which a block mask is made eagerly; beyond, its boolean matrix is not formed."""


def start_anew() -> None:
    """Forget compiled functions: else earlier cases count towards a limit of recompilations.

    Beyond the limit PyTorch would run FlexAttention uncompiled; here that is an error.
    """
    import torch
    import torch._dynamo

    torch._dynamo.reset()
    if hasattr(torch._dynamo.config, "fail_on_recompile_limit_hit"):
        torch._dynamo.config.fail_on_recompile_limit_hit = True


def flex_contender(
    case: Case, tensors: Tensors, pairs: Pairs, backward: bool, flash: bool = False
) -> Contender:
    """torch.compile(flex_attention) with a block mask made beforehand.

    Args:
        flash: its backend of FlashAttention 4's kernels, instead of Triton's.

    Raises:
        Unavailable: this PyTorch has no FlexAttention, or it refuses the case.
    """
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as error:
        raise Unavailable(str(error)) from None
    import torch

    if flash and not installed():
        raise Missing(MISSING)
    if backward and tensors.device == "cpu":
        backward = False  # FlexAttention has no backward there
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # the graph is differentiated many times
    batch = case.batch if pairs.batched else None
    heads = case.heads if pairs.by_head else None
    large = case.n_q * case.n_kv > _DENSE_MASK
    options = {"kernel_options": {"BACKEND": "FLASH"}} if flash else {}
    with quiet():
        keep = formula_of(case, pairs, tensors.device)
        blocks = create_block_mask(
            keep, batch, heads, case.n_q, case.n_kv, device=tensors.device,
            _compile=large and tensors.device == "cuda",
        )  # fmt: skip
        compiled = torch.compile(flex_attention, dynamic=False)
        call = partial(compiled, block_mask=blocks, enable_gqa=case.group > 1, **options)

    def forward() -> Any:
        with torch.no_grad():  # else it writes its log-sum-exp, which nobody asked for
            return call(*tensors.qkv)

    with quiet():
        forward()
    gradient = gradient_of(call, tensors) if backward else None
    return Contender("flex_flash" if flash else "flex", forward, gradient, scope=quiet)


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings of FlexAttention's compiler, which speak of PyTorch's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
