// Interface of a mask policy. Every mask_*.cuh implements it, with a Side that is ByQuery or ByKey:
//   MaskRow, begin_row(kept)         state of a thread's two rows from tile to tile; reset for each
//                                    new row
//   prefetch_mask<Side>(p, at, row, first)                  early reads from memory for `visible`;
//                                    does nothing unless MASK_FETCHED
//   visible<Side>(p, at, row, first, kept, prefetched)      the columns that rows `row` and
//                                    `row` + 8 see of the tile that begins with column `first`;
//                                    `at`: head
//   MASK_EARLY                       evaluate before the WGMMA of a forward pass, when scores
//                                    occupy no registers; otherwise while the WGMMA runs
//   MASK_HEAVY                       evaluation needs so many registers that others are reloaded
// The result is a Visible; apply_mask of apply_mask.cuh hides the other columns.
// Needs: mask_row, Scores.

#include "common/lib/bits.cuh"

#include "common/lib/quad_columns.cuh"

#include MASK_POLICY

#include "sm90a/lib/apply_mask.cuh"
