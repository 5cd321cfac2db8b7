// Queries that share one key/value head over the keys and values that exist: scores, softmax, weighted sum. Keys were
// stored after the rotary turn, so skipped tokens leave no holes to re-index. What one query gets does not depend on the
// queries beside it: extra keys of a block count as exact zeros.
//
// Keys lie in blocks of 16 positions, [block][dim][16], so that a lane is a position; values as [position][dim].
#pragma once
#include "vec.h"
#include <algorithm>
#include <vector>

constexpr int BLOCK = 16, LANES = BLOCK / W;

struct Span { int from, to; };  // the keys that a query sees

struct AttentionScratch {
    std::vector<float> scores, tile, sums;
    void reserve(int queries, int keys, int dim) {
        auto grow = [](std::vector<float> &v, size_t n) { if (v.size() < n) v.resize(n + n / 2); };
        grow(scores, size_t(queries) * keys);
        grow(tile, size_t(BLOCK) * dim);
        grow(sums, queries);
    }
};

// R queries against one block of keys: out[r] is [16] scores. Two sums each, so that multiply-adds need not wait.
template <int R> static inline void score_block(const float *const *q, const float *keys, int dim, float *const *out) {
    F even[R][LANES], odd[R][LANES];
    for (int r = 0; r < R; r++)
        for (int l = 0; l < LANES; l++) even[r][l] = odd[r][l] = F{};
    for (int d = 0; d < dim; d += 2, keys += 2 * BLOCK)
        for (int l = 0; l < LANES; l++) {
            F a = load(keys + l * W), b = load(keys + BLOCK + l * W);
            for (int r = 0; r < R; r++) {
                even[r][l] = fma(splat(q[r][d]), a, even[r][l]);
                odd[r][l] = fma(splat(q[r][d + 1]), b, odd[r][l]);
            }
        }
    for (int r = 0; r < R; r++)
        for (int l = 0; l < LANES; l++) store(out[r] + l * W, even[r][l] + odd[r][l]);
}

// R queries, n positions of values: out[r] [dim] += p[r][t] * values[t].
template <int R> static inline void mix_block(const float *const *p, const float *values, int n, int dim, float *const *out) {
    for (int i = 0; i < dim; i += 2 * W) {
        F a[R], b[R];
        for (int r = 0; r < R; r++) a[r] = load(out[r] + i), b[r] = load(out[r] + i + W);
        for (int t = 0; t < n; t++) {
            F v = load(values + t * dim + i), w = load(values + t * dim + i + W);
            for (int r = 0; r < R; r++) {
                F weight = splat(p[r][t]);
                a[r] = fma(weight, v, a[r]);
                b[r] = fma(weight, w, b[r]);
            }
        }
        for (int r = 0; r < R; r++) store(out[r] + i, a[r]), store(out[r] + i + W, b[r]);
    }
}

template <class Body> static inline void by_fours(int n, Body body) {  // body(first, integral_constant count)
    int i = 0;
    for (; i + 4 <= n; i += 4) body(i, std::integral_constant<int, 4>());
    if (n - i == 3) body(i, std::integral_constant<int, 3>());
    else if (n - i == 2) body(i, std::integral_constant<int, 2>());
    else if (n - i == 1) body(i, std::integral_constant<int, 1>());
}

template <class Store> static inline void widen(const Store *from, int n, float *to) {
    for (int i = 0; i < n; i += W) {
        __builtin_prefetch((const char *)(from + i) + AHEAD);
        store(to + i, load(from + i));
    }
}

// In place: scores become weights; returns their sum. `gap`, unless null: KL(weights || uniform) in nats.
static inline float soften(float *s, int first, Span span, int stop, float *gap) {
    F peak = splat(-INFINITY), total{}, moment{};
    for (int t = first; t < stop; t += W, s += W) {
        F v = load(s);
        if (t < span.from || t + W > span.to)
            for (int j = 0; j < W; j++)
                if (t + j < span.from || t + j >= span.to) v[j] = -INFINITY;
        store(s, v);
        peak = vmax(peak, v);
    }
    const float highest = top(peak);
    s -= stop - first;
    for (int t = first; t < stop; t += W, s += W) {
        F v = load(s) - highest, p = vexp(v);
        store(s, p);
        total += p;
        if (gap) moment = fma(p, vmax(v, splat(-1e4f)), moment);  // p is 0 there, and 0 * -inf would be none
    }
    const float all = sum(total);
    if (gap) *gap = std::max(0.0f, sum(moment) / all - std::log(all) + std::log(float(span.to - span.from)));
    return all;
}

// q[i], out[i]: [dim] of query i, already scaled; spans[i]: what it sees; gaps[i], unless null: how far from uniform.
template <class Store>
static void attend(const float *const *q, float *const *out, const Span *spans, int queries, const Store *keys,
                   const Store *values, int dim, AttentionScratch &s, float *const *gaps) {
    int from = spans[0].from, to = spans[0].to;
    for (int i = 1; i < queries; i++) from = std::min(from, spans[i].from), to = std::max(to, spans[i].to);
    const int first = from / BLOCK * BLOCK, stop = (to + BLOCK - 1) / BLOCK * BLOCK, width = stop - first;
    s.reserve(queries, width, dim);
    float *tile = s.tile.data(), *scores = s.scores.data();
    const float *weights[4];
    float *target[4];
    for (int t = first; t < stop; t += BLOCK) {
        widen(keys + size_t(t) * dim, BLOCK * dim, tile);
        by_fours(queries, [&](int i, auto count) {
            for (int r = 0; r < count; r++) target[r] = scores + size_t(i + r) * width + (t - first);
            score_block<count>(q + i, tile, dim, target);
        });
    }
    for (int i = 0; i < queries; i++) {
        s.sums[i] = soften(scores + size_t(i) * width, first, spans[i], stop, gaps ? gaps[i] : nullptr);
        std::fill(out[i], out[i] + dim, 0.0f);
    }
    for (int t = first; t < to; t += BLOCK) {
        const int n = std::min(BLOCK, to - t);
        widen(values + size_t(t) * dim, n * dim, tile);
        by_fours(queries, [&](int i, auto count) {
            for (int r = 0; r < count; r++) weights[r] = scores + size_t(i + r) * width + (t - first);
            mix_block<count>(weights, tile, n, dim, out + i);
        });
    }
    for (int i = 0; i < queries; i++)
        for (int d = 0; d < dim; d += W) store(out[i] + d, load(out[i] + d) * (1 / s.sums[i]));
}
