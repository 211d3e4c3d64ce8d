// y[r, i] = x[r, i] · w[i] / sqrt(mean of x[r]² + 1e-5): a block a row, four columns a thread and turn.
// Defining one of the BUG_ names breaks it in one way.
KERNEL(64) rmsnorm(float* __restrict__ y, float* __restrict__ x, const float* __restrict__ w, int d) {
    SHARED(float, part, 2);
    SHARED(float, scale, 1);
    int t = threadIdx.x;
    const float* row = x + blockIdx.x * d;
#ifdef BUG_MISALIGNED
    const float* quad = row + 1;
    const int quads = d / 4 - 1;
#else
    const float* quad = row;
    const int quads = d / 4;
#endif
    float sum = 0.0f;
    for (int i = t; i < quads; i += 64) {
        uint4 v = load16(quad + 4 * i);
        float a = bits_f32(v.x), b = bits_f32(v.y), c = bits_f32(v.z), e = bits_f32(v.w);
        sum += a * a + b * b + c * c + e * e;
    }
#ifdef BUG_PARTIAL_WARP
    if (t < 48)
#endif
    for (int o = 16; o > 0; o /= 2) {
#ifdef BUG_MASK
        sum += shfl_xor_f32_masked(0x7fffffffu, sum, o);
#else
        sum += shfl_xor_f32(sum, o);
#endif
    }
#ifdef BUG_UNINITIALISED
    if (t == 0) part[0] = sum;
#else
    if (t % 32 == 0) part[t / 32] = sum;
#endif
#ifdef BUG_DIVERGENT_BARRIER
    if (t < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
#elif defined(BUG_EXITED)
    if (t == 63) return;
    __syncthreads();
#elif !defined(BUG_NO_BARRIER)
    __syncthreads();
#endif
    if (t == 0) {
        float mean = (part[0] + part[1]) / d + 1e-5f;
#ifdef BUG_NAN
        mean = -mean;
#endif
        scale[0] = 1.0f / sqrtf(mean);
    }
    __syncthreads();
#ifdef BUG_OPERAND
    if (t == 0) x[blockIdx.x * d] = scale[0];
#endif
    float s = scale[0];
    float* out = y + blockIdx.x * d;
#ifdef BUG_BLOCK_RACE
    // The last column of the row before is written, too.
    for (int i = t - (blockIdx.x > 0 ? 1 : 0); i < d; i += 64) out[i] = row[i] * s * w[i < 0 ? 0 : i];
#elif defined(BUG_READ)
    float shift = 0.0f;
    for (int i = t; i < d; i += 64) shift += w[i + 1];
    for (int i = t; i < d; i += 64) out[i] = row[i] * s * w[i] + 0.0f * shift;
#elif defined(BUG_WRITE)
    for (int i = t; i <= d; i += 64) out[i] = i < d ? row[i] * s * w[i] : 0.0f;
#elif defined(BUG_SHARED_READ)
    for (int i = t; i < d; i += 64) out[i] = row[i] * scale[1] * w[i];
#elif defined(BUG_TAIL)
    for (int i = t; i < d - 1; i += 64) out[i] = row[i] * s * w[i];
#else
    for (int i = t; i < d; i += 64) out[i] = row[i] * s * w[i];
#endif
}
EXPORT_KERNEL(rmsnorm)
