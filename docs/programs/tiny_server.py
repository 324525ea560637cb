"""Serve a tiny random model from pages; sequences keep sinks and a window, in constant memory."""

import torch

import maskc as mc

HEADS, KV_HEADS, DIM, WORDS, LAYERS = 4, 2, 16, 50, 2
PAGE, PAGES, SINKS, LEFT, NEW = 8, 30, 4, 31, 150
MASK = mc.causal() & (mc.sinks(SINKS) | mc.window(LEFT))
torch.manual_seed(0)
ATTN = mc.paged(MASK, page_size=PAGE, head_dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS,
                dtype="float32", target="cpu")  # fmt: skip
LAYER_WEIGHTS = torch.randn(LAYERS, HEADS * DIM, (HEADS + 2 * KV_HEADS) * DIM) / 8
EMBEDDING = torch.randn(WORDS, HEADS * DIM)
ANGLE = torch.arange(300)[:, None] * 10.0 ** -torch.arange(DIM // 2)


class Server:
    """Pages of all sequences; a page goes back when no later query sees its tokens."""

    def __init__(self) -> None:
        self.pools = torch.zeros(LAYERS, 2, PAGES, PAGE, KV_HEADS, DIM)
        self.free = list(range(PAGES))

    def step(self, new: list[list[int]], tables: list[list[int]], lengths: list[int]) -> list[int]:
        """Return the next word of each sequence, after its new tokens; keep `tables` up to date."""
        rows = torch.full((len(tables), 300 // PAGE), -1)
        for row, table, n in zip(rows, tables, lengths, strict=True):
            table += [self.free.pop() for _ in range(-(-n // PAGE) - len(table))]
            row[: len(table)] = torch.tensor(table)
        counts = torch.tensor([len(own) for own in new])
        plan = ATTN.plan(rows, counts, torch.tensor(lengths))
        x = EMBEDDING[[word for own in new for word in own]]
        for weights, (k_pool, v_pool) in zip(LAYER_WEIGHTS, self.pools, strict=True):
            q, k, v = (x @ weights).unflatten(1, (-1, DIM)).split([HEADS, KV_HEADS, KV_HEADS], 1)
            q = ATTN.append(k, v, k_pool, v_pool, plan, q=q, rotary=(ANGLE.cos(), ANGLE.sin()))
            x = x + ATTN.run(q, k_pool, v_pool, plan)[0].flatten(1)
        for table, n in zip(tables, lengths, strict=True):
            for page in range(-(-SINKS // PAGE), max(0, n - LEFT) // PAGE):
                self.free += [table[page]] if table[page] >= 0 else []
                table[page] = -1  # all of its tokens are behind the window
        return (x[counts.cumsum(0) - 1] @ EMBEDDING.T).argmax(1).tolist()


if __name__ == "__main__":
    texts = new = [torch.randint(WORDS, (n,)).tolist() for n in (40, 3, 17)]
    server, tables, most = Server(), [[] for _ in texts], 0
    for _ in range(NEW):
        new = [[word] for word in server.step(new, tables, [len(text) for text in texts])]
        texts = [text + own for text, own in zip(texts, new, strict=True)]
        most = max(most, *(sum(page >= 0 for page in table) for table in tables))
    alone = [Server().step([text[:-1]], [[]], [len(text) - 1])[0] for text in texts]
    print("tokens of a sequence:", max(map(len, texts)), "pages of a sequence at most:", most)
    print("last words equal those of one pass:", alone == [text[-1] for text in texts])
