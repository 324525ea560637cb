"""Documents by their lengths, on a device or on the host, and a test of what lies around them."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch

import maskc as mc
from tests.support.exact_attention import DEVICE, tensors


def ends(lengths):
    """Cumulative lengths of documents."""
    return [0, *accumulate(lengths)]


def lengths_on_device(lengths, most=None, device=DEVICE):
    """Documents whose lengths lie on the device; `most`: the promise."""
    there = torch.tensor(ends(lengths), dtype=torch.int32, device=device)
    return mc.cu_seqlens(there, max_seqlen=most)


def lengths_on_host(lengths, most=None):
    """Likewise, on the host."""
    return mc.cu_seqlens(np.array(ends(lengths)), max_seqlen=most)


def neighbours_change_no_bit(attn, dim, own_lengths, alone, around, places, **heads):
    """Check that a document has the same bits alone and between others.

    Args:
        own_lengths: of the document.
        alone: gives the data of the document alone, by its length.
        around: (lengths of the documents before, behind).
        places: each gives the data of documents by their lengths.
    """
    for own in own_lengths:
        made = tensors(own, own, dim, torch.bfloat16, own, batch=1, **heads)[:3]
        want = attn(*made, return_lse=True, doc=alone(own))
        for before, behind in around:
            lengths, start = [*before, own, *behind], sum(before)
            n = sum(lengths)
            rest = tensors(n, n, dim, torch.bfloat16, 1, batch=1, **heads)[:3]
            for x, y in zip(rest, made, strict=True):
                x *= 4
                x[:, :, start : start + own] = y
            for place in places:
                found = attn(*rest, return_lse=True, doc=place(lengths))
                for x, y in zip(found, want, strict=True):
                    assert torch.equal(x[:, :, start : start + own], y), (own, before, behind)
