/* One decode step of a Llama-like model: a new token for each row through all layers.

   MLX dispatches some thousand small operations for it, which takes as long as the products. Here
   a row attends to its own positions only, so its bits depend neither on the number of other rows,
   nor on their lengths, nor on whether they share their prompt. */

#include "matmul.c"

enum {
    MIN_EXPONENT = -126,    /* 2^-126 vanishes in a sum of at least 1 */
    SCORE_PADDING = LANES   /* floats behind each row of attention scores */
};
static const float LOG2_E = 1.44269504f;

typedef int ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef struct {
    const float *weight, *bias;     /* [in, out]; the bias is optional */
    const float *lora_a, *lora_b;   /* [rank, in], and [rank, out] times its scale */
    int rank;                       /* 0 without LoRA */
} Linear;

typedef struct {
    const float *input_norm, *post_attention_norm, *q_norm, *k_norm;  /* the last two optional */
    Linear q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
    float *key_cache, *value_cache;              /* [rows, kv_heads, capacity, head_dim] */
    const float *prompt_keys, *prompt_values;    /* [kv_heads, prompt_length, head_dim], shared */
} Layer;

typedef struct {
    int layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, rotary_dims, max_rank;
    float epsilon, scale;   /* of the norms, of attention */
} Model;

typedef struct {
    int rows, capacity, position, prompt_length;  /* position in the cache of the new tokens */
    const int *starts;      /* [rows] each row's first position in the cache */
    const float *cos_sin;   /* [rows, rotary_dims] cosines, then sines, at the new positions */
} Step;

/* ROUND + x has the nearest integer in its last bits; EXP2_POLYNOMIAL(f) is 2^f for f from -.5 to
   .5, the sum of ln(2)^k / k! f^k. */
static const float ROUND = 12582912;  /* 1.5 * 2^23 */
#define EXP2_POLYNOMIAL(f) \
    (1 + f * (6.9314718e-1f + f * (2.4022651e-1f + f * (5.5504109e-2f \
    + f * (9.6181291e-3f + f * (1.3333558e-3f + f * (1.5403530e-4f + f * 1.5252734e-5f)))))))

INLINE vec blend(ivec mask, vec yes, vec no)
{
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}

/* 2^x to float precision; x is clamped to -126 and 126. */
INLINE vec exp2_vec(vec x)
{
    vec low = (vec){0} + MIN_EXPONENT;
    x = blend(x < MIN_EXPONENT, low, blend(x > -MIN_EXPONENT, -low, x));
    vec rounded = x + ROUND, fraction = x - (rounded - ROUND);
    return (vec)((ivec)EXP2_POLYNOMIAL(fraction) + ((ivec)rounded << 23));
}

INLINE float reduce_add(vec x)
{
    typedef float quarter __attribute__((vector_size(16)));
    union { vec all; quarter parts[LANES / 4]; } u = {x};
    quarter sum = u.parts[0] + u.parts[1];
    for (int i = 2; i < LANES / 4; i++) sum += u.parts[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE float dot(const float *a, const float *b, int count)
{
    vec sum[4] = {0};
    int i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int v = 0; v < 4; v++)
            sum[v] += *(const vec *)(a + i + v * LANES) * *(const vec *)(b + i + v * LANES);
    for (; i + LANES <= count; i += LANES)
        sum[0] += *(const vec *)(a + i) * *(const vec *)(b + i);
    float remainder = 0;
    for (; i < count; i++) remainder += a[i] * b[i];
    return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3])) + remainder;
}

static void rms_norm(int size, const float *x, const float *weight, float epsilon, float *out)
{
    float scale = 1 / __builtin_sqrtf(dot(x, x, size) / size + epsilon);
    for (int i = 0; i < size; i++) out[i] = x[i] * scale * weight[i];
}

/* Set columns to the bias, or add it to them; return whether a product is to be added to them. */
static int apply_bias(int rows, int out, int first, int last, const float *bias, int accumulate,
                      float *result)
{
    if (!bias) return accumulate;
    for (int r = 0; r < rows; r++, result += out)
        for (int i = first; i < last; i++) result[i] = bias[i] + (accumulate ? result[i] : 0);
    return 1;
}

/* One thread's columns of x [rows, in] -> result [rows, out]. Each thread computes x A for all
   rows, in `lora`: that is less work than to wait for another. */
static void linear(int rows, int in, int out, const float *x, Linear layer, int accumulate,
                   float *result, float *lora, int thread, int count)
{
    int first = partition(out, TILE, thread, count), last = partition(out, TILE, thread + 1, count);
    accumulate = apply_bias(rows, out, first, last, layer.bias, accumulate, result);
    SkinnyGemm g = {rows, out, in, accumulate, {x, in, 1}, layer.weight, result, out, out};
    skinny_gemm(&g, thread, count);
    if (!layer.rank) return;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < layer.rank; i++)
            lora[r * layer.rank + i] =
                dot(x + (size_t)r * in, layer.lora_a + (size_t)i * in, in);
    g.k = layer.rank, g.beta = 1, g.b = layer.lora_b;
    g.a = (Strided){lora, layer.rank, 1};
    skinny_gemm(&g, thread, count);
}

/* Rotary embedding: a head's first half and its second half are the two coordinates. */
static void rotate(int rotary_dims, const float *cos_sin, float *head)
{
    int half = rotary_dims / 2;
    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half], cosine = cos_sin[i], sine = cos_sin[i + half];
        head[i] = a * cosine - b * sine;
        head[i + half] = b * cosine + a * sine;
    }
}

/* query . keys[s] for each position; return the maximum of these and of `maximum`. */
static float query_key(int count, int head_dim, const float *query, const float *keys,
                       float *scores, float maximum)
{
    for (int s = 0; s < count; s++) {
        scores[s] = dot(query, keys + (size_t)s * head_dim, head_dim);
        maximum = scores[s] > maximum ? scores[s] : maximum;
    }
    return maximum;
}

/* scores -> 2^(scores - maximum) in place, the numerators of a softmax; return their sum. The
   padding behind the scores is overwritten. */
static float softmax_numerators(int count, float maximum, float *scores)
{
    for (int s = count; s % LANES; s++) scores[s] = maximum + MIN_EXPONENT;
    vec sum = {0};
    for (int s = 0; s < count; s += LANES) {
        vec numerator = exp2_vec(*(vec *)(scores + s) - maximum);
        *(vec *)(scores + s) = numerator;
        sum += numerator;
    }
    return reduce_add(sum);
}

/* out += sum over s of weights[s] * values[s], for some vectors of columns. */
INLINE void weighted_sum_columns(int vectors, int count, int head_dim, const float *weights,
                                 const float *values, float *out)
{
    vec sum[4];
    for (int v = 0; v < vectors; v++) sum[v] = *(vec *)(out + v * LANES);
    for (int s = 0; s < count; s++, values += head_dim)
        for (int v = 0; v < vectors; v++)
            sum[v] += weights[s] * *(const vec *)(values + v * LANES);
    for (int v = 0; v < vectors; v++) *(vec *)(out + v * LANES) = sum[v];
}

static void weighted_sum(int count, int head_dim, const float *weights, const float *values,
                         float *out)
{
    int d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
        weighted_sum_columns(4, count, head_dim, weights, values + d, out + d);
    for (; d + LANES <= head_dim; d += LANES)
        weighted_sum_columns(1, count, head_dim, weights, values + d, out + d);
    for (; d < head_dim; d++)
        for (int s = 0; s < count; s++) out[d] += weights[s] * values[(size_t)s * head_dim + d];
}

/* Keys and values that a query attends to: those of its prompt, then of its own sequence. */
typedef struct {
    int prompt_length, length;
    const float *prompt_keys, *prompt_values, *keys, *values;
} Context;

/* Attention weights, but for the factor that is returned. */
static float attention_weights(const Context *c, int head_dim, const float *query, float *weights)
{
    float maximum =
        query_key(c->prompt_length, head_dim, query, c->prompt_keys, weights, -1e30f);
    maximum = query_key(c->length, head_dim, query, c->keys, weights + c->prompt_length, maximum);
    return 1 / softmax_numerators(c->prompt_length + c->length, maximum, weights);
}

/* out = the weighted sum of vectors of the prompt's positions and of the sequence's. */
static void context_sum(const Context *c, int head_dim, const float *weights, const float *prompt,
                        const float *sequence, float *out)
{
    for (int d = 0; d < head_dim; d++) out[d] = 0;
    weighted_sum(c->prompt_length, head_dim, weights, prompt, out);
    weighted_sum(c->length, head_dim, weights + c->prompt_length, sequence, out);
}

static void attend(const Context *c, int head_dim, const float *query, float *scores, float *out)
{
    float scale = attention_weights(c, head_dim, query, scores);
    context_sum(c, head_dim, scores, c->prompt_values, c->values, out);
    for (int d = 0; d < head_dim; d++) out[d] *= scale;
}

/* Scores are logarithms to the base 2. */
static float query_scale(const Model *model) { return model->scale * LOG2_E; }

/* Normalise, rotate and scale the query of a head. */
static void prepare_query(const Model *model, const Layer *layer, const float *cos_sin,
                          float *query)
{
    if (layer->q_norm) rms_norm(model->head_dim, query, layer->q_norm, model->epsilon, query);
    rotate(model->rotary_dims, cos_sin, query);
    for (int d = 0; d < model->head_dim; d++) query[d] *= query_scale(model);
}

/* Store a key, normalised and rotated, and its value. */
static void store_key_value(const Model *model, const Layer *layer, const float *cos_sin,
                            const float *key, const float *value, float *stored_key,
                            float *stored_value)
{
    for (int d = 0; d < model->head_dim; d++) stored_key[d] = key[d], stored_value[d] = value[d];
    if (layer->k_norm)
        rms_norm(model->head_dim, stored_key, layer->k_norm, model->epsilon, stored_key);
    rotate(model->rotary_dims, cos_sin, stored_key);
}

/* One thread's pairs of a row and a key-value head. */
static void attention(const Model *model, const Layer *layer, const Step *step, float *queries,
                      const float *keys, const float *values, float *scores, float *out, int thread,
                      int count)
{
    int head_dim = model->head_dim, kv_heads = model->kv_heads, group = model->heads / kv_heads;
    size_t score_stride = step->prompt_length + step->position + 1 + SCORE_PADDING;
    int last = partition(step->rows * kv_heads, 1, thread + 1, count);
    for (int pair = partition(step->rows * kv_heads, 1, thread, count); pair < last; pair++) {
        int row = pair / kv_heads, start = step->starts[row];
        const float *cos_sin = step->cos_sin + (size_t)row * model->rotary_dims;
        size_t base = (size_t)pair * step->capacity * head_dim;
        size_t first = base + (size_t)start * head_dim;
        size_t prompt = (size_t)(pair % kv_heads) * step->prompt_length * head_dim;
        size_t new = base + (size_t)step->position * head_dim;
        Context context = {step->prompt_length, step->position + 1 - start,
                           layer->prompt_keys + prompt, layer->prompt_values + prompt,
                           layer->key_cache + first, layer->value_cache + first};
        store_key_value(model, layer, cos_sin, keys + (size_t)pair * head_dim,
                        values + (size_t)pair * head_dim, layer->key_cache + new,
                        layer->value_cache + new);
        for (int i = 0; i < group; i++) {
            size_t head = ((size_t)pair * group + i) * head_dim;
            prepare_query(model, layer, cos_sin, queries + head);
            attend(&context, head_dim, queries + head, scores + pair * score_stride, out + head);
        }
    }
}

INLINE vec sigmoid(vec x) { return 1 / (1 + exp2_vec(x * -LOG2_E)); }

/* result = silu(gate) * up; it may overwrite either. */
static void swiglu(size_t count, const float *gate, const float *up, float *result)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec x = *(const vec *)(gate + i);
        *(vec *)(result + i) = x * sigmoid(x) * *(const vec *)(up + i);
    }
    for (; i < count; i++) result[i] = gate[i] * sigmoid((vec){0} + gate[i])[0] * up[i];
}

/* Floats of workspace that `decode_layers` needs. */
size_t decode_workspace(const Model *model, const Step *step)
{
    size_t rows = step->rows;
    size_t q_size = model->heads * model->head_dim, kv_size = model->kv_heads * model->head_dim;
    size_t attention_size = 2 * q_size + 2 * kv_size
        + model->kv_heads * (size_t)(step->prompt_length + step->position + 1 + SCORE_PADDING);
    size_t mlp_size = 2 * (size_t)model->intermediate_size;
    return rows * (model->hidden_size + (attention_size > mlp_size ? attention_size : mlp_size)
                   + (size_t)MAX_THREADS * model->max_rank);
}

typedef struct {
    const Model *model;
    const Layer *layers;
    const Step *step;
    float *states, *workspace;
} Decode;

/* Each thread computes its columns, rows or heads of every part of a layer. */
static void decode_part(void *arg, int thread, int count)
{
    const Decode *decode = arg;
    const Model *model = decode->model;
    const Step *step = decode->step;
    int rows = step->rows, hidden = model->hidden_size, intermediate = model->intermediate_size;
    int q_size = model->heads * model->head_dim, kv_size = model->kv_heads * model->head_dim;
    int first_row = partition(rows, 1, thread, count);
    int last_row = partition(rows, 1, thread + 1, count);
    int first = partition(intermediate, TILE, thread, count);
    int last = partition(intermediate, TILE, thread + 1, count);
    float *states = decode->states;
    float *lora = decode->workspace + (size_t)thread * rows * model->max_rank;
    float *normed = decode->workspace + (size_t)MAX_THREADS * rows * model->max_rank;
    float *buffer = normed + (size_t)rows * hidden;
    float *queries = buffer, *keys = queries + (size_t)rows * q_size;
    float *values = keys + (size_t)rows * kv_size, *attended = values + (size_t)rows * kv_size;
    float *scores = attended + (size_t)rows * q_size;
    float *gate = buffer, *up = gate + (size_t)rows * intermediate;
#define LINEAR(in, out, x, name, accumulate, result) \
    linear(rows, in, out, x, layer->name, accumulate, result, lora, thread, count)
    for (const Layer *layer = decode->layers; layer < decode->layers + model->layers; layer++) {
        for (int r = first_row; r < last_row; r++)
            rms_norm(hidden, states + r * hidden, layer->input_norm, model->epsilon,
                     normed + r * hidden);
        barrier(count);
        LINEAR(hidden, q_size, normed, q_proj, 0, queries);
        LINEAR(hidden, kv_size, normed, k_proj, 0, keys);
        LINEAR(hidden, kv_size, normed, v_proj, 0, values);
        barrier(count);
        attention(model, layer, step, queries, keys, values, scores, attended, thread, count);
        barrier(count);
        LINEAR(q_size, hidden, attended, o_proj, 1, states);
        barrier(count);
        for (int r = first_row; r < last_row; r++)
            rms_norm(hidden, states + r * hidden, layer->post_attention_norm, model->epsilon,
                     normed + r * hidden);
        barrier(count);
        LINEAR(hidden, intermediate, normed, gate_proj, 0, gate);
        LINEAR(hidden, intermediate, normed, up_proj, 0, up);
        for (int r = 0; r < rows; r++) {
            size_t offset = (size_t)r * intermediate + first;
            swiglu(last - first, gate + offset, up + offset, gate + offset);
        }
        barrier(count);
        LINEAR(intermediate, hidden, gate, down_proj, 1, states);
        barrier(count);
    }
}

/* Multiplications of a token in some of the products, to tell whether threads pay off. */
static double token_work(const Model *model)
{
    return (double)model->layers * model->hidden_size
        * (model->heads * model->head_dim + model->intermediate_size);
}

/* states [rows, hidden_size] -> the states after all layers, before the final norm. */
void decode_layers(const Model *model, const Layer *layers, const Step *step, float *states,
                   float *workspace)
{
    Decode decode = {model, layers, step, states, workspace};
    if (step->rows * token_work(model) > PARALLEL_WORK) parallel_for(decode_part, &decode);
    else decode_part(&decode, 0, 1);
}

/* states [rows, hidden_size], normalised in place -> logits [rows, vocabulary]. */
void decode_head(const Model *model, int rows, int vocabulary, const float *norm, Linear head,
                 float *states, float *logits)
{
    int hidden = model->hidden_size;
    for (int r = 0; r < rows; r++)
        rms_norm(hidden, states + r * hidden, norm, model->epsilon, states + r * hidden);
    int accumulate = apply_bias(rows, vocabulary, 0, vocabulary, head.bias, 0, logits);
    sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, rows, vocabulary, hidden, 1, states, hidden, head.weight,
          vocabulary, accumulate, logits, vocabulary);
}
