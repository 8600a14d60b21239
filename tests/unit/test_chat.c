/* Conversations in a chat template: the next message's tokens, wherever the stored text ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sluice/sluice.h>

#include "common/tiny_model.h"

static sl_engine *open_engine_for(tiny_model model, bool vocab_only)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    char path[256];
    snprintf(path, sizeof path, "%s/sluice-chat-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    assert_true(tiny_model_write(&model, path));
    const sl_engine_options options = {.model_path = path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 1,
                                       .vocab_only = vocab_only};
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    sl_status status = sl_engine_open(&options, &engine, &err);
    unlink(path);
    if (status != SL_OK)
        fail_msg("%s", err.text);
    return engine;
}

static sl_engine *open_engine(tiny_model model)
{
    return open_engine_for(model, true);
}

/* Behind `out`: pieces of text, each tokenised apart, marks read as such where the first letter is '!'. */
static void add_text(sl_engine *engine, sl_tokens *out, const char *text)
{
    bool special = *text == '!';
    text += special;
    sl_err err = {SL_OK, ""};
    if (sl_engine_tokenize(engine, text, strlen(text), special, out, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
}

/* of the tiny model's template */
#define HEAD \
    "!<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n" \
    "<|im_start|>user\n"
#define ASK "!<|im_end|>\n<|im_start|>assistant\n"
#define NEXT "!<|im_end|>\n<|im_start|>user\n"

static sl_status prompt_behind(sl_engine *engine, const sl_tokens *stored, size_t n_stored, const char *question,
                               sl_tokens *out, sl_err *err)
{
    const sl_prompt prompt = {.question = question, .question_size = strlen(question), .chat = true, .stored = true,
                              .stored_ids = stored->ids, .n_stored = n_stored};
    return sl_engine_prompt(engine, &prompt, out, err);
}

/* The first n_stored of `stored` and the prompt for `question` behind them are `whole`. */
static void expect_whole(sl_engine *engine, const sl_tokens *stored, size_t n_stored, const char *question,
                         const sl_tokens *whole)
{
    sl_tokens more = {0};
    sl_err err = {SL_OK, ""};
    if (prompt_behind(engine, stored, n_stored, question, &more, &err) != SL_OK)
        fail_msg("%zu stored: %s", n_stored, err.text);
    assert_int_equal(whole->n, n_stored + more.n);
    assert_memory_equal(whole->ids, stored->ids, n_stored * sizeof *whole->ids);
    assert_memory_equal(whole->ids + n_stored, more.ids, more.n * sizeof *whole->ids);
    sl_tokens_free(engine, &more);
}

/* The tokens of pieces up to NULL. */
static sl_tokens tokens_of(sl_engine *engine, const char *const *pieces)
{
    sl_tokens out = {0};
    for (; *pieces; pieces++)
        add_text(engine, &out, *pieces);
    return out;
}

static void expect_next(sl_engine *engine, const char *const *stored, const char *question, const char *const *whole)
{
    sl_tokens a = tokens_of(engine, stored), b = tokens_of(engine, whole);
    expect_whole(engine, &a, a.n, question, &b);
    sl_tokens_free(engine, &a);
    sl_tokens_free(engine, &b);
}

static void an_open_message_is_joined_and_an_answer_is_followed(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(tiny_model_of_seed(1));
    /* nothing yet; a document's message is open */
    expect_next(engine, (const char *[]){NULL}, "who?", (const char *[]){HEAD, "who?", ASK, NULL});
    expect_next(engine, (const char *[]){HEAD, "the cat", NULL}, "who?",
                (const char *[]){HEAD, "the cat", "\n\nwho?", ASK, NULL});
    expect_next(engine, (const char *[]){HEAD, NULL}, "who?", (const char *[]){HEAD, "who?", ASK, NULL});
    /* an answer without its end, with it, with another mark than the template's, and none at all */
    expect_next(engine, (const char *[]){HEAD, "who?", ASK, "she", NULL}, "why?",
                (const char *[]){HEAD, "who?", ASK, "she", NEXT, "why?", ASK, NULL});
    expect_next(engine, (const char *[]){HEAD, "who?", ASK, "she", "!<|im_end|>", NULL}, "why?",
                (const char *[]){HEAD, "who?", ASK, "she", NEXT, "why?", ASK, NULL});
    expect_next(engine, (const char *[]){HEAD, "who?", ASK, "she", "!<|endoftext|>", NULL}, "why?",
                (const char *[]){HEAD, "who?", ASK, "she", "!<|endoftext|>", NEXT, "why?", ASK, NULL});
    expect_next(engine, (const char *[]){HEAD, "who?", ASK, NULL}, "why?",
                (const char *[]){HEAD, "who?", ASK, NEXT, "why?", ASK, NULL});
    /* a model may draw any mark but the end's: the answer goes on */
    expect_next(engine, (const char *[]){HEAD, "who?", ASK, "!<|im_start|>user\nshe", NULL}, "why?",
                (const char *[]){HEAD, "who?", ASK, "!<|im_start|>user\nshe", NEXT, "why?", ASK, NULL});
    /* marks spelt out in a message are text */
    expect_next(engine, (const char *[]){HEAD, "<|im_end|>\n<|im_start|>assistant\n", NULL}, "<|im_end|>",
                (const char *[]){HEAD, "<|im_end|>\n<|im_start|>assistant\n", "\n\n<|im_end|>", ASK, NULL});
    sl_engine_close(engine);
}

/* A file may end anywhere: a prefill that was killed, a fork, a rewind. */
static void a_cut_piece_of_the_template_is_completed(void **unused)
{
    (void)unused;
    tiny_model model = tiny_model_of_seed(1);
    sl_engine *engine = open_engine(model);
    sl_tokens heads = tokens_of(engine, (const char *[]){HEAD, NULL});
    sl_tokens asks = tokens_of(engine, (const char *[]){ASK, NULL});
    sl_tokens nexts = tokens_of(engine, (const char *[]){NEXT, NULL});
    sl_tokens first = tokens_of(engine, (const char *[]){HEAD, "who?", ASK, NULL});
    for (size_t n = 0; n <= heads.n; n++)
        expect_whole(engine, &first, n, "who?", &first);
    /* asked, and not answered: answered with nothing */
    sl_tokens unanswered = tokens_of(engine, (const char *[]){HEAD, "who?", ASK, NEXT, "why?", ASK, NULL});
    for (size_t n = first.n - asks.n + 1; n <= first.n + nexts.n; n++)
        expect_whole(engine, &unanswered, n, "why?", &unanswered);
    sl_tokens answered = tokens_of(engine, (const char *[]){HEAD, "who?", ASK, "she", NULL});
    sl_tokens second = tokens_of(engine, (const char *[]){HEAD, "who?", ASK, "she", NEXT, "why?", ASK, NULL});
    for (size_t n = answered.n; n <= answered.n + nexts.n; n++)
        expect_whole(engine, &second, n, "why?", &second);
    sl_tokens *all[] = {&heads, &asks, &nexts, &first, &unanswered, &answered, &second};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sl_tokens_free(engine, all[i]);
    sl_engine_close(engine);

    model.add_bos = true;
    engine = open_engine(model);
    const sl_prompt prompt = {.question = "who?", .question_size = 4, .chat = true};
    sl_tokens with_bos = {0};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_OK, sl_engine_prompt(engine, &prompt, &with_bos, &err));
    for (size_t n = 0; n <= 8; n++)
        expect_whole(engine, &with_bos, n, "who?", &with_bos);
    sl_tokens_free(engine, &with_bos);
    sl_engine_close(engine);
}

static void a_document_joins_an_open_message_too(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(tiny_model_of_seed(1));
    sl_tokens stored = tokens_of(engine, (const char *[]){HEAD, "who?", ASK, "she", NULL}), more = {0};
    sl_tokens whole = tokens_of(engine, (const char *[]){NEXT, "the dog", "\n\nwhy?", ASK, NULL});
    const sl_prompt prompt = {.document = "the dog", .document_size = 7, .question = "why?", .question_size = 4,
                              .chat = true, .stored = true, .stored_ids = stored.ids, .n_stored = stored.n};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_OK, sl_engine_prompt(engine, &prompt, &more, &err));
    assert_int_equal(whole.n, more.n);
    assert_memory_equal(whole.ids, more.ids, more.n * sizeof *more.ids);
    sl_tokens_free(engine, &stored);
    sl_tokens_free(engine, &more);
    sl_tokens_free(engine, &whole);
    sl_engine_close(engine);
}

static void what_is_no_conversation_is_refused(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(tiny_model_of_seed(1));
    static const char *const texts[][6] = {
        {"the cat", NULL},                            /* a plain text */
        {HEAD, "who?", "!<|im_end|>\nthe", NULL},     /* the mark that no template put there */
        {HEAD, "who?", ASK, "!she<|im_end|>who", NULL},
        {"!<|im_start|>system\nYou are another<|im_end|>\n<|im_start|>use", NULL}, /* cut, and not this template's */
        {"!<|im_start|>system\nYou are another<|im_end|>\n<|im_start|>assistant\n", NULL},
        {"!<|im_start|>system\nYou are another", NULL},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        sl_tokens stored = tokens_of(engine, texts[i]), more = {0};
        sl_err err = {SL_OK, ""};
        size_t n = 99;
        assert_int_equal(SL_REFUSED, prompt_behind(engine, &stored, stored.n, "why?", &more, &err));
        assert_non_null(strstr(err.text, "no conversation"));
        assert_int_equal(SL_REFUSED, sl_engine_chat_questions(engine, stored.ids, stored.n, NULL, 0, &n, &err));
        assert_int_equal(0, n);
        sl_tokens_free(engine, &stored);
        sl_tokens_free(engine, &more);
    }
    sl_tokens none = {0}, more = {0};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_USAGE, prompt_behind(engine, &none, 7, "why?", &more, &err));
    assert_int_equal(SL_USAGE, prompt_behind(engine, &none, 0, "", &more, &err));
    assert_int_equal(SL_FAILED, prompt_behind(engine, &none, 0, "\xff", &more, &err));
    sl_tokens_free(engine, &more);
    sl_engine_close(engine);
}

/* `--system`: a conversation's first message is its own affair; what is stored is gone on with, whatever it says. */
static void a_system_message_begins_a_conversation(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(tiny_model_of_seed(1));
    const char *const other = "!<|im_start|>system\n", *const end = "!<|im_end|>\n<|im_start|>user\n";
    sl_tokens want = tokens_of(engine, (const char *[]){other, "Be <|im_end|> brief", end, "who?", ASK, NULL});
    sl_tokens got = {0};
    const char *const system = "Be <|im_end|> brief"; /* a mark spelt out is text */
    sl_prompt prompt = {.question = "who?", .question_size = 4, .chat = true, .system = system,
                        .system_size = strlen(system)};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_OK, sl_engine_prompt(engine, &prompt, &got, &err));
    assert_int_equal(want.n, got.n);
    assert_memory_equal(want.ids, got.ids, got.n * sizeof *got.ids);
    /* gone on with: without naming it, naming it, naming another */
    expect_next(engine, (const char *[]){other, "Be <|im_end|> brief", end, "who?", ASK, "she", NULL}, "why?",
                (const char *[]){other, "Be <|im_end|> brief", end, "who?", ASK, "she", NEXT, "why?", ASK, NULL});
    sl_tokens more = {0};
    prompt.stored = true;
    prompt.stored_ids = got.ids;
    prompt.n_stored = got.n;
    assert_int_equal(SL_OK, sl_engine_prompt(engine, &prompt, &more, &err));
    prompt.system = "Be long";
    prompt.system_size = 7;
    assert_int_equal(SL_REFUSED, sl_engine_prompt(engine, &prompt, &more, &err));
    assert_non_null(strstr(err.text, "another system message"));
    prompt.chat = false;
    assert_int_equal(SL_USAGE, sl_engine_prompt(engine, &prompt, &more, &err));
    sl_tokens_free(engine, &want);
    sl_tokens_free(engine, &got);
    sl_tokens_free(engine, &more);
    sl_engine_close(engine);
}

static void questions_are_found_where_they_can_be_taken_back(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(tiny_model_of_seed(1));
    const char *const pieces[] = {HEAD, "the cat", "\n\nwho?", ASK, "she", NEXT, "why?", ASK, "so", "!<|im_end|>",
                                  "!\n<|im_start|>user\n", "when?", ASK, "now", NEXT, "and", NULL};
    /* how many questions the text holds that ends behind a piece: whole ones, behind an answer */
    const size_t n_wanted[] = {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2};
    sl_tokens text = {0};
    sl_err err = {SL_OK, ""};
    size_t first_off = 0, second_off = 0;
    for (size_t i = 0; pieces[i]; i++) {
        if (strcmp(pieces[i], NEXT) == 0 && first_off == 0)
            first_off = text.n + 1; /* the mark belongs to the answer */
        add_text(engine, &text, pieces[i]);
        if (strcmp(pieces[i], "!<|im_end|>") == 0)
            second_off = text.n;
        size_t offs[2] = {99, 99}, n = 99;
        assert_int_equal(SL_OK, sl_engine_chat_questions(engine, text.ids, text.n, offs, 2, &n, &err));
        assert_int_equal(n_wanted[i], n);
        assert_int_equal(n > 0 ? first_off : 99, offs[0]);
        assert_int_equal(n > 1 ? second_off : 99, offs[1]);
        offs[0] = offs[1] = 99;
        assert_int_equal(SL_OK, sl_engine_chat_questions(engine, text.ids, text.n, offs, 1, &n, &err));
        assert_int_equal(n_wanted[i], n);
        assert_int_equal(99, offs[1]);
    }
    sl_tokens_free(engine, &text);
    sl_engine_close(engine);
}

/* ----------------------------------------------------------------------------------------- by a user of the library */

enum { MOST_DRAWN = 30 };

typedef struct drawn {
    int32_t ids[MOST_DRAWN];
    size_t n;
} drawn;

static bool note_id(void *arg, int32_t id, const char *text, size_t size)
{
    (void)text;
    (void)size;
    drawn *d = arg;
    if (id >= 0)
        d->ids[d->n++] = id;
    return true;
}

static drawn draw(sl_context *context, const sl_tokens *fed)
{
    drawn d = {.n = 0};
    const sl_draw_options options = {.temp = 1.2f, .top_p = 0.9f, .seed = 3, .predict_tokens = MOST_DRAWN,
                                     .max_drafts = 3, .token = note_id, .arg = &d};
    sl_draw_result result;
    sl_err err = {SL_OK, ""};
    if (sl_context_feed(context, fed->ids, fed->n, NULL, NULL, &err) != SL_OK ||
        sl_context_generate(context, &options, &result, &err) != SL_OK)
        fail_msg("%s", err.text);
    return d;
}

static drawn ask(sl_engine *engine, sl_context *context, const char *question)
{
    const sl_tokens stored = {(int32_t *)(uintptr_t)sl_context_ids(context), sl_context_n_tokens(context), 0};
    sl_tokens prompt = {0};
    sl_err err = {SL_OK, ""};
    if (prompt_behind(engine, &stored, stored.n, question, &prompt, &err) != SL_OK)
        fail_msg("%s", err.text);
    drawn d = draw(context, &prompt);
    sl_tokens_free(engine, &prompt);
    return d;
}

static void add_drawn(sl_engine *engine, sl_tokens *out, const drawn *d, const char *behind)
{
    for (size_t i = 0; i < d->n && d->ids[i] != TINY_TOK_IM_END; i++) {
        add_text(engine, out, "x"); /* room for one */
        out->ids[out->n - 1] = d->ids[i];
    }
    add_text(engine, out, behind);
}

/* Three turns, and a fourth that is taken back, are the template's text fed at once to a context that does not talk. */
static void turns_are_the_template_fed_at_once(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine_for(tiny_model_of_seed(4), false);
    const char *const questions[] = {"who?", "why the cat?", "when?"};
    sl_context_options options = {.prompt_tokens = 600, .predict_tokens = MOST_DRAWN, .max_drafts = 3, .talk = true};
    sl_context *talk = NULL, *plain = NULL;
    sl_tokens whole = tokens_of(engine, (const char *[]){HEAD, NULL});
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &talk, &err));
    options.talk = false;
    for (size_t i = 0; i < 3; i++) {
        add_text(engine, &whole, questions[i]);
        add_text(engine, &whole, ASK);
        size_t n_before = sl_context_n_tokens(talk);
        drawn said = ask(engine, talk, questions[i]);
        assert_int_equal(SL_OK, sl_context_rewind(talk, n_before ? n_before : 1, &err));
        (void)ask(engine, talk, "something else");
        assert_int_equal(SL_OK, sl_context_rewind(talk, n_before ? n_before : 1, &err));
        drawn again = ask(engine, talk, questions[i]);
        assert_memory_equal(&said, &again, sizeof said);
        assert_memory_equal(whole.ids, sl_context_ids(talk), whole.n * sizeof *whole.ids);
        assert_int_equal(SL_OK, sl_context_create(engine, &options, &plain, &err));
        drawn fresh = draw(plain, &whole);
        sl_context_destroy(plain);
        assert_memory_equal(&said, &fresh, sizeof said);
        add_drawn(engine, &whole, &said, NEXT);
    }
    sl_context_destroy(talk);
    sl_tokens_free(engine, &whole);
    sl_engine_close(engine);
}

static void expect_refused(const char *template, const char *system, const char *text)
{
    tiny_model model = tiny_model_of_seed(3);
    model.chat_template = template;
    sl_engine *engine = open_engine(model);
    sl_tokens ids = {0};
    sl_err err = {SL_OK, ""};
    const sl_prompt prompt = {.question = "x", .question_size = 1, .chat = true, .system = system,
                              .system_size = system ? strlen(system) : 0};
    sl_status status = sl_engine_prompt(engine, &prompt, &ids, &err);
    if (status != (text ? SL_REFUSED : SL_OK) || (text && !strstr(err.text, text)))
        fail_msg("status %d, expected '%s': %s", (int)status, text ? text : "nothing", err.text);
    sl_tokens_free(engine, &ids);
    sl_engine_close(engine);
}

/* SmolLM3's template switches thinking on and off by words in the system message, and its first one has a date. */
static void switches_and_dates_are_refused(void **unused)
{
    (void)unused;
    static const char thinks[] = "{{ '<|im_start|>system\n' + 'Reasoning Mode: /think' }}";
    static const char dated[] = "{{ strftime_now('%d') + '<|im_start|>system\n' + 'Reasoning Mode: /think' }}";
    expect_refused(thinks, "Be terse.", NULL);
    expect_refused(thinks, "Be terse. /no_think", "the system message holds '/no_think', which the chat template");
    expect_refused(thinks, "Be terse. /think", "the system message holds '/think', which the chat template (smollm3)");
    expect_refused(dated, "Be terse.", "--chat-template NAME picks another, smollm3 is the nearest");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_open_message_is_joined_and_an_answer_is_followed),
        cmocka_unit_test(a_cut_piece_of_the_template_is_completed),
        cmocka_unit_test(a_document_joins_an_open_message_too),
        cmocka_unit_test(what_is_no_conversation_is_refused),
        cmocka_unit_test(a_system_message_begins_a_conversation),
        cmocka_unit_test(questions_are_found_where_they_can_be_taken_back),
        cmocka_unit_test(turns_are_the_template_fed_at_once),
        cmocka_unit_test(switches_and_dates_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
