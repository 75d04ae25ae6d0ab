/* A team of threads that works through jobs; whoever has a core takes the next chunk.
 *
 * A job is a sequence of phases, and a phase a number of chunks that any thread may do in any
 * order. A phase begins when every chunk of the one before is done, and whoever did the last of
 * them begins it. So nobody waits for a thread that holds no chunk: one that lost its core, or is
 * still waking up, holds nobody up. A phase of one chunk is done at once by whoever begins it.
 */
#ifndef EVENHAND_TEAM_H
#define EVENHAND_TEAM_H

#include <stdint.h>

typedef struct {
    /* How many chunks, below EVH_MAX_CHUNKS, the phase has; EVH_JOB_DONE: there is no such phase.
     * Called once for each phase in order, with nobody inside `work`. */
    int64_t (*begin)(void *argument, int64_t phase);
    /* Do one chunk; `worker` is at least 0 and below the team's number of threads. */
    void (*work)(void *argument, int64_t phase, int64_t chunk, int32_t worker);
    void *argument;
} evh_job;

enum { EVH_JOB_DONE = -1, EVH_MAX_CHUNKS = 1 << 23, EVH_MAX_THREADS = 1024 };

typedef struct evh_team evh_team;

#pragma GCC visibility push(default)

/* A team of `threads`, the caller of evh_team_run included; NULL if the system has no more threads
 * or `threads` is out of range. With `pin`, where the system can, every thread has a core of its
 * own out of those the process may use; a caller keeps its core only while a job runs. */
evh_team *evh_team_create(int32_t threads, int32_t pin);

/* End the threads and wait for them; no job may be running. In a forked child: does nothing. */
void evh_team_destroy(evh_team *team);

/* Whether the team's threads are in this process: a forked child has none of them. */
int32_t evh_team_is_here(const evh_team *team);

int32_t evh_team_threads(const evh_team *team);

/* Do the whole job, the caller taking part as worker 0; a second caller waits for its turn. The
 * team must be here. */
void evh_team_run(evh_team *team, const evh_job *job);

#pragma GCC visibility pop


#endif
