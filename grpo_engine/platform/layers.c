/* One decode step of a Llama-like model: a new token for each row through all layers.

   MLX dispatches some thousand small operations for it, which takes as long as the products. Here
   a row attends to its own positions only, so its bits depend neither on the number of other rows,
   nor on their lengths, nor on whether they share their prompt. */

#include "products.c"

enum {
    LEAST = -126,           /* 2^-126 vanishes in a sum of at least 1 */
    LARGE = 1 << 16,        /* numbers from which threads share work that is no product */
    SPARE = LANES           /* room behind each row of scores */
};
static const float LOG2_E = 1.44269504f;

typedef int whole __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef struct { const float *weight, *bias; } Linear;   /* [in, out]; a bias may be missing */

typedef struct {
    const float *norm, *norm_after, *norm_queries, *norm_keys;  /* the last two may be missing */
    Linear queries, keys, values, out, gate, up, down;
    float *stored_keys, *stored_values;          /* [rows, kinds, room, each] */
    const float *prompt_keys, *prompt_values;    /* [kinds, prompt, each], the same for all rows */
} Layer;

typedef struct {
    int layers, width, inner, heads, kinds, each, turned;
    float epsilon, scale;
} Model;

typedef struct {
    int rows, room, end, prompt;
    const int *starts;      /* [rows] the first stored position of each */
    const float *turns;     /* [rows, turned] the cosines, then the sines of its new position */
} Step;

/* 2^x to float precision, for x from -126 to 126; what is beyond counts as these. */
INLINE lanes power_of_two(lanes x)
{
    const float magic = 12582912;  /* 1.5 * 2^23: adding it rounds to a whole number */
    whole low = x < LEAST, high = x > -LEAST;
    lanes least = (lanes){0} + LEAST;
    x = (lanes)(((whole)x & ~low & ~high) | ((whole)least & low) | ((whole)-least & high));
    lanes near = x + magic, f = x - (near - magic);
    whole exponent = (whole)near << 23;
    lanes sum = f * 1.5252734e-5f + 1.5403530e-4f;  /* ln(2)^k / k! */
    sum = sum * f + 1.3333558e-3f;
    sum = sum * f + 9.6181291e-3f;
    sum = sum * f + 5.5504109e-2f;
    sum = sum * f + 2.4022651e-1f;
    sum = sum * f + 6.9314718e-1f;
    sum = sum * f + 1;
    return (lanes)((whole)sum + exponent);
}

INLINE float total(lanes x)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

INLINE float dot(const float *a, const float *b, int count)
{
    lanes sum = {0};
    int i = 0;
    for (; i + LANES <= count; i += LANES) sum += *(const lanes *)(a + i) * *(const lanes *)(b + i);
    float rest = 0;
    for (; i < count; i++) rest += a[i] * b[i];
    return total(sum) + rest;
}

static void normalise(int width, const float *x, const float *weight, float epsilon, float *out)
{
    float by = 1 / __builtin_sqrtf(dot(x, x, width) / width + epsilon);
    for (int i = 0; i < width; i++) out[i] = x[i] * by * weight[i];
}

static void linear(int rows, int in, int out, const float *x, Linear by, int adds, float *result)
{
    if (by.bias)
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < out; i++)
                result[(size_t)r * out + i] = by.bias[i] + (adds ? result[(size_t)r * out + i] : 0);
    multiply(ROW_MAJOR, PLAIN, PLAIN, rows, out, in, 1, x, in, by.weight, out,
             adds || by.bias ? 1 : 0, result, out);
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

/* One row's heads that share a kind of keys, over the prompt's positions and then its own. */
static void attend(const Model *model, const Layer *layer, const Step *step, int row, int kind,
                   const float *queries, float *scores, float *out)
{
    int each = model->each, repeats = model->heads / model->kinds, first = step->starts[row];
    int own = step->end + 1 - first;
    size_t before = (size_t)kind * step->prompt * each;
    size_t after = (((size_t)row * model->kinds + kind) * step->room + first) * each;
    for (int i = 0; i < repeats; i++, queries += each, out += each) {
        float top = score(step->prompt, each, queries, layer->prompt_keys + before, scores, -1e30f);
        top = score(own, each, queries, layer->stored_keys + after, scores + step->prompt, top);
        float by = 1 / weigh(step->prompt + own, top, scores);
        for (int d = 0; d < each; d++) out[d] = 0;
        mix(step->prompt, each, scores, layer->prompt_values + before, out);
        mix(own, each, scores + step->prompt, layer->stored_values + after, out);
        for (int d = 0; d < each; d++) out[d] *= by;
    }
}

static void attention(const Model *model, const Layer *layer, const Step *step, float *queries,
                      const float *keys, const float *values, float *scores, float *out)
{
    int each = model->each, kinds = model->kinds, repeats = model->heads / kinds;
    size_t most = step->prompt + step->end + 1;
    int shares = step->rows * most * model->heads > LARGE ? threads : 1;
#pragma omp parallel for num_threads(shares) if (shares > 1)
    for (int place = 0; place < step->rows * kinds; place++) {
        int row = place / kinds, kind = place % kinds;
        const float *turns = step->turns + (size_t)row * model->turned;
        float *query = queries + (size_t)place * repeats * each;
        size_t to = ((size_t)place * step->room + step->end) * each;
        float *stored = layer->stored_keys + to;
        for (int i = 0; i < repeats; i++) {
            float *head = query + i * each;
            if (layer->norm_queries)
                normalise(each, head, layer->norm_queries, model->epsilon, head);
            turn(model->turned, turns, head);
            for (int d = 0; d < each; d++) head[d] *= model->scale;
        }
        for (int d = 0; d < each; d++) stored[d] = keys[(size_t)place * each + d];
        for (int d = 0; d < each; d++)
            layer->stored_values[to + d] = values[(size_t)place * each + d];
        if (layer->norm_keys) normalise(each, stored, layer->norm_keys, model->epsilon, stored);
        turn(model->turned, turns, stored);
        attend(model, layer, step, row, kind, query, scores + place * (most + SPARE),
               out + (size_t)place * repeats * each);
    }
}

static void gated(size_t count, float *gate, const float *up)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        lanes *to = (lanes *)(gate + i);
        *to = *to / (1 + power_of_two(*to * -LOG2_E)) * *(const lanes *)(up + i);
    }
    for (; i < count; i++)
        gate[i] = gate[i] / (1 + power_of_two((lanes){0} + gate[i] * -LOG2_E)[0]) * up[i];
}

/* Numbers that `run_layers` needs for its own use. */
size_t scratch(const Model *model, const Step *step)
{
    size_t rows = step->rows, heads = model->heads * model->each, kinds = model->kinds * model->each;
    size_t attending = 2 * heads + 2 * kinds
        + model->kinds * (size_t)(step->prompt + step->end + 1 + SPARE);
    size_t gating = 2 * (size_t)model->inner;
    return rows * (model->width + (attending > gating ? attending : gating));
}

/* states [rows, width] -> the states after all layers, before the last norm. */
void run_layers(const Model *model, const Layer *layers, const Step *step, float *states,
                float *spare)
{
    int rows = step->rows, width = model->width, inner = model->inner;
    int heads = model->heads * model->each, kinds = model->kinds * model->each;
    float *normed = spare, *free = normed + (size_t)rows * width;
    float *queries = free, *keys = queries + (size_t)rows * heads;
    float *values = keys + (size_t)rows * kinds, *found = values + (size_t)rows * kinds;
    float *scores = found + (size_t)rows * heads;
    float *gate = free, *up = gate + (size_t)rows * inner;
    for (const Layer *layer = layers; layer < layers + model->layers; layer++) {
        for (int r = 0; r < rows; r++)
            normalise(width, states + r * width, layer->norm, model->epsilon, normed + r * width);
        linear(rows, width, heads, normed, layer->queries, 0, queries);
        linear(rows, width, kinds, normed, layer->keys, 0, keys);
        linear(rows, width, kinds, normed, layer->values, 0, values);
        attention(model, layer, step, queries, keys, values, scores, found);
        linear(rows, heads, width, found, layer->out, 1, states);
        for (int r = 0; r < rows; r++)
            normalise(width, states + r * width, layer->norm_after, model->epsilon,
                      normed + r * width);
        linear(rows, width, inner, normed, layer->gate, 0, gate);
        linear(rows, width, inner, normed, layer->up, 0, up);
        gated((size_t)rows * inner, gate, up);
        linear(rows, inner, width, gate, layer->down, 1, states);
    }
}

/* Logits of states, which are normalised in place, [rows, width] -> [rows, vocabulary]. */
void run_head(const Model *model, int rows, int vocabulary, const float *norm, Linear head,
              float *states, float *logits)
{
    for (int r = 0; r < rows; r++)
        normalise(model->width, states + r * model->width, norm, model->epsilon,
                  states + r * model->width);
    linear(rows, model->width, vocabulary, states, head, 0, logits);
}
