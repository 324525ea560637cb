"""Every architecture of transformers, tiny and random, on maskc and on eager attention.

    python -m tests.support.architectures sweep build/architectures.jsonl  # goes on where it was
    python -m tests.support.architectures table build/architectures.jsonl  # rewrites the page

The sweep knows no model by name. A configuration is its class's default with all sizes made small
by the names of its fields; inputs are what the forward pass names. Each line of the file is one
architecture: what ran, and how it compares.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import json
import os
import re
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

VOCAB, TOKENS, PADDED = 128, 24, 5
LARGEST = 30_000_000
"""Parameters of a model that is still tried."""
SECONDS = 30
"""The time of one architecture on a processor; most take one."""

RIGHT, PARTLY, REFUSED, NOTHING, WRONG, CRASHED, UNBUILT = (
    "right", "right in part", "refused", "no attention", "wrong", "crashed", "not built",
)  # fmt: skip
TOLERANCE = 1e-4
"""The largest difference, as a share of the largest output."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one architecture."""

    architecture: str
    """The model type."""
    model: str
    """Class of the model."""
    status: str
    detail: str = ""
    """An error's code and text, or why nothing ran."""
    error: float = 0.0
    """Largest difference to the judge, as a share of the largest output."""
    judge: str = "eager"
    calls: int = 0
    """Calls of maskc's attention in one forward pass."""
    masks: tuple[str, ...] = ()
    """The masks that layers ran, without padding."""
    ran: tuple[str, ...] = ()
    """Comparisons that ran: plain, padded, generate, gradients."""
    seconds: float = 0.0


# ------------------------------------------------------------------ configurations

Rule = tuple[str, Callable[[int], int]]


def _most(limit: int) -> Callable[[int], int]:
    return lambda value: min(value, limit) if value > 0 else value


def _power(value: int) -> int:
    """The largest power of two that is at most the value and 4."""
    return 4 if value >= 4 else 2 if value >= 2 else value


_RULES: tuple[Rule, ...] = (
    (r"vocab_size|vocab_sizes|num_embeddings$|^vocab_size_per_layer_input$", _most(VOCAB)),
    (r"max_source_positions", _most(TOKENS)),
    (r"(max.*position|n_positions|n_ctx|^max_seq|seq_length$|context_length|max_target|rel_extent)",
     _most(VOCAB)),
    (r"^first_k_dense_replace$|^num_nextn_predict_layers$|^topk_group$|^attn_layer_offset$",
     _most(1)),
    (r"^n_group$|^attn_layer_period$", _most(2)),
    (r"^num_kv_shared_layers$", lambda value: 0),
    (r"^depths$", _most(1)),
    (r"(^|_)layers?$|_layers_|^depth$|_depth$|^num_blocks$|^num_encoder_blocks$", _most(2)),
    (r"shared_experts?$", _most(1)),
    (r"experts_per_tok|top_?k$|^moe_k$|index_topk|experts_top_k", _most(2)),
    (r"experts$", _most(8)),
    (r"(key_value|kv)_heads$|multi_query_group_num|kv_n_heads", _most(2)),
    (r"heads$|^n_head$|_head$", _power),
    (r"rope_head_dim$|nope_head_dim$", _most(8)),
    (r"head_dim$|d_kv$|dim_head$|d_head$|head_size$|dim_per_head$|attention_dim$", _most(16)),
    (r"_rank$", _most(16)),
    (r"rotary_dim$", _most(8)),
    (r"^mrope_section$", _most(2)),
    (r"image_size|^img_size|input_image_size|pretrain_image_size", _most(32)),
    (r"patch_sizes?$|patch_stride", _most(8)),
    (r"sliding_window|local_attention|attention_chunk_size|^window_size$|local_window", _most(8)),
    (r"num_queries|num_query_tokens|num_denoising|resampler_num_latents|resampler_n_latents",
     _most(8)),
    (r"^num_frames$", _most(4)),
    (r"(hidden|intermediate|ffn|mlp|ff|inner|embed|embedding|embd|emb|model|proj|projection|output"
     r"|out|feature|forward|adapter|conv|input|bottleneck|latent|encoder|decoder|fusion|d)"
     r"_?(size|sizes|dim|dims|channels|size_global|hidden_size|size_per_layer_input|units)$",
     _most(64)),
    (r"^(d_model|d_ff|d_inner|dim|width|n_embd|n_inner|channels|projection_dim|conv_dim"
     r"|hidden_sizes|hidden_size_global|embed_dim|state_size|mlp_dim|lru_width|num_filters"
     r"|d_embed)$", _most(64)),
    (r"(_dim|_channels|_width|hidden_size.*|_sizes)$", _most(64)),
)  # fmt: skip
"""The first rule that finds a name says how large its value may be."""

_WORDS, _WIDTHS = _RULES[:1], _RULES[11:]
_PROFILES = (
    _RULES,
    tuple(rule for rule in _RULES if rule not in _WORDS),
    tuple(rule for rule in _RULES if rule not in _WIDTHS),
)
"""All rules; vocabularies as they are, for models with ranges of words; widths as they are."""


_MISSING: dict[str, Any] = {
    "vocab_size": VOCAB, "prediction_length": 4, "attn_layer_indices": [1], "head_dim": 16,
}  # fmt: skip
"""Settings that a configuration lacks."""


def _small(value: Any, rule: Callable[[int], int]) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return rule(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_small(part, rule) for part in value)
    return value


def tiny(cls: type, rules: tuple[Rule, ...] = _RULES) -> Any:
    """Return the small configuration of a class.

    Args:
        cls: of a configuration of transformers.
        rules: what makes it small.
    """
    default = cls()
    given: dict[str, Any] = {}
    ids = 100
    for field in fields(cls):  # type: ignore[arg-type]
        value = field.default
        if field.default_factory is not MISSING:
            value = field.default_factory()
        if value is MISSING or field.name in getattr(cls, "sub_configs", {}):
            continue
        if re.search(r"_token_ids?$|_token_index$|_token_idx$", field.name):
            if rules[0] not in _WORDS:
                continue
            if isinstance(value, int) and not isinstance(value, bool) and value >= 3:
                given[field.name], ids = ids, ids + 1
            elif isinstance(value, (list, tuple)) and any(isinstance(v, int) for v in value):
                given[field.name], ids = [ids], ids + 1
            continue
        if value is None and field.name in _MISSING:
            given[field.name] = _MISSING[field.name]
        rule = next((r for pattern, r in rules if re.search(pattern, field.name)), None)
        if rule is not None and (small := _small(value, rule)) != value:
            given[field.name] = small
    _few_layers(cls, default, given)
    for key in getattr(cls, "sub_configs", {}):
        part = _get(default, key)
        if part is not None and hasattr(part, "to_dict"):
            timm = type(part).__name__ == "TimmBackboneConfig"
            given[key] = _stages() if timm else tiny(type(part), rules)
    if _get(default, "kv_lora_rank") is not None and "num_key_value_heads" in given:
        given["num_key_value_heads"] = given.get("num_attention_heads", 4)
    return cls(**given)


def _stages() -> Any:
    """The configuration of a convolutional backbone, in the place of timm's."""
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1],
        layer_type="basic", out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip


def _get(config: Any, name: str) -> Any:
    """An attribute of a configuration; None also where each layer has its own."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def _few_layers(cls: type, default: Any, given: dict[str, Any]) -> None:
    """A layer of each type, and lists of layers that exist."""
    names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    count = given.get("num_hidden_layers", 2)
    types = _get(default, "layer_types")
    if "layer_types" in names and isinstance(types, (list, tuple)):
        different = list(dict.fromkeys(types))
        given["layer_types"] = different if len(different) > 1 else different * count
        count = len(given["layer_types"])
        if "num_hidden_layers" in names:
            given["num_hidden_layers"] = count
    mlp_types = _get(default, "mlp_layer_types")
    if "mlp_layer_types" in names and isinstance(mlp_types, (list, tuple)):
        given["mlp_layer_types"] = [*mlp_types[: count - 1], mlp_types[-1]][-count:]
    for name in names:
        if not re.search(r"(indexes|indices)$|_layer_ids?$", name):
            continue
        if isinstance(value := _get(default, name), (list, tuple)):
            numbers = [v for v in value if isinstance(v, int)]
            if numbers and max(numbers) >= count:
                given[name] = sorted({min(v, count - 1) for v in numbers})
    if "rope_parameters" in names and "mrope_section" in _source(cls):
        rope = _get(default, "rope_parameters") or {}
        head_dim = given.get("head_dim") or 64 // given.get("num_attention_heads", 4)
        size = int(head_dim * rope.get("partial_rotary_factor", 1.0)) // 2
        sections = [size - 2 * (size // 3), size // 3, size // 3]
        rope = {"rope_type": "default", "rope_theta": 1e4, **rope, "mrope_section": sections}
        given["rope_parameters"] = rope


def _source(cls: type) -> str:
    """The text of the models of a configuration."""
    import importlib

    name = cls.__module__.replace("configuration_", "modeling_")
    try:
        return inspect.getsource(importlib.import_module(name))
    except (ImportError, OSError):
        return ""


# ------------------------------------------------------------------ models


def architectures() -> list[str]:
    """Return the model types of the installed transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def model_class(architecture: str, config: Any) -> type | None:
    """Return the class of models that an architecture is tried with: that of the language model
    where there is one."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    mappings = [
        *([] if config.sub_configs else ["MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"]),
        "MODEL_MAPPING_NAMES",
        *(name for name in sorted(vars(auto)) if re.fullmatch("MODEL_.*_MAPPING_NAMES", name)),
    ]  # fmt: skip
    for name in mappings:
        found = getattr(auto, name).get(architecture)
        if isinstance(found, (list, tuple)):
            found = found[0]
        if found is not None and isinstance(kind := getattr(transformers, found, None), type):
            return kind
    module = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    if module is None:
        try:
            import importlib

            name = type(config).__module__.replace("configuration_", "modeling_")
            module = importlib.import_module(name)
        except ImportError:
            return None
    kinds = [
        kind for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        and kind.__module__ == module.__name__ and kind.config_class is type(config)
        and "forward" in vars(kind)
    ]  # fmt: skip
    return kinds[0] if kinds else None


def _build(kind: Any, config: Any, implementation: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return kind._from_config(deepcopy(config), attn_implementation=implementation).eval()


def _sharpen(model: Any) -> None:
    """Weights large enough that attention is not uniform; finite ones where a model leaves memory
    as it was."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point() or not weight.numel():
                continue
            if not bool(weight.isfinite().all()) or float(weight.abs().max()) > 1e3:
                weight.normal_(std=0.02)
            if weight.ndim > 1 and re.search(r"q_proj|k_proj|query|key|qkv|c_attn", name):
                weight.mul_(4)


# ------------------------------------------------------------------ inputs


def _ids(n: int = TOKENS) -> Any:
    import torch

    return torch.randint(3, 90, (2, n), generator=torch.Generator().manual_seed(1))


def _noise(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def _of(config: Any, names: tuple[str, ...], otherwise: Any) -> Any:
    for part in (config, *(getattr(config, key, None) for key in ("vision_config", "audio_config",
                 "backbone_config", "speech_config", "encoder_config"))):  # fmt: skip
        for name in names:
            value = getattr(part, name, None)
            if value is not None and not isinstance(value, str):
                return value
    return otherwise


def _image(config: Any) -> Any:
    size = _of(config, ("image_size", "img_size", "input_size"), 32)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = _of(config, ("num_channels", "in_channels", "in_chans", "num_input_channels"), 3)
    channels = channels if isinstance(channels, int) else 3
    return _noise(2, channels, int(height), int(width))


def _video(config: Any) -> Any:
    frames = _of(config, ("num_frames", "frames_per_clip"), 4)
    return _image(config)[:, None].repeat(1, int(frames), 1, 1, 1)


def _number(config: Any, names: tuple[str, ...], otherwise: int) -> int:
    """The first of some integers that a configuration has; of a list its first."""
    value = _of(config, names, otherwise)
    value = value[0] if isinstance(value, (list, tuple)) and value else value
    return value if isinstance(value, int) else otherwise


def _mel(config: Any) -> Any:
    bins = _number(config, ("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels",
                        "input_dim", "feature_projection_input_dim"), 80)  # fmt: skip
    return _noise(2, bins, 2 * TOKENS)


def _patches(config: Any, first: str, grid: str) -> dict[str, Any]:
    """Flat patches of two images of 4 x 4, as towers that pack images take them."""
    import torch

    patch, frames = (
        _number(config, ("patch_size",), 8),
        _number(config, ("temporal_patch_size",), 1),
    )
    channels = _number(config, ("in_channels", "num_channels", "in_chans"), 3)
    sizes = torch.tensor([[1, 4, 4], [1, 4, 4]])
    return {first: _noise(32, channels * frames * patch * patch), grid: sizes}


def _candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Inputs to try, the likeliest first."""
    import torch

    config, ids = model.config, _ids()
    names = inspect.signature(model.forward).parameters
    first = next(iter(names), "x")
    hidden = _number(config, ("hidden_size", "d_model", "embed_dim", "dim", "n_embd"), 64)
    width = _number(config, ("encoder_hidden_size", "cross_attention_dim"), hidden)
    mel, wave, embedded = _mel(config), _noise(2, 8000), _noise(2, TOKENS, hidden)
    length = _number(config, ("max_length", "spec_size"), 2 * TOKENS)
    context = _number(config, ("context_length",), 32)
    series = _noise(2, context)
    ones = torch.ones(2, context)
    more = {  # what inputs of every kind may need
        "attention_mask": torch.ones_like(ids) if "input_ids" in names else None,
        "bbox": torch.arange(8).repeat(2, TOKENS, 1)[..., :4].contiguous(),
        "decoder_input_ids": ids[:, :12],
        "encoder_hidden_states": _noise(2, 8, width),
        "input_features_mask": torch.ones(2, 2 * TOKENS, dtype=torch.long),
        "past_values_padding": torch.zeros(2, context, dtype=torch.long),
        "freq": torch.zeros(2, 1, dtype=torch.long), "past_observed_mask": ones,
        "past_time_features": _noise(2, context, 1), "future_time_features": _noise(2, 4, 1),
    }  # fmt: skip
    needed = {name: x for name, x in more.items() if name in names and x is not None}
    images = [{"pixel_values": _image(config)}, {"pixel_values": _video(config)}]
    text = {"input_ids": ids}
    features = mel, mel.mT.contiguous(), mel.mT[:, None].contiguous()
    long = _noise(2, length, mel.shape[1])
    waves = wave, wave[:, None].contiguous(), *features, long
    channels = _number(config, ("num_input_channels", "input_size"), 1)
    options: list[tuple[str, list[dict[str, Any]]]] = [
        ("input_ids", [text]),
        ("pixel_values", images),
        ("pixel_values", [text | image for image in images]),
        ("input_features", [{"input_features": x} for x in (*features, long[:, None])]),
        ("input_features", [text | {"input_features": x} for x in (*features, long[:, None])]),
        ("input_values", [{"input_values": x} for x in waves]),
        ("input_values", [text | {"input_values": x} for x in waves]),
        ("inputs_embeds", [{"inputs_embeds": embedded}]),
        ("pixel_values_videos", [{"pixel_values_videos": _video(config)}]),
        *((grid, [_patches(config, first, grid)]) for grid in ("grid_thw", "image_grid_thw")),
        ("past_values", [{"past_values": x} for x in (
            _noise(2, context, 1), _noise(2, context, channels), series, _noise(2, 64))]),
        ("hidden_states", [{"hidden_states": embedded}]),
    ]  # fmt: skip
    for name, tries in options:
        if name in names:
            yield from (needed | given for given in tries)
            if needed:
                yield from tries
    yield from ({first: x} for x in (embedded, mel))


def _output(result: Any) -> dict[str, Any]:
    """The floating-point tensors of an output, by name."""
    import torch

    if isinstance(result, torch.Tensor):
        return {"out": result}
    items = result.items() if hasattr(result, "items") else enumerate(result)
    kept: dict[str, Any] = {}
    for name, value in items:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            kept[str(name)] = value
    return kept


def _forward(model: Any, inputs: dict[str, Any], grad: bool = False) -> dict[str, Any]:
    import torch

    torch.manual_seed(3)
    with torch.set_grad_enabled(grad):
        return _output(model(**inputs))


# ------------------------------------------------------------------ one architecture


class _Late(BaseException):
    """An architecture took too long; no handler of errors stops it."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise _Late(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass
class _Tried:
    """A model that runs by itself, to be the judge."""

    kind: type
    config: Any
    model: Any
    judge: str
    inputs: dict[str, Any]
    output: dict[str, Any]


def _size(kind: Any, config: Any) -> int:
    import torch

    try:
        with torch.device("meta"):
            model = kind._from_config(deepcopy(config), attn_implementation="eager")
    except Exception:  # makes numbers while it is built
        return 0
    return sum(weight.numel() for weight in model.parameters())


def _try(architecture: str) -> _Tried | str:
    """A small model with inputs that run on eager attention; or why there is none."""
    reasons: list[str] = []
    for rules in _PROFILES:
        why = _try_rules(architecture, rules)
        if not isinstance(why, str):
            return why
        reasons.append(why)
    return reasons[0]


def _try_rules(architecture: str, rules: tuple[Rule, ...]) -> _Tried | str:
    """Try one architecture with a configuration that these rules make small."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = tiny(CONFIG_MAPPING[architecture], rules)
        kind = model_class(architecture, config)
        if kind is None:
            return "no class of models"
        if (size := _size(kind, config)) > LARGEST:
            return f"{size / 1e6:.0f} million parameters"
    except Exception as error:
        return _line(error)
    why: list[str] = []
    for judge in ("eager", "sdpa"):
        try:
            model = _build(kind, config, judge)
            _sharpen(model)
        except Exception as error:
            why.append(_line(error))
            continue
        for inputs in _candidates(model):
            try:
                output = _forward(model, inputs)
            except Exception as error:
                why.append(_line(error))
                continue
            if output and all(bool(x.isfinite().any()) for x in output.values()):
                return _Tried(kind, config, model, judge, inputs, output)
            why.append("the output has no finite numbers")
    return why[0]


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:200]


def _apart(
    ours: dict[str, Any], theirs: dict[str, Any], rows: Any = None, least: float = 1e-3
) -> float:
    """The largest difference, as a share of the largest output of its name.

    Args:
        ours, theirs: tensors by name.
        rows: bool [B, N], the tokens that count.
        least: the smallest output to take a share of.
    """
    worst = 0.0
    for name, right in theirs.items():
        found = ours.get(name)
        if found is None or found.shape != right.shape:
            return float("inf")
        if rows is not None:
            if right.ndim < 2 or right.shape[:2] != rows.shape:
                continue
            found, right = found[rows], right[rows]
        if not right.numel():
            continue
        finite = right.isfinite()
        if bool((found.isfinite() != finite).any()):
            return float("inf")
        found, right = found[finite], right[finite]
        if right.numel():
            scale = max(float(right.abs().max()), least)
            worst = max(worst, float((found - right).abs().max()) / scale)
    return worst


def examine(architecture: str, gradients: bool = False) -> Outcome:
    """Compare one architecture.

    Args:
        architecture: the model type.
        gradients: whether a backward pass is compared, too.
    """
    began = time.perf_counter()
    try:
        with _limited(SECONDS):
            found = _examine(architecture, gradients)
    except _Late as error:
        found = Outcome(architecture, "", UNBUILT, str(error))
    taken = round(time.perf_counter() - began, 1)
    return Outcome(**{**asdict(found), "seconds": taken})


def _examine(architecture: str, gradients: bool) -> Outcome:
    from maskc.integrations.transformers import register

    register()
    try:
        tried = _try(architecture)
    except Exception as error:
        tried = _line(error)
    if isinstance(tried, str):
        return Outcome(architecture, "", UNBUILT, tried)
    implementation: Any = "maskc"
    outcome = _compared(architecture, tried, gradients, implementation)
    without = _without_part(outcome)
    if without is not None:
        rest = _compared(architecture, tried, gradients, without)
        if rest.status in (RIGHT, WRONG, CRASHED):
            status = PARTLY if rest.status == RIGHT else rest.status
            detail = f"{rest.detail} {outcome.detail}".strip()
            outcome, implementation = replace(rest, status=status, detail=detail), without
    if outcome.status == WRONG and tried.judge == "eager" and tried.kind._supports_sdpa:
        model = _build(tried.kind, tried.config, "sdpa")
        model.load_state_dict(tried.model.state_dict())
        output = _forward(model, tried.inputs)
        sdpa = replace(tried, model=model, judge="sdpa", output=output)
        again = _compared(architecture, sdpa, gradients, implementation)
        if again.status == RIGHT:
            detail = f"as SDPA; eager attention differs from both: {outcome.detail}"
            return replace(again, detail=detail)
    return outcome


def _without_part(outcome: Outcome) -> Any:
    """The implementations that an error names, with a part on other attention; else None."""
    match = re.search(r"MC614.*attn_implementation=(\{.*\})", outcome.detail)
    return ast.literal_eval(match[1]) if match and outcome.status == REFUSED else None


def _compared(
    architecture: str, tried: _Tried, gradients: bool, implementation: Any
) -> Outcome:  # fmt: skip
    """Compare a model on an implementation with its judge."""
    from maskc.core.errors import MaskcError
    from maskc.integrations.transformers.attention import layers

    name, judge = tried.kind.__name__, tried.judge
    ran: list[str] = []
    worst, calls, masks = 0.0, 0, dict[str, None]()

    def outcome(status: str, detail: str = "") -> Outcome:
        return Outcome(architecture, name, status, detail, worst, judge, calls, tuple(masks),
                       tuple(ran))  # fmt: skip

    try:
        ours = _build(tried.kind, tried.config, implementation)
        ours.load_state_dict(tried.model.state_dict())
        for step, run in _steps(tried, gradients):
            with layers() as seen:
                apart = run(ours)
            if step == "plain":
                calls, masks = len(seen), dict.fromkeys(str(layer.mask) for layer in seen)
            ran.append(step)
            worst = max(worst, apart)
            if apart > TOLERANCE:
                return outcome(WRONG, f"{step}: {apart:.1e}")
    except MaskcError as error:
        return outcome(REFUSED, " ".join(str(error).split()))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return outcome(CRASHED, f"{_line(error)} ({Path(place.filename).name}:{place.lineno})")
    return outcome(RIGHT if calls else NOTHING)


def _steps(tried: _Tried, gradients: bool) -> Iterator[tuple[str, Callable[[Any], float]]]:
    """(name, comparison of a model with the judge) of all that can be compared."""
    import torch

    inputs = tried.inputs
    yield "plain", lambda ours: _apart(_forward(ours, inputs), tried.output)
    padded = _padded(tried)
    if padded is not None:
        rows = padded["attention_mask"].bool()
        theirs = _forward(tried.model, padded)
        yield "padded", lambda ours: _apart(_forward(ours, padded), theirs, rows)
    if hasattr(tried.model, "generate") and "input_ids" in inputs and padded is not None:
        options = {"max_new_tokens": 4, "do_sample": False}
        given = {name: padded[name] for name in ("input_ids", "attention_mask")}
        try:
            tokens = tried.model.generate(**given, **options)
        except Exception:
            tokens = None
        if isinstance(tokens, torch.Tensor):

            def generate(ours: Any) -> float:
                found = ours.generate(**given, **options)
                return 0.0 if torch.equal(found, tokens) else float("inf")

            yield "generate", generate
    if gradients:
        right = _gradients(tried.model, inputs)
        # Some vanish up to rounding, such as gradients of key biases.
        least = 1e-2 * max((float(x.abs().max()) for x in right.values()), default=0.1)
        yield "gradients", lambda ours: _apart(_gradients(ours, inputs), right, least=least)


def _padded(tried: _Tried) -> dict[str, Any] | None:
    """The inputs with padding, on the left where a model generates; None where nothing runs."""
    mask = tried.inputs.get("attention_mask")
    if mask is None:
        return None
    mask = mask.clone()
    left = hasattr(tried.model, "generate") and not tried.model.config.is_encoder_decoder
    mask[0, slice(0, PADDED) if left else slice(TOKENS - PADDED, None)] = 0
    padded = {**tried.inputs, "attention_mask": mask}
    try:
        _forward(tried.model, padded)
    except Exception:
        return None
    return padded


def _gradients(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    model.zero_grad()
    output = _forward(model, inputs, grad=True)
    kept = [x for x in output.values() if x.requires_grad]
    if kept:
        sum((x * _noise(*x.shape)).sum() for x in kept).backward()
    return {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }


# ------------------------------------------------------------------ the command


def _read(path: Path) -> dict[str, Outcome]:
    outcomes = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            values |= {name: tuple(values[name]) for name in ("masks", "ran")}
            outcomes[values["architecture"]] = Outcome(**values)
    return outcomes


def sweep(path: Path, only: list[str], again: list[str]) -> None:
    """Examine every architecture that the file does not have yet, and add a line for each."""
    import random

    known = _read(path)
    chosen = only or architectures()
    chosen = [name for name in chosen if name not in known or known[name].status in again]
    chosen.sort(key=lambda name: name in known)
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(chosen):
        begun = path.with_suffix(".begun")
        if begun.exists() and begun.read_text() == name:  # the process died in it
            outcome = Outcome(name, "", CRASHED, "the process ended")
        else:
            begun.write_text(name)
            outcome = examine(name, gradients=random.Random(name).random() < 0.2)
        begun.unlink(missing_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        print(f"{number + 1}/{len(chosen)} {name}: {outcome.status} {outcome.detail}", flush=True)
        gc.collect()


PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
_MEANING = {
    RIGHT: "equals the reference",
    PARTLY: "equals it, with one part on eager attention",
    NOTHING: "never requests an implementation; correct",
    REFUSED: "raises an error that names the model and the reason",
    WRONG: "differs",
    CRASHED: "ends in another error",
    UNBUILT: "no small model of it ran on eager attention",
}
_REASONS = (
    (r"MC605", "has its own attention code"),
    (r"MC614.*attn_implementation=(\{.*\})", "a part has its own attention code: `{}`"),
    (r"MC606.* with ([\w ]+), which", "passes `{}` to its attention"),
    (r"MC607.* takes (.*) of its attention mask", "computes with its mask: {}"),
    (r"MC609.* calls its attention with (.*?) hint", "{}"),
)


def _reason(outcome: Outcome) -> str:
    for pattern, text in _REASONS:
        if found := re.search(pattern, outcome.detail):
            code = outcome.detail[outcome.detail.index("MC") :][:5]
            return f"`{code}` " + text.format(*found.groups())
    detail = re.sub(r"\S*/site-packages/", "", outcome.detail)  # no path of one machine
    return detail.replace("|", "\\|").replace("<", "\\<")[:110]


def table(path: Path) -> None:
    """Write the page of the architectures from a file of outcomes."""
    import transformers

    outcomes = sorted(_read(path).values(), key=lambda outcome: outcome.architecture)
    counts = {status: sum(o.status == status for o in outcomes) for status in _MEANING}
    asked = len(architectures())
    steps = {step: sum(step in o.ran for o in outcomes if o.status == RIGHT) for step in (
        "plain", "padded", "generate", "gradients")}  # fmt: skip
    ran = (
        f"Of the correct model types, {steps['plain']} were compared without padding, "
        f"{steps['padded']} with padding, {steps['generate']} also in `generate`, and a sample of "
        f"{steps['gradients']} in the gradients of all weights."
    )
    installed = (
        f"transformers {transformers.__version__}: {len(outcomes)} of its {asked} model types were "
        "tried, including parts of models."
    )
    sdpa = [o.architecture for o in outcomes if o.status == RIGHT and o.judge == "sdpa"]
    nothing = [o.architecture for o in outcomes if o.status == NOTHING]
    rows = [o for o in outcomes if o.status not in (RIGHT, NOTHING)]
    blocks = [
        "# Architectures of transformers",
        _filled(_HOW),
        _filled(installed),
        "\n".join([
            "| outcome | model types | meaning |",
            "|---|---:|---|",
            *(f"| {s} | {counts[s]} | {meaning} |" for s, meaning in _MEANING.items()),
        ]),
        _filled(ran),
        "## Other outcomes",
        "\n".join([
            "| model type | outcome | why |",
            "|---|---|---|",
            *(f"| {o.architecture} | {o.status} | {_reason(o)} |" for o in rows),
        ]),
        _filled(
            "These model types never request an attention implementation: "
            + ", ".join(nothing) + "."
        ),
        _filled("SDPA is the reference for: " + ", ".join(sdpa) + "."),
    ]  # fmt: skip
    PAGE.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


_HOW = (
    "Find out whether your model type runs on maskc. Each model is tiny and random, with default "
    "settings. Its output is compared with eager attention on a CPU in fp32. The reference is "
    "SDPA if the model has no eager attention, or if eager attention and SDPA differ. "
    f"A difference above {TOLERANCE:g} of the largest output counts as wrong. "
    "`python -m tests.support.architectures` writes this page: `sweep FILE` "
    "tries every architecture and resumes after an interruption; "
    "`table FILE` writes the page."
)


def _filled(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False))


def main() -> None:
    import logging
    import warnings

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("sweep", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="model types; all by default")
    parser.add_argument("--again", nargs="*", default=[], help="statuses that are tried anew")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch and kernels are loaded
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.what == "sweep":
        sweep(args.file, args.only, args.again)
    else:
        table(args.file)


if __name__ == "__main__":
    main()
