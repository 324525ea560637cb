// Rows whose columns data bound: the mask's see_data tells which columns from `first` on two rows
// see. All lanes of a warp have the same columns. It is false where pairs are to be tested.

// Of 32 columns those that a thread has, two of every eight, from a vote of the warp's lanes.
FN u32 own_votes(u32 votes) {
    return (votes >> threadIdx.x % 4 * 2 & 0x03030303u) * 0x01041040u >> 24;
}
