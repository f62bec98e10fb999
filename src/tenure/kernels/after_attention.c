/* What a layer of an encoder does after its attention, for CPUs with AVX-512.
 *
 *     x = norm(x + output(attended));  x = norm(x + down(activation(up(x))))
 *
 * All of it is row by row. So a block of rows goes through the whole of it on one thread, and what lies between the
 * products, four times as wide as a row, never leaves the caches of its core. Too few rows for that go step by step, and
 * all threads share in each step.
 *
 * A row's result does not depend on the other rows, nor on the number of threads, to the last bit.
 * How this library is loaded and called, and what holds for all of it, is told in native.py.
 */

#include <omp.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include "avx512.h"
#include "product.h"

#include <math.h>
#include <stdbool.h>

typedef struct {
    const float *weight, *bias;
    float eps;
} layer_norm;

/* Below this many elements a loop takes less time than waking the other threads. */
enum { SERIAL_ELEMENTS = 16384 };

typedef enum { GELU = 1, GELU_TANH = 2, RELU = 3 } function;

typedef struct {
    matrix output, up, down;
    layer_norm attention_norm, mlp_norm;
    int64_t activation; /* a function */
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

ALWAYS_INLINE vec activated(vec x, function f) {
    return f == GELU ? gelu(x) : f == GELU_TANH ? gelu_tanh(x) : (vec)_mm512_max_ps(splat(0), x);
}

ALWAYS_INLINE void activate_all(float *x, int64_t count, function f) {
    for (int64_t i = 0; i < count; i += LANES) {
        const __mmask16 lanes = first_lanes(count - i);
        _mm512_mask_storeu_ps(x + i, lanes, activated(_mm512_maskz_loadu_ps(lanes, x + i), f));
    }
}

/* In place, like the next one. */
AVX512 static void activate_row(float *x, int64_t width, function f) {
    switch (f) {
        case GELU: activate_all(x, width, GELU); break;
        case GELU_TANH: activate_all(x, width, GELU_TANH); break;
        case RELU: activate_all(x, width, RELU); break;
    }
}

AVX512 static void normalize_row(float *x, int64_t width, const layer_norm *norm) {
    vec sums = splat(0), squares = splat(0);
    for (int64_t i = 0; i < width; i += LANES) sums += (vec)_mm512_maskz_loadu_ps(first_lanes(width - i), x + i);
    const vec mean = splat(_mm512_reduce_add_ps(sums) / (float)width);
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 lanes = first_lanes(width - i);
        const vec difference = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, x + i), mean);
        squares += difference * difference;
    }
    const vec factor = splat(1 / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + norm->eps));
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 lanes = first_lanes(width - i);
        const vec normal = ((vec)_mm512_maskz_loadu_ps(lanes, x + i) - mean) * factor;
        const vec weight = _mm512_maskz_loadu_ps(lanes, norm->weight + i);
        _mm512_mask_storeu_ps(x + i, lanes, normal * weight + (vec)_mm512_maskz_loadu_ps(lanes, norm->bias + i));
    }
}

static void normalize(float *x, int64_t rows, int64_t width, const layer_norm *norm, bool alone) {
#pragma omp parallel for if (!alone && rows * width > SERIAL_ELEMENTS)
    for (int64_t row = 0; row < rows; row++) normalize_row(x + row * width, width, norm);
}

static void activate(float *x, int64_t rows, int64_t width, function f, bool alone) {
#pragma omp parallel for if (!alone && rows * width > SERIAL_ELEMENTS)
    for (int64_t row = 0; row < rows; row++) activate_row(x + row * width, width, f);
}

/* On this thread alone, or on all of them; `inner` has room for the rows between `up` and `down`. */
static void finish_rows(const after_attention *layer, const float *attended, const float *x, float *inner, float *out,
                        int64_t rows, bool alone) {
    void (*const multiply)(const product *, int64_t) = alone ? tenure_multiply_alone : tenure_multiply_together;
    const int64_t width = layer->output.outputs;
    const product output = {&layer->output, attended, x, out}, up = {&layer->up, out, 0, inner};
    const product down = {&layer->down, inner, out, out};
    multiply(&output, rows);
    normalize(out, rows, width, &layer->attention_norm, alone);
    multiply(&up, rows);
    activate(inner, rows, layer->up.outputs, (function)layer->activation, alone);
    multiply(&down, rows);
    normalize(out, rows, width, &layer->mlp_norm, alone);
}

/* `scratch` has room for the rows between `up` and `down`: for all, or for BLOCK_ROWS of each of `threads` if these are
 * fewer. */
void tenure_after_attention(const after_attention *layer, const float *attended, const float *x, float *scratch,
                            float *out, int64_t rows, int64_t threads) {
    if (rows < threads * BLOCK_ROWS) {
        finish_rows(layer, attended, x, scratch, out, rows, false);
        return;
    }
    const int64_t blocks = tenure_count_blocks(rows, threads), width = layer->output.outputs;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = share(rows, block, blocks), last = share(rows, block + 1, blocks);
        float *inner = scratch + omp_get_thread_num() * BLOCK_ROWS * layer->up.outputs;
        finish_rows(layer, attended + first * layer->output.inputs, x + first * width, inner, out + first * width,
                    last - first, true);
    }
}

/* Whether the caller knows this version's constants, and the sizes of its structures. */
int64_t tenure_has_layer_layout(int64_t block_rows, int64_t panel, int64_t weights, int64_t norm, int64_t layer) {
    return block_rows == BLOCK_ROWS && panel == PANEL && weights == sizeof(matrix) && norm == sizeof(layer_norm) &&
           layer == sizeof(after_attention);
}

#endif
