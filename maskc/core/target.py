"""The machines kernels are generated for. A target is a row of this table and a template folder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from maskc.core.dtypes import DType
from maskc.core.errors import DTypeUnsupported, HeadDimUnsupported, TargetNotBuilt, UnknownTarget
from maskc.core.forms import STEMS
from maskc.core.problem import Direction, Problem
from maskc.core.score import reads

_HALF = (DType.bfloat16, DType.float16)
_LATER = "use target='simt', on any card, or 'sm_90a' on Hopper; tensors on the CPU have 'cpu'"


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths of rows that kernels support in some passes."""

    of_qk: int
    of_v: int
    directions: tuple[Direction, ...]
    """The passes that have such kernels."""

    @property
    def dims(self) -> tuple[int, int]:
        return self.of_qk, self.of_v


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel family's abilities and limits."""

    name: str
    """The name, as users write it and as it appears in generated file names."""
    family: str
    """Folder below templates/."""
    language: str
    """`c` or `cuda`."""
    dtypes: tuple[DType, ...]
    head_dims: tuple[int, ...]
    """Widths of rows that all kernels support, ascending, the same for q, k and v; see `padded`.
    Empty: every head dimension from 1 to `widest` has a kernel of its own."""
    directions: tuple[Direction, ...]
    """Passes with a template today."""
    shared_memory: int
    """Limit on the shared memory of a block, in bytes; 0 if there is none."""
    missing: str = ""
    """Why a pass is missing, for the error."""
    least_block: int = 0
    """The fewest keys that a run-time selection chooses together."""
    vectors: int = 16
    """CUDA: bytes that rows are read in, to whose multiples rows must be aligned; 0: elements."""
    oldest: int = 0
    """CUDA: the lowest compute capability, if it differs from the name."""
    scores: bool = False
    """Whether its kernels take score formulas."""
    drops: bool = False
    """Whether its kernels drop weights."""
    fp8_dims: tuple[int, ...] = ()
    """Head dimensions, of q, k and v alike, whose forward pass it has in E4M3 as well."""
    loads_pages: bool = False
    """Whether its kernels load keys and values from pages of pools."""
    pool_dims: tuple[int, ...] = ()
    """Widths of rows, of q, k and v alike, whose kernels convert pools of E4M3 on load; with
    `loads_pages`, a target without `head_dims` converts rows of all widths."""
    further: tuple[Widths, ...] = ()
    """Widths in addition to `head_dims`, of forms with the default's templates. Score formulas and
    pools of another dtype do not use equal ones: their kernels read rows in pieces of 32
    elements."""
    widest: int = 0
    """The largest head dimension of a target without `head_dims`."""

    @property
    def suffix(self) -> str:
        """File suffix of its sources."""
        return "c" if self.language == "c" else "cu"

    @property
    def capability(self) -> int:
        """CUDA: the least compute capability, or the only one, as 10 * major + minor."""
        return self.oldest or int(self.name.removeprefix("sm_").removesuffix("a"))

    def alignment(self, dtype: DType) -> int:
        """Bytes to whose multiples rows must be aligned; 1 on a CPU."""
        if self.language == "c":
            return 1
        return self.vectors or dtype.itemsize

    @staticmethod
    def named(name: str) -> Target:
        """The target of this name, or the one that serves this GPU architecture; see SERVED_BY.

        Raises:
            UnknownTarget: there is neither (MC502).
        """
        name = SERVED_BY.get(name, name)
        if name not in TARGETS:
            raise UnknownTarget(name, ", ".join(TARGETS), at="target")
        return TARGETS[name]

    def padded(
        self, problem: Problem, direction: Direction = Direction.forward, form: str = ""
    ) -> Problem:
        """Return the problem that kernels of a pass and form compute: head dimensions become the
        narrowest widths that they support.

        Tensors are not copied: loads fill the rest of each row with zeros in shared memory, and
        stores end where rows in memory end. If there is no such width, the problem is returned
        unchanged.
        """
        dims = (problem.head_dim, problem.head_dim_v)
        if problem.dtype is DType.float8_e4m3fn or min(dims) < 1 or any(x % PIECE for x in dims):
            return problem
        widths = [(dim, dim) for dim in self.head_dims]
        plain = problem.score is None and not problem.converts
        if form not in STEMS:
            more = (x for x in self.further if direction in x.directions)
            widths.extend(x.dims for x in more if plain or x.of_qk != x.of_v)
        wide_enough = (width for width in widths if width[0] >= dims[0] and width[1] >= dims[1])
        of_qk, of_v = min(wide_enough, key=sum, default=dims)
        return replace(problem, head_dim=of_qk, head_dim_v=of_v)

    def class_of(self, head_dim: int) -> int:
        """Return the narrowest of `head_dims` that holds rows of a width."""
        return next((dim for dim in self.head_dims if dim >= head_dim), head_dim)

    def lacks(self, problem: Problem) -> bool:
        """Whether it has no kernels for this dtype, these head dimensions, formulas of scores or
        dropout."""
        if (problem.score is not None and not self.scores) or (problem.dropout and not self.drops):
            return True
        if problem.dtype is DType.float8_e4m3fn:
            equal = problem.head_dim == problem.head_dim_v
            plain = problem.score is None and not problem.dropout
            return not (equal and plain and problem.head_dim in self.fp8_dims)
        known = self._has_widths(problem, Direction.forward)
        dims = (problem.head_dim, problem.head_dim_v)
        if self.head_dims and problem.score is not None and max(dims) > NARROW:
            # Gradients of tables keep sixteen keys of k and v in registers.
            known = known and not reads(problem.score.logit)
        return problem.dtype not in self.dtypes or not known

    def loads(self, problem: Problem) -> bool:
        """Whether its kernels load k and v from pages of the problem's pools, and convert them if
        they have another dtype. Rows of E4M3 have whole pieces of 16 bytes."""
        if not self.loads_pages or not problem.converts or not self.head_dims:
            return self.loads_pages
        padded, dims = self.padded(problem), (problem.head_dim, problem.head_dim_v)
        of_qk, of_v = padded.head_dim, padded.head_dim_v
        return of_qk == of_v and of_qk in self.pool_dims and not any(x % 16 for x in dims)

    def passes(self, problem: Problem) -> tuple[Direction, ...]:
        """The passes that it has kernels for."""
        if self.lacks(problem):
            return ()
        return tuple(x for x in self.directions if self._has_widths(problem, x))

    def _has_widths(self, problem: Problem, direction: Direction) -> bool:
        """Whether a pass has kernels for rows of these widths, after padding."""
        padded = self.padded(problem, direction)
        of_qk, of_v = padded.head_dim, padded.head_dim_v
        if not self.head_dims:
            return min(of_qk, of_v) >= 1 and max(of_qk, of_v) <= self.widest
        if padded.dtype is DType.float8_e4m3fn:
            return of_qk == of_v and of_qk in self.fp8_dims
        further = (x.dims for x in self.further if direction in x.directions)
        return (of_qk == of_v and of_qk in self.head_dims) or (of_qk, of_v) in further

    def shared_bytes_of(self, blocks: int) -> int:
        """Shared memory that each of so many blocks on a multiprocessor has at most, in bytes."""
        return (self.shared_memory + RESERVED_BYTES) // blocks - RESERVED_BYTES

    def serving(self, problem: Problem, chosen: int = 0) -> Target:
        """Return this target, or if it has no kernels for the problem, the first of SPARES that
        has. A card that runs this target also runs those.

        Args:
            chosen: fewest keys that the mask chooses together at run time, 0 for none.
        """
        spares = (TARGETS[name] for name in SPARES.get(self.name, ()))
        having = (
            target
            for target in (self, *spares)
            if not target.lacks(problem) and not target.lacks_choice(problem, chosen)
        )
        return next(having, self)

    def lacks_choice(self, problem: Problem, chosen: int) -> bool:
        """Whether its kernels cannot choose blocks of `chosen` keys at run time for these rows.
        Kernels that choose blocks need rows without padding, no longer than NARROW."""
        dims = problem.head_dim, problem.head_dim_v
        padded = chosen > 1 and (dims[0] not in self.head_dims or dims[0] != dims[1])
        return bool(self.head_dims and chosen and (padded or max(dims) > NARROW))

    def check(self, problem: Problem, direction: Direction = Direction.forward) -> None:
        """Raise the coded error for what this target cannot run."""
        if direction not in self.directions:
            raise TargetNotBuilt(self.name, direction.value, self.missing, _LATER, at="target")
        if problem.dtype is DType.float8_e4m3fn and self.fp8_dims:
            self._check_fp8(problem, direction)
        elif problem.dtype not in self.dtypes:
            known = ", ".join(kind.value for kind in self.dtypes)
            raise DTypeUnsupported(self.name, problem.dtype.value, known, at="dtype")
        if self.lacks(problem):
            raise self.no_such_dims(problem)

    def _check_fp8(self, problem: Problem, direction: Direction) -> None:
        """Raise an error for problems without E4M3 kernels."""
        what = direction.value if direction is Direction.backward else ""
        what = what or ("score" if problem.score is not None else "dropout" * problem.dropout)
        if what:
            why = "E4M3 has a forward pass, without score formulas and without dropout"
            hint = "convert q, k and v first: q.to(torch.bfloat16) * q_descale"
            raise TargetNotBuilt(self.name, f"{problem.dtype.value} {what}", why, hint, at="dtype")
        if self.lacks(problem):
            known = f"{', '.join(map(str, self.fp8_dims))} in E4M3, for q, k and v alike"
            dims = problem.head_dim, problem.head_dim_v
            raise HeadDimUnsupported(self.name, *dims, known, at="head_dim")

    def no_such_dims(self, problem: Problem, chosen: int = 0) -> HeadDimUnsupported:
        """The error for head dimensions that it has no kernels for."""
        dims = (problem.head_dim, problem.head_dim_v)
        known = f"1 to {self.widest}"
        if self.head_dims:
            known = f"multiples of {PIECE} up to {self.head_dims[-1]}"
        if self.further:
            wider = [x for x in self.further if x.of_qk > self.head_dims[-1]]
            known += "".join(f", and {x.of_qk} with {x.of_v} for v" for x in wider)
        if chosen:
            widths = [dim for dim in self.head_dims if dim <= NARROW]
            known = f"{', '.join(map(str, widths))} where blocks of keys are chosen at run time"
            if chosen == 1:
                known = f"multiples of {PIECE} up to {NARROW} where keys are chosen at run time"
        return HeadDimUnsupported(self.name, *dims, known, at="head_dim")


RESERVED_BYTES = 1024
"""Bytes of a block's shared memory that the system takes."""
PIECE = 8
"""Elements of 16 bytes in half precision, which tensor cores' kernels copy at once."""
NARROW = 256
"""The longest rows of out that one warp of tensor cores' kernels has; two share longer ones
(sm_80), and keys are not chosen among such at run time."""
SPARE = "simt"
"""Substitute for dtypes and head dimensions that tensor cores do not support."""
SPARES = {"sm_90a": ("sm_80", SPARE), "sm_80": (SPARE,)}
"""Substitutes for a target that lacks a problem; the first that has it is used."""

_BOTH = (Direction.forward, Direction.backward)
_OWN_WIDTHS = (
    *(Widths(dim, dim, _BOTH) for dim in (48, 80, 112, 160)),
    *(Widths(dim, dim, (Direction.forward,)) for dim in (144, 176, 208, 224, 240)),
)
"""Hopper: widths whose products have no columns of zeros. WGMMA takes 16 columns of q and k at a
time. In backward passes, warpgroups divide dq by columns, 16 at a time."""

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "cpu", "cpu", "c", (DType.float32, *_HALF), (), _BOTH, 0, least_block=1,
            scores=True, drops=True, loads_pages=True, widest=576,
        ),
        Target(
            "sm_80", "sm80", "cuda", _HALF, (32, 64, 96, 128, 192, 256, 512),
            _BOTH, 99 * 1024, least_block=16, scores=True, drops=True, loads_pages=True,
            pool_dims=(32, 64, 96, 128, 192, 256),
            further=(Widths(576, 512, (Direction.forward,)),),
        ),
        Target(
            "sm_90a", "sm90a", "cuda", _HALF, (32, 64, 96, 128, 192, 256), _BOTH, 227 * 1024,
            least_block=16, scores=True, drops=True, fp8_dims=(64, 128, 256), loads_pages=True,
            pool_dims=(32, 64, 96, 128, 192, 256),
            further=(Widths(192, 128, _BOTH), *_OWN_WIDTHS),
        ),
        Target(
            "simt", "simt", "cuda", (DType.float32, *_HALF), (), _BOTH, 48 * 1024,
            least_block=1, vectors=0, oldest=70, scores=True, drops=True, widest=512,
        ),
    )
}  # fmt: skip

_AMPERE_ON = ("86", "87", "88", "89", "100", "101", "103", "110", "120", "121")

SERVED_BY: dict[str, str] = {
    **dict.fromkeys(("sm_70", "sm_72", "sm_75"), SPARE),
    "sm_90": "sm_90a",
    **{f"sm_{number}": "sm_80" for number in _AMPERE_ON},
    **{f"sm_{number}{kind}": "sm_80" for number in _AMPERE_ON[4:] for kind in "af"},
}
"""GPU architectures without kernels of their own -> the target whose kernels run there."""
