/* Jobs whose every chunk reads what all chunks of the phase before wrote, without any atomics of
 * its own: a thread sanitizer sees whether a team orders phases. Prints how many chunks were done.
 */
#include "team.h"

#include <stdio.h>
#include <time.h>

enum { PHASES = 60, CHUNKS = 12, JOBS = 200 };

static int64_t cells[2][CHUNKS];

static int64_t begin(void *argument, int64_t phase)
{
    (void)argument;
    if (phase == PHASES)
        return EVH_JOB_DONE;
    return phase % 3 == 2 ? 1 : CHUNKS;
}

/* Every cell becomes one more than all cells were: after p phases each is p. */
static void work(void *argument, int64_t phase, int64_t chunk, int32_t worker)
{
    const int64_t *before = cells[phase % 2];
    int64_t *after = cells[(phase + 1) % 2], sum = 0;
    (void)argument, (void)worker;
    for (int i = 0; i < CHUNKS; i++)
        sum += before[i];
    for (int i = 0; i < CHUNKS; i++)
        if (phase % 3 == 2 || i == chunk)
            after[i] = sum / CHUNKS + 1;
}

int main(void)
{
    evh_team *team = evh_team_create(3, 1);
    evh_job job = {begin, work, NULL};
    if (!team)
        return 1;
    for (int64_t done = 0; done < JOBS; done++) {
        if (done % 50 == 49) { /* longer than threads stay awake */
            struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
            nanosleep(&pause, NULL);
        }
        evh_team_run(team, &job);
        for (int i = 0; i < CHUNKS; i++)
            if (cells[PHASES % 2][i] != (done + 1) * PHASES)
                return 2;
    }
    evh_team_destroy(team);
    printf("%d\n", JOBS * PHASES);
    return 0;
}
