"""Every published mask against its paper's definition, written out once more in plain Python."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core.errors import BadParameterValue
from maskc.reference.dense import dense
from tests.support.drawn_masks import drawn_columns
from tests.support.thorough import examples

FOLDER = Path(__file__).parents[2] / "patterns"
FILES = sorted(FOLDER.glob("*.py"))

SQUARE = [(1, 1), (2, 2), (17, 17), (48, 48)]
RECTANGLES = [*SQUARE, (5, 40), (1, 33), (20, 9)]


@dataclass(frozen=True)
class Case:
    """keep(q, k, p, n, h): whether query q at position p sees key k among n keys, on head h."""

    name: str
    keep: Callable[..., bool]
    parameters: dict[str, object] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=lambda: RECTANGLES)
    data: dict[str, object] = field(default_factory=dict)
    heads: int | None = None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{n}={v}' for n, v in self.parameters.items())})"


@cache
def pattern(name: str) -> mc.Pattern:
    return mc.load(FOLDER / f"{name}.py")[name]


# ------------------------------------------------------------------ definitions


def full(q, k, p, n, h):
    return True


def causal(q, k, p, n, h):
    return k <= p


def last(window):
    """The `window` keys that end with the query."""
    return lambda q, k, p, n, h: k in range(p - window + 1, p + 1)


def streaming(q, k, p, n, h):
    return k <= p and (k in (0, 1, 2) or p - k < 7)


LANDMARKS = np.isin(np.arange(48), (0, 4, 5, 11, 19, 30, 41))


def adaptive(q, k, p, n, h):
    return k <= p and (k in (0, 1) or k in range(p - 5, p + 1) or k in (0, 4, 5, 11, 19, 30, 41))


def tri_shape(q, k, p, n, h):
    in_last_rows = p >= n - 4
    return k <= p and (in_last_rows or k < 2 or p - k < 5)


def vertical_slash(q, k, p, n, h):
    return k <= p and (k in (0, 3, 20) or p - k in (0, 1, 9))


def same_block(size):
    return lambda q, k, p, n, h: any(
        p in range(b, b + size) and k in range(b, b + size) for b in range(-10 * size, 60, size)
    )


def chunked(q, k, p, n, h):
    return same_block(6)(q, k, p, n, h) and k <= p


def prefix_lm(q, k, p, n, h):
    return k <= p or k < 5


DOC = [0] * 5 + [1] * 11 + [2] * 1 + [3] * 7
LENGTHS = mc.cu_seqlens([0, 5, 16, 17, 24])


def document(q, k, p, n, h):
    return DOC[q] == DOC[k] and k <= q


def shared_prefix(q, k, p, n, h):
    return k <= q and (DOC[q] == DOC[k] or k < 5)


def longformer(q, k, p, n, h):
    return abs(p - k) <= 3 or 0 <= p < 2 or k < 2


def dilated_longformer(q, k, p, n, h):
    return k in [p + 3 * step for step in range(-2, 3)] or 0 <= p < 2 or k < 2


drawn = cache(drawn_columns)


def bigbird(block, n_random, seed):
    def keep(q, k, p, n, h):
        i, j, blocks = p // block, k // block, -(-n // block)
        if i in (0, blocks - 1) or j in (0, blocks - 1):
            return True
        return j in (i - 1, i, i + 1) or j in drawn(seed, i, blocks, n_random)

    return keep


def bigbird_etc(q, k, p, n, h):
    return 0 <= p < 3 or k < 3 or bigbird(4, 2, 7)(q, k, p, n, h)


def sparse_strided(q, k, p, n, h):
    return k <= p and (p - k < 6 or (p - k) % 6 == 0)


def sparse_fixed(q, k, p, n, h):
    return k <= p and (p // 8 == k // 8 or k % 8 in (6, 7))


def exponential(q, k, p, n, h):
    return any(k == p - step * 2**level for level in range(3) for step in range(4))


def logsparse(local, restart):
    def keep(q, k, p, n, h):
        near = p == k or p - k in (1, 2, 4, 8, 16, 32, 64) or (0 <= p - k < local)
        return near and (not restart or p // restart == k // restart)

    return keep


def longnet(q, k, p, n, h):
    for w, r in ((8, 1), (24, 2), (48, 4)):
        segment = range(p // w * w, p // w * w + w)
        chosen = list(segment)[h % r :: r]
        if p in chosen and k in chosen:
            return k <= p
    return False


def landmark(q, k, p, n, h):
    return k <= p and (p - k < 5 or k % 8 == 7)


def swin(q, k, p, n, h, width=12, size=4, shift=1):
    """The mask as the paper runs it: roll, partition, and mask what the roll brought together."""
    height = n // width
    rolled = np.roll(np.arange(n).reshape(height, width), (-shift, -shift), (0, 1))
    region = np.zeros((height, width), dtype=int)
    for i, rows in enumerate((slice(0, -size), slice(-size, -shift), slice(-shift, None))):
        for j, columns in enumerate((slice(0, -size), slice(-size, -shift), slice(-shift, None))):
            region[rows, columns] = 3 * i + j
    (a, b), (c, d) = (map(int, np.argwhere(rolled == token)[0]) for token in (q, k))
    same_window = (a // size, b // size) == (c // size, d // size)
    return same_window and region[a, b] == region[c, d]


def axial(q, k, p, n, h):
    return p // 7 == k // 7 or p % 7 == k % 7


def neighbours(i, length, kernel, dilation, stride, causal):
    """Coordinates that coordinate i sees: the kernel slides inwards until it fits."""
    same = list(range(i % dilation, length, dilation))
    at = same.index(i)
    group = at // stride * stride
    if causal:
        leader = min(group + stride - 1, len(same) - 1)
        return [same[j] for j in range(leader - kernel + 1, at + 1) if j >= 0]
    start = min(group + stride // 2, len(same) - 1) - kernel // 2
    while start + kernel > len(same):
        start -= 1
    while start < 0:
        start += 1
    return same[start : start + kernel]


def natten(**options):
    return lambda q, k, p, n, h: k in neighbours(q, n, **options)


def natten_2d(q, k, p, n, h):
    rows = neighbours(q // 6, n // 6, 3, 2, 1, False)
    columns = neighbours(q % 6, 6, 4, 1, 3, False)
    return k // 6 in rows and k % 6 in columns


def natten_3d(q, k, p, n, h):
    t, x, y = q // 12, q // 4 % 3, q % 4
    frames = neighbours(t, n // 12, 2, 1, 1, True)
    rows, columns = neighbours(x, 3, 3, 1, 1, True), neighbours(y, 4, 2, 1, 2, True)
    return k // 12 in frames and k // 4 % 3 in rows and k % 4 in columns


def sta(q, k, p, n, h, canvas=(2, 3, 4), window=(1, 3, 3), tile=2):
    tiles = list(np.ndindex(*canvas))
    seen = []
    for x, length, size in zip(tiles[q // tile], canvas, window, strict=True):
        starts = range(length - size + 1)
        start = min(starts, key=lambda s: abs(s + size // 2 - x))
        seen.append(range(start, start + size))
    return all(y in axis for y, axis in zip(tiles[k // tile], seen, strict=True))


def block_diffusion(q, k, p, n, h):
    half = n // 2
    qn, kn = q < half, k < half
    qb, kb = q % half // 4, k % half // 4
    if qn and kn:
        return qb == kb
    if qn:
        return qb > kb
    return not kn and qb >= kb


IMAGE = [-1] * 3 + [0] * 4 + [2] * 2


def flamingo(q, k, p, n, h):
    return IMAGE[q] == k // 5


PARENT = [-1, 0, 1, 1, 0, 4, 4, 6, -1, 8]
TIMES = np.arange(10), np.array([8, 4, 3, 4, 8, 6, 8, 8, 10, 10])


def above(token):
    return [] if token == -1 else [token, *above(PARENT[token])]


def tree(q, k, p, n, h):
    return k in above(p)


def ast_tree(q, k, p, n, h):
    return k in above(q) or q in above(k) or PARENT[q] == PARENT[k]


def nsa_compressed(q, k, p, n, h):
    return all(token <= q for token in range(k * 3, k * 3 + 5))


CASES = [
    Case("full", full),
    Case("causal", causal),
    Case("sliding_window", last(5), {"window": 5}),
    Case("sliding_window", last(1), {"window": 1}),
    Case("streaming", streaming, {"n_sinks": 3, "window": 7}),
    Case("adaptive_local_global", adaptive, {"n_sinks": 2, "window": 6}, [(48, 48), (5, 48)],
         {"landmarks": LANDMARKS}),
    Case("adaptive_local_global", adaptive, {"n_sinks": 2, "window": 6, "at_most": 7}, [(48, 48)],
         {"landmarks": LANDMARKS}),
    Case("tri_shape", tri_shape, {"n_sinks": 2, "window": 5, "last": 4}),
    Case("vertical_slash", vertical_slash, {"columns": (0, 3, 20), "slashes": (0, 1, 9)}),
    Case("block_diagonal", same_block(6), {"size": 6}),
    Case("chunked", chunked, {"size": 6}),
    Case("prefix_lm", prefix_lm, {"n_prefix": 5}),
    Case("documents", document, sizes=[(24, 24)], data={"doc": LENGTHS}),
    Case("documents", lambda q, k, p, n, h: DOC[q] == DOC[k], {"causal": False}, [(24, 24)],
         {"doc": np.array(DOC)}),
    Case("shared_prefix", shared_prefix, {"n_prefix": 5}, [(24, 24)], {"doc": LENGTHS}),
    Case("longformer", longformer, {"window": 3, "n_global": 2}),
    Case("dilated_longformer", dilated_longformer, {"window": 2, "dilation": 3, "n_global": 2}),
    Case("bigbird_itc", bigbird(4, 2, 7), {"block": 4, "n_random": 2, "seed": 7}),
    Case("bigbird_itc", bigbird(3, 9, 0), {"block": 3, "n_random": 9}),
    Case("bigbird_etc", bigbird_etc, {"block": 4, "n_random": 2, "seed": 7, "n_global": 3}),
    Case("sparse_transformer_strided", sparse_strided, {"stride": 6}),
    Case("sparse_transformer_fixed", sparse_fixed, {"length": 8, "summary": 2}),
    Case("exponential_dilation", exponential, {"window": 4, "levels": 3}),
    Case("logsparse", logsparse(0, 0), {}, [*RECTANGLES, (70, 70)]),
    Case("logsparse", logsparse(4, 20), {"local": 4, "restart": 20}),
    Case("longnet", longnet, {"segments": (8, 24, 48), "rates": (1, 2, 4)}, RECTANGLES, {}, 5),
    Case("landmark", landmark, {"window": 5, "block": 8}),
    Case("swin", swin, {"width": 12, "window": 4, "shift": 1}, [(96, 96)]),
    Case("axial", axial, {"width": 7}),
    Case("natten_2d", natten_2d, {"width": 6, "kernel": (3, 4), "dilation": (2, 1),
                                  "stride": (1, 3)}, [(36, 36), (48, 48)]),
    Case("natten_3d", natten_3d, {"height": 3, "width": 4, "kernel": (2, 3, 2),
                                  "stride": (1, 1, 2), "causal": True}, [(60, 60)]),
    Case("sta", sta, {"canvas": (2, 3, 4), "window": (1, 3, 3), "tile": 2}, [(48, 48)]),
    Case("block_diffusion", block_diffusion, {"block": 4}, [(2, 2), (24, 24), (46, 46)]),
    Case("flamingo", flamingo, {}, [(9, 15)],
         {"image": (np.array(IMAGE), np.repeat([0, 1, 2], 5))}),
    Case("speculative_tree", tree, {}, [(10, 10), (4, 10)], {"tree": mc.parents(PARENT)}),
    Case("speculative_tree", tree, {}, [(10, 10)], {"tree": TIMES}),
    Case("ast_tree", ast_tree, {}, [(10, 10)],
         {"tree": TIMES, "below": TIMES, "parent": np.array(PARENT)}),
    Case("nsa_sliding", last(6), {"window": 6}),
    Case("nsa_compressed", nsa_compressed, {"length": 5, "stride": 3}, [(20, 6), (4, 1)]),
]  # fmt: skip
CASES += [
    Case("natten_1d", natten(**options), options, [(n, n) for n in (1, 7, 20, 47)])
    for options in (
        {"kernel": kernel, "dilation": dilation, "stride": stride, "causal": is_causal}
        for kernel in (1, 3, 4, 7)
        for dilation in (1, 3)
        for stride in (1, 2, 5)
        for is_causal in (False, True)
    )
]


AXIS = st.fixed_dictionaries({
    "kernel": st.integers(1, 7), "dilation": st.integers(1, 3), "stride": st.integers(1, 5),
    "causal": st.booleans(),
})  # fmt: skip


@settings(max_examples=examples(40))
@given(
    grid=st.lists(st.integers(1, 7), min_size=1, max_size=3), axes=st.tuples(AXIS, AXIS, AXIS),
    for_all=st.sets(st.sampled_from(["kernel", "dilation", "stride", "causal"])),
)  # fmt: skip
def test_neighborhoods_have_numbers_for_each_axis(grid, axes, for_all) -> None:
    """The product of axes; each has its own window, dilation, stride and flag."""
    count, n = len(grid), int(np.prod(grid))
    axes = [{**axis, **{name: axes[0][name] for name in for_all}} for axis in axes[:count]]
    values = {
        name: axes[0][name] if count == 1 or name in for_all else tuple(x[name] for x in axes)
        for name in axes[0]
    }
    sides = dict(zip(("width", "height"), grid[:0:-1], strict=False))
    mask = pattern(f"natten_{count}d")(**sides, **values)
    parts = [
        np.array([[k in neighbours(q, size, **axis) for k in range(size)] for q in range(size)])
        for size, axis in zip(grid, axes, strict=True)
    ]
    expected = reduce(np.kron, parts)
    np.testing.assert_array_equal(mask.dense(n), expected)
    assert mask.count(n) == expected.sum()


def test_neighborhoods_have_as_many_numbers_as_axes() -> None:
    for name, options in (
        ("natten_2d", {"kernel": (3, 3, 3)}), ("natten_2d", {"causal": (True,)}),
        ("natten_3d", {"stride": (1, 2)}), ("natten_3d", {"dilation": ()}),
    ):  # fmt: skip
        with pytest.raises(BadParameterValue, match="values, one for each axis, or one for all"):
            pattern(name)(**options)
    with pytest.raises(BadParameterValue, match=r"'causal' expects bool \| tuple, found 1.5"):
        pattern("natten_2d")(causal=1.5)


@pytest.mark.parametrize("name", ["natten_1d", "natten_2d", "natten_3d"])
def test_neighborhoods_have_tokens(name: str) -> None:
    """A kernel of 0 kept no pair, and a stride below 0 others than NATTEN keeps."""
    for option, value in (("kernel", 0), ("dilation", 0), ("stride", -1)):
        with pytest.raises(BadParameterValue, match=f"'{option}' expects tokens, at least 1"):
            pattern(name)(**{option: value})


@pytest.mark.parametrize("text", ["true,false", "(True, False)", "[true, 0]"])
def test_flags_for_each_axis_are_read_from_text(text: str) -> None:
    flat = pattern("natten_2d")
    found = flat.with_text({"width": "6", "kernel": "3", "causal": text})
    assert found == flat(width=6, kernel=3, causal=(True, False))
    assert flat.with_text({"causal": "true"}) == flat(causal=True) != flat()


def test_a_draft_behind_its_cache_sees_the_context_and_its_ancestors() -> None:
    """The definition of speculative_tree: keys of the cache come first, then keys of the draft."""
    context, draft = 6, [-1, -1, 0, 0, 1]  # parents among the draft; -1 is the end of the context
    parents = [*range(-1, context - 1), *(context + parent for parent in draft)]
    parents[context : context + 2] = [context - 1] * 2
    expected = np.zeros((len(draft), len(parents)), dtype=bool)
    for query in range(len(draft)):
        token = context + query
        while token >= 0:
            expected[query, token], token = True, parents[token]
    given = mc.parents(np.array(parents))
    dense_mask = pattern("speculative_tree")().dense(len(draft), len(parents), tree=given)
    np.testing.assert_array_equal(dense_mask, expected)
    assert expected[:, :context].all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_mask_is_its_definition(case: Case) -> None:
    mask = pattern(case.name)(**case.parameters)
    for n_q, n_kv in case.sizes:
        expected = [
            [[case.keep(q, k, q + n_kv - n_q, n_kv, h) for k in range(n_kv)] for q in range(n_q)]
            for h in range(case.heads or 1)
        ]
        dense_mask = dense(mask, n_q, n_kv, n_heads=case.heads, **case.data)
        expected_shape = dense_mask.shape if case.heads else (1, *dense_mask.shape)
        assert np.array_equal(dense_mask.reshape(expected_shape), np.array(expected)), (n_q, n_kv)


def test_every_pattern_has_a_case() -> None:
    """Patterns that choose at run time have theirs in test_patterns_selected.py."""
    static = {file.stem for file in FILES if not driver.selects(pattern(file.stem)())}
    assert static == {case.name for case in CASES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file(file: Path) -> None:
    loaded = mc.load(file)
    assert list(loaded) == [file.stem]
    made = loaded[file.stem]
    assert made.doc
    assert len(file.stem) <= 40
    text = file.read_text()
    assert re.search(r'",\s20\d\d', text), "the docstring cites the paper with its year"
    assert "\nDefinition" in text
    assert re.search(r"\nhttps://\S+\n\n", text), "the paragraph on the paper ends with its address"
    assert mc.parse(str(made())) == made()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_draws_itself(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.count("\n") > 10


def private_names(tree: ast.Module, alias: str = "mc") -> list[str]:
    """Imports and attributes of maskc that a pattern uses and that are not public."""
    allowed = {"__future__", "maskc", "numpy", *(file.stem for file in FILES)}
    private = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                private += [name.name for name in names if name.name not in allowed]
            case ast.ImportFrom(module=module, names=names):
                private += [module] if module not in allowed else []
                private += [
                    name.name for name in names if module == "maskc" and name.name not in dir(mc)
                ]
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == alias:
                private += [name] if name not in dir(mc) else []
    return private


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_uses_public_names_only(file: Path) -> None:
    assert private_names(ast.parse(file.read_text())) == []


def test_private_names_of_a_pattern_are_seen() -> None:
    text = "import maskc.viz\nfrom maskc.core import errors\nfrom maskc import dsl\nmc.driver.x()"
    assert private_names(ast.parse(text)) == ["maskc.viz", "maskc.core", "dsl", "driver"]
