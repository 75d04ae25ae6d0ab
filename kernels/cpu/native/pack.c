/* Packers: from rows as a file has them to the panels that pack.h draws. */
#include "pack.h"

/* Half precision keeps ten bits of mantissa and an exponent biased by 15, fp32 has 23 and 127. Times
 * 2^(15 - 127), a number that half precision holds has the half's bits 13 places up, subnormals
 * included. */
static uint32_t rebiased(float x)
{
    float scaled = x * 0x1p-112f;
    uint32_t bits;
    memcpy(&bits, &scaled, sizeof bits);
    return bits;
}

/* The bits of x in half precision, where evh_fits_half(). */
static uint16_t to_half(float x)
{
    uint32_t bits = rebiased(x);
    return (uint16_t)((bits >> 16 & 0x8000) | (bits >> 13 & 0x7fff));
}

int32_t evh_fits_half(const float *values, int64_t count)
{
    const float largest = 65504;
    uint32_t misfit = 0;
    for (int64_t i = 0; i < count; i++) {
        float x = values[i];
        misfit |= rebiased(x) & 0x1fff;
        misfit |= !(x >= -largest && x <= largest && x * 0x1p-112f * 0x1p112f == x);
    }
    return misfit == 0;
}

int64_t evh_panel_bytes(const evh_matrix *matrix)
{
    switch (matrix->format) {
    case EVH_F32: return matrix->columns * EVH_PANEL * 4;
    case EVH_F16:
    case EVH_BF16: return matrix->columns * EVH_PANEL * 2;
    default: return matrix->columns / matrix->block * block_bytes(matrix);
    }
}

/* How many of a panel's outputs are rows of the matrix; the others are padding. */
static int64_t rows_of_panel(const evh_matrix *matrix, int64_t panel)
{
    int64_t left = matrix->rows - panel * EVH_PANEL;
    return left < EVH_PANEL ? left : EVH_PANEL;
}

/* Expanded for each size of number, which then is a plain move. */
EVH_INLINE void pack_numbers(const uint8_t *rows, int64_t num_rows, int64_t columns, uint8_t *out,
                             const int64_t bytes)
{
    memset(out, 0, (size_t)(columns * EVH_PANEL * bytes));
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t column = 0; column < columns; column++)
            memcpy(out + (column * EVH_PANEL + row) * bytes,
                   rows + (row * columns + column) * bytes, (size_t)bytes);
}

void evh_pack_floats(const evh_matrix *matrix, const void *values, void *panels, int64_t first,
                     int64_t past)
{
    const int64_t bytes = matrix->format == EVH_F32 ? 4 : 2;
    for (int64_t panel = first; panel < past; panel++) {
        const uint8_t *rows = values;
        rows += panel * EVH_PANEL * matrix->columns * bytes;
        uint8_t *out = (uint8_t *)panels + panel * matrix->panel_bytes;
        int64_t num_rows = rows_of_panel(matrix, panel);
        if (bytes == 4)
            pack_numbers(rows, num_rows, matrix->columns, out, 4);
        else
            pack_numbers(rows, num_rows, matrix->columns, out, 2);
    }
}

/* One block's codes of one output: `words` are EVH_PANEL words apart. */
static void pack_block_codes(const evh_matrix *matrix, const uint8_t *codes, uint8_t *words)
{
    int32_t columns_per_word = matrix->format == EVH_W4 ? 8 : 4;
    for (int32_t column = 0; column < matrix->block; column += columns_per_word) {
        uint32_t word;
        memcpy(&word, codes + column, 4);
        if (matrix->format == EVH_W4) {
            uint32_t high;
            memcpy(&high, codes + column + 4, 4);
            word |= high << 4;
        }
        memcpy(words, &word, 4);
        words += EVH_PANEL * 4;
    }
}

static void pack_scale(const evh_matrix *matrix, float scale, uint8_t *scales, int64_t output)
{
    if (matrix->half_scales) {
        uint16_t bits = to_half(scale);
        memcpy(scales + output * 2, &bits, 2);
    } else {
        memcpy(scales + output * 4, &scale, 4);
    }
}

void evh_pack_codes(const evh_matrix *matrix, const uint8_t *codes, const float *scales,
                    const float *minima, void *panels, int64_t first, int64_t past)
{
    const int64_t blocks = matrix->columns / matrix->block;
    const int64_t code_bytes = block_code_bytes(matrix), scale_bytes = block_scale_bytes(matrix);
    for (int64_t panel = first; panel < past; panel++) {
        uint8_t *out = (uint8_t *)panels + panel * matrix->panel_bytes;
        memset(out, 0, (size_t)matrix->panel_bytes);
        int64_t num_rows = rows_of_panel(matrix, panel);
        for (int64_t block = 0; block < blocks; block++, out += block_bytes(matrix)) {
            for (int64_t output = 0; output < num_rows; output++) {
                int64_t row = panel * EVH_PANEL + output, at = row * blocks + block;
                pack_block_codes(matrix, codes + at * matrix->block, out + output * 4);
                pack_scale(matrix, scales[at], out + code_bytes, output);
                if (matrix->has_minimum)
                    pack_scale(matrix, minima[at], out + code_bytes + scale_bytes, output);
            }
        }
    }
}
