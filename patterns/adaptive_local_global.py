"""Adaptive Local-Global by structure: sinks, a local window, and landmarks where the text has them.

The separators of Guoxuan Chen et al., "SepLLM: Accelerate Large Language Models by Compressing One
Segment into One Separator", 2024. Global tokens from the structure of the text follow Joshua
Ainslie et al., "ETC: Encoding Long and Structured Inputs in Transformers", 2020.
`adaptive_local_global_content` chooses by content, `adaptive_local_global_learned` by a gate that
was trained.
https://arxiv.org/abs/2412.12094

Definition: k <= p and (k < n_sinks or p - k < window or L[k]), where L flags the landmarks: the
ends of sentences, headings, the lines that open a function.

Data: `landmarks` [n_kv] or [B, n_kv], booleans, True for a landmark. `at_most` promises that no
sequence has more landmarks. The flags may then be on a GPU, and the host does not wait for them. 0
makes no promise.
"""

from __future__ import annotations

import maskc as mc


@mc.pattern
def adaptive_local_global(
    *, n_sinks: int = 4, window: int = 256, at_most: int = 0
) -> mc.Mask:  # fmt: skip
    """The first tokens, the last `window` keys, and every earlier landmark."""
    landmarks = mc.flags("landmarks", at_most=at_most or None)
    return mc.causal() & (mc.sinks(n_sinks) | mc.window.hf(window) | landmarks)


def main() -> None:
    import numpy as np

    ends = np.cumsum(np.random.default_rng(0).integers(8, 30, 20))
    landmarks = np.isin(np.arange(256), ends)
    adaptive_local_global(window=24).show(256, landmarks=landmarks)


if __name__ == "__main__":
    main()
