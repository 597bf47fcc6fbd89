/* Matrix products of few rows, compiled for the processor they run on.

   An ordinary BLAS copies the weights into the order of its kernels for each product. With the few
   rows of a decode step the copy costs more than the product. Here each weight is read once, from
   where it lies. Everything else is left to the BLAS. Row-major C = alpha A B + beta C; A may be
   transposed. A row of C has the same bits in any number of rows. */

#include <stddef.h>

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 8, WIDE = 3, MOST_ROWS = 64 };
#else
enum { LANES = 8, ROWS = 4, WIDE = 2, MOST_ROWS = 16 };
#endif
enum {
    TILE = LANES * WIDE,         /* columns whose sums are kept in registers, for ROWS rows */
    DEPTH = 32,                  /* rows of B that are read side by side */
    PANEL = 1536 / TILE * TILE,  /* columns for which DEPTH rows of B stay in the cache */
    SMALL = 2000000,             /* products of fewer multiplications need no packing */
    /* Products of more are shared by the threads. Those of a backward pass are not: the threads of
       OpenBLAS, which computes the products between them, would wait beside ours. */
    SHARED = SMALL,
    LINE = 16,                   /* numbers in a line of the cache */
    ROW_MAJOR = 101, PLAIN = 111
};

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef struct { const float *at; size_t down, along; } Left;
typedef void Product(int, int, int, int, int, int, float, const float *, int, const float *, int,
                     float, float *, int);

static Product *other;
static int threads = 1;

void set_other(Product *product) { other = product; }
void set_threads(int count) { threads = count; }

#define INLINE static inline __attribute__((always_inline))

/* `rows` and `wide` are constants wherever this is inlined, so the sums stay in registers. */
INLINE void tile(int rows, int wide, int depth, float alpha, Left a, const float *b, size_t ldb,
                 float beta, float *c, size_t ldc)
{
    lanes sum[ROWS][WIDE] = {0};
    for (int k = 0; k < depth; k++) {
        lanes from[WIDE];
        for (int v = 0; v < wide; v++) {
            const float *place = b + k * ldb + v * LANES;
            from[v] = *(const lanes *)place;
            if (v * LANES % LINE == 0) __builtin_prefetch(place + DEPTH * ldb, 0, 2);
        }
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < wide; v++) sum[i][v] += a.at[i * a.down + k * a.along] * from[v];
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < wide; v++) {
            lanes *to = (lanes *)(c + i * ldc + v * LANES);
            *to = beta == 0 ? alpha * sum[i][v] : alpha * sum[i][v] + beta * *to;
        }
}

INLINE void columns(int rows, int wide, int depth, float alpha, Left a, const float *b, size_t ldb,
                    float beta, float *c, size_t ldc)
{
    for (; rows >= ROWS; rows -= ROWS, a.at += ROWS * a.down, c += ROWS * ldc)
        tile(ROWS, wide, depth, alpha, a, b, ldb, beta, c, ldc);
#define REST(n) if (n < ROWS && rows == n) tile(n, wide, depth, alpha, a, b, ldb, beta, c, ldc);
    REST(1) REST(2) REST(3) REST(4) REST(5) REST(6) REST(7)
}

static void last_columns(int rows, int wide, int depth, float alpha, Left a, const float *b,
                         size_t ldb, float beta, float *c, size_t ldc)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < wide; j++) {
            float sum = 0;
            for (int k = 0; k < depth; k++) sum += a.at[i * a.down + k * a.along] * b[k * ldb + j];
            c[i * ldc + j] = beta == 0 ? alpha * sum : alpha * sum + beta * c[i * ldc + j];
        }
}

static void panel(int m, int n, int k, float alpha, Left a, const float *b, size_t ldb, float beta,
                  float *c, size_t ldc)
{
    for (int at = 0; at < k; at += DEPTH, a.at += DEPTH * a.along, b += DEPTH * ldb, beta = 1) {
        int depth = k - at < DEPTH ? k - at : DEPTH, j = 0;
        for (; n - j >= TILE; j += TILE)
            columns(m, WIDE, depth, alpha, a, b + j, ldb, beta, c + j, ldc);
        for (; n - j >= LANES; j += LANES)
            columns(m, 1, depth, alpha, a, b + j, ldb, beta, c + j, ldc);
        if (j < n) last_columns(m, n - j, depth, alpha, a, b + j, ldb, beta, c + j, ldc);
    }
}

static void multiply(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                     int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    double work = (double)m * n * k;
    if (order != ROW_MAJOR || tb != PLAIN || k < 1 || n < LANES || (m > MOST_ROWS && work > SMALL)) {
        other(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    Left left = {a, ta == PLAIN ? lda : 1, ta == PLAIN ? 1 : lda};
    int shares = work > SHARED ? threads : 1, width = (n + shares - 1) / shares;
    width = width > PANEL ? PANEL : (width + TILE - 1) / TILE * TILE;
    int panels = (n + width - 1) / width;
#pragma omp parallel for num_threads(shares) if (shares > 1)
    for (int p = 0; p < panels; p++) {
        int j = p * width;
        panel(m, n - j < width ? n - j : width, k, alpha, left, b + j, ldb, beta, c + j, ldc);
    }
}

Product cblas_sgemm;
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    multiply(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
