/* Gated activations: activation(gate) * up.
 *
 * Both are x / (1 + e^-z): z is x for silu, and sqrt(8 / pi) * (x + 0.044715 x^3) for gelu in its
 * tanh form. For (1 + tanh(z / 2)) / 2 = 1 / (1 + e^-z), which loses nothing where tanh is near -1.
 */
#include "kernels.h"
#include "vec_math.h"

EVH_INLINE f32x8 gated(f32x8 x, f32x8 up, int32_t activation)
{
    f32x8 z = x;
    if (activation == EVH_GELU_TANH)
        z = 1.595769122f * x * f32x8_fma(x * x, f32x8_splat(0.044715f), f32x8_splat(1.0f));
    return x / (1.0f + f32x8_exp(-z)) * up;
}

EVH_INLINE void gate_token(const float *gate, const float *up, int64_t width, int32_t activation,
                           float *out)
{
    int64_t i = 0;
    for (; i + 8 <= width; i += 8)
        f32x8_store(out + i, gated(f32x8_load(gate + i), f32x8_load(up + i), activation));
    if (i < width) {
        f32x8 x = f32x8_load_first(gate + i, width - i), y = f32x8_load_first(up + i, width - i);
        f32x8_store_first(out + i, gated(x, y, activation), width - i);
    }
}

void evh_gate(const float *gate_up, int64_t width, int32_t activation, float *out, int64_t first,
              int64_t past)
{
    for (int64_t token = first; token < past; token++) {
        const float *gate = gate_up + 2 * width * token, *up = gate + width;
        if (activation == EVH_GELU_TANH)
            gate_token(gate, up, width, EVH_GELU_TANH, out + width * token);
        else
            gate_token(gate, up, width, EVH_SILU, out + width * token);
    }
}
