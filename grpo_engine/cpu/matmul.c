/* Matrix products of few rows, and the thread pool that all kernels share.

   An ordinary BLAS packs the weights into the order of its kernels for each product. With the few
   rows of a decode step, packing costs more than the product. Here each weight is read once, in
   place. Everything else is left to the BLAS. Row-major C = A B + beta C; A may be transposed. Each
   number of C is one chain of sums, so a row has the same bits in any number of rows. */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__)
enum { LANES = 16, TILE_ROWS = 8, TILE_VECTORS = 3, MAX_ROWS = 64 };
#else
enum { LANES = 8, TILE_ROWS = 4, TILE_VECTORS = 2, MAX_ROWS = 16 };
#endif
enum {
    TILE = LANES * TILE_VECTORS,  /* columns whose sums stay in registers, for TILE_ROWS rows */
    K_BLOCK = 32,                 /* rows of B read together; half for few rows, many columns */
    N_BLOCK = 1536 / TILE * TILE, /* columns for which K_BLOCK rows of B stay in the cache */
    PARALLEL_WORK = 2000000,      /* multiplications from which packing and threads pay off */
    CACHE_LINE = 16,              /* in floats */
    ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112
};

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef void Sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int,
                   float, float *, int);

static Sgemm *blas_sgemm;
static int threads = 1;

#define INLINE static inline __attribute__((always_inline))

/* The thread pool; the caller is thread 0. A decode step has some hundred barriers, of less than a
   microsecond each: threads spin at them, and sleep between steps. OpenMP keeps a pool for each
   calling thread, and puts all to sleep at once if that makes more threads than processors. */
typedef void Job(void *arg, int thread, int count);

enum { MAX_THREADS = 64, SPINS = 4000 };
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake_up = PTHREAD_COND_INITIALIZER;
static int started = 1, sleeping, running, arrived, phase;
static unsigned submitted[MAX_THREADS];  /* jobs submitted to each thread so far */
static struct { Job *job; void *arg; int count; } current;

#define LOAD(variable) __atomic_load_n(&(variable), __ATOMIC_SEQ_CST)
#define ADD(variable, number) __atomic_add_fetch(&(variable), number, __ATOMIC_SEQ_CST)

/* Another program may have the core of the thread that is waited for. */
INLINE void spin(int spins)
{
    if (spins < SPINS) __builtin_ia32_pause();
    else sched_yield();
}

static void *worker(void *arg)
{
    int thread = (int)(intptr_t)arg;
    for (unsigned done = 0;; done++) {
        for (int spins = 0; LOAD(submitted[thread]) == done && spins < SPINS; spins++) spin(0);
        if (LOAD(submitted[thread]) == done) {
            pthread_mutex_lock(&sleep_lock);
            ADD(sleeping, 1);
            while (LOAD(submitted[thread]) == done) pthread_cond_wait(&wake_up, &sleep_lock);
            ADD(sleeping, -1);
            pthread_mutex_unlock(&sleep_lock);
        }
        current.job(current.arg, thread, current.count);
        ADD(running, -1);
    }
    return NULL;
}

/* Start threads up to `count`, or as many as possible; signals are left to the other threads. */
static int start_threads(int count)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; started < count; started++) {
        if (pthread_create(&thread, NULL, worker, (void *)(intptr_t)started)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started < count ? started : count;
}

/* Run a job on all threads; on the caller alone while another caller uses the pool. */
static void parallel_for(Job *job, void *arg)
{
    int count = threads;
    if (count < 2 || pthread_mutex_trylock(&pool_lock)) {
        job(arg, 0, 1);
        return;
    }
    if (started < count) count = start_threads(count);
    current.job = job, current.arg = arg, current.count = count;
    running = count - 1;
    for (int i = 1; i < count; i++) ADD(submitted[i], 1);
    if (LOAD(sleeping)) {
        pthread_mutex_lock(&sleep_lock);
        pthread_cond_broadcast(&wake_up);
        pthread_mutex_unlock(&sleep_lock);
    }
    job(arg, 0, count);
    for (int spins = 0; LOAD(running); spins++) spin(spins);
    pthread_mutex_unlock(&pool_lock);
}

/* Within a job: wait until all of its threads are here. */
static void barrier(int count)
{
    if (count == 1) return;
    int before = LOAD(phase);
    if (ADD(arrived, 1) == count) {
        arrived = 0;
        ADD(phase, 1);
    }
    for (int spins = 0; LOAD(phase) == before; spins++) spin(spins);
}

/* The first index of a thread's part of `size` items, in multiples of `grain`; the part ends where
   that of the next thread begins. */
INLINE int partition(int size, int grain, int thread, int count)
{
    int grains = (size + grain - 1) / grain;
    int first = (int)((long)grains * thread / count) * grain;
    return first < size ? first : size;
}

/* Threads do not follow their process through a fork. */
static void reset_pool(void)
{
    started = 1, sleeping = arrived = 0;
    for (int i = 0; i < MAX_THREADS; i++) submitted[i] = 0;
    pthread_mutex_init(&pool_lock, NULL), pthread_mutex_init(&sleep_lock, NULL);
    pthread_cond_init(&wake_up, NULL);
}

__attribute__((constructor)) static void on_load(void) { pthread_atfork(NULL, NULL, reset_pool); }

void set_blas(Sgemm *sgemm) { blas_sgemm = sgemm; }
void set_threads(int count) { threads = count < MAX_THREADS ? count : MAX_THREADS; }

typedef struct { const float *data; size_t row_stride, column_stride; } Strided;

/* `rows` and `vectors` are constants wherever this is inlined, so the sums stay in registers. */
INLINE void tile(int rows, int vectors, int k, int prefetch, Strided a, const float *b, size_t ldb,
                 float beta, float *c, size_t ldc)
{
    vec sum[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++)
            if (beta == 0) sum[i][v] = (vec){0};
            else sum[i][v] = *(vec *)(c + i * ldc + v * LANES) * beta;
    for (int l = 0; l < k; l++) {
        vec weights[TILE_VECTORS];
        for (int v = 0; v < vectors; v++) {
            const float *address = b + l * ldb + v * LANES;
            weights[v] = *(const vec *)address;
            if (v * LANES % CACHE_LINE == 0) __builtin_prefetch(address + prefetch * ldb, 0, 2);
        }
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < vectors; v++)
                sum[i][v] += a.data[i * a.row_stride + l * a.column_stride] * weights[v];
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) *(vec *)(c + i * ldc + v * LANES) = sum[i][v];
}

INLINE void column_tiles(int rows, int vectors, int k, int prefetch, Strided a, const float *b,
                         size_t ldb, float beta, float *c, size_t ldc)
{
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS, a.data += TILE_ROWS * a.row_stride,
                              c += TILE_ROWS * ldc)
        tile(TILE_ROWS, vectors, k, prefetch, a, b, ldb, beta, c, ldc);
#define REMAINDER(n) \
    if (n < TILE_ROWS && rows == n) tile(n, vectors, k, prefetch, a, b, ldb, beta, c, ldc);
    REMAINDER(1) REMAINDER(2) REMAINDER(3) REMAINDER(4) REMAINDER(5) REMAINDER(6) REMAINDER(7)
}

static void scalar_columns(int rows, int columns, int k, Strided a, const float *b, size_t ldb,
                           float beta, float *c, size_t ldc)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = beta == 0 ? 0 : beta * c[i * ldc + j];
            for (int l = 0; l < k; l++)
                sum += a.data[i * a.row_stride + l * a.column_stride] * b[l * ldb + j];
            c[i * ldc + j] = sum;
        }
}

static void column_block(int m, int n, int k, Strided a, const float *b, size_t ldb, float beta,
                         float *c, size_t ldc)
{
    int step = m > TILE_ROWS || n <= N_BLOCK / 2 ? K_BLOCK : K_BLOCK / 2;
    for (int l = 0; l < k; l += step, a.data += step * a.column_stride, b += step * ldb, beta = 1) {
        int depth = k - l < step ? k - l : step, j = 0;
        for (; n - j >= TILE; j += TILE)
            column_tiles(m, TILE_VECTORS, depth, step, a, b + j, ldb, beta, c + j, ldc);
        for (; n - j >= LANES; j += LANES)
            column_tiles(m, 1, depth, step, a, b + j, ldb, beta, c + j, ldc);
        if (j < n) scalar_columns(m, n - j, depth, a, b + j, ldb, beta, c + j, ldc);
    }
}

typedef struct {
    int ta, tb, m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
    const float *bias;  /* [n], added to each row; optional */
    int row_wise;       /* whether a row must have the same bits in any number of rows */
} Gemm;

static double gemm_work(const Gemm *g) { return (double)g->m * g->n * g->k; }

static int is_skinny(const Gemm *g)
{
    int needs_packing = g->m > MAX_ROWS && gemm_work(g) > PARALLEL_WORK;
    return g->tb == NO_TRANS && g->alpha == 1 && g->k >= 1
        && (g->row_wise || (g->n >= LANES && !needs_packing));
}

/* A product of few rows, B not transposed. */
static void skinny_gemm(const Gemm *g)
{
    int plain = g->ta == NO_TRANS;
    Strided a = {g->a, plain ? g->lda : 1, plain ? 1 : g->lda};
    for (int j = 0; j < g->n; j += N_BLOCK)
        column_block(g->m, g->n - j < N_BLOCK ? g->n - j : N_BLOCK, g->k, a, g->b + j, g->ldb,
                     g->beta, g->c + j, g->ldc);
}

static void add_bias(Gemm *g)
{
    for (int r = 0; r < g->m; r++)
        for (int i = 0; i < g->n; i++) {
            float *c = g->c + (size_t)r * g->ldc + i;
            *c = g->bias[i] + (g->beta ? *c : 0);
        }
    g->beta = 1;
}

/* One thread's part of a product. The BLAS computes it with one thread of its own: its threads
   would spin beside ours, and three on two cores wait for each other most of the time. */
static void gemm_part(void *arg, int thread, int count)
{
    Gemm g = *(Gemm *)arg;
    int skinny = is_skinny(&g), by_columns = skinny || g.n > g.m, size = by_columns ? g.n : g.m;
    size_t first = partition(size, TILE, thread, count);
    size_t last = partition(size, TILE, thread + 1, count);
    if (first == last) return;
    if (by_columns) {
        g.b += first * (g.tb == NO_TRANS ? 1 : g.ldb), g.c += first;
        g.n = last - first;
        if (g.bias) g.bias += first;
    } else {
        g.a += first * (g.ta == NO_TRANS ? g.lda : 1), g.c += first * g.ldc;
        g.m = last - first;
    }
    if (g.bias) add_bias(&g);
    if (skinny) skinny_gemm(&g);
    else
        blas_sgemm(ROW_MAJOR, g.ta, g.tb, g.m, g.n, g.k, g.alpha, g.a, g.lda, g.b, g.ldb, g.beta,
                   g.c, g.ldc);
}

/* Run a job of so many multiplications on all threads, if they pay off. */
static void run(Job *job, void *arg, double work)
{
    if (work > PARALLEL_WORK) parallel_for(job, arg);
    else job(arg, 0, 1);
}

/* Called in place of the BLAS's `cblas_sgemm`, by MLX, whose matrices are row-major. */
void sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
           const float *b, int ldb, float beta, float *c, int ldc)
{
    Gemm g = {ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c, NULL, 0};
    (void)order;
    run(gemm_part, &g, gemm_work(&g));
}
