/* What the kernels for any CPU share: vectors of 8 numbers, and a version of a function for each level of x86-64. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* One library serves all x86-64 machines; the loader picks the best version of each of these functions. They contain no
 * OpenMP, because the bodies of parallel regions would not inherit the attribute. Everything they call is inlined. Names
 * of processors ("arch=haswell") would not do: such a version runs on that maker's processors alone. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define CLONED __attribute__((noinline, target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONED __attribute__((noinline, target_clones("default", "avx2", "avx512f")))
#endif
#else
#define CLONED __attribute__((noinline))
#endif

/* Eight wide even where sixteen would go: half of the machines have no more, and the others lose little, since
 * attention over a cache waits for memory. */
enum { WIDTH = 8 };
typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef float unaligned_vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* Below this many elements a loop takes less time than waking the other threads. */
enum { SERIAL_ELEMENTS = 16384 };

ALWAYS_INLINE vec load(const float *from) { return *(const unaligned_vec *)from; }

ALWAYS_INLINE void store(float *to, vec x) { *(unaligned_vec *)to = x; }

ALWAYS_INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x}; }

ALWAYS_INLINE vec select(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

ALWAYS_INLINE float sum(vec x) {
    x += SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
    x += SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
    return x[0] + x[1];
}

/* e^x with a relative error of about 1e-7; NaN stays NaN. Below -87 the result stays at the smallest normal number,
 * above 88 at 1.7e38.
 *
 * x = n ln 2 + r with |r| <= ln(2) / 2; e^r by its Taylor series, whose next term is below 6e-9; 2^n by its bits. Adding
 * 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
ALWAYS_INLINE vec exponential(vec x) {
    const vec rounding = splat(12582912.0f);
    x = select(x < splat(-87.0f), splat(-87.0f), x);
    x = select(x > splat(88.0f), splat(88.0f), x);
    const vec shifted = x * splat(0x1.715476p+0f) + rounding;
    const vec n = shifted - rounding;
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
    const vec power = (vec)(((ivec)shifted << 23) + 0x3f800000);
    return p * power;
}
