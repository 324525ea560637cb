// cp.async copies, which gather rows from arbitrary addresses asynchronously.

// Copies 16 bytes from global to shared memory; writes zeros if `inside` is false.
FN void copy_piece(u32 to, const void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
FN void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of this thread's copies are in flight.
template <int PENDING>
FN void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }
