"""Quality of Adaptive Local-Global on a text: python docs/reports/adaptive_local_global.py OUT.json

Landmarks by structure are the tokens that end a sentence or a line of this very text, so that they
are baked into the mask, and one sequence is looked at. Beside it stand as many random landmarks,
and masks with as many live pairs: a window, a strided one, and blocks that are chosen by content.
A gate that was trained is not at hand, so the choice by learning is not evaluated.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import maskc as mc
from maskc.evaluate import FAMILIES, Candidate, Inputs, ablations, at_budget, evaluate, load
from maskc.evaluate.environment import environment
from maskc.evaluate.texts import demo_texts, sequences

TOKENS, SINKS, WINDOW = 512, 4, 32
LAYERS = (2, 9, 16, 23)
"""Those of which retained mass is asked."""
PREDICTED = 3
"""So many of the masks get a perplexity, which takes a run of the model each."""


def with_landmarks(landmarks: list[int]) -> mc.Mask:
    """`adaptive_local_global` with the landmarks of one sequence."""
    landmark = mc.global_tokens(landmarks).columns
    return mc.causal() & (mc.sinks(SINKS) | mc.window.hf(WINDOW) | landmark)


def main(output: str) -> None:
    model, tokenizer = load("smollm2", device="cpu", dtype="float32")
    ids, names = sequences(tokenizer, {"english": demo_texts()["english"]}, TOKENS, 1)
    pieces = [tokenizer.decode([token]) for token in ids[0].tolist()]
    ends = [
        i for i, piece in enumerate(pieces) if piece.strip(" ") in (".", ":", ";", "\n", "\n\n")
    ]
    drawn = np.random.default_rng(0).choice(TOKENS, len(ends), replace=False)
    own = with_landmarks(ends)
    share = own.count(TOKENS) / mc.causal().count(TOKENS)
    name = "adaptive_local_global"
    ablated = ablations(own)
    same = [
        Candidate(f"{family} at {share:.1%}", at_budget(FAMILIES[family], share, TOKENS).mask,
                  budget=share)
        for family in ("window", "strided", "block_topk")
    ]  # fmt: skip
    without = [
        Candidate(f"without {part}", mask, "ablation", name)
        for part, mask in zip(("sinks", "window", "landmarks"), ablated.values(), strict=True)
    ]
    control = Candidate("random landmarks", with_landmarks(sorted(drawn.tolist())), "control", name)
    candidates = [Candidate(name, own), same[0], without[2], *same[1:], control, *without[:2]]
    source = f"smollm2, english; {len(ends)} landmarks in {TOKENS} tokens"
    inputs = Inputs(model, tokenizer, ids, names, source, layers=LAYERS)
    rest = {
        "command": f"python docs/reports/adaptive_local_global.py {Path(output).name}",
        "environment": environment(inputs),
        "progress": lambda text: print(text, file=sys.stderr, flush=True),
    }
    kept = evaluate(candidates, inputs, parts=("information",), **rest)
    Path(output).write_text(kept.to_json() + "\n", encoding="utf-8")
    said = evaluate(candidates[:PREDICTED], inputs, parts=("perplexity",), **rest)
    losses = {each.name: each.perplexity for each in said.patterns}
    patterns = tuple(replace(e, perplexity=losses.get(e.name)) for e in kept.patterns)
    both = replace(kept, patterns=patterns, cannot_show=said.cannot_show)
    Path(output).write_text(both.to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
