// Position in a ring of shared-memory slots, with the mbarrier parity. Gives: Ring.
template <int COUNT>
struct Ring {
    i32 at = 0;
    u32 phase = 0;  // parity of the mbarrier phase; flips when the ring starts over
    FN void next() {
        at = at + 1 == COUNT ? 0 : at + 1;
        phase ^= at == 0;
    }
};
