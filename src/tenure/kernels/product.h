/* Float32 products with a matrix of weights, for CPUs with AVX-512: what product.c offers to its neighbours. */

#include <stdint.h>

/* A panel is PANEL outputs: for each input, the weights to all of them. The last one is filled up with anything finite.
 * The bias may be missing. */
enum { PANEL = 32 };
/* Rows that are multiplied with one panel after another while they stay in the caches of one core. */
enum { BLOCK_ROWS = 48 };

typedef struct {
    const float *panels, *bias;
    int64_t inputs, outputs;
} matrix;

/* out = x W^T (+ bias) (+ addend); `addend` may be missing, or `out` itself. */
typedef struct {
    const matrix *weights;
    const float *x, *addend;
    float *out;
} product;

/* A product of so many rows, on this thread. */
void tenure_multiply_alone(const product *p, int64_t rows);

/* The same, on all threads; with the same result. */
void tenure_multiply_together(const product *p, int64_t rows);

/* Into how many blocks of at most BLOCK_ROWS rows to divide so many, so that all threads have the same to do. */
int64_t tenure_count_blocks(int64_t rows, int64_t threads);

/* Where part number `number` of so many even parts begins. */
static inline int64_t share(int64_t whole, int64_t number, int64_t parts) { return whole * number / parts; }
