// Threads hand a number to their neighbour through shared memory: y[i] = 2 · x[i ^ 1]. What lies
// between the store and the load differs; a shuffle orders nothing.
KERNEL(64) exchange(float* y, const float* x) {
    SHARED(float, part, 64);
    int t = threadIdx.x;
    part[t] = 2.0f * x[blockIdx.x * 64 + t];
#ifdef BUG_SHUFFLE_ORDERS
    part[t] = part[t] + 0.0f * shfl_xor_f32(part[t], 1);
#elif defined(BUG_PART_OF_WARP)
    // Pairs within a quarter meet; the next quarter's do not.
    if (t % 32 < 8) {
        sync_warp(0x000000ffu);
    } else {
        sync_warp(0xffffff00u);
    }
#elif defined(BUG_OTHER_LINE)
    if (t % 32 < 16) {
        sync_warp(0xffffffffu);
    } else {
        sync_warp(0xffffffffu);
    }
#elif defined(BUG_LEAVES)
    if (t == 5) return;
    sync_warp(0xffffffffu);
#elif defined(BUG_TWO_WRITERS)
    part[t & ~1] = 0.0f;
    __syncthreads();
#elif defined(BUG_NO_END)
    if (t >= 32 && t < 48) sync_warp(0xffffffffu);
    __syncthreads();
#else
    sync_warp(0xffffffffu);
#endif
#if defined(BUG_PART_OF_WARP)
    y[blockIdx.x * 64 + t] = part[t ^ 8];
#elif defined(BUG_TABLE)
    CONSTANT float table[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    y[blockIdx.x * 64 + t] = part[t ^ 1] * table[t / 12];
#elif defined(BUG_OTHER_BLOCK)
    y[blockIdx.x * 64 + t] = part[t ^ 1];
    if (y[(blockIdx.x ^ 1) * 64 + t] == 0.5f) y[blockIdx.x * 64 + t] = 0.0f;
#elif defined(BUG_STACK)
    // A thread's own variable is nobody else's.
    float own = part[t ^ 1];
    SHARED(float*, where, 1);
    if (t == 0) where[0] = &own;
    __syncthreads();
    y[blockIdx.x * 64 + t] = *where[0];
#else
    y[blockIdx.x * 64 + t] = part[t ^ 1];
#endif
}
EXPORT_KERNEL(exchange)
