"""Port a published mask_mod unchanged: NATTEN 2-D of attention-gym (pip install attn-gym)."""

import torch
from attn_gym.masks import generate_natten
from torch.nn.attention.flex_attention import create_mask

import maskc as mc

WIDTH = HEIGHT = 16
KERNEL = 5


def main() -> None:
    mask_mod = generate_natten(WIDTH, HEIGHT, KERNEL, KERNEL)
    mask = mc.from_mask_mod(mask_mod)  # traced exactly, for every length; nothing is sampled

    n = WIDTH * HEIGHT
    dense = create_mask(mask_mod, 1, 1, n, n, device="cpu")[0, 0]
    print("the same pairs:", torch.equal(torch.from_numpy(mask.dense(n)), dense))
    print(f"{mask.count(n)} of {n * n} pairs are live")

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 32, requires_grad=True) for _ in range(3))
    out = mc.attention(q, k, v, mask)
    judge = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense)
    torch.testing.assert_close(out, judge)
    out.square().sum().backward()
    print("attention and gradients:", tuple(out.shape), tuple(q.grad.shape))

    # maskc's own pattern has another formula and keeps the same pairs on this image.
    known = mc.patterns.natten_2d(width=WIDTH, kernel=(KERNEL, KERNEL))
    print("differs from maskc's pattern:", mc.diff(mask, known, n=n) is not None)


if __name__ == "__main__":
    main()
