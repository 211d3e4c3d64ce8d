// NAME: 2048 blocks of 256, 2080 bytes shared
// workspace: 0 bytes; split: [v]

KERNEL(256) NAME(void* b0, void* b1, void* b2, unsigned s0, unsigned n0) {
  SHARED(unsigned, ints, 520);
  const unsigned owner = blockIdx.x % 512;
  const unsigned lane = ((unsigned)(blockIdx.x / 512) * 256 + threadIdx.x) * 4;
  const unsigned length_ = (unsigned)4096;
  const int n = lane >= length_ ? 0 : length_ - lane < 4 ? (int)(length_ - lane) : 4;
  unsigned sum[4];
  unsigned add[4];
  zero_words(sum, 4);
  for (unsigned r = owner; r < (unsigned)n0; r += 512) {
    float* const to = (float*)b2 + r * 4096 + lane;
    if (n == 4) store_words(to, sum, 4);
    else store_4(to, sum, 1, 4, n);
  }
  const unsigned rows = (unsigned)4 * (unsigned)512;
  for (unsigned base = 0; base < rows; base += 256) {
    int hit = 0;
    unsigned source = 0, target = 0;
    const unsigned row = base + threadIdx.x;
    if (row < rows) {
      const unsigned q1 = row / ((unsigned)512);
      const unsigned at = (row % ((unsigned)512)) + (q1) * 512;
      const int id = ((const int*)b1)[at];
      const int local = id >= 0 && id < 50257 ? id - (int)s0 : -1;
      const int mine = local >= 0 && local < (int)((unsigned)n0);
      hit = mine && (unsigned)local % 512 == owner;
      source = (unsigned)at;
      target = (unsigned)local;
    }
    const unsigned votes = ballot(hit);
    if ((threadIdx.x & 31) == 0) ints[512 + threadIdx.x / 32] = (unsigned)popcount(votes);
    __syncthreads();
    unsigned before = 0, hits = 0;
    for (unsigned w = 0; w < 8; ++w) {
      const unsigned count = ints[512 + w];
      if (w < threadIdx.x / 32) before += count;
      hits += count;
    }
    if (hit) {
      const unsigned place = before + (unsigned)popcount(votes & ((1u << (threadIdx.x & 31)) - 1u));
      ints[place] = source;
      ints[256 + place] = target;
    }
    __syncthreads();
    if (n > 0) {
      for (unsigned h = 0; h < hits; ++h) {
        const float* from = (const float*)b0 + (unsigned)ints[h] * 4096 + lane;
        float* to = (float*)b2 + (unsigned)ints[256 + h] * 4096 + lane;
        if (n == 4) load_words(add, from, 4);
        else load_4(add, from, 1, 4, n);
        if (n == 4) load_words(sum, to, 4);
        else load_4(sum, to, 1, 4, n);
        UNROLL for (int j = 0; j < 4; ++j) put_f32(sum, j, lane_f32(sum, j) + lane_f32(add, j));
        if (n == 4) store_words(to, sum, 4);
        else store_4(to, sum, 1, 4, n);
      }
    }
    __syncthreads();
  }
}
EXPORT_KERNEL(NAME)
