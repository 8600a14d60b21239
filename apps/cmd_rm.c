/* sluice rm: removes context files, and nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "prefill_file.h"

enum { WIPE_BYTES = 1 << 20 };

static sl_status failed(const char *path, const char *what, sl_err *err)
{
    return sl_text_error(err, SL_FAILED, "%s: cannot be %s: %s", path, what, strerror(errno));
}

/* Zeros over all of it, on the disk before the name goes. */
static sl_status wipe(const char *path, sl_err *err)
{
    struct stat info;
    uint8_t *zeros = calloc(1, WIPE_BYTES);
    int fd = open(path, O_WRONLY);
    bool is_done = zeros && fd >= 0 && fstat(fd, &info) == 0;
    for (off_t off = 0; is_done && off < info.st_size;) {
        off_t left = info.st_size - off;
        ssize_t moved = pwrite(fd, zeros, left < WIPE_BYTES ? (size_t)left : WIPE_BYTES, off);
        if (moved > 0)
            off += moved;
        is_done = (moved > 0 || errno == EINTR) && !cli_interrupted(NULL);
    }
    is_done = is_done && fsync(fd) == 0;
    sl_status status = SL_OK;
    if (!is_done && cli_interrupted(NULL))
        status = sl_text_error(err, SL_CANCELLED, "%s: interrupted, partly wiped", path);
    else if (!is_done)
        status = failed(path, "wiped", err);
    if (fd >= 0)
        close(fd);
    free(zeros);
    return status;
}

/* What goes is a name; what would be wiped is a file, which other names may lead to. */
static sl_status check_name(const char *path, bool wants_wipe, sl_err *err)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return failed(path, "removed", err);
    if (S_ISLNK(info.st_mode))
        return sl_text_error(err, SL_REFUSED, "%s: a symbolic link; name the context itself", path);
    if (wants_wipe && S_ISREG(info.st_mode) && info.st_nlink > 1)
        return sl_text_error(err, SL_REFUSED, "%s: has %llu names; wiping it would wipe them all (without --wipe, "
                             "this name alone goes)", path, (unsigned long long)info.st_nlink);
    return SL_OK;
}

static sl_status remove_one(const char *path, bool wants_wipe, sl_err *err)
{
    sl_status named = check_name(path, wants_wipe, err);
    if (named != SL_OK)
        return named;
    /* Open for writing, so that nobody else is; a damaged context may go too, another file may not. */
    const sl_store_options options = {.path = path, .for_writing = true};
    sl_store *store = NULL;
    sl_status status = sl_store_open(NULL, &options, &store, err);
    sl_store_info info = {.is_finished = true};
    if (status == SL_OK)
        sl_store_get_info(store, &info);
    if (!info.is_finished)
        fprintf(stderr, "sluice: %s is unfinished: %llu of %llu tokens\n", path, (unsigned long long)info.n_tokens,
                (unsigned long long)info.intended_tokens);
    bool is_removable = status == SL_OK || (status == SL_DAMAGED && cli_is_context(path));
    if (is_removable)
        status = wants_wipe ? wipe(path, err) : SL_OK;
    if (is_removable && status == SL_OK && unlink(path) != 0)
        status = failed(path, "removed", err);
    sl_store_close(store);
    return status;
}

/* The unfinished replacement of a context, which 'prefill --replace' leaves beside it, has its text, too: wiped with
 * it. Before the context, so that an error leaves both to be asked for again. */
static sl_status wipe_replacement(const char *path, sl_err *err)
{
    char *beside = prefill_beside(path);
    if (!beside)
        return sl_text_error(err, SL_FAILED, "out of memory: %s", path);
    sl_status status = SL_OK;
    if (access(beside, F_OK) == 0 && cli_is_context(beside)) {
        status = remove_one(beside, true, err);
        if (status == SL_OK)
            fprintf(stderr, "sluice: %s, its unfinished replacement, is wiped and removed too\n", beside);
    }
    free(beside);
    return status;
}

static sl_status remove_named(const char *path, bool wants_wipe, sl_err *err)
{
    sl_status status = wants_wipe && cli_is_context(path) ? wipe_replacement(path, err) : SL_OK;
    return status == SL_OK ? remove_one(path, wants_wipe, err) : status;
}

int cmd_rm(int argc, char **argv, sl_err *err)
{
    bool wants_wipe = false;
    const sl_arg options[] = {
        {.name = "wipe", .kind = SL_ARG_KIND_FLAG, .out = &wants_wipe, .group = "Options",
         .help = "write zeros over the file first, and over BOOK.kv.new, an unfinished replacement, which goes too; a "
                 "disk that moves blocks may keep old ones"},
    };
    const sl_args_table table = {
        .usage = "sluice rm [--wipe] BOOK.kv [BOOK.kv...]",
        .about = "Removes context files. Anything else, and a context that is being written, is refused.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 1,
        .max_words = SL_ARGS_VALUES_MAX,
        .words_name = "BOOK.kv",
    };
    sl_args_result result;
    int code = SL_OK;
    if (!cli_parse(&table, argc, argv, &result, &code, err))
        return code;
    cli c;
    cli_init(&c); /* Ctrl-C ends between two writes */
    /* What cannot go keeps none of the others: each is named, the first one's reason is the exit code's. */
    sl_status status = SL_OK;
    for (size_t i = 0; status != SL_CANCELLED && i < result.n_words; i++) {
        sl_err why;
        sl_status removed = remove_named(result.words[i], wants_wipe, &why);
        if (removed == SL_OK)
            continue;
        if (status != SL_OK)
            fprintf(stderr, "sluice rm: %s\n", why.text);
        else
            *err = why;
        status = status == SL_OK || removed == SL_CANCELLED ? removed : status;
    }
    return (int)status;
}
