"""What q and k of a call decide: the content of run-time selections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from maskc.core.bundle import Bundle
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.layout import Extent, Rank, choose, scores_of
from maskc.runtime import checks
from maskc.runtime.arrays import LIBRARIES, Array
from maskc.runtime.binding import Binder, Bound
from maskc.runtime.memory import CODES, at, load


def selected(
    bundle: Bundle, binder: Binder, target: Target, given: Sequence[Any], data: Mapping[str, Any],
    rank: Callable[[], Rank],
) -> Bound:  # fmt: skip
    """Parameters and data of a call, with what its selections choose.

    Args:
        given: q and k, then what else the call has, of known libraries, on the host.
        data: the mask's data and parameters by name, and what selections rank by.
        rank: gives what ranks, built when everything is known to fit.

    Raises:
        MC3xx for data, MC4xx for q, k and v.
    """
    q, k, v = (LIBRARIES[type(x)].view(x, name) for name, x in zip("qkv", given, strict=False))
    sizes = checks.check_inputs(q, k, v, bundle.problem, target)
    checks.check_heads(q, len(bundle.head_variant) or sizes.heads_q)
    bound = binder.bind(data, sizes.n_q, sizes.n_kv)
    found = dict(binder.arrays(bound, sizes.n_q, sizes.n_kv))
    extent = Extent(sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.n_q, sizes.n_kv)
    rows = [_floats(x, bundle.problem.dtype) for x in (q, k)]
    with np.errstate(all="ignore"):
        for each in bundle.selections:
            scores = scores_of(each, data, *rows)
            found[each.name] = choose(each, scores, extent, bound.params, found, rank())
    return Bound(bound.params, found, object(), lasting=False)


def _floats(x: Array, dtype: DType) -> np.ndarray:
    """float32 values of a tensor."""
    return load(at(x.pointer, x.shape, x.strides, CODES[dtype]), dtype)
