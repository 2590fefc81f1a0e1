/* A disk that fails: preloaded into a process (LD_PRELOAD), it lets one write or sync of the files
 * whose name holds FAULT_FILE go wrong, counted from 1, or that one and all that come after it.
 *
 * FAULT_AT     which one; 0: none, but all are counted
 * FAULT_ERRNO  what it says, as a number
 * FAULT_FOR    how many go wrong, from that one on
 * FAULT_COUNT  a file that is told how many there were
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long num_seen;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int is_watched(int fd) {
    char link[64], path[4096];
    const char *part = getenv("FAULT_FILE");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!part || length < 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

static int fails(int fd) {
    if (!is_watched(fd)) return 0;
    long number = atomic_fetch_add(&num_seen, 1) + 1, at = setting("FAULT_AT", 0);
    if (at == 0 || number < at || number >= at + setting("FAULT_FOR", 1)) return 0;
    errno = (int)setting("FAULT_ERRNO", EIO);
    return 1;
}

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("FAULT_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld", atomic_load(&num_seen));
    fclose(file);
}

#define WATCH(type, name, parameters, arguments)                        \
    type name parameters {                                              \
        static type(*real) parameters;                                  \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name);  \
        return fails(fd) ? (type)-1 : real arguments;                   \
    }

WATCH(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size))
WATCH(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
WATCH(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
WATCH(int, fsync, (int fd), (fd))
WATCH(int, fdatasync, (int fd), (fd))
WATCH(int, ftruncate, (int fd, off_t size), (fd, size))
WATCH(int, ftruncate64, (int fd, off64_t size), (fd, size))
