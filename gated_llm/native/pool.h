// A few threads that run one function together, stage by stage. Work inside a stage is handed out by a counter, so a
// slow core delays nobody for long; every unit is computed whole by one thread, so results do not depend on threads.
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
    std::vector<std::thread> workers;
    std::vector<Counter> stages;
    std::function<void(int)> job;
    std::mutex mutex;
    std::condition_variable wake;
    Counter generation, arrived, phase;
    bool stop = false;

    template <class Ready> static void await(Ready ready) {  // spin some microseconds, then let others run
        for (int i = 0; i < 4000; i++) {
            if (ready()) return;
            relax();
        }
        while (!ready()) std::this_thread::yield();
    }

    void work(int id) {
        for (int seen = 0;;) {
            auto ready = [&] { return generation.value.load(std::memory_order_acquire) != seen; };
            for (int i = 0; i < 2000 && !ready(); i++) relax();
            if (!ready()) {
                std::unique_lock<std::mutex> lock(mutex);
                wake.wait(lock, ready);
            }
            seen++;
            if (stop) return;
            job(id);
            barrier();
        }
    }

public:
    const int threads;

    Pool(int threads, int max_stages) : stages(threads > 1 ? max_stages : 0), threads(threads) {
        for (int id = 1; id < threads; id++) workers.emplace_back([this, id] { work(id); });
    }

    ~Pool() {
        stop = true;
        release();
        for (auto &w : workers) w.join();
    }

    void release() {
        std::lock_guard<std::mutex> lock(mutex);
        generation.value.fetch_add(1, std::memory_order_release);
        wake.notify_all();
    }

    // body(thread) on every thread.
    void run(std::function<void(int)> body) {
        if (threads > 1) {
            for (auto &s : stages) s.value.store(0, std::memory_order_relaxed);
            job = std::move(body);
            release();
            job(0);
            barrier();  // nobody is inside the job any more
        } else body(0);
    }

    void barrier() {
        int now = phase.value.load(std::memory_order_acquire);
        if (arrived.value.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.value.store(0, std::memory_order_relaxed);
            phase.value.fetch_add(1, std::memory_order_release);
        } else
            await([&] { return phase.value.load(std::memory_order_acquire) != now; });
    }

    // Units 0..count-1 of one stage, shared by all threads, then a barrier.
    template <class Unit> void stage(int &index, int count, Unit unit) {
        if (threads == 1) {
            for (int i = 0; i < count; i++) unit(i);
            return;
        }
        auto &next = stages[index++].value;
        for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) unit(i);
        barrier();
    }
};
