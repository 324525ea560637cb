"""Processes that form a group on this machine, with gloo or NCCL; they run one function and
report."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

PRELOAD = (
    "torch", "torch.distributed", "torch.distributed.tensor.parallel", "maskc.distributed",
    "maskc.analysis.head_groups", "maskc.plan.choose", "maskc.emit.emitter",
    "tests.support.shared_cases",
    "transformers.models.auto.modeling_auto", "transformers.modeling_utils",
    "maskc.integrations.transformers", "tests.support.shared_models",
)  # fmt: skip
"""Modules that ranks need: to import them takes longer than most of them work. What is not
installed is left out."""


def run(
    job: Callable[..., Any], size: int, *args: Any, seconds: float = 600,
    dies: tuple[int, ...] = (), backend: str = "gloo",
) -> list[Any]:  # fmt: skip
    """Run `job(rank, size, *args)` in `size` processes with a group.

    Processes are forks of one that has imported `PRELOAD`, so that starting many is cheap.

    Args:
        seconds: after which the group gives up.
        dies: ranks that are expected to say nothing.
        backend: gloo, or nccl, where each rank has a card.

    Returns:
        What each rank returned; a rank that failed gives the text of its error, after "failed:".
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = context.Queue()
    settings = {
        name: os.environ[name] for name in ("MASKC_CACHE_DIR", "MASKC_CHECK") if name in os.environ
    }
    place = f"{job.__module__}:{job.__qualname__}"
    processes = [
        context.Process(
            target=_main, args=(place, rank, size, port, settings, queue, seconds, args, backend)
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found: list[Any] = [None] * size
    try:
        for _ in range(size - len(dies)):
            rank, result = queue.get(timeout=900)
            found[rank] = result
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()
                process.join()
    return found


def _main(
    place: str, rank: int, size: int, port: int, settings: dict[str, str], queue: Any,
    seconds: float, args: tuple[Any, ...], backend: str,
) -> None:  # fmt: skip
    os.environ.update(settings)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        import torch
        import torch.distributed as dist

        from maskc.build import hostcc
        from tests.support.thorough import soon

        hostcc.FLAGS = soon(hostcc.FLAGS)
        torch.set_num_threads(1)
        on_card = {}
        if backend == "nccl":
            torch.cuda.set_device(rank)
            on_card = {"device_id": torch.device("cuda", rank)}
        dist.init_process_group(
            backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
            timeout=timedelta(seconds=seconds), **on_card,
        )  # fmt: skip
        module, _, name = place.partition(":")
        result = getattr(importlib.import_module(module), name)(rank, size, *args)
        dist.destroy_process_group()
    except BaseException:
        result = "failed:" + traceback.format_exc()
    queue.put((rank, result))
