/* Preloaded into a process, it lets the k-th call of one kind fail, or records every change to files
 * beneath the watched folders. Python, C++ and Rust all reach the disk through these functions.
 *
 * The record: "name\tpath\tother\tnumber\tbytes\n", then that many bytes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, MKDIR, LINK, UNLINK, KINDS };

static char roots[4096]; /* each ends with ':' */
static atomic_int counts[KINDS];
static int kind_to_fail = -1, call_to_fail, error_to_give;
static char failed_path[PATH_MAX];
static int record = -1;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

void faults_watch(const char *folders) { snprintf(roots, sizeof roots, "%s", folders); }

void faults_fail(int kind, int call, int error) {
    for (int i = 0; i < KINDS; i++) counts[i] = 0;
    failed_path[0] = 0;
    call_to_fail = call, error_to_give = error, kind_to_fail = kind;
}

int faults_count(int kind) { return counts[kind]; }
const char *faults_failed(void) { return failed_path; }
void faults_record(int descriptor) { record = descriptor; }

static void put(const void *data, size_t size) {
    for (const char *at = data; size;) {
        long done = syscall(SYS_write, record, at, size);
        if (done <= 0) abort();
        at += done, size -= done;
    }
}

static void note(const char *name, const char *path, const char *other, long long number,
                 const void *data, size_t size) {
    if (record < 0) return;
    char head[2 * PATH_MAX + 100];
    int length = snprintf(head, sizeof head, "%s\t%s\t%s\t%lld\t%zu\n", name, path, other, number, size);
    int before = errno;
    pthread_mutex_lock(&turn);
    put(head, length);
    put(data, size);
    pthread_mutex_unlock(&turn);
    errno = before;
}

void faults_mark(const char *text) { note("mark", "", "", 0, text, strlen(text)); }

static int is_watched(const char *path) {
    for (const char *root = roots, *end; (end = strchr(root, ':')); root = end + 1) {
        size_t size = end - root;
        if (!strncmp(path, root, size) && (path[size] == '/' || !path[size])) return 1;
    }
    return 0;
}

static int of_descriptor(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int before = errno;
    long size = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    errno = before;
    path[size > 0 ? size : 0] = 0;
    return size > 0 && is_watched(path) && !strstr(path, " (deleted)");
}

static int of_name(int folder, const char *name, char *path) {
    char base[PATH_MAX] = "";
    if (!roots[0] || !name) return 0;
    if (name[0] != '/') {
        if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !of_descriptor(folder, base)) return 0;
        strcat(base, "/");
    }
    snprintf(path, PATH_MAX, "%.2000s%.2000s", base, name);
    return is_watched(path);
}

static int fails(int kind, const char *path) {
    if (kind_to_fail < 0) return 0;
    int call = atomic_fetch_add(&counts[kind], 1) + 1;
    if (kind != kind_to_fail || call != call_to_fail) return 0;
    snprintf(failed_path, sizeof failed_path, "%s", path);
    errno = error_to_give;
    return 1;
}

static int exists(const char *path) {
    struct stat facts;
    int before = errno, found = !syscall(SYS_newfstatat, AT_FDCWD, path, &facts, AT_SYMLINK_NOFOLLOW);
    errno = before;
    return found;
}

static int is_folder(int descriptor) {
    struct stat facts;
    return !fstat(descriptor, &facts) && S_ISDIR(facts.st_mode);
}

/* Bytes that a file has now, wherever they came from. */
static void note_content(const char *name, const char *path, long long start, long long size) {
    if (record < 0) return;
    int before = errno, file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    struct stat facts;
    if (file >= 0 && !fstat(file, &facts)) {
        if (size < 0) size = facts.st_size;
        char *data = malloc(size + 1);
        long got = syscall(SYS_pread64, file, data, size, start);
        note(name, path, "", start, data, got > 0 ? got : 0);
        free(data);
    }
    if (file >= 0) syscall(SYS_close, file);
    errno = before;
}

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!of_name(folder, name, path)) return syscall(SYS_openat, folder, name, flags, mode);
    if (fails(OPEN, path)) return -1;
    int there = exists(path), file = syscall(SYS_openat, folder, name, flags, mode);
    if (file >= 0 && (flags & O_CREAT) && !there) note("create", path, "", 0, "", 0);
    if (file >= 0 && (flags & O_TRUNC) && there) note("truncate", path, "", 0, "", 0);
    return file;
}

#define MODE                                                       \
    mode_t mode = 0;                                               \
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {          \
        va_list rest;                                              \
        va_start(rest, flags), mode = va_arg(rest, mode_t), va_end(rest); \
    }
int open(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE return opened(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE return opened(at, name, flags, mode); }
int __open_2(const char *name, int flags) { return opened(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return opened(AT_FDCWD, name, flags, 0); }

static FILE *streamed(const char *real, const char *name, const char *how) {
    char path[PATH_MAX];
    FILE *(*function)(const char *, const char *) = dlsym(RTLD_NEXT, real);
    if (!of_name(AT_FDCWD, name, path)) return function(name, how);
    if (fails(OPEN, path)) return NULL;
    int there = exists(path);
    FILE *file = function(name, how);
    if (file && how[0] != 'r') note(there ? "truncate" : "create", path, "", 0, "", 0);
    return file;
}
FILE *fopen(const char *name, const char *how) { return streamed("fopen", name, how); }
FILE *fopen64(const char *name, const char *how) { return streamed("fopen64", name, how); }

DIR *opendir(const char *name) {
    char path[PATH_MAX];
    DIR *(*function)(const char *) = dlsym(RTLD_NEXT, "opendir");
    return of_name(AT_FDCWD, name, path) && fails(OPEN, path) ? NULL : function(name);
}

/* The call that fails has written half of its bytes, as on a disk that becomes full; one that was
 * interrupted has written nothing. */
static ssize_t written(int file, const void *data, size_t size, off_t place) {
    char path[PATH_MAX];
    int at_place = place >= 0, watched = of_descriptor(file, path), bad = watched && fails(WRITE, path);
    int error = errno;
    if (bad && error == EINTR) return -1;
    if (bad) size /= 2;
    ssize_t done = at_place ? syscall(SYS_pwrite64, file, data, size, place)
                            : syscall(SYS_write, file, data, size);
    if (watched && done > 0) {
        long long start = at_place ? place : lseek(file, 0, SEEK_CUR) - done;
        note("write", path, "", start, data, done);
    }
    if (bad) return errno = error, -1;
    return done;
}
ssize_t write(int file, const void *data, size_t size) { return written(file, data, size, -1); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return written(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return written(file, data, size, at);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!of_descriptor(file, path)) return syscall(SYS_writev, file, parts, count);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = written(file, parts[i].iov_base, parts[i].iov_len, -1);
        if (done < 0) return total ? total : -1;
        total += done;
    }
    return total;
}

ssize_t sendfile64(int out, int in, off64_t *place, size_t size) {
    char path[PATH_MAX];
    int watched = of_descriptor(out, path);
    if (watched && fails(WRITE, path)) return -1;
    long long start = watched ? lseek(out, 0, SEEK_CUR) : 0;
    ssize_t done = syscall(SYS_sendfile, out, in, place, size);
    if (watched && done > 0) note_content("write", path, start, done);
    return done;
}
ssize_t sendfile(int out, int in, off_t *place, size_t size) { return sendfile64(out, in, place, size); }

int ftruncate(int file, off_t size) {
    char path[PATH_MAX];
    int bad = syscall(SYS_ftruncate, file, size);
    if (!bad && of_descriptor(file, path)) note("truncate", path, "", size, "", 0);
    return bad;
}
int ftruncate64(int file, off64_t size) { return ftruncate(file, size); }

int fsync(int file) {
    char path[PATH_MAX];
    if (!of_descriptor(file, path)) return syscall(SYS_fsync, file);
    if (fails(FSYNC, path)) return -1;
    int bad = syscall(SYS_fsync, file);
    if (!bad && is_folder(file)) note("fsync-folder", path, "", 0, "", 0);
    else if (!bad) note_content("fsync", path, 0, -1);
    return bad;
}
int fdatasync(int file) { return fsync(file); }

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    char before[PATH_MAX], after[PATH_MAX];
    int watched = of_name(from, old, before) && of_name(to, new, after);
    if (watched && fails(RENAME, before)) return -1;
    int bad = syscall(SYS_renameat2, from, old, to, new, flags);
    if (!bad && watched) note(flags & 2 ? "exchange" : "rename", before, after, 0, "", 0);
    return bad;
}
int renameat(int from, const char *old, int to, const char *new) {
    return renameat2(from, old, to, new, 0);
}
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    int watched = of_name(folder, name, path);
    if (watched && fails(MKDIR, path)) return -1;
    int bad = syscall(SYS_mkdirat, folder, name, mode);
    if (!bad && watched) note("mkdir", path, "", 0, "", 0);
    return bad;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char before[PATH_MAX], after[PATH_MAX];
    int watched = of_name(from, old, before) && of_name(to, new, after);
    if (watched && fails(LINK, after)) return -1;
    int bad = syscall(SYS_linkat, from, old, to, new, flags);
    if (!bad && watched) note("link", before, after, 0, "", 0);
    return bad;
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    int watched = of_name(folder, name, path);
    if (watched && fails(UNLINK, path)) return -1;
    int bad = syscall(SYS_unlinkat, folder, name, flags);
    if (!bad && watched) note("unlink", path, "", 0, "", 0);
    return bad;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
