/* One decode step of a Llama-like model: a new token for each row through all layers.

   MLX dispatches some thousand small operations for it, which takes as long as the products. Here
   a row attends to its own positions only, so its bits depend neither on the number of other rows,
   nor on their lengths, nor on whether they share their prompt. */

#include "matmul.c"

enum {
    LEAST = -126,           /* 2^-126 vanishes in a sum of at least 1 */
    SPARE = LANES           /* room behind each row of scores */
};
static const float LOG2_E = 1.44269504f;

typedef int whole __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef struct {
    const float *weight, *bias;     /* [in, out]; a bias may be missing */
    const float *narrow, *wide;     /* LoRA, [rank, in] and [rank, out] with its scale */
    int rank;
} Linear;

typedef struct {
    const float *norm, *norm_after, *norm_queries, *norm_keys;  /* the last two may be missing */
    Linear queries, keys, values, out, gate, up, down;
    float *stored_keys, *stored_values;          /* [rows, kinds, room, each] */
    const float *prompt_keys, *prompt_values;    /* [kinds, prompt, each], the same for all rows */
} Layer;

typedef struct {
    int layers, width, inner, heads, kinds, each, turned, rank;  /* the largest rank */
    float epsilon, scale;
} Model;

typedef struct {
    int rows, room, end, prompt;
    const int *starts;      /* [rows] the first stored position of each */
    const float *turns;     /* [rows, turned] the cosines, then the sines of its new position */
} Step;

/* ROUND + x has the nearest whole number in its last bits; SERIES(f) is 2^f for f from -.5 to .5,
   the sum of ln(2)^k / k! f^k. */
static const float ROUND = 12582912;  /* 1.5 * 2^23 */
#define SERIES(f) (1 + f * (6.9314718e-1f + f * (2.4022651e-1f + f * (5.5504109e-2f \
    + f * (9.6181291e-3f + f * (1.3333558e-3f + f * (1.5403530e-4f + f * 1.5252734e-5f)))))))

INLINE lanes either(whole which, lanes yes, lanes no)
{
    return (lanes)(((whole)yes & which) | ((whole)no & ~which));
}

/* 2^x to float precision, for x from -126 to 126; what is beyond counts as these. */
INLINE lanes power_of_two(lanes x)
{
    lanes least = (lanes){0} + LEAST;
    x = either(x < LEAST, least, either(x > -LEAST, -least, x));
    lanes near = x + ROUND, f = x - (near - ROUND);
    return (lanes)((whole)SERIES(f) + ((whole)near << 23));
}

static float (*general_power)(float, float);

void set_power(float (*power)(float, float)) { general_power = power; }

/* MLX calls this for each number of 2^x, its fastest exponential. */
float power(float base, float x)
{
    if (base != 2 || !(x > LEAST && x < -LEAST)) return general_power(base, x);
    float near = x + ROUND, f = x - (near - ROUND);
    union { float number; int bits; } sum = {SERIES(f)}, exponent = {near};
    sum.bits += exponent.bits << 23;
    return sum.number;
}

INLINE float total(lanes x)
{
    typedef float four __attribute__((vector_size(16)));
    union { lanes all; four parts[LANES / 4]; } from = {x};
    four sum = from.parts[0] + from.parts[1];
    for (int i = 2; i < LANES / 4; i++) sum += from.parts[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE float dot(const float *a, const float *b, int count)
{
    lanes sum[4] = {0};
    int i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int v = 0; v < 4; v++)
            sum[v] += *(const lanes *)(a + i + v * LANES) * *(const lanes *)(b + i + v * LANES);
    for (; i + LANES <= count; i += LANES)
        sum[0] += *(const lanes *)(a + i) * *(const lanes *)(b + i);
    float rest = 0;
    for (; i < count; i++) rest += a[i] * b[i];
    return total((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

static void normalise(int width, const float *x, const float *weight, float epsilon, float *out)
{
    float by = 1 / __builtin_sqrtf(dot(x, x, width) / width + epsilon);
    for (int i = 0; i < width; i++) out[i] = x[i] * by * weight[i];
}

/* Write a bias into some columns, or add it; return whether there is something to add to now. */
static int place_bias(int rows, int out, int from, int to, const float *bias, int adds,
                      float *result)
{
    if (!bias) return adds;
    for (int r = 0; r < rows; r++, result += out)
        for (int i = from; i < to; i++) result[i] = bias[i] + (adds ? result[i] : 0);
    return 1;
}

/* One thread's columns of x [rows, in] -> result [rows, out]. Each thread brings all rows down to
   LoRA's rank, in `thin`: that is less work than to wait for another. */
static void linear(int rows, int in, int out, const float *x, Linear by, int adds, float *result,
                   float *thin, int self, int count)
{
    int from = share(out, TILE, self, count), to = share(out, TILE, self + 1, count);
    adds = place_bias(rows, out, from, to, by.bias, adds, result);
    Task task = {rows, out, in, adds, {x, in, 1}, by.weight, result, out, out};
    some_columns(&task, self, count);
    if (!by.rank) return;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < by.rank; i++)
            thin[r * by.rank + i] = dot(x + (size_t)r * in, by.narrow + (size_t)i * in, in);
    task.k = by.rank, task.beta = 1, task.b = by.wide;
    task.a = (Left){thin, by.rank, 1};
    some_columns(&task, self, count);
}

/* Rotate a head: its first half and its second half are the two coordinates. */
static void turn(int turned, const float *turns, float *head)
{
    int half = turned / 2;
    for (int i = 0; i < half; i++) {
        float a = head[i], b = head[i + half], cosine = turns[i], sine = turns[i + half];
        head[i] = a * cosine - b * sine;
        head[i + half] = b * cosine + a * sine;
    }
}

static float score(int count, int each, const float *query, const float *keys, float *scores,
                   float top)
{
    for (int s = 0; s < count; s++) {
        scores[s] = dot(query, keys + (size_t)s * each, each);
        top = scores[s] > top ? scores[s] : top;
    }
    return top;
}

/* scores -> 2^(scores - top) in place; the room behind them is free up to a whole vector. */
static float weigh(int count, float top, float *scores)
{
    for (int s = count; s % LANES; s++) scores[s] = top + LEAST;
    lanes sum = {0};
    for (int s = 0; s < count; s += LANES) {
        lanes weight = power_of_two(*(lanes *)(scores + s) - top);
        *(lanes *)(scores + s) = weight;
        sum += weight;
    }
    return total(sum);
}

/* out[columns] += weights * values[columns] for `wide` vectors of columns. */
INLINE void mix_columns(int wide, int count, int each, const float *weights, const float *values,
                        float *out)
{
    lanes sum[4];
    for (int v = 0; v < wide; v++) sum[v] = *(lanes *)(out + v * LANES);
    for (int s = 0; s < count; s++, values += each)
        for (int v = 0; v < wide; v++) sum[v] += weights[s] * *(const lanes *)(values + v * LANES);
    for (int v = 0; v < wide; v++) *(lanes *)(out + v * LANES) = sum[v];
}

static void mix(int count, int each, const float *weights, const float *values, float *out)
{
    int d = 0;
    for (; d + 4 * LANES <= each; d += 4 * LANES)
        mix_columns(4, count, each, weights, values + d, out + d);
    for (; d + LANES <= each; d += LANES)
        mix_columns(1, count, each, weights, values + d, out + d);
    for (; d < each; d++)
        for (int s = 0; s < count; s++) out[d] += weights[s] * values[(size_t)s * each + d];
}

/* What a query attends to: positions of its prompt, then of its own. */
typedef struct {
    int before, after;
    const float *prompt_keys, *prompt_values, *keys, *values;
} Reach;

/* The weights of all positions, but for the factor that is returned. */
static float weights_of(const Reach *to, int each, const float *query, float *scores)
{
    float top = score(to->before, each, query, to->prompt_keys, scores, -1e30f);
    top = score(to->after, each, query, to->keys, scores + to->before, top);
    return 1 / weigh(to->before + to->after, top, scores);
}

/* out = the sum of what lies at the positions, weighted. */
static void mix_all(const Reach *to, int each, const float *weights, const float *prompt,
                    const float *own, float *out)
{
    for (int d = 0; d < each; d++) out[d] = 0;
    mix(to->before, each, weights, prompt, out);
    mix(to->after, each, weights + to->before, own, out);
}

static void attend(const Reach *to, int each, const float *query, float *scores, float *out)
{
    float by = weights_of(to, each, query, scores);
    mix_all(to, each, scores, to->prompt_values, to->values, out);
    for (int d = 0; d < each; d++) out[d] *= by;
}

/* Normalise, rotate and scale a head's query. */
static void place_query(const Model *model, const Layer *layer, const float *turns, float *query)
{
    if (layer->norm_queries)
        normalise(model->each, query, layer->norm_queries, model->epsilon, query);
    turn(model->turned, turns, query);
    for (int d = 0; d < model->each; d++) query[d] *= model->scale;
}

/* Store a key, normalised and rotated, and its value. */
static void place_key(const Model *model, const Layer *layer, const float *turns, const float *key,
                      const float *value, float *stored_key, float *stored_value)
{
    for (int d = 0; d < model->each; d++) stored_key[d] = key[d], stored_value[d] = value[d];
    if (layer->norm_keys)
        normalise(model->each, stored_key, layer->norm_keys, model->epsilon, stored_key);
    turn(model->turned, turns, stored_key);
}

/* One thread's rows and kinds of keys. */
static void attention(const Model *model, const Layer *layer, const Step *step, float *queries,
                      const float *keys, const float *values, float *scores, float *out, int self,
                      int count)
{
    int each = model->each, kinds = model->kinds, repeats = model->heads / kinds;
    size_t most = step->prompt + step->end + 1;
    int last = share(step->rows * kinds, 1, self + 1, count);
    for (int place = share(step->rows * kinds, 1, self, count); place < last; place++) {
        int row = place / kinds, first = step->starts[row];
        const float *turns = step->turns + (size_t)row * model->turned;
        size_t own = (size_t)place * step->room * each, from = own + (size_t)first * each;
        size_t prompt = (size_t)(place % kinds) * step->prompt * each;
        size_t end = own + (size_t)step->end * each;
        Reach to = {step->prompt, step->end + 1 - first, layer->prompt_keys + prompt,
                    layer->prompt_values + prompt, layer->stored_keys + from,
                    layer->stored_values + from};
        place_key(model, layer, turns, keys + (size_t)place * each, values + (size_t)place * each,
                  layer->stored_keys + end, layer->stored_values + end);
        for (int i = 0; i < repeats; i++) {
            size_t at = ((size_t)place * repeats + i) * each;
            place_query(model, layer, turns, queries + at);
            attend(&to, each, queries + at, scores + place * (most + SPARE), out + at);
        }
    }
}

INLINE lanes sigmoid(lanes x) { return 1 / (1 + power_of_two(x * -LOG2_E)); }

/* result = silu(gate) * up, which may be in the place of either */
static void gated(size_t count, const float *gate, const float *up, float *result)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        lanes x = *(const lanes *)(gate + i);
        *(lanes *)(result + i) = x * sigmoid(x) * *(const lanes *)(up + i);
    }
    for (; i < count; i++) result[i] = gate[i] * sigmoid((lanes){0} + gate[i])[0] * up[i];
}

/* Numbers that `run_layers` needs for its own use. */
size_t scratch(const Model *model, const Step *step)
{
    size_t rows = step->rows;
    size_t heads = model->heads * model->each, kinds = model->kinds * model->each;
    size_t attending = 2 * heads + 2 * kinds
        + model->kinds * (size_t)(step->prompt + step->end + 1 + SPARE);
    size_t gating = 2 * (size_t)model->inner;
    return rows * (model->width + (attending > gating ? attending : gating)
                   + (size_t)MOST_THREADS * model->rank);
}

typedef struct {
    const Model *model;
    const Layer *layers;
    const Step *step;
    float *states, *spare;
} Run;

/* Each thread computes its columns, rows or heads of every part of a layer. */
static void all_layers(void *with, int self, int count)
{
    const Run *run = with;
    const Model *model = run->model;
    const Step *step = run->step;
    int rows = step->rows, width = model->width, inner = model->inner;
    int heads = model->heads * model->each, kinds = model->kinds * model->each;
    int first = share(rows, 1, self, count), last = share(rows, 1, self + 1, count);
    int from = share(inner, TILE, self, count), to = share(inner, TILE, self + 1, count);
    float *states = run->states, *thin = run->spare + (size_t)self * rows * model->rank;
    float *normed = run->spare + (size_t)MOST_THREADS * rows * model->rank;
    float *free = normed + (size_t)rows * width;
    float *queries = free, *keys = queries + (size_t)rows * heads;
    float *values = keys + (size_t)rows * kinds, *found = values + (size_t)rows * kinds;
    float *scores = found + (size_t)rows * heads;
    float *gate = free, *up = gate + (size_t)rows * inner;
#define LINEAR(in, out, x, by, adds, result) \
    linear(rows, in, out, x, layer->by, adds, result, thin, self, count)
    for (const Layer *layer = run->layers; layer < run->layers + model->layers; layer++) {
        for (int r = first; r < last; r++)
            normalise(width, states + r * width, layer->norm, model->epsilon, normed + r * width);
        meet(count);
        LINEAR(width, heads, normed, queries, 0, queries);
        LINEAR(width, kinds, normed, keys, 0, keys);
        LINEAR(width, kinds, normed, values, 0, values);
        meet(count);
        attention(model, layer, step, queries, keys, values, scores, found, self, count);
        meet(count);
        LINEAR(heads, width, found, out, 1, states);
        meet(count);
        for (int r = first; r < last; r++)
            normalise(width, states + r * width, layer->norm_after, model->epsilon,
                      normed + r * width);
        meet(count);
        LINEAR(width, inner, normed, gate, 0, gate);
        LINEAR(width, inner, normed, up, 0, up);
        for (int r = 0; r < rows; r++)
            gated(to - from, gate + (size_t)r * inner + from, up + (size_t)r * inner + from,
                  gate + (size_t)r * inner + from);
        meet(count);
        LINEAR(inner, width, gate, down, 1, states);
        meet(count);
    }
}

/* Multiplications of a token in some of the products, enough to tell what threads are good for. */
static double layers_work(const Model *model)
{
    return (double)model->layers * model->width * (model->heads * model->each + model->inner);
}

/* states [rows, width] -> the states after all layers, before the last norm. */
void run_layers(const Model *model, const Layer *layers, const Step *step, float *states,
                float *spare)
{
    Run run = {model, layers, step, states, spare};
    if (step->rows * layers_work(model) > SMALL) together(all_layers, &run);
    else all_layers(&run, 0, 1);
}

/* Logits of states, which are normalised in place, [rows, width] -> [rows, vocabulary]. */
void run_head(const Model *model, int rows, int vocabulary, const float *norm, Linear head,
              float *states, float *logits)
{
    for (int r = 0; r < rows; r++)
        normalise(model->width, states + r * model->width, norm, model->epsilon,
                  states + r * model->width);
    int adds = place_bias(rows, vocabulary, 0, vocabulary, head.bias, 0, logits);
    cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, rows, vocabulary, model->width, 1, states, model->width,
                head.weight, vocabulary, adds, logits, vocabulary);
}
