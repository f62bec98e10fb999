/* Float32 products of rows with a matrix of weights, for CPUs with AVX-512.
 *
 * With few rows a product is two things at once: a stream of weights from memory, and arithmetic on what has come. They
 * cost about the same for 16 to 32 rows, and take their sum where one waits for the other. So the weights lie in panels,
 * in the order in which they are read, and while all rows are multiplied with one panel, the next one is fetched to the
 * second-level cache. Then the product takes about as long as the longer of the two.
 *
 * Many rows go through all panels in blocks that stay in the second-level cache, each on one thread. What a tile will
 * write to is fetched early too: otherwise a large result, which fits into no cache, holds the next tile up.
 *
 * A row's result does not depend on the other rows, nor on the number of threads, to the last bit: each of its sums goes
 * through the inputs in order.
 *
 * How this library is loaded and called, and what holds for all of it, is told in native.py.
 */

#include <omp.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include "avx512.h"
#include "product.h"

#include <stdbool.h>
#include <string.h>

/* A tile is TILE rows by one panel: its sums fill 24 of 32 registers. */
enum { TILE = 12 };
enum { UNROLL = 4, LINES_PER_UNROLL = UNROLL * PANEL / LANES }; /* a vector is a cache line */
/* Below this many multiplications a product takes less time than waking the other threads. */
enum { SERIAL_PRODUCTS = 1 << 17 };
/* So much of the weights meets one block of rows after another, from a cache that the cores share. */
enum { GROUP_BYTES = 8 << 20 };

/* Of one panel at once: more would push the rows out of the second-level cache. */
enum { MOST_INPUTS = 1536 };

/* Rows of a multiple of so many inputs meet in a few lines of the first-level cache, and push each other out: in a block
 * of rows, copies that lie further apart take their place. */
enum { ALIKE = 1024, COPY_DISTANCE = MOST_INPUTS + LANES };

typedef struct {
    int64_t first, last; /* the latter one is outside */
} range;

/* The inputs of some rows, from the first one on that is used. */
typedef struct {
    const float *from;
    int64_t distance; /* between rows */
} row_inputs;

/* What to fetch while a tile is computed: so many lines for every UNROLL inputs. */
typedef struct {
    const float *from;
    int64_t lines;
} errand;

static int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

/* A vector of each row, `distance` apart, the first one at `place`; in the last panel some lanes may be missing. */
ALWAYS_INLINE void add_rows(int rows, const float *from, int64_t place, int64_t distance, __mmask16 lanes, vec *x) {
    for (int row = 0; row < rows; row++) x[row] += (vec)_mm512_maskz_loadu_ps(lanes, from + place + row * distance);
}

ALWAYS_INLINE void write_rows(int rows, float *to, int64_t place, int64_t distance, __mmask16 lanes, const vec *x) {
    for (int row = 0; row < rows; row++) _mm512_mask_storeu_ps(to + place + row * distance, lanes, x[row]);
}

/* `rows` is a constant wherever this is inlined, so that the sums stay in registers. */
ALWAYS_INLINE void multiply_tile(int rows, const product *p, row_inputs x, int64_t first_row, int64_t panel, range used,
                                 errand next) {
    const int64_t inputs = p->weights->inputs, outputs = p->weights->outputs, first_output = panel * PANEL;
    const int64_t place = first_row * outputs + first_output;
    const __mmask16 lanes = first_lanes(outputs - first_output), more = first_lanes(outputs - first_output - LANES);
    const float *weights = p->weights->panels + first_output * inputs + used.first * PANEL;
    const int64_t count = used.last - used.first;
    const bool first = used.first == 0, last = used.last == inputs;
    /* The result may lie where the addend is. So where it holds sums for a while, they start from the addend. */
    const float *before = !first ? p->out : last ? 0 : p->addend;
    const float *bias = last ? p->weights->bias : 0, *after = first && last ? p->addend : 0;
    vec left[TILE], right[TILE];
    for (int row = 0; row < rows; row++) left[row] = right[row] = splat(0);
    if (before) {
        add_rows(rows, before, place, outputs, lanes, left);
        add_rows(rows, before, place + LANES, outputs, more, right);
    }
    int64_t i = 0;
    for (int64_t step = 0; i + UNROLL <= count; i += UNROLL, step++) {
        for (int64_t line = 0; line < next.lines; line++, next.from += LANES) __builtin_prefetch(next.from, 0, 2);
        if (step < 2 * rows) __builtin_prefetch(p->out + place + step / 2 * outputs + step % 2 * LANES, 1, 3);
        for (int j = 0; j < UNROLL; j++)
            add_product(rows, left, right, x.from + i + j, x.distance, weights + (i + j) * PANEL);
    }
    for (; i < count; i++) add_product(rows, left, right, x.from + i, x.distance, weights + i * PANEL);
    if (bias) {
        const vec a = _mm512_maskz_loadu_ps(lanes, bias + first_output);
        const vec b = _mm512_maskz_loadu_ps(more, bias + first_output + LANES);
        for (int row = 0; row < rows; row++) left[row] += a, right[row] += b;
    }
    if (after) {
        add_rows(rows, after, place, outputs, lanes, left);
        add_rows(rows, after, place + LANES, outputs, more, right);
    }
    write_rows(rows, p->out, place, outputs, lanes, left);
    write_rows(rows, p->out, place + LANES, outputs, more, right);
}

#define ROWS(n) \
    case n: \
        multiply_tile(n, p, x, first_row, panel, used, next); \
        break;

AVX512 static void multiply_some(int64_t rows, const product *p, row_inputs x, int64_t first_row, int64_t panel,
                                 range used, errand next) {
    switch (rows) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
    }
}

static row_inputs copy_inputs(row_inputs x, int64_t rows, int64_t count, float *copies) {
    for (int64_t row = 0; row < rows; row++)
        memcpy(copies + row * COPY_DISTANCE, x.from + row * x.distance, (size_t)count * sizeof(float));
    return (row_inputs){copies, COPY_DISTANCE};
}

/* Some rows, in tiles that are as even as can be, by some inputs of some panels. */
static void multiply_inputs(const product *p, range rows, range panels, range used) {
    const int64_t count = rows.last - rows.first, tiles = parts(count, TILE), inputs = p->weights->inputs;
    const int64_t steps = (used.last - used.first) / UNROLL;
    float copies[BLOCK_ROWS * COPY_DISTANCE];
    row_inputs x = {p->x + rows.first * inputs + used.first, inputs};
    if (inputs % ALIKE == 0 && count <= BLOCK_ROWS) x = copy_inputs(x, count, used.last - used.first, copies);
    for (int64_t panel = panels.first; panel < panels.last; panel++) {
        const float *following = p->weights->panels + ((panel + 1) * inputs + used.first) * PANEL;
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = share(count, tile, tiles), end = share(count, tile + 1, tiles);
            /* Each tile fetches its share of the next panel. */
            const int64_t from = share(LINES_PER_UNROLL, tile, tiles), to = share(LINES_PER_UNROLL, tile + 1, tiles);
            const errand next = {following + from * steps * LANES, panel + 1 < panels.last ? to - from : 0};
            const row_inputs some = {x.from + row * x.distance, x.distance};
            multiply_some(end - row, p, some, rows.first + row, panel, used, next);
        }
    }
}

/* All inputs, but not more at once than leave room for others in the second-level cache. */
static void multiply_part(const product *p, range rows, range panels) {
    const int64_t inputs = p->weights->inputs, turns = parts(inputs, MOST_INPUTS);
    const int64_t size = parts(parts(inputs, turns), UNROLL) * UNROLL;
    for (int64_t first = 0; first < inputs; first += size)
        multiply_inputs(p, rows, panels, (range){first, first + size < inputs ? first + size : inputs});
}

void tenure_multiply_alone(const product *p, int64_t rows) {
    multiply_part(p, (range){0, rows}, (range){0, parts(p->weights->outputs, PANEL)});
}

int64_t tenure_count_blocks(int64_t rows, int64_t threads) {
    return parts(parts(rows, BLOCK_ROWS), threads) * threads;
}

/* Into how many groups of rows to divide the work, so that the busiest of all threads has least to do. */
static int64_t row_groups(int64_t threads, int64_t panels, int64_t tiles) {
    int64_t best = 1, least = INT64_MAX;
    for (int64_t groups = 1; groups <= threads; groups++) {
        if (threads % groups) continue;
        const int64_t most = parts(panels, threads / groups) * parts(tiles, groups);
        if (most < least) best = groups, least = most;
    }
    return best;
}

static void multiply_few(const product *p, int64_t rows) {
    const int64_t inputs = p->weights->inputs, outputs = p->weights->outputs;
    const int64_t panels = parts(outputs, PANEL), tiles = parts(rows, TILE);
#pragma omp parallel if (rows * inputs * outputs > SERIAL_PRODUCTS)
    {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t groups = row_groups(threads, panels, tiles), columns = threads / groups;
        const int64_t group = thread / columns, column = thread % columns;
        const int64_t first_row = share(rows, share(tiles, group, groups), tiles);
        const int64_t last_row = share(rows, share(tiles, group + 1, groups), tiles);
        multiply_part(p, (range){first_row, last_row},
                      (range){share(panels, column, columns), share(panels, column + 1, columns)});
    }
}

static void multiply_many(const product *p, int64_t rows, int64_t threads) {
    const int64_t panels = parts(p->weights->outputs, PANEL), blocks = tenure_count_blocks(rows, threads);
    const int64_t groups = parts(panels * PANEL * p->weights->inputs * (int64_t)sizeof(float), GROUP_BYTES);
#pragma omp parallel for schedule(dynamic)
    for (int64_t unit = 0; unit < groups * blocks; unit++) {
        const int64_t group = unit / blocks, block = unit % blocks;
        multiply_part(p, (range){share(rows, block, blocks), share(rows, block + 1, blocks)},
                      (range){share(panels, group, groups), share(panels, group + 1, groups)});
    }
}

/* Few rows share out the panels, so that each is read as seldom as can be; many are shared out themselves. */
void tenure_multiply_together(const product *p, int64_t rows) {
    const int64_t threads = omp_get_max_threads();
    if (rows == 0) return;
    if (rows < threads * BLOCK_ROWS)
        multiply_few(p, rows);
    else
        multiply_many(p, rows, threads);
}

int64_t tenure_has_avx512(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* `x`, `out` and `addend`, which may be missing, have a row for each of `rows`. */
void tenure_multiply(const matrix *weights, const float *x, const float *addend, float *out, int64_t rows) {
    const product p = {weights, x, addend, out};
    tenure_multiply_together(&p, rows);
}

#else

int64_t tenure_has_avx512(void) { return 0; }

#endif
