"""gpt-oss from transformers: windows, full layers and sink logits, checked against eager."""

import torch
from transformers import AutoModelForCausalLM, GptOssConfig

from maskc.integrations import transformers as hf


def main() -> None:
    hf.register()
    # A tiny model; real weights come with from_pretrained(name, attn_implementation="maskc").
    config = GptOssConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, head_dim=16,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"], eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="maskc").eval()

    report = hf.check(model)  # runs the model with maskc and with eager attention
    for row in report.rows:
        print(f"layer {row.layer}: {row.mask}, {row.live:.0%} of pairs, {', '.join(row.extras)}")
    print("equals eager:", report.ok)

    ids = torch.arange(3, 27)[None]
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    ours = model.generate(ids, **options)
    model.set_attn_implementation("eager")
    print("generates the same tokens:", torch.equal(ours, model.generate(ids, **options)))


if __name__ == "__main__":
    main()
