"""The full text of mistakes about lengths and data, of what must never happen, and of checks."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core import errors

DOC, HEADS = mc.documents("doc"), mc.per_head([mc.causal(), mc.full()])

TEXTS = {
    "MC301": (
        lambda: DOC.dense(4),
        "MC301 doc  the mask needs 'doc' (documents), which was not given\n"
        "    hint: pass it by name: attn(q, k, v, doc=...)",
    ),
    "MC302": (
        lambda: mc.window(3).dense(4, width=1),
        "MC302 width  the mask has no data or parameter named 'width'; it has: none\n"
        "    hint: options are n_q, n_kv, n_heads, block, head, batch",
    ),
    "MC303": (
        lambda: DOC.dense(4, doc=np.zeros(3, int)),
        "MC303 doc  'doc' has shape (3,), expected [4]\n"
        "    hint: lengths must match q and k; the array may have leading batch and heads "
        "dimensions",
    ),
    "MC304": (
        lambda: DOC.dense(4, doc=np.zeros(4)),
        "MC304 doc  'doc' has dtype float64, expected integers\n"
        "    hint: convert it first, for example with x.long() or x.bool(); maskc never rounds "
        "silently",
    ),
    "MC305": (
        lambda: DOC.dense(4, doc=np.full(4, 1 << 63, np.uint64)),
        "MC305 doc  'doc': 9223372036854775808 does not fit 64 signed bits\n"
        "    hint: number tokens and documents from 0",
    ),
    "MC306": (
        lambda: mc.causal().dense(-1),
        "MC306 n_q  n_q must be an integer in 0..1073741824, found -1\n"
        "    hint: pass a number of tokens as an int",
    ),
    "MC307": (
        lambda: mc.causal().layout(64, block=(0, 64)),
        "MC307 block  block must be two integers in 1..65536, found (0, 64)\n"
        "    hint: pass for example block=(128, 128)",
    ),
    "MC308": (
        lambda: mc.full().layout(1 << 20, block=(1, 1)),
        "MC308  the layout has 1099511627776 live tiles, more than 2^30\n"
        "    hint: use larger tiles, or shorter lengths",
    ),
    "MC310": (
        lambda: HEADS.layout(64),
        "MC310 head  the 2 heads of this mask have different layouts\n"
        "    hint: select one with head=",
    ),
}

# No small input leads here: tests of the stages raise these, and this is what they read as.
SHOWN = {
    errors.TooMuchWork(70000, 65535): (
        "MC309  the call has 70000 work items, more than the limit of 65535\n    hint: split "
        "the batch into several calls"
    ),
    errors.DecompositionBroken("two of them overlap"): (
        "MC512  the pieces of this mask are not equal to the mask: two of them overlap\n"
        "    hint: this is a defect of maskc: please report it with the pattern"
    ),
    errors.ListsNotRead(at="MASKC_CHECK"): (
        "MC691 MASKC_CHECK  this call runs later, in a CUDA graph or a program of JAX: "
        "its lists are not built yet\n"
        "    hint: run the call once outside of it, or unset MASKC_CHECK"
    ),
    errors.WrongDeviceLists("tile row 0, tile 2", "empty", "full"): (
        "MC690  lists that the GPU made are wrong: tile row 0, tile 2: empty on the GPU, "
        "full on the host\n"
        "    hint: please report this with the pattern, the lengths and the data"
    ),
    errors.CheckFailed("out is off by 0.5"): (
        "MC602  out is off by 0.5\n"
        "    hint: the kernel and the dense oracle disagree: please report this with the pattern"
    ),
    errors.BadPlan("causal.plan.json", "it holds a dict", at="causal.plan.json"): (
        "MC604 causal.plan.json  a generated module cannot read causal.plan.json: it holds a dict\n"
        "    hint: run `maskc compile` again; the module, its plan and its sources belong together"
    ),
}


@pytest.mark.parametrize("code", TEXTS)
def test_text(code: str) -> None:
    trigger, text = TEXTS[code]
    with pytest.raises(mc.MaskcError) as caught:
        trigger()
    assert str(caught.value) == text


@pytest.mark.parametrize("error", SHOWN, ids=lambda error: error.code)
def test_shown(error: mc.MaskcError) -> None:
    assert str(error) == SHOWN[error]
