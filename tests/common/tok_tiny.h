/* A small tokenizer made in the test: the 256 bytes (less the lacking ones), then the given tokens and merges. */
#ifndef TESTS_TOK_TINY_H
#define TESTS_TOK_TINY_H

#include <stdio.h>
#include <string.h>

#include "tok/tok.h"

typedef struct tok_tiny_item {
    const char *text;
    int kind; /* of a token */
} tok_tiny_item;

typedef struct tok_tiny {
    const char *lacking;         /* bytes without a token; NULL: none. NUL cannot be among them */
    const tok_tiny_item *tokens; /* ids follow those of the bytes */
    size_t n_tokens;
    const char *const *merges; /* "left right" */
    size_t n_merges;
    size_t at_token, at_merge, at_kind; /* where the three walks stand */
    char spelling[4];
} tok_tiny;

/* Number of byte tokens; the id of a byte token is its place among them. */
static inline size_t tok_tiny_n_bytes(const tok_tiny *tiny)
{
    return 256 - (tiny->lacking ? strlen(tiny->lacking) : 0);
}

static inline bool tok_tiny_lacks(const tok_tiny *tiny, int byte)
{
    return byte != 0 && tiny->lacking && strchr(tiny->lacking, byte);
}

/* GPT-2's spelling of a byte, by its own rule: the bytes that are not printable get the numbers from 256 on. */
static inline sl_tok_text tok_tiny_spell(char *out, int byte)
{
    int c = 256;
    for (int b = 0; b <= byte; b++) {
        bool is_printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            c = is_printable ? b : c;
        else if (!is_printable)
            c++;
    }
    if (c < 0x80) {
        out[0] = (char)c;
        return (sl_tok_text){out, 1};
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return (sl_tok_text){out, 2};
}

static inline bool tok_tiny_token(void *arg, sl_tok_text *out)
{
    tok_tiny *tiny = arg;
    while (tiny->at_token < 256 && tok_tiny_lacks(tiny, (int)tiny->at_token))
        tiny->at_token++;
    size_t i = tiny->at_token++;
    if (i < 256) {
        *out = tok_tiny_spell(tiny->spelling, (int)i);
        return true;
    }
    if (i - 256 >= tiny->n_tokens)
        return false;
    *out = (sl_tok_text){tiny->tokens[i - 256].text, strlen(tiny->tokens[i - 256].text)};
    return true;
}

static inline bool tok_tiny_kind(void *arg, int *out)
{
    tok_tiny *tiny = arg;
    size_t i = tiny->at_kind++, n_bytes = tok_tiny_n_bytes(tiny);
    if (i >= n_bytes + tiny->n_tokens)
        return false;
    *out = i < n_bytes ? SL_TOK_KIND_NORMAL : tiny->tokens[i - n_bytes].kind;
    return true;
}

static inline bool tok_tiny_merge(void *arg, sl_tok_text *out)
{
    tok_tiny *tiny = arg;
    if (tiny->at_merge >= tiny->n_merges)
        return false;
    const char *text = tiny->merges[tiny->at_merge++];
    *out = (sl_tok_text){text, strlen(text)};
    return true;
}

/* `tiny` must outlive the call of sl_tok_create. */
static inline sl_tok_source tok_tiny_source(tok_tiny *tiny, const char *pattern)
{
    tiny->at_token = tiny->at_merge = tiny->at_kind = 0;
    return (sl_tok_source){.model = {"gpt2", 4},
                           .pattern = {pattern, strlen(pattern)},
                           .n_tokens = tok_tiny_n_bytes(tiny) + tiny->n_tokens,
                           .n_merges = tiny->n_merges,
                           .next_token = tok_tiny_token,
                           .next_merge = tok_tiny_merge,
                           .next_kind = tok_tiny_kind,
                           .arg = tiny,
                           .bos_id = -1,
                           .eos_id = -1,
                           .eot_id = -1};
}

#endif
