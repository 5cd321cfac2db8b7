// Vectors of W float lanes and the few operations that need the instruction set by name.
// AVX-512 with VNNI: 16 lanes. AVX2 and everything else: 8 lanes (GCC/Clang vector types lower them to what there is).
// No contraction, no fast-math: a row's result never depends on how many rows are computed beside it.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && !defined(SHOAL_PORTABLE)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC's own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define SHOAL_AVX512 1
#if defined(__AMX_INT8__) && defined(__linux__)
#define SHOAL_AMX 1
#endif
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SHOAL_AVX2 1
#endif
#endif

#ifdef SHOAL_AVX512
constexpr int W = 16;
#else
constexpr int W = 8;
#endif

constexpr int AHEAD = 4096;  // bytes that streams (weights, keys, values) are fetched ahead of use

typedef float F __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));

typedef uint16_t U16 __attribute__((vector_size(W * 2)));
typedef int8_t I8 __attribute__((vector_size(W)));

static inline F splat(float a) { return a - F{}; }
static inline I splat(int32_t a) { return a - I{}; }
static inline F load(const float *p) { F v; memcpy(&v, p, sizeof v); return v; }
static inline I load(const void *p) { I v; memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, F v) { memcpy(p, &v, sizeof v); }
static inline void store(int8_t *p, I v) { I8 b = __builtin_convertvector(v, I8); memcpy(p, &b, sizeof b); }
static inline F to_float(I v) { return __builtin_convertvector(v, F); }
static inline F pick(I mask, F a, F b) { return (F)(((I)a & mask) | ((I)b & ~mask)); }
static inline F vmax(F a, F b) { return pick(a > b, a, b); }
static inline F vmin(F a, F b) { return pick(a < b, a, b); }

static inline float half_to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, bits = uint32_t(h & 0x7fff) << 13;
    float value;
    if ((h & 0x7c00) == 0x7c00) bits |= 0x7f800000;  // inf, NaN
    else bits += 112u << 23;
    memcpy(&value, &bits, 4);
    if ((h & 0x7c00) == 0) value = float(h & 0x3ff) * 0x1p-24f;
    memcpy(&bits, &value, 4);
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t float_to_half(float value) {  // round to nearest even
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = (bits >> 16) & 0x8000, mag = bits & 0x7fffffff;
    if (mag > 0x7f800000) return sign | 0x7e00;
    if (mag >= 0x477ff000) return sign | 0x7c00;
    if (mag < 0x38800000) return sign | uint16_t(std::nearbyint(std::fabs(value) * 0x1p24f));
    return sign | ((mag - (112u << 23) + 0xfff + ((mag >> 13) & 1)) >> 13);
}

#if SHOAL_AVX512
static inline F fma(F a, F b, F c) { return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
static inline F load(const uint16_t *p) { return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void store(uint16_t *p, F v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, 0)); }
static inline F round_even(F v) { return (F)_mm512_roundscale_ps((__m512)v, 8); }
// acc + the dot products of four unsigned bytes per lane with the four signed bytes of x
template <bool Nibble> static inline I dot4(I acc, I w, I x) {
    return (I)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
}
static inline float sum(F v) { return _mm512_reduce_add_ps((__m512)v); }
static inline float top(F v) { return _mm512_reduce_max_ps((__m512)v); }
static inline int32_t sum(I v) { return _mm512_reduce_add_epi32((__m512i)v); }
static inline int32_t top(I v) { return _mm512_reduce_max_epi32((__m512i)v); }
static inline I nibbles(I w) { return (I)_mm512_and_si512((__m512i)w, _mm512_set1_epi8(15)); }
#elif SHOAL_AVX2
static inline F fma(F a, F b, F c) { return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
static inline F load(const uint16_t *p) { return (F)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void store(uint16_t *p, F v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, 0)); }
static inline F round_even(F v) { return (F)_mm256_round_ps((__m256)v, 8); }
static inline I nibbles(I w) { return (I)_mm256_and_si256((__m256i)w, _mm256_set1_epi8(15)); }
static inline I pairs(I w, I x, short scale) {  // w below 16, or the 16-bit sums would saturate
    return (I)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)w, (__m256i)x), _mm256_set1_epi16(scale));
}
template <bool Nibble> static inline I dot4(I acc, I w, I x) {
#ifdef __AVXVNNI__
    return (I)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#else
    if (Nibble) return acc + pairs(w, x, 1);
    return acc + pairs(nibbles(w), x, 1) + pairs(nibbles(w >> 4), x, 16);
#endif
}
#else
static inline F fma(F a, F b, F c) { return a * b + c; }
static inline F load(const uint16_t *p) { F v; for (int i = 0; i < W; i++) v[i] = half_to_float(p[i]); return v; }
static inline void store(uint16_t *p, F v) { for (int i = 0; i < W; i++) p[i] = float_to_half(v[i]); }
static inline F round_even(F v) { F magic = splat(0x1.8p23f); return (v + magic) - magic; }  // |v| below 2^22
static inline I nibbles(I w) { return w & splat(0x0f0f0f0f); }
template <bool Nibble> static inline I dot4(I acc, I w, I x) {
    for (int s = 0; s < 32; s += 8) acc += ((w >> s) & 255) * ((x << (24 - s)) >> 24);
    return acc;
}
#endif
#ifndef SHOAL_AVX512
static inline float sum(F v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
static inline int32_t sum(I v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
template <class V> static inline auto top(V v) {
    auto m = v[0];
    for (int i = 1; i < W; i++) m = v[i] > m ? v[i] : m;
    return m;
}
#endif

struct Brain { uint16_t bits; };  // the upper half of a float (bfloat16)
static inline F load(const Brain *p) {
    U16 v;
    memcpy(&v, p, sizeof v);
    return (F)(__builtin_convertvector(v, I) << 16);
}
static inline void store(Brain *p, F v) {  // round to nearest even; NaN stays NaN
    I bits = (I)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    U16 out = __builtin_convertvector((v == v) ? rounded : splat(0x7fc0), U16);
    memcpy(p, &out, sizeof out);
}

// e^v to about 2 ulp; 0 far below, inf far above
static inline F vexp(F v) {
    F x = vmax(vmin(v, splat(89.0f)), splat(-104.0f));
    F n = round_even(x * 1.44269504f);
    F r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    F p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    I e = __builtin_convertvector(n, I), half = e >> 1;  // in two steps, so that neither factor overflows
    p = p * (F)((half + 127) << 23) * (F)((e - half + 127) << 23);
    return pick(v == v, p, v);  // NaN stays
}

static inline F silu(F v) { return v / (1.0f + vexp(-v)); }
