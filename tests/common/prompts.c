#include "common/prompts.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *const prose[] = {
    "The ship came in at dusk, and nobody on the quay said a word.",
    "She had counted the steps twice; both times there was one more than the day before.",
    "In the third year of the drought the wells were deepened by hand.",
    "What he wanted was not advice but a witness.",
    "Rain fell on the tin roof all night. In the morning the river had moved.",
    "It is said of that town that its clocks agree only by accident.",
};
static const char *const code[] = {
    "for (size_t i = 0; i < n; i++)\n    sum += values[i] * weights[i];\n",
    "def area(width, height):\n    return width * height\n\n",
    "SELECT name, count(*) FROM books GROUP BY name ORDER BY 2 DESC;\n",
    "if (!file) {\n    perror(path);\n    return -1;\n}\n",
    "#include <stdio.h>\n\nint main(void)\n{\n    puts(\"hello\");\n    return 0;\n}\n",
    "let xs = [1, 2, 3].map(x => x * x).filter(x => x > 1);\n",
};
static const char *const lists[] = {
    "- apples\n- pears\n- plums\n- ",
    "1. Open the lid.\n2. Pour the water.\n3. ",
    "red; green; blue; cyan; magenta; ",
    "| year | rain |\n|---|---|\n| 1990 | 812 |\n| 1991 | 640 |\n",
    "monday, tuesday, wednesday, ",
    "[ ] milk\n[x] bread\n[ ] salt\n",
};
static const char *const repeated[] = {
    "la la la ",
    "abcabcabc",
    "the same words and the same words and ",
    "0101010101",
    "\n\n\n",
    "ha! ",
};
static const char *const little[] = {
    "a",
    " ",
    "\n",
    ".",
    "?",
    "0",
    "\t",
    "I",
};
static const char *const scripts[] = {
    "Der Fluss trug die K\xc3\xa4hne langsam zum Meer. ",
    "\xd0\x92 \xd0\xb4\xd0\xbe\xd0\xbc\xd0\xb5 \xd0\xb1\xd1\x8b\xd0\xbb\xd0\xbe \xd1\x82\xd0\xb8\xd1\x85\xd0\xbe. ",
    "\xe9\x9b\xa8\xe3\x81\x8c\xe9\x99\x8d\xe3\x82\x8b\xe3\x80\x82",
    "\xce\x97 \xce\xb8\xce\xac\xce\xbb\xce\xb1\xcf\x83\xcf\x83\xce\xb1 ",
    "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d ",
    "\xf0\x9f\x8c\x8a\xf0\x9f\x8c\x8a caf\xc3\xa9 ",
    "\xe6\xb2\xb3\xe6\xb0\xb4\xe5\xbe\x88\xe6\xb8\x85\xe3\x80\x82",
    "\xe0\xa4\xaa\xe0\xa4\xbe\xe0\xa4\xa8\xe0\xa5\x80 ",
};

static const struct {
    const char *const *parts;
    size_t n_parts, n_joined;
} kinds[] = {
    {prose, sizeof prose / sizeof *prose, 3},      {code, sizeof code / sizeof *code, 2},
    {lists, sizeof lists / sizeof *lists, 2},      {repeated, sizeof repeated / sizeof *repeated, 12},
    {little, sizeof little / sizeof *little, 1},   {scripts, sizeof scripts / sizeof *scripts, 4},
};

size_t prompt_make(size_t i, char out[PROMPT_BYTES])
{
    const size_t kind = i % 6, round = i / 6, n_parts = kinds[kind].n_parts;
    const size_t joined = kinds[kind].n_joined > 1 ? 1 + round % kinds[kind].n_joined : 1;
    size_t used = 0;
    out[0] = '\0';
    /* What repeats repeats one part; the others walk through theirs, from another one each round. */
    for (size_t k = 0; k < joined; k++) {
        const char *part = kinds[kind].parts[(round + (kind == 3 ? 0 : k * (1 + round / n_parts))) % n_parts];
        used += (size_t)snprintf(out + used, PROMPT_BYTES - used, "%s%s", part, kind == 0 ? " " : "");
    }
    /* No two are the same. */
    if (round >= n_parts && used + 16 < PROMPT_BYTES)
        used += (size_t)snprintf(out + used, PROMPT_BYTES - used, "%zu", round);
    return used;
}
