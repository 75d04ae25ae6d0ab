/* Runs packers, linear layers, embeddings and quantisation over odd shapes, every array allocated
 * at its exact size, so that a sanitizer sees whatever reaches past one. Prints how many ran. */
#include "pack.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int32_t format, block, half_scales, has_minimum;
} format;

static const format formats[] = {
    {EVH_F32, 0, 0, 0}, {EVH_F16, 0, 0, 0}, {EVH_BF16, 0, 0, 0}, {EVH_W4, 32, 1, 1},
    {EVH_W4, 32, 0, 0}, {EVH_W8, 32, 1, 0}, {EVH_W8, 32, 0, 1},  {EVH_W8, 16, 0, 0},
    {EVH_W8, 16, 1, 1},
};
static const int64_t shapes[][2] = {{1, 32}, {16, 64}, {33, 320}, {17, 7}, {48, 1}, {5, 288}};
static const int64_t batches[] = {1, 2, 3, 4, 5, 6, 7, 100};

static void *filled(int64_t bytes, int32_t value)
{
    void *memory = malloc((size_t)bytes);
    memset(memory, value, (size_t)bytes);
    return memory;
}

static float *ones(int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = 1;
    return values;
}

static evh_matrix packed(format f, int64_t rows, int64_t columns, int32_t int8)
{
    evh_matrix matrix = {.rows = rows, .columns = columns, .format = f.format, .block = f.block,
                         .half_scales = f.half_scales, .has_minimum = f.has_minimum, .int8 = int8};
    matrix.panel_bytes = evh_panel_bytes(&matrix);
    void *panels = malloc((size_t)(matrix.panel_bytes * num_panels(&matrix)));
    if (f.block == 0) {
        void *values = filled(rows * columns * (f.format == EVH_F32 ? 4 : 2), 0);
        evh_pack_floats(&matrix, values, panels, 0, num_panels(&matrix));
        free(values);
    } else {
        uint8_t *codes = filled(rows * columns, 7);
        float *scales = ones(rows * columns / f.block), *minima = ones(rows * columns / f.block);
        if (!evh_fits_half(scales, rows * columns / f.block))
            abort();
        evh_pack_codes(&matrix, codes, scales, f.has_minimum ? minima : NULL, panels, 0,
                       num_panels(&matrix));
        free(codes), free(scales), free(minima);
    }
    matrix.panels = panels;
    matrix.bias = ones(rows);
    return matrix;
}

static void multiply(const evh_matrix *matrix, int64_t tokens)
{
    const int64_t columns = matrix->columns, rows = matrix->rows, blocks = columns / 32;
    float *values = ones(tokens * columns), *out = ones(tokens * rows);
    float *scratch = malloc((size_t)evh_linear_scratch(tokens) * sizeof *scratch);
    int8_t *codes = malloc((size_t)(tokens * columns));
    float *scales = ones(tokens * blocks), *sums = ones(tokens * blocks);
    if (columns % 32 == 0)
        evh_quantize(values, columns, codes, scales, sums, 0, tokens);
    evh_activations x = {values, codes, scales, sums, tokens, columns};
    evh_linear(matrix, &x, out, rows, 1, scratch, 0, num_panels(matrix));
    free(values), free(out), free(scratch), free(codes), free(scales), free(sums);
}

static void embed(const evh_matrix *matrix)
{
    const int32_t ids[] = {(int32_t)matrix->rows - 1, 0};
    float *out = malloc((size_t)(2 * matrix->columns) * sizeof *out);
    evh_embed(matrix, ids, 2, out, 0, 2);
    free(out);
}

static int run(format f, int64_t rows, int64_t columns, int32_t int8)
{
    int ran = 0;
    evh_matrix matrix = packed(f, rows, columns, int8);
    for (size_t batch = 0; batch < sizeof batches / sizeof *batches; batch++, ran++)
        multiply(&matrix, batches[batch]);
    embed(&matrix);
    free((void *)matrix.panels), free((void *)matrix.bias);
    return ran;
}

int main(void)
{
    int ran = 0;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
            const int64_t rows = shapes[shape][0], columns = shapes[shape][1];
            if (formats[i].block && columns % formats[i].block)
                continue;
            ran += run(formats[i], rows, columns, 0);
#ifdef __AVX2__
            if (formats[i].block)
                ran += run(formats[i], rows, columns, 1);
#endif
        }
    printf("%d\n", ran);
    return 0;
}
