// Runs the jobs of a file, each in a process of its own, and prints a line of JSON for each.
//
//   driver JOBS INPUTS OUTPUTS
//
// JOBS is text, one word list a line:
//   job NAME
//   order forward|reverse|random SEED
//   check 0|1
//   buffer operand|result|inplace OFFSET BYTES      initial bytes, in INPUTS
//   output BUFFER OFFSET                            where its bytes go in OUTPUTS, afterwards
//   launch ENTRY GX GY GZ BX BY BZ
//   arg buffer K | arg bytes HEX                    of the last launch
//   end
#include "runtime.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace emu;

namespace {

// Buffers start at multiples of this and of nothing larger, as the runtime lays them out.
constexpr size_t ALIGN = 64;
// Between buffers lies memory that nothing may touch, so that an index that leaves one is not in
// another by chance.
constexpr size_t GAP = 16 << 20;
constexpr size_t PAGE = 4096;
// Seconds that a job may take.
constexpr unsigned PATIENCE = 120;

struct JobBuffer {
    Role role;
    size_t offset, bytes;
};
struct Job {
    std::string name, order_name;
    Order order = Order::Forward;
    uint64_t seed = 0;
    bool check = true;
    std::vector<JobBuffer> buffers;
    std::vector<std::pair<size_t, size_t>> outputs;
    std::vector<Launch> launches;
    // Per launch, per argument: the buffer that it points to, or −1.
    std::vector<std::vector<int>> pointers;
};

[[noreturn]] void die(const std::string& what) {
    fprintf(stderr, "driver: %s\n", what.c_str());
    exit(2);
}

const Entry* find(const std::string& name) {
    for (const Entry* e = entries; e; e = e->next)
        if (name == e->name) return e;
    die("no kernel " + name);
}

std::vector<unsigned char> unhex(const std::string& hex) {
    std::vector<unsigned char> out;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
        out.push_back(static_cast<unsigned char>(strtoul(hex.substr(i, 2).c_str(), nullptr, 16)));
    return out;
}

std::vector<Job> read_jobs(const char* path) {
    std::ifstream in(path);
    if (!in) die(std::string("cannot read ") + path);
    std::vector<Job> jobs;
    std::string line;
    for (size_t number = 1; std::getline(in, line); number++) {
        std::istringstream words(line);
        std::string word, a, b;
        words >> word;
        auto bad = [&] { die(std::string(path) + ":" + std::to_string(number) + ": " + line); };
        if (word != "job" && jobs.empty()) bad();
        if (word == "job") {
            jobs.emplace_back();
            words >> jobs.back().name;
            continue;
        }
        Job& job = jobs.back();
        if (word == "order") {
            words >> job.order_name >> job.seed;
            job.order = job.order_name == "reverse"  ? Order::Reverse
                        : job.order_name == "random" ? Order::Random
                                                     : Order::Forward;
        } else if (word == "check") {
            words >> job.check;
        } else if (word == "buffer") {
            JobBuffer buffer;
            words >> a >> buffer.offset >> buffer.bytes;
            buffer.role = a == "operand" ? Role::Operand : a == "inplace" ? Role::InPlace : Role::Result;
            job.buffers.push_back(buffer);
        } else if (word == "output") {
            size_t k = 0, offset = 0;
            words >> k >> offset;
            if (k >= job.buffers.size()) bad();
            job.outputs.push_back({k, offset});
        } else if (word == "launch") {
            Launch l;
            words >> a >> l.grid.x >> l.grid.y >> l.grid.z >> l.block.x >> l.block.y >> l.block.z;
            l.entry = find(a);
            job.launches.push_back(l);
            job.pointers.emplace_back();
        } else if (word == "arg") {
            if (job.launches.empty()) bad();
            words >> a >> b;
            int buffer = a == "buffer" ? atoi(b.c_str()) : -1;
            if (buffer >= int(job.buffers.size())) bad();
            job.pointers.back().push_back(buffer);
            job.launches.back().args.push_back(a == "bytes" ? unhex(b) : std::vector<unsigned char>(sizeof(char*)));
        } else if (word != "end") {
            bad();
        }
        if (words.fail()) bad();
    }
    return jobs;
}

void transfer(bool in, int file, char* at, size_t bytes, size_t offset) {
    while (bytes > 0) {
        ssize_t n = in ? pread(file, at, bytes, off_t(offset)) : pwrite(file, at, bytes, off_t(offset));
        if (n <= 0) {
            report("job", nullptr, "a data file is too short, or cannot be written");
            fatal();
        }
        at += n, offset += size_t(n), bytes -= size_t(n);
    }
}

// In the child.
void run(Job& job, int inputs, int outputs) {
    size_t need = GAP;
    for (const JobBuffer& b : job.buffers) need += b.bytes + 2 * PAGE + GAP;
    void* arena = mmap(nullptr, need, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED || job.buffers.size() > MAX_BUFFERS) {
        report("job", nullptr, "its buffers do not fit");
        fatal();
    }
    std::vector<Buffer> buffers;
    char* next = static_cast<char*>(arena) + GAP;
    for (const JobBuffer& b : job.buffers) {
        size_t size = (ALIGN + b.bytes + PAGE - 1) / PAGE * PAGE;
        if (mprotect(next, size, PROT_READ | PROT_WRITE) != 0) {
            report("job", nullptr, "no memory");
            fatal();
        }
        buffers.push_back({next + ALIGN, b.bytes, b.role});
        transfer(true, inputs, next + ALIGN, b.bytes, b.offset);
        next += size + GAP;
    }
    check_begin(buffers, job.check);
    for (size_t l = 0; l < job.launches.size(); l++) {
        for (size_t i = 0; i < job.pointers[l].size(); i++)
            if (job.pointers[l][i] >= 0)
                memcpy(job.launches[l].args[i].data(), &buffers[size_t(job.pointers[l][i])].base, sizeof(char*));
        launch(job.launches[l], job.order, job.seed + l);
    }
    check_end();
    for (auto [k, offset] : job.outputs) transfer(false, outputs, buffers[k].base, buffers[k].bytes, offset);
    outcome->done = true;
}

std::string quoted(const char* s) {
    std::string out = "\"";
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') out += '\\';
        out += static_cast<unsigned char>(*s) < 32 ? ' ' : *s;
    }
    return out + "\"";
}

void print(const Job& job) {
    printf("{\"kernel\":%s,\"order\":%s,\"done\":%s,\"reports\":[", quoted(job.name.c_str()).c_str(),
           quoted(job.order_name.c_str()).c_str(), outcome->done ? "true" : "false");
    for (size_t i = 0; i < outcome->reports; i++) {
        const Report& r = outcome->report[i];
        printf("%s{\"kind\":%s,\"text\":%s,\"pc\":%llu,\"count\":%llu}", i ? "," : "", quoted(r.kind).c_str(),
               quoted(r.text).c_str(), static_cast<unsigned long long>(r.pc),
               static_cast<unsigned long long>(r.count));
    }
    auto list = [&](const char* name, const uint64_t* values) {
        printf("],\"%s\":[", name);
        for (size_t i = 0; i < job.buffers.size(); i++)
            printf("%s%llu", i ? "," : "", static_cast<unsigned long long>(values[i]));
    };
    list("loaded", outcome->loaded);
    list("stored", outcome->stored);
    auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    printf("],\"switches\":%llu,\"accesses\":%llu,\"shared\":%llu}\n", number(outcome->switches),
           number(outcome->accesses), number(outcome->shared));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) die("usage: driver JOBS INPUTS OUTPUTS");
    std::vector<Job> jobs = read_jobs(argv[1]);
    int inputs = open(argv[2], O_RDONLY), outputs = open(argv[3], O_RDWR | O_CREAT, 0644);
    if (inputs < 0 || outputs < 0) die("cannot open the data files");
    void* shared = mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) die("no memory");
    outcome = static_cast<Outcome*>(shared);
    prepare();
    for (Job& job : jobs) {
        memset(outcome, 0, sizeof *outcome);
        fflush(stdout);
        pid_t child = fork();
        if (child < 0) die("cannot fork");
        if (child == 0) {
            alarm(PATIENCE);
            run(job, inputs, outputs);
            _exit(0);
        }
        int status = 0;
        if (waitpid(child, &status, 0) < 0) die("cannot wait");
        if (WIFSIGNALED(status)) {
            int signal = WTERMSIG(status);
            // -fsanitize=bounds ends in an illegal instruction.
            if (signal == SIGILL)
                report("out-of-bounds", nullptr, "an index leaves an array of the text");
            else if (signal == SIGALRM)
                report("timeout", nullptr, "not done after %u s", PATIENCE);
            else
                report("crash", nullptr, "signal %d", signal);
        }
        print(job);
    }
}
