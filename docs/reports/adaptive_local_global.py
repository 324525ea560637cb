"""Quality of Adaptive Local-Global on a text: python docs/reports/adaptive_local_global.py OUT.json

Landmarks by structure are the tokens that end a sentence or a line of this very text, so that they
are baked into the mask, and one sequence is looked at. Beside it stand the choice by content, as
many random landmarks, and a window and a strided mask with as many live pairs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import maskc as mc
from maskc.evaluate import FAMILIES, Candidate, Inputs, ablations, at_budget, evaluate, load
from maskc.evaluate.environment import environment
from maskc.evaluate.texts import demo_texts, sequences

TOKENS, SINKS, WINDOW, BLOCK, TOP = 512, 4, 32, 16, 2
LAYERS = (2, 9, 16, 23)


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
    content = mc.patterns.adaptive_local_global_content(
        n_sinks=SINKS, window=WINDOW, block=BLOCK, top=TOP
    )
    candidates = [
        Candidate(name, own),
        Candidate("by content", content),
        Candidate("random landmarks", with_landmarks(sorted(drawn.tolist())), "control", name),
        *(
            Candidate(f"{family} at {share:.1%}", at_budget(FAMILIES[family], share, TOKENS).mask,
                      budget=share)
            for family in ("window", "strided")
        ),
        *(Candidate(f"{what[:40]}", mask, "ablation", name)
          for what, mask in ablations(own).items()),
    ]  # fmt: skip
    source = f"smollm2, english; {len(ends)} landmarks in {TOKENS} tokens"
    inputs = Inputs(model, tokenizer, ids, names, source, layers=LAYERS)
    found = evaluate(
        candidates, inputs, parts=("information", "perplexity"),
        command=f"python docs/reports/adaptive_local_global.py {Path(output).name}",
        environment=environment(inputs), progress=lambda text: print(text, file=sys.stderr),
    )  # fmt: skip
    Path(output).write_text(found.to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
