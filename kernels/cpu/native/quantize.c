/* 8-bit activations: every block of 32 values of a token gets a scale of its own, so that one
 * token's codes never depend on another's. */
#include "kernels.h"
#include "vec.h"

enum { BLOCK = 32 };
#define SMALLEST 0x1p-100f

/* The largest magnitude becomes 127. A block of values too small to divide by counts as zeros; one
 * with anything that is not finite gets NaN for its scale, so that every product shows it. */
static void quantize_block(const float *x, int8_t *codes, float *scale, float *sum)
{
    float largest = 0, zero = 0;
    for (int32_t i = 0; i < BLOCK; i++) {
        float magnitude = __builtin_fabsf(x[i]);
        largest = magnitude > largest ? magnitude : largest;
        zero += x[i] * 0; /* NaN, if x[i] is not finite */
    }
    int32_t total = 0;
    *scale = largest / 127;
    if (zero != 0 || largest < SMALLEST) {
        *scale = zero;
        memset(codes, 0, BLOCK);
    } else {
        const float inverse = 127 / largest;
        for (int32_t i = 0; i < BLOCK; i++) {
            int32_t code = (int32_t)__builtin_rintf(x[i] * inverse);
            codes[i] = (int8_t)code;
            total += code;
        }
    }
    *sum = *scale * (float)total;
}

void evh_quantize(const float *x, int64_t width, int8_t *codes, float *scales, float *sums,
                  int64_t first, int64_t past)
{
    const int64_t blocks = width / BLOCK;
    for (int64_t block = first * blocks; block < past * blocks; block++)
        quantize_block(x + block * BLOCK, codes + block * BLOCK, scales + block, sums + block);
}
