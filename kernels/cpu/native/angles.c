/* The angles of rotary embeddings, as transformers computes them: position and frequency are
 * multiplied in fp32, whatever that loses far from the start. */
#include <math.h>

#include "kernels.h"

void evh_angles(const int32_t *positions, const float *frequencies, float scale, int64_t half,
                float *cos, float *sin, int64_t first, int64_t past)
{
    for (int64_t token = first; token < past; token++) {
        float position = (float)positions[token];
        for (int64_t i = 0; i < half; i++) {
            float angle = position * frequencies[i];
            cos[token * half + i] = cosf(angle) * scale;
            sin[token * half + i] = sinf(angle) * scale;
        }
    }
}
