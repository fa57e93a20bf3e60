/* Makes the n-th write below a folder fail, for scripts/reliability.py: loaded with LD_PRELOAD, armed through
 * ctypes. "Write" is whatever changes a disk: writing, syncing, creating, renaming. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ONCE, FROM_THEN_ON, HALF_THEN_NO_MORE };

static char below[PATH_MAX];
static long at = -1, count;
static int error, manner, only_renames;

void failing_writes_arm(const char *folder, long n, int number, int how, int renames) {
    snprintf(below, sizeof below, "%s", folder);
    at = n, error = number, manner = how, only_renames = renames, count = 0;
}

long failing_writes_count(void) { return count; }

static int is_below(const char *path) { return below[0] && !strncmp(path, below, strlen(below)); }

static int names_below(int directory, const char *path) {
    char whole[2 * PATH_MAX], base[PATH_MAX];
    if (path[0] == '/') return is_below(path);
    char link[64];
    snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
    ssize_t n = readlink(link, base, sizeof base - 1);
    if (n < 0) return 0;
    base[n] = 0;
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    return is_below(whole);
}

static int file_below(int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return is_below(path);
}

/* 0: goes ahead. 1: fails. 2: writes half. */
static int verdict(int is_rename) {
    if (at < 0 || (only_renames && !is_rename)) return 0;
    long own = ++count;
    if (own < at || !at) return 0;
    if (own == at) return manner == HALF_THEN_NO_MORE && !is_rename ? 2 : 1;
    return manner != ONCE;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL return errno = error, -1

ssize_t write(int file, const void *bytes, size_t size) {
    REAL(write);
    switch (file_below(file) ? verdict(0) : 0) {
        case 1: FAIL;
        case 2: return real(file, bytes, size > 1 ? size / 2 : size);
        default: return real(file, bytes, size);
    }
}

ssize_t writev(int file, const struct iovec *parts, int number) {
    REAL(writev);
    if (file_below(file) && verdict(0)) FAIL;
    return real(file, parts, number);
}

#define POSITIONED(name, offset_t)                                                 \
    ssize_t name(int file, const void *bytes, size_t size, offset_t offset) {      \
        REAL(name);                                                                \
        if (file_below(file) && verdict(0)) FAIL;                                  \
        return real(file, bytes, size, offset);                                    \
    }
POSITIONED(pwrite, off_t)
POSITIONED(pwrite64, off64_t)

#define SYNC(name)                                \
    int name(int file) {                          \
        REAL(name);                               \
        if (file_below(file) && verdict(0)) FAIL; \
        return real(file);                        \
    }
SYNC(fsync)
SYNC(fdatasync)

#define OPEN(name)                                                                      \
    int name(const char *path, int flags, ...) {                                        \
        REAL(name);                                                                     \
        va_list rest;                                                                   \
        va_start(rest, flags);                                                          \
        mode_t mode = va_arg(rest, mode_t);                                             \
        va_end(rest);                                                                   \
        if (flags & O_CREAT && names_below(AT_FDCWD, path) && verdict(0) == 1) FAIL;    \
        return real(path, flags, mode);                                                 \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                    \
    int name(int directory, const char *path, int flags, ...) {                         \
        REAL(name);                                                                     \
        va_list rest;                                                                   \
        va_start(rest, flags);                                                          \
        mode_t mode = va_arg(rest, mode_t);                                             \
        va_end(rest);                                                                   \
        if (flags & O_CREAT && names_below(directory, path) && verdict(0) == 1) FAIL;   \
        return real(directory, path, flags, mode);                                      \
    }
OPENAT(openat)
OPENAT(openat64)

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (names_below(AT_FDCWD, path) && verdict(0) == 1) FAIL;
    return real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    if (names_below(AT_FDCWD, to) && verdict(1)) FAIL;
    return real(from, to);
}
