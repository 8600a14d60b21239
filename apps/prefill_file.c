#include "prefill_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_access.h"

/* ---------------------------------------------------------------------------------------- where two texts part */

enum { SHOWN_TOKENS = 12, SHOWN_BYTES = 44 };

typedef struct excerpt {
    char bytes[512];
    size_t n;
} excerpt;

static bool collect_begin(void *arg, const char *bytes, size_t size)
{
    excerpt *e = arg;
    size_t room = sizeof e->bytes - e->n;
    size = size < room ? size : room;
    memcpy(e->bytes + e->n, bytes, size);
    e->n += size;
    return e->n < sizeof e->bytes;
}

/* Keeps the last bytes. */
static bool collect_end(void *arg, const char *bytes, size_t size)
{
    excerpt *e = arg;
    size_t skipped = size > sizeof e->bytes ? size - sizeof e->bytes : 0, more = size - skipped;
    size_t kept = e->n < sizeof e->bytes - more ? e->n : sizeof e->bytes - more;
    memmove(e->bytes, e->bytes + e->n - kept, kept);
    memcpy(e->bytes + kept, bytes + skipped, more);
    e->n = kept + more;
    return true;
}

/* Tokens [from, to) as they can stand in a line: the end of the text, or its beginning; whole characters, no control
 * characters. A token may be a part of a character. */
static const char *show(const sl_engine *engine, const int32_t *ids, size_t from, size_t to, bool its_end,
                        char out[2 * SHOWN_BYTES])
{
    excerpt e = {.n = 0};
    bool (*collect)(void *arg, const char *bytes, size_t size) = its_end ? collect_end : collect_begin;
    if (to > from && sl_engine_detokenize(engine, ids + from, to - from, true, collect, &e, NULL) == SL_FAILED)
        e.n = 0;
    size_t first = its_end && e.n > SHOWN_BYTES ? e.n - SHOWN_BYTES : 0;
    const cli_excerpt part = {e.bytes, e.n, first, !its_end && e.n > SHOWN_BYTES ? SHOWN_BYTES : e.n};
    return cli_show_excerpt(&part, out, 2 * SHOWN_BYTES);
}

static size_t less(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

/* What the text is not. `same`: tokens that both begin with. */
static sl_status refuse_other(const prefill_request *q, const char *path, const sl_store_info *stored, size_t same,
                              const char *advice, sl_err *err)
{
    char there[2 * SHOWN_BYTES], here[2 * SHOWN_BYTES], before[2 * SHOWN_BYTES], of_all[48] = "";
    size_t n_there = (size_t)stored->n_tokens;
    if (!stored->is_finished)
        snprintf(of_all, sizeof of_all, " of %llu", (unsigned long long)stored->intended_tokens);
    if (same == q->n)
        return sl_text_error(err, SL_REFUSED,
                             "%s holds this text and more: %zu%s tokens, the new one is their first %zu%s", path,
                             n_there, of_all, q->n, advice);
    size_t end = same + SHOWN_TOKENS;
    show(q->engine, q->ids, less(same, SHOWN_TOKENS), same, true, before);
    show(q->engine, stored->ids, same, end < n_there ? end : n_there, false, there);
    show(q->engine, q->ids, same, end < q->n ? end : q->n, false, here);
    return sl_text_error(err, SL_REFUSED,
                         "%s holds another text: %zu%s tokens, the new one %zu; they differ from token %zu on: after "
                         "\"%s\" there comes \"%s\", here \"%s\"%s",
                         path, n_there, of_all, q->n, same, before, there, here, advice);
}

static size_t find_same(const prefill_request *q, const sl_store_info *stored)
{
    size_t same = 0;
    while (same < stored->n_tokens && same < q->n && stored->ids[same] == q->ids[same])
        same++;
    return same;
}

/* --------------------------------------------------------------------------------------------------------- room */

/* Before hours of work: the file will fit, on its disk and into what it may take, of which others have `beside`. */
static sl_status check_room(prefill_file *f, const prefill_request *q, uint64_t beside, sl_err *err)
{
    char need[SL_TEXT_NUMBER_BYTES], have[SL_TEXT_NUMBER_BYTES], old[SL_TEXT_NUMBER_BYTES];
    sl_context_options options = *q->options;
    options.store = f->store;
    sl_status status = sl_store_get_space(q->engine, f->path, &options, q->n, &f->space, err);
    if (status != SL_OK)
        return status;
    const sl_store_space *s = &f->space;
    uint64_t most = s->present_bytes > s->file_bytes ? s->present_bytes : s->file_bytes;
    sl_text_format_size(most, need);
    if (q->max_disk > 0 && most + beside > q->max_disk && beside > 0)
        return sl_text_error(err, SL_REFUSED, "%s: %zu tokens take %s beside the %s of %s, --max-disk allows %s",
                             f->path, q->n, need, sl_text_format_size(beside, old), q->output,
                             sl_text_format_size(q->max_disk, have));
    if (q->max_disk > 0 && most + beside > q->max_disk)
        return sl_text_error(err, SL_REFUSED, "%s: %zu tokens take %s, --max-disk allows %s", f->path, q->n, need,
                             sl_text_format_size(q->max_disk, have));
    uint64_t more = s->file_bytes > s->present_bytes ? s->file_bytes - s->present_bytes : 0;
    if (more > s->free_bytes)
        return sl_text_error(err, SL_REFUSED, "%s: needs %s more on its disk, %s are free there", f->path,
                             sl_text_format_size(more, need), sl_text_format_size(s->free_bytes, have));
    return SL_OK;
}

static uint64_t bytes_on_disk(const char *path)
{
    enum { STAT_BLOCK = 512 };
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_blocks * STAT_BLOCK : 0;
}

/* ------------------------------------------------------------------------------------------------------ opening */

static sl_status open_there(const prefill_request *q, const char *path, sl_store **out, sl_store_info *stored,
                            sl_err *err)
{
    const sl_store_options options = {.path = path, .for_writing = true,
                                      .buffered = q->options->io == SL_IO_BUFFERED, .max_tokens = q->n};
    sl_status status = sl_store_open(q->engine, &options, out, err);
    if (status != SL_OK)
        return status;
    sl_store_get_info(*out, stored);
    if (stored->note)
        fprintf(stderr, "sluice: warning: %s: %s\n", path, stored->note);
    if (stored->is_chat != q->options->store_chat)
        return sl_text_error(err, SL_REFUSED,
                             "%s: made %s --chat, and not replaced by a text %s: give another name (-o), or remove it "
                             "first ('sluice rm')",
                             path, stored->is_chat ? "with" : "without", stored->is_chat ? "without" : "with");
    if (q->any_cache && path == q->output) /* what takes its place shares with it */
        q->options->cache = stored->cache;
    return sl_store_match(*out, q->options, err);
}

/* A context that could not be made afterwards, too long or for want of memory, shall leave no file behind. */
static sl_status create(prefill_file *f, const prefill_request *q, sl_err *err)
{
    sl_plan plan;
    sl_context_options options = *q->options;
    options.keep = true;
    sl_status status = sl_engine_plan(q->engine, &options, 1, &plan, NULL, err);
    if (status == SL_OK)
        status = sl_store_create(q->engine, f->path, q->options, &f->store, err);
    f->is_new = status == SL_OK;
    return status;
}

/* The second file, made or found, with what both texts share. */
static sl_status open_beside(prefill_file *f, const prefill_request *q, size_t n_shared, sl_err *err)
{
    sl_store_info stored;
    f->path = f->beside;
    bool is_there = access(f->beside, F_OK) == 0;
    sl_status status = SL_OK;
    if (is_there)
        status = open_there(q, f->beside, &f->store, &stored, err);
    if (status == SL_OK && is_there) {
        f->n_kept = find_same(q, &stored);
        if (f->n_kept < stored.n_tokens)
            return refuse_other(q, f->beside, &stored, f->n_kept,
                                "; it was begun by 'sluice prefill --replace': finish it with its texts or remove it",
                                err);
    }
    if (status == SL_OK)
        status = check_room(f, q, bytes_on_disk(f->real), err);
    if (status == SL_OK && !is_there) {
        file_access access;
        file_access_begin(&access, f->real);
        status = create(f, q, err);
        file_access_end(&access, status == SL_OK ? f->path : NULL);
    }
    if (status != SL_OK)
        return status;
    const sl_store_share_options share = {f->old, n_shared, q->progress, q->arg};
    status = sl_store_share(f->store, &share, &f->shared, err);
    f->n_kept += (size_t)f->shared.n_tokens;
    f->space.written_bytes -= f->space.written_bytes > f->shared.shared_bytes ? f->shared.shared_bytes : 0;
    return status;
}

/* The file that is there is not the text's, and shall be replaced. */
static sl_status open_replacement(prefill_file *f, const prefill_request *q, size_t same, sl_err *err)
{
    char shared[SL_TEXT_NUMBER_BYTES], copied[SL_TEXT_NUMBER_BYTES];
    f->old = f->store;
    f->store = NULL;
    f->n_kept = 0;
    f->real = realpath(q->output, NULL); /* a link stays one */
    f->beside = f->real ? prefill_beside(f->real) : NULL;
    if (!f->beside)
        return sl_text_error(err, SL_FAILED, "%s: cannot be replaced: %s", q->output, strerror(errno));
    sl_status status = open_beside(f, q, same, err);
    if (status != SL_OK)
        return status;
    fprintf(stderr, "sluice: %s: will take the place of %s when it is finished", f->path, q->output);
    if (f->shared.n_tokens > 0)
        fprintf(stderr, "; %llu tokens taken over (%s shared, %s copied)", (unsigned long long)f->shared.n_tokens,
                sl_text_format_size(f->shared.shared_bytes, shared),
                sl_text_format_size(f->shared.copied_bytes, copied));
    fputc('\n', stderr);
    return SL_OK;
}

/* Of an earlier --replace by another text, perhaps; nothing of it is needed. */
static void warn_of_beside(const char *output)
{
    char *real = realpath(output, NULL), *beside = prefill_beside(real ? real : output);
    free(real);
    if (beside && access(beside, F_OK) == 0)
        fprintf(stderr,
                "sluice: warning: %s is there, from a 'prefill --replace' that was not finished: its own command goes "
                "on with it, 'sluice rm' removes it\n",
                beside);
    free(beside);
}

static sl_status open_present(prefill_file *f, const prefill_request *q, sl_err *err)
{
    sl_store_info stored;
    sl_status status = open_there(q, q->output, &f->store, &stored, err);
    if (status != SL_OK)
        return status;
    size_t same = find_same(q, &stored);
    f->n_kept = same;
    if (same == stored.n_tokens) {
        warn_of_beside(q->output);
        return check_room(f, q, 0, err);
    }
    if (q->replace)
        return open_replacement(f, q, same, err);
    char advice[128];
    if (same == q->n)
        snprintf(advice, sizeof advice,
                 " ('sluice fork --at %zu' makes a file of those, --replace puts one in its place)", q->n);
    else
        snprintf(advice, sizeof advice, " (--replace puts the new one in its place)");
    return refuse_other(q, q->output, &stored, same, advice, err);
}

char *prefill_beside(const char *output)
{
    static const char ending[] = ".new";
    size_t n = strlen(output);
    char *name = malloc(n + sizeof ending);
    if (name) {
        memcpy(name, output, n);
        memcpy(name + n, ending, sizeof ending);
    }
    return name;
}

sl_status prefill_file_open(prefill_file *f, const prefill_request *q, sl_err *err)
{
    memset(f, 0, sizeof *f);
    f->path = q->output;
    struct stat link;
    if (access(q->output, F_OK) == 0)
        return open_present(f, q, err);
    if (lstat(q->output, &link) == 0 && S_ISLNK(link.st_mode))
        return sl_text_error(err, SL_REFUSED, "%s: a link that leads to no file that can be looked at", q->output);
    sl_status status = check_room(f, q, 0, err);
    return status == SL_OK ? create(f, q, err) : status;
}

sl_status prefill_file_end(prefill_file *f, sl_err *err)
{
    return f->old ? sl_store_rename(f->store, f->real, err) : SL_OK;
}

void prefill_file_drop(prefill_file *f)
{
    if (f->is_new)
        unlink(f->path);
}

void prefill_file_close(prefill_file *f)
{
    sl_store_close(f->store);
    sl_store_close(f->old);
    free(f->real);
    free(f->beside);
    memset(f, 0, sizeof *f);
}
