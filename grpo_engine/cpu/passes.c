/* Forward and backward pass of a Llama-like model over sequences without padding, and its head.

   Prompts and completions are segments of one packed sequence: a token attends to the tokens of its
   prompt, if it belongs to a completion, and to those of its own segment up to itself. Large
   products are those of the BLAS; MLX computes the rest of a pass number by number, and saves three
   times as much of it for the backward pass. Only LoRA is trained. A "gradient" of an array is the
   gradient of the loss with respect to it. */

#include "decode.c"

#ifdef SOURCE_HASH  /* by which a library is recognised as that of these files */
const char source_hash[] = "grpo-tui-sources=" SOURCE_HASH;
#endif

static const float LN_2 = 6.9314718e-1f;

typedef struct {
    int tokens;
    const int *prompt_starts, *prompt_ends;  /* [tokens] equal for the tokens of a prompt itself */
    const int *segment_starts;               /* [tokens] */
    const float *cos_sin;                    /* [tokens, rotary_dims] */
} Packed;

typedef struct { float *lora_a, *lora_b; } LoraGradients;  /* NULL where LoRA is not trained */
typedef struct {
    LoraGradients q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
} LayerGradients;

/* Activations that the backward pass of a layer reads. Queries [tokens, heads * head_dim], rotated
   and scaled; keys and values [kv_heads, tokens, head_dim], keys rotated; raw queries and keys,
   before their norm, only if there is one. */
typedef struct {
    float *input, *queries, *keys, *values, *attended, *residual, *gate, *up;
    float *raw_queries, *raw_keys;
} Saved;

typedef struct { int hidden, intermediate, q_size, kv_size; } Sizes;

static Sizes sizes_of(const Model *model)
{
    return (Sizes){model->hidden_size, model->intermediate_size, model->heads * model->head_dim,
                   model->kv_heads * model->head_dim};
}

static int has_qk_norm(const Layer *layer) { return layer->q_norm != NULL; }

/* Floats that one layer saves. */
size_t saved_size(const Model *model, const Layer *layer, int tokens)
{
    Sizes s = sizes_of(model);
    size_t raw = has_qk_norm(layer) ? s.q_size + s.kv_size : 0;
    return tokens * (2 * (size_t)s.hidden + 2 * s.q_size + 2 * s.kv_size + 2 * s.intermediate
                     + raw);
}

static Saved saved_at(const Model *model, const Layer *layer, int tokens, float *memory)
{
    Sizes s = sizes_of(model);
    Saved saved = {0};
#define ASSIGN(name, size) saved.name = memory, memory += (size_t)tokens * (size)
    ASSIGN(input, s.hidden);
    ASSIGN(queries, s.q_size);
    ASSIGN(keys, s.kv_size);
    ASSIGN(values, s.kv_size);
    ASSIGN(attended, s.q_size);
    ASSIGN(residual, s.hidden);
    ASSIGN(gate, s.intermediate);
    ASSIGN(up, s.intermediate);
    if (has_qk_norm(layer)) {
        ASSIGN(raw_queries, s.q_size);
        ASSIGN(raw_keys, s.kv_size);
    }
    return saved;
}

/* Attention weights of one query, and their gradients. */
static size_t scores_size(int tokens) { return 2 * ((size_t)tokens + SCORE_PADDING); }

/* Floats of workspace that either pass needs. */
size_t pass_workspace(const Model *model, int tokens)
{
    Sizes s = sizes_of(model);
    return tokens * (2 * (size_t)s.hidden + 2 * s.q_size + 4 * s.kv_size
                     + 3 * (size_t)s.intermediate + 2 * model->max_rank)
        + MAX_THREADS * scores_size(tokens);
}

/* A thread, its tokens from `first` up to `last`, and its workspace. */
typedef struct {
    int tokens, first, last, thread, count;
    float *lora, *scores;   /* [2, tokens, max_rank], shared by the threads; scores of its own */
} Part;

/* The parts are at the beginning of the workspace, which moves on behind them. */
static Part part_of(int tokens, int max_rank, float **workspace, int thread, int count)
{
    Part part = {tokens, partition(tokens, 1, thread, count),
                 partition(tokens, 1, thread + 1, count), thread, count, *workspace,
                 *workspace + 2 * (size_t)tokens * max_rank};
    *workspace = part.scores + MAX_THREADS * scores_size(tokens);
    part.scores += thread * scores_size(tokens);
    return part;
}

INLINE void copy(size_t count, const float *source, float *target)
{
    for (size_t i = 0; i < count; i++) target[i] = source[i];
}

/* One thread's part of a product of contiguous matrices. */
static void gemm(const Part *part, int ta, int tb, int m, int n, int k, const float *a,
                 const float *b, float beta, float *c)
{
    Gemm g = {ta, tb, m, n, k, ta == NO_TRANS ? k : m, tb == NO_TRANS ? n : k, n, 1, beta, a, b, c};
    gemm_part(&g, part->thread, part->count);
}

/* x [tokens, in] -> result [tokens, out]. */
static void forward_linear(const Part *part, int in, int out, const float *x, const Linear *layer,
                           int accumulate, float *result)
{
    int n = part->tokens, rank = layer->rank;
    if (layer->bias) {
        apply_bias(part->last - part->first, out, 0, out, layer->bias, accumulate,
                   result + (size_t)part->first * out);
        accumulate = 1;
        barrier(part->count);
    }
    gemm(part, NO_TRANS, NO_TRANS, n, out, in, x, layer->weight, accumulate, result);
    if (rank) {
        gemm(part, NO_TRANS, TRANS, n, rank, in, x, layer->lora_a, 0, part->lora);
        barrier(part->count);
        gemm(part, NO_TRANS, NO_TRANS, n, out, rank, part->lora, layer->lora_b, 1, result);
    }
    barrier(part->count);
}

/* Gradient of the result [tokens, out] -> gradient of x, and of LoRA. */
static void backward_linear(const Part *part, int in, int out, const float *x,
                            const float *gradient, const Linear *layer, LoraGradients lora,
                            int accumulate, float *x_gradient)
{
    int n = part->tokens, rank = layer->rank;
    float *projected = part->lora, *projected_gradient = projected + (size_t)n * rank;
    gemm(part, NO_TRANS, TRANS, n, in, out, gradient, layer->weight, accumulate, x_gradient);
    if (rank) {
        gemm(part, NO_TRANS, TRANS, n, rank, out, gradient, layer->lora_b, 0, projected_gradient);
        if (lora.lora_a) gemm(part, NO_TRANS, TRANS, n, rank, in, x, layer->lora_a, 0, projected);
        barrier(part->count);
        gemm(part, NO_TRANS, NO_TRANS, n, in, rank, projected_gradient, layer->lora_a, 1,
             x_gradient);
        if (lora.lora_a) {
            gemm(part, TRANS, NO_TRANS, rank, in, n, projected_gradient, x, 0, lora.lora_a);
            gemm(part, TRANS, NO_TRANS, rank, out, n, projected, gradient, 0, lora.lora_b);
        }
    }
    barrier(part->count);
}

static void forward_norm(const Part *part, int size, const float *x, const float *weight,
                         float epsilon, float *out)
{
    for (size_t t = part->first; t < (size_t)part->last; t++)
        rms_norm(size, x + t * size, weight, epsilon, out + t * size);
}

/* result (+)= the gradient of x, from that of x s w with s = 1 / sqrt(mean x^2 + epsilon). */
static void backward_norm(int size, const float *x, const float *weight, float epsilon,
                          const float *gradient, int accumulate, float *result)
{
    float scale = 1 / __builtin_sqrtf(dot(x, x, size) / size + epsilon);
    vec sum = {0};
    float remainder = 0;
    int i = 0;
    for (; i + LANES <= size; i += LANES)
        sum += *(const vec *)(x + i) * *(const vec *)(weight + i) * *(const vec *)(gradient + i);
    for (; i < size; i++) remainder += x[i] * weight[i] * gradient[i];
    float mean = (reduce_add(sum) + remainder) * scale * scale * scale / size;
    for (i = 0; i < size; i++) {
        float x_gradient = gradient[i] * weight[i] * scale - x[i] * mean;
        result[i] = accumulate ? result[i] + x_gradient : x_gradient;
    }
}

static void backward_rotate(int rotary_dims, const float *cos_sin, float *head)
{
    int half = rotary_dims / 2;
    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half], cosine = cos_sin[i], sine = cos_sin[i + half];
        head[i] = a * cosine + b * sine;
        head[i + half] = b * cosine - a * sine;
    }
}

/* Normalise, rotate and scale queries; keys and values from [tokens, kv_heads, head_dim] to
   [kv_heads, tokens, head_dim]. */
static void forward_heads(const Part *part, const Model *model, const Layer *layer,
                          const Packed *packed, Saved *saved, const float *keys,
                          const float *values)
{
    int head_dim = model->head_dim, n = packed->tokens;
    Sizes s = sizes_of(model);
    for (size_t t = part->first; t < (size_t)part->last; t++) {
        if (has_qk_norm(layer)) {
            copy(s.q_size, saved->queries + t * s.q_size, saved->raw_queries + t * s.q_size);
            copy(s.kv_size, keys + t * s.kv_size, saved->raw_keys + t * s.kv_size);
        }
        const float *cos_sin = packed->cos_sin + t * model->rotary_dims;
        for (int h = 0; h < model->heads; h++)
            prepare_query(model, layer, cos_sin, saved->queries + t * s.q_size + h * head_dim);
        for (int h = 0; h < model->kv_heads; h++) {
            size_t source = t * s.kv_size + h * head_dim, target = ((size_t)h * n + t) * head_dim;
            store_key_value(model, layer, cos_sin, keys + source, values + source,
                            saved->keys + target, saved->values + target);
        }
    }
}

/* Keys and values that a token attends to in one head. */
INLINE Context context_of(const Model *model, const Packed *packed, const Saved *saved, int t,
                          int kv_head)
{
    size_t base = (size_t)kv_head * packed->tokens;
    size_t prompt = (base + packed->prompt_starts[t]) * model->head_dim;
    size_t segment = (base + packed->segment_starts[t]) * model->head_dim;
    return (Context){packed->prompt_ends[t] - packed->prompt_starts[t],
                     t + 1 - packed->segment_starts[t], saved->keys + prompt,
                     saved->values + prompt, saved->keys + segment, saved->values + segment};
}

/* Later tokens attend to more, so the tokens are interleaved between the threads. */
static void forward_attention(const Part *part, const Model *model, const Packed *packed,
                              const Saved *saved)
{
    int head_dim = model->head_dim, group = model->heads / model->kv_heads;
    for (int t = part->thread; t < packed->tokens; t += part->count)
        for (int h = 0; h < model->heads; h++) {
            size_t head = ((size_t)t * model->heads + h) * head_dim;
            Context context = context_of(model, packed, saved, t, h / group);
            attend(&context, head_dim, saved->queries + head, part->scores,
                   saved->attended + head);
        }
}

/* rows[s] += weights[s] * row */
static void add_outer(int count, int size, const float *weights, const float *row, float *rows)
{
    for (int s = 0; s < count; s++, rows += size)
        for (int d = 0; d < size; d++) rows[d] += weights[s] * row[d];
}

/* Gradient of attention's output -> of queries [tokens, heads], and of keys and values
   [kv_heads, tokens, head_dim]. Many tokens add to a key, so a thread has some of the kv_heads. */
static void backward_attention(const Part *part, const Model *model, const Packed *packed,
                               const Saved *saved, const float *gradients, float *queries,
                               float *keys, float *values)
{
    int head_dim = model->head_dim, group = model->heads / model->kv_heads;
    int first = partition(model->kv_heads, 1, part->thread, part->count);
    int last = partition(model->kv_heads, 1, part->thread + 1, part->count);
    float *weights = part->scores, *score_gradients = weights + packed->tokens + SCORE_PADDING;
    size_t size = (size_t)packed->tokens * head_dim;
    for (size_t i = first * size; i < last * size; i++) keys[i] = values[i] = 0;
    for (int t = 0; t < packed->tokens; t++)
        for (int h = first * group; h < last * group; h++) {
            size_t head = ((size_t)t * model->heads + h) * head_dim;
            Context c = context_of(model, packed, saved, t, h / group);
            size_t prompt = c.prompt_keys - saved->keys, segment = c.keys - saved->keys;
            const float *query = saved->queries + head, *gradient = gradients + head;
            float scale = attention_weights(&c, head_dim, query, weights);
            query_key(c.prompt_length, head_dim, gradient, c.prompt_values, score_gradients, 0);
            query_key(c.length, head_dim, gradient, c.values, score_gradients + c.prompt_length, 0);
            float mean = dot(gradient, saved->attended + head, head_dim);
            for (int s = 0; s < c.prompt_length + c.length; s++) {
                weights[s] *= scale;
                score_gradients[s] = weights[s] * (score_gradients[s] - mean) * LN_2;
            }
            add_outer(c.prompt_length, head_dim, weights, gradient, values + prompt);
            add_outer(c.length, head_dim, weights + c.prompt_length, gradient, values + segment);
            add_outer(c.prompt_length, head_dim, score_gradients, query, keys + prompt);
            add_outer(c.length, head_dim, score_gradients + c.prompt_length, query,
                      keys + segment);
            context_sum(&c, head_dim, score_gradients, c.prompt_keys, c.keys, queries + head);
        }
}

/* Inverse of `forward_heads`: gradients of prepared queries, and of keys and values per head, ->
   of the outputs of the projections. */
static void backward_heads(const Part *part, const Model *model, const Layer *layer,
                           const Packed *packed, const Saved *saved, float *queries,
                           const float *head_keys, const float *head_values, float *keys,
                           float *values)
{
    int head_dim = model->head_dim, n = packed->tokens;
    Sizes s = sizes_of(model);
    for (size_t t = part->first; t < (size_t)part->last; t++) {
        const float *cos_sin = packed->cos_sin + t * model->rotary_dims;
        for (int h = 0; h < model->heads; h++) {
            size_t head = t * s.q_size + h * head_dim;
            for (int d = 0; d < head_dim; d++) queries[head + d] *= query_scale(model);
            backward_rotate(model->rotary_dims, cos_sin, queries + head);
            if (has_qk_norm(layer))
                backward_norm(head_dim, saved->raw_queries + head, layer->q_norm, model->epsilon,
                              queries + head, 0, queries + head);
        }
        for (int h = 0; h < model->kv_heads; h++) {
            size_t target = t * s.kv_size + h * head_dim, source = ((size_t)h * n + t) * head_dim;
            copy(head_dim, head_values + source, values + target);
            copy(head_dim, head_keys + source, keys + target);
            backward_rotate(model->rotary_dims, cos_sin, keys + target);
            if (has_qk_norm(layer))
                backward_norm(head_dim, saved->raw_keys + target, layer->k_norm, model->epsilon,
                              keys + target, 0, keys + target);
        }
    }
}

/* Gradient of silu(gate) * up -> of up, in place, and of gate. */
static void backward_swiglu(size_t count, const float *gate, const float *up, float *gradient,
                            float *gate_gradient)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vec x = *(const vec *)(gate + i), sigma = sigmoid(x), g = *(vec *)(gradient + i);
        *(vec *)(gate_gradient + i) = g * *(const vec *)(up + i) * sigma * (1 + x * (1 - sigma));
        *(vec *)(gradient + i) = g * x * sigma;
    }
    for (; i < count; i++) {
        float x = gate[i], sigma = sigmoid((vec){0} + x)[0], g = gradient[i];
        gate_gradient[i] = g * up[i] * sigma * (1 + x * (1 - sigma));
        gradient[i] = g * x * sigma;
    }
}

typedef struct {
    const Model *model;
    const Layer *layers;
    const Packed *packed;
    const float *norm;
    int first_layer;
    float *states;
    const LayerGradients *gradients;
    float *const *saved;
    float *workspace;
} Pass;

static void forward_part(void *arg, int thread, int count)
{
    const Pass *pass = arg;
    const Model *model = pass->model;
    const Packed *packed = pass->packed;
    int n = packed->tokens;
    Sizes s = sizes_of(model);
    float *workspace = pass->workspace, *states = pass->states;
    const Part part = part_of(n, model->max_rank, &workspace, thread, count);
    float *normed = workspace, *keys = normed + (size_t)n * s.hidden;
    float *values = keys + (size_t)n * s.kv_size, *activations = values + (size_t)n * s.kv_size;
    size_t tokens = part.last - part.first, offset = (size_t)part.first * s.hidden;
    size_t mlp_offset = (size_t)part.first * s.intermediate;
    float *saved_states = pass->saved[model->layers - pass->first_layer];
#define FORWARD(in, out, x, name, accumulate, result) \
    forward_linear(&part, in, out, x, &layer->name, accumulate, result)
    for (int i = 0; i < model->layers; i++) {
        const Layer *layer = pass->layers + i;
        int slot = i > pass->first_layer && saved_states ? i - pass->first_layer : 0;
        Saved saved = saved_at(model, layer, n, pass->saved[slot]);
        copy(tokens * s.hidden, states + offset, saved.input + offset);
        forward_norm(&part, s.hidden, states, layer->input_norm, model->epsilon, normed);
        barrier(count);
        FORWARD(s.hidden, s.q_size, normed, q_proj, 0, saved.queries);
        FORWARD(s.hidden, s.kv_size, normed, k_proj, 0, keys);
        FORWARD(s.hidden, s.kv_size, normed, v_proj, 0, values);
        forward_heads(&part, model, layer, packed, &saved, keys, values);
        barrier(count);
        forward_attention(&part, model, packed, &saved);
        barrier(count);
        FORWARD(s.q_size, s.hidden, saved.attended, o_proj, 1, states);
        copy(tokens * s.hidden, states + offset, saved.residual + offset);
        forward_norm(&part, s.hidden, states, layer->post_attention_norm, model->epsilon, normed);
        barrier(count);
        FORWARD(s.hidden, s.intermediate, normed, gate_proj, 0, saved.gate);
        FORWARD(s.hidden, s.intermediate, normed, up_proj, 0, saved.up);
        swiglu(tokens * s.intermediate, saved.gate + mlp_offset, saved.up + mlp_offset,
               activations + mlp_offset);
        barrier(count);
        FORWARD(s.intermediate, s.hidden, activations, down_proj, 1, states);
    }
    if (saved_states) copy(tokens * s.hidden, states + offset, saved_states + offset);
    forward_norm(&part, s.hidden, states, pass->norm, model->epsilon, states);
}

static void backward_part(void *arg, int thread, int count)
{
    const Pass *pass = arg;
    const Model *model = pass->model;
    const Packed *packed = pass->packed;
    int n = packed->tokens;
    Sizes s = sizes_of(model);
    size_t hidden = (size_t)n * s.hidden, intermediate = (size_t)n * s.intermediate;
    size_t q_size = (size_t)n * s.q_size, kv_size = (size_t)n * s.kv_size;
    float *workspace = pass->workspace, *gradient = pass->states;
    const Part part = part_of(n, model->max_rank, &workspace, thread, count);
    float *normed = workspace, *normed_gradient = normed + hidden;
    float *buffer = normed_gradient + hidden;
    float *activations = buffer, *up_gradient = activations + intermediate;
    float *gate_gradient = up_gradient + intermediate;
    float *attended = buffer, *queries = attended + q_size, *keys = queries + q_size;
    float *values = keys + kv_size, *head_keys = values + kv_size;
    float *head_values = head_keys + kv_size;
    size_t size = (size_t)(part.last - part.first) * s.intermediate;
    size_t offset = (size_t)part.first * s.intermediate;
#define BACKWARD_NORM(x, weight, norm_gradient, accumulate) \
    for (size_t t = part.first; t < (size_t)part.last; t++) \
        backward_norm(s.hidden, x + t * s.hidden, weight, model->epsilon, \
                      norm_gradient + t * s.hidden, accumulate, gradient + t * s.hidden)
#define BACKWARD(in, out, x, out_gradient, name, accumulate, x_gradient) \
    backward_linear(&part, in, out, x, out_gradient, &layer->name, lora->name, accumulate, \
                    x_gradient)
    BACKWARD_NORM(pass->saved[model->layers - pass->first_layer], pass->norm, gradient, 0);
    for (int i = model->layers - 1; i >= pass->first_layer; i--) {
        const Layer *layer = pass->layers + i;
        const LayerGradients *lora = pass->gradients + i;
        Saved saved = saved_at(model, layer, n, pass->saved[i - pass->first_layer]);
        swiglu(size, saved.gate + offset, saved.up + offset, activations + offset);
        forward_norm(&part, s.hidden, saved.residual, layer->post_attention_norm, model->epsilon,
                     normed);
        barrier(count);
        BACKWARD(s.intermediate, s.hidden, activations, gradient, down_proj, 0, up_gradient);
        backward_swiglu(size, saved.gate + offset, saved.up + offset, up_gradient + offset,
                        gate_gradient + offset);
        barrier(count);
        BACKWARD(s.hidden, s.intermediate, normed, gate_gradient, gate_proj, 0, normed_gradient);
        BACKWARD(s.hidden, s.intermediate, normed, up_gradient, up_proj, 1, normed_gradient);
        BACKWARD_NORM(saved.residual, layer->post_attention_norm, normed_gradient, 1);
        barrier(count);
        BACKWARD(s.q_size, s.hidden, saved.attended, gradient, o_proj, 0, attended);
        backward_attention(&part, model, packed, &saved, attended, queries, head_keys,
                           head_values);
        barrier(count);
        backward_heads(&part, model, layer, packed, &saved, queries, head_keys, head_values, keys,
                       values);
        forward_norm(&part, s.hidden, saved.input, layer->input_norm, model->epsilon, normed);
        barrier(count);
        BACKWARD(s.hidden, s.q_size, normed, queries, q_proj, 0, normed_gradient);
        BACKWARD(s.hidden, s.kv_size, normed, keys, k_proj, 1, normed_gradient);
        BACKWARD(s.hidden, s.kv_size, normed, values, v_proj, 1, normed_gradient);
        BACKWARD_NORM(saved.input, layer->input_norm, normed_gradient, 1);
    }
}

static void run_pass(Job *job, Pass *pass)
{
    if (pass->packed->tokens * token_work(pass->model) > PARALLEL_WORK) parallel_for(job, pass);
    else job(pass, 0, 1);
}

/* states [tokens, hidden_size] -> after all layers and the final norm. `saved` has memory for each
   layer from `first_layer` on, and for the states before the final norm; if the last is NULL,
   nothing is needed for a backward pass. */
void forward_pass(const Model *model, const Layer *layers, const Packed *packed, const float *norm,
                  int first_layer, float *states, float *const *saved, float *workspace)
{
    run_pass(forward_part, &(Pass){model, layers, packed, norm, first_layer, states, NULL, saved,
                                   workspace});
}

/* Gradient of what `forward_pass` returned [tokens, hidden_size] -> of LoRA, from the last layer
   down to `first_layer`; `saved` is what that pass was given. */
void backward_pass(const Model *model, const Layer *layers, const Packed *packed,
                   const float *norm, int first_layer, float *gradient,
                   const LayerGradients *gradients, float *const *saved, float *workspace)
{
    run_pass(backward_part, &(Pass){model, layers, packed, norm, first_layer, gradient, gradients,
                                    saved, workspace});
}

/* Scores of N tokens. With x = (logits - max) / temperature, `sums` [3, N] are x of the target, the
   sum of e^x, and the sum of x e^x; `gradients` [N, hidden_size], if not NULL, are those of the
   cross-entropy with respect to the states, times the sum of e^x and the temperature. */
typedef struct {
    const Linear *head;
    int tokens, hidden_size, vocabulary, chunk_size;
    float temperature;
    const float *states;
    const int *targets;
    float *sums, *gradients, *logits;   /* logits [chunk_size, vocabulary] are workspace */
} HeadPass;

/* Finite logits are below MAX_LOGIT; e^x vanishes below MIN_LOGIT. */
static const float MAX_LOGIT = 3e38f, MIN_LOGIT = -1e4f;

/* One token's logits -> e^x, less their sum at the target. */
static void softmax_row(const HeadPass *head, int t, float *logits)
{
    int count = head->vocabulary, i = 0, target = head->targets[t];
    float scale = 1 / head->temperature, maximum = -MAX_LOGIT, target_logit = logits[target];
    vec maxima = (vec){0} + maximum;
    ivec finite = ~(ivec){0};
    for (; i + LANES <= count; i += LANES) {
        vec x = *(vec *)(logits + i);
        maxima = blend(x > maxima, x, maxima);
        finite &= x <= MAX_LOGIT;
    }
    for (; i < count; i++) {
        maximum = logits[i] > maximum ? logits[i] : maximum;
        finite[0] &= -(logits[i] <= MAX_LOGIT);
    }
    for (int v = 0; v < LANES; v++) maximum = maxima[v] > maximum ? maxima[v] : maximum;
    vec sums[4] = {0}, weighted_sums[4] = {0};
    for (i = 0; i + LANES <= count; i += LANES) {
        vec x = (*(vec *)(logits + i) - maximum) * scale, e;
        x = blend(x > MIN_LOGIT, x, (vec){0} + MIN_LOGIT);
        e = exp2_vec(x * LOG2_E);
        *(vec *)(logits + i) = e;
        sums[i / LANES % 4] += e, weighted_sums[i / LANES % 4] += e * x;
    }
    for (; i < count; i++) {
        float x = (logits[i] - maximum) * scale;
        x = x > MIN_LOGIT ? x : MIN_LOGIT;
        logits[i] = exp2_vec((vec){0} + x * LOG2_E)[0];
        sums[0][0] += logits[i], weighted_sums[0][0] += logits[i] * x;
    }
    float sum = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int v = 0; v < LANES; v++) sum = finite[v] ? sum : __builtin_nanf("");
    head->sums[t] = (target_logit - maximum) * scale;
    head->sums[head->tokens + t] = sum;
    head->sums[2 * head->tokens + t] =
        reduce_add((weighted_sums[0] + weighted_sums[1]) + (weighted_sums[2] + weighted_sums[3]));
    logits[target] -= sum;
}

static void head_part(void *arg, int thread, int count)
{
    const HeadPass *head = arg;
    int hidden = head->hidden_size, vocabulary = head->vocabulary;
    for (int first = 0; first < head->tokens; first += head->chunk_size) {
        int left = head->tokens - first, n = left < head->chunk_size ? left : head->chunk_size;
        Part part = {n, partition(n, 1, thread, count), partition(n, 1, thread + 1, count), thread,
                     count, NULL, NULL};
        forward_linear(&part, hidden, vocabulary, head->states + (size_t)first * hidden, head->head,
                       0, head->logits);
        for (int t = part.first; t < part.last; t++)
            softmax_row(head, first + t, head->logits + (size_t)t * vocabulary);
        barrier(count);
        if (head->gradients)
            gemm(&part, NO_TRANS, TRANS, n, hidden, vocabulary, head->logits, head->head->weight, 0,
                 head->gradients + (size_t)first * hidden);
        barrier(count);
    }
}

void head_pass(const HeadPass *head) { parallel_for(head_part, (void *)head); }
