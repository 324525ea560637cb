"""Objects that travel through a model in place of an attention mask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from maskc.core.errors import MaskNotATensor, ModelMask, ModelNotServed, PartNotServed
from maskc.integrations.transformers.masks import Found, LayerPlace, mask_in_graph, mask_of


def make_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
    mask_function: Any = None, attention_mask: Any = None, config: Any = None, device: Any = None,
    use_vmap: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Return the mask of all layers of one type, with the signature of `AttentionMaskInterface`.

    Args:
        batch_size: sequences.
        q_length: queries; kv_length: keys.
        q_offset: position of the first query, an integer or a 0-D tensor. Reading it on a GPU
            synchronizes once per forward pass with a static cache.
        kv_offset: position of the first key.
        mask_function: which query sees which key, in absolute positions; None is causal.
        attention_mask: bool [B, tokens], False where a token is padding; or None.
        config: of the model.
        device: of the model.
        use_vmap: how transformers' own function would evaluate the mask function.

    Returns:
        A `BlockMask` in name, which holds a Mask and its data and refuses to be used as a tensor.
        Models that treat a BlockMask in another way than a tensor get SDPA's booleans.

    Raises:
        ModelNotServed: the model never calls the attention function (MC605).
        ModelMask: the attention mask is shorter than the tokens up to now (MC609).
        NotTraceable: the function cannot be followed exactly (MC107).
    """
    import torch
    from transformers.masking_utils import causal_mask_function

    mask_function = mask_function or causal_mask_function
    given = batch_size, q_length, kv_length, q_offset, kv_offset
    how = {"device": device, "use_vmap": use_vmap}
    if not torch.compiler.is_compiling():
        return _LATE.eager(given, mask_function, attention_mask, config, how)
    mask = None
    if not isinstance(q_offset, torch.Tensor) and not isinstance(kv_offset, torch.Tensor):
        place = LayerPlace(q_length, kv_length, q_offset, kv_offset)
        if not _is_short(attention_mask, place):
            mask = mask_in_graph(mask_function, attention_mask, place)
    if mask is None:
        return _LATE.eager(given, mask_function, attention_mask, config, how)
    return _carrier()(mask, place, batch_size, _owner(config), attention_mask)


def _eager(
    given: tuple[Any, ...], mask_function: Any, attention_mask: Any, config: Any,
    how: dict[str, Any],
) -> Any:  # fmt: skip
    batch_size, q_length, kv_length, q_offset, kv_offset = given
    kind: Any = type(config)
    if config is not None:
        check_served(kind)
    place = LayerPlace(q_length, kv_length, int(q_offset), int(kv_offset))
    if _is_short(attention_mask, place):
        tokens, before = place.q_offset + q_length, place.q_offset
        short = f"an attention_mask for {attention_mask.shape[-1]} tokens"
        what = f"{short} where there are {tokens}, {before} of them in the cache"
        raise ModelMask(_owner(config), what, _SHORT)
    mask = mask_of(mask_function, attention_mask, place)
    carried = _carrier()(mask, place, batch_size, _owner(config), attention_mask)
    if config is not None and _takes_booleans(kind):
        carried.booleans = cache(lambda: _booleans(given, mask_function, attention_mask, how))
        if _asks_for_type(kind):
            return carried.booleans()
    return carried


def _is_short(padding: Any, place: LayerPlace) -> bool:
    """Whether a padding mask [B, tokens] lacks entries for the newest tokens.

    transformers takes those for padding, so that they see nothing, not even themselves.
    """
    if padding is None:
        return False
    tokens = min(place.q_offset + place.n_q, place.kv_offset + place.n_kv)
    return bool(padding.shape[-1] < tokens)


_SHORT = (
    "pass an attention_mask for the tokens in the cache and the new ones; where another library "
    "makes it, such as PEFT: generate with use_cache=False"
)


def _booleans(
    given: tuple[Any, ...], mask_function: Any, attention_mask: Any, how: dict[str, Any]
) -> Any:
    """The mask as SDPA takes it: booleans [sequences, 1, queries, keys]."""
    from transformers import masking_utils

    made: Any = masking_utils.sdpa_mask
    return made(*given, mask_function, attention_mask, allow_is_causal_skip=False, **how)


class _Late:
    """Objects that `prepare` makes once torch is loaded."""

    eager: Any = staticmethod(_eager)
    """Calls as `_eager` does, and no compiler follows: a graph breaks there, and nothing in it is
    compiled."""


_LATE = _Late()


def prepare() -> None:
    """Make what masks need later, outside of any graph."""
    import torch

    carrier()
    _LATE.eager = torch.compiler.disable(_eager)


def _owner(config: Any) -> str:
    return getattr(config, "model_type", "") or type(config).__name__


def check_served(config: type) -> None:
    """Raise an error if the models of a configuration class compute attention themselves.

    Raises:
        ModelNotServed: their module never uses an attention function (MC605).
    """
    if (why := _why_not(config)) is not None:
        raise not_served(config.__name__.removesuffix("Config"), why, config)


def modeling(config: type) -> Any:
    """Return the module of the models of a configuration class, if it is transformers' own."""
    import sys

    if not config.__module__.startswith("transformers.models."):
        return None
    return sys.modules.get(config.__module__.replace("configuration_", "modeling_"))


@cache
def _asks_for_type(config: type) -> bool:
    """Whether models of a configuration class treat a BlockMask in another way than a tensor.

    Doge leaves a BlockMask out of the bias that it computes, and would lose what ours says.
    """
    import inspect

    module = modeling(config)
    return module is not None and ", BlockMask)" in inspect.getsource(module)


@cache
def _takes_booleans(config: type) -> bool:
    """Whether models of a configuration class are transformers' own and run on SDPA: then their
    code copes with masks that are tensors of booleans, which eager attention's numbers are not."""
    kinds = [] if (module := modeling(config)) is None else _kinds(module)
    of_config = [kind for kind in kinds if kind.config_class is config] or kinds
    return bool(of_config) and all(kind._supports_sdpa for kind in of_config)


@cache
def _why_not(config: type) -> str | None:
    module = modeling(config)
    return None if module is None or all(map(can_be_set, _kinds(module))) else NEVER_ASKS


def _kinds(module: Any) -> list[Any]:
    """The classes of models that a module defines."""
    from transformers import PreTrainedModel

    return [
        kind for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel)
        and kind.__module__ == module.__name__
    ]  # fmt: skip


@cache
def reads_is_causal(layer: type) -> bool:
    """Whether anything but maskc reads `is_causal` of a class of attention layers.

    Eager attention takes a missing mask for full attention, whatever the layer says. SDPA does not,
    so models that SDPA never ran say things that were never tried: BridgeTower's image layers.
    """
    import sys

    module = sys.modules.get(layer.__module__)
    if module is None or not layer.__module__.startswith("transformers.models."):
        return True
    kinds = _kinds(module)
    return not kinds or any(kind._supports_sdpa for kind in kinds)


NEVER_ASKS = "it computes attention by itself and never calls transformers' attention interface"


def can_be_set(kind: Any) -> bool:
    """Whether a class of models takes the attention function that its configuration names."""
    ask = getattr(kind, "_can_set_attn_implementation", None)
    return True if ask is None else bool(ask())


@cache
def refuse_by_name(kind: type, implementation: str) -> None:
    """Let tables of attention classes refuse an implementation in our words.

    Some modules look the class of a layer up by the implementation's name, where an unknown name
    is a KeyError.

    Args:
        kind: a class of models; all tables of its module get an entry.
        implementation: the name.
    """
    import sys

    for table in vars(sys.modules[kind.__module__]).values():
        if isinstance(table, dict) and "eager" in table and isinstance(table["eager"], type):
            table.setdefault(implementation, _refused_class)


_WITHOUT: dict[type, dict[str, Any]] = {}
"""Settings that run the last model without one part, by the part's configuration class."""


def note_parts(config: Any) -> None:
    """Record the parts of a model for hints; keeps the known whole of a part."""
    if type(config) not in _WITHOUT:
        _WITHOUT.clear()
        _WITHOUT.update(_without_each(config))


def _without_each(config: Any) -> dict[type, dict[str, Any]]:
    """Return, for each part of a configuration, settings that run only this part eagerly."""
    keys = [key for key in getattr(config, "sub_configs", ()) if getattr(config, key, None)]
    attributes: dict[type, dict[str, Any]] = {}
    for key in keys:
        part = getattr(config, key)
        others = {"": "maskc", **dict.fromkeys(keys, "maskc")}
        attributes[type(part)] = others | {key: "eager"}
        for kind, inside in _without_each(part).items():
            attributes.setdefault(kind, others | {key: inside})
    return attributes


def _refused_class(config: Any, *_: Any, **__: Any) -> Any:
    """Stands for the class of a layer.

    Raises:
        ModelNotServed, PartNotServed.
    """
    kind = type(config)
    raise not_served(kind.__name__.removesuffix("Config"), BY_NAME, kind)


BY_NAME = "it has an attention class for each implementation it knows, and none that calls maskc"


def not_served(name: str, why: str, config: type) -> ModelNotServed:
    """Return the error of a model, or of a part of one, with what lets the rest run."""
    without = _WITHOUT.get(config)
    return PartNotServed(name, why, str(without)) if without else ModelNotServed(name, why)


_OF_BOOLEANS = frozenset({
    "cat", "where", "logical_and", "logical_or", "logical_not", "masked_fill",
})  # fmt: skip
"""Functions of torch that compute with booleans or keep them as they are."""


def _attribute(carried: Any, name: str) -> Any:
    return getattr(carried._tensor(f".{name}"), name)


def _plain(value: Any, shown: str) -> Any:
    """Return arguments with booleans in place of carried masks."""
    if isinstance(value, dict):
        return {name: _plain(part, shown) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(part, shown) for part in value)
    return value._tensor(shown) if getattr(value, "carries_a_mask", False) else value


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested arguments."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _carrier() -> Any:
    """The cached part of `carrier`."""
    return carrier()


# What torch.compiler.assume_constant_result sets, without importing torch here.
setattr(_carrier, "_dynamo_marked_constant", True)  # noqa: B010


@cache
def carrier() -> Any:
    """The class of what models carry; made on first use, as torch is."""
    from torch.nn.attention.flex_attention import BlockMask

    class CarriedMask(BlockMask):
        """A Mask and its data. transformers lets a BlockMask with four dimensions through."""

        carries_a_mask = True
        booleans: Any = None
        """Makes the mask as SDPA takes it; None in graphs and where models may not cope with it."""

        def __init__(
            self, recognised: Found, place: LayerPlace, batch: int, owner: str, padding: Any
        ) -> None:
            self.found, self.place, self.batch, self.owner = recognised, place, batch, owner
            self.padding = padding
            self.checked_positions: Any = None

        @property
        def shape(self) -> tuple[int, int, int, int]:
            """(sequences, 1, queries, keys)."""
            return self.batch, 1, self.place.n_q, self.place.n_kv

        @property
        def ndim(self) -> int:
            """Four, as transformers expects of a mask that is ready."""
            return 4

        def dim(self) -> int:
            """The number of dimensions, as torch spells it."""
            return 4

        def to(self, *_: Any, **__: Any) -> Any:
            """The mask itself: data are moved when they are read."""
            return self

        def _tensor(self, shown: str) -> Any:
            if self.booleans is None:
                raise MaskNotATensor(self.owner, shown)
            return self.booleans()

        def __repr__(self) -> str:
            return f"<mask {self.found.mask} of {self.owner}>"

        __str__ = __repr__

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise MaskNotATensor(self.owner, f".{name}")

    def refused(name: str) -> Any:
        def method(self: Any, *_: Any, **__: Any) -> Any:
            raise MaskNotATensor(self.owner, name)

        return method

    def of_booleans(name: str, shown: str) -> Any:
        def method(self: Any, *args: Any) -> Any:
            return getattr(self._tensor(shown), name)(*args)

        return method

    for name in ("getitem", "invert", "and", "rand", "or", "ror"):
        shown = "elements ([...])" if name == "getitem" else f"the operator __{name}__"
        setattr(CarriedMask, f"__{name}__", of_booleans(f"__{name}__", shown))
    operators = (
        "setitem", "len", "iter", "bool", "neg", "abs", "add", "radd", "sub", "rsub", "mul", "rmul",
        "truediv", "rtruediv", "lt", "le", "gt", "ge",
    )  # fmt: skip
    for name in operators:
        setattr(CarriedMask, f"__{name}__", refused(f"the operator __{name}__"))
    for name in ("dtype", "device"):
        setattr(CarriedMask, name, property(partial(_attribute, name=name)))
    kept = {*vars(CarriedMask)}
    for name in vars(BlockMask):
        if name not in kept and not name.startswith("__"):
            shown = f".{name}"
            is_method = callable(getattr(BlockMask, name))
            setattr(CarriedMask, name, refused(shown) if is_method else property(refused(shown)))

    @classmethod  # type: ignore[misc]
    def torch_function(
        cls: Any, function: Any, types: Any, args: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        name = getattr(function, "__name__", str(function))
        if name in _OF_BOOLEANS:
            return function(*_plain(args, f"torch.{name}"), **_plain(named or {}, f"torch.{name}"))
        mine = next(x for x in _leaves((args, named or {})) if isinstance(x, cls))
        raise MaskNotATensor(mine.owner, f"torch.{name}")

    setattr(CarriedMask, "__torch_function__", torch_function)  # noqa: B010
    return CarriedMask
