"""Running the command line inside the test process."""

from __future__ import annotations

import json
from typing import Any

from click import Command
from click.testing import CliRunner, Result

from maskc.cli import main


def maskc(*words: object, code: int = 0) -> Result:
    """Run `maskc WORDS`; the exit code must be the expected one."""
    return invoked(main, "maskc", words, code)


def benchmarks(*words: object, code: int = 0) -> Result:
    """Run `python -m benchmarks WORDS`; the exit code must be the expected one."""
    from benchmarks.command import main as command

    return invoked(command, "python -m benchmarks", words, code)


def invoked(command: Command, name: str, words: tuple[object, ...], code: int) -> Result:
    """Run a command of this name."""
    done = CliRunner().invoke(command, [str(word) for word in words], prog_name=name)
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    if unexpected:
        raise done.exception
    assert done.exit_code == code, f"exit {done.exit_code}\n{done.stdout}\n{done.stderr}"
    return done


def maskc_json(*words: object, code: int = 0) -> Any:
    """The JSON document on stdout."""
    return json.loads(maskc(*words, "--json", code=code).stdout)
