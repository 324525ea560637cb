"""Decode token by token with a growing cache, and compare with one pass over all tokens."""

import torch

import maskc as mc

HEADS, KV_HEADS, DIM = 8, 2, 64
PROMPT, TOKENS = 50, 90


def main() -> None:
    torch.manual_seed(0)
    mask = mc.causal() & (mc.sinks(4) | mc.window(31))
    attn = mask.compile(head_dim=DIM, dtype="float32", target="cpu")  # serves every length

    # A model would compute these from its hidden states, token by token.
    q = torch.randn(1, HEADS, TOKENS, DIM)
    k, v = (torch.randn(1, KV_HEADS, TOKENS, DIM) for _ in range(2))

    # Space for all keys and values; the kernel reads views of the filled part.
    k_cache, v_cache = (torch.empty(1, KV_HEADS, TOKENS, DIM) for _ in range(2))

    def step(first: int, last: int) -> torch.Tensor:
        """Return attention of the newest tokens, from first to last."""
        k_cache[:, :, first:last], v_cache[:, :, first:last] = (
            k[:, :, first:last],
            v[:, :, first:last],
        )
        return attn(q[:, :, first:last], k_cache[:, :, :last], v_cache[:, :, :last])

    steps = [step(0, PROMPT)]  # the prompt at once
    steps += [step(n, n + 1) for n in range(PROMPT, TOKENS)]  # the last query meets the last key

    at_once = attn(q, k, v)
    worst = (torch.cat(steps, dim=2) - at_once).abs().max()
    print(f"{len(steps)} steps, {TOKENS} tokens, equal to one pass within 1e-6:",
          bool(worst < 1e-6))  # fmt: skip
    print("keys that the last token reads:", mask.count(1, TOKENS))


if __name__ == "__main__":
    main()
