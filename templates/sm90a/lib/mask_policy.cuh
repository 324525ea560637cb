// The interface of a mask policy. Every mask_*.cuh is one and gives, with a Side that is ByQuery or
// ByKey:
//   MaskRow, begin_row(kept)         what a thread keeps of its two rows from tile to tile; a new
//                                    one has begun a row
//   prefetch_mask<Side>(p, at, row, first)                  what visible needs from memory early;
//                                    nothing unless MASK_FETCHED
//   visible<Side>(p, at, row, first, kept, prefetched)      what rows `row` and `row` + 8 see of
//                                    the tile that begins with column `first`; `at`: which head
//   MASK_EARLY                       forward passes look before a product begins, while scores
//                                    need no registers; else the product runs meanwhile
//   MASK_HEAVY                       looking takes the registers in which other numbers could wait
// Visible is the answer, and apply_mask, of apply_mask.cuh, hides the rest.
// Needs: mask_row, Scores.

#include "common/lib/bits.cuh"

#include "common/lib/quad_columns.cuh"

#include MASK_POLICY

#include "sm90a/lib/apply_mask.cuh"
