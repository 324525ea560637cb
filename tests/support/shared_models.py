"""Code of ranks for tests of models, shards and failures."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

import maskc as mc
from maskc.core.errors import MaskcError
from maskc.distributed import plan
from tests.support import models

TOKENS = 60
KINDS = ("mistral", "gemma3", "gpt_oss", "llama4")


def everything(rank: int, size: int) -> list[str]:
    """All that is wrong, as text."""
    parts = shards, disagreements, doors, compiled, several_models
    return [line for part in parts for line in part(rank, size)]


def shards(rank: int, size: int) -> list[str]:
    """A global index rides through shard, unshard and roll; gradients come back."""
    wrong = []
    for n, layout in ((37, "contiguous"), (64, "zigzag"), (3, "contiguous")):
        made = plan(mc.causal(), n, size, heads=(2, 1, 32), layout=layout)
        x = torch.arange(2 * n).view(2, n)
        own = made.shard(x)
        if not torch.equal(own[0], made.position_ids()):
            wrong.append(f"position_ids {n}")
        if not torch.equal(made.unshard(own), x):
            wrong.append(f"unshard {n}")
        if not torch.equal(made.roll(own, -1), made.shard(x.roll(-1, 1))):
            wrong.append(f"roll {n}")
        leaf = x.double().requires_grad_()
        (made.unshard(made.shard(leaf)) * (rank + 1)).sum().backward()
        total = size * (size + 1) / 2  # every rank's factor reaches every token
        if not torch.equal(leaf.grad[:, made.position_ids()], torch.full_like(own, total).double()):
            wrong.append(f"gradient {n}")
    return wrong


def disagreements(rank: int, size: int) -> list[str]:
    """Each of them must raise on all ranks."""
    q, k = torch.randn(1, 2, 16, 32), torch.randn(1, 1, 16, 32)
    window = mc.causal() & mc.window(8 + (rank == 1))
    cases = {
        "MC703 masks": (plan(window, 16 * size, size, heads=(2, 1, 32), layout="contiguous"), q),
        "MC703 lengths": (plan(mc.causal(), 16 * size + (rank == 2) * 16, size, heads=(2, 1, 32),
                               layout="contiguous"), q),
        "MC704 shards": (plan(mc.causal(), 16 * size, size, heads=(2, 1, 32), layout="contiguous"),
                         q[:, :, : 15 if rank == 1 else 16]),
        "MC703 shapes": (plan(mc.full(), 16 * size, size, heads=(2, 1, 32), layout="contiguous"),
                         torch.cat([q, q], 1) if rank == 1 else q),
        "MC706 ranks": (plan(mc.full(), 16, size + 1, heads=(2, 1, 32)), q),
        "MC702 documents": (plan(mc.documents("doc"), 16 * size, size, heads=(2, 1, 32),
                                 layout="contiguous"), q),
    }  # fmt: skip
    wrong = []
    for name, (made, queries) in cases.items():
        try:
            mc.distributed.attention(queries, k, k, made)
            wrong.append(f"rank {rank}: {name} was taken")
        except MaskcError as error:
            if error.code != name[:5]:
                wrong.append(f"rank {rank}: {name} is {error}")
    return wrong


def several_models(rank: int, size: int) -> list[str]:
    """Loss and gradients of tiny models are those of one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    from maskc.integrations.transformers import register

    register()
    mesh = init_device_mesh("cpu", (size,))
    wrong = []
    for kind in KINDS:
        alone, shared = (_model(kind) for _ in range(2))
        made = plan(mc.distributed.model_masks(shared), TOKENS, size, heads=(4, 2, 16),
                    dtype="float32")  # fmt: skip
        ids = torch.randint(3, 60, (1, TOKENS), generator=torch.Generator().manual_seed(1))
        parallelize_module(shared, mesh, mc.distributed.ContextParallel(made))
        loss = shared(**mc.distributed.model_inputs(made, ids, ids)).loss
        loss.backward()
        mc.distributed.sum_gradients(shared)
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank:
            continue
        one = alone(input_ids=ids, labels=ids, use_cache=False).loss
        one.backward()
        if abs(one.item() - total.item()) > 1e-5:
            wrong.append(f"{kind}: loss {total.item()} for {one.item()}")
        for (name, a), (_, b) in zip(
            alone.named_parameters(), shared.named_parameters(), strict=True
        ):
            if a.grad is None:
                continue
            off = (a.grad - (b.grad if b.grad is not None else 0)).norm() / (a.grad.norm() + 1e-6)
            if off > 1e-4:
                wrong.append(f"{kind}: gradient of {name} is off by {off:.1e}")
    return wrong


def _model(kind: str) -> Any:
    import transformers

    name, own = models.DECODERS[kind]
    config = getattr(transformers, name)(**models.BASE | own)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="maskc")
    return model.float().train()


def compiled(rank: int, size: int) -> list[str]:
    """A layer under torch.compile and checkpointing gives what it gives without."""
    from torch.utils.checkpoint import checkpoint

    mask, n = mc.causal() & (mc.window(8) | mc.sinks(2)), 16 * size
    made = plan(mask, n, size, heads=(2, 1, 32), layout="contiguous", dtype="float32")
    draw = torch.Generator().manual_seed(0)
    x = made.shard(torch.randn(1, n, 64, generator=draw))
    weight = torch.randn(128, 64, generator=draw) / 8

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        parts = (x @ weight.T).unflatten(2, (4, 32)).transpose(1, 2).split((2, 1, 1), 1)
        return torch.nn.functional.gelu(mc.distributed.attention(*parts, made)).transpose(1, 2)

    def gradients(run: Any) -> list[torch.Tensor]:
        leaves = [each.clone().requires_grad_() for each in (x, weight)]
        out = run(*leaves)
        out.square().sum().backward()
        return [out.detach(), *(each.grad for each in leaves)]

    wanted = gradients(layer)
    backend = torch.compile(layer, backend="aot_eager")
    ways = {
        "torch.compile": backend,
        "checkpoint": lambda *given: checkpoint(layer, *given, use_reentrant=False),
        "both": lambda *given: checkpoint(backend, *given, use_reentrant=False),
    }
    wrong = []
    for name, run in ways.items():
        for _ in range(2):  # the second call finds what the first one compiled
            pairs = zip(gradients(run), wanted, strict=True)
            wrong += [f"{name}: {i}" for i, (a, b) in enumerate(pairs)
                      if not torch.allclose(a, b, atol=1e-5)]  # fmt: skip
    explained = torch._dynamo.explain(layer)(x, weight)
    if explained.graph_break_count != 1:
        wrong.append(f"{explained.graph_break_count} graph breaks: {explained.break_reasons}")
    return wrong


def dying(rank: int, size: int) -> str:
    """The last rank dies after all have agreed; what the others are told."""
    made = plan(mc.causal() & mc.window(8), 16 * size, size, heads=(2, 1, 32), layout="contiguous")
    q, k = torch.randn(1, 2, 16, 32), torch.randn(1, 1, 16, 32)
    mc.distributed.attention(q, k, k, made)
    dist.barrier()
    if rank == 0:
        os._exit(1)
    time.sleep(1)
    try:
        mc.distributed.attention(q, k, k, made)
    except MaskcError as error:
        return str(error)
    return "nothing"


def doors(rank: int, size: int) -> list[str]:
    """DTensors in and out, and a module of ours under parallelize_module."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = init_device_mesh("cpu", (size,))
    mask, n = mc.causal() & mc.window(8), 16 * size
    made = plan(mask, n, size, heads=(2, 1, 32), layout="contiguous", block=16)
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, n, 32, generator=draw) for heads in (2, 1))
    wanted = mc.attention(q, k, k, mask)
    tensors = [
        DTensor.from_local(made.shard(x, 2).contiguous(), mesh, [Shard(2)]) for x in (q, k, k)
    ]
    out = mc.distributed.attention(*tensors, made)
    wrong = []
    if out.shape != wanted.shape or not torch.allclose(out.full_tensor(), wanted, atol=1e-5):
        wrong.append("DTensors")
    style = mc.distributed.ContextParallel(made)
    parts = [made.shard(x, 2) for x in (q, k, k)]
    formula = mc.score(lambda s, q, k, h: s * mc.table("t")[h] - 0.1 * (q - k))
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "sinks": {"sink_logits": torch.tensor([0.5, 1.0]), "scale": 0.3},
        "entmax": {"normalizer": "entmax", "alpha": 1.7},
        "score": {"score": formula, "t": torch.nn.Parameter(torch.tensor([0.5, 2.0]))},
        "dropout": {"dropout": 0.5},
    }
    for name, given in options.items():
        seed = {"dropout_seed": 3} if "dropout" in given else {}
        wanted = made.shard(mc.nn.Attention(mask, **given)(q, k, k, **seed), 2)
        out = parallelize_module(mc.nn.Attention(mask, **given), mesh, style)(*parts, **seed)
        if not torch.allclose(out, wanted, atol=1e-5):
            wrong.append(f"mc.nn.Attention: {name}")
    refused: dict[str, torch.nn.Module] = {
        "its mask is": mc.nn.Attention(mc.causal()),
        "it chooses keys": mc.nn.SplashAttention(32),
        "its forward takes input": torch.nn.Linear(4, 4),
    }
    for why, module in refused.items():
        try:
            parallelize_module(module, mesh, style)
            wrong.append(f"{type(module).__name__} was taken")
        except MaskcError as error:
            if why not in str(error):
                wrong.append(f"{type(module).__name__}: {error}")
    return wrong
