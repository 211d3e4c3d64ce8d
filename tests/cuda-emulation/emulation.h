// The kernels' text compiled as C++: bodies of the primitives that primitives.cuh lists, on fibres.
// Read this before the text, with AUTOSHARD_EMULATION and EMU_TEXT (a string that tells the texts of
// one program apart) defined.
//
// The text is compiled with -fsanitize=thread, so that every access of it calls the checker; what is
// declared here and defined in runtime.cpp tells the checker itself.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace emu {

// Where the running fibre is: copied here at every switch.
struct Place {
    uint3 thread, block, block_dim, grid_dim;
};

// `line` is where the text calls: threads that meet must meet at one line.
extern "C" {
extern Place emu_place;
void emu_barrier(int line);
void emu_sync_warp(unsigned mask, int line);
uint64_t emu_shuffle_xor(unsigned mask, uint64_t value, int other, int line);
unsigned emu_ballot(unsigned mask, int predicate, int line);
void* emu_shared_array(size_t bytes, int line);
// `size` bytes at a multiple of it.
void emu_load(void* to, const void* from, size_t size);
void emu_store(void* to, const void* from, size_t size);
}

// Kernels of this program, by name.
struct Entry {
    const char* name;
    void (*call)(const void* const* args);
    const size_t* sizes;
    size_t args;
    Entry* next;
};
extern Entry* entries;
struct Register {
    explicit Register(Entry* e) {
        e->next = entries;
        entries = e;
    }
};
// Passing arguments is no access of the text.
template <class... A, size_t... I>
__attribute__((no_sanitize("thread"))) static inline void call(void (*f)(A...), const void* const* args,
                                                               std::index_sequence<I...>) {
    f(*static_cast<const std::remove_const_t<A>*>(args[I])...);
    (void)args;
}
template <class... A>
static inline void call(void (*f)(A...), const void* const* args) {
    call(f, args, std::index_sequence_for<A...>{});
}
template <class F>
struct Sizes;
template <class... A>
struct Sizes<void (*)(A...)> {
    static constexpr size_t count = sizeof...(A);
    // One more, because an array has an element.
    static constexpr size_t sizes[count + 1] = {sizeof(A)..., 0};
};

template <class T, class U>
static inline T bits(U v) {
    static_assert(sizeof(T) == sizeof(U), "sizes differ");
    T out;
    memcpy(&out, &v, sizeof(T));
    return out;
}

}  // namespace emu

#ifndef __restrict__
#define __restrict__ __restrict
#endif
#define KERNEL(block) static void
#define EXPORT_KERNEL(k)                                                                        \
    static void emu_call_##k(const void* const* args) { emu::call(&k, args); }                  \
    static emu::Entry emu_entry_##k = {EMU_TEXT "." #k, emu_call_##k,                           \
                                       emu::Sizes<decltype(&k)>::sizes,                         \
                                       emu::Sizes<decltype(&k)>::count, nullptr};               \
    static emu::Register emu_register_##k(&emu_entry_##k);
#define DEVICE static inline __attribute__((always_inline))
#define CONSTANT static const
#define SHARED(type, name, n) \
    type* const name = static_cast<type*>(emu::emu_shared_array(sizeof(type) * (n), __LINE__))
#define UNROLL

#define threadIdx (emu::emu_place.thread)
#define blockIdx (emu::emu_place.block)
#define blockDim (emu::emu_place.block_dim)
#define gridDim (emu::emu_place.grid_dim)
#define __syncthreads() emu::emu_barrier(__LINE__)

DEVICE unsigned f32_bits(float x) { return emu::bits<unsigned>(x); }
DEVICE float bits_f32(unsigned b) { return emu::bits<float>(b); }
DEVICE float bf16_to_f32(unsigned short b) { return bits_f32(unsigned(b) << 16); }
DEVICE unsigned short f32_to_bf16(float x) {
    unsigned u = f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
DEVICE double words_f64(unsigned low, unsigned high) { return emu::bits<double>(uint64_t(high) << 32 | low); }
DEVICE unsigned f64_low(double x) { return unsigned(emu::bits<uint64_t>(x)); }
DEVICE unsigned f64_high(double x) { return unsigned(emu::bits<uint64_t>(x) >> 32); }
DEVICE uint2 load8(const void* p) {
    uint2 v;
    emu::emu_load(&v, p, sizeof v);
    return v;
}
DEVICE void store8(void* p, uint2 v) { emu::emu_store(p, &v, sizeof v); }
DEVICE uint4 load16(const void* p) {
    uint4 v;
    emu::emu_load(&v, p, sizeof v);
    return v;
}
DEVICE void store16(void* p, uint4 v) { emu::emu_store(p, &v, sizeof v); }
DEVICE float shfl_xor_f32(float x, int mask, int line = __builtin_LINE()) {
    return bits_f32(unsigned(emu::emu_shuffle_xor(0xffffffffu, f32_bits(x), mask, line)));
}
DEVICE double shfl_xor_f64(double x, int mask, int line = __builtin_LINE()) {
    return emu::bits<double>(emu::emu_shuffle_xor(0xffffffffu, emu::bits<uint64_t>(x), mask, line));
}
DEVICE unsigned ballot(int p, int line = __builtin_LINE()) { return emu::emu_ballot(0xffffffffu, p, line); }
DEVICE int popcount(unsigned x) { return __builtin_popcount(x); }
DEVICE float max_f32(float a, float b) { return a != a || b != b ? bits_f32(0x7fffffffu) : a > b ? a : b; }
// Not in the list yet; the checker's own tests use them.
DEVICE void sync_warp(unsigned mask, int line = __builtin_LINE()) { emu::emu_sync_warp(mask, line); }
DEVICE float shfl_xor_f32_masked(unsigned mask, float x, int other, int line = __builtin_LINE()) {
    return bits_f32(unsigned(emu::emu_shuffle_xor(mask, f32_bits(x), other, line)));
}
