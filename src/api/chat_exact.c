#include "api/chat_exact.h"

#include <stdint.h>
#include <string.h>

enum { LITERAL_BYTES = 512 };

/* Hashes of published templates (template_hash), with the models that have them. */
static const struct known {
    uint64_t hash;
    const char *family;
} known[] = {
    {UINT64_C(0x2b03c19453e471a7), "chatml"}, /* Qwen 2.5 */
    {UINT64_C(0x4629b26c31e7abf0), "chatml"}, /* Qwen 3 */
    {UINT64_C(0x52a93058cb31d259), "chatml"}, /* Qwen 3 Coder */
    {UINT64_C(0x2bbfe3a6bfc24e6f), "chatml"}, /* MiMo */
    {UINT64_C(0xaebd5c0840840318), "llama3.1"}, /* Llama 3.1 */
    {UINT64_C(0x2d8337e903ecaade), "llama3.1"}, /* Llama 3.2 */
    {UINT64_C(0xaebd5c0840840318), "llama3.1"}, /* Llama 3.3 */
    {UINT64_C(0xa689973b57a9275e), "glm4"}, /* GLM-4 9B */
    {UINT64_C(0xe7fb8d795dad1ded), "mistral-v3-tekken"}, /* Mistral Nemo */
    {UINT64_C(0x31ea8370fde8db56), "mistral-v7-tekken"}, /* Devstral Small */
    {UINT64_C(0xded87104d1f8c21b), "mistral-v7-tekken"}, /* Mistral Small 3.2 */
    {UINT64_C(0x45c30ae8e90dbd75), "smollm3"}, /* SmolLM3, without the date */
};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/) over what is no white space: templates come with and without a
 * newline at the end, and indented or not. */
static uint64_t template_hash(const char *template)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *template; template++)
        if (!is_space(*template))
            hash = (hash ^ (uint8_t)*template) * UINT64_C(0x100000001b3);
    return hash;
}

/* ---------------------------------------------------------------------------------------------- what it spells out */

/* A literal or a stretch of plain text, its white space at the ends gone. */
typedef struct literal {
    char text[LITERAL_BYTES];
    size_t n;
    bool is_cut; /* longer than any that is allowed */
} literal;

static void literal_put(literal *l, char c)
{
    if (l->n == 0 && is_space(c))
        return;
    if (l->n + 1 < sizeof l->text)
        l->text[l->n++] = c;
    else
        l->is_cut = true;
}

static void literal_end(literal *l)
{
    while (l->n > 0 && is_space(l->text[l->n - 1]))
        l->n--;
    l->text[l->n] = '\0';
}

static bool is_part(const char *whole, const char *text)
{
    return whole && strstr(whole, text);
}

/* Names of roles and fields, and of the parts of messages with pictures, which are not for us. */
static const char *const words[] = {"role", "content", "system", "user", "assistant", "model", "metadata",
                                    "type", "text",    "image",  "<start_of_image>",
                                    "image_url", "[IMG]"};

static bool is_allowed(const sl_chat_family *f, const literal *l)
{
    static const char opening[] = "<|im_start|>system\n", closing[] = "<|im_end|>";
    if (l->n == 0)
        return true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(l->text, words[i]) == 0)
            return true;
    const char *const parts[] = {f->start, f->system[0], f->system[1], f->joined[0], f->joined[1],
                                 f->fixed, f->user,      f->ask,       f->end};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !l->is_cut; i++)
        if (is_part(parts[i], l->text))
            return true;
    size_t begins = sizeof SL_CHAT_SMOLLM3_SYSTEM - 1;
    if (strcmp(f->name, "smollm3") == 0 && strncmp(l->text, SL_CHAT_SMOLLM3_SYSTEM, begins) == 0)
        return true;
    /* ChatML's own system message, which chat_family.c finds */
    size_t size = sizeof opening - 1, end = sizeof closing - 1;
    return strcmp(f->name, "chatml") == 0 && l->n > size + end && memcmp(l->text, opening, size) == 0 &&
           strcmp(l->text + l->n - end, closing) == 0;
}

/* Behind the literal that begins at `at`, which goes into *l. */
static const char *read_literal(const char *at, literal *l)
{
    char quote = *at++;
    for (; *at && *at != quote; at++) {
        if (*at == '\\' && at[1]) {
            at++;
            literal_put(l, *at == 'n' ? '\n' : *at == 't' ? '\t' : *at);
        } else {
            literal_put(l, *at);
        }
    }
    literal_end(l);
    return *at ? at + 1 : at;
}

/* Does `what` stand in front of `at`, white space apart? */
static bool is_behind(const char *from, const char *at, const char *what)
{
    size_t n = strlen(what);
    while (at > from && is_space(at[-1]))
        at--;
    return (size_t)(at - from) >= n && memcmp(at - n, what, n) == 0;
}

/* A tag that gives the system message of conversations without one: chat.c refuses those where the template has it. */
static bool sets_default(const char *from)
{
    static const char set[] = "set default_system_message =";
    while (*from == '-' || is_space(*from))
        from++;
    return strncmp(from, set, sizeof set - 1) == 0;
}

/* Over a tag that ends with `end`; false: it spells something else. */
static bool read_tag(const sl_chat_family *f, const char **template, const char *end)
{
    const char *from = *template, *at = from;
    while (*at && strncmp(at, end, 2) != 0) {
        if (*at != '\'' && *at != '"') {
            at++;
            continue;
        }
        literal l = {.n = 0};
        bool is_unsaid = is_behind(from, at, "raise_exception(") || is_behind(from, at, "strftime_now(") ||
                         (f->system[0] && sets_default(from));
        at = read_literal(at, &l);
        if (!is_unsaid && !is_allowed(f, &l))
            return false;
    }
    *template = *at ? at + 2 : at;
    return true;
}

static bool spells_only(const sl_chat_family *f, const char *at)
{
    literal plain = {.n = 0};
    while (*at) {
        bool is_tag = at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#');
        if (!is_tag) {
            literal_put(&plain, *at++);
            continue;
        }
        literal_end(&plain);
        if (!is_allowed(f, &plain))
            return false;
        plain = (literal){.n = 0};
        char kind = at[1];
        const char *comment = kind == '#' ? strstr(at, "#}") : NULL;
        at = comment ? comment + 2 : at + 2;
        if (!comment && !read_tag(f, &at, kind == '{' ? "}}" : "%}"))
            return false;
    }
    literal_end(&plain);
    return is_allowed(f, &plain);
}

bool sl_chat_is_exact(const sl_chat_family *family, const char *template)
{
    uint64_t hash = template_hash(template);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].hash == hash && strcmp(known[i].family, family->name) == 0)
            return true;
    return spells_only(family, template);
}
