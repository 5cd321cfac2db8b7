// The same products on the matrix unit, sixteen rows at a time: integer sums are exact there too, so results are equal to
// the bit to those of `tile_rows`. Included by quant.h.
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

// Asks the kernel for the matrix unit's registers, once per process.
static bool amx_usable() {
    static const bool usable = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
    return usable;
}

struct alignas(64) TileConfig {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
    TileConfig() {  // 0, 1: sums of hi, 2, 3: of lo, for two tiles of outputs; 4, 5: activations hi, lo; 6, 7: weights
        for (int t = 0; t < 8; t++) bytes[t] = t == 4 || t == 5 ? GROUP : 64, rows[t] = t > 5 ? GROUP / 4 : 16;
    }
};

struct alignas(64) MatrixScratch {
    int32_t sums[4][16][W];
    float out[2][16][W];
    std::vector<uint8_t> codes[2];  // unpacked nibbles
};

static void unpack_codes(const Mat &m, int t, std::vector<uint8_t> &codes) {
    codes.resize(size_t(m.groups()) * W * GROUP);
    uint8_t *to = codes.data();
    for (int g = 0; g < m.groups(); g++)
        for (int k = 0; k < GROUP / 8; k++, to += 128) {
            I bytes = load((const void *)(m.tile(t) + g * m.group_bytes() + k * 64));
            I low = nibbles(bytes), high = nibbles(bytes >> 4);
            memcpy(to, &low, 64);
            memcpy(to + 64, &high, 64);
        }
}

// Tiles t and t + 1, rows 0..k-1 for k the most whole sixteens that lie one after another in memory; returns k.
template <int Bits, class Out> static int amx_product(const Mat &m, int t, const Codes *const *x, int n, Out &out) {
    if (n < 16 || !amx_usable()) return 0;
    const int groups = m.groups();
    const size_t stride = row_bytes(groups);
    auto together = [&](int r) { return (const uint8_t *)x[r + 15] - (const uint8_t *)x[r] == ptrdiff_t(15 * stride); };
    if (!together(0)) return 0;
    static const TileConfig config;
    thread_local MatrixScratch s;
    if (Bits == 4)
        for (int i = 0; i < 2; i++) unpack_codes(m, t + i, s.codes[i]);
    auto codes = [&](int i, int g) -> const uint8_t * {
        return Bits == 4 ? &s.codes[i][g * W * GROUP] : m.tile(t + i) + g * m.group_bytes();
    };
    _tile_loadconfig(&config);
    int r = 0;
    for (; r + 16 <= n && together(r); r += 16) {
        memset(s.out, 0, sizeof s.out);
        const uint8_t *a = (const uint8_t *)x[r];
        for (int g = 0; g < groups; g++) {
            _tile_loadd(4, a + g * sizeof(Codes), stride);
            _tile_loadd(5, a + g * sizeof(Codes) + GROUP, stride);
            _tile_loadd(6, codes(0, g), 64);
            _tile_loadd(7, codes(1, g), 64);
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            _tile_dpbsud(0, 4, 6);
            _tile_dpbsud(1, 4, 7);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
            _tile_stored(0, s.sums[0], 64);
            _tile_stored(1, s.sums[1], 64);
            _tile_stored(2, s.sums[2], 64);
            _tile_stored(3, s.sums[3], 64);
            const uint8_t *scale_of = (const uint8_t *)&scales(x[r], groups)[g];
            for (int i = 0; i < 2; i++) {
                const uint16_t *d = (const uint16_t *)(m.tile(t + i) + g * m.group_bytes() + m.code_bytes());
                const F scale = load(d), low = Bits == 4 ? load(d + W) : F{};
#pragma GCC unroll 8
                for (int j = 0; j < 16; j++) {
                    I hi = load((const void *)s.sums[i][j]), lo = load((const void *)s.sums[2 + i][j]);
                    const Scale &of = *(const Scale *)(scale_of + j * stride);
                    store(s.out[i][j], add_group<Bits>(load(s.out[i][j]), hi, lo, scale, low, of));
                }
            }
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 16; j++) out(t + i, r + j, load(s.out[i][j]));
    }
    _tile_release();
    return r;
}
