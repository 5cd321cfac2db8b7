// One query head over the keys and values that exist: scores, softmax, weighted sum. Keys were stored after the rotary
// turn, so skipped tokens leave no holes to re-index.
#pragma once
#include "vec.h"

#if SHOAL_AVX512
static inline F add_unpacked(F a, F b) {
    return (F)_mm512_unpacklo_ps((__m512)a, (__m512)b) + (F)_mm512_unpackhi_ps((__m512)a, (__m512)b);
}
static inline F add_shuffled(F a, F b) {
    return (F)_mm512_shuffle_ps((__m512)a, (__m512)b, 0x44) + (F)_mm512_shuffle_ps((__m512)a, (__m512)b, 0xee);
}
// lane i: the sum of v[i]
static inline F sums(const F *v) {
    F quads[4];  // quads[i], 128-bit block b: partial sums of v[4i .. 4i+3]
    for (int i = 0; i < 4; i++) {
        F a = add_unpacked(v[4 * i], v[4 * i + 1]), b = add_unpacked(v[4 * i + 2], v[4 * i + 3]);
        quads[i] = add_shuffled(a, b);
    }
    auto mix = [](F a, F b, auto pattern) {
        return (F)_mm512_shuffle_f32x4((__m512)a, (__m512)b, decltype(pattern)::value);
    };
    std::integral_constant<int, 0x88> even;
    std::integral_constant<int, 0xdd> odd;
    F low = mix(quads[0], quads[1], even) + mix(quads[0], quads[1], odd);
    F high = mix(quads[2], quads[3], even) + mix(quads[2], quads[3], odd);
    return mix(low, high, even) + mix(low, high, odd);
}
#else
static inline F sums(const F *v) {
    F out{};
    for (int i = 0; i < W; i++) out[i] = sum(v[i]);
    return out;
}
#endif

// query [Dim] already scaled; keys, values: row t at t * stride; scores: room for count rounded up to W; out [Dim].
template <int Dim, class Store>
static void attend_head(const float *query, const Store *keys, const Store *values, size_t stride, int count, float cap,
                        float *scores, float *out) {
    constexpr int N = Dim / W;
    F q[N], peak = splat(-INFINITY);
    for (int i = 0; i < N; i++) q[i] = load(query + i * W);
    for (int t = 0; t < count; t += W) {
        F parts[W];
        for (int j = 0; j < W; j++) {
            parts[j] = F{};
            if (t + j >= count) continue;
            const Store *k = keys + size_t(t + j) * stride;
            for (int i = 0; i < N; i++) parts[j] = fma(q[i], load(k + i * W), parts[j]);
        }
        F s = sums(parts);
        if (cap > 0) s = cap * vtanh(s / cap);
        for (int j = count - t; j < W; j++) s[j] = -INFINITY;
        store(scores + t, s);
        peak = vmax(peak, s);
    }
    F highest = splat(top(peak)), total{};
    for (int t = 0; t < count; t += W) {
        F p = vexp(load(scores + t) - highest);
        store(scores + t, p);
        total += p;
    }
    F even[N], odd[N];
    for (int i = 0; i < N; i++) even[i] = odd[i] = F{};
    int t = 0;
    for (; t + 1 < count; t += 2, values += 2 * stride)
        for (int i = 0; i < N; i++) {
            even[i] = fma(splat(scores[t]), load(values + i * W), even[i]);
            odd[i] = fma(splat(scores[t + 1]), load(values + stride + i * W), odd[i]);
        }
    float inverse = 1 / sum(total);
    for (int i = 0; i < N; i++) {
        if (t < count) even[i] = fma(splat(scores[t]), load(values + i * W), even[i]);
        store(out + i * W, (even[i] + odd[i]) * inverse);
    }
}

template <class Store>
static void attend(int dim, const float *query, const Store *keys, const Store *values, size_t stride, int count,
                   float cap, float *scores, float *out) {
    if (dim == 32) attend_head<32>(query, keys, values, stride, count, cap, scores, out);
    else if (dim == 64) attend_head<64>(query, keys, values, stride, count, cap, scores, out);
    else if (dim == 96) attend_head<96>(query, keys, values, stride, count, cap, scores, out);
    else if (dim == 128) attend_head<128>(query, keys, values, stride, count, cap, scores, out);
    else attend_head<256>(query, keys, values, stride, count, cap, scores, out);
}
