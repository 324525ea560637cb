"""Results of an evaluation: frozen values, which reports show and JSON keeps."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from math import isfinite
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from maskc.core.errors import BadEvaluation

T = TypeVar("T")


class Result:
    """Base of all results: JSON with the names of the fields, and back."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Numbers, texts, lists and dicts only; what is not a finite number is None."""
        plain: dict[str, Any] = _plain(asdict(self))  # type: ignore[call-overload]
        return plain

    def to_json(self, indent: int | None = 2) -> str:
        """The result as a JSON text that `from_json` reads."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls: type[T], fields: dict[str, Any]) -> T:
        """The result that `to_dict` was asked of.

        Raises:
            BadEvaluation: a field is missing, or of another type (MC750).
        """
        read: T = _read(cls, fields, "")
        return read

    @classmethod
    def from_json(cls: type[T], text: str) -> T:
        """The result that `to_json` was asked of.

        Raises:
            BadEvaluation: it is not JSON, or a field is missing or of another type (MC750).
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadEvaluation("the text", f"it is not JSON: {error}") from None
        read: T = _read(cls, value, "")
        return read


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def _read(kind: Any, value: Any, place: str) -> Any:
    """A value of JSON as the type that a field is annotated with.

    Args:
        place: where it is in the JSON, for errors.

    Raises:
        BadEvaluation: it is of another type.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if is_dataclass(kind):
        return _read_object(kind, value, place)
    if get_origin(kind) is tuple:
        inner, many = get_args(kind), isinstance(value, list)
        if many and inner[1:] == (...,):
            inner = (inner[0],) * len(value)
        if not many or len(value) != len(inner):
            wanted = "a list" if inner[1:] == (...,) else f"a list of {len(inner)}"
            raise _wrong(place, value, wanted)
        pairs = enumerate(zip(inner, value, strict=True))
        return tuple(_read(item_kind, item, f"{place}[{i}]") for i, (item_kind, item) in pairs)
    if kind is float and value is None:
        return float("nan")
    taken = (int, float) if kind is float else kind
    if not isinstance(value, taken) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(place, value, _JSON[kind])
    return float(value) if kind is float else value


def _read_object(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(place, value, "an object")
    hints, values = get_type_hints(kind), {}
    for member in fields(kind):
        where = f"{place}.{member.name}" if place else member.name
        if member.name in value:
            values[member.name] = _read(hints[member.name], value[member.name], where)
        elif member.default is MISSING and member.default_factory is MISSING:
            raise BadEvaluation("the text", f"{where} is missing")
    return kind(**values)


_JSON = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _wrong(place: str, value: Any, wanted: str) -> BadEvaluation:
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return BadEvaluation("the text", f"{place or 'all of it'} is {shown}, expected {wanted}")


@dataclass(frozen=True, slots=True)
class Interval(Result):
    """A number and the interval that holds it with some confidence."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


# ------------------------------------------------------------------ layer 1


@dataclass(frozen=True, slots=True)
class LayerLoss(Result):
    """Losses of the heads of one attention layer; each tuple has one number per query head."""

    layer: int
    retained: tuple[float, ...]
    """Mean over queries of the dense attention probability on kept keys, 0 to 1; the probability of
    a sink logit counts as kept."""
    output_error: tuple[float, ...]
    """Mean over queries of |o_sparse - o_dense| / |o_dense|."""
    cosine: tuple[float, ...]
    """Mean over queries of the cosine of the two outputs."""
    kl: tuple[float, ...]
    """Mean of KL(sparse || dense) in nats, which is -log(retained), over queries with a key."""


@dataclass(frozen=True, slots=True)
class InformationLoss(Result):
    """The part of dense attention that a mask loses, on given q, k and v.

    Nothing is trained or estimated. Intervals resample sequences, and blocks of 64 queries within
    them.
    """

    layers: tuple[LayerLoss, ...]
    retained: Interval
    """Mean over queries, heads and layers of the retained probability."""
    output_error: Interval
    """Mean of the relative L2 error of the outputs."""
    cosine: Interval
    kl: float
    """Mean KL(sparse || dense) in nats over queries with a key."""
    floor: float
    """Expected retention of as many keys in each row, drawn at random."""
    ceiling: float
    """Largest possible retention of as many keys in each row: the ones with the highest
    probabilities."""
    bound_used: float
    """Largest |o_sparse - o_dense| / (2 (1 - retained) max |v|): never above 1 but by rounding."""
    rows: int
    """Queries that were looked at, times heads and layers."""
    empty_rows: int
    """Rows without a kept key: they retain 0, their output is 0 and they have no KL."""


# ------------------------------------------------------------------ layer 2


@dataclass(frozen=True, slots=True)
class Perplexity(Result):
    """Perplexity of a language model with and without the mask, on the same tokens, untrained."""

    tokens: int
    documents: int
    perplexity: float
    dense: float
    """Perplexity without the mask."""
    difference: Interval
    """Mean over tokens of the loss with the mask minus that without, in nats."""
    ratio: Interval
    """perplexity / dense."""
    p_value: float
    """p-value of no difference, from the bootstrap; at least 1 / (resamples + 1)."""
    p_holm: float
    """After Holm's correction for all patterns of the evaluation."""
    detectable: float
    """The smallest difference in nats that would be found with a power of 80 %."""
    margin: float
    """Differences below this many nats count as none."""
    equivalent: bool
    """Whether the 90 % interval lies inside of +- margin (two one-sided tests at 5 %)."""
    by_text: tuple[tuple[str, float], ...] = ()
    """(text, mean difference in nats on its sequences)."""


@dataclass(frozen=True, slots=True)
class Retrieval(Result):
    """Rate at which the model finds a number hidden in a long text."""

    trials: int
    found: int
    rate: Interval
    """found / trials with Wilson's interval."""
    dense_found: int
    only_dense: int
    """Trials that succeed without the mask only."""
    only_masked: int
    p_value: float
    """McNemar's exact test on the trials where the two differ."""
    p_holm: float
    by_depth: tuple[tuple[float, int, int], ...]
    """(place of the number in the text, 0 to 1; trials; found)."""


# ------------------------------------------------------------------ layer 3


@dataclass(frozen=True, slots=True)
class Trained(Result):
    """Small models trained with the mask, compared with models trained without on the same
    batches."""

    task: str
    measure: str
    """Meaning and unit of `masked` and `dense`."""
    steps: int
    tokens: int
    seeds: tuple[int, ...]
    masked: tuple[float, ...]
    """One number per seed."""
    dense: tuple[float, ...]
    difference: Interval
    """Mean of masked - dense over seeds, with Student's interval."""
    p_value: float
    margin: float
    p_equivalence: float
    """p-value of a difference of at least the margin (two one-sided paired t-tests)."""
    chance: float
    """The measure of a model that knows nothing."""


# ------------------------------------------------------------------ together


@dataclass(frozen=True, slots=True)
class Evaluated(Result):
    """All results for one mask."""

    name: str
    mask: str
    """The mask as text; of captured arrays it shows the names only."""
    role: str
    """"pattern", "ablation", "control" or "ceiling"."""
    of: str
    """The name of the pattern that an ablation or a control belongs to, else ""."""
    pairs: int
    """Live pairs of one head at the length of the evaluation, by `Mask.count`; of masks that
    differ by head the mean, rounded down."""
    share: float
    """pairs divided by those of the base mask."""
    budget: float | None = None
    """The requested share of pairs, if a parameter was solved for one."""
    information: InformationLoss | None = None
    perplexity: Perplexity | None = None
    retrieval: Retrieval | None = None
    trained: tuple[Trained, ...] = ()
    digest: str = ""
    """sha256 of the mask, content of captured arrays and parameters included, see `digest_of`."""
    setting: str = ""
    """The parameter that was solved for the budget, as `--set` takes it: window=12."""

    @property
    def is_dense(self) -> bool:
        """Whether the mask keeps every pair of the base mask at this length: nothing was lost, and
        nothing was measured."""
        return self.share == 1


@dataclass(frozen=True, slots=True)
class Evaluation(Result):
    """Results for several masks on the same inputs."""

    source: str
    """Description of q, k and v, or of the texts and the model."""
    n: int
    """Tokens of each sequence."""
    sequences: int
    base: str
    """The mask of dense attention: causal() for language models."""
    patterns: tuple[Evaluated, ...]
    cannot_show: tuple[str, ...]
    """Conclusions that these numbers do not support."""
    command: str = ""
    """The command that reproduces the numbers."""
    seed: int = 0
    resamples: int = 0
    environment: tuple[tuple[str, str], ...] = field(default=())

    def named(self, name: str) -> Evaluated:
        """Return the pattern of this name.

        Raises:
            KeyError: there is none.
        """
        for pattern in self.patterns:
            if pattern.name == name:
                return pattern
        raise KeyError(name)
