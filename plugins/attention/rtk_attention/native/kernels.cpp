// Attention of decoding rows over K/V read by slot, in float32.
//
// The keys of all rows are one line of work, which is cut into equal shares. What a share holds of one row, or of one
// told run, is a piece: its queries get an answer over its keys, with the maximum and the sum of their weights, and
// the answers of a row are joined in the end. A piece with few queries takes lanes for the entries of a key (`few`),
// one with many takes them for the queries (`many`). Scores are logarithms to base 2 throughout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
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
constexpr int FEW = 32, MANY = 64;     // keys of one block
constexpr int VECTORS = 3;             // of queries that `many` takes at once
constexpr int SHARES = 8, LEAST = 256; // shares for each thread, and keys of a share that is worth being one
constexpr float LOWEST = -1e30f, LOG2E = 1.44269504088896341f;

typedef float vec __attribute__((vector_size(W * 4)));
typedef float loose __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(W * 4)));

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

static inline float most(vec v) {
  float lanes[W];
  store(lanes, v);
  float m = lanes[0];
  for (int i = 1; i < W; i++) m = std::max(m, lanes[i]);
  return m;
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

// --- what is computed ---------------------------------------------------------------------------------------------

struct Piece {
  const int32_t *slots; // of its keys
  int keys;
  const int32_t *rows; // decoding rows that see them all
  int count;
  int64_t first; // of its answers; one for each row
};

struct Plan {
  std::vector<int32_t> rows;  // of all items
  std::vector<Piece> pieces;
  std::vector<int> shares;    // pieces where a share begins, and the end
  std::vector<int64_t> tokens; // of each row: which query of the step
  std::vector<int> begins;    // of each row: where its answers begin in `parts`, and the end
  std::vector<int64_t> parts;
  int64_t answers = 0;
};

struct Layer {
  const float *q;
  int64_t q_token, q_head; // strides
  const float *k, *v;
  int64_t k_slot, v_slot; // strides; heads lie next to each other
  float *out;             // [tokens, heads, v_dim]
  const float *sinks;     // [heads], or null
  float *answers;         // [answers, heads, v_dim + 2]: weighted values, maximum, sum
  float *scratch;         // of each thread
  int64_t scratch_size;
  int64_t heads, kv_heads, dim, v_dim;
  float scaling, softcap; // softcap 0: none
};

// What a query is multiplied with, so that `capped` makes a logarithm to base 2 of its product with a key.
static inline float factor(const Layer &c) { return c.softcap ? c.scaling / c.softcap * 2 * LOG2E : c.scaling * LOG2E; }
static inline vec capped(vec s, float cap) { return cap * (1.f - 2.f / (exp2(s) + 1.f)); }

static inline float *answer(const Layer &c, int64_t number, int64_t head) {
  return c.answers + (number * c.heads + head) * (c.v_dim + 2);
}

// --- few queries --------------------------------------------------------------------------------------------------

// Scores of one query and W keys; D vectors, or `dim`. Meanwhile the next keys and values are fetched, if any are told.
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

// Adds to T queries' answers the values of `count` keys, C vectors of them from entry `at`.
template <int T, int C>
static inline void add(float *answers, int64_t v_dim, const float *fade, const float *weights, const float *const *values,
                       int64_t at, int64_t entry, int count) {
  vec a[T][C];
  for (int t = 0; t < T; t++)
    for (int c = 0; c < C; c++) a[t][c] = load(answers + t * v_dim + entry + c * W) * fade[t];
  for (int i = 0; i < count; i++) {
    const float *value = values[i] + at + entry;
    for (int t = 0; t < T; t++) {
      const float w = weights[t * FEW + i];
      for (int c = 0; c < C; c++) a[t][c] += load(value + c * W) * w;
    }
  }
  for (int t = 0; t < T; t++)
    for (int c = 0; c < C; c++) store(answers + t * v_dim + entry + c * W, a[t][c]);
}

template <int T>
static void add_all(float *answers, int64_t v_dim, const float *fade, const float *weights, const float *const *values,
                    int64_t at, int count) {
  int64_t entry = 0;
  for (; entry + 4 * W <= v_dim; entry += 4 * W) add<T, 4>(answers, v_dim, fade, weights, values, at, entry, count);
  for (; entry < v_dim; entry += W) add<T, 1>(answers, v_dim, fade, weights, values, at, entry, count);
}

static int64_t few_scratch(const Layer &c, int64_t queries) {
  return queries * c.kv_heads * (c.dim + c.v_dim + 2) + queries * (FEW + 1) + 4 * W;
}

template <int D> static void few(const Layer &c, const Piece &p, float *scratch) {
  const int64_t group = c.heads / c.kv_heads, queries = p.count * group, total = queries * c.kv_heads;
  float *const q = scratch, *const answers = q + total * c.dim, *const highest = answers + total * c.v_dim;
  float *const sum = highest + total, *const weights = sum + total, *const fade = weights + queries * FEW;
  const float by = factor(c), cap = c.softcap * LOG2E;
  for (int64_t h = 0, j = 0; h < c.kv_heads; h++)
    for (int64_t r = 0; r < p.count; r++)
      for (int64_t g = 0; g < group; g++, j++) {
        const float *from = c.q + p.rows[r] * c.q_token + (h * group + g) * c.q_head;
        for (int64_t d = 0; d < c.dim; d++) q[j * c.dim + d] = from[d] * by;
      }
  std::fill(answers, highest, 0.f);
  std::fill(highest, sum, LOWEST);
  std::fill(sum, weights, 0.f);
  const float *keys[2][FEW], *values[2][FEW]; // of this block and the next
  auto look = [&](int b, int into) {
    for (int i = 0; i < FEW; i++) {
      const int64_t slot = p.slots[std::min(b + i, p.keys - 1)];
      keys[into][i] = c.k + slot * c.k_slot, values[into][i] = c.v + slot * c.v_slot;
    }
  };
  look(0, 0);
  for (int b = 0, now = 0; b < p.keys; b += FEW, now = !now) {
    const int count = std::min(FEW, p.keys - b), whole = (count + W - 1) / W * W;
    const bool last = b + FEW >= p.keys;
    if (!last) look(b + FEW, !now);
    for (int64_t h = 0; h < c.kv_heads; h++) {
      const bool next_block = h + 1 == c.kv_heads;
      const int ahead = next_block ? !now : now;
      const int64_t ahead_k = next_block ? 0 : (h + 1) * c.dim, ahead_v = next_block ? 0 : (h + 1) * c.v_dim;
      const int fetched = next_block ? (last ? 0 : FEW) : count;
      for (int64_t j = 0; j < queries; j++) {
        float *const s = weights + j * FEW;
        const int64_t at = h * queries + j;
        vec top = all(LOWEST);
        for (int i = 0; i < whole; i += W) {
          if (j == 0)
            for (int f = i; f < std::min(i + W, fetched); f++) {
              for (int64_t d = 0; d < c.dim; d += 16) __builtin_prefetch(keys[ahead][f] + ahead_k + d);
              for (int64_t d = 0; d < c.v_dim; d += 16) __builtin_prefetch(values[ahead][f] + ahead_v + d);
            }
          vec x = score<D>(q + at * c.dim, keys[now] + i, h * c.dim, c.dim);
          if (cap != 0) x = capped(x, cap);
          store(s + i, x);
          top = larger(top, x);
        }
        const float before = highest[at], m = std::max(before, most(top));
        vec seen{};
        for (int i = 0; i < whole; i += W) store(s + i, exp2(load(s + i) - m));
        for (int i = count; i < whole; i++) s[i] = 0;
        for (int i = 0; i < whole; i += W) seen += load(s + i);
        float lanes[W], more = 0;
        store(lanes, seen);
        for (int i = 0; i < W; i++) more += lanes[i];
        fade[j] = exp2f(before - m);
        highest[at] = m;
        sum[at] = sum[at] * fade[j] + more;
      }
      int64_t j = 0;
      for (; j < queries;) {
        float *const into = answers + (h * queries + j) * c.v_dim;
        const int64_t left = queries - j, offset = h * c.v_dim;
        if (left >= 6 || left == 3) {
          add_all<3>(into, c.v_dim, fade + j, weights + j * FEW, values[now], offset, count), j += 3;
        } else if (left >= 4) {
          add_all<4>(into, c.v_dim, fade + j, weights + j * FEW, values[now], offset, count), j += 4;
        } else if (left == 2) {
          add_all<2>(into, c.v_dim, fade + j, weights + j * FEW, values[now], offset, count), j += 2;
        } else {
          add_all<1>(into, c.v_dim, fade + j, weights + j * FEW, values[now], offset, count), j += 1;
        }
      }
    }
  }
  for (int64_t h = 0, j = 0; h < c.kv_heads; h++)
    for (int64_t r = 0; r < p.count; r++)
      for (int64_t g = 0; g < group; g++, j++) {
        float *into = answer(c, p.first + r, h * group + g);
        std::memcpy(into, answers + j * c.v_dim, c.v_dim * sizeof(float));
        into[c.v_dim] = highest[j], into[c.v_dim + 1] = sum[j];
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

// The queries `begin` .. of one head, N vectors of them: query j is head j % group of row j / group.
template <int N> static void many_of(const Layer &c, const Piece &p, int64_t head, int64_t begin, int64_t end, float *scratch) {
  const int64_t group = c.heads / c.kv_heads;
  float *const q = scratch, *const answers = q + c.dim * N * W, *const weights = answers + c.v_dim * N * W;
  const float by = factor(c), cap = c.softcap * LOG2E;
  std::fill(q, weights, 0.f);
  for (int64_t j = begin; j < end; j++) {
    const float *from = c.q + p.rows[j / group] * c.q_token + (head * group + j % group) * c.q_head;
    for (int64_t d = 0; d < c.dim; d++) q[d * N * W + j - begin] = from[d] * by;
  }
  vec highest[N], sum[N], fade[N];
  for (int n = 0; n < N; n++) highest[n] = all(LOWEST), sum[n] = vec{};
  for (int b = 0; b < p.keys; b += MANY) {
    const int count = std::min(MANY, p.keys - b);
    const float *keys[MANY], *values[MANY];
    for (int i = 0; i < MANY; i++) {
      const int64_t slot = p.slots[b + std::min(i, count - 1)];
      keys[i] = c.k + slot * c.k_slot + head * c.dim, values[i] = c.v + slot * c.v_slot + head * c.v_dim;
    }
    vec top[N];
    for (int n = 0; n < N; n++) top[n] = highest[n];
    for (int i = 0; i < count; i += KEYS) {
      vec a[KEYS][N] = {};
      multiply(a, q, c.dim, [&](int64_t d, int e) { return keys[i + e][d]; });
      for (int e = 0; e < KEYS; e++)
        for (int n = 0; n < N; n++) {
          if (cap != 0) a[e][n] = capped(a[e][n], cap);
          top[n] = larger(top[n], a[e][n]);
          store(weights + ((i + e) * N + n) * W, a[e][n]);
        }
    }
    for (int n = 0; n < N; n++) {
      fade[n] = exp2(highest[n] - top[n]);
      highest[n] = top[n];
      sum[n] *= fade[n];
    }
    for (int i = 0; i < count; i++)
      for (int n = 0; n < N; n++) {
        float *const w = weights + (i * N + n) * W;
        const vec x = exp2(load(w) - top[n]);
        sum[n] += x;
        store(w, x);
      }
    auto rest = [&](auto &a, int64_t d) {
      constexpr int entries = sizeof(a) / sizeof(a[0]);
      for (int e = 0; e < entries; e++)
        for (int n = 0; n < N; n++) a[e][n] = load(answers + ((d + e) * N + n) * W) * fade[n];
      multiply(a, weights, count, [&](int64_t i, int e) { return values[i][d + e]; });
      for (int e = 0; e < entries; e++)
        for (int n = 0; n < N; n++) store(answers + ((d + e) * N + n) * W, a[e][n]);
    };
    int64_t d = 0;
    for (; d + KEYS <= c.v_dim; d += KEYS) {
      vec a[KEYS][N];
      rest(a, d);
    }
    for (; d < c.v_dim; d++) {
      vec a[1][N];
      rest(a, d);
    }
  }
  for (int64_t j = begin; j < end; j++) {
    const int64_t at = j - begin;
    float *into = answer(c, p.first + j / group, head * group + j % group);
    for (int64_t d = 0; d < c.v_dim; d++) into[d] = answers[d * N * W + at];
    into[c.v_dim] = highest[at / W][at % W], into[c.v_dim + 1] = sum[at / W][at % W];
  }
}

static void many(const Layer &c, const Piece &p, float *scratch) {
  const int64_t queries = p.count * (c.heads / c.kv_heads);
  const int64_t most = (c.dim > 256 ? 1 : VECTORS) * W, turns = (queries + most - 1) / most;
  for (int64_t h = 0; h < c.kv_heads; h++)
    for (int64_t t = 0; t < turns; t++) {
      const int64_t begin = queries * t / turns, end = queries * (t + 1) / turns;
      if (end - begin <= W) {
        many_of<1>(c, p, h, begin, end, scratch);
      } else if (end - begin <= 2 * W) {
        many_of<2>(c, p, h, begin, end, scratch);
      } else {
        many_of<3>(c, p, h, begin, end, scratch);
      }
    }
}

// Which of both is faster, in instructions for each key; lanes for entries need whole vectors of them.
static bool are_few(const Layer &c, int64_t queries) {
  if (c.dim % W || c.v_dim % W) return false;
  const int64_t entries = c.dim + c.v_dim;
  return queries * (entries / W + 4) <= (queries + W - 1) / W * entries;
}

static void compute(const Layer &c, const Piece &p, float *scratch) {
  if (!are_few(c, p.count * (c.heads / c.kv_heads))) {
    many(c, p, scratch);
  } else if (c.dim == 4 * W) {
    few<4>(c, p, scratch);
  } else if (c.dim == 8 * W) {
    few<8>(c, p, scratch);
  } else {
    few<0>(c, p, scratch);
  }
}

static void join(const Layer &c, const Plan &plan, int64_t row, int64_t head) {
  const int begin = plan.begins[row], end = plan.begins[row + 1];
  float *const out = c.out + (plan.tokens[row] * c.heads + head) * c.v_dim;
  float highest = c.sinks ? c.sinks[head] * LOG2E : LOWEST;
  for (int i = begin; i < end; i++) highest = std::max(highest, answer(c, plan.parts[i], head)[c.v_dim]);
  float sum = c.sinks ? exp2f(c.sinks[head] * LOG2E - highest) : 0;
  std::fill(out, out + c.v_dim, 0.f);
  for (int i = begin; i < end; i++) {
    const float *part = answer(c, plan.parts[i], head);
    const float weight = exp2f(part[c.v_dim] - highest);
    sum += part[c.v_dim + 1] * weight;
    for (int64_t d = 0; d < c.v_dim; d++) out[d] += part[d] * weight;
  }
  for (int64_t d = 0; d < c.v_dim; d++) out[d] *= 1 / sum;
}

// --- planning -----------------------------------------------------------------------------------------------------

struct Item {
  const int32_t *slots;
  int64_t keys;
  int32_t row, count; // the first of its rows in Plan::rows, and how many
  int64_t cost() const { return 10 + count; } // of one key
};

static void cut(Plan &plan, const std::vector<Item> &items, int threads) {
  int64_t total = 0, keys = 0;
  for (auto &item : items) total += item.keys * item.cost(), keys += item.keys;
  const int64_t shares = keys < threads * LEAST * SHARES ? threads : threads * SHARES;
  const int64_t share = total / shares + 1;
  int64_t left = share; // of the present share
  plan.shares.push_back(0);
  for (auto &item : items)
    for (int64_t begin = 0; begin < item.keys;) {
      int64_t count = (left / item.cost() + 16) / 16 * 16;
      if (count + 16 > item.keys - begin) count = item.keys - begin;
      if (count > 0) {
        plan.pieces.push_back({item.slots + begin, int(count), plan.rows.data() + item.row, item.count, plan.answers});
        plan.answers += item.count;
      }
      begin += count;
      left -= count * item.cost();
      if (left <= 0) {
        plan.shares.push_back(plan.pieces.size());
        left += share;
        if (left <= 0) left = 1;
      }
    }
  if (plan.shares.back() != int(plan.pieces.size())) plan.shares.push_back(plan.pieces.size());
}

extern "C" {

// Rows by their query, their first and their last key's position + 1, and where their slots begin; runs by their rows,
// one after the other, by where each one's end, and by their positions. Runs come by their start.
Plan *rtk_attention_plan(int64_t rows, const int64_t *tokens, const int64_t *starts, const int64_t *stops,
                         const int32_t *table, const int64_t *firsts, int64_t runs, const int64_t *run_rows,
                         const int64_t *run_ends, const int64_t *run_starts, const int64_t *run_stops, int64_t threads) {
  auto *plan = new Plan;
  plan->tokens.assign(tokens, tokens + rows);
  std::vector<Item> items;
  std::vector<int64_t> seen(starts, starts + rows);
  auto alone = [&](int64_t row, int64_t stop) {
    if (seen[row] >= stop) return;
    items.push_back({table + firsts[row] + seen[row], stop - seen[row], int32_t(plan->rows.size()), 1});
    plan->rows.push_back(row);
  };
  for (int64_t run = 0, begin = 0; run < runs; begin = run_ends[run++]) {
    for (int64_t i = begin; i < run_ends[run]; i++) alone(run_rows[i], run_starts[run]);
    const auto slots = table + firsts[run_rows[begin]] + run_starts[run];
    const auto count = int32_t(run_ends[run] - begin);
    items.push_back({slots, run_stops[run] - run_starts[run], int32_t(plan->rows.size()), count});
    for (int64_t i = begin; i < run_ends[run]; i++) {
      plan->rows.push_back(run_rows[i]);
      seen[run_rows[i]] = run_stops[run];
    }
  }
  for (int64_t row = 0; row < rows; row++) alone(row, stops[row]);
  std::stable_sort(items.begin(), items.end(), [](auto &a, auto &b) { return a.count > b.count; });
  cut(*plan, items, threads);
  plan->begins.assign(rows + 1, 0);
  for (auto &p : plan->pieces)
    for (int r = 0; r < p.count; r++) plan->begins[p.rows[r] + 1]++;
  for (int64_t row = 0; row < rows; row++) plan->begins[row + 1] += plan->begins[row];
  plan->parts.resize(plan->answers);
  std::vector<int> next(plan->begins.begin(), plan->begins.end() - 1);
  for (auto &p : plan->pieces)
    for (int r = 0; r < p.count; r++) plan->parts[next[p.rows[r]]++] = p.first + r;
  for (auto &row : plan->rows) row = tokens[row]; // from here on, pieces look for queries only
  return plan;
}

void rtk_attention_drop(Plan *plan) { delete plan; }

// Floats that a layer of this plan wants: for its answers, and for each thread.
void rtk_attention_sizes(const Plan *plan, Layer *c) {
  int64_t size = many_scratch(*c);
  for (auto &p : plan->pieces) {
    const int64_t queries = p.count * (c->heads / c->kv_heads);
    if (are_few(*c, queries)) size = std::max(size, few_scratch(*c, queries));
  }
  c->scratch_size = (size + 63) / 64 * 64;
}

int64_t rtk_attention_answers(const Plan *plan) { return plan->answers; }

void rtk_attention_layer(const Plan *plan, const Layer *c, int64_t threads) {
  const int shares = plan->shares.size() - 1;
  const int64_t joins = int64_t(plan->tokens.size()) * c->heads;
#pragma omp parallel num_threads(int(threads)) if (shares > 1)
  {
    float *const scratch = c->scratch + omp_get_thread_num() * c->scratch_size;
#pragma omp for schedule(dynamic, 1)
    for (int s = 0; s < shares; s++)
      for (int p = plan->shares[s]; p < plan->shares[s + 1]; p++) compute(*c, plan->pieces[p], scratch);
#pragma omp for schedule(static)
    for (int64_t j = 0; j < joins; j++) join(*c, *plan, j / c->heads, j % c->heads);
  }
}

// Rows of `heads` times `dim` numbers to their slots.
void rtk_attention_write(const float *from, int64_t token, int64_t head, const int64_t *slots, int64_t tokens,
                         int64_t heads, int64_t dim, float *into) {
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < heads; h++)
      std::memcpy(into + (slots[t] * heads + h) * dim, from + t * token + h * head, dim * sizeof(float));
}
}
