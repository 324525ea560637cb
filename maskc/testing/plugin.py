"""The pytest plugin that comes with maskc: a fixture, and options for all tests that use it.

    def test_my_masks(maskc_check):
        maskc_check("my_masks.py")

`pytest --maskc-examples 200 --maskc-target sm_90a --maskc-seed 1` sets what tests leave open. A
wrong kernel fails the test with the smallest case that shows it, as a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from os import PathLike

    from maskc.dsl.mask import Mask
    from maskc.dsl.pattern import Pattern


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what the fixture leaves to the command line."""
    group = parser.getgroup("maskc", "property tests of attention masks")
    group.addoption(
        "--maskc-examples", type=int, metavar="N",
        help="cases that each mask is tried in (default: 20)",
    )  # fmt: skip
    group.addoption("--maskc-target", metavar="T", help="cpu, simt, sm_80, sm_90a; this machine's")
    group.addoption("--maskc-seed", type=int, metavar="N", help="of all cases (default: 0)")


@pytest.fixture(scope="session")
def maskc_check(pytestconfig: pytest.Config) -> Callable[..., int]:
    """`maskc.testing.check` with the options of the command line.

    It takes a mask, a pattern, or the path of a pattern file, and the arguments of
    `maskc.testing.check`; these stand above the command line's. A path that is not absolute starts
    from the folder of pytest's configuration file where the working directory has no such file.
    """
    asked = {
        name: value for name in ("examples", "target", "seed")
        if (value := pytestconfig.getoption(f"--maskc-{name}")) is not None
    }  # fmt: skip

    def checked(mask: Mask | Pattern[...] | str | PathLike[str], **options: Any) -> int:
        __tracebackhide__ = True
        from os import PathLike, path

        from maskc.core.errors import MaskcError
        from maskc.testing import check

        if isinstance(mask, (str, PathLike)) and not path.exists(mask):
            mask = pytestconfig.rootpath / mask
        try:
            return check(mask, **{**asked, **options})
        except MaskcError as error:
            pytest.fail(str(error), pytrace=False)

    return checked
