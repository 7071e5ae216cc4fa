/* Every process of it forks for as long as it is let. Only for a sandbox with
   a limit. Ends after a minute. */

#include <sched.h>
#include <time.h>
#include <unistd.h>

int main(void) {
    time_t end = time(NULL) + 60;
    while (time(NULL) < end)
        if (fork() < 0)
            sched_yield();
    return 0;
}
