#pragma once
// Prelude of the config header of CPU kernels: the argument block and the integer types of
// formulas.

#include <sched.h>
#include <stdlib.h>

#define FN static inline
#define INFINITE __builtin_inff()
#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f

#include "common/lib/arguments.h"

#include "common/lib/features.h"

#include "common/lib/integers.h"
#include "common/lib/formulas.h"
#include "common/lib/mask_words.h"
#include "common/lib/bounds.h"

#if WITH_SCORE
// Token counts over all parts of a mask, which score formulas may read. TOKENS_POLICY defines them.
FN i32 all_queries(const struct Attention *p);
FN i32 all_keys(const struct Attention *p);
#endif
