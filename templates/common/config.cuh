#pragma once
// Prelude of every GPU config header of an attention kernel: the argument block, the integer types
// of formulas, and the two sides of a mask.

#define FN __device__ __forceinline__
typedef unsigned int u32;
#define MINUS_INFINITY __int_as_float(0xff800000)
#define PLUS_INFINITY __int_as_float(0x7f800000)

#include "common/lib/arguments.h"

#include "common/lib/features.h"

#include "common/lib/integers.h"
#include "common/lib/formulas.h"
#include "common/lib/mask_words.h"
#include "common/lib/bounds.h"

#include "common/lib/mask_sides.cuh"

#if WITH_SCORE
// Token counts over all parts of a mask, which score formulas may read. TOKENS_POLICY defines them.
FN i32 all_queries(const struct Attention &p);
FN i32 all_keys(const struct Attention &p);
#endif
