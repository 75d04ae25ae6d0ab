/* Embeddings: rows picked out of a packed table, whatever its format. */
#include "linear.h"
#include "pack.h"

enum { CHUNK_COLUMNS = 64 }; /* unpacked at once: 4 KiB, of which one output in sixteen is kept */

static void embed_token(const evh_matrix *table, int64_t row, float scale, float *out)
{
    const uint8_t *panel = panel_at(table, row / EVH_PANEL);
    float weights[CHUNK_COLUMNS * EVH_PANEL];
    for (int64_t first = 0; first < table->columns; first += CHUNK_COLUMNS) {
        int64_t left = table->columns - first, count = left < CHUNK_COLUMNS ? left : CHUNK_COLUMNS;
        kernels_of(table)->unpack(table, panel, first, count, weights);
        for (int64_t column = 0; column < count; column++)
            out[first + column] = weights[column * EVH_PANEL + row % EVH_PANEL] * scale;
    }
}

void evh_embed(const evh_matrix *table, const int32_t *token_ids, float scale, float *out,
               int64_t first, int64_t past)
{
    for (int64_t token = first; token < past; token++)
        embed_token(table, token_ids[token], scale, out + token * table->columns);
}
