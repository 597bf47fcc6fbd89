/* Forward and backward pass of a Llama-like model over sequences without padding, and its head.

   Prompts and completions are segments of one packed sequence: a token attends to the tokens of its
   prompt, if it belongs to a completion, and to those of its own segment up to itself. Products with
   transposed weights are those of the BLAS; with the rows in place, ours take .7 to .95 of its time. MLX
   computes the rest of a pass number by number, and saves three times as much of it for the backward
   pass. Only LoRA is trained. A "gradient" of an array is the
   gradient of the loss with respect to it.

   A prompt and a decode step are a forward pass over the next tokens of each row, with the keys and
   values of earlier ones in a cache. MLX dispatches some thousand small operations for a step, which
   takes as long as the products. A row's bits depend neither on the number of other rows, nor on their
   lengths, nor on whether they share their prompt. */

#include "layers.c"

#ifdef SOURCE_HASH  /* by which a library is recognised as that of these files */
const char source_hash[] = "grpo-tui-sources=" SOURCE_HASH;
#endif

static const float LN_2 = 6.9314718e-1f;
enum { FEW_TOKENS = 32 };

typedef struct {
    int tokens, positions;   /* `positions` of keys and values: the tokens, or those of the cache */
    int longest;             /* most positions that a token attends to */
    const int *prompt_starts, *prompt_lengths;    /* [tokens] positions in a key-value head */
    const int *segment_starts, *segment_lengths;  /* [tokens] up to the token itself */
    const float *cos_sin;                         /* [tokens, rotary_dims] */
} Batch;

typedef struct { float *lora_a, *lora_b; } LoraGradients;
typedef struct {
    LoraGradients q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
} LayerGradients;

/* Activations that the backward pass of a layer reads. Queries [tokens, heads * head_dim], rotated
   and scaled; keys and values [kv_heads, tokens, head_dim], keys rotated; raw queries and keys,
   before their norm, only if there is one. `size` is that of all. */
typedef struct {
    size_t size;
    float *input, *queries, *keys, *values, *attended, *residual, *gate, *up;
    float *raw_queries, *raw_keys;
} Saved;

typedef struct { int hidden, intermediate, q_size, kv_size; } Sizes;

static Sizes sizes_of(const Model *model)
{
    return (Sizes){model->hidden_size, model->intermediate_size, model->heads * model->head_dim,
                   model->kv_heads * model->head_dim};
}

static Saved saved_at(const Model *model, const Layer *layer, int tokens, float *memory)
{
    Sizes s = sizes_of(model);
    Saved saved = {0};
#define ASSIGN(name, width) \
    saved.name = memory + saved.size, saved.size += (size_t)tokens * (width)
    ASSIGN(input, s.hidden);
    ASSIGN(queries, s.q_size);
    ASSIGN(keys, s.kv_size);
    ASSIGN(values, s.kv_size);
    ASSIGN(attended, s.q_size);
    ASSIGN(residual, s.hidden);
    ASSIGN(gate, s.intermediate);
    ASSIGN(up, s.intermediate);
    if (layer->q_norm) {
        ASSIGN(raw_queries, s.q_size);
        ASSIGN(raw_keys, s.kv_size);
    }
    if (layer->key_cache) saved.keys = layer->key_cache, saved.values = layer->value_cache;
    return saved;
}

/* Floats that one layer saves. */
size_t saved_size(const Model *model, const Layer *layer, int tokens)
{
    float none;
    return saved_at(model, layer, tokens, &none).size;
}

/* A pass over all layers. `saved` has memory for each layer from `first_layer` on, and for the states
   before the final norm; it is NULL if nothing is needed for a backward pass. */
typedef struct {
    const Model *model;
    const Layer *layers;
    const Batch *batch;
    const float *norm;
    float *states;      /* [tokens, hidden_size] before and after the pass, or their gradient */
    int first_layer;
    float *const *saved;
    const LayerGradients *gradients;
    float *workspace;
} Pass;

/* Products of an adapter's first matrix, and their gradients. */
static size_t lora_size(const Model *model, const Batch *batch)
{
    return (size_t)batch->tokens * model->max_rank;
}

/* Attention weights of one query, and their gradients. */
static size_t scores_size(const Batch *batch) { return 2 * ((size_t)batch->longest + SCORE_PADDING); }

/* Floats of workspace that a pass needs. */
size_t pass_workspace(const Pass *pass)
{
    const Model *model = pass->model;
    const Batch *batch = pass->batch;
    Sizes s = sizes_of(model);
    return (pass->saved ? 0 : saved_size(model, pass->layers, batch->tokens))
        + batch->tokens * (2 * (size_t)s.hidden + 2 * s.q_size + 4 * s.kv_size
                           + 3 * (size_t)s.intermediate)
        + (batch->tokens <= FEW_TOKENS ? MAX_THREADS : 2) * lora_size(model, batch)
        + MAX_THREADS * scores_size(batch);
}

/* A thread, its tokens from `first` up to `last`, and its workspace. Of so few tokens that it takes
   less time than waiting for others would, each thread `repeats_lora`'s first product. */
typedef struct {
    int tokens, repeats_lora, first, last, thread, count;
    float *lora, *scores;
} Part;

static Part part_of(int tokens, int thread, int count)
{
    return (Part){.tokens = tokens, .thread = thread, .count = count,
                  .first = partition(tokens, 1, thread, count),
                  .last = partition(tokens, 1, thread + 1, count)};
}

/* A part with its share of the beginning of the workspace, which moves on behind all shares. */
static Part pass_part(const Model *model, const Batch *batch, int repeats_lora, float **workspace,
                      int thread, int count)
{
    Part part = part_of(batch->tokens, thread, count);
    size_t lora = lora_size(model, batch), scores = scores_size(batch);
    part.repeats_lora = repeats_lora;
    part.lora = *workspace + (repeats_lora ? thread * lora : 0);
    *workspace += (repeats_lora ? MAX_THREADS : 2) * lora;
    part.scores = *workspace + thread * scores;
    *workspace += MAX_THREADS * scores;
    return part;
}

INLINE void copy(size_t count, const float *source, float *target)
{
    for (size_t i = 0; i < count; i++) target[i] = source[i];
}

/* One thread's part of a product of contiguous matrices. */
static void gemm(const Part *part, int ta, int tb, int m, int n, int k, const float *a,
                 const float *b, const float *bias, float beta, float *c)
{
    Gemm g = {ta, tb, m, n, k, ta == NO_TRANS ? k : m, tb == NO_TRANS ? n : k, n, 1, beta, a, b, c,
              bias, 1};
    gemm_part(&g, part->thread, part->count);
}

/* x A [tokens, rank] */
static void project(const Part *part, const float *x, const Linear *layer)
{
    int repeats = part->repeats_lora;
    if (!repeats) barrier(part->count);  /* others may still read the product before */
    for (int t = repeats ? 0 : part->first; t < (repeats ? part->tokens : part->last); t++)
        for (int r = 0; r < layer->rank; r++)
            part->lora[(size_t)t * layer->rank + r] =
                dot(x + (size_t)t * layer->in, layer->lora_a + (size_t)r * layer->in, layer->in);
    if (!repeats) barrier(part->count);
}

/* x [tokens, in] -> this thread's part of the result [tokens, out]. */
static void forward_linear(const Part *part, const float *x, const Linear *layer, int accumulate,
                           float *result)
{
    int n = part->tokens, in = layer->in, out = layer->out;
    gemm(part, NO_TRANS, NO_TRANS, n, out, in, x, layer->weight, layer->bias, accumulate, result);
    if (!layer->rank) return;
    project(part, x, layer);
    gemm(part, NO_TRANS, NO_TRANS, n, out, layer->rank, part->lora, layer->lora_b, NULL, 1, result);
}

/* Gradient of the result [tokens, out] -> gradient of x, and of LoRA. */
static void backward_linear(const Part *part, const float *x, const float *gradient,
                            const Linear *layer, LoraGradients lora, int accumulate,
                            float *x_gradient)
{
    int n = part->tokens, in = layer->in, out = layer->out, rank = layer->rank;
    float *projected_gradient = part->lora + (size_t)n * rank;
    gemm(part, NO_TRANS, TRANS, n, in, out, gradient, layer->weight, NULL, accumulate, x_gradient);
    if (rank) {
        gemm(part, NO_TRANS, TRANS, n, rank, out, gradient, layer->lora_b, NULL, 0,
             projected_gradient);
        project(part, x, layer);
        gemm(part, NO_TRANS, NO_TRANS, n, in, rank, projected_gradient, layer->lora_a, NULL, 1,
             x_gradient);
        gemm(part, TRANS, NO_TRANS, rank, in, n, projected_gradient, x, NULL, 0, lora.lora_a);
        gemm(part, TRANS, NO_TRANS, rank, out, n, part->lora, gradient, NULL, 0, lora.lora_b);
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

/* A token and a key-value head, the unit of work between the products. Later tokens attend to more,
   so the pairs are interleaved between the threads. */
#define EACH_PAIR(pair) \
    for (int pair = part->thread; pair < part->tokens * model->kv_heads; pair += part->count)

/* Where a position's key and value are in a key-value head's. */
INLINE size_t position_at(const Model *model, const Batch *batch, int kv_head, int position)
{
    return ((size_t)kv_head * batch->positions + position) * model->head_dim;
}

INLINE size_t own_position(const Model *model, const Batch *batch, int t, int kv_head)
{
    return position_at(model, batch, kv_head,
                       batch->segment_starts[t] + batch->segment_lengths[t] - 1);
}

/* Normalise, rotate and scale queries; store keys and values by head. */
static void forward_heads(const Part *part, const Model *model, const Layer *layer,
                          const Batch *batch, Saved *saved, const float *keys, const float *values)
{
    int head_dim = model->head_dim, group = model->heads / model->kv_heads;
    EACH_PAIR(pair) {
        int t = pair / model->kv_heads;
        size_t source = (size_t)pair * head_dim, query = source * group;
        size_t target = own_position(model, batch, t, pair % model->kv_heads);
        const float *cos_sin = batch->cos_sin + (size_t)t * model->rotary_dims;
        if (layer->q_norm) {
            copy(group * head_dim, saved->queries + query, saved->raw_queries + query);
            copy(head_dim, keys + source, saved->raw_keys + source);
        }
        for (int i = 0; i < group; i++) {
            float *head = saved->queries + query + i * head_dim;
            forward_head(model, layer->q_norm, cos_sin, head);
            for (int d = 0; d < head_dim; d++) head[d] *= model->scale;
        }
        copy(head_dim, keys + source, saved->keys + target);
        copy(head_dim, values + source, saved->values + target);
        forward_head(model, layer->k_norm, cos_sin, saved->keys + target);
    }
}

/* Keys and values that a token attends to in one head. */
INLINE Context context_of(const Model *model, const Batch *batch, const Saved *saved, int t,
                          int kv_head)
{
    size_t prompt = position_at(model, batch, kv_head, batch->prompt_starts[t]);
    size_t segment = position_at(model, batch, kv_head, batch->segment_starts[t]);
    return (Context){batch->prompt_lengths[t], batch->segment_lengths[t], saved->keys + prompt,
                     saved->values + prompt, saved->keys + segment, saved->values + segment};
}

static void forward_attention(const Part *part, const Model *model, const Batch *batch,
                              const Saved *saved)
{
    int head_dim = model->head_dim, group = model->heads / model->kv_heads;
    EACH_PAIR(pair) {
        Context context =
            context_of(model, batch, saved, pair / model->kv_heads, pair % model->kv_heads);
        for (int i = 0; i < group; i++) {
            size_t head = ((size_t)pair * group + i) * head_dim;
            float *weights = part->scores, *out = saved->attended + head;
            float scale = attention_weights(&context, head_dim, saved->queries + head, weights);
            context_sum(&context, head_dim, weights, context.prompt_values, context.values, out);
            for (int d = 0; d < head_dim; d++) out[d] *= scale;
        }
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
static void backward_attention(const Part *part, const Model *model, const Batch *batch,
                               const Saved *saved, const float *gradients, float *queries,
                               float *keys, float *values)
{
    int head_dim = model->head_dim, group = model->heads / model->kv_heads;
    int first = partition(model->kv_heads, 1, part->thread, part->count);
    int last = partition(model->kv_heads, 1, part->thread + 1, part->count);
    float *weights = part->scores, *score_gradients = weights + batch->longest + SCORE_PADDING;
    size_t size = (size_t)batch->positions * head_dim;
    for (size_t i = first * size; i < last * size; i++) keys[i] = values[i] = 0;
    for (int t = 0; t < batch->tokens; t++)
        for (int h = first * group; h < last * group; h++) {
            size_t head = ((size_t)t * model->heads + h) * head_dim;
            Context c = context_of(model, batch, saved, t, h / group);
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

/* Gradient of what `forward_head` made of `raw` -> of `raw`, in place. */
static void backward_head(const Model *model, const float *norm, const float *cos_sin,
                          const float *raw, float *gradient)
{
    rotate(model->rotary_dims, cos_sin, -1, gradient);
    if (norm) backward_norm(model->head_dim, raw, norm, model->epsilon, gradient, 0, gradient);
}

/* Inverse of `forward_heads`: gradients of prepared queries, and of keys and values by head, -> of
   the outputs of the projections. */
static void backward_heads(const Part *part, const Model *model, const Layer *layer,
                           const Batch *batch, const Saved *saved, float *queries,
                           const float *head_keys, const float *head_values, float *keys,
                           float *values)
{
    int head_dim = model->head_dim, group = model->heads / model->kv_heads;
    EACH_PAIR(pair) {
        int t = pair / model->kv_heads;
        const float *cos_sin = batch->cos_sin + (size_t)t * model->rotary_dims;
        for (int i = 0; i < group; i++) {
            size_t head = ((size_t)pair * group + i) * head_dim;
            for (int d = 0; d < head_dim; d++) queries[head + d] *= model->scale;
            backward_head(model, layer->q_norm, cos_sin, saved->raw_queries + head, queries + head);
        }
        size_t target = (size_t)pair * head_dim;
        size_t source = own_position(model, batch, t, pair % model->kv_heads);
        copy(head_dim, head_values + source, values + target);
        copy(head_dim, head_keys + source, keys + target);
        backward_head(model, layer->k_norm, cos_sin, saved->raw_keys + target, keys + target);
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

/* Each thread computes its columns, rows or heads of every part of a layer. */
static void forward_part(void *arg, int thread, int count)
{
    const Pass *pass = arg;
    const Model *model = pass->model;
    const Batch *batch = pass->batch;
    Sizes s = sizes_of(model);
    float *workspace = pass->workspace, *states = pass->states;
    const Part part =
        pass_part(model, batch, batch->tokens <= FEW_TOKENS, &workspace, thread, count);
    size_t n = batch->tokens, tokens = part.last - part.first;
    float *normed = workspace, *keys = normed + n * s.hidden, *values = keys + n * s.kv_size;
    float *activations = values + n * s.kv_size, *unsaved = activations + n * s.intermediate;
    size_t offset = (size_t)part.first * s.hidden, mlp_offset = (size_t)part.first * s.intermediate;
    for (int i = 0; i < model->layers; i++) {
        const Layer *layer = pass->layers + i;
        int index = i > pass->first_layer ? i - pass->first_layer : 0;
        Saved saved = saved_at(model, layer, n, pass->saved ? pass->saved[index] : unsaved);
        copy(tokens * s.hidden, states + offset, saved.input + offset);
        forward_norm(&part, s.hidden, states, layer->input_norm, model->epsilon, normed);
        barrier(count);
        forward_linear(&part, normed, &layer->q_proj, 0, saved.queries);
        forward_linear(&part, normed, &layer->k_proj, 0, keys);
        forward_linear(&part, normed, &layer->v_proj, 0, values);
        barrier(count);
        forward_heads(&part, model, layer, batch, &saved, keys, values);
        barrier(count);
        forward_attention(&part, model, batch, &saved);
        barrier(count);
        forward_linear(&part, saved.attended, &layer->o_proj, 1, states);
        barrier(count);
        copy(tokens * s.hidden, states + offset, saved.residual + offset);
        forward_norm(&part, s.hidden, states, layer->post_attention_norm, model->epsilon, normed);
        barrier(count);
        forward_linear(&part, normed, &layer->gate_proj, 0, saved.gate);
        forward_linear(&part, normed, &layer->up_proj, 0, saved.up);
        barrier(count);
        swiglu(tokens * s.intermediate, saved.gate + mlp_offset, saved.up + mlp_offset,
               activations + mlp_offset);
        barrier(count);
        forward_linear(&part, activations, &layer->down_proj, 1, states);
        barrier(count);
    }
    if (pass->saved)
        copy(tokens * s.hidden, states + offset,
             pass->saved[model->layers - pass->first_layer] + offset);
    forward_norm(&part, s.hidden, states, pass->norm, model->epsilon, states);
}

static void backward_part(void *arg, int thread, int count)
{
    const Pass *pass = arg;
    const Model *model = pass->model;
    const Batch *batch = pass->batch;
    Sizes s = sizes_of(model);
    float *workspace = pass->workspace, *gradient = pass->states;
    const Part part = pass_part(model, batch, 0, &workspace, thread, count);
    size_t n = batch->tokens, hidden = n * s.hidden, intermediate = n * s.intermediate;
    size_t q_size = n * s.q_size, kv_size = n * s.kv_size;
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
#define BACKWARD(x, out_gradient, name, accumulate, x_gradient) \
    backward_linear(&part, x, out_gradient, &layer->name, lora->name, accumulate, x_gradient)
    BACKWARD_NORM(pass->saved[model->layers - pass->first_layer], pass->norm, gradient, 0);
    for (int i = model->layers - 1; i >= pass->first_layer; i--) {
        const Layer *layer = pass->layers + i;
        const LayerGradients *lora = pass->gradients + i;
        Saved saved = saved_at(model, layer, n, pass->saved[i - pass->first_layer]);
        swiglu(size, saved.gate + offset, saved.up + offset, activations + offset);
        forward_norm(&part, s.hidden, saved.residual, layer->post_attention_norm, model->epsilon,
                     normed);
        barrier(count);
        BACKWARD(activations, gradient, down_proj, 0, up_gradient);
        backward_swiglu(size, saved.gate + offset, saved.up + offset, up_gradient + offset,
                        gate_gradient + offset);
        barrier(count);
        BACKWARD(normed, gate_gradient, gate_proj, 0, normed_gradient);
        BACKWARD(normed, up_gradient, up_proj, 1, normed_gradient);
        BACKWARD_NORM(saved.residual, layer->post_attention_norm, normed_gradient, 1);
        barrier(count);
        BACKWARD(saved.attended, gradient, o_proj, 0, attended);
        backward_attention(&part, model, batch, &saved, attended, queries, head_keys, head_values);
        barrier(count);
        backward_heads(&part, model, layer, batch, &saved, queries, head_keys, head_values, keys,
                       values);
        forward_norm(&part, s.hidden, saved.input, layer->input_norm, model->epsilon, normed);
        barrier(count);
        BACKWARD(normed, queries, q_proj, 0, normed_gradient);
        BACKWARD(normed, keys, k_proj, 1, normed_gradient);
        BACKWARD(normed, values, v_proj, 1, normed_gradient);
        BACKWARD_NORM(saved.input, layer->input_norm, normed_gradient, 1);
    }
}

static void run_pass(Job *job, const Pass *pass)
{
    Sizes s = sizes_of(pass->model);  /* of some of the products, to tell whether threads pay off */
    run(job, (void *)pass, (double)pass->batch->tokens * pass->model->layers * s.hidden
                               * (s.q_size + s.intermediate));
}

/* States -> the states after all layers and the final norm. */
void forward_pass(const Pass *pass) { run_pass(forward_part, pass); }

/* Gradient of what the forward pass made -> of LoRA, from the last layer down to `first_layer`. */
void backward_pass(const Pass *pass) { run_pass(backward_part, pass); }

/* Scores of N tokens. With x = (logits - max) / temperature, `sums` [3, N] are x of the target, the
   sum of e^x, and the sum of x e^x; `gradients` [N, hidden_size], if not NULL, are those of the
   cross-entropy with respect to the states, times the sum of e^x and the temperature. */
typedef struct {
    const Linear *head;
    int tokens, chunk_size;
    float temperature;
    const float *states;
    const int *targets;                 /* NULL if only the logits are needed, of one chunk */
    float *sums, *gradients, *logits;   /* logits [chunk_size, vocabulary] */
} HeadPass;

/* Logits are above LOWEST_LOGIT; e^x vanishes below MIN_LOGIT. */
static const float LOWEST_LOGIT = -3e38f, MIN_LOGIT = -1e4f;

/* One token's logits -> e^x, less their sum at the target. What is not a number stays visible. */
static void softmax_row(const HeadPass *head, int t, float *logits)
{
    int count = head->head->out, i = 0, target = head->targets[t];
    float scale = 1 / head->temperature, maximum = LOWEST_LOGIT, target_logit = logits[target];
    vec maxima = (vec){0} + maximum;
    for (; i + LANES <= count; i += LANES) {
        vec x = *(vec *)(logits + i);
        maxima = blend(x > maxima, x, maxima);
    }
    for (; i < count; i++) maximum = logits[i] > maximum ? logits[i] : maximum;
    for (int v = 0; v < LANES; v++) maximum = maxima[v] > maximum ? maxima[v] : maximum;
    vec sums[4] = {0}, weighted_sums[4] = {0};
    for (i = 0; i + LANES <= count; i += LANES) {
        vec x = (*(vec *)(logits + i) - maximum) * scale, e;
        x = blend(x < MIN_LOGIT, (vec){0} + MIN_LOGIT, x);
        e = exp2_vec(x * LOG2_E);
        *(vec *)(logits + i) = e;
        sums[i / LANES % 4] += e, weighted_sums[i / LANES % 4] += e * x;
    }
    for (; i < count; i++) {
        float x = (logits[i] - maximum) * scale;
        x = x < MIN_LOGIT ? MIN_LOGIT : x;
        logits[i] = exp2_vec((vec){0} + x * LOG2_E)[0];
        sums[0][0] += logits[i], weighted_sums[0][0] += logits[i] * x;
    }
    float sum = reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
    head->sums[t] = (target_logit - maximum) * scale;
    head->sums[head->tokens + t] = sum;
    head->sums[2 * head->tokens + t] =
        reduce_add((weighted_sums[0] + weighted_sums[1]) + (weighted_sums[2] + weighted_sums[3]));
    logits[target] -= sum;
}

static void head_part(void *arg, int thread, int count)
{
    const HeadPass *head = arg;
    int hidden = head->head->in, vocabulary = head->head->out;
    for (int first = 0; first < head->tokens; first += head->chunk_size) {
        int left = head->tokens - first, n = left < head->chunk_size ? left : head->chunk_size;
        Part part = part_of(n, thread, count);
        forward_linear(&part, head->states + (size_t)first * hidden, head->head, 0, head->logits);
        if (!head->targets) return;
        barrier(count);
        for (int t = part.first; t < part.last; t++)
            softmax_row(head, first + t, head->logits + (size_t)t * vocabulary);
        barrier(count);
        if (head->gradients)
            gemm(&part, NO_TRANS, TRANS, n, hidden, vocabulary, head->logits, head->head->weight,
                 NULL, 0, head->gradients + (size_t)first * hidden);
        barrier(count);
    }
}

void head_pass(const HeadPass *head)
{
    run(head_part, (void *)head, (double)head->tokens * head->head->in * head->head->out);
}
