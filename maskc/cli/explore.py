"""maskc explore: the mask as a page that shows it to its last pair."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from maskc.cli.entries import MaskEntry, entries
from maskc.cli.given import Arrays, names
from maskc.cli.options import (
    KernelOptions,
    data_options,
    length_options,
    mask_source,
    problem_options,
    single,
)
from maskc.cli.output import done, echo, now, write_file
from maskc.core.errors import UsageMistake
from maskc.core.selection import SCORING, Score

if TYPE_CHECKING:
    from maskc.lab.explorer.page_model import Shown


@click.command(short_help="Zoom into the mask in a browser, down to single pairs.")
@mask_source
@click.option(
    "-o", "--output", metavar="PAGE", help="Write one *.html file that needs nothing else."
)
@click.option(
    "--with", "other", metavar="E", help="Compare with this expression, or pattern's name."
)
@click.option(
    "--ranks", type=click.IntRange(2, 4096), metavar="R",
    help="Show which pairs are local to one of R ranks, and which keys must be sent.",
)  # fmt: skip
@problem_options
@length_options("long enough to show the mask's shape")
@data_options(None)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="P",
    help="Port to listen on.  [default: a free one]",
)  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
def explore(
    entries: list[MaskEntry],
    output: str | None,
    other: str | None,
    ranks: int | None,
    asked: KernelOptions,
    n: int | None,
    n_kv: int | None,
    arrays: Arrays,
    port: int,
    no_browser: bool,
) -> None:
    """Show the mask of FILE in the browser: every pair, why it is live, its source line and its
    cost.

    Without -o a server on 127.0.0.1 shows the page until Ctrl-C, to everybody on this machine who
    has the printed address. Nothing leaves this machine. Sliders in the page change lengths and
    parameters.
    """
    if len(entries) != 1:
        names = ", ".join(entry.name for entry in entries)
        raise UsageMistake(f"FILE has several patterns: {names}", "choose one", at="--pattern")
    make = Models(entries[0], other, asked, arrays, n, n_kv, ranks)
    if output is not None:
        _write(make, Path(output))
        return
    from maskc.lab.explorer.server import ExplorerServer

    server = ExplorerServer(lambda query: make(query, served=True), port)
    echo(server.url)
    if not no_browser:
        import webbrowser

        webbrowser.open(server.url)
    echo("Ctrl-C stops", err=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        echo("stopped", err=True)


def _write(make: Models, path: Path) -> None:
    from maskc.lab.explorer.page import html

    if path.suffix.lower() not in (".html", ".htm"):
        hint = "the page is one file, for example -o mask.html"
        raise UsageMistake(f"{str(path)!r} is not *.html", hint, at="-o")
    now(f"exploring {make.entry.name}")
    text = html(make({}))
    done()
    write_file(path, text)
    echo(str(path))


@dataclass(frozen=True)
class Models:
    """Makes the page's model, for other settings too."""

    entry: MaskEntry
    other: str | None
    """The pattern name or expression to compare with."""
    asked: KernelOptions
    arrays: Arrays
    n: int | None
    n_kv: int | None
    ranks: int | None = None

    def __call__(self, query: dict[str, list[str]], served: bool = False) -> dict[str, Any]:
        """The model for a query: set=NAME=VALUE, with=E, n, n_kv."""
        from maskc.core.target import Target
        from maskc.lab.explorer.page_model import page_model
        from maskc.viz.shown_lengths import showing

        entry = self._entry(query.get("set", []))
        heads = self.asked.heads_for(entry.mask)
        n_q, n_kv = self._lengths(query) or showing(entry.mask, heads, entry.params)
        problem = self.asked.problem(entry.mask)
        target = Target.named(single(self.asked.targets) or "sm_90a")
        other = query["with"][0] if query.get("with") else self.other
        shown = self._shown(entry, heads, n_q, n_kv)
        compared = None
        if other:
            compared = self._shown(_one(other), heads, n_q, n_kv, frozenset(shown.labels))
        model = page_model(
            shown, n_q, n_kv, problem=problem, target=target,
            other=compared, served=served, quick=served and not query,
        )  # fmt: skip
        if self.ranks is not None:
            model["ranks"] = _held(entry, shown, n_q, n_kv, self.ranks, self.asked)
        return model

    def _entry(self, settings: list[str]) -> MaskEntry:
        if not settings:
            return self.entry
        pattern = self.entry.pattern
        if pattern is None:
            raise UsageMistake("only a pattern has settings", "write a new expression", at="set")
        changed = dict(self.entry.settings)
        for text in settings:
            name, _, value = text.partition("=")
            changed[name] = value
        return replace(self.entry, mask=pattern.with_text(changed), settings=changed)

    def _lengths(self, query: dict[str, list[str]]) -> tuple[int, int] | None:
        try:
            return int(query["n"][0]), int(query["n_kv"][0])
        except (KeyError, ValueError):
            return None if self.n is None or self.n_kv is None else (self.n, self.n_kv)

    def _shown(
        self, entry: MaskEntry, heads: int | None, n_q: int, n_kv: int,
        taken: frozenset[str] = frozenset(),
    ) -> Shown:  # fmt: skip
        """Return the model of a mask; `taken` are parameters of the mask it is compared with."""
        from maskc.lab.explorer.page_model import Shown
        from maskc.lab.explorer.sliders import movable, movable_mask

        if entry.pattern is None:
            made = movable_mask(entry.mask, taken)
        else:
            made = movable(entry.pattern, entry.pattern.read(entry.settings), heads, taken)
        source = shlex.split(entry.source)[-1]  # a path, a name, or what follows --expr
        labels = {n: f"{x} of {entry.name}" if taken else x for n, x in made.labels.items()}
        made_up = tuple(
            name for name in names(entry)
            if name not in self.arrays.given and name not in SCORING[Score.indexer]  # not shown
        )  # fmt: skip
        return Shown(
            entry.name, made.mask, "" if entry.title == entry.name else entry.title, source,
            self.arrays.of(entry, n_q, n_kv), made_up, labels, made.stuck, entry.settings,
            entry.mask,
        )  # fmt: skip


def _held(
    entry: MaskEntry, shown: Shown, n_q: int, n_kv: int, ranks: int, asked: KernelOptions
) -> dict[str, Any]:
    """Who holds which tokens, and how many travel to each rank.

    Raises:
        UsageMistake: there are not as many queries as keys.
    """
    from maskc import distributed

    if n_q != n_kv:
        hint = "ranks share one sequence: leave --n-kv out"
        raise UsageMistake(f"--ranks: {n_q} queries and {n_kv} keys", hint, at="--ranks")
    heads = asked.heads_for(entry.mask) or 16
    sizes = heads, heads, asked.head_dim
    made = distributed.plan(
        {entry.name: entry.mask}, n_q, ranks, heads=sizes, data=dict(shown.data)
    )
    (layer,) = made.layers.values()
    return {
        "n": n_q, "ranks": ranks, "edges": layer.layout.edges.tolist(),
        "owner": layer.layout.owner.tolist(), "halo": layer.received.tolist(),
    }  # fmt: skip


def _one(text: str) -> MaskEntry:
    """The mask that --with names: a published pattern, or an expression; no file is run."""
    from maskc import patterns

    if text in patterns.names():
        return entries(text, None, (), None)[0]
    return replace(
        entries(None, text, (), None)[0], name="other", title="other", source=shlex.quote(text)
    )
