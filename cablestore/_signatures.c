/* Verifying signatures on threads of its own, which never need Python's lock.
 *
 * libsodium verifies one signature a call. A thread of Python's needs Python's lock before and after each call, and
 * while another thread plans a batch it waits for the lock longer than it verifies. `begin` gives posts to the threads
 * here, `results` verifies with them what none of them has begun and waits for the rest. This is optional:
 * cablestore.protocol.crypto does without it where it was not built.
 *
 * The threads belong to the process. They start when they are first needed and wait, with all signals blocked, until it
 * ends. A forked child has none of them: it starts its own, and verifies again what was under way.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { KEY_SIZE_BYTES = 32, SIGNATURE_SIZE_BYTES = 64 };
enum { LARGEST_SHARE_POSTS = 25 }; /* a millisecond of work */
enum { AWAKE_US = 200 };    /* how long a thread waits for the next lot before it sleeps, if lots come that fast */
enum { PREEMPTED_US = 50 }; /* a thread that does not run this long while it waits had to give its core to others */
enum { LATE_US = 200 };     /* a thread that takes this long to finish a post after it is asked for had to, too */
enum { FEWEST_ALONE = 16, MOST_ALONE = 2048 }; /* posts that come one by one and are left to the caller */
enum { ENOUGH_IN_TIME = 100 }; /* lots in a row that threads took in time: the cores are free again */
static const char LOT[] = "cablestore._signatures.lot";

/* libsodium's crypto_sign_open(message, message_size, signature | message, its size, public_key): 0 if it is right. */
typedef int (*sign_open)(unsigned char *, unsigned long long *, const unsigned char *, unsigned long long,
                         const unsigned char *);

typedef struct {
    const unsigned char *bytes;
    Py_ssize_t size;
    int is_signed;
} post;

/* Posts that are verified together. `pool.lock` guards what changes, except each post's `is_signed`: only the thread
 * that took the post writes that. */
typedef struct lot {
    sign_open open;
    PyObject *raws; /* a tuple, because nobody can take a post out of it */
    Py_ssize_t number, largest;
    struct lot *next;   /* in the queue */
    Py_ssize_t taken;   /* how many posts, from the first on, a thread took */
    int threads;        /* how many may work on it at most, the one that waits for the results included */
    int helpers_wanted; /* how many threads of the pool may still join; it is queued while there are any */
    int working;        /* how many threads are at work on it */
    unsigned forks;     /* those before `begin` */
    post posts[];
} lot;

static struct {
    pthread_mutex_t lock; /* its holder never waits for Python's lock */
    pthread_cond_t queued, finished;
    lot *_Atomic queue; /* one that is awake looks at it without the lock */
    int threads;
    int awake;      /* how many of them, at most 1, wait without sleeping */
    int alone;      /* how many of the next posts that come one by one are left to the caller */
    int next_alone; /* the same, if a thread is late again */
    int in_time;    /* how many lots threads took since one was late */
    unsigned forks; /* from the first process to this one */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .queued = PTHREAD_COND_INITIALIZER, .finished = PTHREAD_COND_INITIALIZER,
          .next_alone = FEWEST_ALONE};

static int is_signed(sign_open open, const post *p, unsigned char *message)
{
    unsigned long long message_size;

    if (p->size < KEY_SIZE_BYTES + SIGNATURE_SIZE_BYTES)
        return 0;
    return open(message, &message_size, p->bytes + KEY_SIZE_BYTES, (unsigned long long)(p->size - KEY_SIZE_BYTES),
                p->bytes) == 0;
}

/* Take shares of a lot and verify them until none is left. The caller holds the lock.
 *
 * Shares get smaller towards the end, so that all threads finish at about the same time. */
static void work(lot *l)
{
    unsigned char *message = l->taken < l->number ? malloc((size_t)l->largest) : NULL;

    l->working++;
    while (message != NULL && l->taken < l->number) {
        Py_ssize_t from = l->taken, share = (l->number - from) / (2 * l->threads);
        share = share < 1 ? 1 : share > LARGEST_SHARE_POSTS ? LARGEST_SHARE_POSTS : share;
        l->taken += share;
        pthread_mutex_unlock(&pool.lock);
        for (post *p = l->posts + from; p < l->posts + from + share; p++)
            p->is_signed = is_signed(l->open, p, message);
        pthread_mutex_lock(&pool.lock);
    }
    if (--l->working == 0)
        pthread_cond_broadcast(&pool.finished);
    free(message);
}

static void unqueue(lot *l)
{
    lot *before = pool.queue;

    if (before == l) {
        pool.queue = l->next;
        return;
    }
    while (before != NULL && before->next != l)
        before = before->next;
    if (before != NULL)
        before->next = l->next;
}

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

/* Leave the next posts that come one by one to the caller: no core was free for a thread. The caller holds the lock.
 *
 * While the cores are busy, waking threads takes time and gains none. */
static void leave_alone(void)
{
    pool.alone = pool.next_alone;
    pool.next_alone = pool.next_alone < MOST_ALONE ? 2 * pool.next_alone : MOST_ALONE;
    pool.in_time = 0;
}

/* Wait a moment for the next lot without sleeping: waking a thread costs up to a third of what the thread saves. End at
 * once if others want the core. The caller holds the lock.
 *
 * Nobody waited for this thread, and a virtual machine loses its cores for a moment many times a second, so a few posts
 * are left to the caller and no more than a few the next time. If the cores are busy, the next lot is late. */
static void wait_awake(void)
{
    int64_t begun = now_us(), last = begun, now = begun;

    pool.awake++;
    pthread_mutex_unlock(&pool.lock);
    while (pool.queue == NULL && now - begun < AWAKE_US && now - last < PREEMPTED_US) {
        sched_yield();
        last = now;
        now = now_us();
    }
    pthread_mutex_lock(&pool.lock);
    pool.awake--;
    if (now - last >= PREEMPTED_US && pool.alone < FEWEST_ALONE)
        pool.alone = FEWEST_ALONE;
}

/* Verify what is queued, as long as the process lives. */
static void *help(void *Py_UNUSED(unused))
{
    int64_t finished_us = 0;
    int is_soon = 0; /* whether the last lot came soon after the one before, and so may the next */

    pthread_mutex_lock(&pool.lock);
    for (;;) {
        if (pool.queue == NULL && is_soon && pool.awake == 0 && pool.alone == 0)
            wait_awake();
        while (pool.queue == NULL)
            pthread_cond_wait(&pool.queued, &pool.lock);
        lot *l = pool.queue;
        is_soon = now_us() - finished_us < AWAKE_US;
        if (--l->helpers_wanted == 0)
            unqueue(l);
        if (++pool.in_time == ENOUGH_IN_TIME)
            pool.next_alone = FEWEST_ALONE;
        work(l);
        finished_us = now_us();
    }
    return NULL;
}

/* Start threads until there are as many as wanted. The caller holds the lock. Without them `results` does all. */
static void start_threads(int wanted)
{
    sigset_t all, before;
    pthread_t thread;

    sigfillset(&all); /* signals are for threads of Python, which they wake */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.threads < wanted && pthread_create(&thread, NULL, help, NULL) == 0) {
        pthread_detach(thread);
        pool.threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Give a lot to the threads, and wake as many as may help. */
static void queue(lot *l)
{
    lot *last;
    int to_wake;

    pthread_mutex_lock(&pool.lock);
    l->forks = pool.forks;
    if (l->number == 1 && pool.alone > 0) {
        pool.alone--;
        l->helpers_wanted = 0;
    }
    to_wake = l->helpers_wanted - pool.awake;
    if (l->helpers_wanted > 0) {
        if (pool.threads < l->helpers_wanted)
            start_threads(l->helpers_wanted);
        for (last = pool.queue; last != NULL && last->next != NULL;)
            last = last->next;
        if (last == NULL)
            pool.queue = l;
        else
            last->next = l;
    }
    pthread_mutex_unlock(&pool.lock);
    for (; to_wake > 0; to_wake--)
        pthread_cond_signal(&pool.queued);
}

/* Wait until no thread works on a lot, nor will. The caller holds the lock. */
static void wait_for_helpers(lot *l)
{
    unqueue(l);
    while (l->working > 0)
        pthread_cond_wait(&pool.finished, &pool.lock);
}

/* Tell whether the threads verified all posts of a lot, and take it out of the queue if they did. */
static int is_finished(lot *l)
{
    int is_finished;

    pthread_mutex_lock(&pool.lock);
    is_finished = l->taken == l->number && l->working == 0 && l->forks == pool.forks;
    if (is_finished)
        unqueue(l);
    pthread_mutex_unlock(&pool.lock);
    return is_finished;
}

static void destroy(PyObject *capsule)
{
    lot *l = PyCapsule_GetPointer(capsule, LOT);

    if (!is_finished(l)) {
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&pool.lock);
        l->taken = l->number;
        if (l->forks == pool.forks) /* else it was the parent's threads that worked on it */
            wait_for_helpers(l);
        pthread_mutex_unlock(&pool.lock);
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(l->raws);
    PyMem_Free(l);
}

static PyObject *begin(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long address;
    PyObject *raws, *capsule;
    Py_ssize_t number;
    int threads;
    lot *l;

    if (!PyArg_ParseTuple(args, "KO!i:begin", &address, &PyTuple_Type, &raws, &threads))
        return NULL;
    number = PyTuple_Size(raws);
    l = PyMem_Calloc(1, sizeof(lot) + (size_t)number * sizeof(post));
    if (l == NULL)
        return PyErr_NoMemory();
    l->open = (sign_open)(uintptr_t)address;
    l->number = number;
    l->largest = 1;
    for (Py_ssize_t i = 0; i < number; i++) {
        char *bytes;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(raws, i), &bytes, &l->posts[i].size) < 0) {
            PyMem_Free(l);
            return NULL;
        }
        l->posts[i].bytes = (const unsigned char *)bytes;
        if (l->posts[i].size > l->largest)
            l->largest = l->posts[i].size;
    }
    capsule = PyCapsule_New(l, LOT, destroy);
    if (capsule == NULL) {
        PyMem_Free(l);
        return NULL;
    }
    l->raws = Py_NewRef(raws);
    l->threads = threads < 1 ? 1 : threads;
    l->helpers_wanted = l->threads - 1;
    if (l->helpers_wanted > 0 && number > 0)
        queue(l);
    else
        l->forks = pool.forks;
    return capsule;
}

static PyObject *results(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    lot *l = PyCapsule_GetPointer(capsule, LOT);
    PyObject *found;
    int is_done;

    if (l == NULL)
        return NULL;
    is_done = is_finished(l);
    if (!is_done) {
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&pool.lock);
        if (l->forks != pool.forks) { /* in a child: the threads at work on it were the parent's */
            l->forks = pool.forks;
            l->taken = 0;
            l->working = 0;
        }
        int is_late = l->number == 1 && l->helpers_wanted > 0; /* no thread took it */
        work(l);
        int64_t asked_us = now_us();
        wait_for_helpers(l);
        if (is_late || (l->number == 1 && now_us() - asked_us > LATE_US))
            leave_alone();
        is_done = l->taken == l->number;
        pthread_mutex_unlock(&pool.lock);
        Py_END_ALLOW_THREADS
    }
    if (!is_done)
        return PyErr_NoMemory();
    found = PyList_New(l->number);
    for (Py_ssize_t i = 0; found != NULL && i < l->number; i++)
        PyList_SetItem(found, i, PyBool_FromLong(l->posts[i].is_signed));
    return found;
}

static void before_fork(void)
{
    pthread_mutex_lock(&pool.lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&pool.lock);
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.queued, NULL);
    pthread_cond_init(&pool.finished, NULL);
    pool.queue = NULL;
    pool.threads = pool.awake = pool.alone = 0;
    pool.forks++;
}

static int prepare(PyObject *Py_UNUSED(module))
{
    static int is_prepared;

    if (!is_prepared && pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    is_prepared = 1;
    return 0;
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS, "Begin to verify posts on up to this many threads. Returns what `results` takes."},
    {"results", results, METH_O, "Wait. Returns for each post whether its signature is right."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_signatures", "Verifies signatures on threads that never need Python's lock.", 0, methods,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__signatures(void)
{
    return PyModuleDef_Init(&definition);
}
