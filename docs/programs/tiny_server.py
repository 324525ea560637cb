"""Serve a tiny Llama from pages; `python tiny_server.py smollm2` serves SmolLM2-135M."""

import sys

import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

import maskc as mc

PAGE, PAGES, SINKS, LEFT, PROMPTS = 16, 80, 4, 123, (300, 3, 70)
MASK = mc.causal() & (mc.sinks(SINKS) | mc.window(LEFT))
TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 99,
        "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.5}  # fmt: skip


def attend(layer, q, k, v, _mask, **_options):  # [1, heads, tokens, D], from transformers
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    attn.append(k, v, *pools[layer.layer_idx], plan)
    return attn.run(q, *pools[layer.layer_idx], plan)[0][None], None


torch.manual_seed(0)
model, steps, ids = LlamaForCausalLM(LlamaConfig(**TINY)), 90, torch.randint(99, (300,)).tolist()
if "smollm2" in sys.argv:
    (model, words), steps = mc.evaluate.load(), 450
    ids = words(mc.paged.__doc__)["input_ids"]
size = model.requires_grad_(False).config
heads = {"n_heads": size.num_attention_heads, "n_kv_heads": size.num_key_value_heads}
attn = mc.paged(MASK, page_size=PAGE, head_dim=size.head_dim, target="cpu", **heads)
shape = size.num_hidden_layers, 2, PAGES, PAGE, size.num_key_value_heads, size.head_dim
pools, free, table = torch.zeros(shape), list(range(PAGES)), torch.full((3, 60), -1)
texts, stored = [ids[:n] for n in PROMPTS], torch.zeros(3, dtype=torch.int64)
AttentionInterface.register("pages", attend)
model.set_attn_implementation("pages")
for step in range(1, steps + 1):
    for row, text, n in zip(table, texts, stored.tolist(), strict=True):
        unseen = row[-(-SINKS // PAGE) : max(0, n - LEFT) // PAGE]  # by tokens from n on
        free += unseen[unseen >= 0].tolist()
        unseen[:] = -1
        for entry in range(-(-n // PAGE), -(-len(text) // PAGE)):
            row[entry] = free.pop()
    new = [token for text, n in zip(texts, stored, strict=True) for token in text[n:]]
    counts, stored = (lengths := torch.tensor(list(map(len, texts)))) - stored, lengths
    plan = attn.plan(table, counts, stored)
    out = model(torch.tensor([new]), position_ids=plan.positions[None].long(), use_cache=False,
                logits_to_keep=counts.cumsum(0) - 1)  # fmt: skip
    for text, token in zip(texts, out.logits[0].argmax(-1).tolist(), strict=True):
        text.append(token)
    if step % (steps // 3) == 0:
        print(stored.tolist(), "tokens in", (table >= 0).sum(1).tolist(), "pages")
model.set_attn_implementation("sdpa")
for text, n in zip(texts, PROMPTS, strict=True):
    keep = torch.from_numpy(MASK.dense(len(text)))[None, None]
    picked = model(torch.tensor([text]), attention_mask=keep).logits[0, n - 1 : -1].argmax(-1)
    print((picked == torch.tensor(text[n:])).sum().item(), "of", steps, "tokens as in one pass")
