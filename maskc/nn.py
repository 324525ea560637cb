"""torch.nn modules: attention restricted to a mask, as a part of a model.

`import maskc` does not load this module, and so not torch; `maskc.nn` does, on first use.
"""

# ruff: noqa: N803 - Q_idx and K_idx are the names of SplashAttention

from __future__ import annotations

import math
from functools import lru_cache
from inspect import signature
from typing import Any

try:
    import torch
except ImportError as error:
    from maskc.core.errors import not_imported

    raise not_imported(error, "maskc.nn", "torch", "torch") from error

from maskc.api import attend, attention
from maskc.conventions import Keywords
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.dropout import check_rate
from maskc.core.errors import BadOption, BadShape
from maskc.core.recorders import refuse_proxy, unscripted
from maskc.core.source import caller
from maskc.dsl.combinators import causal as causal_mask
from maskc.dsl.combinators import full, topk
from maskc.dsl.data_atoms import positions
from maskc.dsl.mask import Mask
from maskc.dsl.meant import meant
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.score_tracer import Score, as_score

__all__ = ["Attention", "SplashAttention"]


@unscripted
class Attention(torch.nn.Module):
    """softmax(scale * q k^T, restricted to a mask) v, as a module without projections.

    The mask is a plain attribute: copies of the module share it, `torch.save` of the whole module
    stores it, and a state dict does not contain it. Use one module per layer, with that layer's
    mask. Learned sink logits, slopes and tables are part of the state dict.
    """

    alibi_slopes: torch.Tensor | None
    sink_logits: torch.Tensor | None
    score: Score | None = None  # also of modules that were saved before there were scores
    _tables: tuple[str, ...] = ()

    def __init__(
        self, mask: Mask, *, scale: float | None = None, softcap: float | None = None,
        n_heads: int | None = None, sink_logits: torch.Tensor | bool = False,
        alibi_slopes: torch.Tensor | bool = False, normalizer: str = "softmax",
        alpha: float | torch.Tensor | None = None, nan_safe: bool = False,
        deterministic: bool = False, dropout: float = 0.0, score: Score | None = None,
        **tables: torch.Tensor,
    ) -> None:  # fmt: skip
        """Make the module; kernels are built by the first call.

        Args:
            mask: which query sees which key.
            scale: factor of q . k; D^-1/2 when None.
            softcap: scores become softcap * tanh(score / softcap) first.
            n_heads: query heads, for `sink_logits=True` and `alibi_slopes=True`.
            sink_logits: fp32 [n_heads], a parameter with these values at first; True begins at 0.
            alibi_slopes: fp32 [n_heads], a buffer; True takes those of Press, Smith and Lewis
                (2022). A torch.nn.Parameter is trained.
            normalizer: "softmax" or "entmax".
            alpha: of entmax, from 1 to 2; 1.5 when None. A tensor [n_heads], or [], gives each head
                its own; an nn.Parameter is learned, and the caller keeps it in 1 .. 2.
            nan_safe: non-finite rows of v never reach a query that does not see them.
            deterministic: gradients have the same bits on every run.
            dropout: the share of weights that are dropped while the module trains.
            score: what softmax sees in place of scale * q . k, see `mc.score`. Tensors that the
                formula holds belong to the module from now on.
            tables: tensors that the score or the mask reads, by name: a torch.nn.Parameter is
                trained, another tensor is a buffer. Calls need not give these.

        Raises:
            NotAMask: `mask` is not a mask (MC106).
            NotAScore: `score` is not a score formula (MC132).
            BadOption: a number of heads is needed or contradicted, or a table is not a tensor
                (MC407).
            DropoutRate: `dropout` is not a number in 0 .. 1 (MC430).
        """
        super().__init__()
        check_rate(dropout, "dropout")
        if not isinstance(mask, Mask):
            raise not_a_mask("mc.nn.Attention", mask, caller() or "mask")
        self.mask = mask
        self.scale, self.softcap = scale, softcap
        self.normalizer, self.alpha = normalizer, alpha
        self.nan_safe, self.deterministic = nan_safe, deterministic
        self.dropout = dropout
        sinks = _of_heads("sink_logits", sink_logits, n_heads)
        self.register_parameter("sink_logits", None if sinks is None else _parameter(sinks))
        slopes = _of_heads("alibi_slopes", alibi_slopes, n_heads)
        if isinstance(slopes, torch.nn.Parameter):
            self.register_parameter("alibi_slopes", slopes)
        else:
            self.register_buffer("alibi_slopes", slopes)
        self.score = None if score is None else as_score(score)
        captured = {} if self.score is None else self.score.inputs.captured
        held = {name: x for name, x in captured.items() if isinstance(x, torch.Tensor)}
        self._tables = (*held, *tables)
        for name, values in {**held, **tables}.items():
            self._keep(name, values)

    def _keep(self, name: str, values: Any) -> None:
        """Make a tensor a parameter or a buffer.

        Raises:
            BadOption: it is not a tensor, or modules have something of this name.
        """
        if not isinstance(values, torch.Tensor):
            options = meant(name, signature(Attention.__init__).parameters)
            hint = f"keywords beside the options name tensors of the score or the mask{options}"
            raise BadOption(name, "a tensor", type(values).__name__, hint, at=name)
        if hasattr(self, name):
            wanted = "named otherwise: torch.nn.Module has an attribute of this name"
            raise BadOption(name, wanted, name, at=name)
        if isinstance(values, torch.nn.Parameter):
            self.register_parameter(name, values)
        else:
            self.register_buffer(name, values)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = False,
        dropout_seed: Any = None, **data: Any,
    ) -> Any:  # fmt: skip
        """Attention of one call.

        Args:
            q: [B, Hq, Nq, D].
            k: [B, Hkv, Nkv, D]; Hq is a multiple of Hkv.
            v: [B, Hkv, Nkv, Dv].
            return_lse: also return the log-sum-exp of every row.
            dropout_seed: decides which weights are dropped in training; None takes a seed from
                the default generator of the device.
            **data: the mask's and the score's data and parameters by name; they take the place of
                the module's tables.

        Returns:
            out [B, Hq, Nq, Dv], or (out, lse) with lse fp32 [B, Hq, Nq].

        Raises:
            MaskcError: as `maskc.attention`.
        """
        for name in self._tables:
            data.setdefault(name, getattr(self, name))
        options = CallOptions(
            self.scale, return_lse, self.softcap, _fp32(self.alibi_slopes),
            _fp32(self.sink_logits), self.normalizer, self.alpha, self.nan_safe,
            self.deterministic, self.dropout if self.training else 0.0, dropout_seed,
            data.pop("return_selection", False), data.pop("indexer_loss", False),
        )  # fmt: skip
        of_others = Keywords.taken(data) if data else None
        return attend(AttentionCall(q, k, v, options, data), self.mask, self.score, of_others)

    def extra_repr(self) -> str:
        """Return the mask, and the options that differ from plain attention, as text."""
        parts = [str(self.mask)]
        for name in ("scale", "softcap", "alpha"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={_shown(getattr(self, name))}")
        if self.score is not None:
            parts.append(f"score={self.score}")
        if self.normalizer != "softmax":
            parts.append(f"normalizer={self.normalizer!r}")
        if self.dropout:
            parts.append(f"dropout={self.dropout:g}")
        parts += [f"{name}=True" for name in ("nan_safe", "deterministic") if getattr(self, name)]
        return ", ".join(parts)


def _shown(number: Any) -> str:
    """A number, or the shape of a tensor."""
    return f"{tuple(number.shape)}" if isinstance(number, torch.Tensor) else f"{number:g}"


@unscripted
class SplashAttention(torch.nn.Module):
    """alpha-entmax over the k best keys of each query: SplashAttention.

    Every head of every query keeps its `k_keep` best keys, and entmax gives weight to some of
    these. If entmax over all keys would give weight to at most `k_keep` of them, the result equals
    entmax without a selection.

    After "SplashAttention" (github.com/mvideet/Adaptive-Splash-Attention); entmax is that of
    Peters, Niculae and Martins (2019).
    """

    def __init__(
        self, head_dim: int, alpha: float | torch.Tensor = 1.5, k_keep: int | None = 32,
        sm_scale: float | None = None, *, causal: bool = True,
    ) -> None:  # fmt: skip
        """Make the module.

        Args:
            head_dim: elements per row of q and k.
            alpha: of entmax, from 1 (softmax) to 2 (sparsemax). A tensor [Hq], or [], gives each
                head its own; an nn.Parameter is learned, and the caller keeps it in 1 .. 2.
            k_keep: keys that are kept for each query; None keeps all.
            sm_scale: factor of q . k; head_dim^-1/2 when None.
            causal: whether a query sees only keys whose position is not behind its own.

        Raises:
            BadOption: a number is out of range (MC407).
        """
        super().__init__()
        if not _is_positive(head_dim):
            raise BadOption("head_dim", "a positive integer", repr(head_dim), at="head_dim")
        number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
        if not isinstance(alpha, torch.Tensor) and not (number and 1 <= alpha <= 2):
            raise BadOption("alpha", "a number in 1 .. 2", repr(alpha), at="alpha")
        if k_keep is not None and not _is_positive(k_keep):
            raise BadOption("k_keep", "a positive integer or None", repr(k_keep), at="k_keep")
        self.head_dim, self.alpha, self.k_keep, self.causal = head_dim, alpha, k_keep, causal
        self.sm_scale = head_dim**-0.5 if sm_scale is None else sm_scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        Q_idx: torch.Tensor | None = None, K_idx: torch.Tensor | None = None,
        *, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        """Attention of one call.

        Args:
            q: [B, Hq, Nq, head_dim].
            k: [B, Hkv, Nkv, head_dim].
            v: [B, Hkv, Nkv, Dv].
            Q_idx: positions of the queries, integers [Nq], [B, Nq] or [B, Hq, Nq], where the rows
                of q are not the last tokens in their order; with K_idx.
            K_idx: positions of the keys, [Nkv], [B, Nkv], [B, Hkv, Nkv] or [B, Hq, Nkv]. With
                both, a query sees the keys with K_idx[k] <= Q_idx[q].
            return_lse: also return the log-sum-exp of every row.

        Returns:
            out [B, Hq, Nq, Dv], or (out, lse).

        Raises:
            BadShape: q has another head dimension, or positions do not fit the tensors (MC401).
            BadOption: one of Q_idx and K_idx is missing, or they are floating-point (MC407).
            MaskcError: as `maskc.attention`.
        """
        refuse_proxy(q)
        if q.shape[-1] != self.head_dim:
            raise BadShape("q", tuple(q.shape), f"head_dim={self.head_dim}", at="q")
        positions = self._positions(q, k, Q_idx, K_idx)
        return attention(
            q, k, v, self.mask(by_positions=bool(positions)), scale=self.sm_scale,
            return_lse=return_lse, normalizer="entmax", alpha=self.alpha, **positions,
        )  # fmt: skip

    def mask(self, *, by_positions: bool = False) -> Mask:
        """Return the mask of a call; with `by_positions` it reads the data Q_idx and K_idx."""
        return _selected(self.k_keep, self.causal, by_positions)

    def _positions(
        self, q: torch.Tensor, k: torch.Tensor, q_idx: Any, k_idx: Any
    ) -> dict[str, Any]:
        """The data of a call, none where all keys or those before a query count."""
        if (q_idx is None) != (k_idx is None):
            missing = "K_idx" if k_idx is None else "Q_idx"
            raise BadOption(missing, "given together with the other one", "None", at=missing)
        if q_idx is None or not self.causal:
            return {}
        return {
            name: _checked_positions(name, idx, x, q.shape[1])
            for name, idx, x in ((_Q_IDX, q_idx, q), (_K_IDX, k_idx, k))
        }

    def extra_repr(self) -> str:
        """Return the module's numbers as text."""
        return (
            f"head_dim={self.head_dim}, alpha={_shown(self.alpha)}, k_keep={self.k_keep}, "
            f"sm_scale={self.sm_scale:g}, causal={self.causal}"
        )


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


_Q_IDX, _K_IDX = "Q_idx", "K_idx"


@lru_cache(maxsize=256)
def _selected(k_keep: int | None, causal: bool, by_positions: bool) -> Mask:
    at = positions(q=_Q_IDX, k=_K_IDX) if by_positions else None
    allowed = causal_mask(at=at) if causal else full()
    return allowed if k_keep is None else topk(k_keep, of=allowed)


def _checked_positions(name: str, idx: Any, x: torch.Tensor, heads: int) -> torch.Tensor:
    """Positions of the tokens of x [B, H, N, D], with a row for each query head where heads
    differ."""
    if not isinstance(idx, torch.Tensor) or idx.is_floating_point() or idx.is_complex():
        finding = str(idx.dtype) if isinstance(idx, torch.Tensor) else type(idx).__name__
        raise BadOption(name, "a tensor of integers", finding, at=name)
    batch, own_heads, tokens = x.shape[:3]
    shape = tuple(idx.shape)
    front = ((), (1,), (batch,), *((b, h) for b in (1, batch) for h in (1, own_heads, heads)))
    if shape[-1:] != (tokens,) or shape[:-1] not in front:
        expected = f"[{tokens}], [{batch}, {tokens}] or [{batch}, {heads}, {tokens}]"
        raise BadShape(name, shape, expected, at=name)
    if len(shape) == 3 and shape[1] not in (1, heads):
        return idx.repeat_interleave(heads // own_heads, 1)
    return idx


# ------------------------------------------------------------------ values per head


def _of_heads(name: str, given: Any, n_heads: int | None) -> torch.Tensor | None:
    """The values of `sink_logits` or `alibi_slopes`, or None."""
    if given is None or given is False:
        return None
    if given is True:
        if n_heads is None:
            raise BadOption("n_heads", f"given together with {name}=True", "None", at="n_heads")
        return torch.zeros(n_heads) if name == "sink_logits" else torch.tensor(_slopes(n_heads))
    if not isinstance(given, torch.Tensor) or given.ndim != 1:
        finding = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
        raise BadOption(name, "True, False or a tensor [n_heads]", str(finding), at=name)
    if n_heads is not None and len(given) != n_heads:
        raise BadOption(name, f"of {n_heads} heads", f"{len(given)}", at=name)
    return given


def _parameter(values: torch.Tensor) -> torch.nn.Parameter:
    if isinstance(values, torch.nn.Parameter):
        return values
    return torch.nn.Parameter(values.detach().to(torch.float32).clone())


def _fp32(values: torch.Tensor | None) -> torch.Tensor | None:
    """fp32, which kernels take, of a module that was moved to half precision."""
    return None if values is None else values.float()


def _slopes(n_heads: int) -> list[float]:
    """2^(-8 i / n) for i in 1 .. n; for other than powers of two as in the published code."""
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [math.pow(2, -8 * i / power) for i in range(1, power + 1)]
    slopes += [math.pow(2, -4 * i / power) for i in range(1, 2 * (n_heads - power) + 1, 2)]
    return slopes
