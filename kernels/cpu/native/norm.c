/* Root mean square layer norms. */
#include "norm.h"

#include "kernels.h"

void evh_rms_norm(const float *x, const float *weight, float eps, int64_t width, int32_t add,
                  float *out, int64_t first, int64_t past)
{
    for (int64_t token = first; token < past; token++) {
        const float *from = x + token * width;
        float *to = out + token * width;
        float scale = inverse_rms(from, width, eps);
        if (add)
            for (int64_t i = 0; i < width; i++)
                to[i] += from[i] * scale * weight[i];
        else
            for (int64_t i = 0; i < width; i++)
                to[i] = from[i] * scale * weight[i];
    }
}
