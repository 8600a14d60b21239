#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/fpenv.h"
#include "base/mem.h"
#include "base/thread.h"

static void test_budget(void **state)
{
    (void)state;
    sl_budget budget;
    sl_budget_init(&budget, 100000);
    sl_err err = {0};
    void *map = NULL, *heap = NULL, *more = NULL;
    assert_int_equal(sl_mem_map(&budget, 20000, "a map", &map, &err), SL_OK);
    assert_int_equal((uintptr_t)map % SL_MEM_ALIGN, 0);
    assert_int_equal(budget.used_bytes, 2 * SL_MEM_ALIGN);
    assert_int_equal(sl_mem_new(&budget, 100, 100, "a table", &heap, &err), SL_OK);
    for (size_t i = 0; i < 10000; i++)
        assert_int_equal(((uint8_t *)heap)[i], 0);
    assert_true(budget.used_bytes >= 2 * SL_MEM_ALIGN + 10000);
    assert_int_equal(sl_mem_map(&budget, 60000, "the third", &more, &err), SL_REFUSED);
    assert_null(more);
    assert_non_null(strstr(err.text, "the third"));
    assert_non_null(strstr(err.text, "100000"));
    uint64_t peak = budget.used_bytes;
    sl_mem_free(&budget, heap);
    sl_mem_unmap(&budget, map, 20000);
    assert_int_equal(budget.used_bytes, 0);
    assert_int_equal(budget.peak_bytes, peak);
    assert_int_equal(sl_budget_left(&budget), 100000);
    sl_budget_deinit(&budget);
}

static void test_impossible_sizes(void **state)
{
    (void)state;
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_err err = {0};
    void *out = &err;
    assert_int_equal(sl_mem_new(&budget, SIZE_MAX / 2, 8, "huge", &out, &err), SL_FAILED);
    assert_null(out);
    assert_non_null(strstr(err.text, "huge"));
    assert_int_equal(sl_mem_map(&budget, SIZE_MAX - 5, "huge", &out, &err), SL_FAILED);
    assert_null(out);
    assert_int_equal(sl_mem_map(&budget, 0, "nothing", &out, &err), SL_OK);
    assert_null(out);
    assert_int_equal(sl_mem_new(&budget, 0, 8, "nothing", &out, &err), SL_OK);
    assert_non_null(out);
    sl_mem_free(&budget, out);
    sl_mem_free(&budget, NULL);
    sl_mem_unmap(&budget, NULL, 1);
    assert_int_equal(budget.used_bytes, 0);
    sl_budget_deinit(&budget);
}

static void test_fail_in(void **state)
{
    (void)state;
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    budget.fail_in = 2;
    sl_err err = {0};
    void *one = NULL, *two = NULL, *three = NULL;
    assert_int_equal(sl_mem_new(&budget, 1, 8, "one", &one, &err), SL_OK);
    assert_int_equal(sl_mem_map(&budget, 8, "two", &two, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "out of memory: two"));
    assert_int_equal(sl_mem_map(&budget, 8, "three", &three, &err), SL_OK);
    sl_mem_free(&budget, one);
    sl_mem_unmap(&budget, three, 8);
    assert_int_equal(budget.used_bytes, 0);
    sl_budget_deinit(&budget);
}

enum { ITEMS = 1000, THREADS = 7 };

typedef struct work {
    atomic_int runs[ITEMS];
    atomic_int inside[THREADS]; /* calls now in a worker */
    atomic_int wrong;
} work;

static void count_item(void *arg, size_t item, size_t worker)
{
    work *w = arg;
    if (worker >= THREADS || atomic_fetch_add(&w->inside[worker], 1) != 0)
        atomic_fetch_add(&w->wrong, 1);
    /* Denormals are kept in every worker. */
    volatile float tiny = 1e-38f;
    if (tiny * 0.01f == 0.0f)
        atomic_fetch_add(&w->wrong, 1);
    atomic_fetch_add(&w->runs[item], 1);
    atomic_fetch_sub(&w->inside[worker], 1);
}

static void test_pool(void **state)
{
    (void)state;
    static work w;
    for (size_t threads = 1; threads <= THREADS; threads += 2) {
        sl_budget budget;
        sl_budget_init(&budget, UINT64_MAX);
        sl_pool *pool = NULL;
        sl_err err = {0};
        assert_int_equal(sl_pool_create(threads, &budget, &pool, &err), SL_OK);
        assert_int_equal(sl_pool_threads(pool), threads);
        memset(&w, 0, sizeof w);
        int n_runs = 0;
        for (size_t items = 0; items <= ITEMS; items = items * 3 + 1) {
            sl_pool_run(pool, items, count_item, &w);
            n_runs++;
            assert_int_equal(atomic_load(&w.runs[0]), items > 0 ? n_runs - 1 : 0);
            if (items > 1)
                assert_int_equal(atomic_load(&w.runs[items - 1]), 1);
        }
        assert_int_equal(atomic_load(&w.wrong), 0);
        sl_pool_destroy(pool);
        assert_int_equal(budget.used_bytes, 0);
        sl_budget_deinit(&budget);
    }
}

static void test_pool_refused(void **state)
{
    (void)state;
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_pool *pool = NULL;
    sl_err err = {0};
    assert_int_equal(sl_pool_create(0, &budget, &pool, &err), SL_USAGE);
    assert_int_equal(sl_pool_create(5000, &budget, &pool, &err), SL_USAGE);
    assert_non_null(strstr(err.text, "5000"));
    for (int64_t n = 1; n <= 2; n++) {
        budget.fail_in = n;
        assert_int_equal(sl_pool_create(3, &budget, &pool, &err), SL_FAILED);
        assert_null(pool);
        assert_int_equal(budget.used_bytes, 0);
    }
    sl_pool_destroy(NULL);
    sl_budget_deinit(&budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget), cmocka_unit_test(test_impossible_sizes), cmocka_unit_test(test_fail_in),
        cmocka_unit_test(test_pool),   cmocka_unit_test(test_pool_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
