#include "api/chat_family.h"

#include <stdio.h>
#include <string.h>

#include "api/chat_exact.h"

#define CHATML(mark_a, mark_b, ...)                                                                                    \
    .marks = {mark_a, mark_b}, .start = "", .system = {"<|im_start|>system\n", "<|im_end|>\n"},                        \
    .user = "<|im_start|>user\n", .ask = "<|im_end|>\n<|im_start|>assistant\n", .end = "<|im_end|>\n", __VA_ARGS__
#define LLAMA3                                                                                                         \
    .start = "", .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},                           \
    .user = "<|start_header_id|>user<|end_header_id|>\n\n",                                                            \
    .ask = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", .end = "<|eot_id|>", .trims = true,     \
    .trims_system = true
#define GEMMA                                                                                                          \
    .start = "", .user = "<start_of_turn>user\n", .ask = "<end_of_turn>\n<start_of_turn>model\n",                      \
    .end = "<end_of_turn>\n", .trims = true
#define SMOLLM3_HEAD                                                                                                   \
    "## Metadata\n\nKnowledge Cutoff Date: June 2025\nReasoning Mode: /think\n\n## Custom Instructions\n\n"
#define DATED "writes today's date into the system message: what is stored would differ from what is written tomorrow"

/* More particular ones stand before more general ones. */
static const sl_chat_family families[] = {
    /* Llama 3.1 to 3.3: the date is the one that the template itself takes where it cannot ask for today's */
    {.name = "llama3.1", .marks = {"<|start_header_id|>", "Cutting Knowledge Date: December 2023"},
     .fixed = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", LLAMA3},
    {.name = "llama3", .marks = {"<|start_header_id|>", "<|eot_id|>"}, .lacks = {"Cutting Knowledge Date"}, LLAMA3},
    {.name = "phi4", .marks = {"<|im_start|>", "<|im_sep|>"}, .start = "",
     .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"}, .user = "<|im_start|>user<|im_sep|>",
     .ask = "<|im_end|><|im_start|>assistant<|im_sep|>", .end = "<|im_end|>"},
    {.name = "smollm3-dated", .marks = {"<|im_start|>", "Reasoning Mode", "strftime_now"}, .refusal = DATED,
     .kin = "smollm3"},
    {.name = "smollm3", .fixed = SMOLLM3_HEAD, .tail = "\n\n", .forbids = {"/think", "/no_think"},
     .trims_system_end = true, CHATML("<|im_start|>", "Reasoning Mode", .lacks = {"strftime_now"})},
    /* https://github.com/openai/openai-python/blob/v0.28.1/chatml.md: SmolLM2, Qwen 2, 2.5 and 3, Hermes */
    {.name = "chatml", CHATML("<|im_start|>", "<|im_end|>", .lacks = {"<|im_sep|>"})},
    {.name = "gemma3", .marks = {"<start_of_turn>", "first_user_prefix"}, .joined = {"", "\n\n"}, GEMMA},
    {.name = "gemma", .marks = {"<start_of_turn>", "<end_of_turn>"}, .kin = "gemma3", GEMMA},
    {.name = "mistral-v7", .marks = {"[SYSTEM_PROMPT] ", "[INST] "}, .start = "",
     .system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"}, .user = "[INST] ", .ask = "[/INST]", .end = "\x02"},
    {.name = "mistral-v7-tekken", .marks = {"[SYSTEM_PROMPT]", "[INST]", "[/INST]"}, .start = "",
     .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}, .user = "[INST]", .ask = "[/INST]", .end = "\x02"},
    {.name = "mistral-v3-tekken", .marks = {"[AVAILABLE_TOOLS]", "\"[INST]\""}, .joined = {"", "\n\n"}, .start = "",
     .user = "[INST]", .ask = "[/INST]", .end = "\x02"},
    {.name = "mistral-v3", .marks = {"[AVAILABLE_TOOLS]", "\"[INST] \"", "\"[/INST]\""}, .joined = {"", "\n\n"},
     .start = "", .user = "[INST] ", .ask = "[/INST]", .end = "\x02"},
    {.name = "llama2", .marks = {"<<SYS>>", "bos_token + '[INST] '", "' [/INST]'", ".strip()"},
     .joined = {"<<SYS>>\n", "\n<</SYS>>\n\n"}, .start = "", .user = "[INST] ", .ask = " [/INST]", .end = "\x02\x01",
     .trims = true},
    /* Mistral 7B v0.1, v0.2 and Mixtral: later templates have one space more in front, and system messages */
    {.name = "mistral-v1", .marks = {"' [INST] '", "' [/INST]'"}, .joined = {"", "\n\n"}, .start = "",
     .user = " [INST] ", .ask = " [/INST]", .end = "\x02"},
    {.name = "mistral-v0", .marks = {"'[INST] '", "' [/INST]'"}, .start = "", .user = "[INST] ", .ask = " [/INST]",
     .end = "\x02"},
    {.name = "glm4", .marks = {"[gMASK]<sop>"}, .lacks = {"<think>"}, .start = "[gMASK]<sop>",
     .system = {"<|system|>\n", ""}, .user = "<|user|>\n", .ask = "<|assistant|>\n", .end = ""},
    {.name = "phi4-mini", .marks = {"'<|' + message['role'] + '|>' + message['content']", "<|end|>"}, .start = "",
     .system = {"<|system|>", "<|end|>"}, .user = "<|user|>", .ask = "<|end|><|assistant|>", .end = "<|end|>"},
    {.name = "phi3", .marks = {"<|end|>", "<|assistant|>"}, .lacks = {"<|channel|>", "[gMASK]"}, .start = "",
     .system = {"<|system|>\n", "<|end|>\n"}, .user = "<|user|>\n", .ask = "<|end|>\n<|assistant|>\n",
     .end = "<|end|>\n", .strips = true},
    /* TinyLlama, StableLM Zephyr as well */
    {.name = "zephyr", .marks = {"<|user|>", "<|assistant|>", "eos_token"}, .lacks = {"<|end|>", "[gMASK]"},
     .start = "", .system = {"<|system|>\n", "\x02\n"}, .user = "<|user|>\n", .ask = "\x02\n<|assistant|>\n",
     .end = "\x02\n"},
    /* DeepSeek R1 and what was distilled from it */
    {.name = "deepseek-r1", .marks = {"<｜User｜>", "<｜Assistant｜><think>\\n"}, .start = "", .system = {"", ""},
     .user = "<｜User｜>", .ask = "<｜Assistant｜><think>\n", .end = "\x02"},
    {.name = "deepseek-v3", .marks = {"<｜User｜>", "<｜Assistant｜>"}, .lacks = {"thinking"}, .start = "",
     .system = {"", ""}, .user = "<｜User｜>", .ask = "<｜Assistant｜>", .end = "\x02"},
};

enum { N_FAMILIES = sizeof families / sizeof families[0] };

static bool is_of(const sl_chat_family *family, const char *template)
{
    for (size_t i = 0; i < sizeof family->marks / sizeof family->marks[0] && family->marks[i]; i++)
        if (!strstr(template, family->marks[i]))
            return false;
    for (size_t i = 0; i < sizeof family->lacks / sizeof family->lacks[0] && family->lacks[i]; i++)
        if (strstr(template, family->lacks[i]))
            return false;
    return true;
}

const sl_chat_family *sl_chat_family_of(const char *template)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (is_of(&families[i], template))
            return families[i].refusal || sl_chat_is_exact(&families[i], template) ? &families[i] : NULL;
    return NULL;
}

const sl_chat_family *sl_chat_family_find(const char *name)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

const char *sl_chat_family_names(char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < N_FAMILIES && n < size; i++)
        if (!families[i].refusal)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n > 0 ? ", " : "", families[i].name);
    return out;
}

/* ChatML's templates spell it out between "<|im_start|>system", a newline (itself, or as the template language writes
 * it: backslash n) and "<|im_end|>". */
static const char *default_of_chatml(const char *template, size_t *size)
{
    static const char start[] = "<|im_start|>system";
    for (const char *at = strstr(template, start); at; at = strstr(at, start)) {
        at += sizeof start - 1;
        size_t newline = *at == '\n' ? 1 : at[0] == '\\' && at[1] == 'n' ? 2 : 0;
        const char *text = at + newline, *stop = strstr(text, "<|im_end|>");
        if (newline == 0 || !stop || stop == text || memchr(text, '\'', (size_t)(stop - text)) ||
            memchr(text, '{', (size_t)(stop - text)))
            continue;
        *size = (size_t)(stop - text);
        return text;
    }
    return NULL;
}

/* SmolLM3's: the first message of that beginning, up to the blank line that ends every one. */
static const char *default_of_smollm3(const char *template, size_t *size)
{
    const char *text = strstr(template, SL_CHAT_SMOLLM3_SYSTEM);
    const char *stop = text ? strstr(text, "\\n\\n") : NULL;
    *size = stop ? (size_t)(stop - text) : 0;
    return stop ? text : NULL;
}

const char *sl_chat_default_system(const sl_chat_family *family, const char *template, size_t *size, bool *is_dated)
{
    *size = 0;
    *is_dated = family->system[0] && (strstr(template, "strftime_now") || strstr(template, "default_system_message")) &&
                !family->fixed;
    if (strcmp(family->name, "smollm3") == 0)
        return default_of_smollm3(template, size);
    return strcmp(family->name, "chatml") == 0 ? default_of_chatml(template, size) : NULL;
}

bool sl_chat_takes_system(const sl_chat_family *family, const char *template)
{
    if (!family->system[0] && !family->joined[0])
        return false;
    /* where no role is named, any role's name is written as it is */
    return !template || strstr(template, "system") || strstr(template, "['role'] +") ||
           strstr(template, "['role'] }}");
}
