// Attention over K/V read by slot, in float32.
//
// What some queries see of one row's keys is a piece. Decoding rows, and rows of a few tokens, make one line of work that
// is cut into equal shares, pieces of all K/V heads each; a told run is read once for all its rows. Longer rows, and runs
// of many rows, are cut into blocks of as many queries as `many` holds, and one K/V head of a block is a unit of work like
// a share is. A query of a single piece gets its answer at once; of several, each gives an answer over its keys, with the
// maximum and the sum of their weights, and they are joined in the end. A piece with few queries takes lanes for the
// entries of a key (`few`), one with many takes them for the queries (`many`). Scores are logarithms to base 2 throughout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <omp.h>
#include <utility>
#include <vector>

#if defined(__AVX512F__)
constexpr int W = 16, KEYS = 8;  // lanes of a vector; keys, or entries, that `many` holds in registers at once
#elif defined(__AVX__)
constexpr int W = 8, KEYS = 4;
#else
constexpr int W = 4, KEYS = 4;
#endif
constexpr int FEW = 16, MANY = 64;     // keys of one block
constexpr int VECTORS = 3;             // of queries that `many` takes at once
constexpr int SHARES = 8, LEAST = 256; // shares for each thread, and keys of a row in a share that is worth being one
constexpr int FAR = 1 << 30;           // beyond all keys
constexpr float LOWEST = -1e30f, LOG2E = 1.44269504088896341f;

typedef float vec __attribute__((vector_size(W * 4)));
typedef float loose __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(W * 4)));

// A call of what does nothing but prefetch would be dropped by gcc.
#define INLINED __attribute__((always_inline))

// Into the second cache: few can be on their way to the first.
INLINED static inline void prefetch(const float *p) { __builtin_prefetch(p, 0, 2); }

static inline vec load(const float *p) { return *(const loose *)p; }
static inline void store(float *p, vec v) { *(loose *)p = v; }
static inline vec all(float x) { return x - vec{}; }
static inline vec larger(vec a, vec b) { return a > b ? a : b; }

// 2 to the power of y, to 1e-7 of it; what is not a number stays so.
static inline vec exp2(vec y) {
  constexpr float rounder = 12582912.f; // its last bit is worth 1
  y = y < -126.f ? all(-126.f) : y;
  y = y > 126.f ? all(126.f) : y;
  const vec t = y + rounder, f = y - (t - rounder);
  vec p = f * 0.00015345593540609832f + 0.0013399929442438109f;
  p = p * f + 0.009618489769165874f;
  p = p * f + 0.05550328782498525f;
  p = p * f + 0.24022646883132948f;
  p = p * f + 0.6931472057338331f;
  p = p * f + 1.0000000005551783f;
  return (vec)((ints)p + ((ints)t << 23));
}

// A lane is that of `a` where the bit S of its number is 0, else that of `b`; `flipped`: each with its S-th neighbour.
template <int S, int... I> static inline vec half(vec a, vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I & S ? I + W : I)...);
}
template <int S, int... I> static inline vec flipped(vec a, vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I & S ? (I ^ S) + W : I ^ S)...);
}
// Lane i becomes the sum of the lanes of v[i].
template <int S = 1> static inline vec sums(vec *v) {
  if constexpr (S == W) {
    return v[0];
  } else {
    constexpr auto lanes = std::make_integer_sequence<int, W>();
#pragma GCC unroll 8
    for (int i = 0; i < W / S / 2; i++) v[i] = half<S>(v[2 * i], v[2 * i + 1], lanes) + flipped<S>(v[2 * i], v[2 * i + 1], lanes);
    return sums<2 * S>(v);
  }
}

// Of two vectors of a square: the half of the second that is to come into the first, and the other way round.
template <int S, int... I> static inline void swap_halves(vec &a, vec &b, std::integer_sequence<int, I...>) {
  const vec first = __builtin_shufflevector(a, b, (I & S ? (I ^ S) + W : I)...);
  b = __builtin_shufflevector(a, b, (I & S ? I + W : I ^ S)...);
  a = first;
}
// Lane i of v[j] becomes lane j of v[i].
template <int S = 1> static inline void transpose(vec *v) {
  if constexpr (S < W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
      if (!(i & S)) swap_halves<S>(v[i], v[i + S], std::make_integer_sequence<int, W>());
    transpose<2 * S>(v);
  }
}

// The largest lane, in every lane.
template <int S = 1> static inline vec most(vec v) {
  if constexpr (S < W) v = most<2 * S>(larger(v, flipped<S>(v, v, std::make_integer_sequence<int, W>())));
  return v;
}

// --- what is computed ---------------------------------------------------------------------------------------------

struct Piece {
  const int32_t *slots; // of its keys
  int keys;
  const int32_t *tokens; // whose queries see them: which of the step
  int count;
  int begin, end;  // its queries for each K/V head, in the order of tokens, then heads; all, or a part of those
  int start, stop; // the keys that the first token sees; each further one sees those a key later
  int64_t first;   // of its answers, one for each query of each K/V head; -1: no others have to be joined with them
};

struct Unit { // of work for one thread
  int begin, end; // pieces
  int head;       // a K/V head; -1: all
  int64_t cost;
};

struct Part {
  int64_t first; // answer, for the first K/V head
  int64_t apart; // from those for the next K/V head
};

struct Joint { // what is joined for one token
  int32_t token;
  int begin, end;  // of its heads that read one K/V head
  int parts, stop; // in Plan::parts
};

struct Plan {
  std::vector<int32_t> tokens; // of all pieces
  std::vector<Piece> pieces;
  std::vector<Unit> units;
  std::vector<Joint> joints;
  std::vector<Part> parts;
};

struct Layer {
  const float *q;
  int64_t q_token, q_head; // strides
  const float *k, *v;
  int64_t k_slot, v_slot; // strides; heads lie next to each other
  float *out;             // [tokens, heads, v_dim]
  const float *sinks;     // [heads], or null
  float *answers;         // [answer_count, v_dim + 2]: weighted values, maximum, sum
  int64_t answer_count;
  float *scratch;         // of each thread
  int64_t scratch_size;
  int64_t heads, kv_heads, dim, v_dim;
  int64_t threads;
  float scaling, softcap; // softcap 0: none
  int64_t group() const { return heads / kv_heads; }
};

// What a query is multiplied with, so that `capped` makes a logarithm to base 2 of its product with a key.
static inline float factor(const Layer &c) { return c.softcap ? c.scaling / c.softcap * 2 * LOG2E : c.scaling * LOG2E; }
static inline vec capped(vec s, float cap) { return cap * (1.f - 2.f / (exp2(s) + 1.f)); }

static inline float *answer(const Layer &c, int64_t number) { return c.answers + number * (c.v_dim + 2); }

// Where the query j of a piece and K/V head wants its weighted values: within `out` where they are all.
static inline float *place(const Layer &c, const Piece &p, int64_t head, int64_t j) {
  if (p.first >= 0) return answer(c, p.first + head * (p.end - p.begin) + j - p.begin);
  const int64_t group = c.group();
  return c.out + (p.tokens[j / group] * c.heads + head * group + j % group) * c.v_dim;
}

// What weighted values of one head are multiplied with to be its answer, by the maximum and the sum of their weights.
static inline float last_factor(const Layer &c, int64_t head, float highest, float sum) {
  if (!c.sinks) return 1 / sum;
  const float sink = c.sinks[head] * LOG2E, top = std::max(highest, sink), weight = exp2f(highest - top);
  return weight / (sum * weight + exp2f(sink - top));
}

// --- few queries --------------------------------------------------------------------------------------------------

// Scores of one query and W keys; D vectors, or `dim`.
template <int D>
static inline vec score(const float *q, const float *const *keys, int64_t at, int64_t dim) {
  vec a[W];
  const int n = D ? D : dim / W;
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) {
    const float *key = keys[i] + at;
    a[i] = load(q) * load(key);
    for (int d = 1; d < n; d++) a[i] += load(q + d * W) * load(key + d * W);
  }
  return sums(a);
}

// Adds to T queries' answers the values of `count` keys, C vectors of each. They are summed by themselves first: what adds
// 100,000 keys one after the other loses digits.
template <int T, int C>
static inline void add(float *answers, int64_t v_dim, const float *fade, const float *weights, const float *const *values,
                       int64_t at, int64_t entry, int count) {
  vec a[T][C] = {};
  for (int i = 0; i < count; i++) {
    const float *value = values[i] + at + entry;
    for (int t = 0; t < T; t++) {
      const float w = weights[t * FEW + i];
      for (int c = 0; c < C; c++) a[t][c] += load(value + c * W) * w;
    }
  }
  for (int t = 0; t < T; t++)
    for (int c = 0; c < C; c++) {
      float *const answer = answers + t * v_dim + entry + c * W;
      store(answer, load(answer) * fade[t] + a[t][c]);
    }
}

template <int T>
static void add_all(float *answers, int64_t v_dim, const float *fade, const float *weights, const float *const *values,
                    int64_t at, int count) {
  int64_t entry = 0;
  for (; entry + 4 * W <= v_dim; entry += 4 * W) add<T, 4>(answers, v_dim, fade, weights, values, at, entry, count);
  for (; entry < v_dim; entry += W) add<T, 1>(answers, v_dim, fade, weights, values, at, entry, count);
}

static int64_t few_scratch(const Layer &c, int64_t queries) {
  return queries * c.kv_heads * (c.dim + c.v_dim + W + 1) + queries * (FEW + 1);
}

// Fetches all heads of the keys from `begin` to before `end`, in the order of memory, which it likes best; beyond the last
// key those of the next piece, if any. They come in small portions, as more at once would be waited for.
INLINED static inline void fetch(const Layer &c, const Piece &p, const Piece *next, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) {
    const bool here = i < p.keys;
    if (!here && (!next || i - p.keys >= next->keys)) break;
    const int64_t slot = here ? p.slots[i] : next->slots[i - p.keys];
    const float *const key = c.k + slot * c.k_slot, *const value = c.v + slot * c.v_slot;
    for (int64_t d = 0; d < c.kv_heads * c.dim; d += 16) prefetch(key + d);
    for (int64_t d = 0; c.v != c.k && d < c.kv_heads * c.v_dim; d += 16) prefetch(value + d);
  }
}

// `next`: what comes after that piece, or null.
template <int D> static void few(const Layer &c, const Piece &p, const Piece *next, float *scratch) {
  const int64_t group = c.group(), queries = p.count * group, total = queries * c.kv_heads;
  float *const q = scratch, *const answers = q + total * c.dim, *const sum = answers + total * c.v_dim;
  float *const highest = sum + total * W, *const weights = highest + total, *const fade = weights + queries * FEW;
  const float by = factor(c), cap = c.softcap * LOG2E;
  for (int64_t h = 0, j = 0; h < c.kv_heads; h++)
    for (int64_t r = 0; r < p.count; r++)
      for (int64_t g = 0; g < group; g++, j++) {
        const float *from = c.q + p.tokens[r] * c.q_token + (h * group + g) * c.q_head;
        for (int64_t d = 0; d < c.dim; d++) q[j * c.dim + d] = from[d] * by;
      }
  std::fill(answers, highest, 0.f);
  std::fill(highest, weights, LOWEST);
  const float *keys[FEW], *values[FEW];
  for (int b = 0; b < p.keys; b += FEW) {
    const int count = std::min(FEW, p.keys - b), whole = (count + W - 1) / W * W;
    const int64_t portions = total * (whole / W);
    for (int i = 0; i < FEW; i++) {
      const int64_t slot = p.slots[std::min(b + i, p.keys - 1)];
      keys[i] = c.k + slot * c.k_slot, values[i] = c.v + slot * c.v_slot;
    }
    for (int64_t h = 0, portion = 0; h < c.kv_heads; h++) {
      for (int64_t j = 0; j < queries; j++)
        for (int i = 0; i < whole; i += W, portion++) {
          const int64_t ahead = b + FEW;
          fetch(c, p, next, ahead + FEW * portion / portions, ahead + FEW * (portion + 1) / portions);
          const vec s = score<D>(q + (h * queries + j) * c.dim, keys + i, h * c.dim, c.dim);
          store(weights + j * FEW + i, cap != 0 ? capped(s, cap) : s);
        }
      for (int64_t j = 0; j < queries; j++) {
        float *const s = weights + j * FEW;
        const int64_t at = h * queries + j;
        vec top = all(highest[at]);
        for (int i = 0; i < whole; i += W) top = larger(top, load(s + i));
        top = most(top);
        const vec faded = exp2(highest[at] - top);
        vec seen = load(sum + at * W) * faded;
        for (int i = 0; i < whole; i += W) store(s + i, exp2(load(s + i) - top));
        for (int i = count; i < whole; i++) s[i] = 0;
        for (int i = 0; i < whole; i += W) seen += load(s + i);
        store(sum + at * W, seen);
        fade[j] = faded[0];
        highest[at] = top[0];
      }
      for (int64_t j = 0; j < queries;) {
        float *const into = answers + (h * queries + j) * c.v_dim;
        const int64_t left = queries - j, offset = h * c.v_dim;
        if (left >= 6 || left == 3) {
          add_all<3>(into, c.v_dim, fade + j, weights + j * FEW, values, offset, count), j += 3;
        } else if (left >= 4) {
          add_all<4>(into, c.v_dim, fade + j, weights + j * FEW, values, offset, count), j += 4;
        } else if (left == 2) {
          add_all<2>(into, c.v_dim, fade + j, weights + j * FEW, values, offset, count), j += 2;
        } else {
          add_all<1>(into, c.v_dim, fade + j, weights + j * FEW, values, offset, count), j += 1;
        }
      }
    }
  }
  for (int64_t h = 0, j = 0; h < c.kv_heads; h++)
    for (int64_t i = 0; i < queries; i++, j++) {
      float *const into = place(c, p, h, i);
      const float *const from = answers + j * c.v_dim;
      const float whole = std::accumulate(sum + j * W, sum + (j + 1) * W, 0.f);
      if (p.first >= 0) {
        std::memcpy(into, from, c.v_dim * sizeof(float));
        into[c.v_dim] = highest[j], into[c.v_dim + 1] = whole;
      } else {
        const float by = last_factor(c, h * group + i % group, highest[j], whole);
        for (int64_t d = 0; d < c.v_dim; d++) into[d] = from[d] * by;
      }
    }
}

// --- many queries -------------------------------------------------------------------------------------------------

static int64_t many_scratch(const Layer &c) { return (c.dim + c.v_dim + MANY) * VECTORS * W; }

// Adds to E rows of N vectors, each `row` apart: the sum over `count` of one number of each of `from` times a vector.
template <int N, int E, class From>
static inline void multiply(vec (&a)[E][N], const float *vectors, int64_t count, From from) {
  for (int64_t i = 0; i < count; i++) {
    vec x[N];
    for (int n = 0; n < N; n++) x[n] = load(vectors + (i * N + n) * W);
#pragma GCC unroll 8
    for (int e = 0; e < E; e++) {
      const float y = from(i, e);
      for (int n = 0; n < N; n++) a[e][n] += x[n] * y;
    }
  }
}

// W rows of `count` numbers become vectors of one number of each, `apart` from each other.
static inline void to_lanes(float *into, int64_t apart, const float *const (&rows)[W], int64_t count, float by) {
  int64_t d = 0;
  for (; d + W <= count; d += W) {
    vec t[W];
    for (int i = 0; i < W; i++) t[i] = load(rows[i] + d) * by;
    transpose(t);
    for (int i = 0; i < W; i++) store(into + (d + i) * apart, t[i]);
  }
  for (; d < count; d++)
    for (int i = 0; i < W; i++) into[d * apart + i] = rows[i][d] * by;
}

// The other way round; a lane has a factor of its own.
static inline void to_rows(float *const (&rows)[W], const float *from, int64_t apart, int64_t count, vec by) {
  int64_t d = 0;
  for (; d + W <= count; d += W) {
    vec t[W];
    for (int i = 0; i < W; i++) t[i] = load(from + (d + i) * apart) * by;
    transpose(t);
    for (int i = 0; i < W; i++) store(rows[i] + d, t[i]);
  }
  for (; d < count; d++)
    for (int i = 0; i < W; i++) rows[i][d] = from[d * apart + i] * by[i];
}

// The queries `begin` .. of one head, in N vectors; the last one is in all lanes that are left. What a query does not see
// weighs 0 for it; where that is not a number, of a later token of the row, neither is the answer.
template <int N>
static void many_of(const Layer &c, const Piece &p, int64_t head, int64_t begin, int64_t end, float *scratch) {
  const int64_t group = c.group();
  float *const q = scratch, *const answers = q + c.dim * N * W, *const weights = answers + c.v_dim * N * W;
  const float cap = c.softcap * LOG2E;
  ints start[N], stop[N]; // of the keys that a query sees
  for (int n = 0; n < N; n++) {
    const float *from[W];
    for (int i = 0; i < W; i++) {
      const int64_t j = std::min(begin + n * W + i, end - 1), t = j / group;
      from[i] = c.q + p.tokens[t] * c.q_token + (head * group + j % group) * c.q_head;
      start[n][i] = p.start + t, stop[n][i] = p.stop + t;
    }
    to_lanes(q + n * W, N * W, from, c.dim, factor(c));
  }
  std::fill(answers, weights, 0.f);
  const int all_from = p.start + (end - 1) / group, all_to = p.stop + begin / group; // keys that all of them see
  vec highest[N], sum[N], fade[N];
  for (int n = 0; n < N; n++) highest[n] = all(LOWEST), sum[n] = vec{};
  auto key = [&](int i) { return c.k + p.slots[std::min(i, p.keys - 1)] * c.k_slot + head * c.dim; };
  for (int b = 0; b < p.keys; b += MANY) {
    const int count = std::min(MANY, p.keys - b);
    const bool all_see = b >= all_from && b + count <= all_to;
    auto sees = [&](int i, int n) { return (ints{} + (b + i) >= start[n]) & (ints{} + (b + i) < stop[n]); };
    const float *keys[MANY], *values[MANY];
    for (int i = 0; i < MANY; i++) {
      keys[i] = key(b + i);
      values[i] = c.v + p.slots[std::min(b + i, p.keys - 1)] * c.v_slot + head * c.v_dim;
    }
    vec top[N];
    for (int n = 0; n < N; n++) top[n] = highest[n];
    for (int i = 0; i < count; i += KEYS) {
      vec a[KEYS][N] = {};
      for (int e = 0; e < KEYS; e++) { // what is wanted next
        const float *next = key(b + MANY + i + e);
        for (int64_t d = 0; d < c.v_dim; d += 16) prefetch(values[i + e] + d);
        for (int64_t d = 0; d < c.dim; d += 16) prefetch(next + d);
      }
      multiply(a, q, c.dim, [&](int64_t d, int e) { return keys[i + e][d]; });
      for (int e = 0; e < KEYS; e++)
        for (int n = 0; n < N; n++) {
          if (cap != 0) a[e][n] = capped(a[e][n], cap);
          if (!all_see) a[e][n] = sees(i + e, n) ? a[e][n] : all(LOWEST);
          top[n] = larger(top[n], a[e][n]);
          store(weights + ((i + e) * N + n) * W, a[e][n]);
        }
    }
    for (int n = 0; n < N; n++) {
      fade[n] = exp2(highest[n] - top[n]);
      highest[n] = top[n];
    }
    vec more[N] = {}; // by itself, as in `add`
    for (int i = 0; i < count; i++)
      for (int n = 0; n < N; n++) {
        float *const w = weights + (i * N + n) * W;
        vec x = exp2(load(w) - top[n]);
        if (!all_see) x = sees(i, n) ? x : vec{};
        more[n] += x;
        store(w, x);
      }
    for (int n = 0; n < N; n++) sum[n] = sum[n] * fade[n] + more[n];
    auto rest = [&](auto &a, int64_t d) {
      constexpr int entries = sizeof(a) / sizeof(a[0]);
      multiply(a, weights, count, [&](int64_t i, int e) { return values[i][d + e]; });
      for (int e = 0; e < entries; e++)
        for (int n = 0; n < N; n++) {
          float *const answer = answers + ((d + e) * N + n) * W;
          store(answer, load(answer) * fade[n] + a[e][n]);
        }
    };
    int64_t d = 0;
    for (; d + KEYS <= c.v_dim; d += KEYS) {
      vec a[KEYS][N] = {};
      rest(a, d);
    }
    for (; d < c.v_dim; d++) {
      vec a[1][N] = {};
      rest(a, d);
    }
  }
  for (int n = 0; n < N; n++) {
    float *into[W];
    vec by = all(1);
    for (int i = 0; i < W; i++) {
      const int64_t j = std::min(begin + n * W + i, end - 1);
      into[i] = place(c, p, head, j);
      if (p.first < 0) by[i] = last_factor(c, head * group + j % group, highest[n][i], sum[n][i]);
      else into[i][c.v_dim] = highest[n][i], into[i][c.v_dim + 1] = sum[n][i];
    }
    to_rows(into, answers + n * W, N * W, c.v_dim, by);
  }
}

// How many queries `many` takes at once.
static int64_t at_once(const Layer &c) { return (c.dim > 256 ? 1 : VECTORS) * W; }

static void many(const Layer &c, const Piece &p, int64_t head, float *scratch) {
  const int64_t most = at_once(c);
  for (int64_t begin = p.begin; begin < p.end; begin += most) {
    const int64_t end = std::min<int64_t>(begin + most, p.end);
    if (end - begin <= W) {
      many_of<1>(c, p, head, begin, end, scratch);
    } else if (end - begin <= 2 * W) {
      many_of<2>(c, p, head, begin, end, scratch);
    } else {
      many_of<3>(c, p, head, begin, end, scratch);
    }
  }
}

// Which of both is faster, in instructions for each key; lanes for entries need whole vectors of them.
static bool are_few(const Layer &c, int64_t queries) {
  if (c.dim % W || c.v_dim % W) return false;
  const int64_t entries = c.dim + c.v_dim;
  return queries * (entries / W + 4) <= (queries + W - 1) / W * entries;
}

static void compute(const Layer &c, const Piece &p, const Piece *next, int head, float *scratch) {
  if (head >= 0) {
    many(c, p, head, scratch);
  } else if (!are_few(c, p.end)) {
    for (int64_t h = 0; h < c.kv_heads; h++) many(c, p, h, scratch);
  } else if (c.dim == 4 * W) {
    few<4>(c, p, next, scratch);
  } else if (c.dim == 8 * W) {
    few<8>(c, p, next, scratch);
  } else {
    few<0>(c, p, next, scratch);
  }
}

static void join(const Layer &c, const Plan &plan, const Joint &joint, int64_t head) {
  const Part *const begin = plan.parts.data() + joint.parts, *const end = plan.parts.data() + joint.stop;
  for (int g = joint.begin; g < joint.end; g++) {
    auto of = [&](const Part *part) { return answer(c, part->first + head * part->apart + g - joint.begin); };
    const int64_t number = head * c.group() + g;
    float *const out = c.out + (joint.token * c.heads + number) * c.v_dim;
    float highest = LOWEST, sum = 0;
    for (auto part = begin; part < end; part++) highest = std::max(highest, of(part)[c.v_dim]);
    std::fill(out, out + c.v_dim, 0.f);
    for (auto part = begin; part < end; part++) {
      const float *const from = of(part), weight = exp2f(from[c.v_dim] - highest);
      sum += from[c.v_dim + 1] * weight;
      for (int64_t d = 0; d < c.v_dim; d++) out[d] += from[d] * weight;
    }
    const float by = last_factor(c, number, highest, sum);
    for (int64_t d = 0; d < c.v_dim; d++) out[d] *= by;
  }
}

// --- planning -----------------------------------------------------------------------------------------------------

struct Item {
  const int32_t *slots;
  int64_t keys;
  int32_t row, count; // the first of its joints in Plan::tokens, and how many
  int32_t begin, end; // as those of a piece, and so on
  int64_t start, stop;
};

class Planner {
  Layer &c;
  Plan &plan;
  const int64_t group, entries;
  std::vector<Item> shared, blocks; // by all K/V heads together, and one by one
  int64_t answers = 0;

  // Of one key, as measured: for all K/V heads; for one.
  int64_t shared_cost(int64_t queries) const { return c.kv_heads * entries * (4 + queries); }
  int64_t block_cost(const Item &item) const { return 8 * entries * ((item.end - item.begin + W - 1) / W); }

  int32_t joint(int32_t token, int begin, int end) {
    plan.joints.push_back({token, begin, end, 0, 0});
    return plan.joints.size() - 1;
  }

  void piece(const Item &item, int64_t begin, int64_t count) {
    auto within = [&](int64_t i) { return int(std::clamp<int64_t>(i - begin, -FAR, FAR)); };
    plan.pieces.push_back({item.slots + begin, int(count), plan.tokens.data() + item.row, item.count, item.begin,
                           item.end, within(item.start), within(item.stop), answers});
    answers += (item.end - item.begin) * c.kv_heads;
  }

  // Every decoding query by itself, or with those of its run.
  void cut_shared(int64_t share) {
    std::stable_sort(shared.begin(), shared.end(), [](auto &a, auto &b) { return a.count > b.count; });
    int first = plan.pieces.size();
    int64_t left = share;
    auto finish = [&] {
      const int end = plan.pieces.size();
      if (end > first) plan.units.push_back({first, end, -1, share - left});
      first = end;
    };
    for (auto &item : shared)
      for (int64_t begin = 0, cost = shared_cost(item.count); begin < item.keys;) {
        int64_t count = (left / cost + 16) / 16 * 16;
        if (count + 16 > item.keys - begin) count = item.keys - begin;
        piece(item, begin, count);
        begin += count;
        left -= count * cost;
        if (left <= 0) finish(), left = share;
      }
    finish();
  }

  // A block that is too much for one share gives several.
  void cut_blocks(int64_t share) {
    for (auto &item : blocks) {
      const int64_t cost = block_cost(item), pieces = std::min(item.keys * cost / share + 1, (item.keys + MANY - 1) / MANY);
      for (int64_t i = 0, begin = 0; i < pieces; i++) {
        const int64_t end = i + 1 < pieces ? item.keys * (i + 1) / pieces / 16 * 16 : item.keys;
        piece(item, begin, end - begin);
        const int number = plan.pieces.size() - 1;
        for (int64_t h = 0; h < c.kv_heads; h++) plan.units.push_back({number, number + 1, int(h), (end - begin) * cost});
        begin = end;
      }
    }
  }

  // Each joint's parts; pieces that are alone with all their joints need none.
  void connect() {
    for (auto &p : plan.pieces)
      for (int r = 0; r < p.count; r++) plan.joints[p.tokens[r]].stop++;
    auto alone = [&](const Piece &p) {
      return std::all_of(p.tokens, p.tokens + p.count, [&](int32_t j) { return plan.joints[j].stop == 1; });
    };
    for (auto &p : plan.pieces)
      if (alone(p)) {
        p.first = -1;
        for (int r = 0; r < p.count; r++) plan.joints[p.tokens[r]].stop = 0;
      }
    int parts = 0;
    for (auto &joint : plan.joints) {
      joint.parts = parts, parts += joint.stop;
      joint.stop = joint.parts;
    }
    plan.parts.resize(parts);
    for (auto &p : plan.pieces)
      for (int r = 0; p.first >= 0 && r < p.count; r++) {
        auto &joint = plan.joints[p.tokens[r]];
        plan.parts[joint.stop++] = {p.first + r * group + joint.begin - p.begin, p.end - p.begin};
      }
  }

public:
  Planner(Layer &c, Plan &plan) : c(c), plan(plan), group(c.group()), entries(c.dim + c.v_dim) {}

  int32_t query(int32_t token) { return joint(token, 0, group); }

  void add_shared(const int32_t *slots, int64_t keys, const int32_t *joints, int32_t count) {
    if (keys <= 0) return;
    const int64_t fit = at_once(c) / group, tokens = plan.tokens.size(); // whole tokens of a block
    const bool many = fit && !are_few(c, count * group);
    for (int64_t i = 0, parts = many ? (count + fit - 1) / fit : 1; i < parts; i++) {
      const int64_t begin = count * i / parts, some = count * (i + 1) / parts - begin;
      auto &items = many ? blocks : shared;
      items.push_back({slots, keys, int32_t(tokens + begin), int32_t(some), 0, int32_t(some * group), -FAR, FAR});
    }
    plan.tokens.insert(plan.tokens.end(), joints, joints + count);
  }

  // `tokens` from `token` on, the first of which sees the keys up to `stop`, and `window` of them at most.
  void add_blocks(const int32_t *slots, int32_t token, int64_t tokens, int64_t stop, int64_t window) {
    const int64_t most = at_once(c);
    for (int64_t begin = 0; begin < tokens * group; begin += most) {
      const int64_t end = std::min(begin + most, tokens * group), first = begin / group, last = (end - 1) / group;
      const int64_t from = std::max<int64_t>(stop + first - window, 0), before = first * group;
      blocks.push_back({slots + from, stop + last - from, int32_t(plan.tokens.size()), int32_t(last - first + 1),
                        int32_t(begin - before), int32_t(end - before), stop + first - window - from, stop + first - from});
      for (int64_t t = first; t <= last; t++)
        plan.tokens.push_back(joint(token + t, std::max(begin - t * group, int64_t(0)), std::min(end - t * group, group)));
    }
  }

  void finish() {
    int64_t total = 0;
    for (auto &item : shared) total += item.keys * shared_cost(item.count);
    for (auto &item : blocks) total += item.keys * block_cost(item) * c.kv_heads;
    const int64_t least = LEAST * shared_cost(1);
    const int64_t share = total / (c.threads * std::clamp<int64_t>(total / (c.threads * least), 1, SHARES)) + 1;
    cut_blocks(share);
    cut_shared(share);
    connect();
    for (auto &token : plan.tokens) token = plan.joints[token].token; // from here on, pieces look for queries only
    auto &joints = plan.joints;
    joints.erase(std::remove_if(joints.begin(), joints.end(), [](auto &j) { return j.parts == j.stop; }), joints.end());
    std::stable_sort(plan.units.begin(), plan.units.end(), [](auto &a, auto &b) { return a.cost > b.cost; });
    c.answer_count = joints.empty() ? 0 : answers;
    c.scratch_size = many_scratch(c);
    for (auto &item : shared)
      if (are_few(c, item.end)) c.scratch_size = std::max(c.scratch_size, few_scratch(c, item.end));
    c.scratch_size = (c.scratch_size + 63) / 64 * 64;
  }
};

struct Write { // new keys and values, to their slots
  const float *k;
  int64_t k_token, k_head; // strides
  float *keys;
  const float *v; // null: values are a part of the keys
  int64_t v_token, v_head;
  float *values;
  const int64_t *slots;
  int64_t tokens, heads, dim, v_dim;
  int64_t threads;
};

extern "C" {

// Rows by their first query, their queries, their keys, and where their slots begin; a window of 0 hides nothing. Runs by
// their rows, one after the other, by where each one's end, and by their positions; they come by their start, and have
// rows of one query only. Tells the layer how many answers and how much memory for each thread it wants.
Plan *rtk_attention_plan(Layer *c, int64_t rows, const int64_t *firsts, const int64_t *q_lens, const int64_t *kv_lens,
                         const int32_t *table, const int64_t *offsets, int64_t window, int64_t runs,
                         const int64_t *run_rows, const int64_t *run_ends, const int64_t *run_starts,
                         const int64_t *run_stops) {
  auto *plan = new Plan;
  Planner planner(*c, *plan);
  std::vector<int64_t> seen(rows);
  std::vector<int32_t> queries(rows);
  for (int64_t row = 0; row < rows; row++) {
    if (q_lens[row] > 1) continue;
    queries[row] = planner.query(firsts[row]);
    if (window) seen[row] = std::max<int64_t>(kv_lens[row] - window, 0);
  }
  auto alone = [&](int64_t row, int64_t stop) {
    planner.add_shared(table + offsets[row] + seen[row], stop - seen[row], &queries[row], 1);
  };
  std::vector<int32_t> some;
  for (int64_t run = 0, begin = 0; run < runs; begin = run_ends[run++]) {
    some.clear();
    for (int64_t i = begin; i < run_ends[run]; i++) {
      const int64_t row = run_rows[i];
      alone(row, run_starts[run]);
      some.push_back(queries[row]);
      seen[row] = run_stops[run];
    }
    const auto slots = table + offsets[run_rows[begin]] + run_starts[run];
    planner.add_shared(slots, run_stops[run] - run_starts[run], some.data(), some.size());
  }
  for (int64_t row = 0; row < rows; row++) {
    const int64_t tokens = q_lens[row], stop = kv_lens[row] - tokens + 1; // of the first token's keys
    const auto slots = table + offsets[row];
    if (tokens == 1) {
      alone(row, stop);
    } else if (window || !are_few(*c, tokens * c->group())) {
      planner.add_blocks(slots, firsts[row], tokens, stop, window ? window : FAR);
    } else { // what all of them see is a run of its own
      some.clear();
      for (int64_t t = 0; t < tokens; t++) some.push_back(planner.query(firsts[row] + t));
      planner.add_shared(slots, stop, some.data(), tokens);
      for (int64_t t = 1; t < tokens; t++) planner.add_shared(slots + stop, t, &some[t], 1);
    }
  }
  planner.finish();
  return plan;
}

void rtk_attention_drop(Plan *plan) { delete plan; }

void rtk_attention_layer(const Plan *plan, const Layer *c) {
  const int units = plan->units.size(), joints = plan->joints.size();
#pragma omp parallel num_threads(int(c->threads)) if (units > 1)
  {
    float *const scratch = c->scratch + omp_get_thread_num() * c->scratch_size;
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < units; i++) {
      const Unit &unit = plan->units[i];
      for (const Piece *p = plan->pieces.data() + unit.begin, *end = plan->pieces.data() + unit.end; p < end; p++)
        compute(*c, *p, p + 1 < end ? p + 1 : nullptr, unit.head, scratch);
    }
    if (joints) {
#pragma omp for schedule(static)
      for (int64_t j = 0; j < joints * c->kv_heads; j++) join(*c, *plan, plan->joints[j / c->kv_heads], j % c->kv_heads);
    }
  }
}

void rtk_attention_write(const Write *w) {
#pragma omp parallel for num_threads(int(w->threads)) if (w->tokens * w->heads * w->dim > 65536)
  for (int64_t t = 0; t < w->tokens; t++)
    for (int64_t h = 0; h < w->heads; h++) {
      const int64_t to = w->slots[t] * w->heads + h;
      std::memcpy(w->keys + to * w->dim, w->k + t * w->k_token + h * w->k_head, w->dim * sizeof(float));
      if (w->v) std::memcpy(w->values + to * w->v_dim, w->v + t * w->v_token + h * w->v_head, w->v_dim * sizeof(float));
    }
}
}
