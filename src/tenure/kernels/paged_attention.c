/* What decoders do with their cache: new keys, rotated, and values go into it, and attention reads its blocks where they
 * are.
 *
 * Layout of a layer's cache, as in kv/cache.py: (block, key or value, kv head, offset in block, head size), with other
 * layers' blocks between two of its own.
 * How this library is loaded and called, and what holds for all of it, is told in native.py.
 */

#include "vectors.h"

/* What the layers of a group share; `Heads` in attention_plan.py. The stride is that of two blocks of a layer, in numbers. */
typedef struct {
    int64_t num_heads, num_kv_heads, head_dim, block_size, block_stride;
    float scale;
} heads_shape;

/* One token's query and key heads, as complex numbers, times its rotations; then its key and value heads to `slot`. */
CLONED static void rotate_and_store_row(const heads_shape *shape, float *heads, const float *rotations, int64_t slot,
                                        float *cache) {
    const int64_t head_dim = shape->head_dim, kv_heads = shape->num_kv_heads, block_size = shape->block_size;
    for (int64_t head = 0; head < shape->num_heads + kv_heads; head++) {
        float *x = heads + head * head_dim;
        for (int64_t i = 0; i < head_dim; i += 2) {
            const float real = x[i], imaginary = x[i + 1];
            x[i] = real * rotations[i] - imaginary * rotations[i + 1];
            x[i + 1] = real * rotations[i + 1] + imaginary * rotations[i];
        }
    }
    const float *kv = heads + shape->num_heads * head_dim;
    float *to = cache + slot / block_size * shape->block_stride + slot % block_size * head_dim;
    for (int64_t head = 0; head < 2 * kv_heads; head++)
        memcpy(to + head * block_size * head_dim, kv + head * head_dim, (size_t)head_dim * sizeof(float));
}

void tenure_rotate_and_store(const heads_shape *shape, float *heads, const float *rotations, const int64_t *slots,
                             float *cache, int64_t rows) {
    const int64_t row_size = (shape->num_heads + 2 * shape->num_kv_heads) * shape->head_dim;
#pragma omp parallel for if (rows * row_size > SERIAL_ELEMENTS)
    for (int64_t row = 0; row < rows; row++)
        rotate_and_store_row(shape, heads + row * row_size, rotations + row * shape->head_dim, slots[row], cache);
}

/* A task is one range of keys for some neighbouring rows of one sequence. It goes through them head by head, for all the
 * query heads that share a key-value head at once, so that each key is read once. Keys are taken in chunks that fit the
 * first-level cache, with a running maximum and sum (online softmax, Milakov and Gimelshein, 2018). When the keys of a
 * row are split over several tasks, each leaves a partial result, and `merge_head` puts them together. */
enum { CHUNK = 64, MAX_QUERIES = 64 };

typedef struct {
    int64_t table;          /* row of the block tables */
    int64_t first_row;      /* of the batch */
    int64_t num_rows;       /* num_rows * heads per group <= MAX_QUERIES */
    int64_t first_position; /* of the first row; it sees keys up to this one */
    int64_t first_key;      /* keys of this task; the rows may see fewer */
    int64_t last_key;       /* exclusive */
    int64_t partial;        /* where the partial result of the only row goes, or -1: this task is all there is */
} attention_task;

typedef struct {
    int64_t row, first_partial, num_partials;
} attention_merge;

typedef struct {
    const heads_shape *shape;
    const int64_t *tables;
    int64_t table_stride;
    int64_t window; /* how many keys a row sees, itself included; a huge number for all */
    const attention_task *tasks;
    int64_t num_tasks;
    const attention_merge *merges;
    int64_t num_merges;
    float *partials; /* per partial result and query head: maximum, sum, then head_dim sums of values */
} attention_plan;

/* Keys of one chunk and one key-value head, by address. The values of a key are at a fixed distance. */
typedef struct {
    int64_t count;
    const float *keys[CHUNK];
} chunk;

ALWAYS_INLINE int64_t at_least(int64_t x, int64_t bound) { return x < bound ? bound : x; }
ALWAYS_INLINE int64_t at_most(int64_t x, int64_t bound) { return x > bound ? bound : x; }

ALWAYS_INLINE void find_chunk(chunk *found, const attention_plan *plan, const attention_task *task, const float *cache,
                              int64_t kv_head, int64_t first) {
    const heads_shape *shape = plan->shape;
    const int64_t block_size = shape->block_size, head_dim = shape->head_dim;
    const int64_t *table = plan->tables + task->table * plan->table_stride;
    const float *head_cache = cache + kv_head * block_size * head_dim;
    const int64_t last = at_most(first + CHUNK, task->last_key);
    int64_t offset = first % block_size, column = first / block_size, count = 0;
    for (int64_t key = first; key < last; column++, offset = 0) {
        const float *block = head_cache + table[column] * shape->block_stride;
        for (; offset < block_size && key < last; offset++, key++) found->keys[count++] = block + offset * head_dim;
    }
    found->count = count;
    /* Keys are taken by fours; the last one stands in for those that are missing. */
    for (; count % 4; count++) found->keys[count] = found->keys[count - 1];
}

/* Bring some vectors of the next chunk nearer: blocks lie anywhere in memory, and the processor cannot guess the next
 * one. Not as far as the first-level cache, and a few at a time: with too many on their way it drops the rest. */
ALWAYS_INLINE void prefetch_four(const chunk *next, int64_t first, int64_t distance, int64_t head_dim) {
    for (int64_t i = first; i < at_most(first + 4, next->count); i++)
        for (int64_t j = 0; j < head_dim; j += 16) __builtin_prefetch(next->keys[i] + distance + j, 0, 1);
}

/* The sums of four vectors, in the first four elements. */
ALWAYS_INLINE vec sum_four(const vec *x) {
    const vec ab = SHUFFLE(x[0], x[1], 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLE(x[0], x[1], 2, 10, 3, 11, 6, 14, 7, 15);
    const vec cd = SHUFFLE(x[2], x[3], 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLE(x[2], x[3], 2, 10, 3, 11, 6, 14, 7, 15);
    const vec abcd = SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    return abcd + SHUFFLE(abcd, abcd, 4, 5, 6, 7, 0, 1, 2, 3);
}

/* Scores of two queries with four keys: the largest block whose sums stay in sixteen registers. */
ALWAYS_INLINE void score_block(const float *q0, const float *q1, const float *const *keys, int64_t head_dim,
                               float scale, float *scores0, float *scores1) {
    vec sums0[4] = {{0}}, sums1[4] = {{0}};
    int64_t i = 0;
    for (; i + WIDTH <= head_dim; i += WIDTH) {
        const vec x = load(q0 + i), y = load(q1 + i);
        for (int j = 0; j < 4; j++) sums0[j] += x * load(keys[j] + i), sums1[j] += y * load(keys[j] + i);
    }
    vec a = sum_four(sums0), b = sum_four(sums1);
    for (; i < head_dim; i++) {
        const vec x = {keys[0][i], keys[1][i], keys[2][i], keys[3][i]};
        a += splat(q0[i]) * x;
        b += splat(q1[i]) * x;
    }
    a *= splat(scale), b *= splat(scale);
    memcpy(scores0, &a, 4 * sizeof(float));
    memcpy(scores1, &b, 4 * sizeof(float));
}

/* Turn one query's scores into weights in place, all hidden ones zero; returns the factor for what was summed before. */
ALWAYS_INLINE float weigh(float *scores, int64_t visible_from, int64_t visible_to, int64_t count, float *maximum,
                          float *total) {
    for (int64_t i = 0; i < visible_from; i++) scores[i] = -INFINITY;
    const int64_t padded = (count + WIDTH - 1) / WIDTH * WIDTH;
    for (int64_t i = visible_to; i < padded; i++) scores[i] = -INFINITY;
    vec most = splat(*maximum);
    for (int64_t i = 0; i < padded; i += WIDTH) {
        const vec x = load(scores + i);
        most = select(x > most, x, most);
    }
    float highest = most[0];
    for (int i = 1; i < WIDTH; i++) highest = most[i] > highest ? most[i] : highest;
    const float factor = expf(*maximum - highest);
    for (int64_t i = 0; i < padded; i += WIDTH) store(scores + i, exponential(load(scores + i) - splat(highest)));
    for (int64_t i = 0; i < visible_from; i++) scores[i] = 0;
    for (int64_t i = visible_to; i < padded; i++) scores[i] = 0;
    vec sums = splat(0);
    for (int64_t i = 0; i < padded; i += WIDTH) sums += load(scores + i);
    *maximum = highest;
    *total = *total * factor + sum(sums);
    return factor;
}

/* sums = sums * factor + weights x values, for two queries and `vectors` vectors of columns, a constant wherever this is
 * inlined; `values` is the distance from a key to its value. */
ALWAYS_INLINE void add_columns(int vectors, const chunk *keys, int64_t values, const float *const *weights,
                               const float *factors, float *out0, float *out1) {
    vec a[4], b[4];
    for (int j = 0; j < vectors; j++) {
        a[j] = load(out0 + j * WIDTH) * splat(factors[0]);
        b[j] = load(out1 + j * WIDTH) * splat(factors[1]);
    }
    for (int64_t i = 0; i < keys->count; i++) {
        const vec weight0 = splat(weights[0][i]), weight1 = splat(weights[1][i]);
        for (int j = 0; j < vectors; j++) {
            const vec value = load(keys->keys[i] + values + j * WIDTH);
            a[j] += weight0 * value;
            b[j] += weight1 * value;
        }
    }
    for (int j = 0; j < vectors; j++) store(out0 + j * WIDTH, a[j]);
    /* The second query may be the first once more, so it must come after, with the same sums. */
    for (int j = 0; j < vectors; j++) store(out1 + j * WIDTH, b[j]);
}

/* The same for all columns. */
ALWAYS_INLINE void add_values(const chunk *keys, int64_t values, int64_t head_dim, const float *const *weights,
                              const float *factors, float *out0, float *out1) {
    int64_t column = 0;
    for (; column + 4 * WIDTH <= head_dim; column += 4 * WIDTH)
        add_columns(4, keys, values + column, weights, factors, out0 + column, out1 + column);
    for (; column + WIDTH <= head_dim; column += WIDTH)
        add_columns(1, keys, values + column, weights, factors, out0 + column, out1 + column);
    for (; column < head_dim; column++) {
        float a = out0[column] * factors[0], b = out1[column] * factors[1];
        for (int64_t i = 0; i < keys->count; i++) {
            const float value = keys->keys[i][values + column];
            a += weights[0][i] * value;
            b += weights[1][i] * value;
        }
        out0[column] = a;
        out1[column] = b;
    }
}

/* Running results of the queries of a task that share a key-value head. */
typedef struct {
    int64_t count;
    const float *queries[MAX_QUERIES];
    float *sums[MAX_QUERIES];
    float maximum[MAX_QUERIES], total[MAX_QUERIES], factor[MAX_QUERIES];
    float scores[MAX_QUERIES][CHUNK];
} accumulator;

ALWAYS_INLINE void begin_head(accumulator *acc, const attention_plan *plan, const attention_task *task,
                              int64_t kv_head, const float *heads, float *out) {
    const heads_shape *shape = plan->shape;
    const int64_t head_dim = shape->head_dim, group = shape->num_heads / shape->num_kv_heads;
    const int64_t row_size = (shape->num_heads + 2 * shape->num_kv_heads) * head_dim;
    acc->count = task->num_rows * group;
    for (int64_t q = 0; q < acc->count; q++) {
        const int64_t row = task->first_row + q / group, head = kv_head * group + q % group;
        acc->queries[q] = heads + row * row_size + head * head_dim;
        acc->sums[q] = task->partial < 0
                           ? out + (row * shape->num_heads + head) * head_dim
                           : plan->partials + (task->partial * shape->num_heads + head) * (head_dim + 2) + 2;
        memset(acc->sums[q], 0, (size_t)head_dim * sizeof(float));
        acc->maximum[q] = -INFINITY;
        acc->total[q] = 0;
    }
}

/* One chunk, whose first key has position `first`; what comes next is prefetched on the way. */
ALWAYS_INLINE void attend_chunk(accumulator *acc, const attention_plan *plan, const attention_task *task,
                                const chunk *keys, const chunk *next, int64_t first) {
    const heads_shape *shape = plan->shape;
    const int64_t head_dim = shape->head_dim, group = shape->num_heads / shape->num_kv_heads;
    const int64_t values = shape->num_kv_heads * shape->block_size * head_dim;
    for (int64_t q = 0; q < acc->count; q += 2) {
        /* Without a second query, the first is done twice. */
        const int64_t second = at_most(q + 1, acc->count - 1);
        for (int64_t i = 0; i < keys->count; i += 4) {
            if (q == 0) prefetch_four(next, i, 0, head_dim);
            if (q + 2 >= acc->count) prefetch_four(next, i, values, head_dim);
            score_block(acc->queries[q], acc->queries[second], keys->keys + i, head_dim, shape->scale,
                        acc->scores[q] + i, acc->scores[second] + i);
        }
    }
    for (int64_t q = 0; q < acc->count; q++) {
        const int64_t position = task->first_position + q / group;
        const int64_t from = at_most(at_least(position + 1 - plan->window - first, 0), keys->count);
        const int64_t to = at_least(at_most(position + 1 - first, keys->count), from);
        if (from < to) {
            acc->factor[q] = weigh(acc->scores[q], from, to, keys->count, &acc->maximum[q], &acc->total[q]);
        } else { /* this row sees nothing here */
            acc->factor[q] = 1;
            memset(acc->scores[q], 0, sizeof acc->scores[q]);
        }
    }
    for (int64_t q = 0; q < acc->count; q += 2) {
        const int64_t second = at_most(q + 1, acc->count - 1);
        const float *const weights[] = {acc->scores[q], acc->scores[second]};
        const float factors[] = {acc->factor[q], acc->factor[second]};
        add_values(keys, values, head_dim, weights, factors, acc->sums[q], acc->sums[second]);
    }
}

ALWAYS_INLINE void end_head(const accumulator *acc, const attention_task *task, int64_t head_dim) {
    for (int64_t q = 0; q < acc->count; q++) {
        if (task->partial < 0) {
            for (int64_t i = 0; i < head_dim; i++) acc->sums[q][i] /= acc->total[q];
        } else {
            acc->sums[q][-2] = acc->maximum[q];
            acc->sums[q][-1] = acc->total[q];
        }
    }
}

CLONED static void attend_task(const attention_plan *plan, const attention_task *task, const float *heads,
                               const float *cache, float *out) {
    accumulator acc;
    chunk chunks[2], *keys = chunks, *next = chunks + 1;
    find_chunk(next, plan, task, cache, 0, task->first_key);
    for (int64_t kv_head = 0; kv_head < plan->shape->num_kv_heads; kv_head++) {
        begin_head(&acc, plan, task, kv_head, heads, out);
        for (int64_t first = task->first_key; first < task->last_key; first += CHUNK) {
            chunk *const spent = keys;
            keys = next, next = spent;
            if (first + CHUNK < task->last_key)
                find_chunk(next, plan, task, cache, kv_head, first + CHUNK);
            else if (kv_head + 1 < plan->shape->num_kv_heads)
                find_chunk(next, plan, task, cache, kv_head + 1, task->first_key);
            else
                next->count = 0;
            attend_chunk(&acc, plan, task, keys, next, first);
        }
        end_head(&acc, task, plan->shape->head_dim);
    }
}

CLONED static void merge_head(const float *partials, int64_t num_partials, int64_t stride, int64_t head_dim,
                              float *out) {
    float maximum = -INFINITY, total = 0;
    for (int64_t i = 0; i < num_partials; i++) {
        const float candidate = partials[i * stride];
        maximum = candidate > maximum ? candidate : maximum;
    }
    memset(out, 0, (size_t)head_dim * sizeof(float));
    for (int64_t i = 0; i < num_partials; i++) {
        const float *partial = partials + i * stride;
        const float factor = expf(partial[0] - maximum);
        total += partial[1] * factor;
        for (int64_t j = 0; j < head_dim; j++) out[j] += partial[2 + j] * factor;
    }
    for (int64_t j = 0; j < head_dim; j++) out[j] /= total;
}

void tenure_attend(const attention_plan *plan, const float *heads, const float *cache, float *out) {
    const heads_shape *shape = plan->shape;
    const int64_t num_heads = shape->num_heads, head_dim = shape->head_dim;
    const int64_t partial_size = num_heads * (head_dim + 2);
#pragma omp parallel
    {
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < plan->num_tasks; i++) attend_task(plan, plan->tasks + i, heads, cache, out);
#pragma omp for
        for (int64_t i = 0; i < plan->num_merges * num_heads; i++) {
            const attention_merge *merge = plan->merges + i / num_heads;
            const int64_t head = i % num_heads;
            merge_head(plan->partials + merge->first_partial * partial_size + head * (head_dim + 2),
                       merge->num_partials, partial_size, head_dim, out + (merge->row * num_heads + head) * head_dim);
        }
    }
}

/* Whether the caller knows this version's limit, and the sizes of its structures. */
int64_t tenure_has_attention_layout(int64_t max_queries, int64_t shape, int64_t plan, int64_t task, int64_t merge) {
    return max_queries == MAX_QUERIES && shape == sizeof(heads_shape) && plan == sizeof(attention_plan) &&
           task == sizeof(attention_task) && merge == sizeof(attention_merge);
}
