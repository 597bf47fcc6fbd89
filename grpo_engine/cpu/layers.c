/* The parts of a Llama-like layer: norms, rotations, attention, silu, for one token each. */

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
    int in, out, rank;              /* rank 0 without LoRA */
} Linear;

typedef struct {
    const float *input_norm, *post_attention_norm, *q_norm, *k_norm;  /* the last two optional */
    Linear q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
    float *key_cache, *value_cache;  /* [kv_heads, positions, head_dim]; only to decode */
} Layer;

typedef struct {
    int layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, rotary_dims, max_rank;
    float epsilon, scale;   /* of the norms; of attention's scores, logarithms to the base 2 */
} Model;

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

/* Rotary embedding: a head's first half and its second half are the two coordinates. A `direction`
   of -1 rotates back. */
static void rotate(int rotary_dims, const float *cos_sin, float direction, float *head)
{
    int half = rotary_dims / 2;
    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        float cosine = cos_sin[i], sine = direction * cos_sin[i + half];
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

/* Normalise, if there is a norm, and rotate a head's query or key. */
static void forward_head(const Model *model, const float *norm, const float *cos_sin, float *head)
{
    if (norm) rms_norm(model->head_dim, head, norm, model->epsilon, head);
    rotate(model->rotary_dims, cos_sin, 1, head);
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
