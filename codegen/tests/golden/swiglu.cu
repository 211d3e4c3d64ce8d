// NAME: 512 blocks of 256, 0 bytes shared
// workspace: 0 bytes; split: [b]

KERNEL(256) NAME(void* b0, void* b1, void* b2, unsigned s0, unsigned n0) {
  {
    const unsigned first = 0, blocks = 512;
    void* const p0 = b0;
    void* const p1 = b1;
    void* const p2 = b2;
    const unsigned length = (unsigned)n0 * 524288;
    const unsigned length_ = length;
    const unsigned chunks = (length_ + 7) / 8;
    const unsigned items = chunks;
    if (items > 0) {
      for (unsigned item = (unsigned)(blockIdx.x - first) * 256 + threadIdx.x; item < items; item += (unsigned)blocks * 256) {
        const unsigned lane = item * 8;
        unsigned x0[4];
        load_words(x0, (const unsigned short*)p0 + ((unsigned)lane), 4);
        unsigned x1[4];
        load_words(x1, (const unsigned short*)p1 + ((unsigned)lane), 4);
        unsigned y0[4];
        UNROLL for (int j = 0; j < 8; ++j) {
          const float r0 = lane_bf16(x0, j);
          const float r1 = lane_bf16(x1, j);
          const float r2 = round_bf16(1.0f / (1.0f + expf(-r0)));
          const float r3 = round_bf16(r0 * r2);
          const float r4 = round_bf16(r3 * r1);
          put_exact_bf16(y0, j, r4);
        }
        store_words((unsigned short*)p2 + ((unsigned)lane), y0, 4);
      }
    }
  }
}
EXPORT_KERNEL(NAME)
