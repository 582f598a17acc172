# needs: musl-gcc
set -e
cat > m.c << 'END'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void *same(void *x) { return x; }
int main(void) {
    pthread_t thread;
    void *result;
    int ends[2], status;
    struct stat about;
    struct timespec pause = {0, 1000000};
    if (pthread_create(&thread, 0, same, (void *)7) || pthread_join(thread, &result)) return 1;
    if (pipe(ends) || lstat("/", &about) || nanosleep(&pause, 0)) return 2;
    pid_t child = fork();
    if (child == 0) _exit(3);
    if (child < 0 || waitpid(child, &status, 0) != child) return 4;
    printf("%ld %d\n", (long)result, WEXITSTATUS(status));
    fflush(stdout);
    return system("echo sub");
}
END
musl-gcc -static m.c -o m
./m
