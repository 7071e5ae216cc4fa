/* fork_chain DIRECTORY CHAINS SECONDS [sessions]

   Each chain is one process at a time, which counts in DIRECTORY/N, forks a successor and exits. No
   list of processes is true for longer than that takes. With `sessions`, each has one of its own.
   Ends when DIRECTORY/stop is there, or after SECONDS.

   Waits for the one before the last to be reaped: a chain that is faster than its reaper would fill
   the machine with the dead. */

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void run(int count, const char *stop, time_t end, int sessions) {
    struct stat found;
    pid_t before = 0, last = 0;
    for (long n = 1;; n++) {
        char line[32];
        int length = snprintf(line, sizeof line, "%012ld\n", n);
        if (pwrite(count, line, length, 0) != length || stat(stop, &found) == 0 || time(NULL) > end)
            _exit(0);
        while (before != 0 && kill(before, 0) == 0 && time(NULL) <= end)
            sched_yield();
        before = last;
        last = getpid();
        pid_t child;
        while ((child = fork()) < 0 && time(NULL) <= end)
            sched_yield();
        if (child != 0)
            _exit(0);
        if (sessions)
            setsid();
    }
}

int main(int argc, char **argv) {
    int sessions = argc > 4;
    if (argc < 4 || chdir(argv[1]) != 0)
        return 2;
    for (int chain = 0; chain < atoi(argv[2]); chain++) {
        char name[32];
        snprintf(name, sizeof name, "%d", chain);
        int count = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (count < 0)
            return 2;
        if (fork() == 0)
            run(count, "stop", time(NULL) + atoi(argv[3]), sessions);
    }
    return 0;
}
