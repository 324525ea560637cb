"""Chunked causal attention.

Meta AI, "The Llama 4 herd", 2025: the layers with rotary embeddings.
https://ai.meta.com/blog/llama-4-multimodal-intelligence/

Definition: p // size == k // size and k <= p.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def chunked(*, size: int = 8192) -> mc.Mask:
    """Causal inside each chunk of `size` tokens."""
    return mc.chunked(size)


def main() -> None:
    chunked(size=64).show(256)


if __name__ == "__main__":
    main()
