#include "tok/pretok.h"

#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tok/quote.h"

/* White space is Unicode's White_Space. PCRE2's own \s would add U+180E, and so would split differently. */
#define SPACE "\\t-\\r\\x{85}\\p{Z}"
#define SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define LINES "[" SPACE "]*[\\r\\n]+"
#define GPT2                                                                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACES
#define ENDINGS "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
/* The family of cl100k: they differ in how many digits stand together. */
#define CL100K(digits)                                                                                                 \
    "(?:" ENDINGS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|" LINES "|" SPACES
/* Words by case: small letters after capital ones, capital ones. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(ending, digits)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ending           \
    "|" digits "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES "|" SPACES
#define DEEPSEEK3                                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES "|" SPACES

enum { MAX_EXPRESSIONS = 5 };

static const struct pattern {
    const char *name;
    const char *expressions[MAX_EXPRESSIONS];
} patterns[] = {
    {"default", {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2", {GPT2}},
    {"smollm", {"\\p{N}", GPT2}},
    {"falcon", {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"llama-bpe", {CL100K("\\p{N}{1,3}")}},
    {"qwen2", {CL100K("\\p{N}")}},
    {"qwen35", {"(?:" ENDINGS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                "| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES "|" SPACES}},
    {"tekken", {CASED("", "\\p{N}")}},
    {"gpt-4o", {CASED("(?:" ENDINGS ")?", "\\p{N}{1,3}")}},
    {"deepseek-v3", {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK3}},
    {"deepseek-coder", {"[\\r\\n]", "[" SPACE "]?\\p{L}+", "[" SPACE "]?\\p{P}+",
                        "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+", "\\p{N}"}},
};

/* Other names of the same. */
static const struct alias {
    const char *name, *of;
} aliases[] = {
    {"llama3", "llama-bpe"},        {"llama-v3", "llama-bpe"},   {"pixtral", "llama-bpe"},
    {"falcon3", "llama-bpe"},       {"lfm2", "llama-bpe"},       {"glm4", "llama-bpe"},
    {"chatglm-bpe", "llama-bpe"},   {"dbrx", "llama-bpe"},       {"smaug-bpe", "llama-bpe"},
    {"stablelm2", "qwen2"},         {"deepseek-r1-qwen", "qwen2"}, {"megrez", "qwen2"},
    {"hunyuan", "qwen2"},           {"llama4", "gpt-4o"},        {"hunyuan-dense", "deepseek-v3"},
    {"phi-2", "gpt-2"},             {"mpt", "gpt-2"},            {"olmo", "gpt-2"},
    {"starcoder", "smollm"},        {"refact", "smollm"},        {"command-r", "smollm"},
    {"codeshell", "smollm"},        {"exaone", "smollm"},        {"minerva-7b", "smollm"},
};

/* Names of which the models' own tokenizers take a piece that is a token as it is. */
static const char *const whole_pieces[] = {"llama-bpe", "llama3", "llama-v3", "pixtral", "falcon3", "lfm2", "tekken"};

struct sl_pretok {
    sl_budget *budget;
    sl_err fault; /* the last allocation that PCRE2 was refused */
    pcre2_general_context *context;
    pcre2_match_data *match;
    pcre2_code *codes[MAX_EXPRESSIONS];
    size_t n_codes;
};

static void *count_malloc(size_t bytes, void *arg)
{
    sl_pretok *pretok = arg;
    void *ptr;
    return sl_mem_new(pretok->budget, bytes, 1, "split patterns", &ptr, &pretok->fault) == SL_OK ? ptr : NULL;
}

static void count_free(void *ptr, void *arg)
{
    sl_mem_free(((sl_pretok *)arg)->budget, ptr);
}

static bool is_name(sl_tok_text name, const char *other)
{
    return strlen(other) == name.size && memcmp(other, name.data, name.size) == 0;
}

static const struct pattern *pattern_find(sl_tok_text name)
{
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (is_name(name, aliases[i].name))
            return pattern_find((sl_tok_text){aliases[i].of, strlen(aliases[i].of)});
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (is_name(name, patterns[i].name))
            return &patterns[i];
    return NULL;
}

bool sl_pretok_ignores_merges(sl_tok_text name)
{
    for (size_t i = 0; i < sizeof whole_pieces / sizeof *whole_pieces; i++)
        if (is_name(name, whole_pieces[i]))
            return true;
    return false;
}

bool sl_pretok_default_bos(sl_tok_text name)
{
    return sl_pretok_ignores_merges(name) && !is_name(name, "tekken");
}

static sl_status pattern_refuse(sl_tok_text name, sl_err *err)
{
    char known[192];
    size_t n = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", patterns[i].name);
    if (name.size == 0)
        return sl_err_set(err, SL_REFUSED, "tokenizer: no split pattern (tokenizer.ggml.pre) given, known are %s",
                          known);
    return sl_err_set(err, SL_REFUSED, "tokenizer: unknown split pattern \"%s\" (tokenizer.ggml.pre), known are %s",
                      sl_quote_of(name).text, known);
}

static sl_status out_of_memory(const sl_pretok *pretok, sl_err *err)
{
    if (pretok->fault.status == SL_OK)
        return sl_err_set(err, SL_FAILED, "out of memory: split patterns");
    return sl_err_set(err, pretok->fault.status, "%s", pretok->fault.text);
}

static sl_status pattern_compile(sl_pretok *pretok, const struct pattern *pattern, sl_err *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(pretok->context);
    if (!context)
        return out_of_memory(pretok, err);
    sl_status status = SL_OK;
    for (size_t i = 0; i < MAX_EXPRESSIONS && pattern->expressions[i] && status == SL_OK; i++) {
        int error;
        PCRE2_SIZE off;
        pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern->expressions[i], PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP, &error, &off, context);
        if (!code) {
            status = error == PCRE2_ERROR_HEAP_FAILED
                         ? out_of_memory(pretok, err)
                         : sl_err_set(err, SL_FAILED, "PCRE2 cannot compile split pattern %s: error %d at %zu",
                                      pattern->name, error, (size_t)off);
            break;
        }
        /* Machine code halves the time of encoding. Where the system forbids making it, matching is interpreted. */
        (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
        pretok->codes[pretok->n_codes++] = code;
    }
    pcre2_compile_context_free(context);
    return status;
}

sl_status sl_pretok_create(sl_tok_text name, sl_budget *budget, sl_pretok **out, sl_err *err)
{
    *out = NULL;
    const struct pattern *pattern = pattern_find(name);
    if (!pattern)
        return pattern_refuse(name, err);
    sl_pretok *pretok;
    sl_status status = sl_mem_new(budget, 1, sizeof *pretok, "split patterns", &pretok, err);
    if (status != SL_OK)
        return status;
    pretok->budget = budget;
    pretok->context = pcre2_general_context_create(count_malloc, count_free, pretok);
    pretok->match = pretok->context ? pcre2_match_data_create(1, pretok->context) : NULL;
    status = pretok->match ? pattern_compile(pretok, pattern, err) : out_of_memory(pretok, err);
    if (status != SL_OK) {
        sl_pretok_destroy(pretok);
        return status;
    }
    *out = pretok;
    return SL_OK;
}

void sl_pretok_destroy(sl_pretok *pretok)
{
    if (!pretok)
        return;
    for (size_t i = 0; i < pretok->n_codes; i++)
        pcre2_code_free(pretok->codes[i]);
    pcre2_match_data_free(pretok->match);
    pcre2_general_context_free(pretok->context);
    sl_mem_free(pretok->budget, pretok);
}

/* The next match at or after `from`; *is_found false: none. */
static sl_status match_next(sl_pretok *pretok, size_t level, sl_tok_text text, size_t *from, size_t *to, bool *is_found,
                            sl_err *err)
{
    int result = pcre2_match(pretok->codes[level], (PCRE2_SPTR)text.data, text.size, *from, PCRE2_NO_UTF_CHECK,
                             pretok->match, NULL);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its state on the heap */
        result = pcre2_match(pretok->codes[level], (PCRE2_SPTR)text.data, text.size, *from,
                             PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, pretok->match, NULL);
    *is_found = result != PCRE2_ERROR_NOMATCH;
    if (!*is_found)
        return SL_OK;
    if (result == PCRE2_ERROR_NOMEMORY)
        return out_of_memory(pretok, err);
    if (result < 0)
        return sl_err_set(err, SL_FAILED, "PCRE2 failed to split the text: error %d at byte %zu of %zu", result, *from,
                          text.size);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(pretok->match);
    *from = range[0];
    *to = range[1];
    return SL_OK;
}

typedef struct splitter {
    sl_pretok *pretok;
    sl_pretok_fn fn;
    void *arg;
} splitter;

/* Cuts text by the expressions from `level` on. Recursion is as deep as a list is long: four. */
static sl_status split_level(const splitter *s, size_t level, sl_tok_text text, sl_err *err)
{
    if (text.size == 0)
        return SL_OK;
    if (level == s->pretok->n_codes)
        return s->fn(s->arg, text, err);
    sl_status status = SL_OK;
    for (size_t done = 0; done < text.size && status == SL_OK;) {
        size_t from = done, to = text.size;
        bool is_found;
        status = match_next(s->pretok, level, text, &from, &to, &is_found, err);
        if (status != SL_OK)
            return status;
        if (!is_found)
            from = text.size;
        status = split_level(s, level + 1, (sl_tok_text){text.data + done, from - done}, err);
        if (status == SL_OK && is_found)
            status = split_level(s, level + 1, (sl_tok_text){text.data + from, to - from}, err);
        done = to;
    }
    return status;
}

sl_status sl_pretok_split(sl_pretok *pretok, sl_tok_text text, sl_pretok_fn fn, void *arg, sl_err *err)
{
    const splitter s = {pretok, fn, arg};
    return split_level(&s, 0, text, err);
}
