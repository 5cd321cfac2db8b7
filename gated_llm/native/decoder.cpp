// A decoder of the Llama family over quantised weights, one call per token (or per block of rows). Rows may belong to
// different requests; each has its position, its key/value store and its own list of branches to run. A branch that a
// row skips costs it nothing; weights are read once for all rows that do run. Knows nothing of text, sampling, gates'
// training or memory for keys and values: the caller owns those. Plain C interface for ctypes.
#include "attention.h"
#include "pool.h"
#include "quant.h"
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#ifdef __linux__
#include <sys/mman.h>
#endif

extern "C" {
struct Config {
    int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int32_t kv_type;    // keys and values: 0 float, 1 half, 2 bfloat16
    float eps;
};
struct Kv {                            // one request; arrays over layers
    void **data;                       // keys [kv_heads, capacity / 16, head_dim, 16], values [kv_heads, capacity, head_dim]
    int32_t **positions;               // [capacity]
    int32_t *length, *capacity;        // capacity: a multiple of 16
};
struct Batch {
    int32_t rows;
    const int32_t *tokens, *positions, *sequence;  // [rows]
    Kv *kv;                            // [sequences]
    uint8_t *run;                      // [rows, layers, 2]: 0 skip, 1 run, 2 (attention) only store keys and values
    float *alpha;                      // [rows, layers, 2] or null
    int64_t *counts;                   // [layers, 2]: branches run, added to
    const int32_t *logit_rows;         // [wanted]
    int32_t wanted;
    float *logits;                     // [wanted, vocab]
    int32_t first, last;               // layers to run: from `first` up to before `last`
    float *states;                     // [rows, hidden] or null: residual stream, read where first > 0, left after the last
    int32_t watched;                   // a layer that leaves the two below, or -1; what a row skips there stays as it was
    float *gaps;                       // [rows, heads]: KL(attention row || uniform)
    float *middle;                     // [rows, hidden]: residual stream between attention and MLP
    const float *thrift;               // [rows] or null: where 0 or more, the gates leave branches out of `run`, into `alpha`
    const uint8_t *instead;            // [rows]: what `run` becomes where a gate leaves attention out, 0 or 2
};
}

enum MatrixKind { Q, K, V, O, GATE, UP, DOWN, EMBED, HEAD, MATRIX_KINDS };
enum VectorKind { ATTN_NORM, MLP_NORM, Q_NORM, K_NORM, Q_BIAS, K_BIAS, V_BIAS, FINAL_NORM, VECTOR_KINDS };
constexpr int STAGES_PER_LAYER = 8, HEAD_TILES = 16;

static void *pages(size_t bytes) {
    constexpr size_t big = size_t(2) << 20;
    void *p = nullptr;
    bytes = (bytes + big - 1) / big * big;
    if (posix_memalign(&p, big, bytes)) return nullptr;
#ifdef __linux__
    madvise(p, bytes, MADV_HUGEPAGE);  // weights are streamed: fewer page-table walks
#endif
    return p;
}

struct Arena {
    struct Free { void operator()(uint8_t *p) const { free(p); } };
    static constexpr size_t CHUNK = size_t(16) << 20;
    std::vector<std::unique_ptr<uint8_t, Free>> chunks;
    size_t used = 0, size = 0;

    uint8_t *take(size_t bytes) {
        bytes = (bytes + 127) / 128 * 128;
        if (used + bytes > size) {
            size = std::max(bytes, CHUNK);
            uint8_t *p = (uint8_t *)pages(size);
            if (!p) return nullptr;
            chunks.emplace_back(p);
            used = 0;
        }
        used += bytes;
        return chunks.back().get() + used - bytes;
    }
};

struct Rows {  // quantised activations
    std::unique_ptr<uint8_t, Arena::Free> data;
    int groups = 0;
    void reserve(int rows, int width) {
        groups = width / GROUP;
        data.reset((uint8_t *)pages(rows * row_bytes(groups)));
        if (!data) throw std::bad_alloc();
    }
    Codes *row(int r) const { return (Codes *)(data.get() + r * row_bytes(groups)); }
};

struct Layer {
    Mat m[MATRIX_KINDS];
    std::vector<float> v[VECTOR_KINDS];
    const float *cos = nullptr, *sin = nullptr;  // [positions, head_dim / 2]
    int window = 0;
    const float *vec(int kind) const { return v[kind].empty() ? nullptr : v[kind].data(); }
};

struct Scratch {  // per thread
    std::vector<float> block;
    AttentionScratch attention;
    std::vector<int> starts;  // where in `attend` each block of rows begins that goes through attention together
    std::vector<int> attend, keep, mlp, slot;  // rows that run attention; those plus rows that only store; MLP; store index
    std::vector<int> added;
    std::vector<const Codes *> x;
};

struct Model {
    Config c;
    std::vector<Layer> layers;
    Mat embed, head;
    std::vector<float> final_norm;
    std::vector<float> gate_weight, gate_bias, gate_slope;  // [layers, 2, hidden], [layers, 2]; empty: no gates
    int safe = 0;                                           // last layers that gates only scale
    Arena arena;
    std::unique_ptr<Pool> pool;
    std::vector<Scratch> scratch;
    std::vector<float> hidden, query;
    Rows normed, mixed, inner;
    std::mutex mutex;  // one pass at a time
    int rows = 0, turns = 0;

    void set_threads(int n) {
        if (pool && pool->threads == n) return;
        pool.reset();
        pool.reset(new Pool(n, (c.layers + 1) * STAGES_PER_LAYER));
        scratch.resize(n);
    }

    void reserve(int n) {
        if (n <= rows) return;
        rows = n;
        query.resize(size_t(n) * c.heads * c.head_dim);
        hidden.resize(size_t(n) * c.hidden);
        normed.reserve(n, c.hidden);
        mixed.reserve(n, c.heads * c.head_dim);
        inner.reserve(n, c.ffn);
    }
};

static void rms_norm(const float *x, const float *w, int n, float eps, float *out) {
    F squares{};
    for (int i = 0; i < n; i += W) squares = fma(load(x + i), load(x + i), squares);
    float scale = 1.0f / std::sqrt(sum(squares) / float(n) + eps);
    for (int i = 0; i < n; i += W) store(out + i, load(x + i) * scale * load(w + i));
}

static constexpr int QUERIES = 16;  // that go through attention together, if rows allow

static void rotate(float *x, const float *cos, const float *sin, int half) {
    for (int i = 0; i < half; i += W) {
        F a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, fma(a, c, -(b * s)));
        store(x + half + i, fma(b, c, a * s));
    }
}

template <class Store> static void keep_values(Store *to, const float *from, int n) {
    for (int i = 0; i < n; i += W) store(to + i, load(from + i));
}

template <class Store> static void keep_keys(Store *to, const float *from, int n) {  // one lane of a block
    Store narrow[W];
    for (int i = 0; i < n; i += W) {
        store(narrow, load(from + i));
        for (int j = 0; j < W; j++) to[(i + j) * BLOCK] = narrow[j];
    }
}

template <class Store> class Forward {
    Model &model;
    const Config &c;
    const Batch &b;
    float *hidden;
    Pool &pool;

    float alpha(int row, int layer, int branch) const {
        return b.alpha ? b.alpha[(size_t(row) * c.layers + layer) * 2 + branch] : 1.0f;
    }
    uint8_t runs(int row, int layer, int branch) const { return b.run[(size_t(row) * c.layers + layer) * 2 + branch]; }

    // Decides a layer's branches for a row, from what the layer takes in.
    void gate(int row, int layer) const {
        const float thrift = b.thrift[row];
        if (!(thrift >= 0)) return;
        const float *x = hidden + size_t(row) * c.hidden, *w = &model.gate_weight[size_t(layer) * 2 * c.hidden];
        F squares{}, first{}, second{};
        for (int i = 0; i < c.hidden; i += W) {
            const F at = load(x + i);
            squares = fma(at, at, squares);
            first = fma(at, load(w + i), first);
            second = fma(at, load(w + c.hidden + i), second);
        }
        const float scale = 1.0f / std::sqrt(sum(squares) / float(c.hidden) + 1e-6f), dots[2] = {sum(first), sum(second)};
        const bool safe = layer >= c.layers - model.safe;
        for (int branch = 0; branch < 2; branch++) {
            const size_t at = (size_t(row) * c.layers + layer) * 2 + branch;
            const float z = dots[branch] * scale + model.gate_bias[layer * 2 + branch] - thrift * model.gate_slope[layer * 2 + branch];
            float alpha = 1.0f / (1.0f + std::exp(-z));
            if (safe) alpha = std::max(alpha, 0.7f);
            b.alpha[at] = alpha;
            if (alpha < 0.5f && b.run[at] == 1) b.run[at] = branch ? 0 : b.instead[row];
        }
    }

    void plan(Scratch &s, int layer) const {
        s.attend.clear(), s.keep.clear(), s.mlp.clear(), s.added.clear(), s.starts.clear();
        s.slot.resize(b.rows);
        for (int r = 0; r < b.rows; r++) {
            if (runs(r, layer, 1)) s.mlp.push_back(r);
            uint8_t attention = runs(r, layer, 0);
            if (!attention) continue;
            int request = b.sequence[r];
            if (request >= int(s.added.size())) s.added.resize(request + 1, 0);
            s.slot[r] = b.kv[request].length[layer] + s.added[request]++;
            s.keep.push_back(r);
            if (attention != 1) continue;
            const int most = std::max(1, QUERIES / (c.heads / c.kv_heads)), n = int(s.attend.size());
            if (!n || n - s.starts.back() >= most || b.sequence[s.attend.back()] != request) s.starts.push_back(n);
            s.attend.push_back(r);
        }
        s.starts.push_back(int(s.attend.size()));
    }

    void norm_row(int row, Scratch &s, const float *weight) {
        rms_norm(hidden + size_t(row) * c.hidden, weight, c.hidden, c.eps, s.block.data());
        quantise(s.block.data(), model.normed.row(row), model.normed.groups, 0, model.normed.groups);
    }

    const Codes *const *inputs(Scratch &s, const std::vector<int> &list, const Rows &from) const {
        s.x.resize(list.size());
        for (size_t i = 0; i < list.size(); i++) s.x[i] = from.row(list[i]);
        return s.x.data();
    }

    // One head of queries, keys or values for every row that needs it: product, bias, norm, rotation, storing.
    void project(int unit, Scratch &s, int layer) {
        const Layer &l = model.layers[layer];
        const int dim = c.head_dim, kind = unit < c.heads ? Q : unit < c.heads + c.kv_heads ? K : V;
        const int head = kind == Q ? unit : (unit - c.heads) % c.kv_heads;
        const auto &list = kind == Q ? s.attend : s.keep;
        const int n = int(list.size());
        const Codes *const *x = inputs(s, list, model.normed);
        if (s.block.size() < size_t(n) * dim) s.block.resize(size_t(n) * dim);
        float *block = s.block.data();
        const int first = head * (dim / W);
        product(l.m[kind], first, first + dim / W, x, n,
                [&](int t, int r, F y) { store(block + r * dim + (t - first) * W, y); });
        const float *bias = l.vec(kind == Q ? Q_BIAS : kind == K ? K_BIAS : V_BIAS);
        const float *norm = kind == Q ? l.vec(Q_NORM) : kind == K ? l.vec(K_NORM) : nullptr;
        for (int r = 0; r < n; r++) {
            float *y = block + r * dim;
            if (bias) for (int i = 0; i < dim; i += W) store(y + i, load(y + i) + load(bias + head * dim + i));
            if (norm) rms_norm(y, norm, dim, c.eps, y);
            const int row = list[r];
            const size_t turn = size_t(b.positions[row]) * (dim / 2);
            if (kind != V) rotate(y, l.cos + turn, l.sin + turn, dim / 2);
            if (kind == Q) {
                const float scale = 1.0f / std::sqrt(float(dim));
                float *q = &model.query[(size_t(row) * c.heads + head) * dim];
                for (int i = 0; i < dim; i += W) store(q + i, load(y + i) * scale);
                continue;
            }
            const Kv &kv = b.kv[b.sequence[row]];
            const size_t slot = s.slot[row];
            if (kind == V) keep_values(values(kv, layer, head) + slot * dim, y, dim);
            else keep_keys(keys(kv, layer, head) + slot / BLOCK * BLOCK * dim + slot % BLOCK, y, dim);
            if (kind == K && head == 0) kv.positions[layer][slot] = b.positions[row];
        }
    }

    Store *keys(const Kv &kv, int layer, int head) const {
        return (Store *)kv.data[layer] + size_t(head) * kv.capacity[layer] * c.head_dim;
    }
    Store *values(const Kv &kv, int layer, int head) const { return keys(kv, layer, c.kv_heads + head); }

    // Rows of one request, one key/value head.
    void attention(int unit, Scratch &s, int layer) {
        const int start = s.starts[unit / c.kv_heads], stop = s.starts[unit / c.kv_heads + 1], head = unit % c.kv_heads;
        const int dim = c.head_dim, share = c.heads / c.kv_heads, queries = (stop - start) * share;
        const Kv &kv = b.kv[b.sequence[s.attend[start]]];
        if (s.block.size() < size_t(queries) * dim) s.block.resize(size_t(queries) * dim);
        std::vector<const float *> q(queries);
        std::vector<float *> out(queries), gaps(layer == b.watched ? queries : 0);
        std::vector<Span> spans(queries);
        for (int i = 0; i < queries; i++) {
            const int row = s.attend[start + i / share];
            Span span{0, s.slot[row] + 1};
            if (int window = model.layers[layer].window) {
                const int32_t *p = kv.positions[layer];
                span.from = int(std::upper_bound(p, p + span.to, b.positions[row] - window) - p);
            }
            q[i] = &model.query[(size_t(row) * c.heads + head * share + i % share) * dim];
            out[i] = &s.block[size_t(i) * dim];
            spans[i] = span;
            if (!gaps.empty()) gaps[i] = b.gaps + size_t(row) * c.heads + head * share + i % share;
        }
        attend(q.data(), out.data(), spans.data(), queries, keys(kv, layer, head), values(kv, layer, head), dim,
               s.attention, gaps.empty() ? nullptr : gaps.data());
        for (int i = 0; i < queries; i++)
            quantise(out[i], model.mixed.row(s.attend[start + i / share]), model.mixed.groups,
                     (head * share + i % share) * (dim / GROUP), dim / GROUP);
    }

    // 32 outputs of a product whose result goes back onto the residual stream.
    void add_back(int unit, Scratch &s, int layer, int branch) {
        const Layer &l = model.layers[layer];
        const Mat &m = l.m[branch ? DOWN : O];
        const auto &list = branch ? s.mlp : s.attend;
        const Codes *const *x = inputs(s, list, branch ? model.inner : model.mixed);
        constexpr int TILES = GROUP / W;
        product(m, unit * TILES, (unit + 1) * TILES, x, int(list.size()), [&](int t, int r, F y) {
            const size_t at = size_t(list[r]) * c.hidden + t * W;
            store(hidden + at, fma(splat(alpha(list[r], layer, branch)), y, load(hidden + at)));
        });
    }

    void gate_up(int unit, Scratch &s, int layer) {
        const Layer &l = model.layers[layer];
        const int n = int(s.mlp.size());
        const Codes *const *x = inputs(s, s.mlp, model.normed);
        if (s.block.size() < size_t(n) * GROUP) s.block.resize(size_t(n) * GROUP);
        float *block = s.block.data();
        constexpr int TILES = GROUP / W;
        const int first = unit * TILES;
        product(l.m[GATE], first, first + TILES, x, n, [&](int t, int r, F y) {
            store(block + r * GROUP + (t - first) * W, silu(y));
        });
        product(l.m[UP], first, first + TILES, x, n, [&](int t, int r, F y) {
            float *p = block + r * GROUP + (t - first) * W;
            store(p, load(p) * y);
        });
        for (int r = 0; r < n; r++)
            quantise(block + r * GROUP, model.inner.row(s.mlp[r]), model.inner.groups, unit, 1);
    }

    void run_layer(int layer, Scratch &s, int id, int &stage) {
        const Layer &l = model.layers[layer];
        if (b.thrift) pool.stage(id, stage, b.rows, [&](int r) { gate(r, layer); });
        plan(s, layer);
        if (!s.keep.empty()) {
            pool.stage(id, stage, int(s.keep.size()), [&](int i) { norm_row(s.keep[i], s, l.vec(ATTN_NORM)); });
            const int skip = s.attend.empty() ? c.heads : 0;
            pool.stage(id, stage, c.heads + 2 * c.kv_heads - skip, [&](int u) { project(u + skip, s, layer); });
        }
        if (!s.attend.empty()) {
            pool.stage(id, stage, int(s.starts.size() - 1) * c.kv_heads, [&](int u) { attention(u, s, layer); });
            pool.stage(id, stage, c.hidden / GROUP, [&](int u) { add_back(u, s, layer, 0); });
        }
        if (id == 0) {
            b.counts[layer * 2] += int64_t(s.attend.size());
            b.counts[layer * 2 + 1] += int64_t(s.mlp.size());
        }
        if (s.mlp.empty()) return;
        pool.stage(id, stage, int(s.mlp.size()), [&](int i) {
            const size_t at = size_t(s.mlp[i]) * c.hidden;
            if (layer == b.watched) std::copy(hidden + at, hidden + at + c.hidden, b.middle + at);
            norm_row(s.mlp[i], s, l.vec(MLP_NORM));
        });
        pool.stage(id, stage, c.ffn / GROUP, [&](int u) { gate_up(u, s, layer); });
        pool.stage(id, stage, c.hidden / GROUP, [&](int u) { add_back(u, s, layer, 1); });
    }

    void finish(Scratch &s, int id, int &stage) {
        if (!b.wanted) return;
        pool.stage(id, stage, b.wanted, [&](int i) { norm_row(b.logit_rows[i], s, model.final_norm.data()); });
        const Mat &m = model.head.data ? model.head : model.embed;
        pool.stage(id, stage, (m.tiles() + HEAD_TILES - 1) / HEAD_TILES, [&](int u) {
            s.mlp.assign(b.logit_rows, b.logit_rows + b.wanted);
            const Codes *const *x = inputs(s, s.mlp, model.normed);
            product(m, u * HEAD_TILES, std::min((u + 1) * HEAD_TILES, m.tiles()), x, b.wanted, [&](int t, int r, F y) {
                float *to = b.logits + size_t(r) * c.vocab + t * W;
                if (t * W + W <= c.vocab) store(to, y);
                else for (int i = 0; t * W + i < c.vocab; i++) to[i] = y[i];
            });
        });
    }

public:
    Forward(Model &model, const Batch &batch) : model(model), c(model.c), b(batch), hidden(batch.states ? batch.states : model.hidden.data()), pool(*model.pool) {}

    // Lengths grow only after the pass: a late helper may still be planning a layer.
    void operator()() {
        pool.run([this](int id) {
            Scratch &s = model.scratch[id];
            int stage = 0;
            if (s.block.size() < size_t(c.hidden)) s.block.resize(c.hidden);
            if (!b.first)
                pool.stage(id, stage, b.rows,
                           [&](int r) { unpack_row(model.embed, b.tokens[r], hidden + size_t(r) * c.hidden); });
            for (int layer = b.first; layer < b.last; layer++) run_layer(layer, s, id, stage);
            finish(s, id, stage);
        });
        for (int layer = b.first; layer < b.last; layer++)
            for (int r = 0; r < b.rows; r++) b.kv[b.sequence[r]].length[layer] += runs(r, layer, 0) != 0;
    }
};

extern "C" {
int shoal_abi() { return int(sizeof(Config) + sizeof(Kv) + sizeof(Batch)); }

Model *shoal_new(const Config *c, int threads) try {
    std::unique_ptr<Model> m(new Model{});
    m->c = *c;
    m->layers.resize(c->layers);
    m->set_threads(threads);
    return m.release();
} catch (const std::exception &) {
    return nullptr;
}

void shoal_free(Model *m) { delete m; }
void shoal_threads(Model *m, int n) { m->set_threads(n); }

// Packs a [rows, cols] float matrix. Returns its packed size in bytes, 0 when memory ran out.
int64_t shoal_matrix(Model *m, int layer, int kind, const float *src, int rows, int cols, int bits) {
    Mat &mat = kind == EMBED ? m->embed : kind == HEAD ? m->head : m->layers[layer].m[kind];
    Mat fresh;
    fresh.rows = rows, fresh.cols = cols, fresh.bits = bits;
    uint8_t *data = mat.data && mat.bytes() == fresh.bytes() ? const_cast<uint8_t *>(mat.data) : m->arena.take(fresh.bytes());
    if (!data) return 0;
    fresh.data = data;
    Pool &pool = *m->pool;
    pool.run([&](int id) {
        int stage = 0;
        pool.stage(id, stage, fresh.tiles(), [&](int t) { pack_tile(fresh, t, src, data + fresh.tile_bytes() * t); });
    });
    mat = fresh;
    return int64_t(fresh.bytes());
}

void shoal_unpack(const Model *m, int layer, int kind, float *out) {
    const Mat &mat = kind == EMBED ? m->embed : kind == HEAD ? m->head : m->layers[layer].m[kind];
    for (int r = 0; r < mat.rows; r++) unpack_row(mat, r, out + size_t(r) * mat.cols);
}

void shoal_vector(Model *m, int layer, int kind, const float *src, int n) {
    (kind == FINAL_NORM ? m->final_norm : m->layers[layer].v[kind]).assign(src, src + n);
}

// cos, sin [turns, head_dim / 2] stay the caller's; window 0: none.
void shoal_rope(Model *m, int layer, const float *cos, const float *sin, int turns, int window) {
    m->turns = turns;
    m->layers[layer].cos = cos, m->layers[layer].sin = sin, m->layers[layer].window = window;
}

// Gates of every layer; the last `safe` layers are only scaled.
void shoal_gates(Model *m, const float *weight, const float *bias, const float *slope, int safe) {
    const size_t n = size_t(m->c.layers) * 2;
    m->gate_weight.assign(weight, weight + n * m->c.hidden);
    m->gate_bias.assign(bias, bias + n), m->gate_slope.assign(slope, slope + n);
    m->safe = safe;
}

// 0, or 1: a key/value store is too small, 2: a token id, 3: a position out of range, 4: no memory.
int shoal_forward(Model *m, const Batch *b) try {
    std::lock_guard<std::mutex> alone(m->mutex);
    for (int r = 0; r < b->rows; r++) {
        if (b->tokens[r] < 0 || b->tokens[r] >= m->c.vocab) return 2;
        if (b->positions[r] < 0 || b->positions[r] >= m->turns) return 3;
    }
    std::vector<int> need;
    for (int layer = b->first; layer < b->last; layer++) {
        need.assign(need.size(), 0);
        for (int r = 0; r < b->rows; r++)
            if (b->run[(size_t(r) * m->c.layers + layer) * 2]) {
                const int request = b->sequence[r];
                if (request >= int(need.size())) need.resize(request + 1, 0);
                if (b->kv[request].length[layer] + ++need[request] > b->kv[request].capacity[layer]) return 1;
            }
    }
    m->reserve(b->rows);
    if (m->c.kv_type == 0) Forward<float>(*m, *b)();
    else if (m->c.kv_type == 1) Forward<uint16_t>(*m, *b)();
    else Forward<Brain>(*m, *b)();
    return 0;
} catch (const std::bad_alloc &) {
    return 4;
}
}
