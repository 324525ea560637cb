#pragma once
// Features of a call, as macros that the builder sets to 1. Includes the facts about scores
// (score_facts.h): from the options of a call, or from the formula of a mask.

#ifndef WITH_SOFTCAP
#define WITH_SOFTCAP 0
#endif
#ifndef WITH_ALIBI
#define WITH_ALIBI 0
#endif
#ifndef WITH_SINKS
#define WITH_SINKS 0
#endif
#ifndef WITH_ENTMAX
#define WITH_ENTMAX 0
#endif
#ifndef WITH_NAN_SAFE
#define WITH_NAN_SAFE 0
#endif
#ifndef WITH_WIDE
#define WITH_WIDE 0
#endif

#if WITH_SCORE
#define SCORED 1
#if FORMULA_BENDS
#define SCORE_BENDS 1
#else
#define SCORE_BENDS 0
#endif
#if FORMULA_FAR
#define SCORE_FAR 1
#else
#define SCORE_FAR 0
#endif
#if WITH_CAP
#define SCORE_CAPS 1
#else
#define SCORE_CAPS 0
#endif
#if WITH_SHIFTS
#define SCORE_SHIFTS 1
#else
#define SCORE_SHIFTS 0
#endif
#define HEAD_GRADIENT 0
#else
#include "common/lib/score_facts.h"
#endif
