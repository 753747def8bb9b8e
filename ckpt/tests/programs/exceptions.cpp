// Exceptions in four threads: through many frames with destructors, caught by base and value, rethrown, carried to another thread.
#include <cstdint>
#include <cstdio>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

thread_local long alive = 0;

struct Guard {
    std::string text;
    explicit Guard(int depth) : text(20 + depth, 'x') { alive++; }
    ~Guard() { alive--; }
};

struct Failure : std::runtime_error {
    std::uint64_t value;
    explicit Failure(std::uint64_t value) : std::runtime_error("failure " + std::to_string(value)), value(value) {}
};

[[gnu::noinline]] std::uint64_t descend(int depth, std::uint64_t value) {
    Guard guard(depth);
    if (depth == 0) {
        if (value % 3 == 0) throw value;
        throw Failure(value);
    }
    auto more = std::make_unique<Guard>(depth);
    try {
        return descend(depth - 1, value * 6364136223846793005ULL + depth) + guard.text.size();
    } catch (const std::bad_alloc &) {
        return more->text.size();
    }
}

std::uint64_t once(std::uint64_t value) {
    try {
        try {
            return descend(30, value);
        } catch (const std::exception &error) {
            if (error.what()[0] != 'f') return 0;
            throw;
        }
    } catch (const Failure &failure) {
        return failure.value;
    } catch (std::uint64_t number) {
        return number + 1;
    }
}

std::uint64_t elsewhere(std::uint64_t value) {
    auto result = std::async(std::launch::async, [value]() -> std::uint64_t { throw Failure(value); });
    try {
        return result.get();
    } catch (const Failure &failure) {
        return failure.value * 2;
    }
}

} // namespace

int main() {
    std::puts("ready");
    std::fflush(stdout);
    std::vector<std::uint64_t> sums(4);
    std::vector<std::thread> threads;
    bool leaked = false;
    for (unsigned id = 0; id < sums.size(); id++)
        threads.emplace_back([id, &sums, &leaked] {
            for (std::uint64_t i = 0; i < 20000; i++) {
                sums[id] = sums[id] * 31 + once(i * 4 + id);
                if (i % 500 == 0) sums[id] += elsewhere(i);
            }
            if (alive != 0) leaked = true;
        });
    for (auto &thread : threads) thread.join();
    for (auto sum : sums) std::printf("%lu\n", static_cast<unsigned long>(sum));
    return leaked ? 3 : 0;
}
