// Weights as unsigned integers in groups of 32 inputs, and their products with quantised activations.
//   4 bits: w = d * q + m, q in 0..15 (GGUF's Q4_1; 5 bits per weight)    8 bits: w = d * (q - 128) (GGUF's Q8_0; 8.5)
// d and m are half floats. A tile holds W outputs, group by group: [bytes][d: W][m: W, 4 bits only]. The bytes are vectors
// of W x 4: lane = output, byte = one of four inputs; a nibble pair is inputs k and k + 4.
// Activations are 16-bit integers in two balanced bytes, in groups of 32 with a float scale (exact to 2^-16 of the group's
// largest; 8 bits, as others use, cost 4000 times the divergence). Integer sums are exact, so a group adds two roundings.
#pragma once
#include "vec.h"

constexpr int GROUP = 32;

struct Codes { int8_t hi[GROUP], lo[GROUP]; };
struct Scale {
    float scale, total;  // total: scale times the sum of the integers
    int32_t count;       // the sum itself
};

// One row's groups: all codes, then all scales, on cache lines.
static inline size_t row_bytes(int groups) { return (groups * (sizeof(Codes) + sizeof(Scale)) + 63) / 64 * 64; }
static inline const Scale *scales(const Codes *row, int groups) { return (const Scale *)(row + groups); }

struct Mat {
    const uint8_t *data = nullptr;
    int rows = 0, cols = 0, bits = 0;
    int groups() const { return cols / GROUP; }
    int tiles() const { return (rows + W - 1) / W; }
    int code_bytes() const { return W * GROUP * bits / 8; }
    int group_bytes() const { return code_bytes() + W * 2 * (bits == 4 ? 2 : 1); }
    size_t tile_bytes() const { return size_t(groups()) * group_bytes(); }
    size_t bytes() const { return tile_bytes() * tiles(); }
    const uint8_t *tile(int t) const { return data + tile_bytes() * t; }
};

// Groups first..first+n-1 of a row that has `groups`.
static void quantise(const float *x, Codes *row, int groups, int first, int n) {
    for (int g = first; g < first + n; g++, x += GROUP) {
        I peak = splat(0);  // as bits, so that NaN and inf win and spread instead of vanishing
        for (int i = 0; i < GROUP; i += W) {
            I bits = (I)load(x + i) & 0x7fffffff;
            peak = (bits > peak) ? bits : peak;
        }
        const int32_t most = top(peak);
        float amax;
        memcpy(&amax, &most, 4);
        const bool usable = amax > 1e-30f && amax < INFINITY;
        const F inverse = splat(usable ? 32639.0f / amax : 0.0f);
        I counts = splat(0);
        for (int i = 0; i < GROUP; i += W) {
            F scaled = load(x + i) * inverse;
            I q = __builtin_convertvector(round_even(pick(scaled == scaled, scaled, F{})), I), hi = (q + 128) >> 8;
            store(row[g].hi + i, hi);
            store(row[g].lo + i, q - (hi << 8));
            counts += q;
        }
        Scale &s = const_cast<Scale &>(scales(row, groups)[g]);
        s.scale = usable ? amax / 32639.0f : amax * 0.0f;
        s.count = sum(counts);
        s.total = s.scale * float(s.count);
    }
}

static inline I four(const int8_t *p) { int32_t x; memcpy(&x, p, 4); return splat(x); }

// What one group adds to an output: exact integers in, the same two roundings wherever it is computed.
template <int Bits> static inline F add_group(F out, I hi, I lo, F scale, F low, const Scale &x) {
    I whole = (hi << 8) + lo;
    if (Bits == 8) whole -= x.count * 128;
    out = fma(to_float(whole), scale * x.scale, out);
    return Bits == 4 ? fma(low, splat(x.total), out) : out;
}

// One tile times R rows: out[r][lane] = sum over inputs.
template <int Bits, int R> static inline void tile_rows(const uint8_t *q, int groups, const Codes *const *x, F *out) {
    for (int r = 0; r < R; r++) out[r] = F{};
    for (int g = 0; g < groups; g++) {
        I hi[R], lo[R];
        for (int r = 0; r < R; r++) hi[r] = lo[r] = I{};
        auto add = [&](I bytes, int k) {
            for (int r = 0; r < R; r++) {
                hi[r] = dot4<Bits == 4>(hi[r], bytes, four(x[r][g].hi + k));
                lo[r] = dot4<Bits == 4>(lo[r], bytes, four(x[r][g].lo + k));
            }
        };
        for (int k = 0; k < GROUP; k += Bits == 4 ? 8 : 4, q += W * 4) {
            I bytes = load((const void *)q);
            __builtin_prefetch(q + AHEAD);
            add(Bits == 4 ? nibbles(bytes) : bytes, k);
            if (Bits == 4) add(nibbles(bytes >> 4), k + 4);
        }
        __builtin_prefetch(q + AHEAD);
        const uint16_t *d = (const uint16_t *)q;
        F scale = load(d), low = Bits == 4 ? load(d + W) : F{};
        q += W * (Bits == 4 ? 4 : 2);
        for (int r = 0; r < R; r++) out[r] = add_group<Bits>(out[r], hi[r], lo[r], scale, low, scales(x[r], groups)[g]);
    }
}

#if SHOAL_AMX
#include "amx.h"
#endif

template <int Bits, class Out>
static inline void tile_product(const Mat &m, int t, const Codes *const *x, int r, int n, Out &out) {
    const uint8_t *tile = m.tile(t);
    const int groups = m.groups();
    F y[4];
    for (; r + 4 <= n; r += 4) {
        tile_rows<Bits, 4>(tile, groups, x + r, y);
        for (int i = 0; i < 4; i++) out(t, r + i, y[i]);
    }
    if (n - r == 3) tile_rows<Bits, 3>(tile, groups, x + r, y);
    else if (n - r == 2) tile_rows<Bits, 2>(tile, groups, x + r, y);
    else if (n - r == 1) tile_rows<Bits, 1>(tile, groups, x + r, y);
    for (int i = 0; r + i < n; i++) out(t, r + i, y[i]);
}

template <int Bits, class Out>
static inline void product_as(const Mat &m, int t, int last, const Codes *const *x, int n, Out &out) {
#if SHOAL_AMX
    for (; t + 2 <= last; t += 2) {
        const int done = amx_product<Bits>(m, t, x, n, out);
        tile_product<Bits>(m, t, x, done, n, out);
        tile_product<Bits>(m, t + 1, x, done, n, out);
    }
#endif
    for (; t < last; t++) tile_product<Bits>(m, t, x, 0, n, out);
}

// out(tile, row, lanes) for tiles t..last-1 and each of n rows; the same arithmetic per row whatever n.
template <class Out> static inline void product(const Mat &m, int t, int last, const Codes *const *x, int n, Out out) {
    if (m.bits == 4) product_as<4>(m, t, last, x, n, out);
    else product_as<8>(m, t, last, x, n, out);
}

// Packs one tile of a row-major float matrix. Values that already lie on such a grid come back exactly.
static void pack_tile(const Mat &m, int t, const float *src, uint8_t *tile) {
    memset(tile, 0, m.tile_bytes());
    for (int g = 0; g < m.groups(); g++, tile += m.group_bytes()) {
        uint16_t *d = (uint16_t *)(tile + m.code_bytes()), *low = d + W;
        for (int lane = 0; lane < W && t * W + lane < m.rows; lane++) {
            const float *x = src + size_t(t * W + lane) * m.cols + g * GROUP;
            float least = x[0], most = x[0];
            for (int i = 1; i < GROUP; i++) {
                least = x[i] < least ? x[i] : least;
                most = x[i] > most ? x[i] : most;
            }
            float extent = m.bits == 4 ? (most - least) / 15 : (most > -least ? most : -least) / 127;
            uint16_t half = float_to_half(extent), half_low = float_to_half(least);
            d[lane] = half;
            if (m.bits == 4) low[lane] = half_low;
            float step = half_to_float(half), base = m.bits == 4 ? half_to_float(half_low) : -128 * step;
            float inverse = step > 0 ? 1 / step : 0;
            uint8_t *q = tile + lane * 4;
            for (int k = 0; k < GROUP; k++) {
                float v = std::nearbyint((x[k] - base) * inverse);
                uint8_t code = v > 0 ? (v < (m.bits == 4 ? 15 : 255) ? uint8_t(v) : (m.bits == 4 ? 15 : 255)) : 0;
                if (m.bits == 8) q[(k / 4) * W * 4 + k % 4] = code;
                else q[(k / 8) * W * 4 + k % 4] |= k & 4 ? uint8_t(code << 4) : code;
            }
        }
    }
}

static void unpack_row(const Mat &m, int row, float *out) {
    const uint8_t *tile = m.tile(row / W);
    const int lane = row % W;
    for (int g = 0; g < m.groups(); g++, tile += m.group_bytes()) {
        const uint16_t *d = (const uint16_t *)(tile + m.code_bytes()), *low = d + W;
        const uint8_t *q = tile + lane * 4;
        float step = half_to_float(d[lane]);
        float base = m.bits == 4 ? half_to_float(low[lane]) : -128 * step;
        for (int k = 0; k < GROUP; k++) {
            int code = m.bits == 8 ? q[(k / 4) * W * 4 + k % 4] : (q[(k / 8) * W * 4 + k % 4] >> (k & 4 ? 4 : 0)) & 15;
            *out++ = step * float(code) + base;
        }
    }
}
