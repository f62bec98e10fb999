/* Attention of encoders, where every token of a text sees the whole text, for CPUs with AVX-512.
 *
 * A task is one range of queries of one text; each of its heads is a unit of work of its own. A unit takes the keys in
 * chunks, with a running maximum and sum (online softmax, Milakov and Gimelshein, 2018). It first copies a chunk's keys,
 * turned on their side, and its values next to each other: in the rows of the batch they lie so far apart that they push
 * each other out of the first-level cache. Then BLOCK queries at a time meet PAIR keys at a time, so that all their sums
 * stay in registers.
 *
 * Results do not depend on what else is in a batch, nor on the number of threads: a unit does its sums in one fixed
 * order. What is not finite stays within its text, and is not lost there.
 * How this library is loaded and called is told in native.c and native.py.
 */

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f")))
#define ALWAYS_INLINE AVX512 static inline __attribute__((always_inline))

enum { LANES = 16, PAIR = 2 * LANES, BLOCK = 8, CHUNK = 64, MAX_QUERIES = 128, MAX_HEAD_DIM = 128 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    int64_t first_row;   /* of the text, in the batch */
    int64_t num_rows;    /* of the text */
    int64_t first_query; /* in the text */
    int64_t num_queries; /* at most MAX_QUERIES */
} text_task;

typedef struct {
    int64_t num_heads, head_dim; /* at most MAX_HEAD_DIM */
    float scale;
    const text_task *tasks;
    int64_t num_tasks;
} text_plan;

/* What a unit keeps. `width` is head_dim, made a multiple of PAIR. Queries are made a multiple of BLOCK: the last one is
 * repeated. */
typedef struct {
    float keys[MAX_HEAD_DIM * CHUNK];   /* column by column, CHUNK keys each */
    float values[CHUNK * MAX_HEAD_DIM]; /* row by row, `width` columns each */
    float sums[MAX_QUERIES * MAX_HEAD_DIM];
    float scores[BLOCK * CHUNK];
    float maximum[MAX_QUERIES], total[MAX_QUERIES];
    int64_t head_dim, width;
} unit_state;

ALWAYS_INLINE vec load(const float *from) { return *(const unaligned_vec *)from; }

ALWAYS_INLINE void store(float *to, vec x) { *(unaligned_vec *)to = x; }

ALWAYS_INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

/* e^x for x <= 0 with a relative error of about 1e-7; NaN stays NaN, and what is far below 0 gives 0.
 *
 * x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor series, whose next term is below 6e-9. */
ALWAYS_INLINE vec exponential(vec x) {
    x = _mm512_max_ps(splat(-126.0f), x); /* the second one if either is NaN */
    const vec n = _mm512_roundscale_ps(x * splat(0x1.715476p+0f), 0);
    /* ln 2 in two parts; n times the first one is exact. */
    const vec r = (x - n * splat(0x1.62e4p-1f)) - n * splat(0x1.7f7d1cp-20f);
    vec p = splat(1.0f / 5040);
    p = p * r + splat(1.0f / 720);
    p = p * r + splat(1.0f / 120);
    p = p * r + splat(1.0f / 24);
    p = p * r + splat(1.0f / 6);
    p = p * r + splat(0.5f);
    p = p * r + splat(1.0f);
    p = p * r + splat(1.0f);
    return _mm512_scalef_ps(p, n);
}

ALWAYS_INLINE void copy_chunk(unit_state *unit, const float *keys, int64_t value_distance, int64_t row_size,
                              int64_t count, float scale) {
    const int64_t head_dim = unit->head_dim, width = unit->width;
    for (int64_t key = 0; key < count; key++) {
        const float *from = keys + key * row_size;
        for (int64_t i = 0; i < head_dim; i++) unit->keys[i * CHUNK + key] = from[i] * scale;
        float *value = unit->values + key * width;
        memcpy(value, from + value_distance, (size_t)head_dim * sizeof(float));
        for (int64_t i = head_dim; i < width; i++) value[i] = 0;
    }
}

/* sums += factor times two vectors, for each row of a block: its factor is `stride` after that of the row before. */
ALWAYS_INLINE void add_product(vec *left, vec *right, const float *factors, int64_t stride, const float *columns) {
    const vec a = load(columns), b = load(columns + LANES);
    for (int row = 0; row < BLOCK; row++) {
        const vec factor = splat(factors[row * stride]);
        left[row] += factor * a;
        right[row] += factor * b;
    }
}

/* Scores of a block of queries with the keys of a chunk; those of keys that are not there are rubbish. */
ALWAYS_INLINE void score_keys(unit_state *unit, const float *queries, int64_t stride, int64_t count) {
    for (int64_t first = 0; first < count; first += PAIR) {
        vec left[BLOCK], right[BLOCK];
        for (int row = 0; row < BLOCK; row++) left[row] = right[row] = splat(0);
        for (int64_t i = 0; i < unit->head_dim; i++)
            add_product(left, right, queries + i, stride, unit->keys + i * CHUNK + first);
        for (int row = 0; row < BLOCK; row++) {
            store(unit->scores + row * CHUNK + first, left[row]);
            store(unit->scores + row * CHUNK + first + LANES, right[row]);
        }
    }
}

/* Turn one query's scores into weights in place; returns the factor for what was summed before. */
ALWAYS_INLINE float weigh(float *scores, int64_t count, float *maximum, float *total) {
    const int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = count; i < padded; i++) scores[i] = -INFINITY;
    vec most = splat(*maximum);
    for (int64_t i = 0; i < padded; i += LANES) most = _mm512_max_ps(load(scores + i), most);
    const float highest = _mm512_reduce_max_ps(most);
    vec sums = splat(0);
    for (int64_t i = 0; i < padded; i += LANES) {
        const vec weights = exponential(load(scores + i) - splat(highest));
        store(scores + i, weights);
        sums += weights;
    }
    const float factor = *maximum == highest ? 1 : expf(*maximum - highest);
    *maximum = highest;
    *total = *total * factor + _mm512_reduce_add_ps(sums);
    return factor;
}

/* sums = sums * factor + weights times values, for a block of queries. */
ALWAYS_INLINE void add_values(unit_state *unit, float *sums, const float *factors, int64_t count) {
    const int64_t width = unit->width;
    for (int64_t column = 0; column < width; column += PAIR) {
        vec left[BLOCK], right[BLOCK];
        for (int row = 0; row < BLOCK; row++) {
            left[row] = load(sums + row * width + column) * splat(factors[row]);
            right[row] = load(sums + row * width + column + LANES) * splat(factors[row]);
        }
        for (int64_t key = 0; key < count; key++)
            add_product(left, right, unit->scores + key, CHUNK, unit->values + key * width + column);
        for (int row = 0; row < BLOCK; row++) {
            store(sums + row * width + column, left[row]);
            store(sums + row * width + column + LANES, right[row]);
        }
    }
}

AVX512 static void attend_text(const text_plan *plan, const text_task *task, int64_t head, const float *heads,
                               float *out) {
    unit_state unit;
    const int64_t head_dim = plan->head_dim, row_size = 3 * plan->num_heads * head_dim;
    const int64_t padded = (task->num_queries + BLOCK - 1) / BLOCK * BLOCK;
    const float *text = heads + task->first_row * row_size + head * head_dim;
    const float *keys = text + plan->num_heads * head_dim;
    float queries[BLOCK * MAX_HEAD_DIM], factors[BLOCK];
    unit.head_dim = head_dim;
    unit.width = (head_dim + PAIR - 1) / PAIR * PAIR;
    memset(unit.sums, 0, (size_t)(padded * unit.width) * sizeof(float));
    /* Not minus infinity: a chunk of which all scores are that must not spoil those that follow. */
    for (int64_t q = 0; q < padded; q++) unit.maximum[q] = -FLT_MAX, unit.total[q] = 0;
    for (int64_t first = 0; first < task->num_rows; first += CHUNK) {
        const int64_t left = task->num_rows - first, count = left < CHUNK ? left : CHUNK;
        copy_chunk(&unit, keys + first * row_size, plan->num_heads * head_dim, row_size, count, plan->scale);
        for (int64_t block = 0; block < padded; block += BLOCK) {
            for (int64_t q = 0; q < BLOCK; q++) {
                const int64_t query = block + q < task->num_queries ? block + q : task->num_queries - 1;
                memcpy(queries + q * head_dim, text + (task->first_query + query) * row_size,
                       (size_t)head_dim * sizeof(float));
            }
            score_keys(&unit, queries, head_dim, count);
            for (int q = 0; q < BLOCK; q++)
                factors[q] = weigh(unit.scores + q * CHUNK, count, unit.maximum + block + q, unit.total + block + q);
            add_values(&unit, unit.sums + block * unit.width, factors, count);
        }
    }
    for (int64_t q = 0; q < task->num_queries; q++) {
        float *to = out + ((task->first_row + task->first_query + q) * plan->num_heads + head) * head_dim;
        for (int64_t i = 0; i < head_dim; i++) to[i] = unit.sums[q * unit.width + i] / unit.total[q];
    }
}

/* `heads` are the queries, keys and values of all rows: (row, which of the three, head, column). */
void tenure_attend_texts(const text_plan *plan, const float *heads, float *out) {
    const int64_t units = plan->num_tasks * plan->num_heads;
    /* One short text takes less time than waking the other threads. */
#pragma omp parallel for schedule(dynamic, 2) if (units > 0 && (plan->num_tasks > 1 || plan->tasks->num_rows > 32))
    for (int64_t unit = 0; unit < units; unit++)
        attend_text(plan, plan->tasks + unit / plan->num_heads, unit % plan->num_heads, heads, out);
}

#else

void tenure_attend_texts(const void *plan, const float *heads, float *out) { (void)plan, (void)heads, (void)out; }

#endif
