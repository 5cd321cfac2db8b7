// A few threads that run one function together, stage by stage. A stage ends when its units are done, not when every
// thread has come by: helpers that the system keeps waiting miss work instead of holding it up. A unit is computed whole
// by one thread, so results depend neither on the number of threads nor on chance.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

static inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
    struct alignas(64) Counter { std::atomic<int> value{0}; };
    std::vector<std::thread> helpers;
    std::vector<Counter> taken, done;  // per stage and share of its units; per stage
    std::function<void(int)> job;
    std::mutex mutex;
    std::condition_variable wake;
    Counter round, open, inside;  // rounds begun; the round that may be entered, or 0; helpers in it
    bool stop = false;

    template <class Ready> static void await(Ready ready) {  // some 200 microseconds of spinning, then let others run
        for (int i = 0; i < 4000; i++, relax())
            if (ready()) return;
        while (!ready()) std::this_thread::yield();
    }

    void help(int id) {
        for (int seen = 0;;) {
            auto begun = [&] { return round.value.load() != seen; };
            for (int i = 0; i < 4000 && !begun(); i++) relax();
            if (!begun()) {
                std::unique_lock<std::mutex> lock(mutex);
                wake.wait(lock, begun);
            }
            seen = round.value.load();
            if (stop) return;
            inside.value.fetch_add(1);
            if (open.value.load() == seen) job(id);
            inside.value.fetch_sub(1);
        }
    }

    void begin() {
        std::lock_guard<std::mutex> lock(mutex);
        round.value.fetch_add(1);
        wake.notify_all();
    }

public:
    const int threads;

    Pool(int threads, int stages) : taken(threads > 1 ? stages * threads : 0), done(stages), threads(threads) {
        for (int id = 1; id < threads; id++) helpers.emplace_back([this, id] { help(id); });
    }

    ~Pool() {
        stop = true;
        begin();
        for (auto &h : helpers) h.join();
    }

    // body(thread) on the caller as thread 0 and on those helpers that come in time.
    void run(std::function<void(int)> body) {
        if (threads == 1) return body(0);
        for (auto &c : taken) c.value.store(0, std::memory_order_relaxed);
        for (auto &c : done) c.value.store(0, std::memory_order_relaxed);
        job = std::move(body);
        open.value.store(round.value.load() + 1);
        begin();
        job(0);
        open.value.store(0);
        await([&] { return inside.value.load() == 0; });
    }

    // Units 0..count-1 of the stage: each thread its own share in order (weights are read as one stream), then what
    // others left. Returns when all are done.
    template <class Unit> void stage(int id, int &index, int count, Unit unit) {
        if (threads == 1) {
            for (int i = 0; i < count; i++) unit(i);
            return;
        }
        Counter *next = &taken[size_t(index) * threads];
        auto &finished = done[index++].value;
        for (int k = 0, ran; k < threads; k++) {
            const int share = (id + k) % threads, from = count * share / threads, to = count * (share + 1) / threads;
            for (ran = 0;; ran++) {
                const int i = from + next[share].value.fetch_add(1, std::memory_order_relaxed);
                if (i >= to) break;
                unit(i);
            }
            if (ran) finished.fetch_add(ran, std::memory_order_release);
        }
        await([&] { return finished.load(std::memory_order_acquire) == count; });
    }
};
