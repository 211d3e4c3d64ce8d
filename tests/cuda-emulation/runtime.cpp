// Every CUDA thread is a fibre. A fibre runs until it has to wait for others: at a barrier of its
// block, or at a collective operation of its warp. Which of those that may run comes next is the
// order under test.
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#if !defined(__x86_64__) || !defined(__linux__)
#error "the emulation switches stacks with x86-64 System V instructions; this machine has no port yet"
#endif

// emu_switch(save, to): pushes what a callee must keep, leaves the stack pointer in *save, and goes
// on from the stack `to`, which was left the same way.
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch, .-emu_switch
.section .note.GNU-stack,"",@progbits
.text
)");
extern "C" void emu_switch(void** save, void* to);

namespace emu {

extern "C" {
Place emu_place;
}
Entry* entries;
char* stacks;
int running = -1;

namespace {

enum class State { Ready, Barrier, Warp, Done };
enum class Collective { Sync, Shuffle, Ballot };
const char* name(Collective c) {
    switch (c) {
        case Collective::Sync: return "__syncwarp";
        case Collective::Shuffle: return "shuffle";
        case Collective::Ballot: return "vote";
    }
    return "?";
}

struct Fibre {
    uint3 index;
    void* stack_pointer;
    State state;
    // Where it waits.
    int line;
    // What it brought to a collective, and what it takes away.
    Collective op;
    unsigned mask;
    uint64_t value, out;
    // Lane to shuffle with, exclusive or.
    int other;
    // Arrays of shared memory that it has named.
    size_t arrays;
};

Fibre fibres[MAX_THREADS];
unsigned threads, alive, at_barrier;
int barrier_line;
void* main_stack;
// In static memory, where the checker expects what belongs to no kernel.
constexpr size_t MAX_ARGUMENTS = 8192, MAX_ARGUMENT = 16;
const void* arguments[MAX_ARGUMENTS];
alignas(16) unsigned char argument_bytes[MAX_ARGUMENTS][MAX_ARGUMENT];
const Entry* entry;
unsigned block_index;
uint64_t random_state;

// Shared memory: arrays in the order in which the text names them, far enough apart that an index
// that leaves one is not in the next.
char* shared_region;
constexpr size_t SHARED_REGION = 1 << 20, SHARED_GAP = 4096;
// What a kernel may declare.
constexpr size_t SHARED_MAX = 48 << 10;
struct Array {
    char* base;
    size_t bytes;
    int line;
};
std::vector<Array> arrays;

uint64_t random_next() {
    uint64_t z = random_state += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

void wait(State state, int line) {
    Fibre& f = fibres[running];
    f.state = state;
    f.line = line;
    emu_switch(&f.stack_pointer, main_stack);
}

void release_barrier() {
    at_barrier = 0;
    check_barrier();
    for (unsigned i = 0; i < threads; i++)
        if (fibres[i].state == State::Barrier) fibres[i].state = State::Ready;
}

unsigned first_of_warp(unsigned thread) { return thread / LANES * LANES; }

// Lanes of a warp in a state.
template <class P>
unsigned lanes(unsigned first, P p) {
    unsigned mask = 0;
    for (unsigned l = 0; l < LANES && first + l < threads; l++)
        if (p(fibres[first + l])) mask |= 1u << l;
    return mask;
}

// Completes the collective that `thread` waits at, if all that it names have come. Lanes that have
// left will not come; that has been reported.
void complete(unsigned thread, const void* pc) {
    unsigned first = first_of_warp(thread);
    Fibre& me = fibres[thread];
    unsigned living = lanes(first, [](const Fibre& f) { return f.state != State::Done; });
    unsigned come = lanes(first, [&](const Fibre& f) { return f.state == State::Warp && f.mask == me.mask; });
    unsigned wanted = me.mask & living;
    if ((come & wanted) != wanted) return;
    unsigned group = come & wanted;
    for (unsigned l = 0; l < LANES; l++) {
        const Fibre* f = group >> l & 1 ? &fibres[first + l] : nullptr;
        if (f && (f->op != me.op || f->line != me.line))
            report("warp-lanes", pc, "lanes of one warp meet at a %s in line %d and a %s in line %d", name(me.op),
                   me.line, name(f->op), f->line);
    }
    for (unsigned l = 0; l < LANES; l++) {
        if (!(group >> l & 1)) continue;
        Fibre& f = fibres[first + l];
        if (f.op == Collective::Ballot) {
            f.out = 0;
            for (unsigned o = 0; o < LANES; o++)
                if (group >> o & 1 && fibres[first + o].value) f.out |= 1u << o;
        }
        if (f.op == Collective::Shuffle) {
            unsigned from = l ^ unsigned(f.other);
            f.out = ~0ull;
            if (from < LANES && group >> from & 1)
                f.out = fibres[first + from].value;
            else
                report("warp-lanes", pc, "lane %u shuffles with lane %u, which does not take part, in line %d", l, from,
                       f.line);
        }
    }
    if (me.op == Collective::Sync) check_lanes(first / LANES, group);
    for (unsigned l = 0; l < LANES; l++)
        if (group >> l & 1) fibres[first + l].state = State::Ready;
}

// Brings a lane to a collective and returns when it is done.
void collect(Collective op, unsigned mask, int line, const void* pc) {
    unsigned first = first_of_warp(unsigned(running)), lane = unsigned(running) - first;
    Fibre& f = fibres[running];
    f.op = op;
    f.mask = mask;
    f.line = line;
    f.state = State::Warp;
    if (!(mask >> lane & 1)) {
        report("warp-lanes", pc, "%s calls a %s in line %d with mask %#x, which does not name it", where().c_str(),
               name(op), line, mask);
        fatal();
    }
    unsigned living = lanes(first, [](const Fibre& f) { return f.state != State::Done; });
    if (mask & ~living)
        report("warp-lanes", pc, "%s calls a %s in line %d with mask %#x, but lanes %#x have left or never were",
               where().c_str(), name(op), line, mask, mask & ~living);
    complete(unsigned(running), pc);
    if (f.state == State::Warp) wait(State::Warp, line);
    f.state = State::Ready;
}

void fibre_main() {
    entry->call(arguments);
    Fibre& f = fibres[running];
    f.state = State::Done;
    alive--;
    if (at_barrier) {
        report("divergent-barrier", nullptr, "%s leaves while others wait at the __syncthreads in line %d",
               where().c_str(), barrier_line);
        if (at_barrier == alive) release_barrier();
    }
    unsigned first = first_of_warp(unsigned(running));
    for (unsigned l = 0; l < LANES && first + l < threads; l++) {
        const Fibre& o = fibres[first + l];
        if (o.state != State::Warp || !(o.mask >> (unsigned(running) - first) & 1)) continue;
        report("warp-lanes", nullptr, "%s leaves while others of its warp wait for it at the %s in line %d",
               where().c_str(), name(o.op), o.line);
        complete(first + l, nullptr);
    }
    emu_switch(&f.stack_pointer, main_stack);
    abort();  // a fibre that is done is not resumed
}

// Nothing can run: says who waits where.
[[noreturn]] void deadlock() {
    bool told = false;
    for (unsigned i = 0; i < threads && !told; i++) {
        if (fibres[i].state != State::Warp) continue;
        running = int(i);
        unsigned first = first_of_warp(i), mask = fibres[i].mask;
        unsigned elsewhere = mask & ~lanes(first, [&](const Fibre& f) {
            return f.state == State::Warp && f.mask == mask;
        });
        report("warp-lanes", nullptr, "%s waits for ever at the %s in line %d: lanes %#x wait elsewhere",
               where().c_str(), name(fibres[i].op), fibres[i].line, elsewhere);
        told = true;
    }
    if (!told) report("deadlock", nullptr, "no thread of block %u can run", block_index);
    fatal();
}

void run_block(Order order) {
    alive = threads;
    at_barrier = 0;
    for (unsigned i = 0; i < threads; i++) {
        Fibre& f = fibres[i];
        uint3 d = emu_place.block_dim;
        f.index = {i % d.x, i / d.x % d.y, i / (d.x * d.y)};
        f.state = State::Ready;
        f.arrays = 0;
        // As emu_switch leaves a stack: six registers, the return address; below it a null frame,
        // so that the stack is aligned as after a call.
        void** top = reinterpret_cast<void**>(stacks + STACK * (i + 1));
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(&fibre_main);
        for (int r = 0; r < 6; r++) *--top = nullptr;
        f.stack_pointer = top;
    }
    static unsigned turns[MAX_THREADS];
    for (unsigned i = 0; i < threads; i++) turns[i] = order == Order::Reverse ? threads - 1 - i : i;
    while (alive > 0) {
        bool progress = false;
        if (order == Order::Random)
            for (unsigned i = threads - 1; i > 0; i--) std::swap(turns[i], turns[random_next() % (i + 1)]);
        for (unsigned k = 0; k < threads; k++) {
            Fibre& f = fibres[turns[k]];
            if (f.state != State::Ready) continue;
            progress = true;
            outcome->switches++;
            running = int(turns[k]);
            emu_place.thread = f.index;
            emu_switch(&main_stack, f.stack_pointer);
        }
        if (!progress && alive > 0) deadlock();
    }
    running = -1;
}

}  // namespace

void prepare() {
    auto map = [](size_t bytes) {
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            perror("mmap");
            exit(2);
        }
        return static_cast<char*>(p);
    };
    stacks = map(STACK * MAX_THREADS);
    shared_region = map(SHARED_REGION);
}

std::string where() {
    if (running < 0) return "the launch";
    char b[64];
    snprintf(b, sizeof b, "thread %d of block %u", running, block_index);
    return b;
}

void launch(const Launch& l, Order order, uint64_t seed) {
    entry = l.entry;
    auto refuse = [&](const char* what) {
        report("job", nullptr, "%s: %s", l.entry->name, what);
        fatal();
    };
    if (l.args.size() != entry->args || l.args.size() > MAX_ARGUMENTS) refuse("wrong number of arguments");
    for (size_t i = 0; i < l.args.size(); i++) {
        if (l.args[i].size() != entry->sizes[i] || entry->sizes[i] > MAX_ARGUMENT)
            refuse(("argument " + std::to_string(i) + " has " + std::to_string(l.args[i].size()) +
                    " bytes, its parameter " + std::to_string(entry->sizes[i]))
                       .c_str());
        memcpy(argument_bytes[i], l.args[i].data(), l.args[i].size());
        arguments[i] = argument_bytes[i];
    }
    uint64_t n = uint64_t(l.block.x) * l.block.y * l.block.z;
    if (n < 1 || n > MAX_THREADS) refuse("a block has 1 to 1024 threads");
    threads = unsigned(n);
    random_state = seed;
    emu_place.block_dim = l.block;
    emu_place.grid_dim = l.grid;
    arrays.clear();
    check_launch(threads);
    unsigned blocks = l.grid.x * l.grid.y * l.grid.z;
    std::vector<unsigned> turns(blocks);
    for (unsigned i = 0; i < blocks; i++) turns[i] = order == Order::Reverse ? blocks - 1 - i : i;
    if (order == Order::Random)
        for (unsigned i = blocks; i-- > 1;) std::swap(turns[i], turns[random_next() % (i + 1)]);
    for (unsigned b : turns) {
        block_index = b;
        emu_place.block = {b % l.grid.x, b / l.grid.x % l.grid.y, b / (l.grid.x * l.grid.y)};
        // NaN in every float type: what a kernel forgets to write shows up in its results.
        for (const Array& a : arrays) memset(a.base, 0xff, a.bytes);
        check_block();
        run_block(order);
    }
}

extern "C" void emu_barrier(int line) {
    const void* pc = __builtin_return_address(0);
    if (alive != threads)
        report("divergent-barrier", pc, "%s comes to the __syncthreads in line %d after others have left",
               where().c_str(), line);
    if (at_barrier == 0)
        barrier_line = line;
    else if (barrier_line != line)
        report("divergent-barrier", pc, "%s comes to the __syncthreads in line %d, others to the one in line %d",
               where().c_str(), line, barrier_line);
    if (++at_barrier == alive)
        release_barrier();
    else
        wait(State::Barrier, line);
}

extern "C" void emu_sync_warp(unsigned mask, int line) {
    collect(Collective::Sync, mask, line, __builtin_return_address(0));
}

extern "C" uint64_t emu_shuffle_xor(unsigned mask, uint64_t value, int other, int line) {
    fibres[running].value = value;
    fibres[running].other = other;
    collect(Collective::Shuffle, mask, line, __builtin_return_address(0));
    return fibres[running].out;
}

extern "C" unsigned emu_ballot(unsigned mask, int predicate, int line) {
    fibres[running].value = predicate != 0;
    collect(Collective::Ballot, mask, line, __builtin_return_address(0));
    return unsigned(fibres[running].out);
}

// The fibre's next array. All threads name the same ones in the same order.
extern "C" void* emu_shared_array(size_t bytes, int line) {
    Fibre& f = fibres[running];
    if (f.arrays == arrays.size()) {
        // 16 bytes are promised, and no more.
        auto round = [](size_t n) { return (n + 15) / 16 * 16; };
        size_t at = SHARED_GAP + 16, total = round(bytes);
        for (const Array& a : arrays) {
            at += (a.bytes + SHARED_GAP) / 32 * 32 + SHARED_GAP;
            total += round(a.bytes);
        }
        if (total > outcome->shared) outcome->shared = total;
        if (total > SHARED_MAX) report("shared-size", nullptr, "%zu bytes of shared memory, of %zu", total, SHARED_MAX);
        if (at + bytes + SHARED_GAP > SHARED_REGION) fatal();
        arrays.push_back({shared_region + at, bytes, line});
        memset(shared_region + at, 0xff, bytes);
        check_shared(shared_region + at, bytes);
    }
    const Array& a = arrays[f.arrays++];
    if (a.line != line || a.bytes != bytes) {
        report("shared-size", nullptr, "%s names an array of %zu bytes in line %d, others one of %zu in line %d",
               where().c_str(), bytes, line, a.bytes, a.line);
        fatal();
    }
    return a.base;
}

extern "C" void emu_load(void* to, const void* from, size_t size) {
    access(from, size, ACCESS_READ, size, __builtin_return_address(0));
    memcpy(to, from, size);
}

extern "C" void emu_store(void* to, const void* from, size_t size) {
    access(to, size, ACCESS_WRITE, size, __builtin_return_address(0));
    memcpy(to, from, size);
}

}  // namespace emu
