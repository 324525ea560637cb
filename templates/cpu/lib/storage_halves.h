// Numbers of two bytes in memory; a file of their own says how they become fp32.

typedef unsigned short element;
typedef unsigned u32;
typedef u32 uvec __attribute__((vector_size(4 * LANES)));
typedef element halves __attribute__((vector_size(2 * LANES)));
typedef halves stored __attribute__((aligned(2), may_alias));  // LANES elements
