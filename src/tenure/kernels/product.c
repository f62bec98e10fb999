/* Float32 products of a few rows with a matrix of weights, for CPUs with AVX-512.
 *
 * With few rows a product is two things at once: a stream of weights from memory, and arithmetic on what has come. They
 * cost about the same for 16 to 32 rows, and take their sum where one waits for the other. So the weights lie in panels,
 * in the order in which they are read, and while all rows are multiplied with one panel, the next one is fetched to the
 * second-level cache. Then the product takes about as long as the longer of the two.
 *
 * A row's result does not depend on the other rows, nor on the number of threads, to the last bit: each of its sums goes
 * through the inputs in order.
 *
 * A panel is PANEL outputs: for each input, the weights to all of them. The last one is filled up with anything finite.
 * How this library is loaded and called is told in native.c and native.py.
 */

#include <omp.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#define AVX512 __attribute__((target("avx512f")))
#define ALWAYS_INLINE AVX512 static inline __attribute__((always_inline))

/* A tile is TILE rows by one panel: its sums fill 24 of 32 registers. */
enum { LANES = 16, PANEL = 2 * LANES, TILE = 12 };
enum { UNROLL = 4, LINES_PER_UNROLL = UNROLL * PANEL / LANES }; /* a vector is a cache line */
/* Below this many multiplications a product takes less time than waking the other threads. */
enum { SERIAL_PRODUCTS = 1 << 17 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    const float *x, *panels, *bias, *addend; /* the last two may be missing */
    float *out;
    int64_t rows, inputs, outputs;
} product;

/* What to fetch while a tile is computed: so many lines for every UNROLL inputs. */
typedef struct {
    const float *from;
    int64_t lines;
} errand;

ALWAYS_INLINE vec load(const float *from) { return *(const unaligned_vec *)from; }

ALWAYS_INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

ALWAYS_INLINE void multiply_input(int rows, const float *x, int64_t stride, const float *weights, vec *left, vec *right) {
    const vec a = load(weights), b = load(weights + LANES);
    for (int row = 0; row < rows; row++) {
        const vec factor = splat(x[row * stride]);
        left[row] += factor * a;
        right[row] += factor * b;
    }
}

/* `rows` is a constant wherever this is inlined, so that the sums stay in registers. */
ALWAYS_INLINE void multiply_tile(int rows, const float *x, int64_t inputs, const float *panel, errand next,
                                 float *sums) {
    vec left[TILE], right[TILE];
    for (int row = 0; row < rows; row++) left[row] = right[row] = splat(0);
    int64_t i = 0;
    for (; i + UNROLL <= inputs; i += UNROLL) {
        for (int64_t line = 0; line < next.lines; line++, next.from += LANES) __builtin_prefetch(next.from, 0, 2);
        for (int j = 0; j < UNROLL; j++)
            multiply_input(rows, x + i + j, inputs, panel + (i + j) * PANEL, left, right);
    }
    for (; i < inputs; i++) multiply_input(rows, x + i, inputs, panel + i * PANEL, left, right);
    for (int row = 0; row < rows; row++) {
        *(unaligned_vec *)(sums + row * PANEL) = left[row];
        *(unaligned_vec *)(sums + row * PANEL + LANES) = right[row];
    }
}

#define ROWS(n) \
    case n: \
        multiply_tile(n, x, inputs, panel, next, sums); \
        break;

AVX512 static void multiply_rows(int64_t rows, const float *x, int64_t inputs, const float *panel, errand next,
                                 float *sums) {
    switch (rows) {
        ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
    }
}

AVX512 static void write_tile(const product *p, int64_t first_row, int64_t last_row, int64_t first_output,
                              const float *sums) {
    const int64_t left = p->outputs - first_output, outputs = left < PANEL ? left : PANEL;
    for (int64_t row = first_row; row < last_row; row++, sums += PANEL) {
        const int64_t place = row * p->outputs + first_output;
        for (int64_t i = 0; i < outputs; i++) {
            float value = sums[i];
            if (p->bias) value += p->bias[first_output + i];
            if (p->addend) value += p->addend[place + i];
            p->out[place + i] = value;
        }
    }
}

/* Some panels, for some tiles of all the rows, which are shared out evenly among `tiles`. */
AVX512 static void multiply_panels(const product *p, int64_t first_panel, int64_t last_panel, int64_t first_tile,
                                   int64_t last_tile, int64_t tiles) {
    float sums[TILE * PANEL];
    const int64_t count = last_tile - first_tile, panel_size = p->inputs * PANEL;
    for (int64_t panel = first_panel; panel < last_panel; panel++) {
        const float *weights = p->panels + panel * panel_size;
        for (int64_t i = 0; i < count; i++) {
            const int64_t row = p->rows * (first_tile + i) / tiles, end = p->rows * (first_tile + i + 1) / tiles;
            /* Each tile fetches its share of the next panel. */
            const int64_t from = LINES_PER_UNROLL * i / count, to = LINES_PER_UNROLL * (i + 1) / count;
            const errand next = {weights + panel_size + from * (p->inputs / UNROLL) * LANES,
                                 panel + 1 < last_panel ? to - from : 0};
            multiply_rows(end - row, p->x + row * p->inputs, p->inputs, weights, next, sums);
            write_tile(p, row, end, panel * PANEL, sums);
        }
    }
}

static int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

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

int64_t tenure_has_avx512(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* out = x W^T (+ bias) (+ addend); `out` and `addend` have the shape (rows, outputs). */
void tenure_multiply(const float *x, const float *panels, const float *bias, const float *addend, float *out,
                     int64_t rows, int64_t inputs, int64_t outputs) {
    const product p = {x, panels, bias, addend, out, rows, inputs, outputs};
    const int64_t all_panels = parts(outputs, PANEL), tiles = parts(rows, TILE);
#pragma omp parallel if (rows * inputs * outputs > SERIAL_PRODUCTS)
    {
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t groups = row_groups(threads, all_panels, tiles), columns = threads / groups;
        const int64_t group = thread / columns, column = thread % columns;
        multiply_panels(&p, all_panels * column / columns, all_panels * (column + 1) / columns, tiles * group / groups,
                        tiles * (group + 1) / groups, tiles);
    }
}

#else

int64_t tenure_has_avx512(void) { return 0; }

void tenure_multiply(const float *x, const float *panels, const float *bias, const float *addend, float *out,
                     int64_t rows, int64_t inputs, int64_t outputs) {
    (void)x, (void)panels, (void)bias, (void)addend, (void)out, (void)rows, (void)inputs, (void)outputs;
}

#endif
