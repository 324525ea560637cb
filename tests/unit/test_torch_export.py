"""Programs that leave the process: torch.export, torch.jit.trace, AOTInductor, ONNX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import maskc as mc
from maskc import portable
from maskc.core.errors import NotExported, StaleProgram
from maskc.integrations.torch import handles
from tests.support.torch_oracle import MASKS, tensors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

N = 10
IDS = torch.arange(N) // 4
HOST = np.arange(N) // 4
TABLE = torch.linspace(-1, 1, N * N).reshape(N, N)


class Layer(torch.nn.Module):
    """A module around one mask and the keywords of its call."""

    def __init__(self, mask: mc.Mask, **options):
        super().__init__()
        self.mask, self.options = mask, options

    def forward(self, q, k, v):
        return mc.attention(q, k, v, self.mask, **self.options)


class Counting(torch.nn.Module):
    """A module whose mask reads a buffer that each call writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ages", torch.arange(N) % 3)
        self.mask = mc.from_mask_mod(lambda b, h, q, k: (self.ages[k] < 3) | (q == k))

    def forward(self, q, k, v):
        self.ages.add_(1)
        return mc.attention(q, k, v, self.mask)


def layers() -> dict[str, torch.nn.Module]:
    return {
        "numbers": Layer(mc.causal() & mc.window(3), scale=0.3, softcap=5.0),
        "data": Layer(MASKS["documents"], doc=IDS),
        "captured": Layer(mc.from_mask_mod(lambda b, h, q, k: IDS[q] == IDS[k])),
        "content": Layer(mc.where(lambda q, k: HOST[q] == HOST[k])),
        "heads": Layer(mc.per_head([mc.causal(), mc.window(2)] * 2)),
        "score": Layer(mc.causal(), score=mc.scores.bias(), bias=TABLE),
        "dropout": Layer(mc.causal(), dropout_p=0.5, dropout_seed=7),
    }


ELSEWHERE = """
import sys, torch
from pathlib import Path
from maskc.integrations.torch import operators
operators()
for file in sorted(Path(sys.argv[1]).glob("*.pt2")):
    program = torch.export.load(file).module()
    for given, wanted in torch.load(file.with_suffix(".pt")):
        torch.testing.assert_close(program(*given), wanted, msg=lambda text: f"{file.stem}: {text}")
"""


@pytest.mark.usefixtures("soon_elsewhere")
def test_saved_programs_run_in_another_process(tmp_path: Path):
    given = [x.detach() for x in tensors(N)]
    with torch.no_grad():
        for number, (name, layer) in enumerate(layers().items()):
            program = torch.export.export(layer, tuple(given), strict=bool(number % 2))
            torch.export.save(program, tmp_path / f"{name}.pt2")
            torch.save([(given, layer(*given))], tmp_path / f"{name}.pt")
        counting = Counting()
        program = torch.export.export(counting, tuple(given), strict=True)
        torch.export.save(program, tmp_path / "written.pt2")
        torch.save([(given, counting(*given)) for _ in range(3)], tmp_path / "written.pt")
    subprocess.run([sys.executable, "-W", "ignore", "-c", ELSEWHERE, tmp_path], check=True)


@pytest.mark.parametrize("strict", [False, True])
def test_dynamic_lengths(strict: bool):
    inputs = tuple(x.detach() for x in tensors(N))
    tokens = torch.export.Dim("tokens", min=2, max=64)
    layer = Layer(mc.causal() & mc.window(3))
    program = torch.export.export(layer, inputs, dynamic_shapes=[{2: tokens}] * 3, strict=strict)
    other = [x.detach() for x in tensors(23, seed=5)]
    assert torch.equal(program.module()(*other), layer(*other))


def test_a_captured_buffer_that_nobody_follows_is_refused():
    given = tuple(x.detach() for x in tensors(N))
    with pytest.raises(Exception, match=r"MC420 mask .* is a buffer of the module"):
        torch.export.export(Counting(), given, strict=False)


@pytest.mark.usefixtures("soon_elsewhere")
def test_traced_programs_run_in_another_process(tmp_path: Path):
    given = [x.detach() for x in tensors(N)]
    layer = Layer(mc.causal() & mc.window(4))
    torch.jit.trace(layer, given).save(tmp_path / "traced.pt")
    torch.save((given, layer(*given)), tmp_path / "results.pt")
    code = """
import sys, torch
from maskc.integrations.torch import operators
operators()
given, wanted = torch.load(sys.argv[1] + "/results.pt")
torch.testing.assert_close(torch.jit.load(sys.argv[1] + "/traced.pt")(*given), wanted)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, tmp_path], check=True)


@pytest.mark.slow
def test_aot_inductor(tmp_path: Path):
    given = tuple(x.detach() for x in tensors(N))
    layer = Layer(MASKS["documents"], doc=IDS)
    with torch.no_grad():
        program = torch.export.export(layer, given)
        try:
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=str(tmp_path / "layer.pt2")
            )
        except Exception as error:
            if "InvalidCxxCompiler" in repr(error):
                pytest.skip("no C++ compiler for inductor")
            raise
        assert torch.equal(torch._inductor.aoti_load_package(path)(*given), layer(*given))


def test_onnx_says_why_not(monkeypatch: pytest.MonkeyPatch):
    import torch.onnx

    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    given = tuple(x.detach() for x in tensors(N))
    with pytest.raises(Exception, match=r"MC420 mask .* an ONNX program: it has no such operator"):
        torch.export.export(Layer(mc.causal()), given)


# ------------------------------------------------------------------ the text


def compiled(mask: mc.Mask, **options):
    return mask.compile(16, dtype="float32", target="cpu", **options)


@pytest.mark.parametrize(
    "mask",
    [
        mc.causal(), mc.window(mc.param("w", 3)), mc.documents("doc") & mc.causal(),
        mc.offsets([1, 2]), mc.topk(4, of=mc.causal()), mc.where(lambda q, k: HOST[q] == HOST[k]),
        mc.where(lambda q, k: q // 3 == k // 3),
    ],
    ids=str,
)  # fmt: skip
def test_a_text_gives_the_same_kernel(mask: mc.Mask):
    attn = compiled(mask)
    again = portable.from_graph(portable.to_graph(attn, "a program"))
    assert again.identity == attn.identity


def test_no_content_of_watched_tensors_is_in_the_text():
    table = torch.full((4096,), 123456)
    mask = mc.from_mask_mod(lambda b, h, q, k: table[k] > q)
    text = portable.to_graph(compiled(mask), "a program")
    assert "123456" not in text
    assert len(text) < 1000
    assert __file__ not in text


def test_what_is_no_text():
    bias = np.zeros((4, 4), np.float32)
    attn = compiled(mc.causal(), score=mc.score(lambda s, q, k: s + bias[q % 4, k % 4]))
    with pytest.raises(NotExported, match="arrays of NumPy"):
        portable.to_graph(attn, "a program")
    bare = type(attn)(attn.bundle, "cpu", inputs=attn.inputs)
    with pytest.raises(NotExported, match="a generated module"):
        portable.to_graph(bare, "a program")


@pytest.mark.parametrize("text", ["[]", "[1,2,3,4,5,6]", '["causal(",null,"cpu","m",null,null]'])
def test_a_damaged_text(text: str):
    with pytest.raises(StaleProgram, match="export the model again"):
        handles.named(text)
