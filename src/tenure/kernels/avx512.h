/* What the kernels for CPUs with AVX-512 share: vectors of 16 numbers. */

#include <immintrin.h>
#include <stdint.h>

#define AVX512 __attribute__((target("avx512f")))
#define ALWAYS_INLINE AVX512 static inline __attribute__((always_inline))

enum { LANES = 16 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

ALWAYS_INLINE vec load(const float *from) { return *(const unaligned_vec *)from; }

ALWAYS_INLINE void store(float *to, vec x) { *(unaligned_vec *)to = x; }

ALWAYS_INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }

/* sums += factor times two vectors, for each row: its factor is `stride` after that of the row before. */
ALWAYS_INLINE void add_product(int rows, vec *left, vec *right, const float *factors, int64_t stride,
                               const float *columns) {
    const vec a = load(columns), b = load(columns + LANES);
    for (int row = 0; row < rows; row++) {
        const vec factor = splat(factors[row * stride]);
        left[row] = _mm512_fmadd_ps(factor, a, left[row]); /* always: a product that is rounded first would differ */
        right[row] = _mm512_fmadd_ps(factor, b, right[row]);
    }
}

/* The first `count` lanes, or all, or none, for what does not fill a vector. */
ALWAYS_INLINE __mmask16 first_lanes(int64_t count) {
    return count <= 0 ? 0 : count < LANES ? (__mmask16)((1u << count) - 1) : (__mmask16)0xffff;
}

/* e^x is 2^(x LOG2_E), and the latter is simpler to compute. */
#define LOG2_E 1.44269504f

/* 2^x for x <= 0 with a relative error of about 1e-7; NaN stays NaN, and what is far below 0 gives 0.
 *
 * x = n + r with |r| <= 1 / 2; 2^r by its Taylor series, whose next term is below 2e-8. */
ALWAYS_INLINE vec power_of_two(vec x) {
    x = _mm512_max_ps(splat(-200.0f), x); /* the second one if either is NaN */
    const vec n = _mm512_roundscale_ps(x, 0), r = x - n;
    vec p = splat(1.5252734e-5f);
    p = p * r + splat(1.5403530e-4f);
    p = p * r + splat(1.3333558e-3f);
    p = p * r + splat(9.6181291e-3f);
    p = p * r + splat(5.5504109e-2f);
    p = p * r + splat(2.4022651e-1f);
    p = p * r + splat(6.9314718e-1f);
    p = p * r + splat(1.0f);
    return _mm512_scalef_ps(p, n);
}
