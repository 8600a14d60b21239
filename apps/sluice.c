/* The command line: one subcommand a file. Exit codes: 0 done, 1 failed, 2 usage, 3 refused before work, 4 damaged or
 * foreign file, 130 interrupted. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv, sl_err *err);
} commands[] = {
    {"run", "answer a question about a text, its KV cache on flash", cmd_run},
    {"chat", "hold a conversation, about a context file or none", cmd_chat},
    {"prefill", "read texts into a context file, to be asked for ever", cmd_prefill},
    {"score", "log-probability of every token of a text", cmd_score},
    {"plan", "what a context of some length will take, before it is made", cmd_plan},
    {"tokenize", "token ids of a text", cmd_tokenize},
    {"inspect", "what a model file or a context file holds", cmd_inspect},
    {"verify", "whether a context file is whole, to the last byte", cmd_verify},
    {"repair", "make a damaged context file whole again", cmd_repair},
    {"fork", "a context file of the first tokens of another", cmd_fork},
    {"export-text", "the text of a context file", cmd_export_text},
    {"rm", "remove context files", cmd_rm},
    {"bench", "measure this machine's flash, bursts and prefills", cmd_bench},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *file)
{
    fprintf(file, "sluice runs language models over contexts larger than memory: the KV cache lies on flash,\n"
                  "attention over it is exact.\n\nusage: sluice COMMAND [options]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].about);
    fprintf(file, "\n'sluice COMMAND --help' tells more. Example:\n"
                  "  sluice run -m model.gguf -f book.txt -p \"Who wrote this?\" --chat --ram 1G\n");
}

static int usage_error(const char *word)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *nearest = sl_args_nearest(word, names, N_COMMANDS);
    fprintf(stderr, "sluice: unknown command '%s'%s%s%s (see 'sluice --help')\n", word,
            nearest ? ", did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
    return SL_USAGE;
}

/* A program may be started without standard input, output or error. The next file opened would take the number, and
 * what is printed would go into it: so the numbers are taken first. */
static bool take_standard_files(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return false;
    return true;
}

/* What was printed must have got there. */
static int finish(const char *word, int code)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == SL_OK) {
        fprintf(stderr, "sluice%s%s: cannot write to standard output\n", *word ? " " : "", word);
        return SL_FAILED;
    }
    return code;
}

int main(int argc, char **argv)
{
    if (!take_standard_files())
        return SL_FAILED;
    if (argc < 2) {
        print_help(stderr);
        return SL_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help(stdout);
        return finish("", SL_OK);
    }
    if (strcmp(word, "--version") == 0) {
        printf("sluice %s, arithmetic %d\n", SL_VERSION, SL_ARITHMETIC_VERSION);
        return finish("", SL_OK);
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(word, commands[i].name) != 0)
            continue;
        sl_err err = {SL_OK, ""};
        int code = commands[i].run(argc - 2, argv + 2, &err);
        if (code != SL_OK && err.text[0])
            fprintf(stderr, "sluice %s: %s\n", word, err.text);
        return finish(word, code);
    }
    return usage_error(word);
}
