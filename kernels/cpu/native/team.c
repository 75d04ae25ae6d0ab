/* How threads share chunks, wait for the next ones, and sleep when there are none.
 *
 * One word, the ticket, says all: the number of the phase and how many of its chunks nobody has
 * claimed. Claiming is a compare-and-swap that takes one off, so a thread that looked away for any
 * time can only fail. A claimed chunk keeps its phase from ending, so what the phase refers to may
 * be read after the claim, and only then.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* thread affinity */
#endif
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* How long a thread spins, then yields, before it sleeps. Gaps within a step are a few
 * microseconds; between the steps of a busy engine they are a few hundred. */
enum { SPIN_NS = 20 * 1000, AWAKE_NS = 1000 * 1000, SPINS_PER_LOOK = 32 };

/* The ticket: phases begun << TICKET_BITS | IDLE while no job runs | chunks unclaimed. */
enum { TICKET_BITS = 24, IDLE = EVH_MAX_CHUNKS, UNCLAIMED = EVH_MAX_CHUNKS - 1 };

typedef struct {
    pthread_t thread;
    evh_team *team;
    int32_t number;
} worker;

struct evh_team {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int64_t unfinished; /* chunks of this phase that are not done */
    _Alignas(64) evh_job job;                /* these three: written by whoever begins a phase */
    int64_t phase;
    int64_t chunks;
    _Alignas(64) _Atomic int32_t sleepers;
    _Atomic int32_t closing;
    int32_t threads;
    int32_t pinned;
    pid_t process;
    pthread_mutex_t turn; /* held by the caller whose job is running */
    pthread_mutex_t lock; /* guards going to sleep on `bell` */
    pthread_cond_t bell;
    worker *workers; /* [threads]; the first is the caller's place and has no thread */
};

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* --- cores ------------------------------------------------------------------------------------ */

#ifdef __linux__
typedef cpu_set_t cores;

/* Keep the calling thread on the process's core of this number; `before` gets where it might run. */
static int pin_to(int32_t number, cores *before)
{
    cores one;
    if (pthread_getaffinity_np(pthread_self(), sizeof *before, before))
        return 0;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, before) && number-- == 0) {
            CPU_SET(core, &one);
            return !pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        }
    return 0;
}

static void unpin(const cores *before)
{
    pthread_setaffinity_np(pthread_self(), sizeof *before, before);
}
#else
typedef int cores;

static int pin_to(int32_t number, cores *before)
{
    (void)number, (void)before;
    return 0;
}

static void unpin(const cores *before)
{
    (void)before;
}
#endif

/* --- waiting ---------------------------------------------------------------------------------- */

static uint64_t look(evh_team *team)
{
    return atomic_load_explicit(&team->ticket, memory_order_acquire);
}

/* Sequentially consistent with `sleep_until_changed`: either this sees the sleeper, or the sleeper
 * sees the new ticket. */
static void publish(evh_team *team, uint64_t ticket)
{
    atomic_store(&team->ticket, ticket);
    if (atomic_load(&team->sleepers)) {
        pthread_mutex_lock(&team->lock);
        pthread_cond_broadcast(&team->bell);
        pthread_mutex_unlock(&team->lock);
    }
}

static void sleep_until_changed(evh_team *team, uint64_t seen)
{
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->ticket) == seen && !atomic_load(&team->closing))
        pthread_cond_wait(&team->bell, &team->lock);
    atomic_fetch_sub(&team->sleepers, 1);
    pthread_mutex_unlock(&team->lock);
}

/* Spin: an answer is usually near. Then yield: whoever else needs this core gets it. Then sleep. */
static void wait_for_change(evh_team *team, uint64_t seen)
{
    int64_t began = now_ns();
    for (int64_t waited = 0; waited < AWAKE_NS; waited = now_ns() - began) {
        for (int spin = 0; spin < SPINS_PER_LOOK; spin++) {
            if (look(team) != seen)
                return;
            pause_core();
        }
        if (waited > SPIN_NS)
            sched_yield();
    }
    sleep_until_changed(team, seen);
}

/* --- working ---------------------------------------------------------------------------------- */

/* Begin the next phase that needs more than one chunk, doing those of one here and now. */
static void advance(evh_team *team, int32_t number)
{
    uint64_t begun = (look(team) >> TICKET_BITS) + 1;
    for (;;) {
        team->phase++;
        team->chunks = team->job.begin(team->job.argument, team->phase);
        if (team->chunks == EVH_JOB_DONE) {
            publish(team, begun << TICKET_BITS | IDLE);
            return;
        }
        if (team->chunks > 1) {
            atomic_store_explicit(&team->unfinished, team->chunks, memory_order_relaxed);
            publish(team, begun << TICKET_BITS | (uint64_t)team->chunks);
            return;
        }
        if (team->chunks == 1)
            team->job.work(team->job.argument, team->phase, 0, number);
    }
}

/* Do one chunk of the phase that the ticket tells of, if there is one left. */
static void claim(evh_team *team, uint64_t ticket, int32_t number)
{
    int64_t unclaimed = (int64_t)(ticket & UNCLAIMED);
    if (!atomic_compare_exchange_strong_explicit(&team->ticket, &ticket, ticket - 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return;
    team->job.work(team->job.argument, team->phase, team->chunks - unclaimed, number);
    if (atomic_fetch_sub_explicit(&team->unfinished, 1, memory_order_acq_rel) == 1)
        advance(team, number);
}

static void take_part(evh_team *team, uint64_t ticket, int32_t number)
{
    if (ticket & UNCLAIMED)
        claim(team, ticket, number);
    else
        wait_for_change(team, ticket);
}

void evh_team_run(evh_team *team, const evh_job *job)
{
    cores before;
    uint64_t ticket;
    pthread_mutex_lock(&team->turn);
    int pinned = team->pinned && pin_to(0, &before);
    team->job = *job;
    team->phase = -1;
    advance(team, 0);
    while (!((ticket = look(team)) & IDLE))
        take_part(team, ticket, 0);
    if (pinned)
        unpin(&before);
    pthread_mutex_unlock(&team->turn);
}

/* --- a team's life ---------------------------------------------------------------------------- */

static void *worker_main(void *argument)
{
    worker *self = argument;
    cores before;
    if (self->team->pinned)
        pin_to(self->number, &before);
    while (!atomic_load(&self->team->closing))
        take_part(self->team, look(self->team), self->number);
    return NULL;
}

/* Start the workers with all signals blocked: those are for threads that expect them. */
static int32_t start_workers(evh_team *team)
{
    sigset_t all, before;
    int32_t started = 1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; started < team->threads; started++) {
        worker *next = &team->workers[started];
        next->team = team;
        next->number = started;
        if (pthread_create(&next->thread, NULL, worker_main, next))
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

evh_team *evh_team_create(int32_t threads, int32_t pin)
{
    if (threads < 1 || threads > EVH_MAX_THREADS)
        return NULL;
    evh_team *team = aligned_alloc(_Alignof(evh_team), sizeof *team);
    worker *workers = calloc((size_t)threads, sizeof *workers);
    if (!team || !workers) {
        free(workers);
        free(team);
        return NULL;
    }
    *team = (evh_team){.ticket = IDLE, .threads = threads, .pinned = pin, .process = getpid(),
                       .workers = workers};
    pthread_mutex_init(&team->turn, NULL);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->bell, NULL);
    int32_t started = start_workers(team);
    if (started == threads)
        return team;
    team->threads = started;
    evh_team_destroy(team);
    return NULL;
}

void evh_team_destroy(evh_team *team)
{
    if (!evh_team_is_here(team))
        return; /* its memory is the child's copy of what threads elsewhere use; they end there */
    pthread_mutex_lock(&team->lock);
    atomic_store(&team->closing, 1);
    pthread_cond_broadcast(&team->bell);
    pthread_mutex_unlock(&team->lock);
    for (int32_t number = 1; number < team->threads; number++)
        pthread_join(team->workers[number].thread, NULL);
    pthread_cond_destroy(&team->bell);
    pthread_mutex_destroy(&team->lock);
    pthread_mutex_destroy(&team->turn);
    free(team->workers);
    free(team);
}

int32_t evh_team_is_here(const evh_team *team)
{
    return team->process == getpid();
}

int32_t evh_team_threads(const evh_team *team)
{
    return team->threads;
}
