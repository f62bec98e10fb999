/* Attention of encoders, where every token of a text sees the same first tokens of it, for CPUs with AVX-512.
 *
 * A task is one range of queries of one text; each of its heads is a unit of work of its own. A unit takes the keys in
 * chunks, with a running maximum and sum (online softmax, Milakov and Gimelshein, 2018). It first copies a chunk's keys,
 * turned on their side, and its values next to each other: in the rows of the batch they lie so far apart that they push
 * each other out of the first-level cache. Then BLOCK queries at a time meet PAIR keys at a time, so that all their sums
 * stay in registers.
 *
 * Results do not depend on what else is in a batch, nor on the number of threads: a unit does its sums in one fixed
 * order. What is not finite stays within its text, and is not lost there.
 * How this library is loaded and called, and what holds for all of it, is told in native.py.
 */

#include <omp.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include "avx512.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* A thread takes so many heads, one after the other, where there are enough of them for all threads. */
enum { HEADS = 3 };
enum { PAIR = 2 * LANES, BLOCK = 8, CHUNK = 256, MAX_QUERIES = 256, MAX_HEAD_DIM = 128 };
/* Of a query, for a chunk. A vector more than that, or the rows of a block would share few lines of the cache. */
enum { SCORES = CHUNK + LANES };

typedef struct {
    int64_t first_row;   /* of the text, in the batch */
    int64_t num_keys;    /* its first rows, which all its queries see */
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
    float keys[CHUNK * MAX_HEAD_DIM];   /* PAIR by PAIR of keys, and there column by column */
    float values[CHUNK * MAX_HEAD_DIM]; /* row by row, `width` columns each */
    float sums[MAX_QUERIES * MAX_HEAD_DIM];
    float queries[BLOCK * MAX_HEAD_DIM]; /* like `values` */
    float scores[BLOCK * SCORES];
    float maximum[MAX_QUERIES], total[MAX_QUERIES];
    int64_t head_dim, width;
} unit_state;

/* A square of numbers turned on its side, in place. */
ALWAYS_INLINE void transpose(vec *rows) {
    vec pairs[LANES], quads[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            const __m512d low = (__m512d)pairs[i + j], high = (__m512d)pairs[i + j + 2];
            quads[i + 2 * j] = (vec)_mm512_unpacklo_pd(low, high);
            quads[i + 2 * j + 1] = (vec)_mm512_unpackhi_pd(low, high);
        }
    /* Now quads[4 a + c] has column 4 b + c of rows 4 a to 4 a + 3 in its quarter b. */
    for (int c = 0; c < 4; c++) {
        const vec even01 = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x88);
        const vec odd01 = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xdd);
        const vec even23 = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x88);
        const vec odd23 = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xdd);
        rows[c] = _mm512_shuffle_f32x4(even01, even23, 0x88);
        rows[4 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        rows[8 + c] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
        rows[12 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
    }
}

/* A square of keys and columns; what is not there becomes zero. */
ALWAYS_INLINE void copy_keys(float *to, const float *keys, int64_t row_size, int64_t count, int64_t columns,
                             float scale) {
    const __mmask16 lanes = first_lanes(columns);
    vec rows[LANES];
    for (int64_t key = 0; key < LANES; key++)
        rows[key] = key < count ? (vec)_mm512_maskz_loadu_ps(lanes, keys + key * row_size) * splat(scale) : splat(0);
    transpose(rows);
    for (int64_t column = 0; column < LANES && column < columns; column++) store(to + column * PAIR, rows[column]);
}

/* One row; what is missing to `width` becomes zero. */
ALWAYS_INLINE void copy_row(float *to, const float *from, int64_t head_dim, int64_t width) {
    for (int64_t i = 0; i < width; i += LANES) {
        store(to + i, _mm512_maskz_loadu_ps(first_lanes(head_dim - i), from + i));
    }
}

/* What a row has for the next head, which is likely to be the next one of this thread. */
ALWAYS_INLINE void fetch_row(const float *query, int64_t part_distance, int64_t head_dim) {
    for (int part = 0; part < 3; part++)
        for (int64_t i = 0; i < head_dim; i += LANES) __builtin_prefetch(query + part * part_distance + i, 0, 2);
}

ALWAYS_INLINE void copy_chunk(unit_state *unit, const float *keys, int64_t value_distance, int64_t row_size,
                              int64_t count, float scale) {
    const int64_t head_dim = unit->head_dim, width = unit->width;
    for (int64_t key = 0; key < count; key += LANES)
        for (int64_t i = 0; i < head_dim; i += LANES) {
            float *to = unit->keys + key / PAIR * PAIR * head_dim + i * PAIR + key % PAIR;
            copy_keys(to, keys + key * row_size + i, row_size, count - key, head_dim - i, scale);
        }
    for (int64_t key = 0; key < count; key++)
        copy_row(unit->values + key * width, keys + value_distance + key * row_size, head_dim, width);
}

/* Scores of a block of queries with the keys of a chunk; those of keys that are not there are rubbish. */
ALWAYS_INLINE void score_keys(unit_state *unit, int64_t count) {
    for (int64_t first = 0; first < count; first += PAIR) {
        vec left[BLOCK], right[BLOCK];
        for (int row = 0; row < BLOCK; row++) left[row] = right[row] = splat(0);
        for (int64_t i = 0; i < unit->head_dim; i++)
            add_product(BLOCK, left, right, unit->queries + i, unit->width, unit->keys + first * unit->head_dim + i * PAIR);
        for (int row = 0; row < BLOCK; row++) {
            store(unit->scores + row * SCORES + first, left[row]);
            store(unit->scores + row * SCORES + first + LANES, right[row]);
        }
    }
}

/* Scores from `first` on; those of keys that are not there are minus infinity. */
ALWAYS_INLINE vec some_scores(const float *scores, int64_t first, int64_t count) {
    return _mm512_mask_blend_ps(first_lanes(count - first), splat(-INFINITY), load(scores + first));
}

ALWAYS_INLINE float highest_score(const float *scores, int64_t count, float highest) {
    vec most = splat(highest);
    for (int64_t i = 0; i < count; i += LANES) most = _mm512_max_ps(some_scores(scores, i, count), most);
    return _mm512_reduce_max_ps(most);
}

/* Turn one query's scores, of base two, into weights in place; returns their sum. */
ALWAYS_INLINE float weigh(float *scores, int64_t count, float highest) {
    vec sums = splat(0);
    for (int64_t i = 0; i < count; i += LANES) {
        const vec weights = power_of_two(some_scores(scores, i, count) - splat(highest));
        store(scores + i, weights);
        sums += weights;
    }
    return _mm512_reduce_add_ps(sums);
}

/* The same for a block of queries; `factors` are for what was summed before. */
ALWAYS_INLINE void weigh_keys(unit_state *unit, int64_t block, int64_t count, float *factors) {
    float *maximum = unit->maximum + block, *total = unit->total + block;
    for (int q = 0; q < BLOCK; q++) {
        const float highest = highest_score(unit->scores + q * SCORES, count, maximum[q]);
        factors[q] = _mm512_cvtss_f32(power_of_two(splat(maximum[q] - highest)));
        maximum[q] = highest;
    }
    for (int q = 0; q < BLOCK; q++)
        total[q] = total[q] * factors[q] + weigh(unit->scores + q * SCORES, count, maximum[q]);
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
            add_product(BLOCK, left, right, unit->scores + key, SCORES, unit->values + key * width + column);
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
    float factors[BLOCK];
    unit.head_dim = head_dim;
    unit.width = (head_dim + PAIR - 1) / PAIR * PAIR;
    memset(unit.sums, 0, (size_t)(padded * unit.width) * sizeof(float));
    /* Not minus infinity: a chunk of which all scores are that must not spoil those that follow. */
    for (int64_t q = 0; q < padded; q++) unit.maximum[q] = -FLT_MAX, unit.total[q] = 0;
    for (int64_t first = 0; first < task->num_keys; first += CHUNK) {
        const int64_t left = task->num_keys - first, count = left < CHUNK ? left : CHUNK;
        copy_chunk(&unit, keys + first * row_size, plan->num_heads * head_dim, row_size, count,
                   plan->scale * LOG2_E);
        for (int64_t block = 0; block < padded; block += BLOCK) {
            for (int64_t q = 0; q < BLOCK; q++) {
                const int64_t query = block + q < task->num_queries ? block + q : task->num_queries - 1;
                const float *from = text + (task->first_query + query) * row_size;
                copy_row(unit.queries + q * unit.width, from, head_dim, unit.width);
                if (head + 1 < plan->num_heads) fetch_row(from + head_dim, plan->num_heads * head_dim, head_dim);
            }
            score_keys(&unit, count);
            weigh_keys(&unit, block, count, factors);
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
    const int64_t units = plan->num_tasks * plan->num_heads, few = HEADS * omp_get_max_threads();
    /* One short text takes less time than waking the other threads. */
#pragma omp parallel for schedule(dynamic, units < few ? 1 : HEADS) \
    if (units > 0 && (plan->num_tasks > 1 || plan->tasks->num_keys > 32))
    for (int64_t unit = 0; unit < units; unit++)
        attend_text(plan, plan->tasks + unit / plan->num_heads, unit % plan->num_heads, heads, out);
}

/* Whether the caller knows this version's limits, and the sizes of its structures. */
int64_t tenure_has_text_layout(int64_t max_queries, int64_t max_head_dim, int64_t plan, int64_t task) {
    return max_queries == MAX_QUERIES && max_head_dim == MAX_HEAD_DIM && plan == sizeof(text_plan) &&
           task == sizeof(text_task);
}

#endif
