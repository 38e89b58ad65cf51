/* Box and Muller's transform of random words, in one pass: what `box_muller.py` else does in eighteen.
 *
 * (sqrt(-2 ln u) cos t, sqrt(-2 ln u) sin t), from words of 32 bits of which the first gives 24, the second 31 and the
 * third all of its bits:
 *
 *     u = a 2^-24 + b,  b = (2 i + 1) 2^-56;   t = (j + 1/2) 2 pi / 2^32
 *
 * Nothing here branches or looks a thing up, so that time tells nothing of the noise, and a compiler makes vectors of it.
 * Every number is one of the formula, or a coefficient fitted for the least largest error, which is said beside it.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
#define INLINE static __forceinline
#define PUBLIC __declspec(dllexport)
#elif defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define PUBLIC __attribute__((visibility("default")))
#else
#define INLINE static inline
#define PUBLIC
#endif

INLINE int32_t bits_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float of_bits(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ln x for a normal x > 0: x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2),
 * ln(1 + f) = f - f^2 / 2 + f^3 P(f), to 6e-9 of itself before rounding. */
INLINE float logarithm(float x) {
    const int32_t root_half = 0x3f3504f3; /* sqrt(1/2) */
    int32_t from_root = bits_of(x) - root_half;
    float k = (float)(from_root >> 23);
    float f = of_bits((from_root & 0x7fffff) + root_half) - 1.0f;
    float p = -0.07634429633617401f;
    p = p * f + 0.12761549651622772f;
    p = p * f - 0.131601944565773f;
    p = p * f + 0.14201761782169342f;
    p = p * f - 0.16623356938362122f;
    p = p * f + 0.20001226663589478f;
    p = p * f - 0.250008225440979f;
    p = p * f + 0.3333333134651184f;
    float square = f * f;
    /* ln 2 in two parts, the first of so few bits that k times it is exact */
    return k * 0.693359375f + (f + (square * (p * f - 0.5f) + k * -2.12194440e-4f));
}

INLINE void pair(int32_t high, int32_t low, int32_t angle, float *x, float *y) {
    float a = (float)(high & 0xffffff) * 0x1p-24f;
    float b = (float)(low & 0x7fffffff) * 0x1p-55f + 0x1p-56f;
    float u = a + b;
    float lost = b - (u - a); /* by rounding u; next to u = 1 it is most of what is known of the radius */
    float radius = sqrtf(-2.0f * (logarithm(u) + lost));

    /* the nearest quarter of a turn, and what is left of the angle: at most pi / 4 either way */
    int32_t quarter = (int32_t)(((uint32_t)angle + 0x20000000u) >> 30);
    int32_t rest = (int32_t)((uint32_t)angle - ((uint32_t)quarter << 30));
    float t = ((float)rest + 0.5f) * 1.4629180792671596e-9f; /* 2 pi / 2^32 */
    float z = t * t;
    /* sin t = t + t z S(z) to 4e-9, cos t = 1 - z / 2 + z^2 C(z) to 1e-10, before rounding */
    float sine = t + t * z * (-0.16666655242443085f + z * (0.008332177996635437f + z * -0.0001951729936990887f));
    float cosine = 1.0f - 0.5f * z
        + z * z * (0.04166664555668831f + z * (-0.001388736767694354f + z * 2.443845005473122e-05f));

    /* a quarter turn on: (cos, sin) -> (-sin, cos) */
    int32_t odd = -(quarter & 1);
    int32_t c = (bits_of(cosine) & ~odd) | (bits_of(sine) & odd);
    int32_t s = (bits_of(sine) & ~odd) | (bits_of(cosine) & odd);
    c ^= (int32_t)((uint32_t)((quarter + 1) & 2) << 30);
    s ^= (int32_t)((uint32_t)(quarter & 2) << 30);
    *x = radius * of_bits(c);
    *y = radius * of_bits(s);
}

/* words: three rows of n; out: two rows of n */
INLINE void pairs(const int32_t *restrict words, float *restrict out, size_t n) {
    for (size_t i = 0; i < n; i++)
        pair(words[i], words[n + i], words[2 * n + i], out + i, out + n + i);
}

#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx512f,avx512vl,avx512dq,fma"))) static void sixteen(const int32_t *words, float *out, size_t n) {
    pairs(words, out, n);
}
__attribute__((target("avx2,fma"))) static void eight(const int32_t *words, float *out, size_t n) {
    pairs(words, out, n);
}
#endif

PUBLIC void saltflat_box_muller(const int32_t *words, float *out, size_t n) {
#if defined(__GNUC__) && defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        sixteen(words, out, n);
        return;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        eight(words, out, n);
        return;
    }
#endif
    pairs(words, out, n);
}
