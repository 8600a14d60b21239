/* The model drafter: the model itself as its own drafter is always right; any other, with any window, over rewinds and
 * stops, changes nothing, and one that breaks down neither; what it takes is what it says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/tiny_run.h"
#include "decode/model_drafter.h"

enum { MOST = 700, PROMPT = 150, PREDICT = 120 };

typedef struct rig {
    tiny_run run, other; /* the model, and another one of its vocabulary */
    sl_pool *pool, *other_pool;
    int32_t prompt[PROMPT];
    size_t stop_in;  /* questions until the drafter is stopped; 0: never */
    size_t break_in; /* questions until the other model's numbers are none; 0: never */
} rig;

static float *some_norm(const rig *r)
{
    return &r->other.weights->layers[0].ffn_norm[0];
}

static bool is_stopped(void *arg)
{
    rig *r = arg;
    if (r->break_in > 0 && --r->break_in == 0)
        *some_norm(r) = NAN;
    return r->stop_in > 0 && --r->stop_in == 0;
}

static void open_rig(rig *r)
{
    memset(r, 0, sizeof *r);
    const tiny_model model = tiny_model_of_seed(5);
    tiny_model other = tiny_model_of_seed(6);
    other.n_layers = 1;
    tiny_run_open(&r->run, &model, sl_cpu_best());
    tiny_run_open(&r->other, &other, sl_cpu_best());
    for (size_t i = 0; i < PROMPT; i++)
        r->prompt[i] = (int32_t)(3 + i * i % 97);
    assert_int_equal(SL_OK, sl_pool_create(2, &r->other.budget, &r->other_pool, NULL));
}

static void close_rig(rig *r)
{
    sl_pool_destroy(r->other_pool);
    tiny_run_close(&r->other);
    tiny_run_close(&r->run);
}

static sl_model_drafter *make(rig *r, bool same, size_t window)
{
    tiny_run *of = same ? &r->run : &r->other;
    const sl_model_drafter_options options = {
        .weights = of->weights, .kernels = &of->kernels, .pool = same ? r->pool : r->other_pool,
        .budget = &r->other.budget, .dir = "/var/tmp", .max_tokens = MOST, .window_tokens = window,
        .stop = is_stopped, .arg = r,
    };
    const uint64_t before = r->other.budget.used_bytes;
    sl_err err = {SL_OK, ""};
    sl_model_drafter *drafter = NULL;
    if (sl_model_drafter_create(&options, &drafter, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_true(r->other.budget.used_bytes - before <= sl_model_drafter_bytes(&options));
    return drafter;
}

static sl_session *open_session(rig *r)
{
    const tiny_ways ways = {2, 64, 2, 1, 100, 31, sl_cpu_best()};
    sl_err err = {SL_OK, ""};
    sl_session *session = NULL;
    assert_int_equal(SL_OK, sl_pool_create(ways.threads, &r->run.budget, &r->pool, &err));
    sl_session_options options = tiny_session_options(&r->run, SL_KV_TYPE_Q8_0, &ways, MOST, r->pool);
    options.talks = true;
    if (sl_session_create(&options, &session, &err) != SL_OK)
        fail_msg("session: %s", err.text);
    return session;
}

static sl_generate_result generate(sl_session *session, const sl_drafter *drafter, float temp, size_t n)
{
    const sl_generate_options options = {
        .sampling = {.temp = temp, .top_p = 1.0f, .seed = 9, .penalty_last_n = 64, .repeat_penalty = 1.1f},
        .n_predict = n, .n_context = MOST, .max_drafts = drafter ? 7 : 0, .drafter = drafter,
    };
    sl_err err = {SL_OK, ""};
    sl_generate_result result;
    if (sl_session_generate(session, &options, &result, &err) != SL_OK)
        fail_msg("%s", err.text);
    return result;
}

/* Twice with a rewind between, so that the drafter's cache is cut, too. */
static sl_generate_result tell(rig *r, const sl_drafter *drafter, float temp, int32_t *out, size_t *n_out)
{
    sl_session *session = open_session(r);
    assert_int_equal(SL_OK, sl_session_feed(session, r->prompt, PROMPT, NULL, NULL));
    (void)generate(session, drafter, temp, PREDICT);
    if (drafter)
        drafter->settled(drafter->self, sl_session_ids(session), PROMPT / 2);
    assert_int_equal(SL_OK, sl_session_rewind(session, PROMPT / 2, NULL));
    assert_int_equal(SL_OK, sl_session_feed(session, r->prompt + 20, PROMPT / 3, NULL, NULL));
    const sl_generate_result result = generate(session, drafter, temp, PREDICT);
    *n_out = sl_session_n_tokens(session);
    memcpy(out, sl_session_ids(session), *n_out * sizeof *out);
    tiny_session_end(session, r->pool);
    return result;
}

static void the_model_itself_is_always_right(void **unused)
{
    (void)unused;
    static int32_t want[MOST], got[MOST];
    rig r;
    open_rig(&r);
    for (int warm = 0; warm < 2; warm++) {
        size_t n_want = 0, n_got = 0;
        (void)tell(&r, NULL, warm ? 0.9f : 0.0f, want, &n_want);
        sl_session *session = open_session(&r); /* for its pool */
        sl_model_drafter *drafter = make(&r, true, 0);
        const sl_drafter d = sl_model_drafter_drafter(drafter);
        sl_pool *pool = r.pool;
        const sl_generate_result result = tell(&r, &d, warm ? 0.9f : 0.0f, got, &n_got);
        assert_int_equal(n_want, n_got);
        assert_memory_equal(want, got, n_got * sizeof *got);
        assert_true(result.n_drafted > PREDICT / 2);
        assert_int_equal(result.n_drafted, result.n_accepted);
        sl_model_drafter_destroy(drafter);
        tiny_session_end(session, pool);
    }
    close_rig(&r);
}

static void another_changes_nothing(void **unused)
{
    (void)unused;
    static int32_t want[MOST], got[MOST];
    rig r;
    open_rig(&r);
    static const size_t windows[] = {64, 100, 256, 0};
    for (size_t i = 0; i < 4; i++) {
        size_t n_want = 0, n_got = 0;
        const float temp = i % 2 ? 0.9f : 0.0f;
        (void)tell(&r, NULL, temp, want, &n_want);
        sl_model_drafter *drafter = make(&r, false, windows[i]);
        const sl_drafter d = sl_model_drafter_drafter(drafter);
        const sl_generate_result result = tell(&r, &d, temp, got, &n_got);
        assert_int_equal(n_want, n_got);
        assert_memory_equal(want, got, n_got * sizeof *got);
        assert_true(result.n_drafted > 0);
        sl_model_drafter_destroy(drafter);
    }
    close_rig(&r);
}

static void expect_same_proposal(const sl_draft_tree *a, const sl_draft_tree *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        assert_int_equal(a->nodes[i].id, b->nodes[i].id);
        assert_int_equal(a->nodes[i].parent, b->nodes[i].parent);
        assert_true(a->nodes[i].p == b->nodes[i].p);
    }
}

/* Stopped wherever it asks, it gives afterwards what a fresh one gives. */
static void a_stop_leaves_no_trace(void **unused)
{
    (void)unused;
    rig r;
    open_rig(&r);
    static sl_draft_node nodes[2][40];
    const sl_draft_ask ask = {.history = r.prompt, .n = 120, .max_nodes = 40, .max_depth = 9, .may_branch = true};
    for (size_t at = 1; at < 12; at++) {
        sl_model_drafter *fresh = make(&r, false, 0), *stopped = make(&r, false, 0);
        sl_draft_tree want = {0, 40, nodes[0]}, got = {0, 40, nodes[1]};
        const sl_drafter a = sl_model_drafter_drafter(fresh), b = sl_model_drafter_drafter(stopped);
        assert_int_equal(SL_OK, a.propose(a.self, &ask, &want, NULL));
        assert_true(want.n > 9);
        r.stop_in = at;
        const sl_status status = b.propose(b.self, &ask, &got, NULL);
        assert_true(status == SL_CANCELLED || r.stop_in > 0);
        r.stop_in = 0;
        got.n = 0;
        assert_int_equal(SL_OK, b.propose(b.self, &ask, &got, NULL));
        expect_same_proposal(&want, &got);
        sl_model_drafter_destroy(fresh);
        sl_model_drafter_destroy(stopped);
    }
    close_rig(&r);
}

/* Wherever it breaks down, the draft ends there, and afterwards it gives what a fresh one gives. */
static void a_breakdown_ends_the_draft(void **unused)
{
    (void)unused;
    rig r;
    open_rig(&r);
    static sl_draft_node nodes[2][40];
    const float good = *some_norm(&r);
    const sl_draft_ask ask = {.history = r.prompt, .n = 120, .max_nodes = 9, .max_depth = 9};
    size_t n_in_text = 0, n_in_guesses = 0;
    for (size_t at = 1; at < 12; at++) {
        sl_model_drafter *fresh = make(&r, false, 0), *broken = make(&r, false, 0);
        sl_draft_tree want = {0, 40, nodes[0]}, got = {0, 40, nodes[1]};
        const sl_drafter a = sl_model_drafter_drafter(fresh), b = sl_model_drafter_drafter(broken);
        assert_int_equal(SL_OK, a.propose(a.self, &ask, &want, NULL));
        const size_t n_all = want.n;
        assert_true(n_all > 5);
        r.break_in = at;
        assert_int_equal(SL_OK, b.propose(b.self, &ask, &got, NULL));
        assert_int_equal(0, r.break_in);
        *some_norm(&r) = good;
        assert_true(got.n < want.n);
        n_in_text += got.n == 0;
        n_in_guesses += got.n > 0;
        want.n = got.n;
        expect_same_proposal(&want, &got);
        want.n = n_all;
        got.n = 0;
        assert_int_equal(SL_OK, b.propose(b.self, &ask, &got, NULL));
        expect_same_proposal(&want, &got);
        sl_model_drafter_destroy(fresh);
        sl_model_drafter_destroy(broken);
    }
    assert_true(n_in_text > 0 && n_in_guesses > 0);
    close_rig(&r);
}

/* Text that it broke down over is left behind: what follows is read as if it were the first. */
static void text_of_a_breakdown_is_left_behind(void **unused)
{
    (void)unused;
    rig r;
    open_rig(&r);
    static sl_draft_node nodes[2][40];
    sl_model_drafter *fresh = make(&r, false, 0), *broken = make(&r, false, 0);
    sl_draft_tree want = {0, 40, nodes[0]}, got = {0, 40, nodes[1]};
    const sl_drafter a = sl_model_drafter_drafter(fresh), b = sl_model_drafter_drafter(broken);
    sl_draft_ask ask = {.history = r.prompt, .n = 120, .max_nodes = 9, .max_depth = 9};
    r.break_in = 1;
    const float good = *some_norm(&r);
    assert_int_equal(SL_OK, b.propose(b.self, &ask, &got, NULL));
    assert_int_equal(0, got.n);
    *some_norm(&r) = good;
    ask.n = 131;
    assert_int_equal(11, b.unread(b.self, ask.n));
    assert_int_equal(SL_OK, b.propose(b.self, &ask, &got, NULL));
    ask.history += 120;
    ask.n = 11;
    assert_int_equal(SL_OK, a.propose(a.self, &ask, &want, NULL));
    expect_same_proposal(&want, &got);
    sl_model_drafter_destroy(fresh);
    sl_model_drafter_destroy(broken);
    close_rig(&r);
}

/* A model that is no good at all drafts nothing, and the text is told all the same. */
static void a_broken_model_changes_nothing(void **unused)
{
    (void)unused;
    static int32_t want[MOST], got[MOST];
    for (int way = 0; way < 2; way++) {
        size_t n_want = 0, n_got = 0;
        rig r;
        open_rig(&r);
        (void)tell(&r, NULL, 0.0f, want, &n_want);
        *(way == 0 ? some_norm(&r) : &r.other.weights->output_norm[3]) = way == 0 ? INFINITY : NAN;
        sl_model_drafter *drafter = make(&r, false, 0);
        const sl_drafter d = sl_model_drafter_drafter(drafter);
        const sl_generate_result result = tell(&r, &d, 0.0f, got, &n_got);
        assert_int_equal(n_want, n_got);
        assert_memory_equal(want, got, n_got * sizeof *got);
        assert_int_equal(0, result.n_drafted);
        assert_true(result.draft.n_asked[0] > 0);
        sl_model_drafter_destroy(drafter);
        close_rig(&r);
    }
}

/* Siblings differ, parents come first, and the tree holds the likeliest of all paths. */
static void a_tree_has_the_likeliest(void **unused)
{
    (void)unused;
    rig r;
    open_rig(&r);
    static sl_draft_node nodes[2][255];
    sl_model_drafter *drafter = make(&r, false, 0);
    const sl_drafter d = sl_model_drafter_drafter(drafter);
    sl_draft_tree tree = {0, 12, nodes[0]}, chain = {0, 12, nodes[1]};
    sl_draft_ask ask = {.history = r.prompt, .n = 100, .max_nodes = 12, .max_depth = 12, .may_branch = true};
    assert_int_equal(SL_OK, d.propose(d.self, &ask, &tree, NULL));
    assert_int_equal(12, tree.n);
    float least = 1.0f, path_p[12];
    for (size_t i = 0; i < tree.n; i++) {
        const sl_draft_node *node = &tree.nodes[i];
        assert_true(node->parent < (int32_t)i);
        path_p[i] = node->p * (node->parent == SL_DRAFT_ROOT ? 1.0f : path_p[node->parent]);
        least = path_p[i] < least ? path_p[i] : least;
        for (size_t j = 0; j < i; j++)
            assert_false(tree.nodes[j].parent == node->parent && tree.nodes[j].id == node->id);
    }
    ask.may_branch = false;
    assert_int_equal(SL_OK, d.propose(d.self, &ask, &chain, NULL));
    float p = 1.0f;
    size_t n_in = 0;
    for (size_t i = 0; i < chain.n; i++) {
        assert_int_equal((int)i - 1, chain.nodes[i].parent);
        p *= chain.nodes[i].p;
        n_in += p > least;
    }
    /* what of the chain is likelier than the tree's least is in the tree: a path of greedy draws */
    int32_t at = SL_DRAFT_ROOT;
    for (size_t i = 0; i < n_in; i++) {
        int32_t next = -2;
        for (size_t j = 0; j < tree.n; j++)
            if (tree.nodes[j].parent == at && tree.nodes[j].id == chain.nodes[i].id)
                next = (int32_t)j;
        assert_int_not_equal(-2, next);
        at = next;
    }
    sl_model_drafter_destroy(drafter);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_itself_is_always_right),
        cmocka_unit_test(another_changes_nothing),
        cmocka_unit_test(a_stop_leaves_no_trace),
        cmocka_unit_test(a_breakdown_ends_the_draft),
        cmocka_unit_test(text_of_a_breakdown_is_left_behind),
        cmocka_unit_test(a_broken_model_changes_nothing),
        cmocka_unit_test(a_tree_has_the_likeliest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
