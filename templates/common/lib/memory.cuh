// The shared memory of a block, once `struct Shared` is defined. Gives: shared_memory.

// Call this at each use. An address kept across a loop is in an ordinary register, and so are all
// operand descriptors derived from it; each WGMMA then needs two more moves to uniform registers.
extern __shared__ __align__(1024) unsigned char memory[];
FN struct Shared &shared_memory() {
    u32 address;
    asm volatile("mov.u32 %0, memory;" : "=r"(address));
    return *(struct Shared *)__cvta_shared_to_generic(address);
}
