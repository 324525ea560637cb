// Copies that gather rows from anywhere, in the background of the threads that ask.

// 16 bytes from global to shared memory; zeros instead where `inside` is false.
FN void copy_piece(u32 to, const void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
FN void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// At most PENDING groups of this thread's copies are still under way.
template <int PENDING>
FN void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }
