"""Patterns and their parameters, pattern files, and masks read from text."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    BadExpression,
    BadParameter,
    BadParameterValue,
    MaskArithmetic,
    MaskcError,
    NegativeWidth,
    NotAMask,
    NotConstant,
    NotPositive,
    PatternFailed,
    ReservedName,
)
from maskc.reference.dense import dense


@mc.pattern
def example(
    *, width: int = 4, ids: tuple[int, ...] = (0,), rate: float = 0.5, on: bool = True,
    word: str = "left",
) -> mc.Mask:  # fmt: skip
    """A window.

    And more.
    """
    base = mc.window(width) | mc.global_tokens(ids).columns
    return base if on and word == "left" else ~base


def test_a_pattern_is_called_with_keywords() -> None:
    assert example() == mc.window(4) | mc.global_tokens([0]).columns
    assert example(width=2, on=False) == ~(mc.window(2) | mc.global_tokens([0]).columns)
    assert example(width=mc.param("w", 3)).left == mc.window(mc.param("w", 3))
    assert example(rate=1) == example()


@mc.pattern
def placed(left: int = 4, right: int = 0, *, causal: bool = False) -> mc.Mask:
    base = mc.window(left, right)
    return base & mc.causal() if causal else base


def test_a_pattern_is_called_like_its_function() -> None:
    assert placed(2) == placed(left=2) == mc.window(2)
    assert placed(2, 1, causal=True) == mc.window(2, 1) & mc.causal()
    with pytest.raises(BadParameterValue, match="right"):
        placed(2, "1")
    for wrong in (lambda: placed(1, 2, True), lambda: placed(1, left=2), lambda: example(3)):
        with pytest.raises(TypeError, match="argument"):
            wrong()


def test_a_pattern_describes_itself() -> None:
    assert example.name == "example"
    assert example.doc == "A window.\n\nAnd more."
    assert example.__doc__.startswith("A window.")
    assert [(name, kind) for name, kind, _ in example.parameters] == [
        ("width", int), ("ids", tuple), ("rate", float), ("on", bool), ("word", str),
    ]  # fmt: skip
    assert list(inspect.signature(example).parameters) == ["width", "ids", "rate", "on", "word"]
    assert Path(example.loc.file).name == Path(__file__).name


def test_parameters_from_text() -> None:
    texts = {"width": "7", "ids": "(1, 2)", "rate": "0.25", "on": "False", "word": "left"}
    assert example.with_text(texts) == example(width=7, ids=(1, 2), on=False)
    assert example.with_text({"ids": "5"}) == example(ids=(5,))
    assert example.with_text({"on": "true"}) == example()


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        ({"width": "four"}, BadParameterValue),
        ({"width": "4.5"}, BadParameterValue),
        ({"on": "maybe"}, BadParameterValue),
        ({"ids": "(1, x)"}, BadParameterValue),
        ({"height": "3"}, BadParameter),
        ({"width": "-1"}, NegativeWidth),
    ],
)
def test_mistakes_in_text(settings: dict[str, str], mistake: type[MaskcError]) -> None:
    with pytest.raises(mistake):
        example.with_text(settings)


@pytest.mark.parametrize(
    "values", [{"width": True}, {"width": "4"}, {"on": 1}, {"ids": 3}, {"rate": True}]
)
def test_values_of_another_type(values: dict[str, object]) -> None:
    with pytest.raises(BadParameterValue):
        example(**values)


def test_a_default_of_another_type() -> None:
    """tests/messages/language.txt has the other mistakes of a definition."""
    with pytest.raises(BadParameterValue, match="expects int"):

        @mc.pattern
        def wrong_default(width: int = "3") -> mc.Mask:
            return mc.full()


# ------------------------------------------------------------------ files


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text("import maskc as mc\n" + text)
    return path


def test_load_gives_patterns_and_masks_in_file_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "two.py",
        "plain = mc.causal()\n"
        "_hidden = mc.full()\n"
        "number = 3\n"
        "@mc.pattern\n"
        "def wide(w: int = 3):\n    return mc.window(w)\n",
    )
    loaded = mc.load(path)
    assert list(loaded) == ["plain", "wide"]
    assert loaded["plain"] == mc.causal()
    assert loaded["wide"](w=5) == mc.window(5)
    assert mc.load(str(path)) == loaded


def test_a_mistake_reached_twice_is_reported_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "twice.py",
        "@mc.pattern\ndef one():\n    return mc.window(-1)\n"
        "@mc.pattern\ndef two():\n    return ~one()\n",
    )
    with pytest.raises(NegativeWidth):
        mc.load(path)


@pytest.mark.parametrize("name", ["with space.py", "quote'd.py", 'double"d.py', "ünïcode.py"])
def test_hostile_file_names(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, "mask = mc.window(3)\n")
    assert mc.load(path) == {"mask": mc.window(3)}
    path.write_text("import maskc as mc\nmask = mc.window(-3)\n")
    with pytest.raises(NegativeWidth) as caught:
        mc.load(path)
    assert name in str(caught.value)
    assert "mask = mc.window(-3)" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"import maskc as mc\ndef f(:\n", 2),
        (b"import maskc\n\nraise KeyError('x')\n", 3),
        (b"import sys\nsys.exit(3)\n", 2),
        (b"import no_such_module_at_all\n", 1),
        (b"x = 1\n\xff\n", 2),
        (b"x = 1\0\n", 1),
    ],
)
def test_a_file_that_fails(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "fails.py"
    path.write_bytes(content)
    with pytest.raises(PatternFailed) as caught:
        mc.load(path)
    assert caught.value.at.line == line


# ------------------------------------------------------------------ text


SAME = [
    ("causal() & (sinks(4) | window(1023))", mc.causal() & (mc.sinks(4) | mc.window(1023))),
    ("mc.causal() & mc.window.hf(4)", mc.causal() & mc.window(3)),
    ("window(1, None) - ~strided(4, 2)", mc.window(1, None) - ~mc.strided(4, 2)),
    ("window(2 * 3 + 1)", mc.window(7)),
    ("strided(2 * 4)", mc.strided(8)),
    ("window(n_q // 2, mc.n_kv - 3)", mc.window(mc.n_q // 2, mc.n_kv - 3)),
    ('window(param("w", 3) + 1)', mc.window(mc.param("w", 3) + 1)),
    ('sinks(mc.param("w", -3))', mc.sinks(mc.param("w", -3))),
    ("global_tokens([0, 5]).rows", mc.global_tokens([0, 5]).rows),
    ("per_head([causal(), full()])", mc.per_head([mc.causal(), mc.full()])),
    ("topk(4, of=causal(), block=2)", mc.topk(4, mc.causal(), block=2)),
    ("where(lambda q, k: (q > k) & ~(k % 3 == 1))", mc.where(lambda q, k: (q > k) & (k % 3 != 1))),
    ("where(lambda q, k: (q > 3) ^ (k > 3))", mc.where(lambda q, k: (q > 3) ^ (k > 3))),
    ("where(lambda h, q, k: h == q)", mc.where(lambda h, q, k: h == q)),
    ("where(lambda q, k: True)", mc.where(lambda q, k: True)),
    ("  full()\n", mc.full()),
]


@pytest.mark.parametrize(("text", "mask"), SAME)
def test_text_reads_as_python(text: str, mask: mc.Mask) -> None:
    assert mc.parse(text) == mask


def test_arrays_in_text_have_any_name() -> None:
    mask = mc.parse("where(lambda q, k: t[u[q]] == t[k % 3], t=[4, 5, 4], u=[2, 0, 1, 1])")
    t, u = np.array([4, 5, 4]), np.array([2, 0, 1, 1])
    assert np.array_equal(dense(mask, 4), dense(mc.where(lambda q, k: t[u[q]] == t[k % 3]), 4))
    assert np.array_equal(dense(mask, 4), t[u][:, None] == t[np.arange(4) % 3])
    assert mc.parse("where(lambda q, k: q > k, t=[1, 2])") == mc.where(lambda q, k: q > k)


REFUSED = [
    "", "causal(", "causal", "3", "causal() and full()", "not causal()",
    "unknown(3)", "__import__('os').system('true')", "open('x')", "causal.__class__()",
    "window(*[1, 2])", "window(**{'left': 3})", "causal(1)", "window(left=1, middle=2)",
    "[causal()]", "causal() if 1 else full()", "(lambda: causal())()",
    "where(lambda: True)", "where(lambda q, k=3: q > k)", "where(lambda *a: True)",
    "where(lambda k, q: q > k)", "where(lambda b, h, q, k: q > k)", "where(3)",
    "where(lambda q, k: q - k)", "where(lambda q, k: x < k)", "where(lambda q, k: h == q)",
    "where(lambda q, k: (q > k) + 1 > 2)", "where(lambda q, k: (q > k) & 1)",
    "where(lambda q, k: ~q > k)", "where(lambda q, k: -(q > k) < 1)",
    "where(lambda q, k: q * k > 3)", "where(lambda q, k: q / 2 > k)",
    "where(lambda q, k: q % 0 > k)", "where(lambda q, k: q // k > 1)",
    "where(lambda q, k: q > k > 2)", "where(lambda q, k: q.bit_length() > k)",
    "where(lambda q, k: abs(q, k) > 2)", "where(lambda q, k: (q > k) and (k > 2))",
    "where(lambda q, k: t[q] > k)", "where(lambda q, k: t[q, k] > 0, t=[1])",
    "where(lambda q, k: t[q] > 0, t=[[1], [2, 3]])", "where(lambda q, k: t[q] > 0, t=[1.5])",
    "where(lambda q, k: t[q] > 0, t=q)", "where(lambda q, k: t[q] > 0, **{'t': [1]})",
    "where(lambda q, k: q > param('w', 2.5))", "where(lambda q, k: q > param('w', q))",
    "~" * 3000 + "causal()", "(" * 500 + "causal()" + ")" * 500, "a\0b",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40] or "empty")
def test_text_outside_the_language_is_refused(text: str) -> None:
    with pytest.raises(BadExpression):
        mc.parse(text)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("window(-1)", NegativeWidth),
        ("strided(0)", NotPositive),
        ("strided(n_q)", NotConstant),
        ("topk(4, of=5)", NotAMask),
        ("topk(4, of=window(-1))", NegativeWidth),
        ("per_head([3])", NotAMask),
        ("causal() + full()", MaskArithmetic),
        ("causal() * full()", MaskArithmetic),
        ("causal() + 3", BadExpression),
        ('where(lambda q, k: q > param("x; y", 3))', ReservedName),
        ('window(param("softcap", 3))', ReservedName),
    ],
)
def test_mistakes_in_text_keep_their_own_class(text: str, mistake: type[MaskcError]) -> None:
    with pytest.raises(mistake):
        mc.parse(text)
