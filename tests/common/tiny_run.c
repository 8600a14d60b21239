#include "common/tiny_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const char *test_dir(void)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    return dir ? dir : "/var/tmp";
}

void tiny_run_open(tiny_run *run, const tiny_model *model, sl_cpu_level level)
{
    sl_err err = {SL_OK, ""};
    snprintf(run->path, sizeof run->path, "%s/sluice-tiny-%ld.gguf", test_dir(), (long)getpid());
    assert_true(tiny_model_write(model, run->path));
    sl_budget_init(&run->budget, UINT64_MAX);
    sl_kernels_init(&run->kernels, level);
    sl_gguf *gguf = NULL;
    sl_status status = sl_gguf_open(run->path, &run->budget, &gguf, &err);
    if (status == SL_OK)
        status = sl_weights_load(gguf, &run->budget, NULL, NULL, &run->weights, &err);
    sl_gguf_close(gguf);
    unlink(run->path);
    if (status != SL_OK)
        fail_msg("tiny model: %s", err.text);
    for (size_t i = 0; i < 8; i++)
        run->layers[i] = sl_hparams_kv_layer(&run->weights->hp, (uint32_t)i);
}

void tiny_run_close(tiny_run *run)
{
    sl_weights_destroy(run->weights);
    assert_int_equal(0, run->budget.used_bytes);
    sl_budget_deinit(&run->budget);
}

sl_session_options tiny_session_options(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t max_tokens,
                                        sl_pool *pool)
{
    sl_session_options options = {
        .weights = run->weights,
        .kernels = &run->kernels,
        .pool = pool,
        .budget = &run->budget,
        .kv = {.geom = {type, run->weights->hp.n_layers, run->layers},
               .dir = test_dir(),
               .max_tokens = max_tokens,
               .answer_from = max_tokens / 8 * 7,
               .n_slots = ways->n_slots,
               .budget = &run->budget},
        .max_tokens = max_tokens,
        .window_rows = ways->window_rows,
        .max_drafts = ways->max_drafts,
        .will_decode = true,
        .trees = true,
        .ngram = true,
    };
    options.kv.slot_bytes = ways->slot_parts * sl_geom_max_part_bytes(&options.kv.geom);
    options.kv.resident_bytes =
        max_tokens / SL_TILE * SL_TILE * sl_geom_token_bytes(&options.kv.geom) * ways->resident_percent / 100;
    return options;
}

sl_session *tiny_session(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t max_tokens, sl_pool **pool)
{
    sl_err err = {SL_OK, ""};
    sl_session *session = NULL;
    if (sl_pool_create(ways->threads, &run->budget, pool, &err) != SL_OK)
        fail_msg("pool: %s", err.text);
    sl_session_options options = tiny_session_options(run, type, ways, max_tokens, *pool);
    if (sl_session_create(&options, &session, &err) != SL_OK)
        fail_msg("session: %s", err.text);
    return session;
}

void tiny_session_end(sl_session *session, sl_pool *pool)
{
    sl_session_destroy(session);
    sl_pool_destroy(pool);
}
