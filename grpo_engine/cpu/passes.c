/* Forward and backward pass of a Llama-like model over sequences without padding, and its head.

   Prompts and answers are one sequence of tokens: a token attends to the tokens of its prompt, if
   it belongs to an answer, and to those of its own prompt or answer up to itself. Products are
   those of the BLAS; MLX computes the rest of a pass number by number, and keeps three times as
   much of it for the backward pass. Only LoRA is trained. */

#include "decode.c"

static const float LN_2 = 6.9314718e-1f;

enum { TURNED = 112 };

typedef struct {
    int tokens;
    const int *prompt, *end, *own;  /* [tokens] its prompt's tokens, and the first of its own */
    const float *turns;             /* [tokens, turned] */
} Packed;

typedef struct { float *narrow, *wide; } Slopes;  /* gradients of LoRA, or missing */
typedef struct { Slopes queries, keys, values, out, gate, up, down; } LayerSlopes;

/* What the backward pass of a layer reads. Queries [tokens, heads], rotated and scaled; keys and
   values [kinds, tokens, each], keys rotated; `raw` queries and keys only if those are
   normalised. */
typedef struct {
    float *input, *queries, *keys, *values, *found, *middle, *gate, *up, *raw_queries, *raw_keys;
} Kept;

typedef struct { int width, inner, heads, kinds; } Widths;

static Widths widths(const Model *model)
{
    return (Widths){model->width, model->inner, model->heads * model->each,
                    model->kinds * model->each};
}

static int normalises(const Layer *layer) { return layer->norm_queries != NULL; }

/* Numbers that one layer keeps. */
size_t kept_size(const Model *model, const Layer *layer, int tokens)
{
    Widths w = widths(model);
    size_t raw = normalises(layer) ? w.heads + w.kinds : 0;
    return tokens * (2 * (size_t)w.width + 2 * w.heads + 2 * w.kinds + 2 * w.inner + raw);
}

static Kept kept_at(const Model *model, const Layer *layer, int tokens, float *at)
{
    Widths w = widths(model);
    Kept k = {0};
#define TAKE(name, width) k.name = at, at += (size_t)tokens * (width)
    TAKE(input, w.width);
    TAKE(queries, w.heads);
    TAKE(keys, w.kinds);
    TAKE(values, w.kinds);
    TAKE(found, w.heads);
    TAKE(middle, w.width);
    TAKE(gate, w.inner);
    TAKE(up, w.inner);
    if (normalises(layer)) {
        TAKE(raw_queries, w.heads);
        TAKE(raw_keys, w.kinds);
    }
    return k;
}

/* Weights of a token's positions, and their slopes. */
static size_t scores_size(int tokens) { return 2 * ((size_t)tokens + SPARE); }

/* Numbers that both passes need for their own use. */
size_t pass_scratch(const Model *model, int tokens)
{
    Widths w = widths(model);
    return tokens * (2 * (size_t)w.width + 2 * w.heads + 4 * w.kinds + 3 * (size_t)w.inner
                     + 2 * model->rank) + MOST_THREADS * scores_size(tokens);
}

/* What a thread has of a pass: its tokens from `first` on, and memory for scores. */
typedef struct {
    int tokens, first, last, self, count;
    float *thin, *scores;
} Part;

static Part part_of(int tokens, int rank, float **spare, int self, int count)
{
    Part part = {tokens, share(tokens, 1, self, count), share(tokens, 1, self + 1, count), self,
                 count, *spare, *spare + 2 * (size_t)tokens * rank};
    *spare = part.scores + MOST_THREADS * scores_size(tokens);
    part.scores += self * scores_size(tokens);
    return part;
}

INLINE void copy(size_t count, const float *from, float *to)
{
    for (size_t i = 0; i < count; i++) to[i] = from[i];
}

/* A part's share of a product. */
static void product(const Part *part, int ta, int tb, int m, int n, int k, const float *a,
                    const float *b, float beta, float *c)
{
    General p = {ta, tb, m, n, k, ta == PLAIN ? k : m, tb == PLAIN ? n : k, n, 1, beta, a, b, c};
    some(&p, part->self, part->count);
}

/* x [tokens, in] -> result [tokens, out]; `adds` to what is there. */
static void forward_linear(const Part *part, int in, int out, const float *x, const Linear *by,
                           int adds, float *result)
{
    int n = part->tokens, mine = part->last - part->first;
    if (by->bias) {
        place_bias(mine, out, 0, out, by->bias, adds, result + (size_t)part->first * out);
        adds = 1;
        meet(part->count);
    }
    product(part, PLAIN, PLAIN, n, out, in, x, by->weight, adds, result);
    if (by->rank) {
        product(part, PLAIN, TURNED, n, by->rank, in, x, by->narrow, 0, part->thin);
        meet(part->count);
        product(part, PLAIN, PLAIN, n, out, by->rank, part->thin, by->wide, 1, result);
    }
    meet(part->count);
}

/* slope [tokens, out] of the result -> slope of x, and of LoRA. */
static void backward_linear(const Part *part, int in, int out, const float *x, const float *slope,
                            const Linear *by, Slopes to, int adds, float *x_slope)
{
    int n = part->tokens, rank = by->rank;
    float *thin = part->thin, *thin_slope = thin + (size_t)n * rank;
    product(part, PLAIN, TURNED, n, in, out, slope, by->weight, adds, x_slope);
    if (rank) {
        product(part, PLAIN, TURNED, n, rank, out, slope, by->wide, 0, thin_slope);
        if (to.narrow) product(part, PLAIN, TURNED, n, rank, in, x, by->narrow, 0, thin);
        meet(part->count);
        product(part, PLAIN, PLAIN, n, in, rank, thin_slope, by->narrow, 1, x_slope);
        if (to.narrow) {
            product(part, TURNED, PLAIN, rank, in, n, thin_slope, x, 0, to.narrow);
            product(part, TURNED, PLAIN, rank, out, n, thin, slope, 0, to.wide);
        }
    }
    meet(part->count);
}

static void normalise_some(const Part *part, int width, const float *x, const float *weight,
                           float epsilon, float *out)
{
    for (size_t t = part->first; t < (size_t)part->last; t++)
        normalise(width, x + t * width, weight, epsilon, out + t * width);
}

/* result (+)= the slope of x, from that of n = x s w with s = 1 / sqrt(mean x^2 + epsilon). */
static void backward_norm(int width, const float *x, const float *weight, float epsilon,
                          const float *slope, int adds, float *result)
{
    float by = 1 / __builtin_sqrtf(dot(x, x, width) / width + epsilon);
    lanes sum = {0};
    float rest = 0;
    int i = 0;
    for (; i + LANES <= width; i += LANES)
        sum += *(const lanes *)(x + i) * *(const lanes *)(weight + i)
            * *(const lanes *)(slope + i);
    for (; i < width; i++) rest += x[i] * weight[i] * slope[i];
    float less = (total(sum) + rest) * by * by * by / width;
    for (i = 0; i < width; i++) {
        float found = slope[i] * weight[i] * by - x[i] * less;
        result[i] = adds ? result[i] + found : found;
    }
}

static void turn_back(int turned, const float *turns, float *head)
{
    int half = turned / 2;
    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half], cosine = turns[i], sine = turns[i + half];
        head[i] = a * cosine + b * sine;
        head[i + half] = b * cosine - a * sine;
    }
}

/* Normalise, rotate and scale queries; keys and values [tokens, kinds] -> [kinds, tokens, each]. */
static void place_heads(const Part *part, const Model *model, const Layer *layer,
                        const Packed *packed, Kept *k, const float *keys, const float *values)
{
    int each = model->each, n = packed->tokens;
    Widths w = widths(model);
    for (size_t t = part->first; t < (size_t)part->last; t++) {
        if (normalises(layer)) {
            copy(w.heads, k->queries + t * w.heads, k->raw_queries + t * w.heads);
            copy(w.kinds, keys + t * w.kinds, k->raw_keys + t * w.kinds);
        }
        const float *turns = packed->turns + t * model->turned;
        for (int h = 0; h < model->heads; h++)
            place_query(model, layer, turns, k->queries + t * w.heads + h * each);
        for (int kind = 0; kind < model->kinds; kind++) {
            size_t at = t * w.kinds + kind * each, to = ((size_t)kind * n + t) * each;
            place_key(model, layer, turns, keys + at, values + at, k->keys + to, k->values + to);
        }
    }
}

/* What a head of token t attends to. */
INLINE Reach reach(const Model *model, const Packed *packed, const Kept *k, int t, int kind)
{
    size_t first = (size_t)kind * packed->tokens;
    size_t prompt = (first + packed->prompt[t]) * model->each;
    size_t own = (first + packed->own[t]) * model->each;
    return (Reach){packed->end[t] - packed->prompt[t], t + 1 - packed->own[t], k->keys + prompt,
                   k->values + prompt, k->keys + own, k->values + own};
}

/* Later tokens have more to attend to, so a thread has every so many of them. */
static void attend_packed(const Part *part, const Model *model, const Packed *packed,
                          const Kept *k)
{
    int each = model->each, repeats = model->heads / model->kinds;
    for (int t = part->self; t < packed->tokens; t += part->count)
        for (int h = 0; h < model->heads; h++) {
            size_t at = ((size_t)t * model->heads + h) * each;
            Reach to = reach(model, packed, k, t, h / repeats);
            attend(&to, each, k->queries + at, part->scores, k->found + at);
        }
}

/* rows[s] += weights[s] * row */
static void spread(int count, int each, const float *weights, const float *row, float *rows)
{
    for (int s = 0; s < count; s++, rows += each)
        for (int d = 0; d < each; d++) rows[d] += weights[s] * row[d];
}

/* Slopes of what was found -> of queries [tokens, heads], and of keys and values
   [kinds, tokens, each], to which many tokens add: a thread has some kinds. */
static void backward_attention(const Part *part, const Model *model, const Packed *packed,
                               const Kept *k, const float *found, float *queries, float *keys,
                               float *values)
{
    int each = model->each, repeats = model->heads / model->kinds;
    int first = share(model->kinds, 1, part->self, part->count);
    int last = share(model->kinds, 1, part->self + 1, part->count);
    float *scores = part->scores, *slopes = scores + packed->tokens + SPARE;
    size_t size = (size_t)packed->tokens * each;
    for (size_t i = first * size; i < last * size; i++) keys[i] = values[i] = 0;
    for (int t = 0; t < packed->tokens; t++)
        for (int h = first * repeats; h < last * repeats; h++) {
            size_t at = ((size_t)t * model->heads + h) * each;
            Reach to = reach(model, packed, k, t, h / repeats);
            size_t prompt = to.prompt_keys - k->keys, own = to.keys - k->keys;
            const float *query = k->queries + at, *slope = found + at;
            float by = weights_of(&to, each, query, scores);
            score(to.before, each, slope, to.prompt_values, slopes, 0);
            score(to.after, each, slope, to.values, slopes + to.before, 0);
            float mean = dot(slope, k->found + at, each);
            for (int s = 0; s < to.before + to.after; s++) {
                scores[s] *= by;
                slopes[s] = scores[s] * (slopes[s] - mean) * LN_2;
            }
            spread(to.before, each, scores, slope, values + prompt);
            spread(to.after, each, scores + to.before, slope, values + own);
            spread(to.before, each, slopes, query, keys + prompt);
            spread(to.after, each, slopes + to.before, query, keys + own);
            mix_all(&to, each, slopes, to.prompt_keys, to.keys, queries + at);
        }
}

/* Undo `place_heads`: slopes of rotated queries and keys -> of what the products gave. */
static void backward_heads(const Part *part, const Model *model, const Layer *layer,
                           const Packed *packed, const Kept *k, float *queries,
                           const float *placed_keys, const float *placed_values, float *keys,
                           float *values)
{
    int each = model->each, n = packed->tokens;
    Widths w = widths(model);
    for (size_t t = part->first; t < (size_t)part->last; t++) {
        const float *turns = packed->turns + t * model->turned;
        for (int h = 0; h < model->heads; h++) {
            size_t at = t * w.heads + h * each;
            for (int d = 0; d < each; d++) queries[at + d] *= model->scale;
            turn_back(model->turned, turns, queries + at);
            if (normalises(layer))
                backward_norm(each, k->raw_queries + at, layer->norm_queries, model->epsilon,
                              queries + at, 0, queries + at);
        }
        for (int kind = 0; kind < model->kinds; kind++) {
            size_t at = t * w.kinds + kind * each, from = ((size_t)kind * n + t) * each;
            copy(each, placed_values + from, values + at);
            copy(each, placed_keys + from, keys + at);
            turn_back(model->turned, turns, keys + at);
            if (normalises(layer))
                backward_norm(each, k->raw_keys + at, layer->norm_keys, model->epsilon, keys + at,
                              0, keys + at);
        }
    }
}

/* slope of silu(gate) * up -> of gate, and of up in its place */
static void backward_gate(size_t count, const float *gate, const float *up, float *slope,
                          float *gate_slope)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        lanes x = *(const lanes *)(gate + i), part = sigmoid(x), given = *(lanes *)(slope + i);
        *(lanes *)(gate_slope + i) =
            given * *(const lanes *)(up + i) * part * (1 + x * (1 - part));
        *(lanes *)(slope + i) = given * x * part;
    }
    for (; i < count; i++) {
        float x = gate[i], part = sigmoid((lanes){0} + x)[0], given = slope[i];
        gate_slope[i] = given * up[i] * part * (1 + x * (1 - part));
        slope[i] = given * x * part;
    }
}

typedef struct {
    const Model *model;
    const Layer *layers;
    const Packed *packed;
    const float *norm;
    int first;
    float *states;
    const LayerSlopes *slopes;
    float *const *kept;
    float *spare;
} Pass;

static void forward(void *with, int self, int count)
{
    const Pass *p = with;
    const Model *model = p->model;
    const Packed *packed = p->packed;
    int n = packed->tokens;
    Widths w = widths(model);
    float *spare = p->spare, *states = p->states;
    const Part part = part_of(n, model->rank, &spare, self, count);
    float *normed = spare, *keys = normed + (size_t)n * w.width;
    float *values = keys + (size_t)n * w.kinds, *act = values + (size_t)n * w.kinds;
    size_t mine = part.last - part.first, from = (size_t)part.first * w.width;
    size_t inner = (size_t)part.first * w.inner;
    float *last = p->kept[model->layers - p->first];
#define FORWARD(in, out, x, by, adds, result) \
    forward_linear(&part, in, out, x, &layer->by, adds, result)
    for (int number = 0; number < model->layers; number++) {
        const Layer *layer = p->layers + number;
        Kept k = kept_at(model, layer, n,
                         p->kept[number > p->first && last ? number - p->first : 0]);
        copy(mine * w.width, states + from, k.input + from);
        normalise_some(&part, w.width, states, layer->norm, model->epsilon, normed);
        meet(count);
        FORWARD(w.width, w.heads, normed, queries, 0, k.queries);
        FORWARD(w.width, w.kinds, normed, keys, 0, keys);
        FORWARD(w.width, w.kinds, normed, values, 0, values);
        place_heads(&part, model, layer, packed, &k, keys, values);
        meet(count);
        attend_packed(&part, model, packed, &k);
        meet(count);
        FORWARD(w.heads, w.width, k.found, out, 1, states);
        copy(mine * w.width, states + from, k.middle + from);
        normalise_some(&part, w.width, states, layer->norm_after, model->epsilon, normed);
        meet(count);
        FORWARD(w.width, w.inner, normed, gate, 0, k.gate);
        FORWARD(w.width, w.inner, normed, up, 0, k.up);
        gated(mine * w.inner, k.gate + inner, k.up + inner, act + inner);
        meet(count);
        FORWARD(w.inner, w.width, act, down, 1, states);
    }
    if (last) copy(mine * w.width, states + from, last + from);
    normalise_some(&part, w.width, states, p->norm, model->epsilon, states);
}

static void backward(void *with, int self, int count)
{
    const Pass *p = with;
    const Model *model = p->model;
    const Packed *packed = p->packed;
    int n = packed->tokens;
    Widths w = widths(model);
    size_t wide = (size_t)n * w.width, inner = (size_t)n * w.inner;
    size_t heads = (size_t)n * w.heads, kinds = (size_t)n * w.kinds;
    float *spare = p->spare, *slope = p->states;
    const Part part = part_of(n, model->rank, &spare, self, count);
    float *normed = spare, *normed_slope = normed + wide, *free = normed_slope + wide;
    float *act = free, *act_slope = act + inner, *gate_slope = act_slope + inner;
    float *found = free, *queries = found + heads, *keys = queries + heads, *values = keys + kinds;
    float *placed_keys = values + kinds, *placed_values = placed_keys + kinds;
    size_t mine = (size_t)(part.last - part.first) * w.inner, at = (size_t)part.first * w.inner;
#define BACK_NORM(x, weight, given, adds) \
    for (size_t t = part.first; t < (size_t)part.last; t++) \
        backward_norm(w.width, x + t * w.width, weight, model->epsilon, given + t * w.width, adds, \
                      slope + t * w.width)
#define BACK(in, out, x, given, by, adds, result) \
    backward_linear(&part, in, out, x, given, &layer->by, to->by, adds, result)
    BACK_NORM(p->kept[model->layers - p->first], p->norm, slope, 0);
    for (int number = model->layers - 1; number >= p->first; number--) {
        const Layer *layer = p->layers + number;
        const LayerSlopes *to = p->slopes + number;
        Kept k = kept_at(model, layer, n, p->kept[number - p->first]);
        gated(mine, k.gate + at, k.up + at, act + at);
        normalise_some(&part, w.width, k.middle, layer->norm_after, model->epsilon, normed);
        meet(count);
        BACK(w.inner, w.width, act, slope, down, 0, act_slope);
        backward_gate(mine, k.gate + at, k.up + at, act_slope + at, gate_slope + at);
        meet(count);
        BACK(w.width, w.inner, normed, gate_slope, gate, 0, normed_slope);
        BACK(w.width, w.inner, normed, act_slope, up, 1, normed_slope);
        BACK_NORM(k.middle, layer->norm_after, normed_slope, 1);
        meet(count);
        BACK(w.heads, w.width, k.found, slope, out, 0, found);
        backward_attention(&part, model, packed, &k, found, queries, placed_keys, placed_values);
        meet(count);
        backward_heads(&part, model, layer, packed, &k, queries, placed_keys, placed_values, keys,
                       values);
        normalise_some(&part, w.width, k.input, layer->norm, model->epsilon, normed);
        meet(count);
        BACK(w.width, w.heads, normed, queries, queries, 0, normed_slope);
        BACK(w.width, w.kinds, normed, keys, keys, 1, normed_slope);
        BACK(w.width, w.kinds, normed, values, values, 1, normed_slope);
        BACK_NORM(k.input, layer->norm, normed_slope, 1);
    }
}

static void run_pass(Job *job, Pass *pass)
{
    if (pass->packed->tokens * layers_work(pass->model) > SMALL) together(job, pass);
    else job(pass, 0, 1);
}

/* states [tokens, width] -> after all layers and the last norm. `kept` has a place for what each
   layer from `first` on keeps, and one for the last states; if that is missing, nothing is needed
   later. */
void forward_pass(const Model *model, const Layer *layers, const Packed *packed, const float *norm,
                  int first, float *states, float *const *kept, float *spare)
{
    run_pass(forward, &(Pass){model, layers, packed, norm, first, states, NULL, kept, spare});
}

/* slope [tokens, width] of what `forward_pass` returned -> of LoRA, from the last layer to `first`;
   `kept` is where that pass put what it kept. */
void backward_pass(const Model *model, const Layer *layers, const Packed *packed,
                   const float *norm, int first, float *slope, const LayerSlopes *slopes,
                   float *const *kept, float *spare)
{
    run_pass(backward, &(Pass){model, layers, packed, norm, first, slope, slopes, kept, spare});
}

/* What is asked of the head, for N tokens: the logit of each `wanted` token less the largest, the
   sum of e^(such logits), and of these times the logits, [3, N]; and, if `slopes` has a place, what
   softmax(logits) - 1 at the wanted token is in states, times that sum, [N, width]. */
typedef struct {
    const Linear *head;
    int tokens, width, vocabulary, most;    /* `most` tokens at a time */
    float temperature;
    const float *states;
    const int *wanted;
    float *sums, *slopes, *logits;          /* [most, vocabulary] */
} Scored;

static const float MOST = 3e38f, VANISHES = -1e4f;  /* of logits, and of those less the largest */

/* One token's logits -> exponentials, less their sum at the wanted token. */
static void soften(const Scored *s, int t, float *logits)
{
    int count = s->vocabulary, i = 0, wanted = s->wanted[t];
    float by = 1 / s->temperature, top = -MOST, chosen = logits[wanted];
    lanes tops = (lanes){0} + top;
    whole numbers = ~(whole){0};
    for (; i + LANES <= count; i += LANES) {
        lanes x = *(lanes *)(logits + i);
        tops = either(x > tops, x, tops);
        numbers &= x <= MOST;
    }
    for (; i < count; i++) {
        top = logits[i] > top ? logits[i] : top;
        numbers[0] &= -(logits[i] <= MOST);
    }
    for (int v = 0; v < LANES; v++) top = tops[v] > top ? tops[v] : top;
    lanes sum[4] = {0}, weighed[4] = {0};
    for (i = 0; i + LANES <= count; i += LANES) {
        lanes x = (*(lanes *)(logits + i) - top) * by, e;
        x = either(x > VANISHES, x, (lanes){0} + VANISHES);
        e = power_of_two(x * LOG2_E);
        *(lanes *)(logits + i) = e;
        sum[i / LANES % 4] += e, weighed[i / LANES % 4] += e * x;
    }
    for (; i < count; i++) {
        float x = (logits[i] - top) * by;
        x = x > VANISHES ? x : VANISHES;
        logits[i] = power_of_two((lanes){0} + x * LOG2_E)[0];
        sum[0][0] += logits[i], weighed[0][0] += logits[i] * x;
    }
    float all = total((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (int v = 0; v < LANES; v++) all = numbers[v] ? all : __builtin_nanf("");
    s->sums[t] = (chosen - top) * by;
    s->sums[s->tokens + t] = all;
    s->sums[2 * s->tokens + t] = total((weighed[0] + weighed[1]) + (weighed[2] + weighed[3]));
    logits[wanted] -= all;
}

static void scores_of(void *with, int self, int count)
{
    const Scored *s = with;
    int width = s->width, vocabulary = s->vocabulary;
    for (int first = 0; first < s->tokens; first += s->most) {
        int n = s->tokens - first < s->most ? s->tokens - first : s->most;
        Part part = {n, share(n, 1, self, count), share(n, 1, self + 1, count), self, count, NULL,
                     NULL};
        forward_linear(&part, width, vocabulary, s->states + (size_t)first * width, s->head, 0,
                       s->logits);
        for (int t = part.first; t < part.last; t++)
            soften(s, first + t, s->logits + (size_t)t * vocabulary);
        meet(count);
        if (s->slopes)
            product(&part, PLAIN, TURNED, n, width, vocabulary, s->logits, s->head->weight, 0,
                    s->slopes + (size_t)first * width);
        meet(count);
    }
}

void score_tokens(const Scored *scored)
{
    together(scores_of, (void *)scored);
}
