// Tensors with two bytes per element; storage_*.h defines the conversion to fp32.

typedef unsigned short element;
typedef unsigned u32;
typedef u32 uvec __attribute__((vector_size(4 * LANES)));
typedef element halves __attribute__((vector_size(2 * LANES)));
typedef halves stored __attribute__((aligned(2), may_alias));  // LANES elements
