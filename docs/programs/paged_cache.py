"""Decode several sequences from one pool of pages, and get what a cache of each one's own gives."""

import torch

import maskc as mc

HEADS, KV_HEADS, DIM = 8, 2, 64
PAGE, PAGES = 16, 40
LENGTHS = [50, 7, 120, 33]  # tokens that the sequences have before the first step
STEPS = 20
NOBODY = -1


class Pool:
    """Keys and values of all sequences, and whose each slot is: what the mask reads."""

    def __init__(self) -> None:
        slots = PAGE * PAGES
        self.k, self.v = (torch.zeros(1, KV_HEADS, slots, DIM) for _ in range(2))
        self.owner = torch.full((slots,), NOBODY, dtype=torch.int32)
        self.position = torch.zeros(slots, dtype=torch.int32)
        self.free = torch.randperm(PAGES).tolist()  # pages are taken in any order
        self.pages: dict[int, list[int]] = {}

    def append(self, sequence: int, first: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Keep keys and values [Hkv, tokens, D] of a sequence from its token `first` on."""
        tokens = torch.arange(first, first + k.shape[1])
        pages = self.pages.setdefault(sequence, [])
        while len(pages) * PAGE < first + k.shape[1]:
            pages.append(self.free.pop())
        slots = torch.tensor(pages)[tokens // PAGE] * PAGE + tokens % PAGE
        self.k[0, :, slots], self.v[0, :, slots] = k, v
        self.owner[slots], self.position[slots] = sequence, tokens.int()

    def release(self, sequence: int) -> None:
        """Give the pages of a sequence back; what lies there is nobody's."""
        for page in self.pages.pop(sequence):
            self.owner[page * PAGE : (page + 1) * PAGE] = NOBODY
            self.free.append(page)


def main() -> None:
    torch.manual_seed(0)
    near = mc.causal(at=mc.positions(q="at", k="position"))
    attn = (mc.documents("owner") & near).compile(head_dim=DIM, dtype="float32", target="cpu")
    alone = mc.causal().compile(head_dim=DIM, dtype="float32", target="cpu")

    ends = [length + STEPS for length in LENGTHS]
    q = [torch.randn(1, HEADS, end, DIM) for end in ends]
    k, v = ([torch.randn(1, KV_HEADS, end, DIM) for end in ends] for _ in range(2))

    pool, worst, live = Pool(), 0.0, list(range(len(LENGTHS)))
    for i, length in enumerate(LENGTHS):
        pool.append(i, 0, k[i][0, :, :length], v[i][0, :, :length])
    for step in range(STEPS):
        if step == STEPS // 2:  # one is done, and the next takes its pages
            pool.release(live.pop(1))
        now = [LENGTHS[i] + step for i in live]
        for i, n in zip(live, now, strict=True):
            pool.append(i, n, k[i][0, :, n : n + 1], v[i][0, :, n : n + 1])

        # One query of each sequence, side by side.
        queries = torch.cat([q[i][:, :, n : n + 1] for i, n in zip(live, now, strict=True)], 2)
        owners = torch.tensor(live, dtype=torch.int32), pool.owner
        out = attn(queries, pool.k, pool.v, owner=owners,
                   at=torch.tensor(now, dtype=torch.int32), position=pool.position)  # fmt: skip
        for at, (i, n) in enumerate(zip(live, now, strict=True)):
            own = alone(q[i][:, :, n : n + 1], k[i][:, :, : n + 1], v[i][:, :, : n + 1])
            worst = max(worst, float((out[:, :, at] - own[:, :, 0]).abs().max()))

    print(f"{STEPS} steps, largest difference to caches of their own below 1e-6:", worst < 1e-6)
    print("pages in use:", sum(map(len, pool.pages.values())), "of", PAGES)


if __name__ == "__main__":
    main()
