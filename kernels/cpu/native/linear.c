/* Linear layers: what evh_linear() does for few tokens, and for many.
 *
 * With few tokens the time goes into reading weights, so a format multiplies straight from its
 * packed form. With more, a chunk of a panel is unpacked to fp32 once, where it stays in the first
 * level cache, and tiles of tokens are multiplied with it.
 */
#include "linear.h"
#include "pack.h"

enum {
    TILE_TOKENS = 6,     /* with 16 outputs: 12 accumulators of the 16 vector registers */
    CHUNK_COLUMNS = 256, /* 16 KiB of unpacked weights */
    BLOCK_TOKENS = 96,   /* whose values stay in the second level cache from panel to panel */
};

const linear_kernels *kernels_of(const evh_matrix *matrix)
{
    static const linear_kernels *const of_format[] = {
        [EVH_F32] = &linear_f32, [EVH_F16] = &linear_f16, [EVH_BF16] = &linear_bf16,
        [EVH_W4] = &linear_w4,   [EVH_W8] = &linear_w8,
    };
    return of_format[matrix->format];
}

/* Add the bias of a panel, if there is one, and write its outputs of one token, sums [EVH_PANEL]. */
static void write_outputs(const evh_matrix *weight, int64_t panel, const float *sums, int32_t add,
                          float *out)
{
    const int64_t row = panel * EVH_PANEL, left = weight->rows - row;
    const float *bias = weight->bias;
    out += row;
    for (int64_t i = 0; i < (left < EVH_PANEL ? left : EVH_PANEL); i++) {
        float value = bias ? sums[i] + bias[row + i] : sums[i];
        out[i] = add ? out[i] + value : value;
    }
}

/* Exact products with at most FEW_TOKENS tokens. */
static void multiply_few(const evh_matrix *weight, const evh_activations *x, float *out,
                         int64_t out_stride, int32_t add, int64_t first, int64_t past)
{
    const linear_kernels *kernels = kernels_of(weight);
    const int32_t tokens = (int32_t)x->tokens, most = few_panels(tokens);
    float sums[FEW_PANELS * FEW_TOKENS * EVH_PANEL];
    for (int64_t panel = first; panel < past;) {
        const int32_t panels = past - panel < most ? 1 : most;
        kernels->dot(weight, panel_at(weight, panel), panels, x->values, tokens, sums);
        for (int32_t i = 0; i < panels; i++, panel++)
            for (int32_t token = 0; token < tokens; token++)
                write_outputs(weight, panel, sums + (i * tokens + token) * EVH_PANEL, add,
                              out + token * out_stride);
    }
}

/* sums [tokens, EVH_PANEL] += x [tokens, columns apart] times weights [count, EVH_PANEL]. */
EVH_INLINE void multiply_tile(const float *weights, int64_t count, const float *x, int64_t columns,
                              float *sums, const int32_t tokens)
{
    f32x16 totals[TILE_TOKENS];
    EVH_UNROLL
    for (int32_t token = 0; token < tokens; token++)
        totals[token] = f32x16_load(sums + token * EVH_PANEL);
    for (int64_t column = 0; column < count; column++, weights += EVH_PANEL) {
        const f32x16 column_weights = f32x16_load(weights);
        EVH_UNROLL
        for (int32_t token = 0; token < tokens; token++)
            totals[token] =
                f32x16_fma(column_weights, f32x8_splat(x[token * columns + column]), totals[token]);
    }
    EVH_UNROLL
    for (int32_t token = 0; token < tokens; token++)
        f32x16_store(sums + token * EVH_PANEL, totals[token]);
}

/* multiply_tile() for one to TILE_TOKENS tokens, each number of them its own code. */
static void multiply_tokens(const float *weights, int64_t count, const float *x, int64_t columns,
                            float *sums, int32_t tokens)
{
    switch (tokens) {
    case 1: multiply_tile(weights, count, x, columns, sums, 1); break;
    case 2: multiply_tile(weights, count, x, columns, sums, 2); break;
    case 3: multiply_tile(weights, count, x, columns, sums, 3); break;
    case 4: multiply_tile(weights, count, x, columns, sums, 4); break;
    case 5: multiply_tile(weights, count, x, columns, sums, 5); break;
    case 6: multiply_tile(weights, count, x, columns, sums, 6); break;
    }
}

/* Exact products of one panel with `count` tokens x [count, columns]: sums [count, EVH_PANEL].
 * `room` is for CHUNK_COLUMNS unpacked. */
static void multiply_many(const evh_matrix *weight, const uint8_t *panel, const float *x,
                          int64_t count, float *room, float *sums)
{
    const int64_t columns = weight->columns;
    memset(sums, 0, (size_t)(count * EVH_PANEL) * sizeof *sums);
    for (int64_t first = 0; first < columns; first += CHUNK_COLUMNS) {
        int64_t left = columns - first, width = left < CHUNK_COLUMNS ? left : CHUNK_COLUMNS;
        kernels_of(weight)->unpack(weight, panel, first, width, room);
        for (int64_t token = 0, size; token < count; token += size) {
            size = tile_size(count - token, TILE_TOKENS);
            multiply_tokens(room, width, x + token * columns + first, columns,
                            sums + token * EVH_PANEL, (int32_t)size);
        }
    }
}

void evh_linear(const evh_matrix *weight, const evh_activations *x, float *out, int64_t out_stride,
                int32_t add, float *scratch, int64_t first, int64_t past)
{
    if (!weight->int8 && x->tokens <= FEW_TOKENS) {
        multiply_few(weight, x, out, out_stride, add, first, past);
        return;
    }
    float *room = scratch, *sums = scratch + CHUNK_COLUMNS * EVH_PANEL;
    for (int64_t start = 0, count; start < x->tokens; start += count, out += count * out_stride) {
        count = tile_size(x->tokens - start, BLOCK_TOKENS);
        for (int64_t panel = first; panel < past; panel++) {
            const uint8_t *packed = panel_at(weight, panel);
            if (weight->int8)
                kernels_of(weight)->dot_int8(weight, packed, x, start, count, sums);
            else
                multiply_many(weight, packed, x->values + start * x->columns, count, room, sums);
            for (int64_t token = 0; token < count; token++)
                write_outputs(weight, panel, sums + token * EVH_PANEL, add,
                              out + token * out_stride);
        }
    }
}

int64_t evh_linear_scratch(int64_t max_tokens)
{
    (void)max_tokens; /* they are worked off in blocks */
    return (CHUNK_COLUMNS + BLOCK_TOKENS) * EVH_PANEL;
}
