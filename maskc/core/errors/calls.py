"""Mistakes at call time: lengths and data (MC3xx), tensors and options (MC4xx)."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class DataMissing(MaskcError):
    """A call leaves out an array or a parameter that the mask names."""

    code = "MC301"
    message = "the mask needs {0!r} ({1}), which was not given"
    hint = "pass it by name: attn(q, k, v, {0}=...)"


class DataUnknown(MaskcError):
    """A call passes a keyword that is neither an option nor data of the mask."""

    code = "MC302"
    message = "the mask has no data or parameter named {0!r}; it has: {1}"
    hint = "{2}"


class DataShape(MaskcError):
    """An array of the mask has the wrong shape."""

    code = "MC303"
    message = "{0!r} has shape {1}, expected {2}"
    hint = "lengths must match q and k; the array may have leading batch and heads dimensions"
    hint_at = 3


class DataType(MaskcError):
    """An array of the mask has the wrong element type."""

    code = "MC304"
    message = "{0!r} has dtype {1}, expected {2}"
    hint = "convert it first, for example with x.long() or x.bool(); maskc never rounds silently"


class DataRange(MaskcError):
    """A value of the data, or a formula over it, is out of range."""

    code = "MC305"
    message = "{0!r}: {1}"
    hint = "{2}"


class BadLength(MaskcError):
    """A number of queries or keys is not an integer, or out of range."""

    code = "MC306"
    message = "{0} must be an integer in 0..{1}, found {2}"
    hint = "pass a number of tokens as an int"


class BadBlock(MaskcError):
    """The tile size of a layout is not two integers in range."""

    code = "MC307"
    message = "block must be two integers in 1..65536, found {0}"
    hint = "pass for example block=(128, 128)"


class TooManyTiles(MaskcError):
    """A layout would have more live tiles than its 32-bit lists can hold."""

    code = "MC308"
    message = "the layout has {0} live tiles, more than 2^30"
    hint = "use larger tiles, or shorter lengths"


class TooMuchWork(MaskcError):
    """A call has more work items than a launch can have."""

    code = "MC309"
    message = "the call has {0} work items, more than the limit of {1}"
    hint = "split the batch into several calls"


class OneOfSeveral(MaskcError):
    """A layout describes one head of one sequence, and the caller does not say which."""

    code = "MC310"
    message = "the {0} of this mask have different layouts"
    hint = "select one with {1}"


class DenseTooLarge(MaskcError):
    """A dense mask does not fit into memory."""

    code = "MC311"
    message = "a mask of {0} x {1} pairs does not fit into memory"
    hint = "count() and layout() need no dense mask; head= and batch= select one of several"


# ---------------------------------------------------------------- tensors and options


class BadShape(MaskcError):
    """A tensor of the call has the wrong shape."""

    code = "MC401"
    message = "{0} has shape {1}, expected {2}"
    hint = "q is [B, Hq, Nq, D], k is [B, Hkv, Nkv, D], v is [B, Hkv, Nkv, Dv]"
    hint_at = 3


class PiecesDiffer(BadShape):
    """Pieces that `mc.merge` joins do not have the shapes of one call's results."""

    code = "MC425"
    message = "{0} has shape {1}, expected {2}"
    hint = (
        "pieces are results of mc.attention: out [B, H, N, Dv], or tokens first "
        "([B, N, H, Dv], [N, B, H, Dv] or [tokens, H, Dv]), and lse [B, H, N] or [H, tokens]"
    )


class WrongRank(BadShape):
    """q, k or v has another number of dimensions than four."""

    code = "MC441"
    message = "{0} has shape {1}, expected four dimensions"
    hint = (
        "q is [B, Hq, Nq, D]: q[None] adds a dimension; mc.scaled_dot_product_attention also takes "
        "[H, N, D] and [N, D], and mc.attention(cu_seqlens_q=) packed tokens [tokens, H, D]"
    )


class HeadsDoNotDivide(MaskcError):
    """The query heads are not a multiple of the key/value heads."""

    code = "MC402"
    message = "q has {0} heads and k has {1}: the first must be a multiple of the second"
    hint = (
        "grouped-query attention shares each key/value head among Hq / Hkv query heads; tensors "
        "[B, N, H, D] need layout='bshd'"
    )


class WrongDType(MaskcError):
    """A tensor has another dtype than the kernel."""

    code = "MC403"
    message = "{0} is {1}, but this kernel {2}"
    hint = "{3}"


class WrongDevice(MaskcError):
    """A tensor is on another device than the kernel's target."""

    code = "MC404"
    message = "{0} is on {1}, but {2} runs on {3}"
    hint = "move the tensor, or compile for the other target"


class NotContiguous(MaskcError):
    """The last dimension of a tensor is not contiguous."""

    code = "MC405"
    message = "the last dimension of {0} has stride {1}, it must be 1"
    hint = "call .contiguous() or np.ascontiguousarray; other strides are free"


class NotPositions(MaskcError):
    """`at` is not a result of mc.positions, or is given together with `align`."""

    code = "MC492"
    message = "{0}: at must be mc.positions(q=..., k=...), {1}"
    hint = 'mc.causal(at=mc.positions(q="q_idx", k="k_idx")); calls give q_idx=... and k_idx=...'


class NotAnArray(MaskcError, TypeError):
    """An argument is not an array."""

    code = "MC406"
    message = "{0} is {1:a}, not an array"
    hint = "pass a torch, CuPy or NumPy array, or anything with __dlpack__"
    hint_at = 2


class MaskedValues(NotAnArray):
    """A masked array of NumPy has masked entries, which kernels would read as values."""

    code = "MC444"
    message = "{0} is a masked array; masked entries: {1}"
    hint = (
        "x.filled(value) is an array; tokens that do not count belong to the mask: "
        'mc.flags("kept") keeps keys, called with kept=~x.mask'
    )


class BadOption(MaskcError):
    """An option of a call has a value that it does not accept."""

    code = "MC407"
    message = "{0} must be {1}, found {2}"
    hint = "see help(maskc.attention) and help(maskc.CompiledMask.__call__)"
    hint_at = 3


class TensorTransformed(BadOption):
    """A tensor of a call is under a transform of torch.func, which kernels would ignore."""

    code = "MC652"
    message = "{0} must be an untransformed tensor, found one under {1}"
    hint = (
        "call attention outside of vmap, with the mapped dimension as the batch dimension; take "
        "gradients with loss.backward() or torch.autograd.grad"
    )
    hint_at = 2


class Misaligned(MaskcError):
    """A tensor's address or strides are not multiples of 16 bytes, as tensor-core kernels need.

    Target simt needs multiples of an element.
    """

    code = "MC408"
    message = "the address or strides of {0} are not multiples of {1} bytes"
    hint = "call .contiguous() on it, slice at multiples of 8 elements, or use target='simt'"


class NotAddressable(MaskcError):
    """The tensor copy engine (TMA) cannot read this tensor."""

    code = "MC409"
    message = "{0}: target {1} cannot copy tiles of it, because {2}"
    hint = "call .contiguous() on it, or use target='sm_80'"


class TooFewMultiprocessors(MaskcError):
    """A deterministic backward pass needs more multiprocessors than the stream has."""

    code = "MC410"
    message = (
        "deterministic=True needs {0} multiprocessors at a time for this mask, and the stream "
        "may use {1}"
    )
    hint = (
        "use a stream of the whole device instead of a green context, or pass deterministic=False"
    )


class MixedLibraries(MaskcError, TypeError):
    """Arrays of two libraries are combined where gradients or results would be lost."""

    code = "MC411"
    message = "{0} is {1:a}, and {2} is {3:a}"
    hint = "convert one of them to the other library"


class ShardedTensor(MaskcError):
    """A torch tensor is a DTensor. Several ranks hold it, and a kernel sees only its own rank."""

    code = "MC424"
    message = "{0} is a DTensor"
    hint = (
        "pass {0}.full_tensor(), or {0}.to_local() where this rank needs its own part alone; "
        "mc.distributed.attention takes q, k and v that are sharded along their tokens"
    )


class NoGradient(MaskcError):
    """Data of a mask require grad, and what a mask keeps has no derivative."""

    code = "MC412"
    message = "{0} requires grad, but which pairs a mask keeps has no gradient with respect to it"
    hint = "pass {0}.detach(); scores that topk ranks by can be trained with indexer_loss=True"


class NothingSelected(MaskcError):
    """A call requests a selection, or its training, from a mask that selects nothing."""

    code = "MC460"
    message = "{0}=True needs a mask with a run-time selection, and this one has none"
    hint = "leave it out, or select keys with mc.topk"


class SelectionNotListed(MaskcError):
    """Kernels that select keys one by one store no list of them."""

    code = "MC461"
    message = "the kernels of target {0} select these keys on the fly and store no list of them"
    hint = "compile the mask for target='simt', or for 'cpu' with tensors on the CPU"


class AlphaWithoutGradient(MaskcError):
    """alpha requires grad, but a generated module does not store which keys were selected."""

    code = "MC463"
    message = (
        "the gradient of alpha needs a list of the selected keys, and the kernels of target {0}"
        " store none"
    )
    hint = "call mask.compile(...) instead of a generated module, or pass alpha.detach()"


class NoIndexerLoss(MaskcError):
    """The indexer's loss is not defined for this ranking."""

    code = "MC462"
    message = "indexer_loss trains a ranking by tensors of the call, and {0}"
    hint = "rank single keys with mc.topk(..., score='indexer') or score='given'"


class BadPages(MaskcError):
    """An argument of `mc.paged`, its plan or its run does not fit pages and sequences."""

    code = "MC464"
    message = "{0} must be {1}, found {2}"
    hint = "see help(maskc.paged)"


class BadPageTable(MaskcError):
    """A sequence has more keys than its plan or its pages hold, or fewer keys than queries.

    Arrays on a GPU are checked with MASKC_CHECK=1 only."""

    code = "MC465"
    message = "sequence {0}: {1}"
    hint = "give it more pages, raise max_seqlen_kv, or correct its lengths"


class PageOutOfPool(BadPageTable):
    """With MASKC_CHECK=1: an entry of a page table is not a page of the pool."""

    code = "MC660"
    message = "sequence {0}: entry {1} of its page table is {2}, and the pool has pages 0 to {3}"
    hint = (
        "kernels read zeros for entries outside of the pool; unset MASKC_CHECK to run without "
        "this check"
    )


class PageTwice(BadPageTable):
    """With MASKC_CHECK=1: a page table names one page twice for one sequence."""

    code = "MC661"
    message = "sequence {0}: entries {1} and {2} of its page table are both page {3}"
    hint = "give every run of page_size tokens a page of its own"


class PageNotShared(BadPageTable):
    """A sequence has its shared keys in other pages than the longest sequence.

    Arrays on a GPU are checked with MASKC_CHECK=1 only."""

    code = "MC667"
    message = (
        "sequence {0}: entry {1} of its page table is page {2}, and shared keys are in page {3}"
    )
    hint = "count as shared_keys only keys whose pages all sequences have"


class PageFreed(BadPageTable):
    """PagedPlan.check found a page that its caller says is free."""

    code = "MC662"
    message = "sequence {0}: entry {1} of its page table is page {2}, which is free"
    hint = "take the page from the free list before a plan names it"


class SlotTwice(MaskcError):
    """With MASKC_CHECK=1: two new tokens would be written into one slot of a pool."""

    code = "MC663"
    message = "rows {0} and {1} of k go to one slot: page {2}, token {3} of the page"
    hint = "copy a page that sequences share before one of them writes into it"


class BadRanges(MaskcError):
    """Ranges of from_flashmask or slices have a wrong shape or an impossible value."""

    code = "MC664"
    message = "{0} must be {1}, found {2}"
    hint = "see help(maskc.from_flashmask) and help(maskc.slices)"


class NotPaged(MaskcError):
    """A mask or score formula cannot be evaluated at the positions of paged sequences."""

    code = "MC466"
    message = "mc.paged has no kernel for this mask or score: it {0}"
    hint = (
        "documents, flags, intervals, positions and trees have an entry per token; gather the keys "
        "and call mc.attention for other data"
    )


class NestedTensor(MaskcError):
    """A torch tensor is nested: it holds sequences of different lengths."""

    code = "MC413"
    message = "{0} is a nested tensor"
    hint = (
        "pack the sequences into one, [1, heads, tokens, dim], and compile mask & "
        "mc.documents('doc'), called with doc=mc.cu_seqlens({0}.offsets())"
    )


class NotExported(MaskcError):
    """A call inside an exported or recorded program cannot be serialized."""

    code = "MC420"
    message = "attention cannot be a part of {0}: {1}"
    hint = "{2}"


class StaleProgram(MaskcError):
    """A saved program holds a mask that another version of maskc wrote."""

    code = "MC421"
    message = "the mask of this program was written by another version of maskc, or was changed"
    hint = "export the model again"


class NotPicklable(MaskcError, TypeError):
    """A pattern was defined inside a function, where no other process can find it."""

    code = "MC414"
    message = "pattern {0} cannot be pickled, because it is defined inside {1}"
    hint = "define it at the top level of a module or of a pattern file, or pickle its mask, {0}()"


class StalePickle(MaskcError):
    """A pickle comes from another version of maskc and does not hold its mask."""

    code = "MC415"
    message = "{0} was pickled by another version of maskc, without its mask"
    hint = "compile the mask again, or generate the module again"


class ScoreTable(MaskcError):
    """A table or parameter of a score formula does not fit the formula."""

    code = "MC416"
    message = "{0!r} is {1}, expected {2}"
    hint = "the formula is {3}"


class ScoreIndex(MaskcError):
    """An index of a score formula exceeds its table, whatever the mask keeps."""

    code = "MC417"
    message = "{0!r} has {1} entries along dimension {2}, and {3} runs over {4}"
    hint = "pass a larger table, or one with a single entry there, which then broadcasts"


class ScoreOption(MaskcError):
    """An option of a call is combined with a score formula."""

    code = "MC418"
    message = "{0} cannot be combined with score=: their order would be ambiguous"
    hint = "write it in the formula: {1}"


class ScoreNotRun(MaskcError):
    """No kernel runs the score formula with this mask, target or machine."""

    code = "MC419"
    message = "no kernel runs this score formula: {0}"
    hint = "{1}"


class DropoutRate(MaskcError):
    """The dropout rate is not a number in 0 .. 1."""

    code = "MC430"
    message = "{0} must be a number in 0 .. 1, found {1}"
    hint = "0.1 drops a tenth of the weights and multiplies the others by 1 / 0.9"


class DropoutSeed(MaskcError):
    """The dropout seed is missing or not an integer."""

    code = "MC431"
    message = "the dropout seed is {0}"
    hint = "{1}"


class DropoutNotRun(MaskcError):
    """No kernel runs dropout with this mask, module or machine."""

    code = "MC432"
    message = "no kernel runs dropout here: {0}"
    hint = "{1}"


class NotAnAttnMask(MaskcError, TypeError):
    """attn_mask of `mc.scaled_dot_product_attention` is not an array of booleans or numbers."""

    code = "MC437"
    message = "attn_mask must hold booleans or floating-point numbers, found {0}"
    hint = "{1}"


class DTypesDiffer(WrongDType):
    """q, k and v of a call have different dtypes."""

    code = "MC438"
    message = "q is {0}, and {1} is {2}"
    hint = "convert one to the dtype of the other; torch.autocast converts all three"


class ArgumentsByPlace(MaskcError, TypeError):
    """Positional arguments follow the mask of a call, where only keywords are accepted."""

    code = "MC439"
    message = "{0} takes q, k, v and mask by position, but got {1} more"
    hint = (
        "pass them by name, for example scale=0.1; mc.scaled_dot_product_attention takes "
        "PyTorch's arguments in PyTorch's order"
    )


class LengthsNotIds(DataShape):
    """Documents were given as lengths, or as cumulative lengths that are not marked as such."""

    code = "MC440"
    message = "{0!r} has shape {1}, expected {2}; its values {3}"
    hint = "{4}"
    hint_at = 4


class MaskCalled(MaskcError, TypeError):
    """A mask was called like a function or a module."""

    code = "MC442"
    message = "a mask is a set of pairs, not a function"
    hint = "mc.attention(q, k, v, mask) is a call; mask.compile(head_dim=64) gives a function"


class MaskIndexed(MaskcError, TypeError):
    """A mask was indexed or iterated over like a matrix."""

    code = "MC447"
    message = "a mask is a set of pairs for any lengths, not a matrix"
    hint = "mask.dense(n) is the matrix of booleans for n tokens, mask.layout(n) that of tiles"


class IntegersUnread(MaskcError):
    """A table of 64-bit integers is on a GPU, where maskc cannot check that it fits 32 bits.

    Kernels read int32, and the host checks that the integers fit when a tensor is new. It cannot do
    so while a CUDA graph is captured, nor if nothing counts the writes to the array: arrays of CuPy
    or JAX, or tensors made in inference mode.
    """

    code = "MC443"
    message = "{0!r} is {1} on a GPU, and the host cannot check here that it fits 32 bits"
    hint = "pass it as int32: x.int() of a torch tensor, x.astype('int32') of a CuPy array"


class ReadInGraph(MaskcError):
    """The host would have to read an array on a GPU while a CUDA graph is being captured.

    A replay would not repeat what the host does. docs/language.md lists the data that the host
    reads, such as key lists; they may lie in host memory.
    """

    code = "MC445"
    message = "the host must read {0!r}, and cannot while a CUDA graph is being captured"
    hint = "pass it in host memory, for example x.cpu(); replays then use the values of the capture"


class SubclassNotRun(NotAnArray):
    """A tensor is of a type that runs operators by itself, and refused to run attention."""

    code = "MC446"
    message = "{0} is {1:a}, and this type of tensor cannot run attention with the other arrays"
    hint = (
        "pass a plain torch.Tensor; make all FakeTensors of a call in one FakeTensorMode; pass a "
        "MaskedTensor as x.get_data(), and what it masks by the mask, for example mc.flags"
    )


class NotRecorded(MaskcError):
    """A call cannot become part of a program that JAX compiles for a GPU."""

    code = "MC480"
    message = "this call cannot run inside a program that JAX compiles: {0}"
    hint = (
        "pass data as integer or boolean arrays on the device; if the host must select keys, "
        "call the compiled mask with torch or CuPy arrays, outside jax.jit"
    )


class NotTraced(MaskcError, TypeError):
    """A call with JAX arrays has an argument that JAX cannot trace, or a tracer for a value."""

    code = "MC481"
    message = "{0} is {1}"
    hint = "{2}"


class OnlyOneDerivative(MaskcError, TypeError):
    """JAX requested a derivative of the gradients of attention."""

    code = "MC482"
    message = "the gradients of attention have no derivative"
    hint = "jax.grad and jax.vjp work once; jax.hessian and jax.jacfwd do not"


class NoRunner(MaskcError):
    """The library that runs kernels inside XLA programs cannot be built or loaded."""

    code = "MC483"
    message = "JAX cannot run maskc's kernels: {0}"
    hint = "install jaxlib with its headers and, for GPUs, an NVIDIA driver for CUDA 12 or later"


class NotASplashMask(MaskcError, TypeError):
    """`from_splash` got something that is not a mask of Splash attention."""

    code = "MC484"
    message = "cannot read {0} as a Splash attention mask"
    hint = (
        "use CausalMask, LocalMask, ChunkedCausalMask, FullMask, NumpyMask, MultiHeadMask, & "
        "and | of these, or boolean arrays; write others with mc.where(lambda q, k: ...)"
    )
