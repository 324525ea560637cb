"""Kernels that no card has run say so, once, where the user's code calls them."""

from __future__ import annotations

import warnings

import pytest

import maskc as mc

torch = pytest.importorskip("torch")

from maskc.runtime.untried import UntriedWarning  # noqa: E402
from tests.emulator import machine  # noqa: E402
from tests.support.exact_attention import tensors  # noqa: E402


def warned(mask, **options):
    q, k, v, _ = tensors(70, 70, 64, torch.bfloat16, batch=1, heads=2, kv_heads=1)
    attn = mask.compile(head_dim=64, target="sm_90a")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        attn(q, k, v, **options)
    return [(x.filename, str(x.message)) for x in found if x.category is UntriedWarning]


@pytest.mark.parametrize(
    ("mask", "options", "what"),
    [
        (mc.topk(5, mc.causal()), {}, "keys chosen one by one"),
        (mc.topk(1, mc.causal(), block=16), {}, "blocks chosen on the device"),
        (mc.causal(), {"normalizer": "entmax"}, "alpha-entmax"),
    ],
)
def test_what_no_card_has_run(monkeypatch, mask, options, what):
    machine.install(monkeypatch)
    found = warned(mask, **options)
    assert found
    assert {file for file, _ in found} == {__file__}
    assert all(f"sm_90a kernels of {what} have run in an emulator only" in x for _, x in found)


def test_what_cards_have_run(monkeypatch):
    machine.install(monkeypatch)
    assert not warned(mc.causal())
