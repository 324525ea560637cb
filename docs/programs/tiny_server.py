"""Serve a tiny random model from pages; sequences keep sinks and a window, in constant memory."""

import torch
from torch import nn

import maskc as mc

HEADS, KV_HEADS, DIM, WIDTH, LAYERS, WORDS = 4, 2, 16, 64, 2, 50
PAGE, PAGES, SINKS, LEFT, NEW = 8, 30, 4, 31, 150
MASK = mc.causal() & (mc.sinks(SINKS) | mc.window(LEFT))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * DIM)
        self.out = nn.Linear(HEADS * DIM, WIDTH)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = self.qkv(nn.functional.layer_norm(x, [WIDTH])).unflatten(-1, (-1, DIM))
        return heads.split([HEADS, KV_HEADS, KV_HEADS], -2)


class Server:
    """Pages of all sequences; a page goes back when no later query sees its tokens."""

    attn = mc.paged(MASK, page_size=PAGE, head_dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS,
                    dtype="float32", target="cpu")  # fmt: skip

    def __init__(self, layers: nn.ModuleList, words: nn.Embedding) -> None:
        self.layers, self.words, self.free = layers, words, list(range(PAGES))
        self.pools = [torch.zeros(2, PAGES, PAGE, KV_HEADS, DIM) for _ in layers]
        angle = torch.arange(300)[:, None] * 10.0 ** -torch.arange(DIM // 2)
        self.rotary = angle.cos(), angle.sin()

    def step(
        self, tokens: list[list[int]], tables: list[list[int]], lengths: list[int]
    ) -> list[int]:
        """Return the next word of each sequence, after its new tokens; keep `tables` up to date."""
        for table, n in zip(tables, lengths, strict=True):
            while len(table) * PAGE < n:
                table.append(self.free.pop())
        rows = torch.full((len(tables), 300 // PAGE), -1)
        for row, table in zip(rows, tables, strict=True):
            row[: len(table)] = torch.tensor(table)
        counts = torch.tensor(list(map(len, tokens)))
        plan = self.attn.plan(rows, counts, torch.tensor(lengths))
        x = self.words(torch.tensor([word for own in tokens for word in own]))
        for layer, (k_pool, v_pool) in zip(self.layers, self.pools, strict=True):
            q, k, v = layer.split(x)
            q = self.attn.append(k, v, k_pool, v_pool, plan, q=q, rotary=self.rotary)
            x = x + layer.out(self.attn.run(q, k_pool, v_pool, plan)[0].flatten(1))
        for table, n in zip(tables, lengths, strict=True):
            for page in range(-(-SINKS // PAGE), max(0, n - LEFT) // PAGE):
                if table[page] >= 0:  # all of its tokens are behind the window
                    self.free.append(table[page])
                    table[page] = -1
        last = x[counts.cumsum(0) - 1]
        return (last @ self.words.weight.T).argmax(-1).tolist()


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    layers, words = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Embedding(WORDS, WIDTH)
    prompts = [torch.randint(WORDS, (n,)).tolist() for n in (40, 3, 17)]
    server, tables, texts, most = Server(layers, words), [[] for _ in prompts], prompts, 0
    new = prompts
    for _ in range(NEW):
        found = server.step(new, tables, list(map(len, texts)))
        texts = [text + [word] for text, word in zip(texts, found, strict=True)]
        new = [[word] for word in found]
        most = max(most, *(sum(page >= 0 for page in table) for table in tables))
    alone = []  # each text at once, in pages that nobody gives back
    for text in texts:
        other = Server(layers, words)
        table: list[int] = []
        alone.append(other.step([text[:-1]], [table], [len(text) - 1]) == text[-1:])
    print("tokens of a sequence:", max(map(len, texts)), "pages of a sequence at most:", most)
    print("last words equal those of one pass:", all(alone))


if __name__ == "__main__":
    main()
