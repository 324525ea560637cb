"""Where numbers come from: versions, the machine, the model."""

from __future__ import annotations

from typing import Any

from maskc.core.dtypes import dtype_name
from maskc.lab.evaluate.evaluating import Inputs
from maskc.lab.evaluate.tensors import Tensors, torch_module


def best_device() -> str:
    """ "cuda" where torch sees a GPU, else "cpu"."""
    return "cuda" if torch_module().cuda.is_available() else "cpu"


def environment(inputs: Inputs | Tensors) -> dict[str, object]:
    """Versions and the device, as names and values."""
    from importlib.metadata import PackageNotFoundError, version

    from maskc import __version__

    torch = torch_module()
    about: dict[str, Any] = {"maskc": __version__, "torch": torch.__version__}
    for package in ("transformers", "numpy"):
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    if isinstance(inputs, Inputs):
        parameter = next(inputs.model.parameters())
        device, about["dtype"] = parameter.device, dtype_name(parameter)
    else:
        device = inputs.layers[0].q.device
    about["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return about
