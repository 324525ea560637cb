"""Decode sequences that share a pool of pages; compare with a separate cache per sequence."""

import torch

import maskc as mc

HEADS, KV_HEADS, DIM, PAGE, PAGES = 8, 2, 64, 16, 40
LENGTHS, STEPS = [50, 7, 120, 33], 20  # of the sequences before the first step


class Pool:
    """Keys and values of all sequences, with the owner and position of each slot."""

    def __init__(self) -> None:
        self.k, self.v = (torch.zeros(1, KV_HEADS, PAGE * PAGES, DIM) for _ in range(2))
        self.owner = torch.full((PAGE * PAGES,), -1, dtype=torch.int32)  # unused
        self.position = torch.zeros(PAGE * PAGES, dtype=torch.int32)
        self.free, self.pages = torch.randperm(PAGES).tolist(), [[] for _ in LENGTHS]

    def append(self, sequence: int, first: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys and values [Hkv, tokens, D] of a sequence, starting at its token `first`."""
        tokens, pages = torch.arange(first, first + k.shape[1]), self.pages[sequence]
        while len(pages) * PAGE < first + k.shape[1]:
            pages.append(self.free.pop())
        slots = torch.tensor(pages)[tokens // PAGE] * PAGE + tokens % PAGE
        self.k[0, :, slots], self.v[0, :, slots] = k, v
        self.owner[slots], self.position[slots] = sequence, tokens.int()


def main() -> None:
    torch.manual_seed(0)
    past = mc.causal(at=mc.positions(q="at", k="position"))
    attn = (mc.documents("owner") & past).compile(head_dim=DIM, dtype="float32", target="cpu")
    alone = mc.causal().compile(head_dim=DIM, dtype="float32", target="cpu")
    q, k, v = ([torch.randn(1, heads, n + STEPS, DIM) for n in LENGTHS]
               for heads in (HEADS, KV_HEADS, KV_HEADS))  # fmt: skip
    pool, worst, owners = Pool(), 0.0, torch.arange(len(LENGTHS)).int()[:, None]
    for i, n in enumerate(LENGTHS):
        pool.append(i, 0, k[i][0, :, :n], v[i][0, :, :n])
    for step in range(STEPS):
        new = [(i, slice(n + step, n + step + 1)) for i, n in enumerate(LENGTHS)]
        for i, at in new:
            pool.append(i, at.start, k[i][0, :, at], v[i][0, :, at])
        keys, values = (x.expand(len(LENGTHS), -1, -1, -1) for x in (pool.k, pool.v))
        out = attn(torch.cat([q[i][:, :, at] for i, at in new]), keys, values,
                   owner=(owners, pool.owner), position=pool.position,
                   at=torch.tensor([[at.start] for _, at in new]).int())  # fmt: skip
        for i, at in new:
            own = alone(q[i][:, :, at], k[i][:, :, : at.stop], v[i][:, :, : at.stop])
            worst = max(worst, float((out[i : i + 1] - own).abs().max()))
    print(sum(map(len, pool.pages)), "of", PAGES, "pages; equal to own caches:", worst < 1e-6)


if __name__ == "__main__":
    main()
