/* Weights that do not stay in memory: the bits of those that do, whatever stays, for every family; never more read than
 * the choice says, never more memory taken; what is not as it was when the model was loaded is named. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "common/effort.h"
#include "common/fault_vfs.h"
#include "common/tiny_run.h"
#include "model/weight_stream.h"

enum {
    N_TEXT = EFFORT_IS_SMALL ? 150 : 400,
    N_READ = EFFORT_IS_SMALL ? 100 : 300,
    N_DRAWN = EFFORT_IS_SMALL ? 20 : 30,
    MOST_DRAFTS = 11,
    N_PARTS = 2
};

static const char *const archs[] = {"llama",  "qwen2",  "qwen3",   "phi3", "gemma2",
                                    "gemma3", "smollm3", "glm4", "qwen3moe", "mixtral"};
enum { N_ARCHS = sizeof archs / sizeof archs[0], ARCH_STEP = EFFORT_IS_TINY ? 4 : 1 };

static int32_t text[N_TEXT];
static size_t n_text = N_TEXT; /* of it, scored */

static void make_text(size_t n_vocab)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < N_TEXT; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text[i] = i > 60 && i / 30 % 3 == 0 ? text[i - 55] : 3 + (int32_t)(state % (n_vocab - 3));
    }
}

/* The i-th family, with types of either kind, an output of its own and none. */
static tiny_model model_of(size_t i)
{
    static const uint32_t types[] = {TINY_TYPE_Q4_1, TINY_TYPE_Q8_0, TINY_TYPE_F32, TINY_TYPE_F16};
    const bool is_mixtral = strcmp(archs[i], "mixtral") == 0;
    tiny_model model = tiny_model_of_arch(50 + i, is_mixtral ? "llama" : archs[i]);
    if (is_mixtral) {
        model.n_experts = 5;
        model.n_used = 2;
    }
    model.weight_type = types[i % 4];
    model.emb_type = types[(i / 2) % 4];
    model.separate_output = i % 3 == 1;
    return model;
}

/* ------------------------------------------------------------------------------------------- models and their files */

typedef struct rig {
    tiny_run run;
    char paths[N_PARTS][256];
    size_t n_paths;
    sl_weight_share least, all, share;
} rig;

/* One file, or two as gguf-split makes them when it keeps tensors out of the first. */
static void write_files(rig *r, const tiny_model *model, bool is_split)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    gguf_build build;
    gguf_build_init(&build);
    tiny_model_build(model, &build);
    r->n_paths = is_split ? 2 : 1;
    for (size_t i = 0; i < r->n_paths; i++)
        snprintf(r->paths[i], sizeof r->paths[i], "%s/sluice-ws-%ld-%05zu-of-%05zu.gguf", dir ? dir : "/var/tmp",
                 (long)getpid(), i + 1, r->n_paths);
    if (is_split) {
        gguf_build first = build, second;
        gguf_build_init(&second);
        first.tensors = first.data = (gguf_bytes){NULL, 0, 0};
        first.n_tensors = 0;
        gguf_build_uint(&first, "split.count", SL_GGUF_TYPE_U16, 2);
        gguf_build_uint(&first, "split.no", SL_GGUF_TYPE_U16, 0);
        assert_true(gguf_build_write(&first, r->paths[0]));
        gguf_build_uint(&second, "split.count", SL_GGUF_TYPE_U16, 2);
        gguf_build_uint(&second, "split.no", SL_GGUF_TYPE_U16, 1);
        second.tensors = build.tensors;
        second.data = build.data;
        second.n_tensors = build.n_tensors;
        assert_true(gguf_build_write(&second, r->paths[1]));
        build.tensors = build.data = (gguf_bytes){NULL, 0, 0};
        build.values = first.values;
        build.file = first.file;
        gguf_build_deinit(&second);
    } else {
        assert_true(gguf_build_write(&build, r->paths[0]));
    }
    gguf_build_deinit(&build);
}

static void remove_files(rig *r)
{
    for (size_t i = 0; i < r->n_paths; i++)
        unlink(r->paths[i]);
}

static sl_status open_with(rig *r, uint64_t room, const sl_vfs *vfs, sl_err *err)
{
    tiny_run *run = &r->run;
    *run = (tiny_run){.weights = NULL};
    sl_budget_init(&run->budget, UINT64_MAX);
    sl_kernels_init(&run->kernels, sl_cpu_best());
    sl_gguf *gguf = NULL;
    const sl_weights_options options = {.budget = &run->budget, .room_bytes = room, .vfs = vfs};
    sl_status status = sl_gguf_open(r->paths[0], &run->budget, &gguf, err);
    if (status == SL_OK)
        status = sl_weights_open(gguf, &options, &run->weights, err);
    sl_gguf_close(gguf);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < 8; i++)
        run->layers[i] = sl_hparams_kv_layer(&run->weights->hp, (uint32_t)i);
    sl_weights_choose(run->weights, 0, &r->least);
    sl_weights_choose(run->weights, UINT64_MAX, &r->all);
    return sl_weights_set_room(run->weights, room, &r->share, err);
}

static void open_rig(rig *r, const tiny_model *model, uint64_t room)
{
    sl_err err = {SL_OK, ""};
    write_files(r, model, false);
    if (open_with(r, room, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
}

static void close_rig(rig *r)
{
    tiny_run_close(&r->run);
    remove_files(r);
}

static void set_room(rig *r, uint64_t room)
{
    sl_err err = {SL_OK, ""};
    if (sl_weights_set_room(r->run.weights, room, &r->share, &err) != SL_OK)
        fail_msg("%s", err.text);
}

static uint64_t bytes_read(const rig *r)
{
    sl_weights_stats stats;
    sl_weights_get_stats(r->run.weights, &stats);
    return stats.bytes_read;
}

/* ------------------------------------------------------------------------------------------------------------ bits */

typedef struct trace {
    uint64_t hashes[N_TEXT];
    size_t n_vocab;
} trace;

static sl_status note_logits(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    (void)err;
    trace *t = arg;
    t->hashes[position] = sl_hash(logits, t->n_vocab * sizeof *logits);
    return SL_OK;
}

static sl_status score(rig *r, size_t threads, size_t window, trace *out, sl_err *err)
{
    sl_pool *pool;
    const tiny_ways ways = {threads, window, 2, 1, 100, 0, 0};
    sl_session *session = tiny_session(&r->run, SL_KV_TYPE_Q8_0, &ways, n_text, &pool);
    out->n_vocab = r->run.weights->hp.n_vocab;
    const sl_feed_watch watch = {.logits = note_logits, .arg = out};
    memset(out->hashes, 0, sizeof out->hashes);
    sl_status status = sl_session_feed(session, text, n_text, &watch, err);
    tiny_session_end(session, pool);
    return status;
}

static void expect_same(const trace *want, const trace *got, const char *what)
{
    for (size_t pos = 0; pos < n_text; pos++)
        if (got->hashes[pos] != want->hashes[pos])
            fail_msg("%s: position %zu differs", what, pos);
}

/* Of a feed that asks for all logits; one unit more may be read ahead at the end. */
static uint64_t most_of_score(const rig *r, size_t window)
{
    uint64_t n_windows = (n_text + window - 1) / window, n_logits = 1;
    for (size_t at = 0; at < n_text; at += window) {
        const size_t n = n_text - at < window ? n_text - at : window;
        n_logits += (n + SL_GRAPH_LOGIT_ROWS - 1) / SL_GRAPH_LOGIT_ROWS;
    }
    return n_windows * r->share.pass_bytes + n_logits * r->share.logit_bytes + n_text * r->share.row_bytes +
           r->share.raw_bytes;
}

static void every_choice_gives_the_same_logits(void **unused)
{
    (void)unused;
    static const size_t windows[] = {192, 64, 128};
    static trace want, got;
    for (size_t i = 0; i < N_ARCHS; i += ARCH_STEP) {
        rig r;
        tiny_model model = model_of(i);
        sl_err err = {SL_OK, ""};
        open_rig(&r, &model, UINT64_MAX);
        assert_int_equal(0, (int)r.share.buffer_bytes);
        assert_int_equal(SL_OK, score(&r, 2, 192, &want, &err));
        assert_int_equal(0, (int)bytes_read(&r));
        /* The least, up to what has all matrices but one; then back. */
        for (size_t step = 0; step < (EFFORT_IS_SMALL ? 2 : 5); step++) {
            set_room(&r, r.least.memory_bytes + r.all.resident_bytes * step / 5);
            if (r.share.buffer_bytes == 0)
                continue;
            const uint64_t before = bytes_read(&r);
            if (score(&r, 1 + step % 3, windows[step % 3], &got, &err) != SL_OK)
                fail_msg("%s: %s", archs[i], err.text);
            expect_same(&want, &got, archs[i]);
            const uint64_t read = bytes_read(&r) - before;
            assert_true(read > 0 && read <= most_of_score(&r, windows[step % 3]));
        }
        set_room(&r, UINT64_MAX);
        const uint64_t before = bytes_read(&r);
        assert_int_equal(SL_OK, score(&r, 2, 64, &got, &err));
        expect_same(&want, &got, archs[i]);
        assert_true(bytes_read(&r) == before);
        close_rig(&r);
    }
}

/* What is left of the budget is never less than was said, and what stays is read at once when it is loaded so. */
static void a_choice_keeps_its_word(void **unused)
{
    (void)unused;
    for (size_t i = 1; i < N_ARCHS; i += 3) {
        rig r;
        tiny_model model = model_of(i);
        model.n_layers = 6;
        model.weight_type = TINY_TYPE_Q8_0;
        model.ffn = 3072; /* much larger than the room for embeddings that are read alone */
        if (model.n_experts > 0)
            model.expert_ffn = 512;
        open_rig(&r, &model, 0);
        size_t n_different = 0;
        uint64_t resident = 0, pass = UINT64_MAX;
        assert_true(r.least.memory_bytes < r.all.memory_bytes);
        const uint64_t step = (r.all.memory_bytes - r.least.memory_bytes) / (EFFORT_IS_SMALL ? 3 : 7);
        for (uint64_t room = r.least.memory_bytes; room < r.all.memory_bytes + step; room += step) {
            set_room(&r, room);
            assert_true(r.share.memory_bytes <= room);
            assert_true(r.run.budget.used_bytes <= r.share.memory_bytes);
            assert_true(sl_weights_memory(r.run.weights) <= r.share.memory_bytes);
            assert_true(r.share.resident_bytes >= resident);
            n_different += r.share.pass_bytes + r.share.logit_bytes < pass;
            resident = r.share.resident_bytes;
            pass = r.share.pass_bytes + r.share.logit_bytes;
        }
        assert_true(n_different > 2 && pass == 0);
        close_rig(&r);
    }
}

/* ------------------------------------------------------------------------------------------------------ speculation */

typedef struct drawn {
    int32_t ids[N_DRAWN];
    size_t n, n_passes, n_rows;
} drawn;

static bool note_token(void *arg, int32_t id)
{
    drawn *d = arg;
    assert_true(d->n < N_DRAWN);
    d->ids[d->n++] = id;
    return true;
}

static void draw(rig *r, size_t drafts, bool is_tree, drawn *out)
{
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    const tiny_ways ways = {2, 128, 2, 1, 50, drafts, 0};
    sl_session *session = tiny_session(&r->run, SL_KV_TYPE_F16, &ways, N_READ + N_DRAWN, &pool);
    *out = (drawn){.n = 0};
    if (sl_session_feed(session, text, N_READ, NULL, &err) != SL_OK)
        fail_msg("feed: %s", err.text);
    const sl_generate_options options = {.sampling = {.temp = 0.4f, .top_k = 4, .top_p = 1.0f, .seed = 5},
                                         .n_predict = N_DRAWN,
                                         .n_context = N_READ + N_DRAWN,
                                         .max_drafts = drafts,
                                         .may_branch = is_tree,
                                         .token = note_token,
                                         .arg = out};
    const uint64_t before = bytes_read(r);
    sl_generate_result result;
    if (sl_session_generate(session, &options, &result, &err) != SL_OK)
        fail_msg("generate: %s", err.text);
    out->n_passes = result.n_passes;
    out->n_rows = result.n_rows;
    const uint64_t n_logits = result.n_passes * ((drafts + 1 + SL_GRAPH_LOGIT_ROWS - 1) / SL_GRAPH_LOGIT_ROWS);
    const uint64_t most = out->n_passes * r->share.pass_bytes + n_logits * r->share.logit_bytes +
                          out->n_rows * r->share.row_bytes + r->share.raw_bytes;
    if (bytes_read(r) - before > most)
        fail_msg("%llu bytes read for %zu passes, at most %llu were said", (unsigned long long)(bytes_read(r) - before),
                 out->n_passes, (unsigned long long)most);
    tiny_session_end(session, pool);
}

static void drafts_over_streamed_weights_do_not_change_the_text(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < N_ARCHS; i += 4) {
        rig r;
        tiny_model model = model_of(i);
        drawn want, got;
        open_rig(&r, &model, UINT64_MAX);
        draw(&r, 0, false, &want);
        for (size_t way = 0; way < (EFFORT_IS_SMALL ? 1 : 3); way++) {
            set_room(&r, way == 1 ? r.least.memory_bytes + r.all.resident_bytes / 2 : 0);
            draw(&r, way == 2 ? 0 : MOST_DRAFTS, way == 0, &got);
            assert_int_equal(N_DRAWN, got.n);
            assert_memory_equal(want.ids, got.ids, sizeof want.ids);
        }
        close_rig(&r);
    }
}

static void a_split_model_streams(void **unused)
{
    (void)unused;
    static trace want, got;
    rig r;
    tiny_model model = model_of(1);
    sl_err err = {SL_OK, ""};
    write_files(&r, &model, true);
    if (open_with(&r, UINT64_MAX, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(SL_OK, score(&r, 2, 64, &want, &err));
    set_room(&r, 0);
    if (score(&r, 2, 64, &got, &err) != SL_OK)
        fail_msg("%s", err.text);
    expect_same(&want, &got, "split");
    close_rig(&r);
}

/* ----------------------------------------------------------------------------------------------------------- order */

static void expect_layer(const rig *r, const rig *all, uint32_t layer)
{
    for (uint32_t of = 0; of < r->run.weights->hp.n_layers; of++) {
        sl_matrix *got;
        for (size_t i = 0; (got = sl_weights_layer_matrix(r->run.weights, of, i)) != NULL; i++) {
            if (of == layer)
                assert_memory_equal(sl_weights_layer_matrix(all->run.weights, of, i)->packed, got->packed, got->bytes);
            else
                assert_true(got->is_own || !got->packed); /* nobody takes the buffer for another layer's */
        }
    }
}

static void expect_embedding(const rig *r, const rig *all, sl_pool *pool, int32_t id)
{
    const sl_matrix *m = &all->run.weights->embedding;
    sl_err err = {SL_OK, ""};
    float got[512], want[512];
    assert_true(m->n_in <= 512 && !r->run.weights->embedding.packed);
    if (sl_weights_embed(r->run.weights, &id, 1, got, pool, &err) != SL_OK)
        fail_msg("%s", err.text);
    sl_weight_row(m->type, m->packed, m->n_out, m->n_in, (size_t)id, want);
    assert_memory_equal(want, got, m->n_in * sizeof *got);
}

/* Layers, slices and rows as no pass would ask for them: what is on its way is let go of, again and again. */
static void any_order_holds_what_is_asked_for(void **unused)
{
    (void)unused;
    rig r, all;
    tiny_model model = model_of(1);
    sl_err err = {SL_OK, ""};
    sl_pool *pool = NULL;
    uint64_t state = 1;
    model.n_layers = 3;
    open_rig(&all, &model, UINT64_MAX);
    open_rig(&r, &model, 0);
    assert_int_equal(SL_OK, sl_pool_create(2, &r.run.budget, &pool, &err));
    for (size_t i = 0; i < (EFFORT_IS_SMALL ? 100 : 400); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint32_t draw = (uint32_t)(state >> 33);
        const sl_weights_ahead ahead = {.has_logits = draw & 1, .has_pass = draw & 2};
        const uint32_t unit = draw / 4 % (model.n_layers + 1);
        if (unit < model.n_layers) {
            if (sl_weights_hold(r.run.weights, unit, ahead, pool, &err) != SL_OK)
                fail_msg("layer %u: %s", unit, err.text);
            expect_layer(&r, &all, unit);
        } else {
            const sl_matrix *m = all.run.weights->output;
            sl_matrix some;
            size_t first = 0;
            if (sl_weights_hold_slice(r.run.weights, 0, ahead, pool, &some, &first, &err) != SL_OK)
                fail_msg("slice: %s", err.text);
            assert_memory_equal(m->packed + first * sl_wtype_row_bytes(m->type, m->n_in), some.packed, some.bytes);
        }
        if (draw / 64 % 4 == 0)
            expect_embedding(&r, &all, pool, (int32_t)(draw / 256 % tiny_model_n_vocab()));
    }
    sl_pool_destroy(pool);
    close_rig(&r);
    close_rig(&all);
}

/* ----------------------------------------------------------------------------------------------------------- faults */

static sl_matrix *find_matrix(rig *r, size_t which)
{
    sl_weights *w = r->run.weights;
    return which == 0 ? &w->embedding : which == 1 ? &w->layers[0].w_down : &w->layers[1].wq;
}

static void a_changed_file_is_named(void **unused)
{
    (void)unused;
    static const char *const names[] = {"token_embd.weight", "blk.0.ffn_down.weight", "blk.1.attn_q.weight"};
    static trace want, got;
    for (size_t which = 0; which < 3; which++) {
        rig r;
        tiny_model model = model_of(which == 0 ? 1 : 0); /* the embedding is no output: only rows of it are read */
        sl_err err = {SL_OK, ""};
        open_rig(&r, &model, 0);
        assert_int_equal(SL_OK, score(&r, 2, 128, &want, &err));
        const sl_matrix *m = find_matrix(&r, which);
        const int fd = open(r.paths[0], O_RDWR);
        uint8_t byte = 0;
        const uint64_t of_row = sl_wtype_row_bytes(m->type, m->n_in) * (which == 0 ? (uint64_t)text[3] : m->n_out / 2);
        const off_t at = (off_t)(m->file_off + of_row + 1);
        assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
        byte ^= 4;
        assert_true(pwrite(fd, &byte, 1, at) == 1 && fsync(fd) == 0);
        assert_int_equal(SL_DAMAGED, score(&r, 2, 128, &got, &err));
        if (!strstr(err.text, names[which]) || !strstr(err.text, r.paths[0]))
            fail_msg("%s", err.text);
        byte ^= 4; /* put right, it goes on */
        assert_true(pwrite(fd, &byte, 1, at) == 1 && fsync(fd) == 0);
        assert_int_equal(SL_OK, score(&r, 2, 128, &got, &err));
        expect_same(&want, &got, names[which]);
        assert_int_equal(0, ftruncate(fd, (off_t)m->file_off));
        assert_int_equal(SL_FAILED, score(&r, 2, 128, &got, &err));
        if (!strstr(err.text, "tensor ") || !strstr(err.text, r.paths[0]))
            fail_msg("%s", err.text);
        close(fd);
        close_rig(&r);
    }
}

/* The n-th read fails, for every n until all is well. */
static void reads_fail(fault_kind kind, int code, sl_status want)
{
    n_text = 40;
    static trace wanted, got;
    fault_vfs fault;
    rig r;
    tiny_model model = model_of(1);
    sl_err err = {SL_OK, ""};
    fault_vfs_init(&fault, FAULT_NONE, 0, 0);
    write_files(&r, &model, false);
    assert_int_equal(SL_OK, open_with(&r, 0, &fault.vfs, &err));
    assert_int_equal(SL_OK, score(&r, 2, 128, &wanted, &err));
    for (uint64_t n = 1, step = 1;; n += step, step += EFFORT_IS_SMALL ? 29 : 5) {
        fault.kind = kind;
        fault.code = code;
        fault.n = n;
        fault.n_calls = fault.n_hits = 0;
        sl_status status = score(&r, 2, 128, &got, &err);
        fault.kind = FAULT_NONE;
        if (status == SL_OK)
            expect_same(&wanted, &got, "with a fault");
        else if (status != want || !strstr(err.text, "tensor "))
            fail_msg("%d: %s", (int)status, err.text);
        if (fault.n_hits == 0)
            break;
        assert_true(n < 100000 && (status != SL_OK || kind == FAULT_SHORT_READ || kind == FAULT_FLIPPED_BIT ||
                                   kind == FAULT_READ || kind == FAULT_ZERO_READ));
        assert_int_equal(SL_OK, score(&r, 2, 128, &got, &err)); /* the next pass is well */
        expect_same(&wanted, &got, "after a fault");
    }
    close_rig(&r);
    assert_int_equal(0, fault.n_open);
    assert_int_equal(0, fault.n_queues);
    n_text = N_TEXT;
}

static void every_read_that_fails_is_named(void **unused)
{
    (void)unused;
    reads_fail(FAULT_READ, EIO, SL_FAILED);
    reads_fail(FAULT_SHORT_READ, 0, SL_OK);
    reads_fail(FAULT_FLIPPED_BIT, 0, SL_DAMAGED);
    reads_fail(FAULT_ZERO_READ, 0, SL_FAILED);
}

/* Without what is best, the same. */
static void it_reads_without_direct_io_and_without_a_queue(void **unused)
{
    (void)unused;
    static const struct {
        fault_kind kind;
        int code;
    } ways[] = {{FAULT_DIRECT_AT_OPEN, 0}, {FAULT_DIRECT_AT_READ, 0}, {FAULT_AIO_OPEN, ENOSYS},
                {FAULT_AIO_REGISTER, ENOMEM}, {FAULT_AIO_SHUFFLED, 0}};
    static trace want, got;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        fault_vfs fault;
        rig r;
        tiny_model model = model_of(4);
        sl_err err = {SL_OK, ""};
        fault_vfs_init(&fault, ways[i].kind, ways[i].code, 0);
        write_files(&r, &model, false);
        if (open_with(&r, 0, &fault.vfs, &err) != SL_OK || score(&r, 2, 128, &got, &err) != SL_OK)
            fail_msg("way %zu: %s", i, err.text);
        sl_weights_stats stats;
        sl_weights_get_stats(r.run.weights, &stats);
        assert_true(i > 1 || !stats.is_direct);
        set_room(&r, UINT64_MAX);
        assert_int_equal(SL_OK, score(&r, 2, 128, &want, &err));
        expect_same(&want, &got, "way");
        close_rig(&r);
    }
}

/* A panel as large as the buffer that weights are read through, and lying across sectors: brought back all the same. */
static void long_rows_come_back(void **unused)
{
    (void)unused;
    static trace want, got;
    n_text = 8;
    rig r;
    tiny_model model = tiny_model_of_seed(77);
    sl_err err = {SL_OK, ""};
    model.hidden = 32;
    model.ffn = 16416;
    model.n_heads = 1;
    model.n_kv_heads = 1;
    open_rig(&r, &model, UINT64_MAX);
    assert_int_equal(SL_OK, score(&r, 2, 64, &want, &err));
    for (uint64_t room = 0; room < 2; room++) {
        set_room(&r, 0);
        set_room(&r, room == 0 ? UINT64_MAX : r.all.memory_bytes / 2);
        assert_int_equal(SL_OK, score(&r, 2, 64, &got, &err));
        expect_same(&want, &got, "long rows");
    }
    close_rig(&r);
    n_text = N_TEXT;
}

static void memory_fails_at_every_place(void **unused)
{
    (void)unused;
    rig r;
    tiny_model model = model_of(1);
    sl_err err = {SL_OK, ""};
    static trace want, got;
    open_rig(&r, &model, 0);
    assert_int_equal(SL_OK, score(&r, 1, 64, &want, &err));
    for (int64_t n = 1;; n++) {
        set_room(&r, UINT64_MAX);
        r.run.budget.fail_in = n;
        sl_status status = sl_weights_set_room(r.run.weights, 0, &r.share, &err);
        const bool is_over = r.run.budget.fail_in > 0;
        r.run.budget.fail_in = is_over || status == SL_OK ? 0 : n;
        if (is_over) {
            assert_int_equal(SL_OK, status);
            break;
        }
        assert_int_equal(SL_FAILED, status);
        const int64_t left = r.run.budget.fail_in;
        r.run.budget.fail_in = 0;
        assert_int_equal(SL_FAILED, score(&r, 1, 64, &got, &err)); /* no pass over what is half there */
        assert_non_null(strstr(err.text, "could not be changed"));
        r.run.budget.fail_in = left;
        status = sl_weights_set_room(r.run.weights, UINT64_MAX, &r.share, &err); /* and on the way back */
        assert_true(status == SL_OK || status == SL_FAILED);
        r.run.budget.fail_in = 0;
    }
    assert_int_equal(SL_OK, score(&r, 1, 64, &got, &err));
    expect_same(&want, &got, "after failures");
    close_rig(&r);
}

int main(void)
{
    make_text(tiny_model_n_vocab());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_gives_the_same_logits),
        cmocka_unit_test(a_choice_keeps_its_word),
        cmocka_unit_test(drafts_over_streamed_weights_do_not_change_the_text),
        cmocka_unit_test(a_split_model_streams),
        cmocka_unit_test(any_order_holds_what_is_asked_for),
        cmocka_unit_test(a_changed_file_is_named),
        cmocka_unit_test(every_read_that_fails_is_named),
        cmocka_unit_test(it_reads_without_direct_io_and_without_a_queue),
        cmocka_unit_test(long_rows_come_back),
        cmocka_unit_test(memory_fails_at_every_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
