"""Neighborhood attention along one axis.

Ali Hassani, Steven Walton, Jiachen Li, Shen Li, Humphrey Shi, "Neighborhood Attention Transformer",
2022; dilation from Ali Hassani, Humphrey Shi, "Dilated Neighborhood Attention Transformer", 2022;
stride from Ali Hassani et al., "Generalized Neighborhood Attention", 2025.
https://arxiv.org/abs/2204.07143

Definition, n tokens: tokens with the same residue g = q mod dilation form a class of
L = ceil((n - g) / dilation) tokens, with index i = q // dilation inside it. The leader of i is
min((i // stride) * stride + stride // 2, L - 1). The window has the `kernel` tokens of the class
around the leader; at the borders it moves inwards and never shrinks:
c = clamp(leader, kernel // 2, L - 1 - (kernel // 2 + kernel mod 2 - 1)) and
c - kernel // 2 <= k // dilation <= c + kernel // 2 + kernel mod 2 - 1, k in the same class.
Causal: leader = min((i // stride) * stride + stride - 1, L - 1) and
leader - kernel + 1 <= k // dilation <= i. A class shorter than the kernel sees all of itself.
There are as many queries as keys.
"""

from __future__ import annotations

import maskc as mc


def near(q, k, length, kernel, dilation, stride, causal):
    """Whether coordinate k lies in the neighborhood of coordinate q on an axis of `length`."""
    residue, i = q % dilation, q // dilation
    last = (length - residue + dilation - 1) // dilation - 1
    if causal:
        first, final = min(i // stride * stride + stride - 1, last) - kernel + 1, i
    else:
        before, after = kernel // 2, kernel // 2 + kernel % 2 - 1
        leader = min(i // stride * stride + stride // 2, last)
        centre = max(min(leader, last - after), before)
        first, final = centre - before, centre + after
    j = k // dilation
    return (k % dilation == residue) & (first <= j) & (j <= final)


def per_axis(count, **values):
    """The keywords of `near` for each axis, from values for all axes or tuples of one for each."""
    for name, value in values.items():
        if isinstance(value, tuple) and len(value) != count:
            wanted = f"{count} values, one for each axis, or one for all"
            raise mc.BadParameterValue(f"natten_{count}d", name, wanted, value)
        if name != "causal" and min(value if isinstance(value, tuple) else (value,)) < 1:
            raise mc.BadParameterValue(f"natten_{count}d", name, "tokens, at least 1", value)
    return [
        {name: x[axis] if isinstance(x, tuple) else x for name, x in values.items()}
        for axis in range(count)
    ]


@mc.pattern
def natten_1d(
    *, kernel: int = 127, dilation: int = 1, stride: int = 1, causal: bool = False
) -> mc.Mask:
    """The `kernel` nearest tokens, `dilation` apart, shared by groups of `stride` queries."""
    (axis,) = per_axis(1, kernel=kernel, dilation=dilation, stride=stride, causal=causal)
    return mc.where(lambda q, k: near(q, k, mc.n_kv, **axis))


def main() -> None:
    natten_1d(kernel=33, dilation=2, stride=8).show(256)


if __name__ == "__main__":
    main()
