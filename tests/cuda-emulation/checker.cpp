// The checker. The compiler calls `__tsan_*` at every access of code compiled with
// -fsanitize=thread; these are ours, and know blocks, warps and barriers:
// * two accesses of one block race unless a barrier, a __syncwarp of both lanes or the program order
//   of one thread lies between them (a shuffle orders nothing);
// * blocks of one launch may not touch what another of them writes;
// * every access lies in shared memory, in a buffer, on the thread's own stack, or in constants;
// * shared memory and results are written before they are read; operands are never written.
#include "runtime.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <unistd.h>

// The linker's bounds of the program: constants of the text lie between them.
extern "C" const char __executable_start, end;

namespace emu {

Outcome* outcome;

void report(const char* kind, const void* pc, const char* format, ...) {
    uint64_t at = pc ? uint64_t(static_cast<const char*>(pc) - &__executable_start) : 0;
    // Faults are told apart by kind and place: texts name threads.
    char text[sizeof(Report::text)];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (size_t i = 0; i < outcome->reports; i++) {
        Report& r = outcome->report[i];
        if (strcmp(r.kind, kind) == 0 && r.pc == at) {
            r.count++;
            return;
        }
    }
    if (outcome->reports == MAX_REPORTS) return;
    Report& r = outcome->report[outcome->reports];
    snprintf(r.kind, sizeof r.kind, "%s", kind);
    memcpy(r.text, text, sizeof text);
    r.pc = at;
    r.count = 1;
    outcome->reports++;
}

void fatal() {
    check_end();
    _exit(3);
}

namespace {

// History of GRAIN bytes: the smallest element.
constexpr size_t GRAIN = 2;
struct Cell {
    // Last write: block (+1; 0: none), barriers that the block had passed, thread and its clock.
    uint32_t writer_block, write_epoch, write_clock;
    uint16_t writer;
    bool written;
    // Reads since: block (+1; 0: none, MANY: several), and in the current epoch one thread or all.
    uint16_t reader;
    uint32_t reader_block, read_epoch, read_clock;
    int32_t readers;
};
constexpr uint32_t MANY = ~0u;

struct Tracked {
    Buffer buffer;
    // One flag per byte: 1 loaded, 2 stored.
    std::vector<uint8_t> touched;
    // Only where a kernel writes.
    std::vector<Cell> cells;
};
std::vector<Tracked> tracked;
struct Shared {
    char* base;
    size_t bytes;
    std::vector<Cell> cells;
};
std::vector<Shared> shared;
bool on;
// Blocks are numbered over all launches, so that an earlier launch is recognised.
uint32_t first_block, block, next_block, epoch;
unsigned threads;

// clocks[warp][lane][other]: how much of `other` the lane has seen.
uint32_t clocks[MAX_THREADS / LANES][LANES][LANES];

// Clocks of all readers of a cell, where there are several.
std::vector<std::vector<uint32_t>> pool;
size_t pool_used;

uint32_t my_clock() { return clocks[running / LANES][running % LANES][running % LANES]; }

// Whether what a thread of this block did at this clock, in this epoch, comes before now.
bool seen(unsigned thread, uint32_t clock) {
    unsigned me = unsigned(running);
    if (thread == me) return true;
    return thread / LANES == me / LANES && clocks[me / LANES][me % LANES][thread % LANES] >= clock;
}

struct Fault {
    const char* kind;
    const char* what;
    int other;
};

// Applies an access to a cell's history; returns what is wrong with it.
Fault touch(Cell& c, AccessKind kind, bool is_shared) {
    Fault fault = {nullptr, nullptr, -1};
    bool write = kind == ACCESS_WRITE;
    // Shared memory of an earlier block is another memory; what an earlier launch did is past.
    bool history = is_shared ? c.writer_block == block : c.writer_block >= first_block;
    bool reads = is_shared ? c.reader_block == block : c.reader_block >= first_block;
    bool written = is_shared ? history : c.written;
    if (!write && !written) fault = {"uninitialised", "reads what nothing has written", -1};
    if (history) {
        if (c.writer_block != block)
            fault = {"block-race", write ? "writes what another block writes" : "reads what another block writes", -1};
        else if (c.write_epoch == epoch && !seen(c.writer, c.write_clock))
            fault = {"race", write ? "writes after an unordered write" : "reads after an unordered write", c.writer};
    }
    if (write && reads) {
        if (c.reader_block != block) {
            fault = {"block-race", "writes what another block reads", -1};
        } else if (c.read_epoch == epoch) {
            if (c.readers < 0) {
                if (!seen(c.reader, c.read_clock)) fault = {"race", "writes after an unordered read", c.reader};
            } else {
                const std::vector<uint32_t>& all = pool[size_t(c.readers)];
                for (unsigned t = 0; t < threads; t++)
                    if (all[t] && !seen(t, all[t])) fault = {"race", "writes after an unordered read", int(t)};
            }
        }
    }
    if (write) {
        c.writer_block = block;
        c.write_epoch = epoch;
        c.write_clock = my_clock();
        c.writer = uint16_t(running);
        c.written = true;
        c.reader_block = 0;
        return fault;
    }
    if (!reads) c.reader_block = 0;
    if (c.reader_block == block && c.read_epoch == epoch) {
        if (c.readers < 0 && c.reader != running) {
            if (pool_used == pool.size()) pool.emplace_back();
            pool[pool_used].assign(threads, 0);
            pool[pool_used][c.reader] = c.read_clock;
            c.readers = int32_t(pool_used++);
        }
        if (c.readers >= 0) pool[size_t(c.readers)][size_t(running)] = my_clock();
        c.read_clock = my_clock();
    } else {
        c.reader_block = c.reader_block == 0 || c.reader_block == block ? block : MANY;
        c.read_epoch = epoch;
        c.read_clock = my_clock();
        c.reader = uint16_t(running);
        c.readers = -1;
    }
    return fault;
}

[[noreturn]] void outside(const char* p, size_t n, bool write, const void* pc) {
    const char* what = write ? "writes" : "reads";
    // Names the nearest memory before or after.
    std::string near = "no memory of the kernel";
    ptrdiff_t best = ptrdiff_t(1) << 40, offset = 0;
    auto consider = [&](const char* base, size_t bytes, const std::string& name) {
        ptrdiff_t d = p < base ? base - p : p - base - ptrdiff_t(bytes);
        if (d < best) best = d, offset = p - base, near = name + " of " + std::to_string(bytes) + " bytes";
    };
    for (size_t i = 0; i < shared.size(); i++)
        consider(shared[i].base, shared[i].bytes, "shared array " + std::to_string(i));
    for (size_t i = 0; i < tracked.size(); i++)
        consider(tracked[i].buffer.base, tracked[i].buffer.bytes, "buffer " + std::to_string(i));
    if (p >= stacks && p < stacks + STACK * MAX_THREADS)
        report("out-of-bounds", pc, "%s %s %zu bytes of the stack of thread %zu", where().c_str(), what, n,
               size_t(p - stacks) / STACK);
    else
        report("out-of-bounds", pc, "%s %s %zu bytes at %td: outside of %s", where().c_str(), what, n, offset,
               near.c_str());
    fatal();
}

std::vector<Cell> history(size_t bytes) { return std::vector<Cell>((bytes + GRAIN - 1) / GRAIN); }

// An access to the bytes [at, at + n) of memory with a history.
void touch_all(std::vector<Cell>& cells, size_t at, size_t n, AccessKind kind, bool is_shared, size_t number,
               const void* pc) {
    bool told = false;
    for (size_t i = at / GRAIN; i < (at + n + GRAIN - 1) / GRAIN; i++) {
        Fault f = touch(cells[i], kind, is_shared);
        if (!f.kind || told) continue;
        told = true;
        char other[32] = "";
        if (f.other >= 0) snprintf(other, sizeof other, " of thread %d", f.other);
        report(f.kind, pc, "%s %s%s: byte %zu of %s %zu", where().c_str(), f.what, other, i * GRAIN,
               is_shared ? "shared array" : "buffer", number);
    }
}

}  // namespace

void access(const void* address, size_t n, AccessKind kind, size_t align, const void* pc) {
    if (!on || running < 0) return;
    const char* p = static_cast<const char*>(address);
    outcome->accesses++;
    bool write = kind == ACCESS_WRITE;
    // Constants of the text, and the places that the runtime publishes.
    if (!write && p >= &__executable_start && p < &end) return;
    if (p >= stacks && p < stacks + STACK * MAX_THREADS) {
        if (size_t(p - stacks) / STACK != size_t(running)) outside(p, n, write, pc);
        return;
    }
    // The last buffer that starts at or before `p`: they ascend.
    auto after = std::upper_bound(tracked.begin(), tracked.end(), p,
                                  [](const char* p, const Tracked& t) { return p < t.buffer.base; });
    if (after != tracked.begin() && p < (after - 1)->buffer.base + (after - 1)->buffer.bytes) {
        Tracked& t = *(after - 1);
        size_t k = size_t(after - 1 - tracked.begin()), at = size_t(p - t.buffer.base);
        if (n > t.buffer.bytes - at) outside(p, n, write, pc);
        if (uintptr_t(p) % align)
            report("misaligned", pc, "%s: %zu bytes at %zu of buffer %zu", where().c_str(), n, at, k);
        if (write && t.buffer.role == Role::Operand)
            report("operand-write", pc, "%s writes %zu bytes at %zu of buffer %zu", where().c_str(), n, at, k);
        for (size_t i = at; i < at + n; i++) t.touched[i] |= write ? 2 : 1;
        if (!t.cells.empty()) touch_all(t.cells, at, n, kind, false, k, pc);
        return;
    }
    for (size_t k = 0; k < shared.size(); k++) {
        Shared& s = shared[k];
        if (p < s.base || p >= s.base + s.bytes) continue;
        size_t at = size_t(p - s.base);
        if (n > s.bytes - at) outside(p, n, write, pc);
        if (uintptr_t(p) % align)
            report("misaligned", pc, "%s: %zu bytes at %zu of shared array %zu", where().c_str(), n, at, k);
        touch_all(s.cells, at, n, kind, true, k, pc);
        return;
    }
    outside(p, n, write, pc);
}

void check_begin(std::vector<Buffer> buffers, bool checked) {
    on = checked;
    tracked.clear();
    for (const Buffer& b : buffers) {
        Tracked t{b, std::vector<uint8_t>(b.bytes), {}};
        if (b.role != Role::Operand) {
            t.cells = history(b.bytes);
            if (b.role == Role::InPlace)
                for (Cell& c : t.cells) c.written = true;
        }
        tracked.push_back(std::move(t));
    }
    next_block = 1;
}

void check_launch(unsigned n) {
    shared.clear();
    threads = n;
    first_block = next_block;
}

void check_shared(char* base, size_t bytes) { shared.push_back({base, bytes, history(bytes)}); }

void check_block() {
    block = next_block++;
    epoch = 1;
    pool_used = 0;
    memset(clocks, 0, sizeof clocks);
    for (auto& warp : clocks)
        for (unsigned l = 0; l < LANES; l++) warp[l][l] = 1;
}

void check_barrier() {
    epoch++;
    pool_used = 0;
}

void check_lanes(unsigned warp, unsigned mask) {
    auto& c = clocks[warp];
    uint32_t all[LANES] = {};
    for (unsigned l = 0; l < LANES; l++)
        if (mask >> l & 1)
            for (unsigned o = 0; o < LANES; o++) all[o] = all[o] > c[l][o] ? all[o] : c[l][o];
    for (unsigned l = 0; l < LANES; l++)
        if (mask >> l & 1) {
            memcpy(c[l], all, sizeof all);
            c[l][l]++;
        }
}

void check_end() {
    for (size_t k = 0; k < tracked.size() && k < MAX_BUFFERS; k++) {
        outcome->loaded[k] = outcome->stored[k] = 0;
        for (uint8_t f : tracked[k].touched) {
            outcome->loaded[k] += f & 1;
            outcome->stored[k] += f >> 1;
        }
    }
}

}  // namespace emu

// What the compiler calls. `unaligned` means that the type promises no alignment of its size.
#define PC __builtin_return_address(0)
#define SIZE(n)                                                                                             \
    void __tsan_read##n(void* p) { emu::access(p, n, emu::ACCESS_READ, n, PC); }                     \
    void __tsan_write##n(void* p) { emu::access(p, n, emu::ACCESS_WRITE, n, PC); }                   \
    void __tsan_unaligned_read##n(void* p) { emu::access(p, n, emu::ACCESS_READ, 1, PC); }           \
    void __tsan_unaligned_write##n(void* p) { emu::access(p, n, emu::ACCESS_WRITE, 1, PC); }         \
    void __tsan_volatile_read##n(void* p) { emu::access(p, n, emu::ACCESS_READ, n, PC); }            \
    void __tsan_volatile_write##n(void* p) { emu::access(p, n, emu::ACCESS_WRITE, n, PC); }
extern "C" {
SIZE(1) SIZE(2) SIZE(4) SIZE(8) SIZE(16)
void __tsan_read_range(void* p, size_t n) { emu::access(p, n, emu::ACCESS_READ, 1, PC); }
void __tsan_write_range(void* p, size_t n) { emu::access(p, n, emu::ACCESS_WRITE, 1, PC); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
}
