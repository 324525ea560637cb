"""Public objects copy, deep-copy and pickle: masks, patterns, compiled masks, layouts, errors.

What is public is found by walking the package, so that a new class is covered by itself.
"""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import maskc as mc
import maskc.runtime
from maskc.core import errors, expr
from maskc.core.errors import MaskcError, NotPicklable, StalePickle
from maskc.core.source import SourceLoc
from maskc.dsl import nodes
from maskc.runtime import pickles

TABLE = [[True, False], [True, True]]


@mc.pattern
def near(*, width: int = 4) -> mc.Mask:
    """A pattern of a module."""
    return mc.window(width)


MASKS = {
    "full": mc.full(),
    "causal": mc.causal(align="start"),
    "window": mc.window(mc.param("w", 3), None),
    "at positions": mc.causal(at=mc.positions(q="pq", k="pk")),
    "dilated": mc.dilated(3, 1, stride=2),
    "offsets": mc.offsets([1, -2]),
    "strided": mc.strided(3, 1),
    "sinks": mc.sinks(mc.n_q // 2),
    "prefix": mc.prefix(2),
    "global_tokens": mc.global_tokens([0, 5]).rows,
    "block_diagonal": mc.chunked(4),
    "global_flags": mc.global_tokens("seen", at_most=4).columns,
    "random_blocks": mc.random_blocks(4, 2, 7),
    "block_table": mc.block_table(TABLE, 8),
    "key_lists": mc.key_lists("keys"),
    "flags": mc.flags("keep", on="q"),
    "intervals": mc.intervals("span"),
    "documents": mc.documents("doc"),
    "tree": mc.tree("walk"),
    "where": mc.where(lambda q, k: (q - k) % 3 == np.arange(4)[1]),
    "per_head": mc.per_head([mc.causal(), ~mc.full()]),
    "heads": mc.heads(0, 1),
    "topk": mc.topk(4, of=mc.causal(), score="given"),
    "algebra": (mc.causal() - mc.window(2)) ^ mc.sinks(1),
}
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in (2, 4, 5)},
}
copies = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


def compiled(mask: mc.Mask = MASKS["window"]) -> mc.CompiledMask:
    return mask.compile(16, dtype="float32", target="cpu")


def arrays(n: int = 9) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 2, n, 16)).astype(np.float32) for _ in range(3)]


# ------------------------------------------------------------------ masks and patterns


@copies
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, copied):
    mask = MASKS[name]
    twin = copied(mask)
    assert twin == mask
    assert hash(twin) == hash(mask)
    assert str(twin) == str(mask)
    assert [node.loc for node in nodes.walk(twin)] == [node.loc for node in nodes.walk(mask)]


def test_every_kind_of_mask_is_among_them():
    written = {
        kind
        for kind in vars(nodes).values()
        if isinstance(kind, type) and issubclass(kind, nodes.Node)
    } - {nodes.Node, nodes.Combinator}
    assert written == {type(node) for mask in MASKS.values() for node in nodes.walk(mask)}
    assert written == set(get_args(nodes.AnyNode)), "a kind that `match` statements do not know"


@pytest.mark.parametrize("name", MASKS)
def test_masks_over_other_masks(name: str):
    mask = MASKS[name]
    assert mask.over(lambda part: part) == mask
    changed = mask.over(lambda part: ~part)
    assert list(changed.children) == [~part for part in mask.children]


def test_a_copied_mask_gives_the_same_bundle():
    mask = MASKS["algebra"] & MASKS["where"]
    found = pickle.loads(pickle.dumps(mask))
    assert compiled(found).bundle == compiled(mask).bundle
    assert compiled(found).identity == compiled(mask).identity
    assert np.array_equal(found.dense(20), mask.dense(20))


def test_copies_are_the_mask_itself_which_compiled_graphs_know():
    assert copy.deepcopy(MASKS["causal"]) is MASKS["causal"]


@copies
def test_patterns_of_a_module(copied):
    assert copied(near) is near


FILE = """
import maskc as mc

@mc.pattern
def far(*, width: int = 4):
    return mc.window(width)
"""


def test_patterns_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tmp_path.joinpath("far.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    far = mc.load("far.py")["far"]
    kept = pickle.dumps(far)
    monkeypatch.chdir("/")
    found = pickle.loads(kept)
    assert found == far
    assert found(width=7) == far(width=7)
    assert copy.deepcopy(far) is far


def test_patterns_of_a_function_say_where_they_belong():
    @mc.pattern
    def inner(*, width: int = 4):
        return mc.window(width)

    with pytest.raises(NotPicklable, match="MC414"):
        pickle.dumps(inner)
    assert copy.deepcopy(inner) is inner
    assert pickle.loads(pickle.dumps(inner())) == inner()


# ------------------------------------------------------------------ compiled masks


@copies
def test_compiled_masks(copied):
    attn, given = compiled(), arrays()
    twin = copied(attn)
    assert twin.bundle == attn.bundle
    assert twin.target == attn.target
    assert twin.explain() == attn.explain()
    np.testing.assert_array_equal(twin(*given, w=2), attn(*given, w=2))


@copies
def test_generated_modules(copied):
    whole = maskc.runtime.GeneratedMask(compiled(MASKS["causal"]).bundle)
    found, given = copied(whole), arrays()
    np.testing.assert_array_equal(found.attention(*given), whole.attention(*given))
    np.testing.assert_array_equal(copied(whole.attention)(*given), whole.attention(*given))


def test_another_state_of_the_package_compiles_the_mask_again(monkeypatch):
    attn, given = compiled(MASKS["causal"]), arrays()
    kept = pickle.dumps(attn)
    alone = pickle.dumps(mc.CompiledMask(attn.bundle))
    monkeypatch.setattr(pickles, "contents", lambda: "another")
    np.testing.assert_array_equal(pickle.loads(kept)(*given), attn(*given))
    with pytest.raises(StalePickle, match="MC415"):
        pickle.loads(alone)


def test_modules_that_hold_one(tmp_path: Path):
    torch = pytest.importorskip("torch")
    attn = compiled(MASKS["causal"])
    module = torch.nn.Linear(16, 16)
    module.attn, module.mask = attn, MASKS["documents"]
    x = torch.from_numpy(arrays()[0])
    torch.save(module, tmp_path / "module.pt")
    averaged = torch.optim.swa_utils.AveragedModel(module).module
    for found in (torch.load(tmp_path / "module.pt", weights_only=False), averaged):
        assert torch.equal(found.attn(x, x, x), attn(x, x, x))
        assert found.mask == MASKS["documents"]
    assert set(module.state_dict()) == {"weight", "bias"}


def run(attn, given, results):
    """In another process."""
    try:
        results.put((attn(*given), MASKS["causal"]))
    except MaskcError as error:
        results.put(error)


@pytest.mark.shipped_flags  # the other process compiles for itself
def test_another_process_takes_and_gives_them():
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    attn, given = compiled(MASKS["causal"]), arrays()
    jobs = [(attn, given), (attn, [given[0][..., :8], *given[1:]])]
    for job in jobs:
        process = context.Process(target=run, args=(*job, results))
        process.start()
        found = results.get(timeout=120)
        process.join()
        if isinstance(found, MaskcError):
            assert "MC401 q  q has shape (1, 2, 9, 8)" in str(found)
        else:
            np.testing.assert_array_equal(found[0], attn(*given))
            assert found[1] == MASKS["causal"]


# ------------------------------------------------------------------ layouts and others


@copies
def test_layouts(copied):
    layout = mc.causal().layout(300).transpose()
    twin = copied(layout)
    for name, value in vars(layout).items():
        assert np.array_equal(getattr(twin, name), value)
    assert not twin.col.flags.writeable
    assert np.array_equal(twin.to_dense(), layout.to_dense())


OTHERS = {
    "n_q": mc.n_q,
    "param": mc.param("w", 3) // 2,
    "window": mc.window,
    "cu_seqlens": mc.cu_seqlens([0, 3], 3),
    "parents": mc.parents([-1, 0]),
    "loc": SourceLoc("file.py", 1, 2, 3),
    "bundle": compiled().bundle,
    "difference": mc.diff(mc.causal(), mc.window(3), n=8),
    "score": mc.score(lambda s, q, k: s + mc.param("w", 0.5) * (q - k)),
}


@copies
@pytest.mark.parametrize("name", OTHERS)
def test_others(name: str, copied):
    assert repr(copied(OTHERS[name])) == repr(OTHERS[name])


COVERED = (
    mc.Mask, mc.Pattern, mc.CompiledMask, mc.BlockLayout, mc.Difference,
    maskc.runtime.GeneratedMask,
    *map(type, OTHERS.values()),
)  # fmt: skip
"""Classes with an object above."""


@pytest.mark.parametrize("package", [mc, maskc.runtime], ids=lambda package: package.__name__)
def test_every_public_class_and_object_is_covered(package):
    for name in {*vars(package), "CompiledMask"}:
        value = getattr(package, name)
        if name.startswith("_") or inspect.ismodule(value) or inspect.isfunction(value):
            continue
        kind = value if isinstance(value, type) else type(value)
        if kind in (bool, str, list) or issubclass(kind, (BaseException, type(None))):
            continue
        if kind.__module__.startswith("maskc"):
            assert issubclass(kind, COVERED), f"{name} needs a test here"


# ------------------------------------------------------------------ errors

CLASSES = sorted(
    {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, MaskcError)
    } - {mc.SeveralErrors},
    key=lambda kind: kind.code,
)  # fmt: skip


def made(kind: type[MaskcError], at: object = "q") -> MaskcError:
    """One of every class: things that do not pickle, and enough of them for its texts."""
    odd = [lambda: 0, "text", 2, (1, np.float32), None, 3.5, [1], {}]
    return kind(*odd, at=at)


def same(found: MaskcError, error: MaskcError) -> None:
    assert type(found) is type(error)
    assert (found.code, found.exit_code, str(found)) == (error.code, error.exit_code, str(error))
    assert found.at == error.at


@copies
def test_errors(copied):
    for kind, at in product(CLASSES, (None, "q", SourceLoc("a.py", 3, 4, 5))):
        error = made(kind, at)
        error.add_note("noted")
        twin = copied(copied(error))
        same(twin, error)
        assert twin.__notes__ == ["noted"]


@copies
def test_several_errors(copied):
    several = mc.SeveralErrors((made(errors.BadIds), made(errors.FileMissing)))
    twin = copied(several)
    same(twin, several)
    for one, other in zip(twin.errors, several.errors, strict=True):
        same(one, other)


def test_an_error_keeps_the_line_of_a_file_that_is_gone(tmp_path: Path):
    file = tmp_path / "bad.py"
    file.write_text("import maskc as mc\nmask = mc.window(-3)\n")
    with pytest.raises(MaskcError) as caught:
        mc.load(file)
    tmp_path.joinpath("kept").write_bytes(pickle.dumps(caught.value))
    file.unlink()
    code = f"import pickle; print(pickle.load(open({str(tmp_path / 'kept')!r}, 'rb')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("\n") == str(caught.value)
    assert "mask = mc.window(-3)" in done.stdout


def test_formulas_are_pickled_without_their_hashes():
    """Hashes of texts differ in every process."""
    formula = expr.floordiv(expr.Sym("q"), 3)
    assert hash(formula) == hash(expr.floordiv(expr.Sym("q"), 3))
    assert {*vars(pickle.loads(pickle.dumps(formula)))} == {"num", "den"}
    mask = mc.causal() & mc.flags("x")
    assert hash(mask) == hash(mc.causal() & mc.flags("x")) != hash(mc.causal() | mc.flags("x"))
    assert {*vars(pickle.loads(pickle.dumps(mask)))} == {"op", "left", "right", "loc"}


def test_a_formula_that_nothing_changes_stays_the_same_object():
    formula = expr.conj(expr.ge(expr.Sym("q"), expr.Sym("k")), expr.Truth(True))
    assert expr.transform(formula, lambda node: None) is formula
    assert expr.with_values(formula, {"q": 1}) == expr.ge(expr.const(1), expr.Sym("k"))


def test_a_kind_that_is_not_listed_has_no_meaning():
    """Rather than that of another one, or of head 0."""

    class Unlisted(nodes.Node):
        pass

    for question in (str, lambda mask: mask.dense(3), lambda mask: mask.count(3)):
        with pytest.raises(TypeError, match="AnyNode does not list Unlisted"):
            question(Unlisted())
    with pytest.raises(TypeError, match="no case for Unlisted"):
        nodes.no_case(Unlisted())
