"""Shared options and fixtures."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import cover, ledger, message_texts

# A slow machine must not fail a property: no test sets a deadline or health checks of its own.
settings.register_profile("suite", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("suite")

os.environ.setdefault("OMP_NUM_THREADS", "2")
# Threads that wait by spinning take the cores of other tests: three times as long on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Inductor else starts a process for each core, and parses headers for kernels that are a few lines.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
# JAX otherwise takes three quarters of a card's memory in each worker.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


OPTIONAL = frozenset({
    "accelerate", "anywidget", "attn_gym", "cuda", "cupy", "flax", "ipykernel", "jax", "matplotlib",
    "nbclient", "nbformat", "optax", "playwright", "proselint", "scipy", "sklearn", "statsmodels",
    "torch", "transformers",
})  # fmt: skip
"""Libraries whose absence skips the test files that import them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden texts")
    parser.addoption("--soon", action="store_true", help="without tests/golden/later.txt")
    parser.addoption("--thorough", action="store_true", help="all examples, C kernels by -O3")


def pytest_configure(config: pytest.Config) -> None:
    """Golden texts that are rewritten include what the compiler says, asked anew. Tests that need
    no GPU see none, so that they are the same on every machine: the emulator has CPU tensors."""
    if "not gpu" in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.getoption("--update-golden"):
        os.environ[ledger.WRITE] = os.environ[ledger.ANEW] = "1"
    if config.getoption("--thorough"):
        os.environ["MASKC_THOROUGH"] = "1"  # read by tests/support/thorough.py
    else:  # Inductor compiles by -O0, in a third of the time, and JAX in three quarters
        os.environ.setdefault("TORCHINDUCTOR_DEBUG_COMPILE", "1")
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


class _Module(pytest.Module):
    """A test file, skipped as a whole where it imports an optional library that is missing."""

    def _getobj(self) -> Any:
        try:
            return super()._getobj()
        except self.CollectError as error:
            cause = error.__cause__
            library = cause.name or "" if isinstance(cause, ModuleNotFoundError) else ""
            if library.partition(".")[0] in OPTIONAL:
                pytest.skip(f"needs {library}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


class _Backwards(pytest.Dir):
    """A folder whose last file is collected first."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return list(super().collect())[::-1]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """Every other process collects backwards. Of a fresh checkout each then rewrites the asserts of
    half of the files, and reads what the other has written of the rest."""
    backwards = os.environ.get("PYTEST_XDIST_WORKER", "")[-1:] in tuple("13579")
    return _Backwards.from_parent(parent, path=path) if backwards else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests to CI, and to `make matrix`, that the lists of tests/support/cover.py name."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.parts)  # alike in all processes
    nightly = cover.listed(cover.NIGHTLY) if cover.NIGHTLY.exists() else frozenset()
    for item in items:
        if cover.is_later(item.nodeid, nightly) and not config.getoption("--cover-to", None):
            item.add_marker(pytest.mark.matrix)
    if config.getoption("--soon"):
        later = cover.listed()
        waiting = [item for item in items if cover.is_later(item.nodeid, later)]
        config.hook.pytest_deselected(items=waiting)
        items[:] = [item for item in items if not cover.is_later(item.nodeid, later)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The ledger is put in order by the last process."""
    if ledger.WRITE in os.environ and not hasattr(session.config, "workerinput"):
        ledger.tidy()


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Tests, and libraries that earlier files loaded, stay to the end: the garbage collector need
    not look at them again and again. A collection, which benchmarks and torch ask for, else takes
    a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Builds go to a cache of this run, so that no test depends on an earlier one; processes that
    run tests side by side share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ.setdefault("MASKC_CACHE_DIR", str(folder / "binaries"))


@pytest.fixture(autouse=True, scope="session")
def _accepted_by_nvrtc() -> Iterator[None]:
    """NVRTC reads what the emulator builds, too, see tests/support/ledger.py. What the host sends
    to an emulated card ends with a page, so that a kernel which reads on crashes."""
    from maskc.testing.emulator import machine
    from tests.support.probe import fenced

    load = machine.loaded

    @cache
    def loaded(source: str, macros: tuple[str, ...], only: tuple[str, ...] = ()) -> Any:
        ledger.accept(source, macros)
        return load(source, macros, only)

    def send(_: Any, like: Any, host: Any) -> tuple[Any, int]:
        made = sys.modules["torch"].from_numpy(fenced(host))
        return made, made.data_ptr()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "loaded", loaded)
        patch.setattr(machine._Torch, "send", send)
        yield


@pytest.fixture(autouse=True)
def _compiled_soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """C kernels are not optimised as far as for users, see tests/support/thorough.py."""
    from maskc.build import hostcc
    from tests.support.thorough import soon

    if "shipped_flags" not in request.keywords:
        monkeypatch.setattr(hostcc, "FLAGS", soon(hostcc.FLAGS))


@pytest.fixture
def soon_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts optimise C kernels no further than this one."""
    from tests.support.thorough import compile_soon_elsewhere

    compile_soon_elsewhere(monkeypatch)


@pytest.fixture(autouse=True)
def _planned_anew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bundle comes from disk, as tests change how masks are planned; those marked
    `remembers_plans` are about just that."""
    if "remembers_plans" not in request.keywords:
        monkeypatch.setattr("maskc.build.bundles.remembered", lambda inputs, make: make())


@pytest.fixture(autouse=True)
def _nothing_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls build what they run and nothing else, in their own thread; those marked `builds_ahead`
    are about what else is built."""
    if "builds_ahead" not in request.keywords:
        monkeypatch.setattr("maskc.runtime.launch.ahead.start", lambda *jobs: None)


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compare a text with tests/golden/<name>; --update-golden accepts the new one."""
    folder = Path(__file__).parent / "golden"

    def compare(name: str, text: str) -> None:
        file = folder / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if not file.exists():
            pytest.fail(f"no golden text {name}: run pytest --update-golden and read the result")
        assert text == file.read_text(), f"{name} changed: --update-golden if that is meant"

    return compare


@pytest.fixture
def message(request: pytest.FixtureRequest):
    """Compare a text with a case of tests/messages/<file>.txt; --update-golden accepts the new
    one, in one process."""

    def compare(file: str, case: str, text: str) -> None:
        texts = message_texts.read(file)
        if request.config.getoption("--update-golden"):
            message_texts.write(file, texts | {case: text})
        else:
            assert text == texts.get(case), (
                f"{case} of {file}.txt: --update-golden if that is meant"
            )

    return compare


@pytest.fixture
def graphs() -> Iterator[Callable[[], int]]:
    """The number of graphs that torch.compile has made in the test so far."""
    import torch._dynamo

    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A compiled mask that tells what it was called with: what `torch_oracle.spied` gives."""
    import maskc as mc
    from tests.support.torch_oracle import DIM, DIM_V, SPIES, Spy

    made = Spy(mc.causal().compile(DIM, DIM_V, dtype="float32", target="cpu"))
    monkeypatch.setitem(SPIES, "current", made)
    return made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver that takes the place of a Hopper's, and notes what is built and launched."""
    from tests.support.fake_hopper import Machine

    return Machine(monkeypatch)
