/* From a layer's qkv to what attention reads: heads normed and rotated, keys and values paged. */
#include "kernels.h"
#include "norm.h"

static void norm_head(float *head, const float *weight, float eps, int64_t dim)
{
    float scale = inverse_rms(head, dim, eps);
    for (int64_t i = 0; i < dim; i++)
        head[i] = head[i] * scale * weight[i];
}

static void rotate_head(float *restrict head, const float *restrict cos, const float *restrict sin,
                        int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float low = head[i], high = head[half + i];
        head[i] = low * cos[i] - high * sin[i];
        head[half + i] = high * cos[i] + low * sin[i];
    }
}

/* One token's keys and values [G, D] each, to the slot of its position. */
static void store_token(const float *keys, const float *values, const evh_pages *pages,
                        const evh_batch *batch, int64_t token)
{
    int64_t heads = pages->num_kv_heads, dim = pages->head_dim, size = pages->page_size;
    int64_t position = batch->positions[token], slot = position % size;
    int64_t row = pages->group * batch->num_rows + batch->rows[token];
    int64_t page = batch->block_tables[row * batch->table_width + position / size];
    float *key_slot = pages->keys + page * heads * dim * size + slot;
    float *value_page = pages->values + page * heads * dim * size;
    for (int64_t i = 0; i < heads * dim; i++)
        key_slot[i * size] = keys[i];
    for (int64_t head = 0; head < heads; head++)
        memcpy(value_page + (head * size + slot) * dim, values + head * dim,
               (size_t)dim * sizeof *values);
}

void evh_heads(float *qkv, int64_t num_heads, const float *query_norm, const float *key_norm,
               float eps, const float *cos, const float *sin, const evh_pages *pages,
               const evh_batch *batch, int64_t first, int64_t past)
{
    int64_t kv_heads = pages->num_kv_heads, dim = pages->head_dim, half = dim / 2;
    for (int64_t token = first; token < past; token++) {
        float *heads = qkv + token * (num_heads + 2 * kv_heads) * dim;
        for (int64_t head = 0; head < num_heads + kv_heads; head++) {
            const float *norm = head < num_heads ? query_norm : key_norm;
            if (norm)
                norm_head(heads + head * dim, norm, eps, dim);
            rotate_head(heads + head * dim, cos + token * half, sin + token * half, half);
        }
        const float *keys = heads + num_heads * dim;
        store_token(keys, keys + kv_heads * dim, pages, batch, token);
    }
}
