/* Files as other programs read them: buffered, mapped, directly with one buffer. The only file of the bench that asks
 * the operating system itself. Inside the bench. */
#ifndef SL_BENCH_RAWFILE_H
#define SL_BENCH_RAWFILE_H

#include "bench/machine.h"

typedef struct bench_rawfile {
    int fd; /* -1: not open */
    uint64_t bytes;
    void *map; /* NULL: not mapped */
} bench_rawfile;

/* A temporary file in dir, named for the moment of its making only. */
sl_status bench_rawfile_create(const char *dir, bench_rawfile *out, sl_err *err) SL_CHECK;
void bench_rawfile_close(bench_rawfile *file);
sl_status bench_rawfile_write(bench_rawfile *file, const void *data, size_t bytes, uint64_t off, sl_err *err) SL_CHECK;

/* Unmaps, waits until everything is on the disk, and has the page cache forget it. */
sl_status bench_rawfile_forget(bench_rawfile *file, sl_err *err) SL_CHECK;
/* All of it, with the advice that it is read from front to back. */
sl_status bench_rawfile_map(bench_rawfile *file, const uint8_t **out, sl_err *err) SL_CHECK;

/* The unnamed file of this process that holds at least `bytes` bytes, opened once more for reading, with or without
 * direct I/O. SL_REFUSED where the system has no way to do that. */
sl_status bench_rawfile_open_unnamed(uint64_t bytes, bool direct, bench_rawfile *out, sl_err *err) SL_CHECK;
/* The path under which another process of the same user can open it, until it is closed here. */
void bench_rawfile_path(const bench_rawfile *file, char *out, size_t capacity);

/* One read call; *moved < bytes at the end of the file. */
sl_status bench_rawfile_read(const bench_rawfile *file, void *buf, size_t bytes, uint64_t off, size_t *moved,
                             sl_err *err) SL_CHECK;

/* Runs a program found on PATH and takes its standard output. SL_REFUSED: there is none of that name. */
sl_status bench_run_program(char *const argv[], char *out, size_t capacity, sl_err *err) SL_CHECK;

#endif
