"""What travels through a model in place of an attention mask."""

from __future__ import annotations

from functools import cache
from typing import Any

from maskc.core.errors import MaskNotATensor, ModelNotServed, PartNotServed
from maskc.integrations.transformers.masks import Found, Place, mask_in_graph, mask_of


def make_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
    mask_function: Any = None, attention_mask: Any = None, config: Any = None, device: Any = None,
    **_: Any,
) -> Any:  # fmt: skip
    """The mask of all layers of one type, as `AttentionMaskInterface` asks for it.

    Args:
        batch_size: sequences.
        q_length: queries; kv_length: keys.
        q_offset: position of the first query, an integer or a tensor without dimensions, which is
            read: on a GPU that waits once per forward pass with a static cache.
        kv_offset: position of the first key.
        mask_function: which query sees which key, in absolute positions; None is causal.
        attention_mask: bool [B, tokens], False where a token is padding; or None.
        config: of the model.
        device: of the model.

    Returns:
        A `BlockMask` in name, which holds a Mask and its data and refuses to be used as a tensor.

    Raises:
        ModelNotServed: the model never calls the attention function (MC605).
        NotTraceable: the function cannot be followed exactly (MC107).
    """
    import torch
    from transformers.masking_utils import causal_mask_function

    mask_function = mask_function or causal_mask_function
    given = batch_size, q_length, kv_length, q_offset, kv_offset
    if not torch.compiler.is_compiling():
        return _LATE.eager(given, mask_function, attention_mask, config)
    found = None
    if not isinstance(q_offset, torch.Tensor) and not isinstance(kv_offset, torch.Tensor):
        place = Place(q_length, kv_length, q_offset, kv_offset)
        found = mask_in_graph(mask_function, attention_mask, place)
    if found is None:
        return _LATE.eager(given, mask_function, attention_mask, config)
    return _carrier()(found, place, batch_size, _owner(config), attention_mask)


def _eager(given: tuple[Any, ...], mask_function: Any, attention_mask: Any, config: Any) -> Any:
    batch_size, q_length, kv_length, q_offset, kv_offset = given
    if config is not None:
        check_served(type(config))
    place = Place(q_length, kv_length, int(q_offset), int(kv_offset))
    found = mask_of(mask_function, attention_mask, place)
    return _carrier()(found, place, batch_size, _owner(config), attention_mask)


class _Late:
    """What `prepare` makes once torch is there."""

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
    """Refuse the models of a configuration class if they compute attention by themselves.

    Raises:
        ModelNotServed: their module never asks for an attention function (MC605).
    """
    if (why := _why_not(config)) is not None:
        raise not_served(config.__name__.removesuffix("Config"), why, config)


@cache
def _why_not(config: type) -> str | None:
    import sys

    module = sys.modules.get(config.__module__.replace("configuration_", "modeling_"))
    if module is None or not config.__module__.startswith("transformers.models."):
        return None
    from transformers import PreTrainedModel

    kinds = [
        kind for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel)
        and kind.__module__ == module.__name__
    ]  # fmt: skip
    return None if all(map(can_be_set, kinds)) else NEVER_ASKS


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


_KEYS: dict[type, str] = {}
"""The key of a configuration in the one it is part of."""


def note_parts(config: Any) -> None:
    """Remember under which keys a configuration holds others, for hints."""
    for key in getattr(config, "sub_configs", ()):
        _KEYS[type(getattr(config, key, None))] = key


def _refused_class(config: Any, *_: Any, **__: Any) -> Any:
    """Stands for the class of a layer.

    Raises:
        ModelNotServed, PartNotServed.
    """
    kind = type(config)
    raise not_served(kind.__name__.removesuffix("Config"), BY_NAME, kind)


BY_NAME = "it has an attention class for each implementation it knows, and none that calls maskc"


def not_served(name: str, why: str, config: type) -> ModelNotServed:
    """Return the error of a model; of a part, the key under which another one holds it is known."""
    key = _KEYS.get(config)
    return PartNotServed(name, why, key) if key else ModelNotServed(name, why)


def _carrier() -> Any:
    """As `carrier`."""
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

        def __init__(
            self, found: Found, place: Place, batch: int, owner: str, padding: Any
        ) -> None:
            self.found, self.place, self.batch, self.owner = found, place, batch, owner
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

    operators = (
        "getitem", "setitem", "len", "iter", "bool", "invert", "neg", "abs", "add", "radd", "sub",
        "rsub", "mul", "rmul", "truediv", "rtruediv", "and", "rand", "or", "ror", "lt", "le", "gt",
        "ge",
    )  # fmt: skip
    for name in operators:
        shown = "elements ([...])" if name == "getitem" else f"the operator __{name}__"
        setattr(CarriedMask, f"__{name}__", refused(shown))
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
        mine = next(x for x in (*args, *(named or {}).values()) if isinstance(x, cls))
        raise MaskNotATensor(mine.owner, f"torch.{getattr(function, '__name__', function)}")

    setattr(CarriedMask, "__torch_function__", torch_function)  # noqa: B010
    return CarriedMask
