/* What a layer of an encoder does after its attention, for CPUs with AVX-512.
 *
 *     x = norm(x + output(attended));  x = norm(x + down(activation(up(x))))
 *
 * All of it is row by row. So a block of rows goes through the whole of it on one thread, and what lies between the
 * products, four times as wide as a row, never leaves the caches of its core. Too few rows for that go step by step, and
 * all threads share in each step.
 *
 * A row's result does not depend on the other rows, nor on the number of threads, to the last bit.
 * How this library is loaded and called is told in native.c and native.py.
 */

#include <omp.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include "avx512.h"
#include "product.h"

#include <math.h>

typedef struct {
    const float *weight, *bias;
    float eps;
} layer_norm;

/* Below this many elements a loop takes less time than waking the other threads. */
enum { SERIAL_ELEMENTS = 16384 };

typedef enum { GELU = 1, GELU_TANH = 2, RELU = 3 } activation;

typedef struct {
    matrix output, up, down;
    layer_norm attention_norm, mlp_norm;
    int64_t then; /* an activation */
} after_attention;

/* 1 / x for x >= 1 with a relative error of about 1e-7: an estimate of 14 bits and a step of Newton's. */
ALWAYS_INLINE vec inverse(vec x) {
    const vec estimate = _mm512_rcp14_ps(x);
    return estimate * (splat(2) - x * estimate);
}

/* max(x, 0) - |x| Q(|x|), where Q(x) is the chance of a normal variable above x: half of erfc(x / sqrt(2)), by formula
 * 7.1.26 of Abramowitz and Stegun (1964), with an error below 1e-7. */
ALWAYS_INLINE vec gelu(vec x) {
    const vec size = _mm512_abs_ps(x), t = inverse(splat(1) + splat(0.3275911f * 0x1.6a09e6p-1f) * size);
    vec p = splat(0.5f * 1.061405429f);
    p = p * t + splat(0.5f * -1.453152027f);
    p = p * t + splat(0.5f * 1.421413741f);
    p = p * t + splat(0.5f * -0.284496736f);
    p = p * t + splat(0.5f * 0.254829592f);
    const vec above = p * t * power_of_two(splat(-0.5f * LOG2_E) * x * x);
    return _mm512_max_ps(splat(0), x) - size * above; /* the second one if either is NaN */
}

/* x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3). */
ALWAYS_INLINE vec gelu_tanh(vec x) {
    const vec y = splat(2 * 0x1.988454p-1f) * x * (splat(1) + splat(0.044715f) * x * x);
    const vec e = power_of_two(-splat(LOG2_E) * (vec)_mm512_abs_ps(y));
    const vec over = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(y, splat(0), _CMP_LT_OQ), splat(1), e);
    return x * over * inverse(splat(1) + e);
}

ALWAYS_INLINE vec activated(vec x, activation then) {
    return then == GELU ? gelu(x) : then == GELU_TANH ? gelu_tanh(x) : (vec)_mm512_max_ps(splat(0), x);
}

ALWAYS_INLINE void activate_all(float *x, int64_t count, activation then) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(x + i, activated(load(x + i), then));
    const __mmask16 lanes = first_lanes(count - i);
    if (lanes) _mm512_mask_storeu_ps(x + i, lanes, activated(_mm512_maskz_loadu_ps(lanes, x + i), then));
}

AVX512 static void activate(float *x, int64_t count, activation then) {
    switch (then) {
        case GELU: activate_all(x, count, GELU); break;
        case GELU_TANH: activate_all(x, count, GELU_TANH); break;
        case RELU: activate_all(x, count, RELU); break;
    }
}

/* In place. */
AVX512 static void normalize_row(float *x, int64_t width, const layer_norm *norm) {
    const int64_t whole = width / LANES * LANES;
    const __mmask16 rest = first_lanes(width - whole);
    vec sums = _mm512_maskz_loadu_ps(rest, x + whole);
    for (int64_t i = 0; i < whole; i += LANES) sums += load(x + i);
    const vec mean = splat(_mm512_reduce_add_ps(sums) / (float)width);
    vec squares = _mm512_maskz_sub_ps(rest, _mm512_maskz_loadu_ps(rest, x + whole), mean);
    squares *= squares;
    for (int64_t i = 0; i < whole; i += LANES) {
        const vec difference = load(x + i) - mean;
        squares += difference * difference;
    }
    const vec factor = splat(1 / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + norm->eps));
    for (int64_t i = 0; i < whole; i += LANES)
        store(x + i, (load(x + i) - mean) * factor * load(norm->weight + i) + load(norm->bias + i));
    if (rest) {
        const vec normal = (_mm512_maskz_loadu_ps(rest, x + whole) - mean) * factor;
        const vec weight = _mm512_maskz_loadu_ps(rest, norm->weight + whole);
        const vec bias = _mm512_maskz_loadu_ps(rest, norm->bias + whole);
        _mm512_mask_storeu_ps(x + whole, rest, normal * weight + bias);
    }
}

static void normalize(float *x, int64_t rows, int64_t width, const layer_norm *norm) {
    for (int64_t row = 0; row < rows; row++) normalize_row(x + row * width, width, norm);
}

/* `inner` holds the block's rows between `up` and `down`. */
static void finish_block(const after_attention *layer, const float *attended, const float *x, float *inner, float *out,
                         int64_t rows) {
    const int64_t width = layer->output.outputs;
    const product output = {&layer->output, attended, x, out}, up = {&layer->up, out, 0, inner};
    const product down = {&layer->down, inner, out, out};
    tenure_multiply_rows(&output, 0, rows);
    normalize(out, rows, width, &layer->attention_norm);
    tenure_multiply_rows(&up, 0, rows);
    activate(inner, rows * layer->up.outputs, (activation)layer->then);
    tenure_multiply_rows(&down, 0, rows);
    normalize(out, rows, width, &layer->mlp_norm);
}

static void finish_few(const after_attention *layer, const float *attended, const float *x, float *inner, float *out,
                       int64_t rows) {
    const int64_t width = layer->output.outputs, inner_width = layer->up.outputs;
    tenure_multiply(&layer->output, attended, x, out, rows);
    normalize(out, rows, width, &layer->attention_norm);
    tenure_multiply(&layer->up, out, 0, inner, rows);
#pragma omp parallel for if (rows * inner_width > SERIAL_ELEMENTS)
    for (int64_t row = 0; row < rows; row++)
        activate(inner + row * inner_width, inner_width, (activation)layer->then);
    tenure_multiply(&layer->down, inner, out, out, rows);
    normalize(out, rows, width, &layer->mlp_norm);
}

/* `scratch` has BLOCK_ROWS rows of what lies between `up` and `down` for each of `threads`. */
void tenure_after_attention(const after_attention *layer, const float *attended, const float *x, float *scratch,
                            float *out, int64_t rows, int64_t threads) {
    const int64_t blocks = tenure_count_blocks(rows, threads), inner_width = layer->up.outputs;
    if (rows < threads * BLOCK_ROWS) {
        finish_few(layer, attended, x, scratch, out, rows);
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = share(rows, block, blocks), last = share(rows, block + 1, blocks);
        finish_block(layer, attended + first * layer->output.inputs, x + first * layer->output.outputs,
                     scratch + omp_get_thread_num() * BLOCK_ROWS * inner_width, out + first * layer->output.outputs,
                     last - first);
    }
}

#else

void tenure_after_attention(const void *layer, const float *attended, const float *x, float *scratch, float *out,
                            int64_t rows, int64_t threads) {
    (void)layer, (void)attended, (void)x, (void)scratch, (void)out, (void)rows, (void)threads;
}

#endif
