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

/* The first `count` lanes, or all, or none, for what does not fill a vector. */
ALWAYS_INLINE __mmask16 first_lanes(int64_t count) {
    return count <= 0 ? 0 : count < LANES ? (__mmask16)((1u << count) - 1) : (__mmask16)0xffff;
}

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
