"""Attention of sequences whose keys and values lie in pages of a pool: `mc.paged`.

A plan holds the positions of the tokens of one step, and the pages of their keys; all layers of the
step share it. One launch makes it on the GPU that holds the page table, NumPy makes it on a CPU.
Kernels work on *blocks* of queries: the queries of a sequence are divided into blocks of one size.
In a launch, blocks are the sequences, each with its own positions.

- `paged_attention`: the compiled mask, with `plan`, `run` and `append`.
- `paged_plan`: the arrays of a step.
- `step_tables`: the tables that a caller passes.
- `step_checks`: checks of lengths, pages and slots on the host.
- `shared`: keys that all sequences have in the same pages.
- `pools`: shapes, dtypes and scales of pools.
- `parts`: the launches of a run.
- `appending`: the arguments of `append`.
"""

from maskc.paging.paged_attention import PagedAttention as PagedAttention
from maskc.paging.paged_attention import paged as paged
from maskc.paging.paged_plan import PagedPlan as PagedPlan
