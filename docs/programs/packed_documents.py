"""Pack documents of different lengths into one row; each trains as if it were alone."""

from itertools import pairwise

import torch

import maskc as mc

LENGTHS = [37, 5, 90, 61]
MASK = mc.documents("doc") & mc.causal()


def main() -> None:
    torch.manual_seed(0)
    tokens = sum(LENGTHS)
    q, k, v = (torch.randn(1, 4, tokens, 32, requires_grad=True) for _ in range(3))
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)

    # One call, one kernel for every packing: lengths are data, and new data never rebuild it.
    out = mc.attention(q, k, v, MASK, doc=mc.cu_seqlens(ends))
    out.square().sum().backward()
    packed = [x.grad.clone() for x in (q, k, v)]

    # The same, document by document.
    for x in (q, k, v):
        x.grad = None
    for first, last in pairwise(ends):
        alone = mc.attention(*(x[:, :, first:last] for x in (q, k, v)), mc.causal())
        torch.testing.assert_close(out[:, :, first:last], alone)
        alone.square().sum().backward()
    for together, x in zip(packed, (q, k, v), strict=True):
        torch.testing.assert_close(together, x.grad)

    live = MASK.count(tokens, doc=mc.cu_seqlens(ends))
    print(f"{len(LENGTHS)} documents, {tokens} tokens: results and gradients equal separate calls")
    print(f"{live} pairs are live, {mc.causal().count(tokens)} without the document mask")


if __name__ == "__main__":
    main()
