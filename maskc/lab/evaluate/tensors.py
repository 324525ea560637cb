"""q, k and v of attention layers: given, read from a file, or captured from a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from maskc.core.data import CuSeqlens, Parents
from maskc.core.errors import BadTensors, not_imported
from maskc.core.unreadable import UNREADABLE, reason
from maskc.dsl.combinators import causal
from maskc.dsl.mask import Mask
from maskc.dsl.score_tracer import Score
from maskc.ir.names import declared_names
from maskc.lab.evaluate.noted_attention import attention_of
from maskc.reference.scores import ScoreOf

Data = Mapping[str, object] | Callable[[np.ndarray], Mapping[str, object]]
"""Arrays and parameters by name: for every sequence, or from the tokens of each, int64 [N]."""


def data_of(data: Data | None, tokens: Any) -> Mapping[str, object]:
    """Return the data that masks read on a sequence of tokens, a tensor [N]."""
    if data is None or isinstance(data, Mapping):
        return data or {}
    return data(tokens.cpu().numpy())


def torch_module() -> Any:
    """PyTorch.

    Raises:
        ExtraMissing: it is not installed (MC507).
    """
    try:
        import torch
    except ImportError as error:
        raise not_imported(error, "maskc.evaluate", "torch", "evaluate") from error
    return torch


def placed(value: Any, device: Any) -> Any:
    """An array, also a marked one, on a device; numbers as they are."""
    torch = torch_module()
    if isinstance(value, (Parents, CuSeqlens)):
        return replace(value, array=placed(value.array, device))
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(device)
    return value.to(device) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class LayerTensors:
    """Inputs of one attention layer."""

    layer: int
    q: Any
    """Tensor [B, Hq, N, D], any float type."""
    k: Any
    """Tensor [B, Hkv, N, D]; Hkv divides Hq."""
    v: Any
    """Tensor [B, Hkv, N, Dv]."""
    scale: float
    base: Mask = field(default_factory=causal)
    """The mask of the layer without a pattern."""
    data: Mapping[str, object] = field(default_factory=dict)
    """Arrays that the base mask reads."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: Any = None
    """fp32 tensor [Hq]: a further logit of each head, whose key has no value; masks keep it."""
    score: Score | None = None
    """Scores that replace scale * q . k, such as scores with a position bias."""
    tables: Mapping[str, object] = field(default_factory=dict)
    """Inputs of the score formula."""

    def logits(self, scores: Any, b: int, first: int) -> Any:
        """Return the scores that softmax reads.

        Args:
            scores: fp32 [Hq, rows, N], scale * q . k of one sequence; b: which one.
            first: the query of the first row.

        Returns:
            A new tensor like `scores`; `scores` where softmax sees them as they are.
        """
        if self.softcap is not None:
            return (scores / self.softcap).tanh_().mul_(self.softcap)
        if self.score is None:
            return scores
        torch = torch_module()
        rows, n = scores.shape[1:]
        formula = ScoreOf(self.score.inputs, self.tables, n, n, len(scores), len(self.q))
        q, k = (x.reshape(-1) for x in np.indices((rows, n)))
        capped = torch.empty_like(scores)
        for head, head_scores in enumerate(scores):
            logits = formula(head_scores.double().cpu().numpy().reshape(-1), q + first, k, head, b)
            capped[head] = torch.from_numpy(logits.value.reshape(rows, n).copy())
        return capped


@dataclass(frozen=True)
class Tensors:
    """The layers of one model on the same sequences."""

    layers: tuple[LayerTensors, ...]
    source: str

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return int(self.layers[0].q.shape[0])

    @property
    def n(self) -> int:
        """Tokens of a sequence."""
        return int(self.layers[0].q.shape[2])


def tensors(
    q: object, k: object, v: object = None, *, base: Mask | None = None,
    scale: float | None = None, softcap: float | None = None, sink_logits: object = None,
    source: str = "tensors", device: object = None,
) -> Tensors:  # fmt: skip
    """Check q, k and v, and split them into layers.

    Args:
        q: [layers, B, Hq, N, D] or [B, Hq, N, D], torch, NumPy or anything that torch reads.
        k: as q, with Hkv heads; Hkv divides Hq.
        v: as k, with any last dimension. None uses k, and errors of outputs are then not
            meaningful.
        base: what every layer sees without a pattern; causal() when None.
        scale: factor of q . k; D^-1/2 when None.
        softcap: scores become softcap * tanh(score / softcap).
        sink_logits: [layers, Hq] or [Hq], one more logit per head in the denominator.
        source: the origin of the tensors, for reports.
        device: where to compute; where the tensors are when None.

    Returns:
        The tensors of all layers.

    Raises:
        BadTensors: shapes do not fit (MC730).
        ExtraMissing: PyTorch is not installed (MC507).
    """
    torch = torch_module()
    tensors_read = {}
    for name, given in (("q", q), ("k", k), ("v", k if v is None else v)):
        if given is None:
            raise BadTensors(source, f"{name} is missing", at=name)
        try:
            x = torch.as_tensor(given, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadTensors(
                source, f"{name} is no array of numbers: {reason(error)}", at=name
            ) from None
        if x.ndim == 4:
            x = x[None]
        if x.ndim != 5 or 0 in x.shape:
            raise BadTensors(source, f"{name} has shape {list(x.shape)}", at=name)
        if not x.is_floating_point():
            raise BadTensors(source, f"{name} holds {x.dtype}, which is not a float dtype", at=name)
        tensors_read[name] = x
    _check(source, *tensors_read.values())
    count, _, heads, _, dim = tensors_read["q"].shape
    sinks: Any = [None] * count
    if sink_logits is not None:
        given = torch.as_tensor(sink_logits, device=tensors_read["q"].device).float()
        if tuple(given.shape) not in ((heads,), (count, heads)):
            what = f"sink_logits has shape {list(given.shape)}, expected [{heads}]"
            raise BadTensors(source, f"{what} or [{count}, {heads}]", at="sink_logits")
        sinks = given.expand(count, heads)
    layers = tuple(
        LayerTensors(
            index, tensors_read["q"][index], tensors_read["k"][index], tensors_read["v"][index],
            dim**-0.5 if scale is None else scale, causal() if base is None else base,
            softcap=softcap, sinks=sinks[index],
        )
        for index in range(len(tensors_read["q"]))
    )  # fmt: skip
    return Tensors(layers, source)


def _check(source: str, q: Any, k: Any, v: Any) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    same = all(len({x.shape[axis] for x in (q, k, v)}) == 1 for axis in (0, 1, 3))
    if not same or k.shape[2] != v.shape[2] or q.shape[4] != k.shape[4]:
        raise BadTensors(source, f"shapes do not fit: {shapes}", at="q, k, v")
    if q.shape[2] % k.shape[2]:
        raise BadTensors(
            source, f"{k.shape[2]} key heads do not divide {q.shape[2]} query heads", at="k"
        )


def read_npz(path: str | Path, *, base: Mask | None = None, device: object = None) -> Tensors:
    """Read the tensors of a file with arrays q, k and, for outputs, v.

    Optional arrays are `scale` (default D^-1/2), `softcap` and `sink_logits`, see `tensors`.

    Args:
        path: an *.npz file as `numpy.savez` writes it. It is read without unpickling.
        base: what every layer sees without a pattern; causal() when None.
        device: where to compute; the CPU when None.

    Returns:
        The tensors of all layers.

    Raises:
        BadTensors: the file cannot be read, or arrays are missing or do not fit (MC730).
    """
    name = str(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key in _ARRAYS}
    except UNREADABLE as error:
        raise BadTensors(name, f"it cannot be read as *.npz: {reason(error)}", at=name) from None
    for key in ("q", "k"):
        if key not in arrays:
            raise BadTensors(name, f"it has no array {key}", at=name)
    scale, softcap = (_number(name, key, arrays.get(key)) for key in ("scale", "softcap"))
    q, k, v = (_readable(arrays.get(key)) for key in "qkv")
    return tensors(
        q, k, v, base=base, scale=scale, softcap=softcap, sink_logits=arrays.get("sink_logits"),
        source=name, device=device,
    )  # fmt: skip


_ARRAYS = ("q", "k", "v", "scale", "softcap", "sink_logits")


def _number(name: str, key: str, array: Any) -> float | None:
    """A file's number; None if it has none of this name.

    Raises:
        BadTensors: it is something else (MC730).
    """
    if array is None:
        return None
    if array.size != 1 or array.dtype.kind not in "fiu":
        what = f"{key} is {array.dtype} of shape {list(array.shape)}, expected one number"
        raise BadTensors(name, what, at=name)
    return float(array.item())


def _readable(array: Any) -> Any:
    """NumPy's float16 as it is; bfloat16 of ml_dtypes, which torch does not read, as float32."""
    if array is None or array.dtype in (np.float16, np.float32, np.float64):
        return array
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def capture(
    model: Any, input_ids: Any, layers: Sequence[int] | None = None, compute: Any = None
) -> Tensors:
    """Capture q, k and v of a transformers model as its attention function receives them.

    The tensors keep the model's rotary embeddings, scale, soft-cap, sink logits, position bias and
    the mask of each layer. Results on them therefore hold for the model's own attention.

    Args:
        model: any model that uses transformers' attention interface.
        input_ids: [B, N] tokens, without padding.
        layers: which layers to keep; all of them when None.
        compute: the attention function that runs the model; maskc when None.

    Returns:
        The tensors of the layers, by `LayerTensors`.

    Raises:
        ModelNotServed: the model has its own attention code (MC605).
        BadTensors: a layer did not call its attention, layers differ in their lengths, or a layer
            uses an option that cannot be captured (MC730).
        ExtraMissing: transformers is not installed (MC507).
    """
    torch = torch_module()
    wanted = None if layers is None else set(layers)
    captured: list[LayerTensors] = []
    name = type(model).__name__

    def note(number: int, q: Any, k: Any, v: Any, mask: Mask, options: Mapping[str, Any]) -> None:
        if wanted is None or number in wanted:
            captured.append(_layer(name, number, q, k, v, mask, **options))

    with attention_of(model, note, compute), torch.no_grad():
        model(input_ids=input_ids, use_cache=False)
    if not captured:
        asked = "none" if wanted is None else ", ".join(map(str, sorted(wanted)))
        raise BadTensors(name, f"no attention layer of {asked} ran", at="layers")
    for layer in captured:
        n_q, n_kv, n = layer.q.shape[2], layer.k.shape[2], captured[0].q.shape[2]
        if (n_q, n_kv) != (n, n):
            what = f"layer {layer.layer} has {n_q} queries and {n_kv} keys, and layer"
            what = f"{what} {captured[0].layer} has {n} queries: name layers that are alike"
            raise BadTensors(name, what, at="layers")
    return Tensors(tuple(captured), name)


def _layer(
    name: str, number: int, q: Any, k: Any, v: Any, mask: Mask, *, scale: float | None = None,
    softcap: float | None = None, sink_logits: Any = None, score: Score | None = None,
    dropout_p: float = 0.0, **data: Any,
) -> LayerTensors:  # fmt: skip
    """Return the tensors of one call of `maskc.attention`.

    Raises:
        BadTensors: the call has a keyword that changes its result and is not kept (MC730).
    """
    read = () if score is None else score.inputs.names
    data_read = {key: data.pop(key) for key in declared_names(mask) & data.keys()}
    tables = {key: data.pop(key) for key in read if key in data}
    other = [key for key, value in data.items() if value is not None]
    other += ["dropout_p"] * bool(dropout_p) + ["a score that hides pairs"] * (
        score is not None and score.mask is not None
    )
    if other:
        raise BadTensors(name, f"the attention of layer {number} takes {other[0]}", at="model")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    sinks = None if sink_logits is None else sink_logits.detach().float()
    return LayerTensors(number, q, k, v, scale, mask, data_read, softcap, sinks, score, tables)
