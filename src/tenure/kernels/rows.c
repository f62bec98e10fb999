/* What lies between the matrix products of a decoder, but for its attention: norm and activation, row by row.
 *
 * How this library is loaded and called, and what holds for all of it, is told in native.py.
 */

#include "vectors.h"

CLONED static void rms_norm_row(const float *x, const float *weight, float *out, int64_t width, float eps) {
    vec squares0 = splat(0), squares1 = splat(0);
    int64_t i = 0;
    for (; i + 2 * WIDTH <= width; i += 2 * WIDTH) {
        const vec a = load(x + i), b = load(x + i + WIDTH);
        squares0 += a * a;
        squares1 += b * b;
    }
    float total = sum(squares0 + squares1);
    for (; i < width; i++) total += x[i] * x[i];
    const float factor = 1.0f / sqrtf(total / (float)width + eps);
    for (i = 0; i + WIDTH <= width; i += WIDTH) store(out + i, load(x + i) * splat(factor) * load(weight + i));
    for (; i < width; i++) out[i] = x[i] * factor * weight[i];
}

void tenure_rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for if (rows * width > SERIAL_ELEMENTS)
    for (int64_t row = 0; row < rows; row++)
        rms_norm_row(x + row * width, weight, out + row * width, width, eps);
}

ALWAYS_INLINE vec silu(vec x) { return x / (splat(1.0f) + exponential(-x)); }

CLONED static void silu_mul_part(const float *gate, const float *up, float *out, int64_t width) {
    int64_t i = 0;
    for (; i + WIDTH <= width; i += WIDTH) store(out + i, silu(load(gate + i)) * load(up + i));
    if (i == width) return;
    float padded[WIDTH] = {0};
    memcpy(padded, gate + i, (size_t)(width - i) * sizeof(float));
    store(padded, silu(load(padded)));
    for (int64_t j = 0; i < width; i++, j++) out[i] = padded[j] * up[i];
}

/* Two parts per row, so that a single row is shared out as well. */
void tenure_silu_mul(const float *gate_up, float *out, int64_t rows, int64_t width) {
    const int64_t half = width / 2 / WIDTH * WIDTH;
#pragma omp parallel for if (rows * width > SERIAL_ELEMENTS / 4)
    for (int64_t part = 0; part < 2 * rows; part++) {
        const int64_t row = part / 2, first = part % 2 ? half : 0;
        const float *gate = gate_up + row * 2 * width + first;
        silu_mul_part(gate, gate + width, out + row * width + first, part % 2 ? width - half : half);
    }
}
