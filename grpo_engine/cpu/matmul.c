/* Matrix products of few rows, compiled for the processor they run on.

   An ordinary BLAS copies the weights into the order of its kernels for each product. With the few
   rows of a decode step the copy costs more than the product. Here each weight is read once, from
   where it lies. Everything else is left to the BLAS. Row-major C = A B + beta C; A may be
   transposed. Each number of C is one chain of sums, so a row has the same bits in any number of
   rows. */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 8, WIDE = 3, MOST_ROWS = 64 };
#else
enum { LANES = 8, ROWS = 4, WIDE = 2, MOST_ROWS = 16 };
#endif
enum {
    TILE = LANES * WIDE,         /* columns whose sums are kept in registers, for ROWS rows */
    DEPTH = 32,                  /* rows of B read side by side; half for few rows, many columns */
    PANEL = 1536 / TILE * TILE,  /* columns for which DEPTH rows of B stay in the cache */
    SMALL = 2000000,             /* products of fewer multiplications need no packing */
    SHARED = SMALL,              /* products of more are shared by the threads */
    LINE = 16,                   /* numbers in a line of the cache */
    ROW_MAJOR = 101, PLAIN = 111
};

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef struct { const float *at; size_t down, along; } Left;
typedef void Product(int, int, int, int, int, int, float, const float *, int, const float *, int,
                     float, float *, int);

static Product *other;
static int threads = 1;

#define INLINE static inline __attribute__((always_inline))

/* Threads that share a job with the caller, who is number 0. A decode step has some hundred places
   where they wait for each other, for less than a microsecond: they spin, and sleep between steps.
   OpenMP keeps a team for each calling thread, and lets all sleep at once if that makes more
   threads than processors. */
typedef void Job(void *with, int self, int count);

enum { MOST_THREADS = 64, SPINS = 4000 };
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER, door = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int made = 1, sleepers, working, arrived, phase;
static unsigned asked[MOST_THREADS];  /* how many jobs each was given */
static struct { Job *job; void *with; int count; } now;

#define READ(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)
#define ADD(place, number) __atomic_add_fetch(&(place), number, __ATOMIC_SEQ_CST)

/* Another program may have the core of the thread that is waited for. */
INLINE void wait_a_little(int spins)
{
    if (spins < SPINS) __builtin_ia32_pause();
    else sched_yield();
}

static void *help(void *number)
{
    int self = (int)(intptr_t)number;
    for (unsigned done = 0;; done++) {
        for (int spins = 0; READ(asked[self]) == done && spins < SPINS; spins++)
            wait_a_little(0);
        if (READ(asked[self]) == done) {
            pthread_mutex_lock(&door);
            ADD(sleepers, 1);
            while (READ(asked[self]) == done) pthread_cond_wait(&wake, &door);
            ADD(sleepers, -1);
            pthread_mutex_unlock(&door);
        }
        now.job(now.with, self, now.count);
        ADD(working, -1);
    }
    return NULL;
}

/* Have `count` threads, or as many as can be made; signals are left to the others. */
static int have(int count)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; made < count; made++) {
        if (pthread_create(&thread, NULL, help, (void *)(intptr_t)made)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return made < count ? made : count;
}

/* Run a job with as many threads as are wanted; alone while another caller has them. */
static void together(Job *job, void *with)
{
    int count = threads;
    if (count < 2 || pthread_mutex_trylock(&busy)) {
        job(with, 0, 1);
        return;
    }
    if (made < count) count = have(count);
    now.job = job, now.with = with, now.count = count;
    working = count - 1;
    for (int i = 1; i < count; i++) ADD(asked[i], 1);
    if (READ(sleepers)) {
        pthread_mutex_lock(&door);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&door);
    }
    job(with, 0, count);
    for (int spins = 0; READ(working); spins++) wait_a_little(spins);
    pthread_mutex_unlock(&busy);
}

/* Within a job: wait until all its threads are here. */
static void meet(int count)
{
    if (count == 1) return;
    int before = READ(phase);
    if (ADD(arrived, 1) == count) {
        arrived = 0;
        ADD(phase, 1);
    }
    for (int spins = 0; READ(phase) == before; spins++) wait_a_little(spins);
}

/* Where thread `self` begins, and the one before it ends, if `whole` is shared in even pieces. */
INLINE int share(int whole, int piece, int self, int count)
{
    int pieces = (whole + piece - 1) / piece, from = (int)((long)pieces * self / count) * piece;
    return from < whole ? from : whole;
}

/* Threads do not follow their process through a fork. */
static void forget(void)
{
    made = 1, sleepers = arrived = 0;
    for (int i = 0; i < MOST_THREADS; i++) asked[i] = 0;
    pthread_mutex_init(&busy, NULL), pthread_mutex_init(&door, NULL);
    pthread_cond_init(&wake, NULL);
}

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, forget); }

void set_other(Product *product) { other = product; }
void set_threads(int count) { threads = count < MOST_THREADS ? count : MOST_THREADS; }

/* `rows` and `wide` are constants wherever this is inlined, so the sums stay in registers. */
INLINE void tile(int rows, int wide, int depth, int ahead, Left a, const float *b, size_t ldb,
                 float beta, float *c, size_t ldc)
{
    lanes sum[ROWS][WIDE];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < wide; v++)
            if (beta == 0) sum[i][v] = (lanes){0};
            else sum[i][v] = *(lanes *)(c + i * ldc + v * LANES) * beta;
    for (int k = 0; k < depth; k++) {
        lanes from[WIDE];
        for (int v = 0; v < wide; v++) {
            const float *place = b + k * ldb + v * LANES;
            from[v] = *(const lanes *)place;
            if (v * LANES % LINE == 0) __builtin_prefetch(place + ahead * ldb, 0, 2);
        }
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < wide; v++) sum[i][v] += a.at[i * a.down + k * a.along] * from[v];
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < wide; v++) *(lanes *)(c + i * ldc + v * LANES) = sum[i][v];
}

INLINE void columns(int rows, int wide, int depth, int ahead, Left a, const float *b, size_t ldb,
                    float beta, float *c, size_t ldc)
{
    for (; rows >= ROWS; rows -= ROWS, a.at += ROWS * a.down, c += ROWS * ldc)
        tile(ROWS, wide, depth, ahead, a, b, ldb, beta, c, ldc);
#define REST(n) if (n < ROWS && rows == n) tile(n, wide, depth, ahead, a, b, ldb, beta, c, ldc);
    REST(1) REST(2) REST(3) REST(4) REST(5) REST(6) REST(7)
}

static void last_columns(int rows, int wide, int depth, Left a, const float *b,
                         size_t ldb, float beta, float *c, size_t ldc)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < wide; j++) {
            float sum = beta == 0 ? 0 : beta * c[i * ldc + j];
            for (int k = 0; k < depth; k++) sum += a.at[i * a.down + k * a.along] * b[k * ldb + j];
            c[i * ldc + j] = sum;
        }
}

static void panel(int m, int n, int k, Left a, const float *b, size_t ldb, float beta, float *c,
                  size_t ldc)
{
    int step = m > ROWS || n <= PANEL / 2 ? DEPTH : DEPTH / 2;
    for (int at = 0; at < k; at += step, a.at += step * a.along, b += step * ldb, beta = 1) {
        int depth = k - at < step ? k - at : step, j = 0;
        for (; n - j >= TILE; j += TILE)
            columns(m, WIDE, depth, step, a, b + j, ldb, beta, c + j, ldc);
        for (; n - j >= LANES; j += LANES)
            columns(m, 1, depth, step, a, b + j, ldb, beta, c + j, ldc);
        if (j < n) last_columns(m, n - j, depth, a, b + j, ldb, beta, c + j, ldc);
    }
}

typedef struct {
    int m, n, k;
    float beta;
    Left a;
    const float *b;
    float *c;
    size_t ldb, ldc;
} Task;

/* One thread's columns of a product. */
static void some_columns(void *with, int self, int count)
{
    Task *t = with;
    int from = share(t->n, TILE, self, count), to = share(t->n, TILE, self + 1, count);
    for (int j = from; j < to; j += PANEL)
        panel(t->m, to - j < PANEL ? to - j : PANEL, t->k, t->a, t->b + j, t->ldb, t->beta,
              t->c + j, t->ldc);
}

typedef struct {
    int ta, tb, m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
} General;

static double work(const General *p) { return (double)p->m * p->n * p->k; }

static int is_ours(const General *p)
{
    int many = p->m > MOST_ROWS && work(p) > SMALL;
    return p->tb == PLAIN && p->alpha == 1 && p->k >= 1 && p->n >= LANES && !many;
}

/* One thread's part of a product. The BLAS computes it with one thread of its own: its threads
   would spin beside ours, and three on two cores wait for each other most of the time. */
static void some(void *with, int self, int count)
{
    General p = *(General *)with;
    if (is_ours(&p)) {
        Left a = {p.a, p.ta == PLAIN ? p.lda : 1, p.ta == PLAIN ? 1 : p.lda};
        Task task = {p.m, p.n, p.k, p.beta, a, p.b, p.c, p.ldb, p.ldc};
        some_columns(&task, self, count);
        return;
    }
    int wide = p.n > p.m, whole = wide ? p.n : p.m;
    size_t from = share(whole, TILE, self, count), to = share(whole, TILE, self + 1, count);
    if (from == to) return;
    if (wide) {
        p.b += from * (p.tb == PLAIN ? 1 : p.ldb), p.c += from;
        p.n = to - from;
    } else {
        p.a += from * (p.ta == PLAIN ? p.lda : 1), p.c += from * p.ldc;
        p.m = to - from;
    }
    other(ROW_MAJOR, p.ta, p.tb, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c,
          p.ldc);
}

Product cblas_sgemm;
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    General p = {ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c};
    if (order != ROW_MAJOR)
        other(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    else if (work(&p) > SHARED) together(some, &p);
    else some(&p, 0, 1);
}
