// What the parts of the emulation share.
#pragma once

#include "emulation.h"

#include <string>
#include <vector>

namespace emu {

// ---- outcome of a job: in memory shared with the parent, so that it survives a crash ----

struct Report {
    char kind[24];
    char text[232];
    // Address in the program, relative to its start, of the first occurrence (0: none).
    uint64_t pc;
    uint64_t count;
};
constexpr size_t MAX_REPORTS = 32;
constexpr size_t MAX_BUFFERS = 4096;
struct Outcome {
    size_t reports;
    Report report[MAX_REPORTS];
    // Distinct bytes per buffer.
    uint64_t loaded[MAX_BUFFERS], stored[MAX_BUFFERS];
    uint64_t switches, accesses;
    // Shared memory of a block, arrays rounded up to 16 bytes; the largest of all launches.
    uint64_t shared;
    // Set when the job ran to its end.
    bool done;
};
extern Outcome* outcome;

// Notes a fault; the same fault at the same place is counted, not repeated.
void report(const char* kind, const void* pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
// Ends this process after a report: going on would only show what follows from it.
[[noreturn]] void fatal();

// ---- memory ----

// Result: must not be read before it is written. InPlace: an operand that the kernel replaces.
enum class Role { Operand, Result, InPlace };
struct Buffer {
    char* base;
    size_t bytes;
    Role role;
};

// ---- who runs ----

constexpr unsigned LANES = 32;
constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK = 128 << 10;
// Stacks of all fibres, MAX_THREADS × STACK.
extern char* stacks;
// Linear index of the running thread, or −1 outside of kernels.
extern int running;
// Where a thread is, for reports.
std::string where();
void prepare();

enum class Order { Forward, Reverse, Random };
struct Launch {
    const Entry* entry;
    uint3 grid, block;
    std::vector<std::vector<unsigned char>> args;
};
// Runs all blocks. Ends the process on a deadlock.
void launch(const Launch&, Order, uint64_t seed);

// ---- checker ----

void check_begin(std::vector<Buffer> buffers, bool on);
// A kernel starts: everything before it happened before.
void check_launch(unsigned threads);
// An array of the block's shared memory comes into being.
void check_shared(char* base, size_t bytes);
void check_block();
// All threads of the block have met.
void check_barrier();
// These lanes of the warp have met.
void check_lanes(unsigned warp, unsigned mask);
// Counts distinct bytes.
void check_end();
enum AccessKind { ACCESS_READ, ACCESS_WRITE };
// An access that must be a multiple of `align` bytes from the start of memory.
void access(const void* p, size_t bytes, AccessKind kind, size_t align, const void* pc);

}  // namespace emu
