"""Train a small language model whose layers see four sinks and a window."""

import torch
import torch.nn.functional as F
from torch import nn

import maskc as mc

TEXT = "the cat sat on the mat. the dog sat on the log. the hen sat in the pen. " * 8
CHARS = sorted(set(TEXT))
MASK = mc.causal() & (mc.sinks(4) | mc.window(31))


class Block(nn.Module):
    def __init__(self, dim: int = 64, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = mc.nn.Attention(MASK)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        heads = self.attention(*(t.transpose(1, 2) for t in (q, k, v)))  # [batch, heads, tokens, D]
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


def main() -> None:
    torch.manual_seed(0)
    tokens = torch.tensor([CHARS.index(c) for c in TEXT])
    model = nn.Sequential(nn.Embedding(len(CHARS), 64), Block(), Block(), nn.Linear(64, len(CHARS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(41):
        starts = torch.randint(len(tokens) - 129, (4,))
        batch = torch.stack([tokens[s : s + 129] for s in starts])
        loss = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
