/* Conversations in every known chat template, against what Jinja renders (tests/golden/README.md). SLUICE_TEMPLATES
 * names another golden file, of published templates: those that the engine refuses are told, the others are equal. */
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

#include "common/gguf_build.h"
#include "common/tok_tiny.h"

#ifndef GOLDEN_DIR
#error "GOLDEN_DIR: the folder of the golden files"
#endif

enum { MAX_MARKS = 32, KEY_BYTES = 32 };

/* One line "key size", the bytes, a newline. Texts are terminated; owned by caller. */
static bool next_item(FILE *file, char key[KEY_BYTES], char **out)
{
    size_t size;
    if (fscanf(file, "%31s %zu", key, &size) != 2 || fgetc(file) != '\n')
        return false;
    char *text = calloc(1, size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, size, file), size);
    assert_int_equal(fgetc(file), '\n');
    *out = text;
    return true;
}

/* What a record says of the model. */
typedef struct model {
    char *name, *template, *bos, *eos, *eot;
    char *marks[MAX_MARKS];
    size_t n_marks;
} model;

static void model_free(model *m)
{
    for (size_t i = 0; i < m->n_marks; i++)
        free(m->marks[i]);
    free(m->name);
    free(m->template);
    free(m->bos);
    free(m->eos);
    free(m->eot);
    *m = (model){0};
}

static int32_t add_token(const char **tokens, int32_t *kinds, size_t *n, const char *text)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(tokens[i], text) == 0)
            return (int32_t)i;
    tokens[*n] = text;
    kinds[*n] = SL_TOK_KIND_CONTROL;
    return (int32_t)(*n)++;
}

/* The 256 bytes, one merge, the marks. */
static sl_engine *open_engine(const model *m, const char *family)
{
    static char bytes[256][4];
    const char *tokens[257 + MAX_MARKS + 3], *const merges[] = {"h e"};
    int32_t kinds[257 + MAX_MARKS + 3];
    size_t n = 0;
    for (; n < 256; n++) {
        sl_tok_text spelt = tok_tiny_spell(bytes[n], (int)n);
        bytes[n][spelt.size] = '\0';
        tokens[n] = bytes[n];
        kinds[n] = SL_TOK_KIND_NORMAL;
    }
    tokens[n] = "he";
    kinds[n++] = SL_TOK_KIND_NORMAL;
    for (size_t i = 0; i < m->n_marks; i++)
        add_token(tokens, kinds, &n, m->marks[i]);
    int32_t bos = add_token(tokens, kinds, &n, m->bos), eos = add_token(tokens, kinds, &n, m->eos);
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_string(&build, "tokenizer.ggml.model", "gpt2");
    gguf_build_string(&build, "tokenizer.ggml.pre", "gpt-2");
    gguf_build_uint(&build, "tokenizer.ggml.bos_token_id", SL_GGUF_TYPE_U32, (uint32_t)bos);
    gguf_build_uint(&build, "tokenizer.ggml.eos_token_id", SL_GGUF_TYPE_U32, (uint32_t)eos);
    if (m->eot)
        gguf_build_uint(&build, "tokenizer.ggml.eot_token_id", SL_GGUF_TYPE_U32,
                        (uint32_t)add_token(tokens, kinds, &n, m->eot));
    gguf_build_strings(&build, "tokenizer.ggml.tokens", n, tokens);
    gguf_build_strings(&build, "tokenizer.ggml.merges", 1, merges);
    gguf_build_array(&build, "tokenizer.ggml.token_type", SL_GGUF_TYPE_I32, n, kinds, n * sizeof *kinds);
    gguf_build_string(&build, "tokenizer.chat_template", m->template);
    char path[256];
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/sluice-templates-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    assert_true(gguf_build_write(&build, path));
    gguf_build_deinit(&build);
    const sl_engine_options options = {.model_path = path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 1,
                                       .vocab_only = true, .chat_template = family};
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    if (sl_engine_open(&options, &engine, &err) != SL_OK)
        fail_msg("%s: %s", m->name, err.text);
    unlink(path);
    return engine;
}

typedef struct conversation {
    sl_tokens ids;
    char *system;
    bool is_refused;
    size_t n_turns;
} conversation;

static void ask(sl_engine *engine, const model *m, conversation *c, const char *text, bool is_strict)
{
    const sl_prompt prompt = {.question = text, .question_size = strlen(text), .chat = true, .stored = c->ids.n > 0,
                              .stored_ids = c->ids.ids, .n_stored = c->ids.n,
                              .system = c->n_turns == 0 ? c->system : NULL,
                              .system_size = c->system ? strlen(c->system) : 0};
    sl_tokens more = {0};
    sl_err err = {SL_OK, ""};
    sl_status status = sl_engine_prompt(engine, &prompt, &more, &err);
    if (status == SL_REFUSED && !is_strict) {
        c->is_refused = true;
        print_message("%s, %s system message: %s\n", m->name, c->system ? "a" : "no", err.text);
    } else if (status != SL_OK) {
        fail_msg("%s, turn %zu: %s", m->name, c->n_turns + 1, err.text);
    }
    for (size_t i = 0; i < more.n; i++) { /* room comes with a letter's token */
        assert_int_equal(sl_engine_tokenize(engine, "x", 1, false, &c->ids, NULL, &err), SL_OK);
        c->ids.ids[c->ids.n - 1] = more.ids[i];
    }
    c->n_turns++;
    sl_tokens_free(engine, &more);
}

typedef struct text {
    char data[16384];
    size_t n;
} text;

static bool collect(void *arg, const char *bytes, size_t size)
{
    text *t = arg;
    assert_true(size < sizeof t->data - t->n);
    memcpy(t->data + t->n, bytes, size);
    t->n += size;
    return true;
}

static bool expect_text(sl_engine *engine, const model *m, const conversation *c, const char *want)
{
    static text got;
    sl_err err = {SL_OK, ""};
    got.n = 0;
    assert_int_equal(sl_engine_detokenize(engine, c->ids.ids, c->ids.n, true, collect, &got, &err), SL_OK);
    got.data[got.n] = '\0';
    size_t n_questions = 99;
    assert_int_equal(sl_engine_chat_questions(engine, c->ids.ids, c->ids.n, NULL, 0, &n_questions, &err), SL_OK);
    assert_int_equal(n_questions, c->n_turns - 1);
    if (strcmp(got.data, want) == 0)
        return true;
    print_error("%s, %zu turns, %s system message:\n---- engine\n%s\n---- Jinja\n%s\n", m->name, c->n_turns,
                c->system ? "a" : "no", got.data, want);
    return false;
}

/* Conversations up to the record's end; returns how many texts differ. */
static size_t run_record(FILE *file, model *m, const char *family, bool is_strict, size_t *n_texts)
{
    sl_engine *engine = open_engine(m, family);
    conversation c = {0};
    char key[KEY_BYTES], *item;
    size_t n_wrong = 0;
    for (bool is_end = false; !is_end && next_item(file, key, &item);) {
        sl_err err = {SL_OK, ""};
        is_end = strcmp(key, "end") == 0;
        if (strcmp(key, "system") == 0) {
            c.system = item;
            continue;
        }
        if (strcmp(key, "user") == 0 && !c.is_refused)
            ask(engine, m, &c, item, is_strict);
        else if (strcmp(key, "answer") == 0 && !c.is_refused)
            assert_int_equal(sl_engine_tokenize(engine, item, strlen(item), false, &c.ids, NULL, &err), SL_OK);
        if (strcmp(key, "text") == 0) {
            if (!c.is_refused) {
                n_wrong += !expect_text(engine, m, &c, item);
                ++*n_texts;
            }
            sl_tokens_free(engine, &c.ids);
            free(c.system);
            c = (conversation){0};
        }
        free(item);
    }
    sl_tokens_free(engine, &c.ids);
    sl_engine_close(engine);
    return n_wrong;
}

static size_t run_file(const char *path, bool is_strict, size_t *n_texts)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    model m = {0};
    char key[KEY_BYTES], *item;
    size_t n_wrong = 0;
    const struct {
        const char *key;
        char **out;
    } fields[] = {{"name", &m.name}, {"template", &m.template}, {"bos", &m.bos}, {"eos", &m.eos}, {"eot", &m.eot}};
    for (long at = 0; next_item(file, key, &item); at = ftell(file)) {
        char **out = NULL;
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
            out = strcmp(key, fields[i].key) == 0 ? fields[i].out : out;
        if (!out && strcmp(key, "mark") == 0 && m.n_marks < MAX_MARKS)
            out = &m.marks[m.n_marks++];
        if (out) {
            *out = item;
            continue;
        }
        free(item); /* of the first conversation: read again */
        assert_int_equal(fseek(file, at, SEEK_SET), 0);
        n_wrong += run_record(file, &m, NULL, is_strict, n_texts);
        /* by name it is the same, but for a system message that the template spells out */
        if (is_strict && !strstr(m.template, "You are of use")) {
            assert_int_equal(fseek(file, at, SEEK_SET), 0);
            n_wrong += run_record(file, &m, m.name, true, n_texts);
        }
        model_free(&m);
    }
    fclose(file);
    return n_wrong;
}

static void conversations_are_what_jinja_renders(void **unused)
{
    (void)unused;
    size_t n_texts = 0;
    const char *path = getenv("SLUICE_TEMPLATES");
    assert_int_equal(run_file(path ? path : GOLDEN_DIR "/templates.golden", path == NULL, &n_texts), 0);
    print_message("%zu conversations\n", n_texts);
    assert_true(n_texts > 300 || path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(conversations_are_what_jinja_renders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
